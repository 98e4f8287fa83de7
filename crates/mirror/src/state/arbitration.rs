//! Arbitration: the next step of a node toward the arbiter, as one pure function of its situation.
//!
//! A source whose peer may take over is *contested*. It serves reads only while its peer has
//! confirmed, less than the [read lease](Timing::lease_ns) ago, that it does not ask the arbiter
//! yet, and acknowledges no write that the peer lacks. It is *alone* once the arbiter's record
//! excludes the peer; then it needs no arbiter.
//!
//! The lease ends before the peer asks, whichever node's clock is faster:
//!
//! ```text
//! source   sends a renewal at s ────────── serves reads until s + lease
//! target        answers at t ≥ s ────────────────────────── asks at t + failover_after
//!               failover_after = lease + lease / 7
//! ```
//!
//! With clocks whose rates differ by ρ, the lease ends in time if `lease · (1 + ρ) ≤ failover_after
//! · (1 − ρ)`, so up to ρ = 1/15. Clocks of computers differ by less than 1/1000. Only durations
//! are compared, never points of time of two nodes. If the nodes have different values of
//! `failover_after`, the target waits for the longer one
//! ([`ArbiterMark::source_after_ms`](crate::ondisk::superblock::ArbiterMark::source_after_ms)). A
//! process that was paused, or a machine that was suspended, finds its lease ended, because the
//! clock runs on (`CLOCK_BOOTTIME`). A virtual machine that its hypervisor paused may not: its
//! clock stands still meanwhile. The guide says how to fence it.
//!
//! `docs/failover-race.md` describes what happens at the arbiter.

use crate::failover::StoreProof;
use crate::limits::ARBITER_CHECK_MS;
use crate::ondisk::superblock::RecordedRight;
use crate::state::machine::{DiskState, MachineState, NodeRole};
use crate::state::members::Members;
use crate::state::status::LegPhase;

/// Right of a source to serve without its peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServingRight {
    /// Without an arbiter: the operator decides who serves.
    #[default]
    Manual,
    /// The peer may take over.
    Contested {
        /// Since when, in nanoseconds of the runtime's clock.
        since_ns: u64,
        /// The former source handed over and stopped, so nothing waits for it.
        peer_left: bool,
    },
    /// The peer may not take over.
    Alone(PeerExclusion),
}

/// Reason why the peer of a source that is alone may not take over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerExclusion {
    /// The operator ordered it, and the arbiter's record does not have it yet.
    Ordered,
    /// The arbiter's record excludes the peer. It is compared again and again, because a store may
    /// be restored from a backup.
    Recorded {
        /// Time of the last comparison, in nanoseconds of the runtime's clock.
        checked_ns: u64,
    },
    /// The volume never had a peer.
    Unshared,
}

impl ServingRight {
    /// True if reads need a lease, and writes need the peer.
    pub fn is_contested(self) -> bool {
        matches!(self, ServingRight::Contested { .. })
    }
}

/// Times derived from `failover_after`, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Time after its last answer to the source at which a target asks the arbiter.
    pub failover_after_ns: u64,
}

impl Timing {
    /// Time for which a source serves reads after it sent a renewal that the peer has answered.
    pub const fn lease_ns(self) -> u64 {
        self.failover_after_ns - self.failover_after_ns / 8
    }

    /// Interval of renewals.
    pub const fn renew_ns(self) -> u64 {
        self.failover_after_ns / 8
    }

    /// Time before the end of the lease at which a source disconnects a silent peer and asks the
    /// arbiter, so that reads continue meanwhile.
    pub const fn margin_ns(self) -> u64 {
        self.failover_after_ns / 8
    }

    /// Time after the end of the lease at which a source without an answer of the arbiter refuses
    /// hosts, so that they try another path. Reads wait until then.
    pub const fn grace_ns(self) -> u64 {
        self.failover_after_ns / 8
    }
}

/// Input of the decision about the next step.
#[derive(Clone, Copy, Debug)]
pub struct Situation {
    /// Role, data and legs.
    pub state: MachineState,
    /// Right of a source that serves.
    pub serving_right: ServingRight,
    /// True if the peer has admitted the current session. Before that, the peer may be taking the
    /// role itself.
    pub is_admitted: bool,
    /// True during a change of role, whose outcome comes first.
    pub changes_role: bool,
    /// Right recorded in the superblock.
    pub mark: RecordedRight,
    /// Highest revision of the record seen; 0 for none.
    pub revision: u64,
    /// True if the right and the revision of this replica belong to another store than the
    /// configured one. The peer may be granted there what this node asks for here. A source decides
    /// nothing without its peer until it has recorded its attached peer at this store, or the
    /// operator decides; a target, until its source has recorded it here.
    pub is_other_store: bool,
    /// Time of the next comparison with the record, which lists the peer as in sync, in the current
    /// session.
    pub published_until_ns: Option<u64>,
    /// True if a write waits for the right to be acknowledged without the peer.
    pub write_waits: bool,
    /// Present time on the runtime's clock, in nanoseconds.
    pub now_ns: u64,
    /// End of the read lease.
    pub lease_until_ns: u64,
    /// Earliest time at which a node that does not serve asks.
    pub ask_not_before_ns: u64,
    /// See [`ArbiterMark::source_asks`](crate::ondisk::superblock::ArbiterMark::source_asks).
    pub source_asks: bool,
    /// Time when an attached target last compared the record; 0 if not since it was attached.
    pub watched_ns: u64,
    /// At an attached target: proof that source and target use one store.
    pub proof: StoreProof,
    /// The other members of the consistency group.
    pub members: Members,
    /// Times derived from the configuration.
    pub timing: Timing,
}

/// The next step of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing before this time, if any, unless the situation changes.
    Wait(Option<u64>),
    /// Record the attached peer, which is in sync or being brought up to date.
    Publish {
        /// True if the peer is in sync.
        in_sync: bool,
    },
    /// The peer does not answer: end its session.
    Disconnect,
    /// Ask for the right to run degraded.
    RunDegraded,
    /// Compare the record that excludes the peer.
    StayDegraded,
    /// At an attached target: check whether the arbiter would grant the role.
    Watch,
    /// Ask for the role, in case it was granted earlier and the answer lost.
    Reclaim,
    /// Refuse hosts: neither the peer nor the arbiter answers.
    StopServing,
    /// Have the operator's order recorded.
    Insist,
    /// The source does not answer: accept no more of its calls.
    DetachSource,
    /// Ask for the role.
    TakeOver,
}

impl Step {
    /// True for a step that asks for the role.
    pub(crate) const fn takes_role(self) -> bool {
        matches!(self, Step::TakeOver | Step::Reclaim)
    }
}

/// Next step of a node with one peer. With several peers the operator decides: each of two targets
/// would conclude that it must take over.
pub fn step(situation: &Situation) -> Step {
    let Situation { state, timing, now_ns, .. } = situation;
    let mut legs = state.legs.iter().flatten();
    let (Some(leg), None) = (legs.next(), legs.next()) else { return Step::Wait(None) };
    let attached =
        situation.is_admitted && matches!(leg.phase, LegPhase::InSync | LegPhase::Resync(_));
    match state.role {
        _ if state.disk != DiskState::Consistent || state.promised > 0 => Step::Wait(None),
        NodeRole::Closed | NodeRole::Deposed { .. } => Step::Wait(None),
        NodeRole::Serving { .. } => serving(situation, leg.phase, attached),
        _ if situation.changes_role => Step::Wait(None),
        // The volume never had a record with a peer, so the rules without an arbiter apply.
        _ if situation.revision == 0 => Step::Wait(None),
        // Also at another store than before, where the source has just recorded it.
        NodeRole::Target { attached: true, .. }
            if situation.proof.is_pending() && !situation.mark.is_of_source() =>
        {
            Step::Watch
        }
        _ if situation.is_other_store => Step::Wait(None),
        NodeRole::Waiting { .. } if attached => Step::Wait(None),
        NodeRole::Target { .. } if situation.mark.is_of_source() => Step::Wait(None),
        NodeRole::Target { attached: true, .. } if situation.mark == RecordedRight::Unknown => {
            Step::Wait(None)
        }
        NodeRole::Target { attached: true, .. } => watching(situation),
        _ if *now_ns < situation.ask_not_before_ns => Step::Wait(Some(situation.ask_not_before_ns)),
        _ if situation.members == Members::Attached => Step::DetachSource,
        _ if situation.members != Members::Ready => Step::Wait(None),
        NodeRole::Target { .. } if situation.mark == RecordedRight::Unknown => {
            if situation.source_asks { Step::Reclaim } else { Step::Wait(None) }
        }
        NodeRole::Target { .. } | NodeRole::Waiting { .. } => {
            debug_assert!(timing.lease_ns() < timing.failover_after_ns);
            Step::TakeOver
        }
    }
}

/// Step of a target that may take over when its source is lost.
fn watching(situation: &Situation) -> Step {
    let Situation { now_ns, watched_ns, ask_not_before_ns, .. } = *situation;
    let compare_at = compared_again_at(watched_ns);
    match () {
        () if now_ns >= ask_not_before_ns => Step::DetachSource,
        () if watched_ns == 0 || now_ns >= compare_at => Step::Watch,
        () => Step::Wait(Some(ask_not_before_ns.min(compare_at))),
    }
}

/// Time at which a record is compared again after a comparison.
pub(crate) fn compared_again_at(compared_ns: u64) -> u64 {
    compared_ns.saturating_add(ARBITER_CHECK_MS * 1_000_000)
}

fn serving(situation: &Situation, phase: LegPhase, attached: bool) -> Step {
    let Situation { timing, now_ns, lease_until_ns, .. } = *situation;
    match situation.serving_right {
        ServingRight::Manual => Step::Wait(None),
        ServingRight::Alone(_) if attached && phase == LegPhase::InSync => {
            Step::Publish { in_sync: true }
        }
        ServingRight::Alone(PeerExclusion::Ordered) => Step::Insist,
        ServingRight::Alone(PeerExclusion::Unshared) => Step::Wait(None),
        ServingRight::Alone(_) if situation.is_other_store => Step::Wait(None),
        ServingRight::Alone(PeerExclusion::Recorded { .. })
            if situation.members == Members::Behind =>
        {
            Step::StayDegraded
        }
        ServingRight::Alone(PeerExclusion::Recorded { checked_ns }) => {
            match compared_again_at(checked_ns) {
                due if now_ns >= due => Step::StayDegraded,
                due => Step::Wait(Some(due)),
            }
        }
        ServingRight::Contested { since_ns, peer_left } => {
            let lease_until_ns = lease_until_ns.max(since_ns.saturating_add(timing.lease_ns()));
            let ask_at = lease_until_ns.saturating_sub(timing.margin_ns());
            let stop_at = lease_until_ns.saturating_add(timing.grace_ns());
            match phase {
                _ if now_ns >= stop_at => Step::StopServing,
                // The peer takes over all volumes.
                _ if situation.members == Members::Failed => Step::StopServing,
                _ if attached && now_ns >= ask_at => Step::Disconnect,
                LegPhase::InSync if attached => match situation.published_until_ns {
                    Some(compare_at) => Step::Wait(Some(ask_at.min(compare_at))),
                    None => Step::Publish { in_sync: true },
                },
                LegPhase::Resync(_) if attached => Step::Publish { in_sync: false },
                _ if situation.is_other_store => Step::Wait(Some(stop_at)),
                _ if situation.members == Members::Unready => Step::Wait(Some(stop_at)),
                // It was alone before its restart, so the decision does not involve its peer.
                _ if !attached && situation.mark.is_alone() => Step::RunDegraded,
                _ if !attached && (situation.write_waits || peer_left || now_ns >= ask_at) => {
                    Step::RunDegraded
                }
                _ => Step::Wait(Some(ask_at)),
            }
        }
    }
}

/// True if the peer of a node that takes the role may have served since this node did, so that it
/// must be fenced. If a source wins that stopped or restarted, its peer has been granted nothing.
pub fn peer_may_have_served(role: NodeRole) -> bool {
    !matches!(role, NodeRole::Waiting { handed_over: false, .. })
}

/// Time at which a source that asks for the right to run degraded stops serving.
pub fn stops_serving_at(situation: &Situation) -> Option<u64> {
    let ServingRight::Contested { since_ns, .. } = situation.serving_right else { return None };
    let NodeRole::Serving { .. } = situation.state.role else { return None };
    let timing = situation.timing;
    let granted = situation.lease_until_ns.max(since_ns.saturating_add(timing.lease_ns()));
    Some(granted.saturating_add(timing.grace_ns()))
}

#[cfg(test)]
#[path = "arbitration_tests.rs"]
pub(in crate::state) mod tests;
