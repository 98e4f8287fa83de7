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
use std::rc::Rc;
use std::sync::Arc;

use flagstone_runtime::buf::SharedReserve;
use flagstone_runtime::{Buf, BufMut, buf, spawn};

use crate::limits::EDGE_BYTES_MAX;
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

/// A range, split where whole blocks begin and end. Each part may be empty.
struct Split {
    /// Whole blocks that contain the range.
    cover: Range<u64>,
    /// Part of the range's first block.
    head: Range<u64>,
    /// Whole blocks in the range.
    whole: Range<u64>,
    /// Part of its last block.
    tail: Range<u64>,
}

thread_local! {
    /// Memory for the block of an edge. The device below waits for the core's common reserve, so
    /// this one must be another.
    static EDGE: Rc<SharedReserve> = Rc::new(SharedReserve::new(EDGE_BYTES_MAX));
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
        let first = offset.next_multiple_of(block).min(end);
        let last = (end - end % block).max(first);
        Split {
            cover: offset - offset % block..end.next_multiple_of(block),
            head: offset..first,
            whole: first..last,
            tail: last..end,
        }
    }

    /// The block that contains `part`, and the place of `part` in it.
    async fn read_block(&self, part: &Range<u64>) -> Result<(u64, BufMut, Range<usize>), IoError> {
        let block = u64::from(self.child.geometry().block_bytes);
        let start = part.start - part.start % block;
        let memory = EDGE.with(Rc::clone).acquire(block as usize).await;
        let found = self.child.read(start, memory).await?;
        let place = (part.start - start) as usize..(part.end - start) as usize;
        Ok((start, found, place))
    }

    async fn read(self, offset: u64, into: BufMut) -> Result<BufMut, IoError> {
        let Split { head, whole, tail, .. } = self.split(offset, into.len() as u64);
        let mut first = into;
        let mut middle = first.split_off(length(&head));
        let mut last = middle.split_off(length(&whole));
        if !whole.is_empty() {
            middle = self.child.read(whole.start, middle).await?;
        }
        for (part, into) in [(head, &mut first), (tail, &mut last)] {
            if !part.is_empty() {
                let (_, found, place) = self.read_block(&part).await?;
                into.copy_from_slice(&found[place]);
            }
        }
        join([first, middle, last]).await
    }

    /// Changes the bytes of `part`, which is in one block.
    async fn rewrite(
        &self,
        part: Range<u64>,
        change: impl FnOnce(&mut [u8]),
        fua: bool,
    ) -> Result<(), IoError> {
        if part.is_empty() {
            return Ok(());
        }
        let (start, mut memory, place) = self.read_block(&part).await?;
        change(&mut memory[place]);
        self.child.write(start, memory.freeze(), fua).await
    }

    async fn write(self, offset: u64, data: Buf, fua: bool) -> Result<(), IoError> {
        let Split { cover, head, whole, tail } = self.split(offset, data.len() as u64);
        let _lock = self.lock.change(cover.start, length(&cover) as u64).acquired().await;
        let of = |part: &Range<u64>| (part.start - offset) as usize..(part.end - offset) as usize;
        if !whole.is_empty() {
            self.child.write(whole.start, data.slice(of(&whole)), fua).await?;
        }
        for part in [head, tail] {
            let new = &data[of(&part)];
            self.rewrite(part, |bytes| bytes.copy_from_slice(new), fua).await?;
        }
        Ok(())
    }

    async fn zero(self, offset: u64, len: u64, flags: ZeroFlags) -> Result<(), IoError> {
        let Split { cover, head, whole, tail } = self.split(offset, len);
        let _lock = self.lock.change(cover.start, length(&cover) as u64).acquired().await;
        for edge in [head, tail] {
            self.rewrite(edge, |bytes| bytes.fill(0), flags.fua).await?;
        }
        match whole.is_empty() {
            true => Ok(()),
            false => self.child.write_zeroes(whole.start, whole.end - whole.start, flags).await,
        }
    }

    /// Deallocates whole blocks. Parts of blocks stay as they are: it is a hint.
    async fn discard(self, whole: Range<u64>) -> Result<(), IoError> {
        let len = whole.end - whole.start;
        let _lock = self.lock.change(whole.start, len).acquired().await;
        self.child.discard(whole.start, len).await
    }

    /// Runs a change with a lock to its end.
    fn run(future: impl Future<Output = Result<(), IoError>> + 'static) -> IoFuture<()> {
        IoFuture::later(async move { spawn(future).await.unwrap_or(Err(IoError::Unreachable)) })
    }
}

fn length(range: &Range<u64>) -> usize {
    (range.end - range.start) as usize
}

/// Adjacent parts as one buffer. They are copied if the device below returned other memory.
async fn join(parts: [BufMut; 3]) -> Result<BufMut, IoError> {
    let [mut whole, middle, last] = parts;
    let apart = match whole.unsplit(middle) {
        Ok(()) => match whole.unsplit(last) {
            Ok(()) => return Ok(whole),
            Err(last) => vec![whole, last],
        },
        Err(middle) => vec![whole, middle, last],
    };
    let len = apart.iter().map(|part| part.len()).sum();
    let mut joined = buf::acquire(len).await.map_err(|_| IoError::NoMemory)?;
    let mut at = 0;
    for part in apart {
        joined[at..at + part.len()].copy_from_slice(&part);
        at += part.len();
    }
    Ok(joined)
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
                false => match parts.split(offset, len).whole {
                    whole if whole.is_empty() => IoFuture::ready(Ok(())),
                    whole => Parts::run(parts.discard(whole)),
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

    /// As large as a request may be, and neither its start nor its end at the start of a block.
    #[test]
    fn largest_requests_may_be_unaligned() {
        block_on(async {
            let memory = Arc::new(MemoryDevice::new(40 << 20, 4096).unwrap());
            let device = SectorDevice::new(memory);
            for len in [1 << 20, (1 << 20) + 1024, 32 << 20] {
                let mut data = buf::alloc(len).await;
                Rng::new(len as u64).fill(&mut data);
                let data = data.freeze();
                device.write(512, data.clone(), false).await.unwrap();
                let read = device.read(512, buf::alloc(len).await).await.unwrap();
                assert!(read[..] == data[..], "{len}");
                device.write_zeroes(512, len as u64, ZeroFlags::default()).await.unwrap();
                let read = device.read(0, buf::alloc(4096).await).await.unwrap();
                assert!(read.iter().all(|byte| *byte == 0), "{len}");
            }
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
