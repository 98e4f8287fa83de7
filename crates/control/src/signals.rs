//! The signals of a server, one after the other, also those that come while it opens its volumes.

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

/// Signals that came and that nobody has taken yet.
#[derive(Default)]
struct Inbox {
    came: RefCell<VecDeque<i32>>,
    rung: Notify,
}

/// See the module.
pub(crate) struct Signals {
    inbox: Rc<Inbox>,
    _task: AbortOnDrop<()>,
}

impl Signals {
    /// Catches them from now on.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn catch() -> io::Result<Signals> {
        signal::catch_termination()?;
        signal::catch_reload()?;
        let inbox = Rc::new(Inbox::default());
        let own = inbox.clone();
        // One task for all of them: a wait that is given up might take a signal with it.
        let task = spawn(async move {
            loop {
                let signal = signal::terminated().await;
                own.came.borrow_mut().push_back(signal);
                own.rung.notify();
            }
        });
        Ok(Signals { inbox, _task: task.abort_on_drop() })
    }

    /// The next signal.
    pub(crate) async fn next(&self) -> i32 {
        self.inbox.rung.wait_for(|| self.inbox.came.borrow_mut().pop_front()).await
    }

    /// Runs `future`, unless a signal tells to stop before it ends: then it is dropped, and there is
    /// nothing.
    pub(crate) async fn unless_stopped<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let stops = || self.inbox.came.borrow().iter().any(|signal| *signal != signal::RELOAD);
        let mut stopped = pin!(self.inbox.rung.wait_for(|| stops().then_some(())));
        let mut future = pin!(future);
        poll_fn(|cx| match stopped.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => future.as_mut().poll(cx).map(Some),
        })
        .await
    }
}
