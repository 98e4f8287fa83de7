//! Keeps read-modify-write of partial blocks apart from all other changes of an export.
//!
//! Clients that did not promise to send whole blocks may write half of one. Between the read and
//! the write of that block no other change of the export may happen, or it would be undone, on
//! whatever core it runs. So whole-block changes share the gate, at the cost of two atomic
//! operations each, and a partial one has it alone. Nothing is known here of changes that reach the
//! same device by other ways than this server's exports.

use std::future::poll_fn;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::{Poll, Waker};

/// Set while someone has the gate alone, or waits for the others to leave.
const ALONE: u32 = 1 << 31;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    /// [`ALONE`] and the number of those inside that share.
    state: AtomicU32,
    waiting: Mutex<Vec<Waker>>,
}

impl Gate {
    /// Enters beside others, unless someone is or wants to be alone.
    #[inline]
    pub(crate) fn try_share(&self) -> bool {
        let enter = |state: u32| (state & ALONE == 0).then_some(state + 1);
        self.state.fetch_update(Ordering::Acquire, Ordering::Relaxed, enter).is_ok()
    }

    /// Leaves what [`Gate::try_share`] or [`Gate::share`] entered.
    #[inline]
    pub(crate) fn leave_shared(&self) {
        if self.state.fetch_sub(1, Ordering::Release) & ALONE != 0 {
            self.wake();
        }
    }

    /// Waits to enter beside others.
    pub(crate) async fn share(&self) {
        self.wait_for(|| self.try_share()).await;
    }

    /// Waits to be alone; the guard ends it.
    pub(crate) async fn alone(&self) -> Alone<'_> {
        self.wait_for(|| self.state.fetch_or(ALONE, Ordering::Acquire) & ALONE == 0).await;
        // From here on nobody enters, and the guard opens again even if we are dropped waiting.
        let guard = Alone(self);
        self.wait_for(|| self.state.load(Ordering::Acquire) == ALONE).await;
        guard
    }

    async fn wait_for(&self, mut entered: impl FnMut() -> bool) {
        poll_fn(|cx| {
            if entered() {
                return Poll::Ready(());
            }
            self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(cx.waker().clone());
            // Someone may have left before the waker was in its place.
            if entered() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    #[cold]
    fn wake(&self) {
        let woken =
            std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        for waker in woken {
            waker.wake();
        }
    }
}

/// Being alone in a gate.
#[derive(Debug)]
pub(crate) struct Alone<'a>(&'a Gate);

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.state.fetch_and(!ALONE, Ordering::Release);
        self.0.wake();
    }
}
