//! From what a configuration names to open devices: a volume's stack, bottom up.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::{
    Delay, DelayConfig, Fault, FaultConfig, FaultRate, FileDevice, FileOptions, Latency,
    MemoryDevice, NullDevice, SharedDevice, Stripe,
};
use flagstone_limit::{Emulated, Limited, Limiter};
use flagstone_runtime::time;

use crate::config::{self, Backing, Config, Layer, SharedLimit, Volume};
use crate::device_spec::DeviceSpec;
use crate::mirrors::{Mirrored, OpenLeg, reach_log};
use crate::remote::{Failure, open_nbd, open_nvme};

/// Block size of devices that have none of their own, in bytes.
const DEFAULT_BLOCK_BYTES: u32 = 4096;

/// How long to wait for a file or disk that another program has locked, and between two attempts.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
const LOCK_PAUSE: Duration = Duration::from_millis(5);

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
    /// It is not reached, and may be later without any change here; all else wants an operator.
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
}

/// Opens one device.
///
/// # Errors
/// What the system, the disk or the other side says, with the device's name before it.
pub async fn open_device(
    spec: &DeviceSpec,
    options: &OpenOptions,
) -> Result<SharedDevice, OpenError> {
    let about =
        |Failure { problem, may_pass }| OpenError { device: spec.to_string(), problem, may_pass };
    let failed = |problem: String| about(Failure { problem, may_pass: false });
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
        DeviceSpec::NvmeTcp(remote) => open_nvme(remote, options).await.map_err(about)?,
        DeviceSpec::Nbd(remote) => open_nbd(remote).await.map_err(about)?,
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

/// A volume that is open.
pub struct OpenVolume {
    /// The top of its stack.
    pub device: SharedDevice,
    /// Its own limit, if it has one: its numbers may be changed.
    pub limiter: Option<Arc<Limiter>>,
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
            may_pass: false,
        })
    };
    limits.iter().map(open).collect()
}

/// Makes the own limit of a volume, if it is to have one.
///
/// # Errors
/// That it has numbers that a limit cannot have.
pub(crate) fn own_limit(volume: &Volume) -> Result<Option<Arc<Limiter>>, OpenError> {
    let mut layers = volume.layers.iter();
    let limit = layers.find_map(|layer| match layer {
        Layer::Limit(limit) => Some(limit),
        _ => None,
    });
    let Some(limit) = limit else { return Ok(None) };
    tracing::info!("volume `{}` is limited to {limit}", volume.name);
    let limiter = Limiter::new(limit.numbers).map_err(|error| about(volume, error.to_string()))?;
    Ok(Some(limiter))
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
    let limiter = own_limit(&config.volumes[index])?;
    let device = open_stack(config, index, shared, limiter.as_ref()).await?.device;
    Ok(OpenVolume { device, limiter })
}

/// The device of a volume with its layers.
pub(crate) struct Stack {
    /// The top.
    pub(crate) device: SharedDevice,
    /// Its mirror, if it is mirrored: it serves nobody before it is started.
    pub(crate) mirrored: Option<Rc<Mirrored>>,
}

/// As [`open_volume`], under a limit that was made before; [`own_limit`] says what it is. May be
/// tried again, and dropped at any moment.
pub(crate) async fn open_stack(
    config: &Config,
    index: usize,
    shared: &[Arc<Limiter>],
    own: Option<&Arc<Limiter>>,
) -> Result<Stack, OpenError> {
    let volume = &config.volumes[index];
    let (mut device, mut log) = open_devices(volume).await?;
    let mut mirrored = None;
    for layer in volume.layers.iter().rev() {
        device = match layer {
            Layer::Mirror(_) => {
                let mirror = Rc::new(Mirrored::over(config, index, device, log.take()).await?);
                if !volume.backing.devices().iter().any(DeviceSpec::is_in_memory) {
                    mirror.reopen_with(open_leg(volume, shared, own));
                }
                let device = mirror.device();
                mirrored = Some(mirror);
                device
            }
            other => limited_or_layered(volume, device, other, shared, own)?,
        };
    }
    let has = device.geometry().block_bytes;
    match volume.block_size_bytes {
        Some(asked) if asked != has => Err(about(
            volume,
            format!("its device has blocks of {has} B: block_size = {asked} cannot be had from it"),
        )),
        _ => Ok(Stack { device, mirrored }),
    }
}

/// A layer over a device, with the limits that there are.
fn limited_or_layered(
    volume: &Volume,
    device: SharedDevice,
    layer: &Layer,
    shared: &[Arc<Limiter>],
    own: Option<&Arc<Limiter>>,
) -> Result<SharedDevice, OpenError> {
    Ok(match layer {
        Layer::Limit(_) => match own {
            Some(own) => Arc::new(Limited::new(device, own.clone())),
            None => device,
        },
        Layer::SharedLimit(index) => Arc::new(Limited::new(device, shared[*index].clone())),
        Layer::Emulate(_) => {
            tracing::warn!("volume `{}` emulates a disk: for labs and tests only", volume.name);
            layered(device, layer).map_err(|problem| about(volume, problem))?
        }
        other => layered(device, other).map_err(|problem| about(volume, problem))?,
    })
}

/// What opens the leg of a mirrored volume once more: its devices, and the layers below the mirror.
fn open_leg(volume: &Volume, shared: &[Arc<Limiter>], own: Option<&Arc<Limiter>>) -> OpenLeg {
    let below = Rc::new((volume.clone(), shared.to_vec(), own.cloned()));
    Rc::new(move || {
        let below = below.clone();
        let open = async move {
            let (volume, shared, own) = &*below;
            let mut device = open_backing(volume).await?;
            let layers = volume.layers.iter().rev();
            for layer in layers.take_while(|layer| !matches!(layer, Layer::Mirror(_))) {
                device = limited_or_layered(volume, device, layer, shared, own.as_ref())?;
            }
            Ok(device)
        };
        Box::pin(open) as Pin<Box<dyn Future<Output = _>>>
    })
}

/// Opens what a volume is stored on, and the device of its mirror's log if that is on another
/// machine. A mistake in one of them is told first.
async fn open_devices(volume: &Volume) -> Result<(SharedDevice, Option<SharedDevice>), OpenError> {
    let backing = open_backing(volume).await;
    if let Err(error) = &backing
        && !error.may_pass
    {
        return backing.map(|device| (device, None));
    }
    let log = match volume.mirror() {
        Some(mirror) => reach_log(mirror).await.map_err(|error| within(volume, error)),
        None => Ok(None),
    };
    match (backing, log) {
        (Ok(device), Ok(log)) => Ok((device, log)),
        (_, Err(error)) if !error.may_pass => Err(error),
        (Err(error), _) | (_, Err(error)) => Err(error),
    }
}

/// The error of a device as one of the volume that it belongs to.
fn within(volume: &Volume, error: OpenError) -> OpenError {
    OpenError { may_pass: error.may_pass, ..about(volume, error.to_string()) }
}

/// Opens what a volume is stored on.
async fn open_backing(volume: &Volume) -> Result<SharedDevice, OpenError> {
    let options = OpenOptions {
        read_only: volume.read_only,
        block_bytes: volume.block_size_bytes,
        ..OpenOptions::default()
    };
    let within = |error| within(volume, error);
    match &volume.backing {
        Backing::Device(spec) => open_device(spec, &options).await.map_err(within),
        Backing::Stripe { chunk_bytes, devices } => {
            let mut children = Vec::with_capacity(devices.len());
            let mut passing = None;
            for spec in devices {
                match open_device(spec, &options).await {
                    Ok(child) => children.push(child),
                    // A mistake in one of the others is told first.
                    Err(error) if error.may_pass => passing = passing.or(Some(error)),
                    Err(error) => return Err(within(error)),
                }
            }
            if let Some(error) = passing {
                return Err(within(error));
            }
            let stripe = Stripe::new(children, *chunk_bytes);
            Ok(Arc::new(stripe.map_err(|error| about(volume, error.to_string()))?))
        }
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
    OpenError { device: format!("volume `{}`", volume.name), problem, may_pass: false }
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
