//! Buffer pool: aligned, reused buffers that hold payloads from the socket to the disk.
//!
//! Invariants: every buffer starts on a 4 KiB boundary of its block. Taking and dropping a buffer
//! allocates nothing in the steady state. The total size of all blocks of a process, in use and
//! idle, never exceeds the configured limit ([`set_memory_limit`]), and freed blocks beyond a few
//! idle ones are not resident. Two kinds of buffers are outside the limit: [`alloc_small`], for
//! small buffers that must not fail and are bounded by their users, and one buffer per
//! [`SharedReserve`]. A core has one such reserve for [`acquire_more`], one for the copies of
//! resyncs, and two for the receiving side of a mirror link.
//!
//! [`BufMut`] is an exclusive view, [`Buf`] a shared read-only one. Views of one block overlap only
//! if all of them are `Buf`. Buffers belong to one core and are not `Send`.
//!
//! Connections of servers hold memory for their peers within shares ([`BufferShares`]), so that
//! peers that stall leave memory to others. The rules below apply to what shares admit, and to all
//! other users.
//!
//! # At the memory limit
//!
//! 1. Waiters ([`acquire`], [`alloc`]) form one FIFO queue for all cores. While it is not empty,
//!    memory goes only to its head.
//! 2. A waiter holds no memory that other waiters need: a command acquires all its memory at once,
//!    and holds none before. A command that must hold some, for instance to decompress received
//!    data, uses a shared buffer outside the limit, in turn with others ([`acquire_more`]). The
//!    same applies to work that others wait for while they hold memory, here or on another node:
//!    copies of a resync, and requests received on a mirror link ([`SharedReserve`]).
//! 3. Memory that a peer can hold for an unlimited time, because it was received before its length
//!    was known, has a budget of its own ([`ReceiveBudget`]): at most a quarter of the limit. So
//!    has the memory of commands that wait for other commands of their host, or that are held until
//!    a node returns ([`WaitingMemory`]): at most an eighth, and none of it from rule 4.
//! 4. Memory that returns only when the receiver of its connection makes progress (data that a
//!    target requested from its host) comes with a [`Reserve`] for that receiver.
//! 5. [`alloc_small`] serves everything that must be sent or received before memory can return.
//!
//! So the queue always moves. Idle blocks of every core go to its head at once. Blocks in use are
//! of three kinds. Blocks received ahead and waiting blocks leave five eighths of the limit, and no
//! single request may exceed that ([`TooLarge`]). The memory of a command returns when the device
//! and the peer are done with it, and neither of them waits for the pool (rules 2 and 5): the
//! device completes by itself, and a peer without progress is disconnected. Requested data arrives
//! behind other commands, and receiving those needs only the reserve of the connection, which is at
//! the device (rule 4). So all other memory in use returns eventually while no new memory is
//! granted (rule 1), and then the head of the queue fits.

mod pool;
mod quota;
mod share;
mod share_table;
#[cfg(test)]
mod share_table_tests;
mod system;

use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut, Range};
use std::rc::Rc;
use std::time::Duration;

use crate::limits::{
    BUF_MAX_BYTES, BUF_MIN_BYTES, BUF_SHARED_RESERVE_BYTES, BUF_SYSTEM_PAUSE_MS, ZEROES_BYTES,
};

use pool::{Block, PARTS, Wait, class_bytes, class_of};
pub use quota::{ReceiveBudget, Reserve, SharedReserve, WaitingMemory};
pub use share::{BufferShares, DrainState, PeerProgress, Protocol, Share, ShareReport};

thread_local! {
    static SPARE: Rc<SharedReserve> = Rc::new(SharedReserve::new(BUF_SHARED_RESERVE_BYTES));
}

/// Sets the limit of pooled memory for this process, in bytes. Blocks that are already held stay.
pub fn set_memory_limit(bytes: usize) {
    pool::set_limit(bytes);
}

/// The limit of pooled memory, in bytes.
pub fn memory_limit() -> usize {
    pool::limit()
}

/// Pooled memory that this process holds now, in use and idle, in bytes, including [`alloc_small`]
/// and reserves outside the limit.
pub fn memory_held() -> usize {
    pool::held()
}

/// Pooled memory that counts against the limit, in bytes.
pub fn memory_under_limit() -> usize {
    pool::taken()
}

/// The request exceeds five eighths of the memory limit, so it might never be granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the request exceeds five eighths of the buffer memory limit")]
pub struct TooLarge;

fn release(block: Rc<Block>) {
    if Rc::strong_count(&block) == 1 {
        let block = match block.holder.take() {
            Some(holder) => holder.released(block),
            None => Some(block),
        };
        if let Some(block) = block {
            pool::put(block);
        }
    }
}

/// A buffer of `len` bytes, or `None` at the memory limit or beyond [`BUF_MAX_BYTES`]. Its content
/// is arbitrary, left by an earlier use, but never uninitialized.
pub fn try_alloc(len: usize) -> Option<BufMut> {
    if len > BUF_MAX_BYTES {
        return None;
    }
    let block = pool::try_take(class_of(len))?;
    Some(BufMut(View::new(block, 0, len)))
}

/// A buffer of at most 4 KiB for data that must not fail: response headers, and the next bytes from
/// a peer. It is outside the memory limit, so callers bound how many they hold.
///
/// # Panics
/// If `len` exceeds 4 KiB, or the system has no memory.
pub fn alloc_small(len: usize) -> BufMut {
    assert!(len <= BUF_MIN_BYTES, "small buffers have at most {BUF_MIN_BYTES} bytes");
    let block = pool::take_small().expect("4 KiB of memory");
    BufMut(View::new(block, 0, len))
}

/// A buffer of `len` bytes, waiting in the queue at the memory limit. For lengths that are known to
/// fit; otherwise use [`acquire`].
///
/// # Panics
/// If `len` exceeds [`BUF_MAX_BYTES`]: callers bound requests before they ask for memory.
pub async fn alloc(len: usize) -> BufMut {
    assert!(len <= BUF_MAX_BYTES, "a buffer of {len} bytes exceeds the largest pooled block");
    if let Some(buf) = try_alloc(len) {
        return buf;
    }
    let [block, _] = wait([Some(class_of(len)), None]).await;
    BufMut(View::new(block.expect("asked for"), 0, len))
}

/// A buffer of `len` bytes for a command of a peer, waiting in the queue at the memory limit. The
/// caller must hold no memory that other waiters need (rule 2 of the module).
///
/// # Errors
/// [`TooLarge`] at once if the request might never fit.
pub async fn acquire(len: usize) -> Result<BufMut, TooLarge> {
    check(len, 0)?;
    Ok(alloc(len).await)
}

/// A buffer of `len` bytes, at most [`BUF_SHARED_RESERVE_BYTES`], for a command that already holds
/// memory, or that others wait for while they hold memory, and that afterwards waits only for its
/// device. Many such commands could hold all memory and wait for more. So each waits both in the
/// queue and for the one buffer that this core has for them outside the limit.
///
/// # Panics
/// If `len` exceeds [`BUF_SHARED_RESERVE_BYTES`]: callers bound requests before they ask for
/// memory.
pub async fn acquire_more(len: usize) -> BufMut {
    let spare = SPARE.with(Rc::clone);
    spare.acquire(len).await
}

/// Same as [`acquire`], together with `reserve_len` bytes for `reserve`, unless it is already
/// filled.
///
/// # Errors
/// [`TooLarge`] at once if both together might never fit.
pub async fn acquire_with_reserve(
    len: usize,
    reserve: &Reserve,
    reserve_len: usize,
) -> Result<BufMut, TooLarge> {
    check(len, reserve_len)?;
    if let Some(buf) = try_alloc_with_reserve(len, reserve, reserve_len) {
        return Ok(buf);
    }
    // Request both, even if the reserve is filled now: it may be empty when the request is granted.
    let second = (reserve_len > 0).then(|| class_of(reserve_len));
    let [block, second] = wait([Some(class_of(len)), second]).await;
    match second {
        Some(second) if reserve.is_filled() => pool::put(second),
        Some(second) => reserve.fill(second),
        None => {}
    }
    Ok(BufMut(View::new(block.expect("asked for"), 0, len)))
}

/// Same as [`acquire_with_reserve`], without waiting.
pub fn try_alloc_with_reserve(len: usize, reserve: &Reserve, reserve_len: usize) -> Option<BufMut> {
    let reserve_len = if reserve.is_filled() { 0 } else { reserve_len };
    check(len, reserve_len).ok()?;
    let buf = try_alloc(len)?;
    if reserve_len > 0 {
        reserve.fill(pool::try_take(class_of(reserve_len))?);
    }
    Some(buf)
}

fn check(len: usize, reserve_len: usize) -> Result<(), TooLarge> {
    let part = |len: usize| if len == 0 { 0 } else { class_bytes(class_of(len)) };
    let is_possible = len.max(reserve_len) <= BUF_MAX_BYTES;
    if is_possible && part(len) + part(reserve_len) <= pool::most() {
        Ok(())
    } else {
        Err(TooLarge)
    }
}

/// Waits for blocks of these classes, all of them at once.
async fn wait(classes: [Option<usize>; PARTS]) -> [Option<Rc<Block>>; PARTS] {
    loop {
        if let Some(blocks) = Wait::new(classes).await {
            return blocks;
        }
        // Below the limit, but the system has no more memory.
        crate::time::sleep(Duration::from_millis(BUF_SYSTEM_PAUSE_MS)).await;
    }
}

/// `len` zero bytes, shared; at most [`ZEROES_BYTES`].
///
/// # Panics
/// If `len` exceeds that, or memory is exhausted at the first use.
pub fn zeroes(len: usize) -> Buf {
    thread_local! {
        static ZEROES: Buf = Buf::copy_of(&[0; ZEROES_BYTES]).expect("memory for a page of zeroes");
    }
    ZEROES.with(|zeroes| zeroes.slice(0..len))
}

/// A range of a block.
struct View {
    block: ManuallyDrop<Rc<Block>>,
    offset: usize,
    len: usize,
}

impl View {
    fn new(block: Rc<Block>, offset: usize, len: usize) -> View {
        debug_assert!(offset + len <= block.bytes());
        View { block: ManuallyDrop::new(block), offset, len }
    }

    fn sub(&self, range: Range<usize>) -> View {
        assert!(range.start <= range.end && range.end <= self.len, "view out of range");
        View::new(Rc::clone(&self.block), self.offset + range.start, range.end - range.start)
    }

    fn ptr(&self) -> *mut u8 {
        // SAFETY: `offset` is within the block, as `new` asserts.
        unsafe { self.block.ptr.as_ptr().add(self.offset) }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the range lies in the block, which is initialized and alive; exclusive views
        // never overlap another view, so no other view writes to it while the borrow lasts.
        unsafe { std::slice::from_raw_parts(self.ptr(), self.len) }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: `block` is taken once, here.
        release(unsafe { ManuallyDrop::take(&mut self.block) });
    }
}

/// An exclusive, writable view of a pooled block.
pub struct BufMut(View);

impl BufMut {
    /// Cuts the view at `at`: `self` keeps `[0, at)`, the returned view is `[at, len)`.
    pub fn split_off(&mut self, at: usize) -> BufMut {
        let tail = self.0.sub(at..self.0.len);
        self.0.len = at;
        BufMut(tail)
    }

    /// Cuts the view at `at`: returns `[0, at)`, `self` keeps `[at, len)`.
    pub fn split_to(&mut self, at: usize) -> BufMut {
        let head = self.0.sub(0..at);
        self.0.offset += at;
        self.0.len -= at;
        BufMut(head)
    }

    /// Drops the first `count` bytes of the view.
    ///
    /// # Panics
    /// If the view has fewer bytes.
    #[inline]
    pub fn advance(&mut self, count: usize) {
        assert!(count <= self.0.len, "advance beyond the view");
        self.0.offset += count;
        self.0.len -= count;
    }

    /// Joins `self` with the view that starts at its end.
    ///
    /// # Errors
    /// Returns `other` if it belongs to another block or is not adjacent.
    pub fn unsplit(&mut self, other: BufMut) -> Result<(), BufMut> {
        let adjacent = Rc::ptr_eq(&self.0.block, &other.0.block)
            && self.0.offset + self.0.len == other.0.offset;
        if !adjacent {
            return Err(other);
        }
        self.0.len += other.0.len;
        Ok(())
    }

    /// Shortens the view to `len` bytes; a larger `len` has no effect.
    pub fn truncate(&mut self, len: usize) {
        self.0.len = self.0.len.min(len);
    }

    /// Makes the view shared and read-only.
    pub fn freeze(self) -> Buf {
        Buf(self.0)
    }

    /// Same as [`BufMut::freeze`], for a payload that stays in the buffer it was received into. If
    /// the payload fills most of its block and no other view of the block exists, the block stops
    /// counting against the [`ReceiveBudget`].
    #[inline]
    pub fn settle(self) -> Buf {
        let block = &self.0.block;
        if Rc::strong_count(block) == 1
            && 2 * self.0.len >= block.bytes()
            && let Some(holder) = block.holder.take()
            && !holder.settle(block)
        {
            block.holder.set(Some(holder));
        }
        self.freeze()
    }

    /// True if payloads must be copied out of this buffer, because a view must not keep its block:
    /// the block is outside the limit ([`alloc_small`]) or comes from
    /// [`ReceiveBudget::try_alloc_passing`].
    #[inline]
    pub fn is_passing(&self) -> bool {
        self.0.block.is_passing.get()
    }

    /// The address for the kernel.
    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.ptr()
    }
}

impl Deref for BufMut {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl DerefMut for BufMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `View::bytes`, and an exclusive view overlaps no other.
        unsafe { std::slice::from_raw_parts_mut(self.0.ptr(), self.0.len) }
    }
}

impl std::fmt::Debug for BufMut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BufMut({} bytes)", self.0.len)
    }
}

/// A shared, read-only view of a pooled block. Cloning and slicing only change a counter.
pub struct Buf(View);

impl Buf {
    /// A pooled copy of `bytes`, or `None` at the memory limit. For control paths.
    pub fn copy_of(bytes: &[u8]) -> Option<Buf> {
        let mut buf = try_alloc(bytes.len())?;
        buf.copy_from_slice(bytes);
        Some(buf.freeze())
    }

    /// A view of part of this one.
    ///
    /// # Panics
    /// If the range is not within the view.
    pub fn slice(&self, range: Range<usize>) -> Buf {
        Buf(self.0.sub(range))
    }

    /// Drops the first `count` bytes of the view.
    pub fn advance(&mut self, count: usize) {
        assert!(count <= self.0.len, "advance beyond the view");
        self.0.offset += count;
        self.0.len -= count;
    }

    /// The exclusive view, if this is the only view of its block.
    pub fn try_into_mut(self) -> Result<BufMut, Buf> {
        if Rc::strong_count(&self.0.block) == 1 { Ok(BufMut(self.0)) } else { Err(self) }
    }

    /// True if the address of the view is a multiple of `align`, as O_DIRECT may require.
    pub fn is_aligned(&self, align: usize) -> bool {
        self.0.ptr().addr().is_multiple_of(align.max(1))
    }
}

impl Clone for Buf {
    fn clone(&self) -> Buf {
        Buf(self.0.sub(0..self.0.len))
    }
}

impl Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl std::fmt::Debug for Buf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buf({} bytes)", self.0.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::BUF_CLASSES;

    #[test]
    fn classes_cover_every_length() {
        assert_eq!(class_of(0), 0);
        assert_eq!(class_of(1), 0);
        assert_eq!(class_of(4096), 0);
        assert_eq!(class_of(4097), 1);
        assert_eq!(class_of(BUF_MAX_BYTES), BUF_CLASSES - 1);
        assert_eq!(class_bytes(BUF_CLASSES - 1), BUF_MAX_BYTES);
    }

    #[test]
    fn split_views_are_disjoint_and_join_again() {
        let mut a = try_alloc(8192).unwrap();
        a.fill(1);
        let mut b = a.split_off(4096);
        b.fill(2);
        assert!(a.iter().all(|x| *x == 1) && a.len() == 4096);
        let mut c = try_alloc(16).unwrap();
        c.fill(3);
        assert!(a.unsplit(c).is_err());
        a.unsplit(b).unwrap();
        assert_eq!(a.len(), 8192);
        assert_eq!(a[4096], 2);
        let whole = a.freeze();
        let part = whole.slice(4000..4100);
        assert!(whole.try_into_mut().is_err());
        assert_eq!(part[95..97], [1, 2]);
    }

    #[test]
    fn blocks_are_reused() {
        let first = try_alloc(4096).unwrap().as_mut_ptr();
        let again = try_alloc(100).unwrap().as_mut_ptr();
        assert_eq!(first, again);
    }

    #[test]
    fn oversized_buffer_request_is_refused() {
        assert!(try_alloc(BUF_MAX_BYTES + 1).is_none());
    }
}
