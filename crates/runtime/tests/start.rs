//! What holds when a program's first line runs. Alone in its process: it counts descriptors.

use std::fs;

use flagstone_runtime::{Config, DriverChoice, StartError, run};

/// Rings that this process has open.
fn rings() -> usize {
    let folder = fs::read_dir("/proc/self/fd").expect("procfs");
    let targets = folder.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    targets.filter(|target| target.to_string_lossy().contains("io_uring")).count()
}

#[test]
fn all_cores_run_when_main_begins() {
    const CORES: usize = 16;
    let config = Config { cores: CORES, driver: DriverChoice::IoUring, ..Config::default() };
    match run(&config, || async { rings() }) {
        Ok(rings) => assert_eq!(rings, CORES),
        Err(StartError::Forbidden(why)) => println!("skipped: {why}"),
        Err(error) => panic!("{error}"),
    }
}
