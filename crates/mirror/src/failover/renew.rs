//! Renewals: a source asks its attached peer to wait, and says whether it may ask the arbiter at all.
//! The peer records that durably, and confirms.

use std::sync::Arc;
use std::time::Duration;

use flagstone_runtime::time;

use crate::mirror::{Inner, State, StateGuard};
use crate::ondisk::superblock::{ArbiterMark, RecordedStanding};
use crate::wire::peer::{
    Offer, PeerAnswer, PeerRefusal, PeerReply, PeerRequest, SharedSession, execute,
};

impl Inner {
    /// What the peer of this session may do when this node is lost.
    pub(super) fn offer(&self, state: &State, leg: usize, session_id: u64) -> Offer {
        let current = state.published.filter(|published| published.session_id == session_id);
        let Some(published) = current else { return Offer::Unrecorded };
        let (_, lag_ns) = self.legs[leg].queue().lag(Inner::now_ns());
        match self.failover.max_lag() {
            _ if self.failover.is_suspended() => Offer::Suspended,
            Some(max) if u128::from(lag_ns) > max.as_nanos() => Offer::Lagging,
            _ => Offer::Recorded { revision: published.revision },
        }
    }
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
        let sent_ns = Inner::now_ns();
        let offer = inner.offer(&inner.lock(), leg, session_id);
        if let Err(error) = execute(&session, PeerRequest::Renew { offer }).await {
            tracing::debug!(replica = %inner.local.superblock().replica, "not renewed: {error}");
            return inner.disconnect(leg, session_id);
        }
        inner.renewed(sent_ns);
        let news = |state: &mut StateGuard<'_>| {
            (inner.offer(state, leg, session_id) != offer).then_some(())
        };
        let _ = time::timeout(interval, inner.wait(news)).await;
    }
}

impl Inner {
    /// Answers [`PeerRequest::Renew`] of the attached source.
    pub(crate) async fn renew(&self, offer: Offer) -> PeerAnswer {
        if !self.failover.is_automatic() {
            return Ok(PeerReply::Done);
        }
        let before = self.local.superblock();
        let in_sync = self.lock().counted_in_sync && !before.flags.inconsistent;
        let mark = match offer {
            Offer::Recorded { revision } if revision < before.arbiter.revision => {
                return Err(PeerRefusal::Changed);
            }
            Offer::Recorded { revision } if in_sync => {
                ArbiterMark { revision, standing: RecordedStanding::InSync }
            }
            _ => ArbiterMark { standing: RecordedStanding::Unknown, ..before.arbiter },
        };
        if before.arbiter != mark {
            self.store_mark(mark).await.map_err(|_| PeerRefusal::Failed)?;
        }
        *self.failover.offer.lock() = Some(offer);
        *self.failover.denial.lock() = None;
        self.failover.answered();
        Ok(PeerReply::Done)
    }
}
