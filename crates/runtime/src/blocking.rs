//! Blocking work, such as name resolution, on a thread of its own.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Poll, Waker};

use parking_lot::Mutex;

/// State shared by the thread and the task that waits for it.
struct Shared<T> {
    result: Option<T>,
    ended: bool,
    waker: Option<Waker>,
}

/// Reports the end of the thread to the waiting task, also if the thread panics.
struct Ending<T>(Arc<Mutex<Shared<T>>>);

impl<T> Drop for Ending<T> {
    fn drop(&mut self) {
        let waker = {
            let mut shared = self.0.lock();
            shared.ended = true;
            shared.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Runs `work` on a new thread. Dropping the future does not stop the thread: it runs to its end
/// and the result is discarded.
///
/// # Errors
/// The thread could not be started, or it panicked.
pub(crate) async fn spawn_blocking<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let shared = Arc::new(Mutex::new(Shared { result: None, ended: false, waker: None }));
    let ending = Ending(shared.clone());
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        let result = work();
        ending.0.lock().result = Some(result);
    })?;
    poll_fn(|cx| {
        let mut shared = shared.lock();
        if !shared.ended {
            shared.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(shared.result.take().ok_or_else(|| io::Error::other("its thread panicked")))
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{block_on, net};

    #[test]
    fn blocking_work_does_not_block_core() {
        block_on(async {
            let (go, wait) = std::sync::mpsc::channel();
            let work = crate::spawn(spawn_blocking("test", move || wait.recv()));
            // `work` blocks until this send. On the executor's own thread it would block forever.
            crate::task::yield_now().await;
            go.send(7).unwrap();
            assert_eq!(work.await.unwrap().unwrap(), Ok(7));
        })
        .unwrap();
    }

    #[test]
    fn panic_of_blocking_thread_is_reported() {
        block_on(async {
            let work = spawn_blocking("test", || std::panic::resume_unwind(Box::new("on purpose")));
            let result: io::Result<()> = work.await;
            assert!(result.is_err());
        })
        .unwrap();
    }

    #[test]
    fn ip_addresses_need_no_resolver() {
        block_on(async {
            let found = net::lookup("::1", 7).await.unwrap();
            assert_eq!(found, [net::Address::Tcp(([0, 0, 0, 0, 0, 0, 0, 1], 7).into())]);
        })
        .unwrap();
    }
}
