//! Heap allocation: a command allocates nothing, within the limit and beyond it.

use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::{IoFuture, NullDevice, SharedDevice};
use flagstone_limit::{
    Budget, DiskModelConfig, DiskModelLayer, Limit, Limiter, RateLimitLayer, ServiceTime,
};
use flagstone_runtime::sim::{self, Simulation};
use flagstone_runtime::{IoEngine, RuntimeConfig, buf, run, task};

const BLOCK_BYTES: usize = 4096;
/// Containers of the runtime that grow by doubling may do so late; one allocation per call would be
/// thousands.
const SLACK: u64 = 16;

fn null() -> SharedDevice {
    Arc::new(NullDevice::new(1 << 30, 512).unwrap())
}

fn limited(limit: Limit) -> SharedDevice {
    Arc::new(RateLimitLayer::new(null(), Limiter::new(limit).unwrap()))
}

/// Reads and writes of one flow, eight at a time.
async fn calls(device: &SharedDevice, rounds: usize) {
    task::begin_flow();
    for _ in 0..rounds {
        let reads: [IoFuture<_>; 4] =
            [0, 1, 2, 3].map(|_| device.read(0, buf::try_alloc(BLOCK_BYTES).unwrap()));
        let writes: [IoFuture<()>; 4] = [0, 1, 2, 3].map(|number| {
            let data = buf::try_alloc(BLOCK_BYTES).unwrap().freeze();
            device.write(number * BLOCK_BYTES as u64, data, false)
        });
        for read in reads {
            read.await.unwrap();
        }
        for write in writes {
            write.await.unwrap();
        }
    }
}

fn assert_no_allocation(name: &str, whole_run: impl Fn(usize) -> u64) {
    let (few, many) = (whole_run(200), whole_run(1200));
    assert!(many < few + SLACK, "{name}: {} allocations in 8,000 calls", many - few);
}

fn real(driver: IoEngine, rounds: usize, make: &impl Fn() -> SharedDevice) -> u64 {
    let config = RuntimeConfig { io_engine: driver, ..RuntimeConfig::default() };
    let counted = allocation_counter::measure(|| {
        run(&config, async || calls(&make(), rounds).await).unwrap();
    });
    counted.count_total
}

#[test]
fn calls_within_limit_allocate_nothing() {
    let limit = Limit {
        ios: Budget::shared(1_000_000_000, 1_000_000_000),
        bytes: Budget::separate(1_000_000_000_000, 1_000_000_000_000),
        ..Limit::default()
    };
    const DRIVER: IoEngine = IoEngine::Threads;
    let make = || limited(limit);
    assert_no_allocation("within", |rounds| real(DRIVER, rounds, &make));
    assert_no_allocation("no limit", |rounds| real(DRIVER, rounds, &|| limited(Limit::default())));
}

#[test]
fn waiting_calls_allocate_nothing() {
    // The threads driver itself allocates for each wait.
    const DRIVER: IoEngine = IoEngine::IoUring;
    let config = RuntimeConfig { io_engine: DRIVER, ..RuntimeConfig::default() };
    if let Err(error) = run(&config, async || {}) {
        return eprintln!("skipped: {error}");
    }
    // 8,000 commands at 100,000 per second: 80 ms.
    let make = || limited(Limit { ios: Budget::total(100_000), ..Limit::default() });
    assert_no_allocation("beyond", |rounds| real(DRIVER, rounds, &make));
    let make = || -> SharedDevice {
        let time =
            ServiceTime { median: Duration::from_micros(20), p99: Duration::from_micros(60) };
        let config = DiskModelConfig { read: Some(time), write: Some(time), seed: 1 };
        Arc::new(DiskModelLayer::new(null(), config).unwrap())
    };
    assert_no_allocation("emulated", |rounds| real(DRIVER, rounds, &make));
}

#[test]
fn measured_commands_all_waited() {
    let sim = Simulation::new(1, sim::SimConfig::default());
    let limiter = Limiter::new(Limit { ios: Budget::total(1000), ..Limit::default() }).unwrap();
    let device: SharedDevice = Arc::new(RateLimitLayer::new(null(), limiter.clone()));
    sim.block_on(calls(&device, 100));
    let status = limiter.status();
    assert!(status.delayed > 700 && status.waiting == 0, "{status:?}");
}
