//! Legs: volumes of pools that are the devices of mirrored volumes of the configuration.
//!
//! Invariants:
//! - a leg is not served by itself, and no order changes it under its mirror
//!   ([`VolumeState::Leg`]);
//! - a leg that cannot be opened now is a missing device: its mirror waits for it;
//! - a replica on a volume that only its mirror has changed is current
//!   ([`VolumeInfo::stale_leg`]). Any other one is marked as stale before a mirror opens it
//!   ([`mark_stale`]), which makes the mirror resync everything;
//! - a rollback of a leg ends before a mirror opens it;
//! - while hosts use a volume, also under its former name, no mirror opens it;
//! - before its pool is closed, the mirror is stopped and the leg is released, because an open
//!   volume keeps the devices of its pool locked ([`LegUses`]).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Weak};

use flagstone_blockdev::sectors::{SECTOR_BYTES, SectorDevice};
use flagstone_blockdev::{ReopenableDevice, SharedDevice};
use flagstone_config::device_spec::PoolVolumeSpec;
use flagstone_config::{Config, Volume};
use flagstone_mirror::manage::stale::mark_stale;
use flagstone_pool::{LegRollbackEnd, Pool, StaleLeg, VolumeInfo};
use flagstone_stack::OpenError;

use super::key_files::KeyCommand;
use super::retire::DrainingVolumes;
use super::settings::{self, Settings};
use super::volume_state::VolumeState;
use super::{PoolSlot, PoolState, Pools};
use crate::http::Problem;
use crate::volume::{ServedVolume, ServedVolumes};

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

/// Uses of legs by the names of their pools; at most a few for each mirrored volume.
#[derive(Default)]
pub(super) struct PoolUses {
    /// Legs that are being opened.
    opening: BTreeMap<String, Vec<Weak<()>>>,
    opened: BTreeMap<String, Vec<Weak<ReopenableDevice>>>,
    /// Number of times that the legs of a pool were closed since the first one was opened.
    closes: BTreeMap<String, u64>,
}

/// See [`PoolUses`].
pub(super) type LegUses = Rc<RefCell<PoolUses>>;

/// Opens legs. Clones use the same pools.
#[derive(Clone, Default)]
pub(crate) struct LegOpener {
    slots: Slots,
    draining: DrainingVolumes,
    volumes: ServedVolumes,
    uses: LegUses,
    key_command: KeyCommand,
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
        let opened = self.open_leg(&volume.name, leg).await;
        let device = opened.map_err(|problem| error_of(volume, leg, problem))?;
        Ok(match volume.block_size_bytes {
            Some(SECTOR_BYTES) => Arc::new(SectorDevice::new(device)),
            _ => device,
        })
    }

    async fn open_leg(&self, mirrored: &str, leg: &PoolVolumeSpec) -> Result<SharedDevice, String> {
        let PoolVolumeSpec { pool: pool_name, volume } = leg;
        let pool = self.open_pool(pool_name)?;
        let _opening = self.begin(pool_name);
        let Some(info) = pool.volume(volume) else {
            return Err(format!(
                "pool {pool_name} has no such volume yet: run flagstone volume create {volume} \
                 --pool {pool_name} --size SIZE"
            ));
        };
        self.state_of(&info).check_leg(volume)?;
        super::key_files::unlock(&self.key_command, (pool_name, &pool), &info).await?;
        let info = end_rollback(&pool, info, mirrored).await?;
        if let Some(why) = info.stale_leg() {
            take(&pool, &info, why).await?;
        }
        // An order may have closed the pool, or exchanged it or the volume meanwhile. From here on,
        // it finds the leg.
        let pool = self.open_pool(pool_name)?;
        let is_same = |now: &VolumeInfo| now.uuid == info.uuid && now.stale_leg().is_none();
        let Some(now) = pool.volume(volume).filter(is_same) else {
            return Err(format!("volume {volume} of pool {pool_name} was changed meanwhile"));
        };
        self.state_of(&now).check_leg(volume)?;
        let opened = pool.open_volume(volume).map_err(|error| error.to_string())?;
        let device = ReopenableDevice::new(opened);
        let mut uses = self.uses.borrow_mut();
        let of_pool = uses.opened.entry(pool_name.clone()).or_default();
        of_pool.retain(|device| device.strong_count() > 0);
        of_pool.push(Arc::downgrade(&device));
        Ok(device)
    }

    /// State of a volume, apart from its use as a leg. Hosts of a volume that was renamed may still
    /// write to it.
    fn state_of(&self, info: &VolumeInfo) -> VolumeState {
        let is_own = |volume: &Rc<ServedVolume>| {
            volume.pool.as_ref().is_some_and(|place| place.id == info.uuid)
        };
        match self.volumes.borrow().iter().any(is_own) {
            true => VolumeState::Draining,
            false => super::retire::state_of(&self.draining, info),
        }
    }

    /// Records that a leg is being opened, until the result is dropped.
    fn begin(&self, pool: &str) -> Arc<()> {
        let opening = Arc::new(());
        let mut uses = self.uses.borrow_mut();
        let of_pool = uses.opening.entry(pool.to_owned()).or_default();
        of_pool.retain(|opening| opening.strong_count() > 0);
        of_pool.push(Arc::downgrade(&opening));
        uses.closes.entry(pool.to_owned()).or_default();
        opening
    }

    /// True while a leg in the pool is being opened.
    pub(super) fn is_opening(&self, pool: &str) -> bool {
        let uses = self.uses.borrow();
        let of_pool = uses.opening.get(pool);
        of_pool.is_some_and(|all| all.iter().any(|opening| opening.strong_count() > 0))
    }

    /// Closes all open legs in a pool: their calls fail.
    pub(super) fn close(&self, pool: &str) {
        let mut uses = self.uses.borrow_mut();
        for device in uses.opened.remove(pool).into_iter().flatten() {
            if let Some(device) = device.upgrade() {
                device.close();
            }
        }
        if let Some(closes) = uses.closes.get_mut(pool) {
            *closes += 1;
        }
    }

    /// Number of times that the legs of a pool were closed. A leg that was opened before the last
    /// one is closed.
    pub(crate) fn closes(&self, pool: &str) -> u64 {
        self.uses.borrow().closes.get(pool).copied().unwrap_or_default()
    }

    /// Error of a leg that was closed before its mirror began to use it.
    pub(crate) fn closed_error(&self, volume: &Volume, leg: &PoolVolumeSpec) -> OpenError {
        let PoolVolumeSpec { pool, .. } = leg;
        let closed = || format!("pool {pool} was closed meanwhile");
        error_of(volume, leg, self.open_pool(pool).err().unwrap_or_else(closed))
    }

    pub(super) fn open_pool(&self, name: &str) -> Result<Pool, String> {
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

fn error_of(volume: &Volume, leg: &PoolVolumeSpec, problem: String) -> OpenError {
    OpenError { device: format!("volume `{}`: {leg}", volume.name), problem, may_pass: true }
}

/// Ends a rollback that a stop of the server has interrupted. Returns the leg as it is then.
async fn end_rollback(pool: &Pool, info: VolumeInfo, mirrored: &str) -> Result<VolumeInfo, String> {
    // A leg that lacks changes gets everything from its peer instead.
    if info.incomplete || info.leg_rollback().is_none() {
        return Ok(info);
    }
    let VolumeInfo { name, uuid, .. } = &info;
    let ended = pool.finish_leg_rollback(*uuid).await;
    match ended.map_err(|error| format!("its rollback has not ended: {error}"))? {
        None => {}
        Some(LegRollbackEnd::RolledBack) => tracing::warn!(
            "the rollback of leg {name} has ended after an interruption, and the mirror is paused: \
             flagstone mirror continue {mirrored} copies the content to the peers"
        ),
        Some(LegRollbackEnd::Canceled(error)) => tracing::error!(
            "leg {name} was not rolled back ({error}), and the mirror is paused: run flagstone \
             mirror continue {mirrored}, or repeat the rollback"
        ),
        Some(LegRollbackEnd::Released) => {
            tracing::error!("leg {name} lost the mirror's own part in an interrupted rollback");
        }
    }
    let now = pool.volume(name).filter(|now| now.uuid == *uuid);
    now.ok_or_else(|| format!("volume {name} was changed meanwhile"))
}

/// Takes a volume as a leg, or takes it again. A crash in between repeats it.
async fn take(pool: &Pool, info: &VolumeInfo, why: StaleLeg) -> Result<(), String> {
    let name = &info.name;
    let device = pool.open_incomplete(name).map_err(|error| error.to_string())?;
    if mark_stale(&(device as SharedDevice)).await.map_err(|error| error.to_string())? {
        tracing::warn!("leg {name}: {why}: its replica takes everything from its peer");
    }
    // Last, because the volume counts as current from here on.
    pool.take_leg(info).await.map_err(|error| error.to_string())
}

/// A leg has the layers and the access of its mirrored volume.
///
/// # Errors
/// 422 for settings that it cannot have.
pub(super) fn check_settings(name: &str, mirrored: &str, given: &Settings) -> Result<(), Problem> {
    settings::check_pool_keys(given)?;
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
        LegOpener {
            slots: self.slots.clone(),
            draining: self.draining.clone(),
            volumes: self.volumes.clone(),
            uses: self.leg_uses.clone(),
            key_command: self.key_command.clone(),
        }
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
