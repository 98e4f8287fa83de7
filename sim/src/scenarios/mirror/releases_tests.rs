//! Nodes of several releases, and nodes that are upgraded while others are at work.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use flagstone_mirror::peer::{AskError, Request};
use flagstone_mirror::state::MirrorState;
use flagstone_mirror::{CommandError, NoCommonVersion, PeerOptions, WhenPeerLost};
use flagstone_runtime::time;

use super::super::growth::{GROWN, LAST, NEW};
use super::super::link::Stage;
use super::super::pair::{BLOCK, BLOCKS, DATA, Group, METADATA, Pair, REGION, Trio, fill};
use super::*;

/// The release before this one, this one, the next, and one that does not know this one any more.
const BEFORE: usize = 0;
const THIS: usize = 1;
const NEXT: usize = 2;
const FAR: usize = 3;

/// A group of these releases that mirrors.
fn of<const N: usize>(seed: u64, releases: [usize; N], options: fn(&mut PeerOptions)) -> Group<N> {
    Group::of(seed, releases.map(release), options)
}

fn strict(peer: &mut PeerOptions) {
    peer.when_lost = WhenPeerLost::Strict;
}

/// Node 0 serves, and all others are in sync with it.
fn mirrors<const N: usize>(group: &Group<N>) {
    (1..N).for_each(|other| group.until_towards(0, other, MirrorState::Mirroring));
}

/// The devices are made larger, each with something else in what is new.
fn enlarge<const N: usize>(group: &Group<N>) {
    for (index, rest) in (0..N).zip([0xaa, 0xbb, 0xcc]) {
        let node = group.nodes[index];
        group.sim.grow_disk(node, DATA, NEW);
        group.sim.poke(node, DATA, METADATA.end, &vec![rest; (GROWN * BLOCK) as usize]);
    }
    // What the first resync has cleared reaches the disks.
    group.sim.run_for(Duration::from_secs(10));
    (1..N).for_each(|index| follow_source(group, index));
}

/// A node takes over the size of its source, as its server does.
fn follow_source<const N: usize>(group: &Group<N>, index: usize) {
    let (mirror, resizing) = (group.mirror(index), group.resizing(index));
    group.sim.spawn_on(group.nodes[index], resizing.follow_source(mirror));
}

const SIZE: u64 = (BLOCKS + GROWN) * BLOCK;

/// The operator of node 0 has the volume grow, again when that fails, and a host writes to what is
/// new.
fn grow<const N: usize>(group: &Group<N>) {
    let (mirror, resizing) = (group.mirror(0), group.resizing(0));
    group.sim.spawn_on(group.nodes[0], async move {
        while mirror.clear_room(SIZE).await.is_err() {
            time::sleep(Duration::from_millis(100)).await;
        }
        let mirror = resizing.resize(&mirror, SIZE).await;
        fill(&mirror, LAST, 9).await.expect("it serves");
    });
}

/// The volume has grown, and is the same on all nodes; any that is made the source in its place has
/// all of it.
fn has_grown<const N: usize>(group: &Group<N>, about: &str) {
    let deadline = group.sim.now() + Duration::from_secs(120);
    let all = |index: usize| group.sim.peek(group.nodes[index], DATA, 0, SIZE as usize);
    let written = || all(0)[(LAST * BLOCK) as usize] == 9;
    while group.mirror(0).usable_bytes() < SIZE || !written() {
        group.sim.run_for(Duration::from_millis(10));
        assert!(group.sim.now() < deadline, "{about}: it does not grow");
    }
    mirrors(group);
    (1..N).for_each(|index| assert!(all(0) == all(index), "{about}: leg {index} differs"));
    let found = |index: usize| [5, BLOCKS, LAST].map(|block| group.read(index, block));
    assert_eq!(found(0), [7, 0, 9], "{about}");
    group.end(0, true);
    group.sim.run_for(Duration::from_secs(1));
    group.on(1, |mirror| async move { mirror.failover().await }).expect("it is whole");
    assert_eq!(found(1), [7, 0, 9], "{about}");
}

/// How much of the volume was copied to a node since it has grown, in bytes.
fn copied<const N: usize>(group: &Group<N>, other: usize) -> u64 {
    group.status_of(0, other).resync_total_bytes
}

/// Whoever asks chooses, and both find the same: it is what sources say when they attach.
#[test]
fn nodes_use_the_highest_version_that_both_speak() {
    for (releases, used) in [
        ([BEFORE, BEFORE], 2),
        ([BEFORE, THIS], 2),
        ([THIS, BEFORE], 2),
        ([THIS, THIS], 3),
        ([THIS, NEXT], 3),
        ([NEXT, THIS], 3),
        ([NEXT, NEXT], 4),
        ([FAR, NEXT], 4),
    ] {
        let pair = of(1, releases, |_| {});
        let said = Rc::new(RefCell::new(Vec::new()));
        let heard = said.clone();
        pair.hub().set_watcher(move |_, request, stage| {
            if let (Request::Attach(attach), Stage::Done) = (request, stage) {
                heard.borrow_mut().push(attach.version.0);
            }
        });
        pair.write(0, 5, 7).expect("both are there");
        pair.on(0, |mirror| async move { mirror.switchover(0).await }).expect("in sync");
        pair.becomes_whole(1);
        pair.cut();
        pair.sim.run_for(Duration::from_secs(1));
        pair.hub().heal();
        pair.becomes_whole(1);
        let said = said.borrow();
        assert!(said.len() >= 2 && said.iter().all(|said| *said == used), "{releases:?}: {said:?}");
        assert_eq!(pair.read(1, 5), 7);
        for index in 0..2 {
            let met = pair.peer_status(index).versions;
            assert_eq!(met, Some(release(releases[1 - index])), "{releases:?}");
        }
    }
}

/// The release before cannot be asked to zero what is new, or does not know how to ask: it is copied.
#[test]
fn what_is_new_is_copied_between_nodes_of_which_one_cannot_zero_it() {
    for releases in [[THIS, BEFORE], [BEFORE, THIS], [BEFORE, BEFORE]] {
        let pair: Pair = of(2, releases, strict);
        pair.write(0, 5, 7).expect("both are there");
        enlarge(&pair);
        grow(&pair);
        pair.sim.run_for(Duration::from_secs(10));
        assert!(copied(&pair, 1) >= GROWN * BLOCK, "{releases:?}: {} B", copied(&pair, 1));
        has_grown(&pair, &format!("{releases:?}"));
    }
    for releases in [[THIS, NEXT], [NEXT, THIS]] {
        let pair: Pair = of(2, releases, strict);
        pair.write(0, 5, 7).expect("both are there");
        enlarge(&pair);
        grow(&pair);
        pair.sim.run_for(Duration::from_secs(10));
        assert!(copied(&pair, 1) <= REGION, "{releases:?}: {} B", copied(&pair, 1));
        has_grown(&pair, &format!("{releases:?}"));
    }
}

/// Of two targets the one that can zeroes what is new, and the other is copied it.
#[test]
fn each_target_is_used_by_the_version_that_it_speaks() {
    let trio: Trio = of(3, [THIS, BEFORE, THIS], strict);
    trio.write(0, 5, 7).expect("all are there");
    enlarge(&trio);
    grow(&trio);
    trio.sim.run_for(Duration::from_secs(10));
    assert!(copied(&trio, 1) >= GROWN * BLOCK, "{} B", copied(&trio, 1));
    assert!(copied(&trio, 2) <= REGION, "{} B", copied(&trio, 2));
    has_grown(&trio, "two targets");
}

/// Whatever the source has found of its target before, it asks what that is now: a target that was
/// put back, and is not known to be another by anything else, is not asked for what it does not know
/// (the link of these tests sees to that), and one that was upgraded is.
#[test]
fn a_target_is_replaced_at_any_moment_of_a_growth() {
    let mut early = 0;
    for moment in 0..60 {
        for (old, new) in [(THIS, BEFORE), (BEFORE, THIS)] {
            let about = format!("{old} to {new} after {moment}");
            let pair: Pair = of(moment, [THIS, old], strict);
            pair.write(0, 5, 7).expect("both are there");
            enlarge(&pair);
            pair.hub().set_slow(Duration::from_millis(3));
            grow(&pair);
            pair.sim.run_for(Duration::from_millis(10 * moment));
            early += u32::from(pair.mirror(0).usable_bytes() < SIZE);
            pair.replace(1, release(new));
            follow_source(&pair, 1);
            has_grown(&pair, &about);
        }
    }
    assert!(early > 10, "{early} of 120 before it grew");
}

/// Both go on without the other as if it were not there, say why, and are one again as soon as there
/// is a version that both speak.
#[test]
fn nodes_without_a_common_version_wait_for_the_upgrade() {
    let pair = Pair::new(4, |_| {});
    pair.replace(1, release(FAR));
    pair.until(0, MirrorState::Mismatch);
    pair.write(0, 5, 7).expect("the peer is lost, and the policy is to go on");
    let none = NoCommonVersion { ours: release(THIS), peers: release(FAR) };
    let asked = pair.on(0, |mirror| async move { mirror.clear_room(BLOCKS * BLOCK).await });
    assert_eq!(asked, Err(CommandError::Peer(AskError::NoCommonVersion(none))));
    assert_eq!(pair.peer_status(0).versions, Some(none.peers));
    pair.sim.run_for(Duration::from_secs(20));
    assert_eq!(pair.state(1), MirrorState::Mismatch);
    assert_eq!(pair.peer_status(1).versions, Some(none.ours));
    assert!(!pair.mirror(1).is_active() && pair.leg(1)[(5 * BLOCK) as usize] == 0);

    pair.replace(0, release(NEXT));
    pair.becomes_whole(0);
    assert_eq!(pair.read(0, 5), 7);
    // The other way round: now the target may be put back.
    pair.replace(1, release(THIS));
    pair.becomes_whole(0);
}

/// As `docs/guides/mirror.md` says: the target first, then the role goes over, then the other. The
/// volume is served all the while, and only what is written while a node is away is copied.
#[test]
fn two_nodes_are_upgraded_one_after_the_other() {
    let pair: Pair = of(5, [BEFORE, BEFORE], |_| {});
    pair.sim.run_for(Duration::from_secs(10));
    pair.write(0, 1, 1).expect("both are there");
    pair.end(1, false);
    pair.write(0, 2, 2).expect("the peer is lost, and the policy is to go on");
    pair.sim.restart(pair.nodes[1]);
    pair.release(1, release(THIS));
    pair.start(1);
    pair.becomes_whole(0);
    assert!(copied(&pair, 1) <= 2 * REGION, "{} B", copied(&pair, 1));
    pair.write(0, 3, 3).expect("both are there");
    pair.on(0, |mirror| async move { mirror.switchover(0).await }).expect("in sync");
    pair.write(1, 4, 4).expect("it serves");
    pair.becomes_whole(1);
    pair.end(0, false);
    pair.write(1, 5, 5).expect("the peer is lost, and the policy is to go on");
    pair.sim.restart(pair.nodes[0]);
    pair.release(0, release(THIS));
    pair.start(0);
    pair.becomes_whole(1);
    let total = pair.status_of(1, 0).resync_total_bytes;
    assert!(total <= 2 * REGION, "{total} B");
    assert_eq!(pair.peer_status(1).versions, Some(release(THIS)));
    for block in 1..=5u8 {
        assert_eq!(pair.read(1, block.into()), block);
    }
}
