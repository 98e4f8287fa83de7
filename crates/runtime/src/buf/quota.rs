//! What blocks are in use for: memory received ahead, of commands that wait for others, a connection's
//! reserve, and buffers beyond the ceiling that go round.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use super::pool::{self, Block, class_of};
use super::{Buf, BufMut, View};
use crate::sync::Notify;

/// Counts a block while it is in use.
pub(super) enum Holder {
    Ahead(Rc<AheadCount>),
    Reserve(Rc<Home>),
}

impl Holder {
    /// The block is not in use any more: it comes back when it is free to go.
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

    /// The block is a payload's alone from now on: true when the holder lets go of it.
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

/// Blocks of one connection that are received into before anyone knows what will come.
///
/// Such a block is held for as long as the peer likes, and a payload in it keeps all of it. So
/// all of them together are at most a quarter of the ceiling, and those of one connection at most
/// what was said at the start, in bytes.
pub struct Ahead(Rc<AheadCount>);

pub(super) struct AheadCount {
    bytes: Cell<usize>,
    max_bytes: usize,
}

impl AheadCount {
    fn settle(&self, bytes: usize) {
        self.bytes.set(self.bytes.get() - bytes);
        pool::uncount_ahead(bytes);
    }
}

impl Ahead {
    /// At most `max_bytes` at a time for this connection.
    pub fn new(max_bytes: usize) -> Ahead {
        Ahead(Rc::new(AheadCount { bytes: Cell::new(0), max_bytes }))
    }

    /// Bytes of blocks that are in use, as a whole or in part.
    pub fn held_bytes(&self) -> usize {
        self.0.bytes.get()
    }

    /// A buffer of `len` bytes; `None` at the ceiling, or at either bound of such blocks.
    pub fn try_alloc(&self, len: usize) -> Option<BufMut> {
        let fits = self.0.bytes.get() + pool::class_bytes(class_of(len)) <= self.0.max_bytes;
        if fits { self.count(len) } else { None }
    }

    /// A buffer of `len` bytes that what is received passes through ([`BufMut::is_passing`]), when
    /// this connection has enough of the other kind; `None` as there, but for its own bound.
    /// Nothing keeps it, so a receiver has two of them at most.
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

impl std::fmt::Debug for Ahead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ahead({} of {} bytes)", self.0.bytes.get(), self.0.max_bytes)
    }
}

/// Memory of a command that waits for others of its host, which may come as late as the host likes, or
/// for somebody to act.
///
/// All of it together is at most an eighth of the ceiling: the rest moves, and what is waited for is
/// given memory some day.
#[derive(Debug)]
pub struct Parked {
    bytes: usize,
    is_held: bool,
}

impl Parked {
    /// For as long as this lives, `data` is kept by a command that waits. `None` when too much is
    /// kept so already, or when it is in the [`Reserve`] of a connection, which the connection needs
    /// to receive what is waited for: then it is not to wait.
    pub fn keep(data: &Buf) -> Option<Parked> {
        Parked::count(data, false)
    }

    /// The same for a command that is held until another node is there again, or a person decides:
    /// that may take days, so these have half of what there is for all, and leave half to the others.
    pub fn hold(data: &Buf) -> Option<Parked> {
        Parked::count(data, true)
    }

    fn count(data: &Buf, is_held: bool) -> Option<Parked> {
        let block = &data.0.block;
        let holder = block.holder.take();
        let bytes = match &holder {
            None => Some(block.bytes()),
            // Counted as held for as long as a peer likes already.
            Some(Holder::Ahead(_)) => Some(0),
            Some(Holder::Reserve(_)) => None,
        };
        block.holder.set(holder);
        let bytes = bytes?;
        pool::count_parked(bytes, is_held).then(|| Parked { bytes, is_held })
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        pool::uncount_parked(self.bytes, self.is_held);
    }
}

/// One buffer that is its owner's alone: however little memory there is, it comes back to it.
///
/// It is filled by [`super::acquire_with_reserve`], and emptied with [`Reserve::give_up`].
pub struct Reserve(Rc<Home>);

pub(super) struct Home {
    block: RefCell<Option<Rc<Block>>>,
    is_filled: Cell<bool>,
    bell: Rc<Notify>,
}

impl Home {
    fn came_back(&self, block: Rc<Block>) -> Option<Rc<Block>> {
        let mut place = self.block.borrow_mut();
        // One of an earlier filling may come late.
        if !self.is_filled.get() || place.is_some() {
            return Some(block);
        }
        *place = Some(block);
        drop(place);
        self.bell.notify();
        None
    }
}

impl Reserve {
    /// Empty. `bell` rings whenever the buffer comes back.
    pub fn new(bell: Rc<Notify>) -> Reserve {
        Reserve(Rc::new(Home { block: RefCell::default(), is_filled: Cell::new(false), bell }))
    }

    /// Whether it has a buffer, here or in use.
    pub fn is_filled(&self) -> bool {
        self.0.is_filled.get()
    }

    pub(super) fn fill(&self, block: Rc<Block>) {
        self.0.is_filled.set(true);
        self.0.block.replace(Some(block));
        self.0.bell.notify();
    }

    /// Lets go of the buffer; one that is in use goes its own way.
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

impl std::fmt::Debug for Reserve {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = match (self.is_filled(), self.0.block.borrow().is_some()) {
            (false, _) => "empty",
            (true, true) => "here",
            (true, false) => "in use",
        };
        write!(f, "Reserve({state})")
    }
}

/// One buffer beyond the ceiling, had when it is first needed, that goes round among those who ask this
/// for memory: so one of them at a time goes on, however little there is under the ceiling.
///
/// Whoever has it comes to an end without those who wait for it, and without memory that they hold.
pub struct Spare {
    bytes: usize,
    bell: Rc<Notify>,
    reserve: Reserve,
}

impl Spare {
    /// Of so many bytes.
    pub fn new(bytes: usize) -> Spare {
        let bell = Rc::new(Notify::new());
        Spare { bytes, reserve: Reserve::new(bell.clone()), bell }
    }

    /// A buffer of `len` bytes: now if there is memory, else from the queue, or this one, whichever
    /// comes first.
    ///
    /// # Panics
    /// When `len` exceeds what was said at the start: callers bound requests before they ask.
    pub async fn acquire(&self, len: usize) -> BufMut {
        assert!(len <= self.bytes, "a buffer of {len} bytes exceeds the {} to spare", self.bytes);
        if let Some(buf) = super::try_alloc(len) {
            return buf;
        }
        let mut acquired = pin!(super::alloc(len));
        let mut spared = pin!(self.bell.wait_for(|| self.take(len)));
        poll_fn(|cx| match acquired.as_mut().poll(cx) {
            Poll::Pending => spared.as_mut().poll(cx),
            done => done,
        })
        .await
    }

    /// The buffer, unless somebody uses it.
    fn take(&self, len: usize) -> Option<BufMut> {
        if !self.reserve.is_filled() {
            self.reserve.fill(pool::take_beyond(class_of(self.bytes))?);
        }
        self.reserve.try_alloc(len)
    }
}

impl std::fmt::Debug for Spare {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Spare({} bytes, {:?})", self.bytes, self.reserve)
    }
}
