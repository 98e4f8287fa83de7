//! Mirror state as shown to people and tools. Derived on demand and stored nowhere.

use crate::agree::decide::ResyncAmount;
use crate::agree::versions::LinkVersions;
use crate::id::{Generation, MirrorId};
use crate::named;
use crate::ondisk::superblock::ReplicaRole;
use crate::session::bad_ranges::BadRange;
use crate::wire::peer::LinkStatus;

named! {
    /// The state of a mirror toward one peer.
    pub enum MirrorState {
        /// Both replicas are equal, and writes go to both.
        Mirroring = "mirroring",
        /// Writes go to both, and the differences are being copied.
        Resynchronizing = "resynchronizing",
        /// Writes are tracked, not sent: the operator paused the mirror.
        Paused = "paused",
        /// Writes are neither sent nor tracked: the operator broke the mirror. Everything is copied
        /// when it continues.
        Broken = "broken",
        /// The peer is out of date and either unreachable or not asked yet. Writes are tracked.
        ResyncPending = "resync-pending",
        /// Both replicas were written independently. The operator has to choose.
        SplitBrain = "split-brain",
        /// The peer is unreachable, and nothing was written since.
        Disconnected = "disconnected",
        /// The peer is not a replica of this volume; or its size, granularity or logical block size
        /// does not fit; or it speaks no version of the link in common, or means another
        /// consistency group.
        Mismatch = "mismatch",
        /// No replica has consistent data, or none was made the source.
        NoSource = "no-source",
        /// This side is a target: the source reports the state.
        Target = "target",
    }
}

named! {
    /// Desired state of the connection to one peer.
    #[derive(Default)]
    pub enum DesiredState {
        /// Keep the peer up to date.
        #[default]
        Connected = "connected",
        /// Record the peer's out-of-sync blocks, without sending them.
        Paused = "paused",
        /// Do without the peer, and do not even record what it lacks.
        Detached = "detached",
    }
}

/// Progress of a leg's connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LegPhase {
    /// No session.
    #[default]
    Disconnected,
    /// The handshake succeeded, and there is nothing to lead. The outcome says why.
    Handshake(HandshakeOutcome),
    /// Attached. Writes go to both legs, and differences are being copied.
    Resync(ResyncAmount),
    /// Attached and equal.
    InSync,
}

/// Outcome of a handshake after which this side does not lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeOutcome {
    /// The peer leads.
    Following,
    /// See [`crate::agree::plan::HandshakePlan::AwaitStepDown`].
    AwaitStepDown,
    /// See [`crate::agree::plan::HandshakePlan::Idle`].
    Idle,
    /// See [`crate::agree::plan::HandshakePlan::SplitBrain`].
    SplitBrain,
    /// Unrelated or incompatible.
    Mismatch,
    /// No version of the link in common.
    NoCommonVersion,
    /// Neither replica has consistent data.
    NoSource,
    /// The volume belongs to another consistency group there, or to none.
    OtherGroup,
}

/// Input of [`derive()`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MirrorFacts {
    /// This side's role.
    pub role: ReplicaRole,
    /// Desired state.
    pub desired_state: DesiredState,
    /// Progress of the leg's connection.
    pub phase: LegPhase,
    /// The peer is recorded as out of date.
    pub outdated: bool,
    /// True if a source is attached here. That source reports the state of other targets.
    pub attached: bool,
}

/// State to show. A split brain is shown whatever the desired state, so that it is never mistaken
/// for health.
pub fn derive(facts: MirrorFacts) -> MirrorState {
    match (facts.phase, facts.desired_state) {
        (LegPhase::Handshake(HandshakeOutcome::SplitBrain), _) => MirrorState::SplitBrain,
        (_, DesiredState::Detached) => MirrorState::Broken,
        (_, DesiredState::Paused) => MirrorState::Paused,
        (LegPhase::InSync, _) => MirrorState::Mirroring,
        (LegPhase::Resync(_), _) => MirrorState::Resynchronizing,
        (LegPhase::Handshake(_), _) if facts.attached => MirrorState::Target,
        (
            LegPhase::Handshake(
                HandshakeOutcome::Mismatch
                | HandshakeOutcome::NoCommonVersion
                | HandshakeOutcome::OtherGroup,
            ),
            _,
        ) => MirrorState::Mismatch,
        (LegPhase::Handshake(HandshakeOutcome::NoSource | HandshakeOutcome::Idle), _) => {
            MirrorState::NoSource
        }
        _ if facts.role != ReplicaRole::Source => MirrorState::Target,
        _ if facts.outdated => MirrorState::ResyncPending,
        _ => MirrorState::Disconnected,
    }
}

/// Status of one peer. Counters count since the mirror was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MirrorPeerStatus {
    /// The peer's replica; none before the first handshake.
    pub replica: MirrorId,
    /// See [`MirrorState`].
    pub state: MirrorState,
    /// Bytes that the peer lacks, at the bitmap's granularity.
    pub out_of_sync_bytes: u64,
    /// When the peer was last known to be in sync, in seconds since the Unix epoch; 0 if never
    /// since the mirror was opened.
    pub last_in_sync_s: u64,
    /// Asynchronous mode: bytes and writes that the peer has not acknowledged.
    pub lag_bytes: u64,
    /// See `lag_bytes`.
    pub lag_writes: u64,
    /// Age of the oldest unacknowledged write, in µs.
    pub lag_us: u64,
    /// Bytes that the current or last resync has processed, and its total.
    pub resync_done_bytes: u64,
    /// See `resync_done_bytes`.
    pub resync_total_bytes: u64,
    /// Bytes skipped by that resync because their checksums were equal.
    pub resync_skipped_bytes: u64,
    /// Current rate of the resync, in bytes per second.
    pub resync_bytes_per_s: u64,
    /// Bytes that all resyncs since the replica was opened have processed.
    pub resynced_bytes: u64,
    /// Time that writes waited for this leg after the local leg had completed, in µs, and the
    /// number of writes measured.
    pub added_us: u64,
    /// See `added_us`.
    pub added_writes: u64,
    /// Number of sessions lost after they had been attached.
    pub disconnects: u64,
    /// Number of split brains in which this side discarded its data for the peer's, by policy.
    pub discards: u64,
    /// Upper bound of the data discarded then, at the bitmap's granularity.
    pub discarded_bytes: u64,
    /// Status of the link to the peer.
    pub link: LinkStatus,
    /// Versions of the link that the peer announced at the last handshake; `None` before the first.
    pub versions: Option<LinkVersions>,
}

/// Status of a consistency group on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupStatus {
    /// Its name.
    pub name: String,
    /// Its volumes, the leader first.
    pub volumes: Vec<String>,
    /// Volumes without an open replica on this node.
    pub missing: Vec<String>,
    /// True if every replica on this node has consistent data, so that all show one moment.
    pub consistent: bool,
    /// Volumes that the peer refuses, because they belong to another group there, or to none.
    pub refused: Vec<String>,
}

/// Status of a mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorStatus {
    /// The volume.
    pub volume: MirrorId,
    /// This replica.
    pub replica: MirrorId,
    /// Versions of the link that this node speaks.
    pub versions: LinkVersions,
    /// This side's role.
    pub role: ReplicaRole,
    /// Hosts are being served here.
    pub serving: bool,
    /// The local leg has failed: the peer serves the volume.
    pub local_device_failed: bool,
    /// The highest role epoch seen.
    pub role_epoch: u64,
    /// Generation of the local data.
    pub generation: Generation,
    /// A resync to this replica has not completed.
    pub inconsistent: bool,
    /// The source removed this replica from the mirror: see
    /// [`DiskState::Removed`](crate::state::machine::Disk::Removed).
    pub removed: bool,
    /// Ranges that a resync could not copy to a peer or, on a target, that its source could not
    /// copy to it. Everything else was copied.
    pub bad_ranges: Vec<BadRange>,
    /// Peers, in configuration order.
    pub peers: Vec<MirrorPeerStatus>,
    /// Host writes in flight and reads that wait for one; then, of these, the calls that wait for
    /// an overlapping one.
    pub in_flight: u64,
    /// See `in_flight`.
    pub waiting_for_range_lock: u64,
    /// Host writes.
    pub writes: u64,
    /// Sum of the times that the local leg took for them, in µs.
    pub local_us: u64,
    /// Blocks that a leg could not read, and that were rewritten with the other leg's data; then
    /// their bytes.
    pub repairs: u64,
    /// See `repairs`.
    pub repaired_bytes: u64,
    /// Writes blocked now, because a peer is missing (policy `block`) or during a change of role.
    pub blocked: u64,
}

impl MirrorPeerStatus {
    /// Remaining time of the resync at its current rate, in seconds; `None` when none is running.
    pub fn resync_remaining_s(&self) -> Option<u64> {
        if self.state != MirrorState::Resynchronizing || self.resync_bytes_per_s == 0 {
            return None;
        }
        let left = self.resync_total_bytes.saturating_sub(self.resync_done_bytes);
        Some(left.div_ceil(self.resync_bytes_per_s))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> MirrorFacts {
        MirrorFacts {
            role: ReplicaRole::Source,
            desired_state: DesiredState::Connected,
            phase: LegPhase::Disconnected,
            outdated: false,
            attached: false,
        }
    }

    #[test]
    fn state_is_derived_from_facts() {
        let shown = |facts| derive(facts).name();
        assert_eq!(shown(facts()), "disconnected");
        assert_eq!(shown(MirrorFacts { outdated: true, ..facts() }), "resync-pending");
        assert_eq!(shown(MirrorFacts { phase: LegPhase::InSync, ..facts() }), "mirroring");
        assert_eq!(
            shown(MirrorFacts { phase: LegPhase::Resync(ResyncAmount::Full), ..facts() }),
            "resynchronizing"
        );
        assert_eq!(shown(MirrorFacts { desired_state: DesiredState::Paused, ..facts() }), "paused");
        assert_eq!(
            shown(MirrorFacts { desired_state: DesiredState::Detached, ..facts() }),
            "broken"
        );
        assert_eq!(shown(MirrorFacts { role: ReplicaRole::Target, ..facts() }), "target");
        let idle = MirrorFacts { phase: LegPhase::Handshake(HandshakeOutcome::Idle), ..facts() };
        assert_eq!(shown(idle), "no-source");
        assert_eq!(shown(MirrorFacts { attached: true, ..idle }), "target");
        let incompatible_version = LegPhase::Handshake(HandshakeOutcome::NoCommonVersion);
        assert_eq!(
            shown(MirrorFacts { phase: incompatible_version, outdated: true, ..facts() }),
            "mismatch"
        );
    }

    #[test]
    fn split_brain_is_always_shown() {
        let phase = LegPhase::Handshake(HandshakeOutcome::SplitBrain);
        for role in [ReplicaRole::Source, ReplicaRole::Target] {
            for desired_state in
                [DesiredState::Connected, DesiredState::Paused, DesiredState::Detached]
            {
                for outdated in [false, true] {
                    let facts =
                        MirrorFacts { role, desired_state, phase, outdated, attached: false };
                    assert_eq!(derive(facts), MirrorState::SplitBrain);
                }
            }
        }
    }
}
