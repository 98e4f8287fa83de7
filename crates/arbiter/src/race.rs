//! Race: one node's attempt to change the record, as one pure function.
//!
//! [`next`] takes a [`RaceState`] and an [`RaceEvent`], and returns the following state with the
//! action to carry out, if there is one. The owner performs the action and reports its result as
//! the next event. A race ends in [`RaceState::Ended`]; there is nothing to clean up after one that
//! is abandoned. A write that was given up may still take effect, so its owner must not assume
//! either.
//!
//! [`decide`] is the only place that compares a record with the knowledge of a node.
//!
//! `docs/failover-race.md` is printed from this module by a test.

use std::fmt;

use crate::epoch::next_epoch;
use crate::limits::{ATTEMPTS_MAX, PAUSE_MAX_MS, PAUSE_MIN_MS};
use crate::record::{ArbiterRecord, RecordError, ReplicaId};
use crate::{NoAnswer, Stored, Written};

/// Request of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The volume.
    pub volume: ReplicaId,
    /// The node's own replica.
    pub own: ReplicaId,
    /// Highest revision of the record that this node has durably seen; 0 for none.
    pub seen_revision: u64,
    /// Random number, different for each race.
    pub writer: u64,
    /// At a source: the operator has suspended automatic failover, and the record must have that.
    pub suspended: bool,
    /// The former source has handed its role to this node, and had seen `seen_revision`. A record
    /// of exactly this revision may list only the former source, because nothing was granted since.
    pub succeeds: bool,
    /// Purpose of the race.
    pub goal: Goal,
}

/// Reason why a source records whether its attached peer may serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occasion {
    /// The record may differ.
    Change,
    /// First time in a session with the peer: always write, so that a delayed write of the peer,
    /// from before it attached, fails.
    NewSession,
    /// The peer does not find the record at its arbiter: always write, because only a new record
    /// shows whether both use one store.
    Unseen,
}

/// Purpose of a race.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Goal {
    /// A source whose peer is attached: record whether the peer has every acknowledged write. By
    /// being attached, the peer agrees, so a missing or older record is replaced. The first race of
    /// a session also replaces a record that excludes this node.
    Publish {
        /// The peer if it is in sync; `None` during a resync to it.
        peer: Option<ReplicaId>,
        /// This node's role epoch.
        epoch: u64,
        /// Reason for the record.
        occasion: Occasion,
    },
    /// A source that serves: run degraded, without its peers.
    RunDegraded {
        /// This node's role epoch.
        epoch: u64,
    },
    /// A source that was granted to run degraded, and has served since: keep the grant. A record
    /// that was lost, or restored from a backup, is replaced unless it excludes this node.
    StayDegraded {
        /// This node's role epoch.
        epoch: u64,
    },
    /// A target: read the record, and report whether the role would be granted. Writes nothing.
    Watch,
    /// A target that may have been granted the role before a source attached again: take the role,
    /// if nothing was recorded since.
    Reclaim {
        /// Highest epoch that it has seen.
        seen_epoch: u64,
        /// Its residue class: see [`crate::epoch`].
        rank: u64,
    },
    /// A node that does not serve: take the role, under a new epoch.
    TakeOver {
        /// Highest epoch that it has seen.
        seen_epoch: u64,
        /// Its residue class: see [`crate::epoch`].
        rank: u64,
    },
    /// A source that the operator ordered to serve without asking, under this epoch.
    Insist {
        /// This node's role epoch.
        epoch: u64,
    },
    /// A source: suspend or resume automatic failover.
    Maintenance {
        /// This node's role epoch.
        epoch: u64,
        /// True to suspend.
        on: bool,
    },
}

impl Goal {
    /// True for goals that predict what would happen if the nodes lost contact. A store may answer
    /// reads and refuse writes: its space is used up, or the user may only read.
    const fn probes_write(&self) -> bool {
        matches!(self, Goal::Watch | Goal::Publish { .. })
    }
}

/// Reason why a race grants nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denial {
    /// Another replica has won: this one lacks acknowledged writes, or may lack some.
    #[error("the arbiter has recorded replica {source_replica} as the source, under epoch {epoch}")]
    Lost {
        /// Epoch of the record.
        epoch: u64,
        /// The replica that won.
        source_replica: ReplicaId,
        /// Revision of the record.
        revision: u64,
    },
    /// There is no record, although there was one, or this node may not create it.
    #[error("the arbiter has no record of this volume")]
    Missing,
    /// The record is older than this node has seen: the store was restored from a backup.
    #[error("the arbiter's record has revision {found}, older than revision {seen} on this node")]
    Older {
        /// Revision of the record.
        found: u64,
        /// Revision that this node has seen.
        seen: u64,
    },
    /// The record is not readable.
    #[error("the arbiter's record cannot be used: {0}")]
    Unreadable(RecordError),
    /// The record is of another volume.
    #[error("the arbiter's record belongs to another volume")]
    Foreign,
    /// The record is not exclusively this node's, or is not the result of its own lost write.
    #[error(
        "the arbiter's record does not say that this replica alone has every acknowledged write"
    )]
    NotSole,
    /// The operator has suspended automatic failover.
    #[error("automatic failover is suspended for maintenance")]
    Maintenance,
    /// No answer within the attempts of a race.
    #[error("the arbiter does not answer: {0}")]
    Silent(NoAnswer),
}

/// Decision about a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Try to store this record.
    Write(ArbiterRecord),
    /// The record already has the wanted content, and its writer does not matter. A node that only
    /// compares the record also tests whether it could write: see [`RaceAction::ProbeWrite`].
    Keep(ArbiterRecord),
    /// Grant nothing.
    Deny(Denial),
}

/// Decides about a record.
pub fn decide(ask: &Ask, stored: Option<&Stored>) -> Decision {
    let found = match stored.map(|stored| ArbiterRecord::decode(&stored.bytes)).transpose() {
        Ok(found) => found,
        Err(error) => return Decision::Deny(Denial::Unreadable(error)),
    };
    if found.as_ref().is_some_and(|found| found.volume != ask.volume) {
        return Decision::Deny(Denial::Foreign);
    }
    let newest = found.as_ref().map_or(0, |found| found.revision).max(ask.seen_revision);
    let recorded_epoch = found.as_ref().map_or(0, |found| found.epoch);
    let proposal = |epoch: u64, in_sync: Vec<ReplicaId>, maintenance: bool| {
        let revision = newest.saturating_add(1);
        let (volume, source, writer) = (ask.volume, ask.own, ask.writer);
        Decision::Write(ArbiterRecord {
            volume,
            epoch,
            revision,
            source,
            in_sync,
            maintenance,
            writer,
        })
    };
    match ask.goal {
        Goal::Publish { peer, epoch, occasion } => {
            let mut in_sync: Vec<ReplicaId> = [ask.own].into_iter().chain(peer).collect();
            in_sync.sort_unstable();
            match found {
                // Without the peer in the list, the result would be a right to run degraded, which
                // a delayed write of the peer could revoke. That right needs a write of its own.
                Some(found)
                    if peer.is_some()
                        && occasion == Occasion::Change
                        && says(ask, &found, &in_sync, epoch) =>
                {
                    Decision::Keep(found)
                }
                // The peer took over because it lost contact with this node. After a pause of its
                // machine, this node may still believe in its session.
                Some(found)
                    if occasion != Occasion::NewSession
                        && !found.is_in_sync(ask.own)
                        && found.revision > ask.seen_revision =>
                {
                    Decision::Deny(lost(&found))
                }
                _ => proposal(epoch.max(recorded_epoch), in_sync, ask.suspended),
            }
        }
        Goal::RunDegraded { epoch } => match found {
            // The volume never had a record, so no other node has been granted anything.
            None if ask.seen_revision == 0 => proposal(epoch, vec![ask.own], ask.suspended),
            found => match unless_succeeded(ask, found, listed) {
                Ok(_) => proposal(epoch.max(recorded_epoch), vec![ask.own], ask.suspended),
                Err(denial) => Decision::Deny(denial),
            },
        },
        Goal::StayDegraded { epoch } => match found {
            Some(found) if !found.is_in_sync(ask.own) => Decision::Deny(lost(&found)),
            Some(found) if says(ask, &found, &[ask.own], epoch) => Decision::Keep(found),
            _ => proposal(epoch.max(recorded_epoch), vec![ask.own], ask.suspended),
        },
        Goal::Watch => match eligible(ask, found) {
            Ok(found) if found.maintenance => Decision::Deny(Denial::Maintenance),
            Ok(found) => Decision::Keep(found),
            Err(denial) => Decision::Deny(denial),
        },
        Goal::Reclaim { seen_epoch, rank } => match eligible(ask, found) {
            Ok(found) if found.maintenance => Decision::Deny(Denial::Maintenance),
            Ok(found)
                if found.source == ask.own
                    && found.in_sync == [ask.own]
                    && found.revision > ask.seen_revision =>
            {
                proposal(next_epoch(seen_epoch.max(found.epoch), rank), vec![ask.own], false)
            }
            Ok(_) => Decision::Deny(Denial::NotSole),
            Err(denial) => Decision::Deny(denial),
        },
        Goal::TakeOver { seen_epoch, rank } => match unless_succeeded(ask, found, eligible) {
            Ok(found) if found.maintenance => Decision::Deny(Denial::Maintenance),
            Ok(found) => {
                let epoch = next_epoch(seen_epoch.max(found.epoch), rank);
                proposal(epoch, vec![ask.own], false)
            }
            Err(denial) => Decision::Deny(denial),
        },
        // Another replica was promoted later.
        Goal::Insist { epoch } => match found {
            Some(ArbiterRecord { epoch: later, source: source_replica, revision, .. })
                if later > epoch && source_replica != ask.own =>
            {
                Decision::Deny(Denial::Lost { epoch: later, source_replica, revision })
            }
            _ => proposal(epoch.max(recorded_epoch), vec![ask.own], ask.suspended),
        },
        Goal::Maintenance { epoch, on } => match listed(ask, found) {
            Ok(found) if found.maintenance == on => Decision::Keep(found),
            Ok(found) => proposal(epoch.max(found.epoch), found.in_sync, on),
            Err(denial) => Decision::Deny(denial),
        },
    }
}

/// True if the record already equals the record of this source.
fn says(ask: &Ask, found: &ArbiterRecord, in_sync: &[ReplicaId], epoch: u64) -> bool {
    found.source == ask.own
        && found.in_sync == in_sync
        && found.epoch >= epoch
        && found.revision >= ask.seen_revision
        && found.maintenance == ask.suspended
}

fn lost(found: &ArbiterRecord) -> Denial {
    let ArbiterRecord { epoch, source: source_replica, revision, .. } = *found;
    Denial::Lost { epoch, source_replica, revision }
}

/// The record, if it allows a node that does not serve to become the source.
fn eligible(ask: &Ask, found: Option<ArbiterRecord>) -> Result<ArbiterRecord, Denial> {
    if ask.seen_revision == 0 {
        let found = found.ok_or(Denial::Missing)?.revision;
        return Err(Denial::Older { found, seen: 0 });
    }
    listed(ask, found)
}

/// The record, if the former source had seen exactly this one when it handed over (see
/// [`Ask::succeeds`]), or if `rule` accepts it.
fn unless_succeeded(
    ask: &Ask,
    found: Option<ArbiterRecord>,
    rule: fn(&Ask, Option<ArbiterRecord>) -> Result<ArbiterRecord, Denial>,
) -> Result<ArbiterRecord, Denial> {
    match found {
        Some(found)
            if ask.succeeds
                && found.revision == ask.seen_revision
                && found.in_sync == [found.source] =>
        {
            Ok(found)
        }
        found => rule(ask, found),
    }
}

/// The record, if it is not older than this node has seen, and lists the node as in sync.
fn listed(ask: &Ask, found: Option<ArbiterRecord>) -> Result<ArbiterRecord, Denial> {
    let found = found.ok_or(Denial::Missing)?;
    if found.revision < ask.seen_revision {
        return Err(Denial::Older { found: found.revision, seen: ask.seen_revision });
    }
    if !found.is_in_sync(ask.own) {
        return Err(lost(&found));
    }
    Ok(found)
}

/// State of a race.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RaceState {
    /// A read is in flight.
    Reading(Attempt),
    /// A write of `record` is in flight.
    Writing {
        /// The attempt.
        attempt: Attempt,
        /// Record to write.
        record: ArbiterRecord,
    },
    /// The record is kept, and a probe write of it is in flight.
    ProbingWrite {
        /// The attempt.
        attempt: Attempt,
        /// The record.
        record: ArbiterRecord,
    },
    /// The store did not answer, and is asked again after a pause.
    Pausing(Attempt),
    /// The race has ended.
    Ended(Result<ArbiterRecord, Denial>),
}

/// Progress of a race.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Request of the node.
    pub ask: Ask,
    /// Attempts that failed.
    pub failed: u32,
    /// Records whose write had a lost answer or a conflict. One of them may be stored.
    pub unanswered: Vec<ArbiterRecord>,
}

impl Attempt {
    fn remember(&mut self, record: ArbiterRecord) {
        if !self.unanswered.contains(&record) {
            self.unanswered.push(record);
        }
    }
}

/// An event of a race.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RaceEvent {
    /// Result of [`RaceAction::Read`].
    Read(Result<Option<Stored>, NoAnswer>),
    /// Result of [`RaceAction::Write`].
    Written(Result<Written, NoAnswer>),
    /// Result of [`RaceAction::ProbeWrite`].
    WriteProbed(Result<(), NoAnswer>),
    /// End of [`RaceAction::Pause`].
    Paused,
}

/// The action that leads to the next event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RaceAction {
    /// Read the record.
    Read,
    /// Store `record`, if `expected` is still stored.
    Write {
        /// Record to replace; `None` if there is none.
        expected: Option<Stored>,
        /// Record to write.
        record: ArbiterRecord,
    },
    /// See [`Arbiter::probe_write`](crate::Arbiter::probe_write).
    ProbeWrite(ArbiterRecord),
    /// Wait, in milliseconds.
    Pause(u64),
}

/// Starts a race.
pub fn start(ask: Ask) -> (RaceState, RaceAction) {
    (RaceState::Reading(Attempt { ask, failed: 0, unanswered: Vec::new() }), RaceAction::Read)
}

/// Transition for an event. An event that does not fit the state changes nothing.
pub fn next(state: RaceState, event: RaceEvent) -> (RaceState, Option<RaceAction>) {
    match (state, event) {
        (RaceState::Reading(attempt), RaceEvent::Read(Ok(stored))) => read(attempt, stored),
        (RaceState::Reading(attempt), RaceEvent::Read(Err(silence))) => failed(attempt, silence),
        (RaceState::Writing { record, .. }, RaceEvent::Written(Ok(Written::Yes))) => {
            (RaceState::Ended(Ok(record)), None)
        }
        // Conflict: another node wrote, an earlier write of this node arrived late, or the store
        // retried this write and rejected the retry. Read back to find out.
        (RaceState::Writing { attempt, record }, RaceEvent::Written(Ok(Written::Conflict))) => {
            let mut attempt = Attempt { failed: attempt.failed + 1, ..attempt };
            attempt.remember(record);
            match attempt.failed >= ATTEMPTS_MAX {
                true => (RaceState::Ended(Err(Denial::Silent(conflict()))), None),
                false => (RaceState::Reading(attempt), Some(RaceAction::Read)),
            }
        }
        (RaceState::Writing { mut attempt, record }, RaceEvent::Written(Err(silence))) => {
            attempt.remember(record);
            failed(attempt, silence)
        }
        (RaceState::ProbingWrite { record, .. }, RaceEvent::WriteProbed(Ok(()))) => {
            (RaceState::Ended(Ok(record)), None)
        }
        (RaceState::ProbingWrite { attempt, .. }, RaceEvent::WriteProbed(Err(silence))) => {
            failed(attempt, silence)
        }
        (RaceState::Pausing(attempt), RaceEvent::Paused) => {
            (RaceState::Reading(attempt), Some(RaceAction::Read))
        }
        (state, _) => (state, None),
    }
}

fn conflict() -> NoAnswer {
    NoAnswer("other writers are always faster".to_owned())
}

/// Reads back first: the record shows which node won.
fn read(attempt: Attempt, stored: Option<Stored>) -> (RaceState, Option<RaceAction>) {
    if let Some(stored) = &stored
        && let Some(won) = attempt.unanswered.iter().find(|own| own.encode() == stored.bytes)
    {
        return (RaceState::Ended(Ok(won.clone())), None);
    }
    match decide(&attempt.ask, stored.as_ref()) {
        Decision::Write(record) => {
            let action = RaceAction::Write { expected: stored, record: record.clone() };
            (RaceState::Writing { attempt, record }, Some(action))
        }
        Decision::Keep(record) if attempt.ask.goal.probes_write() => {
            let action = RaceAction::ProbeWrite(record.clone());
            (RaceState::ProbingWrite { attempt, record }, Some(action))
        }
        Decision::Keep(record) => (RaceState::Ended(Ok(record)), None),
        Decision::Deny(denial) => (RaceState::Ended(Err(denial)), None),
    }
}

fn failed(attempt: Attempt, silence: NoAnswer) -> (RaceState, Option<RaceAction>) {
    let attempt = Attempt { failed: attempt.failed + 1, ..attempt };
    if attempt.failed >= ATTEMPTS_MAX {
        return (RaceState::Ended(Err(Denial::Silent(silence))), None);
    }
    let pause_ms = (PAUSE_MIN_MS << (attempt.failed - 1)).min(PAUSE_MAX_MS);
    (RaceState::Pausing(attempt), Some(RaceAction::Pause(pause_ms)))
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Goal::Publish { peer: Some(_), .. } => "record the attached peer as in sync",
            Goal::Publish { peer: None, .. } => "record the attached peer as out of date",
            Goal::Insist { .. } => "serve by order",
            Goal::RunDegraded { .. } => "run degraded",
            Goal::StayDegraded { .. } => "stay without the peer",
            Goal::Watch => "see whether it may take over",
            Goal::Reclaim { .. } => "take over by a grant whose answer was lost",
            Goal::TakeOver { .. } => "take over",
            Goal::Maintenance { on: true, .. } => "suspend automatic failover",
            Goal::Maintenance { on: false, .. } => "resume automatic failover",
        })
    }
}

#[cfg(test)]
#[path = "race_tests.rs"]
mod tests;
