//! Block lock: separates read-modify-write of partial blocks from all other changes of an export.
//!
//! Clients that did not negotiate block sizes may write part of a block. No other change of the
//! export may run between the read and the write of that block, on any core, or it would be undone.
//! Whole-block changes share the lock, at the cost of two atomic operations each. A partial change
//! holds it exclusively. Changes that reach the device other than through this server's exports are
//! not covered.

use std::sync::atomic::{AtomicU32, Ordering};

use flagstone_runtime::sync::SharedNotify;

/// Set while an exclusive holder exists or waits.
const EXCLUSIVE: u32 = 1 << 31;

#[derive(Debug, Default)]
pub(crate) struct BlockLock {
    /// [`EXCLUSIVE`] and the number of shared holders.
    state: AtomicU32,
    released: SharedNotify,
}

impl BlockLock {
    #[inline]
    pub(crate) fn try_lock_shared(&self) -> bool {
        let enter = |state: u32| (state & EXCLUSIVE == 0).then_some(state + 1);
        self.state.fetch_update(Ordering::Acquire, Ordering::Relaxed, enter).is_ok()
    }

    #[inline]
    pub(crate) fn unlock_shared(&self) {
        if self.state.fetch_sub(1, Ordering::Release) & EXCLUSIVE != 0 {
            self.released.notify();
        }
    }

    pub(crate) async fn lock_shared(&self) {
        self.released.wait_for(|| self.try_lock_shared().then_some(())).await;
    }

    /// Waits for exclusive access; dropping the guard releases it.
    pub(crate) async fn lock_exclusive(&self) -> ExclusiveGuard<'_> {
        let begin = || self.state.fetch_or(EXCLUSIVE, Ordering::Acquire) & EXCLUSIVE == 0;
        self.released.wait_for(|| begin().then_some(())).await;
        // Blocks new holders from here on. The guard releases the lock even if this future is
        // dropped.
        let guard = ExclusiveGuard(self);
        let alone = || self.state.load(Ordering::Acquire) == EXCLUSIVE;
        self.released.wait_for(|| alone().then_some(())).await;
        guard
    }
}

#[derive(Debug)]
pub(crate) struct ExclusiveGuard<'a>(&'a BlockLock);

impl Drop for ExclusiveGuard<'_> {
    fn drop(&mut self) {
        self.0.state.fetch_and(!EXCLUSIVE, Ordering::Release);
        self.0.released.notify();
    }
}
