//! Faulty devices that violate a guarantee on purpose, to prove that the scenarios detect it.

use flagstone_blockdev::{BlockDevice, Geometry, IoFuture, SharedDevice, ZeroFlags};
use flagstone_runtime::{Buf, BufMut};

use crate::runner::run_seed;
use crate::{Outcome, Scenario};

/// A device that violates one guarantee.
struct LyingDevice {
    device: SharedDevice,
    lie: Lie,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Lie {
    /// Flushes have no effect.
    Flush,
    /// FUA writes are not durable.
    Fua,
    /// Some writes go one block too far.
    Place,
}

impl BlockDevice for LyingDevice {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn read(&self, offset: u64, buf: BufMut) -> IoFuture<BufMut> {
        self.device.read(offset, buf)
    }

    fn write(&self, offset: u64, data: Buf, fua: bool) -> IoFuture<()> {
        let end = offset + data.len() as u64;
        let block = u64::from(self.geometry().block_bytes);
        let beyond = self.lie == Lie::Place
            && end < self.geometry().size_bytes
            && flagstone_runtime::random_u64().is_multiple_of(20);
        let offset = if beyond { offset + block } else { offset };
        self.device.write(offset, data, fua && self.lie != Lie::Fua)
    }

    fn flush(&self) -> IoFuture<()> {
        if self.lie == Lie::Flush { IoFuture::ready(Ok(())) } else { self.device.flush() }
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.device.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        self.device.write_zeroes(offset, len, flags)
    }
}

/// Wrapper that makes a correct device violate one guarantee.
pub(crate) fn lying(lie: Lie) -> impl Fn(SharedDevice) -> SharedDevice {
    move |device| std::sync::Arc::new(LyingDevice { device, lie })
}

/// Number of failing seeds among 40.
pub(crate) fn caught(run: fn(u64) -> Outcome) -> usize {
    let scenario = Scenario { name: "liar", about: "", run };
    (0..40).filter(|seed| run_seed(&scenario, *seed, false).is_err()).count()
}
