//! Mixed releases and rolling upgrades: nodes that run different releases of the program.
//!
//! Left out, besides what [`super::pair`] leaves out: real older programs. A release is a range of
//! link versions of this program.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use flagstone_mirror::state::status::MirrorState;
use flagstone_mirror::wire::peer::{PeerRequest, RequestError};
use flagstone_mirror::{CommandError, NoCommonVersion, OnPeerLoss, PeerOptions};
use flagstone_runtime::time;

use super::super::growth::{GROWN, LAST, NEW};
use super::super::link::Stage;
use super::super::pair::{BLOCK, BLOCKS, DATA, Group, METADATA, Pair, REGION, Trio, fill};
use super::*;

/// Releases: the previous one, this one, the next, and a later one without support
/// for this one's version.
const BEFORE: usize = 0;
const THIS: usize = 1;
const NEXT: usize = 2;
const FAR: usize = 3;

/// A mirroring group of these releases.
fn of<const N: usize>(seed: u64, releases: [usize; N], options: fn(&mut PeerOptions)) -> Group<N> {
    Group::of(seed, releases.map(release), options)
}

fn strict(peer: &mut PeerOptions) {
    peer.on_peer_loss = OnPeerLoss::Block;
}

/// Checks that node 0 serves and all others are in sync with it.
fn mirrors<const N: usize>(group: &Group<N>) {
    (1..N).for_each(|other| group.until_toward(0, other, MirrorState::Mirroring));
}

/// Enlarges the devices, each with different content in the new part.
fn enlarge<const N: usize>(group: &Group<N>) {
    for (index, rest) in (0..N).zip([0xaa, 0xbb, 0xcc]) {
        let node = group.nodes[index];
        group.sim.grow_disk(node, DATA, NEW);
        group.sim.poke(node, DATA, METADATA.end, &vec![rest; (GROWN * BLOCK) as usize]);
    }
    // The bits that the first resync cleared reach the disks.
    group.sim.run_for(Duration::from_secs(10));
    (1..N).for_each(|index| follow_source(group, index));
}

/// Makes a node follow the size of its source, as its server does.
fn follow_source<const N: usize>(group: &Group<N>, index: usize) {
    let (mirror, resizing) = (group.mirror(index), group.resizing(index));
    group.sim.spawn_on(group.nodes[index], resizing.follow_source(mirror));
}

const SIZE: u64 = (BLOCKS + GROWN) * BLOCK;

/// Grows the volume on node 0, with retries, and writes to the new part.
fn grow<const N: usize>(group: &Group<N>) {
    let (mirror, resizing) = (group.mirror(0), group.resizing(0));
    group.sim.spawn_on(group.nodes[0], async move {
        while mirror.zero_new_space(SIZE).await.is_err() {
            time::sleep(Duration::from_millis(100)).await;
        }
        let mirror = resizing.resize(&mirror, SIZE).await;
        fill(&mirror, LAST, 9).await.expect("it serves");
    });
}

/// Checks that the volume has grown and is equal on all nodes, and that any node has all of it as
/// the source.
fn has_grown<const N: usize>(group: &Group<N>, about: &str) {
    let deadline = group.sim.now() + Duration::from_secs(120);
    let all = |index: usize| group.sim.peek(group.nodes[index], DATA, 0, SIZE as usize);
    let written = || all(0)[(LAST * BLOCK) as usize] == 9;
    while group.mirror(0).usable_bytes() < SIZE || !written() {
        group.sim.run_for(Duration::from_millis(10));
        assert!(group.sim.now() < deadline, "{about}: it does not grow");
    }
    mirrors(group);
    // The host's write may be on the first leg only.
    group.sim.run_for(Duration::from_millis(100));
    (1..N).for_each(|index| assert!(all(0) == all(index), "{about}: leg {index} differs"));
    let found = |index: usize| [5, BLOCKS, LAST].map(|block| group.read(index, block));
    assert_eq!(found(0), [7, 0, 9], "{about}");
    group.end(0, true);
    group.sim.run_for(Duration::from_secs(1));
    group.on(1, |mirror| async move { mirror.failover().await }).expect("it is complete");
    assert_eq!(found(1), [7, 0, 9], "{about}");
}

/// Bytes copied to a node since the growth.
fn copied<const N: usize>(group: &Group<N>, other: usize) -> u64 {
    group.status_of(0, other).resync_total_bytes
}

/// The connecting node chooses the version; both use the same one, as sources report when they
/// attach.
#[test]
fn nodes_use_the_highest_common_version() {
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
        pair.network().set_watcher(move |_, request, stage| {
            if let (PeerRequest::Attach(attach), Stage::Done) = (request, stage) {
                heard.borrow_mut().push(attach.version.0);
            }
        });
        pair.write(0, 5, 7).expect("both are there");
        pair.on(0, |mirror| async move { mirror.switchover(0).await }).expect("in sync");
        pair.becomes_in_sync(1);
        pair.cut();
        pair.sim.run_for(Duration::from_secs(1));
        pair.network().heal();
        pair.becomes_in_sync(1);
        let said = said.borrow();
        assert!(said.len() >= 2 && said.iter().all(|said| *said == used), "{releases:?}: {said:?}");
        assert_eq!(pair.read(1, 5), 7);
        for index in 0..2 {
            let met = pair.peer_status(index).versions;
            assert_eq!(met, Some(release(releases[1 - index])), "{releases:?}");
        }
    }
}

/// The previous release cannot zero the new part for its peer, or cannot ask its peer to, so it is
/// copied.
#[test]
fn new_space_is_copied_when_one_node_cannot_zero_it() {
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

/// Of two targets, one zeroes the new part, and the other receives a copy.
#[test]
fn each_target_is_used_at_its_own_link_version() {
    let trio: Trio = of(3, [THIS, BEFORE, THIS], strict);
    trio.write(0, 5, 7).expect("all are there");
    enlarge(&trio);
    grow(&trio);
    trio.sim.run_for(Duration::from_secs(10));
    assert!(copied(&trio, 1) >= GROWN * BLOCK, "{} B", copied(&trio, 1));
    assert!(copied(&trio, 2) <= REGION, "{} B", copied(&trio, 2));
    has_grown(&trio, "two targets");
}

/// The source uses the target's current version, not the one found earlier. A downgraded target
/// does not receive requests that it does not know, which the link of these tests enforces. An
/// upgraded target does.
#[test]
fn target_changes_release_at_any_moment_of_growth() {
    let mut early = 0;
    for moment in 0..60 {
        for (old, new) in [(THIS, BEFORE), (BEFORE, THIS)] {
            let about = format!("{old} to {new} after {moment}");
            let pair: Pair = of(moment, [THIS, old], strict);
            pair.write(0, 5, 7).expect("both are there");
            enlarge(&pair);
            pair.network().set_slow(Duration::from_millis(3));
            grow(&pair);
            pair.sim.run_for(Duration::from_millis(5 * moment));
            early += u32::from(pair.mirror(0).usable_bytes() < SIZE);
            pair.replace(1, release(new));
            follow_source(&pair, 1);
            has_grown(&pair, &about);
        }
    }
    assert!(early > 10, "{early} of 120 before it grew");
}

/// Without a common version, both nodes run degraded and report why. They mirror again as soon as
/// they share a version.
#[test]
fn nodes_without_common_version_wait_for_upgrade() {
    let pair: Pair = of(4, [THIS, THIS], |_| {});
    pair.replace(1, release(FAR));
    pair.until(0, MirrorState::Mismatch);
    pair.write(0, 5, 7).expect("the peer is lost, and the policy is to degrade");
    let none = NoCommonVersion { ours: release(THIS), peers: release(FAR) };
    let asked = pair.on(0, |mirror| async move { mirror.zero_new_space(BLOCKS * BLOCK).await });
    assert_eq!(asked, Err(CommandError::Peer(RequestError::NoCommonVersion(none))));
    assert_eq!(pair.peer_status(0).versions, Some(none.peers));
    pair.sim.run_for(Duration::from_secs(20));
    assert_eq!(pair.state(1), MirrorState::Mismatch);
    assert_eq!(pair.peer_status(1).versions, Some(none.ours));
    assert!(!pair.mirror(1).is_serving() && pair.leg(1)[(5 * BLOCK) as usize] == 0);

    pair.replace(0, release(NEXT));
    pair.becomes_in_sync(0);
    assert_eq!(pair.read(0, 5), 7);
    // Now the target is downgraded.
    pair.replace(1, release(THIS));
    pair.becomes_in_sync(0);
}

/// Rolling upgrade as in `docs/guides/mirror.md`: the target first, then a switchover, then the
/// other node. The volume stays served, and only writes made while a node is away are copied.
#[test]
fn rolling_upgrade_of_two_nodes() {
    let pair: Pair = of(5, [BEFORE, BEFORE], |_| {});
    pair.sim.run_for(Duration::from_secs(10));
    pair.write(0, 1, 1).expect("both are there");
    pair.end(1, false);
    pair.write(0, 2, 2).expect("the peer is lost, and the policy is to degrade");
    pair.sim.restart(pair.nodes[1]);
    pair.release(1, release(THIS));
    pair.start(1);
    pair.becomes_in_sync(0);
    assert!(copied(&pair, 1) <= 2 * REGION, "{} B", copied(&pair, 1));
    pair.write(0, 3, 3).expect("both are there");
    pair.on(0, |mirror| async move { mirror.switchover(0).await }).expect("in sync");
    pair.write(1, 4, 4).expect("it serves");
    pair.becomes_in_sync(1);
    pair.end(0, false);
    pair.write(1, 5, 5).expect("the peer is lost, and the policy is to degrade");
    pair.sim.restart(pair.nodes[0]);
    pair.release(0, release(THIS));
    pair.start(0);
    pair.becomes_in_sync(1);
    let total = pair.status_of(1, 0).resync_total_bytes;
    assert!(total <= 2 * REGION, "{total} B");
    assert_eq!(pair.peer_status(1).versions, Some(release(THIS)));
    for block in 1..=5u8 {
        assert_eq!(pair.read(1, block.into()), block);
    }
}
