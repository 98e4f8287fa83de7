//! Peers that are removed and added while hosts write, with crashes at every moment.
//!
//! Left out, besides what [`super::pair`] leaves out: the checks of the commands before the change,
//! and the configuration file.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use flagstone_blockdev::BlockDevice as _;
use flagstone_mirror::ondisk::member::{Member, MemberChange};
use flagstone_mirror::state::machine::OrderRefusal;
use flagstone_mirror::state::status::{DesiredState, MirrorState};
use flagstone_mirror::{PeerChange, RoleError};
use flagstone_runtime::buf;

use super::pair::{BLOCK, NAMES, REGION, Trio};

const SOURCE: usize = 0;
const STAYS: usize = 1;
const LEAVES: usize = 2;

fn removal() -> PeerChange {
    let members = vec![Member { name: NAMES[LEAVES].into(), change: MemberChange::Removed }];
    PeerChange { legs: vec![Some(0)], members }
}

fn addition() -> PeerChange {
    PeerChange { legs: vec![Some(0), None], members: Vec::new() }
}

fn is_member(trio: &Trio) -> bool {
    trio.superblock(SOURCE).members.is_empty()
}

fn until(trio: &Trio, what: &str, ready: impl Fn() -> bool) {
    let deadline = trio.sim.now() + Duration::from_secs(60);
    while !ready() {
        trio.sim.run_for(Duration::from_millis(1));
        assert!(trio.sim.now() < deadline, "{what}");
    }
}

fn remove(trio: &Trio, index: usize) {
    let removed = trio.change_peers(index, Some(LEAVES), removal());
    until(trio, "it is removed", || removed.get());
}

fn add(trio: &Trio, index: usize) {
    let added = trio.change_peers(index, None, addition());
    until(trio, "it is added", || added.get());
}

fn in_sync_with_the_other(trio: &Trio) {
    trio.until_toward(SOURCE, STAYS, MirrorState::Mirroring);
    assert!(trio.leg(SOURCE) == trio.leg(STAYS), "the legs differ");
}

/// After a crash of the source, the node that serves is made the source again: of two nodes, the
/// target takes the role.
fn source_serves(trio: &Trio) {
    until(trio, "a node serves", || trio.active().len() == 1);
    if trio.active() == [STAYS] {
        trio.until_toward(STAYS, SOURCE, MirrorState::Mirroring);
        let to = Trio::leg_to(STAYS, SOURCE);
        trio.on(STAYS, move |mirror| async move { mirror.switchover(to).await }).expect("in sync");
        until(trio, "the source serves", || trio.active() == [SOURCE]);
    }
    assert_eq!(trio.active(), [SOURCE]);
}

/// A peer that is removed knows it, serves only if its operator insists, and leaves no marks. When
/// it is added again, everything is copied to it.
#[test]
fn removed_peer_is_forgotten_and_returns_by_full_copy() {
    let trio = Trio::new(1, |_| {});
    trio.write(SOURCE, 1, 7).expect("all are there");
    let leg = Trio::leg_to(SOURCE, LEAVES);
    let pause = move |mirror: std::sync::Arc<flagstone_mirror::Mirror>| async move {
        mirror.set_desired_state(leg, DesiredState::Paused).await
    };
    trio.on(SOURCE, pause).expect("sound disks");
    for block in (2..60).step_by(4) {
        trio.write(SOURCE, block, 8).expect("two are there");
    }
    remove(&trio, STAYS);
    in_sync_with_the_other(&trio);
    remove(&trio, SOURCE);
    in_sync_with_the_other(&trio);
    let status = trio.peer_status(SOURCE);
    assert!(status.resync_total_bytes <= REGION, "what only the other lacked: {status:?}");
    assert!(trio.superblock(LEAVES).removed);
    for force in [false, true] {
        let refused = trio.on(LEAVES, move |mirror| async move {
            match force {
                true => mirror.failover().await,
                false => mirror.failover_if_unserved().await,
            }
        });
        assert_eq!(refused, Err(RoleError::Refused(OrderRefusal::Removed)));
    }
    // It is no peer after a power failure either, and does not hold up the source.
    trio.end(SOURCE, true);
    trio.end(LEAVES, true);
    trio.restart(SOURCE);
    source_serves(&trio);
    trio.write(SOURCE, 3, 9).expect("the other is there");
    trio.restart(LEAVES);
    in_sync_with_the_other(&trio);
    add(&trio, SOURCE);
    add(&trio, STAYS);
    trio.write(SOURCE, 4, 10).expect("it serves");
    trio.becomes_in_sync(SOURCE);
    let copied = trio.status_of(SOURCE, LEAVES).resync_total_bytes;
    assert!(copied >= 60 * BLOCK, "only {copied} bytes were copied");
    assert!(!trio.superblock(LEAVES).removed);
    trio.clear();
}

/// The operator may insist on the data of a removed peer, which is that of the time of its removal.
#[test]
fn removed_peer_serves_by_force() {
    let trio = Trio::new(2, |_| {});
    trio.write(SOURCE, 1, 7).expect("all are there");
    remove(&trio, SOURCE);
    trio.write(SOURCE, 1, 8).expect("two are there");
    trio.end(SOURCE, true);
    trio.end(STAYS, true);
    trio.on(LEAVES, |mirror| async move { mirror.failover_unverified().await }).expect("by force");
    assert_eq!(trio.read(LEAVES, 1), 7);
    trio.clear();
}

/// A host that writes one block continuously, with FUA: a power loss may take other writes. Returns
/// the last value that was acknowledged.
fn start_host(trio: &Trio, adds: bool) -> Rc<Cell<u8>> {
    let (mirror, written) = (trio.mirror(SOURCE), Rc::new(Cell::new(0)));
    let acknowledged = written.clone();
    trio.sim.spawn_on(trio.nodes[SOURCE], async move {
        for round in 1..100 {
            let round = 100 * u8::from(adds) + round;
            let mut memory = buf::alloc(BLOCK as usize).await;
            memory.fill(round);
            if mirror.write(5 * BLOCK, memory.freeze(), true).await.is_err() {
                return;
            }
            acknowledged.set(round);
        }
    });
    written
}

/// Begins to change the peers of the source.
fn begin(trio: &Trio, adds: bool) -> Rc<Cell<bool>> {
    match adds {
        false => trio.change_peers(SOURCE, Some(LEAVES), removal()),
        true => trio.change_peers(SOURCE, None, addition()),
    }
}

/// How long a removal and an addition take while a host writes.
fn spans() -> [Duration; 2] {
    [false, true].map(|adds| {
        let trio = Trio::new(100, |_| {});
        remove(&trio, STAYS);
        if adds {
            remove(&trio, SOURCE);
        }
        in_sync_with_the_other(&trio);
        start_host(&trio, adds);
        let from = trio.sim.now();
        let changed = begin(&trio, adds);
        until(&trio, "the peers are changed", || changed.get());
        let span = trio.sim.now().since(from);
        trio.clear();
        span
    })
}

/// The source crashes at any moment of a removal and of an addition, while a host writes. The
/// command, repeated after the restart, completes it: no acknowledged write is lost, and a removed
/// peer knows that it was removed. The source never has fewer peers than its target: with fewer, it
/// would leave the role to a target that waits for the third node.
#[test]
fn crash_during_change_of_peers_leaves_all_or_nothing() {
    let (mut before, mut after) = ([0, 0], [0, 0]);
    let spans = spans();
    for moment in 0..60 {
        let trio = Trio::new(moment, |_| {});
        for (turn, adds) in [false, true].into_iter().enumerate() {
            let written = start_host(&trio, adds);
            if !adds {
                remove(&trio, STAYS);
            }
            trio.until_toward(SOURCE, STAYS, MirrorState::Mirroring);
            begin(&trio, adds);
            trio.sim.run_for(spans[turn] * moment as u32 / 50);
            trio.end(SOURCE, moment % 2 == 0);
            trio.sim.run_for(Duration::from_millis(200));
            match is_member(&trio) == adds {
                true => after[turn] += 1,
                false => before[turn] += 1,
            }
            trio.restart(SOURCE);
            source_serves(&trio);
            in_sync_with_the_other(&trio);
            if is_member(&trio) != adds {
                match adds {
                    false => remove(&trio, SOURCE),
                    true => add(&trio, SOURCE),
                }
            }
            match adds {
                false => assert!(trio.superblock(LEAVES).removed, "{moment}: it does not know"),
                true => add(&trio, STAYS),
            }
            in_sync_with_the_other(&trio);
            // The write in flight may be torn.
            let block = trio.leg(SOURCE)[5 * BLOCK as usize..][..BLOCK as usize].to_vec();
            let found = block.into_iter().min();
            assert!(found >= Some(written.get()), "{moment}: {found:?} and not {}", written.get());
        }
        trio.becomes_in_sync(SOURCE);
        trio.clear();
    }
    let covered = before.iter().chain(&after).all(|times| *times > 5);
    assert!(covered, "{before:?} before and {after:?} after the removal and the addition");
}
