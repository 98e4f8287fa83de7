//! Taking snapshots of mirrored volumes.

use std::collections::{BTreeMap, BTreeSet};

use flagstone_mirror::join::join_all;
use flagstone_mirror::snapshot::peer::PeerSnapshot;
use flagstone_mirror::snapshot::source::{
    MarkerState, OtherPeers, SnapshotError, SnapshotObstacle, SnapshotPoint, WaitingPeer,
};
use flagstone_mirror::wire::peer::PeerRefusal;
use flagstone_mirror::wire::snapshot::{SnapshotId, SnapshotName};
use flagstone_pool::{Pool, PoolId, PreparedSnapshot, SnapshotInfo, VolumeError};
use flagstone_runtime::time;

use super::super::orders::Outcome;
use super::super::snapshot_orders::{parts, volume_of};
use super::super::volume_orders::{FoundVolume, problem};
use super::super::volume_state::VolumeOrder;
use super::{MirroredLeg, id_of, name_of, not_serving, way_out};
use crate::http::Problem;
use crate::limits::{MIRROR_SNAPSHOTS_MAX, SNAPSHOT_ATTEMPTS, SNAPSHOT_PREPARE_TIMEOUT};
use crate::serve::Server;

impl Server {
    pub(super) async fn snapshot_mirrored(
        &self,
        names: &[String],
        dry_run: bool,
    ) -> Result<Outcome, Problem> {
        if names.len() > MIRROR_SNAPSHOTS_MAX {
            return Err(Problem::invalid(format!(
                "at most {MIRROR_SNAPSHOTS_MAX} mirrored volumes have snapshots at one point of \
                 the order of writes: name fewer"
            )));
        }
        let legs: Vec<String> =
            names.iter().map(|full| self.local_name(full)).collect::<Result<_, _>>()?;
        let locked: Vec<&str> = legs.iter().map(|full| volume_of(full)).collect();
        let _order = self.pools.order_on(&locked, None).await?;
        let own = parts(&names[0])?.1;
        let mut legs: Vec<MirroredLeg> = Vec::new();
        for full in names {
            let (volume, snapshot) = parts(full)?;
            if snapshot != own {
                return Err(Problem::invalid(format!(
                    "snapshots that are taken together have one name: {own} and {snapshot} differ"
                )));
            }
            if legs.iter().any(|leg| leg.name == volume) {
                return Err(Problem::invalid(format!("volume {volume} is named twice")));
            }
            let leg = self.mirrored_leg(full)?;
            leg.found.check(VolumeOrder::TakeSnapshot)?;
            legs.push(leg);
        }
        let name = name_of(own)?;
        let existing: Vec<SnapshotInfo> = legs.iter().filter_map(|leg| leg.existing(own)).collect();
        if let Some(first) = existing.first() {
            let together = existing.iter().all(|snapshot| snapshot.id == first.id);
            if existing.len() < legs.len() || !together {
                return Err(Problem::conflict(format!(
                    "snapshot {} exists already, and was not taken together with the others: run \
                     {}, then repeat the order, or choose another name",
                    first.name,
                    deletions(&legs, own)
                )));
            }
            return existing_everywhere(&legs, own, (id_of(first), name)).await;
        }
        let point = check(&legs, own, (PoolId::random(), name)).await?;
        let nodes: BTreeSet<String> = legs.iter().flat_map(|leg| leg.peers.clone()).collect();
        let nodes: Vec<String> = nodes.into_iter().collect();
        let listed = names.join(", ");
        let outcome = Outcome::changed(format!(
            "{listed}: one point of the order of writes, on this node and {}",
            nodes.join(", ")
        ))
        .with_next(format!(
            "flagstone volume clone {} NAME makes a volume of it",
            legs[0].full(own)
        ));
        if dry_run {
            return match prepare(&legs, own, PoolId(point.id().0)).await? {
                Some(_) => Ok(outcome),
                None => Err(busy(&listed)),
            };
        }
        let mut next = Some(point);
        for _ in 0..SNAPSHOT_ATTEMPTS {
            // Each has its own identifier: the content differs.
            let id = PoolId::random();
            let point = match next.take() {
                Some(point) => point,
                None => check(&legs, own, (id, name)).await?,
            };
            match attempt(&legs, point, own).await? {
                Some(waiting) => {
                    tracing::info!("snapshots {listed} were taken on all nodes");
                    let text = outcome.outcome + &waits_of(&legs, &waiting);
                    return Ok(Outcome { outcome: text, ..outcome });
                }
                None => tracing::info!("snapshots {listed}: a pool is busy"),
            }
        }
        Err(busy(&listed))
    }
}

fn busy(listed: &str) -> Problem {
    Problem::conflict(format!(
        "the pools of {listed} are busy with checkpoints or slow writes: nothing was taken. Repeat \
         the order later"
    ))
}

/// Commands that delete the snapshots of an order.
fn deletions(legs: &[MirroredLeg], own: &str) -> String {
    let command = |leg: &MirroredLeg| format!("flagstone snapshot delete {}@{own}", leg.name);
    legs.iter().map(command).collect::<Vec<_>>().join(" and ")
}

/// Checks the peers, and that they are not busy.
async fn check(
    legs: &[MirroredLeg],
    own: &str,
    (id, name): (PoolId, SnapshotName),
) -> Result<SnapshotPoint, Problem> {
    let mirrors = legs.iter().map(|leg| leg.mirror.clone()).collect();
    let point = SnapshotPoint::check(mirrors, SnapshotId(id.0), name).await;
    point.map_err(|error| refused(legs, own, error))
}

/// Prepares the snapshots of this node, in all its pools; `None` if one is busy. None is held for
/// longer, because writes may wait for a checkpoint there.
async fn prepare(
    legs: &[MirroredLeg],
    own: &str,
    id: PoolId,
) -> Result<Option<Vec<PreparedSnapshot>>, Problem> {
    let mut by_pool: BTreeMap<&str, (&Pool, Vec<&str>)> = BTreeMap::new();
    for leg in legs {
        let FoundVolume { pool_name, pool, info, .. } = &leg.found;
        by_pool.entry(pool_name).or_insert_with(|| (pool, Vec::new())).1.push(&info.name);
    }
    let prepared = time::timeout(SNAPSHOT_PREPARE_TIMEOUT, async {
        let mut prepared = Vec::new();
        for (pool_name, (pool, volumes)) in by_pool {
            let one = pool.prepare_snapshot(&volumes, own, id).await;
            prepared.push(one.map_err(|error| problem(pool_name, error))?);
        }
        Ok(prepared)
    });
    prepared.await.ok().transpose()
}

/// Takes the snapshots. `None` if a pool is busy: then there are none, on no node.
async fn attempt(
    legs: &[MirroredLeg],
    point: SnapshotPoint,
    own: &str,
) -> Result<Option<Vec<WaitingPeer>>, Problem> {
    let id = PoolId(point.id().0);
    let Some(prepared) = prepare(legs, own, id).await? else { return Ok(None) };
    let taken = point.take(async move {
        for one in prepared {
            one.take().await?;
        }
        Ok::<(), VolumeError>(())
    });
    let error = match taken.await {
        Ok(waiting) => return Ok(Some(waiting)),
        Err(SnapshotError::Busy) => return Ok(None),
        Err(error) => error,
    };
    let is_undone = match error {
        SnapshotError::PeerLacks { others: OtherPeers::LackIt, .. } | SnapshotError::Local(_) => {
            delete_own(legs, own, id).await?;
            true
        }
        _ => false,
    };
    let is_busy = matches!(
        error,
        SnapshotError::PeerLacks {
            why: SnapshotObstacle::Refused(PeerRefusal::NotNow) | SnapshotObstacle::NoTime,
            ..
        }
    );
    if is_undone && is_busy { Ok(None) } else { Err(refused(legs, own, error)) }
}

fn waits_of(legs: &[MirroredLeg], waiting: &[WaitingPeer]) -> String {
    let waits = |peer: &WaitingPeer| waits_text(&legs[peer.volume].peer(peer.leg));
    waiting.iter().map(waits).collect::<BTreeSet<String>>().into_iter().collect()
}

/// Answer to a repeated order.
async fn existing_everywhere(
    legs: &[MirroredLeg],
    own: &str,
    (id, name): (SnapshotId, SnapshotName),
) -> Result<Outcome, Problem> {
    let asked = legs.iter().flat_map(|leg| (0..leg.peers.len()).map(move |peer| (leg, peer)));
    let answers = join_all(asked.map(|(leg, peer)| async move {
        (leg, peer, leg.mirror.find_peer_snapshot(peer, (id, name)).await)
    }));
    let mut waits = BTreeSet::new();
    for (leg, at, answer) in answers.await {
        let (full, peer) = (format!("{}@{own}", leg.name), leg.peer(at));
        match answer {
            Ok(PeerSnapshot::Present | PeerSnapshot::InUse) => {}
            Ok(PeerSnapshot::Waiting) => {
                waits.insert(waits_text(&peer));
            }
            Ok(PeerSnapshot::Missing) => {
                let why = match leg.mirror.snapshot_marker(id, at) {
                    Some(MarkerState::Refused(why)) => format!(" ({why})"),
                    _ => String::new(),
                };
                return Err(Problem::conflict(format!(
                    "snapshot {full} exists here and not on {peer}{why}, which can no longer take \
                     the same: choose another name, or run {}, which deletes it on all nodes, then \
                     repeat the order",
                    deletions(legs, own)
                )));
            }
            Err(why @ SnapshotObstacle::Refused(PeerRefusal::NoSnapshots)) => {
                return Err(Problem::conflict(format!(
                    "snapshot {full} exists on the other nodes, and {peer} takes none: {why}"
                )));
            }
            Err(why) => {
                return Err(Problem::conflict(format!(
                    "snapshot {full} exists here, and {peer} does not say whether it has it: \
                     {why}. Repeat the order when it is connected"
                )));
            }
        }
    }
    let waits: String = waits.into_iter().collect();
    Ok(Outcome::unchanged(format!("the snapshot {own} exists already on all nodes{waits}")))
}

fn waits_text(peer: &str) -> String {
    format!("; {peer} takes it when it has the writes queued before it")
}

/// Deletes the snapshots of this node, which a peer lacks.
///
/// # Errors
/// A snapshot that could not be deleted, and the way out.
async fn delete_own(legs: &[MirroredLeg], own: &str, id: PoolId) -> Result<(), Problem> {
    for leg in legs.iter().filter(|leg| leg.existing(own).is_some_and(|found| found.id == id)) {
        if let Err(error) = leg.found.pool.delete_exact_snapshot(&leg.full(own), id).await {
            return Err(Problem::conflict(format!(
                "no peer took snapshot {own} of {}, and this node did not delete its own: {error}. \
                 Run {}, then repeat the order",
                leg.name,
                deletions(legs, own)
            )));
        }
    }
    Ok(())
}

fn refused(legs: &[MirroredLeg], own: &str, error: SnapshotError<VolumeError>) -> Problem {
    Problem::conflict(match error {
        SnapshotError::NotServing { volume } => return not_serving(&legs[volume].name),
        SnapshotError::Peer { volume, leg, why } => format!(
            "{} cannot take a snapshot of {}: {why}. Nothing was taken: {}",
            legs[volume].peer(leg),
            legs[volume].name,
            way_out(why)
        ),
        SnapshotError::PeerLacks { volume, leg, why, others: OtherPeers::LackIt } => format!(
            "{} took no snapshot of {}: {why}. This node has deleted its own: {}",
            legs[volume].peer(leg),
            legs[volume].name,
            way_out(why)
        ),
        SnapshotError::PeerLacks { volume, leg, why, others: OtherPeers::MayHaveIt } => format!(
            "{} took no snapshot of {}: {why}. This node has its own, and other peers may: run {}, \
             then repeat the order",
            legs[volume].peer(leg),
            legs[volume].name,
            deletions(legs, own)
        ),
        SnapshotError::Unknown { volume, leg } => format!(
            "{} did not say whether it took the snapshot of {}; this node has it. Repeat the order \
             when {0} is connected: it says where the snapshot is",
            legs[volume].peer(leg),
            legs[volume].name
        ),
        SnapshotError::Busy | SnapshotError::LocalHangs => {
            format!(
                "{error}: hosts continue, and no peer has the snapshot. See flagstone snapshot list"
            )
        }
        SnapshotError::Local(error) => return problem(&legs[0].found.pool_name, error),
    })
}
