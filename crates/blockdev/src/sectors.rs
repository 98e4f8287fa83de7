//! Sector device: blocks of 512 bytes over a device with larger blocks.
//!
//! A change of a part of a block reads the block, and writes it whole, under a lock of the block.
//! All changes take the lock; otherwise a write-back could undo a change made after its read. A
//! crash leaves the block as before or as after the change, if the device below writes blocks
//! atomically.
//!
//! Invariants:
//! - a part of a change that reads first runs in a task of its own: a dropped call does not release
//!   the lock before its write has ended;
//! - whole blocks are passed on as they are.

use std::ops::Range;
use std::sync::Arc;

use flagstone_runtime::{Buf, BufMut, buf, spawn};

use crate::range_lock::RangeLock;
use crate::{BlockDevice, Extent, Geometry, IoError, IoFuture, SharedDevice, ZeroFlags};

/// Block size that hosts see, in bytes.
pub const SECTOR_BYTES: u32 = 512;

/// A device with blocks of 512 bytes over one with larger blocks.
pub struct SectorDevice {
    parts: Parts,
}

#[derive(Clone)]
struct Parts {
    child: SharedDevice,
    lock: Arc<RangeLock>,
}

/// A range, split where whole blocks begin and end.
struct Split {
    /// Whole blocks that contain the range.
    cover: Range<u64>,
    /// Whole blocks in the range; may be empty.
    whole: Range<u64>,
}

impl SectorDevice {
    /// A device over `child`.
    pub fn new(child: SharedDevice) -> SectorDevice {
        SectorDevice { parts: Parts { child, lock: Arc::default() } }
    }
}

impl Parts {
    fn split(&self, offset: u64, len: u64) -> Split {
        let block = u64::from(self.child.geometry().block_bytes);
        let end = offset + len;
        let cover = offset - offset % block..end.next_multiple_of(block);
        let whole = offset.next_multiple_of(block)..end - end % block;
        let whole = if whole.is_empty() { cover.start..cover.start } else { whole };
        Split { cover, whole }
    }

    async fn read_whole(&self, range: Range<u64>) -> Result<BufMut, IoError> {
        let memory = buf::acquire_more((range.end - range.start) as usize).await;
        self.child.read(range.start, memory).await
    }

    async fn read(self, offset: u64, mut into: BufMut) -> Result<BufMut, IoError> {
        let Split { cover, .. } = self.split(offset, into.len() as u64);
        let found = self.read_whole(cover.clone()).await?;
        let skip = (offset - cover.start) as usize;
        let len = into.len();
        into.copy_from_slice(&found[skip..skip + len]);
        Ok(into)
    }

    /// Changes the bytes of `range` in the blocks that contain it.
    async fn rewrite(
        &self,
        range: Range<u64>,
        change: impl FnOnce(&mut [u8]),
        fua: bool,
    ) -> Result<(), IoError> {
        let Split { cover, .. } = self.split(range.start, range.end - range.start);
        let mut memory = self.read_whole(cover.clone()).await?;
        let first = (range.start - cover.start) as usize;
        change(&mut memory[first..first + (range.end - range.start) as usize]);
        self.child.write(cover.start, memory.freeze(), fua).await
    }

    async fn write(self, offset: u64, data: Buf, fua: bool) -> Result<(), IoError> {
        let Split { cover, .. } = self.split(offset, data.len() as u64);
        let len = cover.end - cover.start;
        let _lock = self.lock.change(cover.start, len).acquired().await;
        let range = offset..offset + data.len() as u64;
        self.rewrite(range, |bytes| bytes.copy_from_slice(&data), fua).await
    }

    async fn zero(self, offset: u64, len: u64, flags: ZeroFlags) -> Result<(), IoError> {
        let Split { cover, whole } = self.split(offset, len);
        let _lock = self.lock.change(cover.start, cover.end - cover.start).acquired().await;
        let end = offset + len;
        if whole.is_empty() {
            return self.rewrite(offset..end, |bytes| bytes.fill(0), flags.fua).await;
        }
        for edge in [offset..whole.start, whole.end..end] {
            if !edge.is_empty() {
                self.rewrite(edge, |bytes| bytes.fill(0), flags.fua).await?;
            }
        }
        self.child.write_zeroes(whole.start, whole.end - whole.start, flags).await
    }

    /// Runs a change with a lock to its end.
    fn run(future: impl Future<Output = Result<(), IoError>> + 'static) -> IoFuture<()> {
        IoFuture::later(async move { spawn(future).await.unwrap_or(Err(IoError::Unreachable)) })
    }
}

impl BlockDevice for SectorDevice {
    fn geometry(&self) -> Geometry {
        let geometry = self.parts.child.geometry();
        Geometry { block_bytes: SECTOR_BYTES.min(geometry.block_bytes), ..geometry }
    }

    fn refresh(&self) {
        self.parts.child.refresh();
    }

    fn expose(&self, bytes: u64) {
        self.parts.child.expose(bytes);
    }

    fn present_bytes(&self) -> Option<u64> {
        self.parts.child.present_bytes()
    }

    fn must_reopen(&self) -> bool {
        self.parts.child.must_reopen()
    }

    fn used_bytes(&self) -> Option<u64> {
        self.parts.child.used_bytes()
    }

    fn try_read_cached(&self, offset: u64, len: usize) -> Option<Buf> {
        let Split { cover, .. } = self.parts.split(offset, len as u64);
        let skip = (offset - cover.start) as usize;
        let found =
            self.parts.child.try_read_cached(cover.start, (cover.end - cover.start) as usize)?;
        Some(found.slice(skip..skip + len))
    }

    fn allocated(&self, offset: u64, len: u64) -> IoFuture<Vec<Extent>> {
        let checked = self.geometry().check(offset, len);
        IoFuture::checked(checked, || {
            let parts = self.parts.clone();
            IoFuture::later(async move {
                let Split { cover, .. } = parts.split(offset, len);
                let found = parts.child.allocated(cover.start, cover.end - cover.start).await?;
                let (mut skip, mut left) = (offset - cover.start, len);
                let mut extents = Vec::with_capacity(found.len());
                for Extent { len, is_hole } in found {
                    let skipped = skip.min(len);
                    skip -= skipped;
                    let part = (len - skipped).min(left);
                    left -= part;
                    if part > 0 {
                        extents.push(Extent { len: part, is_hole });
                    }
                }
                Ok(extents)
            })
        })
    }

    fn read(&self, offset: u64, buf: BufMut) -> IoFuture<BufMut> {
        let len = buf.len() as u64;
        if self.parts.child.geometry().check(offset, len).is_ok() {
            return self.parts.child.read(offset, buf);
        }
        let checked = self.geometry().check_transfer(offset, buf.len());
        IoFuture::checked(checked, || IoFuture::later(self.parts.clone().read(offset, buf)))
    }

    fn write(&self, offset: u64, data: Buf, fua: bool) -> IoFuture<()> {
        let geometry = self.geometry();
        let len = data.len() as u64;
        let checked = geometry.check_change(offset, len);
        let checked = checked.and_then(|()| geometry.check_transfer(offset, data.len()));
        let parts = self.parts.clone();
        IoFuture::checked(checked, || match parts.child.geometry().check(offset, len) {
            Ok(()) => IoFuture::later(async move {
                let _lock = parts.lock.change(offset, len).acquired().await;
                parts.child.write(offset, data, fua).await
            }),
            Err(_) => Parts::run(parts.write(offset, data, fua)),
        })
    }

    fn flush(&self) -> IoFuture<()> {
        self.parts.child.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        let checked = self.geometry().check_change(offset, len);
        let parts = self.parts.clone();
        IoFuture::checked(checked, || {
            let flags = ZeroFlags { may_deallocate: true, ..ZeroFlags::default() };
            match parts.child.geometry().discard_zeroes {
                true => Parts::run(parts.zero(offset, len, flags)),
                // Parts of blocks stay as they are: it is a hint.
                false => match parts.split(offset, len).whole {
                    whole if whole.is_empty() => IoFuture::ready(Ok(())),
                    whole => parts.child.discard(whole.start, whole.end - whole.start),
                },
            }
        })
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        let checked = self.geometry().check_change(offset, len);
        let parts = self.parts.clone();
        IoFuture::checked(checked, || Parts::run(parts.zero(offset, len, flags)))
    }
}

#[cfg(test)]
mod tests {
    use flagstone_runtime::rng::Rng;
    use flagstone_runtime::{block_on, spawn};

    use super::*;
    use crate::{DelayConfig, DelayLayer, DelayTime, MemoryDevice};

    const SIZE: usize = 64 << 10;

    fn device() -> Arc<SectorDevice> {
        let memory = Arc::new(MemoryDevice::new(SIZE as u64, 4096).unwrap());
        Arc::new(SectorDevice::new(memory))
    }

    async fn content(device: &SectorDevice) -> Vec<u8> {
        device.read(0, buf::alloc(SIZE).await).await.unwrap().to_vec()
    }

    #[test]
    fn sectors_equal_a_model() {
        block_on(async {
            let device = device();
            let mut model = vec![0; SIZE];
            let mut rng = Rng::new(7);
            for step in 1..3000_u32 {
                let first = rng.below(SIZE as u64 / 512);
                let count = 1 + rng.below((SIZE as u64 / 512 - first).min(40));
                let (offset, len) = ((first * 512) as usize, (count * 512) as usize);
                let part = &mut model[offset..offset + len];
                match rng.below(5) {
                    0 => {
                        part.fill(0);
                        device.discard(offset as u64, len as u64).await.unwrap();
                    }
                    1 => {
                        part.fill(0);
                        let flags = ZeroFlags { fua: true, ..ZeroFlags::default() };
                        device.write_zeroes(offset as u64, len as u64, flags).await.unwrap();
                    }
                    2 => {
                        let read = device.read(offset as u64, buf::alloc(len).await).await;
                        assert_eq!(read.unwrap()[..], *part, "{step}");
                        let found = device.allocated(offset as u64, len as u64).await.unwrap();
                        assert!(found.iter().map(|extent| extent.len).sum::<u64>() <= len as u64);
                    }
                    _ => {
                        part.fill(step as u8);
                        let data = Buf::copy_of(part).unwrap();
                        device.write(offset as u64, data, step % 2 == 0).await.unwrap();
                    }
                }
            }
            assert_eq!(content(&device).await, model);
        })
        .unwrap();
    }

    #[test]
    fn concurrent_sectors_of_a_block_are_all_kept() {
        block_on(async {
            let memory = Arc::new(MemoryDevice::new(SIZE as u64, 4096).unwrap());
            let fixed = std::time::Duration::from_micros(200);
            let read = DelayTime { fixed, ..DelayTime::default() };
            let slow = DelayLayer::new(memory, DelayConfig { read, ..DelayConfig::default() });
            let device = Arc::new(SectorDevice::new(Arc::new(slow.unwrap())));
            let tasks: Vec<_> = (0..16_u64)
                .map(|sector| {
                    let device = device.clone();
                    spawn(async move {
                        let data = Buf::copy_of(&[sector as u8 + 1; 512]).unwrap();
                        device.write(sector * 512, data, false).await.unwrap();
                    })
                })
                .collect();
            // Dropped at once: the change runs to its end, and is lost or done as a whole.
            drop(device.write(512, Buf::copy_of(&[2; 512]).unwrap(), false));
            for task in tasks {
                task.await.unwrap();
            }
            let found = content(&device).await;
            for sector in 0..16 {
                assert!(found[sector * 512..][..512].iter().all(|byte| *byte == sector as u8 + 1));
            }
        })
        .unwrap();
    }

    #[test]
    fn impossible_ranges_are_refused() {
        block_on(async {
            let device = device();
            assert_eq!(device.geometry().block_bytes, 512);
            let data = || Buf::copy_of(&[1; 512]).unwrap();
            assert_eq!(device.write(100, data(), false).await, Err(IoError::Misaligned));
            assert_eq!(device.write(SIZE as u64, data(), false).await, Err(IoError::OutOfRange));
            assert_eq!(device.discard(0, 100).await, Err(IoError::Misaligned));
        })
        .unwrap();
    }
}
