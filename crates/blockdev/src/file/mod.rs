//! File device: a regular file or a block device.
//!
//! Invariants, in addition to the promises of every device:
//! - payloads are transferred directly between the memory of the caller and the disk (O_DIRECT),
//!   and copied only if the memory is not aligned as the disk requires;
//! - a failed sync poisons the device. The kernel may have dropped the data that it failed to
//!   write, and a second sync would claim success. Later changes and flushes fail with
//!   [`IoError::Poisoned`] until the file is opened again; reads still work. A failed durable write
//!   does the same, unless it certainly failed before it reached the disk;
//! - concurrent flushes share one sync;
//! - a file or disk that became shorter while open is poisoned, as after a failed sync. A read of
//!   the lost range fails, and no write extends a truncated file: the range would become a hole,
//!   which reads as zeroes. A short read, a flush and, at most [`SIZE_CHECK_MS`] later, a change
//!   find it.
//!
//! The file may grow while it is open: [`BlockDevice::refresh`] finds the new size. Space that was
//! only [exposed](BlockDevice::expose) may be taken back: its loss poisons nothing.
//!
//! Overlapping calls with O_DIRECT are as atomic as on the disk below, which means at least a
//! sector.

mod extents;
mod failures;
mod open;
mod sync;
mod zero;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use flagstone_runtime::fs::{File, PunchMode};
use flagstone_runtime::{Buf, BufMut, buf, time};

use self::failures::{FailedCall, FailureLog};
pub use self::open::FileOptions;
use self::sync::SyncGroup;
use crate::limits::{BOUNCE_BYTES, BOUNCE_WAIT_MS, EXTENTS_MAX, SIZE_CHECK_MS};
use crate::{BlockDevice, Extent, Geometry, IoError, IoFuture, ZeroFlags};

/// A file or disk as a device.
#[derive(Debug)]
pub struct FileDevice(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    file: Arc<File>,
    failures: Arc<FailureLog>,
    /// Geometry at open, except for the size: the larger of the two that follow.
    opened: Geometry,
    /// Size at open or at the last refresh. A shorter file is poisoned.
    size_bytes: AtomicU64,
    /// Size up to which [`BlockDevice::expose`] lets calls go; 0 for none. A file that is shorter
    /// than this, but not than `size_bytes`, is not poisoned.
    exposed_bytes: AtomicU64,
    /// When the size was last compared with the file's, in ns of the runtime's clock.
    size_checked_ns: AtomicU64,
    sync: Arc<SyncGroup>,
    /// A deallocation has failed as unsupported.
    no_deallocate: AtomicBool,
    /// Zeroing a range has failed as unsupported.
    no_zero: AtomicBool,
}

impl FileDevice {
    /// Opens the file or block device at `path`. Blocks until the system returns.
    ///
    /// # Errors
    /// Errors of the system, and `InvalidInput` for a block size that the disk does not support or
    /// a file smaller than a block; the text suggests a remedy.
    pub fn open(path: impl AsRef<Path>, options: &FileOptions) -> io::Result<Arc<FileDevice>> {
        let (file, geometry) = open::open(path.as_ref(), options)?;
        Ok(Arc::new(FileDevice(Arc::new(Inner {
            file: Arc::new(file),
            failures: Arc::new(FailureLog::new(path.as_ref())),
            opened: geometry,
            size_bytes: AtomicU64::new(geometry.size_bytes),
            exposed_bytes: AtomicU64::new(0),
            size_checked_ns: AtomicU64::new(0),
            sync: Arc::new(SyncGroup::default()),
            no_deallocate: AtomicBool::new(false),
            no_zero: AtomicBool::new(false),
        }))))
    }

    /// Makes a call if the `check` before it succeeded.
    fn later<T: 'static>(
        &self,
        check: Result<(), IoError>,
        call: impl AsyncFnOnce(&Inner) -> Result<T, IoError> + 'static,
    ) -> IoFuture<T> {
        IoFuture::checked(check, || {
            let inner = self.0.clone();
            IoFuture::later(async move { call(&inner).await })
        })
    }
}

impl Inner {
    fn geometry(&self) -> Geometry {
        let exposed_bytes = self.exposed_bytes.load(Ordering::Acquire);
        let size_bytes = self.size_bytes.load(Ordering::Acquire).max(exposed_bytes);
        Geometry { size_bytes, ..self.opened }
    }

    /// The present size of the file, in whole blocks.
    fn whole_blocks_now(&self) -> io::Result<u64> {
        let block = u64::from(self.opened.block_bytes);
        Ok(self.file.size_now()? / block * block)
    }

    fn check_change(&self, offset: u64, len: u64) -> Result<(), IoError> {
        self.geometry().check_change(offset, len)?;
        let now = time::now().as_nanos();
        let checked = self.size_checked_ns.load(Ordering::Relaxed);
        if now.saturating_sub(checked) >= SIZE_CHECK_MS * 1_000_000 {
            self.size_checked_ns.store(now, Ordering::Relaxed);
            self.check_size();
        }
        if self.sync.is_poisoned() { Err(IoError::Poisoned) } else { Ok(()) }
    }

    /// Poisons the device if it is shorter than it was. A size that cannot be queried is no reason.
    fn check_size(&self) {
        let size_bytes = self.size_bytes.load(Ordering::Acquire);
        if self.file.size_now().is_ok_and(|now| now < size_bytes) {
            self.shrunk();
        }
    }

    /// A read found the end of the file within the range of the device, at this offset.
    #[cold]
    fn read_ended(&self, at: u64) -> IoError {
        if at < self.size_bytes.load(Ordering::Acquire) {
            self.shrunk();
        }
        IoError::ReadFault
    }

    #[cold]
    fn shrunk(&self) {
        if !self.sync.is_poisoned() {
            let (size_bytes, now) = (self.size_bytes.load(Ordering::Acquire), self.file.size_now());
            let path = self.failures.path().display();
            tracing::error!(%path, size_bytes, ?now, "a file or disk became shorter while in use");
        }
        self.sync.poison();
    }

    fn takes_memory_at(&self, bytes: &[u8]) -> bool {
        bytes.as_ptr().addr().is_multiple_of(self.opened.memory_align_bytes as usize)
    }

    async fn read(&self, offset: u64, mut buf: BufMut) -> Result<BufMut, IoError> {
        if self.takes_memory_at(&buf) {
            return self.read_aligned(offset, buf).await;
        }
        let mut at = offset;
        for part in buf.chunks_mut(BOUNCE_BYTES) {
            let copy = self.read_aligned(at, bounce_buffer(part.len()).await?).await?;
            part.copy_from_slice(&copy);
            at += part.len() as u64;
        }
        Ok(buf)
    }

    async fn read_aligned(&self, offset: u64, buf: BufMut) -> Result<BufMut, IoError> {
        let len = buf.len();
        let (result, buf) = self.file.read_at(buf, offset).await;
        match result {
            Ok(count) if count == len => Ok(buf),
            Ok(count) => self.read_on(offset, buf, count).await,
            Err(error) => Err(self.failures.failed(read_of(offset, len), &error)),
        }
    }

    /// Continues after a short read. Fails at the end of the file, which lies within the device.
    async fn read_on(
        &self,
        offset: u64,
        mut buf: BufMut,
        mut filled: usize,
    ) -> Result<BufMut, IoError> {
        let block = self.opened.block_bytes as usize;
        // A count within a block means the end of the file, from which O_DIRECT could not continue.
        while filled < buf.len() {
            if !filled.is_multiple_of(block) {
                return Err(self.read_ended(offset + filled as u64));
            }
            let rest = buf.split_off(filled);
            let (result, rest) = self.file.read_at(rest, offset + filled as u64).await;
            buf.unsplit(rest).expect("the parts of one view are adjacent");
            match result {
                Ok(0) => return Err(self.read_ended(offset + filled as u64)),
                Ok(count) => filled += count,
                Err(error) => {
                    let rest = read_of(offset + filled as u64, buf.len() - filled);
                    return Err(self.failures.failed(rest, &error));
                }
            }
        }
        Ok(buf)
    }

    async fn write(&self, offset: u64, data: Buf, fua: bool) -> Result<(), IoError> {
        if self.takes_memory_at(&data) {
            return self.write_aligned(offset, data, fua).await;
        }
        let mut at = offset;
        for part in data.chunks(BOUNCE_BYTES) {
            let mut copy = bounce_buffer(part.len()).await?;
            copy.copy_from_slice(part);
            self.write_aligned(at, copy.freeze(), fua).await?;
            at += part.len() as u64;
        }
        Ok(())
    }

    async fn write_aligned(&self, offset: u64, data: Buf, fua: bool) -> Result<(), IoError> {
        // Through the page cache, the failure of a durable write may belong to an earlier write,
        // which the kernel reports only once. Only the shared sync reports it to all waiters.
        let durable = fua && self.file.info().direct;
        let call = FailedCall::Write { offset, len: data.len() as u64 };
        if let Err(error) = self.file.write_at(data, offset, durable).await {
            let error = self.failures.failed(call, &error);
            if durable && error == IoError::WriteFault {
                self.sync.poison();
            }
            return Err(error);
        }
        if fua && !durable { self.flush().await } else { Ok(()) }
    }

    async fn flush(&self) -> Result<(), IoError> {
        self.check_size();
        let (file, failures) = (self.file.clone(), self.failures.clone());
        let sync = async move || {
            file.sync().await.map_err(|error| failures.failed(FailedCall::Sync, &error))
        };
        SyncGroup::sync(&self.sync, sync).await
    }

    /// Frees space if the file or disk can. Otherwise a file is zeroed, because discarded blocks of
    /// files must read as zeroes, and a disk is left as it is.
    async fn discard(&self, offset: u64, len: u64) -> Result<(), IoError> {
        if self.opened.discard_zeroes {
            let flags = ZeroFlags { may_deallocate: true, ..ZeroFlags::default() };
            return self.write_zeroes(offset, len, flags).await;
        }
        self.punch(offset, len, PunchMode::Deallocate).await.map(drop)
    }
}

fn read_of(offset: u64, len: usize) -> FailedCall {
    FailedCall::Read { offset, len: len as u64 }
}

/// Memory with the alignment for O_DIRECT, waiting for it for a bounded time.
async fn bounce_buffer(len: usize) -> Result<BufMut, IoError> {
    if let Some(buf) = buf::try_alloc(len) {
        return Ok(buf);
    }
    let waiting = time::timeout(Duration::from_millis(BOUNCE_WAIT_MS), buf::alloc(len));
    waiting.await.map_err(|_| IoError::NoMemory)
}

impl BlockDevice for FileDevice {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn refresh(&self) {
        if let Ok(now) = self.0.whole_blocks_now() {
            self.0.size_bytes.fetch_max(now, Ordering::AcqRel);
        }
    }

    fn expose(&self, bytes: u64) {
        let now = if bytes == 0 { 0 } else { self.0.whole_blocks_now().unwrap_or(0) };
        self.0.exposed_bytes.store(now.min(bytes), Ordering::Release);
    }

    fn present_bytes(&self) -> Option<u64> {
        self.0.file.size_now().ok()
    }

    fn must_reopen(&self) -> bool {
        self.0.sync.is_poisoned()
    }

    fn allocated(&self, offset: u64, len: u64) -> IoFuture<Vec<Extent>> {
        self.later(self.0.geometry().check(offset, len), async move |inner| {
            let block = u64::from(inner.opened.block_bytes);
            match inner.file.data_ranges(offset, len, EXTENTS_MAX / 2 - 1).await {
                Ok(data) => Ok(extents::of_data(offset, len, block, &data)),
                // The file system does not know.
                Err(_) => Ok(vec![Extent { len, is_hole: false }]),
            }
        })
    }

    fn read(&self, offset: u64, buf: BufMut) -> IoFuture<BufMut> {
        self.later(self.0.geometry().check_transfer(offset, buf.len()), async move |inner| {
            inner.read(offset, buf).await
        })
    }

    fn write(&self, offset: u64, data: Buf, fua: bool) -> IoFuture<()> {
        let bounded = self.0.geometry().check_transfer(offset, data.len());
        let check = bounded.and(self.0.check_change(offset, data.len() as u64));
        self.later(check, async move |inner| inner.write(offset, data, fua).await)
    }

    fn flush(&self) -> IoFuture<()> {
        if self.0.opened.read_only {
            return IoFuture::ready(Ok(()));
        }
        self.later(Ok(()), async |inner| inner.flush().await)
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        let unable = self.0.no_deallocate.load(Ordering::Relaxed) && !self.0.opened.discard_zeroes;
        match self.0.check_change(offset, len) {
            Ok(()) if unable => IoFuture::ready(Ok(())),
            check => self.later(check, async move |inner| inner.discard(offset, len).await),
        }
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        self.later(self.0.check_change(offset, len), async move |inner| {
            inner.write_zeroes(offset, len, flags).await
        })
    }
}
