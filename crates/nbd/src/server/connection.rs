//! State shared by the tasks of one connection: session, budget and replies.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use flagstone_runtime::Buf;
use flagstone_runtime::buf::{PeerProgress, Share, ShareReport};
use flagstone_runtime::net::{Socket, Stream};
use flagstone_runtime::sync::Notify;
use flagstone_runtime::task::{self, EndedFlow};
use flagstone_runtime::time::{self, Instant};
use flagstone_transport::Tx;

use crate::limits::{
    CLOSE_TIMEOUT, LOST_CONNECTION_MIN, MAX_IN_FLIGHT, MAX_IN_FLIGHT_BYTES, PART_BYTES, SEND_BYTES,
};
use crate::server::DisconnectReason;
use crate::server::drain::Drain;
use crate::server::stop::ConnectionStop;
use crate::session::NbdSession;
use crate::wire::Errno;
use crate::wire::reply::{MAX_HEADER_BYTES, put_data, put_error, put_simple, put_status};
use crate::wire::request::Cookie;

#[derive(Debug)]
pub(crate) enum ReplyBody {
    Done,
    /// Data of a read, or of a part of it; `last` ends the reply.
    Data {
        offset: u64,
        data: Buf,
        last: bool,
    },
    /// Payload of a BLOCK_STATUS chunk.
    Status(Buf),
    Failed(Errno),
}

impl ReplyBody {
    /// Writes the header of a reply, and returns its length.
    fn put_header(&self, out: &mut [u8], structured: bool, cookie: Cookie) -> usize {
        match self {
            ReplyBody::Data { offset, data, last } if structured => {
                put_data(out, cookie, *offset, data.len() as u32, *last)
            }
            ReplyBody::Status(extents) => put_status(out, cookie, extents.len() as u32),
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
    /// Executing requests and those whose reply is not sent yet; then the payload bytes of both.
    in_flight: Cell<usize>,
    bytes: Cell<usize>,
    /// Per reply that was not sent: its end in the stream of replies, and its payload bytes.
    unsent: RefCell<VecDeque<(u64, usize)>>,
    /// Part of the buffer memory that these bytes may take.
    share: Share,
    /// The receiver waits for the end of other requests, and receives nothing.
    awaits_room: Cell<bool>,
    /// A task waits until all requests, or all but one, are answered.
    awaits_answers: Cell<bool>,
    /// Set when the client is gone: device calls that only wait give up.
    ended_flow: RefCell<Option<EndedFlow>>,
    /// Signaled at server shutdown: no request starts any more.
    pub(crate) drain: Drain,
    /// Signaled when the device cannot be reached: no request starts any more.
    pub(crate) lost: Drain,
    /// Begun before the server ends the stream: no request starts any more.
    pub(crate) stop: ConnectionStop,
    begun: Instant,
    /// Signaled when another connection takes over: no request starts any more.
    pub(crate) replaced: Option<Drain>,
    /// The peer is expected to send bytes.
    pub(crate) receiving_part: Cell<bool>,
    receives: Rc<Cell<u64>>,
    /// A send has ended, or the last request was answered after the end of receiving.
    pub(crate) progress: Rc<Notify>,
    pub(crate) watchdog: Notify,
    /// The watchdog waits for something to watch.
    pub(crate) watchdog_sleeps: Cell<bool>,
    sender_ended: Cell<bool>,
}

impl NbdConnection {
    /// `receives` changes whenever the peer sends.
    pub(crate) fn new(
        socket: Socket,
        session: NbdSession,
        share: Share,
        receives: Rc<Cell<u64>>,
        drain: Drain,
        replaced: Option<Drain>,
        stop: ConnectionStop,
    ) -> NbdConnection {
        let progress = Rc::new(Notify::new());
        let stream = socket.stream().clone();
        NbdConnection {
            tx: Tx::new(socket, progress.clone()).with_send_limit(SEND_BYTES),
            stream,
            session,
            executing: Cell::new(0),
            in_flight: Cell::new(0),
            bytes: Cell::new(0),
            unsent: RefCell::default(),
            share,
            awaits_room: Cell::new(false),
            awaits_answers: Cell::new(false),
            ended_flow: RefCell::default(),
            drain,
            lost: Drain::new(),
            stop,
            begun: time::now(),
            replaced,
            receiving_part: Cell::new(false),
            receives,
            progress,
            watchdog: Notify::new(),
            watchdog_sleeps: Cell::new(false),
            sender_ended: Cell::new(false),
        }
    }

    /// True once another connection of the client has taken over.
    pub(crate) fn is_replaced(&self) -> bool {
        self.replaced.as_ref().is_some_and(Drain::has_begun)
    }

    /// Requests received, and unanswered or with an unsent reply.
    pub(crate) fn in_flight(&self) -> usize {
        let mut unsent = self.unsent.borrow_mut();
        let before = self.bytes.get();
        while let Some((end, bytes)) = unsent.front()
            && (*end <= self.tx.sent_bytes() || self.tx.is_closed())
        {
            self.in_flight.set(self.in_flight.get() - 1);
            self.bytes.set(self.bytes.get() - bytes);
            unsent.pop_front();
        }
        let released = before - self.bytes.get();
        if released > 0 {
            self.share.moved(released as u64);
            self.share.released(self.bytes.get());
        }
        self.in_flight.get()
    }

    /// Admits a request without payload, waiting for its turn.
    pub(crate) async fn admit(&self) {
        self.admitted(|| (self.in_flight() < MAX_IN_FLIGHT).then_some(0)).await;
    }

    /// Admits a whole read, waiting until it fits.
    pub(crate) async fn admit_whole(&self, bytes: usize) -> usize {
        let fits = || self.in_flight() < MAX_IN_FLIGHT && self.fits(bytes);
        self.admitted(|| fits().then_some(bytes)).await
    }

    /// Admits the next part of a transfer of which `left` bytes are missing, and returns its
    /// length: all that is left or whole blocks.
    pub(crate) async fn admit_part(&self, left: usize) -> usize {
        let wanted = left.min(PART_BYTES);
        let block = self.session.geometry().block_bytes as usize;
        let least = wanted.min(block.max(self.share.guaranteed() / 2));
        self.admitted(|| {
            let count = self.in_flight();
            if count >= MAX_IN_FLIGHT {
                return None;
            }
            if self.fits(wanted) {
                return Some(wanted);
            }
            let room = self.share.granted().saturating_sub(self.bytes.get());
            let room = room - room % block;
            // Any part fits an idle connection.
            (room >= least || count == 0).then(|| room.clamp(block, wanted.max(block)).min(wanted))
        })
        .await
    }

    /// True if `bytes` more may be in flight. A connection gets more memory only while its client
    /// reads: while at most half of its memory waits to be sent.
    fn fits(&self, bytes: usize) -> bool {
        let held = self.bytes.get();
        let all = held + bytes;
        if all <= self.share.granted() {
            return self.share.admits(all);
        }
        if all > MAX_IN_FLIGHT_BYTES || 2 * self.tx.queued_bytes() > held {
            self.share.withdraw();
            return false;
        }
        self.share.admits(all)
    }

    /// Waits until `part` admits a number of bytes, and counts them. The limits do not hold for a
    /// connection that [`NbdConnection::must_stop`].
    async fn admitted(&self, part: impl Fn() -> Option<usize>) -> usize {
        let is_over = || self.tx.is_closed() || self.stop.has_begun();
        let part = || if is_over() { Some(0) } else { part() };
        let bytes = match part() {
            Some(bytes) => bytes,
            None => {
                self.awaits_room.set(true);
                self.watch();
                let room = self.progress.wait_for(part);
                let bytes = self.stop.unless_begun(room).await.unwrap_or(0);
                self.awaits_room.set(false);
                bytes
            }
        };
        self.executing.set(self.executing.get() + 1);
        self.in_flight.set(self.in_flight.get() + 1);
        self.bytes.set(self.bytes.get() + bytes);
        bytes
    }

    /// The connection requests nothing more for now.
    pub(crate) fn settled(&self) {
        self.share.withdraw();
    }

    /// Serves the share of the buffer memory until the connection has to end.
    pub(crate) async fn attend_share(&self) {
        let report = || {
            let (sent, received) = self.peer_progress();
            let mark = sent.wrapping_add(received);
            self.in_flight();
            let peer = PeerProgress { mark, is_awaited: self.waits_for_peer() };
            ShareReport { held: self.bytes.get(), peer }
        };
        self.share.attend(report, || self.progress.notify()).await;
    }

    /// Queues a reply, which is sent with all others that are ready in this turn. It then releases
    /// the `bytes` of its request.
    pub(crate) fn reply(&self, cookie: Cookie, body: ReplyBody, bytes: usize) {
        let structured = self.session.structured;
        self.tx.header(MAX_HEADER_BYTES, |out| Some(body.put_header(out, structured, cookie)));
        if let ReplyBody::Data { data, .. } | ReplyBody::Status(data) = body {
            self.tx.push(data);
        }
        self.unsent(bytes);
    }

    /// The reply of a request with `bytes` is queued.
    fn unsent(&self, bytes: usize) {
        let end = self.tx.sent_bytes() + self.tx.queued_bytes() as u64;
        self.unsent.borrow_mut().push_back((end, bytes));
        self.answered();
        self.watch();
    }

    /// Releases bytes of a request in flight that it does not need.
    pub(crate) fn abandon_bytes(&self, bytes: usize) {
        self.bytes.set(self.bytes.get() - bytes);
    }

    /// Ends a request, or a part of one, that has no reply of its own.
    pub(crate) fn abandon(&self, bytes: usize) {
        self.in_flight.set(self.in_flight.get() - 1);
        self.bytes.set(self.bytes.get() - bytes);
        self.answered();
        if self.awaits_room.get() {
            // The receiver is otherwise woken by the end of a send, and there may be none.
            self.progress.notify();
        }
    }

    fn answered(&self) {
        self.executing.set(self.executing.get() - 1);
        if self.awaits_answers.get() || self.tx.is_closed() {
            self.progress.notify();
        }
    }

    /// Queues a part of a simple reply, with the header before the first one.
    pub(crate) fn simple_part(&self, cookie: Cookie, is_first: bool, data: Buf) {
        if is_first {
            self.tx.header(MAX_HEADER_BYTES, |out| Some(put_simple(out, cookie, 0)));
        }
        let bytes = data.len();
        self.tx.push(data);
        self.unsent(bytes);
    }

    /// Waits until every request is answered but the last `rest`.
    pub(crate) async fn answered_except(&self, rest: usize) {
        self.awaits_answers.set(true);
        self.progress.wait_for(|| (self.executing.get() <= rest).then_some(())).await;
        self.awaits_answers.set(false);
    }

    /// Why no request starts any more, if so. The client sends the request again on its next
    /// connection: an error reply would be final for most clients, which fail it to their users.
    pub(crate) fn is_ending(&self) -> Option<DisconnectReason> {
        self.drain.has_begun().then_some(DisconnectReason::Drained).or_else(|| self.must_stop())
    }

    /// Why not even a request starts that was admitted now, if so: its client is gone, or has to
    /// go.
    pub(crate) fn must_stop(&self) -> Option<DisconnectReason> {
        if self.is_replaced() {
            Some(DisconnectReason::Replaced)
        } else if self.lost.has_begun() {
            Some(DisconnectReason::Unreachable)
        } else if self.stop.has_begun() {
            Some(DisconnectReason::Stopped)
        } else {
            // No reply can be sent.
            self.tx.is_closed().then_some(DisconnectReason::CutShort)
        }
    }

    /// Ends the connection, because the device cannot be reached: the request has no reply.
    pub(crate) fn lose(&self) {
        // Calls that only wait give up when their client is gone, with the same error.
        if self.ended_flow.borrow().is_none() && !self.lost.has_begun() {
            self.session.export.reach.lost();
            self.stop.part_as_ended();
            self.lost.begin();
        }
    }

    /// Same as [`NbdConnection::lose`], and ends a request, or a part of one, of `bytes`.
    pub(crate) fn lose_request(&self, bytes: usize) {
        self.lose();
        self.abandon(bytes);
        // A drain is otherwise woken by the end of a send, and there may be none.
        self.progress.notify();
    }

    /// Waits before the end of a lost connection that has just begun: some clients connect again
    /// at once, for as long as the device cannot be reached.
    pub(crate) async fn pace_end(&self) {
        let pause = time::sleep(LOST_CONNECTION_MIN.saturating_sub(self.begun.elapsed()));
        self.drain.unless_begun(pause).await;
    }

    /// Receiving has ended because of `end`: waits until every request is answered. Calls that only
    /// wait give up, except in a drain, which gives them time: the watchdog ends it.
    pub(crate) async fn finish(&self, end: &DisconnectReason) {
        self.settled();
        if !matches!(end, DisconnectReason::Drained) {
            self.end_flow();
        }
        self.answered_except(0).await;
        self.tx.finish();
    }

    /// Runs the sender.
    pub(crate) async fn run_sender(&self) {
        if self.tx.run().await.is_err() {
            // Also ends the receiver.
            self.stop.shutdown();
        }
        self.sender_ended.set(true);
        self.progress.notify();
    }

    /// Sends the queued replies and the end of the stream, for a limited time. Later replies are
    /// not sent.
    pub(crate) async fn finish_sending(&self) {
        self.tx.finish();
        let ended = self.progress.wait_for(|| self.sender_ended.get().then_some(()));
        let _ = time::timeout(CLOSE_TIMEOUT, ended).await;
    }

    pub(crate) fn end_flow(&self) {
        self.ended_flow.borrow_mut().get_or_insert_with(task::end_flow);
    }

    /// Values that change whenever the peer reads or sends.
    pub(crate) fn peer_progress(&self) -> (u64, u64) {
        (self.tx.sent_bytes(), self.receives.get())
    }

    /// True while the peer delays a started request or a send.
    pub(crate) fn waits_for_peer(&self) -> bool {
        self.tx.is_busy() || self.receiving_part.get()
    }

    /// True while the receiver waits for the end of other requests. It does not see then that the
    /// client has ended the connection.
    pub(crate) fn awaits_room(&self) -> bool {
        self.awaits_room.get()
    }

    /// Wakes the watchdog when the connection starts to wait for the peer, or for room.
    pub(crate) fn watch(&self) {
        if self.watchdog_sleeps.get() {
            self.watchdog.notify();
        }
    }
}
