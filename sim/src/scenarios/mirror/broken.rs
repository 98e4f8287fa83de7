//! Disks that fail at a chosen moment, one test per case. They include tests for rules 22 to 26 of
//! `docs/mirror-handshake.md`, each of which fails without its rule. [`super::rules`] tests
//! rules 16 to 21, [`super::reads`] rule 27.
//!
//! Left out, besides what [`super::pair`] leaves out: slow failures, and failures of both nodes in
//! one test; the scenario `mirror-broken` draws them.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use flagstone_blockdev::{BlockDevice, IoError};
use flagstone_mirror::state::status::{DesiredState, MirrorState};
use flagstone_mirror::wire::peer::PeerRequest;
use flagstone_mirror::{Ack, CommandError, Mode, RoleError};
use flagstone_runtime::sim::DiskFaults;
use flagstone_runtime::{buf, time};

use super::link::CallOutcome;
use super::pair::{BLOCK, BLOCKS, DATA, METADATA, Pair, SUPERBLOCKS, fill};

pub(super) fn unwritable(pair: &Pair, index: usize, range: Range<u64>) {
    set(pair, index, DiskFaults::default().unwritable_at(range));
}

fn set(pair: &Pair, index: usize, faults: DiskFaults) {
    pair.sim.set_faults(pair.nodes[index], DATA, faults);
}

pub(super) fn block(number: u64) -> Range<u64> {
    number * BLOCK..(number + 1) * BLOCK
}

/// Reads a block as a host of a node.
fn read(pair: &Pair, index: usize, block: u64) -> Result<Vec<u8>, IoError> {
    pair.on(index, move |mirror| async move {
        let memory = buf::alloc(BLOCK as usize).await;
        mirror.read(block * BLOCK, memory).await.map(|found| found.to_vec())
    })
}

/// The serving node, once both nodes are in sync.
fn whole(pair: &Pair) -> usize {
    let deadline = pair.sim.now() + Duration::from_secs(60);
    loop {
        let whole = |index: &usize| pair.state(*index) == MirrorState::Mirroring;
        if let Some(index) = [0, 1].into_iter().find(whole) {
            pair.becomes_in_sync(index);
            return index;
        }
        pair.sim.run_for(Duration::from_millis(10));
        assert!(pair.sim.now() < deadline, "no node serves");
    }
}

#[test]
fn rule_23_failed_write_does_not_survive_source_crash() {
    let mut failed = 0;
    for seed in 0..6 {
        let pair = Pair::new(seed, |_| {});
        pair.write(0, 9, 1).expect("both are there");
        pair.cut();
        pair.write(0, 20, 3).expect("the peer is lost");
        unwritable(&pair, 0, block(9));
        let said = Rc::new(Cell::new(None));
        let (mirror, world, node) = (pair.mirror(0), pair.sim.world(), pair.nodes[0]);
        let saying = said.clone();
        // All blocks are copied and the target learns that it is in sync. Meanwhile a write fails
        // here.
        pair.network().set_outcome(move |request| {
            if !matches!(request, PeerRequest::EndResync { .. }) || saying.get().is_some() {
                return CallOutcome::Arrives;
            }
            let (mirror, saying) = (mirror.clone(), saying.clone());
            world.spawn_on(node, async move { saying.set(Some(fill(&mirror, 9, 2).await)) });
            CallOutcome::Arrives
        });
        pair.network().heal();
        while said.get().is_none() {
            pair.sim.run_for(Duration::from_micros(100));
        }
        // The target may have become in sync in time to serve reads for the source.
        failed += u32::from(said.get().is_some_and(|said| said.is_err()));
        // Gives the role transfer time to complete.
        pair.sim.run_for(Duration::from_millis(20));
        let before = read(&pair, 0, 9).expect("it can be read");
        pair.end(0, false);
        set(&pair, 0, DiskFaults::default());
        pair.restart(0);
        let source = whole(&pair);
        assert!(
            read(&pair, source, 9) == Ok(before),
            "the content that was read has changed, seed {seed}"
        );
    }
    assert!(failed > 0, "no write failed while the target was declared in sync");
}

#[test]
fn rule_22_in_sync_refers_to_the_generation_read() {
    for delay_us in (0..4000).step_by(100) {
        let pair = Pair::new(18, |_| {});
        pair.cut();
        pair.write(0, 50, 1).expect("the peer is lost");
        pair.network().heal();
        pair.becomes_in_sync(0);
        pair.cut();
        pair.sim.run_for(Duration::from_secs(1));
        // Generations are still equal. The first degraded write happens while the answer is in
        // transit.
        pair.network().set_slow(Duration::from_millis(5));
        let (mirror, world, node) = (pair.mirror(0), pair.sim.world(), pair.nodes[0]);
        let source = pair.superblock(0).replica;
        let written = Rc::new(RefCell::new(None));
        let writing = written.clone();
        pair.network().set_outcome(move |request| {
            if *request == (PeerRequest::Identify { asker: source }) && writing.borrow().is_none() {
                let mirror = mirror.clone();
                *writing.borrow_mut() = Some(world.spawn_on(node, async move {
                    time::sleep(Duration::from_micros(delay_us)).await;
                    fill(&mirror, 3, 5).await
                }));
            }
            CallOutcome::Arrives
        });
        pair.network().heal();
        while written.borrow().is_none() {
            pair.sim.run_for(Duration::from_micros(100));
        }
        let written = written.borrow_mut().take().expect("it has begun");
        assert_eq!(pair.sim.block_on(written), Ok(Ok(())));
        pair.becomes_in_sync(0);
        let names = [0, 1].map(|index| pair.superblock(index).current);
        assert_eq!(names[0], names[1], "in sync with two generations: {delay_us} µs");
        // The bitmap still records the peer's state, so only the written blocks are copied.
        let copied = pair.peer_status(0).resync_done_bytes;
        assert!(copied <= BLOCK, "{copied} bytes were copied: {delay_us} µs");
    }
}

#[test]
fn rule_24_peer_that_may_run_degraded_is_no_split_brain() {
    for outcome in [CallOutcome::Lost, CallOutcome::Unanswered] {
        let pair = Pair::new(19, |_| {});
        unwritable(&pair, 0, block(9));
        pair.network().set_outcome(move |request| match request {
            PeerRequest::RunDegraded { .. } => outcome,
            _ => CallOutcome::Arrives,
        });
        assert!(pair.write(0, 9, 2).is_err(), "no node runs degraded");
        let before = read(&pair, 0, 9).expect("it can be read");
        set(&pair, 0, DiskFaults::default());
        pair.becomes_in_sync(0);
        assert!(read(&pair, 0, 9) == Ok(before), "{outcome:?}");
        assert_eq!(pair.superblock(0).current, pair.superblock(1).current);
    }
}

#[test]
fn rule_25_failed_flush_of_the_only_leg_is_an_error() {
    let pair = Pair::new(20, |peer| peer.ack = Ack::Memory);
    unwritable(&pair, 0, block(9));
    pair.write(0, 9, 2).expect("the peer runs degraded");
    set(&pair, 1, DiskFaults { flush_errors: 1.0, ..DiskFaults::default() });
    let flushed = pair.on(0, |mirror| async move { mirror.flush().await });
    assert!(flushed.is_err(), "the only leg has not flushed");
    let flushed = pair.on(0, |mirror| async move { mirror.flush().await });
    assert_eq!(flushed, Err(IoError::Unreachable), "and none is left");
}

/// Regression: a break whose marks could not be written failed, and left everything marked. The
/// marks are made by `continue`, which changes nothing if that fails.
#[test]
fn break_makes_no_marks() {
    let pair = Pair::new(31, |_| {});
    pair.write(0, 9, 1).expect("both are there");
    pair.sim.run_for(Duration::from_secs(5));
    unwritable(&pair, 0, METADATA.start..SUPERBLOCKS.start);
    let order = |desired| {
        pair.on(0, move |mirror| async move { mirror.set_desired_state(0, desired).await })
    };
    order(DesiredState::Detached).expect("the superblock is written");
    assert_eq!(pair.state(0), MirrorState::Broken);
    assert_eq!(pair.peer_status(0).out_of_sync_bytes, 0);
    let failed = order(DesiredState::Connected);
    assert!(matches!(failed, Err(CommandError::Role(RoleError::Io(_)))), "{failed:?}");
    assert_eq!(pair.state(0), MirrorState::Broken);
    // The device takes no writes after the failure of a flush.
    pair.end(0, false);
    set(&pair, 0, DiskFaults::default());
    pair.cut();
    pair.restart(0);
    pair.sim.run_for(Duration::from_secs(2));
    assert_eq!(pair.state(0), MirrorState::Broken);
    order(DesiredState::Connected).expect("a sound disk");
    assert_eq!(pair.peer_status(0).out_of_sync_bytes, BLOCKS * BLOCK, "everything is copied");
    pair.network().heal();
    pair.sim.run_for(Duration::from_secs(10));
    // Both replicas have every write, and node 0 has crashed.
    pair.becomes_in_sync(pair.active()[0]);
}

/// Durable content of a leg: its content after a power loss.
pub(super) fn durable(pair: &Pair, index: usize) -> Vec<u8> {
    pair.end(index, true);
    pair.leg(index)
}

fn flush_fails(pair: &Pair, index: usize) {
    set(pair, index, DiskFaults { flush_errors: 1.0, ..DiskFaults::default() });
}

/// A leg whose flush failed shows blocks that it cannot write, and never writes them. When it is
/// reopened, a resync that compares checksums would find them equal. So every block that may be
/// missing is written again.
#[test]
fn target_with_failed_flush_is_resynced() {
    let mut lost = 0;
    for seed in 0..12 {
        let pair = Pair::new(seed, |peer| (peer.ack, peer.compare) = (Ack::Memory, true));
        for number in 0..8 {
            pair.write(0, number, 1 + number as u8).expect("both are there");
        }
        flush_fails(&pair, 1);
        pair.on(0, |mirror| async move { mirror.flush().await }).expect("the source has all");
        set(&pair, 1, DiskFaults::default());
        let shown = pair.leg(1);
        pair.reopen(1);
        let refused = pair.on(1, |mirror| async move { mirror.failover().await });
        let unverified = pair.mirror(1).is_unverified();
        assert!(!unverified || refused == Err(RoleError::Unverified), "{refused:?}");
        pair.becomes_in_sync(0);
        assert!(!pair.mirror(1).is_unverified(), "a resync has ended");
        let (copied, found) = (pair.peer_status(0), durable(&pair, 1));
        assert!(found == pair.leg(0), "seed {seed}: not durable after {copied:?}");
        // The test is meaningful only if the shown content was compared and differed.
        lost += u32::from(shown == pair.leg(0));
    }
    assert!(lost > 0, "every leg differed from its source");
}

/// As above for a source. Its peer serves it and then takes over the role.
#[test]
fn source_with_failed_flush_returns_as_target() {
    for seed in 0..6 {
        let pair = Pair::new(seed, |peer| peer.compare = true);
        pair.write(0, 3, 3).expect("both are there");
        flush_fails(&pair, 0);
        pair.on(0, |mirror| async move { mirror.flush().await }).expect("the peer has all");
        assert!(pair.mirror(0).has_failed());
        pair.write(0, 5, 5).expect("the peer runs degraded");
        let given = pair.on(0, |mirror| async move { mirror.abandon_target().await });
        assert!(!given, "hosts are served through it");
        pair.on(0, |mirror| async move { mirror.switchover(0).await }).expect("it has all");
        set(&pair, 0, DiskFaults::default());
        pair.reopen(0);
        pair.becomes_in_sync(1);
        assert_eq!((pair.read(1, 3), pair.read(1, 5)), (3, 5));
        assert!(durable(&pair, 0) == pair.leg(1), "seed {seed}");
    }
}

/// Checks that each leg's durable content equals its visible content, and that both legs are equal.
fn are_durable(pair: &Pair) {
    for source in pair.active() {
        pair.on(source, |mirror| async move { mirror.flush().await }).expect("sound disks");
    }
    let shown = [0, 1].map(|index| pair.leg(index));
    assert!(shown[0] == shown[1], "the legs differ");
    for (index, shown) in shown.iter().enumerate() {
        assert!(durable(pair, index) == *shown, "node {index} has lost data that it showed");
    }
}

fn sound(pair: &Pair) {
    (0..2).for_each(|index| set(pair, index, DiskFaults::default()));
}

/// A process that ends forgets the failed flush. The file is reopened, and later flushes succeed.
#[test]
fn restarted_target_with_failed_flush_is_resynced() {
    for seed in 0..12 {
        let pair = Pair::new(seed, |peer| (peer.ack, peer.compare) = (Ack::Memory, true));
        for number in 0..8 {
            pair.write(0, number, 1 + number as u8).expect("both are there");
        }
        flush_fails(&pair, 1);
        pair.on(0, |mirror| async move { mirror.flush().await }).expect("the source has all");
        pair.end(1, false);
        // For odd seeds, the source knows only from its log which blocks it sent to the target.
        if seed % 2 == 1 {
            pair.end(0, false);
            pair.restart(0);
        }
        sound(&pair);
        pair.restart(1);
        pair.becomes_in_sync(0);
        are_durable(&pair);
    }
}

/// Only the target's flush failed, and the source wrote nothing afterwards before it lost power.
/// The restarted target must not be preferred over the source.
#[test]
fn restarted_target_with_failed_flush_is_not_preferred() {
    for seed in 0..12 {
        let pair = Pair::new(seed, |peer| (peer.ack, peer.compare) = (Ack::Memory, true));
        // The target has finished its pending log writes, so the next flush to fail is a data
        // flush.
        pair.sim.run_for(Duration::from_secs(5));
        for number in 0..8 {
            pair.write(0, number, 1 + number as u8).expect("both are there");
        }
        flush_fails(&pair, 1);
        pair.sim.run_for(Duration::from_secs(2));
        pair.end(0, true);
        pair.end(1, false);
        sound(&pair);
        (0..2).for_each(|index| pair.restart(index));
        whole(&pair);
        are_durable(&pair);
    }
}

/// A reopened target stays unverified after its process ends, and serves only by force.
#[test]
fn unverified_state_survives_a_restart() {
    let mut lost = 0;
    for seed in 0..6 {
        let pair = Pair::new(seed, |peer| (peer.ack, peer.compare) = (Ack::Memory, true));
        for number in 0..8 {
            pair.write(0, number, 1 + number as u8).expect("both are there");
        }
        flush_fails(&pair, 1);
        pair.on(0, |mirror| async move { mirror.flush().await }).expect("the source has all");
        pair.cut();
        sound(&pair);
        pair.reopen(1);
        pair.end(1, seed % 2 == 1);
        pair.restart(1);
        assert!(pair.mirror(1).is_unverified(), "seed {seed}");
        let refused = pair.on(1, |mirror| async move { mirror.failover().await });
        assert_eq!(refused, Err(RoleError::Unverified));
        if seed == 5 {
            pair.end(0, true);
            let forced = pair.on(1, |mirror| async move { mirror.failover_unverified().await });
            assert_eq!((forced, pair.active()), (Ok(()), vec![1]));
            return assert!(lost > 0, "no disk has lost data that it showed");
        }
        lost += u32::from(pair.leg(1) != pair.leg(0));
        pair.network().heal();
        pair.becomes_in_sync(0);
        assert!(!pair.superblock(1).unverified, "a resync has ended");
        are_durable(&pair);
    }
}

/// The source's process ended and forgot the failed flush. The peer serves the volume and copies
/// everything back to the source.
#[test]
fn restarted_source_with_failed_flush_is_resynced() {
    for seed in 0..12 {
        let pair = Pair::new(seed, |peer| peer.compare = true);
        for number in 0..8 {
            pair.write(0, number, 1 + number as u8).expect("both are there");
        }
        flush_fails(&pair, 0);
        pair.on(0, |mirror| async move { mirror.flush().await }).expect("the peer has all");
        pair.write(0, 5, 55).expect("the peer runs degraded");
        pair.end(0, false);
        if seed % 2 == 1 {
            pair.end(1, seed % 4 == 1);
            pair.restart(1);
        }
        sound(&pair);
        pair.restart(0);
        pair.until(1, MirrorState::Mirroring);
        pair.becomes_in_sync(1);
        assert_eq!((pair.read(1, 3), pair.read(1, 5)), (4, 55));
        are_durable(&pair);
    }
}

/// No node has the writes that the source's failed flush lost, and the operator continues with the
/// visible content. The target receives that content, so the source must make it durable as well.
#[test]
fn source_forced_after_failed_flush_persists_its_data() {
    for seed in 0..12 {
        let pair = Pair::new(seed, |peer| peer.compare = true);
        pair.cut();
        for number in 0..8 {
            pair.write(0, number, 1 + number as u8).expect("the peer is lost");
        }
        flush_fails(&pair, 0);
        assert!(pair.on(0, |mirror| async move { mirror.flush().await }).is_err());
        pair.end(0, false);
        sound(&pair);
        pair.restart(0);
        pair.write(0, 20, 20).expect("it runs degraded");
        pair.network().heal();
        pair.becomes_in_sync(0);
        are_durable(&pair);
    }
}

/// Without a peer, no copy exists of the writes that a failed flush lost. The source does not
/// reopen by itself.
#[test]
fn degraded_source_with_failed_flush_needs_the_operator() {
    let pair = Pair::new(1, |_| {});
    pair.cut();
    pair.write(0, 3, 3).expect("the peer is lost");
    flush_fails(&pair, 0);
    assert!(pair.on(0, |mirror| async move { mirror.flush().await }).is_err());
    set(&pair, 0, DiskFaults::default());
    assert!(pair.write(0, 4, 4).is_err(), "it still has the poison");
    assert!(!pair.on(0, |mirror| async move { mirror.abandon_target().await }));
}

#[test]
fn rule_24_peer_takes_over_after_log_write_failure() {
    let pair = Pair::new(21, |_| {});
    unwritable(&pair, 0, METADATA);
    pair.write(0, 40, 7).expect("the peer runs degraded");
    assert!(pair.mirror(0).has_failed());
    assert_eq!(pair.read(0, 40), 7);
}

/// When the source's disk fails, an asynchronous peer receives the queued writes before it takes
/// over. They are durable there if hosts had flushed them.
#[test]
fn rule_24_async_peer_takes_over_after_the_queue_drains() {
    let pair = Pair::new(24, |peer| peer.mode = Mode::Async);
    pair.network().set_slow(Duration::from_millis(50));
    for number in 0..8 {
        pair.write(0, number, 1 + number as u8).expect("the source has it");
    }
    pair.on(0, |mirror| async move { mirror.flush().await }).expect("the source's disk is sound");
    assert!(pair.peer_status(0).lag_writes > 0, "the link is slower than the disk");
    unwritable(&pair, 0, block(9));
    pair.write(0, 9, 9).expect("the peer runs degraded");
    assert!(pair.mirror(0).has_failed());
    assert_eq!(pair.peer_status(0).lag_writes, 0);
    for number in 0..8 {
        assert_eq!(pair.read(0, number), 1 + number as u8);
    }
    assert_eq!(pair.read(0, 9), 9);
    // From now on, writes wait for the peer, and its flushes count.
    pair.write(0, 10, 10).expect("the peer is there");
    assert_eq!(pair.peer_status(0).lag_writes, 0);
    let kept = durable(&pair, 1);
    for number in 0..8_usize {
        assert_eq!(kept[number * BLOCK as usize], 1 + number as u8, "it was flushed by its host");
    }
}

/// As above for the role: it moves away from the failed disk, and back.
#[test]
fn async_source_with_failed_disk_returns_as_target() {
    let pair = Pair::new(25, |peer| peer.mode = Mode::Async);
    pair.network().set_slow(Duration::from_millis(2));
    pair.write(0, 3, 3).expect("the source has it");
    flush_fails(&pair, 0);
    pair.on(0, |mirror| async move { mirror.flush().await }).expect("the peer has all");
    pair.write(0, 5, 5).expect("the peer runs degraded");
    pair.on(0, |mirror| async move { mirror.switchover(0).await }).expect("it has all");
    set(&pair, 0, DiskFaults::default());
    pair.reopen(0);
    pair.becomes_in_sync(1);
    assert_eq!((pair.read(1, 3), pair.read(1, 5)), (3, 5));
}

/// Nodes with many separations have a full generation history, and each new generation evicts an
/// old one. A node that runs degraded keeps the generations by which it recognizes its peer.
#[test]
fn source_with_full_generation_history_returns_as_target() {
    let pair = Pair::new(27, |_| {});
    for number in 0..20 {
        pair.cut();
        pair.write(0, number, 1).expect("the peer is lost");
        pair.network().heal();
        pair.becomes_in_sync(0);
    }
    unwritable(&pair, 0, block(3));
    pair.write(0, 3, 3).expect("the peer runs degraded");
    pair.on(0, |mirror| async move { mirror.switchover(0).await }).expect("it has all");
    set(&pair, 0, DiskFaults::default());
    pair.abandon_mirror(0);
    pair.becomes_in_sync(1);
    assert_eq!(pair.read(1, 3), 3);
}

/// A block that the source cannot read is read from an asynchronous peer, after the queued writes.
#[test]
fn unreadable_block_is_read_from_async_peer_after_queue() {
    let pair = Pair::new(26, |peer| peer.mode = Mode::Async);
    pair.write(0, 4, 1).expect("the source has it");
    pair.network().set_slow(Duration::from_millis(5));
    pair.write(0, 4, 2).expect("the source has it");
    let range = block(4);
    set(&pair, 0, DiskFaults { unreadable: vec![range], ..DiskFaults::default() });
    assert_eq!(read(&pair, 0, 4).map(|found| found[0]), Ok(2));
    // Without the peer, there is no other copy.
    pair.cut();
    pair.write(0, 7, 7).expect("the peer is lost");
    pair.until(0, MirrorState::ResyncPending);
    assert_eq!(read(&pair, 0, 4), Err(IoError::ReadFault));
}

#[test]
fn rule_23_unrecorded_write_is_not_read() {
    let pair = Pair::new(22, |_| {});
    pair.write(0, 5, 1).expect("both are there");
    unwritable(&pair, 0, SUPERBLOCKS);
    pair.cut();
    // The write succeeded here. The peer looks equal but has the old data, and would be preferred
    // after a crash.
    assert!(pair.write(0, 5, 2).is_err(), "the peer is not recorded as out of date");
    let found = read(&pair, 0, 5).map(|_| ());
    assert_eq!(found, Err(IoError::Unreachable));
}
