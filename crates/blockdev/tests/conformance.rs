//! Conformance of every leaf and layer, on every driver, with both usual block sizes.

mod common;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use common::{Files, on_each_driver};
use flagstone_blockdev::{
    BlockDevice, DelayConfig, DelayLayer, DelayTime, FaultConfig, FaultLayer, FileDevice,
    FileOptions, MemoryDevice, NullDevice, SharedDevice, StripeDevice,
};
use flagstone_conformance::{self as conformance, Options};

const BLOCK_SIZES: [u32; 2] = [512, 4096];
const MIB: u64 = 1 << 20;

/// Large enough for the longest transfer at several offsets; neither a power of two nor a multiple
/// of the chunk size.
const LARGE_BYTES: u64 = 36 * MIB + 4096;

fn share(device: impl BlockDevice) -> SharedDevice {
    Arc::new(device)
}

fn open(path: &Path, options: &FileOptions) -> SharedDevice {
    FileDevice::open(path, options).unwrap()
}

fn memory(size_bytes: u64, block_bytes: u32) -> SharedDevice {
    share(MemoryDevice::new(size_bytes, block_bytes).unwrap())
}

/// Disks guarantee whole sectors only.
fn of_disk(options: Options) -> Options {
    Options { whole_blocks: false, ..options }
}

#[test]
fn memory_device() {
    on_each_driver(async |_| {
        for block in BLOCK_SIZES {
            let options = Options { boundaries_bytes: vec![64 << 10], ..Options::default() };
            conformance::run(async || memory(LARGE_BYTES, block), options).await;
            conformance::run(async || memory(64 * u64::from(block), block), Options::quick(2))
                .await;
        }
    });
}

#[test]
fn null_device() {
    on_each_driver(async |_| {
        for block in BLOCK_SIZES {
            let options = Options { remembers: false, ..Options::default() };
            let null = async || share(NullDevice::new(1 << 40, block).unwrap());
            conformance::run(null, options).await;
        }
    });
}

#[test]
fn file_device() {
    on_each_driver(async |files| {
        for block in BLOCK_SIZES {
            let file = FileOptions { block_bytes: Some(block), ..FileOptions::default() };
            let make = async || files.device(LARGE_BYTES, &file);
            conformance::run(make, of_disk(Options::default())).await;
        }
    });
}

#[test]
fn file_device_in_the_page_cache() {
    on_each_driver(async |files| {
        for block in BLOCK_SIZES {
            let file =
                FileOptions { direct: false, block_bytes: Some(block), ..FileOptions::default() };
            let make = async || files.device(8 * MIB, &file);
            conformance::run(make, of_disk(Options::quick(3))).await;
        }
    });
}

#[test]
fn file_device_read_only() {
    on_each_driver(async |files| {
        let path = files.fresh();
        let create = FileOptions { create_bytes: Some(MIB), ..FileOptions::default() };
        drop(FileDevice::open(&path, &create).unwrap());
        let file = FileOptions { read_only: true, exclusive: false, ..FileOptions::default() };
        let make = async || open(&path, &file);
        conformance::run(make, Options::quick(4)).await;
    });
}

#[test]
fn file_device_keeps_durable_data() {
    on_each_driver(async |files| {
        for (block, direct) in [(512, true), (4096, true), (4096, false)] {
            let path = files.fresh();
            let file = FileOptions {
                create_bytes: Some(MIB),
                block_bytes: Some(block),
                direct,
                ..FileOptions::default()
            };
            let make = async || open(&path, &file);
            conformance::run_with_reopen(make, of_disk(Options::quick(5))).await;
        }
    });
}

#[test]
fn stripe_of_memory() {
    on_each_driver(async |_| {
        // One child; chunks of one block; chunks that are not a power of two; more children than
        // calls in flight.
        for (children, chunk) in [(1, 65536), (2, 4096), (3, 20480), (20, 12288)] {
            for block in BLOCK_SIZES {
                let make = async || {
                    let child = |number| memory(2 * MIB + number * 65536, block);
                    share(StripeDevice::new((0..children).map(child).collect(), chunk).unwrap())
                };
                let boundaries_bytes = vec![chunk, chunk * children];
                let options = Options { boundaries_bytes, ..Options::quick(6) };
                conformance::run(make, options).await;
            }
        }
        large_stripe().await;
    });
}

async fn large_stripe() {
    let make = async || {
        let children = (0..3).map(|_| memory(12 * MIB + 12288, 512)).collect();
        share(StripeDevice::new(children, 4096).unwrap())
    };
    conformance::run(make, Options::default()).await;
}

/// Children of different sizes and block sizes.
fn mixed_stripe(files: &Files) -> SharedDevice {
    let file = FileOptions { block_bytes: Some(4096), ..FileOptions::default() };
    let children = vec![
        files.device(3 * MIB, &file),
        memory(4 * MIB, 512),
        files.device(3 * MIB + 4096, &FileOptions { block_bytes: Some(512), ..file }),
    ];
    share(StripeDevice::new(children, 28 << 10).unwrap())
}

#[test]
fn stripe_of_files_and_memory() {
    on_each_driver(async |files| {
        let options = Options { boundaries_bytes: vec![28 << 10, 84 << 10], ..Options::quick(7) };
        conformance::run(async || mixed_stripe(files), of_disk(options)).await;
    });
}

#[test]
fn delay() {
    on_each_driver(async |_| {
        for block in BLOCK_SIZES {
            let latency = DelayTime { fixed: Duration::ZERO, jitter: Duration::from_micros(50) };
            let config =
                DelayConfig { read: latency, write: latency, flush: latency, discard: latency };
            let make = async || share(DelayLayer::new(memory(MIB, block), config).unwrap());
            conformance::run(make, Options::quick(8)).await;
        }
    });
}

#[test]
fn fault_without_faults() {
    on_each_driver(async |_| {
        for block in BLOCK_SIZES {
            let make = async || {
                share(FaultLayer::new(memory(MIB, block), FaultConfig::default()).unwrap().0)
            };
            conformance::run(make, Options::quick(9)).await;
        }
    });
}

#[test]
fn stacked_layers() {
    on_each_driver(async |files| {
        let make = async || {
            let latency = DelayTime { fixed: Duration::ZERO, jitter: Duration::from_micros(20) };
            let config = DelayConfig { write: latency, ..DelayConfig::default() };
            let slow = share(DelayLayer::new(mixed_stripe(files), config).unwrap());
            let (fault, _) = FaultLayer::new(slow, FaultConfig::default()).unwrap();
            let other = memory(8 * MIB, 4096);
            share(StripeDevice::new(vec![other, share(fault)], 64 << 10).unwrap())
        };
        conformance::run(make, of_disk(Options::quick(10))).await;
    });
}
