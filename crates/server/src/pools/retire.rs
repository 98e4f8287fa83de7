//! Retirement of a volume: takes it out of service, and waits until its commands have ended.
//!
//! Commands may take long, behind a rate limit or a slow device. Until they have ended, the volume
//! has the state [`VolumeState::Draining`]: it is not served again, and no order gives it other
//! content, because the commands could change it afterwards. Then it is served as the pool has it.
//!
//! A retired volume is mostly served again, soon or after a repair. No host may learn otherwise
//! meanwhile, because Linux removes the disk of a namespace or subsystem that is gone:
//! - NVMe hosts are disconnected before anything else happens, and get no answer to the commands
//!   that they repeat on their next connection;
//! - the subsystem stays, without namespaces, and refuses Connect with a status that hosts retry.
//!   It ends when the volume is served by another NQN, or is deleted ([`RetiredSubsystems`]);
//! - from the last question whether hosts are attached until the retirement, no host can connect
//!   ([`DetachedVolumes`]).

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use flagstone_nbd::Exports;
use flagstone_nvme::Nqn;
use flagstone_nvmf_target::Target;
use flagstone_pool::{Pool, PoolId, VolumeInfo};
use flagstone_runtime::{spawn, spawn_detached, time};

use super::volume_state::VolumeState;
use super::{Pools, failed};
use crate::api::connections;
use crate::connections::DRAIN_PERIOD;
use crate::http::Problem;
use crate::limits::RETIRE_TIMEOUT;
use crate::reservations::remove_records;
use crate::serve::Server;
use crate::subsystems::nqn;
use crate::volume::{PoolPlace, ServedVolume};

/// Retirements whose commands have not ended, by number of the volume.
pub(super) type DrainingVolumes = Rc<RefCell<BTreeMap<usize, Draining>>>;

/// Subsystems of volumes that are not served, by identifier of the volume.
pub(super) type RetiredSubsystems = RefCell<BTreeMap<PoolId, RetiredVolume>>;

/// A subsystem that makes its hosts wait.
pub(super) struct RetiredVolume {
    pool: String,
    nqn: Nqn,
}

/// Volumes that admit no further hosts, until it is dropped. Volumes that were retired meanwhile
/// are unaffected by that.
#[must_use]
pub(super) struct DetachedVolumes {
    target: Arc<Target>,
    subsystems: Vec<Nqn>,
    exports: Arc<Exports>,
    export_names: Vec<String>,
}

impl Drop for DetachedVolumes {
    fn drop(&mut self) {
        for nqn in &self.subsystems {
            let _ = self.target.resume_connects(nqn);
        }
        for name in &self.export_names {
            self.exports.resume(name);
        }
    }
}

/// A volume out of service.
pub(super) struct Draining {
    pool: String,
    volume: PoolId,
    /// True while commands are in progress.
    is_busy: bool,
}

/// State of a volume, apart from its use as a leg.
pub(super) fn state_of(draining: &DrainingVolumes, info: &VolumeInfo) -> VolumeState {
    let is_own = |ending: &Draining| ending.volume == info.uuid && ending.is_busy;
    match draining.borrow().values().any(is_own) {
        true => VolumeState::Draining,
        false => VolumeState::of(info),
    }
}

impl Pools {
    /// State of a volume of the open pool `pool`.
    pub(super) fn state_of(&self, pool: &str, info: &VolumeInfo) -> VolumeState {
        let state = state_of(&self.draining, info);
        match (state, self.mirrored(pool, &info.name)) {
            (VolumeState::Complete, Some(mirrored)) => {
                let mirrored = mirrored.to_owned();
                match info.leg_rollback() {
                    Some(_) => VolumeState::RollingBack { mirrored },
                    None => VolumeState::Leg { mirrored },
                }
            }
            (state, _) => state,
        }
    }

    pub(super) fn set_unserved(&self, pool: &str, name: &str, why: String) {
        if let Some(slot) = self.slots.borrow_mut().get_mut(pool) {
            slot.unserved.insert(name.to_owned(), why);
        }
    }
}

/// Problem of an order that ends before it changed anything, because of [`Server::retire`].
pub(super) fn not_retired(why: &str) -> Problem {
    failed(format!("{why}: it is served again when they have; repeat the order then"))
}

impl Server {
    /// Checks that no host is attached to the volumes. `force` accepts attached hosts, which are
    /// disconnected when a volume is retired.
    ///
    /// # Errors
    /// 409 with the hosts that are attached.
    pub(super) fn check_detached(
        &self,
        volumes: &[Rc<ServedVolume>],
        force: bool,
    ) -> Result<(), Problem> {
        for volume in volumes.iter().filter(|_| !force) {
            let hosts = connections(self, volume);
            if let Some(host) = hosts.first() {
                let name = volume.name();
                return Err(Problem::conflict(format!(
                    "{} hosts are attached to volume {name}, {} first: detach them, or use --force",
                    hosts.len(),
                    host.host()
                )));
            }
        }
        Ok(())
    }

    /// Lets no host attach to the volumes until the result is dropped, and then checks again. An
    /// order that is refused or only previewed ends before: hosts notice a suspension.
    ///
    /// # Errors
    /// As [`Server::check_detached`].
    pub(super) fn keep_detached(
        &self,
        volumes: &[Rc<ServedVolume>],
        force: bool,
    ) -> Result<DetachedVolumes, Problem> {
        self.check_detached(volumes, force)?;
        let subsystems = volumes.iter().filter_map(|volume| nqn(&volume.subsystem.nqn).ok());
        let detached = DetachedVolumes {
            target: self.target.clone(),
            subsystems: subsystems.collect(),
            exports: self.exports.clone(),
            export_names: volumes.iter().map(|volume| volume.config.nbd_export.clone()).collect(),
        };
        for nqn in &detached.subsystems {
            let _ = self.target.suspend_connects(nqn);
        }
        for name in &detached.export_names {
            self.exports.suspend(name);
        }
        self.check_detached(volumes, force)?;
        Ok(detached)
    }

    /// Retires all volumes of a pool that is going to be opened again, and drops their devices.
    ///
    /// # Errors
    /// As [`Server::retire`]. The other volumes are served.
    pub(super) async fn retire_all(&self, volumes: Vec<Rc<ServedVolume>>) -> Result<(), String> {
        let mut retired = Vec::new();
        for volume in volumes {
            if let Err(why) = self.retire(&volume).await {
                self.serve_retired(&retired);
                return Err(why);
            }
            retired.extend(volume.pool.clone());
        }
        Ok(())
    }

    fn serve_retired(&self, retired: &[PoolPlace]) {
        for place in retired {
            let Ok(pool) = self.pools.open_pool(&place.pool) else { continue };
            let found = pool.volumes().into_iter().find(|info| info.uuid == place.id);
            if let Some(info) = found {
                self.serve_or_note(&place.pool, &pool, &info);
            }
        }
    }

    /// Removes the subsystem that made the hosts of a volume wait, unless `served` is its name. A
    /// name that another volume was served by before belongs to this volume now.
    pub(super) fn end_retirement(&self, volume: PoolId, served: Option<&Nqn>) {
        let mut all = self.pools.retired.borrow_mut();
        let retired = all.remove(&volume);
        all.retain(|_, other| Some(&other.nqn) != served);
        drop(all);
        if let Some(retired) = retired.filter(|retired| Some(&retired.nqn) != served) {
            self.target.remove_retired_subsystem(&retired.nqn);
        }
    }

    /// Removes the subsystem of a volume that cannot be served. Hosts of a volume that was served
    /// by this name wait again.
    pub(super) fn end_failed_serving(&self, volume: PoolId, nqn: &Nqn, nsid: u32) {
        let retired = self.pools.retired.borrow();
        if retired.get(&volume).is_some_and(|retired| retired.nqn == *nqn) {
            let _ = self.target.retire_subsystem(nqn);
            let _ = self.target.remove_namespace(nqn, nsid);
        } else {
            let _ = self.target.remove_subsystem(nqn);
        }
    }

    /// Removes the subsystems that make hosts of the pool's former volumes wait. `pool` has the
    /// present ones; none if the pool is gone.
    pub(super) fn end_retirements(&self, name: &str, pool: Option<&Pool>) {
        let present: BTreeSet<PoolId> =
            pool.into_iter().flat_map(Pool::volumes).map(|info| info.uuid).collect();
        let gone: Vec<PoolId> = {
            let retired = self.pools.retired.borrow();
            let gone = retired.iter().filter(|(id, one)| one.pool == name && !present.contains(id));
            gone.map(|(id, _)| *id).collect()
        };
        for id in gone {
            // The volumes of a forgotten pool are on its disks, and may be imported.
            if pool.is_some() {
                spawn_detached(remove_records(self.forget_reservations(id, None)));
            }
            self.end_retirement(id, None);
        }
    }

    /// Takes a volume out of service: disconnects its hosts, and waits until their commands have
    /// ended.
    ///
    /// # Errors
    /// Commands did not end in time. Hosts are disconnected, and the volume is served again when
    /// the commands have ended, unless it is deleted.
    pub(super) async fn retire(&self, volume: &ServedVolume) -> Result<(), String> {
        let nqn = nqn(&volume.subsystem.nqn).map_err(|error| error.to_string())?;
        // First, before its hosts could find out what follows.
        let retired = self.target.retire_subsystem(&nqn).ok();
        self.volumes.borrow_mut().retain(|other| other.number != volume.number);
        let export = self.exports.remove(&volume.config.nbd_export);
        let export = export.map(|export| Arc::downgrade(&export));
        self.nbd.disconnect(&volume.config.nbd_export);
        let (number, draining) = (volume.number, self.pools.draining.clone());
        if let Some(place) = &volume.pool {
            let ending = Draining { pool: place.pool.clone(), volume: place.id, is_busy: true };
            draining.borrow_mut().insert(number, ending);
            let retired = RetiredVolume { pool: place.pool.clone(), nqn };
            self.pools.retired.borrow_mut().insert(place.id, retired);
        }
        // A task of its own, which outlives the order.
        let ended = spawn(async move {
            if let Some(retired) = retired {
                retired.drained().await;
            }
            while export.as_ref().is_some_and(|export| export.strong_count() > 0) {
                time::sleep(DRAIN_PERIOD).await;
            }
            if let Some(ending) = draining.borrow_mut().get_mut(&number) {
                ending.is_busy = false;
            }
        });
        let ended = time::timeout(RETIRE_TIMEOUT, ended).await;
        if let Ok(Ok(())) = ended {
            self.pools.draining.borrow_mut().remove(&number);
            return Ok(());
        }
        let why = format!("commands of volume {} have not ended", volume.name());
        let served = format!("{why}: it is served again when they have");
        self.note_ending(number, &served);
        Err(why)
    }

    /// Pool and volume of a retirement, unless the volume was deleted.
    fn ending_volume(&self, number: usize) -> Option<(String, Pool, VolumeInfo)> {
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

    /// Called before an order that changes a volume: waits for the commands of its former stack,
    /// and serves it again. If they do not end in time, the state of the volume refuses the order.
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
            // If an order has the pool, the next call serves its volumes.
            if let Some(_order) = self.pools.try_lock(&pool) {
                self.serve_again_after_end(|_, ending| ending.pool == pool);
            }
        }
    }

    /// Serves the chosen volumes again. The caller has the locks of their pools.
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
