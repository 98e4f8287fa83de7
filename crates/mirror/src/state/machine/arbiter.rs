//! Decisions of the arbiter: a grant to serve without the peers, an exclusion, the end of a lease.
//!
//! Invariant: a node that the arbiter has excluded refuses hosts before it records anything.

use crate::ondisk::superblock::ReplicaRole;

use super::Transition;
use super::action::{Action, Actions, Claim};
use super::refusal::Refusal;
use super::state::{Role, State, servable, unchanged};

/// Grant: a source that already serves runs degraded, once the grant is durable. A target with an
/// attached source does not need the grant, and leaves it to that source.
pub(super) fn granted(state: &State) -> Transition {
    match state.role {
        Role::Serving { .. } => Ok(unchanged(state)),
        Role::Target { attached: true, .. } => Err(Refusal::PeerServes),
        // This node may have served without its peer: the operator decides about its data.
        Role::Deposed { .. } => Err(Refusal::NotEntitled),
        _ => {
            servable(state, false)?;
            state.serves(Claim::Granted, &[Action::EndAttachment])
        }
    }
}

/// Writes of this node without its peers were never acknowledged, so it becomes a target.
pub(super) fn outvoted(state: &State, epoch: u64) -> (State, Actions) {
    let seen = state.role.epoch().max(epoch);
    let target = Role::Target { epoch: seen, attached: false };
    let put_away = Action::PutAway(ReplicaRole::Target);
    match state.role {
        Role::Serving { .. } => {
            let actions = [
                Action::RefuseHosts,
                Action::EndSessions,
                Action::RecordEpoch(seen),
                Action::AwaitCalls,
                put_away,
            ];
            state.to(target, &actions)
        }
        Role::Waiting { .. } => state.to(target, &[Action::RecordEpoch(seen), put_away]),
        _ => unchanged(state),
    }
}

/// Stops serving, and stays the source until the arbiter or the peer decides.
pub(super) fn lease_ended(state: &State) -> (State, Actions) {
    let Role::Serving { epoch } = state.role else { return unchanged(state) };
    let actions = [
        Action::RefuseHosts,
        Action::EndSessions,
        Action::AwaitCalls,
        Action::PutAway(ReplicaRole::Source),
    ];
    state.to(Role::Waiting { epoch, handed_over: false }, &actions)
}
