//! Helpers for device tests: drivers to run on, and places for files.
#![allow(dead_code, unreachable_pub, reason = "each test program uses its part")]

use std::cell::Cell;
use std::path::PathBuf;

use flagstone_blockdev::{FileDevice, FileOptions, SharedDevice};
use flagstone_runtime::sim::{self, Simulation};
use flagstone_runtime::{IoEngine, RuntimeConfig, run};

/// Names for files that do not exist yet, in a temporary directory.
pub struct Files {
    dir: tempfile::TempDir,
    made: Cell<usize>,
}

impl Files {
    pub fn new() -> Files {
        // The temporary directory of the system may be in memory, without O_DIRECT.
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        Files { dir, made: Cell::new(0) }
    }

    pub fn fresh(&self) -> PathBuf {
        self.made.set(self.made.get() + 1);
        self.dir.path().join(format!("disk-{}", self.made.get()))
    }

    /// A device on a new file.
    pub fn device(&self, size_bytes: u64, options: &FileOptions) -> SharedDevice {
        let options = FileOptions { create_bytes: Some(size_bytes), ..*options };
        FileDevice::open(self.fresh(), &options).unwrap()
    }
}

/// Runs a test on each driver, with two cores if the driver has several. For tests that access
/// their files only through devices.
pub fn on_each_driver(test: impl AsyncFn(&Files)) {
    on_each_real_driver(&test);
    for seed in 1..=2 {
        let sim = Simulation::new(seed, sim::SimConfig::default());
        sim.block_on(test(&Files::new()));
    }
}

/// Runs a test on io_uring and on threads.
pub fn on_each_real_driver(test: impl AsyncFn(&Files)) {
    for driver in [IoEngine::IoUring, IoEngine::Threads] {
        let files = Files::new();
        let config = RuntimeConfig { cores: 2, io_engine: driver, ..RuntimeConfig::default() };
        match run(&config, || test(&files)) {
            Ok(()) => {}
            Err(error) if driver == IoEngine::IoUring => eprintln!("skipped: {error}"),
            Err(error) => panic!("{error}"),
        }
    }
}
