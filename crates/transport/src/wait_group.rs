//! Wait group: waits for work on all cores.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, Waker};

use flagstone_runtime::CoreHandle;
use parking_lot::Mutex;

/// Parts of the group that have not ended.
#[derive(Default)]
pub struct WaitGroup {
    left: AtomicUsize,
    waker: Mutex<Option<Waker>>,
}

/// Part of a wait group. It ends when dropped, even if its core stops before running it.
pub struct WaitGroupPart(Arc<WaitGroup>);

impl WaitGroup {
    /// Adds a part.
    pub fn part(self: &Arc<WaitGroup>) -> WaitGroupPart {
        self.left.fetch_add(1, Ordering::AcqRel);
        WaitGroupPart(self.clone())
    }

    /// Waits until all parts have ended; their effects are then visible. Only one task may wait.
    pub async fn wait(&self) {
        poll_fn(|cx| {
            *self.waker.lock() = Some(cx.waker().clone());
            // Checked after the waker is stored: either this check or the last part sees the other.
            match self.left.load(Ordering::Acquire) {
                0 => Poll::Ready(()),
                _ => Poll::Pending,
            }
        })
        .await;
    }
}

impl Drop for WaitGroupPart {
    fn drop(&mut self) {
        if self.0.left.fetch_sub(1, Ordering::AcqRel) == 1
            && let Some(waker) = self.0.waker.lock().take()
        {
            waker.wake();
        }
    }
}

/// Waits for a grace period: every core has finished what it was running at the call, and sees
/// everything published before. Code without an await therefore either ran completely before, and
/// its effects are visible, or sees what was published. Cores need no fence for this.
pub async fn grace_period(cores: &[CoreHandle]) {
    let group = Arc::new(WaitGroup::default());
    for core in cores {
        let part = group.part();
        core.spawn(move || async move { drop(part) });
    }
    group.wait().await;
}
