//! Log device: holds the newest segments of the log until they are written out.
//!
//! A segment has the same content in its slot on the log device as in its place on the devices of
//! the pool. So a chunk has one address, and a read may use either.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use flagstone_blockdev::{IoError, IoFuture};
use flagstone_runtime::{Buf, BufMut, time};
use parking_lot::Mutex;

use super::tail::{Tail, TailLoad, TailSlot};
use super::throttle::Throttle;
use crate::limits::{BLOCK_BYTES, WRITE_OUT_BLOCKS, WRITE_OUT_COPIES};
use crate::ondisk::superblock::{LogStart, SUPERBLOCK_AREA_BYTES};
use crate::storage::NamedDevice;

/// The log device of an open pool.
#[derive(Debug)]
pub(crate) struct LogDevice {
    pub(crate) named: NamedDevice,
    pub(crate) slots: u32,
    segment_blocks: u32,
    /// Pieces written out per step. The tail shrinks after each step, in small steps so that hosts
    /// are slowed down evenly.
    pub(crate) pieces: usize,
    /// True after a failed write or flush.
    failed: AtomicBool,
    /// Locked after the state of the pool, and held for a few instructions.
    head: Mutex<Head>,
}

#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) tail: Tail,
    pub(crate) throttle: Throttle,
}

/// Limit of a tail, in blocks, near which hosts are slowed down: less than all slots, because the
/// first and the last may be partly empty.
pub(crate) fn tail_limit(limit: u64, slots: u32, segment_blocks: u32) -> u64 {
    limit.min(u64::from(slots - 2) * u64::from(segment_blocks))
}

impl LogDevice {
    /// A log device without a tail. Hosts are slowed down near `limit`, in blocks or in entries of
    /// the table of recent changes.
    pub(crate) fn new(
        named: NamedDevice,
        slots: u32,
        segment_blocks: u32,
        limit: u64,
    ) -> LogDevice {
        let entries = limit;
        let limit = tail_limit(limit, slots, segment_blocks);
        let throttle = Throttle::new(TailLoad { blocks: limit, entries });
        let head = Head { tail: Tail::new(slots), throttle };
        let piece = u64::from(WRITE_OUT_BLOCKS.min(segment_blocks));
        let pieces = (limit / 16 / piece).clamp(1, WRITE_OUT_COPIES as u64) as usize;
        let (failed, head) = (AtomicBool::new(false), Mutex::new(head));
        LogDevice { named, slots, segment_blocks, pieces, failed, head }
    }

    /// Locks the tail and the throttle.
    pub(crate) fn head(&self) -> parking_lot::MutexGuard<'_, Head> {
        self.head.lock()
    }

    /// Segment and block within it.
    pub(crate) fn split(&self, block: u64) -> (u32, u32) {
        let blocks = u64::from(self.segment_blocks);
        ((block / blocks) as u32, (block % blocks) as u32)
    }

    /// Offset of a block of a slot, in bytes.
    pub(crate) fn offset(&self, slot: u32, block: u32) -> u64 {
        let blocks = u64::from(slot) * u64::from(self.segment_blocks) + u64::from(block);
        SUPERBLOCK_AREA_BYTES + blocks * BLOCK_BYTES as u64
    }

    /// Offset of a chunk, in bytes.
    pub(crate) fn chunk_offset(&self, start: &LogStart) -> u64 {
        self.offset(start.slot, self.split(start.block).1)
    }

    /// Slot of a block, if the log device has it.
    pub(crate) fn held(&self, block: u64) -> Option<TailSlot> {
        self.head().tail.held(self.split(block).0)
    }

    /// Reads blocks of a slot.
    pub(crate) fn read(&self, slot: u32, block: u32, buf: BufMut) -> IoFuture<BufMut> {
        self.named.device.read(self.offset(slot, block), buf)
    }

    /// Delays a chunk of hosts by the throttle.
    pub(crate) async fn pace(&self, chunk: TailLoad) {
        let pause = {
            let mut head = self.head();
            let tail = head.tail.load();
            head.throttle.pause(chunk, tail, Duration::from_nanos(time::now().as_nanos()))
        };
        if !pause.is_zero() {
            time::sleep(pause).await;
        }
    }

    /// Records that a chunk took effect.
    pub(crate) fn applied(&self, start: &LogStart, blocks: u64) {
        let (segment, first) = self.split(start.block);
        self.head().tail.apply(segment, first, blocks as u32);
    }

    /// Writes a chunk.
    ///
    /// # Errors
    /// Of the device.
    pub(crate) async fn write_chunk(&self, start: &LogStart, data: Buf) -> Result<(), IoError> {
        self.judge(self.named.device.write(self.chunk_offset(start), data, false).await)
    }

    /// Flushes the log device.
    ///
    /// # Errors
    /// Of the device.
    pub(crate) async fn flush(&self) -> Result<(), IoError> {
        self.judge(self.named.device.flush().await)
    }

    /// Records a failed write or flush of the log device.
    pub(crate) fn judge(&self, done: Result<(), IoError>) -> Result<(), IoError> {
        if done.is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
        done
    }

    /// True after a failed write or flush of the log device.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// True if the log device may lose completed writes until a flush.
    pub(crate) fn has_volatile_cache(&self) -> bool {
        self.named.device.geometry().volatile_cache
    }

    /// Reads blocks from their slot; the second value is false if the slot was freed during the
    /// read.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) async fn read_held(
        &self,
        held: TailSlot,
        block: u64,
        buf: BufMut,
    ) -> Result<(BufMut, bool), IoError> {
        let read = self.read(held.slot, self.split(block).1, buf).await?;
        Ok((read, self.held(block) == Some(held)))
    }
}
