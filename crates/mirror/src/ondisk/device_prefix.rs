//! Device prefix: the beginning of a data device, which is the part that hosts see.

use flagstone_blockdev::{
    BlockDevice, Extent, Geometry, IoError, IoFuture, SharedDevice, ZeroFlags,
};
use flagstone_runtime::{Buf, BufMut};

pub(crate) struct DevicePrefix {
    pub(crate) device: SharedDevice,
    /// A multiple of the device's block size, and at most the device's size.
    pub(crate) size_bytes: u64,
}

impl DevicePrefix {
    fn checked<T>(
        &self,
        check: impl FnOnce(Geometry) -> Result<(), IoError>,
        call: impl FnOnce(&SharedDevice) -> IoFuture<T>,
    ) -> IoFuture<T> {
        match check(self.geometry()) {
            Ok(()) => call(&self.device),
            Err(error) => IoFuture::ready(Err(error)),
        }
    }
}

impl BlockDevice for DevicePrefix {
    fn geometry(&self) -> Geometry {
        Geometry { size_bytes: self.size_bytes, ..self.device.geometry() }
    }

    fn try_read_cached(&self, offset: u64, len: usize) -> Option<Buf> {
        self.geometry().check_transfer(offset, len).ok()?;
        self.device.try_read_cached(offset, len)
    }

    fn allocated(&self, offset: u64, len: u64) -> IoFuture<Vec<Extent>> {
        let check = |geometry: Geometry| geometry.check(offset, len);
        self.checked(check, |device| device.allocated(offset, len))
    }

    fn read(&self, offset: u64, buf: BufMut) -> IoFuture<BufMut> {
        let len = buf.len();
        let check = |geometry: Geometry| geometry.check_transfer(offset, len);
        self.checked(check, |device| device.read(offset, buf))
    }

    fn write(&self, offset: u64, data: Buf, fua: bool) -> IoFuture<()> {
        let len = data.len();
        let check = |geometry: Geometry| {
            geometry.check_change(offset, len as u64)?;
            geometry.check_transfer(offset, len)
        };
        self.checked(check, |device| device.write(offset, data, fua))
    }

    fn flush(&self) -> IoFuture<()> {
        self.device.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        let check = |geometry: Geometry| geometry.check_change(offset, len);
        self.checked(check, |device| device.discard(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        let check = |geometry: Geometry| geometry.check_change(offset, len);
        self.checked(check, |device| device.write_zeroes(offset, len, flags))
    }
}
