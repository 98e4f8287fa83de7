//! Renewals: a source asks its attached peer not to ask the arbiter yet, and reports whether the
//! peer may ask it at all. The peer records this durably, and confirms.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use flagstone_arbiter::RecordStamp;
use flagstone_runtime::time;

use crate::failover::StoreProof;
use crate::mirror::{Inner, State, StateGuard};
use crate::ondisk::superblock::{ArbiterMark, RecordedRight};
use crate::state::arbitration::{PeerExclusion, ServingRight};
use crate::state::outlook::Obstacle;
use crate::wire::peer::{
    LossPermission, PeerAnswer, PeerRefusal, PeerReply, PeerRequest, SharedSession,
};

impl Inner {
    /// Offer to the peer of this session for the loss of this node.
    pub(super) fn offer(&self, state: &State, session_id: u64) -> LossPermission {
        let current = state.published.filter(|published| published.session_id == session_id);
        match (self.local.superblock().arbiter.suspended, current) {
            // Also before the record has the suspension: the peer must know of it in case it
            // becomes the source.
            (true, _) => LossPermission::Suspended,
            (false, Some(_)) if self.is_peer_behind(state) => LossPermission::Behind,
            (false, Some(published)) => LossPermission::Recorded(published.record),
            (false, None) => LossPermission::Unrecorded { asks: self.asks(state) },
        }
    }

    /// Revision of the record that this node has seen, if it, or the source that it is about to
    /// become, runs degraded only with a grant of the arbiter that the peer uses, as far as this
    /// node knows. After a change of the store, it is above all revisions of the former one.
    pub(crate) fn asks(&self, state: &State) -> Option<u64> {
        let allowed = match state.serving_right {
            // A grant is recorded, and excludes the peer.
            ServingRight::Contested { .. }
            | ServingRight::Alone(PeerExclusion::Recorded { .. }) => true,
            ServingRight::Manual | ServingRight::Alone(_) => false,
        };
        let mark = self.local.superblock().arbiter;
        let asks = self.failover.is_automatic()
            && !self.is_recorded_elsewhere()
            && (allowed || !state.serving);
        asks.then_some(mark.revision)
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
        let sent_ns = Inner::boot_ns();
        let offer = inner.offer(&inner.lock(), session_id);
        // After `sent_ns`, from which the lease is counted: see [`super::lag`].
        let lag_ms = inner.peer_lag_ms();
        // A write that fails ends the session before it leaves the queue.
        if !inner.lock().legs[leg].is_current(session_id) {
            return;
        }
        let failover_after_ms = inner.failover.after_ms();
        let request = PeerRequest::Renew { offer, failover_after_ms, lag_ms };
        let answer = session.ask(request).await;
        let Ok(Ok(PeerReply::Renewed(report))) = answer else {
            tracing::debug!(replica = %inner.local.superblock().replica, "not renewed: {answer:?}");
            return inner.disconnect(leg, session_id);
        };
        *inner.failover.peer_report.lock() = report;
        inner.renewed(sent_ns);
        let news =
            |state: &mut StateGuard<'_>| (inner.offer(state, session_id) != offer).then_some(());
        let _ = time::timeout(interval, inner.wait(news)).await;
    }
}

impl Inner {
    /// Answers [`PeerRequest::Renew`] of the attached source.
    pub(crate) async fn renew(
        &self,
        offer: LossPermission,
        failover_after_ms: u32,
        lag_ms: u32,
    ) -> PeerAnswer {
        if !self.failover.is_automatic() {
            return Ok(PeerReply::Renewed(Some(Obstacle::Manual)));
        }
        let before = self.local.superblock();
        // A source in asynchronous mode always reports a lag.
        let knows_limit = lag_ms == 0 || self.failover.is_asynchronous();
        let in_sync = knows_limit && self.lock().counted_in_sync && !before.flags.inconsistent;
        if let LossPermission::Recorded(record) = offer
            && record.revision < before.arbiter.revision
        {
            return Err(PeerRefusal::Changed);
        }
        // Only the leader of a group reads the record.
        let (reads, own_store) = (self.asks_arbiter(), self.failover.store());
        let before_proof = self.failover.proof();
        let proof = self.failover.change_proof(|before| match offer {
            LossPermission::Recorded(record) if in_sync && reads => before.recorded(record),
            // The record still lists this target.
            LossPermission::Behind if in_sync => before,
            _ => StoreProof::NotNeeded,
        });
        if proof != before_proof {
            self.failover.recorded_ns.store(Inner::boot_ns(), Ordering::Release);
        }
        let proof_at_write = self.failover.proof.clone();
        let mark = move |before: ArbiterMark| {
            let known = ArbiterMark { source_after_ms: failover_after_ms, ..before };
            let serving_right = RecordedRight::Unknown;
            match offer {
                LossPermission::Recorded(RecordStamp { revision, .. }) if in_sync => {
                    // Not before the target's task has seen the record at the arbiter: see
                    // [`StoreProof`].
                    let serving_right = match reads {
                        false => RecordedRight::InSync,
                        true if proof_at_write.lock().is_given() => before.serving_right,
                        true => RecordedRight::Unknown,
                    };
                    let store = if reads { before.store } else { own_store };
                    ArbiterMark { revision, serving_right, suspended: false, store, ..known }
                }
                LossPermission::Recorded(_) => {
                    ArbiterMark { serving_right, suspended: false, ..known }
                }
                LossPermission::Suspended => {
                    ArbiterMark { serving_right, suspended: true, ..known }
                }
                // Until its lag is proven, a target does not use its right: see [`super::lag`].
                LossPermission::Behind if knows_limit => known,
                LossPermission::Behind => ArbiterMark { serving_right, ..known },
                LossPermission::Unrecorded { asks } => {
                    ArbiterMark { serving_right, ..known.asked_by(asks) }
                }
            }
        };
        self.store_mark(mark).await.map_err(|_| PeerRefusal::Failed)?;
        let was_behind = self.failover.is_behind();
        let proven = (offer != LossPermission::Behind).then_some(lag_ms);
        self.failover.note_lag(proven, failover_after_ms);
        let after_ms = u64::from(failover_after_ms);
        if self.failover.lease.set_source_after(after_ms) != after_ms {
            self.warn_about_other_time(after_ms);
        }
        let usable = if knows_limit { offer } else { LossPermission::Behind };
        if self.failover.offer.lock().replace(usable) != Some(usable) && !knows_limit {
            let replica = self.local.superblock().replica;
            tracing::warn!(
                %replica,
                "the source is asynchronous, and this node has no failover_max_lag: it does not take \
                 over; write the same mode and failover_max_lag on both nodes"
            );
        }
        self.failover.answered();
        let obstacle = self.failover_obstacle();
        if before.arbiter.serving_right != self.local.superblock().arbiter.serving_right
            || before_proof != proof
            || was_behind != self.failover.is_behind()
        {
            // Wakes the task that watches the record.
            self.change(|_| {});
        }
        Ok(PeerReply::Renewed(obstacle))
    }

    fn warn_about_other_time(&self, source_after_ms: u64) {
        let own_ms = self.failover.after_ms();
        if source_after_ms != u64::from(own_ms) {
            let replica = self.local.superblock().replica;
            tracing::warn!(
                %replica,
                "failover_after is {source_after_ms} ms on the source and {own_ms} ms here: the longer one counts"
            );
        }
    }
}
