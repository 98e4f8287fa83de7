//! Tests of groups: a node asks for all members or for none.

use super::super::arbitration::tests::{SERVING, TARGET, WAITING, situation};
use super::super::arbitration::{Step, step};
use super::*;
use crate::agree::decide::ResyncAmount;

const CONTESTED: ServingRight = ServingRight::Contested { since_ns: 0, peer_left: false };
const RECORDED: ServingRight =
    ServingRight::Alone(PeerExclusion::Recorded { checked_ns: u64::MAX - (1 << 40) });

fn member(role: NodeRole, phase: LegPhase) -> Member {
    Member {
        role,
        disk: DiskState::Consistent,
        is_promised: false,
        phase,
        is_admitted: true,
        is_published: true,
        serving_right: CONTESTED,
        write_waits: false,
        mark: RecordedRight::InSync,
        source_asks: true,
        is_other_store: false,
    }
}

fn step_of(leader: Situation, others: &[Option<Member>]) -> Step {
    step(&combine(leader, others))
}

#[test]
fn target_asks_only_if_every_member_was_in_sync() {
    let leader = situation(TARGET, LegPhase::Disconnected);
    let ready = member(TARGET, LegPhase::Disconnected);
    let waiting = Member { role: WAITING, mark: RecordedRight::Alone, ..ready };
    assert_eq!(step_of(leader, &[Some(ready), Some(ready)]), Step::TakeOver);
    assert_eq!(step_of(leader, &[Some(waiting)]), Step::TakeOver, "it is the last source");
    let refused = |change: fn(&mut Member)| {
        let mut other = ready;
        change(&mut other);
        for others in [[Some(ready), Some(other)], [Some(other), Some(ready)]] {
            assert_eq!(step_of(leader, &others), Step::Wait(None), "{other:?}");
        }
    };
    refused(|other| other.disk = DiskState::Inconsistent);
    refused(|other| other.disk = DiskState::Failed);
    refused(|other| other.is_promised = true);
    refused(|other| other.is_other_store = true);
    refused(|other| other.role = NodeRole::Deposed { by: 9 });
    refused(|other| other.role = NodeRole::Closed);
    refused(|other| other.role = SERVING);
    refused(|other| other.mark = RecordedRight::Alone);
    refused(|other| (other.mark, other.source_asks) = (RecordedRight::Unknown, false));
    assert_eq!(step_of(leader, &[Some(ready), None]), Step::Wait(None), "one is not open");
    // What was granted to this node before its source returned is still granted.
    let unknown = Member { mark: RecordedRight::Unknown, ..ready };
    assert_eq!(step_of(leader, &[Some(unknown)]), Step::Reclaim);
    let source = situation(WAITING, LegPhase::Disconnected);
    assert_eq!(step_of(source, &[Some(ready)]), Step::TakeOver);
    assert_eq!(step_of(source, &[Some(unknown)]), Step::Wait(None));
}

#[test]
fn source_of_one_member_is_detached_first() {
    let leader = situation(TARGET, LegPhase::Disconnected);
    let role = NodeRole::Target { epoch: 5, attached: true };
    let attached = member(role, LegPhase::Disconnected);
    assert_eq!(step_of(leader, &[Some(attached)]), Step::DetachSource);
    let early = Situation { ask_not_before_ns: leader.now_ns + 1, ..leader };
    assert_eq!(step_of(early, &[Some(attached)]), Step::Wait(Some(leader.now_ns + 1)));
}

#[test]
fn peer_is_recorded_only_when_every_member_is_in_sync() {
    let leader = Situation { published_until_ns: None, ..situation(SERVING, LegPhase::InSync) };
    let in_sync = member(SERVING, LegPhase::InSync);
    let resync = Member { phase: LegPhase::Resync(ResyncAmount::Partial), ..in_sync };
    assert_eq!(step_of(leader, &[Some(in_sync)]), Step::Publish { in_sync: true });
    assert_eq!(step_of(leader, &[Some(in_sync), Some(resync)]), Step::Publish { in_sync: false });
    for other in [
        Some(Member { phase: LegPhase::Disconnected, ..in_sync }),
        Some(Member { is_admitted: false, ..in_sync }),
        None,
    ] {
        assert!(matches!(step_of(leader, &[Some(in_sync), other]), Step::Wait(_)), "{other:?}");
    }
    let known = situation(SERVING, LegPhase::InSync);
    assert!(matches!(step_of(known, &[Some(in_sync)]), Step::Wait(_)));
    let again = Member { is_published: false, ..in_sync };
    assert_eq!(step_of(known, &[Some(again)]), Step::Publish { in_sync: true }, "a new session");
}

#[test]
fn source_runs_degraded_with_all_members_or_none() {
    let leader = situation(SERVING, LegPhase::Disconnected);
    let lost = member(SERVING, LegPhase::Disconnected);
    let waits = Member { write_waits: true, ..lost };
    assert_eq!(step_of(leader, &[Some(lost), Some(waits)]), Step::RunDegraded);
    let stop_at = leader.lease_until_ns + leader.timing.grace_ns();
    let elsewhere = Member { mark: RecordedRight::Unknown, role: TARGET, ..lost };
    assert_eq!(step_of(leader, &[Some(waits), Some(elsewhere)]), Step::Wait(Some(stop_at)));
    let failed = Member { disk: DiskState::Failed, ..lost };
    assert_eq!(step_of(leader, &[Some(waits), Some(failed)]), Step::StopServing);
}

/// A crash between the superblocks of two members leaves one of them behind.
#[test]
fn lone_source_brings_its_members() {
    let contested = situation(SERVING, LegPhase::Disconnected);
    let leader = Situation { serving_right: RECORDED, ..contested };
    let alone = Member { serving_right: RECORDED, ..member(SERVING, LegPhase::Disconnected) };
    assert!(matches!(step_of(leader, &[Some(alone)]), Step::Wait(_)));
    let contested = Member { serving_right: CONTESTED, ..alone };
    assert_eq!(step_of(leader, &[Some(alone), Some(contested)]), Step::StayDegraded);
    let target = member(TARGET, LegPhase::Disconnected);
    assert_eq!(step_of(leader, &[Some(target)]), Step::StayDegraded);
    let stopped = Situation { ask_not_before_ns: leader.now_ns + 1, ..leader };
    assert!(matches!(step_of(stopped, &[Some(target)]), Step::Wait(_)), "not at once");
    let other = Member { mark: RecordedRight::Unknown, ..target };
    assert!(matches!(step_of(leader, &[Some(other)]), Step::Wait(_)), "it may lack writes");
}
