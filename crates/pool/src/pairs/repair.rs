//! Repair: reads each leg, and rewrites a leg from the other one.

use std::sync::atomic::Ordering;

use flagstone_blockdev::IoError;
use flagstone_runtime::{BufMut, buf};

use super::Pairs;
use crate::ondisk::legs::LEGS;

impl Pairs {
    /// Reads from one leg in sync.
    ///
    /// # Errors
    /// Of the leg; [`IoError::Unreachable`] if it does not answer.
    pub(crate) async fn read_leg(
        &self,
        index: usize,
        leg: usize,
        offset: u64,
        buf: BufMut,
    ) -> Result<BufMut, IoError> {
        let pair = &self.pairs[index];
        let own = pair.sync_device(leg).ok_or(IoError::Unreachable)?;
        pair.limited(leg, own.read(offset, buf)).await
    }

    /// Contents of a range on each leg in sync; `None` where it cannot be read.
    ///
    /// # Errors
    /// If a leg fails in another way, and no other leg reads.
    pub(crate) async fn read_each(
        &self,
        index: usize,
        offset: u64,
        len: usize,
    ) -> Result<Vec<(usize, Option<BufMut>)>, IoError> {
        let (mut read, mut failed) = (Vec::with_capacity(LEGS), None);
        for leg in self.in_sync(index) {
            match self.read_leg(index, leg, offset, buf::alloc(len).await).await {
                Ok(bytes) => read.push((leg, Some(bytes))),
                Err(IoError::ReadFault) => read.push((leg, None)),
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) if read.is_empty() => Err(error),
            _ => Ok(read),
        }
    }

    /// Rewrites a range on each leg that is in sync or behind and differs from leg `good`. The
    /// pool is not open so far: a leg that fails is recorded by [`Pairs::settle`].
    ///
    /// # Errors
    /// Of the last leg in sync.
    pub(crate) async fn equalize(
        &self,
        index: usize,
        good: usize,
        offset: u64,
        len: usize,
    ) -> Result<(), IoError> {
        let pair = &self.pairs[index];
        let other = 1 - good;
        if !pair.status()[other].is_written() {
            return Ok(());
        }
        let content = self.read_leg(index, good, offset, buf::alloc(len).await).await?;
        let leg = pair.device(other);
        let found = pair.limited(other, leg.read(offset, buf::alloc(len).await)).await;
        if found.is_ok_and(|found| found[..] == content[..]) {
            return Ok(());
        }
        match pair.limited(other, leg.write(offset, content.freeze(), false)).await {
            Ok(()) => Ok(()),
            Err(error) => pair.fail(other, &leg, error),
        }
    }

    /// Finds content that `is_right` on a leg in sync, and rewrites the others with it. `None` if
    /// no leg has it.
    pub(crate) async fn repair(
        &self,
        index: usize,
        offset: u64,
        len: usize,
        is_right: impl Fn(&[u8]) -> bool,
    ) -> Option<BufMut> {
        let pair = &self.pairs[index];
        let excluded = pair.exclude(offset..offset + len as u64).await;
        let read = self.read_each(index, offset, len).await.ok()?;
        let (mut good, mut bad) = (None, Vec::new());
        for (leg, bytes) in read {
            match bytes {
                Some(bytes) if is_right(&bytes) => good = Some(bytes),
                _ => bad.push(leg),
            }
        }
        let good = good?;
        for leg in bad {
            let mut copy = buf::alloc(len).await;
            copy.copy_from_slice(&good);
            let Some(own) = pair.sync_device(leg) else { continue };
            match pair.limited(leg, own.write(offset, copy.freeze(), true)).await {
                Ok(()) => {
                    self.repaired_blocks.fetch_add(len as u64 / 4096, Ordering::Relaxed);
                    let device = own.name();
                    tracing::warn!(device, offset, len, "rewrote damaged data from the other copy");
                }
                // The next change waits until this is recorded.
                Err(error) => drop(pair.fail(leg, &own, error)),
            }
        }
        drop(excluded);
        Some(good)
    }
}
