//! Evacuation of a device, by fullness of the others: an accepted evacuation always completes.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::{
    BlockDevice, DelayConfig, DelayLayer, DelayTime, IoError, MemoryDevice, SharedDevice,
};
use flagstone_pool::manage::devices::DeviceOrderError;
use flagstone_pool::{
    COMPRESSION_PROPERTY, CreateOptions, NamedDevice, Pool, PoolVolume, VolumeOptions,
};
use flagstone_runtime::rng::Rng;
use flagstone_runtime::sim::{SimConfig, Simulation};
use flagstone_runtime::{Buf, block_on, buf, spawn};

const BLOCK: u64 = 4096;

fn memory(name: &str, segments: u64) -> NamedDevice {
    memory_of(name, segments * 16)
}

fn memory_of(name: &str, blocks: u64) -> NamedDevice {
    let device = MemoryDevice::new((1 << 20) + blocks * BLOCK, 512).unwrap();
    NamedDevice { name: name.to_owned(), device: Arc::new(device) }
}

async fn write(volume: &PoolVolume, block: u64) -> Result<(), IoError> {
    let data: Vec<u8> = (0..512).flat_map(|_| block.to_le_bytes()).collect();
    volume.write(block * BLOCK, Buf::copy_of(&data).unwrap(), false).await
}

/// Result of the removal of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Removed,
    /// Refused before anything was moved.
    Refused,
    Stuck {
        left_blocks: u64,
        free_segments: u64,
    },
}

/// Fills a pool of two devices to a percentage of the capacity of the first, and removes the
/// second.
async fn remove(kept: u64, removed: u64, percent: u64, rng: &mut Rng) -> Outcome {
    let devices = vec![memory("/a", kept), memory("/b", removed)];
    let options = CreateOptions { segment_blocks: 16, ..CreateOptions::new("fast") };
    let pool = Pool::create(devices, &options).await.unwrap();
    let size = VolumeOptions { size_bytes: 100_000 * BLOCK, ..VolumeOptions::default() };
    let db = pool.create_volume("db", &size).await.unwrap();
    let probe = pool.evacuate("/b").await.unwrap();
    let capacity = pool.status().capacity_bytes;
    drop(probe);
    let mut blocks = 0;
    while pool.status().used_bytes * 100 < capacity * percent {
        write(&db, blocks).await.unwrap();
        blocks += 1;
        if blocks % 32 == 0 {
            pool.checkpoint().await.unwrap();
        }
    }
    for _ in 0..blocks {
        write(&db, rng.below(blocks)).await.unwrap();
    }
    let evacuation = match pool.evacuate("/b").await {
        Ok(evacuation) => evacuation,
        Err(DeviceOrderError::NoRoom { .. }) => return Outcome::Refused,
        Err(error) => panic!("{error}"),
    };
    let outcome = loop {
        match evacuation.step().await {
            Ok(true) => break Outcome::Removed,
            Ok(false) => {}
            Err(DeviceOrderError::NoRoom { .. }) => {
                let free_segments = pool.status().free_segment_bytes / 16 / BLOCK;
                let left_blocks = evacuation.left_bytes() / BLOCK;
                break Outcome::Stuck { left_blocks, free_segments };
            }
            Err(error) => panic!("{error}"),
        }
    };
    if outcome == Outcome::Removed {
        evacuation.complete().await.unwrap();
    }
    for block in 0..blocks {
        let read = db.read(block * BLOCK, buf::alloc(4096).await).await.unwrap();
        assert_eq!(u64::from_le_bytes(read[..8].try_into().unwrap()), block);
    }
    outcome
}

#[test]
fn accepted_removal_ends_at_any_fullness() {
    block_on(async {
        for (kept, removed) in [(32, 32), (40, 40), (64, 32), (64, 64), (99, 40), (100, 40)] {
            for percent in [60, 70, 80, 90, 97] {
                for seed in 0..3 {
                    let outcome = remove(kept, removed, percent, &mut Rng::new(seed)).await;
                    println!("{kept} segments {percent} % full, without {removed}: {outcome:?}");
                    let expected = match percent > 75 && kept < 100 {
                        true => Outcome::Refused,
                        false => Outcome::Removed,
                    };
                    assert_eq!(outcome, expected, "{kept} {removed} {percent} {seed}");
                }
            }
        }
    })
    .unwrap();
}

/// A removal used the free segments that backed reservations.
#[test]
fn removal_leaves_free_segments_for_reservations() {
    let (mut removed, mut refused) = (0, 0);
    for (kept, percent) in [(100, 50), (100, 90), (128, 97)] {
        block_on(async {
            let devices = vec![memory("/a", kept), memory("/b", 60)];
            let options = CreateOptions { segment_blocks: 16, ..CreateOptions::new("fast") };
            let pool = Pool::create(devices, &options).await.unwrap();
            let probe = pool.evacuate("/b").await.unwrap();
            let capacity = pool.status().capacity_bytes;
            drop(probe);
            let size =
                |size_bytes, thick| VolumeOptions { size_bytes, thick, ..VolumeOptions::default() };
            let reserved = capacity / 2 / BLOCK;
            let thick = pool.create_volume("thick", &size(reserved * BLOCK, true)).await.unwrap();
            let thin = pool.create_volume("thin", &size(BLOCK << 20, false)).await.unwrap();
            let mut rng = Rng::new(kept);
            let mut blocks = 0;
            let used = || pool.status().used_bytes + pool.status().reserved_bytes;
            while used() * 100 < capacity * percent {
                write(&thin, blocks).await.unwrap();
                blocks += 1;
                if blocks % 32 == 0 {
                    pool.checkpoint().await.unwrap();
                }
            }
            for _ in 0..blocks {
                write(&thin, rng.below(blocks)).await.unwrap();
            }
            let evacuation = pool.evacuate("/b").await.unwrap();
            let done = loop {
                match evacuation.step().await {
                    Ok(true) => break Ok(()),
                    Ok(false) => {}
                    Err(error) => break Err(error),
                }
            };
            println!("{kept} segments {percent} % full: {done:?}, {:?}", pool.status());
            match done {
                Ok(()) => {
                    // A segment of 16 blocks has 14 of data.
                    let room = pool.status().free_segment_bytes / 16 * 14;
                    assert!(room > reserved * BLOCK, "{kept} {percent}: {:?}", pool.status());
                    evacuation.complete().await.unwrap();
                    removed += 1;
                }
                Err(DeviceOrderError::Unbacked { needed_bytes, left_bytes, .. }) => {
                    assert_eq!(needed_bytes, reserved * BLOCK);
                    assert!(left_bytes < needed_bytes);
                    drop(evacuation);
                    refused += 1;
                }
                Err(error) => panic!("{error}"),
            }
            while write(&thin, blocks).await.is_ok() {
                blocks += 1;
            }
            for block in 0..reserved {
                write(&thick, block).await.unwrap();
            }
        })
        .unwrap();
    }
    assert!(removed > 0, "{removed} {refused}");
}

/// Blocks that shrink together though not alone, then zeroes up to 8 blocks.
fn unit_of(first: u64, blocks: u64, rng: &mut Rng) -> Vec<u8> {
    let block: Vec<u8> = (0..512).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
    let mut data = block.repeat(blocks as usize);
    data.chunks_mut(BLOCK as usize)
        .zip(first..)
        .for_each(|(block, number)| block[..8].copy_from_slice(&number.to_le_bytes()));
    data.resize(8 * BLOCK as usize, 0);
    data
}

#[test]
fn device_of_compressed_units_is_removed() {
    block_on(async {
        for (unit, dead) in [(8, 0), (7, 0), (5, 0), (3, 0), (8, 4), (7, 5)] {
            let devices = vec![memory_of("/a", 128 * 64), memory_of("/b", 128 * 64)];
            let options = CreateOptions { segment_blocks: 128, ..CreateOptions::new("fast") };
            let pool = Pool::create(devices, &options).await.unwrap();
            let properties = BTreeMap::from([(COMPRESSION_PROPERTY.to_owned(), "lz4".to_owned())]);
            let size_bytes = 100_000 * BLOCK;
            let db = VolumeOptions { size_bytes, properties, ..VolumeOptions::default() };
            let db = pool.create_volume("db", &db).await.unwrap();
            let mut rng = Rng::new(unit);
            // Units of two stored blocks take most of what the first device has.
            let firsts: Vec<u64> = (0..1200).map(|number| number * 8).collect();
            // The last of several rounds reaches the second device.
            for firsts in std::iter::repeat_n(&firsts, 4).flat_map(|firsts| firsts.chunks(50)) {
                let data: Vec<u8> =
                    firsts.iter().flat_map(|first| unit_of(*first, unit, &mut rng)).collect();
                let data = Buf::copy_of(&data).unwrap();
                db.write(firsts[0] * BLOCK, data, false).await.unwrap();
                for first in firsts.iter().filter(|_| dead > 0) {
                    db.discard(first * BLOCK, dead * BLOCK).await.unwrap();
                }
            }
            pool.checkpoint().await.unwrap();
            let evacuation = pool.evacuate("/b").await.unwrap();
            assert!(evacuation.left_bytes() > 0);
            let mut steps = 0;
            while !evacuation.step().await.unwrap() {
                steps += 1;
                assert!(steps < 1000, "{unit} {dead}: {}", evacuation.left_bytes());
            }
            evacuation.complete().await.unwrap();
            for first in firsts {
                for block in first + dead..first + unit {
                    let read = db.read(block * BLOCK, buf::alloc(4096).await).await.unwrap();
                    assert_eq!(u64::from_le_bytes(read[..8].try_into().unwrap()), block);
                }
            }
        }
    })
    .unwrap();
}

/// A device whose writes take random times.
fn slow(name: &str, segments: u64) -> NamedDevice {
    let NamedDevice { name, device } = memory(name, segments);
    let write = DelayTime { jitter: Duration::from_micros(50), ..DelayTime::default() };
    let config = DelayConfig { write, ..DelayConfig::default() };
    NamedDevice { name, device: Arc::new(DelayLayer::new(device, config).unwrap()) as SharedDevice }
}

/// Result of an evacuation with writes of hosts.
#[derive(Debug, Default)]
struct Busy {
    writes: u64,
    refused: u64,
    steps: u64,
}

/// Removes the second of two devices, while hosts overwrite what fills the first to a percentage.
async fn busy_removal(seed: u64, percent: u64, reserved: u64) -> Busy {
    let devices = vec![slow("/a", 100), slow("/b", 60)];
    let options = CreateOptions { segment_blocks: 16, ..CreateOptions::new("fast") };
    let pool = Pool::create(devices, &options).await.unwrap();
    let size = |blocks, thick| VolumeOptions {
        size_bytes: blocks * BLOCK,
        thick,
        ..VolumeOptions::default()
    };
    let probe = pool.evacuate("/b").await.unwrap();
    let capacity = pool.status().capacity_bytes / BLOCK;
    drop(probe);
    let thick = pool.create_volume("thick", &size(reserved.max(1), reserved > 0)).await.unwrap();
    let thin = pool.create_volume("thin", &size(1 << 20, false)).await.unwrap();
    let blocks = capacity * percent / 100 - reserved;
    for block in 0..blocks {
        write(&thin, block).await.unwrap();
    }
    let mut rng = Rng::new(seed);
    for _ in 0..blocks {
        write(&thin, rng.below(blocks)).await.unwrap();
    }
    let evacuation = pool.evacuate("/b").await.unwrap();
    let (is_over, counts) = (Rc::new(Cell::new(false)), Rc::new(Cell::new((0, 0))));
    let mut hosts = Vec::new();
    for (volume, blocks) in [(&thin, blocks), (&thin, blocks), (&thick, reserved)] {
        let (volume, mut rng) = (volume.clone(), Rng::new(rng.next_u64()));
        let (is_over, counts) = (is_over.clone(), counts.clone());
        hosts.push(spawn(async move {
            while !is_over.get() && blocks > 0 {
                let written = write(&volume, rng.below(blocks)).await;
                let (writes, refused) = counts.get();
                counts.set((writes + 1, refused + u64::from(written.is_err())));
            }
        }));
    }
    let mut steps = 0;
    while !evacuation.step().await.unwrap() {
        steps += 1;
    }
    is_over.set(true);
    for host in hosts {
        host.await.unwrap();
    }
    evacuation.complete().await.unwrap();
    for block in 0..blocks {
        let read = thin.read(block * BLOCK, buf::alloc(4096).await).await.unwrap();
        assert_eq!(u64::from_le_bytes(read[..8].try_into().unwrap()), block);
    }
    let (writes, refused) = counts.get();
    Busy { writes, refused, steps }
}

/// The cleaner only moved what was on the device: writes of hosts waited until the end, or failed
/// for lack of space.
#[test]
fn hosts_write_during_an_evacuation() {
    let busy = [(1, 50, 0), (2, 80, 0), (3, 92, 0), (4, 80, 200)];
    // Regression: hosts took each freed segment before the evacuation saw that the reservations
    // were backed.
    let busiest = [(10, 92, 200), (11, 92, 200), (12, 92, 300), (13, 92, 500)];
    for (seed, percent, reserved) in busy.into_iter().chain(busiest) {
        let sim = Simulation::new(seed, SimConfig::default());
        let node = sim.add_node("server");
        let done = sim.spawn_on(node, busy_removal(seed, percent, reserved));
        let busy = sim.block_on(async { done.await.unwrap() });
        println!("{percent} % full, {reserved} blocks reserved: {busy:?}");
        assert!(busy.refused == 0 && busy.writes > busy.steps, "{percent} {reserved}: {busy:?}");
    }
}

/// Segments of the other device that cannot be cleaned leave too few free ones.
#[test]
fn removal_that_reservations_keep_from_ending_is_refused() {
    block_on(async {
        let device = Arc::new(MemoryDevice::new((1 << 20) + 100 * 16 * BLOCK, 512).unwrap());
        let first = NamedDevice { name: "/a".to_owned(), device: device.clone() };
        let options = CreateOptions { segment_blocks: 16, ..CreateOptions::new("fast") };
        let pool = Pool::create(vec![first, memory("/b", 100)], &options).await.unwrap();
        let size =
            |size_bytes, thick| VolumeOptions { size_bytes, thick, ..VolumeOptions::default() };
        let thick = pool.create_volume("thick", &size(200 * BLOCK, true)).await.unwrap();
        let thin = pool.create_volume("thin", &size(BLOCK << 20, false)).await.unwrap();
        let mut rng = Rng::new(1);
        for block in 0..600 {
            write(&thin, block).await.unwrap();
        }
        // Each write is a chunk of its own, so this fills the segments of the device.
        for _ in 0..250 {
            write(&thin, rng.below(600)).await.unwrap();
        }
        pool.checkpoint().await.unwrap();
        // The first header of each segment is damaged: the cleaner finds no block in it.
        let damage = Buf::copy_of(&[9; BLOCK as usize]).unwrap();
        for segment in 0..100 {
            let at = (1 << 20) + segment * 16 * BLOCK;
            device.write(at, damage.clone(), false).await.unwrap();
        }
        let evacuation = pool.evacuate("/b").await.unwrap();
        let refused = loop {
            match evacuation.step().await {
                Ok(done) => assert!(!done, "{:?}", pool.status()),
                Err(error) => break error,
            }
        };
        let DeviceOrderError::Unbacked { device, needed_bytes, left_bytes } = refused else {
            panic!("{refused}");
        };
        assert_eq!((device.as_str(), needed_bytes), ("/b", 200 * BLOCK));
        assert!(left_bytes < needed_bytes, "{left_bytes}");
        drop(evacuation);
        for block in 0..200 {
            write(&thick, block).await.unwrap();
        }
    })
    .unwrap();
}
