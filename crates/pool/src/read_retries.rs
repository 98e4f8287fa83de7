//! Read retries: reads that decide whether data is lost are repeated while the device may come
//! back.
//!
//! Invariant: a block counts as defective only if reads of it failed for [`READ_RETRY_TIME`], or
//! for what is left of [`READ_RETRY_TOTAL`], and once more after the device had read a superblock.
//! Every other failure is one of the device: what is on it may be whole.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::time::Duration;

use flagstone_blockdev::IoError;
use flagstone_runtime::time;

use crate::limits::{READ_PAUSE, READ_RETRY_TIME, READ_RETRY_TOTAL};
use crate::ondisk::superblock::{COPIES, copy_offset};
use crate::storage::{NamedDevice, Storage, read_block};

/// A read that the device failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unread {
    /// A block of it.
    pub(crate) location: u64,
    pub(crate) error: IoError,
}

/// Why repeated reads gave nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// The device reads, but not this block.
    Defect,
    /// The device fails.
    Device(Unread),
}

/// Time left for retries of one checkpoint or opening.
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
    /// Repeats a read until it succeeds, time is over, or `is_stopped`.
    ///
    /// # Errors
    /// [`Unreadable`].
    pub(crate) async fn read<T>(
        &self,
        storage: &Storage,
        is_stopped: impl Fn() -> bool,
        attempt: impl AsyncFn() -> Result<T, Unread>,
    ) -> Result<T, Unreadable> {
        self.read_of(|location| storage.device_of(location), is_stopped, attempt).await
    }

    /// Same, of the devices that have the blocks.
    ///
    /// # Errors
    /// [`Unreadable`].
    pub(crate) async fn read_of<'d, T>(
        &self,
        device_of: impl Fn(u64) -> &'d NamedDevice,
        is_stopped: impl Fn() -> bool,
        attempt: impl AsyncFn() -> Result<T, Unread>,
    ) -> Result<T, Unreadable> {
        let mut waited = (None, Duration::ZERO);
        loop {
            let unread = match attempt().await {
                Ok(read) => return Ok(read),
                Err(unread) => unread,
            };
            if self.defects.borrow().contains(&unread.location) {
                return Err(Unreadable::Defect);
            }
            if waited.0 != Some(unread.location) {
                let Unread { location, error } = unread;
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

    /// The last attempt.
    async fn judge<T>(
        &self,
        device: &NamedDevice,
        unread: Unread,
        attempt: impl AsyncFn() -> Result<T, Unread>,
    ) -> Result<T, Unreadable> {
        let answers = unread.error == IoError::ReadFault && reads(device).await;
        match attempt().await {
            Ok(read) => Ok(read),
            Err(again) if answers && again == unread => {
                self.defects.borrow_mut().insert(unread.location);
                Err(Unreadable::Defect)
            }
            Err(again) => Err(Unreadable::Device(again)),
        }
    }
}

/// True if a device reads a copy of its superblock.
async fn reads(named: &NamedDevice) -> bool {
    for copy in 0..COPIES {
        if read_block(&named.device, copy_offset(copy)).await.is_ok() {
            return true;
        }
    }
    false
}
