//! State shared by the tasks of one connection: session, budget and replies.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use flagstone_runtime::Buf;
use flagstone_runtime::net::Stream;
use flagstone_runtime::sync::Notify;

use crate::limits::{MAX_IN_FLIGHT, MAX_IN_FLIGHT_BYTES};
use crate::server::drain::Drain;
use crate::session::NbdSession;
use crate::wire::Errno;
use crate::wire::request::Cookie;

/// Reply to be sent, and the budget that it then releases.
#[derive(Debug)]
pub(crate) struct QueuedReply {
    pub(crate) cookie: Cookie,
    pub(crate) answer: ReplyBody,
    /// Payload bytes that the request holds of the budget.
    pub(crate) budget: usize,
}

#[derive(Debug)]
pub(crate) enum ReplyBody {
    Done,
    Data { offset: u64, data: Buf },
    Failed(Errno),
}

/// Server connection in its transmission phase.
pub(crate) struct NbdConnection {
    pub(crate) stream: Stream,
    pub(crate) session: NbdSession,
    replies: RefCell<VecDeque<QueuedReply>>,
    /// Requests received and unanswered, and their payload bytes.
    in_flight: Cell<usize>,
    bytes: Cell<usize>,
    /// Receiving has ended.
    pub(crate) ended: Cell<bool>,
    /// Sending has failed.
    pub(crate) broken: Cell<bool>,
    /// Signaled at server shutdown: new requests are refused.
    pub(crate) drain: Drain,
    /// Signaled when another connection takes over: no request starts any more.
    pub(crate) replaced: Option<Drain>,
    /// The peer is expected to read or to send bytes.
    pub(crate) sending: Cell<bool>,
    pub(crate) receiving_part: Cell<bool>,
    /// Changes whenever the peer reads or sends.
    pub(crate) progress: Rc<Cell<u64>>,
    pub(crate) sender: Notify,
    pub(crate) budget: Notify,
    pub(crate) watchdog: Notify,
    /// The watchdog waits for something to watch.
    pub(crate) watchdog_parked: Cell<bool>,
}

impl NbdConnection {
    pub(crate) fn new(
        stream: Stream,
        session: NbdSession,
        progress: Rc<Cell<u64>>,
        drain: Drain,
        replaced: Option<Drain>,
    ) -> NbdConnection {
        NbdConnection {
            stream,
            session,
            replies: RefCell::default(),
            in_flight: Cell::new(0),
            bytes: Cell::new(0),
            ended: Cell::new(false),
            broken: Cell::new(false),
            drain,
            replaced,
            sending: Cell::new(false),
            receiving_part: Cell::new(false),
            progress,
            sender: Notify::new(),
            budget: Notify::new(),
            watchdog: Notify::new(),
            watchdog_parked: Cell::new(false),
        }
    }

    /// True once another connection of the client has taken over.
    pub(crate) fn is_replaced(&self) -> bool {
        self.replaced.as_ref().is_some_and(Drain::has_begun)
    }

    /// Requests received and unanswered.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.get()
    }

    /// Admits a request into the budget, waiting until it fits.
    pub(crate) async fn admit(&self, bytes: usize) {
        let fits = || {
            let count = self.in_flight.get();
            let small = self.bytes.get() + bytes <= MAX_IN_FLIGHT_BYTES;
            count == 0 || (count < MAX_IN_FLIGHT && small) || self.broken.get()
        };
        if !fits() {
            self.budget.wait_for(|| fits().then_some(())).await;
        }
        self.in_flight.set(self.in_flight.get() + 1);
        self.bytes.set(self.bytes.get() + bytes);
    }

    /// Queues a reply, which is sent with all others that are ready in this turn.
    pub(crate) fn reply(&self, cookie: Cookie, answer: ReplyBody, budget: usize) {
        let mut replies = self.replies.borrow_mut();
        replies.push_back(QueuedReply { cookie, answer, budget });
        if replies.len() == 1 {
            drop(replies);
            self.sender.notify();
        }
    }

    pub(crate) fn next_reply(&self) -> Option<QueuedReply> {
        self.replies.borrow_mut().pop_front()
    }

    pub(crate) fn has_replies(&self) -> bool {
        !self.replies.borrow().is_empty()
    }

    /// Releases the budget of `requests` answered requests.
    pub(crate) fn answered(&self, requests: usize, bytes: usize) {
        self.in_flight.set(self.in_flight.get() - requests);
        self.bytes.set(self.bytes.get() - bytes);
        self.budget.notify();
    }

    /// Records that the peer has read what was sent.
    pub(crate) fn progressed(&self) {
        self.progress.set(self.progress.get().wrapping_add(1));
    }

    /// True while the peer delays a started request or a send.
    pub(crate) fn waits_for_peer(&self) -> bool {
        self.sending.get() || self.receiving_part.get()
    }

    /// Wakes the watchdog when the connection starts to wait for the peer.
    pub(crate) fn watch(&self) {
        if self.watchdog_parked.get() {
            self.watchdog.notify();
        }
    }

    /// Marks sending as failed, which also ends the receiver.
    pub(crate) fn break_off(&self) {
        self.broken.set(true);
        self.stream.shutdown();
        self.sender.notify();
        self.budget.notify();
    }
}
