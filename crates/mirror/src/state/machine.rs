//! Mirror state machine: the role of this node and the operator's orders, as one pure function.
//!
//! [`next`] takes a [`MachineState`] and an [`Event`], and returns the following state with the
//! actions that lead to it, in order, or the reason why the event is refused. It has no side
//! effects, so a dry run, the answer of the API and the execution of an order are the same
//! decision.
//!
//! Invariants:
//! - a node that does not serve never begins to serve while a peer answers that it serves;
//! - from the announcement that a peer takes the role until this node has acted on it
//!   ([`MachineState::promised`]), this node does not begin to serve, whatever order or handshake
//!   is in progress;
//! - a node that is deposed refuses hosts first, and waits for calls in flight afterwards; an order
//!   that this node consents to waits first, so that no host call fails;
//! - a role is durable before its holder serves, and before this node reports its stop to a peer;
//! - the role epoch never decreases. With several peers, that includes epochs that were announced.
//!
//! `docs/mirror-states.md` is printed from this module by a test.
mod action;
mod arbiter;
mod event;
mod group;
mod order;
mod peers;
mod refusal;
mod resolution;
mod start;
mod state;
mod succession;

pub use action::{Action, Actions, ServeClaim};
pub use event::{AdmittedBy, Answers, Event, Handover, OperatorOrder, PeerConsent, RoleAnswer};
pub use group::{Following, following, next_in_group};
pub use refusal::OrderRefusal;
pub use resolution::Resolution;
pub(crate) use state::servable;
pub use state::{DiskState, Leader, Leg, MachineState, NodeRole, PeerDataState};
pub use succession::{consented, later};

use arbiter::{granted, lease_ended, outvoted};
use order::{discarded, ordered, transferred};
use peers::{admitted, attached, handed_over, promoted};
use start::{asked, opened};
use succession::{announced, claimed, deposed, handshake_done, removed};

/// The result of [`next`].
pub type Transition = Result<(MachineState, Actions), OrderRefusal>;

/// Transition for an event.
///
/// # Errors
/// See [`OrderRefusal`]. Nothing changes then.
pub fn next(state: &MachineState, event: Event) -> Transition {
    if state.role == NodeRole::Closed {
        return Err(OrderRefusal::Closed);
    }
    match event {
        Event::Opened => Ok(opened(state)),
        Event::Asked(answers) => Ok(asked(state, &answers)),
        Event::Announced { epoch, forced } => announced(state, epoch, forced),
        Event::Deposed { epoch } => deposed(state, epoch),
        Event::Claimed { by, epoch } => claimed(state, by, epoch),
        Event::Removed { epoch } => removed(state, epoch),
        Event::Attached { epoch } => attached(state, epoch),
        Event::Promoted => promoted(state),
        Event::Admitted(by) => admitted(state, by),
        Event::HandedOver(outcome) => handed_over(state, outcome),
        Event::Discarded => discarded(state),
        Event::Transferred => transferred(state),
        Event::Granted => granted(state),
        Event::Outvoted { epoch } => Ok(outvoted(state, epoch)),
        Event::LeaseEnded => Ok(lease_ended(state)),
        Event::HandshakeDone { plan, prevailing } => Ok(handshake_done(state, plan, prevailing)),
        Event::Order(order) => ordered(state, order),
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
