//! In-memory device with a gate that blocks calls, and call counters.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::task::{Poll, Waker};

use flagstone_blockdev::{BlockDevice, Geometry, IoFuture, MemoryDevice, SharedDevice, ZeroFlags};
use flagstone_runtime::{Buf, BufMut};
use parking_lot::Mutex;

/// Open until it is closed.
pub struct BlockingDevice {
    child: SharedDevice,
    state: Arc<State>,
    geometry: Geometry,
}

#[derive(Default)]
struct State {
    closed: AtomicU32,
    waiting: Mutex<Vec<Waker>>,
    /// Calls in flight.
    inside: AtomicUsize,
    writes: AtomicUsize,
    durable: AtomicUsize,
    flushes: AtomicUsize,
}

impl BlockingDevice {
    pub fn new(child: SharedDevice) -> Arc<BlockingDevice> {
        let geometry = child.geometry();
        Arc::new(BlockingDevice { child, state: Arc::default(), geometry })
    }

    /// 64 MiB of memory in blocks of 512 B.
    pub fn memory() -> Arc<BlockingDevice> {
        BlockingDevice::new(Arc::new(MemoryDevice::new(64 << 20, 512).unwrap()))
    }

    /// The same with the memory alignment of a disk and a volatile write cache.
    pub fn disk() -> Arc<BlockingDevice> {
        let child: SharedDevice = Arc::new(MemoryDevice::new(64 << 20, 4096).unwrap());
        let geometry =
            Geometry { memory_align_bytes: 4096, volatile_cache: true, ..child.geometry() };
        Arc::new(BlockingDevice { child, state: Arc::default(), geometry })
    }

    pub fn close(&self) {
        self.state.closed.store(1, SeqCst);
    }

    pub fn open(&self) {
        self.state.closed.store(0, SeqCst);
        for waker in self.state.waiting.lock().drain(..) {
            waker.wake();
        }
    }

    /// Calls in flight.
    pub fn inside(&self) -> usize {
        self.state.inside.load(SeqCst)
    }

    /// Writes so far, with and without FUA.
    pub fn writes(&self) -> usize {
        self.state.writes.load(SeqCst)
    }

    /// Writes with FUA.
    pub fn durable(&self) -> usize {
        self.state.durable.load(SeqCst)
    }

    pub fn flushes(&self) -> usize {
        self.state.flushes.load(SeqCst)
    }

    fn pass<T: 'static>(
        &self,
        call: impl FnOnce(&SharedDevice) -> IoFuture<T> + 'static,
    ) -> IoFuture<T> {
        if self.state.closed.load(SeqCst) == 0 {
            return call(&self.child);
        }
        let (child, inside) = (self.child.clone(), Inside::new(self.state.clone()));
        IoFuture::later(async move {
            let state = &inside.0;
            poll_fn(|cx| {
                if state.closed.load(SeqCst) == 0 {
                    return Poll::Ready(());
                }
                state.waiting.lock().push(cx.waker().clone());
                Poll::Pending
            })
            .await;
            call(&child).await
        })
    }
}

struct Inside(Arc<State>);

impl Inside {
    fn new(state: Arc<State>) -> Inside {
        state.inside.fetch_add(1, SeqCst);
        Inside(state)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, SeqCst);
    }
}

impl BlockDevice for BlockingDevice {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, offset: u64, buf: BufMut) -> IoFuture<BufMut> {
        self.pass(move |child| child.read(offset, buf))
    }

    fn write(&self, offset: u64, data: Buf, fua: bool) -> IoFuture<()> {
        self.state.writes.fetch_add(1, SeqCst);
        self.state.durable.fetch_add(usize::from(fua), SeqCst);
        self.pass(move |child| child.write(offset, data, fua))
    }

    fn flush(&self) -> IoFuture<()> {
        self.state.flushes.fetch_add(1, SeqCst);
        self.pass(|child| child.flush())
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.pass(move |child| child.discard(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        self.pass(move |child| child.write_zeroes(offset, len, flags))
    }
}

/// Bytes that identify their position and writer.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut dice = super::Dice::new(seed + 1);
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        bytes.extend_from_slice(&(dice.below(usize::MAX) as u32).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
