//! Admission: the single point that every host write and flush passes. It decides which legs
//! receive the call, and counts it as in flight.
//!
//! The decision stays valid until the call completes, because any change of it waits for calls that
//! were admitted earlier. Marks that must exist before the data does are set here, under the same
//! lock, so that the end of a session cannot miss them.

use flagstone_blockdev::IoError;
use parking_lot::MutexGuard;

use crate::io::queue::{QueueSlot, WriteQueue};
use crate::io::reorder::WriteNumbers;
use crate::limits::PEERS_MAX;
use crate::mirror::{Inner, Leg, LegState, Mirror, State};
use crate::options::{Mode, OnCongestion, PeerOptions};
use crate::state::status::DesiredState;
use crate::wire::peer::SharedSession;

#[expect(clippy::large_enum_variant, reason = "a box would be an allocation for each write")]
pub(crate) enum Admission {
    /// Dispatch the call to these legs, and call [`Inner::call_completed`] at its end.
    Admitted(Dispatch),
    /// Wait for the change after this one without holding anything. The wait is short.
    Wait(u64),
    /// As `Wait`, until a peer is up to date again or the operator decides. The wait is unbounded.
    Blocked(u64),
    /// A new generation has to be started first.
    NeedsGeneration,
    /// The queue of an asynchronous peer is full: wait for space without holding anything.
    QueueFull(usize),
    /// The queue is full, and the peer in this session is to be detached.
    Detach(usize, u64),
    Moved(Mirror),
    /// Hosts are not served here.
    Refused(IoError),
}

#[derive(Clone, Default)]
pub(crate) struct Dispatch {
    pub(crate) legs: [LegDispatch; PEERS_MAX],
    pub(crate) local: bool,
}

/// A call's part for one peer.
#[derive(Clone, Default)]
pub(crate) enum LegDispatch {
    /// No I/O: there is no session, and the range is marked as out of sync.
    #[default]
    MarkOnly,
    Send(LegCall),
    Queue(LegCall, QueueSlot, WriteNumbers),
}

#[derive(Clone)]
pub(crate) struct LegCall {
    pub(crate) session: SharedSession,
    pub(crate) session_id: u64,
    /// The data has to be durable on the peer at completion.
    pub(crate) durable: bool,
    /// The half of the unflushed bitmap in which the call is marked.
    pub(crate) half: Option<usize>,
}

impl Leg {
    pub(crate) fn options(&self) -> MutexGuard<'_, PeerOptions> {
        self.options.lock()
    }

    pub(crate) fn queue(&self) -> MutexGuard<'_, WriteQueue> {
        self.queue.lock()
    }
}

impl Inner {
    /// Asks for admission of a write to a range, with `data_bytes` of payload. The caller holds
    /// references to its regions and the lock on its range.
    pub(crate) fn admit(&self, (offset, len): (u64, u64), data_bytes: u64) -> Admission {
        let mut state = self.lock();
        if let Some(moved) = state.moved() {
            return moved;
        }
        if !state.serving {
            return Admission::Refused(IoError::Unreachable);
        }
        if state.admission_blocks > 0 {
            return Admission::Wait(state.changes);
        }
        if state.is_unavailable() {
            return Admission::Refused(IoError::Unreachable);
        }
        // Check all legs before changing anything, so that a refusal needs no undo.
        for (index, (leg, own)) in self.legs.iter().zip(&state.legs).enumerate() {
            if let Some(stop) = admission_barrier(leg, own, index, len, &state) {
                return stop;
            }
        }
        let mut dispatch = Dispatch { local: !state.local_device_failed, ..Dispatch::default() };
        let served_by_peer = state.local_device_failed;
        for (index, own) in state.legs.iter_mut().enumerate() {
            dispatch.legs[index] =
                self.admit_leg(own, index, (offset, len), data_bytes, served_by_peer);
        }
        state.in_flight += 1;
        Admission::Admitted(dispatch)
    }

    /// Admits the call to one leg. While a peer serves the volume because the local leg has failed,
    /// its calls are waited for even in asynchronous mode.
    fn admit_leg(
        &self,
        own: &mut LegState,
        index: usize,
        (offset, len): (u64, u64),
        data_bytes: u64,
        served_by_peer: bool,
    ) -> LegDispatch {
        let leg = &self.legs[index];
        let Some(session) = own.session.as_ref().filter(|_| own.receives_writes) else {
            self.mark(index, offset, len);
            return LegDispatch::MarkOnly;
        };
        let (mode, tracks_unflushed) = {
            let options = leg.options();
            (options.mode, options.tracks_unflushed())
        };
        let half = tracks_unflushed.then_some(own.unflushed_half);
        let durable = !tracks_unflushed && own.volatile_cache;
        let leg_call =
            LegCall { session: session.clone(), session_id: own.session_id, durable, half };
        let dispatch = match mode {
            Mode::Async if !served_by_peer => match leg.queue().push(len, Inner::now_ns()) {
                Some(slot) => {
                    let parts = data_bytes.div_ceil(session.transfer_bytes()).max(1);
                    let numbers = own.numbering.begin(parts as u32);
                    LegDispatch::Queue(leg_call, slot, numbers)
                }
                // Space was checked under the same lock, and other tasks only free space.
                None => unreachable!("the queue fills only under the state's lock"),
            },
            Mode::Sync | Mode::Async => LegDispatch::Send(leg_call),
        };
        if let Some(half) = half {
            self.mark_unflushed(index, half, offset, len);
            own.unflushed_in_flight[half] += 1;
            own.has_unflushed = true;
        }
        own.calls_in_flight += 1;
        dispatch
    }

    pub(crate) fn admit_flush(&self) -> Admission {
        let mut state = self.lock();
        if let Some(moved) = state.moved() {
            return moved;
        }
        if !state.serving {
            return Admission::Refused(IoError::Unreachable);
        }
        if state.admission_blocks > 0 {
            return Admission::Wait(state.changes);
        }
        if state.is_unavailable() {
            return Admission::Refused(IoError::Unreachable);
        }
        // Legs that acknowledge from memory have to flush too, or be recorded as out of date.
        let local = !state.local_device_failed;
        let asks = |leg: &Leg| {
            let options = leg.options();
            (options.mode == Mode::Sync || !local) && options.tracks_unflushed()
        };
        let mut dispatch = Dispatch { local, ..Dispatch::default() };
        for index in (0..self.legs.len()).filter(|index| asks(&self.legs[*index])) {
            let own = &mut state.legs[index];
            if !own.receives_writes && !own.generation_bumped && own.has_unflushed && local {
                return Admission::NeedsGeneration;
            }
            let Some(session) = own.session.clone().filter(|_| own.receives_writes) else {
                continue;
            };
            let (session_id, durable) = (own.session_id, false);
            dispatch.legs[index] =
                LegDispatch::Send(LegCall { session, session_id, durable, half: None });
        }
        for (own, dispatch) in state.legs.iter_mut().zip(&dispatch.legs) {
            own.calls_in_flight += usize::from(matches!(dispatch, LegDispatch::Send(_)));
        }
        state.in_flight += 1;
        Admission::Admitted(dispatch)
    }

    /// The call to one leg has completed, and any mark that it leaves has been set.
    pub(crate) fn leg_completed(&self, leg: usize, half: Option<usize>) {
        let end = |own: &mut LegState| {
            own.calls_in_flight -= 1;
            let mut last = own.calls_in_flight == 0;
            if let Some(half) = half {
                own.unflushed_in_flight[half] -= 1;
                last |= own.unflushed_in_flight[half] == 0;
            }
            last
        };
        // Few tasks wait for the last call, and most calls are not the last.
        let last = end(&mut self.lock().legs[leg]);
        if last {
            self.change(|_| {});
        }
    }

    /// The call has completed. Returns false when hosts are no longer served: this side was deposed
    /// meanwhile, and its successor may lack the call's data.
    pub(crate) fn call_completed(&self) -> bool {
        let (last, serving) = {
            let mut state = self.lock();
            state.in_flight -= 1;
            let awaited = state.admission_blocks > 0 || !state.serving;
            (state.in_flight == 0 && awaited, state.serving)
        };
        if last {
            self.change(|_| {});
        }
        serving
    }
}

impl State {
    /// What a host call does when the replica is moving to another mirror: wait, or follow it.
    pub(crate) fn moved(&self) -> Option<Admission> {
        match &self.replacement {
            Some(replacement) => Some(Admission::Moved(replacement.clone())),
            None => self.migrating.then_some(Admission::Wait(self.changes)),
        }
    }
}

/// The reason why this leg keeps a write of `len` bytes from being admitted, if there is one.
fn admission_barrier(
    leg: &Leg,
    own: &LegState,
    index: usize,
    len: u64,
    state: &State,
) -> Option<Admission> {
    let options = leg.options();
    if own.receives_writes {
        let waits = options.mode == Mode::Sync || state.local_device_failed;
        if waits || leg.queue().has_space(len) {
            return None;
        }
        return Some(match options.on_congestion {
            OnCongestion::Throttle => Admission::QueueFull(index),
            OnCongestion::Detach => Admission::Detach(index, own.session_id),
        });
    }
    if options.blocks_on_peer_loss() && own.desired_state == DesiredState::Connected {
        return Some(Admission::Blocked(state.changes));
    }
    (!own.generation_bumped && !state.local_device_failed).then_some(Admission::NeedsGeneration)
}
