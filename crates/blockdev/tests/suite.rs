//! Self-test of the conformance kit: each test device breaks one promise, and the suite must
//! notice.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flagstone_blockdev::{
    BlockDevice, Geometry, IoError, IoFuture, MemoryDevice, SharedDevice, ZeroFlags,
};
use flagstone_conformance::{self as conformance, Options};
use flagstone_runtime::{Buf, BufMut, block_on, buf, task};
use parking_lot::Mutex;

const SIZE_BYTES: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Bug {
    None,
    /// Occasionally loses an acknowledged write.
    LosesWrites,
    /// Occasionally writes to the next block.
    Misdirects,
    /// Swaps the blocks of a long write.
    SwapsBlocks,
    /// Reads leave the end of the buffer unfilled.
    ShortReads,
    /// Writes take effect in halves of a block, with other calls in between.
    TearsBlocks,
    /// Does not check bounds: offsets wrap around.
    WrapsAround,
    /// Zeroes end one block early.
    ShortZeroes,
    /// Zeroes end one block late.
    LongZeroes,
    /// Refuses zeroes without `fast_only`.
    RefusesZeroes,
    /// Reports an error for an unsupported discard.
    RefusesDiscard,
    /// Discarded blocks expose other data.
    DiscardExposesOthers,
    /// Discarded blocks change between reads.
    DiscardIsUnstable,
    /// Refuses unaligned memory.
    RefusesMemory,
    /// Refuses flushes.
    RefusesFlush,
    /// Loses writes with FUA.
    LosesDurableWrites,
    /// Reports read-only but accepts writes.
    WritesReadOnly,
    /// The size is not a multiple of the block size.
    OddSize,
}

/// Memory device with a bug.
struct Broken {
    memory: Arc<MemoryDevice>,
    bug: Bug,
    calls: AtomicU64,
    /// A discarded range, and the number of reads of it since.
    discarded: Mutex<Option<(u64, u64, u32)>>,
}

impl Broken {
    fn discard_late(&self, at: u64) {
        let mut discarded = self.discarded.lock();
        if let Some((offset, len, reads)) = &mut *discarded
            && *offset == at
        {
            *reads += 1;
            if *reads == 2 {
                let _ = self.memory.discard(*offset, *len).try_now();
                *discarded = None;
            }
        }
    }

    fn nth(&self, period: u64) -> bool {
        self.calls.fetch_add(1, Ordering::Relaxed) % period == period - 1
    }
}

fn copy(bytes: &[u8]) -> Buf {
    Buf::copy_of(bytes).unwrap()
}

async fn torn(memory: Arc<MemoryDevice>, offset: u64, data: Buf) -> Result<(), IoError> {
    let len = data.len();
    let mut old = memory.read(offset, buf::alloc(len).await).await?;
    for half in [0, 256] {
        for (old, new) in old.chunks_mut(512).zip(data.chunks(512)) {
            old[half..half + 256].copy_from_slice(&new[half..half + 256]);
        }
        memory.write(offset, copy(&old), false).await?;
        task::yield_now().await;
    }
    Ok(())
}

impl BlockDevice for Broken {
    fn geometry(&self) -> Geometry {
        let mut geometry = self.memory.geometry();
        geometry.read_only = self.bug == Bug::WritesReadOnly;
        geometry.size_bytes += u64::from(self.bug == Bug::OddSize);
        geometry
    }

    fn read(&self, offset: u64, buf: BufMut) -> IoFuture<BufMut> {
        let len = buf.len();
        self.discard_late(offset);
        match self.bug {
            Bug::ShortReads if len > 512 => {
                let mut buf = buf;
                let tail = buf.split_off(len - 512);
                let call = self.memory.read(offset, buf);
                IoFuture::later(async move {
                    let mut buf = call.await?;
                    buf.unsplit(tail).unwrap();
                    Ok(buf)
                })
            }
            Bug::WrapsAround if len > 0 && (offset | len as u64).is_multiple_of(512) => {
                self.memory.read(offset % SIZE_BYTES, buf)
            }
            Bug::RefusesMemory if !buf.as_ptr().addr().is_multiple_of(512) => {
                IoFuture::ready(Err(IoError::ReadFault))
            }
            _ => self.memory.read(offset, buf),
        }
    }

    fn write(&self, offset: u64, data: Buf, fua: bool) -> IoFuture<()> {
        if let Err(error) = self.memory.geometry().check_transfer(offset, data.len()) {
            return IoFuture::ready(Err(error));
        }
        match self.bug {
            Bug::LosesWrites if self.nth(20) => IoFuture::ready(Ok(())),
            Bug::LosesDurableWrites if fua => IoFuture::ready(Ok(())),
            Bug::Misdirects if self.nth(20) && offset >= 512 => {
                self.memory.write(offset - 512, data, fua)
            }
            Bug::SwapsBlocks if data.len() > 64 << 10 => {
                let mut swapped = data.to_vec();
                let (head, tail) = swapped.split_at_mut(512);
                head.swap_with_slice(&mut tail[..512]);
                self.memory.write(offset, copy(&swapped), fua)
            }
            Bug::TearsBlocks => IoFuture::later(torn(self.memory.clone(), offset, data)),
            _ => self.memory.write(offset, data, fua),
        }
    }

    fn flush(&self) -> IoFuture<()> {
        match self.bug {
            Bug::RefusesFlush => IoFuture::ready(Err(IoError::Unsupported)),
            _ => self.memory.flush(),
        }
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        if let Err(error) = self.memory.geometry().check(offset, len) {
            return IoFuture::ready(Err(error));
        }
        match self.bug {
            Bug::RefusesDiscard => IoFuture::ready(Err(IoError::Unsupported)),
            Bug::DiscardExposesOthers => self.memory.write(offset, copy(&[9; 512]), false),
            // Discarded data disappears at the second read.
            Bug::DiscardIsUnstable => {
                *self.discarded.lock() = Some((offset, len, 0));
                IoFuture::ready(Ok(()))
            }
            _ => self.memory.discard(offset, len),
        }
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        let room = self.memory.geometry().check(offset, len + 512).is_ok();
        match self.bug {
            Bug::ShortZeroes if len > 512 => self.memory.write_zeroes(offset, len - 512, flags),
            Bug::LongZeroes if room => self.memory.write_zeroes(offset, len + 512, flags),
            Bug::RefusesZeroes if !flags.may_deallocate => {
                IoFuture::ready(Err(IoError::Unsupported))
            }
            _ => self.memory.write_zeroes(offset, len, flags),
        }
    }
}

fn passes(bug: Bug) -> bool {
    let make = async || {
        let memory = Arc::new(MemoryDevice::new(SIZE_BYTES, 512).unwrap());
        Arc::new(Broken { memory, bug, calls: AtomicU64::new(0), discarded: Mutex::new(None) })
            as SharedDevice
    };
    let suite = || block_on(conformance::run(make, Options::quick(1))).unwrap();
    catch_unwind(AssertUnwindSafe(suite)).is_ok()
}

#[test]
fn correct_device_passes_suite() {
    assert!(passes(Bug::None));
}

#[test]
fn suite_catches_each_bug() {
    let bugs = [
        Bug::LosesWrites,
        Bug::Misdirects,
        Bug::SwapsBlocks,
        Bug::ShortReads,
        Bug::TearsBlocks,
        Bug::WrapsAround,
        Bug::ShortZeroes,
        Bug::LongZeroes,
        Bug::RefusesZeroes,
        Bug::RefusesDiscard,
        Bug::DiscardExposesOthers,
        Bug::DiscardIsUnstable,
        Bug::RefusesMemory,
        Bug::RefusesFlush,
        Bug::LosesDurableWrites,
        Bug::WritesReadOnly,
        Bug::OddSize,
    ];
    let missed: Vec<Bug> = bugs.into_iter().filter(|bug| passes(*bug)).collect();
    assert!(missed.is_empty(), "the suite misses {missed:?}");
}
