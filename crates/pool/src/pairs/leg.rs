//! Leg: one of the two devices of a pair, and its present use.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use flagstone_blockdev::{IoError, IoFuture};
use flagstone_runtime::{spawn_detached, time};
use parking_lot::Mutex;

use crate::limits::LEG_TIME_LIMIT;
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
    /// Calls that did not end in time, and still run.
    hung: Arc<AtomicUsize>,
    /// Segments that a rebuild in progress has copied.
    pub(super) copied: AtomicU32,
    /// Failed call that ended the use of the device.
    pub(super) failure: Mutex<Option<IoError>>,
}

impl LegDevice {
    pub(super) fn new(named: NamedDevice) -> Arc<LegDevice> {
        Arc::new(LegDevice {
            named,
            hung: Arc::default(),
            copied: AtomicU32::new(0),
            failure: Mutex::new(None),
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.named.name
    }

    /// True if calls did not end in time, and still run.
    pub(super) fn has_hung_calls(&self) -> bool {
        self.hung.load(Ordering::Acquire) > 0
    }

    /// Ends a call in time.
    pub(super) async fn limited<T: 'static>(&self, mut call: IoFuture<T>) -> Result<T, IoError> {
        if let Ok(result) = time::timeout(LEG_TIME_LIMIT, &mut call).await {
            return result;
        }
        tracing::error!(device = self.name(), "device does not answer");
        let hung = self.hung.clone();
        hung.fetch_add(1, Ordering::AcqRel);
        spawn_detached(async move {
            let _late = call.await;
            hung.fetch_sub(1, Ordering::AcqRel);
        });
        Err(IoError::Unreachable)
    }
}
