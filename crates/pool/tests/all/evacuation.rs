//! Evacuation of a device, by fullness of the others: an accepted evacuation always completes.

use std::collections::BTreeMap;
use std::sync::Arc;

use flagstone_blockdev::{BlockDevice, IoError, MemoryDevice};
use flagstone_pool::manage::devices::DeviceOrderError;
use flagstone_pool::{
    COMPRESSION_PROPERTY, CreateOptions, NamedDevice, Pool, PoolVolume, VolumeOptions,
};
use flagstone_runtime::rng::Rng;
use flagstone_runtime::{Buf, block_on, buf};

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
