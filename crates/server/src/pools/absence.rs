//! Absence: whether a volume that no open pool has, or no host finds, may exist in a closed pool or
//! be served later.

use flagstone_nvme::Nqn;
use flagstone_nvmf_target::MissingSubsystems;

use super::{PoolState, Pools, settings};
use crate::http::Problem;
use crate::serve::Server;

impl Pools {
    /// Reason why a name that no open pool has may exist. `None` if all pools are open.
    pub(crate) fn unknown_names(&self) -> Option<String> {
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

impl Server {
    /// Lets hosts of volumes of pools that are not served yet wait for them.
    pub(crate) fn note_missing_volumes(&self) {
        self.target.set_missing(self.missing_subsystems());
    }

    /// Subsystems of volumes that may be served later. A closed pool may have any volume.
    fn missing_subsystems(&self) -> MissingSubsystems {
        if self.pools.unknown_names().is_some() {
            return MissingSubsystems::Any;
        }
        let mut missing = Vec::new();
        for slot in self.pools.slots.borrow().values() {
            let PoolState::Open(pool) = &slot.state else { continue };
            for name in slot.unserved.keys() {
                let Some(info) = pool.volume(name) else { continue };
                match settings::nqn(&self.config, name, &info.properties) {
                    Ok(nqn) => missing.extend(Nqn::new(&nqn)),
                    Err(_) => return MissingSubsystems::Any,
                }
            }
        }
        MissingSubsystems::Named(missing.into_iter().collect())
    }
}
