//! State of the machine: the facts on which a change of role depends.
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

/// The part of a mirror's state on which a change of role depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineState {
    /// This node's part.
    pub role: NodeRole,
    /// The local data.
    pub disk: Disk,
    /// One leg per configured peer.
    pub legs: [Option<Leg>; PEERS_MAX],
    /// The superblock's records of peers, in the order in which they were met. A peer that was
    /// replaced or is no longer configured keeps its record, so records do not belong to legs.
    pub records: [PeerDataState; PEERS_MAX],
    /// Epoch under which a peer takes the role: from its announcement until this node has acted on
    /// it, which may wait for another change of role. 0: no announcement.
    pub promised: u64,
    /// Epoch that this node has announced to its peers, until its order ends. 0: none announced.
    pub announced: u64,
    /// The leader of the consistency group on this node, if this is another member of one.
    pub leader: Option<Leader>,
}

/// State of the first member of a consistency group, which decides where the group is served.
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
    /// From the role of the leader.
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
        /// A peer was asked to take the role, and its answer is not known.
        handed_over: bool,
    },
    /// A target.
    Target {
        /// The highest role epoch that it has seen.
        epoch: u64,
        /// A source is attached.
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
pub enum Disk {
    /// Consistent. The peers' records say whether it is current.
    Consistent,
    /// It never held data.
    Blank,
    /// A resync to it has not completed.
    Inconsistent,
    /// A resync to it has copied all but the ranges that a device could not read or write, which
    /// are listed.
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
    /// No peer has been met.
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

    /// The same as it is stored in the superblock.
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

/// Whether the local data may be served at all.
pub(crate) fn servable(state: &MachineState, unverified: bool) -> Result<(), OrderRefusal> {
    match state.disk {
        Disk::Consistent => Ok(()),
        Disk::Unverified | Disk::Incomplete | Disk::Removed if unverified => Ok(()),
        Disk::Unverified => Err(OrderRefusal::Unverified),
        Disk::Blank => Err(OrderRefusal::Blank),
        Disk::Inconsistent => Err(OrderRefusal::Inconsistent),
        Disk::Incomplete => Err(OrderRefusal::Incomplete),
        Disk::Removed => Err(OrderRefusal::Removed),
        Disk::Failed => Err(OrderRefusal::Failed),
    }
}

pub(super) fn unchanged(state: &MachineState) -> (MachineState, Actions) {
    (*state, Actions::default())
}
