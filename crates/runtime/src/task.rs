//! Tasks: independent work on one core.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use crate::executor::{Executor, TaskId};
pub use crate::flow::{EndedFlow, end_flow, unless_flow_ended};
use crate::local_box::LocalBox;

/// Starts a task without a result. Allocates nothing in the steady state.
pub fn spawn_detached(future: impl Future<Output = ()> + 'static) {
    Executor::current().spawn(LocalBox::new(future));
}

/// Starts a task on this core.
pub fn spawn<T: 'static>(future: impl Future<Output = T> + 'static) -> JoinHandle<T> {
    let result = Rc::new(RefCell::new(Join { value: None, ended: false, waiter: None }));
    let guard = EndGuard(result.clone());
    let executor = Executor::current();
    let id = executor.spawn(LocalBox::new(async move {
        let value = future.await;
        guard.0.borrow_mut().value = Some(value);
        drop(guard);
    }));
    JoinHandle { id, executor: Rc::downgrade(&executor), result }
}

/// Lets other tasks and I/O of this core run.
pub async fn yield_now() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// The next flow number, across all executors of this process; 0 means no flow.
static NEXT_FLOW: AtomicU64 = AtomicU64::new(1);

/// The flow of this task. A flow identifies the client on whose behalf work is done; devices that
/// several clients share, such as a rate limit, divide their capacity fairly between flows. A task
/// inherits the flow of the task that spawned it.
pub fn flow() -> u64 {
    Executor::current().flow()
}

/// Begins a flow, such as one per connection of a server. This task, and the tasks that it spawns
/// from now on, belong to it, also after [`end_flow`]. A number is never reused. The main future of
/// [`crate::run`] belongs to no flow after it was suspended.
pub fn begin_flow() -> u64 {
    let flow = NEXT_FLOW.fetch_add(1, Ordering::Relaxed);
    Executor::current().set_flow(flow);
    flow
}

struct Join<T> {
    value: Option<T>,
    ended: bool,
    waiter: Option<Waker>,
}

/// Marks the end of a task: return, abort or panic.
struct EndGuard<T>(Rc<RefCell<Join<T>>>);

impl<T> Drop for EndGuard<T> {
    fn drop(&mut self) {
        let mut join = self.0.borrow_mut();
        join.ended = true;
        let waiter = join.waiter.take();
        drop(join);
        if let Some(waiter) = waiter {
            waiter.wake();
        }
    }
}

/// The task was aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the task was aborted")]
pub struct Aborted;

/// Waits for the result of a task, or aborts it. Dropping the handle lets the task continue.
pub struct JoinHandle<T> {
    id: TaskId,
    executor: std::rc::Weak<Executor>,
    result: Rc<RefCell<Join<T>>>,
}

impl<T> JoinHandle<T> {
    /// Drops the future of the task, unless it has ended.
    pub fn abort(&self) {
        if let Some(executor) = self.executor.upgrade() {
            executor.abort(self.id);
        }
    }

    /// True after the task has returned or was aborted.
    pub fn is_finished(&self) -> bool {
        self.result.borrow().ended
    }

    /// A guard that aborts the task when dropped.
    pub fn abort_on_drop(self) -> AbortOnDrop<T> {
        AbortOnDrop(self)
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, Aborted>;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut join = self.result.borrow_mut();
        if join.ended {
            return Poll::Ready(join.value.take().ok_or(Aborted));
        }
        join.waiter = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// Aborts its task when dropped.
pub struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> AbortOnDrop<T> {
    /// The task.
    pub fn handle(&mut self) -> &mut JoinHandle<T> {
        &mut self.0
    }
}

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
