//! Resolution of a split brain: which side gives up its data, while that is being decided.
//!
//! Invariant: this node never discards its data while its peer may discard its own. Each node
//! first takes the state [`Resolution::Discards`] and then asks its peer for that peer's state, so
//! of two nodes that discard at the same time at least one finds the other. The state does not
//! survive a restart: what was discarded is durable, and an order that was not carried out is over.

use super::refusal::OrderRefusal;

/// Resolution of a split brain that is in progress at this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Resolution {
    /// None.
    #[default]
    Idle,
    /// The peer is being asked to discard its data. This node keeps its own.
    KeepsOwn,
    /// The peer was asked, and has not answered: it may still discard its data.
    Unanswered,
    /// This node discards its data, or is about to.
    Discards,
}

impl Resolution {
    /// The state in which a resolution begins.
    ///
    /// # Errors
    /// If another one is in progress, or the peer may still discard its data.
    pub(crate) fn begin(self, wanted: Resolution) -> Result<Resolution, OrderRefusal> {
        match (self, wanted) {
            (Resolution::Idle, _) | (Resolution::Unanswered, Resolution::KeepsOwn) => Ok(wanted),
            (Resolution::Unanswered, _) => Err(OrderRefusal::MayDiscard),
            (Resolution::KeepsOwn | Resolution::Discards, _) => Err(OrderRefusal::Resolving),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Resolution::{Discards, Idle, KeepsOwn, Unanswered};
    use super::*;

    #[test]
    fn one_resolution_at_a_time() {
        for (state, wanted, begun) in [
            (Idle, KeepsOwn, Ok(KeepsOwn)),
            (Idle, Discards, Ok(Discards)),
            (Unanswered, KeepsOwn, Ok(KeepsOwn)),
            (Unanswered, Discards, Err(OrderRefusal::MayDiscard)),
            (KeepsOwn, KeepsOwn, Err(OrderRefusal::Resolving)),
            (KeepsOwn, Discards, Err(OrderRefusal::Resolving)),
            (Discards, KeepsOwn, Err(OrderRefusal::Resolving)),
            (Discards, Discards, Err(OrderRefusal::Resolving)),
        ] {
            assert_eq!(state.begin(wanted), begun, "{state:?} {wanted:?}");
        }
    }
}
