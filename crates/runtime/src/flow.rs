//! End of a flow: notifies the work of a client that the client is gone.
//!
//! Work that has begun runs to its end. Work that only waits, and has no effect yet, can give up
//! with [`unless_flow_ended`]. Both sides have to run on the same core, as the tasks of a
//! connection do. Allocates only while something waits.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};

use crate::executor::Executor;

/// Flows of one core that have ended, or whose end something waits for.
#[derive(Default)]
pub(crate) struct FlowEnds {
    flows: RefCell<BTreeMap<u64, FlowEnd>>,
    next_waiter: Cell<u64>,
}

#[derive(Default)]
struct FlowEnd {
    /// Number of [`EndedFlow`] values.
    ended: usize,
    waiters: Vec<(u64, Waker)>,
}

impl FlowEnds {
    fn change<T>(&self, flow: u64, change: impl FnOnce(&mut FlowEnd) -> T) -> T {
        let mut flows = self.flows.borrow_mut();
        let end = flows.entry(flow).or_default();
        let value = change(end);
        if end.ended == 0 && end.waiters.is_empty() {
            flows.remove(&flow);
        }
        value
    }
}

/// The flow counts as ended while this value lives.
#[must_use]
pub struct EndedFlow {
    flow: u64,
    executor: Weak<Executor>,
}

/// Ends the flow of this task: its client is gone. Keep the result until the flow's last task has
/// ended. Without effect for a task that belongs to no flow.
pub fn end_flow() -> EndedFlow {
    let executor = Executor::current();
    let flow = executor.flow();
    if flow != 0 {
        let waiters = executor.flow_ends.change(flow, |end| {
            end.ended += 1;
            std::mem::take(&mut end.waiters)
        });
        waiters.into_iter().for_each(|(_, waker)| waker.wake());
    }
    EndedFlow { flow, executor: Rc::downgrade(&executor) }
}

impl Drop for EndedFlow {
    fn drop(&mut self) {
        if let Some(executor) = self.executor.upgrade().filter(|_| self.flow != 0) {
            executor.flow_ends.change(self.flow, |end| end.ended -= 1);
        }
    }
}

impl std::fmt::Debug for EndedFlow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EndedFlow({})", self.flow)
    }
}

/// Runs `work` unless the flow of this task has ended, or ends meanwhile: then drops `work` and
/// returns `None`.
pub async fn unless_flow_ended<F: Future>(work: F) -> Option<F::Output> {
    let mut work = pin!(work);
    let executor = Executor::current();
    let number = executor.flow_ends.next_waiter.get();
    executor.flow_ends.next_waiter.set(number + 1);
    let waiter = FlowWaiter { flow: executor.flow(), executor: Rc::downgrade(&executor), number };
    drop(executor);
    poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending if waiter.has_ended(cx.waker()) => Poll::Ready(None),
        Poll::Pending => Poll::Pending,
    })
    .await
}

struct FlowWaiter {
    flow: u64,
    executor: Weak<Executor>,
    number: u64,
}

impl FlowWaiter {
    /// True when the flow has ended. If not, `waker` is woken when it ends.
    fn has_ended(&self, waker: &Waker) -> bool {
        let Some(executor) = self.executor.upgrade().filter(|_| self.flow != 0) else {
            return false;
        };
        executor.flow_ends.change(self.flow, |end| {
            match end.waiters.iter_mut().find(|(number, _)| *number == self.number) {
                _ if end.ended > 0 => return true,
                Some((_, known)) => known.clone_from(waker),
                None => end.waiters.push((self.number, waker.clone())),
            }
            false
        })
    }
}

impl Drop for FlowWaiter {
    fn drop(&mut self) {
        if let Some(executor) = self.executor.upgrade().filter(|_| self.flow != 0) {
            let leave = |end: &mut FlowEnd| end.waiters.retain(|entry| entry.0 != self.number);
            executor.flow_ends.change(self.flow, leave);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use crate::{block_on, spawn, task};

    use super::*;

    fn known() -> usize {
        Executor::current().flow_ends.flows.borrow().len()
    }

    #[test]
    fn waiting_work_of_ended_flow_is_dropped() {
        block_on(async {
            let connection = spawn(async {
                task::begin_flow();
                let waits = spawn(unless_flow_ended(pending::<()>()));
                let works = spawn(unless_flow_ended(async { 7 }));
                let gives_up = spawn(unless_flow_ended(pending::<()>()));
                task::yield_now().await;
                gives_up.abort();
                assert!(!waits.is_finished());
                assert_eq!(works.await, Ok(Some(7)));
                let ended = end_flow();
                assert_eq!(waits.await, Ok(None));
                let later = spawn(unless_flow_ended(pending::<()>()));
                assert_eq!(later.await, Ok(None), "the flow has ended before");
                drop(ended);
            });
            let other = spawn(async {
                task::begin_flow();
                unless_flow_ended(pending::<()>()).await
            });
            assert_eq!(connection.await, Ok(()));
            assert!(!other.is_finished(), "another flow goes on");
            other.abort();
            task::yield_now().await;
            assert_eq!(known(), 0, "nothing is left of any flow");
        })
        .expect("the runtime starts");
    }

    #[test]
    fn work_without_a_flow_goes_on() {
        block_on(async {
            let work = spawn(async {
                let ended = end_flow();
                let value = unless_flow_ended(async {
                    task::yield_now().await;
                    7
                });
                (value.await, known(), drop(ended))
            });
            assert_eq!(work.await, Ok((Some(7), 0, ())));
        })
        .expect("the runtime starts");
    }
}
