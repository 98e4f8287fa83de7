//! Lease: times that the renewals between a source and its target decide, in nanoseconds of
//! [`Inner::boot_ns`](crate::mirror::Inner). See [`crate::state::arbitration`] for the arithmetic.
//!
//! The members of a consistency group share one. An answer to the renewal of any member extends the
//! lease of the source, and delays the question of the target, for all of them.

use std::sync::atomic::{AtomicU64, Ordering};

/// Lease of a source, and the earliest question of a target.
#[derive(Debug, Default)]
pub(crate) struct Lease {
    /// End of the lease that the peer has confirmed.
    renewed_until_ns: AtomicU64,
    /// Earliest time at which a node that does not serve asks the arbiter.
    ask_not_before_ns: AtomicU64,
    /// As [`ArbiterMark::source_after_ms`](crate::ondisk::superblock::ArbiterMark).
    source_after_ms: AtomicU64,
}

impl Lease {
    pub(crate) fn until_ns(&self) -> u64 {
        self.renewed_until_ns.load(Ordering::Acquire)
    }

    pub(crate) fn ask_not_before_ns(&self) -> u64 {
        self.ask_not_before_ns.load(Ordering::Acquire)
    }

    /// Extends the lease. Returns its end before.
    pub(crate) fn extend(&self, until_ns: u64) -> u64 {
        self.renewed_until_ns.fetch_max(until_ns, Ordering::AcqRel)
    }

    /// Counts an answer to the source at `now_ns`.
    pub(crate) fn answered(&self, now_ns: u64, own_after_ns: u64) {
        // The lease of the source may be longer.
        let source_ns = self.source_after_ms.load(Ordering::Acquire).saturating_mul(1_000_000);
        let earliest = now_ns.saturating_add(own_after_ns.max(source_ns));
        self.ask_not_before_ns.fetch_max(earliest, Ordering::AcqRel);
    }

    /// Learns the source's `failover_after` from a superblock.
    pub(crate) fn learn_source_after(&self, after_ms: u64) {
        self.source_after_ms.fetch_max(after_ms, Ordering::AcqRel);
    }

    /// Replaces the source's `failover_after`. Returns the one before.
    pub(crate) fn set_source_after(&self, after_ms: u64) -> u64 {
        self.source_after_ms.swap(after_ms, Ordering::AcqRel)
    }
}
