//! Logs that were put back from a copy, as a whole or in part, while the data device was not.

use super::*;
use crate::limits::LOG_NOTE_MS;
use crate::shape::log_layout;

const LOG_BYTES: usize = 64 << 10;
const PAGE: usize = 4096;
const DATA_BYTES: usize = ((BLOCKS + 7) * BLOCK) as usize;

/// What both disks hold.
type Image = (Vec<u8>, Vec<u8>);

fn image(sim: &Simulation, node: NodeId) -> Image {
    (sim.peek(node, DATA, 0, DATA_BYTES), sim.peek(node, LOG, 0, LOG_BYTES))
}

/// Opens a replica for use on a node, and keeps it so: what is done with it next is to be lost.
fn in_use(sim: &Simulation, node: NodeId) -> Replica {
    on(sim, node, async {
        let replica = open(true).await;
        replica.begin_use(|_| {}).await.expect("sound disks");
        replica
    })
}

/// The node ends, its log is put back, and the replica is opened.
fn after(sim: &Simulation, node: NodeId, log: &[u8]) -> (Option<Lost>, u64) {
    sim.crash(node);
    sim.poke(node, LOG, 0, log);
    sim.restart(node);
    found(sim, node)
}

#[test]
fn a_log_from_before_the_last_note_in_the_superblock_is_stale() {
    let (sim, node) = world(20, true);
    let replica = in_use(&sim, node);
    let copy = sim.peek(node, LOG, 0, LOG_BYTES);
    on(&sim, node, async move {
        drop(replica.pin(5 * BLOCK, BLOCK).await.expect("a sound log"));
        // Any write of the superblock, whatever it is for.
        replica.update(|superblock| superblock.epoch += 1).await.expect("a sound disk");
    });
    assert_eq!(after(&sim, node, &copy), (Some(Lost::Stale), BLOCKS));
    assert_eq!(found(&sim, node), (None, BLOCKS), "it was made anew");
}

/// Pages are written without a record after them: the record of the copy is the latest.
#[test]
fn a_log_whose_marks_are_from_before_the_last_note_is_stale() {
    let (sim, node) = world(21, true);
    let replica = in_use(&sim, node);
    let copy = sim.peek(node, LOG, 0, LOG_BYTES);
    on(&sim, node, async move {
        replica.mark(7..8);
        replica.persist_marks().await.expect("a sound log");
        replica.update(|superblock| superblock.epoch += 1).await.expect("a sound disk");
    });
    assert_eq!(after(&sim, node, &copy), (Some(Lost::Stale), BLOCKS));
}

#[test]
fn a_log_apart_is_noted_though_the_superblock_is_written_for_nothing_else() {
    let (sim, node) = world(22, true);
    let replica = in_use(&sim, node);
    let copy = sim.peek(node, LOG, 0, LOG_BYTES);
    let world = sim.world();
    on(&sim, node, async move {
        let pin = replica.pin(5 * BLOCK, BLOCK).await.expect("a sound log");
        time::sleep(Duration::from_millis(LOG_NOTE_MS + 1000)).await;
        // Nothing is written where nothing has changed.
        let writes = world.disk_stats(node, DATA).writes;
        time::sleep(Duration::from_millis(3 * LOG_NOTE_MS)).await;
        assert_eq!(world.disk_stats(node, DATA).writes, writes);
        drop(pin);
    });
    assert_eq!(after(&sim, node, &copy), (Some(Lost::Stale), BLOCKS));
}

/// A history of writes, with and without the peer, that ends in order.
async fn some_history(replica: Replica) {
    for block in 0..BLOCKS {
        let pin = replica.pin(block * BLOCK, BLOCK).await.expect("a sound log");
        if block % 3 == 0 {
            replica.mark(block..block + 1);
        }
        write_block(&replica, block, 1000 + block).await;
        drop(pin);
        if block % 6 == 0 {
            replica.clear(block..block + 1);
        }
        if block % 8 == 0 {
            time::sleep(Duration::from_millis(700)).await;
        }
    }
    replica.end_use(|_| {}).await.expect("sound disks");
}

/// The log at many moments of a history, and both disks after it.
fn copies_of_a_history(sim: &Simulation, node: NodeId) -> (Vec<Vec<u8>>, Image) {
    let mut copies = vec![sim.peek(node, LOG, 0, LOG_BYTES)];
    let replica = in_use(sim, node);
    let ending = sim.spawn_on(node, some_history(replica));
    while !ending.is_finished() {
        let now = sim.peek(node, LOG, 0, LOG_BYTES);
        if copies.last() != Some(&now) {
            copies.push(now);
        }
        sim.run_for(Duration::from_micros(50));
    }
    let end = image(sim, node);
    (copies, end)
}

/// What is marked at least, with this log beside the data device as it was at the end.
fn marked(sim: &Simulation, node: NodeId, data: &[u8], log: &[u8]) -> (Option<Lost>, Vec<bool>) {
    sim.crash(node);
    sim.poke(node, DATA, 0, data);
    sim.poke(node, LOG, 0, log);
    sim.restart(node);
    on(sim, node, async {
        let replica = open(true).await;
        let marked = (0..BLOCKS).map(|block| replica.bits().any(block..block + 1));
        (replica.lost(), marked.collect())
    })
}

#[test]
fn after_an_end_in_order_no_copy_of_the_log_hides_a_mark() {
    let (sim, node) = world(23, true);
    let (copies, (data, log)) = copies_of_a_history(&sim, node);
    assert!(copies.len() > 50, "{} copies", copies.len());
    let (lost, expected) = marked(&sim, node, &data, &log);
    assert_eq!(lost, None);
    assert!(expected.contains(&true) && expected.contains(&false));
    let mut told = 0;
    for (number, copy) in copies.iter().enumerate() {
        let (lost, found) = marked(&sim, node, &data, copy);
        assert!(matches!(lost, None | Some(Lost::Stale)), "copy {number}: {lost:?}");
        told += usize::from(lost.is_some());
        let hidden = (0..BLOCKS as usize).find(|block| expected[*block] && !found[*block]);
        assert_eq!(hidden, None, "copy {number}, {lost:?}");
    }
    assert!(told > 50, "{told} of {}", copies.len());
}

/// A device that lost some of its writes: any page of the log is of an earlier moment.
#[test]
fn after_an_end_in_order_no_older_page_of_the_log_hides_a_mark() {
    let (sim, node) = world(24, true);
    let (copies, (data, log)) = copies_of_a_history(&sim, node);
    let (_, expected) = marked(&sim, node, &data, &log);
    let end = log_layout(&create().shape).total_bytes as usize;
    let mut told = 0;
    for (number, copy) in copies.iter().enumerate() {
        for at in (0..end).step_by(PAGE).filter(|at| copy[*at..at + PAGE] != log[*at..at + PAGE]) {
            let mut torn = log.clone();
            torn[at..at + PAGE].copy_from_slice(&copy[at..at + PAGE]);
            let (lost, found) = marked(&sim, node, &data, &torn);
            told += usize::from(lost.is_some());
            let hidden = (0..BLOCKS as usize).find(|block| expected[*block] && !found[*block]);
            assert_eq!(hidden, None, "the page at {at} of copy {number}, {lost:?}");
        }
    }
    assert!(told > 20, "{told} were told");
}

/// What a page said of its count is lost with it; an older one in its place is told all the same.
#[test]
fn a_damaged_page_does_not_make_older_ones_good() {
    let (sim, node) = world(25, true);
    let at = log_layout(&create().shape).pages;
    let page = |sim: &Simulation| sim.peek(node, LOG, at, PAGE);
    let replica = in_use(&sim, node);
    let older = on(&sim, node, async move {
        for block in 0..4 {
            replica.mark(block..block + 1);
            replica.persist_marks().await.expect("a sound log");
        }
        replica.update(|_| {}).await.expect("a sound disk");
        replica
    });
    let copy = page(&sim);
    drop(older);
    sim.crash(node);
    sim.poke(node, LOG, at + 100, &[0xAA]);
    sim.restart(node);
    assert_eq!(found(&sim, node), (None, BLOCKS), "a page says nothing when it is damaged");
    on(&sim, node, use_once(true));
    assert_eq!(found(&sim, node), (None, BLOCKS));
    sim.poke(node, LOG, at, &copy);
    assert_eq!(found(&sim, node), (Some(Lost::Stale), BLOCKS));
}

/// The superblock of an earlier release, which has zeroes where this one's note is.
#[test]
fn a_superblock_without_a_note_trusts_a_log_by_its_incarnation_alone() {
    let (sim, node) = world(26, true);
    on(&sim, node, use_once(true));
    let copy = sim.peek(node, LOG, 0, LOG_BYTES);
    let replica = in_use(&sim, node);
    on(&sim, node, async move { drop(replica.pin(0, BLOCK).await.expect("a sound log")) });
    sim.crash(node);
    for slot in [2, 1] {
        let at = DATA_BYTES as u64 - slot * PAGE as u64;
        let page: [u8; PAGE] = sim.peek(node, DATA, at, PAGE).try_into().expect("a page");
        let mut superblock = Superblock::decode(&page).expect("both were written");
        superblock.log_progress = Progress::default();
        sim.poke(node, DATA, at, &superblock.encode());
    }
    sim.restart(node);
    assert_eq!(found(&sim, node), (None, 1));
    assert_eq!(after(&sim, node, &copy), (Some(Lost::Stale), BLOCKS));
}

/// A smaller volume has fewer pages, which were written less often together.
#[test]
fn a_log_is_trusted_after_its_volume_became_smaller_and_larger() {
    let sim = Simulation::new(27, Config::default());
    let node = sim.add_node("node");
    sim.add_disk(node, DATA, DiskConfig::block_device(400 << 20));
    sim.add_disk(node, LOG, DiskConfig::block_device(1 << 20));
    on(&sim, node, async {
        let (data, log) = devices(true);
        Replica::create(data, log, create()).await.expect("sound disks");
    });
    for (size, bits) in [(100 << 20, 0), (300 << 20, 200 << 8), (200 << 20, 100 << 8)] {
        on(&sim, node, async move {
            let replica = open(true).await;
            assert_eq!(replica.lost(), None);
            replica.begin_use(|_| {}).await.expect("sound disks");
            let all = replica.bits().all();
            replica.mark(all.end - 1..all.end);
            replica.end_use(|_| {}).await.expect("sound disks");
            drop(replica);
            let (data, log) = devices(true);
            Replica::resize(&data, log, size, 0, |_| {}).await.expect("sound disks");
        });
        let (lost, found) = found(&sim, node);
        assert_eq!(lost, None, "{size} bytes");
        assert!(found >= bits, "{found} of {bits}, {size} bytes");
    }
}
