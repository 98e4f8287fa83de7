//! Handshakes and transfers of the role: a source attaches, hands over, or is admitted by its peer.
//!
//! Invariant: with several peers, a handshake makes neither a target nor a deposed source the
//! source, because a third node may serve out of sight.

use crate::ondisk::superblock::ReplicaRole;

use super::Transition;
use super::action::{Action, Claim};
use super::event::{AdmittedBy, Handover};
use super::refusal::Refusal;
use super::state::{Disk, Leader, Role, State, servable, unchanged};

pub(super) fn attached(state: &State, epoch: u64) -> Transition {
    match state.role {
        Role::Serving { .. } => Err(Refusal::Serving),
        _ if state.disk == Disk::Failed => Err(Refusal::Failed),
        // A higher epoch than any seen, or the one already admitted.
        role if epoch < role.epoch() => Err(Refusal::Fenced),
        _ if state.promised > 0 && epoch != state.promised => Err(Refusal::Fenced),
        _ => Ok(state
            .to(Role::Target { epoch, attached: true }, &[Action::EndAttachment, Action::Admit])),
    }
}

pub(super) fn promoted(state: &State) -> Transition {
    let Role::Target { attached: true, .. } = state.role else { return Err(Refusal::NotEntitled) };
    servable(state, false)?;
    state.serves(Claim::Agreed, &[Action::EndAttachment])
}

/// Decides whether the handshake with this peer suffices to become the source without the operator:
/// - a source that designated a successor must meet that peer, which may already be serving;
/// - with several targets the operator decides, because each would conclude that it must take over;
///   also if another node has announced or taken the role meanwhile, and may be serving;
/// - a deposed source was replaced by an operator's order, and waits for another one, such as to
///   discard the peer's data.
pub(super) fn admitted(state: &State, by: AdmittedBy) -> Transition {
    let several = state.has_several_peers();
    match state.role {
        Role::Serving { epoch } => {
            let epoch = epoch.max(by.epoch).saturating_add(1);
            return Ok(state.to(Role::Serving { epoch }, &[Action::RaiseEpoch]));
        }
        Role::Target { attached: true, .. } => return Err(Refusal::PeerServes),
        _ if state.leader.is_some_and(|leader| leader != Leader::Serves) => {
            return Err(Refusal::LeaderFirst);
        }
        Role::Waiting { handed_over: true, .. } if !by.successor => {
            return Err(Refusal::NotEntitled);
        }
        Role::Waiting { .. } if several && by.overtaken => return Err(Refusal::NotEntitled),
        Role::Target { .. } if several => return Err(Refusal::NotEntitled),
        Role::Deposed { .. } if several || !by.unusable => return Err(Refusal::NotEntitled),
        _ => {}
    }
    servable(state, false)?;
    state.serves(Claim::Agreed, &[Action::EndAttachment])
}

pub(super) fn handed_over(state: &State, outcome: Handover) -> Transition {
    let Role::Waiting { epoch, .. } = state.role else { return Err(Refusal::NotSource) };
    let target = Role::Target { epoch, attached: false };
    match (outcome, state.disk) {
        (Handover::Unknown, _) => Ok(unchanged(state)),
        (Handover::Accepted, Disk::Failed) => Ok(state.to(target, &[Action::LeaveRole])),
        (Handover::Accepted, _) => Ok(state.to(target, &[Action::PutAway(ReplicaRole::Target)])),
        (Handover::Declined, _) if state.promised > 0 => Err(Refusal::Overtaken),
        // Only the peer has the data.
        (Handover::Declined, Disk::Failed) => {
            Ok(state.to(Role::Serving { epoch }, &[Action::ServeThroughPeer]))
        }
        (Handover::Declined, _) => {
            servable(state, false)?;
            state.serves(Claim::Agreed, &[])
        }
    }
}
