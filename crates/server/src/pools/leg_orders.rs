//! Orders on pools with legs: legs are opened with their pool, and released before it is closed.

use std::collections::BTreeSet;
use std::rc::Rc;

use flagstone_pool::{Pool, VolumeInfo};
use flagstone_runtime::{spawn, time};

use super::state_directory::PoolEntry;
use super::volume_state::VolumeState;
use crate::connections::DRAIN_PERIOD;
use crate::http::Problem;
use crate::limits::RETIRE_TIMEOUT;
use crate::mirrors::MirroredVolume;
use crate::serve::Server;

impl Server {
    /// Releases the legs of a pool that may be an older copy, before a mirror can open them.
    ///
    /// # Errors
    /// The reason why the pool cannot be used.
    pub(super) async fn release_old_legs(&self, name: &str, pool: &Pool) -> Result<(), String> {
        if !self.pools.registry.may_be_older(name) {
            return Ok(());
        }
        for info in pool.volumes() {
            let released = pool.release_leg(&info).await;
            released.map_err(|error| format!("leg {} is not released: {error}", info.name))?;
        }
        let identity = pool.identity();
        let note = |entry: &mut Option<PoolEntry>| {
            if let Some(entry) = entry {
                (entry.has_old_legs, entry.last_seen) = (false, Some(identity.into()));
            }
        };
        if let Err(problem) = self.pools.registry.change(name, note).await {
            tracing::warn!(
                "the legs of pool {name} take everything from their peers again when it is opened \
                 next: {}",
                problem.detail
            );
        }
        Ok(())
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

    /// Names of the peers of a mirrored volume.
    fn peers_of(&self, mirrored: &str) -> String {
        let volume = self.config.volumes.iter().find(|volume| volume.name == mirrored);
        let mirror = volume.and_then(|volume| volume.mirror());
        let peers = mirror.into_iter().flat_map(|mirror| &mirror.peers);
        let names = peers.map(|peer| self.config.peers[*peer].name.as_str());
        names.collect::<Vec<_>>().join(" or ")
    }

    /// Mirrored volumes that wait for a peer, because their legs in an open pool lack changes.
    /// Empty, or with a separator.
    pub(super) fn legs_without_source(&self, name: &str, pool: &Pool) -> String {
        let waits = |(info, mirrored): &(VolumeInfo, String)| {
            let mirrors = self.mirrors.borrow();
            let own = mirrors.iter().find(|own| own.name == *mirrored);
            let mirror = own.and_then(|own| own.mirror()).filter(|mirror| !mirror.is_closed());
            mirror.map_or(info.incomplete, |mirror| mirror.is_unverified() && !mirror.has_source())
        };
        let legs = self.pools.legs_in(name, pool);
        let texts = legs.iter().filter(|leg| waits(leg)).map(|(info, mirrored)| {
            format!(
                "; mirrored volume {mirrored} waits for {}, because its leg {} lacks writes: flagstone \
                 mirror failover {mirrored} --force serves it without them",
                self.peers_of(mirrored),
                info.name
            )
        });
        texts.collect()
    }

    /// Losses of mirrored volumes whose legs are in a closed pool, if its tail is given up. Empty,
    /// or with a separator.
    pub(super) fn losses_of_legs(&self, name: &str) -> String {
        let texts = self.pools.leg_names(name).into_iter().filter_map(|leg| {
            let mirrored = self.pools.mirrored(name, &leg)?;
            let peers = self.peers_of(mirrored);
            Some(format!(
                "; the same of mirrored volume {mirrored} (leg {leg}), unless {peers} is in sync: see \
                 flagstone mirror status {mirrored} there"
            ))
        });
        texts.collect()
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
    /// opened again with the pool. The caller has changed the state of the pool, so that no further
    /// leg is opened.
    pub(super) async fn release_legs(&self, pool: &str) {
        let legs = self.pools.leg_opener();
        let opened = async {
            while legs.is_opening(pool) {
                time::sleep(DRAIN_PERIOD).await;
            }
        };
        if time::timeout(RETIRE_TIMEOUT, opened).await.is_err() {
            tracing::error!("a leg in pool {pool} was not opened in time");
        }
        let mut begun = BTreeSet::new();
        loop {
            // A mirror may have begun to use its leg meanwhile.
            let mut mirrors = self.mirrors_on(pool);
            mirrors.retain(|mirrored| begun.insert(mirrored.volume));
            if mirrors.is_empty() {
                break;
            }
            let released: Vec<_> = mirrors
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
        }
        // Also legs that a mirror was about to use.
        legs.close(pool);
    }
}
