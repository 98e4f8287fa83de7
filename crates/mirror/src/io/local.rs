//! Local I/O watch: a time limit on calls to the replica's own devices.
//!
//! A disk that hangs must not stall hosts while a peer has all data, nor an order of the operator.
//! [`WatchedDevice`] records when each call began. When [`LocalIo::fail`] is called, all calls
//! fail, now and later, as if the device had failed. The mirror decides when: a hung disk without a
//! peer in sync is waited for, because no other copy exists.
//!
//! A call that is given up may still reach the disk. It is kept until it really ends, and
//! [`LocalIo::settled`] waits for that, so that nothing is written to a replica that was opened
//! again.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use flagstone_blockdev::{
    BlockDevice, Extent, Geometry, IoError, IoFuture, SharedDevice, ZeroFlags,
};
use flagstone_runtime::{Buf, BufMut, spawn_detached, time};
use parking_lot::Mutex;

/// Calls in flight to the devices of one replica.
#[derive(Default)]
pub(crate) struct LocalIo {
    failed: AtomicBool,
    calls: Mutex<Calls>,
}

#[derive(Default)]
struct Calls {
    /// Start in nanoseconds and waker of each call that waits; vacant slots are in `vacant`.
    waiting: Vec<Option<(u64, Waker)>>,
    vacant: Vec<usize>,
    /// Changes that were given up and have not ended.
    abandoned: usize,
    settled: Vec<Waker>,
}

impl LocalIo {
    /// Age of the oldest call in flight, in nanoseconds; 0 without one.
    pub(crate) fn oldest_ns(&self) -> u64 {
        let now = time::now().as_nanos();
        let calls = self.calls.lock();
        let begun = calls.waiting.iter().flatten().map(|(begun, _)| *begun).min();
        begun.map_or(0, |begun| now.saturating_sub(begun))
    }

    /// Fails all calls in flight, and all later ones.
    pub(crate) fn fail(&self) {
        self.failed.store(true, Ordering::Release);
        let wakers: Vec<Waker> = {
            let calls = self.calls.lock();
            calls.waiting.iter().flatten().map(|(_, waker)| waker.clone()).collect()
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Waits until every change that was given up has ended.
    pub(crate) async fn settled(&self) {
        poll_fn(|cx| {
            let mut calls = self.calls.lock();
            if calls.abandoned == 0 {
                return Poll::Ready(());
            }
            calls.settled.push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    fn wait(&self, slot: &mut Option<usize>, waker: &Waker) {
        let mut calls = self.calls.lock();
        if let Some(slot) = *slot {
            if let Some((_, known)) = &mut calls.waiting[slot] {
                known.clone_from(waker);
            }
            return;
        }
        let call = Some((time::now().as_nanos(), waker.clone()));
        *slot = Some(match calls.vacant.pop() {
            Some(vacant) => {
                calls.waiting[vacant] = call;
                vacant
            }
            None => {
                calls.waiting.push(call);
                calls.waiting.len() - 1
            }
        });
    }

    fn end(&self, slot: &mut Option<usize>) {
        if let Some(slot) = slot.take() {
            let mut calls = self.calls.lock();
            calls.waiting[slot] = None;
            calls.vacant.push(slot);
        }
    }

    fn change_ended(&self) {
        let settled = {
            let mut calls = self.calls.lock();
            calls.abandoned -= 1;
            if calls.abandoned > 0 {
                return;
            }
            std::mem::take(&mut calls.settled)
        };
        settled.into_iter().for_each(Waker::wake);
    }
}

/// Kind of a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CallKind {
    Read,
    Change,
}

/// A call that waits for the device.
struct WatchedCall<T: 'static> {
    watch: Arc<LocalIo>,
    kind: CallKind,
    call: Option<IoFuture<T>>,
    slot: Option<usize>,
}

impl<T> Future for WatchedCall<T> {
    type Output = Result<T, IoError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let Some(call) = &mut this.call else { return Poll::Pending };
        if let Poll::Ready(result) = Pin::new(call).poll(cx) {
            this.call = None;
            this.watch.end(&mut this.slot);
            return Poll::Ready(result);
        }
        if !this.watch.has_failed() {
            this.watch.wait(&mut this.slot, cx.waker());
            // A failure between the check and the registration woke no waiter.
            if !this.watch.has_failed() {
                return Poll::Pending;
            }
        }
        this.watch.end(&mut this.slot);
        let (call, watch) = (this.call.take(), this.watch.clone());
        match (this.kind, call) {
            (CallKind::Change, Some(call)) => {
                watch.calls.lock().abandoned += 1;
                spawn_detached(async move {
                    let _ = call.await;
                    watch.change_ended();
                });
                Poll::Ready(Err(IoError::WriteFault))
            }
            _ => Poll::Ready(Err(IoError::ReadFault)),
        }
    }
}

impl<T> Drop for WatchedCall<T> {
    fn drop(&mut self) {
        self.watch.end(&mut self.slot);
    }
}

/// A device of the replica whose calls are watched.
pub(crate) struct WatchedDevice {
    device: SharedDevice,
    watch: Arc<LocalIo>,
}

impl WatchedDevice {
    pub(crate) fn over(device: SharedDevice, watch: &Arc<LocalIo>) -> SharedDevice {
        Arc::new(WatchedDevice { device, watch: watch.clone() })
    }

    fn call<T: 'static>(
        &self,
        kind: CallKind,
        call: impl FnOnce(&SharedDevice) -> IoFuture<T>,
    ) -> IoFuture<T> {
        if self.watch.has_failed() {
            return IoFuture::ready(Err(match kind {
                CallKind::Read => IoError::ReadFault,
                CallKind::Change => IoError::WriteFault,
            }));
        }
        match call(&self.device).try_now() {
            Ok(result) => IoFuture::ready(result),
            Err(call) => IoFuture::later(WatchedCall {
                watch: self.watch.clone(),
                kind,
                call: Some(call),
                slot: None,
            }),
        }
    }
}

impl BlockDevice for WatchedDevice {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn refresh(&self) {
        self.device.refresh();
    }

    fn expose(&self, bytes: u64) {
        self.device.expose(bytes);
    }

    fn present_bytes(&self) -> Option<u64> {
        self.device.present_bytes()
    }

    fn must_reopen(&self) -> bool {
        self.device.must_reopen()
    }

    fn try_read_cached(&self, offset: u64, len: usize) -> Option<Buf> {
        if self.watch.has_failed() {
            return None;
        }
        self.device.try_read_cached(offset, len)
    }

    fn allocated(&self, offset: u64, len: u64) -> IoFuture<Vec<Extent>> {
        self.call(CallKind::Read, |device| device.allocated(offset, len))
    }

    fn read(&self, offset: u64, buf: BufMut) -> IoFuture<BufMut> {
        self.call(CallKind::Read, |device| device.read(offset, buf))
    }

    fn write(&self, offset: u64, data: Buf, fua: bool) -> IoFuture<()> {
        self.call(CallKind::Change, |device| device.write(offset, data, fua))
    }

    fn flush(&self) -> IoFuture<()> {
        self.call(CallKind::Change, |device| device.flush())
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.call(CallKind::Change, |device| device.discard(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        self.call(CallKind::Change, |device| device.write_zeroes(offset, len, flags))
    }
}
