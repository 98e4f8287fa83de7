//! Heap allocations per command: none in the steady state.

mod common;

use std::sync::Arc;

use common::{Server, options};
use flagstone_blockdev::{BlockDevice, NullDevice};
use flagstone_runtime::{IoEngine, RuntimeConfig, buf, run, spawn};

/// Allowance for containers that grow late by doubling. An allocation per call would exceed it by
/// thousands.
const SLACK: u64 = 24;
/// More than the slots, so that some wait for admission.
const TASKS: u64 = 12;

/// Heap allocations of this thread, which runs host and target, for `rounds` rounds. `None` if
/// io_uring is unavailable.
fn allocations(rounds: u64) -> Option<u64> {
    let config = RuntimeConfig { io_engine: IoEngine::IoUring, ..RuntimeConfig::default() };
    let mut ran = false;
    let counted = allocation_counter::measure(|| {
        let end = run(&config, async || {
            let server = Server::start(Arc::new(NullDevice::new(1 << 30, 512).unwrap()));
            let options = flagstone_nvmf_host::HostOptions { queue_depth: 8, ..options() };
            let device = server.connect(options).await;
            let tasks: Vec<_> = (0..TASKS)
                .map(|task| {
                    let device = device.clone();
                    spawn(async move {
                        let data = buf::alloc(4096).await.freeze();
                        let mut place = buf::alloc(4096).await;
                        for round in 0..rounds {
                            let offset = (round * TASKS + task) % 1000 * 4096;
                            place = device.read(offset, place).await.unwrap();
                            device.write(offset, data.clone(), round % 2 == 0).await.unwrap();
                            device.flush().await.unwrap();
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
        });
        ran = end.is_ok();
    });
    ran.then_some(counted.count_total)
}

#[test]
fn commands_do_not_allocate() {
    // The threads driver passes events through heap memory.
    let Some(few) = allocations(300) else { return };
    let many = allocations(3000).expect("io_uring was to be had just now");
    assert!(many <= few + SLACK, "{few} for few, {many} for many");
}
