//! Write calls in progress on the devices of pairs.
//!
//! A write that its caller no longer waits for may still take effect, after the pool was closed and
//! opened again, and overwrite what was written since. So writes are counted from their start to
//! their end, per device and process-wide. A device is not taken into use while it has any.
//!
//! The count belongs to an open device. A disk that is opened again is locked by the earlier one
//! until its calls end. A core that ends cannot see the end of its calls: the device is not used
//! again then.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use flagstone_blockdev::{IoError, SharedDevice};
use flagstone_runtime::sync::SharedNotify;
use flagstone_runtime::{Buf, spawn};
use parking_lot::Mutex;

/// Devices that are in use, by address. Each entry ends with its device.
static DEVICES: Mutex<BTreeMap<usize, Weak<WriteCalls>>> = Mutex::new(BTreeMap::new());

fn key(device: &SharedDevice) -> usize {
    Arc::as_ptr(device).cast::<()>().addr()
}

/// Writes in progress on one device.
#[derive(Debug)]
pub(crate) struct WriteCalls {
    /// Keeps its address.
    device: SharedDevice,
    running: AtomicUsize,
    changed: SharedNotify,
}

impl Drop for WriteCalls {
    fn drop(&mut self) {
        let mut devices = DEVICES.lock();
        let key = key(&self.device);
        if devices.get(&key).is_some_and(|own| own.strong_count() == 0) {
            devices.remove(&key);
        }
    }
}

impl WriteCalls {
    /// The writes of this device.
    pub(crate) fn of(device: &SharedDevice) -> Arc<WriteCalls> {
        let mut devices = DEVICES.lock();
        if let Some(own) = devices.get(&key(device)).and_then(Weak::upgrade) {
            return own;
        }
        let (running, changed) = (AtomicUsize::new(0), SharedNotify::default());
        let own = Arc::new(WriteCalls { device: device.clone(), running, changed });
        devices.insert(key(device), Arc::downgrade(&own));
        own
    }

    /// True if a write has not ended.
    pub(crate) fn are_running(&self) -> bool {
        self.running.load(Ordering::Acquire) > 0
    }

    /// Waits until no write is in progress.
    pub(crate) async fn ended(&self) {
        self.changed.wait_for(|| (!self.are_running()).then_some(())).await;
    }

    /// Writes, and continues if the caller is dropped.
    pub(super) async fn write(
        self: &Arc<Self>,
        offset: u64,
        data: Buf,
        fua: bool,
    ) -> Result<(), IoError> {
        let call = match self.device.write(offset, data, fua).try_now() {
            Ok(result) => return result,
            Err(call) => call,
        };
        self.running.fetch_add(1, Ordering::AcqRel);
        let own = self.clone();
        let ended = spawn(async move {
            let result = call.await;
            own.running.fetch_sub(1, Ordering::AcqRel);
            own.changed.notify();
            result
        });
        ended.await.unwrap_or(Err(IoError::Unreachable))
    }
}
