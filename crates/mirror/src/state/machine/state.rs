//! State of the machine: the input of a change of role.
//!
//! Invariants:
//! - [`MachineState`] is a plain value, which the mirror derives from its own state for each event;
//!   only [`next`](super::next) makes the following one;
//! - [`MachineState::serves`] is the only way into [`NodeRole::Serving`] with a claim, and refuses
//!   while [`MachineState::promised`] is set;
//! - only data that is [`servable`] is served.

use crate::limits::PEERS_MAX;
use crate::ondisk::superblock::ReplicaRole;
use crate::state::status::{DesiredState, LegPhase};

use super::Transition;
use super::action::{Action, Actions, ServeClaim};
use super::refusal::OrderRefusal;

/// Input of a change of role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineState {
    /// Role of this node.
    pub role: NodeRole,
    /// State of the local data.
    pub disk: DiskState,
    /// One leg per configured peer.
    pub legs: [Option<Leg>; PEERS_MAX],
    /// Records of peers in the superblock, in the order of their first handshake. A peer that was
    /// replaced or is no longer configured keeps its record, so records do not correspond to legs.
    pub records: [PeerDataState; PEERS_MAX],
    /// Epoch of a peer that takes the role: set from its announcement until this node has acted on
    /// it, which may wait for another change of role. 0 without an announcement.
    pub promised: u64,
    /// Epoch that this node has announced to its peers, until its order ends. 0 without an
    /// announcement.
    pub announced: u64,
    /// State of the group's leader on this node, if this is another member of a group.
    pub leader: Option<Leader>,
}

/// State of the first member of a consistency group, which decides about the node of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leader {
    /// It serves hosts.
    Serves,
    /// It is the last source, and does not serve yet.
    Waits,
    /// It is the target of a source, which serves the group.
    Follows,
    /// It is a target without a source, or was deposed: the group is served elsewhere, or nowhere.
    Elsewhere,
    /// It is not open.
    Absent,
}

impl Leader {
    /// State for the role of a leader.
    pub fn of(role: NodeRole) -> Leader {
        match role {
            NodeRole::Serving { .. } => Leader::Serves,
            NodeRole::Waiting { .. } => Leader::Waits,
            NodeRole::Target { attached: true, .. } => Leader::Follows,
            NodeRole::Target { .. } | NodeRole::Deposed { .. } => Leader::Elsewhere,
            NodeRole::Closed => Leader::Absent,
        }
    }
}

/// Role of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeRole {
    /// The mirror has ended, or moves to another one: every event is refused.
    Closed,
    /// The source: hosts are served.
    Serving {
        /// Role epoch.
        epoch: u64,
    },
    /// The last source. It serves no hosts until its peers have answered or the operator has
    /// decided.
    Waiting {
        /// Role epoch.
        epoch: u64,
        /// True if a peer was asked to take the role, and its answer is unknown.
        handed_over: bool,
    },
    /// A target.
    Target {
        /// Highest role epoch that the peer has seen.
        epoch: u64,
        /// True if a source is attached.
        attached: bool,
    },
    /// A former source that another node replaced without its consent. Its data is kept for the
    /// operator.
    Deposed {
        /// Role epoch of that node.
        by: u64,
    },
}

/// State of the local data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskState {
    /// Consistent; the records of the peers say whether it is current.
    Consistent,
    /// It never held data.
    Blank,
    /// A resync to it has not completed.
    Inconsistent,
    /// A resync to it has copied everything but the listed ranges, which a device could not read or
    /// write.
    Incomplete,
    /// A flush failed earlier, and no resync has completed since.
    Unverified,
    /// Consistent as of the time when its source removed it from the mirror.
    Removed,
    /// The device has failed. A peer serves the volume, or no node does.
    Failed,
}

/// Leg to one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leg {
    /// State that the operator asked for.
    pub desired: DesiredState,
    /// Progress of the connection.
    pub phase: LegPhase,
}

/// The superblock's record of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerDataState {
    /// No peer had a handshake.
    Unknown,
    /// It may have all data.
    Current,
    /// It lacks acknowledged writes.
    Outdated,
}

impl NodeRole {
    /// The highest role epoch seen.
    pub fn epoch(self) -> u64 {
        match self {
            NodeRole::Closed => 0,
            NodeRole::Serving { epoch }
            | NodeRole::Waiting { epoch, .. }
            | NodeRole::Target { epoch, .. } => epoch,
            NodeRole::Deposed { by } => by,
        }
    }

    /// Role as it is stored in the superblock.
    pub fn stored(self) -> ReplicaRole {
        match self {
            NodeRole::Serving { .. } | NodeRole::Waiting { .. } => ReplicaRole::Source,
            NodeRole::Deposed { .. } => ReplicaRole::Deposed,
            NodeRole::Target { .. } | NodeRole::Closed => ReplicaRole::Target,
        }
    }
}

impl MachineState {
    pub(super) fn to(self, role: NodeRole, actions: &[Action]) -> (MachineState, Actions) {
        (MachineState { role, ..self }, Actions::of(actions))
    }

    /// [`MachineState::to`], if this node may begin to serve now.
    pub(super) fn serves(self, claim: ServeClaim, before: &[Action]) -> Transition {
        if self.promised > 0 {
            return Err(OrderRefusal::Overtaken);
        }
        let epoch = self.role.epoch();
        let epoch = if claim == ServeClaim::Resumed { epoch } else { epoch.saturating_add(1) };
        let mut actions = before.to_vec();
        actions.push(Action::Serve(claim));
        Ok(self.to(NodeRole::Serving { epoch }, &actions))
    }

    pub(super) fn leg(&self, leg: usize) -> Result<Leg, OrderRefusal> {
        self.legs.get(leg).copied().flatten().ok_or(OrderRefusal::NoPeer)
    }

    pub(super) fn has_several_peers(&self) -> bool {
        self.legs.iter().flatten().count() > 1
    }
}

/// Checks that the local data may be served at all.
pub(crate) fn servable(state: &MachineState, unverified: bool) -> Result<(), OrderRefusal> {
    match state.disk {
        DiskState::Consistent => Ok(()),
        DiskState::Unverified | DiskState::Incomplete | DiskState::Removed if unverified => Ok(()),
        DiskState::Unverified => Err(OrderRefusal::Unverified),
        DiskState::Blank => Err(OrderRefusal::Blank),
        DiskState::Inconsistent => Err(OrderRefusal::Inconsistent),
        DiskState::Incomplete => Err(OrderRefusal::Incomplete),
        DiskState::Removed => Err(OrderRefusal::Removed),
        DiskState::Failed => Err(OrderRefusal::Failed),
    }
}

pub(super) fn unchanged(state: &MachineState) -> (MachineState, Actions) {
    (*state, Actions::default())
}
