//! Read retries: repetition of reads whose failure decides whether data is lost, because the device
//! may come back.
//!
//! Invariant: a block is treated as defective only after three steps: reads failed for
//! [`READ_RETRY_TIME`] (less if [`READ_RETRY_TOTAL`] is used up), the device then read its
//! superblock, and one more read of the block failed. Every other failure is a failure of the
//! device, whose content may be intact.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::time::Duration;

use flagstone_blockdev::IoError;
use flagstone_runtime::time;

use crate::limits::{READ_PAUSE, READ_RETRY_TIME, READ_RETRY_TOTAL};
use crate::ondisk::superblock::{COPIES, copy_offset};
use crate::storage::{NamedDevice, Storage, read_block};

/// Read that a device failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FailedRead {
    /// A block of the read.
    pub(crate) location: u64,
    pub(crate) error: IoError,
}

/// Reason why repeated reads failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadFailure {
    /// The block is defective: the device reads other blocks.
    Defect,
    /// The device fails.
    Device(FailedRead),
}

/// Retry state of one checkpoint or opening.
#[derive(Debug)]
pub(crate) struct ReadRetries {
    left: Cell<Duration>,
    defects: RefCell<BTreeSet<u64>>,
}

impl Default for ReadRetries {
    fn default() -> ReadRetries {
        ReadRetries { left: Cell::new(READ_RETRY_TOTAL), defects: RefCell::default() }
    }
}

impl ReadRetries {
    /// Repeats a read until it succeeds, the time is over, or `is_stopped`.
    ///
    /// # Errors
    /// [`ReadFailure`].
    pub(crate) async fn read<T>(
        &self,
        storage: &Storage,
        is_stopped: impl Fn() -> bool,
        attempt: impl AsyncFn() -> Result<T, FailedRead>,
    ) -> Result<T, ReadFailure> {
        self.read_of(|location| storage.device_of(location), is_stopped, attempt).await
    }

    /// As [`ReadRetries::read`], with a function that finds the device of a block.
    ///
    /// # Errors
    /// [`ReadFailure`].
    pub(crate) async fn read_of<'d, T>(
        &self,
        device_of: impl Fn(u64) -> &'d NamedDevice,
        is_stopped: impl Fn() -> bool,
        attempt: impl AsyncFn() -> Result<T, FailedRead>,
    ) -> Result<T, ReadFailure> {
        let mut waited = (None, Duration::ZERO);
        loop {
            let unread = match attempt().await {
                Ok(read) => return Ok(read),
                Err(unread) => unread,
            };
            if self.defects.borrow().contains(&unread.location) {
                return Err(ReadFailure::Defect);
            }
            if waited.0 != Some(unread.location) {
                let FailedRead { location, error } = unread;
                let device = &device_of(location).name;
                tracing::warn!(device, location, %error, "block cannot be read: trying again");
                waited = (Some(location), Duration::ZERO);
            }
            let pause = READ_PAUSE.min(self.left.get());
            if waited.1 >= READ_RETRY_TIME || pause.is_zero() || is_stopped() {
                return self.judge(device_of(unread.location), unread, attempt).await;
            }
            time::sleep(pause).await;
            self.left.set(self.left.get() - pause);
            waited.1 += pause;
        }
    }

    /// Makes the last attempt, and tells a defective block from a failed device.
    async fn judge<T>(
        &self,
        device: &NamedDevice,
        unread: FailedRead,
        attempt: impl AsyncFn() -> Result<T, FailedRead>,
    ) -> Result<T, ReadFailure> {
        let answers = unread.error == IoError::ReadFault && reads(device).await;
        match attempt().await {
            Ok(read) => Ok(read),
            Err(again) if answers && again == unread => {
                self.defects.borrow_mut().insert(unread.location);
                Err(ReadFailure::Defect)
            }
            Err(again) => Err(ReadFailure::Device(again)),
        }
    }
}

/// True if the device can read a copy of its superblock.
async fn reads(named: &NamedDevice) -> bool {
    for copy in 0..COPIES {
        if read_block(&named.device, copy_offset(copy)).await.is_ok() {
            return true;
        }
    }
    false
}
