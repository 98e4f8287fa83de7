//! A device that is closed and opened again under those who hold it.
//!
//! A file or disk is open for as long as anybody holds it, and one whose flush failed is of no use
//! before it was closed. Who holds this holds what is in it no longer once it is [closed](Swap::close).
//!
//! Promises:
//! - while it is closed every call fails with [`IoError::Unreachable`];
//! - a call that began before ends on the device that it began on, which is open until then: one that
//!   locks what it opens cannot be opened again before;
//! - blocks keep their size: a device of others is not taken.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use flagstone_runtime::{Buf, BufMut};

use crate::{BlockDevice, Geometry, IoError, IoFuture, SharedDevice, ZeroFlags};

/// See the module's promises.
pub struct Swap(RwLock<Held>);

struct Held {
    /// While it is closed: of the device that was in it.
    geometry: Geometry,
    device: Option<SharedDevice>,
}

impl Swap {
    /// With a device that is open.
    pub fn new(device: SharedDevice) -> Arc<Swap> {
        let geometry = device.geometry();
        Arc::new(Swap(RwLock::new(Held { geometry, device: Some(device) })))
    }

    /// Lets the device go.
    pub fn close(&self) {
        let mut held = self.write_held();
        if let Some(device) = held.device.take() {
            held.geometry = device.geometry();
            drop(held);
            drop(device);
        }
    }

    /// Takes another device, or the same that was opened again.
    ///
    /// # Errors
    /// Its geometry, when its blocks are of another size, or it takes no writes where the other did:
    /// nothing has changed.
    pub fn set(&self, device: SharedDevice) -> Result<(), Geometry> {
        let geometry = device.geometry();
        let mut held = self.write_held();
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

    fn read_held(&self) -> RwLockReadGuard<'_, Held> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_held(&self) -> RwLockWriteGuard<'_, Held> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn call<T>(&self, make: impl FnOnce(&SharedDevice) -> IoFuture<T>) -> IoFuture<T> {
        match &self.read_held().device {
            Some(device) => make(device),
            None => IoFuture::ready(Err(IoError::Unreachable)),
        }
    }
}

impl BlockDevice for Swap {
    fn geometry(&self) -> Geometry {
        let held = self.read_held();
        held.device.as_ref().map_or(held.geometry, |device| device.geometry())
    }

    fn refresh(&self) {
        if let Some(device) = &self.read_held().device {
            device.refresh();
        }
    }

    fn must_reopen(&self) -> bool {
        self.read_held().device.as_ref().is_none_or(|device| device.must_reopen())
    }

    fn known(&self, offset: u64, len: usize) -> Option<Buf> {
        self.read_held().device.as_ref()?.known(offset, len)
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
    use crate::{Fault, FaultConfig, MemoryDevice};

    #[test]
    fn what_is_closed_is_let_go_and_what_is_opened_is_used() {
        block_on(async {
            let memory = || Arc::new(MemoryDevice::new(8192, 512).expect("a size")) as SharedDevice;
            let first = memory();
            let swap = Swap::new(first.clone());
            swap.write(512, buf::alloc(512).await.freeze(), true).await.expect("it is open");
            swap.close();
            assert_eq!(Arc::strong_count(&first), 1);
            assert_eq!(swap.flush().await, Err(IoError::Unreachable));
            assert!(swap.must_reopen());
            assert_eq!(swap.geometry(), first.geometry());
            let other: SharedDevice = Arc::new(MemoryDevice::new(8192, 4096).expect("a size"));
            assert!(swap.set(other).is_err_and(|other| other.block_bytes == 4096));
            let (fault, control) = Fault::new(memory(), FaultConfig::default()).expect("no rates");
            swap.set(Arc::new(fault)).expect("blocks of the same size");
            assert!(!swap.must_reopen());
            control.fail_next_flush();
            assert_eq!(swap.flush().await, Err(IoError::WriteFault));
            assert!(swap.must_reopen());
        })
        .expect("an executor");
    }
}
