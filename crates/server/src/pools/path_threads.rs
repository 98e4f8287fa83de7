//! Path threads: calls on files and disks that may hang, each in a thread of its own, so that they
//! never hold the control thread.
//!
//! A file or disk that hangs keeps its thread, also after the order that asked it was cut off. A
//! thread that hangs for good, as on a server that is gone and mounted again, must not make its
//! path useless until a restart, and paths that hang must not take any number of threads.
//!
//! Invariants:
//! - a path has one thread that has run for less than [`STUCK_AFTER`]; later calls wait without a
//!   thread of their own;
//! - all paths of the process together have at most [`SPARE_THREADS_MAX`] threads beside the first
//!   one of each path;
//! - a path gets no other thread while a call changes its file: a change that takes effect late
//!   must not find the file in use.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use flagstone_runtime::time::Instant;
use flagstone_runtime::{spawn_blocking, time};
use parking_lot::Mutex;

use crate::connections::DRAIN_PERIOD;
use crate::limits::{SPARE_THREADS_MAX, STUCK_AFTER};

/// Threads of all servers of this process.
static THREADS: LazyLock<Arc<PathThreads>> =
    LazyLock::new(|| Arc::new(PathThreads::new(STUCK_AFTER, SPARE_THREADS_MAX)));

struct PathThreads {
    stuck_after: Duration,
    spare_max: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Never empty for a path.
    running: BTreeMap<String, Vec<Running>>,
    /// Number of the last thread.
    last: u64,
}

struct Running {
    number: u64,
    since: Instant,
    /// It changes the file.
    changes: bool,
}

impl PathThreads {
    fn new(stuck_after: Duration, spare_max: usize) -> PathThreads {
        PathThreads { stuck_after, spare_max, state: Mutex::default() }
    }

    /// A place for a thread of this path, if there is one now.
    fn begin(self: &Arc<Self>, path: &str, now: Instant) -> Option<PathThread> {
        let mut state = self.state.lock();
        let spare: usize = state.running.values().map(|threads| threads.len() - 1).sum();
        let is_stuck = |thread: &Running| !thread.changes && now - thread.since >= self.stuck_after;
        if let Some(threads) = state.running.get(path)
            && (spare >= self.spare_max || !threads.iter().all(is_stuck))
        {
            return None;
        }
        state.last += 1;
        let number = state.last;
        let threads = state.running.entry(path.to_owned()).or_default();
        if !threads.is_empty() {
            tracing::warn!(path, "calls on it hang in {} threads: trying another", threads.len());
        }
        threads.push(Running { number, since: now, changes: false });
        Some(PathThread { all: self.clone(), path: path.to_owned(), number })
    }

    async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        name: &'static str,
        path: &str,
        work: impl FnOnce(&PathThread) -> T + Send + 'static,
    ) -> io::Result<T> {
        let thread = loop {
            match self.begin(path, time::now()) {
                Some(thread) => break thread,
                None => time::sleep(DRAIN_PERIOD).await,
            }
        };
        spawn_blocking(name, move || work(&thread)).await
    }
}

/// A thread of a path, until dropped.
pub(super) struct PathThread {
    all: Arc<PathThreads>,
    path: String,
    number: u64,
}

impl PathThread {
    /// The call is about to change the file, however long that takes.
    pub(super) fn begin_change(&self) {
        let mut state = self.all.state.lock();
        let own = state.running.get_mut(&self.path).into_iter().flatten();
        own.filter(|thread| thread.number == self.number).for_each(|own| own.changes = true);
    }
}

impl Drop for PathThread {
    fn drop(&mut self) {
        let mut state = self.all.state.lock();
        let Some(threads) = state.running.get_mut(&self.path) else { return };
        threads.retain(|thread| thread.number != self.number);
        if threads.is_empty() {
            state.running.remove(&self.path);
        }
    }
}

/// Calls `work` in a thread named `name`, once earlier calls for this path have ended, or hang.
///
/// # Errors
/// If there is no thread.
pub(super) async fn in_thread<T: Send + 'static>(
    name: &'static str,
    path: &str,
    work: impl FnOnce(&PathThread) -> T + Send + 'static,
) -> io::Result<T> {
    THREADS.run(name, path, work).await
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Calls that hang until the sender is dropped.
    struct Hung {
        end: mpsc::Receiver<()>,
    }

    fn hung() -> (mpsc::Sender<()>, Hung) {
        let (hold, end) = mpsc::channel();
        (hold, Hung { end })
    }

    impl Hung {
        fn call(self) {
            let _ = self.end.recv();
        }
    }

    fn threads(all: &PathThreads, path: &str) -> usize {
        all.state.lock().running.get(path).map_or(0, Vec::len)
    }

    /// Begins a call that hangs.
    async fn begin(all: &Arc<PathThreads>, path: &'static str) -> mpsc::Sender<()> {
        let (hold, call) = hung();
        let (own, before) = (all.clone(), threads(all, path));
        flagstone_runtime::spawn_detached(async move {
            let _ = own.run("hung", path, |_| call.call()).await;
        });
        while threads(all, path) == before {
            time::sleep(Duration::from_millis(1)).await;
        }
        hold
    }

    async fn is_idle(all: &PathThreads, path: &str) {
        while threads(all, path) > 0 {
            time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Each attempt at a growth by a file that hangs left another thread behind.
    #[test]
    fn hung_path_keeps_one_thread_of_all_attempts() {
        flagstone_runtime::block_on(async {
            let all = Arc::new(PathThreads::new(Duration::MAX, 8));
            let hold = begin(&all, "/hung/file").await;
            for _ in 0..5 {
                assert!(all.begin("/hung/file", time::now()).is_none());
            }
            assert_eq!(all.run("open", "/other/file", |_| 7).await.unwrap(), 7);
            drop(hold);
            is_idle(&all, "/hung/file").await;
            all.run("open", "/hung/file", |_| ()).await.unwrap();
        })
        .unwrap();
    }

    /// Regression: one call that hung for good made its path useless until a restart.
    #[test]
    fn stuck_threads_are_replaced_within_bounds() {
        flagstone_runtime::block_on(async {
            // Each call counts as stuck at once.
            let all = Arc::new(PathThreads::new(Duration::ZERO, 2));
            let one = begin(&all, "/hung/one").await;
            assert_eq!(all.run("open", "/hung/one", |_| 7).await.unwrap(), 7);
            let again = begin(&all, "/hung/one").await;
            let other = begin(&all, "/hung/other").await;
            let more = begin(&all, "/hung/other").await;
            for path in ["/hung/one", "/hung/other"] {
                assert!(all.begin(path, time::now()).is_none(), "2 in all beside the first");
            }
            assert_eq!(all.run("open", "/sound/file", |_| 7).await.unwrap(), 7);
            // The first thread ends, and the path still has one.
            drop(one);
            while threads(&all, "/hung/one") > 1 {
                time::sleep(Duration::from_millis(1)).await;
            }
            assert_eq!(all.run("open", "/hung/other", |_| 7).await.unwrap(), 7);
            drop((again, other, more));
            is_idle(&all, "/hung/one").await;
            is_idle(&all, "/hung/other").await;
            assert!(all.state.lock().running.is_empty());
        })
        .unwrap();
    }

    /// A hole that is punched late would hit what the pool has written since.
    #[test]
    fn thread_that_changes_its_file_is_not_replaced() {
        flagstone_runtime::block_on(async {
            let all = Arc::new(PathThreads::new(Duration::ZERO, 8));
            let (entered, has_entered) = mpsc::channel();
            let (hold, call) = hung();
            let own = all.clone();
            flagstone_runtime::spawn_detached(async move {
                let work = move |thread: &PathThread| {
                    thread.begin_change();
                    let _ = entered.send(());
                    call.call();
                };
                let _ = own.run("hung", "/hung/file", work).await;
            });
            while has_entered.try_recv().is_err() {
                time::sleep(Duration::from_millis(1)).await;
            }
            assert!(all.begin("/hung/file", time::now()).is_none());
            drop(hold);
            is_idle(&all, "/hung/file").await;
        })
        .unwrap();
    }
}
