//! Exclusion: makes Compare and Write atomic against all other changes of a volume.
//!
//! Most hosts never use it, so changes lock no range before the first one. The first one locks the
//! whole volume, switches the lock on for all later changes, and waits for the changes that began
//! without it. From then on every change locks its range until the server restarts. Until then, a
//! change costs one relaxed load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flagstone_runtime::{cores, time};

use crate::limits::EXCLUSION_POLL;
use crate::range_lock::{RangeGuard, RangeLock};

/// Ranges of a volume that are being changed.
#[derive(Debug, Default)]
pub(crate) struct Exclusion {
    /// Changes that begin lock their range.
    is_on: AtomicBool,
    /// Every change that began without a lock has ended.
    is_complete: AtomicBool,
    ranges: Arc<RangeLock>,
}

impl Exclusion {
    /// True if a change has to lock its range first.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Locks the range of `len` bytes at `offset`, in order of arrival. `len` is not 0, and the end
    /// of the range does not overflow.
    pub(crate) async fn lock(&self, offset: u64, len: u64) -> RangeGuard {
        self.ranges.change(offset, len).acquired().await
    }

    /// Locks a range against all changes. `changes` counts those in progress.
    pub(crate) async fn exclude(
        &self,
        offset: u64,
        len: u64,
        changes: impl Fn() -> u64,
    ) -> RangeGuard {
        if !self.is_complete.load(Ordering::Acquire) {
            let _all = self.lock(0, u64::MAX).await;
            if !self.is_complete.load(Ordering::Acquire) {
                self.is_on.store(true, Ordering::Release);
                // What a core runs now may still have seen the lock off. It has counted its change
                // when it takes up a message.
                for core in cores() {
                    core.call(|| async {}).await;
                }
                while changes() > 0 {
                    time::sleep(EXCLUSION_POLL).await;
                }
                self.is_complete.store(true, Ordering::Release);
            }
        }
        self.lock(offset, len).await
    }
}
