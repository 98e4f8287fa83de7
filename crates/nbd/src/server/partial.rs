//! Partial blocks: requests of clients that did not negotiate block sizes.
//!
//! A range is split into part of its first block, whole blocks, and part of its last block. Parts
//! are read, modified and written under the exclusive [`crate::block_lock`]. This is the slow path
//! for simple clients on devices with large blocks. Memory is bounded by one block plus the
//! payload.

use flagstone_blockdev::{IoError, ZeroFlags};
use flagstone_runtime::limits::BUF_MIN_BYTES;
use flagstone_runtime::{Buf, BufMut, buf, time};

use crate::limits::MEMORY_TIMEOUT;
use crate::session::NbdSession;

/// Part of one block: the block's device offset, the start within the block, and the length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockPart {
    pub(crate) block: u64,
    pub(crate) from: usize,
    pub(crate) len: usize,
}

/// Range split at block boundaries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RangeSplit {
    pub(crate) head: Option<BlockPart>,
    /// Offset and length of the whole blocks.
    pub(crate) middle: Option<(u64, u64)>,
    pub(crate) tail: Option<BlockPart>,
}

impl RangeSplit {
    /// Splits `[offset, offset + len)`, which must not overflow, at multiples of `block_bytes`.
    pub(crate) fn of(offset: u64, len: u64, block_bytes: u64) -> RangeSplit {
        let end = offset + len;
        let first = offset - offset % block_bytes;
        let last = end - end % block_bytes;
        let part = |block: u64, from: u64, to: u64| {
            let (from, len) = ((from - block) as usize, (to - from) as usize);
            (len > 0).then_some(BlockPart { block, from, len })
        };
        if offset > first && end < first + block_bytes {
            return RangeSplit { head: part(first, offset, end), middle: None, tail: None };
        }
        let whole = if offset > first { first + block_bytes } else { first };
        RangeSplit {
            head: part(first, offset, whole),
            middle: (last > whole).then(|| (whole, last - whole)),
            tail: part(last, last.max(offset), end),
        }
    }
}

/// Allocates one block. The request already holds its payload, so the wait is bounded: others may
/// wait in the same way.
async fn block(session: &NbdSession) -> Result<BufMut, IoError> {
    let bytes = session.geometry().block_bytes as usize;
    if bytes <= BUF_MIN_BYTES {
        return Ok(buf::alloc_small(bytes));
    }
    time::timeout(MEMORY_TIMEOUT, buf::alloc(bytes)).await.map_err(|_| IoError::NoMemory)
}

async fn read_part(session: &NbdSession, part: BlockPart, out: &mut [u8]) -> Result<(), IoError> {
    let whole = session.export.device.read(part.block, block(session).await?).await?;
    out.copy_from_slice(&whole[part.from..part.from + part.len]);
    Ok(())
}

pub(crate) async fn read(
    session: &NbdSession,
    offset: u64,
    mut buf: BufMut,
) -> Result<BufMut, IoError> {
    let split = RangeSplit::of(offset, buf.len() as u64, u64::from(session.geometry().block_bytes));
    let mut at = 0;
    if let Some(part) = split.head {
        read_part(session, part, &mut buf[..part.len]).await?;
        at = part.len;
    }
    if let Some((offset, len)) = split.middle {
        let mut middle = buf.split_off(at);
        let rest = middle.split_off(len as usize);
        let mut middle = session.export.device.read(offset, middle).await?;
        let joined = middle.unsplit(rest).and_then(|()| buf.unsplit(middle));
        // Only a faulty device returns a buffer other than the one it was given.
        joined.map_err(|_| IoError::ReadFault)?;
        at += len as usize;
    }
    if let Some(part) = split.tail {
        read_part(session, part, &mut buf[at..]).await?;
    }
    Ok(buf)
}

/// Replaces part of a block. The caller holds exclusive access.
async fn modify(
    session: &NbdSession,
    part: BlockPart,
    change: impl FnOnce(&mut [u8]),
    fua: bool,
) -> Result<(), IoError> {
    let device = &session.export.device;
    let mut whole = device.read(part.block, block(session).await?).await?;
    change(&mut whole[part.from..part.from + part.len]);
    device.write(part.block, whole.freeze(), fua).await
}

pub(crate) async fn write(
    session: &NbdSession,
    offset: u64,
    data: Buf,
    fua: bool,
) -> Result<(), IoError> {
    let split =
        RangeSplit::of(offset, data.len() as u64, u64::from(session.geometry().block_bytes));
    let _exclusive = session.export.block_lock.lock_exclusive().await;
    let mut at = 0;
    if let Some(part) = split.head {
        modify(session, part, |bytes| bytes.copy_from_slice(&data[..part.len]), fua).await?;
        at = part.len;
    }
    if let Some((offset, len)) = split.middle {
        let middle = data.slice(at..at + len as usize);
        session.export.device.write(offset, middle, fua).await?;
        at += len as usize;
    }
    if let Some(part) = split.tail {
        modify(session, part, |bytes| bytes.copy_from_slice(&data[at..]), fua).await?;
    }
    Ok(())
}

pub(crate) async fn write_zeroes(
    session: &NbdSession,
    offset: u64,
    len: u64,
    flags: ZeroFlags,
) -> Result<(), IoError> {
    let split = RangeSplit::of(offset, len, u64::from(session.geometry().block_bytes));
    let _exclusive = session.export.block_lock.lock_exclusive().await;
    for part in [split.head, split.tail].into_iter().flatten() {
        modify(session, part, |bytes| bytes.fill(0), flags.fua).await?;
    }
    match split.middle {
        Some((offset, len)) => session.export.device.write_zeroes(offset, len, flags).await,
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn split_covers_range_in_order(
            offset in 0_u64..100_000,
            len in 1_u64..100_000,
            shift in 9_u32..16,
        ) {
            let block = 1_u64 << shift;
            let split = RangeSplit::of(offset, len, block);
            let mut at = offset;
            if let Some(part) = split.head {
                prop_assert_eq!((part.block % block, part.block + part.from as u64), (0, at));
                prop_assert!(part.from > 0 && part.from + part.len <= block as usize);
                at += part.len as u64;
            }
            if let Some((offset, len)) = split.middle {
                prop_assert_eq!((offset, offset % block, len % block), (at, 0, 0));
                prop_assert!(len > 0);
                at += len;
            }
            if let Some(part) = split.tail {
                prop_assert_eq!((part.block, part.from), (at, 0));
                prop_assert!(part.len < block as usize && part.block % block == 0);
                at += part.len as u64;
            }
            prop_assert_eq!(at, offset + len);
        }
    }
}
