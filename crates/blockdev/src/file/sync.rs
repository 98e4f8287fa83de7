//! Sync group: one sync for all waiting flushes, and the handling of its failure.
//!
//! The kernel reports lost writes once, to one of the concurrent syncs; the next sync reports
//! success. So at most one sync runs at a time, and all waiters share its result. It runs in a task
//! of its own, so that its result is seen even if all waiters are gone. A failure is kept. As a
//! side effect, many flushes cost one sync.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};

use parking_lot::Mutex;

use crate::IoError;

/// The syncs of one device, for all cores.
#[derive(Debug, Default)]
pub(super) struct SyncGroup {
    poisoned: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Number of the newest started sync.
    begun: u64,
    /// Number of the newest ended sync.
    ended: u64,
    /// A caller waits for a sync with a number above `begun`.
    again: bool,
    /// The task that syncs is alive.
    running: bool,
    /// The failed sync, and its error.
    failure: Option<(u64, IoError)>,
    waiting: Vec<Waker>,
}

impl SyncGroup {
    /// True once a sync has failed.
    pub(super) fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Acquire)
    }

    /// Makes all later calls fail.
    pub(super) fn poison(&self) {
        self.poisoned.store(true, Ordering::Release);
    }

    /// Makes all writes that completed before this call durable, with a sync that starts now or, if
    /// one is running, with the next one.
    ///
    /// # Errors
    /// The error of the sync, or [`IoError::Poisoned`] if an earlier one failed.
    pub(super) async fn sync(
        group: &Arc<SyncGroup>,
        sync: impl AsyncFn() -> Result<(), IoError> + 'static,
    ) -> Result<(), IoError> {
        if group.is_poisoned() {
            return Err(IoError::Poisoned);
        }
        let (ticket, start) = group.state.lock().enter();
        if start {
            flagstone_runtime::spawn_detached(run(group.clone(), sync));
        }
        poll_fn(|cx| group.poll(ticket, cx.waker())).await
    }

    fn poll(&self, ticket: u64, waker: &Waker) -> Poll<Result<(), IoError>> {
        let mut state = self.state.lock();
        match state.failure {
            Some((failed, error)) if ticket == failed => return Poll::Ready(Err(error)),
            Some((failed, _)) if ticket > failed => return Poll::Ready(Err(IoError::Poisoned)),
            _ if ticket <= state.ended => {}
            _ => {
                if !state.waiting.iter().any(|other| other.will_wake(waker)) {
                    state.waiting.push(waker.clone());
                }
                return Poll::Pending;
            }
        }
        // A durable write may have failed meanwhile.
        Poll::Ready(if self.is_poisoned() { Err(IoError::Poisoned) } else { Ok(()) })
    }

    /// Records the end of a sync and wakes its waiters. True if another sync is needed.
    fn finish(&self, result: Result<(), IoError>) -> bool {
        let mut state = self.state.lock();
        state.ended = state.begun;
        if let Err(error) = result {
            self.poison();
            state.failure = Some((state.ended, error));
            state.again = false;
        }
        let again = std::mem::take(&mut state.again);
        state.begun += u64::from(again);
        state.running = again;
        let mut woken = std::mem::take(&mut state.waiting);
        drop(state);
        for waker in woken.drain(..) {
            waker.wake();
        }
        let mut state = self.state.lock();
        if state.waiting.capacity() == 0 {
            state.waiting = woken;
        }
        again
    }
}

impl State {
    /// The number of the sync to wait for, and whether the caller must start it.
    fn enter(&mut self) -> (u64, bool) {
        if self.running {
            self.again = true;
            return (self.begun + 1, false);
        }
        self.running = true;
        self.begun += 1;
        (self.begun, true)
    }
}

/// Syncs while there are callers.
async fn run(group: Arc<SyncGroup>, sync: impl AsyncFn() -> Result<(), IoError>) {
    let mut watch = Watch { group: &group, unfinished: true };
    loop {
        if !group.finish(sync().await) {
            break;
        }
    }
    watch.unfinished = false;
}

/// A core that ends drops its tasks. The result of a running sync is then unknown, and counts as a
/// failure.
struct Watch<'a> {
    group: &'a SyncGroup,
    unfinished: bool,
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if self.unfinished {
            self.group.finish(Err(IoError::Unreachable));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::collections::VecDeque;
    use std::rc::Rc;

    use flagstone_runtime::sync::Notify;
    use flagstone_runtime::{block_on, spawn, task};

    use super::*;

    /// A sync whose results the test supplies.
    #[derive(Clone, Default)]
    struct Fake {
        begun: Rc<Cell<usize>>,
        results: Rc<RefCell<VecDeque<Result<(), IoError>>>>,
        given: Rc<Notify>,
    }

    impl Fake {
        async fn call(&self) -> Result<(), IoError> {
            self.begun.set(self.begun.get() + 1);
            self.given.wait_for(|| self.results.borrow_mut().pop_front()).await
        }

        fn give(&self, result: Result<(), IoError>) {
            self.results.borrow_mut().push_back(result);
            self.given.notify();
        }

        fn flush(&self, group: &Arc<SyncGroup>) -> task::JoinHandle<Result<(), IoError>> {
            let (fake, group) = (self.clone(), group.clone());
            spawn(async move { SyncGroup::sync(&group, async move || fake.call().await).await })
        }
    }

    async fn settle() {
        for _ in 0..10 {
            task::yield_now().await;
        }
    }

    #[test]
    fn callers_during_sync_share_next_sync() {
        block_on(async {
            let (fake, group) = (Fake::default(), Arc::default());
            let first = fake.flush(&group);
            settle().await;
            let late: Vec<_> = (0..5).map(|_| fake.flush(&group)).collect();
            settle().await;
            assert_eq!(fake.begun.get(), 1, "a sync that began earlier does not count for them");
            fake.give(Ok(()));
            assert_eq!(first.await, Ok(Ok(())));
            assert!(late.iter().all(|flush| !flush.is_finished()));
            fake.give(Ok(()));
            for flush in late {
                assert_eq!(flush.await, Ok(Ok(())));
            }
            assert_eq!(fake.begun.get(), 2);
            let alone = fake.flush(&group);
            fake.give(Ok(()));
            assert_eq!(alone.await, Ok(Ok(())));
            assert!(!group.is_poisoned());
        })
        .unwrap();
    }

    #[test]
    fn sync_failure_reaches_all_callers() {
        block_on(async {
            let (fake, group) = (Fake::default(), Arc::default());
            let first = fake.flush(&group);
            settle().await;
            let second = fake.flush(&group);
            settle().await;
            fake.give(Err(IoError::WriteFault));
            assert_eq!(first.await, Ok(Err(IoError::WriteFault)));
            assert_eq!(second.await, Ok(Err(IoError::Poisoned)));
            assert_eq!(fake.flush(&group).await, Ok(Err(IoError::Poisoned)));
            assert_eq!(fake.begun.get(), 1, "a sync after a failed one would lie");
        })
        .unwrap();
    }

    #[test]
    fn sync_failure_without_waiters_counts() {
        block_on(async {
            let (fake, group) = (Fake::default(), Arc::<SyncGroup>::default());
            let flush = fake.flush(&group);
            settle().await;
            flush.abort();
            settle().await;
            fake.give(Err(IoError::WriteFault));
            settle().await;
            assert!(group.is_poisoned());
        })
        .unwrap();
    }

    #[test]
    fn abandoned_sync_counts_as_failure() {
        let group = Arc::<SyncGroup>::default();
        block_on(async {
            drop(Fake::default().flush(&group));
            settle().await;
        })
        .unwrap();
        assert!(group.is_poisoned());
    }
}
