//! Failover from a source that dies while its volume grows.
//!
//! Left out, besides what [`super::pair`] leaves out: other faults; `mirror-grow` draws them.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use flagstone_blockdev::BlockDevice as _;
use flagstone_mirror::state::status::MirrorState;
use flagstone_mirror::{OnPeerLoss, RoleError};
use flagstone_runtime::sim::DiskFaults;

use super::pair::{BLOCK, BLOCKS, Change, DATA, METADATA, Pair, REGION, fill};

/// Device range of the added blocks, in bytes.
pub(super) const NEW: u64 = METADATA.end + GROWN * BLOCK;
pub(super) const GROWN: u64 = 64;
/// Last added block.
pub(super) const LAST: u64 = BLOCKS + GROWN - 1;

/// Mirroring nodes whose devices have grown, each with different content in the new part. Writes
/// wait for the peer, so acknowledged data is on both.
fn pair(seed: u64) -> Pair {
    let pair = Pair::new(seed, |peer| peer.on_peer_loss = OnPeerLoss::Block);
    pair.write(0, 5, 7).expect("both are there");
    for (node, rest) in pair.nodes.into_iter().zip([0xaa, 0xbb]) {
        pair.sim.grow_disk(node, DATA, NEW);
        pair.sim.poke(node, DATA, METADATA.end, &vec![rest; (GROWN * BLOCK) as usize]);
    }
    // The bits that the first resync cleared reach the disks.
    pair.sim.run_for(Duration::from_secs(10));
    let (mirror, resizing) = (pair.mirror(1), pair.resizing(1));
    pair.sim.spawn_on(pair.nodes[1], resizing.follow_source(mirror));
    pair
}

/// Grows the volume, and writes to the new part as soon as possible. Returns a flag that is set
/// once the write is acknowledged.
fn grow(pair: &Pair) -> Rc<Cell<bool>> {
    let (mirror, resizing) = (pair.mirror(0), pair.resizing(0));
    let written = Rc::new(Cell::new(false));
    let said = written.clone();
    pair.sim.spawn_on(pair.nodes[0], async move {
        let bytes = (BLOCKS + GROWN) * BLOCK;
        mirror.zero_new_space(bytes).await.expect("both are there");
        let mirror = resizing.resize(&mirror, bytes).await;
        said.set(fill(&mirror, LAST, 9).await.is_ok());
    });
    written
}

#[test]
fn growth_copies_no_new_blocks() {
    let pair = pair(1);
    let written = grow(&pair);
    while !written.get() {
        pair.sim.run_for(Duration::from_millis(1));
    }
    pair.becomes_in_sync(0);
    let status = pair.peer_status(0);
    assert!(status.resync_total_bytes <= REGION, "{status:?}");
    assert_eq!([pair.read(0, 5), pair.read(0, BLOCKS), pair.read(0, LAST)], [7, 0, 9]);
    pair.end(0, true);
    pair.on(1, |mirror| async move { mirror.failover().await }).expect("it is complete");
    assert_eq!([pair.read(1, 5), pair.read(1, BLOCKS), pair.read(1, LAST)], [7, 0, 9]);
}

/// Dies at any moment except while degraded writes are being copied, as after any loss of the link.
#[test]
fn failover_from_source_that_dies_during_growth() {
    let (mut before, mut after, mut refused) = (0, 0, 0);
    for moment in 0..80 {
        let pair = pair(moment);
        pair.network().set_slow(Duration::from_millis(3));
        let written = grow(&pair);
        pair.sim.run_for(Duration::from_millis(8 * moment));
        let status = pair.peer_status(0);
        let copies = status.state == MirrorState::Resynchronizing;
        pair.end(0, moment % 2 == 0);
        // The death is noticed, and work in flight ends.
        pair.sim.run_for(Duration::from_secs(1));
        match pair.on(1, |mirror| async move { mirror.failover().await }) {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error, RoleError::Inconsistent);
                let left = status.out_of_sync_bytes;
                assert!(copies && left <= REGION, "after {moment}: {left} bytes are left");
                refused += 1;
                continue;
            }
        }
        assert_eq!(pair.read(1, 5), 7);
        let grown = pair.mirror(1).usable_bytes() > BLOCKS * BLOCK;
        if grown {
            assert_eq!(pair.read(1, BLOCKS), 0, "after {moment}: data that no host wrote");
            let found = pair.read(1, LAST);
            assert!(found == 9 || found == 0 && !written.get(), "after {moment}: {found}");
            after += 1;
        } else {
            assert!(!written.get(), "after {moment}: a write is lost");
            before += 1;
        }
        // No degraded writes: both become one again.
        pair.restart(0);
        let size = (BLOCKS + GROWN) * BLOCK;
        let resizing = pair.resizing(0);
        let mirror = pair.mirror(0);
        pair.sim.spawn_on(pair.nodes[0], resizing.follow_source(mirror));
        let deadline = pair.sim.now() + Duration::from_secs(120);
        let whole = |index: &usize| pair.state(*index) == MirrorState::Mirroring;
        while !(0..2).any(|index| whole(&index)) {
            pair.sim.run_for(Duration::from_millis(10));
            assert!(pair.sim.now() < deadline, "after {moment}: it does not get in sync");
        }
        let sizes = [0, 1].map(|index| pair.mirror(index).usable_bytes());
        assert_eq!(sizes[0], sizes[1], "after {moment}");
        let read = |index: usize| pair.sim.peek(pair.nodes[index], DATA, 0, sizes[0] as usize);
        assert!(sizes[0] <= size && read(0) == read(1), "after {moment}: the legs differ");
    }
    assert!(before > 0 && after > 0, "{before} before, {after} after, {refused} refused");
    assert!(refused <= 8, "{refused} of 80 refused");
}

const SIZE: u64 = (BLOCKS + GROWN) * BLOCK;

fn take_back(pair: &Pair, index: usize) {
    pair.sim.shrink_disk(pair.nodes[index], DATA, METADATA.end);
}

/// Hosts of node 0 are served, and the mirror is in sync, after the interval at which sizes are
/// compared.
fn goes_on(pair: &Pair) {
    for round in 0..5 {
        pair.sim.run_for(Duration::from_secs(2));
        pair.write(0, 5, 20 + round).expect("it serves");
        pair.on(0, |mirror| async move { mirror.flush().await }).expect("a sound disk");
    }
    assert!((0..2).all(|index| !pair.mirror(index).has_failed()));
    pair.becomes_in_sync(0);
    assert_eq!((pair.active(), pair.read(0, 5)), (vec![0], 24));
}

fn grows(pair: &Pair) {
    let written = grow(pair);
    pair.sim.run_until(Duration::from_millis(10), || written.get());
    pair.becomes_in_sync(0);
    let legs = [0, 1].map(|index| pair.sim.peek(pair.nodes[index], DATA, 0, SIZE as usize));
    assert!(legs[0] == legs[1], "the legs differ");
    assert_eq!([pair.read(0, BLOCKS), pair.read(0, LAST)], [0, 9]);
}

/// Zeroing ends with an error on one node, or with success, and the operator takes the space back.
/// What lies there when he adds it again is zeroed again.
#[test]
fn announced_space_may_be_taken_back() {
    for fails in [true, false] {
        let pair = pair(1);
        if fails {
            let faults = DiskFaults::default().unwritable_at(NEW - BLOCK..NEW);
            pair.sim.set_faults(pair.nodes[1], DATA, faults);
        }
        let zeroed = pair.on(0, |mirror| async move { mirror.zero_new_space(SIZE).await });
        assert_eq!(zeroed.is_err(), fails);
        (0..2).for_each(|index| take_back(&pair, index));
        goes_on(&pair);
        for (index, rest) in [0xcc, 0xdd].into_iter().enumerate() {
            let node = pair.nodes[index];
            let room_bytes = pair.on(index, |mirror| async move { mirror.room_bytes() });
            assert_eq!(room_bytes, BLOCKS * BLOCK);
            pair.sim.set_faults(node, DATA, DiskFaults::default());
            pair.sim.grow_disk(node, DATA, NEW);
            pair.sim.poke(node, DATA, METADATA.end, &vec![rest; (GROWN * BLOCK) as usize]);
        }
        grows(&pair);
    }
}

/// Space that is taken back while another node is still zeroing: no node grows.
#[test]
fn space_taken_back_from_one_node_stops_growth() {
    for index in [0, 1] {
        let pair = pair(2);
        // The other node takes longer.
        let (mirror, done) = (pair.mirror(0), Rc::new(Cell::new(None)));
        let ended = done.clone();
        pair.sim.stall(pair.nodes[1 - index], DATA, Duration::from_secs(3));
        pair.sim.spawn_on(pair.nodes[0], async move {
            ended.set(Some(mirror.zero_new_space(SIZE).await.is_err()));
        });
        pair.sim.run_for(Duration::from_secs(2));
        assert_eq!(done.get(), None);
        take_back(&pair, index);
        pair.sim.run_for(Duration::from_secs(20));
        assert_eq!(done.get(), Some(true), "node {index}");
        goes_on(&pair);
    }
}

/// The source finds only in the last step that its space is gone. Its metadata stays where it is.
#[test]
fn resize_without_room_changes_nothing() {
    let pair = pair(3);
    pair.on(0, |mirror| async move { mirror.zero_new_space(SIZE).await }).expect("both are there");
    take_back(&pair, 0);
    let (resizing, end) = (pair.resizing(0), pair.superblock(0).device_bytes);
    let resized =
        pair.on(0, move |mirror| async move { resizing.change(&mirror, Change::Size(SIZE)).await });
    resized.expect_err("there is no room");
    assert_eq!(pair.superblock(0).device_bytes, end);
    goes_on(&pair);
}
