//! Memory for work that host writes wait for: log, superblock, opening, and copies of a resync.
//!
//! Host writes may hold all pooled memory, so this work never waits for it. Without memory it
//! proceeds page by page, with one page per replica beyond the pool's limit. A copy has to be fast
//! and may wait long for its peer, so each core reserves one buffer beyond the limit that its
//! copies share.

use std::rc::Rc;
use std::time::Duration;

use flagstone_blockdev::{IoError, IoFuture};
use flagstone_runtime::buf::{self, SharedReserve};
use flagstone_runtime::{BufMut, time};

use crate::limits::{COPY_BYTES, NO_MEMORY_ATTEMPTS, NO_MEMORY_RETRY_MS, PAGE_BYTES};

thread_local! {
    static COPIES: Rc<SharedReserve> = Rc::new(SharedReserve::new(COPY_BYTES as usize));
}

/// A buffer of `len` bytes or, if memory is short, one page: the caller works in parts then.
pub(crate) fn at_most(len: usize) -> BufMut {
    buf::try_alloc(len).unwrap_or_else(|| buf::alloc_small(len.min(PAGE_BYTES)))
}

/// Repeats a local call while it fails for lack of memory, which is no failure of the leg. Bounded
/// by [`NO_MEMORY_ATTEMPTS`].
pub(crate) async fn with_memory<T>(call: impl Fn() -> IoFuture<T>) -> Result<T, IoError> {
    for _ in 1..NO_MEMORY_ATTEMPTS {
        match call().await {
            Err(IoError::NoMemory) => {
                time::sleep(Duration::from_millis(NO_MEMORY_RETRY_MS)).await;
            }
            result => return result,
        }
    }
    call().await
}

/// A buffer for a copy, of at most [`COPY_BYTES`]. The caller holds no range and no memory while it
/// waits. The buffer becomes free when the copy that uses it, or its session, ends.
pub(crate) async fn for_copy(len: usize) -> BufMut {
    let spare = COPIES.with(Rc::clone);
    spare.acquire(len).await
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use flagstone_runtime::block_on;

    use super::*;

    #[test]
    fn lack_of_memory_is_retried_and_bounded() {
        let calls = Cell::new(0);
        let fails_until = |success: u32, then: Result<(), IoError>| {
            calls.set(0);
            let call = || {
                calls.set(calls.get() + 1);
                IoFuture::ready(if calls.get() < success { Err(IoError::NoMemory) } else { then })
            };
            (block_on(with_memory(call)).expect("it completes"), calls.get())
        };
        assert_eq!(fails_until(3, Ok(())), (Ok(()), 3));
        assert_eq!(fails_until(2, Err(IoError::WriteFault)), (Err(IoError::WriteFault), 2));
        let forever = fails_until(u32::MAX, Ok(()));
        assert_eq!(forever, (Err(IoError::NoMemory), NO_MEMORY_ATTEMPTS));
    }
}
