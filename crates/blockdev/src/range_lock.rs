//! Range lock: orders overlapping calls of tasks on any core, with [`crate::range_table`].
//!
//! A mirrored write holds its range until both legs have it, so both legs apply overlapping writes
//! in the same order and end up equal. A read waits for such writes, so no host reads data that a
//! failure could take back. A resync locks the range that it copies in the same way. An unmirrored
//! volume locks ranges only once a host has used Compare and Write.
//!
//! The mutex is held for one scan of the calls in flight, not across an await or a wake.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use crate::range_table::{CallNumber, RangeAccess, RangeDecision, RangeTable};
use parking_lot::{Mutex, MutexGuard};

/// Ranges of a device that calls on any core use.
#[derive(Debug, Default)]
pub struct RangeLock {
    ranges: Mutex<RangeTable>,
}

/// A locked range, released on drop.
#[derive(Debug)]
pub struct RangeGuard {
    range_lock: Arc<RangeLock>,
    number: CallNumber,
}

/// Result of [`RangeLock::change`].
#[derive(Debug)]
pub enum RangeRequest {
    /// The range is locked.
    Granted(RangeGuard),
    /// The range is used: the guard has its place in the order.
    Waiting(RangeGuard),
}

impl RangeLock {
    fn lock(&self) -> MutexGuard<'_, RangeTable> {
        self.ranges.lock()
    }

    fn enter(self: &Arc<Self>, offset: u64, len: u64, access: RangeAccess) -> RangeRequest {
        let guard = |number| RangeGuard { range_lock: self.clone(), number };
        // A separate statement, so that the mutex is released at its end.
        let entered = self.lock().enter(offset, offset + len, access);
        match entered {
            RangeDecision::Granted(number) => RangeRequest::Granted(guard(number)),
            RangeDecision::Blocked(number) => RangeRequest::Waiting(guard(number)),
        }
    }

    /// Requests a range for writing. The position in the order is taken immediately.
    pub fn change(self: &Arc<Self>, offset: u64, len: u64) -> RangeRequest {
        self.enter(offset, len, RangeAccess::Write)
    }

    /// Requests a range for copying or comparing. Same rules as for writing.
    pub fn copy(self: &Arc<Self>, offset: u64, len: u64) -> RangeRequest {
        self.enter(offset, len, RangeAccess::Copy)
    }

    /// Requests a range for reading; `None` when it can be read at once.
    pub fn read(self: &Arc<Self>, offset: u64, len: u64) -> Option<RangeGuard> {
        match self.lock().enter(offset, offset + len, RangeAccess::Read) {
            RangeDecision::Granted(_) => None,
            RangeDecision::Blocked(number) => Some(RangeGuard { range_lock: self.clone(), number }),
        }
    }

    /// Host calls in flight or waiting, and the number that wait.
    pub fn counts(&self) -> (usize, usize) {
        let ranges = self.lock();
        (ranges.len(), ranges.waiting())
    }
}

impl RangeRequest {
    /// Waits until the range is locked.
    pub async fn acquired(self) -> RangeGuard {
        match self {
            RangeRequest::Granted(guard) => guard,
            RangeRequest::Waiting(guard) => {
                guard.granted().await;
                guard
            }
        }
    }
}

impl RangeGuard {
    /// Waits until the range is locked.
    pub async fn granted(&self) {
        poll_fn(|cx| match self.range_lock.lock().is_granted(self.number, cx.waker()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
    }
}

/// Number of wakers kept on the stack; more go to the heap.
const WAKE_AT_ONCE: usize = 4;

impl Drop for RangeGuard {
    fn drop(&mut self) {
        let mut few: [Option<Waker>; WAKE_AT_ONCE] = [const { None }; WAKE_AT_ONCE];
        let mut more = Vec::new();
        let mut count = 0;
        self.range_lock.lock().leave(self.number, |waker| {
            match few.get_mut(count) {
                Some(place) => *place = Some(waker),
                None => more.push(waker),
            }
            count += 1;
        });
        few.into_iter().flatten().chain(more).for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use flagstone_runtime::{block_on, spawn, task};

    use super::*;

    #[test]
    fn all_waiters_of_one_range_are_granted() {
        block_on(async {
            let range_lock = Arc::new(RangeLock::default());
            let first = range_lock.change(0, 100).acquired().await;
            let order = Rc::new(RefCell::new(Vec::new()));
            let mut tasks = Vec::new();
            for number in 0..10u64 {
                let request = range_lock.change(number * 10, 10);
                let order = order.clone();
                tasks.push(spawn(async move {
                    let _guard = request.acquired().await;
                    order.borrow_mut().push(number);
                }));
            }
            task::yield_now().await;
            assert!(order.borrow().is_empty());
            assert_eq!(range_lock.counts(), (11, 10));
            assert!(range_lock.read(5, 1).is_some() && range_lock.read(200, 1).is_none());
            drop(first);
            for task in tasks {
                task.await.unwrap();
            }
            assert_eq!(order.borrow().len(), 10);
            assert_eq!(range_lock.counts(), (0, 0));
        })
        .unwrap();
    }
}
