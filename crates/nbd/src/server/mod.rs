//! NBD server: [`NbdServer::run`] accepts connections, [`NbdServer::serve`] runs one.
//!
//! A connection lives on one core. Its receiver parses many requests per receive (`receiver`).
//! Device calls complete immediately or in pooled tasks (`execute`). Its sender
//! ([`flagstone_transport::Tx`]) puts all ready replies into one send. Its watchdog closes stalled
//! peers (`watchdog`). They share the state in `connection`.
//!
//! Invariants: [`crate::limits`] bounds requests in flight, their bytes, and waiting for a peer. A
//! flush is answered only when all writes answered before it are durable. The end of a connection,
//! whatever its cause, waits for its device calls and leaks nothing. A request that is not executed
//! because the server drains or the device cannot be reached has no reply: its connection ends, and
//! clients that reconnect send it again. Until the device can be reached, new clients are refused
//! in the negotiation (`crate::reach`).

mod attached;
mod connection;
mod drain;
mod execute;
mod partial;
mod receiver;
mod refusal_counts;
mod stop;
mod tls;
mod watchdog;

use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use flagstone_blockdev::IoError;
use flagstone_runtime::buf::{self, BufferShares, Protocol};
use flagstone_runtime::limits::BUF_MIN_BYTES;
use flagstone_runtime::net::{Listener, Socket, Stream};
use flagstone_runtime::{Buf, spawn, task, time};
use flagstone_transport::{InFlight, RefusalLog, Rx, RxError, source_of_peer};

pub use attached::AttachedClient;
pub use drain::Drain;
pub use tls::{NbdTls, NbdTlsKeys};

use crate::export::Exports;
use crate::handshake::{Handshake, HandshakeError, HandshakeStep, NbdRefusal, NbdRefusalReason};
use crate::limits::{
    HANDSHAKE_TIMEOUT, KEEP_ALIVE, MAX_CONNECTIONS, NEGOTIATIONS_PER_SOURCE, PEER_TIMEOUT,
};
use crate::links::LinkOwner;
use crate::reach;
use crate::session::NbdSession;
use crate::wire::request::BadRequestMagic;
use attached::ClientRegistry;
use connection::NbdConnection;
use refusal_counts::RefusalCounts;
use stop::ConnectionStop;
use tls::ConnectionTls;

#[derive(Clone, Copy, Debug)]
pub struct ServerOptions {
    /// Time limit of each step of the negotiation, and of all steps while many clients negotiate.
    pub handshake_timeout: Duration,
    /// A peer that delays a started request or a send for this long is disconnected.
    pub peer_timeout: Duration,
    /// Concurrent connections; more are closed immediately.
    pub max_connections: usize,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions {
            handshake_timeout: HANDSHAKE_TIMEOUT,
            peer_timeout: PEER_TIMEOUT,
            max_connections: MAX_CONNECTIONS,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum DisconnectReason {
    /// The client sent DISC, or closed between two requests.
    #[error("the client disconnected")]
    Disconnected,
    /// The client closed within a message.
    #[error("the client closed within a message")]
    CutShort,
    #[error("negotiation ended: {0}")]
    Refused(#[from] HandshakeError),
    /// Invalid magic: the stream is out of sync.
    #[error("{0}")]
    OutOfStep(#[from] BadRequestMagic),
    /// The client stalled in its negotiation, a request, or reading replies.
    #[error("the client did not answer in time")]
    TimedOut,
    /// The client stalled while others waited for memory.
    #[error("the client neither read nor sent while others waited for memory")]
    Stalled,
    /// A read failed after its reply had begun.
    #[error("a read failed after part of its reply was sent: {0}")]
    ReadFailed(IoError),
    /// Too many negotiations of its address are in progress.
    #[error("too many negotiations of this address are in progress")]
    Busy,
    /// Its key was withdrawn, or the clients of its export are disconnected.
    #[error("the server ended the connection")]
    Stopped,
    /// The device of the export could not be reached; requests in flight have no reply.
    #[error("the device cannot be reached")]
    Unreachable,
    /// The export was removed, or replaced by another of its name, after it was negotiated.
    #[error("the export was removed")]
    Removed,
    /// The export was suspended after it was negotiated.
    #[error("the export admits no clients for now")]
    Suspended,
    #[error("the server is shutting down")]
    Drained,
    #[error("replaced by a new connection of the client")]
    Replaced,
    #[error("{0}")]
    Failed(#[from] io::Error),
}

#[derive(Debug)]
pub struct NbdServer {
    exports: Arc<Exports>,
    options: ServerOptions,
    drain: Drain,
    connections: AtomicUsize,
    attached: ClientRegistry,
    shares: OnceLock<Arc<BufferShares>>,
    /// Negotiations in progress. One address has at most half of all connections, so that a client
    /// that opens many and completes none leaves room for others.
    negotiations: Arc<InFlight>,
    refusal_counts: RefusalCounts,
    refusals: RefusalLog,
}

impl NbdServer {
    /// Creates a server of `exports` that shuts down when `drain` is set.
    pub fn new(exports: Arc<Exports>, options: ServerOptions, drain: Drain) -> Arc<NbdServer> {
        let (connections, attached) = (AtomicUsize::new(0), ClientRegistry::default());
        let per_source = NEGOTIATIONS_PER_SOURCE.max(options.max_connections / 2);
        let negotiations = InFlight::new(options.max_connections, per_source);
        Arc::new(NbdServer {
            exports,
            options,
            drain,
            connections,
            attached,
            shares: OnceLock::new(),
            negotiations,
            refusal_counts: RefusalCounts::default(),
            refusals: RefusalLog::new("NBD negotiation"),
        })
    }

    /// Shares the buffer memory with other servers of this process. Without it, or after the first
    /// connection, the server has shares of its own.
    pub fn share_buffers(&self, shares: Arc<BufferShares>) {
        let _ = self.shares.set(shares);
    }

    fn shares(&self) -> &Arc<BufferShares> {
        let own = || BufferShares::new(buf::memory_limit(), self.options.max_connections);
        self.shares.get_or_init(own)
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Clients that completed the negotiation, in that order.
    pub fn attached(&self) -> Vec<AttachedClient> {
        self.attached.all()
    }

    /// Refused requests of negotiations since the start, by the name of their reason.
    pub fn refusals(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.refusal_counts.all()
    }

    /// Closes the connections of clients attached to an export.
    pub fn disconnect(&self, export: &str) {
        self.attached.disconnect(export);
    }

    /// Accepts clients and distributes them over the cores until shutdown. Returns when all
    /// connections have ended.
    pub async fn run(self: Arc<Self>, listener: Listener) {
        self.run_tls(listener, None).await;
    }

    /// Same as [`NbdServer::run`], for a listener whose clients may or have to use TLS.
    pub async fn run_tls(self: Arc<Self>, listener: Listener, tls: Option<NbdTls>) {
        let cores = flagstone_runtime::cores();
        let mut next = flagstone_runtime::core_index();
        while let Some(accepted) = self.next_client(&listener).await {
            let stream = match accepted {
                Ok(stream) => stream,
                Err(error) => {
                    // Out of file descriptors, or the client has already gone: retry soon.
                    tracing::warn!("cannot accept on {}: {error}", listener.address());
                    time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            if self.connections.fetch_add(1, Ordering::Relaxed) >= self.options.max_connections {
                self.connections.fetch_sub(1, Ordering::Relaxed);
                let max = self.options.max_connections;
                let reason = format!("{max} connections are open");
                self.refusals.refused(&stream.peer(), &[], &reason);
                continue;
            }
            let place = Occupied(self.clone());
            let (server, tls) = (self.clone(), tls.clone());
            cores[next % cores.len()].spawn(move || async move {
                server.serve_tls(stream, tls).await;
                drop(place);
            });
            next += 1;
        }
        drop(listener);
        while self.connections() > 0 {
            time::sleep(ACCEPT_PAUSE).await;
        }
    }

    /// Next client, or `None` at shutdown.
    async fn next_client(&self, listener: &Listener) -> Option<io::Result<Stream>> {
        self.drain.unless_begun(listener.accept()).await
    }

    /// Runs NBD on an accepted stream on this core, until either side ends it.
    pub async fn serve(&self, stream: Stream) -> DisconnectReason {
        self.serve_tls(stream, None).await
    }

    /// Same as [`NbdServer::serve`], for a listener whose clients may or have to use TLS.
    pub async fn serve_tls(&self, stream: Stream, tls: Option<NbdTls>) -> DisconnectReason {
        // Fair schedulers in device layers share between flows, and each connection is one.
        task::begin_flow();
        if let Err(error) = stream.set_keep_alive(KEEP_ALIVE) {
            tracing::debug!("cannot enable TCP keep alive: {error}");
        }
        let stop = ConnectionStop::new(stream.clone());
        let tls = ConnectionTls::new(tls, stop.clone());
        let mut socket = Socket::from(stream.clone());
        let mut rx = Rx::new(socket.clone());
        let negotiation = async {
            let session = self.negotiate(&mut socket, &mut rx, &tls).await?;
            let ready = async {
                let owner = match session.link {
                    Some(link) => Some(LinkOwner::take(session.export.clone(), link).await),
                    None => None,
                };
                // Requests before the end of a connection may be unread: the client sends them
                // again on this one, and must not be overtaken by them.
                while self.attached.has_ended_client(&session.export.name) {
                    time::sleep(ACCEPT_PAUSE).await;
                }
                session.export.ended_connections.wait().await;
                owner
            };
            match time::timeout(self.options.handshake_timeout, ready).await {
                Ok(owner) => Ok((session, owner)),
                Err(_) => {
                    let (export, reason) =
                        (session.export.name.clone(), NbdRefusalReason::Unfinished);
                    self.refused(&stream, &NbdRefusal { export, reason });
                    Err(DisconnectReason::TimedOut)
                }
            }
        };
        let peer = stream.peer();
        let outcome = match self.drain.unless_begun(negotiation).await {
            Some(Ok((session, owner))) => {
                let outcome = self.transmit(socket, session, owner, (rx, stop)).await;
                tracing::info!(%peer, "NBD connection ended: {outcome}");
                return outcome;
            }
            Some(Err(outcome)) => outcome,
            None => DisconnectReason::Drained,
        };
        // At debug level: strangers cause as many as they wish, and a refusal has its line.
        tracing::debug!(%peer, "NBD negotiation ended: {outcome}");
        // A dropped receive may keep the socket open for a moment: notify the peer now.
        stream.shutdown();
        outcome
    }

    /// Runs the negotiation on a stream. A client may take [`Handshake::time_max`] for all steps,
    /// but only the time of one step while many clients negotiate.
    async fn negotiate(
        &self,
        socket: &mut Socket,
        rx: &mut Rx,
        tls: &ConnectionTls,
    ) -> Result<NbdSession, DisconnectReason> {
        let peer = socket.stream().peer();
        let Some(_negotiating) = self.negotiations.begin(source_of_peer(&peer)) else {
            let (export, reason) = (String::new(), NbdRefusalReason::Busy);
            self.refused(socket.stream(), &NbdRefusal { export, reason });
            return Err(DisconnectReason::Busy);
        };
        let begun = time::now();
        let mut out = Vec::new();
        let handshake = Handshake::new(self.exports.clone(), &mut out);
        let mut handshake = handshake.with_security(tls.security());
        loop {
            let step_max = self.options.handshake_timeout;
            let all_max = if self.negotiations.is_crowded() {
                step_max
            } else {
                handshake.time_max().max(step_max)
            };
            let left = all_max.saturating_sub(begun.elapsed()).min(step_max);
            let step = negotiation_step(socket, rx, &mut handshake, &mut out, (tls, left));
            let result = time::timeout(left, step).await;
            if let Some(refusal) = handshake.take_refusal() {
                self.refused(socket.stream(), &refusal);
            }
            let end = match result {
                Ok(Ok(None)) => continue,
                Ok(Ok(Some(session))) => return Ok(session),
                Ok(Err(end)) => end,
                Err(_) => DisconnectReason::TimedOut,
            };
            let reason = match &end {
                // The refusal of the option was recorded, if there was one.
                DisconnectReason::Refused(
                    HandshakeError::Aborted
                    | HandshakeError::UnknownExport
                    | HandshakeError::TlsRequired,
                ) => None,
                DisconnectReason::Refused(error) => Some(NbdRefusalReason::Failed(error.clone())),
                DisconnectReason::TimedOut => Some(NbdRefusalReason::TimedOut),
                _ => None,
            };
            if let Some(reason) = reason {
                self.refused(socket.stream(), &handshake.refusal(reason));
            }
            return Err(end);
        }
    }

    fn refused(&self, stream: &Stream, refusal: &NbdRefusal) {
        self.refusal_counts.refused(&refusal.reason);
        self.refusals.refused(&stream.peer(), refusal.export.as_bytes(), &refusal.reason);
    }

    async fn transmit(
        &self,
        socket: Socket,
        session: NbdSession,
        owner: Option<LinkOwner>,
        (mut rx, stop): (Rx, ConnectionStop),
    ) -> DisconnectReason {
        let stream = socket.stream().clone();
        let export = session.export.name.clone();
        let attached = AttachedClient { export, peer: stream.peer() };
        let _entry = self.attached.enter(attached, stop.clone());
        // It may have been removed during the negotiation, when nothing disconnected this client.
        if !self.exports.is_current(&session.export) {
            stream.shutdown();
            return DisconnectReason::Removed;
        }
        // So may it have been suspended, by someone who then found no client attached.
        if session.export.is_suspended() {
            stream.shutdown();
            return DisconnectReason::Suspended;
        }
        stop.begin_transmission(&session.export);
        let share = self.shares().join(Protocol::Nbd, &stream.peer());
        let connection = Rc::new(NbdConnection::new(
            socket,
            session,
            share,
            rx.receives(),
            self.drain.clone(),
            owner.as_ref().map(|owner| owner.stop.clone()),
            stop.clone(),
        ));
        let sending = connection.clone();
        let mut sender = spawn(async move { sending.run_sender().await }).abort_on_drop();
        let watch = watchdog::watch(connection.clone(), self.options.peer_timeout);
        let mut watchdog = spawn(watch).abort_on_drop();
        let attending = connection.clone();
        let mut stalled = spawn(async move {
            attending.attend_share().await;
            attending.stop.begin();
            // Discard the kernel's unsent data too.
            attending.stream.abort();
        })
        .abort_on_drop();
        let end = receiver::receive(&connection, &mut rx).await;
        stop.part_as_ended();
        // Frees receive memory early.
        drop(rx);
        if connection.lost.has_begun() {
            connection.pace_end().await;
        }
        connection.finish(&end).await;
        let _ = sender.handle().await;
        stop.release();
        drop(owner);
        if stalled.handle().is_finished() {
            return DisconnectReason::Stalled;
        }
        if watchdog.handle().is_finished() {
            return watchdog.handle().await.unwrap_or(DisconnectReason::Drained);
        }
        connection.stream.shutdown();
        end
    }
}

/// Pause before a failed accept is retried, and between checks for the end of connections.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

struct Occupied(Arc<NbdServer>);

impl Drop for Occupied {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Answers all options that have arrived, and receives once. Returns the session when the
/// negotiation has ended.
async fn negotiation_step(
    socket: &mut Socket,
    rx: &mut Rx,
    handshake: &mut Handshake,
    out: &mut Vec<u8>,
    (tls, timeout): (&ConnectionTls, Duration),
) -> Result<Option<NbdSession>, DisconnectReason> {
    let mut scratch = Vec::new();
    let begun = time::now();
    loop {
        let (taken, progress) = handshake.step(rx.unread(&mut scratch), out);
        rx.skip(taken);
        if matches!(progress, HandshakeStep::Again) && out.len() < FLUSH_BYTES {
            continue;
        }
        send(socket, out).await?;
        match progress {
            HandshakeStep::Again => {}
            HandshakeStep::StartTls => {
                handshake.secured(tls::begin(socket, rx, tls, timeout).await?);
            }
            HandshakeStep::Check(exports) => {
                // The other half is for the answer.
                let limit = timeout.saturating_sub(begun.elapsed()) / 2;
                reach::check(&exports, limit).await;
            }
            HandshakeStep::Begin(session) => return Ok(Some(session)),
            HandshakeStep::Close(refusal) => return Err(refusal.into()),
            HandshakeStep::More => {
                let part = rx.available() > 0;
                rx.more_pooled().await.map_err(|error| match error {
                    RxError::Closed if !part => DisconnectReason::Disconnected,
                    error => error.into(),
                })?;
                return Ok(None);
            }
        }
    }
}

/// Negotiation replies are sent at this size, in bytes, or when more input is needed, so that a
/// flood of options cannot accumulate them.
const FLUSH_BYTES: usize = 64 << 10;

async fn send(socket: &Socket, out: &mut Vec<u8>) -> io::Result<()> {
    for part in out.chunks(BUF_MIN_BYTES) {
        let mut buf = flagstone_runtime::buf::alloc_small(part.len());
        buf.copy_from_slice(part);
        let sent: Buf = buf.freeze();
        socket.send_buf(sent).await?;
    }
    out.clear();
    Ok(())
}
