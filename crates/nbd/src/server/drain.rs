//! Going down in good order: one handle tells all connections of all cores.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Begins a drain once, and lets any number of tasks of any core wait for it. Clones are the same
/// handle.
#[derive(Clone, Debug, Default)]
pub struct Drain(Arc<State>);

#[derive(Debug, Default)]
struct State {
    begun: AtomicBool,
    next: AtomicU64,
    waiting: Mutex<BTreeMap<u64, Waker>>,
}

impl Drain {
    /// Not begun.
    pub fn new() -> Drain {
        Drain::default()
    }

    /// Begins: listeners stop, and connections finish what they have in flight and close.
    pub fn begin(&self) {
        self.0.begun.store(true, Ordering::SeqCst);
        let waiting = std::mem::take(&mut *self.waiting());
        for waker in waiting.into_values() {
            waker.wake();
        }
    }

    /// True once [`Drain::begin`] was called.
    pub fn has_begun(&self) -> bool {
        self.0.begun.load(Ordering::Acquire)
    }

    /// Waits for [`Drain::begin`].
    pub async fn begun(&self) {
        let mut place = self.place();
        poll_fn(|cx| place.poll(cx)).await;
    }

    /// Runs `future`, or drops it when the drain begins first.
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

    pub(crate) fn place(&self) -> Place {
        Place { id: self.0.next.fetch_add(1, Ordering::Relaxed), drain: self.clone() }
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<u64, Waker>> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One waiter's place in a drain.
#[derive(Debug)]
pub(crate) struct Place {
    id: u64,
    drain: Drain,
}

impl Place {
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.drain.has_begun() {
            return Poll::Ready(());
        }
        self.drain.waiting().insert(self.id, cx.waker().clone());
        // It may have begun before the waker was in its place.
        if self.drain.has_begun() { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.drain.waiting().remove(&self.id);
    }
}
