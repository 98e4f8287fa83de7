//! Daemon: opens the volumes, serves them on all listeners, and shuts down in order.
//!
//! Nothing is served before every configured volume is open, except that volumes with unreachable
//! remote devices follow later (`pending`). SIGTERM and SIGINT start the shutdown: the server
//! receives no more requests, completes those in progress, sends their responses, and flushes every
//! volume.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flagstone_arbiter::SharedArbiter;
use flagstone_nbd::{Drain, Exports, NbdServer, NbdTls, ServerOptions};
use flagstone_nvmf_target as target;
use flagstone_nvmf_target::{Target, TlsMode};
use flagstone_runtime::buf::{self, BufferShares};
use flagstone_runtime::net::{Address, Listener};
use flagstone_runtime::{CoreHandle, JoinHandle, cores, signal, spawn, time};
use flagstone_transport::RefusalLog;

use crate::announce::announcement;
use crate::api::{self, ReloadConfig};
use crate::arbiter;
use crate::connections::Connections;
use crate::hardware_watchdog::HardwareWatchdog;
use crate::http::access::Users;
use crate::mirrors::{self, MirrorEnd, MirrorShares, MirroredVolume};
use crate::pending::{PendingVolumes, open_all};
use crate::pools::legs::Legs;
use crate::pools::{KeyCommand, Pools};
use crate::reload::Limits;
use crate::service_manager::ServiceManager;
use crate::signals::Signals;
use crate::subsystems::{nvme_target, tls_mode, unservable};
use crate::volume::{ServedVolume, ServedVolumes};
use flagstone_config::listen_spec::{ConfiguredListener, ListenSpec, ListenTls, TcpListen};
use flagstone_config::{Config, Diagnostics};
use flagstone_limit::Limit;
use flagstone_stack::{OpenError, open_limits, own_limit, tls_files};

/// Time limit for requests in progress at shutdown.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// How long to retry an address that is in use, and the pause between two attempts.
const BIND_TIMEOUT: Duration = Duration::from_secs(2);
const BIND_PAUSE: Duration = Duration::from_millis(20);

/// Pause after a failed accept, for example when file descriptors run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Error at the start or end of a server.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages describe the variants")]
pub enum ServeError {
    #[error("{0}")]
    Open(#[from] OpenError),
    #[error("cannot listen on {listen}: {error}; {hint}")]
    Listen {
        /// The address, as configured.
        listen: String,
        error: std::io::Error,
        hint: &'static str,
    },
    #[error("{0}")]
    Unservable(String),
    #[error("{0}")]
    System(#[from] std::io::Error),
    /// The last flush failed, so data may not be durable.
    #[error("volume `{0}` failed its last flush: {1}")]
    Flush(String, flagstone_blockdev::IoError),
    /// An asynchronous peer did not receive all queued writes in time.
    #[error(
        "stopped before all writes reached their peers: {0}. Start this server again to deliver them; \
         after a failover to that peer they are lost"
    )]
    Undelivered(String),
    /// The replica of a mirrored volume was not flushed and put away, as after a crash.
    #[error(
        "not all mirrored volumes were stopped in order, so recent writes may be lost: {0}. If a volume \
         has a peer in sync, that has them"
    )]
    Unclean(String),
}

impl ServeError {
    /// The error is transient: a device is unreachable, and a retry may succeed.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self, ServeError::Open(error) if error.may_pass)
    }
}

pub(crate) struct Server {
    pub(crate) config: Rc<Config>,
    pub(crate) volumes: ServedVolumes,
    pub(crate) pending: PendingVolumes,
    pub(crate) pools: Pools,
    /// Mirrors of the open mirrored volumes, in the order of the volumes.
    pub(crate) mirrors: RefCell<Vec<Rc<MirroredVolume>>>,
    pub(crate) limits: Limits,
    pub(crate) target: Arc<Target>,
    pub(crate) nvme: Arc<Connections>,
    pub(crate) exports: Arc<Exports>,
    pub(crate) nbd: Arc<NbdServer>,
    /// TLS of NBD listeners, if one has it.
    pub(crate) nbd_tls: Option<NbdTls>,
    pub(crate) mirror_shares: MirrorShares,
    /// The arbiter of mirrors that fail over by themselves.
    pub(crate) arbiter: Option<SharedArbiter>,
    pub(crate) machine: Vec<u8>,
    pub(crate) started: time::Instant,
    /// The same moment, since the Unix epoch.
    pub(crate) started_at: Duration,
    /// Users of the API over TCP, when it is served.
    pub(crate) api_users: OnceCell<Arc<Users>>,
    bound: OnceCell<Vec<ListenSpec>>,
    nbd_drain: Drain,
    cores: Vec<CoreHandle>,
}

/// Serves until the process receives SIGTERM or SIGINT. Calls `announce` once, with the text to
/// print, when all addresses are served. SIGHUP and the API call `reload_config` and apply changed
/// limits; other changes need a restart. `manager` learns of each.
///
/// # Errors
/// See [`ServeError`].
pub async fn serve(
    config: Config,
    announce: impl FnOnce(&str),
    reload_config: impl Fn() -> Result<Config, Diagnostics> + 'static,
    manager: ServiceManager,
) -> Result<(), ServeError> {
    let watchdog = HardwareWatchdog::arm(&config)
        .map_err(|error| ServeError::Unservable(format!("[server] watchdog {error}")))?;
    let ended = serve_until_signal(config, announce, reload_config, manager).await;
    // Nothing is served any more.
    if let Some(watchdog) = watchdog {
        watchdog.end();
    }
    ended
}

async fn serve_until_signal(
    config: Config,
    announce: impl FnOnce(&str),
    reload_config: impl Fn() -> Result<Config, Diagnostics> + 'static,
    manager: ServiceManager,
) -> Result<(), ServeError> {
    let manager = Rc::new(manager);
    let feeder = manager.clone();
    let _watchdog = spawn(async move { feeder.feed_watchdog().await }).abort_on_drop();
    let signals = Signals::catch()?;
    let Some(server) = open(config, &signals).await? else { return Ok(()) };
    let server = Rc::new(server);
    let opened = async {
        server.open_pools().await;
        server.open_legs().await;
    };
    if signals.unless_stopped(opened).await.is_none() {
        // Nothing listens: a host that connected now would be told that the volumes of pools do
        // not exist, and would give them up.
        manager.stopping().await;
        tracing::info!("stopping before volumes are served");
        server.leave().await;
        return server.end(Vec::new()).await;
    }
    let mut bound = Vec::new();
    let mut accepting = Vec::new();
    for ConfiguredListener { spec, .. } in &server.config.server.listen {
        let (listener, spec) = listen(spec).await?;
        if let ListenSpec::NvmeTcp(listen) = spec {
            let added = server.target.add_tls_listener(listener.address(), tls_mode(listen.tls));
            added.map_err(unservable)?;
        }
        accepting.push((listener, spec.clone()));
        bound.push(spec);
    }
    let open = server.mirrors.borrow().clone();
    let peers = mirrors::announce_peers(server.config.clone(), open, server.target.clone());
    let _announcing = spawn(peers).abort_on_drop();
    let target = server.target.clone();
    let _erasing = spawn(async move { target.erase_generated_psks().await }).abort_on_drop();
    let (mut nvme, mut nbd) = (Vec::new(), Vec::new());
    for (listener, spec) in accepting {
        let server = server.clone();
        match spec {
            ListenSpec::NvmeTcp(listen) => {
                let tls = tls_mode(listen.tls);
                let accept = async move { server.accept_nvme(listener, &spec, tls).await };
                nvme.push(spawn(accept).abort_on_drop());
            }
            other => {
                let tls = server.nbd_tls.as_ref().and_then(|tls| match &other {
                    ListenSpec::NbdTcp(TcpListen { tls: ListenTls::Required, .. }) => {
                        Some(tls.clone().required())
                    }
                    ListenSpec::NbdTcp(TcpListen { tls: ListenTls::Allowed, .. }) => {
                        Some(tls.clone())
                    }
                    _ => None,
                });
                nbd.push(spawn(server.nbd.clone().run_tls(listener, tls)));
            }
        }
    }
    let _ = server.bound.set(bound.clone());
    server.log_insecure_access();
    let waits: Vec<_> = server
        .pending
        .volumes()
        .into_iter()
        .map(|index| spawn(server.clone().open_pending(index)).abort_on_drop())
        .collect();
    let reload_config: ReloadConfig = Rc::new(reload_config);
    let _keeping = spawn(server.clone().keep_pools()).abort_on_drop();
    let control = api::start(&server, &reload_config).await?;
    announce(&announcement(&server, &control));
    let serving = format!("volumes: {}", server.volumes.borrow().len());
    manager.ready(&serving).await;
    let signal = loop {
        match signals.next().await {
            signal::RELOAD => {
                manager.reloading().await;
                // `reload` logs the result.
                let reloaded = server.reload(reload_config());
                let refused =
                    "nothing was reloaded, the configuration or a key file has errors: see the log";
                manager.ready(if reloaded.is_ok() { &serving } else { refused }).await;
            }
            signal => break signal,
        }
    };
    manager.stopping().await;
    drop(control);
    server.leave().await;
    tracing::info!(signal, "stopping: completing requests in progress");
    drop((nvme, waits));
    for socket in bound.iter().filter_map(ListenSpec::socket_path) {
        let _ = std::fs::remove_file(socket);
    }
    server.end(nbd).await
}

/// Opens all volumes; `None` if a signal stops the server meanwhile.
pub(crate) async fn open(config: Config, signals: &Signals) -> Result<Option<Server>, ServeError> {
    let config = Rc::new(config);
    let own = config.volumes.iter().map(own_limit).collect::<Result<_, _>>()?;
    let limits = Limits { shared: open_limits(&config.limits)?, own };
    let pending = PendingVolumes::new(config.volumes.len());
    // Unreachable devices take time to fail, so a signal may interrupt this.
    let pools = Pools::read(config.server.state.clone(), config.volumes.len()).await;
    let key_command = KeyCommand::new(&config.server.key_command);
    let pools = pools.with_legs(Legs::of(&config)).with_key_command(key_command);
    let legs = pools.leg_opener();
    let Some(stacks) = signals.unless_stopped(open_all(&config, &limits, &legs)).await else {
        return Ok(None);
    };
    let stacks = stacks?;
    let machine = machine_id();
    let exports = Arc::new(Exports::default());
    for volume in &config.volumes {
        exports.expect(&volume.nbd_export).map_err(unservable)?;
    }
    let nbd = &config.server.nbd;
    let nbd_options = ServerOptions {
        handshake_timeout: nbd.handshake_timeout,
        peer_timeout: nbd.stall_timeout,
        max_connections: nbd.max_connections as usize,
    };
    let nbd_drain = Drain::new();
    let nbd_server = NbdServer::new(exports.clone(), nbd_options, nbd_drain.clone());
    let nbd_tls = nbd_tls(&config)?;
    let target = nvme_target(&config, &machine)?;
    let connections = config.server.nvme.max_connections + nbd.max_connections;
    let shares = BufferShares::new(buf::memory_limit(), connections as usize);
    nbd_server.share_buffers(shares.clone());
    target.share_buffers(shares);
    let arbiter = config.arbiter.as_ref().map(arbiter::start).transpose();
    let arbiter = arbiter.map_err(|error| ServeError::Unservable(format!("[arbiter]: {error}")))?;
    let volumes = pools.volumes();
    *volumes.borrow_mut() = ServedVolume::configured(&config, &limits.own, &machine);
    let server = Server {
        arbiter,
        volumes,
        pending,
        pools,
        mirrors: RefCell::default(),
        limits,
        target,
        nvme: Arc::default(),
        nbd: nbd_server,
        nbd_tls,
        exports,
        machine,
        mirror_shares: mirrors::mirror_shares(&config),
        started: time::now(),
        started_at: time::wall_clock(),
        api_users: OnceCell::new(),
        bound: OnceCell::new(),
        nbd_drain,
        cores: cores(),
        config: config.clone(),
    };
    server.note_missing_volumes();
    for (volume, stack) in stacks.into_iter().enumerate() {
        if stack.is_err() && config.volumes[volume].backing.leg().is_some() {
            // Its pool is opened next.
            server.pending.begin(volume, "its pool is being opened");
            continue;
        }
        let begun = match stack {
            Ok(stack) => server.begin(volume, stack).await,
            Err(error) => Err(error.into()),
        };
        match begun {
            Err(error) if error.may_pass() => server.pending.failed(volume, &error),
            begun => begun?,
        }
    }
    Ok(Some(server))
}

/// TLS of the NBD listeners that have it.
fn nbd_tls(config: &Config) -> Result<Option<NbdTls>, ServeError> {
    if !config.server.listen.iter().any(|listener| listener.spec.is_nbd_with_tls()) {
        return Ok(None);
    }
    let server = tls_files::server(&config.server.nbd).map_err(unservable)?;
    Ok(Some(NbdTls::new(server)))
}

/// Identity of this machine; a constant if the system has none.
fn machine_id() -> Vec<u8> {
    std::fs::read("/etc/machine-id").unwrap_or_else(|_| b"no machine-id".to_vec())
}

/// Binds, and retries an address in use: after a server is killed, the kernel closes its io_uring
/// rings, and with them its sockets, some time after the process is gone. `listen` names the
/// address in an error, and `busy` is the advice about an address in use.
pub(crate) async fn bind(
    attempt: impl Fn() -> std::io::Result<Listener>,
    address: &Address,
    listen: String,
    busy: &'static str,
) -> Result<Listener, ServeError> {
    use std::io::ErrorKind;
    let begun = time::now();
    loop {
        let error = match attempt() {
            Ok(listener) => return Ok(listener),
            Err(error) => error,
        };
        if error.kind() == ErrorKind::AddrInUse && begun.elapsed() < BIND_TIMEOUT {
            time::sleep(BIND_PAUSE).await;
            continue;
        }
        let hint = match (error.kind(), address) {
            (ErrorKind::AddrInUse, _) => busy,
            (ErrorKind::PermissionDenied, Address::Unix(_)) => {
                "this user must be able to write to its directory"
            }
            (ErrorKind::PermissionDenied, _) => "ports below 1024 need privileges",
            (ErrorKind::NotFound, _) => "the socket's directory must exist",
            (ErrorKind::AddrNotAvailable, _) => "no interface of this machine has this address",
            _ => "check the address",
        };
        return Err(ServeError::Listen { listen, error, hint });
    }
}

async fn listen(spec: &ListenSpec) -> Result<(Listener, ListenSpec), ServeError> {
    let address = match spec {
        ListenSpec::NvmeTcp(listen) | ListenSpec::NbdTcp(listen) => Address::Tcp(listen.address),
        ListenSpec::NbdUnix(path) => Address::Unix(path.clone()),
    };
    let busy = "another program uses it: choose another port, or 0 for any";
    let attempt = || Listener::bind(&address);
    let listener = bind(attempt, &address, spec.to_string(), busy).await?;
    let bound = match (listener.address(), spec) {
        (Address::Tcp(tcp), ListenSpec::NvmeTcp(listen)) => {
            ListenSpec::NvmeTcp(TcpListen { address: *tcp, ..*listen })
        }
        (Address::Tcp(tcp), ListenSpec::NbdTcp(listen)) => {
            ListenSpec::NbdTcp(TcpListen { address: *tcp, ..*listen })
        }
        (Address::Tcp(tcp), _) => ListenSpec::NbdTcp((*tcp).into()),
        (Address::Unix(path), _) => ListenSpec::NbdUnix(path.clone()),
    };
    Ok((listener, bound))
}

impl Server {
    /// Addresses that volumes are served on, with the assigned ports.
    pub(crate) fn bound(&self) -> &[ListenSpec] {
        self.bound.get().map_or(&[], Vec::as_slice)
    }

    /// The mirror of the volume at `index`, if it has one and is open.
    pub(crate) fn mirror_of(&self, index: usize) -> Option<Rc<MirroredVolume>> {
        self.mirrors.borrow().iter().find(|mirrored| mirrored.volume == index).cloned()
    }

    /// Accepts NVMe/TCP connections and distributes them round-robin over the cores.
    async fn accept_nvme(&self, listener: Listener, spec: &ListenSpec, tls: TlsMode) {
        let max = self.config.server.nvme.max_connections;
        let refusals = RefusalLog::new("NVMe/TCP connection");
        let mut turn = 0;
        loop {
            let stream = match listener.accept().await {
                Ok(stream) => stream,
                Err(error) => {
                    tracing::warn!(%spec, "cannot accept a connection: {error}");
                    time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Some(place) = self.nvme.admit(&stream, max) else {
                refusals.refused(&stream.peer(), &[], &format!("{max} connections are open"));
                continue;
            };
            let target = self.target.clone();
            self.cores[turn].spawn(move || async move {
                target::serve_listener(target, stream, tls).await;
                drop(place);
            });
            turn = (turn + 1) % self.cores.len();
        }
    }

    /// Hands volumes over to their peers while hosts are still connected, so that they change paths
    /// before their connections end.
    async fn leave(&self) {
        let mirrors = self.mirrors.borrow().clone();
        let leaving: Vec<JoinHandle<()>> =
            mirrors.into_iter().map(|mirror| spawn(async move { mirror.leave().await })).collect();
        for mirror in leaving {
            let _ = mirror.await;
        }
    }

    /// Shuts down: drains the connections, stops the mirrors, and flushes every volume.
    async fn end(&self, nbd: Vec<JoinHandle<()>>) -> Result<(), ServeError> {
        self.limits.lift();
        for limiter in self.volumes().iter().filter_map(|volume| volume.limiter.as_ref()) {
            // The absence of limits is always valid.
            let _ = limiter.set(Limit::default());
        }
        self.target.drain();
        self.nbd_drain.begin();
        let nbd_ended = spawn(time::timeout(DRAIN_TIMEOUT, async move {
            for listener in nbd {
                let _ = listener.await;
            }
        }));
        let cut = self.nvme.drain(DRAIN_TIMEOUT).await;
        if cut > 0 {
            tracing::warn!(
                connections = cut,
                "closed NVMe/TCP connections that did not drain in time"
            );
        }
        if !matches!(nbd_ended.await, Ok(Ok(()))) {
            let connections = self.nbd.connections();
            tracing::warn!(connections, "closed NBD connections that did not drain in time");
        }
        let mirrors = self.mirrors.borrow().clone();
        let ended: Vec<JoinHandle<MirrorEnd>> =
            mirrors.into_iter().map(|mirror| spawn(async move { mirror.end().await })).collect();
        let (mut undelivered, mut failures) = (Vec::new(), Vec::new());
        for mirror in ended {
            let ended = mirror.await.unwrap_or_default();
            undelivered.extend(ended.undelivered);
            failures.extend(ended.failure);
        }
        let mut unflushed = None;
        for volume in self.volumes() {
            let Some(device) = volume.device.get() else { continue };
            // A mirror flushes both legs when it stops.
            if !volume.config.read_only
                && volume.config.mirror().is_none()
                && let Err(error) = device.flush().await
            {
                unflushed = Some(ServeError::Flush(volume.name().to_owned(), error));
            }
        }
        self.pools.close().await;
        match (failures.is_empty(), undelivered.is_empty()) {
            (true, _) if unflushed.is_some() => unflushed.map_or(Ok(()), Err),
            (true, true) => Ok(()),
            (true, false) => Err(ServeError::Undelivered(undelivered.join("; "))),
            (false, _) => {
                failures.extend(undelivered);
                Err(ServeError::Unclean(failures.join("; ")))
            }
        }
    }
}
