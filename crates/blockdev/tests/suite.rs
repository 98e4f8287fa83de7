//! The suite catches the devices that it is there to catch: each test breaks one promise.
#![allow(missing_docs)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use flagstone_blockdev::conformance::{self, Options};
use flagstone_blockdev::{
    BlockDevice, Geometry, IoError, IoFuture, MemoryDevice, SharedDevice, ZeroFlags,
};
use flagstone_runtime::{Buf, BufMut, block_on, buf, task};

const SIZE_BYTES: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Bug {
    None,
    /// A write now and then is acknowledged and lost.
    LosesWrites,
    /// A write now and then goes to the block beside.
    Misdirects,
    /// The blocks of a long write change place.
    SwapsBlocks,
    /// Reads leave the end of the buffer as it was.
    ShortReads,
    /// Writes take effect in halves of a block, with other calls between.
    TearsBlocks,
    /// Nobody checks bounds: offsets wrap around.
    WrapsAround,
    /// Zeroes stop a block early.
    ShortZeroes,
    /// Zeroes go a block too far.
    LongZeroes,
    /// Zeroes are refused though nobody asked for speed.
    RefusesZeroes,
    /// A discard is an error where it is not supported.
    RefusesDiscard,
    /// Discarded blocks hold whatever was there.
    DiscardExposesOthers,
    /// Discarded blocks change from read to read.
    DiscardIsUnstable,
    /// Memory must be aligned.
    RefusesMemory,
    /// Flushes are refused.
    RefusesFlush,
    /// Writes with FUA are lost.
    LosesDurableWrites,
    /// A device that calls itself read-only takes writes.
    WritesReadOnly,
    /// The size is no multiple of the block.
    OddSize,
}

/// Memory with a bug.
struct Broken {
    memory: Arc<MemoryDevice>,
    bug: Bug,
    calls: AtomicU64,
    /// A range to discard later, and the reads of it since.
    discarded: Mutex<Option<(u64, u64, u32)>>,
}

impl Broken {
    fn discard_late(&self, at: u64) {
        let mut discarded = self.discarded.lock().unwrap();
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
            // What is discarded is gone at the second read after.
            Bug::DiscardIsUnstable => {
                *self.discarded.lock().unwrap() = Some((offset, len, 0));
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
fn a_device_without_bugs_passes() {
    assert!(passes(Bug::None));
}

#[test]
fn each_bug_is_caught() {
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
