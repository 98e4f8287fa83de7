//! Null device: reads zeroes and drops writes, to measure the rest of the stack.
//!
//! Invariants: reads return zeroes, writes succeed and are dropped, nothing is stored or allocated,
//! every call is complete when it returns. It deliberately breaks the promise that written data can
//! be read back.

use flagstone_runtime::limits::ZEROES_BYTES;
use flagstone_runtime::{Buf, BufMut, buf};

use crate::config::check_size;
use crate::{BlockDevice, Extent, Geometry, IoFuture, LayerConfigError, ZeroFlags};

/// A device of zeroes.
#[derive(Debug)]
pub struct NullDevice {
    geometry: Geometry,
}

impl NullDevice {
    /// A device of `size_bytes` in blocks of `block_bytes`.
    ///
    /// # Errors
    /// [`LayerConfigError`] unless the block size is a power of two from 512 to 65,536 and the size
    /// a positive multiple of it below 2^63.
    pub fn new(size_bytes: u64, block_bytes: u32) -> Result<NullDevice, LayerConfigError> {
        check_size(size_bytes, block_bytes)?;
        Ok(NullDevice { geometry: Geometry::new(size_bytes, block_bytes) })
    }
}

impl BlockDevice for NullDevice {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn try_read_cached(&self, offset: u64, len: usize) -> Option<Buf> {
        let is_valid = len <= ZEROES_BYTES && self.geometry.check_transfer(offset, len).is_ok();
        is_valid.then(|| buf::zeroes(len))
    }

    fn allocated(&self, offset: u64, len: u64) -> IoFuture<Vec<Extent>> {
        let known = self.geometry.check(offset, len);
        IoFuture::ready(known.map(|()| vec![Extent { len, is_hole: true }]))
    }

    fn read(&self, offset: u64, mut buf: BufMut) -> IoFuture<BufMut> {
        let checked = self.geometry.check_transfer(offset, buf.len());
        IoFuture::ready(checked.map(|()| {
            buf.fill(0);
            buf
        }))
    }

    fn write(&self, offset: u64, data: Buf, _fua: bool) -> IoFuture<()> {
        IoFuture::ready(self.geometry.check_transfer(offset, data.len()))
    }

    fn flush(&self) -> IoFuture<()> {
        IoFuture::ready(Ok(()))
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        IoFuture::ready(self.geometry.check(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64, _flags: ZeroFlags) -> IoFuture<()> {
        IoFuture::ready(self.geometry.check(offset, len))
    }
}
