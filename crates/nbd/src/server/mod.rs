//! The server: [`Server::serve`] speaks NBD on one accepted stream, [`Server::run`] accepts.
//!
//! A connection lives on one core and is four things: a receiver that parses many requests from
//! each receive (`receiver`), device calls that are answered at once or go on in pooled tasks
//! (`execute`), a sender that puts all ready replies in one send (`sender`), and a warden that
//! closes peers which stall (`warden`). What they share is in `connection`.
//!
//! Promises: requests in flight, their bytes, and the patience with a peer are bounded by
//! [`crate::limits`]; a flush is answered when all writes answered before are durable; the end of a
//! connection, however it comes, waits for its device calls and leaves nothing behind.

mod attached;
mod connection;
mod drain;
mod execute;
mod partial;
mod receiver;
mod sender;
mod warden;

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use flagstone_runtime::limits::BUF_MIN_BYTES;
use flagstone_runtime::net::{Listener, Stream};
use flagstone_runtime::{Buf, spawn, task, time};

pub use attached::Attached;
pub use drain::Drain;

use crate::departures::Departure;
use crate::export::Exports;
use crate::handshake::{Handshake, Progress, Refusal};
use crate::limits::{HANDSHAKE_TIMEOUT, KEEP_ALIVE, MAX_CONNECTIONS, PEER_TIMEOUT};
use crate::links::Hold;
use crate::session::Session;
use crate::staging::Staging;
use crate::wire::request::BadRequestMagic;
use attached::Roll;
use connection::Connection;
use receiver::End;
use warden::Verdict;

/// How patient a server is, and with how many.
#[derive(Clone, Copy, Debug)]
pub struct ServerOptions {
    /// A peer must finish its negotiation in this time.
    pub handshake_timeout: Duration,
    /// A peer that keeps the server waiting in the midst of a request or a reply is closed after
    /// this time without progress.
    pub peer_timeout: Duration,
    /// Connections served at a time; more are closed at once.
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

/// How a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum Outcome {
    /// The client said so, or closed between two requests.
    #[error("the client disconnected")]
    Disconnected,
    /// The client closed in the midst of a message.
    #[error("the client closed in the midst of a message")]
    CutShort,
    /// The negotiation led to no session.
    #[error("negotiation ended: {0}")]
    Refused(#[from] Refusal),
    /// The stream is out of step.
    #[error("{0}")]
    OutOfStep(#[from] BadRequestMagic),
    /// The client took too long over its negotiation, a request, or the taking of replies.
    #[error("the client did not answer in time")]
    TimedOut,
    /// The server is going down.
    #[error("the server is shutting down")]
    Drained,
    /// The client has connected anew.
    #[error("a new connection of the client took its place")]
    Replaced,
    /// The system failed the stream.
    #[error("{0}")]
    Failed(#[from] io::Error),
}

/// Serves exports to any number of clients. Shared by all cores.
#[derive(Debug)]
pub struct Server {
    exports: Arc<Exports>,
    options: ServerOptions,
    drain: Drain,
    connections: AtomicUsize,
    attached: Roll,
}

impl Server {
    /// A server of `exports` that goes down when `drain` begins.
    pub fn new(exports: Arc<Exports>, options: ServerOptions, drain: Drain) -> Arc<Server> {
        let (connections, attached) = (AtomicUsize::new(0), Roll::default());
        Arc::new(Server { exports, options, drain, connections, attached })
    }

    /// Connections that are served now, on all cores.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// The clients whose negotiation has ended well, in the order in which it did.
    pub fn attached(&self) -> Vec<Attached> {
        self.attached.all()
    }

    /// Accepts clients and spreads them over the cores until the drain begins; returns once all
    /// have ended.
    pub async fn run(self: Arc<Self>, listener: Listener) {
        let cores = flagstone_runtime::cores();
        let mut next = flagstone_runtime::core_index();
        while let Some(accepted) = self.next_client(&listener).await {
            let stream = match accepted {
                Ok(stream) => stream,
                Err(error) => {
                    // Out of descriptors, or a client that has gone already: look again soon.
                    tracing::warn!("cannot accept on {}: {error}", listener.address());
                    time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            if self.connections.fetch_add(1, Ordering::Relaxed) >= self.options.max_connections {
                self.connections.fetch_sub(1, Ordering::Relaxed);
                tracing::warn!("closed a client: {} are served", self.options.max_connections);
                continue;
            }
            let place = Occupied(self.clone());
            let server = self.clone();
            cores[next % cores.len()].spawn(move || async move {
                let peer = stream.peer();
                let outcome = server.serve(stream).await;
                tracing::info!(%peer, "NBD connection ended: {outcome}");
                drop(place);
            });
            next += 1;
        }
        drop(listener);
        while self.connections() > 0 {
            time::sleep(ACCEPT_PAUSE).await;
        }
    }

    /// The next client, or `None` when the drain begins.
    async fn next_client(&self, listener: &Listener) -> Option<io::Result<Stream>> {
        self.drain.unless_begun(listener.accept()).await
    }

    /// Speaks NBD on an accepted stream, on this core, until either side ends it.
    pub async fn serve(&self, stream: Stream) -> Outcome {
        // Layers that are fair are fair to connections.
        task::begin_flow();
        if let Err(error) = stream.set_keep_alive(KEEP_ALIVE) {
            tracing::debug!("cannot watch over an idle client: {error}");
        }
        let mut staging = Staging::new();
        let negotiation = async {
            let session = negotiate(&stream, &self.exports, &mut staging).await?;
            let hold = match session.link {
                Some(link) => Some(Hold::take(session.export.clone(), link).await),
                None => None,
            };
            session.export.departures.over().await;
            Ok((session, hold))
        };
        let in_time = time::timeout(self.options.handshake_timeout, negotiation);
        let outcome = match self.drain.unless_begun(in_time).await {
            Some(Ok(Ok((session, hold)))) => {
                return self.transmit(stream, session, hold, staging).await;
            }
            Some(Ok(Err(outcome))) => outcome,
            Some(Err(_)) => Outcome::TimedOut,
            None => Outcome::Drained,
        };
        // A receive that was dropped may keep the socket open for a moment: the peer shall know.
        stream.shutdown();
        outcome
    }

    async fn transmit(
        &self,
        stream: Stream,
        session: Session,
        hold: Option<Hold>,
        mut staging: Staging,
    ) -> Outcome {
        let export = session.export.name.clone();
        let _entry = self.attached.enter(Attached { export, peer: stream.peer() });
        let connection = Rc::new(Connection::new(
            stream,
            session,
            staging.progress(),
            self.drain.clone(),
            hold.as_ref().map(|hold| hold.stop.clone()),
        ));
        let mut sender = spawn(sender::send_replies(connection.clone())).abort_on_drop();
        let watch = warden::watch(connection.clone(), self.options.peer_timeout);
        let mut warden = spawn(watch).abort_on_drop();
        let end = receiver::receive(&connection, &mut staging).await;
        let departure = Departure::begin(connection.session.export.clone());
        // Its memory is not needed for what is left to do.
        drop(staging);
        connection.ended.set(true);
        connection.sender.notify();
        let _ = sender.handle().await;
        drop(departure);
        drop(hold);
        if warden.handle().is_finished() {
            return match warden.handle().await {
                Ok(Verdict::Stalled) => Outcome::TimedOut,
                Ok(Verdict::Replaced) => Outcome::Replaced,
                Ok(Verdict::Drained) | Err(_) => Outcome::Drained,
            };
        }
        connection.stream.shutdown();
        match end {
            End::Replaced => Outcome::Replaced,
            End::Disconnect | End::Closed { whole: true } => Outcome::Disconnected,
            End::Closed { whole: false } => Outcome::CutShort,
            End::BadMagic(bad) => Outcome::OutOfStep(bad),
            End::Failed(error) => Outcome::Failed(error),
        }
    }
}

/// Pause before a failed accept is tried again, and between looks at the end of connections.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// One of the connections that a server counts.
struct Occupied(Arc<Server>);

impl Drop for Occupied {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs the negotiation on a stream.
async fn negotiate(
    stream: &Stream,
    exports: &Arc<Exports>,
    staging: &mut Staging,
) -> Result<Session, Outcome> {
    let mut out = Vec::new();
    let mut handshake = Handshake::new(exports.clone(), &mut out);
    loop {
        let (taken, progress) = handshake.step(staging.unread(), &mut out);
        staging.consume(taken);
        if matches!(progress, Progress::Again) && out.len() < FLUSH_BYTES {
            continue;
        }
        send(stream, &mut out).await?;
        match progress {
            Progress::Again => {}
            Progress::Begin(session) => return Ok(session),
            Progress::Close(refusal) => return Err(refusal.into()),
            Progress::More => {
                let part = !staging.unread().is_empty();
                if staging.receive(stream).await? == 0 {
                    return Err(if part { Outcome::CutShort } else { Outcome::Disconnected });
                }
            }
        }
    }
}

/// Answers of a negotiation are sent when they reach this length, in bytes, or when more input is
/// needed: a client that asks and asks cannot make them grow.
const FLUSH_BYTES: usize = 64 << 10;

async fn send(stream: &Stream, out: &mut Vec<u8>) -> io::Result<()> {
    for part in out.chunks(BUF_MIN_BYTES) {
        let mut buf = flagstone_runtime::buf::alloc_small(part.len());
        buf.copy_from_slice(part);
        let sent: Buf = buf.freeze();
        stream.send_buf(sent).await?;
    }
    out.clear();
    Ok(())
}
