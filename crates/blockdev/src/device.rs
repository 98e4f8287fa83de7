//! [`BlockDevice`]: the trait of all devices and layers, and the promises of a completed call.
//!
//! - write: every later read, on any core, returns it;
//! - flush, or write with `fua`: the data survives SIGKILL and power loss of this node;
//! - discard: later reads of the range return zeroes or the former content, the same each time;
//!   zeroes with [`Geometry::discard_zeroes`];
//! - `write_zeroes`: as a write of zeroes;
//! - any error: only the range of the failed call is in doubt, never data that was promised.
//!
//! Calls that overlap in time may take effect in either order, block by block. A caller that needs
//! an order waits for the first call before it makes the second.

use std::sync::Arc;

use flagstone_runtime::{Buf, BufMut};

#[cfg(doc)]
use crate::limits::EXTENTS_MAX;
use crate::{IoError, IoFuture};

/// Geometry and capabilities of a device. Constant while the device is open, except that
/// [`BlockDevice::refresh`] may find it larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size, in bytes; a multiple of `block_bytes`.
    pub size_bytes: u64,
    /// Unit of offsets and lengths, in bytes: a power of two from 512 to 64 KiB.
    pub block_bytes: u32,
    /// Unit that the medium writes without read-modify-write, in bytes; a multiple of
    /// `block_bytes`.
    pub physical_block_bytes: u32,
    /// Transfers of a multiple of this length are fastest, in bytes (the width of a stripe); 0 if
    /// unknown.
    pub optimal_io_bytes: u32,
    /// Memory alignment that avoids a copy, in bytes. Other alignments work, more slowly.
    pub memory_align_bytes: u32,
    /// A power failure may lose a completed write until a flush.
    pub volatile_cache: bool,
    /// Writes fail with [`IoError::ReadOnly`].
    pub read_only: bool,
    /// `discard` frees space.
    pub can_discard: bool,
    /// Discarded blocks read as zeroes.
    pub discard_zeroes: bool,
    /// `write_zeroes` is faster than writing zeroes.
    pub can_write_zeroes: bool,
}

/// Largest length of one read or write, in bytes. Discards and zeroes may cover the whole device.
pub const MAX_TRANSFER_BYTES: usize = flagstone_runtime::limits::BUF_MAX_BYTES;

impl Geometry {
    /// A device of `size_bytes` in blocks of `block_bytes`, without a volatile cache, that can
    /// discard and write zeroes.
    pub fn new(size_bytes: u64, block_bytes: u32) -> Geometry {
        Geometry {
            size_bytes,
            block_bytes,
            physical_block_bytes: block_bytes,
            optimal_io_bytes: 0,
            memory_align_bytes: 1,
            volatile_cache: false,
            read_only: false,
            can_discard: true,
            discard_zeroes: true,
            can_write_zeroes: true,
        }
    }

    /// Number of blocks.
    pub fn blocks(&self) -> u64 {
        self.size_bytes / u64::from(self.block_bytes)
    }

    /// Checks a range against the device, without overflow.
    ///
    /// # Errors
    /// [`IoError::Misaligned`] for an empty or unaligned range, [`IoError::OutOfRange`] beyond the
    /// end.
    pub fn check(&self, offset: u64, len: u64) -> Result<(), IoError> {
        let mask = u64::from(self.block_bytes) - 1;
        if len == 0 || (offset | len) & mask != 0 {
            return Err(IoError::Misaligned);
        }
        match offset.checked_add(len) {
            Some(end) if end <= self.size_bytes => Ok(()),
            _ => Err(IoError::OutOfRange),
        }
    }

    /// Same as [`Geometry::check`] for one read or write, with its limit of length.
    ///
    /// # Errors
    /// Also [`IoError::Misaligned`] beyond [`MAX_TRANSFER_BYTES`].
    pub fn check_transfer(&self, offset: u64, len: usize) -> Result<(), IoError> {
        if len > MAX_TRANSFER_BYTES {
            return Err(IoError::Misaligned);
        }
        self.check(offset, len as u64)
    }

    /// Same as [`Geometry::check`] for a call that changes data.
    ///
    /// # Errors
    /// Also [`IoError::ReadOnly`].
    pub fn check_change(&self, offset: u64, len: u64) -> Result<(), IoError> {
        if self.read_only {
            return Err(IoError::ReadOnly);
        }
        self.check(offset, len)
    }
}

/// How to write zeroes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZeroFlags {
    /// Durable when completed, like a write with `fua`.
    pub fua: bool,
    /// The range may be deallocated (NVMe DEAC, NBD without NO_HOLE).
    pub may_deallocate: bool,
    /// Fail with [`IoError::Unsupported`] at once rather than write zeroes slowly (NBD FAST_ZERO).
    pub fast_only: bool,
}

/// Part of a device that is a hole or data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes, a multiple of the block size.
    pub len: u64,
    /// The part has no space allocated, and reads as zeroes.
    pub is_hole: bool,
}

/// A device of bytes, read and written in blocks. The module states the promises of its calls.
///
/// Calls may be made from any core, and concurrently; the future of a call stays on its core.
/// Offsets and lengths are in bytes and multiples of [`Geometry::block_bytes`]. Any other value
/// fails with [`IoError::Misaligned`] or [`IoError::OutOfRange`] without effect.
pub trait BlockDevice: Send + Sync + 'static {
    /// Geometry and capabilities.
    fn geometry(&self) -> Geometry;

    /// Queries the current size. If the device was enlarged since it was opened, the geometry
    /// reports the new size from now on; it never shrinks. May block for a moment: not for the data
    /// path.
    fn refresh(&self) {}

    /// Lets calls reach space that the device has gained, while it may still be taken back: the
    /// geometry reports up to `bytes`, as far as the device has them, until the next call of this
    /// method. Space that no [`BlockDevice::refresh`] has found is not needed: a device that loses
    /// it again has not failed. 0 withdraws it. A device that cannot tell both apart ignores this.
    fn expose(&self, bytes: u64) {
        let _ = bytes;
    }

    /// The size of the device at this moment, in bytes, if it can be queried. Smaller than the
    /// geometry after the device was shrunk. May block for a moment: not for the data path.
    fn present_bytes(&self) -> Option<u64> {
        None
    }

    /// True after a failed flush that makes the device unusable until it is closed and opened
    /// again: changes and flushes fail with [`IoError::Poisoned`].
    fn must_reopen(&self) -> bool {
        false
    }

    /// Space in use of a thin device, in bytes; `None` for a device whose whole size is allocated,
    /// or that does not know.
    fn used_bytes(&self) -> Option<u64> {
        None
    }

    /// The content of the range, if it is known without I/O and already in memory: holes, which
    /// read as zeroes. `None` means unknown; then call [`Self::read`]. Front ends try this first,
    /// which saves a buffer and a copy.
    fn try_read_cached(&self, offset: u64, len: usize) -> Option<Buf> {
        let _ = (offset, len);
        None
    }

    /// Extents from `offset`, in order, that cover the range or the start of it: at least one, and
    /// at most [`EXTENTS_MAX`]. A device that does not know answers that all of it is data. Other
    /// calls may change the answer at any time.
    fn allocated(&self, offset: u64, len: u64) -> IoFuture<Vec<Extent>> {
        let known = self.geometry().check(offset, len);
        IoFuture::ready(known.map(|()| vec![Extent { len, is_hole: false }]))
    }

    /// Fills all of `buf` from `offset` and returns it.
    fn read(&self, offset: u64, buf: BufMut) -> IoFuture<BufMut>;

    /// Writes `data` at `offset`; durable when completed with `fua`.
    fn write(&self, offset: u64, data: Buf, fua: bool) -> IoFuture<()>;

    /// Writes `data` if the range has the content `expected`, which is as long. Atomic against all
    /// other changes through this device. False if the content differs.
    ///
    /// [`IoError::Unsupported`] by default: the device that hosts use of a volume can.
    fn compare_and_write(
        &self,
        offset: u64,
        expected: Buf,
        data: Buf,
        fua: bool,
    ) -> IoFuture<bool> {
        let _ = (offset, expected, data, fua);
        IoFuture::ready(Err(IoError::Unsupported))
    }

    /// Makes all writes that completed before this call durable.
    fn flush(&self) -> IoFuture<()>;

    /// Gives the range's space back. A hint: a device without the ability ignores it.
    fn discard(&self, offset: u64, len: u64) -> IoFuture<()>;

    /// Writes zeroes to the range.
    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()>;
}

/// A device that cores and layers may share.
pub type SharedDevice = Arc<dyn BlockDevice>;

impl std::fmt::Debug for dyn BlockDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BlockDevice({} bytes)", self.geometry().size_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_checked_without_overflow() {
        let geometry = Geometry::new(1 << 20, 512);
        assert_eq!(geometry.check(0, 1 << 20), Ok(()));
        assert_eq!(geometry.check(512, 1 << 20), Err(IoError::OutOfRange));
        assert_eq!(geometry.check(u64::MAX - 511, 512), Err(IoError::OutOfRange));
        assert_eq!(geometry.check(u64::MAX - 511, 1024), Err(IoError::OutOfRange));
        assert_eq!(geometry.check(0, 0), Err(IoError::Misaligned));
        assert_eq!(geometry.check(1, 512), Err(IoError::Misaligned));
        assert_eq!(geometry.check_transfer(0, MAX_TRANSFER_BYTES + 512), Err(IoError::Misaligned));
    }
}
