//! Rebuild: copies the used segments of a device to a leg that is behind, and makes it in sync.
//!
//! Invariants:
//! - writes go to the leg from before the first copy on, so a segment that is free when the rebuild
//!   reaches it needs no copy;
//! - a rebuild belongs to one device: it ends without effect when the leg gets another one;
//! - the recorded progress is flushed, so a rebuild continues there after a crash.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use flagstone_blockdev::IoError;
use flagstone_runtime::{Buf, buf, spawn, time};

use super::leg::LegDevice;
use super::segment_sums::SegmentSums;
use super::updates::LegChange;
use super::{LegStatus, Pairs};
use crate::limits::{BLOCK_BYTES, READ_PAUSE, REBUILD_BYTES, REBUILD_RECORD_SEGMENTS};
use crate::manage::shared::Shared;
use crate::ondisk::legs::LEGS;
use crate::read_retries::{FailedRead, ReadFailure, ReadRetries};

/// A leg that is behind, with its device.
#[derive(Clone, Debug)]
struct Behind {
    index: usize,
    leg: usize,
    device: Arc<LegDevice>,
    copied: u32,
}

/// Failure of a copy.
enum CopyError {
    /// Of the leg in sync, which is read.
    Source(IoError),
    /// Of the leg that is behind.
    Target(IoError),
}

impl CopyError {
    fn error(self) -> IoError {
        let (CopyError::Source(error) | CopyError::Target(error)) = self;
        error
    }
}

impl Pairs {
    /// First leg that is behind.
    fn behind(&self) -> Option<Behind> {
        (0..self.pairs.len()).find_map(|index| {
            (0..LEGS).find_map(|leg| {
                let device = self.pairs[index].device(leg);
                match self.pairs[index].status_of(leg, &device) {
                    Some(LegStatus::Behind { copied }) => {
                        Some(Behind { index, leg, device, copied })
                    }
                    _ => None,
                }
            })
        })
    }

    /// Copies a range to a leg, while nothing else writes it.
    ///
    /// # Errors
    /// Of either leg.
    async fn copy_once(
        &self,
        behind: &Behind,
        sums: &SegmentSums,
        range: Range<u64>,
    ) -> Result<(), CopyError> {
        let index = behind.index;
        // First: excluded writes hold memory for which this may wait.
        let memory = match (range.end - range.start) as usize {
            BLOCK_BYTES => buf::alloc_small(BLOCK_BYTES),
            len => buf::acquire_more(len).await,
        };
        let _excluded = self.pairs[index].exclude(range.clone()).await;
        let read = self.read_leg(index, 1 - behind.leg, range.start, memory).await;
        let data = read.map_err(CopyError::Source)?.freeze();
        let blocks = (range.start..range.end).step_by(BLOCK_BYTES).zip(data.chunks(BLOCK_BYTES));
        let wrong = blocks.filter(|(offset, block)| sums.is_wrong(*offset, block));
        let mut from = range.start;
        for (offset, _) in wrong {
            let kept = behind.device.read(offset, buf::alloc_small(BLOCK_BYTES));
            let kept = self.pairs[index].limited(behind.leg, &behind.device, kept).await;
            if kept.is_ok_and(|kept| sums.is_right(offset, &kept)) {
                let source = self.pairs[index].device(1 - behind.leg);
                tracing::warn!(
                    device = source.name(),
                    offset,
                    "block is damaged: the rebuild keeps the other copy"
                );
                let part = (from - range.start) as usize..(offset - range.start) as usize;
                self.write_part(behind, from, data.slice(part)).await?;
                from = offset + BLOCK_BYTES as u64;
                self.note_fault(index, offset, BLOCK_BYTES);
            }
        }
        let rest = (from - range.start) as usize..data.len();
        self.write_part(behind, from, data.slice(rest)).await
    }

    async fn write_part(&self, behind: &Behind, offset: u64, part: Buf) -> Result<(), CopyError> {
        match part.is_empty() {
            true => Ok(()),
            false => self.write_behind(behind, offset, part).await.map_err(CopyError::Target),
        }
    }

    /// Copies a range to a leg. Defective blocks of the other leg are left out: their content is
    /// lost, and reads of them fail. A device that fails all reads has no defects: it may come
    /// back.
    ///
    /// # Errors
    /// Of either leg.
    async fn copy(
        &self,
        (retries, sums): (&ReadRetries, &SegmentSums),
        is_stopped: impl Fn() -> bool,
        behind: &Behind,
        range: Range<u64>,
    ) -> Result<(), IoError> {
        match self.copy_once(behind, sums, range.clone()).await {
            Err(CopyError::Source(IoError::ReadFault)) => {}
            copied => return copied.map_err(CopyError::error),
        }
        let source = self.pairs[behind.index].device(1 - behind.leg);
        for offset in range.step_by(BLOCK_BYTES) {
            let attempt = async || {
                let location = offset / BLOCK_BYTES as u64;
                let block = offset..offset + BLOCK_BYTES as u64;
                match self.copy_once(behind, sums, block).await {
                    Ok(()) => Ok(Ok(())),
                    Err(CopyError::Source(error)) => Err(FailedRead { location, error }),
                    Err(CopyError::Target(error)) => Ok(Err(error)),
                }
            };
            match retries.read_of(|_| &source.named, &is_stopped, attempt).await {
                Ok(copied) => copied?,
                Err(ReadFailure::Device(failed)) => return Err(failed.error),
                // There may have been no second attempt.
                Err(ReadFailure::Defect) if is_stopped() => return Err(IoError::Unreachable),
                Err(ReadFailure::Defect) => {
                    let device = source.name();
                    tracing::error!(device, offset, "block cannot be read: it is not copied");
                    self.left_out_blocks.fetch_add(1, Ordering::Relaxed);
                    self.note_fault(behind.index, offset, BLOCK_BYTES);
                }
            }
        }
        Ok(())
    }

    async fn write_behind(&self, behind: &Behind, offset: u64, data: Buf) -> Result<(), IoError> {
        let write = behind.device.write(offset, data, false);
        let pair = &self.pairs[behind.index];
        let written = pair.limited(behind.leg, &behind.device, write).await;
        self.judge_behind(behind, written).await
    }

    /// Stops the use of a leg that failed a rebuild.
    async fn judge_behind(
        &self,
        Behind { index, leg, device, .. }: &Behind,
        result: Result<(), IoError>,
    ) -> Result<(), IoError> {
        if let Err(error) = result {
            self.pairs[*index].fail(*leg, device, error)?;
            self.settle().await?;
        }
        result
    }

    /// Makes the copies durable, and records the progress.
    async fn record_progress(&self, behind: &Behind, copied: u32) -> Result<(), IoError> {
        let Behind { index, leg, device, .. } = behind;
        let flushed = self.pairs[*index].limited(*leg, device, device.flush()).await;
        self.judge_behind(behind, flushed).await?;
        match self.pairs[*index].progress(*leg, device, copied) {
            true => self.settle().await.map(drop),
            false => Ok(()),
        }
    }

    /// Waits until the rebuild task has ended, and prevents further updates.
    pub(crate) async fn stop(&self) {
        let ended = || (!self.is_rebuilding.load(Ordering::Acquire)).then_some(());
        self.changed.wait_for(ended).await;
        self.end_updates().await;
    }
}

impl Shared {
    fn is_stopped(&self) -> bool {
        let state = self.state.lock();
        state.wanted.stop || state.check().is_err()
    }

    /// Rebuilds one leg, unless the pool stops.
    ///
    /// # Errors
    /// Of either leg.
    async fn rebuild(&self, pairs: &Pairs, behind: &Behind) -> Result<(), IoError> {
        let Behind { index, leg, device: own, mut copied } = behind.clone();
        let (pair, device) = (&pairs.pairs[index], own.name());
        let segments = self.storage.layout.segments_on(index);
        tracing::info!(device, copied, of = segments.len(), "rebuild begins");
        let is_over = || {
            let is_behind = matches!(pair.status_of(leg, &own), Some(LegStatus::Behind { .. }));
            self.is_stopped() || !is_behind
        };
        while copied < segments.len() as u32 {
            own.copied.store(copied, Ordering::Relaxed);
            if is_over() {
                return Ok(());
            }
            let segment = segments.start + copied;
            let begun = time::now();
            let is_free = self.state.lock().segments.is_free(segment);
            if !is_free {
                let retries = ReadRetries::default();
                let layout = &self.storage.layout;
                let sums = SegmentSums::read(pairs, 1 - leg, layout, segment).await;
                let start = self.storage.layout.place(self.storage.layout.first_block(segment));
                let bytes = u64::from(self.storage.layout.segment_blocks()) * BLOCK_BYTES as u64;
                let end = start.offset + bytes;
                for offset in (start.offset..end).step_by(REBUILD_BYTES as usize) {
                    let range = offset..end.min(offset + REBUILD_BYTES);
                    pairs.copy((&retries, &sums), is_over, behind, range).await?;
                }
            }
            copied += 1;
            if copied.is_multiple_of(REBUILD_RECORD_SEGMENTS) {
                pairs.record_progress(behind, copied).await?;
            }
            if !is_free {
                // Hosts get most of the devices.
                time::sleep(begun.elapsed()).await;
            }
        }
        own.copied.store(copied, Ordering::Relaxed);
        pairs.record_progress(behind, copied).await?;
        pairs.change(LegChange::InSync(LEGS * index + leg, own.clone())).await?;
        let is_in_sync = pair.status_of(leg, &own) == Some(LegStatus::InSync);
        tracing::info!(device, is_in_sync, "rebuild ended");
        Ok(())
    }

    /// Rebuilds legs until the pool stops.
    async fn keep_rebuilding(&self, pairs: &Pairs) {
        loop {
            let next = || match self.is_stopped() {
                true => Some(None),
                false => pairs.behind().map(Some),
            };
            let Some(behind) = self.progress.wait_for(next).await else { return };
            if let Err(error) = self.rebuild(pairs, &behind).await {
                let device = behind.device.name();
                tracing::warn!(device, %error, "rebuild is interrupted");
                time::sleep(READ_PAUSE).await;
            }
        }
    }
}

/// Starts the rebuild task of a pool with redundancy.
pub(crate) fn start(shared: &Arc<Shared>) {
    let Some(pairs) = shared.storage.pairs.clone() else { return };
    let shared = shared.clone();
    pairs.is_rebuilding.store(true, Ordering::Release);
    drop(spawn(async move {
        shared.keep_rebuilding(&pairs).await;
        pairs.is_rebuilding.store(false, Ordering::Release);
        pairs.changed.notify();
    }));
}
