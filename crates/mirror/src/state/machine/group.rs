//! Consistency groups: how a member follows the first member, its leader.
//!
//! Invariant: a member never takes the role before its leader serves.

use super::event::{Answers, Event, OperatorOrder};
use super::state::{Leader, MachineState, NodeRole, servable, unchanged};
use super::{Transition, next};

/// A step with which a member follows the leader of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Following {
    /// Give up the claim: the leader was handed over, or follows another source, so this member
    /// does or will.
    StepBack,
    /// Take the role: the leader serves, and this member is served nowhere, unless its peers say
    /// otherwise.
    TakeRole,
}

impl Following {
    /// Order that carries out the step.
    pub fn order(self) -> OperatorOrder {
        match self {
            Following::StepBack => OperatorOrder::Demote,
            Following::TakeRole => OperatorOrder::Failover { answers: Answers::default() },
        }
    }
}

/// Step of a member whose node differs from its leader's.
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
        // This member was handed over earlier, or its source is already on the other node.
        (OperatorOrder::HandOver(_), NodeRole::Target { attached: true, .. })
            if state.leader.is_some() =>
        {
            Ok(unchanged(state))
        }
        _ => next(state, Event::Order(order)),
    }
}
