//! Consistency groups: how a member follows the first member, its leader.
//!
//! Invariant: a member never takes the role before its leader serves.

use super::event::{Answers, Event, OperatorOrder};
use super::state::{Leader, MachineState, NodeRole, servable, unchanged};
use super::{Transition, next};

/// A step with which a member follows the leader of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Following {
    /// The leader was handed over, or follows another source, so this member does or will: it gives
    /// up its claim.
    StepBack,
    /// The leader serves, and this member is served nowhere, unless its peers say otherwise.
    TakeRole,
}

impl Following {
    /// The order that carries it out.
    pub fn order(self) -> OperatorOrder {
        match self {
            Following::StepBack => OperatorOrder::Demote,
            Following::TakeRole => OperatorOrder::Failover { answers: Answers::default() },
        }
    }
}

/// What a member of a group has to do to be where its leader is.
pub fn following(state: &MachineState) -> Option<Following> {
    match (state.leader?, state.role) {
        (Leader::Follows, NodeRole::Waiting { .. })
        | (Leader::Elsewhere, NodeRole::Waiting { handed_over: true, .. }) => {
            Some(Following::StepBack)
        }
        (Leader::Serves, NodeRole::Target { attached: false, .. })
            if servable(state, false).is_ok() && state.promised == 0 =>
        {
            Some(Following::TakeRole)
        }
        _ => None,
    }
}

/// The transition for an order to all members of a consistency group.
///
/// # Errors
/// As [`next`]. The order is refused for all members then.
pub fn next_in_group(state: &MachineState, order: OperatorOrder) -> Transition {
    match (order, state.role) {
        // It was handed over before, or its source is there anyway.
        (OperatorOrder::HandOver(_), NodeRole::Target { attached: true, .. })
            if state.leader.is_some() =>
        {
            Ok(unchanged(state))
        }
        _ => next(state, Event::Order(order)),
    }
}
