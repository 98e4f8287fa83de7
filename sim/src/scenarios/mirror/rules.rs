//! Rules 16 to 21 of `docs/mirror-handshake.md`, which concern several targets: one test per rule,
//! which fails without it. The tests of rules 22 to 26 (failing disks) are in [`super::broken`],
//! the tests of the first six are in the mirror's `history_tests`.
//!
//! Left out, besides what [`super::pair`] leaves out: hosts' load during the events.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use flagstone_mirror::CommandError;
use flagstone_mirror::ondisk::superblock::PeerRecord;
use flagstone_mirror::state::status::MirrorState;
use flagstone_mirror::wire::peer::PeerRequest;

use super::link::CallOutcome;
use super::pair::{BLOCK, DATA, Trio, fill};

/// Longer than the keep-alive timeout and the reconnect delay.
const A_WHILE: Duration = Duration::from_secs(10);
/// Longer than a message takes, and shorter than the keep-alive timeout.
const A_MOMENT: Duration = Duration::from_millis(100);

fn trio(seed: u64) -> Trio {
    let trio = Trio::new(seed, |_| {});
    trio.write(0, 5, 1).expect("all are there");
    trio
}

/// Applies `outcome` to the requests of a kind and counts them. Other requests are delivered.
fn outcome(trio: &Trio, outcome: CallOutcome, kind: fn(&PeerRequest) -> bool) -> Rc<Cell<u64>> {
    let seen = Rc::new(Cell::new(0));
    let counting = seen.clone();
    trio.network().set_outcome(move |request| {
        if !kind(request) {
            return CallOutcome::Arrives;
        }
        counting.set(counting.get() + 1);
        outcome
    });
    seen
}

fn all_arrives(trio: &Trio) {
    trio.network().set_outcome(|_| CallOutcome::Arrives);
}

fn until(trio: &Trio, what: impl Fn() -> bool) {
    let deadline = trio.sim.now() + Duration::from_secs(120);
    while !what() {
        trio.sim.run_for(Duration::from_millis(1));
        assert!(trio.sim.now() < deadline, "it does not reach that state");
    }
}

/// Starts a write without waiting for its end.
fn begin_write(trio: &Trio, index: usize, block: u64, byte: u8) {
    let mirror = trio.mirror(index);
    trio.sim.spawn_on(trio.nodes[index], async move {
        let _ = fill(&mirror, block, byte).await;
    });
}

/// Node 0 asks node 1 to become the source, and only node 1 knows of it.
fn ask_alone(trio: &Trio, asked: CallOutcome) -> Rc<Cell<u64>> {
    let promotes = outcome(trio, asked, |request| matches!(request, PeerRequest::Promote { .. }));
    let mirror = trio.mirror(0);
    trio.sim.spawn_on(trio.nodes[0], async move {
        let unknown = mirror.switchover(Trio::leg_to(0, 1)).await;
        assert_eq!(unknown, Err(CommandError::OutcomeUnknown));
    });
    until(trio, || promotes.get() > 0);
    trio.part(1, 2);
    trio.sim.run_for(A_MOMENT);
    trio.part(0, 1);
    promotes
}

/// Rule 1 for a peer that returns while a generation is being recorded, adopts it, and is lost
/// again: the generation that was begun for its first loss does not count for the second.
#[test]
fn rule_1_holds_for_peer_lost_twice_during_generation() {
    let trio = trio(1);
    trio.isolate(1);
    trio.sim.run_for(A_WHILE);
    // The other target is slow to adopt the new generation.
    trio.sim.stall(trio.nodes[2], DATA, Duration::from_secs(3));
    let written = Rc::new(Cell::new(false));
    let (mirror, done) = (trio.mirror(0), written.clone());
    let before = trio.superblock(0).current;
    trio.sim.spawn_on(trio.nodes[0], async move {
        fill(&mirror, 7, 3).await.expect("two nodes are there");
        done.set(true);
    });
    until(&trio, || trio.superblock(0).current != before);
    trio.network().heal();
    let current = |index: usize| trio.superblock(index).current;
    until(&trio, || current(1) == current(0));
    trio.isolate(1);
    assert!(!written.get(), "the other target has answered");
    until(&trio, || written.get());
    assert_ne!(current(0), current(1), "node 1 looks current, and lacks the write");
}

#[test]
fn concurrent_handshakes_get_one_peer_slot_each() {
    for seed in 0..20 {
        let trio = Trio::new(seed, |_| {});
        let mut known = trio.superblock(0).peers.map(|peer| peer.replica);
        let mut others = [1, 2].map(|index| trio.superblock(index).replica);
        known.sort_unstable();
        others.sort_unstable();
        assert_eq!(known, others, "seed {seed}");
    }
}

#[test]
fn rule_16_asked_successor_is_queried_before_role_resumes() {
    for asked in [CallOutcome::Lost, CallOutcome::Unanswered] {
        for dies in [None, Some(false), Some(true)] {
            let trio = trio(16);
            ask_alone(&trio, asked);
            if let Some(power) = dies {
                trio.end(0, power);
                trio.restart(0);
            }
            trio.sim.run_for(A_WHILE);
            // Node 2 is connected and equal, but does not know of the request.
            let expected = if asked == CallOutcome::Unanswered { vec![1] } else { vec![] };
            assert_eq!(trio.active(), expected, "{asked:?}, {dies:?}");
            all_arrives(&trio);
            trio.network().heal();
            until(&trio, || trio.active().len() == 1);
            let source = trio.active()[0];
            assert!(
                asked == CallOutcome::Lost || source == 1,
                "the asked node has served: {source}"
            );
            trio.becomes_in_sync(source);
        }
    }
}

#[test]
fn rule_17_other_target_has_data_from_the_transfer() {
    let trio = trio(17);
    trio.part(1, 2);
    trio.on(0, |mirror| async move { mirror.switchover(Trio::leg_to(0, 1)).await })
        .expect("both are in sync");
    trio.part(0, 2);
    trio.until_toward(1, 0, MirrorState::Mirroring);
    let before = trio.superblock(1).current;
    assert_eq!(before, trio.superblock(2).current, "the transfer left them equal");
    trio.write(1, 7, 2).expect("one target is there");
    assert_ne!(before, trio.superblock(1).current, "the generation was bumped");
    let unknown = |peer: &PeerRecord| peer.replica.is_none() && peer.bases.contains(before);
    assert!(trio.superblock(1).peers.iter().any(unknown), "in the free slot");
    trio.network().heal();
    trio.becomes_in_sync(1);
    let copied = trio.status_of(1, 2).resync_total_bytes;
    assert!(copied <= BLOCK, "only the written blocks are copied: {copied} bytes");
}

#[test]
fn rule_18_in_flight_writes_may_have_reached_any_target() {
    let trio = trio(18);
    trio.part(0, 1);
    begin_write(&trio, 0, 9, 3);
    trio.sim.run_for(A_MOMENT);
    trio.end(0, true);
    assert!(trio.leg(1) != trio.leg(2), "it has reached one of them");
    trio.isolate(1);
    let before = trio.superblock(1).current;
    trio.on(1, |mirror| async move { mirror.failover().await }).expect("a sound disk");
    // Both changes are on disk before hosts are served.
    assert_ne!(before, trio.superblock(1).current, "the data has its own generation");
    trio.end(1, true);
    trio.restart(1);
    assert_eq!(trio.active(), [1], "it knows that the others are out of date");
    trio.network().heal();
    trio.until_toward(1, 2, MirrorState::Mirroring);
    assert!(trio.leg(1) == trio.leg(2), "two nodes in sync differ");
}

#[test]
fn rule_19_generations_of_source_identify_stale_target() {
    let trio = trio(19);
    // Node 1 is away, so the data of 0 and 2 gets a generation that 1 never had.
    trio.isolate(1);
    trio.write(0, 6, 2).expect("one target is there");
    let theirs = trio.superblock(2).current;
    assert_eq!(theirs, trio.superblock(0).current);
    // Then node 2 is away too, and the data gets a generation that neither has. Node 1 is resynced
    // to it.
    trio.cut();
    trio.write(0, 7, 3).expect("it runs degraded");
    trio.network().heal();
    trio.isolate(2);
    trio.until_toward(0, 1, MirrorState::Mirroring);
    assert_eq!(trio.superblock(2).current, theirs, "it was left behind");
    trio.end(0, false);
    trio.on(1, |mirror| async move { mirror.failover().await }).expect("a sound disk");
    trio.network().heal();
    trio.until_toward(1, 2, MirrorState::Mirroring);
    assert!(trio.leg(1) == trio.leg(2), "the legs differ");
}

#[test]
fn rule_19_full_resync_generation_reaches_other_targets() {
    let trio = trio(19);
    trio.isolate(2);
    trio.write(0, 7, 3).expect("one target is there");
    // Node 2 has adopted its generation, and nothing else.
    let begun = outcome(
        &trio,
        CallOutcome::Unanswered,
        |request| matches!(request, PeerRequest::BeginResync { base } if !base.is_none()),
    );
    trio.mirror(0).resync_all(Trio::leg_to(0, 2)).expect("there is such a peer");
    trio.network().heal();
    until(&trio, || begun.get() > 0);
    trio.sim.run_for(A_MOMENT);
    trio.isolate(2);
    let name = trio.superblock(2).current;
    assert_ne!(name, trio.superblock(0).current);
    trio.end(0, false);
    all_arrives(&trio);
    trio.on(1, |mirror| async move { mirror.failover().await }).expect("a sound disk");
    assert!(trio.superblock(1).history.contains(name), "it has adopted the generation");
    trio.network().heal();
    trio.until_toward(1, 2, MirrorState::Mirroring);
    assert!(trio.leg(1) == trio.leg(2), "the legs differ");
}

#[test]
fn rule_20_in_sync_target_adopts_the_new_generation() {
    let trio = trio(20);
    let before = trio.superblock(0).current;
    trio.isolate(2);
    trio.write(0, 7, 3).expect("one target is there");
    let names = [0, 1, 2].map(|index| trio.superblock(index).current);
    assert_eq!(names[0], names[1], "nodes in sync share one generation");
    assert_eq!(
        [before != names[0], before == names[2]],
        [true, true],
        "a node out of sync keeps the old generation"
    );
}

#[test]
fn rule_20_crashed_source_does_not_start_degraded() {
    let trio = trio(20);
    trio.isolate(2);
    let renames = outcome(&trio, CallOutcome::Lost, |request| {
        matches!(request, PeerRequest::NewGeneration { .. })
    });
    begin_write(&trio, 0, 7, 3);
    until(&trio, || renames.get() > 0);
    trio.end(0, false);
    let target = trio.superblock(1).replica;
    let peers = trio.superblock(0).peers;
    let record = peers.iter().find(|peer| peer.replica == target).expect("recorded");
    assert!(record.renaming && !record.bases.is_empty(), "{record:?}");
    // Meanwhile the target may become the source: it has all acknowledged data.
    trio.cut();
    trio.restart(0);
    trio.sim.run_for(A_WHILE);
    assert_eq!(trio.active(), [0; 0], "no node was asked");
    all_arrives(&trio);
    trio.network().heal();
    trio.becomes_in_sync(0);
}

#[test]
fn rule_21_flapping_peer_keeps_generations_of_others() {
    let trio = trio(21);
    trio.isolate(2);
    trio.write(0, 10, 1).expect("one target is there");
    // Node 2 adopts the source's generation, and the source does not learn of it.
    let ended = outcome(&trio, CallOutcome::Unanswered, |request| {
        matches!(request, PeerRequest::EndResync { .. })
    });
    trio.network().heal();
    until(&trio, || ended.get() > 0);
    trio.sim.run_for(A_MOMENT);
    trio.isolate(2);
    all_arrives(&trio);
    let held = trio.superblock(2).current;
    assert_eq!(held, trio.superblock(0).current, "it was taken over");
    trio.sim.run_for(A_WHILE);
    for round in 0..6 {
        trio.part(0, 1);
        trio.write(0, 20 + round, 2).expect("it runs degraded");
        trio.network().heal();
        trio.isolate(2);
        trio.until_toward(0, 1, MirrorState::Mirroring);
    }
    let source = trio.superblock(0);
    let target = trio.superblock(2).replica;
    let record = source.peers.iter().find(|peer| peer.replica == target).expect("recorded");
    assert!(record.bases.contains(held), "its content is known: {record:?}");
    trio.network().heal();
    trio.becomes_in_sync(0);
    let copied = trio.status_of(0, 2).resync_total_bytes;
    assert!(copied <= 7 * BLOCK, "only the written blocks are copied: {copied} bytes");
}
