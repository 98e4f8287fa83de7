//! Work that blocks and has no other form, on a thread of its own.

use std::future::poll_fn;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

/// What a thread has come to, and who waits for it.
struct Shared<T> {
    result: Option<T>,
    ended: bool,
    waker: Option<Waker>,
}

/// Tells the end, also that of a thread that panics.
struct Ending<T>(Arc<Mutex<Shared<T>>>);

impl<T> Drop for Ending<T> {
    fn drop(&mut self) {
        let waker = {
            let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            shared.ended = true;
            shared.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Does `work` on a new thread. Nobody waits for the thread when this is dropped: it goes on to its
/// end, which nobody hears of.
///
/// # Errors
/// That there cannot be a thread, or that it panicked.
pub(crate) async fn elsewhere<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let shared = Arc::new(Mutex::new(Shared { result: None, ended: false, waker: None }));
    let ending = Ending(shared.clone());
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        let result = work();
        ending.0.lock().unwrap_or_else(PoisonError::into_inner).result = Some(result);
    })?;
    poll_fn(|cx| {
        let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
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
    fn what_blocks_does_not_hold_up_the_core() {
        block_on(async {
            let (go, wait) = std::sync::mpsc::channel();
            let work = crate::spawn(elsewhere("test", move || wait.recv()));
            // Were it done here, nothing would ever be sent.
            crate::task::yield_now().await;
            go.send(7).unwrap();
            assert_eq!(work.await.unwrap().unwrap(), Ok(7));
        })
        .unwrap();
    }

    #[test]
    fn the_end_of_a_thread_that_panics_is_told() {
        block_on(async {
            let work = elsewhere("test", || std::panic::resume_unwind(Box::new("on purpose")));
            let result: io::Result<()> = work.await;
            assert!(result.is_err());
        })
        .unwrap();
    }

    #[test]
    fn addresses_need_no_resolver() {
        block_on(async {
            let found = net::lookup("::1", 7).await.unwrap();
            assert_eq!(found, [net::Address::Tcp(([0, 0, 0, 0, 0, 0, 0, 1], 7).into())]);
        })
        .unwrap();
    }
}
