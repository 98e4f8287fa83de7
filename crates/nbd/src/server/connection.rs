//! What the tasks of one connection share: its session, its budget and its replies.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use flagstone_runtime::Buf;
use flagstone_runtime::net::Stream;
use flagstone_runtime::sync::Notify;

use crate::limits::{MAX_IN_FLIGHT, MAX_IN_FLIGHT_BYTES};
use crate::server::drain::Drain;
use crate::session::Session;
use crate::wire::Errno;
use crate::wire::request::Cookie;

/// An answer that waits to be sent, with the budget that it gives back then.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) cookie: Cookie,
    pub(crate) answer: Answer,
    /// Payload bytes that the request took from the budget.
    pub(crate) budget: usize,
}

#[derive(Debug)]
pub(crate) enum Answer {
    Done,
    Data { offset: u64, data: Buf },
    Failed(Errno),
}

/// See the module.
pub(crate) struct Connection {
    pub(crate) stream: Stream,
    pub(crate) session: Session,
    replies: RefCell<VecDeque<Reply>>,
    /// Requests received and not answered on the wire, and their payload bytes.
    in_flight: Cell<usize>,
    bytes: Cell<usize>,
    /// Nothing more will be received.
    pub(crate) ended: Cell<bool>,
    /// Nothing more can be sent.
    pub(crate) broken: Cell<bool>,
    /// Once it begins new requests are refused: the server is going down.
    pub(crate) drain: Drain,
    /// Once it begins nothing more is begun: another connection is in charge.
    pub(crate) replaced: Option<Drain>,
    /// The peer is expected to take or to send bytes.
    pub(crate) sending: Cell<bool>,
    pub(crate) receiving_part: Cell<bool>,
    /// Moves whenever the peer takes or sends something.
    pub(crate) progress: Rc<Cell<u64>>,
    pub(crate) sender: Notify,
    pub(crate) budget: Notify,
    pub(crate) warden: Notify,
    /// The warden waits for something to watch.
    pub(crate) warden_parked: Cell<bool>,
}

impl Connection {
    pub(crate) fn new(
        stream: Stream,
        session: Session,
        progress: Rc<Cell<u64>>,
        drain: Drain,
        replaced: Option<Drain>,
    ) -> Connection {
        Connection {
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
            warden: Notify::new(),
            warden_parked: Cell::new(false),
        }
    }

    /// True once another connection of the client is in charge.
    pub(crate) fn is_replaced(&self) -> bool {
        self.replaced.as_ref().is_some_and(Drain::has_begun)
    }

    /// Requests received and not answered on the wire.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.get()
    }

    /// Takes a request into the budget, waiting until it fits.
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

    /// Queues an answer; it leaves with all others that are ready in this turn.
    pub(crate) fn reply(&self, cookie: Cookie, answer: Answer, budget: usize) {
        let mut replies = self.replies.borrow_mut();
        replies.push_back(Reply { cookie, answer, budget });
        if replies.len() == 1 {
            drop(replies);
            self.sender.notify();
        }
    }

    pub(crate) fn next_reply(&self) -> Option<Reply> {
        self.replies.borrow_mut().pop_front()
    }

    pub(crate) fn has_replies(&self) -> bool {
        !self.replies.borrow().is_empty()
    }

    /// Gives back the budget of `requests` that were answered.
    pub(crate) fn answered(&self, requests: usize, bytes: usize) {
        self.in_flight.set(self.in_flight.get() - requests);
        self.bytes.set(self.bytes.get() - bytes);
        self.budget.notify();
    }

    /// The peer took what was sent.
    pub(crate) fn progressed(&self) {
        self.progress.set(self.progress.get().wrapping_add(1));
    }

    /// True while the peer keeps us waiting in the midst of something.
    pub(crate) fn waits_for_peer(&self) -> bool {
        self.sending.get() || self.receiving_part.get()
    }

    /// The peer is waited for from now on: someone should look at the clock.
    pub(crate) fn watch(&self) {
        if self.warden_parked.get() {
            self.warden.notify();
        }
    }

    /// Nothing more can be sent: the receiver ends too.
    pub(crate) fn break_off(&self) {
        self.broken.set(true);
        self.stream.shutdown();
        self.sender.notify();
        self.budget.notify();
    }
}
