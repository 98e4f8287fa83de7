//! Snapshots of mirrored volumes: on the pools of all nodes, by an order at the source.
//!
//! Invariants:
//! - nodes that have a snapshot of one identifier have the same content
//!   ([`flagstone_mirror::snapshot`]);
//! - a repeated order finds the snapshot on all nodes, or says which node lacks it;
//! - a deletion asks all peers before it changes anything, and deletes here last;
//! - a rollback changes this node alone, when its peers can no longer be promoted.

mod create;
mod delete;
mod places;
mod rollback;

use flagstone_config::device_spec::PoolVolumeSpec;
use flagstone_mirror::Mirror;
use flagstone_mirror::limits::SNAPSHOT_NAME_BYTES;
use flagstone_mirror::snapshot::source::SnapshotObstacle;
use flagstone_mirror::wire::peer::PeerRefusal;
use flagstone_mirror::wire::snapshot::{SnapshotId, SnapshotName};
use flagstone_pool::SnapshotInfo;

use super::leg_snapshots::own_snapshots;
use super::orders::Outcome;
use super::snapshot_orders::{parts, volume_of};
use super::volume_orders::FoundVolume;
use crate::http::Problem;
use crate::serve::Server;

pub(crate) use self::places::{SnapshotPeer, SnapshotPlaces};

/// A mirrored volume whose leg is on a pool of this node.
struct MirroredLeg {
    name: String,
    mirror: Mirror,
    /// Names of the peers of this mirror, which another one may replace meanwhile.
    peers: Vec<String>,
    found: FoundVolume,
}

impl MirroredLeg {
    fn full(&self, own: &str) -> String {
        format!("{}@{own}", self.found.info.name)
    }

    fn peer(&self, leg: usize) -> String {
        self.peers.get(leg).cloned().unwrap_or_default()
    }

    fn existing(&self, own: &str) -> Option<SnapshotInfo> {
        let full = self.full(own);
        let all = own_snapshots(&self.found.pool, &self.found.info.name);
        all.into_iter().find(|snapshot| snapshot.name == full)
    }
}

fn id_of(snapshot: &SnapshotInfo) -> SnapshotId {
    SnapshotId(snapshot.id.0)
}

fn name_of(own: &str) -> Result<SnapshotName, Problem> {
    SnapshotName::new(own).ok_or_else(|| {
        Problem::invalid(format!("the name {own} is longer than {SNAPSHOT_NAME_BYTES} bytes"))
    })
}

impl Server {
    pub(super) fn is_mirrored(&self, name: &str) -> bool {
        let mut volumes = self.config.volumes.iter();
        volumes.any(|volume| volume.name == name && volume.mirror().is_some())
    }

    /// Full name of a snapshot in its pool, if its volume is a mirrored one.
    pub(super) fn local_name(&self, full: &str) -> Result<String, Problem> {
        let (volume, own) = parts(full)?;
        if !self.is_mirrored(volume) {
            return Ok(full.to_owned());
        }
        Ok(format!("{}@{own}", self.leg_of(volume)?.volume))
    }

    /// Leg of a mirrored volume.
    fn leg_of(&self, volume: &str) -> Result<&PoolVolumeSpec, Problem> {
        let found = self.config.volumes.iter().find(|found| found.name == volume);
        found.and_then(|found| found.backing.leg()).ok_or_else(|| {
            Problem::conflict(format!(
                "the leg of mirrored volume {volume} is not on a pool, which could have snapshots"
            ))
        })
    }

    /// Takes snapshots; of mirrored volumes on all their nodes, unless `local_only`.
    pub(crate) async fn order_snapshots(
        &self,
        names: &[String],
        local_only: bool,
        dry_run: bool,
    ) -> Result<Outcome, Problem> {
        let mirrored = names.iter().filter(|full| self.is_mirrored(volume_of(full))).count();
        match (mirrored, local_only) {
            (0, false) => self.create_snapshots(names, dry_run).await,
            (0, true) => Err(no_mirrored()),
            (count, _) if count < names.len() => Err(Problem::conflict(
                "some of the volumes are mirrored and some are not: snapshots at one point of the \
                 order of writes need one kind",
            )),
            (_, true) => {
                let local: Vec<String> =
                    names.iter().map(|full| self.local_name(full)).collect::<Result<_, _>>()?;
                Ok(here_only(self.create_snapshots(&local, dry_run).await?))
            }
            _ => self.snapshot_mirrored(names, dry_run).await,
        }
    }

    /// Deletes a snapshot; of a mirrored volume on all its nodes, unless `local_only`.
    pub(crate) async fn order_deletion(
        &self,
        full: &str,
        local_only: bool,
        dry_run: bool,
    ) -> Result<Outcome, Problem> {
        match (self.is_mirrored(volume_of(full)), local_only) {
            (false, false) => self.delete_snapshot(full, dry_run).await,
            (false, true) => Err(no_mirrored()),
            (true, true) => {
                Ok(here_only(self.delete_snapshot(&self.local_name(full)?, dry_run).await?))
            }
            (true, false) => self.delete_mirrored(full, dry_run).await,
        }
    }

    fn mirrored_leg(&self, full: &str) -> Result<MirroredLeg, Problem> {
        let name = volume_of(full).to_owned();
        let leg = self.leg_of(&name)?;
        let found = self.required_in(Some(&leg.pool), &leg.volume)?;
        let mirrors = self.mirrors.borrow();
        let mirrored = mirrors.iter().find(|mirrored| mirrored.name == name);
        let mirror = mirrored.and_then(|mirrored| Some((mirrored.mirror()?, mirrored.peers())));
        match mirror.filter(|(mirror, _)| mirror.is_serving()) {
            Some((mirror, peers)) => Ok(MirroredLeg { name, mirror, peers, found }),
            None => Err(not_serving(&name)),
        }
    }
}

/// Outcome of an order for this node alone.
fn here_only(outcome: Outcome) -> Outcome {
    let part = if outcome.changed { "on this node only" } else { "no other node was asked" };
    Outcome { outcome: format!("{}; {part}", outcome.outcome), ..outcome }
}

fn no_mirrored() -> Problem {
    Problem::invalid("--local-only is for snapshots of mirrored volumes: leave it out")
}

fn not_serving(name: &str) -> Problem {
    Problem::conflict(format!(
        "this node does not serve mirrored volume {name} from its own leg: run the order at its \
         source, which flagstone mirror status {name} names, or, to take or delete a snapshot of \
         this node alone, use --local-only"
    ))
}

/// What to do about a peer that takes, finds or deletes no snapshot.
fn way_out(why: SnapshotObstacle) -> &'static str {
    use PeerRefusal::{NoSnapshots, SnapshotExists, SnapshotFailed, SnapshotInUse};
    match why {
        SnapshotObstacle::Refused(SnapshotExists) => {
            "see flagstone snapshot list there, and delete that snapshot there with \
             flagstone snapshot delete --local-only, or choose another name"
        }
        SnapshotObstacle::Refused(SnapshotInUse) => {
            "delete its clones there, which flagstone snapshot list names, or use --local-only"
        }
        SnapshotObstacle::Refused(SnapshotFailed) => {
            "see flagstone pool status and the log there, or use --local-only for this node alone"
        }
        SnapshotObstacle::Refused(NoSnapshots) | SnapshotObstacle::Version => {
            "until then, use --local-only for this node alone"
        }
        SnapshotObstacle::NotInSync(_) => {
            "repeat the order when it is in sync, as flagstone mirror status says, or use \
             --local-only for this node alone"
        }
        _ => "repeat the order later, or use --local-only for this node alone",
    }
}
