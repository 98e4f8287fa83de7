//! Heap allocations of server and client: none in the steady state.

mod common;

use std::sync::Arc;

use common::{Running, memory};
use flagstone_blockdev::{BlockDevice, NullDevice, SharedDevice};
use flagstone_nbd::{ClientOptions, NbdDevice};
use flagstone_runtime::{IoEngine, RuntimeConfig, buf, run};

/// Allowance for containers that grow late by doubling. An allocation per call would exceed it by
/// thousands.
const SLACK: u64 = 64;

/// Reads and writes of 4 KiB, 16 at a time, and of 128 KiB.
async fn calls(device: &NbdDevice, rounds: u64) {
    for round in 0..rounds {
        let offset = |number: u64| (round * 7 + number * 13) % 200 * 4096;
        let mut reads = [const { None }; 8];
        let mut writes = [const { None }; 8];
        for number in 0..8 {
            let data = buf::try_alloc(4096).unwrap();
            reads[number as usize] = Some(device.read(offset(number), data));
            let data = buf::try_alloc(4096).unwrap().freeze();
            writes[number as usize] = Some(device.write(offset(number + 8), data, false));
        }
        for (read, write) in reads.into_iter().zip(writes) {
            read.unwrap().await.unwrap();
            write.unwrap().await.unwrap();
        }
        let data = buf::try_alloc(128 << 10).unwrap().freeze();
        device.write(0, data, false).await.unwrap();
        device.read(0, buf::try_alloc(128 << 10).unwrap()).await.unwrap();
    }
}

/// Heap allocations of this thread for `rounds` rounds. `None` if io_uring is unavailable: the
/// threads driver allocates to wait.
fn allocations(make: fn() -> SharedDevice, rounds: u64) -> Option<u64> {
    let config = RuntimeConfig { io_engine: IoEngine::IoUring, ..RuntimeConfig::default() };
    let mut ran = false;
    let counted = allocation_counter::measure(|| {
        ran = run(&config, async || {
            let server = Running::with(make());
            let options = ClientOptions::default();
            let device = NbdDevice::connect(server.address.clone(), "disk", options).await.unwrap();
            calls(&device, rounds).await;
        })
        .is_ok();
    });
    ran.then_some(counted.count_total)
}

#[test]
fn requests_do_not_allocate() {
    let null: fn() -> SharedDevice = || Arc::new(NullDevice::new(1 << 20, 512).unwrap());
    let stored: fn() -> SharedDevice = || memory(1 << 20, 512);
    for make in [null, stored] {
        let (Some(few), Some(many)) = (allocations(make, 200), allocations(make, 1200)) else {
            return eprintln!("skipped: io_uring is not permitted here");
        };
        assert!(many < few + SLACK, "{} allocations in 18,000 requests", many.saturating_sub(few));
    }
}
