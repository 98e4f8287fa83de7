//! Shutdown signal: one handle reaches all connections on all cores.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

/// One-time signal that any number of tasks on any core may wait for. Clones share the signal.
#[derive(Clone, Debug, Default)]
pub struct Drain(Arc<State>);

#[derive(Debug, Default)]
struct State {
    begun: AtomicBool,
    next: AtomicU64,
    waiting: Mutex<BTreeMap<u64, Waker>>,
}

impl Drain {
    pub fn new() -> Drain {
        Drain::default()
    }

    /// Sets the signal: listeners stop, and connections finish their requests in flight and close.
    pub fn begin(&self) {
        self.0.begun.store(true, Ordering::SeqCst);
        let waiting = std::mem::take(&mut *self.0.waiting.lock());
        for waker in waiting.into_values() {
            waker.wake();
        }
    }

    pub fn has_begun(&self) -> bool {
        self.0.begun.load(Ordering::Acquire)
    }

    pub async fn begun(&self) {
        let mut place = self.place();
        poll_fn(|cx| place.poll(cx)).await;
    }

    /// Runs `future`, and drops it if the signal is set first.
    pub(crate) async fn unless_begun<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut place = self.place();
        let mut future = pin!(future);
        poll_fn(|cx| {
            if place.poll(cx).is_ready() {
                return Poll::Ready(None);
            }
            future.as_mut().poll(cx).map(Some)
        })
        .await
    }

    pub(crate) fn place(&self) -> DrainWaiter {
        DrainWaiter { id: self.0.next.fetch_add(1, Ordering::Relaxed), drain: self.clone() }
    }
}

#[derive(Debug)]
pub(crate) struct DrainWaiter {
    id: u64,
    drain: Drain,
}

impl DrainWaiter {
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.drain.has_begun() {
            return Poll::Ready(());
        }
        self.drain.0.waiting.lock().insert(self.id, cx.waker().clone());
        // The signal may have been set before the waker was stored.
        if self.drain.has_begun() { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for DrainWaiter {
    fn drop(&mut self) {
        self.drain.0.waiting.lock().remove(&self.id);
    }
}
