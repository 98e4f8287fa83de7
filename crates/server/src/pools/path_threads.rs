//! Path threads: calls on files and disks that may hang, each in a thread of its own, so that they
//! never hold the control thread.
//!
//! Invariant: a path has one thread at a time. A file or disk that hangs keeps its thread, also
//! after the order that asked it was cut off; later calls wait without a thread of their own.

use std::collections::BTreeSet;
use std::io;

use flagstone_runtime::{spawn_blocking, time};
use parking_lot::Mutex;

use crate::connections::DRAIN_PERIOD;

/// Paths that have a thread, of all servers of this process.
static ASKED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// A path that has a thread, until dropped.
struct Asked(String);

impl Asked {
    fn begin(path: &str) -> Option<Asked> {
        ASKED.lock().insert(path.to_owned()).then(|| Asked(path.to_owned()))
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        ASKED.lock().remove(&self.0);
    }
}

/// Calls `work` in a thread named `name`, once earlier calls for this path have ended.
///
/// # Errors
/// If there is no thread.
pub(super) async fn in_thread<T: Send + 'static>(
    name: &'static str,
    path: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let asked = loop {
        match Asked::begin(path) {
            Some(asked) => break asked,
            None => time::sleep(DRAIN_PERIOD).await,
        }
    };
    let work = move || {
        let _asked = asked;
        work()
    };
    spawn_blocking(name, work).await
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    /// Each attempt at a growth by a file that hangs left another thread behind.
    #[test]
    fn hung_path_keeps_one_thread_of_all_attempts() {
        let (threads, (answer, hang)) = (Arc::new(AtomicUsize::new(0)), mpsc::channel::<()>());
        let hang = Arc::new(Mutex::new(hang));
        flagstone_runtime::block_on(async {
            let attempt = async || {
                let (threads, hang) = (threads.clone(), hang.clone());
                let work = move || {
                    threads.fetch_add(1, Ordering::SeqCst);
                    let _ = hang.lock().recv();
                };
                let attempt = in_thread("open", "/hung/file", work);
                time::timeout(Duration::from_millis(20), attempt).await.is_ok()
            };
            for _ in 0..5 {
                assert!(!attempt().await, "it is cut off");
            }
            while threads.load(Ordering::SeqCst) == 0 {
                time::sleep(Duration::from_millis(1)).await;
            }
            let other = in_thread("open", "/other/file", || 7).await;
            assert_eq!((other.unwrap(), threads.load(Ordering::SeqCst)), (7, 1));
            drop(answer);
            while ASKED.lock().contains("/hung/file") {
                time::sleep(Duration::from_millis(1)).await;
            }
            in_thread("open", "/hung/file", || ()).await.unwrap();
        })
        .unwrap();
    }
}
