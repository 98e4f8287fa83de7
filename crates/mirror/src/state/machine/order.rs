//! Orders of the operator: failover, switchover, stop, demotion, the state of a leg, discarded data
//! and the move to another mirror.
//!
//! Invariants:
//! - only a forced failover serves while a peer may serve, or serves data that is not verified;
//! - a failover, a stop, a demotion or a desired state that is ordered again changes nothing.

use crate::agree::plan::Plan;
use crate::limits::PEERS_MAX;
use crate::ondisk::superblock::ReplicaRole;
use crate::state::status::{DesiredState, HandshakeOutcome, LegPhase};

use super::Transition;
use super::action::{Action, Actions, Claim};
use super::event::{Answer, Answers, Order};
use super::refusal::Refusal;
use super::state::{Disk, Leg, Role, State, servable, unchanged};

pub(super) fn ordered(state: &State, order: Order) -> Transition {
    match order {
        Order::Failover { answers } => failover(state, &answers),
        Order::ForceFailover { unverified } => force_failover(state, unverified),
        Order::HandOver(leg) => hand_over(state, leg),
        Order::TakeOver(leg) => take_over(state, leg),
        Order::Stop => Ok(stop(state)),
        Order::Demote => Ok(demote(state)),
        Order::SetDesired(leg, desired) => set_desired(state, leg, desired),
    }
}

fn failover(state: &State, answers: &Answers) -> Transition {
    if let Role::Serving { .. } = state.role {
        return Ok(unchanged(state));
    }
    servable(state, false)?;
    let legs = state.legs.iter().zip(answers).filter(|(leg, _)| leg.is_some());
    let answers: [Option<Answer>; PEERS_MAX] = {
        let mut found = [None; PEERS_MAX];
        for (place, (_, answer)) in found.iter_mut().zip(legs) {
            *place = Some(answer.unwrap_or(Answer::Silent));
        }
        found
    };
    let has = |test: fn(&Answer) -> bool| answers.iter().flatten().any(test);
    if has(|answer| matches!(answer, Answer::Known { serving: true, .. })) {
        return Err(Refusal::PeerServes);
    }
    if has(|answer| *answer == Answer::Silent) {
        return Err(Refusal::PeerSilent);
    }
    if let Role::Target { attached: true, .. } = state.role {
        return Err(Refusal::PeerServes);
    }
    if has(|answer| matches!(answer, Answer::Known { plan: Plan::Follow { .. }, .. })) {
        return Err(Refusal::PeerLeads);
    }
    state.serves(Claim::Agreed, &[Action::Announce { forced: false }, Action::EndAttachment])
}

fn force_failover(state: &State, unverified: bool) -> Transition {
    if let Role::Serving { .. } = state.role {
        return Ok(unchanged(state));
    }
    servable(state, unverified)?;
    let actions =
        [Action::Announce { forced: true }, Action::EndAttachment, Action::TrustData(state.disk)];
    let trusts = matches!(state.disk, Disk::Unverified | Disk::Incomplete | Disk::Removed);
    let (after, actions) =
        state.serves(Claim::Forced, if trusts { &actions } else { &actions[..2] })?;
    Ok((State { disk: Disk::Consistent, ..after }, actions))
}

fn hand_over(state: &State, leg: usize) -> Transition {
    let to = state.leg(leg)?;
    let Role::Serving { epoch } = state.role else { return Err(Refusal::NotSource) };
    match to.phase {
        LegPhase::InSync => {
            let role = Role::Target { epoch, attached: false };
            let actions = [Action::Drain, Action::DeliverQueues, Action::HandOver(leg)];
            Ok(state.to(role, &actions))
        }
        LegPhase::Handshake(HandshakeOutcome::SplitBrain) => Err(Refusal::SplitBrain),
        _ => Err(Refusal::NotInSync),
    }
}

fn take_over(state: &State, leg: usize) -> Transition {
    let from = state.leg(leg)?;
    match state.role {
        Role::Serving { .. } => Ok(unchanged(state)),
        _ if matches!(state.disk, Disk::Inconsistent | Disk::Incomplete) => {
            Err(Refusal::Inconsistent)
        }
        _ if from.phase == LegPhase::Handshake(HandshakeOutcome::SplitBrain) => {
            Err(Refusal::SplitBrain)
        }
        // The peer decides, because this side does not know whether it is in sync.
        _ => Ok((*state, Actions::of(&[Action::AskForRole(leg), Action::Reconnect]))),
    }
}

fn stop(state: &State) -> (State, Actions) {
    let Role::Serving { epoch } = state.role else { return unchanged(state) };
    let actions = [
        Action::Drain,
        Action::DeliverQueues,
        Action::EndSessions,
        Action::RefuseHosts,
        Action::PutAway(ReplicaRole::Source),
    ];
    state.to(Role::Waiting { epoch, handed_over: false }, &actions)
}

fn demote(state: &State) -> (State, Actions) {
    let target = |epoch| Role::Target { epoch, attached: false };
    let put_away = Action::PutAway(ReplicaRole::Target);
    match state.role {
        Role::Serving { epoch } => {
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
        Role::Waiting { epoch, .. } | Role::Deposed { by: epoch } => {
            state.to(target(epoch), &[put_away, Action::Reconnect])
        }
        Role::Target { .. } | Role::Closed => unchanged(state),
    }
}

fn set_desired(state: &State, leg: usize, desired: DesiredState) -> Transition {
    let own = state.leg(leg)?;
    let split = own.phase == LegPhase::Handshake(HandshakeOutcome::SplitBrain);
    if own.desired == desired {
        return match desired {
            DesiredState::Connected if split => Err(Refusal::SplitBrain),
            _ => Ok(unchanged(state)),
        };
    }
    if desired != DesiredState::Connected && state.role.stored() != ReplicaRole::Source {
        return Err(Refusal::NotSource);
    }
    let mut after = *state;
    after.legs[leg] = Some(Leg { desired, ..own });
    let store = Action::StoreDesired(leg, desired);
    Ok(match desired {
        // Untracked blocks count as different from now on, also after a restart.
        DesiredState::Detached => {
            (after, Actions::of(&[Action::MarkAll(leg), store, Action::Reconnect]))
        }
        _ => (after, Actions::of(&[store, Action::Reconnect])),
    })
}

pub(super) fn discarded(state: &State) -> Transition {
    match state.role {
        Role::Serving { .. } => Err(Refusal::Serving),
        role => {
            let attached = matches!(role, Role::Target { attached: true, .. });
            Ok(state.to(Role::Target { epoch: role.epoch(), attached }, &[Action::Discard]))
        }
    }
}

pub(super) fn transferred(state: &State) -> Transition {
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
        _ if state.disk == Disk::Failed => Err(Refusal::Failed),
        Role::Serving { .. } => Ok(state.to(Role::Closed, &stop)),
        _ => Ok(state.to(Role::Closed, &[Action::CheckDevices, Action::EndAttachment])),
    }
}
