//! Waits until something has been done on every core.

use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

use flagstone_runtime::CoreHandle;

/// Parts that have not ended.
#[derive(Default)]
pub(crate) struct Countdown {
    left: AtomicUsize,
    waker: Mutex<Option<Waker>>,
}

/// A part, which ends when it is dropped: also with a core that never comes to it.
pub(crate) struct Part(Arc<Countdown>);

impl Countdown {
    /// One more part.
    pub(crate) fn part(self: &Arc<Countdown>) -> Part {
        self.left.fetch_add(1, Ordering::AcqRel);
        Part(self.clone())
    }

    /// Waits until all parts have ended: what was done in them is seen from then on. For one that
    /// waits.
    pub(crate) async fn wait(&self) {
        poll_fn(|cx| {
            *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(cx.waker().clone());
            // Looked at after the waker is in its place: the last part sees one or the other.
            match self.left.load(Ordering::Acquire) {
                0 => Poll::Ready(()),
                _ => Poll::Pending,
            }
        })
        .await;
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if self.0.left.fetch_sub(1, Ordering::AcqRel) == 1
            && let Some(waker) = self.0.waker.lock().unwrap_or_else(PoisonError::into_inner).take()
        {
            waker.wake();
        }
    }
}

/// Waits until every core has ended what it was doing when this was called, and seen what was
/// published before. What a core does without an await in between has then either ended, and is
/// seen here, or begins with that in sight: so the cores need no fence for it.
pub(crate) async fn pass_by_all(cores: &[CoreHandle]) {
    let countdown = Arc::new(Countdown::default());
    for core in cores {
        let part = countdown.part();
        core.spawn(move || async move { drop(part) });
    }
    countdown.wait().await;
}
