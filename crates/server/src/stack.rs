//! Device stack of a volume, including its mirror.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use flagstone_blockdev::SharedDevice;
use flagstone_config::device_spec::DeviceSpec;
use flagstone_config::{Config, Layer, Volume};
use flagstone_limit::Limiter;
use flagstone_stack::{OpenError, check_block_size, open_backing, over, within};

use crate::mirrors::{MirroredVolume, OpenLocalDevice, connect_log};

pub(crate) struct Stack {
    pub(crate) device: SharedDevice,
    /// Its mirror, if any. It does not serve until started.
    pub(crate) mirrored: Option<Rc<MirroredVolume>>,
}

/// Opens the stack of a volume with existing limiters: `shared` for all volumes, `own` for this one.
/// Cancel-safe, and may be repeated.
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
                let mirror =
                    Rc::new(MirroredVolume::over(config, index, device, log.take()).await?);
                if !volume.backing.devices().iter().any(DeviceSpec::is_in_memory) {
                    mirror.set_reopen(local_device_opener(volume, shared, own));
                }
                let device = mirror.device();
                mirrored = Some(mirror);
                device
            }
            other => over(volume, device, other, shared, own)?,
        };
    }
    check_block_size(volume, &device)?;
    Ok(Stack { device, mirrored })
}

/// Opener of the local device of a mirrored volume: its devices, and the layers below the mirror.
fn local_device_opener(
    volume: &Volume,
    shared: &[Arc<Limiter>],
    own: Option<&Arc<Limiter>>,
) -> OpenLocalDevice {
    let below = Rc::new((volume.clone(), shared.to_vec(), own.cloned()));
    Rc::new(move || {
        let below = below.clone();
        let open = async move {
            let (volume, shared, own) = &*below;
            let mut device = open_backing(volume).await?;
            let layers = volume.layers.iter().rev();
            for layer in layers.take_while(|layer| !matches!(layer, Layer::Mirror(_))) {
                device = over(volume, device, layer, shared, own.as_ref())?;
            }
            Ok(device)
        };
        Box::pin(open) as Pin<Box<dyn Future<Output = _>>>
    })
}

/// Opens a volume's devices, and its remote log. Permanent errors precede transient ones.
async fn open_devices(volume: &Volume) -> Result<(SharedDevice, Option<SharedDevice>), OpenError> {
    let backing = open_backing(volume).await;
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
