//! Pool internals: the memory limit, the queue of waiters, and the idle blocks of each core.
//!
//! The parent module states the policy and why it cannot deadlock.

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use super::quota::Holder;
use super::system;
use crate::limits::{
    BUF_AHEAD_STEP_BYTES, BUF_CLASSES, BUF_IDLE_BYTES_MAX, BUF_IDLE_PART, BUF_IDLE_SMALL,
    BUF_MIN_BYTES, DEFAULT_BUFFER_MEMORY_BYTES,
};

static LIMIT_BYTES: AtomicUsize = AtomicUsize::new(DEFAULT_BUFFER_MEMORY_BYTES);
/// Blocks that count against the limit, in use and idle.
static TAKEN_BYTES: AtomicUsize = AtomicUsize::new(0);
/// Blocks outside the limit ([`super::alloc_small`] and reserves), in use and idle.
static SMALL_BYTES: AtomicUsize = AtomicUsize::new(0);
/// Part of the limit that cores have reserved for receiving ahead.
static RECEIVE_AHEAD_BYTES: AtomicUsize = AtomicUsize::new(0);
/// Part of the limit used by waiting and held commands.
static WAITING_BYTES: AtomicUsize = AtomicUsize::new(0);
/// Part of `WAITING_BYTES` used by held commands.
static BLOCKED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Waiters in FIFO order.
static QUEUE: Mutex<VecDeque<Arc<Ticket>>> = Mutex::new(VecDeque::new());
/// Number of waiters, readable without the lock.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// The idle blocks of every core, for waiters at the limit.
static CORES: Mutex<Vec<Weak<Mutex<Idle>>>> = Mutex::new(Vec::new());

pub(super) fn set_limit(bytes: usize) {
    LIMIT_BYTES.store(bytes, SeqCst);
    serve();
}

pub(super) fn limit() -> usize {
    LIMIT_BYTES.load(Relaxed)
}

pub(super) fn held() -> usize {
    TAKEN_BYTES.load(Relaxed) + SMALL_BYTES.load(Relaxed)
}

pub(super) fn taken() -> usize {
    TAKEN_BYTES.load(Relaxed)
}

/// Bound of the memory received ahead, over all cores.
fn receive_ahead_limit() -> usize {
    limit() / 4
}

/// Bound of the memory of waiting and held commands.
fn waiting_limit() -> usize {
    limit() / 8
}

/// Largest request that is certain to be granted eventually.
pub(super) fn most() -> usize {
    limit() - receive_ahead_limit() - waiting_limit()
}

pub(super) const fn class_bytes(class: usize) -> usize {
    BUF_MIN_BYTES << class
}

pub(super) fn class_of(len: usize) -> usize {
    let units = len.div_ceil(BUF_MIN_BYTES).max(1);
    units.next_power_of_two().trailing_zeros() as usize
}

/// Charges `bytes` to the limit, if they fit.
fn charge(bytes: usize) -> bool {
    let limit = LIMIT_BYTES.load(SeqCst);
    let fits = |taken: usize| taken.checked_add(bytes).filter(|sum| *sum <= limit);
    TAKEN_BYTES.fetch_update(SeqCst, SeqCst, fits).is_ok()
}

/// Returns `bytes` to the limit and serves waiters with them.
fn discharge(bytes: usize) {
    TAKEN_BYTES.fetch_sub(bytes, SeqCst);
    serve();
}

/// Memory of one size class. Owned by views and, when idle, by its core.
pub(super) struct Block {
    pub(super) ptr: NonNull<u8>,
    pub(super) class: usize,
    /// Outside the limit: of [`super::alloc_small`] or a reserve.
    pub(super) is_small: bool,
    /// The budget that counts the block while it is in use. It is notified when the use ends.
    pub(super) holder: Cell<Option<Holder>>,
    /// Received data is copied out of the block: see [`super::BufMut::is_passing`].
    pub(super) is_passing: Cell<bool>,
}

impl Block {
    fn new(ptr: NonNull<u8>, class: usize, is_small: bool) -> Rc<Block> {
        let (holder, is_passing) = (Cell::new(None), Cell::new(is_small));
        Rc::new(Block { ptr, class, is_small, holder, is_passing })
    }

    pub(super) fn bytes(&self) -> usize {
        class_bytes(self.class)
    }

    /// A block whose bytes have been charged already.
    fn charged(class: usize) -> Option<Rc<Block>> {
        match system::give(class_bytes(class)) {
            Some(ptr) => Some(Block::new(ptr, class, false)),
            None => {
                discharge(class_bytes(class));
                None
            }
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let bytes = self.bytes();
        // SAFETY: `ptr` came from `give` with the bytes of this class; the last owner is gone.
        unsafe { system::take_back(self.ptr, bytes) };
        if self.is_small {
            SMALL_BYTES.fetch_sub(bytes, Relaxed);
        } else {
            discharge(bytes);
        }
    }
}

/// A block without users.
pub(super) struct IdleBlock(Rc<Block>);

// SAFETY: made of the only reference to a block without a holder, so no other thread uses the
// reference count, and the memory behind the pointer is plain bytes.
unsafe impl Send for IdleBlock {}

impl IdleBlock {
    fn new(block: Rc<Block>) -> IdleBlock {
        debug_assert_eq!(Rc::strong_count(&block), 1, "a block that is in use is not idle");
        IdleBlock(block)
    }
}

/// The idle blocks of one core.
#[derive(Default)]
struct Idle {
    classes: [Vec<IdleBlock>; BUF_CLASSES],
    bytes: usize,
    small: Vec<IdleBlock>,
}

impl Idle {
    fn pop(&mut self, class: usize) -> Option<Rc<Block>> {
        let IdleBlock(block) = self.classes[class].pop()?;
        self.bytes -= block.bytes();
        Some(block)
    }

    /// Keeps a block, and evicts blocks of classes that have more than enough.
    fn keep(&mut self, block: Rc<Block>) {
        let (class, bytes) = (block.class, block.bytes());
        let most = (limit() / BUF_IDLE_PART).min(BUF_IDLE_BYTES_MAX);
        if bytes > most {
            return;
        }
        while self.bytes + bytes > most {
            let largest = (0..BUF_CLASSES).max_by_key(|c| self.classes[*c].len() * class_bytes(*c));
            match largest {
                Some(other) if other != class => drop(self.pop(other)),
                _ => return,
            }
        }
        self.bytes += bytes;
        self.classes[class].push(IdleBlock::new(block));
    }
}

/// Pool state of one thread.
struct Core {
    idle: Arc<Mutex<Idle>>,
    /// Bytes of [`super::ReceiveBudget`] blocks in use, and bytes reserved for them.
    ahead: Cell<usize>,
    ahead_reserved: Cell<usize>,
}

thread_local! {
    static CORE: Core = Core::new();
}

impl Core {
    fn new() -> Core {
        let idle = Arc::default();
        let mut cores = CORES.lock();
        cores.retain(|core| core.strong_count() > 0);
        cores.push(Arc::downgrade(&idle));
        Core { idle, ahead: Cell::new(0), ahead_reserved: Cell::new(0) }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        RECEIVE_AHEAD_BYTES.fetch_sub(self.ahead_reserved.get(), Relaxed);
    }
}

/// Frees idle blocks of all cores to the system, large ones first, until `enough`.
fn clear_idle(mut enough: impl FnMut() -> bool) -> bool {
    let cores: Vec<_> = CORES.lock().iter().filter_map(Weak::upgrade).collect();
    for core in cores {
        loop {
            let mut idle = core.lock();
            let largest = (0..BUF_CLASSES).rev().find(|class| !idle.classes[*class].is_empty());
            let Some(class) = largest else {
                idle.small.clear();
                break;
            };
            let block = idle.pop(class);
            drop(idle);
            drop(block);
            if enough() {
                return true;
            }
        }
    }
    false
}

/// A block, if there are no waiters and it fits the limit.
pub(super) fn try_take(class: usize) -> Option<Rc<Block>> {
    if WAITING.load(Relaxed) > 0 {
        return None;
    }
    let idle = CORE.try_with(|core| core.idle.try_lock()?.pop(class));
    if let Ok(Some(block)) = idle {
        return Some(block);
    }
    let bytes = class_bytes(class);
    if charge(bytes) || clear_idle(|| charge(bytes)) { Block::charged(class) } else { None }
}

/// A block outside the limit.
pub(super) fn take_small() -> Option<Rc<Block>> {
    let idle = CORE.try_with(|core| core.idle.try_lock()?.small.pop());
    if let Ok(Some(IdleBlock(block))) = idle {
        return Some(block);
    }
    take_beyond(0)
}

/// A new block outside the limit, of any size; the callers bound their number.
pub(super) fn take_beyond(class: usize) -> Option<Rc<Block>> {
    let bytes = class_bytes(class);
    let ptr = system::give(bytes)?;
    SMALL_BYTES.fetch_add(bytes, Relaxed);
    Some(Block::new(ptr, class, true))
}

/// Takes back a block without users.
pub(super) fn put(block: Rc<Block>) {
    let block = if WAITING.load(SeqCst) > 0 { hand_over(block) } else { Some(block) };
    let Some(block) = block else { return };
    // If another core is clearing the idle blocks of this one, or the thread is ending, the block
    // is freed to the system.
    let _ = CORE.try_with(|core| {
        let Some(mut idle) = core.idle.try_lock() else { return };
        if block.is_small {
            if block.class == 0 && idle.small.len() < BUF_IDLE_SMALL {
                idle.small.push(IdleBlock::new(block));
            }
        } else if WAITING.load(SeqCst) == 0 {
            // A waiter that registers after this check also clears the idle blocks afterwards,
            // because it takes the same lock.
            idle.keep(block);
        }
    });
}

/// Gives a block to the first waiter, if it wants that size. Otherwise the caller frees the block
/// to the system and serves waiters with its bytes.
fn hand_over(block: Rc<Block>) -> Option<Rc<Block>> {
    if block.is_small {
        return Some(block);
    }
    let queue = QUEUE.lock();
    let Some(first) = queue.front() else { return Some(block) };
    let mut given = first.given.lock();
    if !first.wants(&given, block.class) {
        return Some(block);
    }
    given.push(IdleBlock::new(block));
    drop(given);
    drop(queue);
    serve();
    None
}

/// Serves waiters in order while their requests fit.
fn serve() {
    while WAITING.load(SeqCst) > 0 {
        let mut queue = QUEUE.lock();
        let Some(first) = queue.front() else { return };
        let given: usize = first.given.lock().iter().map(|IdleBlock(block)| block.bytes()).sum();
        if !charge(first.bytes() - given) {
            return;
        }
        let Some(first) = queue.pop_front() else { return };
        WAITING.fetch_sub(1, SeqCst);
        // Set under the lock of the waker: a thread that is about to store a waker checks it first.
        let waker = {
            let mut waker = first.waker.lock();
            first.granted.store(true, SeqCst);
            waker.take()
        };
        drop(queue);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Most blocks in one acquisition.
pub(super) const PARTS: usize = 2;

/// A waiter's entry in the queue.
struct Ticket {
    /// Size classes requested.
    classes: [Option<usize>; PARTS],
    /// Blocks that other threads have handed over.
    given: Mutex<Vec<IdleBlock>>,
    granted: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Ticket {
    fn bytes(&self) -> usize {
        self.classes.iter().flatten().map(|class| class_bytes(*class)).sum()
    }

    fn wants(&self, given: &[IdleBlock], class: usize) -> bool {
        let wanted = self.classes.iter().flatten().filter(|wanted| **wanted == class).count();
        given.iter().filter(|IdleBlock(block)| block.class == class).count() < wanted
    }
}

/// Waits for blocks of the given classes, all of them at once. `None` if the system has no more
/// memory.
pub(super) struct Wait {
    classes: [Option<usize>; PARTS],
    ticket: Option<Arc<Ticket>>,
}

impl Wait {
    pub(super) fn new(classes: [Option<usize>; PARTS]) -> Wait {
        Wait { classes, ticket: None }
    }

    /// Enters the queue and frees idle blocks.
    fn begin(&mut self, waker: Waker) {
        let ticket = Arc::new(Ticket {
            classes: self.classes,
            given: Mutex::default(),
            granted: AtomicBool::new(false),
            waker: Mutex::new(Some(waker)),
        });
        {
            let mut queue = QUEUE.lock();
            WAITING.fetch_add(1, SeqCst);
            queue.push_back(ticket.clone());
        }
        self.ticket = Some(ticket);
        // Free all idle blocks; from now on blocks are no longer kept idle. Then serve with the
        // memory that became free meanwhile.
        clear_idle(|| false);
        serve();
    }

    /// The blocks of a granted ticket.
    fn collect(&mut self) -> Option<[Option<Rc<Block>>; PARTS]> {
        let ticket = self.ticket.take()?;
        let mut given = std::mem::take(&mut *ticket.given.lock());
        let mut blocks = [const { None }; PARTS];
        let mut is_whole = true;
        for (place, class) in blocks.iter_mut().zip(self.classes) {
            let Some(class) = class else { continue };
            let handed = given.iter().position(|IdleBlock(block)| block.class == class);
            *place = match handed {
                Some(index) => Some(given.swap_remove(index).0),
                None => Block::charged(class),
            };
            is_whole &= place.is_some();
        }
        is_whole.then_some(blocks)
    }
}

impl Future for Wait {
    type Output = Option<[Option<Rc<Block>>; PARTS]>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &self.ticket {
            None => self.begin(cx.waker().clone()),
            Some(ticket) => {
                let mut waker = ticket.waker.lock();
                if !ticket.granted.load(SeqCst) {
                    *waker = Some(cx.waker().clone());
                }
            }
        }
        let granted = self.ticket.as_ref().is_some_and(|ticket| ticket.granted.load(SeqCst));
        if granted { Poll::Ready(self.collect()) } else { Poll::Pending }
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let Some(ticket) = &self.ticket else { return };
        let mut queue = QUEUE.lock();
        if ticket.granted.load(SeqCst) {
            drop(queue);
            // Returned blocks serve the next waiter.
            let blocks = self.collect();
            for block in blocks.into_iter().flatten().flatten() {
                put(block);
            }
            return;
        }
        queue.retain(|other| !Arc::ptr_eq(other, ticket));
        WAITING.fetch_sub(1, SeqCst);
        drop(queue);
        let given = std::mem::take(&mut *ticket.given.lock());
        for IdleBlock(block) in given {
            put(block);
        }
        serve();
    }
}

/// Counts a block of `bytes` as received ahead on this core; false if the bound is reached.
pub(super) fn count_ahead(bytes: usize) -> bool {
    let step = (receive_ahead_limit() / 64).min(BUF_AHEAD_STEP_BYTES);
    let counted = CORE.try_with(|core| {
        let (used, reserved) = (core.ahead.get() + bytes, core.ahead_reserved.get());
        if used > reserved {
            let more = (used - reserved).max(step);
            let limit = receive_ahead_limit();
            let fits = |all: usize| all.checked_add(more).filter(|sum| *sum <= limit);
            if RECEIVE_AHEAD_BYTES.fetch_update(Relaxed, Relaxed, fits).is_err() {
                return false;
            }
            core.ahead_reserved.set(reserved + more);
        }
        core.ahead.set(used);
        true
    });
    counted == Ok(true)
}

/// Reverts [`count_ahead`].
pub(super) fn uncount_ahead(bytes: usize) {
    let step = (receive_ahead_limit() / 64).min(BUF_AHEAD_STEP_BYTES);
    let _ = CORE.try_with(|core| {
        core.ahead.set(core.ahead.get() - bytes);
        let unused = core.ahead_reserved.get() - core.ahead.get();
        if unused > 2 * step {
            let less = unused - step;
            core.ahead_reserved.set(core.ahead_reserved.get() - less);
            RECEIVE_AHEAD_BYTES.fetch_sub(less, Relaxed);
        }
    });
}

/// Counts `bytes` of a waiting or held command; false if the bound is reached.
pub(super) fn count_waiting(bytes: usize, is_held: bool) -> bool {
    let count = |counter: &AtomicUsize, limit: usize| {
        let fits = |all: usize| all.checked_add(bytes).filter(|sum| *sum <= limit);
        counter.fetch_update(Relaxed, Relaxed, fits).is_ok()
    };
    if is_held && !count(&BLOCKED_BYTES, waiting_limit() / 2) {
        return false;
    }
    let fits = count(&WAITING_BYTES, waiting_limit());
    if is_held && !fits {
        BLOCKED_BYTES.fetch_sub(bytes, Relaxed);
    }
    fits
}

/// Reverts [`count_waiting`].
pub(super) fn uncount_waiting(bytes: usize, is_held: bool) {
    WAITING_BYTES.fetch_sub(bytes, Relaxed);
    if is_held {
        BLOCKED_BYTES.fetch_sub(bytes, Relaxed);
    }
}
