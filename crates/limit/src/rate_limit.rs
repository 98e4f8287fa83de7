//! Rate limit layer.
//!
//! | call | counts as |
//! | --- | --- |
//! | read | a read: its I/Os (see [`crate::IoSize`]) and its bytes |
//! | write | a write: its I/Os and its bytes |
//! | flush, discard, write_zeroes | one I/O of the writes, no bytes: no payload moves |
//! | a call that the device would refuse for its range, or as read-only | nothing |
//!
//! Invariants: a call within the limit passes immediately, as the future of the child. A call
//! beyond it waits for its turn, in order, before the child sees it. Results of the child are
//! unchanged. Commands wait here as long as the limit requires. Front ends bound their number,
//! because they accept no more from a host than its queue and their memory hold.

use std::sync::Arc;

use flagstone_blockdev::{BlockDevice, Geometry, IoError, IoFuture, SharedDevice, ZeroFlags};
use flagstone_runtime::{Buf, BufMut};

use crate::limiter::Limiter;
use crate::meter::Class;

/// Layer that enforces a limit.
pub struct RateLimitLayer {
    child: SharedDevice,
    limiter: Arc<Limiter>,
}

impl RateLimitLayer {
    /// Limits `child`. A limiter may be shared by any number of devices.
    pub fn new(child: SharedDevice, limiter: Arc<Limiter>) -> RateLimitLayer {
        RateLimitLayer { child, limiter }
    }

    /// Makes a call at its turn, or at once if `check` shows that the child will refuse it.
    fn after<T: 'static>(
        &self,
        check: Result<(), IoError>,
        (class, bytes): (Class, usize),
        call: impl FnOnce(&SharedDevice) -> IoFuture<T> + 'static,
    ) -> IoFuture<T> {
        let place = check.ok().and_then(|()| self.limiter.enter(class, bytes));
        let Some(place) = place else { return call(&self.child) };
        let child = self.child.clone();
        IoFuture::later(async move {
            place.turn().await;
            call(&child).await
        })
    }
}

impl std::fmt::Debug for RateLimitLayer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RateLimitLayer({:?})", self.limiter)
    }
}

// `try_read_cached` keeps its default of `None`, because a cached read would not be counted.
impl BlockDevice for RateLimitLayer {
    fn geometry(&self) -> Geometry {
        self.child.geometry()
    }

    fn refresh(&self) {
        self.child.refresh();
    }

    fn must_reopen(&self) -> bool {
        self.child.must_reopen()
    }

    fn read(&self, offset: u64, buf: BufMut) -> IoFuture<BufMut> {
        let check = self.child.geometry().check_transfer(offset, buf.len());
        self.after(check, (Class::Read, buf.len()), move |child| child.read(offset, buf))
    }

    fn write(&self, offset: u64, data: Buf, fua: bool) -> IoFuture<()> {
        let geometry = self.child.geometry();
        let bounded = geometry.check_transfer(offset, data.len());
        let check = geometry.check_change(offset, data.len() as u64).and(bounded);
        self.after(check, (Class::Write, data.len()), move |child| child.write(offset, data, fua))
    }

    fn flush(&self) -> IoFuture<()> {
        self.after(Ok(()), (Class::Control, 0), |child| child.flush())
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        let check = self.child.geometry().check_change(offset, len);
        self.after(check, (Class::Control, 0), move |child| child.discard(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        let check = self.child.geometry().check_change(offset, len);
        self.after(check, (Class::Control, 0), move |child| child.write_zeroes(offset, len, flags))
    }
}
