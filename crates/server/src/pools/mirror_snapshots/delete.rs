//! Deleting snapshots of mirrored volumes. Without a snapshot of the name on this node, the peers
//! delete theirs: a deletion may have ended on some nodes only, or have been of this node alone.

use std::collections::BTreeSet;

use flagstone_mirror::join::join_all;
use flagstone_mirror::snapshot::peer::PeerSnapshot;
use flagstone_mirror::snapshot::source::SnapshotObstacle;
use flagstone_mirror::wire::peer::PeerRefusal;
use flagstone_mirror::wire::snapshot::{SnapshotId, SnapshotName};
use flagstone_pool::VolumeError;

use super::super::orders::Outcome;
use super::super::snapshot_orders::{parts, volume_of};
use super::super::volume_orders::problem;
use super::super::volume_state::VolumeOrder;
use super::{MirroredLeg, id_of, name_of, way_out};
use crate::http::Problem;
use crate::serve::Server;

impl Server {
    pub(super) async fn delete_mirrored(
        &self,
        full: &str,
        dry_run: bool,
    ) -> Result<Outcome, Problem> {
        let local = self.local_name(full)?;
        let _order = self.pools.order_on(&[volume_of(&local)], None).await?;
        let own = parts(full)?.1;
        let name = name_of(own)?;
        let leg = self.mirrored_leg(full)?;
        let existing = leg.existing(own);
        if let Some(snapshot) = existing.as_ref().filter(|snapshot| snapshot.users.len() > 1) {
            let users = snapshot.users.join(", ");
            let error = VolumeError::InUse { snapshot: local, users };
            return Err(problem(&leg.found.pool_name, error));
        }
        leg.found.check(VolumeOrder::DeleteSnapshot)?;
        let id = existing.as_ref().map_or(SnapshotId::NONE, id_of);
        let mut nodes = peers_that_have(&leg, full, (id, name)).await?;
        if existing.is_some() {
            nodes.insert("this node".to_owned());
        }
        if nodes.is_empty() {
            return Ok(Outcome::unchanged(format!(
                "there is no snapshot {full} on any node: nothing to do"
            )));
        }
        let nodes = nodes.into_iter().collect::<Vec<_>>().join(" and ");
        let outcome = Outcome::changed(format!("snapshot {full} is deleted on {nodes}"))
            .losing(Some(format!("snapshot {full} on {nodes}")));
        if dry_run {
            return Ok(outcome);
        }
        // Also peers that lack it: an order to take it may have ended late.
        for (place, peer) in leg.peers.iter().enumerate() {
            let deleted = leg.mirror.delete_peer_snapshot(place, (id, name)).await;
            deleted.map_err(|why| {
                Problem::conflict(format!(
                    "{peer} did not delete {full}: {why}. Other peers may have deleted theirs, and \
                     this node has not: repeat the order, which ends the deletion"
                ))
            })?;
        }
        if let Some(existing) = existing {
            let deleted = leg.found.pool.delete_exact_snapshot(&local, existing.id).await;
            deleted.map_err(|error| problem(&leg.found.pool_name, error))?;
        }
        tracing::info!("snapshot {full} was deleted on {nodes}");
        Ok(outcome)
    }
}

/// Asks all peers before anything changes.
///
/// # Errors
/// A peer that may have the snapshot, and cannot delete it now.
async fn peers_that_have(
    leg: &MirroredLeg,
    full: &str,
    snapshot: (SnapshotId, SnapshotName),
) -> Result<BTreeSet<String>, Problem> {
    let asked = (0..leg.peers.len()).map(|peer| leg.mirror.find_peer_snapshot(peer, snapshot));
    let answers = join_all(asked).await;
    let mut having = BTreeSet::new();
    for (peer, answer) in leg.peers.iter().zip(answers) {
        let why = match answer {
            Ok(PeerSnapshot::Present) => {
                having.insert(peer.clone());
                continue;
            }
            Ok(PeerSnapshot::Missing)
            | Err(SnapshotObstacle::Refused(PeerRefusal::NoSnapshots)) => continue,
            Ok(PeerSnapshot::Waiting) => {
                return Err(Problem::conflict(format!(
                    "{peer} has not taken {full} yet: repeat the order when it has the writes \
                     queued before it"
                )));
            }
            Ok(PeerSnapshot::InUse) => SnapshotObstacle::Refused(PeerRefusal::SnapshotInUse),
            Err(why) => why,
        };
        return Err(Problem::conflict(format!(
            "{peer} does not delete {full}: {why}. Nothing was deleted: {}",
            way_out(why)
        )));
    }
    Ok(having)
}
