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
    /// This node discards its data, or is about to.
    Discards,
}

impl Resolution {
    /// The state in which a resolution begins.
    ///
    /// # Errors
    /// If another one is in progress.
    pub(crate) fn begin(self, wanted: Resolution) -> Result<Resolution, OrderRefusal> {
        match (self, wanted) {
            (Resolution::Idle, _) => Ok(wanted),
            (Resolution::KeepsOwn | Resolution::Discards, _) => Err(OrderRefusal::Resolving),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Resolution::{Discards, Idle, KeepsOwn};
    use super::*;

    #[test]
    fn one_resolution_at_a_time() {
        for (state, wanted, begun) in [
            (Idle, KeepsOwn, Ok(KeepsOwn)),
            (Idle, Discards, Ok(Discards)),
            (KeepsOwn, KeepsOwn, Err(OrderRefusal::Resolving)),
            (KeepsOwn, Discards, Err(OrderRefusal::Resolving)),
            (Discards, KeepsOwn, Err(OrderRefusal::Resolving)),
            (Discards, Discards, Err(OrderRefusal::Resolving)),
        ] {
            assert_eq!(state.begin(wanted), begun, "{state:?} {wanted:?}");
        }
    }
}
