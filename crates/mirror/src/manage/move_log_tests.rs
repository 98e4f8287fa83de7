//! Moving a log: power losses at every disk operation, refused destinations, and devices that fail
//! or hang meanwhile.

use flagstone_runtime::sim::SimLatency;

use super::*;
use crate::intent_log::log_area::write_page;

const MOVES: Course = Course { separate: true, mode: IntentLogMode::ActiveRegions, moves: true };

/// Either log may be the replica's at any moment, and never lacks a mark.
#[test]
fn power_loss_while_log_moves_keeps_marks() {
    for seed in [1, 2] {
        cut_course_everywhere(seed, MOVES);
    }
}

/// The configuration still names the old place, with a log of its own or on the data disk.
#[test]
fn old_place_of_moved_log_is_refused() {
    for (seed, separate) in [(1, true), (2, false)] {
        let (sim, node) = world(seed, separate);
        on(&sim, node, async move {
            let replica = open(separate).await;
            replica.begin_use(|_| {}).await.expect("the disks work");
            replica.mark(3..4);
            replica.move_log(log_device(LOG2), LOG2).await.expect("it is free");
            replica.mark(5..6);
            replica.persist_marks().await.expect("the disks work");
        });
        sim.power_off(node);
        sim.restart(node);
        let disks = || [DATA, LOG, LOG2].map(|path| sim.peek(node, path, 0, 64 << 10));
        let before = disks();
        on(&sim, node, async move {
            let (data, log) = devices(separate);
            let refused = Replica::open(data.clone(), log).await.map(drop);
            assert_eq!(refused, Err(ReplicaError::LogMoved));
            let superblock = read_superblock(&data).await.expect("a superblock");
            assert_eq!(superblock.log_place, LOG2);
        });
        assert!(disks() == before, "nothing was written");
        on(&sim, node, async {
            let replica = open_moved(LOG2).await;
            assert_eq!((replica.log_lost(), replica.bits().count()), (None, 2));
        });
    }
}

/// The new device was lost too: the operator names an empty one, and everything is copied.
#[test]
fn empty_device_replaces_moved_log() {
    let (sim, node) = world(3, true);
    on(&sim, node, async {
        let replica = open(true).await;
        replica.move_log(log_device(LOG2), LOG2).await.expect("it is free");
        replica.retire().await;
    });
    sim.poke(node, LOG, 0, &[0; 64 << 10]);
    on(&sim, node, async {
        let replica = open(true).await;
        assert_eq!(replica.log_lost(), Some(LogLost::Header(FormatError::Absent)));
        assert_eq!(replica.superblock().log_place, "", "the log is where it is configured");
    });
}

fn in_memory(size_bytes: u64) -> SharedDevice {
    Arc::new(MemoryDevice::new(size_bytes, 512).expect("a valid size"))
}

#[test]
fn unsuitable_place_for_log_is_refused() {
    let (sim, node) = world(4, true);
    on(&sim, node, async {
        let (data, log) = devices(true);
        let replica = Replica::open(data, log.clone()).await.expect("the disks work");
        let to = async |device| replica.move_log(device, "there").await;
        assert_eq!(to(log).await, Err(ReplicaError::LogAlreadyThere));
        let device = log_device(LOG2).expect("a device");
        write_page(&device, 8192, &[1; PAGE_BYTES]).await.expect("the disk works");
        assert_eq!(to(Some(device.clone())).await, Err(ReplicaError::LogDeviceInUse));
        let other = CreateReplica { volume: MirrorId([9; 16]), ..create() };
        write_page(&device, 8192, &[0; PAGE_BYTES]).await.expect("the disk works");
        let data = in_memory((BLOCKS + 7) * BLOCK);
        Replica::create(data, Some(device.clone()), other).await.expect("the disks work");
        let refused = to(Some(device)).await;
        assert!(matches!(refused, Err(ReplicaError::ForeignLog { .. })), "{refused:?}");
        let small = in_memory(4 * BLOCK);
        assert_eq!(to(Some(small)).await, Err(ReplicaError::LogTooSmall));
        assert_eq!((replica.log_lost(), replica.superblock().log_place.as_str()), (None, ""));
    });
}

/// The new device hangs at any moment. The move is given up, and writes that need the log continue.
/// Another move waits until the stalled write has ended: it would meet the new log.
#[test]
fn hanging_log_device_does_not_stop_writes() {
    let (mut timed_out, mut failed) = (0, 0);
    for step in 0..40 {
        let (sim, node) = world(step, true);
        let moving = sim.spawn_on(node, async {
            let replica = open(true).await;
            replica.begin_use(|_| {}).await.expect("the disks work");
            let device = log_device(LOG2);
            let mover = {
                let (replica, device) = (replica.clone(), device.clone());
                spawn(async move { replica.move_log(device, LOG2).await })
            };
            for block in 0..BLOCKS {
                drop(replica.reference(block * BLOCK, BLOCK).await.expect("the log works"));
                replica.mark(block..block + 1);
                time::sleep(Duration::from_millis(100)).await;
            }
            (replica, device, mover)
        });
        sim.run_for(Duration::from_micros(500 * step));
        let stall = SimLatency::between_us(30_000_000, 30_000_000);
        sim.set_write_latency(node, LOG2, stall);
        sim.run_for(Duration::from_secs(8));
        if !moving.is_finished() {
            // The new log was in use already.
            let slot = sim.peek(node, DATA, (BLOCKS + 5) * BLOCK, PAGE_BYTES);
            let superblock = Superblock::decode(&slot.try_into().expect("a page"));
            let place = superblock.expect("a superblock").log_place;
            assert_eq!(place, LOG2, "step {step}: writes wait for the new device");
            continue;
        }
        let (replica, device, mover) = sim.block_on(moving).expect("the task completes");
        let place = replica.superblock().log_place;
        let moved = sim.block_on(mover).expect("the task completes");
        match moved {
            Ok(()) => continue,
            Err(ReplicaError::LogDeviceHangs) => timed_out += 1,
            // In step 1, or the destination's check.
            Err(ReplicaError::Io(_)) => failed += 1,
            other => panic!("{other:?}"),
        }
        assert_eq!(place, "", "the old log is in use");
        let move_again = || {
            let (replica, device) = (replica.clone(), device.clone());
            on(&sim, node, async move { replica.move_log(device, LOG2).await })
        };
        assert_eq!(move_again(), Err(ReplicaError::LogBusy), "step {step}: a write is in flight");
        sim.set_write_latency(node, LOG2, SimLatency::between_us(10, 10));
        sim.run_for(Duration::from_secs(30));
        assert_eq!(move_again(), Ok(()), "step {step}: it has ended");
    }
    assert!(timed_out > 0 && failed > 0, "{timed_out} and {failed}: a step was never hit");
}

/// A replica retires at any moment of a move, to devices that are fast or slow. The volume may grow
/// over the place of the log afterwards, so nothing is written there.
#[test]
fn retired_replica_does_not_move_its_log() {
    for place in [DATA, LOG2] {
        let mut moves = [0, 0];
        for step in 0..60 {
            let (sim, node) = world(step, true);
            let replica = on(&sim, node, open(true));
            let moved = replica.clone();
            let moving =
                sim.spawn_on(node, async move { moved.move_log(log_device(place), place).await });
            sim.run_for(Duration::from_micros(200 * step));
            if step % 2 == 0 {
                sim.set_write_latency(node, place, SimLatency::between_us(300_000, 300_000));
            }
            on(&sim, node, async move { replica.retire().await });
            let data = || sim.peek(node, DATA, 0, ((BLOCKS + 7) * BLOCK) as usize);
            let before = data();
            let moved = sim.block_on(moving).expect("the task completes");
            moves[usize::from(moved.is_ok())] += 1;
            sim.run_for(Duration::from_secs(30));
            assert!(data() == before, "{place}, step {step}: written after the end, {moved:?}");
            let place = if moved.is_ok() { place } else { LOG };
            let replica = on(&sim, node, open_moved(place));
            assert_eq!(replica.log_lost(), None, "step {step}");
        }
        assert!(moves.iter().all(|count| *count > 0), "{place}: {moves:?}");
    }
}

/// The superblock's update that names the new log fails: which log it names is unknown.
#[test]
fn failed_superblock_update_loses_no_mark() {
    for slots in [0..2, 0..1, 1..2] {
        let (sim, node) = world(5, true);
        let end = (BLOCKS + 7) * BLOCK;
        let bad = end - (2 - slots.start) * BLOCK..end - (2 - slots.end) * BLOCK;
        let world = sim.clone();
        on(&sim, node, async move {
            let replica = open(true).await;
            replica.begin_use(|_| {}).await.expect("the disks work");
            let held = replica.reference(3 * BLOCK, BLOCK).await.expect("the log works");
            world.set_faults(node, DATA, DiskFaults::default().unwritable_at(bad));
            let moved = replica.move_log(log_device(LOG2), LOG2).await;
            assert!(matches!(moved, Err(ReplicaError::Io(_))), "{moved:?}");
            replica.mark(3..4);
            // May fail: then nothing relies on the mark.
            if replica.persist_marks().await.is_err() {
                std::mem::forget(held);
            }
        });
        sim.power_off(node);
        sim.set_faults(node, DATA, DiskFaults::default());
        sim.restart(node);
        on(&sim, node, async move {
            let replica = open_moved(LOG).await;
            assert!(replica.bits().any(3..4), "slots {slots:?}: the mark is lost");
        });
    }
}
