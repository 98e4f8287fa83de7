//! Handshakes and transfers of the role: a source attaches, hands over, or is admitted by its peer.
//!
//! Invariant: with several peers, a handshake makes neither a target nor a deposed source the
//! source, because a third node may serve out of sight.

use crate::ondisk::superblock::ReplicaRole;

use super::Transition;
use super::action::{Action, ServeClaim};
use super::event::{AdmittedBy, Handover};
use super::refusal::OrderRefusal;
use super::state::{DiskState, Leader, MachineState, NodeRole, servable, unchanged};

pub(super) fn attached(state: &MachineState, epoch: u64) -> Transition {
    match state.role {
        NodeRole::Serving { .. } => Err(OrderRefusal::Serving),
        _ if state.disk == DiskState::Failed => Err(OrderRefusal::Failed),
        // A higher epoch than any seen, or the one already admitted.
        role if epoch < role.epoch() => Err(OrderRefusal::Fenced),
        _ if state.promised > 0 && epoch != state.promised => Err(OrderRefusal::Fenced),
        _ => Ok(state.to(
            NodeRole::Target { epoch, attached: true },
            &[Action::EndAttachment, Action::Admit],
        )),
    }
}

pub(super) fn promoted(state: &MachineState) -> Transition {
    let NodeRole::Target { attached: true, .. } = state.role else {
        return Err(OrderRefusal::NotEntitled);
    };
    servable(state, false)?;
    state.serves(ServeClaim::Agreed, &[Action::EndAttachment])
}

/// Decides whether the handshake with this peer suffices to become the source without the operator:
/// - a source that designated a successor must meet that peer, which may already be serving;
/// - with several targets the operator decides, because each would conclude that it must take over;
///   also if another node has announced or taken the role meanwhile, and may be serving;
/// - a deposed source was replaced by an operator's order, and waits for another one, such as to
///   discard the peer's data.
pub(super) fn admitted(state: &MachineState, by: AdmittedBy) -> Transition {
    let several = state.has_several_peers();
    match state.role {
        NodeRole::Serving { epoch } => {
            let epoch = epoch.max(by.epoch).saturating_add(1);
            return Ok(state.to(NodeRole::Serving { epoch }, &[Action::RaiseEpoch]));
        }
        NodeRole::Target { attached: true, .. } => return Err(OrderRefusal::PeerServes),
        _ if state.leader.is_some_and(|leader| leader != Leader::Serves) => {
            return Err(OrderRefusal::LeaderFirst);
        }
        NodeRole::Waiting { handed_over: true, .. } if !by.successor => {
            return Err(OrderRefusal::NotEntitled);
        }
        NodeRole::Waiting { .. } if several && by.overtaken => {
            return Err(OrderRefusal::NotEntitled);
        }
        NodeRole::Target { .. } if several => return Err(OrderRefusal::NotEntitled),
        NodeRole::Deposed { .. } if several || !by.unusable => {
            return Err(OrderRefusal::NotEntitled);
        }
        _ => {}
    }
    servable(state, false)?;
    state.serves(ServeClaim::Agreed, &[Action::EndAttachment])
}

pub(super) fn handed_over(state: &MachineState, outcome: Handover) -> Transition {
    let NodeRole::Waiting { epoch, .. } = state.role else { return Err(OrderRefusal::NotSource) };
    let target = NodeRole::Target { epoch, attached: false };
    match (outcome, state.disk) {
        (Handover::Unknown, _) => Ok(unchanged(state)),
        (Handover::Accepted, DiskState::Failed) => Ok(state.to(target, &[Action::LeaveRole])),
        (Handover::Accepted, _) => Ok(state.to(target, &[Action::PutAway(ReplicaRole::Target)])),
        (Handover::Declined, _) if state.promised > 0 => Err(OrderRefusal::Overtaken),
        // Only the peer has the data.
        (Handover::Declined, DiskState::Failed) => {
            Ok(state.to(NodeRole::Serving { epoch }, &[Action::ServeThroughPeer]))
        }
        (Handover::Declined, _) => {
            servable(state, false)?;
            state.serves(ServeClaim::Agreed, &[])
        }
    }
}
