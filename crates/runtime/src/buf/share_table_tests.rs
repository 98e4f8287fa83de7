//! Tests of the table: policy by example, and its invariants for random histories.

use std::time::Duration;

use proptest::prelude::*;

use super::share_table::{DrainState, MemberId, PeerProgress, Protocol, ShareTable};
use crate::limits::{OTHERS_WAIT, SHARE_BYTES_MIN, SHARE_LOOK, STALL_MIN};
use crate::time::Instant;

const MIB: usize = 1 << 20;

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

fn stuck(table: &mut ShareTable, id: MemberId) {
    table.report(id, PeerProgress { mark: 0, is_awaited: true });
}

/// `count` connections of hosts of their own that each take as much as they get.
fn greedy(table: &mut ShareTable, count: usize, drain_state: DrainState) -> Vec<MemberId> {
    let join = |number| table.join(Protocol::Nbd, format!("greedy-{number}"));
    let all: Vec<_> = (0..count).map(join).collect();
    for id in &all {
        let mut extra = MIB;
        while table.try_ask(*id, extra, drain_state, at(0)) {
            extra += 256 << 10;
        }
    }
    all
}

#[test]
fn guaranteed_shares_fit_half_of_shared_memory() {
    for memory in [64 * MIB, 256 * MIB, 1 << 34] {
        for connections in [1, 16, 1280] {
            let table = ShareTable::new(memory, connections);
            let share = table.guaranteed();
            assert!(share >= SHARE_BYTES_MIN && share.is_multiple_of(SHARE_BYTES_MIN));
            assert!(share * connections <= memory * 3 / 16, "{memory} {connections}");
        }
    }
    // A connection cannot have less than one block.
    assert_eq!(ShareTable::new(64 * MIB, 65_536).guaranteed(), SHARE_BYTES_MIN);
    assert!(ShareTable::new(usize::MAX, 1280).guaranteed() > SHARE_BYTES_MIN);
}

#[test]
fn new_connections_leave_reserve_for_draining_ones() {
    for memory in [64 * MIB, 256 * MIB] {
        for count in [1, 9, 100, 1000] {
            let mut table = ShareTable::new(memory, 1280);
            let good = table.join(Protocol::Nbd, "good".to_owned());
            greedy(&mut table, count, DrainState::New);
            assert!(
                table.try_ask(good, 512 << 10, DrainState::Draining, at(0)),
                "{memory} {count}"
            );
        }
    }
}

#[test]
fn protocol_and_host_cannot_take_all() {
    let mut table = ShareTable::new(256 * MIB, 1280);
    greedy(&mut table, 1000, DrainState::Draining);
    let host = table.join(Protocol::Nvme, "other".to_owned());
    assert!(table.try_ask(host, 8 * MIB, DrainState::Draining, at(0)));
    let mut table = ShareTable::new(256 * MIB, 1280);
    for _ in 0..1000 {
        let id = table.join(Protocol::Nbd, "one".to_owned());
        table.try_ask(id, MIB, DrainState::Draining, at(0));
    }
    let other = table.join(Protocol::Nbd, "other".to_owned());
    assert!(table.try_ask(other, 8 * MIB, DrainState::Draining, at(0)));
}

#[test]
fn stalled_connections_are_kept_without_waiters() {
    let mut table = ShareTable::new(64 * MIB, 1280);
    let all = greedy(&mut table, 20, DrainState::New);
    for second in 0..100 {
        for id in &all {
            stuck(&mut table, *id);
        }
        assert_eq!(table.stalled(at(second * 1000)), []);
    }
}

/// A connection waits until the longest stalled one ends, and then gets its memory.
#[test]
fn stalled_connection_ends_for_waiting_one() {
    let mut table = ShareTable::new(64 * MIB, 1280);
    let all = greedy(&mut table, 20, DrainState::New);
    let waits = table.join(Protocol::Nbd, "late".to_owned());
    assert!(!table.ask(waits, MIB, DrainState::New, at(0)));
    let (mut ended, mut now) = (Vec::new(), 0);
    while ended.is_empty() {
        for (number, id) in all.iter().enumerate() {
            // The peer of the second one makes progress.
            let mark = if number == 1 { now } else { 0 };
            table.report(*id, PeerProgress { mark, is_awaited: true });
        }
        ended = table.stalled(at(now));
        now += SHARE_LOOK.as_millis() as u64;
    }
    assert_eq!(ended, [all[0]]);
    assert!(Duration::from_millis(now) >= STALL_MIN.max(OTHERS_WAIT));
    assert!(Duration::from_millis(now) <= 2 * STALL_MIN.max(OTHERS_WAIT));
    // It has been notified; the others stay.
    assert_eq!(table.stalled(at(now)), []);
    assert_eq!(table.leave(all[0], at(now)), [waits]);
    assert!(!table.is_short());
}

/// A process that did not run for a second has not served its peers either.
#[test]
fn pauses_of_the_process_are_charged_to_no_peer() {
    let mut table = ShareTable::new(64 * MIB, 1280);
    let all = greedy(&mut table, 20, DrainState::New);
    for number in 0..250 {
        let waits = table.join(Protocol::Nbd, format!("late-{number}"));
        assert!(!table.ask(waits, MIB, DrainState::New, at(0)));
    }
    // Each peer makes progress at every second report.
    for round in 0..100 {
        for id in &all {
            let progress = PeerProgress { mark: round / 2, is_awaited: true };
            table.report(*id, progress);
        }
        assert_eq!(table.stalled(at(round * 1000)), [], "{round}");
    }
}

/// A core that did not run has not reported, and its peers are not stalled meanwhile.
#[test]
fn pauses_of_one_core_are_charged_to_no_peer() {
    let mut table = ShareTable::new(64 * MIB, 1280);
    let all = greedy(&mut table, 20, DrainState::New);
    let waits = table.join(Protocol::Nbd, "late".to_owned());
    assert!(!table.ask(waits, MIB, DrainState::New, at(0)));
    for now in (0..20_000).step_by(100) {
        if now % 2_000 == 0 {
            for id in &all {
                table.report(*id, PeerProgress { mark: now / 4_000, is_awaited: true });
            }
        }
        assert_eq!(table.stalled(at(now)), [], "{now}");
    }
}

/// A connection that began to drain before it waited for memory is no new one.
#[test]
fn granted_request_keeps_its_drain_state() {
    let mut table = ShareTable::new(64 * MIB, 1280);
    let good = table.join(Protocol::Nbd, "good".to_owned());
    let new = table.join(Protocol::Nbd, "new".to_owned());
    assert!(table.try_ask(new, MIB, DrainState::New, at(0)));
    let others = greedy(&mut table, 20, DrainState::Draining);
    assert!(!table.ask(good, MIB, DrainState::Draining, at(0)));
    let granted: Vec<_> = others.iter().flat_map(|id| table.leave(*id, at(0))).collect();
    assert_eq!(granted, [good]);
    let waits = table.join(Protocol::Nbd, "late".to_owned());
    assert!(!table.ask(waits, 1 << 30, DrainState::New, at(0)));
    let (mut ended, mut now) = (Vec::new(), 0);
    while ended.is_empty() && now < 10_000 {
        stuck(&mut table, good);
        stuck(&mut table, new);
        now += SHARE_LOOK.as_millis() as u64;
        ended = table.stalled(at(now));
    }
    assert_eq!(ended.first(), Some(&new));
}

/// A stall of a former shortage ends nothing before the connection has reported again.
#[test]
fn stall_of_former_shortage_ends_nothing() {
    let mut table = ShareTable::new(64 * MIB, 1280);
    let all = greedy(&mut table, 20, DrainState::New);
    let waits: Vec<_> =
        (0..10).map(|number| table.join(Protocol::Nbd, format!("late-{number}"))).collect();
    assert!(!table.ask(waits[0], 1 << 30, DrainState::New, at(0)));
    let mut now = 0;
    while now < 400 {
        stuck(&mut table, all[0]);
        now += SHARE_LOOK.as_millis() as u64;
        assert_eq!(table.stalled(at(now)), []);
    }
    stuck(&mut table, all[0]);
    stuck(&mut table, all[0]);
    table.withdraw(waits[0]);
    now += 600_000;
    for id in &waits {
        assert!(!table.ask(*id, 1 << 30, DrainState::New, at(now)));
    }
    for _ in 0..20 {
        now += 100;
        assert_eq!(table.stalled(at(now)), []);
    }
}

/// Of two stalled connections, the one whose peer has never drained ends.
#[test]
fn connection_that_has_drained_ends_last() {
    let mut table = ShareTable::new(64 * MIB, 1280);
    let good = table.join(Protocol::Nbd, "good".to_owned());
    assert!(table.try_ask(good, MIB, DrainState::Draining, at(0)));
    let all = greedy(&mut table, 20, DrainState::New);
    let waits = table.join(Protocol::Nbd, "late".to_owned());
    assert!(!table.ask(waits, MIB, DrainState::New, at(0)));
    let (mut ended, mut now) = (Vec::new(), 0);
    while ended.is_empty() && now < 10_000 {
        stuck(&mut table, good);
        stuck(&mut table, all[0]);
        now += SHARE_LOOK.as_millis() as u64;
        ended = table.stalled(at(now));
    }
    assert_eq!(ended, [all[0]]);
}

#[test]
fn connection_that_waits_for_its_device_stays() {
    let mut table = ShareTable::new(64 * MIB, 1280);
    let all = greedy(&mut table, 20, DrainState::New);
    let waits = table.join(Protocol::Nbd, "late".to_owned());
    assert!(!table.ask(waits, MIB, DrainState::New, at(0)));
    for now in (0..60_000).step_by(100) {
        for id in &all {
            table.report(*id, PeerProgress { mark: 0, is_awaited: false });
        }
        assert_eq!(table.stalled(at(now)), []);
    }
}

#[test]
fn large_waiting_request_is_not_overtaken_forever() {
    let mut table = ShareTable::new(64 * MIB, 1280);
    let all = greedy(&mut table, 100, DrainState::New);
    let large = table.join(Protocol::Nbd, "large".to_owned());
    let small = table.join(Protocol::Nbd, "small".to_owned());
    assert!(!table.ask(large, 4 * MIB, DrainState::New, at(0)));
    table.leave(all[99], at(1));
    table.leave(all[0], at(1));
    assert!(table.try_ask(small, 4096, DrainState::New, at(1)));
    assert!(!table.try_ask(small, 8192, DrainState::New, at(65_000)));
    let mut granted = Vec::new();
    for id in &all[1..99] {
        granted.extend(table.leave(*id, at(65_000)));
    }
    assert_eq!(granted, [large]);
    assert!(table.try_ask(small, 8192, DrainState::New, at(65_000)));
}

#[derive(Clone, Debug)]
enum Act {
    Join(bool, u8),
    Leave(usize),
    Ask(usize, usize, bool),
    Keep(usize, usize),
    Report(usize, u64, bool),
    Look,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        (any::<bool>(), 0_u8..4).prop_map(|(nbd, host)| Act::Join(nbd, host)),
        any::<usize>().prop_map(Act::Leave),
        (any::<usize>(), 1_usize..40 << 20, any::<bool>()).prop_map(|(a, b, c)| Act::Ask(a, b, c)),
        (any::<usize>(), 0_usize..4 << 20).prop_map(|(a, b)| Act::Keep(a, b)),
        (any::<usize>(), 0_u64..3, any::<bool>()).prop_map(|(a, b, c)| Act::Report(a, b, c)),
        Just(Act::Look),
    ];
    proptest::collection::vec(act, 1..200)
}

proptest! {
    /// Grants never exceed the shared part, are reported exactly once, and a shared part that is
    /// free again serves every request.
    #[test]
    fn grants_fit_pot_and_every_request_is_served(acts in acts(), memory in 16_usize..512) {
        let mut table = ShareTable::new(memory * MIB, 64);
        let mut members: Vec<(MemberId, usize, Option<usize>)> = Vec::new();
        let mut now = 0;
        for act in acts {
            now += 50;
            let pick = |index: usize| (!members.is_empty()).then(|| index % members.len());
            let mut granted = Vec::new();
            match act {
                Act::Join(nbd, host) => {
                    let protocol = if nbd { Protocol::Nbd } else { Protocol::Nvme };
                    members.push((table.join(protocol, host.to_string()), 0, None));
                }
                Act::Leave(index) => if let Some(index) = pick(index) {
                    let (id, ..) = members.swap_remove(index);
                    granted = table.leave(id, at(now));
                },
                Act::Ask(index, target, draining) => if let Some(index) = pick(index) {
                    let drain_state = if draining { DrainState::Draining } else { DrainState::New };
                    let done = table.ask(members[index].0, target, drain_state, at(now));
                    let (_, extra, waits) = &mut members[index];
                    if done { (*extra, *waits) = (target, None) } else { *waits = Some(target) }
                },
                Act::Keep(index, keep) => if let Some(index) = pick(index) {
                    members[index].1 = members[index].1.min(keep);
                    granted = table.give_back(members[index].0, keep, at(now));
                },
                Act::Report(index, mark, is_awaited) => if let Some(index) = pick(index) {
                    table.report(members[index].0, PeerProgress { mark, is_awaited });
                },
                Act::Look => {
                    let ended = table.stalled(at(now));
                    prop_assert!(ended.is_empty() || table.is_short());
                }
            }
            for id in granted {
                let member = members.iter_mut().find(|(other, ..)| *other == id).unwrap();
                prop_assert!(member.2.is_some());
                member.1 = member.2.take().unwrap();
            }
            let (used, shared_bytes) = table.used();
            let held: usize = members.iter().map(|(_, extra, _)| *extra).sum();
            // A request larger than the shared part counts as the shared part.
            prop_assert!(used <= shared_bytes && used <= held, "{used} of {shared_bytes}, {held} held");
            prop_assert_eq!(table.is_short(), members.iter().any(|(.., waits)| waits.is_some()));
        }
        // Everything is returned until no member waits.
        for _ in 0..=members.len() {
            for index in 0..members.len() {
                members[index].1 = 0;
                for id in table.give_back(members[index].0, 0, at(now)) {
                    let member = members.iter_mut().find(|(other, ..)| *other == id).unwrap();
                    member.1 = member.2.take().unwrap();
                }
            }
        }
        prop_assert!(!table.is_short(), "{members:?}");
    }
}
