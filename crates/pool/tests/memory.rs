//! Memory limit: this test exhausts the limit of the process, so it has a process of its own.

mod common;

use std::time::Duration;

use common::{Image, disks};
use flagstone_blockdev::BlockDevice;
use flagstone_pool::{CreateOptions, Pool, VolumeOptions};
use flagstone_runtime::rng::Rng;
use flagstone_runtime::sim::{SimConfig, Simulation};
use flagstone_runtime::{Buf, buf, time};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 400;

/// Regression: writers hold their payload while they wait for the cleaner, and the cleaner waited
/// for memory.
#[test]
fn cleaner_works_while_writers_hold_all_memory() {
    let simulation = Simulation::new(1, SimConfig::default());
    let node = simulation.add_node("server");
    let done = simulation.spawn_on(node, async {
        let (devices, _) = disks(vec![Image::default()], (1 << 20) + 120 * 16 * BLOCK, 100);
        let options = CreateOptions { segment_blocks: 16, ..CreateOptions::new("fast") };
        let pool = Pool::create(devices, &options).await.unwrap();
        let size = VolumeOptions { size_bytes: BLOCKS * BLOCK, ..VolumeOptions::default() };
        let volume = pool.create_volume("db", &size).await.unwrap();
        let data = Buf::copy_of(&[7; BLOCK as usize]).unwrap();
        for block in 0..BLOCKS {
            volume.write(block * BLOCK, data.clone(), false).await.unwrap();
        }
        buf::set_memory_limit(64 << 20);
        let mut held = Vec::new();
        for len in [32 << 20, 1 << 20, 65536, 4096] {
            held.extend(std::iter::from_fn(|| buf::try_alloc(len)));
        }
        let mut rng = Rng::new(3);
        for step in 0..2000 {
            let write = volume.write(rng.below(BLOCKS) * BLOCK, data.clone(), false);
            let written = time::timeout(Duration::from_secs(3600), write).await;
            assert_eq!(written, Ok(Ok(())), "step {step}");
        }
        assert!(pool.status().copied_blocks > 0);
        drop(held);
    });
    simulation.block_on(async { done.await.unwrap() });
}
