//! Heap allocation: reads and writes of a volume allocate nothing between two checkpoints.

use std::sync::Arc;

use flagstone_blockdev::{BlockDevice, IoFuture, MemoryDevice, SharedDevice};
use flagstone_pool::{CreateOptions, NamedDevice, Pool, VolumeOptions, WrappingKey};
use flagstone_runtime::rng::Rng;
use flagstone_runtime::{IoEngine, RuntimeConfig, buf, run};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 2048;
/// The threads driver allocates for each wait.
const DRIVER: IoEngine = IoEngine::IoUring;
const DEPTH: usize = 8;
/// Allowance for containers that grow by doubling; one allocation per call would be thousands.
const SLACK: u64 = 16;

async fn volume(encrypted: bool) -> (Pool, SharedDevice) {
    let device = Arc::new(MemoryDevice::new(1 << 30, 512).unwrap());
    let devices = vec![NamedDevice { name: "memory".to_owned(), device: device.clone() }];
    // Exclude allocations of the device at first writes.
    for offset in (0..1 << 30).step_by(1 << 20) {
        let mut data = buf::alloc(1 << 20).await;
        data.fill(0);
        device.write(offset, data.freeze(), false).await.unwrap();
    }
    let pool = Pool::create(devices, &CreateOptions::new("fast")).await.unwrap();
    let size = VolumeOptions { size_bytes: BLOCKS * BLOCK as u64, ..VolumeOptions::default() };
    let key = WrappingKey::parse(&"5c".repeat(32)).unwrap();
    let volume = match encrypted {
        true => pool.create_encrypted_volume("db", &size, &key).await,
        false => pool.create_volume("db", &size).await,
    };
    (pool, volume.unwrap())
}

/// Rounds of `DEPTH` calls in flight, of `blocks` each: all writes, or all reads.
async fn calls(volume: &SharedDevice, rounds: usize, blocks: usize, writes: bool) {
    let mut rng = Rng::new(7);
    let len = blocks * BLOCK;
    let mut offset = || rng.below(BLOCKS / blocks as u64) * len as u64;
    for _ in 0..rounds {
        if writes {
            let write = |()| {
                let mut data = buf::try_alloc(len).unwrap();
                data.fill(1);
                volume.write(offset(), data.freeze(), false)
            };
            let writes: [IoFuture<()>; DEPTH] = [(); DEPTH].map(write);
            for write in writes {
                write.await.unwrap();
            }
        } else {
            let read = |()| volume.read(offset(), buf::try_alloc(len).unwrap());
            let reads: [IoFuture<_>; DEPTH] = [(); DEPTH].map(read);
            for read in reads {
                read.await.unwrap();
            }
        }
    }
}

fn allocations(rounds: usize, blocks: usize, writes: bool, encrypted: bool) -> u64 {
    let config = RuntimeConfig { io_engine: DRIVER, ..RuntimeConfig::default() };
    let counted = allocation_counter::measure(|| {
        run(&config, async || {
            let (_pool, volume) = volume(encrypted).await;
            calls(&volume, 300, blocks, true).await;
            calls(&volume, rounds, blocks, writes).await;
        })
        .unwrap();
    });
    counted.count_total
}

fn assert_no_allocation(blocks: usize, writes: bool, encrypted: bool) {
    let config = RuntimeConfig { io_engine: DRIVER, ..RuntimeConfig::default() };
    if let Err(error) = run(&config, async || {}) {
        return eprintln!("skipped: {error}");
    }
    let few = allocations(20, blocks, writes, encrypted);
    let many = allocations(420, blocks, writes, encrypted);
    let of = if writes { "writes" } else { "reads" };
    assert!(many < few + SLACK, "{} allocations in 3,200 {of} of {blocks} blocks", many - few);
}

#[test]
fn writes_allocate_nothing() {
    assert_no_allocation(1, true, false);
}

#[test]
fn reads_of_one_block_allocate_nothing() {
    assert_no_allocation(1, false, false);
}

#[test]
fn reads_of_many_blocks_allocate_nothing() {
    assert_no_allocation(16, false, false);
}

#[test]
fn encryption_allocates_nothing() {
    assert_no_allocation(1, true, true);
    assert_no_allocation(1, false, true);
    assert_no_allocation(16, false, true);
}
