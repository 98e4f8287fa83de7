//! Shares of buffer memory: what one connection of a server may hold.
//!
//! A [`Share`] is on the core of its connection. Comparing what the connection holds with what it
//! may hold touches nothing else. Only to get more, and to return it, it enters the lock of the
//! [`BufferShares`] that all connections of a process have in common.
//!
//! [`Share::attend`] is the connection's task that hears about granted requests, returns memory
//! that others need, and learns that the connection has to end. It sleeps unless memory is short.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::Mutex;

pub use super::share_table::{DrainState, PeerProgress, Protocol};
use super::share_table::{MemberId, ShareTable};
use crate::limits::{DRAINED_BYTES, SHARE_LOOK, SHARE_STEP_BYTES};
use crate::sync::SharedNotify;
use crate::time;

/// Buffer memory that the connections of a process share.
#[derive(Debug)]
pub struct BufferShares {
    guaranteed: usize,
    /// Some connection waits.
    is_short: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    table: ShareTable,
    notifies: BTreeMap<MemberId, Arc<ShareNotify>>,
}

/// Rings when the connection has something to do.
#[derive(Debug, Default)]
struct ShareNotify {
    rings: AtomicBool,
    has_ended: AtomicBool,
    notify: SharedNotify,
}

impl ShareNotify {
    fn ring(&self) {
        self.rings.store(true, Relaxed);
        self.notify.notify();
    }

    async fn rung(&self) {
        self.notify.wait_for(|| self.rings.swap(false, Relaxed).then_some(())).await;
    }
}

impl BufferShares {
    /// Shares of `memory_bytes` for at most `connections`. Three eighths of the memory are shared:
    /// half of that in equal parts, half of it as it is needed.
    pub fn new(memory_bytes: usize, connections: usize) -> Arc<BufferShares> {
        let table = ShareTable::new(memory_bytes, connections);
        Arc::new(BufferShares {
            guaranteed: table.guaranteed(),
            is_short: AtomicBool::new(false),
            state: Mutex::new(State { table, notifies: BTreeMap::new() }),
        })
    }

    /// The share of a new connection. `peer` is its address; connections whose addresses differ
    /// only in the port are one host's.
    pub fn join(self: &Arc<Self>, protocol: Protocol, peer: &str) -> Share {
        let host = peer.rsplit_once(':').map_or(peer, |(host, _)| host).to_owned();
        let notify = Arc::new(ShareNotify::default());
        let mut state = self.state.lock();
        let id = state.table.join(protocol, host);
        state.notifies.insert(id, notify.clone());
        drop(state);
        Share {
            shares: self.clone(),
            id,
            notify,
            granted: Cell::new(self.guaranteed),
            target: Cell::new(None),
            is_fresh: Cell::new(false),
            moved: Cell::new(0),
        }
    }

    /// Runs `change`, and notifies the connections that it returns.
    fn change(&self, change: impl FnOnce(&mut State) -> Vec<MemberId>) {
        let mut state = self.state.lock();
        let rings = change(&mut state);
        self.is_short.store(state.table.is_short(), Relaxed);
        let notifies: Vec<_> =
            rings.iter().filter_map(|id| state.notifies.get(id).cloned()).collect();
        drop(state);
        for notify in notifies {
            notify.ring();
        }
    }
}

/// Share of one connection.
#[derive(Debug)]
pub struct Share {
    shares: Arc<BufferShares>,
    id: MemberId,
    notify: Arc<ShareNotify>,
    granted: Cell<usize>,
    /// Requested bytes, while the request waits.
    target: Cell<Option<usize>>,
    /// A request was granted, and the connection has not used it yet.
    is_fresh: Cell<bool>,
    /// Bytes that the peer has read and sent.
    moved: Cell<u64>,
}

/// Report of a connection to [`Share::attend`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareReport {
    /// Bytes that the connection holds.
    pub held: usize,
    /// Progress of its peer.
    pub peer: PeerProgress,
}

impl Share {
    /// Bytes that the connection may hold now.
    #[inline]
    pub fn granted(&self) -> usize {
        self.granted.get()
    }

    /// Bytes that the connection may hold at any time.
    pub fn guaranteed(&self) -> usize {
        self.shares.guaranteed
    }

    /// Counts bytes that the peer has read or sent.
    #[inline]
    pub fn moved(&self, bytes: u64) {
        self.moved.set(self.moved.get() + bytes);
    }

    /// True if the connection may hold `bytes`, possibly after requesting more. If false, the
    /// request waits, and [`Share::attend`] calls `wake` when it is granted. Call it only if the
    /// connection could use the memory now: a connection that waits for its peer does not need
    /// more.
    #[inline]
    pub fn admits(&self, bytes: usize) -> bool {
        let admits = bytes <= self.granted.get() || self.grow(bytes);
        if admits {
            self.is_fresh.set(false);
        }
        admits
    }

    #[cold]
    fn grow(&self, bytes: usize) -> bool {
        let drain_state =
            if self.moved.get() >= DRAINED_BYTES { DrainState::Draining } else { DrainState::New };
        let (now, guaranteed) = (time::now(), self.guaranteed());
        let mut granted = None;
        self.shares.change(|state| {
            let ample = bytes.next_multiple_of(SHARE_STEP_BYTES);
            let was_short = state.table.is_short();
            let mut ask = |bytes: usize, waits: bool| {
                let target = bytes - guaranteed;
                let table = &mut state.table;
                let done = match waits {
                    false => table.try_ask(self.id, target, drain_state, now),
                    true => table.ask(self.id, target, drain_state, now),
                };
                granted = done.then_some(bytes);
                done
            };
            if !was_short && ask(ample, false) || ask(bytes, true) {
                return Vec::new();
            }
            // Others return what they do not use, and this connection's task watches them.
            let mut rings = Vec::new();
            if self.target.get().is_none() {
                rings.push(self.id);
            }
            if !was_short {
                rings.extend(state.table.holders());
            }
            rings
        });
        match granted {
            Some(granted) => {
                self.granted.set(granted);
                self.target.set(None);
                true
            }
            None => {
                self.target.set(Some(bytes));
                false
            }
        }
    }

    /// Withdraws a request that waits: the connection continues without it.
    #[inline]
    pub fn withdraw(&self) {
        self.is_fresh.set(false);
        if let Some(target) = self.target.take() {
            self.shares.change(|state| {
                if state.table.is_waiting(self.id) {
                    state.table.withdraw(self.id);
                } else {
                    // It was granted meanwhile.
                    self.granted.set(target);
                }
                Vec::new()
            });
        }
    }

    /// Serves the connection's share. `report` returns the connection's state, and `wake` makes
    /// it call [`Share::admits`] again. Returns when the connection has to end, because its peer
    /// stalls while others wait for memory.
    pub async fn attend(&self, report: impl Fn() -> ShareReport, wake: impl Fn()) {
        loop {
            if self.target.get().is_some() {
                let _ = time::timeout(SHARE_LOOK, self.notify.rung()).await;
            } else {
                self.notify.rung().await;
            }
            if self.notify.has_ended.load(Relaxed) {
                return;
            }
            self.exchange(report());
            wake();
        }
    }

    /// Reports the state of this connection to the table, and learns its decision.
    fn exchange(&self, report: ShareReport) {
        let (now, guaranteed) = (time::now(), self.guaranteed());
        self.shares.change(|state| {
            let mut rings = Vec::new();
            if let Some(target) = self.target.get() {
                if state.table.is_waiting(self.id) {
                    rings.extend(state.look(now));
                } else {
                    self.target.set(None);
                    self.granted.set(target);
                    self.is_fresh.set(true);
                }
            }
            state.table.report(self.id, report.peer);
            if state.table.is_short() && !self.is_fresh.get() {
                let keep = report.held.max(guaranteed);
                if keep < self.granted.get() {
                    self.granted.set(keep);
                    rings.extend(state.table.give_back(self.id, keep - guaranteed, now));
                }
            }
            rings
        });
    }

    /// Returns everything beyond the guaranteed share, if the connection holds no more than that
    /// and others wait.
    #[inline]
    pub fn released(&self, held: usize) {
        if self.shares.is_short.load(Relaxed)
            && self.granted.get() > held.max(self.guaranteed())
            && !self.is_fresh.get()
        {
            self.shrink(held);
        }
    }

    /// Returns what the connection may hold beyond `held` and the guaranteed share.
    #[cold]
    pub fn shrink(&self, held: usize) {
        let keep = held.max(self.guaranteed());
        if keep < self.granted.get() {
            self.granted.set(keep);
            let (now, extra) = (time::now(), keep - self.guaranteed());
            self.shares.change(|state| state.table.give_back(self.id, extra, now));
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let now = time::now();
        self.shares.change(|state| {
            state.notifies.remove(&self.id);
            state.table.leave(self.id, now)
        });
    }
}

impl State {
    /// Ends stalled connections, and returns the connections that have to report.
    fn look(&mut self, now: time::Instant) -> Vec<MemberId> {
        if !self.table.may_look(now) {
            return Vec::new();
        }
        for id in self.table.stalled(now) {
            if let Some(notify) = self.notifies.get(&id) {
                notify.has_ended.store(true, Relaxed);
            }
        }
        self.table.holders().collect()
    }
}
