//! Conformance kit: the checks that every device and every layer must pass.
//!
//! They are plain functions, so that any crate with a device can run them in its tests, on any
//! driver:
//!
//! ```
//! use std::sync::Arc;
//!
//! use flagstone_blockdev::{MemoryDevice, SharedDevice};
//! use flagstone_conformance::{Options, run};
//!
//! let make = async || Arc::new(MemoryDevice::new(1 << 20, 512).unwrap()) as SharedDevice;
//! flagstone_runtime::block_on(run(make, Options::quick(1))).unwrap();
//! ```
//!
//! The name of each check states a promise of [`flagstone_blockdev::device`]. If the device breaks
//! the promise, the check panics with the offset and the seed.

mod basic;
mod changes;
mod concurrent;
pub mod crash;
mod kit;
mod model;
mod reopen;

use flagstone_blockdev::SharedDevice;
use flagstone_blockdev::device::MAX_TRANSFER_BYTES;
use kit::Kit;

/// Thoroughness of the checks, and exemptions of the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Determines the data and the order of random calls.
    pub seed: u64,
    /// Longest transfer to try, in bytes.
    pub max_transfer_bytes: usize,
    /// Offsets of internal boundaries of the device, such as the chunks of a stripe: transfers are
    /// tried around their first multiples.
    pub boundaries_bytes: Vec<u64>,
    /// Random calls compared with a model.
    pub model_steps: usize,
    /// Bytes of the device that the model covers.
    pub model_bytes: u64,
    /// Concurrent tasks.
    pub tasks: usize,
    /// Rounds per task.
    pub rounds: usize,
    /// Overlapping calls leave blocks whole. False for disks, which guarantee that for a sector
    /// only: then only overlapping writes are made, and checked by sectors when all are done.
    pub whole_blocks: bool,
    /// Reads return written data. False for the null device only.
    pub remembers: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            seed: 1,
            max_transfer_bytes: MAX_TRANSFER_BYTES,
            boundaries_bytes: Vec::new(),
            model_steps: 1000,
            model_bytes: 1 << 20,
            tasks: 32,
            rounds: 32,
            whole_blocks: true,
            remembers: true,
        }
    }
}

impl Options {
    /// Short transfers and few rounds: for slow devices, and for many seeds.
    pub fn quick(seed: u64) -> Options {
        Options {
            seed,
            max_transfer_bytes: 256 << 10,
            model_steps: 200,
            model_bytes: 256 << 10,
            tasks: 8,
            rounds: 8,
            ..Options::default()
        }
    }
}

/// Runs every check, each on a device from `make`. The device may contain any data, has at least 64
/// blocks, and has no other users. It is dropped after the check; calls made on it may then still
/// be in flight.
///
/// # Panics
/// If the device breaks a promise.
pub async fn run(make: impl AsyncFn() -> SharedDevice, options: Options) {
    let kit = async || Kit::new(make().await, &options);
    basic::geometry_is_consistent(&kit().await);
    basic::invalid_ranges_fail_without_effect(&mut kit().await).await;
    if kit().await.geometry.read_only {
        return basic::read_only_device_refuses_changes(&mut kit().await).await;
    }
    basic::flushes_and_durable_writes_complete(&mut kit().await).await;
    basic::unaligned_memory_works(&mut kit().await).await;
    changes::zeroes_are_written_with_any_flags(&mut kit().await).await;
    concurrent::dropped_calls_leave_device_usable(&mut kit().await).await;
    if !options.remembers {
        return;
    }
    basic::reads_return_written_data(&mut kit().await).await;
    basic::first_and_last_blocks_work(&mut kit().await).await;
    changes::discarded_blocks_are_stable(&mut kit().await).await;
    changes::holes_read_as_zeroes(&mut kit().await).await;
    concurrent::disjoint_calls_are_independent(&mut kit().await).await;
    concurrent::overlapping_calls_leave_whole_blocks(&mut kit().await).await;
    concurrent::writes_are_visible_across_cores(&mut kit().await).await;
    model::random_calls_match_model(&mut kit().await).await;
}

/// Checks that durable data is still present after the device was dropped and opened again. `open`
/// returns a device with the same data each time. It may first crash the layers below the device,
/// because data that is not promised durable is not checked.
///
/// # Panics
/// If durable data is missing.
pub async fn run_with_reopen(open: impl AsyncFn() -> SharedDevice, options: Options) {
    reopen::durable_data_survives(open, &options).await;
}
