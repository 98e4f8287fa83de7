//! Tests of a pass: what it reads, and how long it keeps its core.

use std::sync::Arc;
use std::task::{Context, Waker};

use flagstone_blockdev::stats::{CallKind, Counters};
use flagstone_blockdev::{BlockDevice as _, MemoryDevice, StatsLayer};
use flagstone_runtime::{Buf, block_on};

use super::*;
use crate::limits::UNITS_PER_SLICE;
use crate::work_slices::tests::most_in_a_turn;
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

/// Regression: a pass compressed up to 256 blocks, and a write as many, before other tasks ran.
#[test]
fn compression_lets_other_tasks_run() {
    block_on(async {
        let (pool, _) = create(1024).await;
        let volume = pool.create_volume("v", &options(2000, Compression::Zstd)).await.unwrap();
        let text = |blocks| Buf::copy_of(&vec![7; blocks * BLOCK_BYTES]).unwrap();
        // In one chunk, and in several.
        for blocks in [127, 256] {
            let write = async { volume.write(BLOCK, text(blocks), false).await.unwrap() };
            let (most, all) = most_in_a_turn(write).await;
            assert!(most <= UNITS_PER_SLICE && all >= blocks / 8, "{most} of {all}");
        }
        // Single blocks are compressed by the cleaner alone.
        for at in 0..300 {
            volume.write((1000 + at) * BLOCK, text(1), false).await.unwrap();
        }
        volume.write(BLOCK, text(9), false).await.unwrap();
        pool.checkpoint().await.unwrap();
        let shared = pool.shared();
        let clean = async {
            let (mut copies, weights) = {
                let state = shared.state.lock();
                (shared.no_copies(&state), state.usage.weights.clone())
            };
            copies.leaves_max = 1000;
            for (segment, _) in (0..).zip(weights).filter(|(_, weight)| *weight > 0) {
                shared.clean_segment(segment, &mut copies).await.unwrap();
            }
            shared.write_copies(&mut copies, true).await.unwrap();
        };
        let (most, all) = most_in_a_turn(clean).await;
        assert!(most <= UNITS_PER_SLICE && all >= 300 / 8, "{most} of {all}");
    })
    .unwrap();
}

/// A write that is dropped while its data is compressed gives its admission back, so that
/// checkpoints do not wait for it.
#[test]
fn dropped_write_is_not_admitted_any_more() {
    block_on(async {
        let (pool, _) = create(1024).await;
        let volume = pool.create_volume("v", &options(2000, Compression::Zstd)).await.unwrap();
        let data = Buf::copy_of(&vec![7; 127 * BLOCK_BYTES]).unwrap();
        let mut write = Box::pin(async { volume.write(0, data, false).await });
        assert!(write.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        // No unit is cut.
        assert_eq!(pool.shared().state.lock().admitted, (120, 0));
        drop(write);
        assert_eq!(pool.shared().state.lock().admitted, (0, 0));
    })
    .unwrap();
}
