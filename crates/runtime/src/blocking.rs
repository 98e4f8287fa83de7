//! Blocking work, such as name resolution, on a thread of its own.

use std::io;

use crate::sync::oneshot;

/// Runs `work` on a new thread. Dropping the future does not stop the thread: it runs to its end
/// and the result is discarded.
///
/// # Errors
/// The thread could not be started, or it panicked.
pub(crate) async fn spawn_blocking<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let (sender, receiver) = oneshot();
    std::thread::Builder::new().name(name.to_owned()).spawn(move || sender.send(work()))?;
    receiver.await.ok_or_else(|| io::Error::other("its thread panicked"))
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
