//! Absence: whether a volume that no open pool has may exist in a closed pool.

use super::{PoolState, Pools};
use crate::http::Problem;

impl Pools {
    /// Reason why a name that no open pool has may exist. `None` if all pools are open.
    pub(super) fn unknown_names(&self) -> Option<String> {
        if let Some(why) = self.registry.unread() {
            return Some(format!("the pools are not known: {why}"));
        }
        let slots = self.slots.borrow();
        let is_closed = |state: &PoolState| !matches!(state, PoolState::Open(_));
        let closed = slots.iter().filter(|(_, slot)| is_closed(&slot.state));
        let closed: Vec<&str> = closed.map(|(name, _)| name.as_str()).collect();
        match closed[..] {
            [] => None,
            [pool] => Some(format!("pool {pool} is not open")),
            _ => Some(format!("the pools {} are not open", closed.join(", "))),
        }
    }

    /// Checks that a volume or snapshot that no open pool has does not exist.
    ///
    /// # Errors
    /// 409 with the pools that are closed, and may have it.
    pub(super) fn check_absent(&self, kind: &str, name: &str) -> Result<(), Problem> {
        match self.unknown_names() {
            None => Ok(()),
            Some(why) => Err(Problem::conflict(format!(
                "no open pool has {kind} {name}, but {why} and may have it: see flagstone pool status"
            ))),
        }
    }
}
