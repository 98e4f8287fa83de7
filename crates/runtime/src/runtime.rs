//! Starting executors: one a core, the calling thread being the first.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use crate::driver::Driver;
use crate::driver::threads::Threads;
use crate::driver::uring::{Unusable, Uring, check_kernel};
use crate::executor::{Executor, Shared};
use crate::limits::DEFAULT_SPIN_NS;
use crate::local_box::LocalBox;

/// Which driver to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DriverChoice {
    /// io_uring, or threads where it is forbidden.
    #[default]
    Auto,
    /// io_uring or an error.
    IoUring,
    /// Plain threads and epoll.
    Threads,
}

/// How to run.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Executor threads, 1 at least; 0 for one a CPU that the process may use.
    pub cores: usize,
    /// The driver.
    pub driver: DriverChoice,
    /// Bound of the busy-wait before sleeping, in nanoseconds; 0 turns it off.
    pub spin_ns: u64,
    /// Ceiling of pooled memory, in bytes.
    pub memory_bytes: usize,
    /// Bind each executor thread to a CPU of the process's set: the first to this index, and so on.
    pub pin_from: Option<usize>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            cores: 1,
            driver: DriverChoice::Auto,
            spin_ns: DEFAULT_SPIN_NS,
            memory_bytes: crate::limits::DEFAULT_MEMORY_BYTES,
            pin_from: None,
        }
    }
}

/// Why the runtime cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The kernel is older than 5.15.
    #[error("{0}")]
    Kernel(String),
    /// io_uring was asked for and is not to be had.
    #[error("{0}; use the driver `threads`, or allow the io_uring system calls")]
    Forbidden(String),
    /// The system refuses an eventfd, epoll or thread.
    #[error("cannot start an executor: {0}")]
    System(#[from] io::Error),
}

/// A core's executor, as other cores see it.
#[derive(Clone)]
pub struct CoreHandle {
    shared: Arc<Shared>,
}

impl CoreHandle {
    /// Runs `make` on that core and spawns the future that it returns. What `make` captures must be
    /// `Send`, the future need not be.
    pub fn spawn<F, Fut>(&self, make: F)
    where
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = ()> + 'static,
    {
        // The task belongs to the flow, and in simulation to the node, that asked for it.
        let (node, flow) =
            Executor::try_current().map_or((0, 0), |executor| (executor.node(), executor.flow()));
        self.shared.send(Box::new(move || {
            let executor = Executor::current();
            executor.set_flow(flow);
            executor.as_node(node, || executor.spawn(LocalBox::new(make())));
            executor.set_flow(0);
        }));
    }
}

impl std::fmt::Debug for CoreHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CoreHandle")
    }
}

thread_local! {
    static CORES: RefCell<Vec<CoreHandle>> = const { RefCell::new(Vec::new()) };
}

/// All cores of this runtime, in order; the current one in simulation.
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

fn make_driver(config: &Config, shared: &Arc<Shared>) -> Result<Box<dyn Driver>, StartError> {
    check_kernel().map_err(|error| StartError::Kernel(error.to_string()))?;
    if config.driver != DriverChoice::Threads {
        match Uring::new(shared.clone(), config.spin_ns) {
            Ok(driver) => return Ok(Box::new(driver)),
            Err(error @ Unusable::Forbidden(_)) if config.driver == DriverChoice::Auto => {
                tracing::warn!("{error}: falling back to threads, slower but correct");
            }
            Err(error) => return Err(StartError::Forbidden(error.to_string())),
        }
    }
    Ok(Box::new(Threads::new(shared.clone())?))
}

/// Runs `main` on the calling thread as core 0, with the other cores beside it, until it returns.
/// Then every task is dropped and every operation in flight awaited. `main` begins when all cores
/// run; it does not if one cannot.
///
/// # Errors
/// [`StartError`]; see there.
pub fn run<F, Fut, T>(config: &Config, main: F) -> Result<T, StartError>
where
    F: FnOnce() -> Fut,
    Fut: Future<Output = T>,
{
    crate::buf::set_memory_limit(config.memory_bytes);
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
    // Ends when each has started or given up: what is sent to a core that cannot run is never done.
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
        (result, _) => result.expect("a core that did not start says why"),
    }
}

/// Runs `future` on one core with the default configuration. For tools and tests.
///
/// # Errors
/// [`StartError`]; see there.
pub fn block_on<T>(future: impl Future<Output = T>) -> Result<T, StartError> {
    run(&Config::default(), || future)
}

fn pin(config: &Config, core: usize) {
    let Some(first) = config.pin_from else { return };
    let Ok(allowed) = rustix::thread::sched_getaffinity(None) else { return };
    let cpus: Vec<usize> =
        (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpus[(first + core) % cpus.len()]);
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        tracing::warn!("cannot bind core {core} to a CPU: {error}");
    }
}

fn serve_core(
    core: usize,
    config: &Config,
    shared: &Arc<Shared>,
    handles: Vec<CoreHandle>,
    stop: &AtomicBool,
    started: mpsc::Sender<()>,
) -> Result<(), StartError> {
    pin(config, core);
    CORES.with(|cores| *cores.borrow_mut() = handles);
    let executor = Executor::new(core, shared.clone(), make_driver(config, shared)?);
    let _entered = executor.enter();
    // The other side waits for it for as long as a core may still start.
    let _ = started.send(());
    drop(started);
    while !stop.load(Ordering::SeqCst) {
        executor.turn();
    }
    executor.shut_down();
    Ok(())
}

fn run_first<F, Fut, T>(
    config: &Config,
    shared: &Arc<Shared>,
    handles: Vec<CoreHandle>,
    main: F,
) -> Result<T, StartError>
where
    F: FnOnce() -> Fut,
    Fut: Future<Output = T>,
{
    // With one core `run` may be called from a thread that is bound already: leave it be.
    pin(config, 0);
    let executor = Executor::new(0, shared.clone(), make_driver(config, shared)?);
    let _entered = executor.enter();
    let earlier = CORES.with(|cores| cores.replace(handles));
    let result = drive_to_end(&executor, main(), || {});
    executor.shut_down();
    CORES.with(|cores| cores.replace(earlier));
    Ok(result)
}

/// Polls `main` beside the executor's own tasks. It needs no `'static`: it never leaves this frame.
/// `after_turn` may look for what should end the loop by a panic.
pub(crate) fn drive_to_end<T>(
    executor: &Rc<Executor>,
    main: impl Future<Output = T>,
    mut after_turn: impl FnMut(),
) -> T {
    let waker = std::task::Waker::from(Arc::new(MainWaker { shared: executor.shared.clone() }));
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

/// Wakes the future that a thread drives beside its tasks.
struct MainWaker {
    shared: Arc<Shared>,
}

impl std::task::Wake for MainWaker {
    fn wake(self: Arc<Self>) {
        self.shared.wake_main();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.shared.wake_main();
    }
}
