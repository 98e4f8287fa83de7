//! The suite that every device and every layer passes.
//!
//! Plain functions, so that any crate with a device can run them in its own tests, on any driver:
//!
//! ```
//! use std::sync::Arc;
//! use flagstone_blockdev::conformance::{self, Options};
//! use flagstone_blockdev::{MemoryDevice, SharedDevice};
//!
//! let make = async || Arc::new(MemoryDevice::new(1 << 20, 512).unwrap()) as SharedDevice;
//! flagstone_runtime::block_on(conformance::run(make, Options::quick(1))).unwrap();
//! ```
//!
//! Each check states a promise of [`crate::device`] in its name and panics, with the place and the
//! seed, when the device breaks it.

mod basic;
mod changes;
mod concurrent;
mod kit;
mod model;
mod reopen;

use crate::SharedDevice;
use crate::device::MAX_TRANSFER_BYTES;
use kit::Kit;

/// How thoroughly to check, and what the device is excused from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Determines the data and the order of random calls.
    pub seed: u64,
    /// Longest transfer to try, in bytes.
    pub max_transfer_bytes: usize,
    /// Offsets where something changes inside the device (a stripe's chunk): transfers are tried
    /// around their first multiples.
    pub boundaries_bytes: Vec<u64>,
    /// Random calls compared with a model.
    pub model_steps: usize,
    /// Bytes of the device that the model covers.
    pub model_bytes: u64,
    /// Tasks that call at the same time.
    pub tasks: usize,
    /// Rounds of each of these tasks.
    pub rounds: usize,
    /// Overlapping calls leave blocks whole. False for disks, which promise that for a sector: then
    /// only overlapping writes are made, and looked at by sectors when they are done.
    pub whole_blocks: bool,
    /// Reads return what was written. False for the null device alone.
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

/// Runs every check, each on a device from `make`, which may hold any data, needs 64 blocks at
/// least, and is not used by anyone else. The devices are dropped; the calls that they were given
/// may still be in flight then.
///
/// # Panics
/// When the device breaks a promise.
pub async fn run(make: impl AsyncFn() -> SharedDevice, options: Options) {
    let kit = async || Kit::new(make().await, &options);
    basic::geometry_makes_sense(&kit().await);
    basic::ranges_that_are_not_the_devices_fail_without_effect(&mut kit().await).await;
    if kit().await.geometry.read_only {
        return basic::a_read_only_device_refuses_changes(&mut kit().await).await;
    }
    basic::flushes_and_durable_writes_complete(&mut kit().await).await;
    basic::memory_at_any_address_works(&mut kit().await).await;
    changes::zeroes_are_written_with_any_flags(&mut kit().await).await;
    concurrent::dropped_calls_leave_the_device_usable(&mut kit().await).await;
    if !options.remembers {
        return;
    }
    basic::reads_return_what_was_written(&mut kit().await).await;
    basic::the_first_and_last_blocks_are_like_others(&mut kit().await).await;
    changes::discarded_blocks_are_zeroes_or_old_and_stay_so(&mut kit().await).await;
    concurrent::calls_on_different_ranges_do_not_disturb_each_other(&mut kit().await).await;
    concurrent::overlapping_calls_leave_whole_blocks(&mut kit().await).await;
    concurrent::cores_see_each_others_writes(&mut kit().await).await;
    model::random_calls_equal_a_vector(&mut kit().await).await;
}

/// Checks that what was promised to be durable is there after the device was dropped and opened
/// again: `open` returns the same data each time. It may crash what lies below the device first:
/// data that was not promised is not looked at.
///
/// # Panics
/// When promised data is gone.
pub async fn run_with_reopen(open: impl AsyncFn() -> SharedDevice, options: Options) {
    reopen::durable_data_survives(open, &options).await;
}
