//! Connection of one host, which carries one queue: admin or I/O.
//!
//! Invariants:
//! - every PDU is validated before its contents are used. A violation is answered with the
//!   C2HTermReq that the transport specification requires, no later PDU is parsed, and the
//!   connection ends;
//! - an invalid command is completed with an error status, and the connection continues;
//! - commands that were received are executed, and their device calls awaited, even after the host
//!   has disconnected. Only then does the queue leave its controller, so a controller that is gone
//!   has no command in flight. A device call that has had no effect yet may give up, because the
//!   connection's flow ends with the connection ([`task::end_flow`]);
//! - at most as many commands as the queue has entries, and at most
//!   [`TargetConfig::connection_payload_bytes`](super::TargetConfig) of payload, are in flight. At
//!   the limit the connection stops receiving;
//! - a peer that stops sending or reading in the middle of a transfer is disconnected. Time spent
//!   waiting for the local device or local memory does not count;
//! - a queue of a subsystem with keys executes only authentication commands until its host is
//!   authenticated (`authentication`);
//! - a removed namespace is released within [`WATCHDOG_PERIOD`], even by an idle connection;
//! - buffers for data to and from the peer are within the connection's share of the buffer memory
//!   (`share`). A peer that stalls keeps what it has until others have waited for it.
//!
//! `receive` parses, `fast` is the fast path, `waiting` queues commands for memory and sends R2Ts,
//! `fused` pairs commands, `io` and `admin` execute them, `respond` sends completions.

mod admin;
mod authentication;
mod fast_path;
mod fused;
mod receive;
mod respond;
mod share;
mod tls;
mod transfer;
mod waiting;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::Duration;

use flagstone_nvme::Status;
use flagstone_nvme::pdu::{Digests, Encoder, Fatal, Receiver, encode_term_req};
use flagstone_runtime::buf::{Protocol, Reserve, Share};
use flagstone_runtime::net::{Socket, Stream};
use flagstone_runtime::task::{AbortOnDrop, EndedFlow};
use flagstone_runtime::{spawn, sync, task, time};

use super::namespace::PENDING_ANA;
use super::queue::{AdmissionPhase, CommandInFlight};
use super::subsystem::SubsystemKind;
use super::{Connected, Controller, ControllerQueue, Namespace, NamespaceTable, Target, TlsMode};
use crate::limits::{
    ANSWERED_PERIOD, ANSWERED_TIMEOUT, HOST_KEEP_ALIVE, SEND_BYTES, TX_ADMIN_BYTES, WATCHDOG_PERIOD,
};
pub(crate) use authentication::Authentication;
use flagstone_nvme::limits::TERM_REQ_MAX_BYTES;
use flagstone_transport::limits::TERMINATE_TIMEOUT;
use flagstone_transport::{InFlightPlace, Rx, RxError, Tx, source_of_peer};
use fused::FusedFirst;
use tls::TlsHost;
use transfer::Transfers;
use waiting::WaitingCommand;

/// State shared by the tasks of a connection, which all run on one core.
pub(crate) struct Connection {
    pub(crate) target: Arc<Target>,
    stream: Stream,
    /// Host authenticated by TLS; `None` without TLS.
    tls_host: Option<TlsHost>,
    /// Encryption of the listener's connections.
    tls_mode: TlsMode,
    tx: Tx,
    /// Its place among the connections whose host may not use volumes; `None` when it may.
    unproven: RefCell<Option<InFlightPlace>>,
    encoder: Cell<Encoder>,
    session: RefCell<Option<QueueSession>>,
    /// The session's queue, which counts admitted commands for other cores to read.
    queue: OnceCell<Arc<ControllerQueue>>,
    transfers: RefCell<Transfers>,
    /// Commands received and not yet completed.
    outstanding: Cell<u32>,
    /// Payload bytes of the outstanding commands.
    payload_bytes: Cell<usize>,
    /// The part of `payload_bytes` that is being transferred with R2Ts. It falls only by receiving.
    transfer_bytes: Cell<usize>,
    /// In-flight commands that wait for memory.
    waiting: RefCell<VecDeque<WaitingCommand>>,
    fused_first: RefCell<FusedFirst>,
    /// Reserved memory that lets the receiver continue while R2T data is outstanding.
    reserve: Reserve,
    /// Largest in-capsule data, in bytes; 0 before Connect.
    in_capsule_bytes: Cell<u32>,
    /// Unsent bytes at which the connection stops receiving.
    queued_bytes_max: Cell<usize>,
    /// Receiving has ended, so no more R2Ts are sent.
    ended: Cell<bool>,
    /// Set when the host is gone: device calls that only wait give up.
    ended_flow: RefCell<Option<EndedFlow>>,
    /// Part of the buffer memory that payload in flight and unsent data may take.
    share: Share,
    /// Bytes sent that `share` knows of.
    drained: Cell<u64>,
    /// Receives since the start, of any length.
    receives: Rc<Cell<u64>>,
    /// Notified when in-flight commands or payload decrease, and when a send completes.
    room: Rc<sync::Notify>,
    /// PDUs received; the watchdog compares it.
    received: Cell<u64>,
    /// Input that the connection is waiting for.
    awaits: Cell<Awaits>,
}

pub(crate) struct AdmittedCommand(Rc<Connection>, Option<AdmissionPhase>);

impl std::ops::Deref for AdmittedCommand {
    type Target = Rc<Connection>;

    #[inline]
    fn deref(&self) -> &Rc<Connection> {
        &self.0
    }
}

impl Drop for AdmittedCommand {
    #[inline]
    fn drop(&mut self) {
        if let (Some(queue), Some(phase)) = (self.0.queue.get(), self.1) {
            queue.leave(phase);
        }
    }
}

/// Input that a connection is waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaits {
    /// None: it waits for admission, memory or a device, independent of the peer.
    Nothing,
    /// The next PDU, which an idle peer need not send.
    NextPdu,
    /// The rest of a PDU, which the peer must send.
    RestOfPdu,
}

/// What a host owes for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Overdue {
    /// It does not read, or stops in the middle of a transfer.
    Transfer,
    /// It has connected no queue.
    Connect,
    /// It has not completed its authentication, or not ended the connection after a failed one.
    Authentication,
    /// Too many hosts authenticate, and it took the longest.
    Evicted,
    /// It has made a TLS PSK, and keeps the connection on which it did.
    Reconnect,
}

impl std::fmt::Display for Overdue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Transfer => "the host makes no progress",
            Self::Connect => "the host has connected no queue in time",
            Self::Authentication => "the host has not authenticated in time",
            Self::Evicted => "too many hosts authenticate, and this one took the longest",
            Self::Reconnect => {
                "the host has made a TLS PSK, and not ended this connection to use it on a new one"
            }
        })
    }
}

/// Result of Connect. Dropping it returns the queue to its controller.
pub(crate) struct QueueSession {
    connected: Connected,
    authentication: Authentication,
    sq_head: u16,
    table: Arc<NamespaceTable>,
    /// The last namespace of `table` that has a session of its own for this controller.
    own: RefCell<Weak<Namespace>>,
    /// Tasks of an admin queue, which end with it.
    _tasks: Vec<AbortOnDrop<()>>,
}

impl QueueSession {
    /// Takes a new namespace snapshot if there is one.
    #[inline]
    fn refresh(&mut self) {
        let controller = &self.connected.controller;
        if self.table.generation() != controller.generation() {
            self.table = controller.snapshot();
            self.own.take();
        }
    }

    /// The namespace of `table` as this controller sees it. Only the controller keeps its session
    /// alive, and ends it when it is reset.
    #[inline]
    fn own_namespace(&self, shared: &Arc<Namespace>) -> Option<Arc<Namespace>> {
        let known = self.own.borrow().upgrade();
        if let Some(own) = known.filter(|own| own.nsid == shared.nsid) {
            return Some(own);
        }
        let own = self.connected.controller.own_namespace(shared)?;
        *self.own.borrow_mut() = Arc::downgrade(&own);
        Some(own)
    }

    /// True if the peer speaks for the controller's host: it has created the controller, or proven
    /// what it must. Anyone can open an I/O queue of another host's controller, and must neither
    /// keep that alive nor fill its error log.
    #[inline]
    fn is_of_host(&self) -> bool {
        self.connected.queue.qid == 0 || self.authentication.is_open()
    }

    /// Records traffic of the host for the keep alive.
    #[inline]
    fn saw_traffic(&self) {
        if self.is_of_host() {
            self.connected.controller.saw_traffic();
        }
    }

    /// Submission queue head after taking one more entry.
    #[inline]
    fn next_sq_head(&self) -> u16 {
        let next = self.sq_head + 1;
        if next >= self.connected.queue.entries { 0 } else { next }
    }
}

/// Reason why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionEnd {
    #[error("{0}")]
    Stream(#[from] RxError),
    /// The peer violated the protocol. The C2HTermReq contains `offending`, the invalid header.
    #[error("protocol violation: {fatal}")]
    Violation { fatal: Fatal, offending: Vec<u8> },
    /// The peer reported a violation with a TermReq, or sent a malformed TermReq.
    #[error("the host terminated the connection: {0}")]
    Terminated(String),
}

/// Serves one accepted connection on this core until it ends, without TLS.
pub async fn serve(target: Arc<Target>, stream: Stream) {
    serve_listener(target, stream, TlsMode::Off).await;
}

/// Serves one accepted connection of a listener on this core until it ends.
pub async fn serve_listener(target: Arc<Target>, stream: Stream, mode: TlsMode) {
    // Fair schedulers in device layers share between flows, and each connection is one.
    task::begin_flow();
    let peer = stream.peer();
    if let Err(error) = stream.set_keep_alive(HOST_KEEP_ALIVE) {
        tracing::debug!(%peer, "cannot enable TCP keep alive: {error}");
    }
    let Some(place) = target.unproven.begin(source_of_peer(&peer)) else {
        let reason = "its address has too many connections that use no volume";
        target.refusals.refused(&peer, b"", &reason);
        return stream.shutdown();
    };
    let Some((socket, tls_host, mut rx)) = tls::secure(&target, &stream, mode).await else {
        return stream.shutdown();
    };
    let connection = Connection::new(target, socket, rx.receives());
    let unproven = RefCell::new(Some(place));
    let connection = Rc::new(Connection { tls_host, tls_mode: mode, unproven, ..connection });
    let sender = {
        let connection = connection.clone();
        spawn(async move { connection.tx.run().await })
    };
    let watchdog = {
        let connection = connection.clone();
        spawn(async move { connection.watch().await }).abort_on_drop()
    };
    let attending = {
        let connection = connection.clone();
        spawn(async move { connection.attend_share().await }).abort_on_drop()
    };
    let end = connection.receive(&mut rx).await;
    match &end {
        ConnectionEnd::Stream(_) => tracing::debug!(%peer, "connection ended: {end}"),
        ConnectionEnd::Violation { offending, .. } if connection.is_hello(offending) => {
            connection.refuse_hello();
        }
        _ => connection.log_end(&end),
    }
    connection.finish(&mut rx, end).await;
    if sender.await.is_ok_and(|sent| sent.is_err()) {
        tracing::debug!(%peer, "the host went away before its last responses");
    }
    // Not earlier: the watchdog ends a sender whose host reads nothing.
    drop((watchdog, attending));
    stream.shutdown();
    connection.detach();
}

impl Connection {
    fn new(target: Arc<Target>, socket: Socket, receives: Rc<Cell<u64>>) -> Connection {
        let stream = socket.stream().clone();
        let room = Rc::new(sync::Notify::new());
        Connection {
            share: target.shares().join(Protocol::Nvme, &stream.peer()),
            drained: Cell::new(0),
            receives,
            tx: Tx::new(socket, room.clone()).with_send_limit(SEND_BYTES),
            stream,
            tls_host: None,
            tls_mode: TlsMode::Off,
            unproven: RefCell::default(),
            target,
            encoder: Cell::new(Encoder::new(Digests::default(), 0)),
            session: RefCell::new(None),
            queue: OnceCell::new(),
            transfers: RefCell::default(),
            outstanding: Cell::new(0),
            payload_bytes: Cell::new(0),
            transfer_bytes: Cell::new(0),
            waiting: RefCell::default(),
            fused_first: RefCell::default(),
            reserve: Reserve::new(room.clone()),
            in_capsule_bytes: Cell::new(0),
            queued_bytes_max: Cell::new(TX_ADMIN_BYTES),
            ended: Cell::new(false),
            ended_flow: RefCell::default(),
            room,
            received: Cell::new(0),
            awaits: Cell::new(Awaits::Nothing),
        }
    }

    /// Attaches the queue that Connect created.
    fn adopt(self: &Rc<Self>, mut connected: Connected) {
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
        let session = QueueSession {
            authentication: Authentication::new(
                connected.handshake.take(),
                connected.may_authenticate,
                self.channel(),
            ),
            connected,
            sq_head: 0,
            table,
            own: RefCell::default(),
            _tasks: tasks,
        };
        let is_proven = session.authentication.is_open();
        *self.session.borrow_mut() = Some(session);
        if is_proven {
            self.may_use_volumes();
        }
    }

    /// The host has proven what it must. Discovery proves nothing.
    fn may_use_volumes(&self) {
        let kind = self.with_controller(|controller, _| controller.subsystem.kind);
        if kind == Some(SubsystemKind::Io) {
            self.unproven.take();
        }
    }

    /// Ends in order: awaits in-flight commands, and sends their completions if the peer reads
    /// them.
    async fn finish(&self, rx: &mut Rx, end: ConnectionEnd) {
        self.give_up_waiting();
        self.end_flow();
        // The controller ends with its admin queue. No I/O queue of it may delay the commands in
        // flight here, nor execute commands while the host connects again. A target that drains
        // lets them end.
        self.with_controller(|controller, queue| {
            if queue.qid == 0 {
                controller.end_vendor_sessions();
                if !self.target.is_draining() {
                    controller.cut_queues(1);
                }
            }
        });
        if let ConnectionEnd::Violation { fatal, offending } = &end {
            self.tx.header(TERM_REQ_MAX_BYTES, |out| {
                encode_term_req(out, Receiver::Controller, *fatal, offending)
            });
            // This is the last PDU: completions of in-flight commands are no longer sent.
            self.tx.finish();
        }
        self.room.wait_for(|| (self.outstanding.get() == 0).then_some(())).await;
        let violation = matches!(end, ConnectionEnd::Violation { .. });
        if self.target.is_draining() && !violation {
            self.wait_for_other_queues().await;
        }
        self.tx.finish();
        if violation {
            // The peer reads the reason and closes. Anything it still sends is discarded.
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

    /// Waits in bounded time until every queue of the controller has answered its commands. While
    /// the server stops, no connection may end earlier: a host gives up all of them with the first
    /// one, and repeats commands whose answers were under way.
    async fn wait_for_other_queues(&self) {
        let all_answered = async {
            self.tx.drained().await;
            self.with_controller(|_, queue| queue.set_answered());
            let waits = || self.with_controller(|controller, _| !controller.has_answered());
            while waits() == Some(true) {
                time::sleep(ANSWERED_PERIOD).await;
            }
        };
        // The server closes what is left.
        let _ = time::timeout(ANSWERED_TIMEOUT, all_answered).await;
    }

    fn end_flow(&self) {
        self.ended_flow.borrow_mut().get_or_insert_with(task::end_flow);
    }

    /// Leaves the controller. An admin queue destroys its controller.
    fn detach(&self) {
        let session = self.session.borrow_mut().take();
        drop(session);
    }

    /// True while the connection waits for the peer: either sent data is not read, or required
    /// input does not arrive.
    fn peer_owes(&self) -> bool {
        let receives = match self.awaits.get() {
            // More commands than queue entries: the data of the earlier commands is behind them.
            Awaits::Nothing => {
                let entries = self.with_controller(|_, queue| queue.entries).unwrap_or(1);
                self.outstanding.get() >= u32::from(entries) && !self.transfers.borrow().is_empty()
            }
            Awaits::NextPdu => !self.transfers.borrow().is_empty(),
            Awaits::RestOfPdu => true,
        };
        receives || self.tx.is_busy()
    }

    /// Closes the connection of a peer that makes no progress, and releases namespaces that were
    /// removed.
    async fn watch(&self) {
        let timeout = self.target.config().slow_peer_timeout;
        let handshake = self.target.config().handshake_timeout;
        let period = WATCHDOG_PERIOD.min(timeout).min(handshake);
        let mut stuck = Duration::ZERO;
        let mut before = (0, 0);
        let accepted = time::now();
        loop {
            time::sleep(period).await;
            self.refresh();
            if self.queue.get().is_some_and(|queue| !queue.is_open()) {
                // The controller was reset or is gone. At its limits, this connection receives
                // nothing, and would not notice before a blocked command ends.
                self.end_flow();
            }
            let now = (self.tx.sent_bytes(), self.received.get());
            stuck = if self.peer_owes() && now == before { stuck + period } else { Duration::ZERO };
            before = now;
            let stalled = (stuck >= timeout).then_some(Overdue::Transfer);
            if let Some(overdue) = stalled.or_else(|| self.overdue(accepted, handshake)) {
                self.log_end(&overdue);
                self.tx.close();
                // Discard the kernel's unsent data too.
                self.stream.abort();
                return;
            }
        }
    }

    /// Logs the end of the connection, with the name of its host if there is one.
    fn log_end(&self, reason: &dyn std::fmt::Display) {
        let host = self.with_controller(|controller, _| controller.host.nqn.to_string());
        let host = host.unwrap_or_default();
        self.target.ends.refused(&self.stream.peer(), host.as_bytes(), reason);
    }

    /// Why the connection has to end, though its host owes no PDU. `accepted` is when it began.
    fn overdue(&self, accepted: time::Instant, handshake: Duration) -> Option<Overdue> {
        match self.session.borrow().as_ref() {
            None => (accepted.elapsed() >= handshake).then_some(Overdue::Connect),
            Some(session) => session.authentication.overdue(accepted, handshake),
        }
    }

    /// Takes a new namespace snapshot. Without this, an idle connection would keep removed devices
    /// open.
    fn refresh(&self) {
        let mut session = self.session.borrow_mut();
        session.as_mut().map(QueueSession::refresh);
    }

    /// Counts a command with `payload` bytes as in flight.
    #[inline]
    pub(crate) fn begin(&self, payload: usize) {
        self.outstanding.set(self.outstanding.get() + 1);
        self.payload_bytes.set(self.payload_bytes.get() + payload);
    }

    /// Admits an in-flight command whose namespace was found in the same turn. The command counts
    /// as admitted while the returned value lives.
    #[inline]
    pub(crate) fn admit(self: &Rc<Self>) -> AdmittedCommand {
        let phase = self.queue.get().map(|queue| queue.enter());
        AdmittedCommand(self.clone(), phase)
    }

    /// Like [`Connection::admit`], for commands that the connection itself stores.
    pub(crate) fn admit_waiting(&self) -> Option<CommandInFlight> {
        self.queue.get().map(|queue| CommandInFlight::new(queue.clone()))
    }

    /// Counts a command with `payload` bytes as completed or dropped.
    #[inline]
    pub(crate) fn release(&self, payload: usize) {
        self.outstanding.set(self.outstanding.get() - 1);
        self.payload_bytes.set(self.payload_bytes.get() - payload);
        self.share.released(self.held());
        self.room.notify();
    }

    /// Moves `payload` bytes of an in-flight command out of the budget: the command waits for data
    /// that the host has yet to send, and the connection must keep receiving.
    pub(crate) fn begin_waiting(&self, payload: usize) {
        self.payload_bytes.set(self.payload_bytes.get() - payload);
        self.room.notify();
    }

    /// Ends [`Connection::begin_waiting`]: the command no longer depends on the host.
    pub(crate) fn end_waiting(&self, payload: usize) {
        self.payload_bytes.set(self.payload_bytes.get() + payload);
    }

    /// Finds a namespace of this queue's controller, or returns the status that refuses it.
    #[inline]
    pub(crate) fn namespace(&self, nsid: u32) -> Result<Arc<Namespace>, Status> {
        let mut session = self.session.borrow_mut();
        let session = session.as_mut().ok_or(Status::COMMAND_SEQUENCE_ERROR.dnr())?;
        session.refresh();
        let controller = &session.connected.controller;
        match session.table.get(nsid) {
            Some(namespace) => match session.table.ana().io_status() {
                Status::SUCCESS => {
                    controller.own_namespace(namespace).ok_or(Status::COMMAND_SEQUENCE_ERROR.dnr())
                }
                status => Err(status),
            },
            None => Err(session.table.absent_status(nsid)),
        }
    }

    /// All namespaces of this queue's controller, for commands that address all of them. Fails if a
    /// command to any of them would fail.
    pub(crate) fn namespaces(&self) -> Result<Vec<Arc<Namespace>>, Status> {
        let session = self.session.borrow();
        let session = session.as_ref().ok_or(Status::COMMAND_SEQUENCE_ERROR.dnr())?;
        let controller = &session.connected.controller;
        let table = controller.snapshot();
        match table.ana().io_status() {
            Status::SUCCESS if table.pending().len() > 0 => Err(PENDING_ANA.io_status()),
            Status::SUCCESS => {
                Ok(table.iter().filter_map(|one| controller.own_namespace(one)).collect())
            }
            status => Err(status),
        }
    }

    /// Source address of the connection; `None` for a Unix socket.
    pub(super) fn source(&self) -> Option<IpAddr> {
        source_of_peer(&self.stream.peer())
    }

    /// This queue's controller.
    #[inline]
    pub(crate) fn with_controller<T>(
        &self,
        look: impl FnOnce(&Arc<Controller>, &ControllerQueue) -> T,
    ) -> Option<T> {
        let session = self.session.borrow();
        session.as_ref().map(|one| look(&one.connected.controller, &one.connected.queue))
    }
}
