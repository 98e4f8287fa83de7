//! Memory for work that host writes wait for: log, superblock, opening, and copies of a resync.
//!
//! Host writes may hold all pooled memory, so this work never waits for it. Without memory it
//! proceeds page by page, with one page per replica beyond the pool's limit. A copy has to be fast
//! and may wait long for its peer, so each core reserves one buffer beyond the limit that its
//! copies share.

use std::rc::Rc;

use flagstone_runtime::BufMut;
use flagstone_runtime::buf::{self, SharedReserve};

use crate::limits::{COPY_BYTES, PAGE_BYTES};

thread_local! {
    static COPIES: Rc<SharedReserve> = Rc::new(SharedReserve::new(COPY_BYTES as usize));
}

/// A buffer of `len` bytes or, if memory is short, one page: the caller works in parts then.
pub(crate) fn at_most(len: usize) -> BufMut {
    buf::try_alloc(len).unwrap_or_else(|| buf::alloc_small(len.min(PAGE_BYTES)))
}

/// A buffer for a copy, of at most [`COPY_BYTES`]. The caller holds no range and no memory while it
/// waits. The buffer becomes free when the copy that uses it, or its session, ends.
pub(crate) async fn for_copy(len: usize) -> BufMut {
    let spare = COPIES.with(Rc::clone);
    spare.acquire(len).await
}
