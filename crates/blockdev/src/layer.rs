//! [`Layer`]: a device that passes each call to the device below it, after a check, a delay or a
//! count.

use flagstone_runtime::{Buf, BufMut};

use crate::stats::CallKind;
use crate::{BlockDevice, Extent, Geometry, IoError, IoFuture, SharedDevice, ZeroFlags};

/// A device above one child that treats all calls alike. Every layer is a [`BlockDevice`] with the
/// geometry and state of its child.
pub trait Layer: Send + Sync + 'static {
    /// The device below.
    fn child(&self) -> &SharedDevice;

    /// Passes a call on the range of `len` bytes at `offset` (0 and 0 for a flush) to the child
    /// with `make`, or fails it.
    fn pass<T: 'static>(
        &self,
        call: CallKind,
        offset: u64,
        len: u64,
        make: impl FnOnce(&SharedDevice) -> IoFuture<T> + 'static,
    ) -> IoFuture<T>;

    /// See [`BlockDevice::must_reopen`].
    fn must_reopen(&self) -> bool {
        self.child().must_reopen()
    }

    /// See [`BlockDevice::compare_and_write`]. Unsupported by default, because only the layer that
    /// all calls of a volume pass can exclude the others.
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

    /// See [`BlockDevice::try_read_cached`]. `None` by default, because a cached read would bypass
    /// [`Layer::pass`].
    fn try_read_cached(&self, _offset: u64, _len: usize) -> Option<Buf> {
        None
    }
}

impl<L: Layer> BlockDevice for L {
    fn geometry(&self) -> Geometry {
        self.child().geometry()
    }

    fn refresh(&self) {
        self.child().refresh();
    }

    fn expose(&self, bytes: u64) {
        self.child().expose(bytes);
    }

    fn present_bytes(&self) -> Option<u64> {
        self.child().present_bytes()
    }

    fn must_reopen(&self) -> bool {
        Layer::must_reopen(self)
    }

    fn used_bytes(&self) -> Option<u64> {
        self.child().used_bytes()
    }

    fn try_read_cached(&self, offset: u64, len: usize) -> Option<Buf> {
        Layer::try_read_cached(self, offset, len)
    }

    fn allocated(&self, offset: u64, len: u64) -> IoFuture<Vec<Extent>> {
        self.child().allocated(offset, len)
    }

    #[inline]
    fn read(&self, offset: u64, buf: BufMut) -> IoFuture<BufMut> {
        self.pass(CallKind::Read, offset, buf.len() as u64, move |child| child.read(offset, buf))
    }

    #[inline]
    fn write(&self, offset: u64, data: Buf, fua: bool) -> IoFuture<()> {
        let len = data.len() as u64;
        self.pass(CallKind::Write, offset, len, move |child| child.write(offset, data, fua))
    }

    fn compare_and_write(
        &self,
        offset: u64,
        expected: Buf,
        data: Buf,
        fua: bool,
    ) -> IoFuture<bool> {
        Layer::compare_and_write(self, offset, expected, data, fua)
    }

    fn flush(&self) -> IoFuture<()> {
        self.pass(CallKind::Flush, 0, 0, |child| child.flush())
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.pass(CallKind::Discard, offset, len, move |child| child.discard(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        let make = move |child: &SharedDevice| child.write_zeroes(offset, len, flags);
        self.pass(CallKind::WriteZeroes, offset, len, make)
    }
}
