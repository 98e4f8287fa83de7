//! Retirement of a volume: it is taken out of service, and its commands have ended.
//!
//! Commands may take long, behind a rate limit or a slow device. Until they have ended, the volume
//! has the state [`VolumeState::Draining`]: it is not served again, and no order gives it other
//! content, because the commands could change it afterwards. Then it is served as the pool has it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use flagstone_pool::{PoolId, VolumeInfo};
use flagstone_runtime::{spawn, time};

use super::Pools;
use super::volume_state::VolumeState;
use crate::connections::DRAIN_PERIOD;
use crate::limits::RETIRE_TIMEOUT;
use crate::serve::Server;
use crate::subsystems::nqn;
use crate::volume::ServedVolume;

/// Retirements that did not end in time, or have not yet, by the number of the volume.
pub(super) type DrainingVolumes = Rc<RefCell<BTreeMap<usize, Draining>>>;

/// A volume out of service.
pub(super) struct Draining {
    pool: String,
    volume: PoolId,
    /// Whether commands are in progress.
    is_busy: bool,
}

impl Pools {
    /// State of a volume of an open pool.
    pub(super) fn state_of(&self, info: &VolumeInfo) -> VolumeState {
        let is_own = |ending: &Draining| ending.volume == info.uuid && ending.is_busy;
        match self.draining.borrow().values().any(is_own) {
            true => VolumeState::Draining,
            false => VolumeState::of(info),
        }
    }

    fn set_unserved(&self, pool: &str, name: &str, why: String) {
        if let Some(slot) = self.slots.borrow_mut().get_mut(pool) {
            slot.unserved.insert(name.to_owned(), why);
        }
    }
}

impl Server {
    /// Takes a volume out of service: its hosts are disconnected, and their commands have ended.
    ///
    /// # Errors
    /// Commands did not end in time; hosts are disconnected. The volume is served again when they
    /// have ended.
    pub(super) async fn retire(&self, volume: &ServedVolume) -> Result<(), String> {
        self.volumes.borrow_mut().retain(|other| other.number != volume.number);
        let export = self.exports.remove(&volume.config.nbd_export);
        let export = export.map(|export| Arc::downgrade(&export));
        self.nbd.disconnect(&volume.config.nbd_export);
        let nqn = nqn(&volume.subsystem.nqn).map_err(|error| error.to_string())?;
        let _ = self.target.suspend_connects(&nqn);
        let _ = self.target.remove_namespace(&nqn, volume.nsid);
        let (number, draining) = (volume.number, self.pools.draining.clone());
        if let Some(place) = &volume.pool {
            let ending = Draining { pool: place.pool.clone(), volume: place.id, is_busy: true };
            draining.borrow_mut().insert(number, ending);
        }
        let (target, subsystem) = (self.target.clone(), nqn);
        // A task of its own, which outlives the order.
        let ended = spawn(async move {
            let _ = target.drained(&subsystem).await;
            while export.as_ref().is_some_and(|export| export.strong_count() > 0) {
                time::sleep(DRAIN_PERIOD).await;
            }
            if let Some(ending) = draining.borrow_mut().get_mut(&number) {
                ending.is_busy = false;
            }
        });
        let ended = time::timeout(RETIRE_TIMEOUT, ended).await;
        let _ = self.target.remove_subsystem(&nqn);
        if let Ok(Ok(())) = ended {
            self.pools.draining.borrow_mut().remove(&number);
            return Ok(());
        }
        let why = format!(
            "commands of volume {} have not ended: it is served again when they have",
            volume.name()
        );
        self.note_ending(number, &why);
        Err(why)
    }

    /// The pool and the volume of a retirement, unless the volume was deleted.
    fn ending_volume(&self, number: usize) -> Option<(String, flagstone_pool::Pool, VolumeInfo)> {
        let (pool_name, id) = {
            let draining = self.pools.draining.borrow();
            let ending = draining.get(&number)?;
            (ending.pool.clone(), ending.volume)
        };
        let pool = self.pools.open_pool(&pool_name).ok()?;
        let info = pool.volumes().into_iter().find(|info| info.uuid == id)?;
        Some((pool_name, pool, info))
    }

    fn note_ending(&self, number: usize, why: &str) {
        if let Some((pool_name, _, info)) = self.ending_volume(number) {
            tracing::warn!("{why}");
            self.pools.set_unserved(&pool_name, &info.name, why.to_owned());
        }
    }

    /// Before an order that changes a volume: waits for the commands of its last stack, and serves
    /// it again. If they do not end in time, the state of the volume refuses the order.
    pub(super) async fn settle(&self, name: &str) {
        let numbers: Vec<usize> = self.pools.draining.borrow().keys().copied().collect();
        let is_own = |number: &usize| {
            self.ending_volume(*number).is_some_and(|(_, _, info)| info.name == name)
        };
        let own: Vec<usize> = numbers.into_iter().filter(is_own).collect();
        if own.is_empty() {
            return;
        }
        let is_busy = |number: &usize| {
            self.pools.draining.borrow().get(number).is_some_and(|ending| ending.is_busy)
        };
        let ended = async {
            while own.iter().any(is_busy) {
                time::sleep(DRAIN_PERIOD).await;
            }
        };
        let _ = time::timeout(RETIRE_TIMEOUT, ended).await;
        self.serve_again_after_end(|number, _| own.contains(&number));
    }

    /// Serves volumes whose commands have ended.
    pub(super) fn serve_ended(&self) {
        let pools: BTreeSet<String> = {
            let draining = self.pools.draining.borrow();
            let ended = draining.values().filter(|ending| !ending.is_busy);
            ended.map(|ending| ending.pool.clone()).collect()
        };
        for pool in pools {
            // If an order has the pool, the next look serves them.
            if let Some(_order) = self.pools.try_lock(&pool) {
                self.serve_again_after_end(|_, ending| ending.pool == pool);
            }
        }
    }

    /// The caller has the lock of their pools.
    fn serve_again_after_end(&self, is_meant: impl Fn(usize, &Draining) -> bool) {
        let ended: Vec<usize> = {
            let draining = self.pools.draining.borrow();
            draining
                .iter()
                .filter(|(number, ending)| !ending.is_busy && is_meant(**number, ending))
                .map(|(&number, _)| number)
                .collect()
        };
        for number in ended {
            let found = self.ending_volume(number);
            self.pools.draining.borrow_mut().remove(&number);
            let Some((pool_name, pool, info)) = found else { continue };
            let is_served = self
                .volumes()
                .iter()
                .any(|volume| volume.pool.as_ref().is_some_and(|place| place.id == info.uuid));
            if is_served {
                continue;
            }
            match self.serve_pool_volume(&pool_name, &pool, &info) {
                Ok(()) => tracing::info!("volume {} is served again", info.name),
                Err(why) => {
                    tracing::error!("volume {} is not served: {why}", info.name);
                    self.pools.set_unserved(&pool_name, &info.name, why);
                }
            }
        }
    }
}
