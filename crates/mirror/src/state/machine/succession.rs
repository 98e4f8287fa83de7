//! Succession by a peer: its announcement, its claim with consent, and deposition by force.
//!
//! Invariants:
//! - an announcement is accepted only under an epoch that is later than any that this node has
//!   seen, promised or announced;
//! - data that a deposed source has written alone is kept.

use crate::agree::plan::Plan;
use crate::ondisk::superblock::ReplicaRole;

use super::Transition;
use super::action::{Action, Actions};
use super::event::Consent;
use super::refusal::Refusal;
use super::state::{Role, State, unchanged};

/// True if the first of two serving nodes continues to serve: it has the later role epoch, or with
/// equal epochs the greater UUID.
pub fn later<Id: Ord>(one: (u64, Id), other: (u64, Id)) -> bool {
    one > other
}

/// Checks that this node may begin to serve after [`Action::Announce`], with these answers. With
/// `forced`, an unreachable peer is the operator's responsibility; a reachable peer must have
/// stopped.
///
/// # Errors
/// The first of: another node takes the role, a peer serves, a peer has not confirmed, no answer.
pub fn consented(consents: &[Consent], forced: bool) -> Result<(), Refusal> {
    let refused = |consent: &Consent| match *consent {
        Consent::Later => Some(Refusal::Overtaken),
        Consent::Serves => Some(Refusal::PeerServes),
        Consent::TooOld { serving: true } => Some(Refusal::PeerTooOld),
        Consent::Unknown => Some(Refusal::Unconfirmed),
        // After a restart, the peer could take the role by itself.
        Consent::RefusesHosts if !forced => Some(Refusal::Unconfirmed),
        Consent::Unreachable if !forced => Some(Refusal::PeerSilent),
        _ => None,
    };
    let severity = |refusal: &Refusal| match refusal {
        Refusal::Overtaken => 0,
        Refusal::PeerServes | Refusal::PeerTooOld => 1,
        Refusal::Unconfirmed => 2,
        _ => 3,
    };
    consents.iter().filter_map(refused).min_by_key(severity).map_or(Ok(()), Err)
}

pub(super) fn announced(state: &State, epoch: u64, forced: bool) -> Transition {
    if !forced && matches!(state.role, Role::Serving { .. }) {
        return Err(Refusal::Serving);
    }
    if state.role.epoch() >= epoch || state.promised > epoch || state.announced >= epoch {
        return Err(Refusal::Fenced);
    }
    let promised = State { promised: epoch, ..*state };
    Ok(match state.role {
        Role::Serving { epoch } => {
            let role = Role::Waiting { epoch, handed_over: false };
            promised.to(role, &[Action::RefuseHosts])
        }
        // A request of the source to promote this node may still arrive.
        Role::Target { epoch, .. } => {
            promised.to(Role::Target { epoch, attached: false }, &[Action::Detach])
        }
        role => promised.to(role, &[]),
    })
}

pub(super) fn deposed(state: &State, epoch: u64) -> Transition {
    let after = State { promised: 0, ..*state };
    Ok(match state.role {
        // This node was promoted under a later epoch since.
        Role::Serving { epoch: own } if own >= epoch => return Err(Refusal::Fenced),
        Role::Serving { .. } | Role::Waiting { .. } => depose(&after, epoch),
        _ => after.steps_back(epoch),
    })
}

/// A stopped source stays the source, because handshakes count its claim to the best data. It
/// serves again only after a handshake with the peer, as after a switchover without an answer.
pub(super) fn claimed(state: &State, by: usize, claimed: u64) -> Transition {
    let after = State { promised: 0, ..*state };
    Ok(match state.role {
        Role::Serving { .. } => return Err(Refusal::Serving),
        Role::Waiting { epoch, .. } => {
            let role = Role::Waiting { epoch, handed_over: true };
            after.to(role, &[Action::RecordSuccessor(by)])
        }
        _ => after.steps_back(claimed),
    })
}

/// The source does not return, so the data becomes outdated.
pub(super) fn removed(state: &State, epoch: u64) -> Transition {
    if let Role::Serving { .. } = state.role {
        return Err(Refusal::Serving);
    }
    if epoch < state.role.epoch().max(state.promised) {
        return Err(Refusal::Fenced);
    }
    let record = [Action::EndAttachment, Action::RecordRemoved];
    Ok(match state.role {
        Role::Target { epoch, .. } => state.to(Role::Target { epoch, attached: false }, &record),
        role => state.to(role, &record[1..]),
    })
}

/// Steps aside for a node with a later claim. Writes of this node alone are kept.
fn depose(state: &State, by: u64) -> (State, Actions) {
    let serves = matches!(state.role, Role::Serving { .. });
    // Calls are in flight also if hosts were refused at the announcement.
    let actions = [
        Action::RefuseHosts,
        Action::Record(ReplicaRole::Deposed),
        Action::EndSessions,
        Action::AwaitCalls,
        Action::PutAway(ReplicaRole::Deposed),
    ];
    let by = by.max(state.role.epoch());
    state.to(Role::Deposed { by }, if serves { &actions } else { &actions[1..] })
}

pub(super) fn met(state: &State, plan: Plan, prevailing: Option<u64>) -> (State, Actions) {
    let Role::Serving { epoch } = state.role else { return unchanged(state) };
    match (plan, prevailing) {
        // The peer has all data of this node: nothing is kept for the operator.
        (Plan::Follow { step_down: true }, _) => {
            let actions = [
                Action::RefuseHosts,
                Action::EndSessions,
                Action::AwaitCalls,
                Action::PutAway(ReplicaRole::Target),
            ];
            state.to(Role::Target { epoch, attached: false }, &actions)
        }
        (Plan::SplitBrain | Plan::Incompatible | Plan::NoSource, Some(by)) => depose(state, by),
        _ => unchanged(state),
    }
}

impl State {
    /// A node that is no source acts on an announcement. Its record reports the epoch to a third
    /// node that returns, also after a restart; with two nodes, the other one has announced it.
    fn steps_back(self, epoch: u64) -> (State, Actions) {
        let seen = |own: u64| if self.has_several_peers() { own.max(epoch) } else { own };
        let (role, mut actions) = match self.role {
            Role::Target { epoch: own, .. } => {
                (Role::Target { epoch: seen(own), attached: false }, vec![Action::EndAttachment])
            }
            Role::Deposed { by } => (Role::Deposed { by: seen(by) }, vec![]),
            role => (role, vec![]),
        };
        if role.epoch() > self.role.epoch() {
            actions.push(Action::RecordEpoch(epoch));
        }
        self.to(role, &actions)
    }
}
