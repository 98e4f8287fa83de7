//! What a mirror says of itself, in the field's words: derived from what is, and stored nowhere.

use std::fmt;

use crate::decide::Amount;
use crate::format::superblock::Role;
use crate::id::{Generation, Uuid};
use crate::peer::LinkStatus;
use crate::versions::Versions;

/// The state of a mirror towards one peer, as it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MirrorState {
    /// Both are equal, and writes go to both.
    Mirroring,
    /// Writes go to both, and what differs is being copied.
    Resynchronizing,
    /// Writes are tracked: paused by the operator, or because the target fell behind.
    Paused,
    /// Writes are not tracked: the operator broke the mirror. All is copied when it goes on.
    Broken,
    /// The peer is out of date and cannot be reached, or has not been asked yet. Writes are tracked.
    ResyncPending,
    /// Both were written without the other. The operator has to choose.
    SplitBrain,
    /// The peer cannot be reached, and nothing was written since.
    Disconnected,
    /// The peer is no replica of this volume, or of another size, granularity or logical block, or it
    /// speaks no version of the link that we do.
    Mismatch,
    /// Neither has whole data, or nobody was made the source.
    NoSource,
    /// This side is a target: the source tells the state.
    Target,
}

impl MirrorState {
    /// In words, as commands and metrics show it.
    pub fn name(self) -> &'static str {
        match self {
            MirrorState::Mirroring => "mirroring",
            MirrorState::Resynchronizing => "resynchronizing",
            MirrorState::Paused => "paused",
            MirrorState::Broken => "broken",
            MirrorState::ResyncPending => "resync-pending",
            MirrorState::SplitBrain => "split-brain",
            MirrorState::Disconnected => "disconnected",
            MirrorState::Mismatch => "mismatch",
            MirrorState::NoSource => "no-source",
            MirrorState::Target => "target",
        }
    }
}

impl fmt::Display for MirrorState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What the operator wants of a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wish {
    /// Keep it up to date.
    #[default]
    Mirror,
    /// Track what it lacks.
    Pause,
    /// Do without it, and do not even track.
    Break,
}

impl Wish {
    /// All, each at the place of the number that it has on disk.
    pub(crate) const ALL: [Wish; 3] = [Wish::Mirror, Wish::Pause, Wish::Break];
}

/// How far a leg has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// No session.
    #[default]
    Lost,
    /// It was met, and nothing can be done: see the finding.
    Met(Finding),
    /// Attached; writes go to both; what differs is copied.
    Resync(Amount),
    /// Attached and equal.
    InSync,
}

/// What a meeting came to when nobody leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The peer leads.
    Following,
    /// See [`crate::plan::Plan::AwaitStepDown`].
    AwaitStepDown,
    /// See [`crate::plan::Plan::Idle`].
    Idle,
    /// See [`crate::plan::Plan::SplitBrain`].
    SplitBrain,
    /// Unrelated or incompatible.
    Mismatch,
    /// It speaks no version of the link that we do.
    NoCommonVersion,
    /// Neither has whole data.
    NoSource,
}

/// What [`derive()`] looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Who we are.
    pub role: Role,
    /// What the operator wants.
    pub wish: Wish,
    /// How far the leg has come.
    pub phase: Phase,
    /// The peer is recorded as out of date.
    pub outdated: bool,
    /// A source is attached here: what another target is like is for that one to say.
    pub attached: bool,
}

/// The state to show. Split brain is shown whatever else holds: it never looks like health.
pub fn derive(facts: Facts) -> MirrorState {
    match (facts.phase, facts.wish) {
        (Phase::Met(Finding::SplitBrain), _) => MirrorState::SplitBrain,
        (_, Wish::Break) => MirrorState::Broken,
        (_, Wish::Pause) => MirrorState::Paused,
        (Phase::InSync, _) => MirrorState::Mirroring,
        (Phase::Resync(_), _) => MirrorState::Resynchronizing,
        (Phase::Met(_), _) if facts.attached => MirrorState::Target,
        (Phase::Met(Finding::Mismatch | Finding::NoCommonVersion), _) => MirrorState::Mismatch,
        (Phase::Met(Finding::NoSource | Finding::Idle), _) => MirrorState::NoSource,
        _ if facts.role == Role::Target => MirrorState::Target,
        _ if facts.outdated => MirrorState::ResyncPending,
        _ => MirrorState::Disconnected,
    }
}

/// A peer, as status shows it. Counters count since the mirror was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// The peer's replica; none before it was first met.
    pub replica: Uuid,
    /// See [`MirrorState`].
    pub state: MirrorState,
    /// Bytes that the peer lacks, at the bitmap's granularity.
    pub out_of_date_bytes: u64,
    /// When it was last known to be in sync, as time since the Unix epoch in seconds; 0 for never
    /// since the mirror was opened.
    pub last_in_sync_s: u64,
    /// Asynchronous mode: bytes and writes that it has not acknowledged.
    pub lag_bytes: u64,
    /// See `lag_bytes`.
    pub lag_writes: u64,
    /// Age of the oldest of them, in µs.
    pub lag_us: u64,
    /// Bytes that the resync under way, or the last one, has copied and had to copy.
    pub resync_done_bytes: u64,
    /// See `resync_done_bytes`.
    pub resync_total_bytes: u64,
    /// Bytes that it skipped, since their checksums were equal.
    pub resync_skipped_bytes: u64,
    /// How fast it goes, in bytes a second.
    pub resync_bytes_per_s: u64,
    /// Sum of what writes waited for this leg beyond the local one, in µs; and of how many.
    pub added_us: u64,
    /// See `added_us`.
    pub added_writes: u64,
    /// Times that it was lost after it had been attached.
    pub losses: u64,
    /// Times that this side gave its data up for the peer's in a split brain, by policy.
    pub given_up: u64,
    /// What it had written without the peer then, at most, at the bitmap's granularity.
    pub given_up_bytes: u64,
    /// The way to it.
    pub link: LinkStatus,
    /// The versions of the link that it spoke when it was met last; `None` before.
    pub versions: Option<Versions>,
}

/// A mirror, as status shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The volume.
    pub volume: Uuid,
    /// This replica.
    pub replica: Uuid,
    /// The versions of the link that this node speaks.
    pub versions: Versions,
    /// Who we are.
    pub role: Role,
    /// Hosts are served.
    pub active: bool,
    /// The local leg has failed: the peer carries the volume.
    pub local_failed: bool,
    /// Highest epoch seen.
    pub epoch: u64,
    /// Generation of the data here.
    pub generation: Generation,
    /// A resync to this replica has not ended.
    pub inconsistent: bool,
    /// Peers.
    pub peers: Vec<PeerStatus>,
    /// Writes of hosts in flight, and reads that wait for one; and those of them that wait for one
    /// that overlaps.
    pub in_flight: u64,
    /// See `in_flight`.
    pub waiting_for_overlap: u64,
    /// Writes of hosts.
    pub writes: u64,
    /// Sum of what the local leg took for them, in µs.
    pub local_us: u64,
    /// Writes held now: for the peer (strict), or for a change of role.
    pub held: u64,
}

impl PeerStatus {
    /// Time until the resync ends at its present rate, in seconds; `None` when none goes on.
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

    fn facts() -> Facts {
        Facts {
            role: Role::Source,
            wish: Wish::Mirror,
            phase: Phase::Lost,
            outdated: false,
            attached: false,
        }
    }

    #[test]
    fn states_follow_from_facts() {
        let shown = |facts| derive(facts).name();
        assert_eq!(shown(facts()), "disconnected");
        assert_eq!(shown(Facts { outdated: true, ..facts() }), "resync-pending");
        assert_eq!(shown(Facts { phase: Phase::InSync, ..facts() }), "mirroring");
        assert_eq!(
            shown(Facts { phase: Phase::Resync(Amount::Full), ..facts() }),
            "resynchronizing"
        );
        assert_eq!(shown(Facts { wish: Wish::Pause, ..facts() }), "paused");
        assert_eq!(shown(Facts { wish: Wish::Break, ..facts() }), "broken");
        assert_eq!(shown(Facts { role: Role::Target, ..facts() }), "target");
        let idle = Facts { phase: Phase::Met(Finding::Idle), ..facts() };
        assert_eq!(shown(idle), "no-source");
        assert_eq!(shown(Facts { attached: true, ..idle }), "target");
        let stranger = Phase::Met(Finding::NoCommonVersion);
        assert_eq!(shown(Facts { phase: stranger, outdated: true, ..facts() }), "mismatch");
    }

    #[test]
    fn split_brain_is_never_shown_as_anything_else() {
        let phase = Phase::Met(Finding::SplitBrain);
        for role in [Role::Source, Role::Target] {
            for wish in [Wish::Mirror, Wish::Pause, Wish::Break] {
                for outdated in [false, true] {
                    let facts = Facts { role, wish, phase, outdated, attached: false };
                    assert_eq!(derive(facts), MirrorState::SplitBrain);
                }
            }
        }
    }
}
