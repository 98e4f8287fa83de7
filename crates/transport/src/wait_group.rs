//! Wait group: waits for work on all cores.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use flagstone_runtime::CoreHandle;
use flagstone_runtime::sync::SharedNotify;

/// Parts of the group that have not ended.
#[derive(Debug, Default)]
pub struct WaitGroup {
    left: AtomicUsize,
    ended: SharedNotify,
}

/// Part of a wait group. It ends when dropped, even if its core stops before running it.
#[derive(Debug)]
pub struct WaitGroupPart(Arc<WaitGroup>);

impl WaitGroup {
    /// Adds a part.
    pub fn part(self: &Arc<WaitGroup>) -> WaitGroupPart {
        self.left.fetch_add(1, Ordering::AcqRel);
        WaitGroupPart(self.clone())
    }

    /// Waits until all parts have ended; their effects are then visible.
    pub async fn wait(&self) {
        self.ended.wait_for(|| (self.left.load(Ordering::Acquire) == 0).then_some(())).await;
    }
}

impl Drop for WaitGroupPart {
    fn drop(&mut self) {
        if self.0.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.ended.notify();
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
