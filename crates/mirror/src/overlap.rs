//! Overlapping calls one after the other: [`crate::ranges`] for tasks of any core.
//!
//! Because a change holds its range until it is on both legs, both see overlapping changes in one
//! order, and end up the same. Because a read waits for them, no host reads what a failure may take
//! back. Resync holds the range that it copies in the same way.
//!
//! The lock is held for one look through the calls in flight, never across an await, and nobody is
//! woken under it.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use crate::ranges::{Access, Entered, Number, Ranges};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Overlap {
    ranges: Mutex<Ranges>,
}

/// A range that is held: it is given back when dropped.
#[derive(Debug)]
pub(crate) struct Held {
    overlap: Arc<Overlap>,
    number: Number,
}

/// What [`Overlap::change`] gives.
#[derive(Debug)]
pub(crate) enum Asked {
    /// The range is held.
    Now(Held),
    /// Its turn comes: wait for it.
    Later(Held),
}

impl Overlap {
    fn lock(&self) -> MutexGuard<'_, Ranges> {
        // A panic in there leaves a list that is whole.
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(self: &Arc<Self>, offset: u64, len: u64, access: Access) -> Asked {
        let held = |number| Held { overlap: self.clone(), number };
        // In a statement of its own: the lock ends with it.
        let entered = self.lock().enter(offset, offset + len, access);
        match entered {
            Entered::Go(number) => Asked::Now(held(number)),
            Entered::Wait(number) => Asked::Later(held(number)),
        }
    }

    /// Asks for a range to change. The place in the order is taken at once.
    pub(crate) fn change(self: &Arc<Self>, offset: u64, len: u64) -> Asked {
        self.enter(offset, len, Access::Change)
    }

    /// Asks for a range to copy or compare, as for one to change.
    pub(crate) fn copy(self: &Arc<Self>, offset: u64, len: u64) -> Asked {
        self.enter(offset, len, Access::Copy)
    }

    /// Asks to read a range; `None` when it may be read at once.
    pub(crate) fn read(self: &Arc<Self>, offset: u64, len: u64) -> Option<Held> {
        match self.lock().enter(offset, offset + len, Access::Read) {
            Entered::Go(_) => None,
            Entered::Wait(number) => Some(Held { overlap: self.clone(), number }),
        }
    }

    /// Calls of hosts in flight or waiting, and those of them that wait.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let ranges = self.lock();
        (ranges.len(), ranges.waiting())
    }
}

impl Asked {
    /// Waits for the range.
    pub(crate) async fn held(self) -> Held {
        match self {
            Asked::Now(held) => held,
            Asked::Later(held) => {
                held.turn().await;
                held
            }
        }
    }
}

impl Held {
    /// Waits until the range may be touched.
    pub(crate) async fn turn(&self) {
        poll_fn(|cx| match self.overlap.lock().may_go(self.number, cx.waker()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
    }
}

/// Wakers that are woken at once; more go to the heap.
const WAKE_AT_ONCE: usize = 4;

impl Drop for Held {
    fn drop(&mut self) {
        let mut few: [Option<Waker>; WAKE_AT_ONCE] = [const { None }; WAKE_AT_ONCE];
        let mut more = Vec::new();
        let mut count = 0;
        self.overlap.lock().leave(self.number, |waker| {
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
    fn many_that_wait_for_one_all_go() {
        block_on(async {
            let overlap = Arc::new(Overlap::default());
            let first = overlap.change(0, 100).held().await;
            let order = Rc::new(RefCell::new(Vec::new()));
            let mut tasks = Vec::new();
            for number in 0..10u64 {
                let asked = overlap.change(number * 10, 10);
                let order = order.clone();
                tasks.push(spawn(async move {
                    let _held = asked.held().await;
                    order.borrow_mut().push(number);
                }));
            }
            task::yield_now().await;
            assert!(order.borrow().is_empty());
            assert_eq!(overlap.counts(), (11, 10));
            assert!(overlap.read(5, 1).is_some() && overlap.read(200, 1).is_none());
            drop(first);
            for task in tasks {
                task.await.unwrap();
            }
            assert_eq!(order.borrow().len(), 10);
            assert_eq!(overlap.counts(), (0, 0));
        })
        .unwrap();
    }
}
