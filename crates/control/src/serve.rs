//! The daemon: opens volumes, serves them on every listener, and ends in order.
//!
//! Promises: nothing is served before everything that the configuration names is open; SIGTERM and
//! SIGINT stop the receiving of requests, let those in progress end and their answers go out, flush
//! every volume, and end the program.

use std::cell::OnceCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::SharedDevice;
use flagstone_nbd::{Drain, Server as NbdServer};
use flagstone_nvme::Nqn;
use flagstone_nvmf::target::{self, NamespaceConfig, SubsystemConfig, Target, TargetConfig};
use flagstone_runtime::net::{Address, Listener};
use flagstone_runtime::{CoreHandle, JoinHandle, cores, signal, spawn, time};

use crate::announce::{Served, announcement};
use crate::api::{self, Reread};
use crate::config::{Config, Diagnostics, Subsystem};
use crate::connections::Connections;
use crate::counted::{Counted, Counters};
use crate::listen_spec::ListenSpec;
use crate::mirrors::{self, Mirrored};
use crate::reload::Limits;
use crate::stack::{OpenError, open_limits, open_volume};

/// How long requests in progress may take when the server is told to stop.
const DRAIN_PATIENCE: Duration = Duration::from_secs(10);

/// Most controllers of a target: their identifiers end at FFEFh (NVMe over Fabrics 1.1, Connect).
const MAX_CONTROLLERS: u32 = 65_519;

/// How long to wait for an address that is in use, and between two attempts.
const BIND_PATIENCE: Duration = Duration::from_secs(2);
const BIND_PAUSE: Duration = Duration::from_millis(20);

/// Pause after a failed accept, such as for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why a server could not start, or could not end well.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A device.
    #[error("{0}")]
    Open(#[from] OpenError),
    /// An address.
    #[error("cannot listen on {listen}: {error}{hint}")]
    Listen {
        /// The address, as it was written.
        listen: String,
        /// The system's words.
        error: std::io::Error,
        /// What to do.
        hint: &'static str,
    },
    /// What is to be served does not fit the protocol.
    #[error("{0}")]
    Unservable(String),
    /// The system, at start.
    #[error("{0}")]
    System(#[from] std::io::Error),
    /// Data may not be durable.
    #[error("volume `{0}` failed its last flush: {1}")]
    Flush(String, flagstone_blockdev::IoError),
}

/// What a server works with while it runs.
pub(crate) struct Server {
    pub(crate) config: Config,
    pub(crate) volumes: Vec<SharedDevice>,
    /// What went through the volumes.
    pub(crate) counters: Vec<Arc<Counters>>,
    /// The mirrors of those that are mirrored.
    pub(crate) mirrors: Vec<Rc<Mirrored>>,
    pub(crate) limits: Limits,
    pub(crate) target: Arc<Target>,
    pub(crate) nvme: Arc<Connections>,
    pub(crate) nbd: Arc<NbdServer>,
    /// What tells this machine from others.
    pub(crate) machine: Vec<u8>,
    pub(crate) started: time::Instant,
    bound: OnceCell<Vec<ListenSpec>>,
    nbd_drain: Drain,
    cores: Vec<CoreHandle>,
}

/// Serves until the process is told to stop. `announce` is called once, when every address is
/// served, with what to print. At SIGHUP, or when the API is asked to, the configuration is read
/// again, by `reread`, and the numbers of its limits are taken over; nothing else is.
///
/// # Errors
/// See [`ServeError`].
pub async fn serve(
    config: Config,
    announce: impl FnOnce(&str),
    reread: impl Fn() -> Result<Config, Diagnostics> + 'static,
) -> Result<(), ServeError> {
    signal::catch_termination()?;
    signal::catch_reload()?;
    let server = Rc::new(open(config).await?);
    let mut bound = Vec::new();
    let mut accepting = Vec::new();
    for spec in &server.config.server.listen {
        let (listener, spec) = listen(spec).await?;
        if let ListenSpec::NvmeTcp(_) = spec {
            server.target.add_listener(listener.address()).map_err(unservable)?;
        }
        accepting.push((listener, spec.clone()));
        bound.push(spec);
    }
    let (mut nvme, mut nbd) = (Vec::new(), Vec::new());
    for (listener, spec) in accepting {
        let server = server.clone();
        match spec {
            ListenSpec::NvmeTcp(_) => nvme.push(
                spawn(async move { server.accept_nvme(listener, &spec).await }).abort_on_drop(),
            ),
            _ => nbd.push(spawn(server.nbd.clone().run(listener))),
        }
    }
    let _ = server.bound.set(bound.clone());
    let reread: Reread = Rc::new(reread);
    let control = api::start(&server, &reread).await?;
    announce(&announcement(&server.config, &bound, &control, &server.served()));
    let signal = loop {
        match signal::terminated().await {
            // What came of it is in the log.
            signal::RELOAD => drop(server.limits.reload(&server.config, reread())),
            signal => break signal,
        }
    };
    drop(control);
    tracing::info!(signal, "stopping: requests in progress end, no more are taken");
    drop(nvme);
    for socket in bound.iter().filter_map(ListenSpec::socket_path) {
        let _ = std::fs::remove_file(socket);
    }
    server.end(nbd).await
}

async fn open(config: Config) -> Result<Server, ServeError> {
    let mut volumes = Vec::with_capacity(config.volumes.len());
    let mut limits = Limits { shared: open_limits(&config.limits)?, own: Vec::new() };
    let mut counters = Vec::with_capacity(config.volumes.len());
    let mut mirrors = Vec::new();
    for index in 0..config.volumes.len() {
        let opened = open_volume(&config, index, &limits.shared).await?;
        mirrors.extend(opened.mirrored);
        let (counted, counter) = Counted::new(opened.device);
        volumes.push(Arc::new(counted) as SharedDevice);
        counters.push(counter);
        limits.own.push(opened.limiter);
    }
    let machine = machine_id();
    let target = nvme_target(&config, &volumes, &machine)?;
    let caps = mirrors::caps(&config);
    for mirror in &mirrors {
        mirror.start(&target, &caps).await?;
    }
    let nbd_drain = Drain::new();
    let nbd = crate::exports::nbd_server(&config, &volumes, nbd_drain.clone())?;
    let (nvme, cores) = (Arc::default(), cores());
    let (started, bound) = (time::now(), OnceCell::new());
    Ok(Server {
        config,
        volumes,
        counters,
        mirrors,
        limits,
        target,
        nvme,
        nbd,
        machine,
        started,
        bound,
        nbd_drain,
        cores,
    })
}

fn unservable(error: impl std::fmt::Display) -> ServeError {
    ServeError::Unservable(error.to_string())
}

fn nvme_target(
    config: &Config,
    volumes: &[SharedDevice],
    machine: &[u8],
) -> Result<Arc<Target>, ServeError> {
    let nvme = &config.server.nvme;
    let mut default = TargetConfig::default();
    if let Some(share) = mirrors::share(config) {
        (default.controller_ids, default.first_port_id) = mirrors::identifiers(share);
    }
    let target = Target::new(TargetConfig {
        in_capsule_bytes: nvme.in_capsule_bytes,
        max_io_queues: nvme.max_queues,
        max_queue_entries: nvme.queue_depth,
        mdts_bytes: nvme.mdts_bytes,
        max_h2c_data_bytes: nvme.mdts_bytes,
        allow_header_digest: nvme.header_digest,
        allow_data_digest: nvme.data_digest,
        slow_peer_timeout: nvme.stall_timeout,
        handshake_timeout: nvme.handshake_timeout,
        // Every controller has a connection, its admin queue.
        max_controllers: nvme.max_connections.min(MAX_CONTROLLERS),
        connection_payload_bytes: default.connection_payload_bytes.max(nvme.mdts_bytes as usize),
        ..default
    })
    .map_err(unservable)?;
    for subsystem in &config.subsystems {
        add_subsystem(&target, config, subsystem, volumes, machine)?;
    }
    Ok(target)
}

fn add_subsystem(
    target: &Arc<Target>,
    config: &Config,
    subsystem: &Subsystem,
    volumes: &[SharedDevice],
    machine: &[u8],
) -> Result<(), ServeError> {
    let named = |text: &str| Nqn::new(text).map_err(|error| unservable(format!("{text}: {error}")));
    let nqn = named(&subsystem.nqn)?;
    let hosts = subsystem.allow_hosts.as_deref().unwrap_or_default();
    target
        .add_subsystem(SubsystemConfig {
            nqn,
            serial: config.serial_number(subsystem, machine),
            allow_hosts: hosts.iter().map(|host| named(host)).collect::<Result<_, _>>()?,
        })
        .map_err(unservable)?;
    for (place, index) in subsystem.namespaces.iter().enumerate() {
        let namespace = NamespaceConfig {
            nsid: Some(place as u32 + 1),
            device: volumes[*index].clone(),
            uuid: config.volume_uuid(*index, machine).0,
            read_only: config.volumes[*index].read_only,
        };
        target.add_namespace(&nqn, namespace).map_err(unservable)?;
    }
    Ok(())
}

/// What tells this machine from others; a constant where the system has no such thing.
fn machine_id() -> Vec<u8> {
    std::fs::read("/etc/machine-id").unwrap_or_else(|_| b"no machine-id".to_vec())
}

/// Binds, waiting a little for an address that is in use: when a server was killed, the kernel
/// closes its io_uring rings, and with them its sockets, some time after the process has gone.
pub(crate) async fn bind(
    attempt: impl Fn() -> std::io::Result<Listener>,
) -> std::io::Result<Listener> {
    let begun = time::now();
    loop {
        match attempt() {
            Err(error)
                if error.kind() == std::io::ErrorKind::AddrInUse
                    && begun.elapsed() < BIND_PATIENCE =>
            {
                time::sleep(BIND_PAUSE).await;
            }
            result => return result,
        }
    }
}

async fn listen(spec: &ListenSpec) -> Result<(Listener, ListenSpec), ServeError> {
    let address = match spec {
        ListenSpec::NvmeTcp(tcp) | ListenSpec::NbdTcp(tcp) => Address::Tcp(*tcp),
        ListenSpec::NbdUnix(path) => Address::Unix(path.clone()),
    };
    let listener = bind(|| Listener::bind(&address)).await.map_err(|error| {
        let hint = match error.kind() {
            std::io::ErrorKind::AddrInUse => {
                "; another program serves there: choose another port, or 0 for any"
            }
            std::io::ErrorKind::PermissionDenied => match spec {
                ListenSpec::NbdUnix(_) => "; its directory must be one that this user may write",
                _ => "; ports below 1024 need privileges",
            },
            std::io::ErrorKind::NotFound => "; the socket's directory must exist",
            std::io::ErrorKind::AddrNotAvailable => "; no interface of this machine has it",
            _ => "",
        };
        ServeError::Listen { listen: spec.to_string(), error, hint }
    })?;
    let bound = match (listener.address(), spec) {
        (Address::Tcp(tcp), ListenSpec::NvmeTcp(_)) => ListenSpec::NvmeTcp(*tcp),
        (Address::Tcp(tcp), _) => ListenSpec::NbdTcp(*tcp),
        (Address::Unix(path), _) => ListenSpec::NbdUnix(path.clone()),
    };
    Ok((listener, bound))
}

impl Server {
    /// Where it serves volumes, with the ports that it took.
    pub(crate) fn bound(&self) -> &[ListenSpec] {
        self.bound.get().map_or(&[], Vec::as_slice)
    }

    fn served(&self) -> Vec<Served> {
        let geometries = self.volumes.iter().map(|volume| volume.geometry());
        let without_replica = |volume: usize| {
            let mut mirrors = self.mirrors.iter();
            mirrors.any(|mirrored| mirrored.volume == volume && mirrored.mirror().is_none())
        };
        geometries
            .enumerate()
            .map(|(volume, geometry)| Served {
                size_bytes: geometry.size_bytes,
                block_bytes: geometry.block_bytes,
                without_replica: without_replica(volume),
            })
            .collect()
    }

    /// Accepts NVMe/TCP connections for ever and hands them to the cores in turn.
    async fn accept_nvme(&self, listener: Listener, spec: &ListenSpec) {
        let max = self.config.server.nvme.max_connections;
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
                tracing::warn!(%spec, max, "refused a connection: there are too many");
                continue;
            };
            let target = self.target.clone();
            self.cores[turn].spawn(move || async move {
                target::serve(target, stream).await;
                drop(place);
            });
            turn = (turn + 1) % self.cores.len();
        }
    }

    /// Ends in order: no new requests, those in progress end, every volume is flushed.
    async fn end(&self, nbd: Vec<JoinHandle<()>>) -> Result<(), ServeError> {
        self.limits.lift();
        self.target.drain();
        self.nbd_drain.begin();
        let nbd_ended = spawn(time::timeout(DRAIN_PATIENCE, async move {
            for listener in nbd {
                let _ = listener.await;
            }
        }));
        let cut = self.nvme.drain(DRAIN_PATIENCE).await;
        if cut > 0 {
            tracing::warn!(
                connections = cut,
                "closed NVMe/TCP connections that did not end in time"
            );
        }
        if !matches!(nbd_ended.await, Ok(Ok(()))) {
            let connections = self.nbd.connections();
            tracing::warn!(connections, "closed NBD connections that did not end in time");
        }
        for mirror in &self.mirrors {
            mirror.end().await;
        }
        for (volume, device) in self.config.volumes.iter().zip(&self.volumes) {
            // A mirror has flushed both its legs as it ended.
            if !volume.read_only && volume.mirror().is_none() {
                let flushed = device.flush().await;
                flushed.map_err(|error| ServeError::Flush(volume.name.clone(), error))?;
            }
        }
        Ok(())
    }
}
