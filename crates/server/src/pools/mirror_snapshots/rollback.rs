//! Rollback of a mirrored volume, at its source: the leg here gets the content of its snapshot, and
//! the peers follow with a resync. Their snapshots stay.
//!
//! Steps, each durable before the next one:
//!
//! 1. No host is attached, and none can attach.
//! 2. The peers are paused ([`MirroredVolume::pause_peers`]): none is promoted with the former
//!    content from here on.
//! 3. The mirror is stopped. Its replica records what is going to differ, under a new generation
//!    ([`flagstone_mirror::manage::roll_back`]).
//! 4. The leg is rolled back, except for the mirror's own structures
//!    ([`flagstone_pool::manage::leg_rollback`]). After a crash, this continues before the mirror
//!    opens the leg.
//! 5. The mirror is opened, and the peers are connected.
//!
//! `--force` does not admit attached hosts: on their paths to the other nodes, they would
//! continue with what they have cached of the former content.

use std::rc::Rc;

use flagstone_blockdev::SharedDevice;
use flagstone_pool::LegRollbackEnd;
use flagstone_units::exact_size;

use super::super::failed;
use super::super::orders::Outcome;
use super::super::snapshot_orders::parts;
use super::super::volume_orders::{FoundVolume, problem};
use super::super::volume_state::VolumeOrder;
use super::{MirroredLeg, not_serving};
use crate::api::connections;
use crate::http::Problem;
use crate::mirrors::MirroredVolume;
use crate::serve::Server;
use crate::volume::ServedVolume;

impl Server {
    /// Replaces the content of a mirrored volume by that of one of its snapshots.
    pub(in crate::pools) async fn roll_back_mirrored(
        &self,
        full: &str,
        dry_run: bool,
    ) -> Result<Outcome, Problem> {
        let local = self.local_name(full)?;
        let (leg_name, own) = parts(&local)?;
        let _order = self.pools.order_on(&[leg_name], None).await?;
        let leg = self.mirrored_leg(full)?;
        let name = &leg.name;
        leg.found.check(VolumeOrder::TakeSnapshot)?;
        // Its peer serves the volume through it.
        if leg.mirror.status().local_device_failed {
            return Err(not_serving(name));
        }
        let found = self.mirrors.borrow().iter().find(|mirrored| mirrored.name == *name).cloned();
        let mirrored = found.ok_or_else(|| failed(format!("volume {name} is not open")))?;
        if let Some(group) = mirrored.group_name() {
            return Err(Problem::conflict(format!(
                "volume {name} is in consistency group {group}, and its other volumes would keep \
                 their content: {}",
                copy_instead(&local)
            )));
        }
        self.check_leg_snapshot(&leg, &mirrored, own).await?;
        let served = self.volumes().into_iter().find(|served| served.number == mirrored.volume);
        let served: Vec<Rc<ServedVolume>> = served.into_iter().collect();
        self.check_unattached(&served)?;
        let FoundVolume { pool_name, pool, info, .. } = &leg.found;
        let checked = pool.check_leg_rollback(leg_name, own);
        checked.map_err(|error| problem(pool_name, error))?;
        let outcome = Outcome::changed(format!(
            "volume {name} gets the content of {full} on this node, and {} with a resync",
            leg.peers.join(", ")
        ))
        .losing(Some(format!("everything written to volume {name} since {full} was taken")))
        .with_next(format!("flagstone mirror status {name} shows the resync"));
        if dry_run {
            return Ok(outcome);
        }
        let _detached = self.keep_detached(&served, true)?;
        self.check_unattached(&served)?;
        let paused = mirrored.pause_peers(&leg.mirror).await.map_err(failed)?;
        let uuid = info.uuid;
        let rolled = self.roll_back_stopped(&leg, &mirrored, own).await;
        // Also if nothing was rolled back. If the volume is not served, its operator decides.
        let connected = match mirrored.mirror().is_some_and(|mirror| mirror.is_serving()) {
            true => mirrored.connect_peers(&paused).await,
            false if paused.is_empty() => Ok(()),
            false => Err(format!(
                "the mirror stays paused: run flagstone mirror continue {name} when hosts are served"
            )),
        };
        match (rolled, connected) {
            (Ok(()), Ok(())) => {}
            (Ok(()), Err(why)) => {
                return Err(failed(format!("leg {leg_name} was rolled back, but {why}")));
            }
            (Err(why), Ok(())) => return Err(failed(why)),
            (Err(why), Err(and)) => return Err(failed(format!("{why}; {and}"))),
        }
        tracing::info!(volume = name, leg = %uuid, "the volume was rolled back to {full}");
        Ok(outcome)
    }

    /// Steps 3 to 5, except for the peers.
    async fn roll_back_stopped(
        &self,
        leg: &MirroredLeg,
        mirrored: &Rc<MirroredVolume>,
        own: &str,
    ) -> Result<(), String> {
        let FoundVolume { pool, info, .. } = &leg.found;
        let (stopped, record) = mirrored.stop_for_rollback(&leg.mirror).await?;
        let kept_from = record.usable_bytes();
        let begun = match pool.compare_leg(info, own, |range| record.differs(range)).await {
            Err(error) => {
                record.close().await;
                Err(error.to_string())
            }
            Ok(()) => match record.record().await {
                Err(error) => Err(error.to_string()),
                Ok(()) => {
                    stopped.close_leg();
                    let begun = pool.begin_leg_rollback(info, own, kept_from).await;
                    begun.map_err(|error| error.to_string())
                }
            },
        };
        let ended = match begun {
            Ok(()) => pool.finish_leg_rollback(info.uuid).await.map_err(|error| error.to_string()),
            Err(why) => Err(why),
        };
        let reopened = stopped.reopen().await;
        match ended? {
            Some(LegRollbackEnd::RolledBack) => {
                reopened.map_err(|why| format!("leg {} was rolled back, but {why}", info.name))
            }
            Some(LegRollbackEnd::Canceled(error)) => Err(error.to_string()),
            Some(LegRollbackEnd::Released) | None => {
                Err(format!("leg {} was changed meanwhile", info.name))
            }
        }
    }

    /// Checks that the snapshot has a whole volume of the present size.
    async fn check_leg_snapshot(
        &self,
        leg: &MirroredLeg,
        mirrored: &MirroredVolume,
        own: &str,
    ) -> Result<(), Problem> {
        let full = leg.full(own);
        let FoundVolume { pool_name, pool, info, .. } = &leg.found;
        let Some(snapshot) = leg.existing(own) else {
            return Err(Problem::not_found(format!("there is no snapshot {full} on this node")));
        };
        let refuse = |why: String| {
            Err(Problem::conflict(format!(
                "volume {} cannot be rolled back to {full}: {why}. Instead, {}",
                leg.name,
                copy_instead(&full)
            )))
        };
        if snapshot.size_bytes != info.size_bytes {
            let [then, now] = [snapshot.size_bytes, info.size_bytes].map(exact_size);
            return refuse(format!("its leg had {then} then, and has {now} now"));
        }
        let opened = pool.open_snapshot(&full).map_err(|error| problem(pool_name, error))?;
        let content = mirrored.check_snapshot_content(&(opened as SharedDevice)).await;
        content.or_else(refuse)
    }

    /// Checks that no host is attached on this node.
    fn check_unattached(&self, served: &[Rc<ServedVolume>]) -> Result<(), Problem> {
        for volume in served {
            let hosts = connections(self, volume);
            if let Some(host) = hosts.first() {
                let name = volume.name();
                return Err(Problem::conflict(format!(
                    "{} hosts are attached to volume {name}, {} first: detach them from all nodes. \
                     Even with --force, a mirrored volume is not rolled back under its hosts, \
                     which would continue with what they have cached",
                    hosts.len(),
                    host.host()
                )));
            }
        }
        Ok(())
    }
}

/// What to do instead of a rollback.
fn copy_instead(local: &str) -> String {
    format!("run flagstone volume clone {local} NAME, and copy from that volume")
}
