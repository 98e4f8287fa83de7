//! Opening of pools: at the start, and repeated for closed pools.
//!
//! A task per pool opens it. The task has no order lock until the devices have answered, so a hung
//! device blocks neither other pools nor orders.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use flagstone_runtime::task::AbortOnDrop;
use flagstone_runtime::time::{Backoff, Instant};
use flagstone_runtime::{spawn, time};

use super::{PoolState, Pools};
use crate::connections::DRAIN_PERIOD;
use crate::limits::{OPEN_TIMEOUT, POOL_PAUSE, SEARCH_PAUSE_MAX};
use crate::serve::Server;

/// Tasks that open or import pools, by name.
pub(super) type Openings = RefCell<BTreeMap<String, AbortOnDrop<()>>>;

/// Reason of a closed pool whose devices have not answered yet.
pub(super) const OPENING: &str = "it is being opened: its devices have not answered yet";

/// Attempts to open pools that are complete and stay closed, by name. Each attempt reads all disks
/// of the machine, which keeps them from standby, so attempts become rare.
#[derive(Default)]
pub(super) struct OpenAttempts(RefCell<BTreeMap<String, Attempt>>);

struct Attempt {
    at: Instant,
    /// Pause before the next attempt.
    pause: Duration,
    /// Pauses after it.
    pauses: Backoff,
    /// Disks that were not read, with the reasons.
    unread: Option<String>,
}

impl OpenAttempts {
    /// Records a search for copies, and the disks that it did not read. True if these differ from
    /// the last search.
    pub(super) fn note(&self, name: &str, unread: Option<&str>, now: Instant) -> bool {
        let mut attempts = self.0.borrow_mut();
        let last = attempts.get(name);
        let mut pauses =
            last.map_or(Backoff::new(POOL_PAUSE, SEARCH_PAUSE_MAX), |last| last.pauses);
        let pause = last.map_or(Duration::ZERO, |_| pauses.advance());
        let is_news = unread.is_some() && last.and_then(|last| last.unread.as_deref()) != unread;
        let unread = unread.map(str::to_owned);
        attempts.insert(name.to_owned(), Attempt { at: now, pause, pauses, unread });
        is_news
    }

    fn is_due(&self, name: &str, now: Instant) -> bool {
        let attempts = self.0.borrow();
        attempts.get(name).is_none_or(|last| now.since(last.at) >= last.pause)
    }
}

impl Pools {
    /// Cancels an attempt to open or import the pool, before an order on it. After a dry run, the
    /// next attempt comes soon, and an import continues. Hung calls keep their devices locked.
    pub(super) fn end_opening(&self, name: &str, dry_run: bool) {
        let opening = self.openings.borrow_mut().remove(name);
        let import = (!dry_run).then(|| self.imports.borrow_mut().remove(name));
        if dry_run {
            self.attempts.0.borrow_mut().remove(name);
        }
        drop((opening, import));
    }
}

impl Server {
    /// Opens the pools, and serves their volumes. Returns after some seconds even if devices hang.
    pub(crate) async fn open_pools(self: &Rc<Self>) {
        self.begin_openings();
        let opened = async {
            while !self.pools.openings.borrow().is_empty() {
                time::sleep(DRAIN_PERIOD).await;
            }
        };
        if time::timeout(OPEN_TIMEOUT, opened).await.is_err() {
            for name in self.pools.openings.borrow().keys() {
                tracing::error!("pool {name} is not open yet: its devices do not answer");
            }
        }
    }

    /// Starts opening closed pools that are not being opened.
    pub(super) fn begin_openings(self: &Rc<Self>) {
        for (name, slot) in self.pools.slots() {
            let PoolState::Closed { reason, cause } = slot.state else {
                self.pools.attempts.0.borrow_mut().remove(&name);
                continue;
            };
            let is_begun = self.pools.openings.borrow().contains_key(&name);
            // An import that holds the lock is about to open the devices; it holds none while
            // devices hang.
            let has_order = self.pools.try_lock(&name).is_none();
            if is_begun || has_order || !self.pools.attempts.is_due(&name, time::now()) {
                continue;
            }
            let (server, own) = (self.clone(), name.clone());
            let opening = spawn(async move {
                let pools = &server.pools;
                let opened = pools.open_recorded(&own, &slot.set, cause.consent()).await;
                let _order = server.pools.lock(&own).await;
                // An order may have opened or removed the pool meanwhile.
                let now = server.pools.slot(&own);
                if now.is_ok_and(|slot| matches!(slot.state, PoolState::Closed { .. })) {
                    server.end_open(&own, slot.set, &reason, opened).await;
                }
                // Removing the opening ends this task.
                let opening = server.pools.openings.borrow_mut().remove(&own);
                drop(opening);
            });
            self.pools.openings.borrow_mut().insert(name, opening.abort_on_drop());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complete_pool_is_tried_less_and_less_often() {
        let begin = flagstone_runtime::block_on(async { time::now() }).unwrap();
        let (attempts, mut tried) = (OpenAttempts::default(), Vec::new());
        for seconds in (0..300).step_by(5) {
            let now = begin + Duration::from_secs(seconds);
            if attempts.is_due("fast", now) {
                attempts.note("fast", None, now);
                tried.push(seconds);
            }
        }
        assert_eq!(tried, [0, 5, 10, 20, 40, 80, 140, 200, 260]);
        assert!(attempts.is_due("slow", begin));
    }

    #[test]
    fn unread_disks_are_logged_once() {
        let now = flagstone_runtime::block_on(async { time::now() }).unwrap();
        let attempts = OpenAttempts::default();
        let news = [Some("/dev/sda"), Some("/dev/sda"), Some("/dev/sdb"), None, Some("/dev/sdb")]
            .map(|unread| attempts.note("fast", unread, now));
        assert_eq!(news, [true, false, true, false, true]);
        assert!(attempts.note("slow", Some("/dev/sdb"), now));
    }
}
