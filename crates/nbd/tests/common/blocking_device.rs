//! Device whose calls are counted and blocked until released.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use flagstone_blockdev::{BlockDevice, Geometry, IoError, IoFuture, SharedDevice, ZeroFlags};
use flagstone_runtime::{Buf, BufMut, task, time};

/// Progress of the calls.
#[derive(Default)]
pub struct Calls {
    held: AtomicBool,
    give_up: AtomicBool,
    begun: AtomicUsize,
    ended: AtomicUsize,
}

impl Calls {
    pub fn hold(&self) {
        self.held.store(true, Ordering::SeqCst);
    }

    /// As `hold`, for calls that give up when their client is gone.
    pub fn hold_for_client(&self) {
        self.give_up.store(true, Ordering::SeqCst);
        self.hold();
    }

    pub fn let_go(&self) {
        self.held.store(false, Ordering::SeqCst);
    }

    pub fn begun(&self) -> usize {
        self.begun.load(Ordering::SeqCst)
    }

    pub fn ended(&self) -> usize {
        self.ended.load(Ordering::SeqCst)
    }
}

pub struct BlockingDevice {
    device: SharedDevice,
    calls: Arc<Calls>,
}

impl BlockingDevice {
    pub fn wrap(device: SharedDevice) -> (SharedDevice, Arc<Calls>) {
        let calls = Arc::new(Calls::default());
        (Arc::new(BlockingDevice { device, calls: calls.clone() }), calls)
    }

    fn after<T: 'static>(
        &self,
        call: impl AsyncFnOnce(&SharedDevice) -> Result<T, IoError> + 'static,
    ) -> IoFuture<T> {
        let (device, calls) = (self.device.clone(), self.calls.clone());
        calls.begun.fetch_add(1, Ordering::SeqCst);
        IoFuture::later(async move {
            let released = async {
                while calls.held.load(Ordering::SeqCst) {
                    time::sleep(Duration::from_millis(1)).await;
                }
            };
            match calls.give_up.load(Ordering::SeqCst) {
                true => task::unless_flow_ended(released).await.ok_or(IoError::Unreachable)?,
                false => released.await,
            }
            let result = call(&device).await;
            calls.ended.fetch_add(1, Ordering::SeqCst);
            result
        })
    }
}

impl BlockDevice for BlockingDevice {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn read(&self, offset: u64, buf: BufMut) -> IoFuture<BufMut> {
        self.after(async move |device| device.read(offset, buf).await)
    }

    fn write(&self, offset: u64, data: Buf, fua: bool) -> IoFuture<()> {
        self.after(async move |device| device.write(offset, data, fua).await)
    }

    fn flush(&self) -> IoFuture<()> {
        self.after(async move |device| device.flush().await)
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.after(async move |device| device.discard(offset, len).await)
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        self.after(async move |device| device.write_zeroes(offset, len, flags).await)
    }
}
