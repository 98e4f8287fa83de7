//! The daemon: opens volumes, serves them on every listener, and ends in order.
//!
//! Promises: nothing is served before everything that the configuration names is open, except for
//! what is stored on other machines that cannot be reached: such volumes come later (`waiting`).
//! SIGTERM and SIGINT stop the receiving of requests, let those in progress end and their answers go
//! out, flush every volume, and end the program.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::SharedDevice;
use flagstone_nbd::{Drain, Exports, Server as NbdServer};
use flagstone_nvmf::target::{self, Target};
use flagstone_runtime::net::{Address, Listener};
use flagstone_runtime::{CoreHandle, JoinHandle, cores, signal, spawn, time};

use crate::announce::{Served, announcement};
use crate::api::{self, Reread};
use crate::config::{Config, Diagnostics};
use crate::connections::Connections;
use crate::counted::Counters;
use crate::exports::{nbd_exports, nbd_server};
use crate::listen_spec::ListenSpec;
use crate::mirrors::{self, Caps, Mirrored};
use crate::reload::Limits;
use crate::signals::Signals;
use crate::stack::{OpenError, open_limits, own_limit};
use crate::subsystems::{nvme_target, unservable};
use crate::waiting::{Waiting, open_all};

/// How long requests in progress may take when the server is told to stop.
const DRAIN_PATIENCE: Duration = Duration::from_secs(10);

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

impl ServeError {
    /// What it is about is not reached, and may be later without any change here.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self, ServeError::Open(error) if error.may_pass)
    }
}

/// What a server works with while it runs.
pub(crate) struct Server {
    pub(crate) config: Rc<Config>,
    /// Devices of the volumes; those that are [`Server::waiting`] have none yet.
    pub(crate) volumes: Vec<OnceCell<SharedDevice>>,
    /// What went through the volumes.
    pub(crate) counters: Vec<Arc<Counters>>,
    pub(crate) waiting: Waiting,
    /// The mirrors of those that are mirrored and do not wait, in the order of the volumes.
    pub(crate) mirrors: RefCell<Vec<Rc<Mirrored>>>,
    pub(crate) limits: Limits,
    pub(crate) target: Arc<Target>,
    pub(crate) nvme: Arc<Connections>,
    pub(crate) exports: Arc<Exports>,
    pub(crate) nbd: Arc<NbdServer>,
    /// The caps on what mirrors send.
    pub(crate) caps: Caps,
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
    let signals = Signals::catch()?;
    let Some(server) = open(config, &signals).await? else { return Ok(()) };
    let server = Rc::new(server);
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
    let waits: Vec<_> = server
        .waiting
        .volumes()
        .into_iter()
        .map(|index| spawn(server.clone().open_later(index)).abort_on_drop())
        .collect();
    let reread: Reread = Rc::new(reread);
    let control = api::start(&server, &reread).await?;
    announce(&announcement(&server.config, &bound, &control, &server.served()));
    let signal = loop {
        match signals.next().await {
            // What came of it is in the log.
            signal::RELOAD => drop(server.limits.reload(&server.config, reread())),
            signal => break signal,
        }
    };
    drop(control);
    tracing::info!(signal, "stopping: requests in progress end, no more are taken");
    drop((nvme, waits));
    for socket in bound.iter().filter_map(ListenSpec::socket_path) {
        let _ = std::fs::remove_file(socket);
    }
    server.end(nbd).await
}

/// Opens everything; nothing when it is told to stop meanwhile.
async fn open(config: Config, signals: &Signals) -> Result<Option<Server>, ServeError> {
    let config = Rc::new(config);
    let own = config.volumes.iter().map(own_limit).collect::<Result<_, _>>()?;
    let limits = Limits { shared: open_limits(&config.limits)?, own };
    let waiting = Waiting::new(config.volumes.len());
    let counters: Vec<Arc<Counters>> =
        config.volumes.iter().map(|_| Arc::new(Counters::new())).collect();
    // What does not answer takes its time to be given up.
    let Some(stacks) = signals.unless_stopped(open_all(&config, &limits)).await else {
        return Ok(None);
    };
    let stacks = stacks?;
    let machine = machine_id();
    let exports = nbd_exports(&config)?;
    let nbd_drain = Drain::new();
    let server = Server {
        volumes: config.volumes.iter().map(|_| OnceCell::new()).collect(),
        counters,
        waiting,
        mirrors: RefCell::default(),
        limits,
        target: nvme_target(&config, &machine)?,
        nvme: Arc::default(),
        nbd: nbd_server(&config, exports.clone(), nbd_drain.clone()),
        exports,
        machine,
        caps: mirrors::caps(&config),
        started: time::now(),
        bound: OnceCell::new(),
        nbd_drain,
        cores: cores(),
        config,
    };
    for (volume, stack) in stacks.into_iter().enumerate() {
        let begun = match stack {
            Ok(stack) => server.begin(volume, stack).await,
            Err(error) => Err(error.into()),
        };
        match begun {
            Err(error) if error.may_pass() => server.waiting.failed(volume, &error),
            begun => begun?,
        }
    }
    Ok(Some(server))
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
        let without_replica = |volume: usize| {
            self.mirror_of(volume).is_some_and(|mirrored| mirrored.mirror().is_none())
        };
        let missing = |volume: usize| {
            self.mirror_of(volume).is_some_and(|mirrored| mirrored.missing().is_some())
        };
        let state = |(index, volume): (usize, &OnceCell<SharedDevice>)| match volume.get() {
            None => Served::Later { why: self.waiting.reason(index).unwrap_or_default() },
            Some(device) if missing(index) => Served::NotFound(device.geometry()),
            Some(device) if without_replica(index) => Served::WithoutReplica(device.geometry()),
            Some(device) => Served::Now(device.geometry()),
        };
        self.volumes.iter().enumerate().map(state).collect()
    }

    /// The mirror of the volume at `index`, if it is mirrored and open.
    pub(crate) fn mirror_of(&self, index: usize) -> Option<Rc<Mirrored>> {
        self.mirrors.borrow().iter().find(|mirrored| mirrored.volume == index).cloned()
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
        let mirrors = self.mirrors.borrow().clone();
        for mirror in mirrors {
            mirror.end().await;
        }
        for (volume, device) in self.config.volumes.iter().zip(&self.volumes) {
            let Some(device) = device.get() else { continue };
            // A mirror has flushed both its legs as it ended.
            if !volume.read_only && volume.mirror().is_none() {
                let flushed = device.flush().await;
                flushed.map_err(|error| ServeError::Flush(volume.name.clone(), error))?;
            }
        }
        Ok(())
    }
}
