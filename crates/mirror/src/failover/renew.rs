//! Renewals: a source asks its attached peer to wait, and the peer confirms.

use std::sync::Arc;
use std::time::Duration;

use flagstone_runtime::time;

use crate::mirror::{Inner, State, StateGuard};
use crate::ondisk::superblock::{ArbiterMark, RecordedStanding};
use crate::wire::peer::{PeerAnswer, PeerRefusal, PeerReply, PeerRequest, SharedSession, execute};

/// Revision under which the peer of this session is recorded as in sync; 0 if it is not.
fn published(state: &State, session_id: u64) -> u64 {
    let current = state.published.filter(|published| published.session_id == session_id);
    current.map_or(0, |published| published.revision)
}

/// Renews the lease until the session ends.
pub(crate) async fn keep_renewed(
    inner: Arc<Inner>,
    leg: usize,
    session: SharedSession,
    session_id: u64,
) {
    let interval = Duration::from_nanos(inner.failover.timing().renew_ns());
    loop {
        let (sent_ns, revision) = (Inner::now_ns(), published(&inner.lock(), session_id));
        if let Err(error) = execute(&session, PeerRequest::Renew { revision }).await {
            tracing::debug!(replica = %inner.local.superblock().replica, "not renewed: {error}");
            return inner.disconnect(leg, session_id);
        }
        inner.renewed(sent_ns);
        let news =
            |state: &mut StateGuard<'_>| (published(state, session_id) != revision).then_some(());
        let _ = time::timeout(interval, inner.wait(news)).await;
    }
}

impl Inner {
    /// Answers [`PeerRequest::Renew`] of the attached source.
    pub(crate) async fn renew(&self, revision: u64) -> PeerAnswer {
        let mark = ArbiterMark { revision, standing: RecordedStanding::InSync };
        let before = self.local.superblock();
        let in_sync = self.lock().counted_in_sync && !before.flags.inconsistent;
        if revision > 0 && in_sync && self.failover.is_automatic() && before.arbiter != mark {
            if revision < before.arbiter.revision {
                return Err(PeerRefusal::Changed);
            }
            self.store_mark(mark).await.map_err(|_| PeerRefusal::Failed)?;
        }
        self.failover.answered();
        Ok(PeerReply::Done)
    }
}
