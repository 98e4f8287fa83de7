//! Full pools: new writes fail, everything else works, and what is freed can be used again.

use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::{
    BlockDevice, DelayConfig, DelayLayer, DelayTime, IoError, MemoryDevice, SharedDevice,
};
use flagstone_pool::{CreateOptions, NamedDevice, Pool, PoolVolume, VolumeError, VolumeOptions};
use flagstone_runtime::rng::Rng;
use flagstone_runtime::sim::{SimConfig, Simulation};
use flagstone_runtime::{Buf, block_on, buf, random_u64, spawn};

const BLOCK: u64 = 4096;

fn memory(size_bytes: u64) -> Vec<NamedDevice> {
    let device = Arc::new(MemoryDevice::new(size_bytes, 512).unwrap()) as SharedDevice;
    vec![NamedDevice { name: "memory".to_owned(), device }]
}

async fn create(segment_blocks: u32, segments: u64) -> (Vec<NamedDevice>, Pool) {
    let devices = memory((1 << 20) + segments * u64::from(segment_blocks) * BLOCK);
    let options = CreateOptions { segment_blocks, ..CreateOptions::new("fast") };
    let pool = Pool::create(devices.clone(), &options).await.unwrap();
    (devices, pool)
}

fn thin(blocks: u64) -> VolumeOptions {
    VolumeOptions { size_bytes: blocks * BLOCK, ..VolumeOptions::default() }
}

async fn write(device: &PoolVolume, block: u64, stamp: u64) -> Result<(), IoError> {
    let data: Vec<u8> = (0..512_u64).flat_map(|word| (stamp << 9 | word).to_le_bytes()).collect();
    device.write(block * BLOCK, Buf::copy_of(&data).unwrap(), false).await
}

async fn stamp(device: &PoolVolume, block: u64) -> u64 {
    let read = device.read(block * BLOCK, buf::alloc(4096).await).await.unwrap();
    u64::from_le_bytes(read[8..16].try_into().unwrap()) >> 9
}

/// Writes blocks in order until the pool is full; returns how many fit.
async fn fill(device: &PoolVolume) -> u64 {
    for block in 0.. {
        match write(device, block, block + 1).await {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error, IoError::NoSpace);
                return block;
            }
        }
    }
    unreachable!("the volume is larger than the pool")
}

#[test]
fn full_pool_fails_new_writes_and_nothing_else() {
    for (segment_blocks, segments) in [(16, 200), (64, 100)] {
        block_on(async {
            let (devices, pool) = create(segment_blocks, segments).await;
            let big = pool.create_volume("big", &thin(1 << 20)).await.unwrap();
            let other = pool.create_volume("other", &thin(1 << 20)).await.unwrap();
            for block in 0..100 {
                write(&other, block, 7).await.unwrap();
            }
            let fits = fill(&big).await;
            let all = segments * u64::from(segment_blocks);
            assert!(fits > all / 2, "{fits} of {all} blocks fit");
            assert_eq!(write(&other, 200, 8).await, Err(IoError::NoSpace));
            for block in 0..fits {
                assert_eq!(stamp(&big, block).await, block + 1);
            }
            pool.create_volume("another", &thin(10)).await.unwrap();
            pool.resize_volume("other", (2 << 20) * BLOCK).await.unwrap();
            big.discard(0, fits / 4 * BLOCK).await.unwrap();
            for block in 0..fits / 8 {
                write(&other, 1000 + block, 9).await.unwrap();
            }
            fill(&other).await;
            pool.delete_volume("big").await.unwrap();
            assert_eq!(write(&big, 0, 1).await, Err(IoError::Unreachable));
            let again = pool.create_volume("big", &thin(1 << 20)).await.unwrap();
            for block in 0..fits / 2 {
                write(&again, block, block + 1).await.unwrap();
            }
            drop((big, other, again, pool));
            let pool = Pool::open(devices).await.unwrap();
            let again = pool.open_volume("big").unwrap();
            for block in 0..fits / 2 {
                assert_eq!(stamp(&again, block).await, block + 1);
            }
        })
        .unwrap();
    }
}

#[test]
fn random_overwrites_continue_while_cleaning() {
    overwrite_randomly(32, 120, 2000, 6000);
    // Chunks of these segments have more blocks than records of copies fit a header.
    overwrite_randomly(1024, 40, 20_000, 22_000);
}

fn overwrite_randomly(segment_blocks: u32, segments: u64, blocks: u64, steps: u64) {
    block_on(async {
        let (devices, pool) = create(segment_blocks, segments).await;
        let device = pool.create_volume("db", &thin(blocks)).await.unwrap();
        let mut rng = Rng::new(1);
        let mut model = vec![0; blocks as usize];
        for step in 1..=steps {
            let block = rng.below(blocks);
            write(&device, block, step).await.unwrap();
            model[block as usize] = step;
        }
        assert!(pool.status().copied_blocks > 100, "{:?}", pool.status());
        pool.close().await.unwrap();
        drop((device, pool));
        for round in 0..2 {
            let pool = Pool::open(devices.clone()).await.unwrap();
            let device = pool.open_volume("db").unwrap();
            for (expected, block) in model.iter().zip(0..) {
                assert_eq!(stamp(&device, block).await, *expected);
            }
            for step in 0..steps / 8 {
                let block = rng.below(blocks);
                let value = (round + 2) * 100_000 + step;
                write(&device, block, value).await.unwrap();
                model[block as usize] = value;
            }
            let volume = &pool.volumes()[0];
            assert!(volume.used_bytes <= blocks * BLOCK);
        }
    })
    .unwrap();
}

#[test]
fn thick_volume_has_its_space() {
    block_on(async {
        let (_, pool) = create(64, 100).await;
        let capacity = pool.status().capacity_bytes;
        let thick = VolumeOptions { thick: true, ..thin(capacity / BLOCK / 2) };
        let reserved = pool.create_volume("reserved", &thick).await.unwrap();
        let refused = pool.create_volume("more", &thick).await;
        assert!(matches!(refused, Err(VolumeError::NoSpace { .. })), "{:?}", refused.err());
        let other = pool.create_volume("thin", &thin(1 << 20)).await.unwrap();
        let fits = fill(&other).await;
        assert!(fits < capacity / BLOCK / 2);
        for block in 0..capacity / BLOCK / 2 {
            write(&reserved, block, block + 1).await.unwrap();
        }
        for block in 0..capacity / BLOCK / 2 {
            assert_eq!(stamp(&reserved, block).await, block + 1);
        }
        assert_eq!(fill(&other).await, 0);
    })
    .unwrap();
}

/// The checkpoint freed a part of a deleted volume, and recorded a root of another level than its
/// size asks for.
#[test]
fn volume_deleted_after_growth_is_reaped_across_openings() {
    block_on(async {
        let (devices, pool) = create(64, 700).await;
        let level_3 = 252 * 252 * 252;
        let volume = pool.create_volume("big", &thin(level_3)).await.unwrap();
        for leaf in 0..8300 {
            write(&volume, leaf * 252, leaf + 1).await.unwrap();
        }
        pool.checkpoint().await.unwrap();
        pool.resize_volume("big", (level_3 + 1) * BLOCK).await.unwrap();
        pool.delete_volume("big").await.unwrap();
        drop((volume, pool));
        let pool = Pool::open(devices.clone()).await.unwrap();
        assert!(pool.status().used_bytes > 1000 * BLOCK, "a part is left: {:?}", pool.status());
        drop(pool);
        let pool = Pool::open(devices).await.unwrap();
        while pool.status().used_bytes > 100 * BLOCK {
            pool.checkpoint().await.unwrap();
        }
    })
    .unwrap();
}

/// An opening counts the metadata that the last checkpoint refers to.
#[test]
fn no_block_of_an_earlier_checkpoint_stays_in_use() {
    block_on(async {
        let (devices, pool) = create(64, 100).await;
        let device = pool.create_volume("db", &thin(10)).await.unwrap();
        write(&device, 5, 1).await.unwrap();
        pool.close().await.unwrap();
        let used_bytes = pool.status().used_bytes;
        drop((device, pool));
        assert_eq!(Pool::open(devices).await.unwrap().status().used_bytes, used_bytes);
    })
    .unwrap();
}

#[test]
fn zeroes_take_no_space() {
    block_on(async {
        let (_, pool) = create(64, 100).await;
        let device = pool.create_volume("db", &thin(1 << 20)).await.unwrap();
        write(&device, 5, 1).await.unwrap();
        for block in 0..1 << 10 {
            let zeroes = buf::zeroes(65536);
            device.write(block * 65536, zeroes, false).await.unwrap();
        }
        pool.checkpoint().await.unwrap();
        assert_eq!(pool.volumes()[0].used_bytes, 0);
        write(&device, 5, 1).await.unwrap();
        pool.checkpoint().await.unwrap();
        assert_eq!(pool.volumes()[0].used_bytes, BLOCK);
        let extents = device.allocated(0, BLOCK << 20).await.unwrap();
        let found: Vec<_> =
            extents.iter().map(|extent| (extent.len / BLOCK, extent.is_hole)).collect();
        assert_eq!(found[..2], [(5, true), (1, false)]);
        assert!(found.len() == 3 && found[2].0 > 60_000 && found[2].1, "{found:?}");
        device.discard(0, BLOCK << 20).await.unwrap();
        let extents = device.allocated(0, BLOCK << 20).await.unwrap();
        assert!(extents.iter().all(|extent| extent.is_hole));
        pool.checkpoint().await.unwrap();
        assert_eq!(pool.volumes()[0].used_bytes, 0);
    })
    .unwrap();
}

async fn zero(db: Arc<PoolVolume>, block: u64) -> Result<(), IoError> {
    for _ in 0..4000 {
        db.write(block * BLOCK, buf::zeroes(4096), false).await?;
    }
    Ok(())
}

/// Repeated writes of zeroes took the segments that a long checkpoint needed: it failed, and so did
/// every opening.
#[test]
fn zeroes_leave_a_long_checkpoint_its_space() {
    let sim = Simulation::new(1, SimConfig::default());
    let node = sim.add_node("server");
    let done = sim.spawn_on(node, async {
        let (devices, pool) = create(16, 400).await;
        let db = pool.create_volume("db", &thin(1 << 22)).await.unwrap();
        let mut leaves = 0;
        while write(&db, leaves * 252, 1).await.is_ok() {
            leaves += 1;
        }
        pool.close().await.unwrap();
        drop((db, pool));
        let (micros, time) = (Duration::from_micros(100), DelayTime::fixed);
        let config =
            DelayConfig { read: time(500 * micros), write: time(micros), ..Default::default() };
        let slow = DelayLayer::new(devices[0].device.clone(), config).unwrap();
        let slow = NamedDevice { name: "slow".to_owned(), device: Arc::new(slow) };
        let pool = Pool::open(vec![slow]).await.unwrap();
        let db = pool.open_volume("db").unwrap();
        for leaf in 0..100 {
            db.discard(leaf * 252 * BLOCK, BLOCK).await.unwrap();
        }
        let merging = pool.clone();
        let checkpoint = spawn(async move { merging.checkpoint().await });
        let writers = [spawn(zero(db.clone(), 1)), spawn(zero(db.clone(), 2))];
        assert_eq!(checkpoint.await.unwrap(), Ok(()));
        for writer in writers {
            assert_eq!(writer.await.unwrap(), Ok(()));
        }
        // As a crash.
        drop((db, pool));
        let pool = Pool::open(devices).await.unwrap();
        let db = pool.open_volume("db").unwrap();
        assert_eq!([stamp(&db, 0).await, stamp(&db, 252 * 100).await], [0, 1]);
        pool.close().await.unwrap();
    });
    sim.block_on(async { done.await.unwrap() });
}

/// Overwrites random blocks of its own, and returns what they hold.
async fn overwrite(device: Arc<PoolVolume>, base: u64, blocks: u64, steps: u64) -> Vec<u64> {
    let mut model = vec![0; blocks as usize];
    for step in 1..=steps {
        let block = random_u64() % blocks;
        write(&device, base + block, base << 20 | step).await.unwrap();
        model[block as usize] = base << 20 | step;
    }
    model
}

#[test]
fn overwrite_during_cleaning_wins_over_the_copy() {
    const WRITERS: u64 = 8;
    const BLOCKS: u64 = 32;
    for seed in 0..4 {
        let sim = Simulation::new(seed, SimConfig::default());
        let node = sim.add_node("server");
        let done = sim.spawn_on(node, async {
            let size_bytes = (1 << 20) + 64 * 16 * BLOCK;
            let (devices, _) =
                crate::common::disks(vec![crate::common::Image::default()], size_bytes, 300);
            let options = CreateOptions { segment_blocks: 16, ..CreateOptions::new("fast") };
            let pool = Pool::create(devices.clone(), &options).await.unwrap();
            let device = pool.create_volume("db", &thin(WRITERS * BLOCKS)).await.unwrap();
            let start = |writer| overwrite(device.clone(), writer * BLOCKS, BLOCKS, 400);
            let tasks: Vec<_> = (0..WRITERS).map(|writer| spawn(start(writer))).collect();
            let mut model = Vec::new();
            for task in tasks {
                model.extend(task.await.unwrap());
            }
            assert!(pool.status().cleaned_segments > 50, "{:?}", pool.status());
            for (expected, block) in model.iter().zip(0..) {
                assert_eq!(stamp(&device, block).await, *expected, "block {block}");
            }
            drop((pool, device));
            let pool = Pool::open(devices).await.unwrap();
            let device = pool.open_volume("db").unwrap();
            for (expected, block) in model.iter().zip(0..) {
                assert_eq!(stamp(&device, block).await, *expected, "block {block}, reopened");
            }
        });
        sim.block_on(async { done.await.unwrap() });
    }
}

/// The cleaner gave up while it still gained space, and started a chunk for each segment.
#[test]
fn single_block_writes_fill_a_pool_to_its_capacity() {
    let sim = Simulation::new(1, SimConfig::default());
    let node = sim.add_node("server");
    let done = sim.spawn_on(node, async {
        let size_bytes = (1 << 20) + 300 * 16 * BLOCK;
        let (devices, _) =
            crate::common::disks(vec![crate::common::Image::default()], size_bytes, 200);
        let options = CreateOptions { segment_blocks: 16, ..CreateOptions::new("fast") };
        let pool = Pool::create(devices, &options).await.unwrap();
        let device = pool.create_volume("db", &thin(1 << 20)).await.unwrap();
        fill(&device).await;
        let status = pool.status();
        assert!(status.used_bytes * 100 > status.capacity_bytes * 95, "{status:?}");
    });
    sim.block_on(async { done.await.unwrap() });
}
