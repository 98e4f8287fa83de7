//! Proof of one store: this target has read at its arbiter what its source has just recorded there.
//!
//! Two nodes may reach two stores that copy each other's objects, and each would win a race at its
//! own one. While the copies are in progress, the source's word over the link is faster: a target
//! that looks at once finds an older record, or none. Later the copy has arrived and proves
//! nothing, so the source records again, also after an answer that took longer than
//! [`PROOF_MS`](crate::limits::PROOF_MS). One store always shows a record that was stored before
//! the read began.
//!
//! Invariants:
//! - a target is marked [`InSync`](crate::ondisk::superblock::RecordedRight::InSync), and so may
//!   ask for the role, only after a proof for what its source has recorded last;
//! - a refuted revision is never proven.
//!
//! Copies that arrive before the target has heard of the record and made that durable are not
//! noticed: this takes tens of milliseconds, or up to a second if the answer to the source's write
//! was slow; after a lost one, the source records again. Nor are copies that a store waits for as
//! long as it can.

use flagstone_arbiter::race::Denial;
use flagstone_arbiter::{ArbiterRecord, ReplicaId};

/// State of the proof that both nodes use one store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreProof {
    /// The source that is attached has not recorded this target as in sync.
    #[default]
    NotNeeded,
    /// The source has recorded this revision, and the target has not read the store since.
    Pending(u64),
    /// The target has read this revision, or a later one.
    Given(u64),
    /// The store did not have this revision when the source had stored it, or has answered too late
    /// to tell.
    Refuted(u64),
}

impl StoreProof {
    /// The source says that it has recorded this target as in sync, by this revision.
    pub(crate) fn recorded(self, revision: u64) -> StoreProof {
        match self {
            StoreProof::Pending(known) | StoreProof::Given(known) | StoreProof::Refuted(known)
                if known >= revision =>
            {
                self
            }
            _ => StoreProof::Pending(revision),
        }
    }

    /// The store has a record that is no older than revision `expected`.
    pub(crate) fn seen(self, expected: u64) -> StoreProof {
        match self {
            StoreProof::Pending(revision) if expected >= revision => StoreProof::Given(revision),
            _ => self,
        }
    }

    /// The store has no record, or an older one than revision `expected`.
    pub(crate) fn missed(self, expected: u64) -> StoreProof {
        match self {
            StoreProof::Pending(revision) | StoreProof::Given(revision) if expected >= revision => {
                StoreProof::Refuted(revision)
            }
            _ => self,
        }
    }

    /// What a race that watched the store has read first, begun when revision `expected` was known.
    /// Whether the store accepts writes is no matter of the proof. `is_late`: a copy of the record
    /// may have arrived meanwhile, so the source has to record again.
    pub(crate) fn compared(
        self,
        outcome: &Result<ArbiterRecord, Denial>,
        own: ReplicaId,
        expected: u64,
        is_late: bool,
    ) -> StoreProof {
        match outcome {
            // The attached source did not record it: this node did, when it took over at another
            // store.
            Ok(record) if self.is_pending() && (is_late || record.source == own) => {
                self.missed(expected)
            }
            Ok(_) => self.seen(expected),
            Err(Denial::Missing | Denial::Older { .. }) => self.missed(expected),
            Err(_) => self,
        }
    }

    /// The target has something to find out at once.
    pub(crate) fn is_pending(self) -> bool {
        matches!(self, StoreProof::Pending(_))
    }

    /// The target may be marked as in sync.
    pub(crate) fn is_given(self) -> bool {
        matches!(self, StoreProof::Given(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_read_after_it_was_recorded_is_a_proof() {
        let pending = StoreProof::default().recorded(7);
        assert_eq!(pending, StoreProof::Pending(7));
        assert_eq!(pending.seen(6), pending, "the read began before");
        assert_eq!(pending.missed(6), pending, "the read began before");
        assert_eq!(pending.seen(7), StoreProof::Given(7));
        assert_eq!(pending.missed(7), StoreProof::Refuted(7));
        assert_eq!(StoreProof::default().seen(7), StoreProof::NotNeeded);
    }

    /// A target had taken over at its own store, where its source has no record, and read its own
    /// record as the proof.
    #[test]
    fn only_record_of_the_source_in_time_is_a_proof() {
        let (own, source) = (ReplicaId([1; 16]), ReplicaId([2; 16]));
        let record = |source| ArbiterRecord {
            volume: ReplicaId([9; 16]),
            epoch: 5,
            revision: 7,
            source,
            in_sync: vec![own],
            maintenance: false,
            writer: 3,
        };
        let compared = |outcome: Result<ArbiterRecord, Denial>, is_late| {
            StoreProof::Pending(7).compared(&outcome, own, 7, is_late)
        };
        assert_eq!(compared(Ok(record(source)), false), StoreProof::Given(7));
        assert_eq!(compared(Ok(record(own)), false), StoreProof::Refuted(7));
        assert_eq!(compared(Ok(record(source)), true), StoreProof::Refuted(7));
        assert_eq!(compared(Err(Denial::Missing), false), StoreProof::Refuted(7));
        assert_eq!(compared(Err(Denial::Foreign), false), StoreProof::Pending(7));
    }

    #[test]
    fn refuted_revision_is_never_proven() {
        let refuted = StoreProof::Pending(7).missed(7);
        assert_eq!(refuted.recorded(7).seen(7), refuted, "the copy has arrived");
        assert_eq!(refuted.recorded(8), StoreProof::Pending(8));
        assert_eq!(StoreProof::Given(7).missed(7), refuted, "restored from a backup");
        assert_eq!(StoreProof::Given(7).recorded(7), StoreProof::Given(7));
        assert_eq!(StoreProof::Given(7).recorded(8), StoreProof::Pending(8));
    }
}
