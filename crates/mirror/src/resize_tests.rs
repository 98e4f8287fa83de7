//! Replicas whose device grows: power losses at every moment of it, and where superblocks are found.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use flagstone_blockdev::{FileDevice, FileOptions, IoError, SharedDevice};
use flagstone_runtime::sim::{Config, DiskConfig, NodeId, Simulation};
use flagstone_runtime::{buf, time};

use crate::format::superblock::Superblock;
use crate::id::{Generation, Uuid};
use crate::limits::HOT_MIN;
use crate::locate::locate;
use crate::replica::{Create, Replica, ReplicaError};
use crate::shape::{Shape, layout, log_layout};

const DATA: &str = "/dev/data";
const LOG: &str = "/dev/log";
const BLOCK: u64 = 4096;
const OLD: u64 = 60 * BLOCK;
const NEW: u64 = 150 * BLOCK + 512;

fn shape() -> Shape {
    Shape { usable_bytes: BLOCK, bit_bytes: 8192, region_bytes: 8192, hot_regions: HOT_MIN }
}

fn usable(device_bytes: u64) -> u64 {
    layout(device_bytes, &shape()).expect("room").usable_bytes
}

fn device(path: &str) -> SharedDevice {
    FileDevice::open(path, &FileOptions::default()).expect("the disk is free")
}

fn devices(separate: bool) -> (SharedDevice, Option<SharedDevice>) {
    (device(DATA), separate.then(|| device(LOG)))
}

fn on<T: 'static>(sim: &Simulation, node: NodeId, work: impl Future<Output = T> + 'static) -> T {
    let task = sim.spawn_on(node, work);
    sim.block_on(task).expect("nobody ends it")
}

async fn fill(device: &SharedDevice, block: u64, byte: u8) {
    let mut memory = buf::alloc(BLOCK as usize).await;
    memory.fill(byte);
    device.write(block * BLOCK, memory.freeze(), false).await.expect("a sound disk");
}

async fn byte(device: &SharedDevice, block: u64) -> Option<u8> {
    let read = device.read(block * BLOCK, buf::alloc(BLOCK as usize).await).await;
    let read = read.expect("a sound disk");
    read.iter().all(|byte| *byte == read[0]).then_some(read[0])
}

/// A replica of a device of `bytes`.
fn world(seed: u64, separate: bool, bytes: u64) -> (Simulation, NodeId) {
    let sim = Simulation::new(seed, Config::default());
    let node = sim.add_node("node");
    sim.add_disk(node, DATA, DiskConfig::block_device(bytes));
    sim.add_disk(node, LOG, DiskConfig::block_device(64 << 10));
    on(&sim, node, async move {
        let (data, log) = devices(separate);
        let create = Create { volume: Uuid([7; 16]), with_data: true, shape: shape() };
        Replica::create(data, log, create).await.expect("sound disks");
    });
    (sim, node)
}

/// Hosts have written, block 3 is marked as different, and 9 is hot, when the power goes.
fn crash(sim: &Simulation, node: NodeId, separate: bool) {
    on(sim, node, async move {
        let (data, log) = devices(separate);
        let replica = Replica::open(data, log).await.expect("sound disks");
        replica.begin_use(|_| {}).await.expect("sound disks");
        for block in 0..usable(OLD) / BLOCK {
            fill(replica.data(), block, block as u8).await;
        }
        replica.data().flush().await.expect("a sound disk");
        replica.mark(3..4);
        replica.persist_marks().await.expect("a sound disk");
        std::mem::forget(replica.pin(9 * 8192, BLOCK).await.expect("a sound log"));
    });
    sim.power_off(node);
    sim.restart(node);
}

async fn grow(separate: bool) -> Result<Generation, ReplicaError> {
    let (data, log) = devices(separate);
    let minted = Generation(77);
    let minting = move |superblock: &mut Superblock| superblock.current = minted;
    Replica::resize(&data, log, usable(NEW), 0, minting).await?;
    Ok(minted)
}

/// What must hold wherever the growth was cut; true when it has grown.
async fn check(separate: bool, cut: u64) -> bool {
    let (data, log) = devices(separate);
    let replica = Replica::open(data.clone(), log).await.expect("it is found");
    assert_eq!(replica.lost(), None, "cut at {cut}");
    let superblock = replica.superblock();
    let grown = superblock.shape.usable_bytes == usable(NEW);
    assert!(grown || superblock.shape.usable_bytes == usable(OLD), "cut at {cut}");
    assert_eq!(superblock.current == Generation(77), grown, "cut at {cut}: minted with the size");
    assert!(superblock.flags.crashed, "cut at {cut}: the crash is known");
    let bits = replica.bits();
    assert!(bits.any(3..4) && bits.any(9..10), "cut at {cut}: what differed differs");
    // A page that is torn is dirty as a whole.
    let torn = (0..usable(OLD) / 8192).all(|bit| bits.any(bit..bit + 1));
    assert!(torn || !bits.any(4..9), "cut at {cut}: no more than that");
    if grown {
        let new = usable(OLD) / 8192..usable(NEW).div_ceil(8192);
        assert!(new.clone().all(|bit| bits.any(bit..bit + 1)), "cut at {cut}: all that is new");
        for block in usable(OLD) / BLOCK..OLD / BLOCK {
            assert_eq!(byte(replica.data(), block).await, Some(0), "cut at {cut}: bytes of ours");
        }
    }
    for block in 0..usable(OLD) / BLOCK {
        let found = byte(replica.data(), block).await;
        assert_eq!(found, Some(block as u8), "cut at {cut}: block {block}");
    }
    assert_eq!(replica.room_bytes(), usable(NEW), "cut at {cut}: it has followed its device");
    assert_eq!(locate(&data).await.expect("it is there").end, NEW / BLOCK * BLOCK);
    grown
}

fn served(sim: &Simulation, node: NodeId) -> u64 {
    let served = |path| {
        let stats = sim.disk_stats(node, path);
        stats.reads + stats.writes + stats.flushes
    };
    served(DATA) + served(LOG)
}

/// Cuts the growth after so many operations; false when it had ended.
fn cut_at(seed: u64, separate: bool, cut: u64) -> (bool, bool) {
    let (sim, node) = world(seed, separate, OLD);
    crash(&sim, node, separate);
    sim.grow_disk(node, DATA, NEW);
    let done = Rc::new(Cell::new(false));
    let (began, ended) = (served(&sim, node), done.clone());
    sim.spawn_on(node, async move {
        grow(separate).await.expect("sound disks");
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
    // It is asked again: the same, and nothing twice.
    on(&sim, node, grow(separate)).expect("sound disks");
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
fn a_power_loss_at_any_moment_of_a_growth_leaves_the_old_size_or_the_new() {
    cut_everywhere(100, false);
}

#[test]
fn the_same_with_the_log_on_a_device_of_its_own() {
    cut_everywhere(300, true);
}

#[test]
fn a_replica_is_found_where_its_device_ended() {
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
            let found = locate(&device(DATA)).await.expect("it is found");
            assert_eq!(found.end, old / BLOCK * BLOCK, "{old}");
            let replica = Replica::open(device(DATA), None).await.expect("it opens");
            assert_eq!(replica.superblock().shape.usable_bytes, usable(old), "{old}");
            assert_eq!((replica.lost(), replica.bits().count()), (None, 0));
            assert_eq!(replica.room_bytes(), usable(new), "{old}");
        });
    }
}

#[test]
fn a_device_that_grew_by_less_than_the_metadata_serves_on() {
    let (sim, node) = world(6, false, OLD);
    for more in 1..8 {
        sim.grow_disk(node, DATA, OLD + more * BLOCK);
        on(&sim, node, async move {
            let replica = Replica::open(device(DATA), None).await.expect("it opens");
            assert_eq!((replica.lost(), replica.bits().count()), (None, 0));
            replica.begin_use(|_| {}).await.expect("sound disks");
            replica.end_use(|_| {}).await.expect("sound disks");
        });
    }
}

#[test]
fn an_image_of_a_replica_in_hosts_data_is_not_taken_for_the_replica() {
    let (sim, node) = world(7, false, 64 << 20);
    let image = sim.peek(node, DATA, (64 << 20) - 2 * BLOCK, 2 * BLOCK as usize);
    let (sim, node) = world(8, false, 256 << 20);
    // At a place that ends likely as well, and at one that it names.
    sim.poke(node, DATA, (128 << 20) - 2 * BLOCK, &image);
    sim.poke(node, DATA, (64 << 20) - 2 * BLOCK, &image);
    sim.grow_disk(node, DATA, 512 << 20);
    let end = on(&sim, node, async { locate(&device(DATA)).await.expect("it is found").end });
    assert_eq!(end, 256 << 20);
}

#[test]
fn what_has_no_room_changes_nothing() {
    let (sim, node) = world(9, true, 1 << 20);
    sim.grow_disk(node, DATA, 1 << 30);
    on(&sim, node, async {
        let (data, log) = devices(true);
        let before = locate(&data).await.expect("it is there").superblock;
        // 64 KiB of log, of which records take some, are not enough for a page each 252 MiB.
        let fits = crate::shape::usable_with_log(64 << 10, &shape());
        assert!(log_layout(&Shape { usable_bytes: 1 << 40, ..shape() }).total_bytes > 64 << 10);
        let too_large = Replica::resize(&data, log.clone(), 2 << 30, 0, |_| {}).await;
        assert_eq!(too_large, Err(ReplicaError::DataTooSmall));
        let odd = Replica::resize(&data, log.clone(), BLOCK + 1, 0, |_| {}).await;
        assert!(matches!(odd, Err(ReplicaError::Shape(_))));
        let replica = Replica::open(data.clone(), log).await.expect("it opens");
        assert_eq!(replica.superblock().shape, before.shape);
        replica.set_log_room(fits.min(1 << 20));
        assert_eq!(replica.room_bytes(), fits.min(1 << 20));
    });
}

#[test]
fn a_log_device_that_is_too_small_is_refused() {
    let (sim, node) = world(10, true, 1 << 30);
    sim.grow_disk(node, DATA, 8 << 30);
    on(&sim, node, async {
        let (data, log) = devices(true);
        let refused = Replica::resize(&data, log.clone(), 4 << 30, 0, |_| {}).await;
        assert_eq!(refused, Err(ReplicaError::LogTooSmall));
        let replica = Replica::open(data, log).await.expect("it opens");
        assert_eq!(replica.superblock().shape.usable_bytes, usable(1 << 30));
    });
}

#[test]
fn a_target_follows_its_source_down_and_up() {
    let (sim, node) = world(11, false, NEW);
    on(&sim, node, async {
        let smaller = 40 * BLOCK;
        for size in [smaller, usable(NEW), smaller, smaller] {
            Replica::resize(&device(DATA), None, size, 0, |_| {}).await.expect("a sound disk");
            let replica = Replica::open(device(DATA), None).await.expect("it opens");
            assert_eq!(replica.superblock().shape.usable_bytes, size);
            assert_eq!(replica.lost(), None);
            replica.begin_use(|_| {}).await.expect("sound disks");
            drop(replica.pin(size - BLOCK, BLOCK).await.expect("a sound log"));
            replica.end_use(|_| {}).await.expect("sound disks");
        }
    });
}

#[test]
fn a_replica_that_is_retired_writes_nothing() {
    let (sim, node) = world(12, false, OLD);
    on(&sim, node, async {
        let replica = Replica::open(device(DATA), None).await.expect("it opens");
        replica.begin_use(|_| {}).await.expect("sound disks");
        replica.mark(1..2);
        replica.end_use(|_| {}).await.expect("sound disks");
        replica.clear(1..2);
        replica.retire().await;
        let before = locate(replica.data()).await;
        assert!(before.is_err(), "hosts' part has no superblock");
        assert_eq!(
            replica.update(|superblock| superblock.epoch = 9).await,
            Err(IoError::Unreachable)
        );
        assert_eq!(replica.begin_use(|_| {}).await, Err(IoError::Unreachable));
        assert_eq!(replica.persist_marks().await, Ok(()), "nothing is to be written");
    });
    let writes = sim.disk_stats(node, DATA).writes;
    sim.run_for(Duration::from_secs(20));
    assert_eq!(sim.disk_stats(node, DATA).writes, writes);
}
