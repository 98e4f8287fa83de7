//! Devices that are added to and removed from a pool in use, with a power loss after each event of
//! the disks.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{Image, SharedTrace, disks};
use flagstone_blockdev::{BlockDevice, DelayConfig, DelayLayer, DelayTime, IoError, MemoryDevice};
use flagstone_pool::manage::devices::{DeviceOrderError, RemovedDevice, release};
use flagstone_pool::{
    CreateOptions, ExpectedPool, NamedDevice, OpenOptions, Pool, PoolError, PoolVolume,
    VolumeOptions,
};
use flagstone_runtime::rng::Rng;
use flagstone_runtime::sim::{SimConfig, Simulation};
use flagstone_runtime::{Buf, block_on, buf, spawn, time};

const BLOCK: u64 = 4096;
/// Blocks of the volume that tests compare.
const BLOCKS: u64 = 200;

fn size_of(segments: u64) -> u64 {
    (1 << 20) + segments * 16 * BLOCK
}

fn memory(name: &str, segments: u64) -> NamedDevice {
    let device = MemoryDevice::new(size_of(segments), 512).unwrap();
    NamedDevice { name: name.to_owned(), device: Arc::new(device) }
}

fn options() -> CreateOptions {
    CreateOptions { segment_blocks: 16, ..CreateOptions::new("fast") }
}

fn thin(blocks: u64) -> VolumeOptions {
    VolumeOptions { size_bytes: blocks * BLOCK, ..VolumeOptions::default() }
}

async fn write(volume: &PoolVolume, block: u64, stamp: u64) -> Result<(), IoError> {
    let data: Vec<u8> = (0..512).flat_map(|_| (stamp << 32 | block).to_le_bytes()).collect();
    volume.write(block * BLOCK, Buf::copy_of(&data).unwrap(), false).await
}

/// Stamps of the blocks; 0 for zeroes.
async fn stamps(volume: &PoolVolume, blocks: u64) -> Vec<u64> {
    let mut found = Vec::new();
    for block in 0..blocks {
        let read = volume.read(block * BLOCK, buf::alloc(4096).await).await.unwrap();
        let word = u64::from_le_bytes(read[..8].try_into().unwrap());
        assert!(read.chunks(8).all(|other| other == word.to_le_bytes()), "block {block} is torn");
        assert!(word == 0 || word & 0xffff_ffff == block, "block {block} is misplaced");
        found.push(word >> 32);
    }
    found
}

async fn damages(devices: Vec<NamedDevice>) -> Vec<String> {
    let report = Pool::check_devices(devices, &mut |_, _| {}).await.unwrap();
    report.damage.iter().map(ToString::to_string).collect()
}

/// Evacuates a device and removes it.
async fn remove(pool: &Pool, device: &str) -> Result<RemovedDevice, DeviceOrderError> {
    let evacuation = pool.evacuate(device).await?;
    for _ in 0..10_000 {
        if evacuation.step().await? {
            assert_eq!(evacuation.left_bytes(), 0);
            return evacuation.complete().await;
        }
    }
    panic!("the evacuation of {device} does not end");
}

#[test]
fn full_pool_has_room_after_growth() {
    block_on(async {
        let (first, second) = (memory("/a", 64), memory("/b", 80));
        let pool = Pool::create(vec![first.clone()], &options()).await.unwrap();
        let db = pool.create_volume("db", &thin(100_000)).await.unwrap();
        let mut full = 0;
        while write(&db, full, 1).await.is_ok() {
            full += 1;
        }
        let before = pool.status().capacity_bytes;
        pool.grow(second.clone(), false).await.unwrap();
        let status = pool.status();
        // Of 80 segments, the reserve takes 20, headers of chunks an eighth, and slack a sixteenth.
        assert!(status.capacity_bytes > before + 48 * 16 * BLOCK, "{before}, {status:?}");
        assert_eq!(status.devices, ["/a", "/b"]);
        for block in full..full + 720 {
            write(&db, block, 2).await.unwrap();
        }
        pool.close().await.unwrap();
        drop((pool, db));
        assert_eq!(damages(vec![second.clone(), first.clone()]).await, [""; 0]);
        let missing = Pool::open(vec![first.clone()]).await.unwrap_err();
        assert!(matches!(missing, PoolError::Missing { index: 1, .. }), "{missing}");
        let pool = Pool::open(vec![second, first]).await.unwrap();
        let found = stamps(&pool.open_volume("db").unwrap(), full + 720).await;
        assert_eq!(found[..full as usize], vec![1; full as usize]);
        assert_eq!(found[full as usize..], [2; 720]);
    })
    .unwrap();
}

#[test]
fn unsuitable_devices_are_not_added() {
    block_on(async {
        let (first, other) = (memory("/a", 64), memory("/x", 64));
        let pool = Pool::create(vec![first.clone()], &options()).await.unwrap();
        let refused = pool.grow(first.clone(), true).await.unwrap_err().to_string();
        assert!(refused.contains("/a") && refused.contains("already"), "{refused}");
        drop(Pool::create(vec![other.clone()], &options()).await.unwrap());
        let refused = pool.grow(other.clone(), false).await.unwrap_err().to_string();
        assert!(refused.contains("/x is not empty"), "{refused}");
        let (cached, _) = disks(vec![Image::default()], size_of(64), 0);
        let refused = pool.grow(cached[0].clone(), false).await.unwrap_err().to_string();
        assert!(refused.contains("volatile write cache"), "{refused}");
        pool.grow(other, true).await.unwrap();
        assert_eq!(pool.status().devices.len(), 2);
    })
    .unwrap();
}

#[test]
fn log_device_admits_disks_with_caches() {
    block_on(async {
        let log = Some(memory("/log", 64));
        let pool = Pool::create_with_log(vec![memory("/a", 64)], log, &options()).await.unwrap();
        let db = pool.create_volume("db", &thin(BLOCKS)).await.unwrap();
        let (cached, _) = disks(vec![Image::default()], size_of(64), 0);
        pool.grow(cached[0].clone(), false).await.unwrap();
        assert!(!db.geometry().volatile_cache, "a write is durable on the log device");
    })
    .unwrap();
}

#[test]
fn device_is_removed_while_hosts_write() {
    let sim = Simulation::new(5, SimConfig::default());
    let node = sim.add_node("server");
    let done = sim.spawn_on(node, async {
        let devices = [memory("/a", 160), memory("/b", 160), memory("/c", 160)];
        let pool = Pool::create(devices.to_vec(), &options()).await.unwrap();
        let db = pool.create_volume("db", &thin(2000)).await.unwrap();
        for block in 0..2000 {
            write(&db, block, 1).await.unwrap();
            if block == 1000 {
                pool.create_snapshot(&["db"], "a").await.unwrap();
                drop(pool.clone_volume("db@a", "copy", Default::default()).await.unwrap());
            }
        }
        let writer = db.clone();
        let task = spawn(async move {
            for step in 0..3000 {
                write(&writer, step % BLOCKS, 2 + step).await.unwrap();
            }
        });
        let removal = remove(&pool, "/b").await.unwrap();
        task.await.unwrap();
        assert_eq!(pool.status().devices, ["/a", "/c"]);
        let refused = pool.evacuate("/b").await.err().unwrap();
        assert!(matches!(refused, DeviceOrderError::Unknown { .. }), "{refused}");
        let before = stamps(&db, 2000).await;
        pool.close().await.unwrap();
        drop((pool, db));
        let [first, removed, third] = devices;
        assert_eq!(damages(vec![first.clone(), third.clone()]).await, [""; 0]);
        // The outdated superblock of the removed device is no contradiction.
        for devices in [
            vec![first.clone(), removed.clone(), third.clone()],
            vec![third.clone(), first.clone()],
        ] {
            let pool = Pool::open(devices).await.unwrap();
            assert_eq!(stamps(&pool.open_volume("db").unwrap(), 2000).await, before);
            let old = stamps(&pool.open_volume("copy").unwrap(), 2000).await;
            assert!((0..2000).all(|block| old[block] == u64::from(block <= 1000)));
            pool.close().await.unwrap();
        }
        // Another disk of the path, such as one of this pool, is left as it is.
        let refused = release(&third, removal).await.unwrap_err();
        assert!(matches!(refused, PoolError::Unsuitable { .. }), "{refused}");
        release(&removed, removal).await.unwrap();
        let refused = Pool::open(vec![first, removed, third]).await.unwrap_err();
        assert!(matches!(refused, PoolError::NotAPool { .. }), "{refused}");
    });
    sim.block_on(async { done.await.unwrap() });
}

#[test]
fn device_is_not_removed_without_room() {
    block_on(async {
        let pool = Pool::create(vec![memory("/a", 64)], &options()).await.unwrap();
        let last = pool.evacuate("/a").await.err().unwrap();
        assert!(matches!(last, DeviceOrderError::Last { .. }), "{last}");
        pool.grow(memory("/b", 64), false).await.unwrap();
        let db = pool.create_volume("db", &thin(100_000)).await.unwrap();
        let mut full = 0;
        while write(&db, full, 1).await.is_ok() {
            full += 1;
        }
        let refused = pool.evacuate("/b").await.err().unwrap();
        assert!(matches!(refused, DeviceOrderError::NoRoom { .. }), "{refused}");
        db.discard(0, full * BLOCK).await.unwrap();
        pool.checkpoint().await.unwrap();
        // A canceled evacuation leaves the device in use.
        let capacity = pool.status().capacity_bytes;
        let evacuation = pool.evacuate("/b").await.unwrap();
        assert!(pool.status().capacity_bytes < capacity);
        assert!(matches!(pool.evacuate("/a").await.err(), Some(DeviceOrderError::Busy { .. })));
        evacuation.step().await.unwrap();
        drop(evacuation);
        assert_eq!(pool.status().capacity_bytes, capacity);
        for block in 0..full - 100 {
            write(&db, block, 2).await.unwrap();
        }
    })
    .unwrap();
}

/// Regression: the chunk with which the log left the device was never completed. Later chunks did
/// not take effect, and every call of every volume waited for ever.
#[test]
fn canceled_step_of_a_removal_does_not_stop_the_log() {
    let sim = Simulation::new(3, SimConfig::default());
    let node = sim.add_node("server");
    let done = sim.spawn_on(node, async {
        let slow = |name: &str| {
            let write = DelayTime::fixed(Duration::from_secs(1));
            let config = DelayConfig { write, ..DelayConfig::default() };
            let device = DelayLayer::new(memory(name, 64).device, config).unwrap();
            NamedDevice { name: name.to_owned(), device: Arc::new(device) }
        };
        let devices = vec![slow("/a"), slow("/b")];
        let pool = Pool::create(devices.clone(), &options()).await.unwrap();
        let db = pool.create_volume("db", &thin(BLOCKS)).await.unwrap();
        write(&db, 0, 1).await.unwrap();
        let evacuation = pool.evacuate("/a").await.unwrap();
        let cut = time::timeout(Duration::from_millis(500), evacuation.step()).await;
        assert!(cut.is_err(), "{cut:?}");
        drop(evacuation);
        let written = time::timeout(Duration::from_secs(60), write(&db, 1, 1)).await;
        assert_eq!(written, Ok(Ok(())));
        remove(&pool, "/a").await.unwrap();
        pool.close().await.unwrap();
        assert_eq!(stamps(&db, 2).await, [1, 1]);
    });
    sim.block_on(async { done.await.unwrap() });
}

/// Disks after all events of the trace.
fn take(trace: &SharedTrace) -> crate::common::Trace {
    std::mem::take(&mut *trace.lock())
}

async fn check(pool: &Pool, context: &str) {
    let found = stamps(&pool.open_volume("db").unwrap(), BLOCKS).await;
    assert!(found.iter().all(|stamp| *stamp == 1), "{context}: {found:?}");
}

#[test]
fn crash_at_any_event_of_growth_keeps_the_pool() {
    block_on(async {
        let images = vec![Image::default(); 2];
        let (mut devices, trace) = disks(images, size_of(64), 0);
        let new = devices.pop().unwrap();
        let pool = Pool::create(devices, &options()).await.unwrap();
        let db = pool.create_volume("db", &thin(BLOCKS)).await.unwrap();
        for block in 0..BLOCKS {
            write(&db, block, 1).await.unwrap();
        }
        db.flush().await.unwrap();
        let from = trace.lock().now();
        pool.grow(new, false).await.unwrap();
        let grown = trace.lock().now();
        pool.checkpoint().await.unwrap();
        drop((pool, db));
        let trace = take(&trace);
        let (mut with, mut without) = (0, 0);
        for seed in 0..4 {
            trace
                .at_each_event(
                    |time| time >= from,
                    &mut Rng::new(seed),
                    async |time, images| {
                        let context = format!("crash after event {time}");
                        let (mut devices, _) = disks(images, size_of(64), 0);
                        let pool = match Pool::open(devices.clone()).await {
                            Ok(pool) => {
                                with += 1;
                                pool
                            }
                            // Continue like the server: without the device, which did not become
                            // part of the pool.
                            Err(error) => {
                                assert!(time < grown, "{context}: {error}");
                                assert!(
                                    error.to_string().contains("/dev/disk1"),
                                    "{context}: {error}"
                                );
                                without += 1;
                                devices.pop();
                                Pool::open(devices).await.unwrap_or_else(|error| {
                                    panic!("{context}: {error}");
                                })
                            }
                        };
                        check(&pool, &context).await;
                    },
                )
                .await;
        }
        println!("{with} crashes with the new device, {without} without it");
        assert!(with > 10 && without > 4);
    })
    .unwrap();
}

#[test]
fn crash_at_any_event_of_closed_growth_keeps_the_pool() {
    for has_log in [false, true] {
        block_on(crash_closed_growth(has_log)).unwrap();
    }
}

async fn crash_closed_growth(has_log: bool) {
    let roles = |mut disks: Vec<NamedDevice>| {
        let (new, log) = (disks.pop().unwrap(), disks.pop().unwrap());
        let log = has_log.then_some(log);
        (disks, OpenOptions { log, ..OpenOptions::default() }, new)
    };
    let (devices, trace) = disks(vec![Image::default(); 3], size_of(64), 0);
    let (table, opening, new) = roles(devices);
    let log = opening.log.clone();
    let pool = Pool::create_with_log(table.clone(), log, &options()).await.unwrap();
    let db = pool.create_volume("db", &thin(BLOCKS)).await.unwrap();
    for block in 0..BLOCKS {
        write(&db, block, 1).await.unwrap();
    }
    db.flush().await.unwrap();
    // The log must be replayed, and a log device has a part of it.
    drop((pool, db));
    for _ in 0..100 {
        flagstone_runtime::task::yield_now().await;
    }
    let from = trace.lock().now();
    Pool::grow_closed(&table, &opening, new.clone(), false).await.unwrap();
    let grown = trace.lock().now();
    drop((table, new, opening));
    let trace = take(&trace);
    let (mut with, mut without) = (0, 0);
    for seed in 0..4 {
        let crash = async |time: usize, images| {
            let context = format!("crash after event {time}, log device: {has_log}");
            let (devices, _) = disks(images, size_of(64), 0);
            let (mut table, opening, new) = roles(devices);
            let all = [table.clone(), vec![new.clone()]].concat();
            let pool = match Pool::open_with(all.clone(), &opening).await {
                Ok(pool) => {
                    with += 1;
                    pool
                }
                Err(error) => {
                    assert!(time < grown, "{context}: {error}");
                    assert!(error.to_string().contains("/dev/disk2"), "{context}: {error}");
                    without += 1;
                    // Repeat the order.
                    let grown = Pool::grow_closed(&table, &opening, new.clone(), true).await;
                    grown.unwrap_or_else(|error| panic!("{context}: {error}"));
                    table.push(new);
                    let opened = Pool::open_with(table, &opening).await;
                    opened.unwrap_or_else(|error| panic!("{context}: {error}"))
                }
            };
            assert_eq!(pool.status().devices.len(), 2, "{context}");
            check(&pool, &context).await;
        };
        trace.at_each_event(|time| time >= from, &mut Rng::new(seed), crash).await;
    }
    println!("{with} crashes with the new device, {without} without it");
    assert!(with > 4 && without > 4, "{with} {without}");
}

#[test]
fn crash_at_any_event_of_removal_keeps_the_pool() {
    let sim = Simulation::new(9, SimConfig::default());
    let node = sim.add_node("server");
    let done = sim.spawn_on(node, async {
        let (devices, trace) = disks(vec![Image::default(); 3], size_of(40), 100);
        let pool = Pool::create(devices, &options()).await.unwrap();
        let db = pool.create_volume("db", &thin(1000)).await.unwrap();
        for block in 0..BLOCKS {
            write(&db, block, 1).await.unwrap();
            if block == 100 {
                pool.create_snapshot(&["db"], "a").await.unwrap();
            }
        }
        db.flush().await.unwrap();
        let from = trace.lock().now();
        let writer = db.clone();
        let task = spawn(async move {
            for step in 0..150 {
                write(&writer, BLOCKS + step % 50, 2 + step).await.unwrap();
            }
        });
        remove(&pool, "/dev/disk1").await.unwrap();
        task.await.unwrap();
        let removed = trace.lock().now();
        pool.close().await.unwrap();
        drop((pool, db));
        let mut crashes = 0;
        let trace = take(&trace);
        trace
            .at_each_event(
                |time| time >= from,
                &mut Rng::new(3),
                async |time, images| {
                    crashes += 1;
                    let context = format!("crash after event {time}");
                    let (mut devices, _) = disks(images, size_of(40), 0);
                    if time > removed {
                        devices.remove(1);
                    }
                    let pool = Pool::open(devices).await;
                    let pool = pool.unwrap_or_else(|error| panic!("{context}: {error}"));
                    check(&pool, &context).await;
                },
            )
            .await;
        println!("{crashes} crashes");
        assert!(crashes > 200, "{crashes}");
    });
    sim.block_on(async { done.await.unwrap() });
}

#[test]
fn unexpected_pool_is_refused_before_writes() {
    block_on(async {
        let content = async |named: &NamedDevice| {
            let read = named.device.read(0, buf::alloc(size_of(64) as usize).await).await;
            read.unwrap().to_vec()
        };
        let copy = async |named: &NamedDevice| {
            let copy = memory(&named.name, 64);
            let bytes = Buf::copy_of(&content(named).await).unwrap();
            copy.device.write(0, bytes, false).await.unwrap();
            copy
        };
        let (device, foreign) = (memory("/a", 64), memory("/b", 64));
        let other = Pool::create(vec![foreign.clone()], &options()).await.unwrap();
        other.close().await.unwrap();
        drop(other);
        let pool = Pool::create(vec![device.clone()], &options()).await.unwrap();
        pool.close().await.unwrap();
        let old = copy(&device).await;
        let first = pool.identity();
        drop(pool);
        let open = async |named: &NamedDevice, name: &str, identity| {
            let expected = ExpectedPool { name: Some(name.to_owned()), identity };
            let options = OpenOptions { expected, ..OpenOptions::default() };
            Pool::open_with(vec![named.clone()], &options).await
        };
        let pool = open(&device, "fast", Some(first)).await.unwrap();
        let second = pool.identity();
        assert!(second.id == first.id && second.update > first.update, "{first:?} {second:?}");
        // Crash: the identity recorded at the opening is still valid.
        drop(pool);
        let examined = Pool::examine(std::slice::from_ref(&device)).await.unwrap();
        assert_eq!(examined.identity, second);
        let before = [content(&old).await, content(&foreign).await];
        let refused = open(&old, "fast", Some(second)).await.unwrap_err();
        assert!(matches!(refused, PoolError::OldCopy { .. }), "{refused}");
        assert!(refused.to_string().starts_with("/a: pool fast has update"), "{refused}");
        let refused = open(&foreign, "fast", Some(second)).await.unwrap_err();
        assert!(matches!(refused, PoolError::Unexpected { .. }), "{refused}");
        let refused = open(&old, "slow", None).await.unwrap_err();
        assert_eq!(refused.to_string(), "/a hold pool fast, not slow");
        assert!(before == [content(&old).await, content(&foreign).await], "nothing was written");
        open(&device, "fast", Some(second)).await.unwrap();
    })
    .unwrap();
}

/// A pool whose devices were replaced 15 times could get no further one, also when it was closed
/// because it was full.
#[test]
fn device_gets_the_place_of_a_removed_one() {
    block_on(async {
        let mut devices = vec![memory("/0", 64)];
        let pool = Pool::create(devices.clone(), &options()).await.unwrap();
        let db = pool.create_volume("db", &thin(BLOCKS)).await.unwrap();
        for block in 0..BLOCKS {
            write(&db, block, 1).await.unwrap();
        }
        for number in 1..20 {
            let new = memory(&format!("/{number}"), 64 + number);
            pool.grow(new.clone(), false).await.unwrap_or_else(|error| panic!("{number}: {error}"));
            let old = std::mem::replace(&mut devices, vec![new]).remove(0);
            let removed = remove(&pool, &old.name).await.unwrap();
            release(&old, removed).await.unwrap();
        }
        assert_eq!(pool.status().devices, ["/19"]);
        let small = pool.grow(memory("/small", 63), false).await.unwrap_err();
        assert_eq!(small, DeviceOrderError::TooMany);
        check(&pool, "before the reopening").await;
        pool.close().await.unwrap();
        drop((pool, db));
        assert_eq!(damages(devices.clone()).await, [""; 0]);
        let pool = Pool::open(devices.clone()).await.unwrap();
        check(&pool, "after the reopening").await;
        for number in 20..25 {
            let new = memory(&format!("/{number}"), 84);
            pool.grow(new.clone(), false).await.unwrap();
            devices.push(new);
        }
        write(&pool.open_volume("db").unwrap(), 0, 1).await.unwrap();
        pool.close().await.unwrap();
        drop(pool);
        let pool = Pool::open(devices).await.unwrap();
        check(&pool, "after the growth").await;
    })
    .unwrap();
}
