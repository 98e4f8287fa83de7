//! Wake-up of a task that pauses between attempts.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use flagstone_runtime::sync::Notify;
use flagstone_runtime::time;

/// A pause that can be ended early. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Wake(Rc<(Notify, Cell<u64>)>);

impl Wake {
    /// Ends the pauses in progress, and the next one of a task that is in an attempt.
    pub(crate) fn wake(&self) {
        let (notify, count) = &*self.0;
        count.set(count.get() + 1);
        notify.notify();
    }

    /// Number of wake-ups until now.
    pub(crate) fn count(&self) -> u64 {
        self.0.1.get()
    }

    /// Waits for `pause`, or for a wake-up after the first `seen`; then true.
    pub(crate) async fn pause(&self, pause: Duration, seen: &mut u64) -> bool {
        let (notify, count) = &*self.0;
        let woken = notify.wait_for(|| (count.get() != *seen).then_some(()));
        let is_woken = time::timeout(pause, woken).await.is_ok();
        *seen = count.get();
        is_woken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wake_up_during_an_attempt_ends_the_next_pause() {
        flagstone_runtime::block_on(async {
            let wake = Wake::default();
            let mut seen = wake.count();
            wake.wake();
            wake.wake();
            assert!(wake.pause(Duration::from_secs(3600), &mut seen).await);
            assert!(!wake.pause(Duration::ZERO, &mut seen).await);
        })
        .unwrap();
    }
}
