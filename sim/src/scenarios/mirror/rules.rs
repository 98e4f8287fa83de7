//! A test for each rule around the decision of `docs/mirror-handshake.md` that is about several
//! targets, 16 to 21: it fails without the rule. Those about disks that fail, 22 to 25, are in
//! [`super::broken`]; the first six in the mirror's own `history_tests`.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use flagstone_mirror::CommandError;
use flagstone_mirror::format::superblock::PeerRecord;
use flagstone_mirror::peer::Request;
use flagstone_mirror::state::MirrorState;

use super::link::Fate;
use super::pair::{BLOCK, Trio, fill};

/// Longer than a session that hears nothing lasts, and than a link waits before it tries again.
const A_WHILE: Duration = Duration::from_secs(10);
/// Longer than a message takes, and shorter than a session that hears nothing lasts.
const A_MOMENT: Duration = Duration::from_millis(100);

fn trio(seed: u64) -> Trio {
    let trio = Trio::new(seed, |_| {});
    trio.write(0, 5, 1).expect("all are there");
    trio
}

/// What becomes of the requests of a kind. Others arrive.
fn fate(trio: &Trio, fate: Fate, kind: fn(&Request) -> bool) -> Rc<Cell<u64>> {
    let seen = Rc::new(Cell::new(0));
    let counting = seen.clone();
    trio.hub().set_fate(move |request| {
        if !kind(request) {
            return Fate::Arrives;
        }
        counting.set(counting.get() + 1);
        fate
    });
    seen
}

fn all_arrives(trio: &Trio) {
    trio.hub().set_fate(|_| Fate::Arrives);
}

fn until(trio: &Trio, what: impl Fn() -> bool) {
    let deadline = trio.sim.now() + Duration::from_secs(120);
    while !what() {
        trio.sim.run_for(Duration::from_millis(1));
        assert!(trio.sim.now() < deadline, "it does not come to that");
    }
}

/// A write begins, and nobody waits for its end.
fn begin_write(trio: &Trio, index: usize, block: u64, byte: u8) {
    let mirror = trio.mirror(index);
    trio.sim.spawn_on(trio.nodes[index], async move {
        let _ = fill(&mirror, block, byte).await;
    });
}

/// Node 0 asks node 1 to be the source, and nobody hears of it but node 1.
fn ask_alone(trio: &Trio, asked: Fate) -> Rc<Cell<u64>> {
    let promotes = fate(trio, asked, |request| matches!(request, Request::Promote { .. }));
    let mirror = trio.mirror(0);
    trio.sim.spawn_on(trio.nodes[0], async move {
        let unknown = mirror.switchover(Trio::leg_to(0, 1)).await;
        assert_eq!(unknown, Err(CommandError::Unknown));
    });
    until(trio, || promotes.get() > 0);
    trio.part(1, 2);
    trio.sim.run_for(A_MOMENT);
    trio.part(0, 1);
    promotes
}

#[test]
fn peers_that_are_met_at_once_have_a_place_each() {
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
fn rule_16_who_was_asked_to_be_the_source_is_heard_of_before_the_role_is_taken_again() {
    for asked in [Fate::Lost, Fate::Unanswered] {
        for dies in [None, Some(false), Some(true)] {
            let trio = trio(16);
            ask_alone(&trio, asked);
            if let Some(power) = dies {
                trio.end(0, power);
                trio.restart(0);
            }
            trio.sim.run_for(A_WHILE);
            // Node 2 is there, and equal: it cannot tell.
            let expected = if asked == Fate::Unanswered { vec![1] } else { vec![] };
            assert_eq!(trio.active(), expected, "{asked:?}, {dies:?}");
            all_arrives(&trio);
            trio.hub().heal();
            until(&trio, || trio.active().len() == 1);
            let source = trio.active()[0];
            assert!(asked == Fate::Lost || source == 1, "who was asked has served: {source}");
            trio.becomes_whole(source);
        }
    }
}

#[test]
fn rule_17_a_peer_that_this_source_has_not_met_has_what_the_hand_over_left() {
    let trio = trio(17);
    trio.part(1, 2);
    trio.on(0, |mirror| async move { mirror.switchover(Trio::leg_to(0, 1)).await })
        .expect("both are in sync");
    trio.part(0, 2);
    trio.until_towards(1, 0, MirrorState::Mirroring);
    let before = trio.superblock(1).current;
    assert_eq!(before, trio.superblock(2).current, "the hand-over left them equal");
    trio.write(1, 7, 2).expect("one target is there");
    assert_ne!(before, trio.superblock(1).current, "minted");
    let unmet = |peer: &PeerRecord| peer.replica.is_none() && peer.bases.contains(before);
    assert!(trio.superblock(1).peers.iter().any(unmet), "in the free place");
    trio.hub().heal();
    trio.becomes_whole(1);
    let copied = trio.status_of(1, 2).resync_total_bytes;
    assert!(copied <= BLOCK, "no more than what was written is copied: {copied} bytes");
}

#[test]
fn rule_18_what_the_dead_source_had_in_hand_may_have_reached_any() {
    let trio = trio(18);
    trio.part(0, 1);
    begin_write(&trio, 0, 9, 3);
    trio.sim.run_for(A_MOMENT);
    trio.end(0, true);
    assert!(trio.leg(1) != trio.leg(2), "it has reached one of them");
    trio.isolate(1);
    let before = trio.superblock(1).current;
    trio.on(1, |mirror| async move { mirror.failover().await }).expect("a sound disk");
    // Both are on the disk as soon as hosts are served.
    assert_ne!(before, trio.superblock(1).current, "the data has a name of its own");
    trio.end(1, true);
    trio.restart(1);
    assert_eq!(trio.active(), [1], "it knows that the others are out of date");
    trio.hub().heal();
    trio.until_towards(1, 2, MirrorState::Mirroring);
    assert!(trio.leg(1) == trio.leg(2), "two that are in sync differ");
}

#[test]
fn rule_19_a_target_knows_by_the_names_of_its_source_who_was_left_behind() {
    let trio = trio(19);
    // 1 is away, so what 0 and 2 have gets a name that 1 never had.
    trio.isolate(1);
    trio.write(0, 6, 2).expect("one target is there");
    let theirs = trio.superblock(2).current;
    assert_eq!(theirs, trio.superblock(0).current);
    // Then 2 is too, and it gets one that neither has; with that 1 is brought up to date.
    trio.cut();
    trio.write(0, 7, 3).expect("it goes on alone");
    trio.hub().heal();
    trio.isolate(2);
    trio.until_towards(0, 1, MirrorState::Mirroring);
    assert_eq!(trio.superblock(2).current, theirs, "it was left behind");
    trio.end(0, false);
    trio.on(1, |mirror| async move { mirror.failover().await }).expect("a sound disk");
    trio.hub().heal();
    trio.until_towards(1, 2, MirrorState::Mirroring);
    assert!(trio.leg(1) == trio.leg(2), "the legs differ");
}

#[test]
fn rule_19_a_name_that_a_full_resync_gives_is_told_to_the_others() {
    let trio = trio(19);
    trio.isolate(2);
    trio.write(0, 7, 3).expect("one target is there");
    // 2 has taken its name, and no more.
    let begun = fate(
        &trio,
        Fate::Unanswered,
        |request| matches!(request, Request::BeginResync { base } if !base.is_none()),
    );
    trio.mirror(0).resync_all(Trio::leg_to(0, 2)).expect("there is such a peer");
    trio.hub().heal();
    until(&trio, || begun.get() > 0);
    trio.sim.run_for(A_MOMENT);
    trio.isolate(2);
    let name = trio.superblock(2).current;
    assert_ne!(name, trio.superblock(0).current);
    trio.end(0, false);
    all_arrives(&trio);
    trio.on(1, |mirror| async move { mirror.failover().await }).expect("a sound disk");
    assert!(trio.superblock(1).history.contains(name), "it was told");
    trio.hub().heal();
    trio.until_towards(1, 2, MirrorState::Mirroring);
    assert!(trio.leg(1) == trio.leg(2), "the legs differ");
}

#[test]
fn rule_20_who_is_in_sync_takes_the_new_name_too() {
    let trio = trio(20);
    let before = trio.superblock(0).current;
    trio.isolate(2);
    trio.write(0, 7, 3).expect("one target is there");
    let names = [0, 1, 2].map(|index| trio.superblock(index).current);
    assert_eq!(names[0], names[1], "what is in sync has one name");
    assert_eq!([before != names[0], before == names[2]], [true, true], "what is not, another");
}

#[test]
fn rule_20_a_source_that_died_while_it_renamed_a_target_does_not_start_alone() {
    let trio = trio(20);
    trio.isolate(2);
    let renames = fate(&trio, Fate::Lost, |request| matches!(request, Request::Rename { .. }));
    begin_write(&trio, 0, 7, 3);
    until(&trio, || renames.get() > 0);
    trio.end(0, false);
    let target = trio.superblock(1).replica;
    let peers = trio.superblock(0).peers;
    let record = peers.iter().find(|peer| peer.replica == target).expect("it was met");
    assert!(record.renaming && !record.bases.is_empty(), "{record:?}");
    // The target may be made the source meanwhile: it has all that was acknowledged.
    trio.cut();
    trio.restart(0);
    trio.sim.run_for(A_WHILE);
    assert_eq!(trio.active(), [0; 0], "nobody was asked");
    all_arrives(&trio);
    trio.hub().heal();
    trio.becomes_whole(0);
}

#[test]
fn rule_21_a_peer_that_comes_and_goes_pushes_no_name_of_another_off_the_list() {
    let trio = trio(21);
    trio.isolate(2);
    trio.write(0, 10, 1).expect("one target is there");
    // 2 takes the name of the source over, which does not hear of it.
    let ended =
        fate(&trio, Fate::Unanswered, |request| matches!(request, Request::EndResync { .. }));
    trio.hub().heal();
    until(&trio, || ended.get() > 0);
    trio.sim.run_for(A_MOMENT);
    trio.isolate(2);
    all_arrives(&trio);
    let held = trio.superblock(2).current;
    assert_eq!(held, trio.superblock(0).current, "it was taken over");
    trio.sim.run_for(A_WHILE);
    for round in 0..6 {
        trio.part(0, 1);
        trio.write(0, 20 + round, 2).expect("it goes on alone");
        trio.hub().heal();
        trio.isolate(2);
        trio.until_towards(0, 1, MirrorState::Mirroring);
    }
    let source = trio.superblock(0);
    let target = trio.superblock(2).replica;
    let record = source.peers.iter().find(|peer| peer.replica == target).expect("it was met");
    assert!(record.bases.contains(held), "what it holds is known: {record:?}");
    trio.hub().heal();
    trio.becomes_whole(0);
    let copied = trio.status_of(0, 2).resync_total_bytes;
    assert!(copied <= 7 * BLOCK, "no more than what was written is copied: {copied} bytes");
}
