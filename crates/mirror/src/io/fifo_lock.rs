//! FIFO lock: an asynchronous mutex that works across cores and is granted in order of arrival.
//! Writers of metadata use it.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use parking_lot::{Mutex, MutexGuard};

/// An asynchronous lock that is granted in order of arrival.
#[derive(Debug, Default)]
pub(crate) struct FifoLock(Mutex<Waiters>);

#[derive(Debug, Default)]
struct Waiters {
    next: u64,
    /// Waiting tasks. The first one holds the lock.
    waiters: VecDeque<(u64, Option<Waker>)>,
}

impl FifoLock {
    fn lock(&self) -> MutexGuard<'_, Waiters> {
        self.0.lock()
    }

    /// Acquires the lock, which is released when the guard is dropped.
    pub(crate) async fn acquire(self: &Arc<Self>) -> FifoGuard {
        let id = {
            let mut queue = self.lock();
            let id = queue.next;
            queue.next += 1;
            queue.waiters.push_back((id, None));
            id
        };
        // Dropping the guard, also while it still waits, leaves the queue.
        let guard = FifoGuard { fifo: self.clone(), id };
        poll_fn(|cx| {
            let mut queue = self.lock();
            let place = queue.waiters.iter().position(|(waiters, _)| *waiters == id);
            match place.expect("the entry stays until the guard is dropped") {
                0 => Poll::Ready(()),
                place => {
                    queue.waiters[place].1 = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await;
        guard
    }
}

/// Holds the lock, or a position in its queue.
#[derive(Debug)]
pub(crate) struct FifoGuard {
    fifo: Arc<FifoLock>,
    id: u64,
}

impl Drop for FifoGuard {
    fn drop(&mut self) {
        let mut queue = self.fifo.lock();
        queue.waiters.retain(|(waiters, _)| *waiters != self.id);
        let next = queue.waiters.front_mut().and_then(|(_, waker)| waker.take());
        drop(queue);
        if let Some(waker) = next {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use flagstone_runtime::{spawn, task::yield_now};

    use super::*;

    #[test]
    fn lock_is_granted_in_order_despite_cancellation() {
        flagstone_runtime::block_on(async {
            let (fifo, order) = (Arc::new(FifoLock::default()), Rc::new(RefCell::new(Vec::new())));
            let first = fifo.acquire().await;
            let mut tasks = Vec::new();
            for index in 0..4 {
                let (fifo, order) = (fifo.clone(), order.clone());
                tasks.push(spawn(async move {
                    let _guard = fifo.acquire().await;
                    order.borrow_mut().push(index);
                    yield_now().await;
                    order.borrow_mut().push(index);
                }));
                yield_now().await;
            }
            tasks.remove(1).abort();
            drop(first);
            for task in tasks {
                task.await.expect("the task completes");
            }
            assert_eq!(*order.borrow(), [0, 0, 2, 2, 3, 3]);
        })
        .expect("the runtime starts");
    }
}
