//! Start of a mirror: whether the last source serves again without the operator.
//!
//! Invariant: a source that had a handshake with a peer serves again only if each peer is recorded
//! as out of date and was asked.

use crate::agree::plan::Plan;

use super::action::{Action, Actions, Claim};
use super::event::{Answer, Answers};
use super::state::{Disk, Record, Role, State, unchanged};

/// The last source serves again without the operator if each peer is recorded as out of date. A
/// peer may have been promoted since, so it is asked first. Otherwise the node waits for a
/// handshake.
pub(super) fn opened(state: &State) -> (State, Actions) {
    let Role::Waiting { handed_over: false, .. } = state.role else { return unchanged(state) };
    if state.disk != Disk::Consistent {
        return unchanged(state);
    }
    let known = || state.records.iter().filter(|record| **record != Record::Unknown);
    if known().next().is_none() {
        return state.resumes();
    }
    match known().all(|record| *record == Record::Outdated) {
        true => (*state, Actions::of(&[Action::AskPeers])),
        false => unchanged(state),
    }
}

/// A peer that does not answer is recorded as out of date, so it serves only by its operator's
/// order. At a later handshake, the node with the earlier epoch is deposed.
pub(super) fn asked(state: &State, answers: &Answers) -> (State, Actions) {
    let stays = |answer: &Answer| match *answer {
        Answer::Silent => false,
        Answer::Known { serving: true, plan, .. } => plan != Plan::Unrelated,
        // The peer was promoted after this node, and has stopped since; or it has newer data, so
        // the record here is outdated.
        Answer::Known { plan: Plan::Follow { .. }, epoch, differs, .. } => {
            differs || epoch > state.role.epoch()
        }
        Answer::Known { plan: Plan::SplitBrain, epoch, .. } => epoch > state.role.epoch(),
        Answer::Known { .. } => false,
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

impl State {
    /// Serves again after a start, as the source that it is.
    fn resumes(&self) -> (State, Actions) {
        // Epoch 0: the replica was created as a source, and has never served.
        let claim = if self.role.epoch() == 0 { Claim::Agreed } else { Claim::Resumed };
        self.serves(claim, &[]).unwrap_or_else(|_| unchanged(self))
    }
}
