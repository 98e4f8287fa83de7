//! Conformance of both layers, on every driver.

use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::{
    BlockDevice, FileOptions, IoError, MemoryDevice, SharedDevice, ZeroFlags,
};
use flagstone_conformance::{self as conformance, Options};
use flagstone_limit::{
    Budget, DiskModelConfig, DiskModelLayer, Limit, Limiter, RateLimitLayer, ServiceTime,
};
use flagstone_runtime::sim::{self, Simulation};
use flagstone_runtime::{Buf, IoEngine, RuntimeConfig, block_on, buf, run};

const MIB: u64 = 1 << 20;

fn on_each_driver(test: impl AsyncFn()) {
    for driver in [IoEngine::IoUring, IoEngine::Threads] {
        let config = RuntimeConfig { cores: 2, io_engine: driver, ..RuntimeConfig::default() };
        match run(&config, || test()) {
            Ok(()) => {}
            Err(error) if driver == IoEngine::IoUring => eprintln!("skipped: {error}"),
            Err(error) => panic!("{error}"),
        }
    }
    for seed in 1..=2 {
        let sim = Simulation::new(seed, sim::SimConfig::default());
        sim.block_on(test());
    }
}

fn memory(block: u32) -> SharedDevice {
    Arc::new(MemoryDevice::new(MIB, block).unwrap())
}

fn limited(child: SharedDevice, limit: Limit) -> SharedDevice {
    Arc::new(RateLimitLayer::new(child, Limiter::new(limit).unwrap()))
}

/// Low enough that most commands of the suite wait, high enough that it ends.
fn tight() -> Limit {
    Limit {
        ios: Budget::total(20_000),
        bytes: Budget::separate(400_000_000, 200_000_000),
        ..Limit::default()
    }
}

#[test]
fn rate_limit_layer_conforms() {
    on_each_driver(async || {
        for block in [512, 4096] {
            conformance::run(async || limited(memory(block), tight()), Options::quick(1)).await;
        }
        let unlimited = async || limited(memory(512), Limit::default());
        conformance::run(unlimited, Options::quick(2)).await;
    });
}

#[test]
fn disk_model_layer_conforms() {
    on_each_driver(async || {
        let time = |median, p99| {
            let [median, p99] = [median, p99].map(Duration::from_micros);
            Some(ServiceTime { median, p99 })
        };
        let config = DiskModelConfig { read: time(20, 100), write: time(10, 10), seed: 3 };
        let make = async || {
            Arc::new(DiskModelLayer::new(limited(memory(4096), tight()), config).unwrap())
                as SharedDevice
        };
        conformance::run(make, Options::quick(3)).await;
    });
}

#[test]
fn child_errors_pass_through_uncharged() {
    block_on(async {
        // One I/O per ten seconds: any counted call would show.
        let limiter = Limiter::new(Limit { ios: Budget::total(1), ..Limit::default() }).unwrap();
        let device = RateLimitLayer::new(memory(512), limiter.clone());
        let data = || Buf::copy_of(&[1; 512]).unwrap();
        for _ in 0..100 {
            let read = device.read(MIB, buf::alloc(512).await).try_now();
            assert!(matches!(read, Ok(Err(IoError::OutOfRange))));
            let write = device.write(1, data(), true).try_now();
            assert!(matches!(write, Ok(Err(IoError::Misaligned))));
            let discard = device.discard(MIB, 512).try_now();
            assert!(matches!(discard, Ok(Err(IoError::OutOfRange))));
            let zeroes = device.write_zeroes(0, 0, ZeroFlags::default()).try_now();
            assert!(matches!(zeroes, Ok(Err(IoError::Misaligned))));
        }
        assert_eq!(limiter.status().immediate, 0);
        assert!(device.write(0, data(), false).try_now().is_ok(), "this is the first");

        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = dir.path().join("disk");
        let create =
            FileOptions { create_bytes: Some(MIB), direct: false, ..FileOptions::default() };
        drop(flagstone_blockdev::FileDevice::open(&path, &create).unwrap());
        let options = FileOptions {
            read_only: true,
            direct: false,
            block_bytes: Some(512),
            ..FileOptions::default()
        };
        let child = flagstone_blockdev::FileDevice::open(&path, &options).unwrap();
        let device = RateLimitLayer::new(child, limiter.clone());
        assert_eq!(device.write(0, data(), false).await, Err(IoError::ReadOnly));
        assert_eq!(device.discard(0, 512).await, Err(IoError::ReadOnly));
        assert_eq!(limiter.status().immediate, 1);
    })
    .unwrap();
}
