//! Orders of the operator: failover, switchover, stop, demotion, the state of a leg, discarded data
//! and the move to another mirror.
//!
//! Invariants:
//! - only a forced failover serves while a peer may serve, or serves data that is not verified;
//! - a failover, a stop, a demotion or a desired state that is ordered again changes nothing.

use crate::agree::plan::HandshakePlan;
use crate::limits::PEERS_MAX;
use crate::ondisk::superblock::ReplicaRole;
use crate::state::status::{DesiredState, HandshakeOutcome, LegPhase};

use super::Transition;
use super::action::{Action, Actions, ServeClaim};
use super::event::{Answers, OperatorOrder, RoleAnswer};
use super::refusal::OrderRefusal;
use super::state::{DiskState, Leg, MachineState, NodeRole, servable, unchanged};

pub(super) fn ordered(state: &MachineState, order: OperatorOrder) -> Transition {
    match order {
        OperatorOrder::Failover { answers } => failover(state, &answers),
        OperatorOrder::ForceFailover { unverified } => force_failover(state, unverified),
        OperatorOrder::HandOver(leg) => hand_over(state, leg),
        OperatorOrder::TakeOver(leg) => take_over(state, leg),
        OperatorOrder::Stop => Ok(stop(state)),
        OperatorOrder::Demote => Ok(demote(state)),
        OperatorOrder::SetDesired(leg, desired) => set_desired(state, leg, desired),
    }
}

fn failover(state: &MachineState, answers: &Answers) -> Transition {
    if let NodeRole::Serving { .. } = state.role {
        return Ok(unchanged(state));
    }
    servable(state, false)?;
    let legs = state.legs.iter().zip(answers).filter(|(leg, _)| leg.is_some());
    let answers: [Option<RoleAnswer>; PEERS_MAX] = {
        let mut found = [None; PEERS_MAX];
        for (place, (_, answer)) in found.iter_mut().zip(legs) {
            *place = Some(answer.unwrap_or(RoleAnswer::Silent));
        }
        found
    };
    let has = |test: fn(&RoleAnswer) -> bool| answers.iter().flatten().any(test);
    if has(|answer| matches!(answer, RoleAnswer::Known { serving: true, .. })) {
        return Err(OrderRefusal::PeerServes);
    }
    if has(|answer| *answer == RoleAnswer::Silent) {
        return Err(OrderRefusal::PeerSilent);
    }
    if let NodeRole::Target { attached: true, .. } = state.role {
        return Err(OrderRefusal::PeerServes);
    }
    if has(|answer| matches!(answer, RoleAnswer::Known { plan: HandshakePlan::Follow { .. }, .. }))
    {
        return Err(OrderRefusal::PeerLeads);
    }
    state.serves(ServeClaim::Agreed, &[Action::Announce { forced: false }, Action::EndAttachment])
}

fn force_failover(state: &MachineState, unverified: bool) -> Transition {
    if let NodeRole::Serving { .. } = state.role {
        return Ok(unchanged(state));
    }
    servable(state, unverified)?;
    let actions =
        [Action::Announce { forced: true }, Action::EndAttachment, Action::TrustData(state.disk)];
    let trusts =
        matches!(state.disk, DiskState::Unverified | DiskState::Incomplete | DiskState::Removed);
    let (after, actions) =
        state.serves(ServeClaim::Forced, if trusts { &actions } else { &actions[..2] })?;
    Ok((MachineState { disk: DiskState::Consistent, ..after }, actions))
}

fn hand_over(state: &MachineState, leg: usize) -> Transition {
    let to = state.leg(leg)?;
    let NodeRole::Serving { epoch } = state.role else { return Err(OrderRefusal::NotSource) };
    match to.phase {
        LegPhase::InSync => {
            let role = NodeRole::Target { epoch, attached: false };
            let actions = [Action::Drain, Action::DeliverQueues, Action::HandOver(leg)];
            Ok(state.to(role, &actions))
        }
        LegPhase::Handshake(HandshakeOutcome::SplitBrain) => Err(OrderRefusal::SplitBrain),
        _ => Err(OrderRefusal::NotInSync),
    }
}

fn take_over(state: &MachineState, leg: usize) -> Transition {
    let from = state.leg(leg)?;
    match state.role {
        NodeRole::Serving { .. } => Ok(unchanged(state)),
        _ if matches!(state.disk, DiskState::Inconsistent | DiskState::Incomplete) => {
            Err(OrderRefusal::Inconsistent)
        }
        _ if from.phase == LegPhase::Handshake(HandshakeOutcome::SplitBrain) => {
            Err(OrderRefusal::SplitBrain)
        }
        // The peer decides, because this side does not know whether it is in sync.
        _ => Ok((*state, Actions::of(&[Action::AskForRole(leg), Action::Reconnect]))),
    }
}

fn stop(state: &MachineState) -> (MachineState, Actions) {
    let NodeRole::Serving { epoch } = state.role else { return unchanged(state) };
    let actions = [
        Action::Drain,
        Action::DeliverQueues,
        Action::EndSessions,
        Action::RefuseHosts,
        Action::PutAway(ReplicaRole::Source),
    ];
    state.to(NodeRole::Waiting { epoch, handed_over: false }, &actions)
}

fn demote(state: &MachineState) -> (MachineState, Actions) {
    let target = |epoch| NodeRole::Target { epoch, attached: false };
    let put_away = Action::PutAway(ReplicaRole::Target);
    match state.role {
        NodeRole::Serving { epoch } => {
            let actions = [
                Action::Drain,
                Action::DeliverQueues,
                Action::EndSessions,
                Action::RefuseHosts,
                put_away,
                Action::Reconnect,
            ];
            state.to(target(epoch), &actions)
        }
        NodeRole::Waiting { epoch, .. } | NodeRole::Deposed { by: epoch } => {
            state.to(target(epoch), &[put_away, Action::Reconnect])
        }
        NodeRole::Target { .. } | NodeRole::Closed => unchanged(state),
    }
}

fn set_desired(state: &MachineState, leg: usize, desired: DesiredState) -> Transition {
    let own = state.leg(leg)?;
    let split = own.phase == LegPhase::Handshake(HandshakeOutcome::SplitBrain);
    if own.desired == desired {
        return match desired {
            DesiredState::Connected if split => Err(OrderRefusal::SplitBrain),
            _ => Ok(unchanged(state)),
        };
    }
    if desired != DesiredState::Connected && state.role.stored() != ReplicaRole::Source {
        return Err(OrderRefusal::NotSource);
    }
    // Without a session, the node could neither learn what became of a hand-over nor serve again.
    if desired != DesiredState::Connected && matches!(state.role, NodeRole::Waiting { .. }) {
        return Err(OrderRefusal::Waiting);
    }
    let mut after = *state;
    after.legs[leg] = Some(Leg { desired, ..own });
    // A peer that may take over would do so when its session ends.
    let exclude = Action::ExcludePeer(leg);
    let store = Action::StoreDesired(leg, desired);
    let is_source = state.role.stored() == ReplicaRole::Source;
    let actions = match (desired, own.desired) {
        // Not before: if the order failed at its marks, the mirror would not be broken, and
        // everything would be out of sync.
        (_, DesiredState::Detached) if is_source => {
            Actions::of(&[Action::MarkAll(leg), store, Action::Reconnect])
        }
        (DesiredState::Connected, _) => Actions::of(&[store, Action::Reconnect]),
        _ => Actions::of(&[exclude, store, Action::Reconnect]),
    };
    Ok((after, actions))
}

pub(super) fn discarded(state: &MachineState) -> Transition {
    match state.role {
        NodeRole::Serving { .. } => Err(OrderRefusal::Serving),
        // Its source counts on this copy.
        NodeRole::Target { attached: true, .. } => Err(OrderRefusal::PeerServes),
        role => {
            let target = NodeRole::Target { epoch: role.epoch(), attached: false };
            Ok(state.to(target, &[Action::Discard]))
        }
    }
}

pub(super) fn transferred(state: &MachineState) -> Transition {
    let stop = [
        Action::Drain,
        Action::CheckDevices,
        Action::LeaveBehind,
        Action::EndSessions,
        Action::RefuseHosts,
        Action::PutAway(ReplicaRole::Source),
        Action::EndAttachment,
    ];
    match state.role {
        _ if state.disk == DiskState::Failed => Err(OrderRefusal::Failed),
        NodeRole::Serving { .. } => Ok(state.to(NodeRole::Closed, &stop)),
        _ => Ok(state.to(NodeRole::Closed, &[Action::CheckDevices, Action::EndAttachment])),
    }
}
