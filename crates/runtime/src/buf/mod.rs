//! Aligned, pooled buffers: the memory that payloads live in from the socket to the disk.
//!
//! Promises: every buffer starts on a 4 KiB boundary of its block; taking and dropping one in the
//! steady state allocates nothing; the sum of all blocks of a process, in use and idle, never
//! exceeds the configured ceiling ([`set_memory_limit`]), and what is given back beyond a few idle
//! blocks is not resident any more. [`alloc_small`] alone goes beyond the ceiling, for what must not
//! fail and is bounded by its users, and every [`Spare`], by one buffer: a core has one for
//! [`acquire_more`], one for the copies of resyncs, and two for what the link of a mirror receives.
//!
//! [`BufMut`] is an exclusive view, [`Buf`] a shared read-only one; views of one block never
//! overlap unless all of them are `Buf`. Buffers belong to one core and are not `Send`.
//!
//! # At the ceiling
//!
//! 1. Whoever waits ([`acquire`], [`alloc`]) waits in one queue of all cores, first come first
//!    served; while it is not empty nobody is given memory past it.
//! 2. Who waits holds nothing that others wait for: all memory of a command is acquired at once,
//!    and before that the command holds none. One that holds some, as it needs to inflate what it
//!    received, has a spare buffer beyond the ceiling that goes round ([`acquire_more`]). So has what
//!    others wait for with memory in their hands, here or on another node, as copies of a resync and
//!    what a mirror's link receives are ([`Spare`]).
//! 3. Memory that is held for as long as a peer likes, because it was received into before anyone
//!    knew what would come, is counted apart ([`Ahead`]): at most a quarter of the ceiling.
//!    So is that of commands that wait for others of their host, or are held until a node is back
//!    ([`Parked`]): at most an eighth, and none that the next rule speaks of.
//! 4. Memory whose return hangs on its connection's receiver (data that was asked for) comes with a
//!    [`Reserve`] that the receiver can go on with.
//! 5. What must go out or come in for memory to come back at all, takes [`alloc_small`].
//!
//! So the queue always moves. Idle blocks go to the first in it at once, from whatever core.
//! Blocks in use are of three kinds. Those received ahead or kept by who waits for others leave five
//! eighths of the ceiling, and nobody may ask for more at a time ([`TooLarge`]). A command's memory
//! comes back when the device and the peer are done with it, and neither waits for the pool (2, 5):
//! the device ends by itself and peers that make no progress are given up on. Data that was asked
//! for arrives behind other commands, and receiving those waits for nothing but the connection's own
//! reserve, which is with the device (4). Hence all else that is in use comes back in the end while
//! nothing new is given (1), and then the first in the queue fits.

mod pool;
mod quota;
mod system;

use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut, Range};
use std::rc::Rc;
use std::time::Duration;

use crate::limits::{
    BUF_MAX_BYTES, BUF_MIN_BYTES, BUF_SPARE_BYTES, BUF_SYSTEM_PAUSE_MS, ZEROES_BYTES,
};

use pool::{Block, PARTS, Wait, class_bytes, class_of};
pub use quota::{Ahead, Parked, Reserve, Spare};

thread_local! {
    static SPARE: Rc<Spare> = Rc::new(Spare::new(BUF_SPARE_BYTES));
}

/// Sets the ceiling of pooled memory for this process, in bytes. Blocks already held stay.
pub fn set_memory_limit(bytes: usize) {
    pool::set_limit(bytes);
}

/// The ceiling of pooled memory, in bytes.
pub fn memory_limit() -> usize {
    pool::limit()
}

/// Pooled memory held by this process now, in use and idle, in bytes; what [`alloc_small`] gave
/// beyond the ceiling is in it.
pub fn memory_held() -> usize {
    pool::held()
}

/// The same without what [`alloc_small`] gave: what the ceiling bounds.
pub fn memory_under_ceiling() -> usize {
    pool::taken()
}

/// More than the ceiling can ever be sure to give at a time: five eighths of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("more memory than the ceiling can ever give")]
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

/// A buffer of `len` bytes, or `None` at the memory ceiling or beyond [`BUF_MAX_BYTES`].
/// Its content is arbitrary (an earlier use's), never uninitialised.
pub fn try_alloc(len: usize) -> Option<BufMut> {
    if len > BUF_MAX_BYTES {
        return None;
    }
    let block = pool::try_take(class_of(len))?;
    Some(BufMut(View::new(block, 0, len)))
}

/// A buffer of at most 4 KiB for what must not fail: the headers of responses, and the next bytes
/// from a peer. It is had beyond the ceiling, so callers bound how many they hold.
///
/// # Panics
/// When `len` exceeds 4 KiB, or the system itself has no memory.
pub fn alloc_small(len: usize) -> BufMut {
    assert!(len <= BUF_MIN_BYTES, "small buffers are of {BUF_MIN_BYTES} bytes at most");
    let block = pool::take_small().expect("4 KiB of memory");
    BufMut(View::new(block, 0, len))
}

/// A buffer of `len` bytes, waiting in the queue at the memory ceiling. For lengths that are known
/// to fit; otherwise see [`acquire`].
///
/// # Panics
/// When `len` exceeds [`BUF_MAX_BYTES`]: callers bound requests before they ask for memory.
pub async fn alloc(len: usize) -> BufMut {
    assert!(len <= BUF_MAX_BYTES, "a buffer of {len} bytes exceeds the largest pooled block");
    if let Some(buf) = try_alloc(len) {
        return buf;
    }
    let [block, _] = wait([Some(class_of(len)), None]).await;
    BufMut(View::new(block.expect("asked for"), 0, len))
}

/// A buffer of `len` bytes for a command from outside, waiting in the queue at the memory ceiling.
/// The caller holds nothing that others wait for (see the module).
///
/// # Errors
/// [`TooLarge`] at once for what might never fit.
pub async fn acquire(len: usize) -> Result<BufMut, TooLarge> {
    check(len, 0)?;
    Ok(alloc(len).await)
}

/// A buffer of `len` bytes, at most [`BUF_SPARE_BYTES`], for a command that holds memory already, or
/// that others wait for with theirs, and that waits for nothing but its device from then on. Many such
/// could hold all memory there is, and wait for more: so each waits in the queue, and for the one
/// buffer that this core has beyond the ceiling for them.
///
/// # Panics
/// When `len` exceeds [`BUF_SPARE_BYTES`]: callers bound requests before they ask for memory.
pub async fn acquire_more(len: usize) -> BufMut {
    let spare = SPARE.with(Rc::clone);
    spare.acquire(len).await
}

/// As [`acquire`], together with `reserve_len` bytes for `reserve`, unless it is filled already.
///
/// # Errors
/// [`TooLarge`] at once when both together might never fit.
pub async fn acquire_with_reserve(
    len: usize,
    reserve: &Reserve,
    reserve_len: usize,
) -> Result<BufMut, TooLarge> {
    check(len, reserve_len)?;
    if let Some(buf) = try_alloc_with_reserve(len, reserve, reserve_len) {
        return Ok(buf);
    }
    // Both, even if it is filled now: it may not be when our turn comes.
    let second = (reserve_len > 0).then(|| class_of(reserve_len));
    let [block, second] = wait([Some(class_of(len)), second]).await;
    match second {
        Some(second) if reserve.is_filled() => pool::put(second),
        Some(second) => reserve.fill(second),
        None => {}
    }
    Ok(BufMut(View::new(block.expect("asked for"), 0, len)))
}

/// As [`acquire_with_reserve`], now or not at all.
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

/// Waits for blocks of these classes, all at once.
async fn wait(classes: [Option<usize>; PARTS]) -> [Option<Rc<Block>>; PARTS] {
    loop {
        if let Some(blocks) = Wait::new(classes).await {
            return blocks;
        }
        // Below the ceiling, and yet the system has no more.
        crate::time::sleep(Duration::from_millis(BUF_SYSTEM_PAUSE_MS)).await;
    }
}

/// `len` zero bytes, shared; at most [`ZEROES_BYTES`].
///
/// # Panics
/// When `len` exceeds that, or memory is exhausted at the very first use.
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
        // SAFETY: the range lies in the block, which is initialised and alive; exclusive views
        // never overlap another view, so nobody writes to it while the borrow lasts.
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
    /// When the view has fewer.
    #[inline]
    pub fn advance(&mut self, count: usize) {
        assert!(count <= self.0.len, "advance beyond the view");
        self.0.offset += count;
        self.0.len -= count;
    }

    /// Joins `self` with the view that begins where it ends.
    ///
    /// # Errors
    /// Gives `other` back when it is of another block or not adjacent.
    pub fn unsplit(&mut self, other: BufMut) -> Result<(), BufMut> {
        let adjacent = Rc::ptr_eq(&self.0.block, &other.0.block)
            && self.0.offset + self.0.len == other.0.offset;
        if !adjacent {
            return Err(other);
        }
        self.0.len += other.0.len;
        Ok(())
    }

    /// Shortens the view to `len` bytes; longer is a no-op.
    pub fn truncate(&mut self, len: usize) {
        self.0.len = self.0.len.min(len);
    }

    /// Makes the view shared and read-only.
    pub fn freeze(self) -> Buf {
        Buf(self.0)
    }

    /// As [`BufMut::freeze`], for a payload that stays where it was received: when it is most of
    /// its block, and nobody has another part, the block counts as received [`Ahead`] no longer.
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

    /// True when payloads must be copied out, because a part must not keep the block: it is beyond
    /// the ceiling ([`alloc_small`]), or of [`Ahead::try_alloc_passing`].
    #[inline]
    pub fn is_passing(&self) -> bool {
        self.0.block.is_passing.get()
    }

    /// The address that the driver hands to the kernel.
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

/// A shared, read-only view of a pooled block. Cloning and slicing cost a counter.
pub struct Buf(View);

impl Buf {
    /// A pooled copy of `bytes`, or `None` at the memory ceiling. For control paths.
    pub fn copy_of(bytes: &[u8]) -> Option<Buf> {
        let mut buf = try_alloc(bytes.len())?;
        buf.copy_from_slice(bytes);
        Some(buf.freeze())
    }

    /// A view of part of this one.
    ///
    /// # Panics
    /// When the range is not within the view.
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
    ///
    /// # Errors
    /// Gives the buffer back when other views exist.
    pub fn try_into_mut(self) -> Result<BufMut, Buf> {
        if Rc::strong_count(&self.0.block) == 1 { Ok(BufMut(self.0)) } else { Err(self) }
    }

    /// True when the view's address is a multiple of `align`, as O_DIRECT may ask.
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
    fn a_request_beyond_the_largest_block_is_refused() {
        assert!(try_alloc(BUF_MAX_BYTES + 1).is_none());
    }
}
