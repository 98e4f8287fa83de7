//! From what a configuration names to open devices: a volume's stack, bottom up.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::{
    Delay, DelayConfig, Fault, FaultConfig, FaultRate, FileDevice, FileOptions, Latency,
    MemoryDevice, NullDevice, SharedDevice, Stripe,
};
use flagstone_nbd::{ClientOptions, NbdDevice};
use flagstone_nvme::Nqn;
use flagstone_nvme::pdu::Digests;
use flagstone_nvmf::host::{HostOptions, RemoteDevice};
use flagstone_runtime::net::{self, Address};
use flagstone_runtime::time;

use crate::config::{Backing, Layer, Volume};
use crate::device_spec::{DeviceSpec, Host, HostPort, NbdAddress, NbdSpec, NvmeTcpSpec};

/// Block size of devices that have none of their own, in bytes.
const DEFAULT_BLOCK_BYTES: u32 = 4096;

/// How long to wait for a file or disk that another program has locked, and between two attempts.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
const LOCK_PAUSE: Duration = Duration::from_millis(5);

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
            open_file(path, &wanted).await.map_err(|error| failed(explain(&error)))?
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
    loop {
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

/// The system's words, and what to do about the usual ones.
fn explain(error: &io::Error) -> String {
    let hint = match error.kind() {
        io::ErrorKind::NotFound => {
            "; make a file first (truncate -s 10G FILE), or look for the disk with lsblk"
        }
        io::ErrorKind::PermissionDenied => {
            "; run as a user who may open it, such as a member of the group `disk`"
        }
        io::ErrorKind::ResourceBusy => "; it is mounted, or another program has it",
        _ => "",
    };
    format!("{error}{hint}")
}

fn resolve(host: &HostPort) -> Result<Address, String> {
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
    let device = RemoteDevice::connect(resolve(&spec.address)?, &subsystem, host).await;
    Ok(device.map_err(|error| error.to_string())?)
}

async fn open_nbd(spec: &NbdSpec) -> Result<SharedDevice, String> {
    let address = match &spec.address {
        NbdAddress::Tcp(host) => resolve(host)?,
        NbdAddress::Unix(path) => Address::Unix(path.clone()),
    };
    let device = NbdDevice::connect(address, &spec.export, ClientOptions::default()).await;
    Ok(device.map_err(|error| error.to_string())?)
}

/// Opens a volume: its devices, then its layers over them, the last first.
///
/// # Errors
/// As [`open_device`]; or that the devices do not go together.
pub async fn open_volume(volume: &Volume) -> Result<SharedDevice, OpenError> {
    let options = OpenOptions {
        read_only: volume.read_only,
        block_bytes: volume.block_size_bytes,
        ..OpenOptions::default()
    };
    let mut device = match &volume.backing {
        Backing::Device(spec) => open_device(spec, &options).await?,
        Backing::Stripe { chunk_bytes, devices } => {
            let mut children = Vec::with_capacity(devices.len());
            for spec in devices {
                children.push(open_device(spec, &options).await?);
            }
            let stripe = Stripe::new(children, *chunk_bytes);
            Arc::new(stripe.map_err(|error| about(volume, error.to_string()))?)
        }
    };
    for layer in volume.layers.iter().rev() {
        device = match layer {
            Layer::Delay(delay) => Arc::new(
                Delay::new(device, delay_config(delay))
                    .map_err(|error| about(volume, error.to_string()))?,
            ),
            Layer::Fault(fault) => {
                let (fault, _control) = Fault::new(device, fault_config(fault))
                    .map_err(|error| about(volume, error.to_string()))?;
                Arc::new(fault)
            }
        };
    }
    let has = device.geometry().block_bytes;
    match volume.block_size_bytes {
        Some(asked) if asked != has => Err(about(
            volume,
            format!("its device has blocks of {has} B: block_size = {asked} cannot be had from it"),
        )),
        _ => Ok(device),
    }
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
    let rate = |every: Option<u64>| every.map_or(FaultRate::Never, FaultRate::Every);
    FaultConfig {
        read: rate(fault.read_error_every),
        write: rate(fault.write_error_every),
        flush: rate(fault.flush_error_every),
        ..FaultConfig::default()
    }
}
