//! Leg: one of the two devices of a pair, and its present use.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use flagstone_blockdev::{IoError, IoFuture};
use flagstone_runtime::{Buf, BufMut};
use parking_lot::Mutex;

use super::calls::WriteCalls;
use crate::ondisk::legs::LegState;
use crate::storage::NamedDevice;

/// Present use of a leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LegStatus {
    InSync,
    /// Gets all writes; reads do not use it.
    Behind {
        /// Segments that it has, from the first on.
        copied: u32,
    },
    /// Not attached at the opening, and not recorded as missing so far. It may have one update more
    /// than the other legs: a crash interrupted that update.
    Absent,
    /// Not used any more, and not recorded as missing so far.
    Failed,
    Missing,
}

impl LegStatus {
    /// State in the next superblock.
    pub(super) fn recorded(self) -> LegState {
        match self {
            LegStatus::InSync => LegState::InSync,
            LegStatus::Behind { copied } => LegState::Behind { copied },
            LegStatus::Absent | LegStatus::Failed | LegStatus::Missing => LegState::Missing,
        }
    }

    pub(super) fn is_written(self) -> bool {
        matches!(self, LegStatus::InSync | LegStatus::Behind { .. })
    }
}

/// The device of a leg. A replacement makes another one, so that calls and rebuilds of the former
/// device cannot be mistaken for those of the new one.
#[derive(Debug)]
pub(super) struct LegDevice {
    pub(super) named: NamedDevice,
    calls: Arc<WriteCalls>,
    /// Segments that a rebuild in progress has copied.
    pub(super) copied: AtomicU32,
    /// Failed call that ended the use of the device.
    pub(super) failure: Mutex<Option<IoError>>,
}

impl LegDevice {
    pub(super) fn new(named: NamedDevice) -> Arc<LegDevice> {
        let calls = WriteCalls::of(&named.device);
        Arc::new(LegDevice { named, calls, copied: AtomicU32::new(0), failure: Mutex::new(None) })
    }

    pub(super) fn name(&self) -> &str {
        &self.named.name
    }

    /// True if writes are in progress, whether their callers wait for them or not.
    pub(super) fn has_writes(&self) -> bool {
        self.calls.are_running()
    }

    pub(super) fn read(&self, offset: u64, buf: BufMut) -> IoFuture<BufMut> {
        self.named.device.read(offset, buf)
    }

    /// Writes. The write continues if the caller is dropped.
    ///
    /// # Errors
    /// Of the device.
    pub(super) async fn write(&self, offset: u64, data: Buf, fua: bool) -> Result<(), IoError> {
        self.calls.write(offset, data, fua).await
    }

    pub(super) fn flush(&self) -> IoFuture<()> {
        self.named.device.flush()
    }
}
