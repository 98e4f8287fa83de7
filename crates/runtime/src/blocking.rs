//! Work off the cores: blocking work, such as name resolution, on a thread of its own, and
//! CPU-bound work on a few threads of low priority.

use std::io;
use std::sync::{Arc, OnceLock, mpsc};

use parking_lot::Mutex;

use crate::executor::Executor;
use crate::handle::HandleKind;
use crate::limits::COMPUTE_THREADS;
use crate::sync::oneshot;

/// Runs `work` on a new thread. Dropping the future does not stop the thread: it runs to its end
/// and the result is discarded.
///
/// # Errors
/// The thread could not be started, or it panicked.
pub async fn spawn_blocking<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let (sender, receiver) = oneshot();
    std::thread::Builder::new().name(name.to_owned()).spawn(move || sender.send(work()))?;
    receiver.await.ok_or_else(|| io::Error::other("its thread panicked"))
}

/// Nice value of the threads of [`compute`].
const COMPUTE_NICE: i32 = 10;

type Work = Box<dyn FnOnce() + Send>;

/// Runs CPU-bound `work` of some milliseconds on one of [`COMPUTE_THREADS`] threads, which all
/// cores share, first come, first served. Dropping the future does not stop it. In simulation it
/// runs at once, in no time. The callers bound the number of waiting works.
///
/// # Errors
/// A thread could not be started, or the work panicked.
pub async fn compute<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    if Executor::current().driver().kind() == HandleKind::Sim {
        return Ok(work());
    }
    static QUEUE: OnceLock<mpsc::Sender<Work>> = OnceLock::new();
    let queue = match QUEUE.get() {
        Some(queue) => queue,
        None => {
            let started = start_threads()?;
            QUEUE.get_or_init(|| started)
        }
    };
    let (sender, receiver) = oneshot();
    let stopped = || io::Error::other("its thread panicked");
    queue.send(Box::new(move || sender.send(work()))).map_err(|_| stopped())?;
    receiver.await.ok_or_else(stopped)
}

/// Starts the threads of [`compute`]. They end when the sender is dropped.
fn start_threads() -> io::Result<mpsc::Sender<Work>> {
    let (sender, receiver) = mpsc::channel::<Work>();
    let receiver = Arc::new(Mutex::new(receiver));
    for _ in 0..COMPUTE_THREADS {
        let receiver = receiver.clone();
        std::thread::Builder::new().name("compute".to_owned()).spawn(move || {
            // I/O of the cores goes first, whatever peers make this process compute. On Linux the
            // nice value is the thread's own.
            let _ = rustix::process::nice(COMPUTE_NICE);
            loop {
                let next = receiver.lock().recv();
                let Ok(work) = next else { return };
                // A panic ends only this work.
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            }
        })?;
    }
    Ok(sender)
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
    fn computed_results_come_back_in_any_number() {
        block_on(async {
            let works: Vec<_> =
                (0..100_u64).map(|n| crate::spawn(compute(move || n * n))).collect();
            for (n, work) in works.into_iter().enumerate() {
                assert_eq!(work.await.unwrap().unwrap(), (n * n) as u64);
            }
            let panicked: io::Result<()> =
                compute(|| std::panic::resume_unwind(Box::new("on purpose"))).await;
            assert!(panicked.is_err());
            assert_eq!(compute(|| 7).await.unwrap(), 7);
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
