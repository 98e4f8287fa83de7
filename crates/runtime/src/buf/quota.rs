//! Budgets for blocks in use: memory received ahead, memory of waiting commands, the reserve of a
//! connection, and shared reserves outside the limit.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use super::pool::{self, Block, class_of};
use super::{Buf, BufMut, View};
use crate::sync::Notify;

/// The budget that counts a block while it is in use.
pub(super) enum Holder {
    Ahead(Rc<ReceiveAhead>),
    Reserve(Rc<Home>),
}

impl Holder {
    /// Ends the use of the block. Returns the block if it is free to go back to the pool.
    pub(super) fn released(self, block: Rc<Block>) -> Option<Rc<Block>> {
        match self {
            Holder::Ahead(count) => {
                count.settle(block.bytes());
                block.is_passing.set(false);
                Some(block)
            }
            Holder::Reserve(home) => home.came_back(block),
        }
    }

    /// The block now belongs to one payload. True if the holder releases it.
    pub(super) fn settle(&self, block: &Block) -> bool {
        match self {
            Holder::Ahead(count) => {
                count.settle(block.bytes());
                true
            }
            Holder::Reserve(_) => false,
        }
    }
}

/// Receive-ahead budget of one connection: blocks that are received into before the length of the
/// next message is known.
///
/// A peer can hold such a block for an unlimited time, and a payload in it keeps all of it. So all
/// of them together are at most a quarter of the memory limit, and the blocks of one connection at
/// most `max_bytes`.
pub struct ReceiveBudget(Rc<ReceiveAhead>);

pub(super) struct ReceiveAhead {
    bytes: Cell<usize>,
    max_bytes: usize,
}

impl ReceiveAhead {
    fn settle(&self, bytes: usize) {
        self.bytes.set(self.bytes.get() - bytes);
        pool::uncount_ahead(bytes);
    }
}

impl ReceiveBudget {
    /// A budget of `max_bytes` for this connection.
    pub fn new(max_bytes: usize) -> ReceiveBudget {
        ReceiveBudget(Rc::new(ReceiveAhead { bytes: Cell::new(0), max_bytes }))
    }

    /// Bytes of blocks in use, completely or in part.
    pub fn held_bytes(&self) -> usize {
        self.0.bytes.get()
    }

    /// A buffer of `len` bytes; `None` at the memory limit or at either bound of the budget.
    pub fn try_alloc(&self, len: usize) -> Option<BufMut> {
        let fits = self.0.bytes.get() + pool::class_bytes(class_of(len)) <= self.0.max_bytes;
        if fits { self.count(len) } else { None }
    }

    /// A buffer of `len` bytes whose received data is copied out ([`BufMut::is_passing`]), for a
    /// connection that has used up its budget. `None` at the memory limit or at the bound of all
    /// connections. No payload keeps such a buffer, so a receiver has at most two of them.
    pub fn try_alloc_passing(&self, len: usize) -> Option<BufMut> {
        let buf = self.count(len)?;
        buf.0.block.is_passing.set(true);
        Some(buf)
    }

    fn count(&self, len: usize) -> Option<BufMut> {
        let class = class_of(len);
        let bytes = pool::class_bytes(class);
        if !pool::count_ahead(bytes) {
            return None;
        }
        let Some(block) = pool::try_take(class) else {
            pool::uncount_ahead(bytes);
            return None;
        };
        self.0.bytes.set(self.0.bytes.get() + bytes);
        block.holder.set(Some(Holder::Ahead(self.0.clone())));
        Some(BufMut(View::new(block, 0, len)))
    }
}

/// Memory of a waiting command, which waits for other commands of its host, which may arrive at
/// any time, or for an operator.
///
/// All waiting commands together get at most an eighth of the memory limit. The rest keeps moving,
/// so the commands that they wait for eventually get memory.
#[derive(Debug)]
pub struct WaitingMemory {
    bytes: usize,
    is_held: bool,
}

impl WaitingMemory {
    /// Counts `data` as waiting for the lifetime of the result. `None` if the bound is reached, or
    /// if the data is in the [`Reserve`] of a connection, which the connection needs to receive the
    /// commands waited for: such a command must not wait.
    pub fn keep(data: &Buf) -> Option<WaitingMemory> {
        WaitingMemory::count(data, false)
    }

    /// The same for a command that is held until another node returns or an operator decides. That
    /// may take days, so held commands get at most half of the bound.
    pub fn hold(data: &Buf) -> Option<WaitingMemory> {
        WaitingMemory::count(data, true)
    }

    fn count(data: &Buf, is_held: bool) -> Option<WaitingMemory> {
        let block = &data.0.block;
        let holder = block.holder.take();
        let bytes = match &holder {
            None => Some(block.bytes()),
            // Already counted against the receive-ahead budget.
            Some(Holder::Ahead(_)) => Some(0),
            Some(Holder::Reserve(_)) => None,
        };
        block.holder.set(holder);
        let bytes = bytes?;
        pool::count_waiting(bytes, is_held).then(|| WaitingMemory { bytes, is_held })
    }
}

impl Drop for WaitingMemory {
    fn drop(&mut self) {
        pool::uncount_waiting(self.bytes, self.is_held);
    }
}

/// One reserved buffer of one owner. It always returns to its owner, also if memory is scarce.
///
/// [`super::acquire_with_reserve`] fills it, and [`Reserve::give_up`] empties it.
pub struct Reserve(Rc<Home>);

pub(super) struct Home {
    block: RefCell<Option<Rc<Block>>>,
    is_filled: Cell<bool>,
    notify: Rc<Notify>,
}

impl Home {
    fn came_back(&self, block: Rc<Block>) -> Option<Rc<Block>> {
        let mut place = self.block.borrow_mut();
        // A block of an earlier filling may return late.
        if !self.is_filled.get() || place.is_some() {
            return Some(block);
        }
        *place = Some(block);
        drop(place);
        self.notify.notify();
        None
    }
}

impl Reserve {
    /// Starts empty. `notify` rings whenever the buffer returns.
    pub fn new(notify: Rc<Notify>) -> Reserve {
        Reserve(Rc::new(Home { block: RefCell::default(), is_filled: Cell::new(false), notify }))
    }

    /// True if it has a buffer, idle or in use.
    pub fn is_filled(&self) -> bool {
        self.0.is_filled.get()
    }

    pub(super) fn fill(&self, block: Rc<Block>) {
        self.0.is_filled.set(true);
        self.0.block.replace(Some(block));
        self.0.notify.notify();
    }

    /// Releases the buffer. If it is in use, it goes to the pool afterwards.
    pub fn give_up(&self) {
        self.0.is_filled.set(false);
        let block = self.0.block.take();
        if let Some(block) = block {
            pool::put(block);
        }
    }

    /// The buffer, for `len` bytes, unless it is in use or smaller.
    pub fn try_alloc(&self, len: usize) -> Option<BufMut> {
        let mut place = self.0.block.borrow_mut();
        let block = place.take_if(|block| len <= block.bytes())?;
        block.holder.set(Some(Holder::Reserve(self.0.clone())));
        Some(BufMut(View::new(block, 0, len)))
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// One buffer outside the memory limit, allocated at first use, that its users take in turn. So one
/// of them at a time makes progress, however scarce memory is.
///
/// The user of the buffer must be able to finish without the users that wait for it, and without
/// memory that they hold.
pub struct SharedReserve {
    bytes: usize,
    notify: Rc<Notify>,
    reserve: Reserve,
}

impl SharedReserve {
    /// A shared reserve of `bytes`.
    pub fn new(bytes: usize) -> SharedReserve {
        let notify = Rc::new(Notify::new());
        SharedReserve { bytes, reserve: Reserve::new(notify.clone()), notify }
    }

    /// A buffer of `len` bytes: at once if there is memory, otherwise from the queue or from this
    /// reserve, whichever is first.
    ///
    /// # Panics
    /// If `len` exceeds the size of the reserve: callers bound requests before they ask.
    pub async fn acquire(&self, len: usize) -> BufMut {
        assert!(
            len <= self.bytes,
            "a buffer of {len} bytes exceeds the reserve of {} bytes",
            self.bytes
        );
        if let Some(buf) = super::try_alloc(len) {
            return buf;
        }
        let mut acquired = pin!(super::alloc(len));
        let mut spared = pin!(self.notify.wait_for(|| self.take(len)));
        poll_fn(|cx| match acquired.as_mut().poll(cx) {
            Poll::Pending => spared.as_mut().poll(cx),
            done => done,
        })
        .await
    }

    /// The buffer, unless it is in use.
    fn take(&self, len: usize) -> Option<BufMut> {
        if !self.reserve.is_filled() {
            self.reserve.fill(pool::take_beyond(class_of(self.bytes))?);
        }
        self.reserve.try_alloc(len)
    }
}
