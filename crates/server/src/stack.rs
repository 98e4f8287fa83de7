//! Device stack of a volume, including its mirror.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use flagstone_blockdev::SharedDevice;
use flagstone_blockdev::stats::{Counters, StatsLayer};
use flagstone_config::device_spec::DeviceSpec;
use flagstone_config::{Config, LayerConfig, Volume};
use flagstone_limit::Limiter;
use flagstone_stack::{OpenError, check_block_size, open_backing, over, within};

use crate::mirrors::{MirroredVolume, OpenLocalDevice, connect_log};
use crate::pools::legs::LegOpener;

pub(crate) struct Stack {
    pub(crate) device: SharedDevice,
    /// Its layers except the mirror, from the host's side down.
    pub(crate) layers: Vec<CountedLayer>,
    /// Its mirror, if any. It does not serve until started.
    pub(crate) mirrored: Option<Rc<MirroredVolume>>,
}

/// A layer whose calls to the device below it are counted. A mirror counts its own.
#[derive(Clone)]
pub(crate) struct CountedLayer {
    layer: LayerConfig,
    pub(crate) below: Arc<Counters>,
}

impl CountedLayer {
    pub(crate) fn new(layer: LayerConfig) -> CountedLayer {
        CountedLayer { layer, below: Arc::default() }
    }

    pub(crate) fn name(&self) -> &'static str {
        layer_name(&self.layer)
    }

    /// Lays it over a device.
    pub(crate) fn over(
        &self,
        volume: &Volume,
        device: SharedDevice,
        shared: &[Arc<Limiter>],
        own: Option<&Arc<Limiter>>,
    ) -> Result<SharedDevice, OpenError> {
        let counted = Arc::new(StatsLayer::with(device, self.below.clone()));
        over(volume, counted, &self.layer, shared, own)
    }
}

/// Name of a layer in documents and metrics.
pub(crate) fn layer_name(layer: &LayerConfig) -> &'static str {
    match layer {
        LayerConfig::Delay(_) => "delay",
        LayerConfig::Fault(_) => "fault",
        LayerConfig::Limit(_) => "limit",
        LayerConfig::SharedLimit(_) => "shared_limit",
        LayerConfig::DiskModel(_) => "disk_model",
        LayerConfig::Mirror(_) => "mirror",
    }
}

/// Opens the stack of a volume with existing limiters: `shared` for all volumes, `own` for this
/// one. Cancel-safe, and may be repeated.
pub(crate) async fn open_stack(
    config: &Config,
    index: usize,
    shared: &[Arc<Limiter>],
    own: Option<&Arc<Limiter>>,
    legs: &LegOpener,
) -> Result<Stack, OpenError> {
    let volume = &config.volumes[index];
    let (mut device, mut log) = open_devices(volume, legs).await?;
    let mut mirrored = None;
    // From the device up.
    let mut layers = Vec::new();
    for layer in volume.layers.iter().rev() {
        device = if let LayerConfig::Mirror(_) = layer {
            let mirror = Rc::new(MirroredVolume::over(config, index, device, log.take()).await?);
            if !volume.backing.devices().iter().any(DeviceSpec::is_in_memory) {
                mirror.set_reopen(local_device_opener(volume, layers.clone(), shared, own, legs));
            }
            if let Some(leg) = volume.backing.leg() {
                mirror.set_leg_snapshots(legs.snapshots_of(leg));
            }
            let device = mirror.device();
            mirrored = Some(mirror);
            device
        } else {
            let layer = CountedLayer::new(layer.clone());
            let device = layer.over(volume, device, shared, own)?;
            layers.push(layer);
            device
        };
    }
    check_block_size(volume, &device)?;
    layers.reverse();
    Ok(Stack { device, layers, mirrored })
}

/// Opener of the local device of a mirrored volume: its devices, and `layers` over them.
fn local_device_opener(
    volume: &Volume,
    layers: Vec<CountedLayer>,
    shared: &[Arc<Limiter>],
    own: Option<&Arc<Limiter>>,
    legs: &LegOpener,
) -> OpenLocalDevice {
    let below = Rc::new((volume.clone(), layers, shared.to_vec(), own.cloned(), legs.clone()));
    Rc::new(move || {
        let below = below.clone();
        let open = async move {
            let (volume, layers, shared, own, legs) = &*below;
            let mut device = open_local(volume, legs).await?;
            for layer in layers {
                device = layer.over(volume, device, shared, own.as_ref())?;
            }
            Ok(device)
        };
        Box::pin(open) as Pin<Box<dyn Future<Output = _>>>
    })
}

/// Opens the backing devices of a volume, which may be a leg in a pool.
async fn open_local(volume: &Volume, legs: &LegOpener) -> Result<SharedDevice, OpenError> {
    match volume.backing.leg() {
        Some(leg) => legs.open(volume, leg).await,
        None => open_backing(volume).await,
    }
}

/// Opens a volume's devices, and its remote log. Permanent errors precede transient ones.
async fn open_devices(
    volume: &Volume,
    legs: &LegOpener,
) -> Result<(SharedDevice, Option<SharedDevice>), OpenError> {
    let backing = open_local(volume, legs).await;
    if let Err(error) = &backing
        && !error.may_pass
    {
        return backing.map(|device| (device, None));
    }
    let log = match volume.mirror() {
        Some(mirror) => connect_log(mirror).await.map_err(|error| within(volume, error)),
        None => Ok(None),
    };
    match (backing, log) {
        (Ok(device), Ok(log)) => Ok((device, log)),
        (_, Err(error)) if !error.may_pass => Err(error),
        (Err(error), _) | (_, Err(error)) => Err(error),
    }
}
