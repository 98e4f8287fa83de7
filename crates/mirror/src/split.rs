//! A split brain that ends without the operator, where a policy says so.
//!
//! The one policy that there is keeps what hosts use: of two that meet in split brain the one that
//! serves nobody gives its data up for that of the one that serves, as if its operator had said so.
//! It decides for itself, by its own configuration; nobody decides for another.
//!
//! Promises:
//! - never both: who gives up serves nobody from before it asks the peer a second time until it is
//!   durable, and the peer said then that it serves; one that has given up serves no more, so the
//!   peer does not hear that of it;
//! - only where both logs name all differences: else there is more wrong than a split, and it stays
//!   with the operator. So it does when both serve, or neither, and with several peers.

use std::sync::Arc;

use crate::connect::Ended;
use crate::format::superblock::Role;
use crate::id::Generation;
use crate::mirror::{Inner, count};
use crate::options::WhenSplit;
use crate::peer::{About, AskError, SharedSession, identify};
use crate::plan::{Plan, plan};

/// A generation that both went on from, each with a log of what it did since.
pub(crate) fn common(mine: &About, peers: &About) -> Generation {
    let theirs = &peers.view.lineage.bases;
    let found = mine.view.lineage.bases.iter().find(|base| theirs.contains(*base));
    found.unwrap_or(Generation::NONE)
}

/// What we are to go back to for the peer's data, if that is for us to do without being told.
pub(crate) fn gives_up(policy: WhenSplit, mine: &About, peers: &About) -> Option<Generation> {
    let split = plan(mine, peers) == Plan::SplitBrain;
    if policy != WhenSplit::KeepServing || !split || mine.active || !peers.active {
        return None;
    }
    // Each says that it went on from the other's data: no history does that.
    let (a, b) = (&mine.view.lineage, &peers.view.lineage);
    let knows = a.knows(b.current) || b.knows(a.current);
    let base = common(mine, peers);
    (!knows && !base.is_none()).then_some(base)
}

impl Inner {
    /// Gives our data up for the peer's if the policy says so; false when it does not.
    pub(crate) async fn give_up_if_told(
        self: &Arc<Self>,
        leg: usize,
        session: &SharedSession,
        peers: &About,
    ) -> Result<bool, Ended> {
        let policy = self.legs[leg].options().when_split;
        if self.legs.len() > 1 || gives_up(policy, &self.about(peers.view.replica), peers).is_none()
        {
            return Ok(false);
        }
        // Nobody begins to serve here from now on, so what the peer says now is what counts.
        let _changing = self.changing().await;
        let replica = self.local.superblock().replica;
        let peers = identify(session, replica, self.versions).await?;
        let mine = self.about(peers.view.replica);
        let attached = self.lock().attached.is_some();
        let base = gives_up(policy, &mine, &peers).filter(|_| !attached);
        let base = base.ok_or(Ended::Changed)?;
        let bytes = self.changed_bytes();
        self.put_away(Role::Target, None).await.map_err(Ended::Local)?;
        let given_up = self.surrender_held(base, mine.view.lineage.current).await;
        given_up.map_err(|refusal| Ended::Peer(AskError::Refused(refusal)))?;
        count(&self.legs[leg].counters.given_up, 1);
        count(&self.legs[leg].counters.given_up_bytes, bytes);
        tracing::warn!(
            %replica,
            peer = %peers.view.replica,
            bytes,
            "split brain: the peer serves hosts and this side does not, so what was written here \
             alone is given up, as the configuration says"
        );
        Ok(true)
    }

    /// What was written here without the peer, at most.
    fn changed_bytes(&self) -> u64 {
        let shape = self.local.superblock().shape;
        let ones = |index: u64| u64::from(self.local.word(index).count_ones());
        let bits: u64 = (0..shape.bits().div_ceil(64)).map(ones).sum();
        bits * u64::from(shape.bit_bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::decide::View;
    use crate::generation::{Lineage, List};
    use crate::id::Uuid;
    use crate::versions::Versions;

    fn about(replica: u8, current: u64, bases: &[u64], active: bool) -> About {
        let mut lineage = Lineage { current: Generation(current), ..Lineage::default() };
        for (place, base) in lineage.bases.0.iter_mut().zip(bases) {
            *place = Generation(*base);
        }
        let view = View {
            volume: Uuid([1; 16]),
            replica: Uuid([replica; 16]),
            usable_bytes: 1 << 20,
            bit_bytes: 65536,
            serving: active,
            lineage,
            ..View::default()
        };
        let role = if active { Role::Source } else { Role::Target };
        About { view, role, active, volatile_cache: true, versions: Versions::SPOKEN }
    }

    const KEEP: WhenSplit = WhenSplit::KeepServing;

    #[test]
    fn who_serves_nobody_gives_up_for_who_serves() {
        let rests = about(1, 7, &[5], false);
        let serves = about(2, 6, &[5], true);
        assert_eq!(gives_up(KEEP, &rests, &serves), Some(Generation(5)));
        assert_eq!(gives_up(KEEP, &serves, &rests), None, "the other way round nothing happens");
        assert_eq!(gives_up(WhenSplit::Ask, &rests, &serves), None);
    }

    #[test]
    fn all_else_stays_with_the_operator() {
        let rests = about(1, 7, &[5], false);
        for (mine, peers) in [
            (about(1, 7, &[5], true), about(2, 6, &[5], true)),
            (rests, about(2, 6, &[5], false)),
            // Each went on from the other.
            (about(1, 7, &[6, 5], false), about(2, 6, &[7, 5], true)),
            // Not split: the peer's data replaces ours, and nothing is lost by it.
            (about(1, 5, &[], false), about(2, 6, &[5], true)),
            (rests, about(2, 9, &[8], true)),
        ] {
            assert_eq!(gives_up(KEEP, &mine, &peers), None, "{mine:?} {peers:?}");
        }
        // What they have in common is in their histories alone: no log names the differences.
        let mut old = about(1, 7, &[], false);
        old.view.lineage.history = List::default();
        old.view.lineage.history.0[0] = Generation(5);
        let peers = about(2, 6, &[5], true);
        assert_eq!(plan(&old, &peers), Plan::SplitBrain);
        assert_eq!(gives_up(KEEP, &old, &peers), None);
    }

    proptest! {
        #[test]
        fn never_both_and_never_who_serves(
            mine in (0u64..5, prop::collection::vec(0u64..5, 0..3), any::<bool>()),
            peers in (0u64..5, prop::collection::vec(0u64..5, 0..3), any::<bool>()),
        ) {
            let mine = about(1, mine.0, &mine.1, mine.2);
            let peers = about(2, peers.0, &peers.1, peers.2);
            let both = [gives_up(KEEP, &mine, &peers), gives_up(KEEP, &peers, &mine)];
            prop_assert!(both.iter().flatten().count() <= 1);
            prop_assert!(both[0].is_none() || !mine.active && peers.active);
        }
    }
}
