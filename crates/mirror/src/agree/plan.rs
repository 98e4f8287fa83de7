//! Handshake plan: the action of a mirror after a handshake, as a pure function of both identities.
//! It turns the decision of [`decide`] into a step.
//!
//! Data flows only from the source, and the source is the side that serves hosts. So at most one
//! side leads (attaches to the other and brings it up to date) and the other follows. Both sides
//! find out independently, because the function is symmetric.

use crate::agree::decide::{HandshakeDecision, ReplicaSide, ResyncAmount, decide};
use crate::ondisk::superblock::ReplicaRole;
use crate::wire::peer::ReplicaIdentity;

/// The next step of this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakePlan {
    /// Attach to the peer as its source.
    Lead {
        /// Blocks to copy; `None` when both are in sync.
        amount: Option<ResyncAmount>,
        /// Take a higher epoch first: this side does not serve yet, or the peer saw a later one.
        promote: bool,
    },
    /// The peer serves hosts, but its data is to be replaced: repeat until it notices.
    AwaitStepDown,
    /// The peer attaches to this side.
    Follow {
        /// True if this side serves hosts, and must stop first. It wrote nothing without the peer.
        step_down: bool,
    },
    /// Both are targets and equal: the operator chooses the source.
    Idle,
    /// Nothing is copied until the operator chooses. A side that serves continues.
    SplitBrain,
    /// Not replicas of one volume.
    Unrelated,
    /// Sizes, granularities or logical block sizes do not fit.
    Incompatible,
    /// Neither replica has consistent data.
    NoSource,
}

/// The plan of this side. The peer computes the counterpart.
pub fn plan(mine: &ReplicaIdentity, peers: &ReplicaIdentity) -> HandshakePlan {
    match decide(&mine.view, &peers.view) {
        HandshakeDecision::InSync => match leader(mine, peers) {
            Some(ReplicaSide::Local) if peers.is_serving => HandshakePlan::AwaitStepDown,
            Some(ReplicaSide::Local) => lead(None, mine, peers),
            Some(ReplicaSide::Peer) => HandshakePlan::Follow { step_down: mine.is_serving },
            None => HandshakePlan::Idle,
        },
        HandshakeDecision::Resync { source: ReplicaSide::Local, .. } if peers.is_serving => {
            HandshakePlan::AwaitStepDown
        }
        HandshakeDecision::Resync { source: ReplicaSide::Local, amount } => {
            lead(Some(amount), mine, peers)
        }
        HandshakeDecision::Resync { source: ReplicaSide::Peer, .. } => {
            HandshakePlan::Follow { step_down: mine.is_serving }
        }
        HandshakeDecision::SplitBrain => HandshakePlan::SplitBrain,
        HandshakeDecision::Unrelated => HandshakePlan::Unrelated,
        HandshakeDecision::Incompatible => HandshakePlan::Incompatible,
        HandshakeDecision::NoSource => HandshakePlan::NoSource,
    }
}

fn lead(
    amount: Option<ResyncAmount>,
    mine: &ReplicaIdentity,
    peers: &ReplicaIdentity,
) -> HandshakePlan {
    let promote = !mine.is_serving || mine.view.epoch < peers.view.epoch;
    HandshakePlan::Lead { amount, promote }
}

/// The leader of two replicas with equal data: the side that serves now, or was the source.
fn leader(mine: &ReplicaIdentity, peers: &ReplicaIdentity) -> Option<ReplicaSide> {
    let of = |mine: bool| Some(if mine { ReplicaSide::Local } else { ReplicaSide::Peer });
    let latest = || {
        let rank = |identity: &ReplicaIdentity| (identity.view.epoch, identity.view.replica);
        of(rank(mine) > rank(peers))
    };
    match (mine.is_serving, peers.is_serving) {
        (true, true) => return latest(),
        (true, false) => return of(true),
        (false, true) => return of(false),
        (false, false) => {}
    }
    let is_source = |identity: &ReplicaIdentity| identity.role == ReplicaRole::Source;
    match (is_source(mine), is_source(peers)) {
        (true, true) => latest(),
        (true, false) => of(true),
        (false, true) => of(false),
        (false, false) => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::agree::decide::ReplicaView;
    use crate::agree::generation::GenerationHistory;
    use crate::agree::versions::LinkVersions;
    use crate::id::{Generation, MirrorId};

    fn identity(replica: u8, current: u64, base: u64) -> ReplicaIdentity {
        let mut generations =
            GenerationHistory { current: Generation(current), ..GenerationHistory::default() };
        generations.bases.0[0] = Generation(base);
        let view = ReplicaView {
            volume: MirrorId([1; 16]),
            replica: MirrorId([replica; 16]),
            usable_bytes: 1 << 20,
            bit_bytes: 65536,
            generations,
            ..ReplicaView::default()
        };
        let versions = LinkVersions::SPOKEN;
        ReplicaIdentity {
            view,
            role: ReplicaRole::Target,
            is_serving: false,
            volatile_cache: true,
            is_discarding: false,
            has_source: false,
            keeps_reservations: false,
            versions,
        }
    }

    #[test]
    fn source_leads_with_new_epoch_only_if_needed() {
        let target = identity(2, 5, 0);
        let mut source =
            ReplicaIdentity { role: ReplicaRole::Source, is_serving: true, ..identity(1, 5, 0) };
        assert_eq!(plan(&source, &target), HandshakePlan::Lead { amount: None, promote: false });
        assert_eq!(plan(&target, &source), HandshakePlan::Follow { step_down: false });
        source.is_serving = false;
        assert_eq!(plan(&source, &target), HandshakePlan::Lead { amount: None, promote: true });
        let mut late = target;
        late.view.epoch = 9;
        source.is_serving = true;
        assert_eq!(plan(&source, &late), HandshakePlan::Lead { amount: None, promote: true });
    }

    #[test]
    fn former_source_steps_down_without_data_loss() {
        let mut old =
            ReplicaIdentity { role: ReplicaRole::Source, is_serving: true, ..identity(1, 5, 0) };
        let new =
            ReplicaIdentity { role: ReplicaRole::Source, is_serving: true, ..identity(2, 6, 5) };
        assert_eq!(plan(&old, &new), HandshakePlan::Follow { step_down: true });
        assert_eq!(plan(&new, &old), HandshakePlan::AwaitStepDown);
        old.is_serving = false;
        let amount = Some(ResyncAmount::Partial);
        assert_eq!(plan(&new, &old), HandshakePlan::Lead { amount, promote: false });
        // After it wrote without the peer, neither side steps down.
        old = ReplicaIdentity { role: ReplicaRole::Source, is_serving: true, ..identity(1, 7, 5) };
        assert_eq!(plan(&old, &new), HandshakePlan::SplitBrain);
    }

    #[test]
    fn equal_targets_are_idle() {
        assert_eq!(plan(&identity(1, 5, 0), &identity(2, 5, 0)), HandshakePlan::Idle);
    }

    prop_compose! {
        fn any_about(replica: u8)(
            numbers in (0u64..4, 0u64..4, 0u64..3),
            flags in any::<[bool; 6]>(),
        ) -> ReplicaIdentity {
            let (current, base, epoch) = numbers;
            let [serving, crashed, inconsistent, dirty, is_serving, source] = flags;
            let mut identity = identity(replica, current, base);
            identity.is_serving = is_serving && !inconsistent;
            let serving = serving || identity.is_serving;
            identity.view = ReplicaView { epoch, serving, crashed, inconsistent, dirty, ..identity.view };
            identity.role = if source || identity.is_serving { ReplicaRole::Source } else { ReplicaRole::Target };
            identity
        }
    }

    proptest! {
        /// At most one side leads, and the other side's plan matches.
        #[test]
        fn plans_of_both_sides_match(mine in any_about(1), peers in any_about(2)) {
            let (here, there) = (plan(&mine, &peers), plan(&peers, &mine));
            match here {
                HandshakePlan::Lead { .. } => prop_assert_eq!(there, HandshakePlan::Follow { step_down: false }),
                HandshakePlan::AwaitStepDown => prop_assert_eq!(there, HandshakePlan::Follow { step_down: true }),
                HandshakePlan::Follow { .. } => {
                    let leads = matches!(there, HandshakePlan::Lead { .. } | HandshakePlan::AwaitStepDown);
                    prop_assert!(leads, "{:?}", there);
                }
                same => prop_assert_eq!(there, same),
            }
        }

        /// The leader ends up with the highest epoch and is the only side that serves.
        #[test]
        fn leader_has_highest_epoch(mine in any_about(1), peers in any_about(2)) {
            if let HandshakePlan::Lead { promote, .. } = plan(&mine, &peers) {
                prop_assert!(!peers.is_serving);
                prop_assert!(promote || mine.is_serving && mine.view.epoch >= peers.view.epoch);
            }
        }
    }
}
