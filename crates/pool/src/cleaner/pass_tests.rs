//! Tests of a pass: what it reads.

use std::sync::Arc;

use flagstone_blockdev::stats::{CallKind, Counters};
use flagstone_blockdev::{BlockDevice as _, MemoryDevice, StatsLayer};
use flagstone_runtime::{Buf, block_on};

use super::*;
use crate::{COMPRESSION_PROPERTY, Compression, CreateOptions, NamedDevice, Pool, VolumeOptions};

const BLOCK: u64 = BLOCK_BYTES as u64;

async fn create(segment_blocks: u32) -> (Pool, Arc<Counters>) {
    let device = MemoryDevice::new((1 << 20) + 64 * u64::from(segment_blocks) * BLOCK, 512);
    let (device, counters) = StatsLayer::new(Arc::new(device.unwrap()));
    let devices = vec![NamedDevice { name: "/a".to_owned(), device: Arc::new(device) }];
    let options = CreateOptions { segment_blocks, ..CreateOptions::new("fast") };
    (Pool::create(devices, &options).await.unwrap(), counters)
}

fn options(blocks: u64, compression: Compression) -> VolumeOptions {
    let properties = [(COMPRESSION_PROPERTY.to_owned(), compression.name().to_owned())].into();
    VolumeOptions { size_bytes: blocks * BLOCK, properties, ..VolumeOptions::default() }
}

/// Regression: the payload of segments beyond the limits of a pass was read, and then not copied.
#[test]
fn segment_without_room_is_not_read() {
    block_on(async {
        let (pool, counters) = create(64).await;
        let volume = pool.create_volume("v", &options(100, Compression::Off)).await.unwrap();
        volume.write(0, Buf::copy_of(&[1; 28 * BLOCK_BYTES]).unwrap(), false).await.unwrap();
        pool.checkpoint().await.unwrap();
        let shared = pool.shared();
        // Bytes that a pass reads, and whether it skips blocks.
        let clean = async |blocks_max, leaves_max| {
            let (mut copies, weights) = {
                let state = shared.state.lock();
                (shared.no_copies(&state), state.usage.weights.clone())
            };
            (copies.blocks_max, copies.leaves_max) = (blocks_max, leaves_max);
            let before = counters.totals().of(CallKind::Read).bytes;
            for (segment, _) in (0..).zip(weights).filter(|(_, weight)| *weight > 0) {
                shared.clean_segment(segment, &mut copies).await.unwrap();
            }
            (counters.totals().of(CallKind::Read).bytes - before, copies.skipped)
        };
        // Headers and map pages, without the payload of 28 blocks.
        for (blocks_max, leaves_max) in [(0, 100), (1000, 0)] {
            let (bytes, skipped) = clean(blocks_max, leaves_max).await;
            assert!(skipped && bytes < 28 * BLOCK, "{bytes}");
        }
        let (bytes, skipped) = clean(1000, 100).await;
        assert!(!skipped && bytes > 28 * BLOCK, "{bytes}");
    })
    .unwrap();
}
