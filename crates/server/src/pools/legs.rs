//! Legs: volumes of pools that are the devices of mirrored volumes of the configuration.
//!
//! Invariants:
//! - a leg is not served by itself, and no order changes it under its mirror
//!   ([`VolumeState::Leg`]);
//! - a leg that cannot be opened now is a missing device: its mirror waits for it;
//! - a leg has the property `leg` while only its mirror changes its content. A replica on any other
//!   volume is a copy, such as a clone, or was written behind its mirror's back. A replica on a
//!   volume that lost changes with the log device is of an earlier time. Both are marked as stale
//!   before a mirror opens them ([`mark_stale`]), which makes the mirror resync everything;
//! - before its pool is closed, the mirror is stopped and the leg is released, because an open
//!   volume keeps the devices of its pool locked.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Weak};

use flagstone_blockdev::sectors::{SECTOR_BYTES, SectorDevice};
use flagstone_blockdev::{ReopenableDevice, SharedDevice};
use flagstone_config::device_spec::PoolVolumeSpec;
use flagstone_config::{Config, Volume};
use flagstone_mirror::manage::stale::mark_stale;
use flagstone_pool::{Pool, VolumeError, VolumeInfo};
use flagstone_runtime::{spawn, time};
use flagstone_stack::OpenError;

use super::retire::DrainingVolumes;
use super::settings::{self, Settings};
use super::volume_state::VolumeState;
use super::{OpenPoolError, PoolSlot, PoolState, Pools};
use crate::http::Problem;
use crate::limits::RETIRE_TIMEOUT;
use crate::mirrors::MirroredVolume;
use crate::serve::Server;

/// Property of a volume whose content only a mirror changes: the identifier of the volume, which
/// its copies do not have.
const LEG_KEY: &str = "leg";

/// Pools by name.
pub(super) type Slots = Rc<RefCell<BTreeMap<String, PoolSlot>>>;

/// Legs of the configuration, with the names of their mirrored volumes.
#[derive(Clone, Default)]
pub(crate) struct Legs(Rc<BTreeMap<PoolVolumeSpec, String>>);

impl Legs {
    pub(crate) fn of(config: &Config) -> Legs {
        let legs = config.volumes.iter().filter_map(|volume| {
            let leg = volume.backing.leg()?;
            Some((leg.clone(), volume.name.clone()))
        });
        Legs(Rc::new(legs.collect()))
    }

    /// The mirrored volume of which a volume of a pool is the leg.
    pub(super) fn mirrored(&self, pool: &str, volume: &str) -> Option<&str> {
        let spec = PoolVolumeSpec { pool: pool.to_owned(), volume: volume.to_owned() };
        self.0.get(&spec).map(String::as_str)
    }
}

/// Open legs, with the names of their pools; at most a few for each mirrored volume.
pub(super) type OpenedLegs = Rc<RefCell<Vec<(String, Weak<ReopenableDevice>)>>>;

/// Opens legs. Clones use the same pools.
#[derive(Clone, Default)]
pub(crate) struct LegOpener {
    slots: Slots,
    draining: DrainingVolumes,
    opened: OpenedLegs,
}

impl LegOpener {
    /// Opens the leg of a mirrored volume, with the block size of that volume.
    ///
    /// # Errors
    /// The reason, and the next step. All may pass.
    pub(crate) async fn open(
        &self,
        volume: &Volume,
        leg: &PoolVolumeSpec,
    ) -> Result<SharedDevice, OpenError> {
        let opened = self.open_leg(leg).await;
        let device = opened.map_err(|problem| OpenError {
            device: format!("volume `{}`: {leg}", volume.name),
            problem,
            may_pass: true,
        })?;
        Ok(match volume.block_size_bytes {
            Some(SECTOR_BYTES) => Arc::new(SectorDevice::new(device)),
            _ => device,
        })
    }

    async fn open_leg(&self, leg: &PoolVolumeSpec) -> Result<SharedDevice, String> {
        let PoolVolumeSpec { pool: pool_name, volume } = leg;
        let pool = self.open_pool(pool_name)?;
        let Some(info) = pool.volume(volume) else {
            return Err(format!(
                "pool {pool_name} has no such volume yet: run flagstone volume create {volume} \
                 --pool {pool_name} --size SIZE"
            ));
        };
        super::retire::state_of(&self.draining, &info).check_leg(volume)?;
        super::key_files::unlock(pool_name, &pool, &info).await?;
        if info.incomplete || !is_kept(&info) {
            take(&pool, &info).await?;
        }
        // An order may have closed the pool meanwhile. From here on, it finds the leg.
        let pool = self.open_pool(pool_name)?;
        let opened = pool.open_volume(volume).map_err(|error| error.to_string())?;
        let device = ReopenableDevice::new(opened);
        let mut all = self.opened.borrow_mut();
        all.retain(|(_, device)| device.strong_count() > 0);
        all.push((pool_name.clone(), Arc::downgrade(&device)));
        Ok(device)
    }

    /// Closes all open legs in a pool: their calls fail.
    fn close(&self, pool: &str) {
        let of_pool = |(name, _): &&(String, Weak<ReopenableDevice>)| name == pool;
        for (_, device) in self.opened.borrow().iter().filter(of_pool) {
            if let Some(device) = device.upgrade() {
                device.close();
            }
        }
    }

    fn open_pool(&self, name: &str) -> Result<Pool, String> {
        match self.slots.borrow().get(name).map(|slot| &slot.state) {
            None => Err(format!(
                "there is no pool {name}: run flagstone pool create {name} DEVICE…, or correct the \
                 name in the configuration"
            )),
            Some(PoolState::Changing { what }) => Err(format!("pool {name} is not open: {what}")),
            Some(PoolState::Closed { reason, .. }) => {
                Err(format!("pool {name} is not open: {reason}"))
            }
            Some(PoolState::Open(pool)) => match pool.status().failed {
                None => Ok(pool.clone()),
                Some(error) => Err(format!(
                    "pool {name} has failed ({error}): check its devices, then run flagstone pool \
                     reopen {name}"
                )),
            },
        }
    }
}

/// True if only a mirror has changed the content of the volume since its first opening as a leg.
fn is_kept(info: &VolumeInfo) -> bool {
    info.properties.get(LEG_KEY).is_some_and(|id| *id == info.uuid.to_string())
}

/// Takes a volume as a leg, or takes it again after it lost changes. A crash in between repeats it.
async fn take(pool: &Pool, info: &VolumeInfo) -> Result<(), String> {
    let name = &info.name;
    let device = pool.open_incomplete(name).map_err(|error| error.to_string())?;
    if mark_stale(&(device as SharedDevice)).await.map_err(|error| error.to_string())? {
        let why = match info.incomplete {
            true => "it lost changes with the log device of its pool",
            false => "it is a copy, or was changed without its mirror",
        };
        tracing::warn!("leg {name}: {why}: its replica takes everything from its peer");
    }
    let mut properties = match info.properties.is_empty() {
        true => settings::to_properties(&Settings::new()),
        false => info.properties.clone(),
    };
    properties.insert(LEG_KEY.to_owned(), info.uuid.to_string());
    let set = pool.set_volume(name, info.thick, properties).await;
    set.map_err(|error| error.to_string())?;
    // Last, because the volume can be opened from here on.
    pool.accept_incomplete(name).await.map_err(|error| error.to_string())
}

/// Ends the use of a volume as a leg, before something else changes its content.
///
/// # Errors
/// Errors of the pool.
pub(super) async fn release(pool: &Pool, info: &VolumeInfo) -> Result<(), VolumeError> {
    let mut properties = info.properties.clone();
    match properties.remove(LEG_KEY) {
        Some(_) => pool.set_volume(&info.name, info.thick, properties).await,
        None => Ok(()),
    }
}

/// The same for all volumes of a pool that is an older copy.
///
/// # Errors
/// The reason why the pool cannot be used.
pub(super) async fn release_all(pool: &Pool) -> Result<(), OpenPoolError> {
    for info in pool.volumes() {
        release(pool, &info).await.map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// True if the volume still counts as the content of a mirror.
pub(super) fn was_leg(info: &VolumeInfo) -> bool {
    info.properties.contains_key(LEG_KEY)
}

/// The layers and the access of a leg are those of its mirrored volume.
///
/// # Errors
/// 422 for settings that it cannot have.
pub(super) fn check_settings(name: &str, mirrored: &str, given: &Settings) -> Result<(), Problem> {
    settings::check_compression(given)?;
    settings::key_file(given).map_err(Problem::invalid)?;
    let own = given.keys().find(|key| !settings::OWN_KEYS.contains(&key.as_str()));
    match own {
        None => Ok(()),
        Some(key) => Err(Problem::invalid(format!(
            "volume {name} is the leg of mirrored volume {mirrored}, and has no `{key}`: write it in \
             [volume.{mirrored}] of the configuration"
        ))),
    }
}

impl Pools {
    /// Opens legs in these pools, also later.
    pub(crate) fn leg_opener(&self) -> LegOpener {
        let (slots, draining) = (self.slots.clone(), self.draining.clone());
        LegOpener { slots, draining, opened: self.opened_legs.clone() }
    }

    /// The mirrored volume of which a volume of a pool is the leg.
    pub(crate) fn mirrored(&self, pool: &str, volume: &str) -> Option<&str> {
        self.legs.mirrored(pool, volume)
    }

    /// Names of the legs in a pool, whether they exist or not.
    pub(super) fn leg_names(&self, pool: &str) -> Vec<String> {
        let of_pool = self.legs.0.keys().filter(|leg| leg.pool == pool);
        of_pool.map(|leg| leg.volume.clone()).collect()
    }

    /// Legs that the pool has, by name.
    pub(crate) fn legs_in(&self, name: &str, pool: &Pool) -> Vec<(VolumeInfo, String)> {
        let legs = pool.volumes().into_iter().filter_map(|info| {
            let mirrored = self.mirrored(name, &info.name)?.to_owned();
            Some((info, mirrored))
        });
        let mut legs: Vec<_> = legs.collect();
        legs.sort_by(|(one, _), (other, _)| one.name.cmp(&other.name));
        legs
    }
}

impl Server {
    /// Lets volumes that are no legs any more be served. Their replicas are stale from then on.
    pub(super) async fn release_former_legs(&self, name: &str, pool: &Pool) {
        for info in pool.volumes() {
            if was_leg(&info)
                && self.pools.mirrored(name, &info.name).is_none()
                && let Err(error) = release(pool, &info).await
            {
                tracing::error!("volume {} stays the leg of a mirror: {error}", info.name);
            }
        }
    }

    /// Opens the legs of pools that are open, at the start. The others follow later.
    pub(crate) async fn open_legs(&self) {
        for volume in self.pending.volumes() {
            if self.config.volumes[volume].backing.leg().is_none() {
                continue;
            }
            match self.open_now(volume).await {
                Ok(()) => drop(self.pending.ended(volume)),
                Err(error) => self.pending.failed(volume, &error),
            }
        }
    }

    /// Lets mirrors try again to open their devices: a leg may have appeared.
    pub(super) fn wake_legs(&self) {
        self.pending.wake();
        for mirrored in self.mirrors.borrow().iter() {
            mirrored.retry_now();
        }
    }

    /// Open mirrored volumes whose legs are in a pool.
    fn mirrors_on(&self, pool: &str) -> Vec<Rc<MirroredVolume>> {
        let is_on = |mirrored: &&Rc<MirroredVolume>| {
            let leg = self.config.volumes[mirrored.volume].backing.leg();
            leg.is_some_and(|leg| leg.pool == pool)
        };
        self.mirrors.borrow().iter().filter(is_on).cloned().collect()
    }

    /// Warning about a snapshot of a leg to which the mirror is copying.
    pub(super) fn resync_caveat(&self, pool: &str, volume: &str) -> Option<String> {
        self.pools.mirrored(pool, volume)?;
        let is_partial = |mirrored: &Rc<MirroredVolume>| {
            let leg = self.config.volumes[mirrored.volume].backing.leg();
            let mirror = mirrored.mirror().filter(|_| leg.is_some_and(|leg| leg.volume == volume));
            mirror.is_some_and(|mirror| mirror.status().inconsistent || mirror.is_unverified())
        };
        self.mirrors_on(pool).iter().any(is_partial).then(|| {
            format!("; a resync to {volume} has not ended, so its content is of no point in time")
        })
    }

    /// Checks that no leg of a pool is served, before the pool is closed.
    ///
    /// # Errors
    /// 409 with the next step, unless `force`.
    pub(super) fn check_legs_idle(&self, pool: &str, force: bool) -> Result<(), Problem> {
        let serves = |mirrored: &&Rc<MirroredVolume>| {
            mirrored.mirror().is_some_and(|mirror| mirror.is_serving())
        };
        match self.mirrors_on(pool).iter().find(serves) {
            Some(mirrored) if !force => {
                let name = &mirrored.name;
                Err(Problem::conflict(format!(
                    "this node serves mirrored volume {name}, whose leg is in pool {pool}: run \
                     flagstone mirror switchover {name} on its peer first, or use --force"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Checks that a pool has no leg, before it is destroyed.
    ///
    /// # Errors
    /// 409 with the name of the mirrored volume.
    pub(super) fn check_no_legs(&self, name: &str, pool: &Pool) -> Result<(), Problem> {
        match self.pools.legs_in(name, pool).first() {
            Some((info, mirrored)) => {
                let state = VolumeState::Leg { mirrored: mirrored.clone() };
                let refused = state.check(&info.name, super::VolumeOrder::Delete);
                refused.map_err(Problem::conflict)
            }
            None => Ok(()),
        }
    }

    /// Stops the mirrors on a pool that is about to be closed, and releases their legs. They are
    /// opened again with the pool.
    pub(super) async fn release_legs(&self, pool: &str) {
        let released: Vec<_> = self
            .mirrors_on(pool)
            .into_iter()
            .map(|mirrored| {
                let reason = format!("pool {pool} is being opened again");
                spawn(async move { mirrored.release_device(&reason).await })
            })
            .collect();
        for released in released {
            // A call to a hung device keeps the devices locked, and the pool is retried.
            if time::timeout(RETIRE_TIMEOUT, released).await.is_err() {
                tracing::error!("a leg in pool {pool} was not released in time");
            }
        }
        // Also legs that a mirror was about to open.
        self.pools.leg_opener().close(pool);
    }
}
