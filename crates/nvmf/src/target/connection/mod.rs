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
//!   [`TargetConfig::connection_payload_bytes`](super::TargetConfig) of payload, are in hand: beyond it nothing is received;
//! - a peer that sends or takes nothing in the midst of something is given up on; time that a device
//!   or memory of ours takes is not held against it;
//! - a namespace that is taken away is let go within [`WATCHDOG_PERIOD`], idle or not.
//!
//! `receive` parses, `fast` carries out what is plain, `waiting` has commands wait for memory and asks
//! for data, `io` and `admin` carry out, `respond` answers.

mod admin;
mod fast;
mod receive;
mod respond;
mod transfer;
mod waiting;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flagstone_nvme::Status;
use flagstone_nvme::pdu::{Digests, Encoder, Fatal, Receiver, encode_term_req};
use flagstone_runtime::buf::Reserve;
use flagstone_runtime::net::Stream;
use flagstone_runtime::task::AbortOnDrop;
use flagstone_runtime::{spawn, sync, task, time};

use super::queue::Admitted;
use super::{Connected, Controller, Namespace, NamespaceTable, Queue, Target};
use crate::limits::{HEADER_BYTES_MAX, TERMINATE_TIMEOUT, TX_ADMIN_BYTES, WATCHDOG_PERIOD};
use crate::stream::rx::{Rx, RxError};
use crate::stream::tx::Tx;
use transfer::Transfers;
use waiting::Waiting;

/// What the tasks of a connection share. They all live on one core.
pub(crate) struct Connection {
    pub(crate) target: Arc<Target>,
    stream: Stream,
    tx: Tx,
    encoder: Cell<Encoder>,
    session: RefCell<Option<Session>>,
    /// The session's queue, where commands that were admitted are counted for others to see.
    queue: OnceCell<Arc<Queue>>,
    transfers: RefCell<Transfers>,
    /// Commands received and not yet answered.
    outstanding: Cell<u32>,
    /// Payload bytes of those.
    payload_bytes: Cell<usize>,
    /// Of those, what is being transferred with R2T: it falls by receiving alone.
    transfer_bytes: Cell<usize>,
    /// Commands in hand without memory.
    waiting: RefCell<VecDeque<Waiting>>,
    /// Memory that the receiver can go on with, while data is asked for.
    reserve: Reserve,
    /// Longest data in a capsule, in bytes; 0 before Connect.
    in_capsule_bytes: Cell<u32>,
    /// Beyond so many bytes that wait to be taken by the host nothing is received.
    queued_bytes_max: Cell<usize>,
    /// Nothing more is received: nothing more is asked for.
    ended: Cell<bool>,
    /// Rung when what is in hand falls, and when a send has ended.
    room: Rc<sync::Notify>,
    /// PDUs received: what the watchdog looks at.
    received: Cell<u64>,
    /// What we wait for the peer to send.
    awaits: Cell<Awaits>,
}

/// The connection, with a command that was admitted.
pub(crate) struct Carrying(Rc<Connection>);

impl std::ops::Deref for Carrying {
    type Target = Rc<Connection>;

    #[inline]
    fn deref(&self) -> &Rc<Connection> {
        &self.0
    }
}

impl Drop for Carrying {
    #[inline]
    fn drop(&mut self) {
        if let Some(queue) = self.0.queue.get() {
            queue.leave();
        }
    }
}

/// What a connection receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaits {
    /// Nothing: it waits for room, memory or a device of ours, whatever the peer sends.
    Nothing,
    /// The next PDU, which need not come.
    NextPdu,
    /// The rest of one, which must.
    RestOfPdu,
}

/// What Connect made of the connection. Dropping it gives the queue back to its controller.
pub(crate) struct Session {
    connected: Connected,
    sq_head: u16,
    table: Arc<NamespaceTable>,
    /// Tasks of an admin queue: they end with it.
    _tasks: Vec<AbortOnDrop<()>>,
}

impl Session {
    /// Head of the submission queue when one more entry is taken.
    #[inline]
    fn next_sq_head(&self) -> u16 {
        let next = self.sq_head + 1;
        if next >= self.connected.queue.entries { 0 } else { next }
    }
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
}

/// Serves one accepted connection on this core until it ends.
pub async fn serve(target: Arc<Target>, stream: Stream) {
    // Layers that are fair are fair to connections.
    task::begin_flow();
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
        End::Stream(_) => tracing::debug!(%peer, "connection ended: {end}"),
        _ => tracing::warn!(%peer, "connection ended: {end}"),
    }
    connection.finish(&mut rx, end).await;
    if sender.await.is_ok_and(|sent| sent.is_err()) {
        tracing::debug!(%peer, "the host went away before its last responses");
    }
    // Not before: it is what ends a sender whose host takes nothing.
    drop(watchdog);
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
            session: RefCell::new(None),
            queue: OnceCell::new(),
            transfers: RefCell::default(),
            outstanding: Cell::new(0),
            payload_bytes: Cell::new(0),
            transfer_bytes: Cell::new(0),
            waiting: RefCell::default(),
            reserve: Reserve::new(room.clone()),
            in_capsule_bytes: Cell::new(0),
            queued_bytes_max: Cell::new(TX_ADMIN_BYTES),
            ended: Cell::new(false),
            room,
            received: Cell::new(0),
            awaits: Cell::new(Awaits::Nothing),
        }
    }

    /// Takes on the queue that Connect gave.
    fn adopt(self: &Rc<Self>, connected: Connected) {
        let table = connected.controller.snapshot();
        self.queue.get_or_init(|| connected.queue.clone());
        let mut tasks = Vec::new();
        if connected.queue.qid == 0 {
            let (connection, controller) = (Rc::downgrade(self), connected.controller.clone());
            let events = spawn(async move {
                loop {
                    let completion = controller.wait_event().await;
                    let Some(connection) = connection.upgrade() else { return };
                    connection.respond(completion);
                }
            });
            let controller = connected.controller.clone();
            let keep_alive = spawn(async move { controller.watch_keep_alive().await });
            tasks.extend([events.abort_on_drop(), keep_alive.abort_on_drop()]);
        }
        let session = Session { connected, sq_head: 0, table, _tasks: tasks };
        *self.session.borrow_mut() = Some(session);
    }

    /// Ends in order: commands in hand are awaited, their responses sent if the peer takes them.
    async fn finish(&self, rx: &mut Rx, end: End) {
        self.give_up_waiting();
        // With the admin queue the controller ends, and no I/O queue of it shall keep what is in
        // hand here waiting.
        self.with_controller(|controller, queue| {
            if queue.qid == 0 {
                controller.end_vendor_sessions();
            }
        });
        if let End::Violation { fatal, offending } = &end {
            self.tx.header(HEADER_BYTES_MAX, |out| {
                encode_term_req(out, Receiver::Controller, *fatal, offending)
            });
            // The last that is said: what commands in hand come to is not told any more.
            self.tx.finish();
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
            let closed = time::timeout(TERMINATE_TIMEOUT, drained).await;
            self.tx.close();
            match closed {
                Ok(()) => self.stream.shutdown(),
                Err(_) => self.stream.abort(),
            }
        }
    }

    /// Leaves the controller. An admin queue takes its controller with it.
    fn detach(&self) {
        let session = self.session.borrow_mut().take();
        drop(session);
    }

    /// True while it is the peer on whom the connection waits: it takes nothing of what is sent, or
    /// it is listened to and does not send what it must.
    fn peer_owes(&self) -> bool {
        let receives = match self.awaits.get() {
            // More commands than the queue has entries: the data of others is behind them.
            Awaits::Nothing => {
                let entries = self.with_controller(|_, queue| queue.entries).unwrap_or(1);
                self.outstanding.get() >= u32::from(entries) && !self.transfers.borrow().is_empty()
            }
            Awaits::NextPdu => !self.transfers.borrow().is_empty(),
            Awaits::RestOfPdu => true,
        };
        receives || self.tx.is_busy()
    }

    /// Closes the connection of a peer that makes no progress where it owes some, and gives up
    /// namespaces that are not served any more.
    async fn watch(&self) {
        let patience = self.target.config().slow_peer_timeout;
        let handshake = self.target.config().handshake_timeout;
        let period = WATCHDOG_PERIOD.min(patience).min(handshake);
        let mut stuck = Duration::ZERO;
        let mut before = (0, 0);
        let mut age = Duration::ZERO;
        loop {
            time::sleep(period).await;
            age += period;
            let connected = self.session.borrow().is_some();
            self.refresh();
            let now = (self.tx.sent_bytes(), self.received.get());
            stuck = if self.peer_owes() && now == before { stuck + period } else { Duration::ZERO };
            before = now;
            if stuck >= patience || (!connected && age >= handshake) {
                let peer = self.stream.peer();
                tracing::warn!(%peer, "closing: the host makes no progress");
                self.tx.close();
                // What it does not take shall not wait for it in the kernel either.
                self.stream.abort();
                return;
            }
        }
    }

    /// Takes the namespaces as they are now: an idle connection would keep devices open that have
    /// been taken away.
    fn refresh(&self) {
        let mut session = self.session.borrow_mut();
        let Some(session) = session.as_mut() else { return };
        let controller = &session.connected.controller;
        if session.table.generation() != controller.generation() {
            session.table = controller.snapshot();
        }
    }

    /// Notes that a command with `payload` bytes is in hand.
    #[inline]
    pub(crate) fn begin(&self, payload: usize) {
        self.outstanding.set(self.outstanding.get() + 1);
        self.payload_bytes.set(self.payload_bytes.get() + payload);
    }

    /// For a command in hand that a namespace was found for, in the same turn: it counts as admitted
    /// for as long as what this gives lives.
    #[inline]
    pub(crate) fn admit(self: &Rc<Self>) -> Carrying {
        if let Some(queue) = self.queue.get() {
            queue.enter();
        }
        Carrying(self.clone())
    }

    /// As [`Connection::admit`], for what the connection itself keeps.
    pub(crate) fn admit_waiting(&self) -> Option<Admitted> {
        self.queue.get().map(|queue| Admitted::new(queue.clone()))
    }

    /// Notes that a command with `payload` bytes is answered, or was given up.
    #[inline]
    pub(crate) fn release(&self, payload: usize) {
        self.outstanding.set(self.outstanding.get() - 1);
        self.payload_bytes.set(self.payload_bytes.get() - payload);
        self.room.notify();
    }

    /// A command in hand with `payload` bytes waits for what its host has yet to send, which is to be
    /// received meanwhile.
    pub(in crate::target) fn park(&self, payload: usize) {
        self.payload_bytes.set(self.payload_bytes.get() - payload);
        self.room.notify();
    }

    /// It waits no longer, and will end by itself.
    pub(in crate::target) fn unpark(&self, payload: usize) {
        self.payload_bytes.set(self.payload_bytes.get() + payload);
    }

    /// A namespace of this queue's controller, or the status that refuses it.
    #[inline]
    pub(crate) fn namespace(&self, nsid: u32) -> Result<Arc<Namespace>, Status> {
        let mut session = self.session.borrow_mut();
        let session = session.as_mut().ok_or(Status::COMMAND_SEQUENCE_ERROR.dnr())?;
        let controller = &session.connected.controller;
        if session.table.generation() != controller.generation() {
            session.table = controller.snapshot();
        }
        match session.table.get(nsid) {
            Some(namespace) => match session.table.ana().io_status() {
                Status::SUCCESS => {
                    controller.own_namespace(namespace).ok_or(Status::COMMAND_SEQUENCE_ERROR.dnr())
                }
                status => Err(status),
            },
            None => Err(Status::INVALID_NAMESPACE.dnr()),
        }
    }

    /// Every namespace of this queue's controller, for commands that name all.
    /// Refused as a command to any of them would be.
    pub(crate) fn namespaces(&self) -> Result<Vec<Arc<Namespace>>, Status> {
        let session = self.session.borrow();
        let session = session.as_ref().ok_or(Status::COMMAND_SEQUENCE_ERROR.dnr())?;
        let controller = &session.connected.controller;
        let table = controller.snapshot();
        match table.ana().io_status() {
            Status::SUCCESS => {
                Ok(table.iter().filter_map(|one| controller.own_namespace(one)).collect())
            }
            status => Err(status),
        }
    }

    /// This queue's controller.
    #[inline]
    pub(crate) fn with_controller<T>(
        &self,
        look: impl FnOnce(&Arc<Controller>, &Queue) -> T,
    ) -> Option<T> {
        let session = self.session.borrow();
        session.as_ref().map(|one| look(&one.connected.controller, &one.connected.queue))
    }
}
