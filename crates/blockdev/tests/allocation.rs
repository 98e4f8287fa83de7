//! Heap allocation: a read or write allocates nothing in the steady state.

mod common;

use std::sync::Arc;

use common::Files;
use flagstone_blockdev::{
    FileOptions, IoFuture, MemoryDevice, NullDevice, SharedDevice, StripeDevice,
};
use flagstone_runtime::{IoEngine, RuntimeConfig, buf, run};

const BLOCK_BYTES: u64 = 4096;
const SIZE_BYTES: u64 = 4 << 20;
/// Containers of the runtime that grow by doubling may do so late; one allocation per call would be
/// thousands.
const SLACK: u64 = 16;

fn memory() -> SharedDevice {
    Arc::new(MemoryDevice::new(SIZE_BYTES, 512).unwrap())
}

fn stripe(chunk_bytes: u64) -> SharedDevice {
    Arc::new(StripeDevice::new(vec![memory(), memory()], chunk_bytes).unwrap())
}

/// Concurrent reads and writes of `len` bytes, with occasional flushes.
async fn calls(device: &SharedDevice, rounds: u64, len: u64) {
    for round in 0..rounds {
        let offset = |number: u64| (round * 7 + number * 13) * BLOCK_BYTES % (SIZE_BYTES - len);
        let writes: [IoFuture<()>; 2] = [0, 1].map(|number| {
            let data = buf::try_alloc(len as usize).unwrap().freeze();
            device.write(offset(number), data, false)
        });
        let read = device.read(offset(2), buf::try_alloc(len as usize).unwrap());
        for write in writes {
            write.await.unwrap();
        }
        read.await.unwrap();
        if round.is_multiple_of(50) {
            device.flush().await.unwrap();
        }
    }
}

/// Heap allocations of this thread in a run of `rounds`.
fn allocations(driver: IoEngine, make: &impl Fn() -> SharedDevice, rounds: u64, len: u64) -> u64 {
    let config = RuntimeConfig { io_engine: driver, ..RuntimeConfig::default() };
    let counted = allocation_counter::measure(|| {
        run(&config, async || {
            let device = make();
            // Allocates the chunks of the memory device.
            for block in 0..SIZE_BYTES / BLOCK_BYTES {
                let data = buf::try_alloc(BLOCK_BYTES as usize).unwrap().freeze();
                device.write(block * BLOCK_BYTES, data, false).await.unwrap();
            }
            calls(&device, rounds, len).await;
        })
        .unwrap();
    });
    counted.count_total
}

fn check(name: &str, driver: IoEngine, len: u64, make: impl Fn() -> SharedDevice) {
    let few = allocations(driver, &make, 100, len);
    let many = allocations(driver, &make, 2100, len);
    assert!(many < few + SLACK, "{name}: {} allocations in 6,000 calls", many - few);
}

#[test]
fn allocation_counter_counts() {
    let boxed = allocation_counter::measure(|| drop(std::hint::black_box(Box::new([1; 100]))));
    assert_eq!(boxed.count_total, 1);
}

#[test]
fn immediate_devices_allocate_nothing() {
    let null = || Arc::new(NullDevice::new(SIZE_BYTES, 512).unwrap()) as SharedDevice;
    check("null", IoEngine::Threads, BLOCK_BYTES, null);
    check("memory", IoEngine::Threads, BLOCK_BYTES, memory);
    check("stripe, whole", IoEngine::Threads, BLOCK_BYTES, || stripe(2 * BLOCK_BYTES));
    check("stripe, split", IoEngine::Threads, 4 * BLOCK_BYTES, || stripe(BLOCK_BYTES));
}

#[test]
fn file_device_allocates_nothing() {
    let config = RuntimeConfig { io_engine: IoEngine::IoUring, ..RuntimeConfig::default() };
    if let Err(error) = run(&config, async || {}) {
        return eprintln!("skipped: {error}");
    }
    let files = Files::new();
    let file = || files.device(SIZE_BYTES, &FileOptions::default());
    check("file", IoEngine::IoUring, BLOCK_BYTES, file);
    let striped = || -> SharedDevice {
        Arc::new(StripeDevice::new(vec![file(), file()], 2 * BLOCK_BYTES).unwrap())
    };
    check("stripe of files", IoEngine::IoUring, 4 * BLOCK_BYTES, striped);
}
