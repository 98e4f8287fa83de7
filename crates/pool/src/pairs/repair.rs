//! Repair: reads each leg, and rewrites a leg from the other one.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};

use flagstone_blockdev::IoError;
use flagstone_runtime::{BufMut, buf};

use parking_lot::Mutex;

use super::Pairs;
use crate::limits::{BLOCK_BYTES, READ_FAULTS_MAX};
use crate::ondisk::legs::LEGS;

/// Ranges that one leg could not read and the other did. A reader with a checksum rewrites them:
/// unverified content could replace data that the leg may read again.
#[derive(Debug, Default)]
pub(super) struct ReadFaults {
    /// Number of ranges, for readers that find none.
    count: AtomicUsize,
    /// Pair, offset and length in bytes.
    ranges: Mutex<VecDeque<(usize, u64, usize)>>,
}

impl ReadFaults {
    fn add(&self, index: usize, offset: u64, len: usize) {
        let mut ranges = self.ranges.lock();
        if ranges.contains(&(index, offset, len)) {
            return;
        }
        if ranges.len() >= READ_FAULTS_MAX {
            ranges.pop_front();
        }
        ranges.push_back((index, offset, len));
        self.count.store(ranges.len(), Ordering::Release);
    }

    fn take(&self, index: usize, offset: u64, len: usize) -> bool {
        if self.count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut ranges = self.ranges.lock();
        let before = ranges.len();
        let end = offset + len as u64;
        ranges.retain(|(own, at, len)| *own != index || *at >= end || offset >= *at + *len as u64);
        self.count.store(ranges.len(), Ordering::Release);
        ranges.len() < before
    }
}

/// Result of a repair.
#[derive(Debug)]
pub(crate) struct Repaired {
    /// The right content of the range.
    pub(crate) content: Vec<u8>,
    /// True if every leg in sync has it now. False also of read-only pairs.
    pub(crate) is_rewritten: bool,
}

/// Memory for a range that is read again. Reads for which others wait while they hold memory are of
/// single blocks.
async fn memory(len: usize) -> BufMut {
    match len {
        ..=BLOCK_BYTES => buf::alloc_small(len),
        _ => buf::alloc(len).await,
    }
}

impl Pairs {
    /// Notes that a leg in sync could not read a range that the other one read.
    pub(super) fn note_fault(&self, index: usize, offset: u64, len: usize) {
        self.faults.add(index, offset, len);
    }

    /// True if a leg could not read some of a range. The caller repairs it, or reads its blocks one
    /// by one.
    pub(crate) fn take_fault(&self, index: usize, offset: u64, len: usize) -> bool {
        self.faults.take(index, offset, len)
    }

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
        pair.limited(leg, &own, own.read(offset, buf)).await
    }

    /// Contents of a range on each leg in sync; `None` where it cannot be read. A leg that cannot
    /// be reached is not used any more.
    ///
    /// # Errors
    /// If a leg fails in another way, and no other leg reads. If the pairs are read-only, also if
    /// another one reads: a check of both copies has no result.
    pub(crate) async fn read_each(
        &self,
        index: usize,
        offset: u64,
        len: usize,
    ) -> Result<Vec<(usize, Option<BufMut>)>, IoError> {
        let (mut read, mut failed) = (Vec::with_capacity(LEGS), None);
        for leg in self.in_sync(index) {
            match self.read_leg(index, leg, offset, memory(len).await).await {
                Ok(bytes) => read.push((leg, Some(bytes))),
                Err(IoError::ReadFault) => read.push((leg, None)),
                Err(error) if self.is_read_only.load(Ordering::Acquire) => return Err(error),
                Err(error) => {
                    if error == IoError::Unreachable {
                        // The next change waits until this is recorded.
                        let _last = self.fail_leg(LEGS * index + leg, error);
                    }
                    failed = Some(error);
                }
            }
        }
        match failed {
            Some(error) if read.is_empty() => Err(error),
            _ => Ok(read),
        }
    }

    /// Rewrites a range on each leg that is in sync or behind, unless its content `is_right`, with
    /// that of leg `good`. The pool is not open so far: a leg that fails is recorded by
    /// [`Pairs::settle`].
    ///
    /// # Errors
    /// Of the last leg in sync; [`IoError::ReadFault`] if leg `good` reads wrong content.
    pub(crate) async fn equalize(
        &self,
        index: usize,
        good: usize,
        offset: u64,
        len: usize,
        is_right: impl Fn(&[u8]) -> bool,
    ) -> Result<(), IoError> {
        let pair = &self.pairs[index];
        let other = 1 - good;
        if !pair.status()[other].is_written() {
            return Ok(());
        }
        let leg = pair.device(other);
        let found = pair.limited(other, &leg, leg.read(offset, buf::alloc(len).await)).await;
        if found.is_ok_and(|found| is_right(&found)) {
            return Ok(());
        }
        let content = self.read_leg(index, good, offset, buf::alloc(len).await).await?;
        if !is_right(&content) {
            return Err(IoError::ReadFault);
        }
        match pair.limited(other, &leg, leg.write(offset, content.freeze(), false)).await {
            Ok(()) => Ok(()),
            Err(error) => pair.fail(other, &leg, error),
        }
    }

    /// Finds content that `is_right` on a leg in sync, and rewrites the others with it, unless the
    /// pairs are read-only. `None` if no leg has it. The range has at most the blocks of a unit: it
    /// is read and written block by block, because writers may hold all memory while they wait for
    /// the repair.
    pub(crate) async fn repair(
        &self,
        index: usize,
        offset: u64,
        len: usize,
        is_right: impl Fn(&[u8]) -> bool,
    ) -> Option<Repaired> {
        let pair = &self.pairs[index];
        let excluded = pair.exclude(offset..offset + len as u64).await;
        let (mut good, mut bad) = (None, Vec::new());
        for (leg, bytes) in self.read_blocks(index, offset, len).await.ok()? {
            match bytes.len() == len && is_right(&bytes) {
                true => good = Some(bytes),
                false => bad.push(leg),
            }
        }
        let content = good?;
        if self.is_read_only.load(Ordering::Acquire) {
            return Some(Repaired { content, is_rewritten: false });
        }
        let mut is_rewritten = true;
        for leg in bad {
            is_rewritten &= self.rewrite(index, leg, offset, &content).await;
        }
        drop(excluded);
        Some(Repaired { content, is_rewritten })
    }

    /// As [`Pairs::read_each`], block by block: the content ends before a block that cannot be
    /// read.
    async fn read_blocks(
        &self,
        index: usize,
        offset: u64,
        len: usize,
    ) -> Result<Vec<(usize, Vec<u8>)>, IoError> {
        let legs = self.in_sync(index).into_iter();
        let mut copies: Vec<_> = legs.map(|leg| (leg, Vec::with_capacity(len))).collect();
        for at in (0..len).step_by(BLOCK_BYTES) {
            for (leg, block) in self.read_each(index, offset + at as u64, BLOCK_BYTES).await? {
                let copy = copies.iter_mut().find(|(own, copy)| *own == leg && copy.len() == at);
                if let (Some((_, copy)), Some(block)) = (copy, block) {
                    copy.extend_from_slice(&block);
                }
            }
        }
        Ok(copies)
    }

    /// Rewrites a range of a leg in sync. False if the leg does not have the content now.
    async fn rewrite(&self, index: usize, leg: usize, offset: u64, content: &[u8]) -> bool {
        let pair = &self.pairs[index];
        let Some(own) = pair.sync_device(leg) else { return false };
        for (block, at) in content.chunks(BLOCK_BYTES).zip((offset..).step_by(BLOCK_BYTES)) {
            let mut copy = buf::alloc_small(BLOCK_BYTES);
            copy.copy_from_slice(block);
            let written = pair.limited(leg, &own, own.write(at, copy.freeze(), true)).await;
            if let Err(error) = written {
                // The next change waits until this is recorded.
                let _last = pair.fail(leg, &own, error);
                return false;
            }
        }
        let (device, len) = (own.name(), content.len());
        self.repaired_blocks.fetch_add((len / BLOCK_BYTES) as u64, Ordering::Relaxed);
        tracing::warn!(device, offset, len, "rewrote damaged data from the other copy");
        true
    }
}
