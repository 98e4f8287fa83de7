//! Aligned, pooled buffers: the memory that payloads live in from the socket to the disk.
//!
//! Promises: every buffer starts on a 4 KiB boundary of its block; taking and dropping one in the
//! steady state allocates nothing; the sum of all blocks of a process, in use and cached, never
//! exceeds the configured ceiling ([`set_memory_limit`]): beyond it [`alloc`] waits.
//!
//! [`BufMut`] is an exclusive view, [`Buf`] a shared read-only one; views of one block never
//! overlap unless all of them are `Buf`. Buffers belong to one core and are not `Send`.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::RefCell;
use std::future::poll_fn;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, Waker};

use crate::limits::{
    BUF_ALIGN_BYTES, BUF_CACHE_BYTES_PER_CLASS, BUF_CLASSES, BUF_MAX_BYTES, BUF_MIN_BYTES,
    DEFAULT_MEMORY_BYTES, ZEROES_BYTES,
};

static LIMIT_BYTES: AtomicUsize = AtomicUsize::new(DEFAULT_MEMORY_BYTES);
static HELD_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Sets the ceiling of pooled memory for this process, in bytes. Blocks already held stay.
pub fn set_memory_limit(bytes: usize) {
    LIMIT_BYTES.store(bytes, Ordering::Relaxed);
}

/// The ceiling of pooled memory, in bytes.
pub fn memory_limit() -> usize {
    LIMIT_BYTES.load(Ordering::Relaxed)
}

/// Pooled memory held by this process now, in use and cached, in bytes.
pub fn memory_held() -> usize {
    HELD_BYTES.load(Ordering::Relaxed)
}

/// One allocation of a size class. Owned by buffers and, when idle, by the pool of its core.
struct Block {
    ptr: NonNull<u8>,
    class: usize,
}

impl Block {
    fn bytes(&self) -> usize {
        class_bytes(self.class)
    }

    fn new(class: usize, beyond_limit: bool) -> Option<Rc<Block>> {
        let bytes = class_bytes(class);
        let limit = if beyond_limit { usize::MAX } else { LIMIT_BYTES.load(Ordering::Relaxed) };
        let reserve = |held: usize| held.checked_add(bytes).filter(|sum| *sum <= limit);
        HELD_BYTES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, reserve).ok()?;
        // SAFETY: the layout has a non-zero size.
        let ptr = unsafe { alloc_zeroed(layout(bytes)) };
        let Some(ptr) = NonNull::new(ptr) else {
            HELD_BYTES.fetch_sub(bytes, Ordering::Relaxed);
            return None;
        };
        Some(Rc::new(Block { ptr, class }))
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: `ptr` came from `alloc_zeroed` with this very layout and is freed once.
        unsafe { dealloc(self.ptr.as_ptr(), layout(self.bytes())) };
        HELD_BYTES.fetch_sub(self.bytes(), Ordering::Relaxed);
    }
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, BUF_ALIGN_BYTES).expect("class sizes are valid layouts")
}

const fn class_bytes(class: usize) -> usize {
    BUF_MIN_BYTES << class
}

fn class_of(len: usize) -> usize {
    let units = len.div_ceil(BUF_MIN_BYTES).max(1);
    units.next_power_of_two().trailing_zeros() as usize
}

/// The idle blocks of one core, and those who wait for one.
#[derive(Default)]
struct Pool {
    idle: [Vec<Rc<Block>>; BUF_CLASSES],
    waiting: Vec<Waker>,
}

thread_local! {
    static POOL: RefCell<Pool> = RefCell::new(Pool::default());
}

impl Pool {
    fn take(&mut self, class: usize) -> Option<Rc<Block>> {
        if let Some(block) = self.idle[class].pop() {
            return Some(block);
        }
        if let Some(block) = Block::new(class, false) {
            return Some(block);
        }
        // At the ceiling: idle blocks of other classes make room before anyone has to wait.
        for idle in &mut self.idle {
            idle.clear();
            idle.shrink_to_fit();
        }
        Block::new(class, false)
    }

    fn put(&mut self, block: Rc<Block>) {
        let class = block.class;
        let keep = (BUF_CACHE_BYTES_PER_CLASS / class_bytes(class)).max(1);
        if self.idle[class].len() < keep {
            self.idle[class].push(block);
        }
        for waker in self.waiting.drain(..) {
            waker.wake();
        }
    }
}

fn release(block: Rc<Block>) {
    if Rc::strong_count(&block) == 1 {
        // At thread exit the pool may be gone; then the block frees itself.
        let mut block = Some(block);
        let _ = POOL.try_with(|pool| {
            if let (Ok(mut pool), Some(block)) = (pool.try_borrow_mut(), block.take()) {
                pool.put(block);
            }
        });
    }
}

/// A buffer of `len` bytes, or `None` at the memory ceiling or beyond [`BUF_MAX_BYTES`].
/// Its content is arbitrary (an earlier use's), never uninitialised.
pub fn try_alloc(len: usize) -> Option<BufMut> {
    if len > BUF_MAX_BYTES {
        return None;
    }
    let block = POOL.with(|pool| pool.borrow_mut().take(class_of(len)))?;
    Some(BufMut(View::new(block, 0, len)))
}

/// A buffer of at most 4 KiB for what must not fail: the headers of responses. It counts towards
/// the memory held but is had beyond the ceiling too, so callers bound how many they hold.
///
/// # Panics
/// When `len` exceeds 4 KiB, or the system itself has no memory.
pub fn alloc_small(len: usize) -> BufMut {
    assert!(len <= BUF_MIN_BYTES, "small buffers are of {BUF_MIN_BYTES} bytes at most");
    let block = POOL.with(|pool| pool.borrow_mut().idle[0].pop());
    let block = block.or_else(|| Block::new(0, true)).expect("4 KiB of memory");
    BufMut(View::new(block, 0, len))
}

/// A buffer of `len` bytes, waiting at the memory ceiling until buffers come back.
///
/// # Panics
/// When `len` exceeds [`BUF_MAX_BYTES`]: callers bound requests before they ask for memory.
pub async fn alloc(len: usize) -> BufMut {
    assert!(len <= BUF_MAX_BYTES, "a buffer of {len} bytes exceeds the largest pooled block");
    if let Some(buf) = try_alloc(len) {
        return buf;
    }
    loop {
        // Memory may also come back on another core, which cannot wake us: look again each
        // millisecond while waiting.
        let mut registered = false;
        let returned = poll_fn(|cx| {
            if registered {
                return Poll::Ready(());
            }
            registered = true;
            POOL.with(|pool| pool.borrow_mut().waiting.push(cx.waker().clone()));
            Poll::Pending
        });
        let _ = crate::time::timeout(std::time::Duration::from_millis(1), returned).await;
        if let Some(buf) = try_alloc(len) {
            return buf;
        }
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
