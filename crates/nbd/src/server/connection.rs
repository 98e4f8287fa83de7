//! State shared by the tasks of one connection: session, budget and replies.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use flagstone_runtime::Buf;
use flagstone_runtime::net::Stream;
use flagstone_runtime::sync::Notify;
use flagstone_transport::Tx;

use crate::limits::{MAX_IN_FLIGHT, MAX_IN_FLIGHT_BYTES, SEND_BYTES};
use crate::server::drain::Drain;
use crate::session::NbdSession;
use crate::wire::Errno;
use crate::wire::reply::{MAX_HEADER_BYTES, put_data, put_error, put_simple};
use crate::wire::request::Cookie;

#[derive(Debug)]
pub(crate) enum ReplyBody {
    Done,
    Data { offset: u64, data: Buf },
    Failed(Errno),
}

impl ReplyBody {
    /// Writes the header of a reply, and returns its length.
    fn put_header(&self, out: &mut [u8], structured: bool, cookie: Cookie) -> usize {
        match self {
            ReplyBody::Data { offset, data } if structured => {
                put_data(out, cookie, *offset, data.len() as u32)
            }
            ReplyBody::Done | ReplyBody::Data { .. } => put_simple(out, cookie, 0),
            ReplyBody::Failed(error) if structured => put_error(out, cookie, *error),
            ReplyBody::Failed(error) => put_simple(out, cookie, error.0),
        }
    }
}

/// Server connection in its transmission phase.
pub(crate) struct NbdConnection {
    pub(crate) stream: Stream,
    pub(crate) session: NbdSession,
    pub(crate) tx: Tx,
    /// Requests admitted and not answered.
    executing: Cell<usize>,
    /// These and the requests whose reply was not sent, and their payload bytes.
    in_flight: Cell<usize>,
    bytes: Cell<usize>,
    /// Per reply that was not sent: its end in the stream of replies, and its payload bytes.
    unsent: RefCell<VecDeque<(u64, usize)>>,
    /// Receiving has ended.
    ended: Cell<bool>,
    /// Signaled at server shutdown: new requests are refused.
    pub(crate) drain: Drain,
    /// Signaled when another connection takes over: no request starts any more.
    pub(crate) replaced: Option<Drain>,
    /// The peer is expected to send bytes.
    pub(crate) receiving_part: Cell<bool>,
    receives: Rc<Cell<u64>>,
    /// A send has ended, or the last request was answered after the end of receiving.
    pub(crate) progress: Rc<Notify>,
    pub(crate) watchdog: Notify,
    /// The watchdog waits for something to watch.
    pub(crate) watchdog_parked: Cell<bool>,
}

impl NbdConnection {
    /// `receives` changes whenever the peer sends.
    pub(crate) fn new(
        stream: Stream,
        session: NbdSession,
        receives: Rc<Cell<u64>>,
        drain: Drain,
        replaced: Option<Drain>,
    ) -> NbdConnection {
        let progress = Rc::new(Notify::new());
        NbdConnection {
            tx: Tx::new(stream.clone(), progress.clone()).with_send_limit(SEND_BYTES),
            stream,
            session,
            executing: Cell::new(0),
            in_flight: Cell::new(0),
            bytes: Cell::new(0),
            unsent: RefCell::default(),
            ended: Cell::new(false),
            drain,
            replaced,
            receiving_part: Cell::new(false),
            receives,
            progress,
            watchdog: Notify::new(),
            watchdog_parked: Cell::new(false),
        }
    }

    /// True once another connection of the client has taken over.
    pub(crate) fn is_replaced(&self) -> bool {
        self.replaced.as_ref().is_some_and(Drain::has_begun)
    }

    /// Requests received, and unanswered or with an unsent reply.
    pub(crate) fn in_flight(&self) -> usize {
        let mut unsent = self.unsent.borrow_mut();
        while let Some((end, bytes)) = unsent.front()
            && (*end <= self.tx.sent_bytes() || self.tx.is_closed())
        {
            self.in_flight.set(self.in_flight.get() - 1);
            self.bytes.set(self.bytes.get() - bytes);
            unsent.pop_front();
        }
        self.in_flight.get()
    }

    /// Admits a request into the budget, waiting until it fits.
    pub(crate) async fn admit(&self, bytes: usize) {
        let fits = || {
            let count = self.in_flight();
            let small = self.bytes.get() + bytes <= MAX_IN_FLIGHT_BYTES;
            count == 0 || (count < MAX_IN_FLIGHT && small) || self.tx.is_closed()
        };
        if !fits() {
            self.progress.wait_for(|| fits().then_some(())).await;
        }
        self.executing.set(self.executing.get() + 1);
        self.in_flight.set(self.in_flight.get() + 1);
        self.bytes.set(self.bytes.get() + bytes);
    }

    /// Queues a reply, which is sent with all others that are ready in this turn. It then releases
    /// the `bytes` of its request.
    pub(crate) fn reply(&self, cookie: Cookie, body: ReplyBody, bytes: usize) {
        let structured = self.session.structured;
        self.tx.header(MAX_HEADER_BYTES, |out| Some(body.put_header(out, structured, cookie)));
        if let ReplyBody::Data { data, .. } = body {
            self.tx.push(data);
        }
        let end = self.tx.sent_bytes() + self.tx.queued_bytes() as u64;
        self.unsent.borrow_mut().push_back((end, bytes));
        self.answered();
        self.watch();
    }

    /// Ends a request without a reply.
    pub(crate) fn abandon(&self, bytes: usize) {
        self.in_flight.set(self.in_flight.get() - 1);
        self.bytes.set(self.bytes.get() - bytes);
        self.answered();
    }

    fn answered(&self) {
        self.executing.set(self.executing.get() - 1);
        if self.ended.get() || self.tx.is_closed() {
            self.progress.notify();
        }
    }

    /// Receiving has ended: waits until every request is answered.
    pub(crate) async fn finish(&self) {
        self.ended.set(true);
        self.progress.wait_for(|| (self.executing.get() == 0).then_some(())).await;
        self.tx.finish();
    }

    /// Values that change whenever the peer reads or sends.
    pub(crate) fn peer_progress(&self) -> (u64, u64) {
        (self.tx.sent_bytes(), self.receives.get())
    }

    /// True while the peer delays a started request or a send.
    pub(crate) fn waits_for_peer(&self) -> bool {
        self.tx.is_busy() || self.receiving_part.get()
    }

    /// Wakes the watchdog when the connection starts to wait for the peer.
    pub(crate) fn watch(&self) {
        if self.watchdog_parked.get() {
            self.watchdog.notify();
        }
    }
}
