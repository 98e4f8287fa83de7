//! Files and block devices.

use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::buf::{Buf, BufMut};
use crate::executor::Executor;
use crate::handle::Handle;
pub use crate::op::PunchMode;
use crate::op::{Op, OpFuture};

/// How to open a file or block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenOptions {
    /// Open for reading only.
    pub read_only: bool,
    /// Bypass the page cache where the file system can (O_DIRECT); see [`FileInfo::direct`] for
    /// what was had.
    pub direct: bool,
    /// Create a regular file of this many bytes (sparse) when there is none.
    pub create_bytes: Option<u64>,
    /// Take an exclusive advisory lock (block devices: O_EXCL, which refuses a mounted disk), so
    /// that two programs do not serve one disk. The lock goes with the last user of the file; a
    /// disk may be busy for a moment longer, until the kernel has let go of it too.
    pub exclusive: bool,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions { read_only: false, direct: true, create_bytes: None, exclusive: true }
    }
}

/// What was found out about an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileInfo {
    /// Size in bytes.
    pub size_bytes: u64,
    /// A block device, not a regular file.
    pub block_device: bool,
    /// The page cache is bypassed.
    pub direct: bool,
    /// The smallest unit of reads and writes, in bytes: a device's logical block size; for regular
    /// files what O_DIRECT asks of offsets and lengths, 512 at least.
    pub logical_block_bytes: u32,
    /// The unit that the medium writes without read-modify-write, in bytes.
    pub physical_block_bytes: u32,
    /// What memory addresses must be a multiple of, in bytes.
    pub memory_align_bytes: u32,
    /// Ranges can be deallocated.
    pub can_deallocate: bool,
    /// Ranges can be zeroed without sending zeroes.
    pub can_zero: bool,
}

/// An open file or block device; may be shared by cores.
#[derive(Debug)]
pub struct File {
    handle: Arc<Handle>,
    info: FileInfo,
}

impl File {
    /// Opens. Blocks for as long as the system takes: for start-up, not for the data path.
    ///
    /// # Errors
    /// The system's; `WouldBlock` or `ResourceBusy` when another program has it exclusively.
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> io::Result<File> {
        let executor = Executor::current();
        let node = executor.node();
        let mut driver = executor.driver();
        let (raw, info) = driver.open(path.as_ref(), options, node)?;
        let kind = crate::net::kind_of(driver.name());
        let locked = options.exclusive && !info.block_device;
        let adopt = if locked { Handle::adopt_locked } else { Handle::adopt };
        Ok(File { handle: Arc::new(adopt(raw, kind)), info })
    }

    /// What was found out at open.
    pub fn info(&self) -> FileInfo {
        self.info
    }

    /// Asks how large it is now, in bytes: it may have been made larger since it was opened.
    ///
    /// # Errors
    /// The system's.
    pub fn size_now(&self) -> io::Result<u64> {
        Executor::current().driver().size(self.handle.raw())
    }

    /// Reads at `offset` into `buf`; the count is short at the end of the file only.
    pub async fn read_at(&self, buf: BufMut, offset: u64) -> (io::Result<usize>, BufMut) {
        let op = Op::ReadAt { file: self.handle.clone(), buf, offset };
        match OpFuture::new(op).await {
            (result, Op::ReadAt { buf, .. }) => (result.map(|n| n as usize), buf),
            _ => unreachable!("an operation keeps its kind"),
        }
    }

    /// Writes all of `buf` at `offset`; with `durable` it is on stable storage when this returns.
    ///
    /// # Errors
    /// The system's; `WriteZero` when the medium takes no more.
    pub async fn write_at(&self, buf: Buf, offset: u64, durable: bool) -> io::Result<()> {
        let mut rest = buf;
        let mut offset = offset;
        while !rest.is_empty() {
            let op = Op::WriteAt { file: self.handle.clone(), buf: rest.clone(), offset, durable };
            match OpFuture::new(op).await.0? {
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
    /// The system's. After a failure earlier writes may be lost: treat the file as failed.
    pub async fn sync(&self) -> io::Result<()> {
        OpFuture::new(Op::Sync { file: self.handle.clone() }).await.0.map(drop)
    }

    /// Deallocates or zeroes a range.
    ///
    /// # Errors
    /// The system's; `Unsupported` where the file system or device cannot.
    pub async fn punch(&self, offset: u64, len: u64, mode: PunchMode) -> io::Result<()> {
        let op = Op::Punch { file: self.handle.clone(), offset, len, mode };
        OpFuture::new(op).await.0.map(drop)
    }
}
