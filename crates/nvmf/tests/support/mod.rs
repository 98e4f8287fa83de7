//! A raw NVMe/TCP host that says anything, and a target to say it to.
//!
//! Every test runs on io_uring, on threads and in simulated worlds, and ends with the same check:
//! the target serves a well-behaved host still, has no controllers when that one is gone, and
//! neither a task, an operation in flight nor a byte of pooled memory is left over.
#![allow(dead_code, missing_docs, unreachable_pub)]

pub mod client;
pub mod device;
pub mod server;

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use flagstone_runtime::limits::BUF_MAX_BYTES;
use flagstone_runtime::sim::{self, Simulation};
use flagstone_runtime::{Config, DriverChoice, alive, buf, driver_name, run, time};

pub use client::{Client, Host, Options, Pdu};
pub use device::{Gate, pattern};
pub use server::{Server, subsystem};

/// A net, far beyond what anything takes: a test that hangs fails. Simulated time is cheap.
pub fn net() -> Duration {
    Duration::from_secs(if driver_name() == "simulation" { 1_000_000 } else { 60 })
}

/// Pooled memory and its ceiling are the process's, so one test runs at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Runs a test on each real driver and in two simulated worlds.
pub fn on_each_driver(test: impl AsyncFn() + Sync) {
    on_each_real_driver(&test);
    for seed in 1..=2 {
        in_simulation(seed, &test);
    }
}

/// Runs a test on io_uring, where the system has it, and on threads.
pub fn on_each_real_driver(test: impl AsyncFn() + Sync) {
    for driver in [DriverChoice::IoUring, DriverChoice::Threads] {
        alone(|| match run(&Config { driver, ..Config::default() }, || checked(&test)) {
            Ok(()) => {}
            Err(error) if driver == DriverChoice::IoUring => eprintln!("skipped: {error}"),
            Err(error) => panic!("{error}"),
        });
    }
}

/// Runs a test in the simulated world of `seed`, where waiting costs nothing.
pub fn in_simulation(seed: u64, test: impl AsyncFn() + Sync) {
    alone(|| Simulation::new(seed, sim::Config::default()).block_on(checked(&test)));
}

/// In a thread of its own, whose idle memory is gone when the next test begins.
fn alone(run: impl FnOnce() + Send) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    std::thread::scope(|scope| {
        if let Err(panic) = scope.spawn(run).join() {
            std::panic::resume_unwind(panic);
        }
    });
}

async fn checked(test: &impl AsyncFn()) {
    // What a core takes once and keeps.
    drop(buf::zeroes(1));
    let before = (memory_in_use(), alive());
    time::timeout(net(), test()).await.expect("the test does not hang");
    eventually("everything ends", || alive() == before.1).await;
    assert_eq!(memory_in_use(), before.0, "pooled memory in use");
}

/// Waits for what must become true.
pub async fn eventually(what: &str, mut is_true: impl FnMut() -> bool) {
    let begin = time::now();
    while !is_true() {
        assert!(begin.elapsed() < net(), "never: {what}");
        time::sleep(Duration::from_millis(1)).await;
    }
}

/// Pooled memory that is in use by this core, in bytes: what is held when the idle blocks have been
/// given up, which asking for too much at the ceiling does.
pub fn memory_in_use() -> usize {
    let limit = buf::memory_limit();
    buf::set_memory_limit(0);
    assert!(buf::try_alloc(BUF_MAX_BYTES).is_none(), "no idle block is so large");
    buf::set_memory_limit(limit);
    buf::memory_held()
}

/// A small generator for tests that want variety and the same again.
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
