//! Start of a mirror: whether the last source serves again without the operator.
//!
//! Invariant: a source that had a handshake with a peer serves again only if each peer is recorded
//! as out of date and was asked.

use crate::agree::plan::HandshakePlan;

use super::action::{Action, Actions, ServeClaim};
use super::event::{Answers, RoleAnswer};
use super::state::{DiskState, MachineState, NodeRole, PeerDataState, unchanged};

/// The last source serves again without the operator if each peer is recorded as out of date. A
/// peer may have been promoted since, so it is asked first. Otherwise the node waits for a
/// handshake.
pub(super) fn opened(state: &MachineState) -> (MachineState, Actions) {
    let NodeRole::Waiting { handed_over: false, .. } = state.role else { return unchanged(state) };
    if state.disk != DiskState::Consistent {
        return unchanged(state);
    }
    let known = || state.records.iter().filter(|record| **record != PeerDataState::Unknown);
    if known().next().is_none() {
        return state.resumes();
    }
    match known().all(|record| *record == PeerDataState::Outdated) {
        true => (*state, Actions::of(&[Action::AskPeers])),
        false => unchanged(state),
    }
}

/// A peer that does not answer is recorded as out of date, so it serves only by its operator's
/// order. At a later handshake, the node with the earlier epoch is deposed.
pub(super) fn asked(state: &MachineState, answers: &Answers) -> (MachineState, Actions) {
    let stays = |answer: &RoleAnswer| match *answer {
        RoleAnswer::Silent => false,
        RoleAnswer::Known { serving: true, plan, .. } => plan != HandshakePlan::Unrelated,
        // The peer was promoted after this node, and has stopped since; or it has newer data, so
        // the record here is outdated.
        RoleAnswer::Known { plan: HandshakePlan::Follow { .. }, epoch, differs, .. } => {
            differs || epoch > state.role.epoch()
        }
        RoleAnswer::Known { plan: HandshakePlan::SplitBrain, epoch, .. } => {
            epoch > state.role.epoch()
        }
        RoleAnswer::Known { .. } => false,
    };
    // A handshake may have changed the role meanwhile.
    let (again, actions) = opened(state);
    if !actions.iter().any(|action| action == Action::AskPeers) {
        return (again, actions);
    }
    match answers.iter().flatten().any(stays) {
        true => unchanged(state),
        false => state.resumes(),
    }
}

impl MachineState {
    /// Serves again after a start, as the source that it is.
    fn resumes(&self) -> (MachineState, Actions) {
        // Epoch 0: the replica was created as a source, and has never served.
        let claim = if self.role.epoch() == 0 { ServeClaim::Agreed } else { ServeClaim::Resumed };
        self.serves(claim, &[]).unwrap_or_else(|_| unchanged(self))
    }
}
