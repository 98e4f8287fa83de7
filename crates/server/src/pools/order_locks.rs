//! Order locks: one order at a time on a pool, and on the name of a volume.
//!
//! The devices of a pool may hang during an order. Orders on other pools do not wait for it, and
//! those on its own pool wait a limited time.
//!
//! Invariants:
//! - an order takes the names of its volumes first, then its pools, each in alphabetical order, so
//!   no two orders wait for each other;
//! - while an order has the name of a volume, no other order gives a pool a volume of this name, or
//!   takes it away, but for orders that open or close a pool.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use flagstone_runtime::sync::{Permit, Semaphore};
use flagstone_runtime::time;

use super::{PoolState, Pools};
use crate::http::Problem;
use crate::limits::ORDER_TIMEOUT;

/// Locks by name. One that is not held or waited for is removed.
#[derive(Default)]
struct Locks(RefCell<BTreeMap<String, Rc<Semaphore>>>);

impl Locks {
    fn get(&self, name: &str) -> Rc<Semaphore> {
        let mut locks = self.0.borrow_mut();
        locks.retain(|_, lock| Rc::strong_count(lock) > 1);
        locks.entry(name.to_owned()).or_insert_with(|| Semaphore::new(1)).clone()
    }
}

/// Locks of all orders.
#[derive(Default)]
pub(super) struct OrderLocks {
    pools: Locks,
    names: Locks,
}

/// Right to change some volumes, and the pools that have them.
pub(super) struct VolumesPermit {
    _names: Vec<Permit>,
    _pools: Vec<Permit>,
}

impl Pools {
    /// Waits for the lock of a pool, for as long as it takes: for tasks without a client.
    pub(super) async fn lock(&self, pool: &str) -> Permit {
        self.locks.pools.get(pool).acquire(1).await
    }

    /// The lock of a pool, unless an order has it.
    pub(super) fn try_lock(&self, pool: &str) -> Option<Permit> {
        self.locks.pools.get(pool).try_acquire(1)
    }

    /// Begins an order on a pool.
    ///
    /// # Errors
    /// 409 while another order on it does not end.
    pub(super) async fn order(&self, pool: &str) -> Result<Permit, Problem> {
        self.check_unchanging(pool)?;
        let locked = time::timeout(ORDER_TIMEOUT, self.lock(pool)).await;
        let permit = locked.map_err(|_| busy("pool", pool))?;
        self.check_unchanging(pool)?;
        Ok(permit)
    }

    /// Begins an order on volumes, and on `pool` if it may get a volume.
    ///
    /// # Errors
    /// 409 while another order on one of them does not end.
    pub(super) async fn order_on(
        &self,
        names: &[&str],
        pool: Option<&str>,
    ) -> Result<VolumesPermit, Problem> {
        let begun = time::now();
        let left = || ORDER_TIMEOUT.saturating_sub(begun.elapsed());
        let mut taken = Vec::new();
        for name in BTreeSet::from_iter(names) {
            let lock = self.locks.names.get(name);
            let locked = time::timeout(left(), lock.acquire(1)).await;
            taken.push(locked.map_err(|_| busy("volume", name))?);
        }
        loop {
            let pools = self.pools_of(names, pool);
            let mut locked = Vec::new();
            for pool in &pools {
                self.check_unchanging(pool)?;
                let lock = time::timeout(left(), self.lock(pool)).await;
                locked.push(lock.map_err(|_| busy("pool", pool))?);
            }
            // A pool may have been opened meanwhile.
            if self.pools_of(names, pool).is_subset(&pools) {
                return Ok(VolumesPermit { _names: taken, _pools: locked });
            }
        }
    }

    /// Open pools that have volumes of these names, and `pool`.
    fn pools_of(&self, names: &[&str], pool: Option<&str>) -> BTreeSet<String> {
        let has_one = |state: &PoolState| match state {
            PoolState::Open(pool) => names.iter().any(|name| pool.volume(name).is_some()),
            PoolState::Changing { .. } | PoolState::Closed { .. } => false,
        };
        let slots = self.slots.borrow();
        let with_one = slots.iter().filter(|(_, slot)| has_one(&slot.state));
        with_one.map(|(name, _)| name.clone()).chain(pool.map(str::to_owned)).collect()
    }

    fn check_unchanging(&self, pool: &str) -> Result<(), Problem> {
        match self.slots.borrow().get(pool).map(|slot| &slot.state) {
            Some(PoolState::Changing { what }) => {
                Err(Problem::conflict(format!("pool {pool} is not open: {what}")))
            }
            _ => Ok(()),
        }
    }
}

fn busy(kind: &str, name: &str) -> Problem {
    Problem::conflict(format!(
        "another order on {kind} {name} has not ended: its devices may not answer; repeat the order later"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use flagstone_runtime::{block_on, spawn};

    #[test]
    fn order_waits_for_its_own_pool_and_name_only() {
        block_on(async {
            let pools = Rc::new(Pools::read(None, 1).await);
            let first = pools.order("a").await.unwrap();
            let other = pools.order("b").await.unwrap();
            drop(pools.order_on(&["db"], None).await.unwrap());
            assert!(pools.try_lock("a").is_none() && pools.try_lock("c").is_some());
            drop(other);
            let waiting = pools.clone();
            let named =
                spawn(async move { waiting.order_on(&["y", "x"], Some("a")).await.map(drop) });
            flagstone_runtime::task::yield_now().await;
            drop(pools.order_on(&["z"], Some("b")).await.unwrap());
            assert!(pools.locks.names.get("x").try_acquire(1).is_none(), "it has the names");
            drop(first);
            assert!(named.await.unwrap().is_ok());
            drop(pools.order_on(&["x", "y"], Some("a")).await.unwrap());
            drop(pools.locks.names.get("z"));
            assert_eq!(pools.locks.names.0.borrow().len(), 1, "unused locks are removed");
        })
        .unwrap();
    }
}
