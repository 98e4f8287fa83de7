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

use flagstone_blockdev::stats::CallKind;
use flagstone_blockdev::{IoFuture, Layer, SharedDevice};

use crate::limiter::Limiter;
use crate::meter::Class;

#[derive(Debug)]
pub struct RateLimitLayer {
    child: SharedDevice,
    limiter: Arc<Limiter>,
}

impl RateLimitLayer {
    /// Limits `child`. A limiter may be shared by any number of devices.
    pub fn new(child: SharedDevice, limiter: Arc<Limiter>) -> RateLimitLayer {
        RateLimitLayer { child, limiter }
    }
}

impl Layer for RateLimitLayer {
    fn child(&self) -> &SharedDevice {
        &self.child
    }

    /// Makes a call at its turn, or at once if the child will refuse it.
    fn pass<T: 'static>(
        &self,
        call: CallKind,
        offset: u64,
        len: u64,
        make: impl FnOnce(&SharedDevice) -> IoFuture<T> + 'static,
    ) -> IoFuture<T> {
        let (geometry, bytes) = (self.child.geometry(), len as usize);
        let (check, class, payload) = match call {
            CallKind::Read => (geometry.check_transfer(offset, bytes), Class::Read, bytes),
            CallKind::Write => {
                let bounded = geometry.check_transfer(offset, bytes);
                (geometry.check_change(offset, len).and(bounded), Class::Write, bytes)
            }
            CallKind::Flush => (Ok(()), Class::Control, 0),
            CallKind::Discard | CallKind::WriteZeroes => {
                (geometry.check_change(offset, len), Class::Control, 0)
            }
        };
        let place = check.ok().and_then(|()| self.limiter.enter(class, payload));
        let Some(place) = place else { return make(&self.child) };
        let child = self.child.clone();
        IoFuture::later(async move {
            place.turn().await;
            make(&child).await
        })
    }
}
