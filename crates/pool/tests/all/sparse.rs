//! Sparse writes to a full pool: each changes a page on every level of the map, so a checkpoint
//! writes many times as much as the hosts.

use std::collections::BTreeMap;
use std::sync::Arc;

use flagstone_blockdev::{BlockDevice, IoError, MemoryDevice, SharedDevice};
use flagstone_pool::{CreateOptions, NamedDevice, Pool, PoolVolume, VolumeOptions};
use flagstone_runtime::rng::Rng;
use flagstone_runtime::{Buf, block_on, buf};

const BLOCK: u64 = 4096;
/// Size with six levels of map pages.
const VOLUME_BLOCKS: u64 = 1 << 40;

fn data(stamp: u64) -> Buf {
    let data: Vec<u8> = (0..512_u64).flat_map(|word| (stamp << 9 | word).to_le_bytes()).collect();
    Buf::copy_of(&data).unwrap()
}

async fn check(volumes: &[Arc<PoolVolume>], model: &BTreeMap<(usize, u64), u64>) {
    for ((volume, block), stamp) in model {
        let read = volumes[*volume].read(block * BLOCK, buf::alloc(4096).await).await.unwrap();
        assert!(read[..] == data(*stamp)[..], "block {block} of volume {volume}");
    }
}

fn fill(segment_blocks: u32, segments: u64, volumes: usize) {
    block_on(async {
        let size_bytes = (1 << 20) + segments * u64::from(segment_blocks) * BLOCK;
        let device = Arc::new(MemoryDevice::new(size_bytes, 512).unwrap()) as SharedDevice;
        let devices = vec![NamedDevice { name: "memory".to_owned(), device }];
        let options = CreateOptions { segment_blocks, ..CreateOptions::new("fast") };
        let pool = Pool::create(devices.clone(), &options).await.unwrap();
        let size = VolumeOptions { size_bytes: VOLUME_BLOCKS * BLOCK, ..VolumeOptions::default() };
        let mut open = Vec::new();
        for volume in 0..volumes {
            open.push(pool.create_volume(&format!("v{volume}"), &size).await.unwrap());
        }
        let mut rng = Rng::new(7);
        let mut model = BTreeMap::new();
        let mut refused = 0;
        for stamp in 1..20_000 {
            let mut place = (rng.below(volumes as u64) as usize, rng.below(VOLUME_BLOCKS));
            // Overwrites of a full pool.
            if refused > 0 && rng.chance(0.8) {
                place = *model.keys().nth(rng.below(model.len() as u64) as usize).unwrap();
            }
            match open[place.0].write(place.1 * BLOCK, data(stamp), false).await {
                Ok(()) => drop(model.insert(place, stamp)),
                Err(error) => {
                    assert_eq!(error, IoError::NoSpace, "write {stamp}, {:?}", pool.status());
                    refused += 1;
                }
            }
            if refused == 200 {
                break;
            }
        }
        assert_eq!((refused, pool.status().failed), (200, None));
        let bytes = pool.status().used_bytes;
        assert!(bytes * 10 > pool.status().capacity_bytes * 7, "{:?}", pool.status());
        check(&open, &model).await;
        drop((open, pool));
        let pool = Pool::open(devices).await.unwrap();
        let mut open = Vec::new();
        for volume in 0..volumes {
            open.push(pool.open_volume(&format!("v{volume}")).unwrap());
        }
        check(&open, &model).await;
        // Deletion always works, and gives the space back.
        for volume in 1..volumes {
            pool.delete_volume(&format!("v{volume}")).await.unwrap();
        }
        while pool.status().used_bytes > bytes / 2 {
            pool.checkpoint().await.unwrap();
        }
        open[0].write(0, data(1), false).await.unwrap();
    })
    .unwrap();
}

#[test]
fn sparse_writes_fill_a_pool_of_small_segments() {
    fill(16, 300, 12);
}

#[test]
fn sparse_writes_fill_a_pool_of_large_segments() {
    fill(256, 100, 5);
}
