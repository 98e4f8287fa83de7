//! Files and block devices.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::SeekFrom;

use crate::blocking::spawn_blocking;
use crate::buf::{Buf, BufMut};
use crate::executor::Executor;
use crate::handle::Handle;
use crate::limits::FILE_ATTEMPTS;
pub use crate::op::PunchMode;
use crate::op::{Op, OpFuture};

/// How to open a file or block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenOptions {
    /// Open for reading only.
    pub read_only: bool,
    /// Bypass the page cache if the file system supports it (O_DIRECT). [`FileInfo::direct`] says
    /// whether it does.
    pub direct: bool,
    /// Create a sparse regular file of this many bytes if none exists.
    pub create_bytes: Option<u64>,
    /// Take an exclusive advisory lock, so that two programs do not serve one disk. On block
    /// devices this is O_EXCL, which also refuses a mounted disk. The lock is released with the
    /// last user of the file. A disk may stay busy for a moment longer, until the kernel has
    /// released it too.
    pub exclusive: bool,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions { read_only: false, direct: true, create_bytes: None, exclusive: true }
    }
}

/// Properties of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileInfo {
    /// Size in bytes.
    pub size_bytes: u64,
    /// True for a block device, false for a regular file.
    pub block_device: bool,
    /// The page cache is bypassed.
    pub direct: bool,
    /// Smallest unit of reads and writes, in bytes: the logical block size of a device. For a
    /// regular file it is the alignment that O_DIRECT requires of offsets and lengths, at least
    /// 512.
    pub logical_block_bytes: u32,
    /// Unit that the medium writes without read-modify-write, in bytes.
    pub physical_block_bytes: u32,
    /// Required alignment of memory addresses, in bytes.
    pub memory_align_bytes: u32,
    /// Ranges can be deallocated.
    pub can_deallocate: bool,
    /// Ranges can be zeroed without transferring zeroes.
    pub can_zero: bool,
}

/// An open file or block device; cores may share it.
#[derive(Debug)]
pub struct File {
    handle: Arc<Handle>,
    info: FileInfo,
}

impl File {
    /// Opens. Blocks the thread until the system returns: use it at start-up, not on the data path.
    ///
    /// # Errors
    /// Errors of the system; `WouldBlock` if another program has locked the file, `ResourceBusy` if
    /// it has opened the block device exclusively or mounted it.
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> io::Result<File> {
        let executor = Executor::current();
        let node = executor.node();
        let mut driver = executor.driver();
        let (raw, info) = driver.open(path.as_ref(), options, node)?;
        let kind = driver.kind();
        let locked = options.exclusive && !info.block_device;
        let adopt = if locked { Handle::adopt_locked } else { Handle::adopt };
        Ok(File { handle: Arc::new(adopt(raw, kind)), info })
    }

    /// The properties found when the file was opened.
    pub fn info(&self) -> FileInfo {
        self.info
    }

    /// Queries the current size, in bytes: the file may have grown since it was opened.
    pub fn size_now(&self) -> io::Result<u64> {
        Executor::current().driver().size(self.handle.raw())
    }

    /// Reads at `offset` into `buf`. The count is short only at the end of the file.
    pub async fn read_at(&self, buf: BufMut, offset: u64) -> (io::Result<usize>, BufMut) {
        let mut attempts = Attempts::default();
        let mut buf = buf;
        loop {
            let op = Op::ReadAt { file: self.handle.clone(), buf, offset };
            let (result, Op::ReadAt { buf: back, .. }) = OpFuture::new(op).await else {
                unreachable!("an operation keeps its kind")
            };
            buf = back;
            if !attempts.is_interrupted(&result) {
                return (result.map(|n| n as usize), buf);
            }
        }
    }

    /// Writes all of `buf` at `offset`. With `durable` the data is on stable storage on return.
    ///
    /// # Errors
    /// Errors of the system; `WriteZero` if the medium accepts no more bytes; `Interrupted` only
    /// with `durable`, as of [`File::sync`].
    pub async fn write_at(&self, buf: Buf, offset: u64, durable: bool) -> io::Result<()> {
        let mut rest = buf;
        let mut offset = offset;
        let mut attempts = Attempts::default();
        while !rest.is_empty() {
            let op = Op::WriteAt { file: self.handle.clone(), buf: rest.clone(), offset, durable };
            let result = OpFuture::new(op).await.0;
            if !durable && attempts.is_interrupted(&result) {
                continue;
            }
            match result? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                count => {
                    rest.advance(count as usize);
                    offset += u64::from(count);
                }
            }
        }
        Ok(())
    }

    /// Makes every completed write durable.
    ///
    /// # Errors
    /// Errors of the system. After a failure, earlier writes may be lost: treat the file as failed.
    /// This includes `Interrupted`: the system may have taken note of a lost write as reported, and
    /// would report success the next time.
    pub async fn sync(&self) -> io::Result<()> {
        OpFuture::new(Op::Sync { file: self.handle.clone() }).await.0.map(drop)
    }

    /// Ranges of data that intersect `[offset, offset + len)`, at most `max` of them. Everything
    /// else is a hole, which reads as zeroes. Asks the file system on a thread of its own.
    ///
    /// # Errors
    /// Errors of the system; `Unsupported` in simulation.
    pub async fn data_ranges(&self, offset: u64, len: u64, max: usize) -> io::Result<DataRanges> {
        let file = self.handle.duplicate()?;
        spawn_blocking("extents", move || find_data(&file, offset, offset + len, max)).await?
    }

    /// Deallocates or zeroes a range.
    ///
    /// # Errors
    /// Errors of the system; `Unsupported` if the file system or device cannot do it.
    pub async fn punch(&self, offset: u64, len: u64, mode: PunchMode) -> io::Result<()> {
        let mut attempts = Attempts::default();
        loop {
            let op = Op::Punch { file: self.handle.clone(), offset, len, mode };
            let result = OpFuture::new(op).await.0;
            if !attempts.is_interrupted(&result) {
                return result.map(drop);
            }
        }
    }
}

/// Attempts of an operation that a signal may interrupt before it has an effect.
#[derive(Default)]
struct Attempts(u32);

impl Attempts {
    /// True if the operation is to be repeated.
    fn is_interrupted(&mut self, result: &io::Result<u32>) -> bool {
        use io::ErrorKind::{Interrupted, WouldBlock};
        let kind = result.as_ref().err().map(io::Error::kind);
        self.0 += 1;
        matches!(kind, Some(Interrupted | WouldBlock)) && self.0 < FILE_ATTEMPTS
    }
}

/// Result of [`File::data_ranges`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataRanges {
    /// Ranges of bytes, in order. They may begin before and end after the range asked for.
    pub ranges: Vec<Range<u64>>,
    /// Nothing is known beyond the last range.
    pub is_cut: bool,
}

/// Finds data with `SEEK_DATA` and `SEEK_HOLE`. Reads and writes have offsets of their own, so the
/// offset of the file is not theirs.
fn find_data(file: &OwnedFd, offset: u64, end: u64, max: usize) -> io::Result<DataRanges> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let mut at = offset;
    while at < end {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            // There is no more data.
            Err(rustix::io::Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        if start >= end {
            break;
        }
        if ranges.len() == max {
            return Ok(DataRanges { ranges, is_cut: true });
        }
        // The end of the file counts as a hole, so there is always one.
        at = rustix::fs::seek(file, SeekFrom::Hole(start))?;
        ranges.push(start..at);
    }
    Ok(DataRanges { ranges, is_cut: false })
}
