//! From what a configuration names to open devices: a volume's stack, bottom up.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::{
    Delay, DelayConfig, Fault, FaultConfig, FaultRate, FileDevice, FileOptions, Latency,
    MemoryDevice, NullDevice, SharedDevice, Stripe,
};
use flagstone_limit::{Emulated, Limited, Limiter};
use flagstone_nbd::{ClientOptions, ConnectError, NbdDevice};
use flagstone_nvme::pdu::Digests;
use flagstone_nvme::{Nqn, Status};
use flagstone_nvmf::host::{HostError, HostOptions, MultipathDevice, RemoteDevice};
use flagstone_runtime::net::{self, Address};
use flagstone_runtime::time;

use crate::config::{self, Backing, Config, Layer, SharedLimit, Volume};
use crate::device_spec::{DeviceSpec, Host, HostPort, NbdAddress, NbdSpec, NvmeTcpSpec};
use crate::mirrors::Mirrored;

/// Block size of devices that have none of their own, in bytes.
const DEFAULT_BLOCK_BYTES: u32 = 4096;

/// How long to wait for a file or disk that another program has locked, and between two attempts.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// How long calls wait for one of several paths, and for an answer by each.
const PATHS_PATIENCE: Duration = Duration::from_secs(60);
const PATH_PATIENCE: Duration = Duration::from_secs(10);

/// From when on the wait is worth a line.
const LOCK_SILENCE: Duration = Duration::from_millis(300);

/// Why a device cannot be opened; the text names the device and says what to do.
#[derive(Debug, thiserror::Error)]
#[error("{device}: {problem}")]
pub struct OpenError {
    /// The device, as it was written.
    pub device: String,
    /// What is wrong.
    pub problem: String,
}

/// How to open a device.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// Take no writes.
    pub read_only: bool,
    /// Block size in bytes, 512 or 4096; the device's own when `None`.
    pub block_bytes: Option<u32>,
    /// Connections or queues of each core to a remote device.
    pub queues: Option<u16>,
    /// Commands in flight on each queue of a remote device.
    pub queue_depth: Option<u16>,
}

/// Opens one device.
///
/// # Errors
/// What the system, the disk or the other side says, with the device's name before it.
pub async fn open_device(
    spec: &DeviceSpec,
    options: &OpenOptions,
) -> Result<SharedDevice, OpenError> {
    let failed = |problem: String| OpenError { device: spec.to_string(), problem };
    let block = options.block_bytes.unwrap_or(DEFAULT_BLOCK_BYTES);
    Ok(match spec {
        DeviceSpec::Path(path) => {
            let wanted = FileOptions {
                read_only: options.read_only,
                block_bytes: options.block_bytes,
                ..FileOptions::default()
            };
            open_file(path, &wanted).await.map_err(|error| failed(explain(path, &error)))?
        }
        DeviceSpec::Memory { size_bytes } => Arc::new(
            MemoryDevice::new(*size_bytes, block).map_err(|error| failed(error.to_string()))?,
        ),
        DeviceSpec::Null { size_bytes } => Arc::new(
            NullDevice::new(*size_bytes, block).map_err(|error| failed(error.to_string()))?,
        ),
        DeviceSpec::NvmeTcp(remote) => open_nvme(remote, options).await.map_err(failed)?,
        DeviceSpec::Nbd(remote) => open_nbd(remote).await.map_err(failed)?,
    })
}

/// Opens a file or disk, waiting a little for one that is locked: when a server was killed, the
/// kernel ends its io_uring requests, and with them its lock, some time after the process has gone.
/// Until then a write of it may still reach the disk, so there is nothing to do but wait.
async fn open_file(path: &Path, options: &FileOptions) -> io::Result<Arc<FileDevice>> {
    let begun = time::now();
    let mut told = false;
    loop {
        if !told && begun.elapsed() > LOCK_SILENCE {
            told = true;
            let seconds = LOCK_PATIENCE.as_secs();
            tracing::info!("{} is locked by another program; waiting {seconds} s", path.display());
        }
        match FileDevice::open(path, options) {
            Err(error)
                if error.kind() == io::ErrorKind::ResourceBusy
                    && begun.elapsed() < LOCK_PATIENCE =>
            {
                time::sleep(LOCK_PAUSE).await;
            }
            result => return result,
        }
    }
}

/// The system's words without the path, which [`OpenError`] names, and what to do about the usual
/// ones.
fn explain(path: &Path, error: &io::Error) -> String {
    let text = error.to_string();
    let named = format!("cannot open {}: ", path.display());
    let text = text.strip_prefix(&named).unwrap_or(&text);
    let hint = match error.kind() {
        io::ErrorKind::NotFound => {
            "; make a file first (truncate -s 10G FILE), or look for the disk with lsblk"
        }
        io::ErrorKind::PermissionDenied => {
            "; run as a user who may open it, such as a member of the group `disk`"
        }
        io::ErrorKind::ResourceBusy if !text.contains("locked") => {
            "; it is mounted, or another program has it"
        }
        io::ErrorKind::IsADirectory => "; give a file in it, or a disk",
        io::ErrorKind::ReadOnlyFilesystem => "; it can only be read here",
        _ => "",
    };
    format!("{text}{hint}")
}

/// What to do about the usual reasons for which there is no connection.
fn connect_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            "; nothing listens there: is the server running, and is this its port?"
        }
        io::ErrorKind::NotFound => "; no server has made this socket",
        _ => "",
    }
}

fn explain_nvme(error: &HostError) -> String {
    let hint = match error {
        HostError::Connect(system) => connect_hint(system),
        HostError::FabricsRefused { what: "Connect", status } => match status.code() {
            Status::CONNECT_INVALID_PARAMETERS => {
                return "the server refused Connect, most likely because it has no subsystem of \
                        this NQN (Connect Invalid Parameters); `flagstone serve` prints those it \
                        serves, `nvme discover` lists them"
                    .to_owned();
            }
            Status::CONNECT_INVALID_HOST => {
                return "the subsystem does not admit this host (Connect Invalid Host): add its NQN \
                        to allow_hosts, or call it by one that is there (?hostnqn=NQN)"
                    .to_owned();
            }
            _ => "",
        },
        HostError::Closed | HostError::Protocol(_) => "; is it an NVMe/TCP port?",
        _ => "",
    };
    format!("{error}{hint}")
}

fn explain_nbd(error: &ConnectError) -> String {
    let hint = match error {
        ConnectError::Connect(system) => connect_hint(system),
        ConnectError::TimedOut => "; is it an NBD port?",
        ConnectError::Negotiation(_) if error.to_string().contains("has no export") => {
            "; `flagstone serve` prints those it serves, `nbdinfo --list` lists them"
        }
        _ => "",
    };
    format!("{error}{hint}")
}

/// The address of a host: what it is called is looked up now.
pub(crate) fn resolve(host: &HostPort) -> Result<Address, String> {
    let name = match &host.host {
        Host::Ip(ip) => return Ok(Address::Tcp(SocketAddr::new(*ip, host.port))),
        Host::Name(name) => name,
    };
    let found = net::resolve(name, host.port)
        .map_err(|error| format!("cannot find the address of `{name}`: {error}"))?;
    found.into_iter().next().ok_or_else(|| format!("`{name}` has no address"))
}

async fn open_nvme(spec: &NvmeTcpSpec, options: &OpenOptions) -> Result<SharedDevice, String> {
    let nqn = |text: &str| Nqn::new(text).map_err(|error| format!("{text}: {error}"));
    let default = HostOptions::default();
    let host = HostOptions {
        host_nqn: spec.host_nqn.as_deref().map(nqn).transpose()?,
        nsid: spec.namespace_id,
        queues: spec.queues.or(options.queues).unwrap_or(default.queues),
        queue_depth: options.queue_depth.unwrap_or(default.queue_depth),
        digests: Digests { header: spec.header_digest, data: spec.data_digest },
        ..default
    };
    let subsystem = nqn(&spec.subsystem_nqn)?;
    let first = resolve(&spec.address)?;
    if spec.other_addresses.is_empty() {
        let device = RemoteDevice::connect(first, &subsystem, host).await;
        return Ok(device.map_err(|error| explain_nvme(&error))?);
    }
    let mut addresses = vec![first];
    for other in &spec.other_addresses {
        addresses.push(resolve(other)?);
    }
    let host = HostOptions { loss_timeout: PATHS_PATIENCE, command_timeout: PATH_PATIENCE, ..host };
    let device = MultipathDevice::connect(addresses, &subsystem, host).await;
    Ok(device.map_err(|error| explain_nvme(&error))?)
}

async fn open_nbd(spec: &NbdSpec) -> Result<SharedDevice, String> {
    let address = match &spec.address {
        NbdAddress::Tcp(host) => resolve(host)?,
        NbdAddress::Unix(path) => Address::Unix(path.clone()),
    };
    let device = NbdDevice::connect(address, &spec.export, ClientOptions::default()).await;
    Ok(device.map_err(|error| explain_nbd(&error))?)
}

/// A volume that is open.
pub struct OpenVolume {
    /// The top of its stack.
    pub device: SharedDevice,
    /// Its own limit, if it has one: its numbers may be changed.
    pub limiter: Option<Arc<Limiter>>,
    /// Its mirror, if it is mirrored: it serves nobody before it is started.
    pub(crate) mirrored: Option<Rc<Mirrored>>,
}

/// Makes the limits that volumes share.
///
/// # Errors
/// That one has numbers that a limit cannot have.
pub fn open_limits(limits: &[SharedLimit]) -> Result<Vec<Arc<Limiter>>, OpenError> {
    let open = |shared: &SharedLimit| {
        tracing::info!("limit `{}` is {}", shared.name, shared.limit);
        Limiter::new(shared.limit.numbers).map_err(|error| OpenError {
            device: format!("limit `{}`", shared.name),
            problem: error.to_string(),
        })
    };
    limits.iter().map(open).collect()
}

/// Opens the volume at `index` of a configuration: its devices, then its layers over them, the last
/// first. `shared` are the limits of the configuration, from [`open_limits`].
///
/// # Errors
/// As [`open_device`]; or that the devices do not go together.
pub async fn open_volume(
    config: &Config,
    index: usize,
    shared: &[Arc<Limiter>],
) -> Result<OpenVolume, OpenError> {
    let volume = &config.volumes[index];
    let options = OpenOptions {
        read_only: volume.read_only,
        block_bytes: volume.block_size_bytes,
        ..OpenOptions::default()
    };
    let within = |error: OpenError| about(volume, error.to_string());
    let mut device = match &volume.backing {
        Backing::Device(spec) => open_device(spec, &options).await.map_err(within)?,
        Backing::Stripe { chunk_bytes, devices } => {
            let mut children = Vec::with_capacity(devices.len());
            for spec in devices {
                children.push(open_device(spec, &options).await.map_err(within)?);
            }
            let stripe = Stripe::new(children, *chunk_bytes);
            Arc::new(stripe.map_err(|error| about(volume, error.to_string()))?)
        }
    };
    let (mut limiter, mut mirrored) = (None, None);
    for layer in volume.layers.iter().rev() {
        device = match layer {
            Layer::Limit(limit) => {
                tracing::info!("volume `{}` is limited to {limit}", volume.name);
                let own = Limiter::new(limit.numbers)
                    .map_err(|error| about(volume, error.to_string()))?;
                limiter = Some(own.clone());
                Arc::new(Limited::new(device, own))
            }
            Layer::SharedLimit(index) => Arc::new(Limited::new(device, shared[*index].clone())),
            Layer::Mirror(_) => {
                let mirror = Rc::new(Mirrored::over(config, index, device).await?);
                let device = mirror.device();
                mirrored = Some(mirror);
                device
            }
            Layer::Emulate(_) => {
                tracing::warn!("volume `{}` emulates a disk: for labs and tests only", volume.name);
                layered(device, layer).map_err(|problem| about(volume, problem))?
            }
            other => layered(device, other).map_err(|problem| about(volume, problem))?,
        };
    }
    let has = device.geometry().block_bytes;
    match volume.block_size_bytes {
        Some(asked) if asked != has => Err(about(
            volume,
            format!("its device has blocks of {has} B: block_size = {asked} cannot be had from it"),
        )),
        _ => Ok(OpenVolume { device, limiter, mirrored }),
    }
}

/// A layer over a device, if it is one that needs to know nothing else; else the device.
pub(crate) fn layered(device: SharedDevice, layer: &Layer) -> Result<SharedDevice, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    Ok(match layer {
        Layer::Limit(limit) => {
            let limiter = Limiter::new(limit.numbers).map_err(|error| text(&error))?;
            Arc::new(Limited::new(device, limiter))
        }
        Layer::Emulate(config) => {
            Arc::new(Emulated::new(device, *config).map_err(|error| text(&error))?)
        }
        Layer::Delay(delay) => {
            Arc::new(Delay::new(device, delay_config(delay)).map_err(|error| text(&error))?)
        }
        Layer::Fault(fault) => {
            let (fault, _control) =
                Fault::new(device, fault_config(fault)).map_err(|error| text(&error))?;
            Arc::new(fault)
        }
        Layer::SharedLimit(_) | Layer::Mirror(_) => device,
    })
}

fn about(volume: &Volume, problem: String) -> OpenError {
    OpenError { device: format!("volume `{}`", volume.name), problem }
}

fn delay_config(delay: &crate::config::Delay) -> DelayConfig {
    let latency = |fixed| Latency { fixed, jitter: delay.jitter };
    DelayConfig {
        read: latency(delay.read),
        write: latency(delay.write),
        flush: latency(delay.flush),
        discard: latency(delay.discard),
    }
}

fn fault_config(fault: &crate::config::Fault) -> FaultConfig {
    let rate = |rate| match rate {
        config::FaultRate::Never => FaultRate::Never,
        config::FaultRate::Every(period) => FaultRate::Every(period),
        config::FaultRate::PerMillion(rate) => FaultRate::PerMillion(rate),
    };
    FaultConfig {
        seed: fault.seed,
        read: rate(fault.read),
        write: rate(fault.write),
        flush: rate(fault.flush),
    }
}
