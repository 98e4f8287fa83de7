//! Snapshots of mirrored volumes: on the pools of all nodes, by an order at the source.
//!
//! Invariants:
//! - nodes that have a snapshot of one identifier have the same content
//!   ([`flagstone_mirror::snapshot`]);
//! - a repeated order finds the snapshot on all nodes, or says which node lacks it.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use flagstone_mirror::Mirror;
use flagstone_mirror::limits::SNAPSHOT_NAME_BYTES;
use flagstone_mirror::snapshot::source::{
    MarkerState, OtherPeers, SnapshotError, SnapshotObstacle, SnapshotPoint, WaitingPeer,
};
use flagstone_mirror::wire::peer::PeerRefusal;
use flagstone_mirror::wire::snapshot::{SnapshotId, SnapshotName};
use flagstone_pool::{Pool, PoolId, PreparedSnapshot, SnapshotInfo, VolumeError};
use flagstone_runtime::{spawn, time};

use super::leg_snapshots::own_snapshots;
use super::orders::Outcome;
use super::snapshot_orders::{parts, volume_of};
use super::volume_orders::{FoundVolume, problem};
use super::volume_state::VolumeOrder;
use crate::api::pool_document::SnapshotPeerState;
use crate::http::Problem;
use crate::limits::{PEER_SNAPSHOTS_TIMEOUT, SNAPSHOT_ATTEMPTS, SNAPSHOT_PREPARE_TIMEOUT};
use crate::mirrors::MirroredVolume;
use crate::serve::Server;

/// Where a snapshot of a mirrored volume is, besides this node.
pub(crate) struct SnapshotPlaces {
    /// The mirrored volume.
    pub(crate) mirrored: String,
    /// Its peers; none unless this node is the source.
    pub(crate) peers: Vec<SnapshotPeer>,
}

/// A peer, and whether it has the snapshot.
pub(crate) struct SnapshotPeer {
    pub(crate) name: String,
    pub(crate) state: SnapshotPeerState,
}

/// A mirrored volume whose leg is on a pool of this node.
struct MirroredLeg {
    name: String,
    mirrored: Rc<MirroredVolume>,
    mirror: Mirror,
    found: FoundVolume,
}

impl MirroredLeg {
    fn full(&self, own: &str) -> String {
        format!("{}@{own}", self.found.info.name)
    }

    fn peer(&self, leg: usize) -> String {
        self.mirrored.peers().get(leg).cloned().unwrap_or_default()
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

/// Whether each peer of a source has these snapshots. Peers that do not answer are waited for
/// together, and only a complete list says that a peer has none.
async fn peers_with(
    mirrored: &MirroredVolume,
    mirror: &Mirror,
    ids: &[SnapshotId],
) -> Vec<Vec<SnapshotPeer>> {
    let mut found: Vec<Vec<SnapshotPeer>> = ids.iter().map(|_| Vec::new()).collect();
    let names = mirrored.peers();
    let lists = (0..names.len()).map(|leg| {
        let mirror = mirror.clone();
        spawn(
            async move { time::timeout(PEER_SNAPSHOTS_TIMEOUT, mirror.peer_snapshots(leg)).await },
        )
    });
    let lists: Vec<_> = lists.collect();
    for ((leg, name), listed) in names.into_iter().enumerate().zip(lists) {
        let listed = listed.await;
        for (id, found) in ids.iter().zip(&mut found) {
            let waits = mirror.snapshot_marker(*id, leg) == Some(MarkerState::Waiting);
            let state = match &listed {
                _ if waits => SnapshotPeerState::Waiting,
                Ok(Ok(Ok(listed))) if listed.contains(id) => SnapshotPeerState::Present,
                Ok(Ok(Ok(_) | Err(SnapshotObstacle::Refused(PeerRefusal::NoSnapshots)))) => {
                    SnapshotPeerState::Missing
                }
                _ => SnapshotPeerState::Silent,
            };
            found.push(SnapshotPeer { name: name.clone(), state });
        }
    }
    found
}

impl Server {
    pub(super) fn is_mirrored(&self, name: &str) -> bool {
        let mut volumes = self.config.volumes.iter();
        volumes.any(|volume| volume.name == name && volume.mirror().is_some())
    }

    /// Full name of a snapshot in its pool, if its volume is a mirrored one.
    pub(super) fn local_name(&self, full: &str) -> Result<String, Problem> {
        let (volume, own) = parts(full)?;
        let mut volumes = self.config.volumes.iter();
        let found = volumes.find(|found| found.name == volume && found.mirror().is_some());
        match found.map(|found| found.backing.leg()) {
            None => Ok(full.to_owned()),
            Some(Some(leg)) => Ok(format!("{}@{own}", leg.volume)),
            Some(None) => Err(Problem::conflict(format!(
                "the leg of mirrored volume {volume} is not on a pool, which could have snapshots"
            ))),
        }
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
                let outcome = self.create_snapshots(&local, dry_run).await?;
                let text = format!("{}; on this node only", outcome.outcome);
                Ok(Outcome { outcome: text, ..outcome })
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
                let outcome = self.delete_snapshot(&self.local_name(full)?, dry_run).await?;
                let text = format!("{}; on this node only", outcome.outcome);
                Ok(Outcome { outcome: text, ..outcome })
            }
            (true, false) => self.delete_mirrored(full, dry_run).await,
        }
    }

    fn mirrored_leg(&self, full: &str) -> Result<MirroredLeg, Problem> {
        let name = volume_of(full).to_owned();
        let leg = self.local_name(full)?;
        let found = self.required(volume_of(&leg))?;
        let mirrors = self.mirrors.borrow();
        let mirrored = mirrors.iter().find(|mirrored| mirrored.name == name).cloned();
        let mirror = mirrored.and_then(|mirrored| Some((mirrored.mirror()?, mirrored)));
        match mirror.filter(|(mirror, _)| mirror.is_serving()) {
            Some((mirror, mirrored)) => Ok(MirroredLeg { name, mirrored, mirror, found }),
            None => Err(not_serving(&name)),
        }
    }

    async fn snapshot_mirrored(&self, names: &[String], dry_run: bool) -> Result<Outcome, Problem> {
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
        let existing: Vec<SnapshotInfo> = legs.iter().filter_map(|leg| leg.existing(own)).collect();
        if let Some(first) = existing.first() {
            let together = existing.iter().all(|snapshot| snapshot.id == first.id);
            if existing.len() < legs.len() || !together {
                return Err(Problem::conflict(format!(
                    "snapshot {} exists already, and was not taken together with the others",
                    first.name
                )));
            }
            return existing_everywhere(&legs, own, id_of(first)).await;
        }
        let name = SnapshotName::new(own).ok_or_else(|| {
            Problem::invalid(format!("the name {own} is longer than {SNAPSHOT_NAME_BYTES} bytes"))
        })?;
        let point = check(&legs, PoolId::random(), name).await?;
        let nodes: BTreeSet<String> = legs.iter().flat_map(|leg| leg.mirrored.peers()).collect();
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
            return Ok(outcome);
        }
        let mut next = Some(point);
        for _ in 0..SNAPSHOT_ATTEMPTS {
            // Each has its own identifier: the content differs.
            let id = PoolId::random();
            let point = match next.take() {
                Some(point) => point,
                None => check(&legs, id, name).await?,
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
        Err(Problem::conflict(format!(
            "the pools of {listed} are busy with checkpoints or slow writes: nothing was taken. \
             Repeat the order later"
        )))
    }

    async fn delete_mirrored(&self, full: &str, dry_run: bool) -> Result<Outcome, Problem> {
        let local = self.local_name(full)?;
        let _order = self.pools.order_on(&[volume_of(&local)], None).await?;
        let own = parts(full)?.1;
        let leg = self.mirrored_leg(full)?;
        let Some(snapshot) = leg.existing(own) else {
            return Ok(Outcome::unchanged(format!("there is no snapshot {full}: nothing to do")));
        };
        let in_use = |users: String| {
            let error = VolumeError::InUse { snapshot: local.clone(), users };
            problem(&leg.found.pool_name, error)
        };
        if snapshot.users.len() > 1 {
            return Err(in_use(snapshot.users.join(", ")));
        }
        let id = id_of(&snapshot);
        let states = peers_with(&leg.mirrored, &leg.mirror, &[id]).await;
        for SnapshotPeer { name, state } in states.iter().flatten() {
            match state {
                SnapshotPeerState::Present | SnapshotPeerState::Missing => {}
                SnapshotPeerState::Waiting => {
                    return Err(Problem::conflict(format!(
                        "{name} has not taken {full} yet: repeat the order when it has the writes \
                         queued before it"
                    )));
                }
                SnapshotPeerState::Silent | SnapshotPeerState::Unknown => {
                    return Err(Problem::conflict(format!(
                        "{name} does not answer, and may have {full}: nothing was deleted. Repeat \
                         the order when it is connected, or use --local-only"
                    )));
                }
            }
        }
        let outcome = Outcome::changed(format!("snapshot {full} is deleted on all nodes"))
            .losing(Some(format!("snapshot {full}")));
        if dry_run {
            return Ok(outcome);
        }
        let name = SnapshotName::new(own).ok_or_else(|| Problem::invalid("a long name"))?;
        // The peers first: after a crash, the order is repeated here. Also those whose list lacks
        // it, because the list may be older than a late end of the order that took it.
        for (place, peer) in leg.mirrored.peers().into_iter().enumerate() {
            match leg.mirror.delete_peer_snapshot(place, (id, name)).await {
                Ok(()) | Err(SnapshotObstacle::Refused(PeerRefusal::NoSnapshots)) => {}
                Err(why) => {
                    return Err(Problem::conflict(format!(
                        "{peer} did not delete {full}: {why}. This node keeps its own, and other \
                         peers may have deleted theirs: repeat the order"
                    )));
                }
            }
        }
        let deleted = leg.found.pool.delete_snapshot(&local).await;
        deleted.map_err(|error| problem(&leg.found.pool_name, error))?;
        tracing::info!("snapshot {full} was deleted on all nodes");
        Ok(outcome)
    }

    /// For each snapshot of a leg: its mirrored volume and, at the source, the peers that have it.
    pub(crate) async fn snapshot_places(
        &self,
        snapshots: &[(String, SnapshotInfo)],
    ) -> Vec<Option<SnapshotPlaces>> {
        let mut places: Vec<Option<SnapshotPlaces>> = snapshots.iter().map(|_| None).collect();
        let mut by_volume: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (at, (pool, info)) in snapshots.iter().enumerate() {
            if let Some(mirrored) = self.pools.mirrored(pool, volume_of(&info.name)) {
                by_volume.entry(mirrored.to_owned()).or_default().push(at);
            }
        }
        for (name, own) in by_volume {
            let mirrored = self.mirrors.borrow().iter().find(|one| one.name == name).cloned();
            let mirror = mirrored.as_ref().and_then(|mirrored| mirrored.mirror());
            let ids: Vec<SnapshotId> = own.iter().map(|at| id_of(&snapshots[*at].1)).collect();
            let peers = match (&mirrored, mirror.filter(Mirror::is_serving)) {
                (Some(mirrored), Some(mirror)) => peers_with(mirrored, &mirror, &ids).await,
                _ => ids.iter().map(|_| Vec::new()).collect(),
            };
            for (at, peers) in own.into_iter().zip(peers) {
                places[at] = Some(SnapshotPlaces { mirrored: name.clone(), peers });
            }
        }
        places
    }
}

/// Checks the peers, and that they are not busy.
async fn check(
    legs: &[MirroredLeg],
    id: PoolId,
    name: SnapshotName,
) -> Result<SnapshotPoint, Problem> {
    let mirrors = legs.iter().map(|leg| leg.mirror.clone()).collect();
    let point = SnapshotPoint::check(mirrors, SnapshotId(id.0), name).await;
    point.map_err(|error| refused(legs, error))
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
        SnapshotError::PeerLacks { why: SnapshotObstacle::Refused(PeerRefusal::NotNow), .. }
    );
    if is_undone && is_busy { Ok(None) } else { Err(refused(legs, error)) }
}

fn waits_of(legs: &[MirroredLeg], waiting: &[WaitingPeer]) -> String {
    let waits = |peer: &WaitingPeer| {
        let peer = legs[peer.volume].peer(peer.leg);
        format!("; {peer} takes it when it has the writes queued before it")
    };
    waiting.iter().map(waits).collect::<BTreeSet<String>>().into_iter().collect()
}

/// Answer to a repeated order.
async fn existing_everywhere(
    legs: &[MirroredLeg],
    own: &str,
    id: SnapshotId,
) -> Result<Outcome, Problem> {
    let mut waits = String::new();
    for leg in legs {
        let full = format!("{}@{own}", leg.name);
        for SnapshotPeer { name, state } in
            peers_with(&leg.mirrored, &leg.mirror, &[id]).await.into_iter().flatten()
        {
            match state {
                SnapshotPeerState::Present => {}
                SnapshotPeerState::Waiting => {
                    waits = format!("; {name} takes it when it has the writes queued before it");
                }
                SnapshotPeerState::Missing => {
                    return Err(Problem::conflict(format!(
                        "snapshot {full} exists on this node only, and {name} can no longer take \
                         the same: run flagstone snapshot delete {full}, then repeat the order"
                    )));
                }
                SnapshotPeerState::Silent | SnapshotPeerState::Unknown => {
                    return Err(Problem::conflict(format!(
                        "snapshot {full} exists on this node, and {name} does not say whether it \
                         has it: repeat the order when it is connected"
                    )));
                }
            }
        }
    }
    Ok(Outcome::unchanged(format!("the snapshot {own} exists already{waits}")))
}

/// Deletes the snapshots of this node, which a peer lacks.
///
/// # Errors
/// What is left.
async fn delete_own(legs: &[MirroredLeg], own: &str, id: PoolId) -> Result<(), Problem> {
    for leg in legs.iter().filter(|leg| leg.existing(own).is_some_and(|found| found.id == id)) {
        let full = leg.full(own);
        if let Err(error) = leg.found.pool.delete_snapshot(&full).await {
            let name = &leg.name;
            return Err(Problem::conflict(format!(
                "no peer took snapshot {own} of {name}, and this node did not delete its own: \
                 {error}. Run flagstone snapshot delete {name}@{own}, then repeat the order"
            )));
        }
    }
    Ok(())
}

fn no_mirrored() -> Problem {
    Problem::invalid("--local-only is for snapshots of mirrored volumes: leave it out")
}

fn not_serving(name: &str) -> Problem {
    Problem::conflict(format!(
        "this node does not serve mirrored volume {name}: run the order at its source, which \
         flagstone mirror status {name} names, or use --local-only"
    ))
}

/// What to do about a peer that takes no snapshot.
fn way_out(why: SnapshotObstacle) -> &'static str {
    match why {
        SnapshotObstacle::Refused(PeerRefusal::SnapshotExists) => {
            "see flagstone snapshot list there, and delete that snapshot there with \
             flagstone snapshot delete --local-only, or choose another name"
        }
        _ => "repeat the order later, or use --local-only for this node alone",
    }
}

fn refused(legs: &[MirroredLeg], error: SnapshotError<VolumeError>) -> Problem {
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
            "{} took no snapshot of {1}: {why}. This node has its own, and other peers may: run \
             flagstone snapshot delete for each volume of the order, then repeat it",
            legs[volume].peer(leg),
            legs[volume].name
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
