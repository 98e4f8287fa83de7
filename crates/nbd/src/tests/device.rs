//! Test device: a geometry without data.

use std::sync::Arc;

use flagstone_blockdev::{BlockDevice, Geometry, IoError, IoFuture, SharedDevice, ZeroFlags};
use flagstone_runtime::{Buf, BufMut};

/// Device that is never called: only its geometry matters.
pub(crate) struct NoData(Geometry);

impl NoData {
    pub(crate) fn shared(geometry: Geometry) -> SharedDevice {
        Arc::new(NoData(geometry))
    }
}

impl BlockDevice for NoData {
    fn geometry(&self) -> Geometry {
        self.0
    }

    fn read(&self, _offset: u64, _buf: BufMut) -> IoFuture<BufMut> {
        IoFuture::ready(Err(IoError::Unsupported))
    }

    fn write(&self, _offset: u64, _data: Buf, _fua: bool) -> IoFuture<()> {
        IoFuture::ready(Err(IoError::Unsupported))
    }

    fn flush(&self) -> IoFuture<()> {
        IoFuture::ready(Err(IoError::Unsupported))
    }

    fn discard(&self, _offset: u64, _len: u64) -> IoFuture<()> {
        IoFuture::ready(Err(IoError::Unsupported))
    }

    fn write_zeroes(&self, _offset: u64, _len: u64, _flags: ZeroFlags) -> IoFuture<()> {
        IoFuture::ready(Err(IoError::Unsupported))
    }
}
