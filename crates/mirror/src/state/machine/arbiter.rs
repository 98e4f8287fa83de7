//! Decisions of the arbiter: a grant to serve without the peers, an exclusion, the end of a lease.
//!
//! Invariant: a node that the arbiter has excluded refuses hosts before it records anything.

use crate::ondisk::superblock::ReplicaRole;

use super::Transition;
use super::action::{Action, Actions, ServeClaim};
use super::refusal::OrderRefusal;
use super::state::{MachineState, NodeRole, servable, unchanged};

/// A source that serves already runs degraded, once the grant is durable. A target that is attached
/// to a source does not need the grant, and leaves it to that source.
pub(super) fn granted(state: &MachineState) -> Transition {
    match state.role {
        NodeRole::Serving { .. } => Ok(unchanged(state)),
        NodeRole::Target { attached: true, .. } => Err(OrderRefusal::PeerServes),
        // It may have served alone: the operator decides about its data.
        NodeRole::Deposed { .. } => Err(OrderRefusal::NotEntitled),
        _ => {
            servable(state, false)?;
            state.serves(ServeClaim::Granted, &[Action::EndAttachment])
        }
    }
}

/// What this node wrote without its peers was never acknowledged, so it becomes a target.
pub(super) fn outvoted(state: &MachineState, epoch: u64) -> (MachineState, Actions) {
    let seen = state.role.epoch().max(epoch);
    let target = NodeRole::Target { epoch: seen, attached: false };
    let put_away = Action::PutAway(ReplicaRole::Target);
    match state.role {
        NodeRole::Serving { .. } => {
            let actions = [
                Action::RefuseHosts,
                Action::EndSessions,
                Action::RecordEpoch(seen),
                Action::AwaitCalls,
                put_away,
            ];
            state.to(target, &actions)
        }
        NodeRole::Waiting { .. } => state.to(target, &[Action::RecordEpoch(seen), put_away]),
        _ => unchanged(state),
    }
}

/// Stops serving, and stays the source: the arbiter or the peer decides.
pub(super) fn lease_ended(state: &MachineState) -> (MachineState, Actions) {
    let NodeRole::Serving { epoch } = state.role else { return unchanged(state) };
    let actions = [
        Action::RefuseHosts,
        Action::EndSessions,
        Action::AwaitCalls,
        Action::PutAway(ReplicaRole::Source),
    ];
    state.to(NodeRole::Waiting { epoch, handed_over: false }, &actions)
}
