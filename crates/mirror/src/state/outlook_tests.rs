//! Tests of the outlook: each obstacle is named, and a node without one asks.

use flagstone_arbiter::NoAnswer;

use super::super::arbitration::tests::{RECORD, SERVING, TARGET, WAITING, situation};
use super::super::arbitration::{PeerExclusion, Step, step};
use super::super::status::LegPhase;
use super::*;

const OUTLOOK: Outlook<'_> = Outlook {
    offer: None,
    denial: None,
    is_removed: false,
    is_attached: false,
    is_unfenced: false,
    is_device_failed: false,
    is_behind: false,
};

fn silent() -> Denial {
    Denial::Silent(NoAnswer("refused".into()))
}

/// A target without an obstacle asks the arbiter when its time has come. A target with an obstacle
/// does not, unless the obstacle is only the arbiter's last answer.
#[test]
fn target_without_obstacle_takes_over() {
    let target = situation(TARGET, LegPhase::Disconnected);
    assert_eq!((step(&target), obstacle(&target, &OUTLOOK)), (Step::TakeOver, None));
    for (mark, offer, expected) in [
        (RecordedRight::Unknown, None, Obstacle::NotInSync),
        (
            RecordedRight::Unknown,
            Some(LossPermission::Unrecorded { asks: Some(7) }),
            Obstacle::NotInSync,
        ),
        (RecordedRight::Unknown, Some(LossPermission::Suspended), Obstacle::Suspended),
    ] {
        let other = Situation { mark, ..target };
        assert_eq!(obstacle(&other, &Outlook { offer, ..OUTLOOK }), Some(expected), "{offer:?}");
        assert_eq!(step(&other), Step::Reclaim, "{offer:?}");
    }
    for (disk, expected) in [
        (DiskState::Inconsistent, Obstacle::Inconsistent),
        (DiskState::Unverified, Obstacle::Device),
        (DiskState::Removed, Obstacle::Removed),
    ] {
        let mut other = target;
        other.state.disk = disk;
        assert_eq!(obstacle(&other, &OUTLOOK), Some(expected));
        assert!(matches!(step(&other), Step::Wait(_)), "{disk:?}");
    }
}

#[test]
fn last_denial_is_reported_until_granted() {
    let lost = Denial::Lost { epoch: 1, source_replica: Default::default(), revision: 1 };
    for (denial, expected) in [
        (lost, Obstacle::Lost),
        (Denial::Missing, Obstacle::RecordUnusable),
        (Denial::Older { found: 1, seen: 2 }, Obstacle::RecordUnusable),
        (Denial::Foreign, Obstacle::RecordUnusable),
        (Denial::Maintenance, Obstacle::Suspended),
        (silent(), Obstacle::ArbiterSilent),
    ] {
        let outlook = Outlook { denial: Some(&denial), ..OUTLOOK };
        for role in [SERVING, TARGET, WAITING] {
            let now = situation(role, LegPhase::Disconnected);
            assert_eq!(obstacle(&now, &outlook), Some(expected), "{role:?}");
        }
        let attached = Outlook { is_attached: true, ..outlook };
        let target = situation(TARGET, LegPhase::InSync);
        assert_eq!(obstacle(&target, &attached), Some(expected), "it has read the record since");
    }
}

/// The source has recorded the target, but the target has not read that record in the store, or has
/// read an older one.
#[test]
fn target_without_proof_of_one_store_does_not_take_over() {
    let role = NodeRole::Target { epoch: 5, attached: true };
    let mark = RecordedRight::Unknown;
    let attached = Situation { mark, ..situation(role, LegPhase::Disconnected) };
    let offer = Some(LossPermission::Recorded(RECORD));
    let older = Denial::Older { found: 6, seen: 7 };
    for (proof, denial, expected) in [
        (StoreProof::Pending(RECORD), None, Obstacle::ArbiterSilent),
        (StoreProof::Refuted(RECORD), Some(&older), Obstacle::RecordUnusable),
        (StoreProof::Refuted(RECORD), Some(&Denial::Missing), Obstacle::RecordUnusable),
        (StoreProof::Refuted(RECORD), None, Obstacle::RecordUnusable),
        (StoreProof::NotNeeded, None, Obstacle::NotInSync),
    ] {
        let outlook = Outlook { offer, denial, is_attached: true, ..OUTLOOK };
        let now = Situation { proof, ..attached };
        assert_eq!(obstacle(&now, &outlook), Some(expected), "{proof:?}");
    }
}

/// A source without a peer continues to serve, whatever the arbiter answers.
#[test]
fn lone_source_has_no_obstacle() {
    let denial = silent();
    let outlook = Outlook { denial: Some(&denial), ..OUTLOOK };
    let contested = situation(SERVING, LegPhase::Disconnected);
    let serving_right = ServingRight::Alone(PeerExclusion::Unshared);
    assert_eq!(obstacle(&Situation { serving_right, ..contested }, &outlook), None);
}

#[test]
fn failed_fencing_is_the_obstacle_of_the_winner() {
    let outlook = Outlook { is_unfenced: true, ..OUTLOOK };
    let target = situation(TARGET, LegPhase::Disconnected);
    assert_eq!(obstacle(&target, &outlook), Some(Obstacle::Unfenced));
    let source = situation(SERVING, LegPhase::Disconnected);
    assert_eq!(obstacle(&source, &outlook), None);
}
