//! In the steady state a command takes no memory from the heap.
#![allow(missing_docs)]

mod host_common;

use std::sync::Arc;

use flagstone_blockdev::{BlockDevice, NullDevice};
use flagstone_runtime::{Config, DriverChoice, buf, run, spawn};
use host_common::{Server, options};

/// Containers that grow by doubling may do so late; an allocation a call would be thousands.
const SLACK: u64 = 24;
/// More than there are slots, so that some wait at the gate.
const TASKS: u64 = 12;

/// Heap allocations of this thread, where host and target run, with so many rounds of calls.
/// `None` where io_uring is forbidden.
fn allocations(rounds: u64) -> Option<u64> {
    let config = Config { driver: DriverChoice::IoUring, ..Config::default() };
    let mut ran = false;
    let counted = allocation_counter::measure(|| {
        let end = run(&config, async || {
            let server = Server::start(Arc::new(NullDevice::new(1 << 30, 512).unwrap()));
            let options = flagstone_nvmf::host::HostOptions { queue_depth: 8, ..options() };
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
fn commands_take_nothing_from_the_heap() {
    // Threads pass their events in memory of the heap, which is the driver's affair.
    let Some(few) = allocations(300) else { return };
    let many = allocations(3000).expect("io_uring was to be had just now");
    assert!(many <= few + SLACK, "{few} for few, {many} for many");
}
