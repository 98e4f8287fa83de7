//! Reopenable device: a device that can be closed and opened again while other layers hold it.
//!
//! A file or disk stays open while it is referenced, and must be closed after a failed flush before
//! it is usable again. Holders of this layer no longer hold the inner device after
//! [`ReopenableDevice::close`].
//!
//! Invariants:
//! - while it is closed, every call fails with [`IoError::Unreachable`];
//! - a call that started before a close ends on the device on which it started, which stays open
//!   until then. A device that locks its file cannot be opened again before;
//! - the block size never changes: a device with another one is refused.

use std::sync::Arc;

use flagstone_runtime::{Buf, BufMut};
use parking_lot::RwLock;

use crate::{BlockDevice, Extent, Geometry, IoError, IoFuture, SharedDevice, ZeroFlags};

/// A device that can be closed and opened again.
pub struct ReopenableDevice(RwLock<OpenDevice>);

impl std::fmt::Debug for ReopenableDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReopenableDevice({:?})", self.0.read().device)
    }
}

struct OpenDevice {
    /// While closed: the geometry of the last device.
    geometry: Geometry,
    device: Option<SharedDevice>,
}

impl ReopenableDevice {
    /// Starts with an open device.
    pub fn new(device: SharedDevice) -> Arc<ReopenableDevice> {
        let geometry = device.geometry();
        Arc::new(ReopenableDevice(RwLock::new(OpenDevice { geometry, device: Some(device) })))
    }

    /// True unless the inner device was released.
    pub fn is_open(&self) -> bool {
        self.0.read().device.is_some()
    }

    /// Releases the inner device.
    pub fn close(&self) {
        let mut held = self.0.write();
        if let Some(device) = held.device.take() {
            held.geometry = device.geometry();
            drop(held);
            drop(device);
        }
    }

    /// Installs an inner device: another one, or the same opened again.
    ///
    /// # Errors
    /// The geometry of the new device, if its block size differs or it is read-only where the last
    /// one was writable (or the reverse). The inner device is then unchanged.
    pub fn set(&self, device: SharedDevice) -> Result<(), Geometry> {
        let geometry = device.geometry();
        let mut held = self.0.write();
        let was = held.device.as_ref().map_or(held.geometry, |device| device.geometry());
        if (geometry.block_bytes, geometry.read_only) != (was.block_bytes, was.read_only) {
            return Err(geometry);
        }
        let before = held.device.replace(device);
        held.geometry = geometry;
        drop(held);
        drop(before);
        Ok(())
    }

    fn call<T>(&self, make: impl FnOnce(&SharedDevice) -> IoFuture<T>) -> IoFuture<T> {
        match &self.0.read().device {
            Some(device) => make(device),
            None => IoFuture::ready(Err(IoError::Unreachable)),
        }
    }
}

impl BlockDevice for ReopenableDevice {
    fn geometry(&self) -> Geometry {
        let held = self.0.read();
        held.device.as_ref().map_or(held.geometry, |device| device.geometry())
    }

    fn refresh(&self) {
        if let Some(device) = &self.0.read().device {
            device.refresh();
        }
    }

    fn expose(&self, bytes: u64) {
        if let Some(device) = &self.0.read().device {
            device.expose(bytes);
        }
    }

    fn present_bytes(&self) -> Option<u64> {
        self.0.read().device.as_ref()?.present_bytes()
    }

    fn must_reopen(&self) -> bool {
        self.0.read().device.as_ref().is_none_or(|device| device.must_reopen())
    }

    fn used_bytes(&self) -> Option<u64> {
        self.0.read().device.as_ref()?.used_bytes()
    }

    fn try_read_cached(&self, offset: u64, len: usize) -> Option<Buf> {
        self.0.read().device.as_ref()?.try_read_cached(offset, len)
    }

    fn allocated(&self, offset: u64, len: u64) -> IoFuture<Vec<Extent>> {
        self.call(|device| device.allocated(offset, len))
    }

    fn read(&self, offset: u64, buf: BufMut) -> IoFuture<BufMut> {
        self.call(|device| device.read(offset, buf))
    }

    fn write(&self, offset: u64, data: Buf, fua: bool) -> IoFuture<()> {
        self.call(|device| device.write(offset, data, fua))
    }

    fn flush(&self) -> IoFuture<()> {
        self.call(|device| device.flush())
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.call(|device| device.discard(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        self.call(|device| device.write_zeroes(offset, len, flags))
    }
}

#[cfg(test)]
mod tests {
    use flagstone_runtime::{block_on, buf};

    use super::*;
    use crate::{FaultConfig, FaultLayer, MemoryDevice};

    #[test]
    fn reopened_device_replaces_closed_one() {
        block_on(async {
            let memory = || Arc::new(MemoryDevice::new(8192, 512).expect("a size")) as SharedDevice;
            let first = memory();
            let device = ReopenableDevice::new(first.clone());
            device.write(512, buf::alloc(512).await.freeze(), true).await.expect("it is open");
            device.close();
            assert_eq!(Arc::strong_count(&first), 1);
            assert_eq!(device.flush().await, Err(IoError::Unreachable));
            assert!(device.must_reopen());
            assert_eq!(device.geometry(), first.geometry());
            let other: SharedDevice = Arc::new(MemoryDevice::new(8192, 4096).expect("a size"));
            assert!(device.set(other).is_err_and(|other| other.block_bytes == 4096));
            let (fault, control) =
                FaultLayer::new(memory(), FaultConfig::default()).expect("no rates");
            device.set(Arc::new(fault)).expect("blocks of the same size");
            assert!(!device.must_reopen());
            control.fail_next_flush();
            assert_eq!(device.flush().await, Err(IoError::WriteFault));
            assert!(device.must_reopen());
        })
        .expect("an executor");
    }
}
