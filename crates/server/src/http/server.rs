//! HTTP server: the thread `flagstone-api` with its sockets.
//!
//! Invariants: each listener has its own connection limits, so peers of one cannot exhaust another.
//! At a limit, a new connection takes the place of the quietest one of the peer with the most, so
//! that peers that are silent or slow do not keep others out. Requests that the server has wait are
//! the last to go. Dropping an [`HttpServer`] ends its
//! thread and every connection within [`STOP_TIMEOUT`]. A call that core 0 has begun continues to
//! its end.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, TcpListener as StdTcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::rc::Rc;
use std::sync::{Arc, mpsc as std_mpsc};
use std::time::Duration;

use flagstone_runtime::net::{Address, Listener, PeerUser};
use flagstone_runtime::task::AbortOnDrop;
use flagstone_runtime::{spawn, spawn_detached, time};
use flagstone_transport::{FailureKind, RefusalLog};
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, LocalSet, spawn_local};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::http::access::{AccessClaim, ListenerAccess};
use crate::http::audit::{AuditedOrder, DataReads, RefusedOrder, RefusedOrders};
use crate::http::connection::{Clock, RefusedRequest, Silence, serve_connection};
use crate::http::limits::{
    ACCEPT_PAUSE, IDLE_TIMEOUT, MAX_CONNECTIONS, MAX_PEER_CONNECTIONS, MAX_QUEUED_REFUSALS,
    REQUEST_TIMEOUT, STOP_TIMEOUT,
};
use crate::http::problem::Problem;
use crate::http::response::last_bytes;
use crate::http::router::Router;
use crate::http::service::{RoutedCall, service};

#[cfg(doc)]
use crate::http::limits;

/// Limits of a listener that tests lower.
#[derive(Clone, Copy, Debug)]
pub struct HttpOptions {
    /// Connections at a time.
    pub max_connections: usize,
    /// The same for each IP address.
    pub max_peer_connections: usize,
    /// From the first byte of a request to its last.
    pub request_timeout: Duration,
    /// Silence between two requests.
    pub idle_timeout: Duration,
}

impl Default for HttpOptions {
    fn default() -> HttpOptions {
        HttpOptions {
            max_connections: MAX_CONNECTIONS,
            max_peer_connections: MAX_PEER_CONNECTIONS,
            request_timeout: REQUEST_TIMEOUT,
            idle_timeout: IDLE_TIMEOUT,
        }
    }
}

/// A listener, its routes, and who may use them.
pub struct Site {
    /// Accepts the connections.
    pub listener: Listener,
    /// Handles the requests.
    pub router: Rc<Router>,
    /// Who may make them.
    pub access: ListenerAccess,
}

/// A running server. Ends when dropped.
pub struct HttpServer {
    /// Dropping it stops the thread.
    stop: Option<oneshot::Sender<()>>,
    /// Disconnected when the thread has ended.
    ended: std_mpsc::Receiver<()>,
    _handling: Vec<AbortOnDrop<()>>,
}

impl HttpServer {
    /// Serves each listener by its routes, whose handlers run on this core.
    ///
    /// # Errors
    /// The system's: out of threads or file descriptors.
    pub fn start(sites: Vec<Site>, options: HttpOptions) -> io::Result<HttpServer> {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        let mut accepting = Vec::new();
        let mut handling = Vec::new();
        let (refused, refusals) = mpsc::channel(MAX_QUEUED_REFUSALS);
        handling.push(spawn(log_refusals(refusals)).abort_on_drop());
        for Site { listener, router, access } in sites {
            // Each connection has one request in progress, so the channel is never full.
            let (calls, received) = mpsc::channel(options.max_connections.max(1));
            let service = service(&router.routes(), &calls);
            let socket = Socket::adopt(listener, &runtime)?;
            accepting.push((socket, access, service));
            handling.push(spawn(handle(router, received)).abort_on_drop());
        }
        let (stop, stopped) = oneshot::channel();
        let (ending, ended) = std_mpsc::channel();
        std::thread::Builder::new().name("flagstone-api".to_owned()).spawn(move || {
            let tasks = LocalSet::new();
            let orders = Rc::new(RefusedOrders::default());
            for (socket, access, service) in accepting {
                let refusals = (refused.clone(), orders.clone());
                tasks.spawn_local(accept(socket, access, service, options, refusals));
            }
            // An error is the drop of the sender, which is the signal.
            let _ = tasks.block_on(&runtime, stopped);
            orders.flush();
            drop((tasks, runtime, refused, ending));
        })?;
        Ok(HttpServer { stop: Some(stop), ended, _handling: handling })
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.stop.take();
        let ended = self.ended.recv_timeout(STOP_TIMEOUT);
        if ended == Err(std_mpsc::RecvTimeoutError::Timeout) {
            tracing::warn!("the thread of the API did not end within {STOP_TIMEOUT:?}");
        }
    }
}

/// Starts the handlers of calls on this core, each as a task of its own.
async fn handle(router: Rc<Router>, mut calls: mpsc::Receiver<RoutedCall>) {
    let reads = Rc::new(DataReads::default());
    while let Some(RoutedCall { route, call, response }) = calls.recv().await {
        let order = match router.reads_data(route) {
            // The connection writes the line, within the limits of refused orders.
            true if router.refusal(route, &call.caller).is_some() => None,
            true => reads.begin(&call, time::now()),
            false => AuditedOrder::begin(&call),
        };
        let answer = router.answer(route, call);
        spawn_detached(async move {
            let mut answer = answer.await;
            if let Some(order) = order {
                order.answered(&mut answer);
            }
            // The peer may have gone.
            let _ = response.send(answer);
        });
    }
}

/// A refusal on its way from the API's thread to the log: peer, name and reason.
type QueuedRefusal = (String, String, String);

/// Logs refusals on this core, because the log's limits use the time of the data path's runtime.
async fn log_refusals(mut refusals: mpsc::Receiver<QueuedRefusal>) {
    let log = RefusalLog::new("API request");
    while let Some((peer, name, reason)) = refusals.recv().await {
        log.refused(&peer, name.as_bytes(), &reason);
    }
}

/// A socket that the API's thread accepts on.
enum Socket {
    Unix(UnixListener),
    Tcp(TcpListener),
}

pub(crate) trait HttpStream: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> HttpStream for S {}

impl Socket {
    /// Takes over a listener of the data path's runtime, which has created its socket.
    fn adopt(listener: Listener, runtime: &Runtime) -> io::Result<Socket> {
        let _context = runtime.enter();
        let is_unix = matches!(listener.address(), Address::Unix(_));
        let descriptor: OwnedFd = listener.into_descriptor()?;
        if is_unix {
            Ok(Socket::Unix(UnixListener::from_std(StdUnixListener::from(descriptor))?))
        } else {
            Ok(Socket::Tcp(TcpListener::from_std(StdTcpListener::from(descriptor))?))
        }
    }

    async fn accept(&self) -> io::Result<Accepted> {
        match self {
            Socket::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                let user = stream.peer_cred().ok().map(|user| PeerUser {
                    user_id: user.uid(),
                    group_id: user.gid(),
                    // 0 is a process of another namespace.
                    process_id: user
                        .pid()
                        .and_then(|id| u32::try_from(id).ok())
                        .filter(|id| *id > 0),
                });
                let peer = user.map_or("unix".to_owned(), |user| format!("user {}", user.user_id));
                let (stream, peer) = (Box::new(stream), peer.into());
                Ok(Accepted { stream, peer, address: None, user })
            }
            Socket::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                stream.set_nodelay(true)?;
                let (stream, address) = (Box::new(stream), Some(peer.ip()));
                Ok(Accepted { stream, peer: peer.to_string().into(), address, user: None })
            }
        }
    }
}

/// A connection that was accepted.
struct Accepted {
    stream: Box<dyn HttpStream>,
    /// Its peer, for the log.
    peer: Arc<str>,
    address: Option<IpAddr>,
    user: Option<PeerUser>,
}

async fn accept(
    socket: Socket,
    access: ListenerAccess,
    service: axum::Router,
    options: HttpOptions,
    (refused, orders): (mpsc::Sender<QueuedRefusal>, Rc<RefusedOrders>),
) {
    let places: Rc<RefCell<OpenConnections>> = Rc::default();
    for id in 0.. {
        let Accepted { stream, peer, address, user } = match socket.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!("the API cannot accept a connection: {error}");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let refused = refused.clone();
        let refuse = move |one: RefusedRequest| {
            // What does not fit is beyond the limits of the log anyway.
            let _ = refused.try_send((one.peer.to_string(), one.name, one.reason));
        };
        let room = places.borrow().room(address, options);
        match room {
            Room::Free => {}
            Room::Replace(quiet) => {
                if let Some(order) = places.borrow_mut().close(quiet) {
                    orders.refused(RefusedOrder { status: 503, reason: BUSY, ..order });
                }
            }
            Room::None => {
                refuse(RefusedRequest { peer, name: String::new(), reason: BUSY.to_owned() });
                if !matches!(access, ListenerAccess::Users(_)) {
                    refuse_connection(stream).await;
                }
                continue;
            }
        }
        let clock = Rc::new(Clock::new(options));
        let place = Occupied { places: places.clone(), id };
        let (access, service, serving_clock) = (access.clone(), service.clone(), clock.clone());
        let orders = orders.clone();
        let task = spawn_local(async move {
            let from = (address, user);
            match establish(stream, &access, from, options, &serving_clock).await {
                Ok((stream, claim)) => {
                    let peer = (peer, claim);
                    serve_connection(stream, peer, service, serving_clock, refuse, orders).await;
                }
                Err(reason) => refuse(RefusedRequest { peer, name: String::new(), reason }),
            }
            drop(place);
        });
        let place = OpenConnection { address, clock, task: task.abort_handle() };
        places.borrow_mut().0.insert(id, place);
    }
}

/// Makes the claim of a connection, after the TLS handshake where there is one.
async fn establish(
    stream: Box<dyn HttpStream>,
    access: &ListenerAccess,
    (address, user): (Option<IpAddr>, Option<PeerUser>),
    options: HttpOptions,
    clock: &Clock,
) -> Result<(Box<dyn HttpStream>, AccessClaim), String> {
    let users = match access {
        ListenerAccess::Local => return Ok((stream, AccessClaim::Local(user))),
        ListenerAccess::Open => return Ok((stream, AccessClaim::Anyone)),
        ListenerAccess::Users(users) => users,
    };
    let source = address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    // Before the handshake, so that an address that fails waits itself.
    clock.begin_delay();
    users.wait_for(source).await;
    users.pace_handshake().await;
    clock.end_delay();
    let handshake = TlsAcceptor::from(users.tls()).accept(stream);
    let failed = |kind, error: String| {
        users.handshake_failed(source, kind);
        format!("TLS handshake: {error}")
    };
    match timeout(options.request_timeout, handshake).await {
        Err(_) => Err(failed(FailureKind::Unfinished, "not complete in time".to_owned())),
        Ok(Err(error)) => Err(failed(failure_kind(&error), error.to_string())),
        Ok(Ok(stream)) => {
            users.handshake_succeeded(source);
            let (_, session) = stream.get_ref();
            let chain = session.peer_certificates().unwrap_or_default().iter();
            let chain = chain.cloned().map(CertificateDer::into_owned).collect();
            let claim = AccessClaim::Tls { users: users.clone(), source, chain };
            Ok((Box::new(stream), claim))
        }
    }
}

/// A handshake fails as a guess for a wrong certificate or signature. One that is cut, or that is
/// no TLS, has tried none.
fn failure_kind(error: &io::Error) -> FailureKind {
    let of_tls = error.get_ref().and_then(|source| source.downcast_ref::<rustls::Error>());
    match of_tls {
        Some(rustls::Error::InvalidCertificate(_) | rustls::Error::PeerMisbehaved(_)) => {
            FailureKind::Guess
        }
        Some(_) | None => FailureKind::Unfinished,
    }
}

/// Connections of a listener, by number.
#[derive(Default)]
struct OpenConnections(BTreeMap<u64, OpenConnection>);

struct OpenConnection {
    address: Option<IpAddr>,
    clock: Rc<Clock>,
    task: AbortHandle,
}

/// Removes a connection that has ended.
struct Occupied {
    places: Rc<RefCell<OpenConnections>>,
    id: u64,
}

impl Drop for Occupied {
    fn drop(&mut self) {
        self.places.borrow_mut().0.remove(&self.id);
    }
}

/// Whether there is room for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Free,
    /// In the place of this one.
    Replace(u64),
    None,
}

impl OpenConnections {
    fn room(&self, address: Option<IpAddr>, options: HttpOptions) -> Room {
        let open = self.0.iter().map(|(id, place)| (*id, place.address, place.clock.silence()));
        room(&open.collect::<Vec<_>>(), address, options)
    }

    /// Closes a connection. Returns the order that was being received there.
    fn close(&mut self, id: u64) -> Option<RefusedOrder> {
        let place = self.0.remove(&id)?;
        place.task.abort();
        place.clock.end_order()
    }
}

/// Room for a connection of `address` among open ones: number, address, and silence, `None` while a
/// handler works for it.
fn room(
    open: &[(u64, Option<IpAddr>, Option<Silence>)],
    address: Option<IpAddr>,
    options: HttpOptions,
) -> Room {
    let count = |peer: Option<IpAddr>| open.iter().filter(|(_, other, _)| *other == peer).count();
    let is_full = address.is_some() && count(address) >= options.max_peer_connections;
    if !is_full && open.len() < options.max_connections {
        return Room::Free;
    }
    let candidates = open.iter().filter(|(_, peer, _)| !is_full || *peer == address);
    let quiet = candidates.filter_map(|(id, peer, silence)| Some((*id, count(*peer), (*silence)?)));
    let since = |silence| match silence {
        Silence::OfPeer { since } => Some(Reverse(since)),
        Silence::OfServer => None,
    };
    let quietest = quiet.max_by_key(|(_, count, silence)| (*count, since(*silence)));
    quietest.map_or(Room::None, |(id, _, _)| Room::Replace(id))
}

/// Title of the problem of a connection without a place.
const BUSY: &str = "Too many connections";

/// Answers a connection beyond the limits. The few bytes fit into the buffer of its socket.
async fn refuse_connection(mut stream: Box<dyn HttpStream>) {
    let detail = "all connections have requests in progress";
    let problem = Problem::new(503, "busy", BUSY, detail);
    let bytes = last_bytes(problem.response());
    let _ = timeout(ACCEPT_PAUSE, stream.write_all(&bytes)).await;
}

#[cfg(test)]
mod tests {
    use axum::http::Method;
    use flagstone_config::ApiRole;
    use serde_json::json;
    use tokio::time::Instant;

    use super::*;
    use crate::http::access::{AccessRefusal, Caller};
    use crate::http::audit::Audited;
    use crate::http::router::Call;

    #[test]
    fn reads_of_data_without_the_role_begin_no_order() {
        let mut router = Router::new();
        router.get("/data", "Data.", |_| async { Ok(json!(1)) }).reads_data();
        let answered = |role| {
            let call = Call {
                caller: Caller::User { name: "x".into(), role },
                peer: "10.0.0.9:1".into(),
                method: Method::GET,
                target: "/data".to_owned(),
                query: Vec::new(),
                content_type: None,
                body: Default::default(),
                names: Vec::new(),
            };
            let (response, answered) = oneshot::channel();
            let (calls, received) = mpsc::channel(1);
            calls.try_send(RoutedCall { route: 0, call, response }).unwrap();
            (received, answered)
        };
        let router = Rc::new(router);
        for (role, audited, refusal) in
            [(ApiRole::Operator, true, None), (ApiRole::ReadOnly, false, Some(AccessRefusal::Role))]
        {
            let (received, answered) = answered(role);
            let router = router.clone();
            let served = async move {
                handle(router, received).await;
                answered.await.unwrap()
            };
            let answer = flagstone_runtime::block_on(served).unwrap();
            assert_eq!(answer.extensions().get::<Audited>().is_some(), audited);
            assert_eq!(answer.extensions().get().copied(), refusal);
        }
    }

    #[test]
    fn quietest_of_the_largest_peer_makes_room() {
        let address = |last: u8| Some(IpAddr::from([192, 0, 2, last]));
        let now = Instant::now();
        let ago = |seconds| {
            let since = now.checked_sub(Duration::from_secs(seconds)).unwrap();
            Some(Silence::OfPeer { since })
        };
        let options =
            HttpOptions { max_connections: 4, max_peer_connections: 3, ..Default::default() };
        let mut open =
            vec![(0, address(1), ago(9)), (1, address(2), ago(1)), (2, address(2), ago(5))];
        assert_eq!(room(&open, address(2), options), Room::Free);
        open.push((3, address(2), None));
        // All places are taken: the peer with the most loses its idle connection, not the busy one.
        assert_eq!(room(&open, address(3), options), Room::Replace(2));
        // A peer at its own limit takes only from itself.
        open.remove(0);
        assert_eq!(room(&open, address(2), options), Room::Replace(2));
        assert_eq!(room(&open, address(1), options), Room::Free);
        let busy: Vec<_> = (0..4).map(|id| (id, address(id as u8), None)).collect();
        assert_eq!(room(&busy, address(9), options), Room::None);
        // Peers of a Unix socket have no address, and share all places.
        let local: Vec<_> = (0..4).map(|id| (id, None, ago(id))).collect();
        assert_eq!(room(&local[..3], None, options), Room::Free);
        assert_eq!(room(&local, None, options), Room::Replace(3));
        // A request that waits for a guess behind its address goes last, though it is oldest.
        let mut same = vec![(0, address(1), Some(Silence::OfServer)), (1, address(1), ago(0))];
        same.push((2, address(1), Some(Silence::OfServer)));
        assert_eq!(room(&same, address(1), options), Room::Replace(1));
    }

    /// Aborted handshakes had requests of others behind the same address wait for 4 s.
    #[test]
    fn handshakes_that_are_cut_are_no_guesses() {
        let tls = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        let wrong = rustls::CertificateError::UnknownIssuer;
        let guess = tls(rustls::Error::InvalidCertificate(wrong));
        assert_eq!(failure_kind(&guess), FailureKind::Guess);
        for error in [
            io::ErrorKind::UnexpectedEof.into(),
            io::ErrorKind::ConnectionReset.into(),
            tls(rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType)),
        ] {
            assert_eq!(failure_kind(&error), FailureKind::Unfinished, "{error}");
        }
    }
}
