//! Opening of pools: at the start, and again while one cannot be opened.
//!
//! Each pool is opened in a task of its own, without the lock of orders on it until its devices have
//! answered: a device that hangs keeps no other pool from being opened, and no order from being done.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use flagstone_runtime::task::AbortOnDrop;
use flagstone_runtime::{spawn, time};

use super::open::Consent;
use super::{PoolState, Pools};
use crate::connections::DRAIN_PERIOD;
use crate::limits::OPEN_PATIENCE;
use crate::serve::Server;

/// Pools that are being opened, by name.
pub(super) type Openings = RefCell<BTreeMap<String, AbortOnDrop<()>>>;

/// Reason of a pool whose devices have not answered yet.
pub(super) const OPENING: &str = "it is being opened: its devices have not answered yet";

impl Pools {
    /// Gives up an attempt to open the pool, before an order on it. Calls of a device that hangs keep
    /// its lock.
    pub(super) fn end_opening(&self, name: &str) {
        let opening = self.openings.borrow_mut().remove(name);
        drop(opening);
    }
}

impl Server {
    /// Opens the pools, and serves their volumes. Returns after some seconds if devices hang.
    pub(crate) async fn open_pools(self: &Rc<Self>) {
        self.begin_openings();
        let opened = async {
            while !self.pools.openings.borrow().is_empty() {
                time::sleep(DRAIN_PERIOD).await;
            }
        };
        if time::timeout(OPEN_PATIENCE, opened).await.is_err() {
            for name in self.pools.openings.borrow().keys() {
                tracing::error!("pool {name} is not open yet: its devices do not answer");
            }
        }
    }

    /// Begins to open closed pools that are not being opened.
    pub(super) fn begin_openings(self: &Rc<Self>) {
        for (name, slot) in self.pools.slots() {
            let PoolState::Closed { reason, .. } = slot.state else { continue };
            if self.pools.openings.borrow().contains_key(&name) {
                continue;
            }
            let (server, own) = (self.clone(), name.clone());
            let opening = spawn(async move {
                let pools = &server.pools;
                let opened = pools.open_recorded(&own, &slot.set, Consent::default()).await;
                let _order = server.pools.lock(&own).await;
                // An order may have opened or removed the pool meanwhile.
                let now = server.pools.slot(&own);
                if now.is_ok_and(|slot| matches!(slot.state, PoolState::Closed { .. })) {
                    server.end_open(&own, slot.set, &reason, opened).await;
                }
                // The task ends with it.
                server.pools.end_opening(&own);
            });
            self.pools.openings.borrow_mut().insert(name, opening.abort_on_drop());
        }
    }
}
