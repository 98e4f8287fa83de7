//! Tests of the steps: each rule, and the arithmetic of the lease.

use flagstone_arbiter::RecordStamp;

use super::*;
use crate::agree::decide::ResyncAmount;
use crate::limits::PEERS_MAX;
use crate::state::machine::{Leg, PeerDataState};
use crate::state::status::DesiredState;

const SECOND: u64 = 1_000_000_000;
const NOW: u64 = 100 * SECOND;
pub(in crate::state) const RECORD: RecordStamp = RecordStamp { revision: 7, writer: 3 };
const TIMING: Timing = Timing { failover_after_ns: 4 * SECOND };

pub(in crate::state) fn situation(role: NodeRole, phase: LegPhase) -> Situation {
    let mut legs = [None; PEERS_MAX];
    legs[0] = Some(Leg { desired: DesiredState::Connected, phase });
    let records = [PeerDataState::Current, PeerDataState::Unknown];
    let disk = DiskState::Consistent;
    Situation {
        state: MachineState { role, disk, legs, records, promised: 0, announced: 0, leader: None },
        serving_right: ServingRight::Contested { since_ns: 0, peer_left: false },
        is_admitted: true,
        changes_role: false,
        mark: RecordedRight::InSync,
        revision: 7,
        is_other_store: false,
        published_until_ns: Some(NOW + 10 * SECOND),
        write_waits: false,
        now_ns: NOW,
        lease_until_ns: NOW + TIMING.lease_ns(),
        ask_not_before_ns: NOW,
        source_asks: true,
        watched_ns: NOW,
        proof: StoreProof::Given(RECORD),
        members: Members::Ready,
        timing: TIMING,
    }
}

pub(in crate::state) const SERVING: NodeRole = NodeRole::Serving { epoch: 5 };
pub(in crate::state) const TARGET: NodeRole = NodeRole::Target { epoch: 5, attached: false };
pub(in crate::state) const WAITING: NodeRole = NodeRole::Waiting { epoch: 5, handed_over: false };

#[test]
fn lease_ends_before_target_asks_at_any_clock_rate() {
    for failover_after_ns in [SECOND, 4 * SECOND, 3600 * SECOND] {
        let timing = Timing { failover_after_ns };
        // A slow clock on the source, a fast one on the target: 1/15 each.
        let lease = timing.lease_ns() as f64 * (1.0 + 1.0 / 15.0);
        let asks = failover_after_ns as f64 * (1.0 - 1.0 / 15.0);
        assert!(lease <= asks, "{failover_after_ns}: {lease} and {asks}");
        // Two renewals may be lost before the source gives up its peer.
        assert!(2 * timing.renew_ns() < timing.lease_ns() - timing.margin_ns());
    }
}

/// It may record its attached peer there, and nothing else.
#[test]
fn source_at_another_store_decides_nothing_alone() {
    let here = situation(SERVING, LegPhase::Disconnected);
    let waits = Situation { write_waits: true, ..here };
    let other = Situation { is_other_store: true, ..waits };
    let stop_at = here.lease_until_ns + TIMING.grace_ns();
    assert_eq!((step(&waits), step(&other)), (Step::RunDegraded, Step::Wait(Some(stop_at))));
    assert_eq!(step(&Situation { now_ns: stop_at, ..other }), Step::StopServing);
    let alone = ServingRight::Alone(PeerExclusion::Recorded { checked_ns: 0 });
    assert_eq!(step(&Situation { serving_right: alone, ..here }), Step::StayDegraded);
    assert_eq!(step(&Situation { serving_right: alone, ..other }), Step::Wait(None));
    let ordered = ServingRight::Alone(PeerExclusion::Ordered);
    assert_eq!(step(&Situation { serving_right: ordered, ..other }), Step::Insist);
    let attached = situation(SERVING, LegPhase::InSync);
    let unpublished = Situation { published_until_ns: None, is_other_store: true, ..attached };
    assert_eq!(step(&unpublished), Step::Publish { in_sync: true });
    let waiting = situation(WAITING, LegPhase::Disconnected);
    assert_eq!(step(&waiting), Step::TakeOver);
    assert_eq!(step(&Situation { is_other_store: true, ..waiting }), Step::Wait(None));
}

#[test]
fn contested_source_asks_before_its_lease_ends() {
    let attached = situation(SERVING, LegPhase::InSync);
    let ask_at = attached.lease_until_ns - TIMING.margin_ns();
    assert_eq!(step(&attached), Step::Wait(Some(ask_at)));
    assert_eq!(step(&Situation { now_ns: ask_at, ..attached }), Step::Disconnect);
    let compared = Situation { published_until_ns: Some(NOW + 1), ..attached };
    assert_eq!(step(&compared), Step::Wait(Some(NOW + 1)), "the record is compared first");
    let lost = situation(SERVING, LegPhase::Disconnected);
    assert_eq!(step(&lost), Step::Wait(Some(ask_at)));
    assert_eq!(step(&Situation { now_ns: ask_at, ..lost }), Step::RunDegraded);
    assert_eq!(step(&Situation { write_waits: true, ..lost }), Step::RunDegraded);
    let stop_at = lost.lease_until_ns + TIMING.grace_ns();
    assert_eq!(step(&Situation { now_ns: stop_at, ..lost }), Step::StopServing);
    assert_eq!(stops_serving_at(&lost), Some(stop_at));
}

#[test]
fn peer_is_recorded_as_soon_as_its_state_changes() {
    let in_sync = situation(SERVING, LegPhase::InSync);
    let alone = ServingRight::Alone(PeerExclusion::Recorded { checked_ns: NOW });
    let publish = |in_sync| Step::Publish { in_sync };
    assert_eq!(step(&Situation { published_until_ns: None, ..in_sync }), publish(true));
    assert_eq!(step(&Situation { serving_right: alone, ..in_sync }), publish(true));
    let resync = situation(SERVING, LegPhase::Resync(ResyncAmount::Partial));
    assert_eq!(step(&resync), publish(false));
    let again = Some(NOW + 10 * SECOND);
    assert_eq!(step(&Situation { serving_right: alone, ..resync }), Step::Wait(again));
    let lost = situation(SERVING, LegPhase::Disconnected);
    assert_eq!(step(&Situation { serving_right: alone, ..lost }), Step::Wait(again));
    let later = Situation { serving_right: alone, now_ns: NOW + 10 * SECOND, ..lost };
    assert_eq!(step(&later), Step::StayDegraded);
    let unshared = ServingRight::Alone(PeerExclusion::Unshared);
    assert_eq!(step(&Situation { serving_right: unshared, ..later }), Step::Wait(None));
    let forced = ServingRight::Alone(PeerExclusion::Ordered);
    assert_eq!(step(&Situation { serving_right: forced, ..lost }), Step::Insist);
}

#[test]
fn only_target_that_was_in_sync_takes_over() {
    let target = situation(TARGET, LegPhase::Disconnected);
    assert_eq!(step(&target), Step::TakeOver);
    let waits = |change: fn(&mut Situation)| {
        let mut other = target;
        change(&mut other);
        assert!(matches!(step(&other), Step::Wait(_)), "{other:?}");
    };
    waits(|other| other.mark = RecordedRight::Alone);
    waits(|other| other.mark = RecordedRight::Ordered);
    waits(|other| other.mark = RecordedRight::Succeeded);
    let unknown = Situation { mark: RecordedRight::Unknown, ..target };
    assert_eq!(step(&unknown), Step::Reclaim);
    // A source without an arbiter may have run degraded without asking.
    assert_eq!(step(&Situation { source_asks: false, ..unknown }), Step::Wait(None));
    waits(|other| other.revision = 0);
    waits(|other| other.ask_not_before_ns += 1);
    waits(|other| other.changes_role = true);
    waits(|other| other.state.disk = DiskState::Inconsistent);
    waits(|other| other.state.disk = DiskState::Unverified);
    waits(|other| other.state.disk = DiskState::Removed);
    waits(|other| other.state.promised = 9);
    waits(|other| other.state.legs[1] = other.state.legs[0]);
    waits(|other| other.state.role = NodeRole::Deposed { by: 6 });
    let silent = situation(NodeRole::Target { epoch: 5, attached: true }, LegPhase::Disconnected);
    assert_eq!(step(&silent), Step::DetachSource);
    let heard = Situation { ask_not_before_ns: NOW + 4 * SECOND, ..silent };
    assert_eq!(step(&heard), Step::Wait(Some(NOW + 4 * SECOND)));
    assert_eq!(step(&Situation { watched_ns: 0, ..heard }), Step::Watch);
    let unknown = Situation { mark: RecordedRight::Unknown, ..heard };
    assert_eq!(step(&Situation { watched_ns: 0, ..unknown }), Step::Wait(None));
    for (proof, expected) in [
        (StoreProof::Pending(RECORD), Step::Watch),
        (StoreProof::Refuted(RECORD), Step::Wait(None)),
    ] {
        assert_eq!(step(&Situation { proof, ..unknown }), expected, "{proof:?}");
    }
}

/// A source that was alone before its restart waits for no lease: only the record decides.
#[test]
fn restarted_lone_source_asks_at_once() {
    let lost = situation(SERVING, LegPhase::Disconnected);
    for mark in [RecordedRight::Alone, RecordedRight::Ordered] {
        assert_eq!(step(&Situation { mark, ..lost }), Step::RunDegraded);
    }
}

/// Regression: reads waited for a lease of the former source, which had left for good.
#[test]
fn successor_of_source_that_left_asks_at_once() {
    let serving_right = ServingRight::Contested { since_ns: NOW, peer_left: true };
    let lost = Situation {
        serving_right,
        lease_until_ns: 0,
        ..situation(SERVING, LegPhase::Disconnected)
    };
    assert_eq!(step(&lost), Step::RunDegraded);
    let attached = situation(SERVING, LegPhase::InSync);
    let back = Situation { serving_right, published_until_ns: None, ..attached };
    assert_eq!(step(&back), Step::Publish { in_sync: true });
}

#[test]
fn last_source_asks_unless_it_meets_its_peer() {
    let waiting = situation(WAITING, LegPhase::Disconnected);
    assert_eq!(step(&waiting), Step::TakeOver);
    assert_eq!(step(&situation(WAITING, LegPhase::InSync)), Step::Wait(None));
    assert_eq!(step(&Situation { revision: 0, ..waiting }), Step::Wait(None));
}

/// Regression (failover, seed 93): a source that was handed the role recorded it before the former
/// source had admitted it. The former source asked for the role during the hand-over, and both were
/// granted.
#[test]
fn source_publishes_only_what_its_peer_agreed_to() {
    for phase in [LegPhase::InSync, LegPhase::Resync(ResyncAmount::Partial)] {
        let unpublished = Situation { published_until_ns: None, ..situation(SERVING, phase) };
        assert!(matches!(step(&unpublished), Step::Publish { .. }));
        let early = Situation { is_admitted: false, ..unpublished };
        assert!(matches!(step(&early), Step::Wait(_)), "{phase:?}");
    }
}

/// Without an arbiter, only the state machine of roles decides.
#[test]
fn manual_source_never_asks() {
    for phase in [LegPhase::Disconnected, LegPhase::InSync] {
        let manual = Situation { serving_right: ServingRight::Manual, ..situation(SERVING, phase) };
        assert_eq!(step(&manual), Step::Wait(None));
        assert_eq!(stops_serving_at(&manual), None);
    }
}
