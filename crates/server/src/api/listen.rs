//! Listeners of the API and the metrics.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::http::{HttpServer, ServerOptions};
use flagstone_runtime::net::{Address, Listener};

use super::ReloadConfig;
use crate::serve::{ServeError, Server};
use flagstone_config::api_spec::{ApiSpec, default_sockets};

/// The running API server. Dropping it stops serving and removes the socket file.
pub(crate) struct ApiServer {
    /// Path of the API's socket.
    pub(crate) socket: Option<PathBuf>,
    /// Address of the metrics.
    pub(crate) metrics: Option<SocketAddr>,
    _serving: Option<HttpServer>,
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        if let Some(socket) = &self.socket {
            let _ = std::fs::remove_file(socket);
        }
    }
}

/// Starts the listeners that the configuration names.
pub(crate) async fn start(
    server: &Rc<Server>,
    reload: &ReloadConfig,
) -> Result<ApiServer, ServeError> {
    let mut sites = Vec::new();
    let socket = match &server.config.server.api {
        ApiSpec::None => None,
        ApiSpec::Default => bind_default(),
        ApiSpec::Socket(path) => Some(bind_asked(path).await?),
    };
    let socket = socket.map(|(path, listener)| {
        let router = Rc::new(super::router(server, reload.clone()));
        sites.push((listener, router));
        path
    });
    let mut metrics = None;
    if let Some(address) = server.config.server.metrics {
        let (listener, bound) = bind_metrics(address).await?;
        let router = Rc::new(super::metrics_router(server, reload.clone()));
        sites.push((listener, router));
        metrics = Some(bound);
    }
    let serving = match sites.len() {
        0 => None,
        _ => Some(HttpServer::start(sites, ServerOptions::default())?),
    };
    Ok(ApiServer { socket, metrics, _serving: serving })
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

/// Binds the first default socket that is free. The user did not ask for any of them, so a failure is
/// just a warning.
fn bind_default() -> Option<(PathBuf, Listener)> {
    let mut problems = Vec::new();
    for path in default_sockets() {
        // The directory belongs to flagstone; its parent belongs to the system.
        let _ = path.parent().map(std::fs::create_dir);
        match Listener::bind_private(&Address::Unix(path.clone())) {
            Ok(listener) => return Some((path, listener)),
            Err(error) => problems.push(format!("{}: {error}", path.display())),
        }
    }
    tracing::warn!(
        "the control API is not available, and `flagstone status` cannot connect: {}; choose a socket \
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
