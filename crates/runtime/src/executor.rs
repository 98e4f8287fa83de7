//! Executor of one core: tasks, wake-ups, timers, and the loop that drives them.
//!
//! Invariants: a task runs on the core that spawned it. Spawning and waking allocate nothing in the
//! steady state, because task slots and their wakers are reused. An executor without work sleeps in
//! its driver.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Wake, Waker};

use parking_lot::Mutex;

use crate::driver::{Driver, Wait};
use crate::flow::FlowEnds;
use crate::limits::{SHUT_DOWN_NS, SHUT_DOWN_TURN_NS, TASKS_PER_TURN};
use crate::local_box::LocalBox;
use crate::op::{Op, OpId, Ops};

thread_local! {
    static CURRENT: RefCell<Option<Rc<Executor>>> = const { RefCell::new(None) };
}

/// Work sent to an executor from another thread.
pub(crate) type Remote = Box<dyn FnOnce() + Send>;

/// The part of an executor that other threads may access.
pub(crate) struct Shared {
    remote: Mutex<RemoteQueue>,
    /// Set while anything is in the remote queue.
    pending: AtomicBool,
    /// Set while the driver sleeps or is about to: senders must then write to the eventfd.
    asleep: AtomicBool,
    /// The main future, which the thread drives in addition to its tasks, wants to be polled.
    main_woken: AtomicBool,
    /// An eventfd that ends the driver's sleep.
    wake_fd: std::os::fd::OwnedFd,
    /// Written once per turn, by the executor only.
    pub(crate) work: WorkCounters,
}

/// Work of an executor since its start, for readers on other threads.
#[derive(Default)]
pub(crate) struct WorkCounters {
    pub(crate) thread_id: AtomicU64,
    pub(crate) turns: AtomicU64,
    pub(crate) polls: AtomicU64,
    pub(crate) tasks: AtomicU64,
}

#[derive(Default)]
struct RemoteQueue {
    woken: Vec<u32>,
    work: Vec<Remote>,
}

impl Shared {
    pub(crate) fn new() -> std::io::Result<Arc<Shared>> {
        let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
        let wake_fd = rustix::event::eventfd(0, flags)?;
        Ok(Arc::new(Shared {
            remote: Mutex::new(RemoteQueue::default()),
            pending: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            main_woken: AtomicBool::new(false),
            wake_fd,
            work: WorkCounters::default(),
        }))
    }

    /// Runs `work` on the executor's thread.
    pub(crate) fn send(&self, work: Remote) {
        self.remote.lock().work.push(work);
        self.ring();
    }

    fn wake_slot(&self, slot: u32) {
        self.remote.lock().woken.push(slot);
        self.ring();
    }

    /// Wakes the main future of the thread.
    pub(crate) fn wake_main(&self) {
        if !self.main_woken.swap(true, Ordering::SeqCst) {
            self.ring();
        }
    }

    /// Whether the main future was woken since the last call.
    pub(crate) fn take_main(&self) -> bool {
        self.main_woken.swap(false, Ordering::SeqCst)
    }

    fn ring(&self) {
        self.pending.store(true, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) {
            // The write fails only if the counter is full, and then the executor is already woken.
            let _ = rustix::io::write(&self.wake_fd, &1_u64.to_ne_bytes());
        }
    }

    /// Announces sleep. Returns false if work arrived meanwhile: then the driver must not sleep.
    pub(crate) fn fall_asleep(&self) -> bool {
        self.asleep.store(true, Ordering::SeqCst);
        !self.pending.load(Ordering::SeqCst)
    }

    pub(crate) fn wake_up(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }

    pub(crate) fn has_remote_work(&self) -> bool {
        self.pending.load(Ordering::Relaxed)
    }

    pub(crate) fn wake_fd(&self) -> &std::os::fd::OwnedFd {
        &self.wake_fd
    }
}

/// The waker of the main future.
impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        self.wake_main();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wake_main();
    }
}

/// Waker of one task slot. It outlives the tasks that use the slot, so a late wake-up may poll the
/// next task of the slot once without need.
struct SlotWaker {
    slot: u32,
    queued: AtomicBool,
    shared: Arc<Shared>,
}

impl Wake for SlotWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.queued.swap(true, Ordering::AcqRel) {
            return;
        }
        let local = CURRENT.try_with(|current| {
            let current = current.borrow();
            match &*current {
                Some(executor) if Arc::ptr_eq(&executor.shared, &self.shared) => {
                    executor.ready.borrow_mut().push_back(self.slot);
                    true
                }
                _ => false,
            }
        });
        if local != Ok(true) {
            self.shared.wake_slot(self.slot);
        }
    }
}

struct TaskSlot {
    future: Option<LocalBox<()>>,
    /// Incremented when the task of the slot ends, so that a handle of an earlier task cannot abort
    /// a later one.
    generation: u32,
    node: u32,
    flow: u64,
    occupied: bool,
    waker: Waker,
    cell: Arc<SlotWaker>,
}

#[derive(Default)]
struct Tasks {
    slots: Vec<TaskSlot>,
    free: Vec<u32>,
}

/// Identifies a task for [`Executor::abort`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TaskId {
    slot: u32,
    generation: u32,
}

#[derive(Default)]
struct Timers {
    queue: BTreeMap<(u64, u64), Waker>,
    next_id: u64,
}

pub(crate) struct Executor {
    pub(crate) shared: Arc<Shared>,
    pub(crate) core: usize,
    pub(crate) ops: RefCell<Ops>,
    driver: RefCell<Box<dyn Driver>>,
    tasks: RefCell<Tasks>,
    ready: RefCell<VecDeque<u32>>,
    timers: RefCell<Timers>,
    garbage: RefCell<Vec<Op>>,
    node: Cell<u32>,
    flow: Cell<u64>,
    pub(crate) flow_ends: FlowEnds,
    shuffles: bool,
    /// Ready tasks of each paused node, which run when it resumes.
    #[cfg(feature = "sim")]
    paused: RefCell<BTreeMap<u32, Vec<u32>>>,
}

impl Executor {
    pub(crate) fn new(core: usize, shared: Arc<Shared>, driver: Box<dyn Driver>) -> Rc<Executor> {
        let shuffles = driver.shuffles();
        Rc::new(Executor {
            shared,
            core,
            ops: RefCell::default(),
            driver: RefCell::new(driver),
            tasks: RefCell::default(),
            ready: RefCell::default(),
            timers: RefCell::default(),
            garbage: RefCell::default(),
            node: Cell::new(0),
            flow: Cell::new(0),
            flow_ends: FlowEnds::default(),
            shuffles,
            #[cfg(feature = "sim")]
            paused: RefCell::default(),
        })
    }

    /// The executor of this thread.
    ///
    /// # Panics
    /// Outside of an executor: I/O and time need a running one.
    pub(crate) fn current() -> Rc<Executor> {
        Executor::try_current().expect("this needs a running flagstone executor on the thread")
    }

    pub(crate) fn try_current() -> Option<Rc<Executor>> {
        CURRENT.try_with(|current| current.borrow().clone()).ok().flatten()
    }

    /// Makes this the executor of the thread until the guard is dropped.
    pub(crate) fn enter(self: &Rc<Self>) -> Entered {
        let thread = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        self.shared.work.thread_id.store(thread.into(), Ordering::Relaxed);
        let earlier = CURRENT.with(|current| current.borrow_mut().replace(self.clone()));
        Entered { earlier }
    }

    pub(crate) fn driver(&self) -> std::cell::RefMut<'_, Box<dyn Driver>> {
        self.driver.borrow_mut()
    }

    pub(crate) fn now(&self) -> u64 {
        self.driver.borrow().now()
    }

    /// The simulated node of the running task; 0 outside of simulation.
    pub(crate) fn node(&self) -> u32 {
        self.node.get()
    }

    /// Runs `work` as `node`.
    pub(crate) fn as_node<T>(&self, node: u32, work: impl FnOnce() -> T) -> T {
        let earlier = self.node.replace(node);
        let result = work();
        self.node.set(earlier);
        result
    }

    /// The flow of the running task; see [`crate::task::flow`].
    pub(crate) fn flow(&self) -> u64 {
        self.flow.get()
    }

    /// Moves the running task, and the tasks it spawns from now on, to `flow`.
    pub(crate) fn set_flow(&self, flow: u64) {
        self.flow.set(flow);
    }

    pub(crate) fn submit(&self, op: Op) -> OpId {
        let node = self.node.get();
        let mut ops = self.ops.borrow_mut();
        let id = ops.insert(op);
        let op = ops.op_mut(id).expect("inserted above");
        self.driver.borrow_mut().submit(id, op, node);
        id
    }

    pub(crate) fn cancel(&self, id: OpId) {
        self.driver.borrow_mut().cancel(id);
    }

    pub(crate) fn spawn(&self, future: LocalBox<()>) -> TaskId {
        let mut tasks = self.tasks.borrow_mut();
        let slot = tasks.free.pop().unwrap_or_else(|| {
            let slot = tasks.slots.len() as u32;
            let shared = self.shared.clone();
            let cell = Arc::new(SlotWaker { slot, queued: AtomicBool::new(false), shared });
            let waker = Waker::from(cell.clone());
            let fresh = TaskSlot {
                future: None,
                generation: 0,
                node: 0,
                flow: 0,
                occupied: false,
                waker,
                cell,
            };
            tasks.slots.push(fresh);
            slot
        });
        let task = &mut tasks.slots[slot as usize];
        task.future = Some(future);
        task.occupied = true;
        task.node = self.node.get();
        task.flow = self.flow.get();
        let generation = task.generation;
        if !task.cell.queued.swap(true, Ordering::AcqRel) {
            self.ready.borrow_mut().push_back(slot);
        }
        TaskId { slot, generation }
    }

    /// Drops a task unless it has ended. A task that aborts itself ends at its next suspension
    /// point.
    pub(crate) fn abort(&self, id: TaskId) {
        let future = {
            let mut tasks = self.tasks.borrow_mut();
            let task = &mut tasks.slots[id.slot as usize];
            if !task.occupied || task.generation != id.generation {
                return;
            }
            task.generation = task.generation.wrapping_add(1);
            let future = task.future.take();
            if future.is_some() {
                task.occupied = false;
                tasks.free.push(id.slot);
            }
            future
        };
        drop(future);
    }

    /// Stops running the tasks of a simulated node until [`Executor::resume`].
    #[cfg(feature = "sim")]
    pub(crate) fn pause(&self, node: u32) {
        self.paused.borrow_mut().entry(node).or_default();
    }

    /// Runs the tasks of a paused node again. False if it was not paused.
    #[cfg(feature = "sim")]
    pub(crate) fn resume(&self, node: u32) -> bool {
        let ready = self.paused.borrow_mut().remove(&node);
        let was_paused = ready.is_some();
        self.ready.borrow_mut().extend(ready.into_iter().flatten());
        was_paused
    }

    /// Keeps a ready task for later if its node is paused.
    #[cfg(feature = "sim")]
    fn is_kept_for_later(&self, slot: u32) -> bool {
        let mut paused = self.paused.borrow_mut();
        if paused.is_empty() {
            return false;
        }
        let tasks = self.tasks.borrow();
        let task = &tasks.slots[slot as usize];
        let Some(later) = paused.get_mut(&task.node).filter(|_| task.occupied) else {
            return false;
        };
        later.push(slot);
        true
    }

    /// Drops every task of a simulated node, including tasks that destructors spawn.
    #[cfg(feature = "sim")]
    pub(crate) fn abort_node(&self, node: u32) {
        while let Some(victim) = self.find_task(|task| task.node == node) {
            self.as_node(node, || self.abort(victim));
        }
    }

    /// Finds a task that is not running right now. (A task that panicked has no future any more.)
    fn find_task(&self, wanted: impl Fn(&TaskSlot) -> bool) -> Option<TaskId> {
        let tasks = self.tasks.borrow();
        let mut slots = tasks.slots.iter().enumerate();
        slots
            .find(|(_, task)| task.future.is_some() && wanted(task))
            .map(|(slot, task)| TaskId { slot: slot as u32, generation: task.generation })
    }

    /// Number of tasks alive on a simulated node.
    #[cfg(feature = "sim")]
    pub(crate) fn tasks_of(&self, node: u32) -> usize {
        let tasks = self.tasks.borrow();
        tasks.slots.iter().filter(|task| task.occupied && task.node == node).count()
    }

    pub(crate) fn tasks(&self) -> usize {
        let tasks = self.tasks.borrow();
        tasks.slots.len() - tasks.free.len()
    }

    pub(crate) fn add_timer(&self, deadline: u64, waker: Waker) -> (u64, u64) {
        let mut timers = self.timers.borrow_mut();
        timers.next_id += 1;
        let key = (deadline, timers.next_id);
        timers.queue.insert(key, waker);
        key
    }

    /// Replaces the waker of a timer. Returns false if the timer has already fired.
    pub(crate) fn update_timer(&self, key: (u64, u64), waker: &Waker) -> bool {
        match self.timers.borrow_mut().queue.get_mut(&key) {
            Some(stored) => {
                stored.clone_from(waker);
                true
            }
            None => false,
        }
    }

    pub(crate) fn remove_timer(&self, key: (u64, u64)) {
        self.timers.borrow_mut().queue.remove(&key);
    }

    /// One turn: runs ready tasks, drives I/O (waiting only if no task is ready), fires timers.
    pub(crate) fn turn(&self) {
        self.take_remote_work();
        let polls = self.run_ready();
        self.count_turn(polls);
        let wait = if self.is_idle() { Wait::Until(self.next_timer()) } else { Wait::No };
        self.drive(wait);
        self.fire_timers();
    }

    /// True if no task can run before an external event.
    pub(crate) fn is_idle(&self) -> bool {
        self.ready.borrow().is_empty() && !self.shared.main_woken.load(Ordering::SeqCst)
    }

    pub(crate) fn next_timer(&self) -> Option<u64> {
        self.timers.borrow().queue.keys().next().map(|key| key.0)
    }

    fn drive(&self, wait: Wait) {
        let mut garbage = self.garbage.take();
        self.driver.borrow_mut().turn(wait, &mut self.ops.borrow_mut(), &mut garbage);
        garbage.clear();
        self.garbage.replace(garbage);
    }

    /// Takes in work that other threads, or this one through its handle, have sent.
    pub(crate) fn take_remote_work(&self) {
        if !self.shared.pending.swap(false, Ordering::SeqCst) {
            return;
        }
        let mut remote = self.shared.remote.lock();
        let woken = std::mem::take(&mut remote.woken);
        let work = std::mem::take(&mut remote.work);
        drop(remote);
        self.ready.borrow_mut().extend(woken);
        for work in work {
            work();
        }
    }

    /// Counts a turn with `polls` polled tasks. Only this thread writes the counters, so it needs
    /// no locked instruction.
    fn count_turn(&self, polls: usize) {
        let work = &self.shared.work;
        let add = |counter: &AtomicU64, more: u64| {
            let sum = counter.load(Ordering::Relaxed).wrapping_add(more);
            counter.store(sum, Ordering::Relaxed);
        };
        add(&work.turns, 1);
        add(&work.polls, polls as u64);
        work.tasks.store(self.tasks() as u64, Ordering::Relaxed);
    }

    /// Runs the ready tasks, up to a bound. Returns how many.
    fn run_ready(&self) -> usize {
        for count in 0..TASKS_PER_TURN {
            let Some(slot) = self.next_ready() else { return count };
            #[cfg(feature = "sim")]
            if self.is_kept_for_later(slot) {
                continue;
            }
            self.run(slot);
        }
        TASKS_PER_TURN
    }

    fn next_ready(&self) -> Option<u32> {
        let mut ready = self.ready.borrow_mut();
        if self.shuffles && ready.len() > 1 {
            let pick = self.driver.borrow_mut().random() as usize % ready.len();
            ready.swap(0, pick);
        }
        ready.pop_front()
    }

    fn run(&self, slot: u32) {
        let (mut future, waker, generation) = {
            let mut tasks = self.tasks.borrow_mut();
            let task = &mut tasks.slots[slot as usize];
            task.cell.queued.store(false, Ordering::Release);
            let Some(future) = task.future.take() else { return };
            self.node.set(task.node);
            self.flow.set(task.flow);
            let waker = std::mem::replace(&mut task.waker, Waker::noop().clone());
            (future, waker, task.generation)
        };
        let polled = Pin::new(&mut future).poll(&mut Context::from_waker(&waker));
        let mut tasks = self.tasks.borrow_mut();
        let task = &mut tasks.slots[slot as usize];
        task.waker = waker;
        let aborted = task.generation != generation;
        if polled.is_pending() && !aborted {
            task.future = Some(future);
            task.flow = self.flow.replace(0);
            self.node.set(0);
            return;
        }
        if !aborted {
            task.generation = task.generation.wrapping_add(1);
        }
        task.occupied = false;
        tasks.free.push(slot);
        drop(tasks);
        drop(future);
        self.node.set(0);
        self.flow.set(0);
    }

    fn fire_timers(&self) {
        if self.timers.borrow().queue.is_empty() {
            return;
        }
        let now = self.now();
        loop {
            let mut timers = self.timers.borrow_mut();
            let Some(entry) = timers.queue.first_entry() else { return };
            if entry.key().0 > now {
                return;
            }
            let waker = entry.remove();
            drop(timers);
            waker.wake();
        }
    }

    /// Drops all tasks, cancels the socket operations in flight, and waits until the driver has
    /// completed all operations. Operations that were leaked, and so are never polled or dropped,
    /// are cancelled too. A file operation that does not end within [`SHUT_DOWN_NS`] is leaked
    /// together with the whole executor, because the kernel may still use its buffer.
    pub(crate) fn shut_down(self: &Rc<Self>) {
        let limit = self.now().saturating_add(SHUT_DOWN_NS);
        loop {
            // Unread messages would keep the driver from waiting, and so from completing
            // operations.
            self.take_remote_work();
            while let Some(victim) = self.find_task(|_| true) {
                self.abort(victim);
            }
            if self.cancel_all() == 0 {
                return;
            }
            let now = self.now();
            if now >= limit {
                tracing::error!(
                    "file operations did not end within 30 s of the shutdown: leaking them"
                );
                std::mem::forget(self.clone());
                return;
            }
            self.drive(Wait::Until(Some(limit.min(now + SHUT_DOWN_TURN_NS))));
        }
    }

    /// Cancels what can be cancelled, and counts the operations that the driver has not completed.
    fn cancel_all(&self) -> usize {
        let ops: Vec<(OpId, bool)> = self.ops.borrow().with_driver().collect();
        for (id, cancellable) in &ops {
            if *cancellable {
                self.cancel(*id);
            }
        }
        ops.len()
    }
}

/// Restores the previous executor of the thread when dropped.
pub(crate) struct Entered {
    earlier: Option<Rc<Executor>>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let earlier = self.earlier.take();
        drop(CURRENT.with(|current| std::mem::replace(&mut *current.borrow_mut(), earlier)));
    }
}
