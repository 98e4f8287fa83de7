//! Replicas whose device grows: power failures at every point, and the search for superblocks.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use flagstone_blockdev::{FileDevice, FileOptions, IoError, SharedDevice};
use flagstone_runtime::sim::{DiskConfig, NodeId, SimConfig, Simulation};
use flagstone_runtime::{buf, time};

use crate::id::{Generation, MirrorId};
use crate::limits::ACTIVE_REGIONS_MIN;
use crate::manage::replica::{CreateReplica, Replica, ReplicaError};
use crate::ondisk::layout::{ReplicaGeometry, layout, log_layout};
use crate::ondisk::locate::locate;
use crate::ondisk::superblock::Superblock;

const DATA: &str = "/dev/data";
const LOG: &str = "/dev/log";
const BLOCK: u64 = 4096;
const OLD: u64 = 60 * BLOCK;
const NEW: u64 = 150 * BLOCK + 512;

fn geometry() -> ReplicaGeometry {
    ReplicaGeometry {
        usable_bytes: BLOCK,
        bit_bytes: 8192,
        region_bytes: 8192,
        active_regions_max: ACTIVE_REGIONS_MIN,
    }
}

fn usable(device_bytes: u64) -> u64 {
    layout(device_bytes, &geometry()).expect("room").usable_bytes
}

fn device(path: &str) -> SharedDevice {
    FileDevice::open(path, &FileOptions::default()).expect("the device opens")
}

fn devices(separate: bool) -> (SharedDevice, Option<SharedDevice>) {
    (device(DATA), separate.then(|| device(LOG)))
}

fn on<T: 'static>(sim: &Simulation, node: NodeId, work: impl Future<Output = T> + 'static) -> T {
    let task = sim.spawn_on(node, work);
    sim.block_on(task).expect("the task completes")
}

async fn fill(device: &SharedDevice, block: u64, byte: u8) {
    let mut memory = buf::alloc(BLOCK as usize).await;
    memory.fill(byte);
    device.write(block * BLOCK, memory.freeze(), false).await.expect("the disk works");
}

async fn byte(device: &SharedDevice, block: u64) -> Option<u8> {
    let read = device.read(block * BLOCK, buf::alloc(BLOCK as usize).await).await;
    let read = read.expect("the disk works");
    read.iter().all(|byte| *byte == read[0]).then_some(read[0])
}

/// A replica on a device of `bytes`.
fn world(seed: u64, separate: bool, bytes: u64) -> (Simulation, NodeId) {
    let sim = Simulation::new(seed, SimConfig::default());
    let node = sim.add_node("node");
    sim.add_disk(node, DATA, DiskConfig::block_device(bytes));
    sim.add_disk(node, LOG, DiskConfig::block_device(64 << 10));
    on(&sim, node, async move {
        let (data, log) = devices(separate);
        let create = CreateReplica {
            volume: MirrorId([7; 16]),
            with_data: true,
            zeroes: false,
            geometry: geometry(),
        };
        Replica::create(data, log, create).await.expect("the disks work");
    });
    (sim, node)
}

/// The power fails after writes of hosts, with block 3 marked as different and block 9 in an active
/// region.
fn crash(sim: &Simulation, node: NodeId, separate: bool) {
    on(sim, node, async move {
        let (data, log) = devices(separate);
        let replica = Replica::open(data, log).await.expect("the disks work");
        replica.begin_use(|_| {}).await.expect("the disks work");
        for block in 0..usable(OLD) / BLOCK {
            fill(replica.data(), block, block as u8).await;
        }
        replica.data().flush().await.expect("the disk works");
        replica.mark(3..4);
        replica.persist_marks().await.expect("the disk works");
        std::mem::forget(replica.reference(9 * 8192, BLOCK).await.expect("the log works"));
    });
    sim.power_off(node);
    sim.restart(node);
}

async fn grow(separate: bool) -> Result<Generation, ReplicaError> {
    let (data, log) = devices(separate);
    let generation_bumped = Generation(77);
    let new_generation = move |superblock: &mut Superblock| superblock.current = generation_bumped;
    Replica::resize(&data, log, usable(NEW), 0, new_generation).await?;
    Ok(generation_bumped)
}

/// Checks the invariants after a cut of the growth; true if the replica has grown.
async fn check(separate: bool, cut: u64) -> bool {
    let (data, log) = devices(separate);
    let replica = Replica::open(data.clone(), log).await.expect("the superblock is found");
    assert_eq!(replica.log_lost(), None, "cut at {cut}");
    let superblock = replica.superblock();
    let grown = superblock.geometry.usable_bytes == usable(NEW);
    assert!(grown || superblock.geometry.usable_bytes == usable(OLD), "cut at {cut}");
    assert_eq!(
        superblock.current == Generation(77),
        grown,
        "cut at {cut}: the generation changes with the size"
    );
    assert!(superblock.flags.crashed, "cut at {cut}: the crash is known");
    let bits = replica.bits();
    assert!(bits.any(3..4) && bits.any(9..10), "cut at {cut}: old marks are kept");
    // A torn page marks all its blocks.
    let torn = (0..usable(OLD) / 8192).all(|bit| bits.any(bit..bit + 1));
    assert!(torn || !bits.any(4..9), "cut at {cut}: nothing else is marked");
    if grown {
        let new = usable(OLD) / 8192..usable(NEW).div_ceil(8192);
        assert!(
            new.clone().all(|bit| bits.any(bit..bit + 1)),
            "cut at {cut}: all new space is marked"
        );
        for block in usable(OLD) / BLOCK..OLD / BLOCK {
            assert_eq!(
                byte(replica.data(), block).await,
                Some(0),
                "cut at {cut}: metadata in host data"
            );
        }
    }
    for block in 0..usable(OLD) / BLOCK {
        let found = byte(replica.data(), block).await;
        assert_eq!(found, Some(block as u8), "cut at {cut}: block {block}");
    }
    assert_eq!(replica.room_bytes(), usable(NEW), "cut at {cut}: it has followed its device");
    assert_eq!(locate(&data).await.expect("the superblock is found").end, NEW / BLOCK * BLOCK);
    grown
}

fn served(sim: &Simulation, node: NodeId) -> u64 {
    let served = |path| {
        let stats = sim.disk_stats(node, path);
        stats.reads + stats.writes + stats.flushes
    };
    served(DATA) + served(LOG)
}

/// Cuts the growth after `cut` operations; false when it had completed.
fn cut_at(seed: u64, separate: bool, cut: u64) -> (bool, bool) {
    let (sim, node) = world(seed, separate, OLD);
    crash(&sim, node, separate);
    sim.grow_disk(node, DATA, NEW);
    let done = Rc::new(Cell::new(false));
    let (began, ended) = (served(&sim, node), done.clone());
    sim.spawn_on(node, async move {
        grow(separate).await.expect("the disks work");
        ended.set(true);
    });
    let world = sim.world();
    let so_far = move || {
        let of = |path| {
            let stats = world.disk_stats(node, path);
            stats.reads + stats.writes + stats.flushes
        };
        of(DATA) + of(LOG)
    };
    let waits = done.clone();
    sim.block_on(async move {
        while !waits.get() && so_far() - began < cut {
            time::sleep(Duration::from_micros(10)).await;
        }
    });
    let ended = done.get();
    sim.run_for(sim.random_span(Duration::ZERO, Duration::from_micros(100)));
    sim.power_off(node);
    sim.restart(node);
    let grown = on(&sim, node, check(separate, cut));
    assert!(grown || !ended, "cut at {cut}: it had grown");
    // Repeating it changes nothing.
    on(&sim, node, grow(separate)).expect("the disks work");
    assert!(on(&sim, node, check(separate, cut)));
    (!ended, grown)
}

fn cut_everywhere(seed: u64, separate: bool) {
    let (mut cut, mut outcomes) = (0, [0; 2]);
    loop {
        let (more, grown) = cut_at(seed + cut, separate, cut);
        outcomes[usize::from(grown)] += 1;
        if !more {
            break;
        }
        cut += 1;
    }
    assert!(outcomes[0] > 10 && outcomes[1] > 0, "cuts before and after: {outcomes:?}");
}

#[test]
fn power_loss_during_growth_leaves_old_or_new_size() {
    cut_everywhere(100, false);
}

#[test]
fn power_loss_during_growth_with_separate_log() {
    cut_everywhere(300, true);
}

#[test]
fn superblock_is_found_at_old_device_end() {
    for (seed, old, new) in [
        (1, 1 << 30, (5 << 30) + 512),
        (2, 3_000_000_000 / 512 * 512, 40 << 30),
        (3, (100 << 20) + 4096, (100 << 20) + (3 << 20)),
        (4, 10 << 20, 900 << 20),
        (5, 10_000_384, 20 << 20),
    ] {
        let (sim, node) = world(seed, false, old);
        sim.grow_disk(node, DATA, new);
        on(&sim, node, async move {
            let found = locate(&device(DATA)).await.expect("the superblock is found");
            assert_eq!(found.end, old / BLOCK * BLOCK, "{old}");
            let replica = Replica::open(device(DATA), None).await.expect("the replica opens");
            assert_eq!(replica.superblock().geometry.usable_bytes, usable(old), "{old}");
            assert_eq!((replica.log_lost(), replica.bits().count()), (None, 0));
            assert_eq!(replica.room_bytes(), usable(new), "{old}");
        });
    }
}

#[test]
fn metadata_stays_after_small_growth() {
    let (sim, node) = world(6, false, OLD);
    for more in 1..8 {
        sim.grow_disk(node, DATA, OLD + more * BLOCK);
        on(&sim, node, async move {
            let replica = Replica::open(device(DATA), None).await.expect("the replica opens");
            assert_eq!((replica.log_lost(), replica.bits().count()), (None, 0));
            replica.begin_use(|_| {}).await.expect("the disks work");
            replica.end_use(|_| {}).await.expect("the disks work");
        });
    }
}

#[test]
fn replica_image_in_host_data_is_ignored() {
    let (sim, node) = world(7, false, 64 << 20);
    let image = sim.peek(node, DATA, (64 << 20) - 2 * BLOCK, 2 * BLOCK as usize);
    let (sim, node) = world(8, false, 256 << 20);
    // At a position that is a likely device size, and at a position that the image names.
    sim.poke(node, DATA, (128 << 20) - 2 * BLOCK, &image);
    sim.poke(node, DATA, (64 << 20) - 2 * BLOCK, &image);
    sim.grow_disk(node, DATA, 512 << 20);
    let end =
        on(&sim, node, async { locate(&device(DATA)).await.expect("the superblock is found").end });
    assert_eq!(end, 256 << 20);
}

#[test]
fn resize_without_space_changes_nothing() {
    let (sim, node) = world(9, true, 1 << 20);
    sim.grow_disk(node, DATA, 1 << 30);
    on(&sim, node, async {
        let (data, log) = devices(true);
        let before = locate(&data).await.expect("the superblock is found").superblock;
        // 64 KiB of log, part of which is taken by the records, cannot hold a page for every 252
        // MiB.
        let fits = crate::ondisk::layout::usable_with_log(64 << 10, &geometry());
        assert!(
            log_layout(&ReplicaGeometry { usable_bytes: 1 << 40, ..geometry() }).total_bytes
                > 64 << 10
        );
        let too_large = Replica::resize(&data, log.clone(), 2 << 30, 0, |_| {}).await;
        assert_eq!(too_large, Err(ReplicaError::DataTooSmall));
        let odd = Replica::resize(&data, log.clone(), BLOCK + 1, 0, |_| {}).await;
        assert!(matches!(odd, Err(ReplicaError::Geometry(_))));
        let replica = Replica::open(data.clone(), log).await.expect("the replica opens");
        assert_eq!(replica.superblock().geometry, before.geometry);
        replica.set_log_room(fits.min(1 << 20));
        assert_eq!(replica.room_bytes(), fits.min(1 << 20));
    });
}

#[test]
fn too_small_log_device_is_refused() {
    let (sim, node) = world(10, true, 1 << 30);
    sim.grow_disk(node, DATA, 8 << 30);
    on(&sim, node, async {
        let (data, log) = devices(true);
        let refused = Replica::resize(&data, log.clone(), 4 << 30, 0, |_| {}).await;
        assert_eq!(refused, Err(ReplicaError::LogTooSmall));
        let replica = Replica::open(data, log).await.expect("the replica opens");
        assert_eq!(replica.superblock().geometry.usable_bytes, usable(1 << 30));
    });
}

#[test]
fn target_shrinks_and_grows_with_source() {
    let (sim, node) = world(11, false, NEW);
    on(&sim, node, async {
        let smaller = 40 * BLOCK;
        for size in [smaller, usable(NEW), smaller, smaller] {
            Replica::resize(&device(DATA), None, size, 0, |_| {}).await.expect("the disk works");
            let replica = Replica::open(device(DATA), None).await.expect("the replica opens");
            assert_eq!(replica.superblock().geometry.usable_bytes, size);
            assert_eq!(replica.log_lost(), None);
            replica.begin_use(|_| {}).await.expect("the disks work");
            drop(replica.reference(size - BLOCK, BLOCK).await.expect("the log works"));
            replica.end_use(|_| {}).await.expect("the disks work");
        }
    });
}

#[test]
fn retired_replica_writes_nothing() {
    let (sim, node) = world(12, false, OLD);
    on(&sim, node, async {
        let replica = Replica::open(device(DATA), None).await.expect("the replica opens");
        replica.begin_use(|_| {}).await.expect("the disks work");
        replica.mark(1..2);
        replica.end_use(|_| {}).await.expect("the disks work");
        replica.clear(1..2);
        replica.retire().await;
        let before = locate(replica.data()).await;
        assert!(before.is_err(), "the device prefix has no superblock");
        assert_eq!(
            replica.update(|superblock| superblock.epoch = 9).await,
            Err(IoError::Unreachable)
        );
        assert_eq!(replica.begin_use(|_| {}).await, Err(IoError::Unreachable));
        assert_eq!(replica.persist_marks().await, Ok(()), "there is nothing to write");
    });
    let writes = sim.disk_stats(node, DATA).writes;
    sim.run_for(Duration::from_secs(20));
    assert_eq!(sim.disk_stats(node, DATA).writes, writes);
}
