//! Self-healing: blocks unreadable on one leg are rewritten with the other leg's data.
//!
//! Guarantees:
//! - data is taken only from a leg that is known to have it: both are in sync, and the block is not
//!   marked;
//! - a block is repaired under the lock on its range and with its region referenced, so no write
//!   and no crash can leave the legs different without a mark;
//! - a repair that fails changes nothing. The block is tried again at the next read or verify;
//! - a repair never waits for memory. Host writes that wait for its range may hold all of it, and
//!   so may copies of a resync that wait for it. Without memory, each repair in progress takes one
//!   page beyond the limit: at most [`REPAIRS_MAX`] and one of a verify.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use flagstone_blockdev::{IoError, SharedDevice};
use flagstone_runtime::spawn_detached;

use crate::io::memory::at_most;
use crate::io::range_lock::RangeGuard;
use crate::io::request::RunToCompletion;
use crate::limits::{BIT_MIN_BYTES, REPAIRS_MAX};
use crate::mirror::{Inner, count};
use crate::session::resync::is_outage;
use crate::state::status::LegPhase;
use crate::wire::peer::SharedSession;

/// A peer whose data may replace unreadable blocks, or whose blocks may be replaced.
#[derive(Clone)]
pub(crate) struct RepairPeer {
    pub(crate) leg: usize,
    pub(crate) session_id: u64,
    pub(crate) session: SharedSession,
}

/// Blocks of a range, in bytes.
fn blocks(range: Range<u64>) -> impl Iterator<Item = (u64, u64)> {
    let unit = u64::from(BIT_MIN_BYTES);
    let first = range.start / unit * unit;
    (first..range.end).step_by(unit as usize).map(move |at| (at, unit))
}

impl Inner {
    /// Repairs the unreadable blocks of a range that a host has read, in the background.
    pub(crate) fn repair_later(self: &Arc<Self>, peer: RepairPeer, range: Range<u64>) {
        let repairing = &self.counters.repairing;
        let begin = |running: u64| (running < REPAIRS_MAX).then_some(running + 1);
        if repairing.fetch_update(Ordering::AcqRel, Ordering::Acquire, begin).is_err() {
            return;
        }
        let inner = self.clone();
        spawn_detached(async move {
            for (offset, len) in blocks(range) {
                let guard = inner.range_lock.copy(offset, len).acquired().await;
                drop(inner.repair_local(guard, &peer, (offset, len)).await);
            }
            inner.counters.repairing.fetch_sub(1, Ordering::AcqRel);
        });
    }

    /// Rewrites the blocks of a locked range that the local leg cannot read.
    pub(crate) async fn repair_local(
        self: &Arc<Self>,
        mut guard: RangeGuard,
        peer: &RepairPeer,
        (offset, len): (u64, u64),
    ) -> RangeGuard {
        for (at, unit) in blocks(offset..offset + len) {
            let device = self.local.data();
            match device.read(at, at_most(unit as usize)).await {
                Err(error) if !is_outage(error) => {}
                _ => continue,
            }
            let replaced = self.local_replacement(guard, peer, (at, unit)).await;
            let repaired;
            (guard, repaired) = replaced;
            self.record_repair(peer.leg, at, unit, "local", repaired);
        }
        guard
    }

    async fn local_replacement(
        self: &Arc<Self>,
        guard: RangeGuard,
        peer: &RepairPeer,
        (at, len): (u64, u64),
    ) -> (RangeGuard, Result<(), IoError>) {
        // Queued writes to the block arrive first. The lock keeps new ones out.
        if !self.catch_up(peer.leg, peer.session_id).await || !self.is_equal(peer, at, len) {
            return (guard, Err(IoError::Unreachable));
        }
        let data = match peer.session.read(at, at_most(len as usize)).await {
            Ok(data) => data.freeze(),
            Err(error) => return (guard, Err(error)),
        };
        // A crash may leave a part of the write: the log names the block until then.
        let region_ref = match self.local.reference(at, len).await {
            Ok(region_ref) => region_ref,
            Err(error) => return (guard, Err(error)),
        };
        // The next source waits for rewrites that were counted before this check.
        let (device, rewrite): (SharedDevice, _) =
            (self.local.data().clone(), self.begin_rewrite());
        if !self.is_equal(peer, at, len) {
            return (guard, Err(IoError::Unreachable));
        }
        let writing = RunToCompletion::new(async move {
            let written = device.write(at, data, false).await;
            drop((region_ref, rewrite));
            Ok((guard, written))
        });
        writing.await.unwrap_or_else(|_| unreachable!("the result is inside"))
    }

    /// Rewrites the blocks of a locked range that the peer cannot read, as marked by `is_bad`.
    pub(crate) async fn repair_peer(
        self: &Arc<Self>,
        mut guard: RangeGuard,
        peer: &RepairPeer,
        (offset, len): (u64, u64),
        is_bad: impl AsyncFn(u64, u64) -> bool,
    ) -> RangeGuard {
        for (at, unit) in blocks(offset..offset + len) {
            if !is_bad(at, unit).await || !self.is_equal(peer, at, unit) {
                continue;
            }
            let repaired;
            (guard, repaired) = self.replace_at_peer(guard, peer, (at, unit)).await;
            self.record_repair(peer.leg, at, unit, "peer's", repaired);
        }
        guard
    }

    async fn replace_at_peer(
        self: &Arc<Self>,
        guard: RangeGuard,
        peer: &RepairPeer,
        (at, len): (u64, u64),
    ) -> (RangeGuard, Result<(), IoError>) {
        let data = match self.local.data().read(at, at_most(len as usize)).await {
            Ok(data) => data.freeze(),
            Err(error) => return (guard, Err(error)),
        };
        // A crash of the peer may leave a part of the write: the log names the block until then.
        let region_ref = match self.local.reference(at, len).await {
            Ok(region_ref) => region_ref,
            Err(error) => return (guard, Err(error)),
        };
        let session = peer.session.clone();
        let writing = RunToCompletion::new(async move {
            let written = session.write(at, data, true, None).await;
            drop(region_ref);
            Ok((guard, written))
        });
        writing.await.unwrap_or_else(|_| unreachable!("the result is inside"))
    }

    /// True while this session's peer and the local leg have the same data in a range, except for
    /// calls in flight.
    fn is_equal(&self, peer: &RepairPeer, offset: u64, len: u64) -> bool {
        let own = &self.legs[peer.leg];
        let bits = own.out_of_sync.bits_of(offset, len);
        let marked = own.out_of_sync.any(bits.clone())
            || own.suspect.any(bits.clone())
            || self.suspect.any(bits);
        let state = self.lock();
        let in_sync = state.legs[peer.leg].phase == LegPhase::InSync;
        let whole = state.serving && !state.local_device_failed;
        !marked && in_sync && whole && state.legs[peer.leg].is_current(peer.session_id)
    }

    fn record_repair(
        &self,
        leg: usize,
        offset: u64,
        len: u64,
        whose: &str,
        repaired: Result<(), IoError>,
    ) {
        let replica = self.local.superblock().replica;
        match repaired {
            Ok(()) => {
                count(&self.counters.repairs, 1);
                count(&self.counters.repaired_bytes, len);
                tracing::warn!(%replica, leg, offset, len, "rewrote an unreadable block of the {whose} leg");
            }
            Err(error) => {
                tracing::warn!(%replica, leg, offset, len, "could not repair an unreadable block of the {whose} leg: {error}");
            }
        }
    }
}
