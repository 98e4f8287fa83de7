//! Memory device: sparse, shared by cores, lost with the process.
//!
//! Invariants: every call is complete when it returns. Memory is allocated in chunks at the first
//! write and freed by a discard or zeroes of the whole chunk, so a large empty device costs almost
//! nothing. Unwritten blocks read as zeroes. A block is never seen half written.
//!
//! Each chunk has its own lock, held for the copy: some microseconds at most. Cores that work on
//! different chunks do not contend.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use flagstone_runtime::{Buf, BufMut};
use parking_lot::RwLock;

use crate::config::check_size;
use crate::limits::{EXTENTS_MAX, MEMORY_CHUNK_BYTES, MEMORY_CHUNKS_PER_PAGE, MEMORY_MAX_BYTES};
use crate::pieces::pieces;
use crate::{BlockDevice, Extent, Geometry, IoError, IoFuture, LayerConfigError, ZeroFlags};

const PAGE_BYTES: u64 = MEMORY_CHUNK_BYTES * MEMORY_CHUNKS_PER_PAGE;

/// Memory of a chunk, once written.
type Chunk = RwLock<Option<Box<[u8]>>>;

/// A device in memory.
pub struct MemoryDevice {
    geometry: Geometry,
    directory: Box<[OnceLock<Box<[Chunk]>>]>,
    /// Bytes that chunks may still allocate.
    free_bytes: AtomicU64,
    limit_bytes: u64,
}

impl MemoryDevice {
    /// A device of `size_bytes` zeroes in blocks of `block_bytes`.
    ///
    /// # Errors
    /// [`LayerConfigError`] unless the block size is a power of two from 512 to 65,536 and the size
    /// a positive multiple of it of at most 64 TiB.
    pub fn new(size_bytes: u64, block_bytes: u32) -> Result<MemoryDevice, LayerConfigError> {
        MemoryDevice::with_limit(size_bytes, block_bytes, u64::MAX)
    }

    /// Same as [`MemoryDevice::new`], with a limit of memory: writes that would allocate more than
    /// `limit_bytes` fail with [`IoError::NoSpace`].
    pub fn with_limit(
        size_bytes: u64,
        block_bytes: u32,
        limit_bytes: u64,
    ) -> Result<MemoryDevice, LayerConfigError> {
        check_size(size_bytes, block_bytes)?;
        if size_bytes > MEMORY_MAX_BYTES {
            return Err(LayerConfigError::MemorySize(size_bytes));
        }
        let pages = size_bytes.div_ceil(PAGE_BYTES);
        Ok(MemoryDevice {
            geometry: Geometry::new(size_bytes, block_bytes),
            directory: (0..pages).map(|_| OnceLock::new()).collect(),
            free_bytes: AtomicU64::new(limit_bytes),
            limit_bytes,
        })
    }

    /// Memory allocated by the chunks, in bytes.
    pub fn held_bytes(&self) -> u64 {
        self.limit_bytes - self.free_bytes.load(Ordering::Relaxed)
    }

    /// The chunk at `offset`, if its directory page was allocated.
    fn chunk(&self, offset: u64) -> Option<&Chunk> {
        let page = self.directory[(offset / PAGE_BYTES) as usize].get()?;
        Some(&page[(offset % PAGE_BYTES / MEMORY_CHUNK_BYTES) as usize])
    }

    fn chunk_for_write(&self, offset: u64) -> &Chunk {
        let number = offset / PAGE_BYTES;
        let page = self.directory[number as usize].get_or_init(|| {
            let bytes = PAGE_BYTES.min(self.geometry.size_bytes - number * PAGE_BYTES);
            let chunks = bytes.div_ceil(MEMORY_CHUNK_BYTES);
            (0..chunks).map(|_| RwLock::new(None)).collect()
        });
        &page[(offset % PAGE_BYTES / MEMORY_CHUNK_BYTES) as usize]
    }

    /// A zeroed chunk, if the limit permits.
    fn allocate(&self) -> Result<Box<[u8]>, IoError> {
        let reserve = |free: u64| free.checked_sub(MEMORY_CHUNK_BYTES);
        self.free_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, reserve)
            .map_err(|_| IoError::NoSpace)?;
        let mut bytes = Vec::new();
        if bytes.try_reserve_exact(MEMORY_CHUNK_BYTES as usize).is_err() {
            self.free_bytes.fetch_add(MEMORY_CHUNK_BYTES, Ordering::Relaxed);
            return Err(IoError::NoSpace);
        }
        bytes.resize(MEMORY_CHUNK_BYTES as usize, 0);
        Ok(bytes.into_boxed_slice())
    }

    /// Extents by chunk: a chunk without memory is a hole.
    fn extents(&self, offset: u64, len: u64) -> Vec<Extent> {
        let mut extents: Vec<Extent> = Vec::new();
        for piece in pieces(offset, len, MEMORY_CHUNK_BYTES) {
            let is_hole = self.chunk(piece.offset).is_none_or(|chunk| chunk.read().is_none());
            let count = extents.len();
            match extents.last_mut() {
                Some(last) if last.is_hole == is_hole => last.len += piece.len,
                _ if count == EXTENTS_MAX => break,
                _ => extents.push(Extent { len: piece.len, is_hole }),
            }
        }
        extents
    }

    fn copy_out(&self, offset: u64, buf: &mut [u8]) {
        let mut rest = buf;
        for piece in pieces(offset, rest.len() as u64, MEMORY_CHUNK_BYTES) {
            let (part, tail) = rest.split_at_mut(piece.len as usize);
            rest = tail;
            let start = (piece.offset % MEMORY_CHUNK_BYTES) as usize;
            match self.chunk(piece.offset).map(Chunk::read).as_deref() {
                Some(Some(bytes)) => part.copy_from_slice(&bytes[start..start + part.len()]),
                Some(None) | None => part.fill(0),
            }
        }
    }

    fn copy_in(&self, offset: u64, data: &[u8]) -> Result<(), IoError> {
        let mut rest = data;
        for piece in pieces(offset, rest.len() as u64, MEMORY_CHUNK_BYTES) {
            let (part, tail) = rest.split_at(piece.len as usize);
            rest = tail;
            let start = (piece.offset % MEMORY_CHUNK_BYTES) as usize;
            let mut chunk = self.chunk_for_write(piece.offset).write();
            let bytes = match &mut *chunk {
                Some(bytes) => bytes,
                hole => hole.insert(self.allocate()?),
            };
            bytes[start..start + part.len()].copy_from_slice(part);
        }
        Ok(())
    }

    /// Zeroes a range; chunks that it covers completely are freed.
    fn clear(&self, offset: u64, len: u64) {
        for page in pieces(offset, len, PAGE_BYTES) {
            if self.directory[(page.offset / PAGE_BYTES) as usize].get().is_none() {
                continue;
            }
            for piece in pieces(page.offset, page.len, MEMORY_CHUNK_BYTES) {
                self.clear_piece(piece.offset, piece.len);
            }
        }
    }

    fn clear_piece(&self, offset: u64, len: u64) {
        let Some(chunk) = self.chunk(offset) else { return };
        if chunk.read().is_none() {
            return;
        }
        // The last chunk of the device may be partly beyond its end.
        let whole = len == MEMORY_CHUNK_BYTES.min(self.geometry.size_bytes - offset)
            && offset.is_multiple_of(MEMORY_CHUNK_BYTES);
        let mut slot = chunk.write();
        if whole {
            if let Some(bytes) = slot.take() {
                self.free_bytes.fetch_add(MEMORY_CHUNK_BYTES, Ordering::Relaxed);
                drop(slot);
                drop(bytes);
            }
        } else if let Some(bytes) = &mut *slot {
            let start = (offset % MEMORY_CHUNK_BYTES) as usize;
            bytes[start..start + len as usize].fill(0);
        }
    }
}

impl std::fmt::Debug for MemoryDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MemoryDevice({} bytes)", self.geometry.size_bytes)
    }
}

impl BlockDevice for MemoryDevice {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn allocated(&self, offset: u64, len: u64) -> IoFuture<Vec<Extent>> {
        let known = self.geometry.check(offset, len);
        IoFuture::ready(known.map(|()| self.extents(offset, len)))
    }

    fn read(&self, offset: u64, mut buf: BufMut) -> IoFuture<BufMut> {
        let checked = self.geometry.check_transfer(offset, buf.len());
        IoFuture::ready(checked.map(|()| {
            self.copy_out(offset, &mut buf);
            buf
        }))
    }

    fn write(&self, offset: u64, data: Buf, _fua: bool) -> IoFuture<()> {
        let checked = self.geometry.check_transfer(offset, data.len());
        IoFuture::ready(checked.and_then(|()| self.copy_in(offset, &data)))
    }

    fn flush(&self) -> IoFuture<()> {
        IoFuture::ready(Ok(()))
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        IoFuture::ready(self.geometry.check(offset, len).map(|()| self.clear(offset, len)))
    }

    fn write_zeroes(&self, offset: u64, len: u64, _flags: ZeroFlags) -> IoFuture<()> {
        self.discard(offset, len)
    }
}

#[cfg(test)]
mod tests {
    use flagstone_runtime::buf;

    use super::*;

    const KIB: u64 = 1 << 10;
    const TIB: u64 = 1 << 40;

    fn write(device: &MemoryDevice, offset: u64, len: usize, value: u8) -> Result<(), IoError> {
        let mut data = buf::try_alloc(len).unwrap();
        data.fill(value);
        device.write(offset, data.freeze(), false).try_now().ok().unwrap()
    }

    fn read(device: &MemoryDevice, offset: u64, len: usize) -> Vec<u8> {
        let mut data = buf::try_alloc(len).unwrap();
        data.fill(0xEE);
        device.read(offset, data).try_now().ok().unwrap().unwrap().to_vec()
    }

    #[test]
    fn memory_is_allocated_on_write_and_freed_on_discard() {
        let device = MemoryDevice::new(TIB, 512).unwrap();
        assert_eq!(read(&device, TIB - 512, 512), [0; 512]);
        assert_eq!(device.held_bytes(), 0);
        write(&device, TIB / 2 + 512, 512, 7).unwrap();
        write(&device, 192 * KIB - 512, 1024, 8).unwrap();
        assert_eq!(device.held_bytes(), 3 * MEMORY_CHUNK_BYTES);
        device.discard(0, 192 * KIB).try_now().ok().unwrap().unwrap();
        assert_eq!(device.held_bytes(), 2 * MEMORY_CHUNK_BYTES);
        assert_eq!(read(&device, 192 * KIB - 512, 1024)[510..514], [0, 0, 8, 8]);
        device.discard(0, TIB).try_now().ok().unwrap().unwrap();
        assert_eq!(device.held_bytes(), 0);
        assert_eq!(read(&device, TIB / 2, 1024), [0; 1024]);
    }

    #[test]
    fn last_chunk_may_be_short() {
        let device = MemoryDevice::new(65 * KIB, 512).unwrap();
        write(&device, 64 * KIB, 1024, 5).unwrap();
        assert_eq!(read(&device, 64 * KIB, 1024), [5; 1024]);
        device.discard(64 * KIB, 512).try_now().ok().unwrap().unwrap();
        assert_eq!(read(&device, 64 * KIB, 1024)[511..513], [0, 5]);
        device.discard(64 * KIB, 1024).try_now().ok().unwrap().unwrap();
        assert_eq!(device.held_bytes(), 0);
    }

    #[test]
    fn memory_limit_reports_no_space_until_freed() {
        let device = MemoryDevice::with_limit(TIB, 4096, 2 * MEMORY_CHUNK_BYTES).unwrap();
        write(&device, 0, 4096, 1).unwrap();
        write(&device, TIB / 2, 4096, 2).unwrap();
        assert_eq!(write(&device, TIB / 4, 4096, 3), Err(IoError::NoSpace));
        assert_eq!(read(&device, TIB / 4, 4096), [0; 4096]);
        write(&device, 4096, 4096, 4).unwrap();
        device.discard(0, 64 * KIB).try_now().ok().unwrap().unwrap();
        write(&device, TIB / 4, 4096, 3).unwrap();
        assert_eq!(read(&device, TIB / 4, 4096), [3; 4096]);
    }

    #[test]
    fn sizes_beyond_the_directory_are_refused() {
        let error = MemoryDevice::new(MEMORY_MAX_BYTES + 512, 512).unwrap_err();
        assert_eq!(error, LayerConfigError::MemorySize(MEMORY_MAX_BYTES + 512));
    }
}
