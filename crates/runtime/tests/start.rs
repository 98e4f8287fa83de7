//! State of the process when `main` starts. In a process of its own, because it counts descriptors.

use std::fs;

use flagstone_runtime::{IoEngine, RuntimeConfig, StartError, run};

/// io_uring rings that this process has open.
fn rings() -> usize {
    let folder = fs::read_dir("/proc/self/fd").expect("procfs");
    let targets = folder.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    targets.filter(|target| target.to_string_lossy().contains("io_uring")).count()
}

#[test]
fn all_cores_run_when_main_begins() {
    const CORES: usize = 16;
    let config =
        RuntimeConfig { cores: CORES, io_engine: IoEngine::IoUring, ..RuntimeConfig::default() };
    match run(&config, || async { rings() }) {
        Ok(rings) => assert_eq!(rings, CORES),
        Err(StartError::Forbidden(why)) => println!("skipped: {why}"),
        Err(error) => panic!("{error}"),
    }
}
