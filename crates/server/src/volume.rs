//! Volumes of the server: the configured ones, then volumes made at run time.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use flagstone_blockdev::SharedDevice;
use flagstone_blockdev::stats::Counters;
use flagstone_config::names::Uuid;
use flagstone_config::{Config, Subsystem, Volume};
use flagstone_limit::Limiter;
use flagstone_pool::PoolId;

use crate::pools::Settings;
use crate::serve::Server;
use crate::stack::CountedLayer;
use crate::subsystems::namespace_of;

/// All volumes of a server.
pub(crate) type ServedVolumes = Rc<RefCell<Vec<Rc<ServedVolume>>>>;

/// A volume. A change of its settings replaces it by a copy.
#[derive(Clone)]
pub(crate) struct ServedVolume {
    /// Index into [`Config::volumes`]; numbers of volumes made at run time are above, and unique.
    pub(crate) number: usize,
    pub(crate) config: Volume,
    pub(crate) subsystem: Subsystem,
    /// Namespace ID in the subsystem.
    pub(crate) nsid: u32,
    pub(crate) uuid: Uuid,
    /// Empty while the volume is pending.
    pub(crate) device: OnceCell<SharedDevice>,
    pub(crate) counters: Arc<Counters>,
    /// Its layers except the mirror; empty while the volume is pending.
    pub(crate) layers: OnceCell<Vec<CountedLayer>>,
    /// Its own limit.
    pub(crate) limiter: Option<Arc<Limiter>>,
    /// Where it was made at run time.
    pub(crate) pool: Option<PoolPlace>,
}

/// The pool of a volume, and the settings that it keeps for it.
#[derive(Clone)]
pub(crate) struct PoolPlace {
    pub(crate) pool: String,
    /// Its identifier in the pool, which a rename keeps.
    pub(crate) id: PoolId,
    pub(crate) settings: Settings,
}

impl ServedVolume {
    /// The volumes of a configuration, not open yet.
    pub(crate) fn configured(
        config: &Config,
        limiters: &[Option<Arc<Limiter>>],
        machine: &[u8],
    ) -> Vec<Rc<ServedVolume>> {
        let volumes = config.volumes.iter().zip(limiters).enumerate();
        let served = volumes.map(|(number, (volume, limiter))| {
            let (subsystem, nsid) =
                namespace_of(config, number).expect("every volume is in a subsystem");
            Rc::new(ServedVolume {
                number,
                config: volume.clone(),
                subsystem: subsystem.clone(),
                nsid,
                uuid: config.volume_uuid(number, machine),
                device: OnceCell::new(),
                counters: Arc::default(),
                layers: OnceCell::new(),
                limiter: limiter.clone(),
                pool: None,
            })
        });
        served.collect()
    }

    pub(crate) fn name(&self) -> &str {
        &self.config.name
    }
}

impl Server {
    /// All volumes at this moment.
    pub(crate) fn volumes(&self) -> Vec<Rc<ServedVolume>> {
        self.volumes.borrow().clone()
    }

    /// The volume at an index of the configuration.
    pub(crate) fn configured(&self, index: usize) -> Rc<ServedVolume> {
        self.volumes.borrow()[index].clone()
    }
}
