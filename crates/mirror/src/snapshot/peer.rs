//! Questions and orders about one peer's snapshots, at the source.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use flagstone_runtime::time;

use crate::limits::{SNAPSHOT_PAGE_MS, SNAPSHOT_PAGES_MAX, SNAPSHOTS_PER_PAGE};
use crate::mirror::Mirror;
use crate::snapshot::LegSnapshots;
use crate::snapshot::marker::MarkerState;
use crate::snapshot::source::{SnapshotObstacle, ask_until_free, obstacle};
use crate::wire::peer::{PeerRefusal, PeerReply, PeerRequest, RequestError, SharedSession};
use crate::wire::snapshot::{SnapshotAction, SnapshotId, SnapshotName, SnapshotRequest};

/// Whether a peer has a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerSnapshot {
    /// It has.
    Present,
    /// It has, and cannot delete it.
    InUse,
    /// It takes the snapshot when it has the writes queued before it.
    Waiting,
    /// It has not, and takes none of this identifier later.
    Missing,
}

impl Mirror {
    /// Sets what takes snapshots of the local device. The first call decides.
    pub fn set_leg_snapshots(&self, snapshots: Arc<dyn LegSnapshots>) {
        let _ = self.0.leg_snapshots.set(snapshots);
    }

    /// State of a snapshot at an asynchronous peer, if it was taken by this mirror recently.
    pub fn snapshot_marker(&self, id: SnapshotId, leg: usize) -> Option<MarkerState> {
        self.0.lock().markers.state(id, leg)
    }

    /// The session of an attached peer that knows snapshots.
    fn snapshot_session(&self, leg: usize) -> Result<SharedSession, SnapshotObstacle> {
        let state = self.0.lock();
        // A mirror that was replaced meanwhile may have fewer legs than its volume has peers.
        let own = state.legs.get(leg).ok_or(SnapshotObstacle::Silent)?;
        let session = own.session.clone().filter(|_| own.receives_writes);
        let session = session.ok_or(SnapshotObstacle::NotInSync(own.phase))?;
        match self.0.speaks_snapshots(own) {
            true => Ok(session),
            false => Err(SnapshotObstacle::Version),
        }
    }

    /// Identifiers of all snapshots of an attached peer's device.
    ///
    /// # Errors
    /// See [`SnapshotObstacle`]; never an incomplete list.
    pub async fn peer_snapshots(
        &self,
        leg: usize,
    ) -> Result<BTreeSet<SnapshotId>, SnapshotObstacle> {
        let session = self.snapshot_session(leg)?;
        let mut found = BTreeSet::new();
        for _ in 0..SNAPSHOT_PAGES_MAX {
            // A snapshot that comes or goes meanwhile does not move the others to another page.
            let after = found.last().copied().unwrap_or(SnapshotId::NONE);
            let page = session.ask(PeerRequest::SnapshotIds { after });
            let page = time::timeout(Duration::from_millis(SNAPSHOT_PAGE_MS), page).await;
            let ids = match page.map_err(|_| SnapshotObstacle::Silent)? {
                Ok(Ok(PeerReply::SnapshotIds(ids))) => ids,
                Ok(Err(refusal)) => return Err(obstacle(RequestError::Refused(refusal))),
                Ok(Ok(_)) | Err(_) => return Err(SnapshotObstacle::Silent),
            };
            if !std::iter::once(&after).chain(&ids).is_sorted_by(|one, next| one < next) {
                return Err(SnapshotObstacle::Silent);
            }
            let is_last = ids.len() < SNAPSHOTS_PER_PAGE;
            found.extend(ids);
            if is_last {
                return Ok(found);
            }
        }
        Err(SnapshotObstacle::Silent)
    }

    /// Whether a peer has a snapshot: of this identifier, or of this name for
    /// [`SnapshotId::NONE`].
    ///
    /// # Errors
    /// See [`SnapshotObstacle`].
    pub async fn find_peer_snapshot(
        &self,
        leg: usize,
        (id, name): (SnapshotId, SnapshotName),
    ) -> Result<PeerSnapshot, SnapshotObstacle> {
        use PeerRefusal::{SnapshotInUse, SnapshotMissing};
        // Before the question: a snapshot that it takes meanwhile may be missing in the answer.
        if self.0.lock().markers.awaits(name, leg) {
            return Ok(PeerSnapshot::Waiting);
        }
        match self.order_peer(leg, (id, name), SnapshotAction::Find).await {
            Ok(()) => Ok(PeerSnapshot::Present),
            Err(SnapshotObstacle::Refused(SnapshotInUse)) => Ok(PeerSnapshot::InUse),
            Err(SnapshotObstacle::Refused(SnapshotMissing)) => Ok(PeerSnapshot::Missing),
            Err(why) => Err(why),
        }
    }

    /// Deletes a snapshot from an attached peer's device, if it exists there: of this identifier,
    /// or of this name for [`SnapshotId::NONE`].
    ///
    /// # Errors
    /// See [`SnapshotObstacle`].
    pub async fn delete_peer_snapshot(
        &self,
        leg: usize,
        snapshot: (SnapshotId, SnapshotName),
    ) -> Result<(), SnapshotObstacle> {
        match self.order_peer(leg, snapshot, SnapshotAction::Delete).await {
            Err(SnapshotObstacle::Refused(PeerRefusal::NoSnapshots)) => Ok(()),
            answer => answer,
        }
    }

    async fn order_peer(
        &self,
        leg: usize,
        (id, name): (SnapshotId, SnapshotName),
        action: SnapshotAction,
    ) -> Result<(), SnapshotObstacle> {
        let session = self.snapshot_session(leg)?;
        let wait_ms = self.0.snapshot_wait_ms(leg);
        ask_until_free(&session, SnapshotRequest { id, name, action, wait_ms }).await
    }
}
