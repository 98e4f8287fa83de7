//! One after the other, across cores: whoever writes metadata takes a turn, in the order of asking.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<Queue>);

#[derive(Debug, Default)]
struct Queue {
    next: u64,
    /// Who asked; the first has the turn.
    asked: VecDeque<(u64, Option<Waker>)>,
}

impl Turns {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a turn, which ends when what this returns is dropped.
    pub(crate) async fn take(self: &Arc<Self>) -> Turn {
        let id = {
            let mut queue = self.lock();
            let id = queue.next;
            queue.next += 1;
            queue.asked.push_back((id, None));
            id
        };
        // Also when this is dropped while it waits, the place in the queue is given up.
        let turn = Turn { turns: self.clone(), id };
        poll_fn(|cx| {
            let mut queue = self.lock();
            let place = queue.asked.iter().position(|(asked, _)| *asked == id);
            match place.expect("it is there until the turn is dropped") {
                0 => Poll::Ready(()),
                place => {
                    queue.asked[place].1 = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await;
        turn
    }
}

/// A turn, or a place in the queue for one.
#[derive(Debug)]
pub(crate) struct Turn {
    turns: Arc<Turns>,
    id: u64,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut queue = self.turns.lock();
        queue.asked.retain(|(asked, _)| *asked != self.id);
        let next = queue.asked.front_mut().and_then(|(_, waker)| waker.take());
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
    fn turns_come_in_the_order_of_asking_also_when_some_give_up() {
        flagstone_runtime::block_on(async {
            let (turns, order) = (Arc::new(Turns::default()), Rc::new(RefCell::new(Vec::new())));
            let first = turns.take().await;
            let mut tasks = Vec::new();
            for index in 0..4 {
                let (turns, order) = (turns.clone(), order.clone());
                tasks.push(spawn(async move {
                    let _turn = turns.take().await;
                    order.borrow_mut().push(index);
                    yield_now().await;
                    order.borrow_mut().push(index);
                }));
                yield_now().await;
            }
            tasks.remove(1).abort();
            drop(first);
            for task in tasks {
                task.await.expect("nobody aborts it");
            }
            assert_eq!(*order.borrow(), [0, 0, 2, 2, 3, 3]);
        })
        .expect("a runtime");
    }
}
