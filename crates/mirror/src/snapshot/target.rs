//! Snapshots at the target. The source has sent everything that the snapshot contains, and holds
//! everything after it, until the answer.

use std::sync::Arc;

use crate::agree::versions::LinkVersion;
use crate::io::request::RunToCompletion;
use crate::mirror::Inner;
use crate::session::target::SourceCall;
use crate::wire::peer::{PeerAnswer, PeerRefusal, PeerReply};
use crate::wire::snapshot::{SnapshotAction, SnapshotId, SnapshotRequest};

/// Answers an order of the attached source. The taking counts as a call of its session until it has
/// ended on the device, even if its connection ends: no later source may write meanwhile. Other
/// orders do not depend on the content, so an attachment does not wait for them.
pub(crate) async fn answer(
    inner: &Arc<Inner>,
    served: SourceCall,
    request: SnapshotRequest,
) -> PeerAnswer {
    inner.check_speaks_snapshots()?;
    if request.action != SnapshotAction::Take {
        drop(served);
        return inner.order_snapshot(request).await;
    }
    let inner = inner.clone();
    let work = RunToCompletion::new(async move {
        let _served = served;
        Ok(inner.order_snapshot(request).await)
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
        let needs_content = matches!(request.action, SnapshotAction::Check | SnapshotAction::Take);
        if needs_content && self.local.superblock().flags.inconsistent {
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
    pub(crate) async fn snapshot_ids(&self, after: SnapshotId) -> PeerAnswer {
        self.check_speaks_snapshots()?;
        let snapshots = self.leg_snapshots.get().ok_or(PeerRefusal::NoSnapshots)?;
        let found = snapshots.ids(after).await;
        let ids = found.unwrap_or(Err(PeerRefusal::SnapshotFailed))?;
        Ok(PeerReply::SnapshotIds(ids))
    }
}
