//! Split brain: automatic resolution by policy.
//!
//! The only policy keeps the data that hosts are using. A replica that serves no hosts discards its
//! data in favor of a peer that serves, as if its own operator had ordered it. Each side decides
//! only about its own data, by its own configuration.
//!
//! Guarantees:
//! - at most one side discards its data. A node that is about to discard serves no hosts. It takes
//!   the role lock, so that it cannot start to serve, and queries its peer again. It continues only
//!   if the peer reports that it is serving, and it stays out of service until the following resync
//!   completes;
//! - the policy applies only where both logs name all differences. Otherwise more is wrong than a
//!   split brain, and the operator decides. The operator also decides when both sides serve or
//!   served until one was deposed, when neither serves, and with several peers.

use std::sync::Arc;

use crate::agree::plan::{HandshakePlan, plan};
use crate::id::Generation;
use crate::mirror::{Inner, count};
use crate::ondisk::superblock::ReplicaRole;
use crate::options::AfterSplitBrain;
use crate::session::connect::SessionEnd;
use crate::state::machine::Resolution;
use crate::wire::peer::{ReplicaIdentity, RequestError, SharedSession, identify};

/// Generation from which both sides continued, each with a log of its later changes.
pub(crate) fn common(mine: &ReplicaIdentity, peers: &ReplicaIdentity) -> Generation {
    let theirs = &peers.view.generations.bases;
    let found = mine.view.generations.bases.iter().find(|base| theirs.contains(*base));
    found.unwrap_or(Generation::NONE)
}

/// Generation to fall back to if this side must discard its data by policy; `None` otherwise.
pub(crate) fn discards_for(
    policy: AfterSplitBrain,
    mine: &ReplicaIdentity,
    peers: &ReplicaIdentity,
) -> Option<Generation> {
    let split = plan(mine, peers) == HandshakePlan::SplitBrain;
    if policy != AfterSplitBrain::KeepServing || !split || mine.is_serving || !peers.is_serving {
        return None;
    }
    // Both served at the same time, so hosts used both: the operator decides.
    if mine.role == ReplicaRole::Deposed {
        return None;
    }
    // Each side claims to continue from the other's data, which no valid history allows.
    let (a, b) = (&mine.view.generations, &peers.view.generations);
    let knows = a.knows(b.current) || b.knows(a.current);
    let base = common(mine, peers);
    (!knows && !base.is_none()).then_some(base)
}

impl Inner {
    /// Discards the local data by policy. False if the policy does not apply.
    pub(crate) async fn discard_by_policy(
        self: &Arc<Self>,
        leg: usize,
        session: &SharedSession,
        peers: &ReplicaIdentity,
    ) -> Result<bool, SessionEnd> {
        let policy = self.legs[leg].options().after_split_brain;
        if self.legs.len() > 1
            || discards_for(policy, &self.identity(peers.view.replica), peers).is_none()
        {
            return Ok(false);
        }
        // Visible to the peer before it is asked whether it discards its own data.
        let begun = self.begin_resolution(Resolution::Discards);
        let _resolution = begun.map_err(|_| SessionEnd::Changed)?;
        // No change of role can start here from now on, so the peer's next answer is decisive.
        let _role_change = self.begin_role_change().await;
        let replica = self.local.superblock().replica;
        let peers = identify(session, replica, self.versions).await?;
        let mine = self.identity(peers.view.replica);
        let attached = self.lock().attached.is_some();
        let base =
            discards_for(policy, &mine, &peers).filter(|_| !attached && !peers.is_discarding);
        let base = base.ok_or(SessionEnd::Changed)?;
        let bytes = self.changed_bytes();
        self.record_unused(ReplicaRole::Target, None).await.map_err(SessionEnd::Local)?;
        let discarded = self.discard_data_locked(base, mine.view.generations.current).await;
        discarded.map_err(|refusal| SessionEnd::Peer(RequestError::Refused(refusal)))?;
        count(&self.legs[leg].counters.discards, 1);
        count(&self.legs[leg].counters.discarded_bytes, bytes);
        tracing::warn!(
            %replica,
            peer = %peers.view.replica,
            bytes,
            "split brain: the peer serves hosts and this side does not; discarded the data written \
             only here, as `after_split_brain` says"
        );
        Ok(true)
    }

    /// Upper bound of the data written here without the peer, in bytes.
    fn changed_bytes(&self) -> u64 {
        let geometry = self.local.superblock().geometry;
        let ones = |index: u64| u64::from(self.local.word(index).count_ones());
        let bits: u64 = (0..geometry.bits().div_ceil(64)).map(ones).sum();
        bits * u64::from(geometry.bit_bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::agree::decide::ReplicaView;
    use crate::agree::generation::{GenerationHistory, GenerationList};
    use crate::agree::versions::LinkVersions;
    use crate::id::MirrorId;

    fn identity(replica: u8, current: u64, bases: &[u64], is_serving: bool) -> ReplicaIdentity {
        let mut generations =
            GenerationHistory { current: Generation(current), ..GenerationHistory::default() };
        for (place, base) in generations.bases.0.iter_mut().zip(bases) {
            *place = Generation(*base);
        }
        let view = ReplicaView {
            volume: MirrorId([1; 16]),
            replica: MirrorId([replica; 16]),
            usable_bytes: 1 << 20,
            bit_bytes: 65536,
            serving: is_serving,
            generations,
            ..ReplicaView::default()
        };
        let role = if is_serving { ReplicaRole::Source } else { ReplicaRole::Target };
        ReplicaIdentity {
            view,
            role,
            is_serving,
            volatile_cache: true,
            is_discarding: false,
            has_source: false,
            keeps_reservations: false,
            versions: LinkVersions::SPOKEN,
        }
    }

    const KEEP: AfterSplitBrain = AfterSplitBrain::KeepServing;

    #[test]
    fn idle_side_discards_for_serving_side() {
        let rests = identity(1, 7, &[5], false);
        let serves = identity(2, 6, &[5], true);
        assert_eq!(discards_for(KEEP, &rests, &serves), Some(Generation(5)));
        assert_eq!(discards_for(KEEP, &serves, &rests), None, "the serving side keeps its data");
        assert_eq!(discards_for(AfterSplitBrain::Manual, &rests, &serves), None);
    }

    #[test]
    fn other_split_brains_are_left_to_operator() {
        let rests = identity(1, 7, &[5], false);
        for (mine, peers) in [
            (identity(1, 7, &[5], true), identity(2, 6, &[5], true)),
            (rests, identity(2, 6, &[5], false)),
            // Each continued from the other.
            (identity(1, 7, &[6, 5], false), identity(2, 6, &[7, 5], true)),
            // Not a split brain: the peer's data replaces the local data without loss.
            (identity(1, 5, &[], false), identity(2, 6, &[5], true)),
            (rests, identity(2, 9, &[8], true)),
        ] {
            assert_eq!(discards_for(KEEP, &mine, &peers), None, "{mine:?} {peers:?}");
        }
        // The common generation is only in the histories, so no log names the differences.
        let mut old = identity(1, 7, &[], false);
        old.view.generations.history = GenerationList::default();
        old.view.generations.history.0[0] = Generation(5);
        let peers = identity(2, 6, &[5], true);
        assert_eq!(plan(&old, &peers), HandshakePlan::SplitBrain);
        assert_eq!(discards_for(KEEP, &old, &peers), None);
    }

    proptest! {
        #[test]
        fn only_a_side_that_does_not_serve_discards(
            mine in (0u64..5, prop::collection::vec(0u64..5, 0..3), any::<bool>()),
            peers in (0u64..5, prop::collection::vec(0u64..5, 0..3), any::<bool>()),
        ) {
            let mine = identity(1, mine.0, &mine.1, mine.2);
            let peers = identity(2, peers.0, &peers.1, peers.2);
            let both = [discards_for(KEEP, &mine, &peers), discards_for(KEEP, &peers, &mine)];
            prop_assert!(both.iter().flatten().count() <= 1);
            prop_assert!(both[0].is_none() || !mine.is_serving && peers.is_serving);
        }
    }
}
