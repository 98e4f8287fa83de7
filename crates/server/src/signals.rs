//! Signal queue of a server: delivers signals in order, including signals during startup.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use flagstone_runtime::sync::Notify;
use flagstone_runtime::task::AbortOnDrop;
use flagstone_runtime::{signal, spawn};

#[derive(Default)]
struct SignalQueue {
    received: RefCell<VecDeque<i32>>,
    changed: Notify,
}

pub(crate) struct Signals {
    queue: Rc<SignalQueue>,
    _task: AbortOnDrop<()>,
}

impl Signals {
    pub(crate) fn catch() -> io::Result<Signals> {
        signal::catch_termination()?;
        signal::catch_reload()?;
        let queue = Rc::new(SignalQueue::default());
        let own = queue.clone();
        // A single task receives all signals: a cancelled wait could lose one.
        let task = spawn(async move {
            loop {
                let signal = signal::terminated().await;
                own.received.borrow_mut().push_back(signal);
                own.changed.notify();
            }
        });
        Ok(Signals { queue, _task: task.abort_on_drop() })
    }

    pub(crate) async fn next(&self) -> i32 {
        self.queue.changed.wait_for(|| self.queue.received.borrow_mut().pop_front()).await
    }

    /// Runs `future` to its end. A signal other than reload drops it; the result is then `None`.
    pub(crate) async fn unless_stopped<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let stops = || self.queue.received.borrow().iter().any(|signal| *signal != signal::RELOAD);
        let mut stopped = pin!(self.queue.changed.wait_for(|| stops().then_some(())));
        let mut future = pin!(future);
        poll_fn(|cx| match stopped.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => future.as_mut().poll(cx).map(Some),
        })
        .await
    }
}
