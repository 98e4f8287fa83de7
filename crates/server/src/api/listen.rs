//! Listeners of the API and the metrics.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;

use crate::http::access::Users;
use crate::http::{HttpOptions, HttpServer, ListenerAccess, Site};
use flagstone_runtime::net::{Address, Listener};

use super::ReloadConfig;
use crate::serve::{ServeError, Server, bind};
use flagstone_config::api_spec::{ApiSpec, default_sockets};

/// The running API server. Dropping it stops serving and removes the socket file.
pub(crate) struct ApiServer {
    pub(crate) socket: Option<PathBuf>,
    pub(crate) tls: Option<SocketAddr>,
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

pub(crate) async fn start(
    server: &Rc<Server>,
    reload: &ReloadConfig,
) -> Result<ApiServer, ServeError> {
    let mut sites = Vec::new();
    let socket = match &server.config.server.api {
        ApiSpec::None => None,
        ApiSpec::Default => bind_default(),
        ApiSpec::Socket(path) => {
            let busy =
                "another server has it: choose another socket with --api PATH, or --api none";
            let what = format!("the API's socket {}", path.display());
            let address = Address::Unix(path.clone());
            let listener = bind(|| Listener::bind_private(&address), &address, what, busy).await?;
            Some((path.clone(), listener))
        }
    };
    let socket = socket.map(|(path, listener)| {
        let router = Rc::new(super::router(server, reload));
        sites.push(Site { listener, router, access: ListenerAccess::Local });
        path
    });
    let tls = match &server.config.server.api_tls {
        None => None,
        Some(tls) => {
            let credentials = super::users::read(tls, &server.config.api_users);
            let credentials = credentials.map_err(crate::subsystems::unservable)?;
            let what = format!("the API's address {}", tls.listen);
            let busy = "choose another port in [server.api_tls]";
            let (listener, bound) = bind_tcp(tls.listen, what, busy).await?;
            let users = server.api_users.get_or_init(|| Users::new(credentials));
            let access = ListenerAccess::Users(users.clone());
            sites.push(Site { listener, router: Rc::new(super::router(server, reload)), access });
            Some(bound)
        }
    };
    let mut metrics = None;
    if let Some(address) = server.config.server.metrics {
        let what = format!("the metrics' address {address}");
        let busy = "choose another port with --metrics, or 0 for any";
        let (listener, bound) = bind_tcp(address, what, busy).await?;
        let router = Rc::new(super::metrics_router(server, reload));
        sites.push(Site { listener, router, access: ListenerAccess::Open });
        metrics = Some(bound);
    }
    let serving = match sites.len() {
        0 => None,
        _ => Some(HttpServer::start(sites, HttpOptions::default())?),
    };
    Ok(ApiServer { socket, tls, metrics, _serving: serving })
}

/// Binds a TCP address. Returns it with its port.
async fn bind_tcp(
    address: SocketAddr,
    what: String,
    busy: &'static str,
) -> Result<(Listener, SocketAddr), ServeError> {
    let tcp = Address::Tcp(address);
    let listener = bind(|| Listener::bind(&tcp), &tcp, what, busy).await?;
    let bound = match listener.address() {
        Address::Tcp(bound) => *bound,
        Address::Unix(_) => address,
    };
    Ok((listener, bound))
}

/// Binds the first free default socket. Failure is a warning: the user asked for none of them.
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
