//! Proof of one store: this target has read at its arbiter the record that its source has just
//! written.
//!
//! Two nodes may reach two stores that copy each other's objects, and each would win a race at its
//! own store. While a copy is in progress, the source's report over the link is faster: a target
//! that reads at once finds an older record, or none. After the copy has arrived, a read proves
//! nothing. So the source writes a new record, also after an answer that took longer than
//! [`PROOF_MS`](crate::limits::PROOF_MS). A single store always shows a record that was stored
//! before the read began. The random number of its writer identifies a record: another store may
//! have one of the same revision, or of a later one.
//!
//! Invariants:
//! - a target is marked [`InSync`](crate::ondisk::superblock::RecordedRight::InSync), and so may
//!   ask for the role, only after a proof for the latest record of its source;
//! - a refuted record is never proven.
//!
//! Not detected: copies that arrive before the target has received the report and made it durable.
//! This takes tens of milliseconds, or up to a second after a slow answer to the source's write;
//! after a lost answer, the source writes again. Also not detected: stores that wait for each
//! other's copies only while they can.

use flagstone_arbiter::race::Denial;
use flagstone_arbiter::{ArbiterRecord, RecordStamp};

/// State of the proof that both nodes use one store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreProof {
    /// The attached source has not recorded this target as in sync.
    #[default]
    NotNeeded,
    /// The source has written this record, and the target has not read the store since.
    Pending(RecordStamp),
    /// The target has read this record.
    Given(RecordStamp),
    /// The store had another record, or none, after the source had stored this one, or answered too
    /// late to decide.
    Refuted(RecordStamp),
}

impl StoreProof {
    /// The record that it is about.
    fn record(self) -> Option<RecordStamp> {
        match self {
            StoreProof::NotNeeded => None,
            StoreProof::Pending(known) | StoreProof::Given(known) | StoreProof::Refuted(known) => {
                Some(known)
            }
        }
    }

    /// The source reports that it has recorded this target as in sync, in this record.
    pub(crate) fn recorded(self, record: RecordStamp) -> StoreProof {
        match self.record() {
            Some(known) if known == record || known.revision > record.revision => self,
            _ => StoreProof::Pending(record),
        }
    }

    /// Evaluates the first read of a race that watches the store, which began when this proof was
    /// `before.0`, and revision `before.1` was the latest that this target had durably noted.
    /// Whether the store accepts writes does not matter. `is_late`: a copy of the record may have
    /// arrived meanwhile, so the source must write again.
    pub(crate) fn compared(
        self,
        before: (StoreProof, u64),
        outcome: &Result<ArbiterRecord, Denial>,
        is_late: bool,
    ) -> StoreProof {
        // The source has reported another record since the read began, or its report was not noted.
        let is_noted = |record: &RecordStamp| self == before.0 && record.revision <= before.1;
        let Some(expected) = self.record().filter(is_noted) else { return self };
        let found = match outcome {
            Ok(record) => Some(record.stamp()),
            Err(Denial::Missing | Denial::Older { .. }) => None,
            Err(_) => return self,
        };
        match self {
            StoreProof::Pending(_) if found == Some(expected) && !is_late => {
                StoreProof::Given(expected)
            }
            // The source has written another record, and reports it soon.
            StoreProof::Given(_) if found.is_some_and(|it| it.revision > expected.revision) => self,
            StoreProof::Given(_) if found == Some(expected) => self,
            StoreProof::Pending(_) | StoreProof::Given(_) => StoreProof::Refuted(expected),
            StoreProof::NotNeeded | StoreProof::Refuted(_) => self,
        }
    }

    /// True if the target must read the store at once.
    pub(crate) fn is_pending(self) -> bool {
        matches!(self, StoreProof::Pending(_))
    }

    /// True if the target may be marked as in sync.
    pub(crate) fn is_given(self) -> bool {
        matches!(self, StoreProof::Given(_))
    }
}

#[cfg(test)]
mod tests {
    use flagstone_arbiter::ReplicaId;

    use super::*;

    const OWN: ReplicaId = ReplicaId([1; 16]);
    const SOURCE: ReplicaId = ReplicaId([2; 16]);

    fn stamp(revision: u64, writer: u64) -> RecordStamp {
        RecordStamp { revision, writer }
    }

    fn found(revision: u64, writer: u64) -> Result<ArbiterRecord, Denial> {
        Ok(ArbiterRecord {
            volume: ReplicaId([9; 16]),
            epoch: 5,
            revision,
            source: SOURCE,
            in_sync: vec![OWN, SOURCE],
            maintenance: false,
            writer,
        })
    }

    fn compared(proof: StoreProof, outcome: Result<ArbiterRecord, Denial>) -> StoreProof {
        proof.compared((proof, 8), &outcome, false)
    }

    #[test]
    fn proof_requires_read_after_record() {
        let pending = StoreProof::default().recorded(stamp(7, 3));
        assert_eq!(pending, StoreProof::Pending(stamp(7, 3)));
        for outcome in [found(7, 3), Err(Denial::Missing)] {
            for before in [(StoreProof::Pending(stamp(6, 2)), 7), (pending, 6)] {
                assert_eq!(pending.compared(before, &outcome, false), pending, "it began before");
            }
        }
        assert_eq!(compared(pending, found(7, 3)), StoreProof::Given(stamp(7, 3)));
        assert_eq!(compared(pending, Err(Denial::Missing)), StoreProof::Refuted(stamp(7, 3)));
        assert_eq!(compared(pending, Err(Denial::Foreign)), pending);
        let late = pending.compared((pending, 7), &found(7, 3), true);
        assert_eq!(late, StoreProof::Refuted(stamp(7, 3)));
        assert_eq!(compared(StoreProof::NotNeeded, found(7, 3)), StoreProof::NotNeeded);
    }

    /// Regression: any record of the source's revision, or a later one, was taken for the record
    /// that it had just written. A target read one that its source had once left at another store,
    /// or one of its own.
    #[test]
    fn record_of_other_writer_is_no_proof_of_one_store() {
        let pending = StoreProof::Pending(stamp(7, 3));
        for other in [found(7, 4), found(8, 4), found(6, 4)] {
            assert_eq!(compared(pending, other), StoreProof::Refuted(stamp(7, 3)));
        }
        // After the proof, only the source replaces its record by a later one.
        let given = StoreProof::Given(stamp(7, 3));
        assert_eq!(compared(given, found(7, 3)), given);
        assert_eq!(compared(given, found(8, 4)), given);
        assert_eq!(compared(given, found(7, 4)), StoreProof::Refuted(stamp(7, 3)));
    }

    #[test]
    fn refuted_record_is_never_proven() {
        let refuted = StoreProof::Refuted(stamp(7, 3));
        assert_eq!(compared(refuted.recorded(stamp(7, 3)), found(7, 3)), refuted, "a copy");
        assert_eq!(refuted.recorded(stamp(8, 4)), StoreProof::Pending(stamp(8, 4)));
        let given = StoreProof::Given(stamp(7, 3));
        assert_eq!(compared(given, Err(Denial::Missing)), refuted, "restored from a backup");
        assert_eq!(given.recorded(stamp(7, 3)), given);
        assert_eq!(given.recorded(stamp(7, 4)), StoreProof::Pending(stamp(7, 4)));
        assert_eq!(given.recorded(stamp(8, 4)), StoreProof::Pending(stamp(8, 4)));
        assert_eq!(given.recorded(stamp(6, 4)), given, "a report that was overtaken");
    }
}
