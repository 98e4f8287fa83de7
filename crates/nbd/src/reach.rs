//! Reachability of an export's device, as far as negotiations need it.
//!
//! A request that fails because the device cannot be reached ends its connection without a reply
//! (`server::connection`). From then on, a negotiation asks the device before it admits a client:
//! a client that was admitted would lose its connection again and again. One read at a time asks,
//! however many clients negotiate.
//!
//! A device may be unreachable in part, so that the question is answered and calls still fail.
//! Their clients would reconnect and send them again for good: after [`CONTRADICTIONS`] such
//! answers, the calls fail with an error reply.

use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::IoError;
use flagstone_runtime::limits::BUF_MIN_BYTES;
use flagstone_runtime::sync::SharedNotify;
use flagstone_runtime::time::Instant;
use flagstone_runtime::{buf, spawn_detached, task, time};
use parking_lot::Mutex;

use crate::export::Export;
use crate::limits::{CONTRADICTIONS, CONTRADICTIONS_KEPT, REACH_TIMEOUT};

#[derive(Debug, Default)]
pub(crate) struct Reach {
    state: Mutex<State>,
    asked: SharedNotify,
    contradictions: Mutex<Contradictions>,
}

/// Answers of a device right after a call had failed because it could not be reached.
#[derive(Debug, Default)]
struct Contradictions {
    count: u32,
    latest: Option<Instant>,
}

impl Contradictions {
    fn are_many(&self, now: Instant) -> bool {
        let are_recent = self.latest.is_some_and(|at| now.since(at) < CONTRADICTIONS_KEPT);
        are_recent && self.count >= CONTRADICTIONS
    }

    fn add(&mut self, now: Instant) {
        if self.latest.is_some_and(|at| now.since(at) >= CONTRADICTIONS_KEPT) {
            self.count = 0;
        }
        *self = Contradictions { count: self.count.saturating_add(1), latest: Some(now) };
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Nothing suggests that the device cannot be reached.
    #[default]
    Reached,
    /// The device was never asked.
    Unknown,
    /// A call has failed.
    Lost,
    /// A read is in progress. A call has failed before it began, or since.
    Asking { was_lost: bool, is_lost_again: bool },
}

impl Reach {
    /// The device may be unreachable from the start.
    pub(crate) fn unknown() -> Reach {
        Reach { state: Mutex::new(State::Unknown), ..Reach::default() }
    }

    /// A call has failed because the device cannot be reached.
    pub(crate) fn lost(&self) {
        let mut state = self.state.lock();
        *state = match *state {
            State::Asking { was_lost, .. } => State::Asking { was_lost, is_lost_again: true },
            State::Reached | State::Unknown | State::Lost => State::Lost,
        };
    }

    /// True if a call that cannot reach the device ends its connection.
    pub(crate) fn ends_connections(&self) -> bool {
        !self.contradictions.lock().are_many(time::now())
    }

    /// True if the device has to be asked before a client is admitted.
    pub(crate) fn is_in_doubt(&self) -> bool {
        *self.state.lock() != State::Reached
    }

    /// True if no client is admitted. A device that does not answer in time, and was never
    /// unreachable, is only slow.
    pub(crate) fn is_lost(&self) -> bool {
        match *self.state.lock() {
            State::Reached | State::Unknown => false,
            State::Lost => true,
            State::Asking { was_lost, is_lost_again } => was_lost || is_lost_again,
        }
    }

    /// Starts to ask the device, unless that is in progress or needless.
    fn ask(export: &Arc<Export>) {
        let mut state = export.reach.state.lock();
        let was_lost = match *state {
            State::Reached | State::Asking { .. } => return,
            State::Unknown => false,
            State::Lost => true,
        };
        *state = State::Asking { was_lost, is_lost_again: false };
        drop(state);
        let answer = ReachAnswer { export: export.clone(), found: State::Lost };
        spawn_detached(answer.ask());
    }

    async fn is_asked(&self) {
        let asked = || (!matches!(*self.state.lock(), State::Asking { .. })).then_some(());
        self.asked.wait_for(asked).await;
    }
}

/// Asks the devices that are in doubt, and waits for their answers for at most `limit` and
/// [`REACH_TIMEOUT`].
pub(crate) async fn check(exports: &[Arc<Export>], limit: Duration) {
    exports.iter().for_each(Reach::ask);
    let asked = async {
        for export in exports {
            export.reach.is_asked().await;
        }
    };
    let _: Result<(), _> = time::timeout(limit.min(REACH_TIMEOUT), asked).await;
}

/// Answer of a device, recorded when dropped, even if its core stops before.
struct ReachAnswer {
    export: Arc<Export>,
    found: State,
}

impl ReachAnswer {
    async fn ask(mut self) {
        // Not of the connection that asks: a read that waits would give up with its client.
        task::begin_flow();
        let device = &self.export.device;
        let bytes = device.geometry().block_bytes as usize;
        let place = match bytes <= BUF_MIN_BYTES {
            true => Some(buf::alloc_small(bytes)),
            false => time::timeout(MEMORY_PAUSE, buf::alloc(bytes)).await.ok(),
        };
        let answer = match place {
            Some(place) => device.read(0, place).await.map(drop),
            None => Err(IoError::NoMemory),
        };
        // A device that fails in any other way can be reached.
        let reach = &self.export.reach;
        let state = *reach.state.lock();
        if answer == Err(IoError::Unreachable) {
            *reach.contradictions.lock() = Contradictions::default();
        } else {
            if matches!(state, State::Asking { was_lost: true, .. }) {
                reach.contradictions.lock().add(time::now());
            }
            self.found = State::Reached;
        }
    }
}

impl Drop for ReachAnswer {
    fn drop(&mut self) {
        let reach = &self.export.reach;
        let mut state = reach.state.lock();
        // The answer may be older than the failure of a call.
        let is_outdated = matches!(*state, State::Asking { is_lost_again: true, .. });
        *state = if is_outdated { State::Lost } else { self.found };
        drop(state);
        reach.asked.notify();
    }
}

/// Time to wait for the memory of a block larger than 4 KiB.
const MEMORY_PAUSE: Duration = Duration::from_secs(1);
