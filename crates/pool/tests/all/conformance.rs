//! Conformance kit on volumes of a pool.

use std::cell::RefCell;
use std::sync::Arc;

use flagstone_blockdev::{MemoryDevice, SharedDevice};
use flagstone_conformance::{self as conformance, Options};
use flagstone_pool::{CreateOptions, FormerLeg, NamedDevice, Pool, VolumeOptions};
use flagstone_runtime::{IoEngine, RuntimeConfig, block_on, run};

const MIB: u64 = 1 << 20;

fn memory(count: usize, size_bytes: u64) -> Vec<NamedDevice> {
    let device = |index| NamedDevice {
        name: format!("memory{index}"),
        device: Arc::new(MemoryDevice::new(size_bytes, 512).unwrap()) as SharedDevice,
    };
    (0..count).map(device).collect()
}

async fn create(devices: Vec<NamedDevice>, segment_blocks: u32) -> Pool {
    let options = CreateOptions { segment_blocks, ..CreateOptions::new("fast") };
    Pool::create(devices, &options).await.unwrap()
}

fn size(size_bytes: u64) -> VolumeOptions {
    VolumeOptions { size_bytes, ..VolumeOptions::default() }
}

#[test]
fn pool_volume_passes_the_conformance_kit() {
    let make = async || {
        let pool = create(memory(2, 96 * MIB), 256).await;
        pool.create_volume("db", &size(64 * MIB)).await.unwrap() as SharedDevice
    };
    block_on(conformance::run(make, Options::quick(1))).unwrap();
}

#[test]
fn former_leg_passes_the_conformance_kit() {
    let make = async || {
        let pool = create(memory(2, 96 * MIB), 256).await;
        let volume = pool.create_volume("db", &size(64 * MIB)).await.unwrap();
        pool.take_leg(&volume.info().unwrap()).await.unwrap();
        Arc::new(FormerLeg::new(volume)) as SharedDevice
    };
    block_on(conformance::run(make, Options::quick(1))).unwrap();
}

#[test]
fn pool_volume_is_shared_by_cores() {
    let config =
        RuntimeConfig { cores: 2, io_engine: IoEngine::Threads, ..RuntimeConfig::default() };
    let make = async || {
        let pool = create(memory(1, 48 * MIB), 64).await;
        pool.create_volume("db", &size(8 * MIB)).await.unwrap() as SharedDevice
    };
    run(&config, || conformance::run(make, Options::quick(2))).unwrap();
}

#[test]
fn small_pool_volume_passes_the_conformance_kit() {
    for seed in 0..4 {
        let make = async || {
            let pool = create(memory(1, 10 * MIB), 32).await;
            pool.create_volume("db", &size(2 * MIB)).await.unwrap() as SharedDevice
        };
        let options = Options { max_transfer_bytes: 128 << 10, ..Options::quick(seed) };
        block_on(conformance::run(make, options)).unwrap();
    }
}

#[test]
fn durable_data_survives_reopening() {
    let devices = memory(2, 32 * MIB);
    let first = RefCell::new(true);
    let open = async || {
        let pool = if first.replace(false) {
            let pool = create(devices.clone(), 64).await;
            pool.create_volume("db", &size(16 * MIB)).await.unwrap();
            pool
        } else {
            Pool::open(devices.clone()).await.unwrap()
        };
        pool.open_volume("db").unwrap() as SharedDevice
    };
    block_on(conformance::run_with_reopen(open, Options::quick(3))).unwrap();
}
