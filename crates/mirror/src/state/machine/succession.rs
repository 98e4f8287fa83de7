//! Succession by a peer: its announcement, its claim with consent, and deposition by force.
//!
//! Invariants:
//! - an announcement is accepted only under an epoch that is later than any that this node has
//!   seen, promised or announced;
//! - data that a deposed source has written alone is kept.

use crate::agree::plan::HandshakePlan;
use crate::ondisk::superblock::ReplicaRole;

use super::Transition;
use super::action::{Action, Actions};
use super::event::PeerConsent;
use super::refusal::OrderRefusal;
use super::state::{MachineState, NodeRole, unchanged};

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
pub fn consented(consents: &[PeerConsent], forced: bool) -> Result<(), OrderRefusal> {
    let refused = |consent: &PeerConsent| match *consent {
        PeerConsent::Later => Some(OrderRefusal::Overtaken),
        PeerConsent::Serves => Some(OrderRefusal::PeerServes),
        PeerConsent::TooOld { serving: true } => Some(OrderRefusal::PeerTooOld),
        PeerConsent::Unknown => Some(OrderRefusal::Unconfirmed),
        // After a restart, the peer could take the role by itself.
        PeerConsent::RefusesHosts if !forced => Some(OrderRefusal::Unconfirmed),
        PeerConsent::Unreachable if !forced => Some(OrderRefusal::PeerSilent),
        _ => None,
    };
    let severity = |refusal: &OrderRefusal| match refusal {
        OrderRefusal::Overtaken => 0,
        OrderRefusal::PeerServes | OrderRefusal::PeerTooOld => 1,
        OrderRefusal::Unconfirmed => 2,
        _ => 3,
    };
    consents.iter().filter_map(refused).min_by_key(severity).map_or(Ok(()), Err)
}

pub(super) fn announced(state: &MachineState, epoch: u64, forced: bool) -> Transition {
    if !forced && matches!(state.role, NodeRole::Serving { .. }) {
        return Err(OrderRefusal::Serving);
    }
    if state.role.epoch() >= epoch || state.promised > epoch || state.announced >= epoch {
        return Err(OrderRefusal::Fenced);
    }
    let promised = MachineState { promised: epoch, ..*state };
    Ok(match state.role {
        NodeRole::Serving { epoch } => {
            let role = NodeRole::Waiting { epoch, handed_over: false };
            promised.to(role, &[Action::RefuseHosts])
        }
        // A request of the source to promote this node may still arrive.
        NodeRole::Target { epoch, .. } => {
            promised.to(NodeRole::Target { epoch, attached: false }, &[Action::Detach])
        }
        role => promised.to(role, &[]),
    })
}

pub(super) fn deposed(state: &MachineState, epoch: u64) -> Transition {
    let after = MachineState { promised: 0, ..*state };
    Ok(match state.role {
        // This node was promoted under a later epoch since.
        NodeRole::Serving { epoch: own } if own >= epoch => return Err(OrderRefusal::Fenced),
        NodeRole::Serving { .. } | NodeRole::Waiting { .. } => depose(&after, epoch),
        _ => after.steps_back(epoch),
    })
}

/// A stopped source stays the source, because handshakes count its claim to the best data. It
/// serves again only after a handshake with the peer, as after a switchover without an answer.
pub(super) fn claimed(state: &MachineState, by: usize, claimed: u64) -> Transition {
    let after = MachineState { promised: 0, ..*state };
    Ok(match state.role {
        NodeRole::Serving { .. } => return Err(OrderRefusal::Serving),
        NodeRole::Waiting { epoch, .. } => {
            let role = NodeRole::Waiting { epoch, handed_over: true };
            after.to(role, &[Action::RecordSuccessor(by)])
        }
        _ => after.steps_back(claimed),
    })
}

/// The source does not return, so the data becomes outdated.
pub(super) fn removed(state: &MachineState, epoch: u64) -> Transition {
    if let NodeRole::Serving { .. } = state.role {
        return Err(OrderRefusal::Serving);
    }
    if epoch < state.role.epoch().max(state.promised) {
        return Err(OrderRefusal::Fenced);
    }
    let record = [Action::EndAttachment, Action::RecordRemoved];
    Ok(match state.role {
        NodeRole::Target { epoch, .. } => {
            state.to(NodeRole::Target { epoch, attached: false }, &record)
        }
        role => state.to(role, &record[1..]),
    })
}

/// Steps down for a node with a higher epoch. Writes that only this node has are kept.
fn depose(state: &MachineState, by: u64) -> (MachineState, Actions) {
    let serves = matches!(state.role, NodeRole::Serving { .. });
    // Earlier calls may be in flight even if hosts have been refused since the announcement.
    let actions = [
        Action::RefuseHosts,
        Action::Record(ReplicaRole::Deposed),
        Action::EndSessions,
        Action::AwaitCalls,
        Action::PutAway(ReplicaRole::Deposed),
    ];
    let by = by.max(state.role.epoch());
    state.to(NodeRole::Deposed { by }, if serves { &actions } else { &actions[1..] })
}

pub(super) fn handshake_done(
    state: &MachineState,
    plan: HandshakePlan,
    prevailing: Option<u64>,
) -> (MachineState, Actions) {
    let NodeRole::Serving { epoch } = state.role else { return unchanged(state) };
    match (plan, prevailing) {
        // The peer has all data of this node: nothing is kept for the operator.
        (HandshakePlan::Follow { step_down: true }, _) => {
            let actions = [
                Action::RefuseHosts,
                Action::EndSessions,
                Action::AwaitCalls,
                Action::PutAway(ReplicaRole::Target),
            ];
            state.to(NodeRole::Target { epoch, attached: false }, &actions)
        }
        (
            HandshakePlan::SplitBrain | HandshakePlan::Incompatible | HandshakePlan::NoSource,
            Some(by),
        ) => depose(state, by),
        _ => unchanged(state),
    }
}

impl MachineState {
    /// A node that is no source acts on an announcement. Its record reports the epoch to a third
    /// node that returns, also after a restart; with two nodes, the other one has announced it.
    fn steps_back(self, epoch: u64) -> (MachineState, Actions) {
        let seen = |own: u64| if self.has_several_peers() { own.max(epoch) } else { own };
        let (role, mut actions) = match self.role {
            NodeRole::Target { epoch: own, .. } => (
                NodeRole::Target { epoch: seen(own), attached: false },
                vec![Action::EndAttachment],
            ),
            NodeRole::Deposed { by } => (NodeRole::Deposed { by: seen(by) }, vec![]),
            role => (role, vec![]),
        };
        if role.epoch() > self.role.epoch() {
            actions.push(Action::RecordEpoch(epoch));
        }
        self.to(role, &actions)
    }
}
