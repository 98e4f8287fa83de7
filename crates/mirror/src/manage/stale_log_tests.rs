//! Logs restored from a copy, entirely or in part, while the data device was not.

use super::*;
use crate::limits::LOG_PROGRESS_MS;
use crate::ondisk::layout::log_layout;

const LOG_BYTES: usize = 64 << 10;
const PAGE: usize = 4096;
const DATA_BYTES: usize = ((BLOCKS + 7) * BLOCK) as usize;

/// Contents of both disks.
type Image = (Vec<u8>, Vec<u8>);

fn image(sim: &Simulation, node: NodeId) -> Image {
    (sim.peek(node, DATA, 0, DATA_BYTES), sim.peek(node, LOG, 0, LOG_BYTES))
}

/// Opens a replica on a node and puts it in use. The test discards everything done with it.
fn in_use(sim: &Simulation, node: NodeId) -> Replica {
    on(sim, node, async {
        let replica = open(true).await;
        replica.begin_use(|_| {}).await.expect("the disks work");
        replica
    })
}

/// Stops the node, restores its log, and opens the replica.
fn after(sim: &Simulation, node: NodeId, log: &[u8]) -> (Option<LogLost>, u64) {
    sim.crash(node);
    sim.poke(node, LOG, 0, log);
    sim.restart(node);
    found(sim, node)
}

#[test]
fn log_older_than_superblock_progress_is_stale() {
    let (sim, node) = world(20, true);
    let replica = in_use(&sim, node);
    let copy = sim.peek(node, LOG, 0, LOG_BYTES);
    on(&sim, node, async move {
        drop(replica.reference(5 * BLOCK, BLOCK).await.expect("the log works"));
        // Any write of the superblock.
        replica.update(|superblock| superblock.epoch += 1).await.expect("the disk works");
    });
    assert_eq!(after(&sim, node, &copy), (Some(LogLost::Stale), BLOCKS));
    assert_eq!(found(&sim, node), (None, BLOCKS), "the log was replaced");
}

/// Pages were written without a record after them, so the record of the copy is the latest one.
#[test]
fn bitmap_older_than_superblock_progress_is_stale() {
    let (sim, node) = world(21, true);
    let replica = in_use(&sim, node);
    let copy = sim.peek(node, LOG, 0, LOG_BYTES);
    on(&sim, node, async move {
        replica.mark(7..8);
        replica.persist_marks().await.expect("the log works");
        replica.update(|superblock| superblock.epoch += 1).await.expect("the disk works");
    });
    assert_eq!(after(&sim, node, &copy), (Some(LogLost::Stale), BLOCKS));
}

#[test]
fn separate_log_progress_is_recorded_periodically() {
    let (sim, node) = world(22, true);
    let replica = in_use(&sim, node);
    let copy = sim.peek(node, LOG, 0, LOG_BYTES);
    let world = sim.world();
    on(&sim, node, async move {
        let region_ref = replica.reference(5 * BLOCK, BLOCK).await.expect("the log works");
        time::sleep(Duration::from_millis(LOG_PROGRESS_MS + 1000)).await;
        // Without a change, nothing is written.
        let writes = world.disk_stats(node, DATA).writes;
        time::sleep(Duration::from_millis(3 * LOG_PROGRESS_MS)).await;
        assert_eq!(world.disk_stats(node, DATA).writes, writes);
        drop(region_ref);
    });
    assert_eq!(after(&sim, node, &copy), (Some(LogLost::Stale), BLOCKS));
}

/// A history of writes, with and without the peer, that ends in a clean shutdown.
async fn some_history(replica: Replica) {
    for block in 0..BLOCKS {
        let region_ref = replica.reference(block * BLOCK, BLOCK).await.expect("the log works");
        if block % 3 == 0 {
            replica.mark(block..block + 1);
        }
        write_block(&replica, block, 1000 + block).await;
        drop(region_ref);
        if block % 6 == 0 {
            replica.clear(block..block + 1);
        }
        if block % 8 == 0 {
            time::sleep(Duration::from_millis(700)).await;
        }
    }
    replica.end_use(|_| {}).await.expect("the disks work");
}

/// The log at many points of a history, and both disks at its end.
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

/// Bits set with this log, and the data device as at the end.
fn marked(sim: &Simulation, node: NodeId, data: &[u8], log: &[u8]) -> (Option<LogLost>, Vec<bool>) {
    sim.crash(node);
    sim.poke(node, DATA, 0, data);
    sim.poke(node, LOG, 0, log);
    sim.restart(node);
    on(sim, node, async {
        let replica = open(true).await;
        let marked = (0..BLOCKS).map(|block| replica.bits().any(block..block + 1));
        (replica.log_lost(), marked.collect())
    })
}

#[test]
fn restored_log_hides_no_mark_after_clean_shutdown() {
    let (sim, node) = world(23, true);
    let (copies, (data, log)) = copies_of_a_history(&sim, node);
    assert!(copies.len() > 50, "{} copies", copies.len());
    let (lost, expected) = marked(&sim, node, &data, &log);
    assert_eq!(lost, None);
    assert!(expected.contains(&true) && expected.contains(&false));
    let mut detected = 0;
    for (number, copy) in copies.iter().enumerate() {
        let (lost, found) = marked(&sim, node, &data, copy);
        assert!(matches!(lost, None | Some(LogLost::Stale)), "copy {number}: {lost:?}");
        detected += usize::from(lost.is_some());
        let hidden = (0..BLOCKS as usize).find(|block| expected[*block] && !found[*block]);
        assert_eq!(hidden, None, "copy {number}, {lost:?}");
    }
    assert!(detected > 50, "{detected} of {}", copies.len());
}

/// A device that lost some writes: any page of the log may be older than the others.
#[test]
fn older_page_hides_no_mark_after_clean_shutdown() {
    let (sim, node) = world(24, true);
    let (copies, (data, log)) = copies_of_a_history(&sim, node);
    let (_, expected) = marked(&sim, node, &data, &log);
    let end = log_layout(&create().geometry).total_bytes as usize;
    let mut detected = 0;
    for (number, copy) in copies.iter().enumerate() {
        for at in (0..end).step_by(PAGE).filter(|at| copy[*at..at + PAGE] != log[*at..at + PAGE]) {
            let mut torn = log.clone();
            torn[at..at + PAGE].copy_from_slice(&copy[at..at + PAGE]);
            let (lost, found) = marked(&sim, node, &data, &torn);
            detected += usize::from(lost.is_some());
            let hidden = (0..BLOCKS as usize).find(|block| expected[*block] && !found[*block]);
            assert_eq!(hidden, None, "the page at {at} of copy {number}, {lost:?}");
        }
    }
    assert!(detected > 20, "{detected} were detected");
}

/// A damaged page loses its count; an older page elsewhere is detected nevertheless.
#[test]
fn damaged_page_does_not_excuse_older_pages() {
    let (sim, node) = world(25, true);
    let at = log_layout(&create().geometry).pages;
    let page = |sim: &Simulation| sim.peek(node, LOG, at, PAGE);
    let replica = in_use(&sim, node);
    let older = on(&sim, node, async move {
        for block in 0..4 {
            replica.mark(block..block + 1);
            replica.persist_marks().await.expect("the log works");
        }
        replica.update(|_| {}).await.expect("the disk works");
        replica
    });
    let copy = page(&sim);
    drop(older);
    sim.crash(node);
    sim.poke(node, LOG, at + 100, &[0xAA]);
    sim.restart(node);
    assert_eq!(found(&sim, node), (None, BLOCKS), "a damaged page marks everything it covers");
    on(&sim, node, use_once(true));
    assert_eq!(found(&sim, node), (None, BLOCKS));
    sim.poke(node, LOG, at, &copy);
    assert_eq!(found(&sim, node), (Some(LogLost::Stale), BLOCKS));
}

/// The superblock of an earlier release has zeroes in place of the log's progress.
#[test]
fn log_without_progress_is_trusted_by_incarnation() {
    let (sim, node) = world(26, true);
    on(&sim, node, use_once(true));
    let copy = sim.peek(node, LOG, 0, LOG_BYTES);
    let replica = in_use(&sim, node);
    on(&sim, node, async move { drop(replica.reference(0, BLOCK).await.expect("the log works")) });
    sim.crash(node);
    for slot in [2, 1] {
        let at = DATA_BYTES as u64 - slot * PAGE as u64;
        let page: [u8; PAGE] = sim.peek(node, DATA, at, PAGE).try_into().expect("a page");
        let mut superblock = Superblock::decode(&page).expect("both were written");
        superblock.log_progress = LogProgress::default();
        sim.poke(node, DATA, at, &superblock.encode());
    }
    sim.restart(node);
    assert_eq!(found(&sim, node), (None, 1));
    assert_eq!(after(&sim, node, &copy), (Some(LogLost::Stale), BLOCKS));
}

/// A smaller volume has fewer pages, whose write counts have a smaller sum.
#[test]
fn log_is_trusted_after_shrink_and_growth() {
    let sim = Simulation::new(27, SimConfig::default());
    let node = sim.add_node("node");
    sim.add_disk(node, DATA, DiskConfig::block_device(400 << 20));
    sim.add_disk(node, LOG, DiskConfig::block_device(1 << 20));
    on(&sim, node, async {
        let (data, log) = devices(true);
        Replica::create(data, log, create()).await.expect("the disks work");
    });
    for (size, bits) in [(100 << 20, 0), (300 << 20, 200 << 8), (200 << 20, 100 << 8)] {
        on(&sim, node, async move {
            let replica = open(true).await;
            assert_eq!(replica.log_lost(), None);
            replica.begin_use(|_| {}).await.expect("the disks work");
            let all = replica.bits().all();
            replica.mark(all.end - 1..all.end);
            replica.end_use(|_| {}).await.expect("the disks work");
            drop(replica);
            let (data, log) = devices(true);
            Replica::resize(&data, log, size, 0, |_| {}).await.expect("the disks work");
        });
        let (lost, found) = found(&sim, node);
        assert_eq!(lost, None, "{size} bytes");
        assert!(found >= bits, "{found} of {bits}, {size} bytes");
    }
}

/// One copy of the header rots, then the other one. Opening rewrites the first, so the log is
/// trusted each time.
#[test]
fn rotten_copy_of_log_header_is_written_again() {
    for first in [0, 1] {
        let (sim, node) = world(23, true);
        drop(in_use(&sim, node));
        let mut lost = 0;
        for step in 0..4 {
            sim.crash(node);
            let at = (first + step) % 2 * PAGE as u64;
            sim.poke(node, LOG, at + 100, b"rotten");
            sim.restart(node);
            match found(&sim, node) {
                (None, _) => {}
                // The lost log was the copy of the latest incarnation.
                (Some(LogLost::Stale), _) if step == 0 => lost += 1,
                found => panic!("step {step}: {found:?}"),
            }
        }
        assert!(lost <= 1);
    }
}
