//! Lag of an asynchronous target: the most that it lacks if it takes over, as a span of the
//! source's past.
//!
//! ```text
//! source   completes the oldest write that the target lacks
//!          │←── lag ──→│ sends a renewal ──── completes writes until the end of the lease
//!          │←───────────────── bound = lag + lease ─────────────────→│
//! ```
//!
//! A source extends its lease only by an answer, and completes no write of an asynchronous mirror
//! after its end, unless the arbiter's record excludes the target. So a target that has answered a
//! renewal lacks no write that was completed earlier than the bound before the source's last one.
//! Both spans are measured by the source's clock. The answer to a later renewal replaces the bound.
//!
//! Invariants:
//! - a target asks for the role only while its bound is at most
//!   [`max_lag`](crate::FailoverOptions::max_lag);
//! - the bound is not durable: a target that restarts, perhaps after a power loss, proves nothing
//!   before its source has attached again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use flagstone_blockdev::IoError;

use super::Failover;
use crate::mirror::{Inner, State, StateGuard};
use crate::state::arbitration::Timing;

/// No bound is proven.
const UNPROVEN: u64 = u64::MAX;

/// What a target may lack.
#[derive(Debug)]
pub(crate) struct TargetLag {
    /// Bound of the last answered renewal, in nanoseconds.
    bound_ns: AtomicU64,
    /// Bound with which this node took over; [`UNPROVEN`] if it did not, or nothing was lost.
    taken_over_ns: AtomicU64,
}

impl Default for TargetLag {
    fn default() -> TargetLag {
        TargetLag { bound_ns: AtomicU64::new(UNPROVEN), taken_over_ns: AtomicU64::new(UNPROVEN) }
    }
}

/// The bound for a lag and the source's `failover_after`, in milliseconds; both were rounded down.
fn bound_ns(lag_ms: u32, failover_after_ms: u32) -> u64 {
    let ns = |ms: u32| (u64::from(ms) + 1) * 1_000_000;
    let lease_ns = Timing { failover_after_ns: ns(failover_after_ms) }.lease_ns();
    ns(lag_ms) + lease_ns
}

impl Failover {
    fn max_lag_ns(&self) -> Option<u64> {
        let max_lag = self.options.as_ref()?.max_lag?;
        Some(u64::try_from(max_lag.as_nanos()).unwrap_or(UNPROVEN - 1))
    }

    pub(super) fn is_asynchronous(&self) -> bool {
        self.max_lag_ns().is_some()
    }

    /// True for a target that has no proof of being close enough to its source.
    pub(super) fn is_behind(&self) -> bool {
        let bound_ns = self.target_lag.bound_ns.load(Ordering::Acquire);
        self.max_lag_ns().is_some_and(|max_ns| bound_ns > max_ns)
    }

    /// Notes a renewal that the target is about to answer. `lag_ms` is `None` if the source found
    /// the target too far behind.
    pub(super) fn note_lag(&self, lag_ms: Option<u32>, failover_after_ms: u32) {
        let bound_ns = lag_ms.map_or(UNPROVEN, |lag_ms| bound_ns(lag_ms, failover_after_ms));
        self.target_lag.bound_ns.store(bound_ns, Ordering::Release);
    }

    /// This node becomes a target of another session.
    pub(super) fn forget_lag(&self) {
        self.target_lag.bound_ns.store(UNPROVEN, Ordering::Release);
        self.target_lag.taken_over_ns.store(UNPROVEN, Ordering::Release);
    }

    /// This target has taken over. Returns what it may lack; `None` in synchronous mode.
    pub(super) fn take_over_with_lag(&self) -> Option<Duration> {
        self.max_lag_ns()?;
        let bound_ns = self.target_lag.bound_ns.load(Ordering::Acquire);
        self.target_lag.taken_over_ns.store(bound_ns, Ordering::Release);
        self.lag_at_takeover()
    }

    /// What this node may have lacked when it took over; `None` if it did not, or lacked nothing.
    pub(super) fn lag_at_takeover(&self) -> Option<Duration> {
        let bound_ns = self.target_lag.taken_over_ns.load(Ordering::Acquire);
        (bound_ns != UNPROVEN).then(|| Duration::from_nanos(bound_ns))
    }
}

impl Inner {
    /// Age of the oldest completed write that the peer lacks, in milliseconds. At least 1 in
    /// asynchronous mode, so that a peer that is configured for the other mode notices; 0 in
    /// synchronous mode.
    pub(super) fn peer_lag_ms(&self) -> u32 {
        if !self.failover.is_asynchronous() {
            return 0;
        }
        let (_, lag_ns) = self.legs[0].queue().lag(Inner::boot_ns());
        u32::try_from(lag_ns / 1_000_000).unwrap_or(u32::MAX).max(1)
    }

    /// Waits until a write that the peer may lack may be acknowledged.
    ///
    /// # Errors
    /// If hosts are not served any more: the peer may have taken over without it.
    pub(crate) async fn await_lease(&self) -> Result<(), IoError> {
        let decided = |state: &mut StateGuard<'_>| match state.serving {
            false => Some(Err(IoError::Unreachable)),
            true => (!self.failover.lease_has_ended()).then_some(Ok(())),
        };
        match self.failover.lease_has_ended() {
            true => self.wait(decided).await,
            false => Ok(()),
        }
    }

    /// True for a source whose asynchronous peer is too far behind to take over. The caller holds
    /// the lock of the state.
    pub(super) fn is_peer_behind(&self, _: &State) -> bool {
        let bound_ns = || bound_ns(self.peer_lag_ms(), self.failover.after_ms());
        self.failover.max_lag_ns().is_some_and(|max_ns| bound_ns() > max_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bound_covers_lag_and_rest_of_lease() {
        let after_ms = 8000;
        let lease = Duration::from_millis(7000);
        for lag_ms in [0, 1, 999, 60_000] {
            // What was rounded away is covered, too.
            let lag = Duration::from_micros(u64::from(lag_ms) * 1000 + 999);
            let bound = Duration::from_nanos(bound_ns(lag_ms, after_ms));
            assert!(bound >= lag + lease && bound < lag + lease + Duration::from_millis(3));
        }
        assert!(bound_ns(u32::MAX, u32::MAX) < UNPROVEN);
    }
}
