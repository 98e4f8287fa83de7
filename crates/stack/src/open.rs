//! Opening of devices and of the stack of a volume, bottom up.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::{
    DelayLayer, FaultLayer, FileDevice, FileOptions, IoError, MemoryDevice, NullDevice,
    SharedDevice, StripeDevice,
};
use flagstone_limit::{DiskModelLayer, Limiter, RateLimitLayer};
use flagstone_runtime::{Buf, buf, time};

use crate::remote::{RemoteFailure, open_nbd, open_nvme};
use flagstone_config::device_spec::DeviceSpec;
use flagstone_config::{Backing, Config, LayerConfig, LimitConfig, Volume};

/// Block size of devices that have none of their own, in bytes.
const DEFAULT_BLOCK_BYTES: u32 = 4096;

/// How long to wait for a file or disk that another program has locked, and between two attempts.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// From when on the wait is worth a line.
const LOCK_SILENCE: Duration = Duration::from_millis(300);

/// A device that cannot be opened. The text names the device and the fix.
#[derive(Debug, thiserror::Error)]
#[error("{device}: {problem}")]
pub struct OpenError {
    /// The device, as it was written.
    pub device: String,
    /// The problem.
    pub problem: String,
    /// The device is unreachable and may become reachable without any change here. Other errors
    /// need an operator.
    pub may_pass: bool,
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
    /// Read the key files of a remote device again before each use. A server reads them on reload.
    pub rereads_keys: bool,
}

/// Opens one device.
///
/// # Errors
/// The error of the system, the disk or the remote server, after the name of the device.
pub async fn open_device(
    spec: &DeviceSpec,
    options: &OpenOptions,
) -> Result<SharedDevice, OpenError> {
    let about = |RemoteFailure { problem, may_pass }| OpenError {
        device: spec.to_string(),
        problem,
        may_pass,
    };
    let failed = |problem: String| about(RemoteFailure { problem, may_pass: false });
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
        DeviceSpec::PoolVolume(_) => {
            let problem = "only the server opens the volumes of its pools: attach it over NVMe/TCP \
                           or NBD, by an address of flagstone volume show";
            return Err(failed(problem.to_owned()));
        }
        DeviceSpec::NvmeTcp(remote) => open_nvme(remote, options).await.map_err(about)?,
        DeviceSpec::Nbd(remote) => open_nbd(remote).await.map_err(about)?,
    })
}

/// Opens a file or disk, waiting briefly if it is locked: when a server was killed, the
/// kernel ends its io_uring requests, and with them its lock, some time after the process has gone.
/// Until then a write of it may still reach the disk, so there is nothing to do but wait.
async fn open_file(path: &Path, options: &FileOptions) -> io::Result<Arc<FileDevice>> {
    let begun = time::now();
    let mut logged = false;
    loop {
        if !logged && begun.elapsed() > LOCK_SILENCE {
            logged = true;
            let seconds = LOCK_TIMEOUT.as_secs();
            tracing::info!("{} is locked by another program; waiting {seconds} s", path.display());
        }
        match FileDevice::open(path, options) {
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::ResourceBusy
                ) && begun.elapsed() < LOCK_TIMEOUT =>
            {
                time::sleep(LOCK_PAUSE).await;
            }
            result => return result,
        }
    }
}

/// The system's message without the path, which [`OpenError`] has, and a hint for common errors.
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
        io::ErrorKind::ResourceBusy => "; it is mounted, or another program has it",
        io::ErrorKind::IsADirectory => "; give a file in it, or a disk",
        io::ErrorKind::ReadOnlyFilesystem => "; it can only be read here",
        _ => "",
    };
    format!("{text}{hint}")
}

/// A volume that is open.
pub struct OpenVolume {
    /// The top of its stack.
    pub device: SharedDevice,
    /// Its own limit, if it has one: its numbers may be changed.
    pub limiter: Option<Arc<Limiter>>,
}

/// Makes the limits that volumes share.
pub fn open_limits(limits: &[LimitConfig]) -> Result<Vec<Arc<Limiter>>, OpenError> {
    let open = |shared: &LimitConfig| {
        tracing::info!("limit `{}` is {}", shared.name, shared.limit);
        Limiter::new(shared.limit.numbers).map_err(|error| OpenError {
            device: format!("limit `{}`", shared.name),
            problem: error.to_string(),
            may_pass: false,
        })
    };
    limits.iter().map(open).collect()
}

/// Makes the own limit of a volume, if it is to have one.
pub fn own_limit(volume: &Volume) -> Result<Option<Arc<Limiter>>, OpenError> {
    let mut layers = volume.layers.iter();
    let limit = layers.find_map(|layer| match layer {
        LayerConfig::Limit(limit) => Some(limit),
        _ => None,
    });
    let Some(limit) = limit else { return Ok(None) };
    tracing::info!("volume `{}` is limited to {limit}", volume.name);
    let limiter =
        Limiter::new(limit.numbers).map_err(|error| volume_error(volume, error.to_string()))?;
    Ok(Some(limiter))
}

/// Opens the volume at `index` of a configuration, which is not mirrored: its devices, then its
/// layers over them, the last first. `shared` are the limits of the configuration, from
/// [`open_limits`].
///
/// # Errors
/// As [`open_device`]; that the devices do not fit together; or that the volume is mirrored.
pub async fn open_volume(
    config: &Config,
    index: usize,
    shared: &[Arc<Limiter>],
) -> Result<OpenVolume, OpenError> {
    let volume = &config.volumes[index];
    let limiter = own_limit(volume)?;
    let mut device = open_backing(volume).await?;
    for layer in volume.layers.iter().rev() {
        device = match layer {
            LayerConfig::Mirror(_) => {
                return Err(volume_error(volume, "it is mirrored: a server opens it".to_owned()));
            }
            other => over(volume, device, other, shared, limiter.as_ref())?,
        };
    }
    check_block_size(volume, &device)?;
    Ok(OpenVolume { device, limiter })
}

/// Puts a layer of a volume over a device, with the volume's own and the shared limits.
pub fn over(
    volume: &Volume,
    device: SharedDevice,
    layer: &LayerConfig,
    shared: &[Arc<Limiter>],
    own: Option<&Arc<Limiter>>,
) -> Result<SharedDevice, OpenError> {
    Ok(match layer {
        LayerConfig::Limit(_) => match own {
            Some(own) => Arc::new(RateLimitLayer::new(device, own.clone())),
            None => device,
        },
        LayerConfig::SharedLimit(index) => {
            Arc::new(RateLimitLayer::new(device, shared[*index].clone()))
        }
        LayerConfig::DiskModel(_) => {
            tracing::warn!("volume `{}` emulates a disk: for labs and tests only", volume.name);
            layered(device, layer).map_err(|problem| volume_error(volume, problem))?
        }
        other => layered(device, other).map_err(|problem| volume_error(volume, problem))?,
    })
}

/// The first bytes of a device, at most `bytes`, in whole blocks.
pub async fn beginning(device: &SharedDevice, bytes: u64) -> Result<Buf, IoError> {
    let geometry = device.geometry();
    let block = u64::from(geometry.block_bytes);
    let len = geometry.size_bytes.min(bytes) / block * block;
    let memory = buf::acquire(len as usize).await.map_err(|_| IoError::NoMemory)?;
    Ok(device.read(0, memory).await?.freeze())
}

/// The error of a device as one of the volume that it belongs to.
pub fn within(volume: &Volume, error: OpenError) -> OpenError {
    OpenError { may_pass: error.may_pass, ..volume_error(volume, error.to_string()) }
}

/// Opens the backing devices of a volume.
pub async fn open_backing(volume: &Volume) -> Result<SharedDevice, OpenError> {
    let options = OpenOptions {
        read_only: volume.read_only,
        block_bytes: volume.block_size_bytes,
        ..OpenOptions::default()
    };
    let within = |error| within(volume, error);
    match &volume.backing {
        Backing::Pool(pool) => {
            let problem = format!("it is in pool {pool}, which only the server opens");
            Err(volume_error(volume, problem))
        }
        Backing::Device(spec) => open_device(spec, &options).await.map_err(within),
        Backing::Stripe { chunk_bytes, devices } => {
            let mut children = Vec::with_capacity(devices.len());
            let mut passing = None;
            for spec in devices {
                match open_device(spec, &options).await {
                    Ok(child) => children.push(child),
                    // A mistake in another device is reported first.
                    Err(error) if error.may_pass => passing = passing.or(Some(error)),
                    Err(error) => return Err(within(error)),
                }
            }
            if let Some(error) = passing {
                return Err(within(error));
            }
            let stripe = StripeDevice::new(children, *chunk_bytes);
            Ok(Arc::new(stripe.map_err(|error| volume_error(volume, error.to_string()))?))
        }
    }
}

/// Puts a layer over a device. Layers that need more than the device return it unchanged.
pub fn layered(device: SharedDevice, layer: &LayerConfig) -> Result<SharedDevice, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    Ok(match layer {
        LayerConfig::Limit(limit) => {
            let limiter = Limiter::new(limit.numbers).map_err(|error| text(&error))?;
            Arc::new(RateLimitLayer::new(device, limiter))
        }
        LayerConfig::DiskModel(config) => {
            Arc::new(DiskModelLayer::new(device, *config).map_err(|error| text(&error))?)
        }
        LayerConfig::Delay(delay) => {
            Arc::new(DelayLayer::new(device, *delay).map_err(|error| text(&error))?)
        }
        LayerConfig::Fault(fault) => {
            let (fault, _control) =
                FaultLayer::new(device, *fault).map_err(|error| text(&error))?;
            Arc::new(fault)
        }
        LayerConfig::SharedLimit(_) | LayerConfig::Mirror(_) => device,
    })
}

/// Error of a volume's device or layer, under the volume's name.
pub fn volume_error(volume: &Volume, problem: String) -> OpenError {
    OpenError { device: format!("volume `{}`", volume.name), problem, may_pass: false }
}

/// Checks that the device of a volume has the configured block size.
pub fn check_block_size(volume: &Volume, device: &SharedDevice) -> Result<(), OpenError> {
    let has = device.geometry().block_bytes;
    match volume.block_size_bytes {
        Some(asked) if asked != has => Err(volume_error(
            volume,
            format!("its device has blocks of {has} B: it cannot have block_size = {asked}"),
        )),
        _ => Ok(()),
    }
}
