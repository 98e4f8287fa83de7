//! Memory for what hosts' writes wait for: the log, the superblock, what a replica is opened by, and
//! the copies of a resync.
//!
//! Hosts' writes may hold all memory that there is, so none of this waits for it: what has none now
//! goes page by page, in memory beyond the ceiling, one page at a time for each replica. A copy, which
//! is to be fast and may wait for long for its peer, has a buffer beyond the ceiling that those of a
//! core take turns with.

use std::rc::Rc;

use flagstone_runtime::BufMut;
use flagstone_runtime::buf::{self, Spare};

use crate::limits::{COPY_BYTES, PAGE_BYTES};

thread_local! {
    static COPIES: Rc<Spare> = Rc::new(Spare::new(COPY_BYTES as usize));
}

/// A buffer of `len` bytes, or of a page where there is none of so many now. It takes part of what is
/// at hand then, and the rest comes after it.
pub(crate) fn at_most(len: usize) -> BufMut {
    buf::try_alloc(len).unwrap_or_else(|| buf::alloc_small(len.min(PAGE_BYTES)))
}

/// A buffer for a copy, of at most [`COPY_BYTES`]. Who waits for it holds no range and no memory: what
/// has it comes to an end, or its session does.
pub(crate) async fn for_copy(len: usize) -> BufMut {
    let spare = COPIES.with(Rc::clone);
    spare.acquire(len).await
}
