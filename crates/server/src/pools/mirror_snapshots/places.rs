//! Places of snapshots of mirrored volumes: the nodes that have them.

use std::collections::{BTreeMap, BTreeSet};

use flagstone_mirror::Mirror;
use flagstone_mirror::snapshot::source::{MarkerState, SnapshotObstacle};
use flagstone_mirror::wire::peer::PeerRefusal;
use flagstone_mirror::wire::snapshot::SnapshotId;
use flagstone_pool::SnapshotInfo;
use flagstone_runtime::{JoinHandle, spawn, time};

use super::super::snapshot_orders::volume_of;
use super::id_of;
use crate::api::pool_document::SnapshotPeerState;
use crate::limits::PEER_SNAPSHOTS_TIMEOUT;
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

type Listed = Result<BTreeSet<SnapshotId>, SnapshotObstacle>;

/// A peer that was asked for its list.
struct AskedPeer {
    name: String,
    /// Snapshots that it took later when it was asked: its list may lack them.
    waiting: BTreeSet<SnapshotId>,
    list: JoinHandle<Listed>,
}

impl AskedPeer {
    fn ask(mirror: &Mirror, (leg, name): (usize, String), ids: &[SnapshotId]) -> AskedPeer {
        let waits =
            |id: &SnapshotId| mirror.snapshot_marker(*id, leg) == Some(MarkerState::Waiting);
        let waiting = ids.iter().copied().filter(waits).collect();
        let mirror = mirror.clone();
        AskedPeer { name, waiting, list: spawn(async move { mirror.peer_snapshots(leg).await }) }
    }

    fn state(&self, id: SnapshotId, listed: &Option<Listed>) -> SnapshotPeerState {
        match listed {
            Some(Ok(listed)) if listed.contains(&id) => SnapshotPeerState::Present,
            _ if self.waiting.contains(&id) => SnapshotPeerState::Waiting,
            Some(Ok(_) | Err(SnapshotObstacle::Refused(PeerRefusal::NoSnapshots))) => {
                SnapshotPeerState::Missing
            }
            Some(Err(_)) | None => SnapshotPeerState::Silent,
        }
    }
}

impl Server {
    /// For each snapshot of a leg: its mirrored volume and, at the source, the peers that have it.
    /// All peers of all volumes are waited for together.
    pub(crate) async fn snapshot_places(
        &self,
        snapshots: &[(String, SnapshotInfo)],
    ) -> Vec<Option<SnapshotPlaces>> {
        let mut places: Vec<Option<SnapshotPlaces>> = snapshots.iter().map(|_| None).collect();
        let mut by_volume: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (at, (pool, info)) in snapshots.iter().enumerate() {
            if let Some(mirrored) = self.pools.mirrored(pool, volume_of(&info.name)) {
                let mirrored = mirrored.to_owned();
                places[at] = Some(SnapshotPlaces { mirrored: mirrored.clone(), peers: Vec::new() });
                by_volume.entry(mirrored).or_default().push(at);
            }
        }
        let mut asked: Vec<(&[usize], AskedPeer)> = Vec::new();
        for (name, own) in &by_volume {
            let mirrors = self.mirrors.borrow();
            let mirrored = mirrors.iter().find(|one| one.name == *name);
            let mirror = mirrored.and_then(|one| Some((one.mirror()?, one.peers())));
            let Some((mirror, peers)) = mirror.filter(|(mirror, _)| mirror.is_serving()) else {
                continue;
            };
            let ids: Vec<SnapshotId> = own.iter().map(|at| id_of(&snapshots[*at].1)).collect();
            let of_volume = peers.into_iter().enumerate();
            asked.extend(of_volume.map(|peer| (&own[..], AskedPeer::ask(&mirror, peer, &ids))));
        }
        let begun = time::now();
        for (own, mut peer) in asked {
            let left = PEER_SNAPSHOTS_TIMEOUT.saturating_sub(begun.elapsed());
            let listed = time::timeout(left, &mut peer.list).await.ok().and_then(Result::ok);
            if listed.is_none() {
                peer.list.abort();
            }
            for at in own {
                let state = peer.state(id_of(&snapshots[*at].1), &listed);
                if let Some(places) = &mut places[*at] {
                    places.peers.push(SnapshotPeer { name: peer.name.clone(), state });
                }
            }
        }
        places
    }
}
