//! Where the API and the metrics are served: their sockets, from the start of a server to its end.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use flagstone_api::{ServerOptions, serve};
use flagstone_runtime::net::{Address, Listener};
use flagstone_runtime::spawn;
use flagstone_runtime::task::AbortOnDrop;

use super::Reread;
use crate::api_spec::{ApiSpec, default_sockets};
use crate::serve::{ServeError, Server};

/// What is served beside the volumes. Ends when dropped, and takes its socket's file away.
pub(crate) struct Control {
    /// The API's socket.
    pub(crate) socket: Option<PathBuf>,
    /// The metrics' address.
    pub(crate) metrics: Option<SocketAddr>,
    _serving: Vec<AbortOnDrop<()>>,
}

impl Drop for Control {
    fn drop(&mut self) {
        if let Some(socket) = &self.socket {
            let _ = std::fs::remove_file(socket);
        }
    }
}

/// Serves what the configuration says.
pub(crate) async fn start(server: &Rc<Server>, reread: &Reread) -> Result<Control, ServeError> {
    let mut serving = Vec::new();
    let socket = match &server.config.server.api {
        ApiSpec::None => None,
        ApiSpec::Default => bind_default(),
        ApiSpec::Socket(path) => Some(bind_asked(path).await?),
    };
    let socket = socket.map(|(path, listener)| {
        let router = Rc::new(super::router(server, reread.clone()));
        let served = serve(listener, router, ServerOptions::default());
        serving.push(spawn(served).abort_on_drop());
        path
    });
    let mut metrics = None;
    if let Some(address) = server.config.server.metrics {
        let (listener, bound) = bind_metrics(address).await?;
        let router = Rc::new(super::metrics_router(server, reread.clone()));
        let served = serve(listener, router, ServerOptions::default());
        serving.push(spawn(served).abort_on_drop());
        metrics = Some(bound);
    }
    Ok(Control { socket, metrics, _serving: serving })
}

async fn bind_asked(path: &Path) -> Result<(PathBuf, Listener), ServeError> {
    let listener = crate::serve::bind(|| Listener::bind_private(&Address::Unix(path.into()))).await;
    let listener = listener.map_err(|error| {
        let hint = match error.kind() {
            io::ErrorKind::AddrInUse => {
                "; another server has it: choose another socket with --api PATH, or --api none"
            }
            io::ErrorKind::PermissionDenied => {
                "; its directory must be one that this user may write"
            }
            io::ErrorKind::NotFound => "; the socket's directory must exist",
            _ => "",
        };
        ServeError::Listen { listen: format!("the API's socket {}", path.display()), error, hint }
    })?;
    Ok((path.to_owned(), listener))
}

/// Binds the first of the default sockets that can be had. None of them was asked for: so the
/// server serves without, and says so.
fn bind_default() -> Option<(PathBuf, Listener)> {
    let mut problems = Vec::new();
    for path in default_sockets() {
        // Its folder is ours; the one above is the system's.
        let _ = path.parent().map(std::fs::create_dir);
        match Listener::bind_private(&Address::Unix(path.clone())) {
            Ok(listener) => return Some((path, listener)),
            Err(error) => problems.push(format!("{}: {error}", path.display())),
        }
    }
    tracing::warn!(
        "there is no control API, so `flagstone status` cannot ask this server: {}; choose a socket \
         with --api PATH, or --api none",
        problems.join("; ")
    );
    None
}

async fn bind_metrics(address: SocketAddr) -> Result<(Listener, SocketAddr), ServeError> {
    let bound = crate::serve::bind(|| Listener::bind(&Address::Tcp(address))).await;
    let listener = bound.map_err(|error| {
        let hint = match error.kind() {
            io::ErrorKind::AddrInUse => "; choose another port with --metrics, or 0 for any",
            io::ErrorKind::AddrNotAvailable => "; no interface of this machine has it",
            io::ErrorKind::PermissionDenied => "; ports below 1024 need privileges",
            _ => "",
        };
        ServeError::Listen { listen: format!("the metrics' address {address}"), error, hint }
    })?;
    let bound = match listener.address() {
        Address::Tcp(bound) => *bound,
        Address::Unix(_) => address,
    };
    Ok((listener, bound))
}
