//! Start of the executors: one per core, with the calling thread as core 0.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use crate::driver::Driver;
use crate::driver::threads::Threads;
use crate::driver::uring::{Uring, check_kernel};
use crate::executor::{Executor, Shared, WorkCounters};
use crate::limits::DEFAULT_BUSY_POLL_NS;
use crate::local_box::LocalBox;
use crate::sync::{OneReceiver, oneshot};

/// I/O engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoEngine {
    /// `auto`: io_uring, or threads if the system forbids io_uring.
    #[default]
    Auto,
    /// `io_uring`: io_uring, or an error.
    IoUring,
    /// `threads`: poll(2) and worker threads.
    Threads,
}

/// Settings of a runtime.
#[derive(Clone, Copy, Debug)]
pub struct RuntimeConfig {
    /// Executor threads, at least 1; 0 for one per CPU that the process may use.
    pub cores: usize,
    /// I/O engine.
    pub io_engine: IoEngine,
    /// Bound of busy-polling before sleeping, in nanoseconds; 0 turns it off.
    pub busy_poll_ns: u64,
    /// Limit of pooled buffer memory, in bytes.
    pub buffer_memory_bytes: usize,
    /// Pins each executor thread to a CPU of the process's CPU set: core 0 to the CPU at this
    /// index, core 1 to the next, and so on.
    pub pin_from: Option<usize>,
}

impl Default for RuntimeConfig {
    fn default() -> RuntimeConfig {
        RuntimeConfig {
            cores: 1,
            io_engine: IoEngine::Auto,
            busy_poll_ns: DEFAULT_BUSY_POLL_NS,
            buffer_memory_bytes: crate::limits::DEFAULT_BUFFER_MEMORY_BYTES,
            pin_from: None,
        }
    }
}

/// Reason that the runtime cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The kernel is older than 5.15.
    #[error("{0}")]
    Kernel(String),
    /// The configuration demands io_uring, which is not available.
    #[error("{0}; use the I/O engine `threads`, or allow the io_uring system calls")]
    Forbidden(String),
    /// The system refuses an eventfd, epoll or thread.
    #[error("cannot start an executor: {0}")]
    System(#[from] io::Error),
}

/// Handle of the executor of a core, usable from other cores.
#[derive(Clone)]
pub struct CoreHandle {
    shared: Arc<Shared>,
}

/// Work of an executor since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreWork {
    /// The system's identifier of its thread.
    pub thread_id: u64,
    /// Turns of its loop: each runs the ready tasks and drives I/O.
    pub turns: u64,
    /// Polls of tasks.
    pub polls: u64,
    /// Tasks alive at the last turn.
    pub tasks: u64,
}

impl CoreHandle {
    /// Work of that executor so far. Callable from any thread.
    pub fn work(&self) -> CoreWork {
        let WorkCounters { thread_id, turns, polls, tasks } = &self.shared.work;
        let [thread_id, turns, polls, tasks] =
            [thread_id, turns, polls, tasks].map(|counter| counter.load(Ordering::Relaxed));
        CoreWork { thread_id, turns, polls, tasks }
    }

    /// Runs `make` on that core and spawns the future that it returns. The captures of `make` must
    /// be `Send`; the future need not be.
    pub fn spawn<F, Fut>(&self, make: F)
    where
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = ()> + 'static,
    {
        // The task inherits the flow, and in simulation the node, of the caller.
        let (node, flow) =
            Executor::try_current().map_or((0, 0), |executor| (executor.node(), executor.flow()));
        self.shared.send(Box::new(move || {
            let executor = Executor::current();
            executor.set_flow(flow);
            executor.as_node(node, || executor.spawn(LocalBox::new(make())));
            executor.set_flow(0);
        }));
    }

    /// Same as [`CoreHandle::spawn`], with the result: `None` if that core ended before.
    pub fn call<T, F, Fut>(&self, make: F) -> OneReceiver<T>
    where
        T: Send + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = T> + 'static,
    {
        let (sender, receiver) = oneshot();
        self.spawn(move || async move { sender.send(make().await) });
        receiver
    }
}

thread_local! {
    static CORES: RefCell<Vec<CoreHandle>> = const { RefCell::new(Vec::new()) };
}

/// All cores of this runtime, in order; in simulation only the current one.
pub fn cores() -> Vec<CoreHandle> {
    let known = CORES.with(|cores| cores.borrow().clone());
    if known.is_empty() {
        return vec![CoreHandle { shared: Executor::current().shared.clone() }];
    }
    known
}

/// The index of the current core in [`cores`].
pub fn core_index() -> usize {
    Executor::current().core
}

fn make_driver(
    config: &RuntimeConfig,
    shared: &Arc<Shared>,
) -> Result<Box<dyn Driver>, StartError> {
    check_kernel()?;
    if config.io_engine != IoEngine::Threads {
        let error = match Uring::new(shared.clone(), config.busy_poll_ns) {
            Ok(driver) => return Ok(Box::new(driver)),
            Err(error) => error,
        };
        let error = format!("io_uring is not permitted here ({error}); containers often forbid it");
        if config.io_engine == IoEngine::IoUring {
            return Err(StartError::Forbidden(error));
        }
        tracing::warn!("{error}: falling back to threads, slower but correct");
    }
    Ok(Box::new(Threads::new(shared.clone())?))
}

/// Runs `main` on the calling thread as core 0, together with the other cores, until it returns.
/// Then drops every task and waits for every operation in flight. `main` starts when all cores run;
/// it does not start if one of them cannot.
pub fn run<F, Fut, T>(config: &RuntimeConfig, main: F) -> Result<T, StartError>
where
    F: FnOnce() -> Fut,
    Fut: Future<Output = T>,
{
    crate::buf::set_memory_limit(config.buffer_memory_bytes);
    let count = match config.cores {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        count => count,
    };
    let shared: Vec<Arc<Shared>> = (0..count).map(|_| Shared::new()).collect::<Result<_, _>>()?;
    let handles: Vec<CoreHandle> =
        shared.iter().map(|shared| CoreHandle { shared: shared.clone() }).collect();
    let stop = Arc::new(AtomicBool::new(false));
    let mut threads = Vec::new();
    let (started, starts) = mpsc::channel();
    for (core, own) in shared.iter().enumerate().skip(1) {
        let (config, own, handles, stop) = (*config, own.clone(), handles.clone(), stop.clone());
        let name = format!("core-{core}");
        let started = started.clone();
        threads.push(
            std::thread::Builder::new()
                .name(name)
                .spawn(move || serve_core(core, &config, &own, handles, &stop, started))?,
        );
    }
    // The channel closes when each core has started or failed. Work sent to a core that cannot run
    // would never be done.
    drop(started);
    let result = (starts.iter().count() == threads.len())
        .then(|| run_first(config, &shared[0], handles, main));
    stop.store(true, Ordering::SeqCst);
    for other in &shared[1..] {
        other.send(Box::new(|| {}));
    }
    let mut failure = None;
    for thread in threads {
        match thread.join() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => failure = Some(error),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
    match (result, failure) {
        (Some(Ok(_)) | None, Some(error)) => Err(error),
        (result, _) => result.expect("a core that did not start reports an error"),
    }
}

/// Runs `future` on one core with the default settings. For tools and tests.
pub fn block_on<T>(future: impl Future<Output = T>) -> Result<T, StartError> {
    run(&RuntimeConfig::default(), || future)
}

fn pin(config: &RuntimeConfig, core: usize) {
    let Some(first) = config.pin_from else { return };
    let Ok(allowed) = rustix::thread::sched_getaffinity(None) else { return };
    let cpus: Vec<usize> =
        (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpus[(first + core) % cpus.len()]);
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        tracing::warn!("cannot pin core {core} to a CPU: {error}");
    }
}

fn serve_core(
    core: usize,
    config: &RuntimeConfig,
    shared: &Arc<Shared>,
    handles: Vec<CoreHandle>,
    stop: &AtomicBool,
    started: mpsc::Sender<()>,
) -> Result<(), StartError> {
    pin(config, core);
    CORES.with(|cores| *cores.borrow_mut() = handles);
    let executor = Executor::new(core, shared.clone(), make_driver(config, shared)?);
    let _entered = executor.enter();
    // The receiver waits until no core can still start.
    let _ = started.send(());
    drop(started);
    while !stop.load(Ordering::SeqCst) {
        executor.turn();
    }
    executor.shut_down();
    Ok(())
}

fn run_first<F, Fut, T>(
    config: &RuntimeConfig,
    shared: &Arc<Shared>,
    handles: Vec<CoreHandle>,
    main: F,
) -> Result<T, StartError>
where
    F: FnOnce() -> Fut,
    Fut: Future<Output = T>,
{
    // With one core, `run` may be called on a thread that is already pinned: keep its CPU set.
    pin(config, 0);
    let executor = Executor::new(0, shared.clone(), make_driver(config, shared)?);
    let _entered = executor.enter();
    let earlier = CORES.with(|cores| cores.replace(handles));
    let result = drive_to_end(&executor, main(), || {});
    executor.shut_down();
    CORES.with(|cores| cores.replace(earlier));
    Ok(result)
}

/// Polls `main` in addition to the tasks of the executor. `main` need not be `'static` because it
/// never leaves this frame. `after_turn` may end the loop with a panic.
pub(crate) fn drive_to_end<T>(
    executor: &Rc<Executor>,
    main: impl Future<Output = T>,
    mut after_turn: impl FnMut(),
) -> T {
    let waker = std::task::Waker::from(executor.shared.clone());
    let mut cx = std::task::Context::from_waker(&waker);
    let mut main = std::pin::pin!(main);
    executor.shared.wake_main();
    loop {
        if executor.shared.take_main()
            && let std::task::Poll::Ready(value) = main.as_mut().poll(&mut cx)
        {
            return value;
        }
        executor.turn();
        after_turn();
    }
}
