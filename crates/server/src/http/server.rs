//! HTTP server: the thread `flagstone-api` with its sockets.
//!
//! Invariants: each listener has its own connection limit, so peers of one cannot exhaust another;
//! dropping an [`HttpServer`] ends its thread and every connection within
//! [`STOP_PATIENCE`](limits::STOP_PATIENCE). A call that core 0 has begun continues to its end.

use std::io;
use std::net::TcpListener as StdTcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc as std_mpsc;
use std::time::Duration;

use flagstone_runtime::net::{Address, Listener, PeerUser};
use flagstone_runtime::task::AbortOnDrop;
use flagstone_runtime::{spawn, spawn_detached};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{sleep, timeout};

use crate::http::connection::serve_connection;
use crate::http::limits::{
    ACCEPT_PAUSE, IDLE_PATIENCE, MAX_CONNECTIONS, REQUEST_PATIENCE, STOP_PATIENCE,
};
use crate::http::problem::Problem;
use crate::http::response::last_bytes;
use crate::http::router::Router;
use crate::http::service::{RoutedCall, service};

#[cfg(doc)]
use crate::http::limits;

/// Limits of a listener that tests lower.
#[derive(Clone, Copy, Debug)]
pub struct ServerOptions {
    /// Connections at a time; more are answered with 503.
    pub max_connections: usize,
    /// From the first byte of a request to its last.
    pub request_patience: Duration,
    /// Silence between two requests.
    pub idle_patience: Duration,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions {
            max_connections: MAX_CONNECTIONS,
            request_patience: REQUEST_PATIENCE,
            idle_patience: IDLE_PATIENCE,
        }
    }
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
    pub fn start(
        sites: Vec<(Listener, Rc<Router>)>,
        options: ServerOptions,
    ) -> io::Result<HttpServer> {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        let mut accepting = Vec::new();
        let mut handling = Vec::new();
        for (listener, router) in sites {
            // Each connection has one request in progress, so the channel is never full.
            let (calls, received) = mpsc::channel(options.max_connections.max(1));
            let service = service(&router.routes(), &calls);
            let socket = Socket::adopt(listener, &runtime)?;
            accepting.push((socket, service));
            handling.push(spawn(handle(router, received)).abort_on_drop());
        }
        let (stop, stopped) = oneshot::channel();
        let (ending, ended) = std_mpsc::channel();
        std::thread::Builder::new().name("flagstone-api".to_owned()).spawn(move || {
            let tasks = LocalSet::new();
            for (socket, service) in accepting {
                tasks.spawn_local(accept(socket, service, options));
            }
            // An error is the drop of the sender, which is the signal.
            let _ = tasks.block_on(&runtime, stopped);
            drop((tasks, runtime, ending));
        })?;
        Ok(HttpServer { stop: Some(stop), ended, _handling: handling })
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.stop.take();
        let ended = self.ended.recv_timeout(STOP_PATIENCE);
        if ended == Err(std_mpsc::RecvTimeoutError::Timeout) {
            tracing::warn!("the thread of the API did not end within {STOP_PATIENCE:?}");
        }
    }
}

/// Starts the handlers of calls on this core, each as a task of its own.
async fn handle(router: Rc<Router>, mut calls: mpsc::Receiver<RoutedCall>) {
    while let Some(RoutedCall { route, call, response }) = calls.recv().await {
        let answer = router.answer(route, call);
        spawn_detached(async move {
            // The peer may have gone.
            let _ = response.send(answer.await);
        });
    }
}

/// A socket that the API's thread accepts on.
enum Socket {
    Unix(UnixListener),
    Tcp(TcpListener),
}

trait Stream: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

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

    async fn accept(&self) -> io::Result<(Box<dyn Stream>, Option<PeerUser>)> {
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
                Ok((Box::new(stream), user))
            }
            Socket::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok((Box::new(stream), None))
            }
        }
    }
}

async fn accept(socket: Socket, service: axum::Router, options: ServerOptions) {
    let places = Arc::new(Semaphore::new(options.max_connections));
    loop {
        let (stream, user) = match socket.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!("the API cannot accept a connection: {error}");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(place) = places.clone().try_acquire_owned() else {
            refuse(stream, options).await;
            continue;
        };
        let service = service.clone();
        spawn_local(async move {
            serve_connection(stream, user, service, options).await;
            drop(place);
        });
    }
}

/// Answers a connection beyond the limit. The few bytes fit into the buffer of its socket.
async fn refuse(mut stream: Box<dyn Stream>, options: ServerOptions) {
    let detail = format!("{} connections are served at a time", options.max_connections);
    let problem = Problem::new(503, "busy", "Too many connections", detail);
    let bytes = last_bytes(problem.response());
    let _ = timeout(ACCEPT_PAUSE, stream.write_all(&bytes)).await;
}
