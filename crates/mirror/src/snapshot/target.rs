//! Snapshots at the target: in the order of writes of an asynchronous session, and at once in a
//! synchronous one, whose source holds its writes.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::agree::versions::LinkVersion;
use crate::io::reorder::ReorderBuffer;
use crate::io::request::RunToCompletion;
use crate::mirror::Inner;
use crate::session::target::{SourceCall, wait_in_order};
use crate::wire::peer::{PeerAnswer, PeerRefusal, PeerReply};
use crate::wire::snapshot::{SnapshotAction, SnapshotRequest};

/// Answers an order of the attached source. The taking counts as a call of its session until it has
/// ended on the device, even if its connection ends: no later source may write meanwhile. Other
/// orders do not depend on the content, so an attachment does not wait for them.
pub(crate) async fn answer(
    inner: &Arc<Inner>,
    served: SourceCall,
    (reorder, session): (Arc<Mutex<ReorderBuffer>>, u64),
    request: SnapshotRequest,
) -> PeerAnswer {
    inner.check_speaks_snapshots()?;
    let order = match request.action {
        SnapshotAction::Take { order } => order,
        SnapshotAction::Check | SnapshotAction::Delete => {
            drop(served);
            return inner.order_snapshot(request).await;
        }
    };
    if let Some(order) = order {
        reorder.lock().arrived(order).map_err(|_| PeerRefusal::Range)?;
        let turn = wait_in_order(inner, &reorder, session, order).await;
        turn.map_err(|_| PeerRefusal::NotAttached)?;
    }
    let inner = inner.clone();
    let work = RunToCompletion::new(async move {
        let _served = served;
        let done = inner.order_snapshot(request).await;
        if let Some(order) = order {
            // Also after a refusal: later writes do not depend on the snapshot.
            let _ = reorder.lock().completed(order.number);
            while let Some(waker) = { reorder.lock().next_to_wake() } {
                waker.wake();
            }
        }
        Ok(done)
    });
    work.await.unwrap_or(Err(PeerRefusal::SnapshotFailed))
}

impl Inner {
    fn check_speaks_snapshots(&self) -> Result<(), PeerRefusal> {
        match self.versions.highest() < LinkVersion::SNAPSHOTS {
            true => Err(PeerRefusal::Version),
            false => Ok(()),
        }
    }

    async fn order_snapshot(&self, request: SnapshotRequest) -> PeerAnswer {
        let deletes = request.action == SnapshotAction::Delete;
        if !deletes && self.local.superblock().flags.inconsistent {
            return Err(PeerRefusal::Inconsistent);
        }
        let snapshots = self.leg_snapshots.get().ok_or(PeerRefusal::NoSnapshots)?;
        let done = snapshots.order(request).await;
        done.unwrap_or_else(|error| {
            let replica = self.local.superblock().replica;
            tracing::error!(%replica, "snapshot {:?} of the source failed: {error}", request.name);
            Err(PeerRefusal::SnapshotFailed)
        })?;
        Ok(PeerReply::Done)
    }

    /// Answers a request for the identifiers.
    pub(crate) async fn snapshot_ids(&self, page: u64) -> PeerAnswer {
        self.check_speaks_snapshots()?;
        let snapshots = self.leg_snapshots.get().ok_or(PeerRefusal::NoSnapshots)?;
        let found = snapshots.ids(page).await;
        let ids = found.unwrap_or(Err(PeerRefusal::SnapshotFailed))?;
        Ok(PeerReply::SnapshotIds(ids))
    }
}
