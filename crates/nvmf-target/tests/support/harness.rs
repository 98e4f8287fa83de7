//! Test harness: runs a test on every driver and in simulated worlds, and checks that it leaks
//! neither tasks nor memory.
#![allow(dead_code, missing_docs, unreachable_pub, reason = "each test program uses its part")]

use std::time::Duration;

use flagstone_runtime::limits::BUF_MAX_BYTES;
use flagstone_runtime::sim::{self, Simulation};
use flagstone_runtime::{IoEngine, RuntimeConfig, alive, buf, io_engine_name, run, time};
use parking_lot::Mutex;

/// Time limit for hanging tests, far beyond any regular duration. Simulated time is cheap.
pub fn net() -> Duration {
    Duration::from_secs(if io_engine_name() == "simulation" { 1_000_000 } else { 60 })
}

/// Pooled memory and its ceiling are process-wide, so tests run one at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Runs a test on each real driver and in two simulated worlds.
pub fn on_each_driver(test: impl AsyncFn() + Sync) {
    on_each_real_driver(&test);
    for seed in 1..=2 {
        in_simulation(seed, &test);
    }
}

/// Runs a test on io_uring, if available, and on threads.
pub fn on_each_real_driver(test: impl AsyncFn() + Sync) {
    for driver in [IoEngine::IoUring, IoEngine::Threads] {
        alone(|| {
            match run(&RuntimeConfig { io_engine: driver, ..RuntimeConfig::default() }, || {
                checked(&test)
            }) {
                Ok(()) => {}
                Err(error) if driver == IoEngine::IoUring => eprintln!("skipped: {error}"),
                Err(error) => panic!("{error}"),
            }
        });
    }
}

/// Runs a test in the simulated world of `seed`, where waiting is free.
pub fn in_simulation(seed: u64, test: impl AsyncFn() + Sync) {
    alone(|| Simulation::new(seed, sim::SimConfig::default()).block_on(checked(&test)));
}

/// Runs on a separate thread, whose idle memory is freed before the next test.
fn alone(run: impl FnOnce() + Send) {
    let _alone = ALONE.lock();
    std::thread::scope(|scope| {
        if let Err(panic) = scope.spawn(run).join() {
            std::panic::resume_unwind(panic);
        }
    });
}

async fn checked(test: &impl AsyncFn()) {
    // Allocated once per core and kept.
    drop(buf::zeroes(1));
    let before = (memory_in_use(), alive());
    time::timeout(net(), test()).await.expect("the test does not hang");
    eventually("everything ends", || alive() == before.1).await;
    assert_eq!(memory_in_use(), before.0, "pooled memory in use");
}

/// Waits until the condition becomes true.
pub async fn eventually(what: &str, mut is_true: impl FnMut() -> bool) {
    let begin = time::now();
    while !is_true() {
        assert!(begin.elapsed() < net(), "never: {what}");
        time::sleep(Duration::from_millis(1)).await;
    }
}

/// Pooled memory in use by this core, in bytes. An allocation that fails at the ceiling frees idle
/// blocks first.
pub fn memory_in_use() -> usize {
    let limit = buf::memory_limit();
    buf::set_memory_limit(0);
    assert!(buf::try_alloc(BUF_MAX_BYTES).is_none(), "no idle block is so large");
    buf::set_memory_limit(limit);
    buf::memory_held()
}

/// Deterministic random generator.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound.max(1)
    }
}
