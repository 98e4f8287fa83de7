//! One connection of a host: one queue, admin or I/O.
//!
//! Promises:
//! - every PDU is checked before its meaning is used; a violation is answered with the C2HTermReq
//!   that the transport wants, nothing behind it is looked at, and the connection ends;
//! - a bad command gets its status and the connection lives;
//! - commands that were received are carried out and their devices awaited even when the host is
//!   gone; only then does the queue leave its controller, so a controller that is gone has no
//!   command in flight;
//! - at most as many commands as the queue has entries, and at most
//!   [`crate::limits::CONNECTION_BYTES`] of payload, are in hand: beyond it nothing is received;
//! - a peer that sends or takes nothing in the midst of something is given up on.
//!
//! [`receive`](self) parses, `io` and `admin` carry out, [`respond`](self) answers.

mod receive;
mod respond;
mod transfer;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flagstone_nvme::pdu::{Digests, Encoder, Fatal, Receiver, encode_term_req};
use flagstone_runtime::net::Stream;
use flagstone_runtime::{spawn, sync, time};

use super::{Connected, Controller, NamespaceTable, Target};
use crate::limits::{CONNECT_TIMEOUT, HEADER_BYTES_MAX, TERMINATE_TIMEOUT, WATCHDOG_PERIOD};
use crate::stream::rx::{Rx, RxError};
use crate::stream::tx::Tx;
use transfer::Transfers;

/// What the tasks of a connection share. They all live on one core.
pub(crate) struct Connection {
    pub(crate) target: Arc<Target>,
    stream: Stream,
    tx: Tx,
    encoder: Cell<Encoder>,
    queue: RefCell<Option<Queue>>,
    transfers: RefCell<Transfers>,
    /// Commands received and not yet answered.
    outstanding: Cell<u32>,
    /// Payload bytes of those.
    payload_bytes: Cell<usize>,
    /// Rung when the two above fall, and when a send has ended.
    room: Rc<sync::Notify>,
    /// PDUs received: what the watchdog looks at.
    received: Cell<u64>,
    /// The peer owes us the rest of something.
    mid_pdu: Cell<bool>,
}

/// What Connect made of the connection.
pub(crate) struct Queue {
    pub(crate) controller: Arc<Controller>,
    pub(crate) qid: u16,
    entries: u16,
    /// Completions carry the submission queue's head, and none is left out.
    flow_control: bool,
    sq_head: u16,
    table: Arc<NamespaceTable>,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum End {
    #[error("{0}")]
    Stream(#[from] RxError),
    /// The peer broke the protocol; it is told with `offending`, the header that did.
    #[error("protocol violation: {fatal}")]
    Violation { fatal: Fatal, offending: Vec<u8> },
    /// The peer said that we broke the protocol, or sent a TermReq that is malformed itself.
    #[error("the host terminated the connection: {0}")]
    Terminated(String),
    #[error("the host sent {0} instead of Connect in time")]
    NotConnected(&'static str),
    #[error("the controller has ended")]
    Ended,
}

/// Serves one accepted connection on this core until it ends.
pub async fn serve(target: Arc<Target>, stream: Stream) {
    let peer = stream.peer();
    let connection = Rc::new(Connection::new(target, stream.clone()));
    let sender = {
        let connection = connection.clone();
        spawn(async move { connection.tx.run().await })
    };
    let watchdog = {
        let connection = connection.clone();
        spawn(async move { connection.watch().await }).abort_on_drop()
    };
    let mut rx = Rx::new(stream.clone());
    let end = connection.receive(&mut rx).await;
    match &end {
        End::Stream(_) | End::Ended => tracing::debug!(%peer, "connection ended: {end}"),
        _ => tracing::warn!(%peer, "connection ended: {end}"),
    }
    connection.finish(&mut rx, end).await;
    drop(watchdog);
    if sender.await.is_ok_and(|sent| sent.is_err()) {
        tracing::debug!(%peer, "the host went away before its last responses");
    }
    stream.shutdown();
    connection.detach();
}

impl Connection {
    fn new(target: Arc<Target>, stream: Stream) -> Connection {
        let room = Rc::new(sync::Notify::new());
        Connection {
            tx: Tx::new(stream.clone(), room.clone()),
            stream,
            target,
            encoder: Cell::new(Encoder::new(Digests::default(), 0)),
            queue: RefCell::new(None),
            transfers: RefCell::default(),
            outstanding: Cell::new(0),
            payload_bytes: Cell::new(0),
            room,
            received: Cell::new(0),
            mid_pdu: Cell::new(false),
        }
    }

    /// Takes on the queue that Connect gave; from then on its controller is told of the end.
    fn adopt(self: &Rc<Self>, connected: Connected) {
        let Connected { controller, qid, entries, flow_control, .. } = connected;
        let table = controller.snapshot();
        if qid == 0 {
            let (connection, controller) = (Rc::downgrade(self), controller.clone());
            flagstone_runtime::spawn_detached(async move {
                // Ends with the controller: then no event comes any more.
                while let Some(completion) = controller.wait_event().await {
                    let Some(connection) = connection.upgrade() else { return };
                    connection.respond(completion);
                }
            });
        }
        let queue = Queue { controller, qid, entries, flow_control, sq_head: 0, table };
        *self.queue.borrow_mut() = Some(queue);
    }

    /// Ends in order: commands in hand are awaited, their responses sent if the peer takes them.
    async fn finish(&self, rx: &mut Rx, end: End) {
        self.transfers.borrow_mut().clear(|payload| self.release(payload));
        if let End::Violation { fatal, offending } = &end {
            self.tx.header(HEADER_BYTES_MAX, |out| {
                encode_term_req(out, Receiver::Controller, *fatal, offending)
            });
        }
        self.room.wait_for(|| (self.outstanding.get() == 0).then_some(())).await;
        self.tx.finish();
        if matches!(end, End::Violation { .. }) {
            // The peer reads the reason and closes; what it still sends is thrown away.
            let drained = async {
                self.tx.drained().await;
                while rx.more().await.is_ok() {
                    rx.skip(rx.available());
                }
            };
            let _ = time::timeout(TERMINATE_TIMEOUT, drained).await;
            self.tx.close();
            self.stream.shutdown();
        }
    }

    /// Leaves the controller. An admin queue takes its controller with it.
    fn detach(&self) {
        if let Some(queue) = self.queue.borrow_mut().take() {
            queue.controller.detach(queue.qid);
        }
    }

    /// Closes the connection of a peer that makes no progress where it owes some.
    async fn watch(&self) {
        let patience = self.target.config().slow_peer_timeout;
        let mut stuck = Duration::ZERO;
        let mut before = (0, 0);
        let mut age = Duration::ZERO;
        loop {
            time::sleep(WATCHDOG_PERIOD).await;
            age += WATCHDOG_PERIOD;
            let connected = self.queue.borrow().is_some();
            let owes = self.tx.is_busy() || self.mid_pdu.get() || !self.transfers.borrow().is_empty();
            let now = (self.tx.sent_bytes(), self.received.get());
            stuck = if owes && now == before { stuck + WATCHDOG_PERIOD } else { Duration::ZERO };
            before = now;
            if stuck >= patience || (!connected && age >= CONNECT_TIMEOUT) {
                let peer = self.stream.peer();
                tracing::warn!(%peer, "closing: the host makes no progress");
                self.tx.close();
                self.stream.shutdown();
                return;
            }
        }
    }

    /// Notes that a command with `payload` bytes is in hand.
    #[inline]
    pub(crate) fn begin(&self, payload: usize) {
        self.outstanding.set(self.outstanding.get() + 1);
        self.payload_bytes.set(self.payload_bytes.get() + payload);
    }

    /// Notes that a command with `payload` bytes is answered, or was given up.
    #[inline]
    pub(crate) fn release(&self, payload: usize) {
        self.outstanding.set(self.outstanding.get() - 1);
        self.payload_bytes.set(self.payload_bytes.get() - payload);
        self.room.notify();
    }

    /// The current namespaces of this queue's controller.
    #[inline]
    pub(crate) fn namespace(&self, nsid: u32) -> Option<Arc<super::Namespace>> {
        let mut queue = self.queue.borrow_mut();
        let queue = queue.as_mut()?;
        if queue.table.generation() != queue.controller.generation() {
            queue.table = queue.controller.snapshot();
        }
        queue.table.get(nsid).cloned()
    }

    /// Every namespace of this queue's controller, for commands that name all.
    pub(crate) fn namespaces(&self) -> Vec<Arc<super::Namespace>> {
        let queue = self.queue.borrow();
        let Some(queue) = queue.as_ref() else { return Vec::new() };
        queue.controller.snapshot().iter().cloned().collect()
    }
}
