//! Admission: the single point that every host write and flush passes. It decides which legs
//! receive the call, and counts it as in flight.
//!
//! The decision stays valid until the call completes, because any change of it waits for calls that
//! were admitted earlier. While every peer is connected and synchronous, a write is admitted by its
//! core's [`AdmissionView`] without a lock. Everything else is decided under the lock of the state.
//! Marks that must exist before the data does are set before the admission is confirmed
//! ([`crate::io::call_admission`]), so that the end of a session cannot miss them.

use std::rc::Rc;
use std::sync::{Arc, Weak};

use flagstone_blockdev::IoError;
use parking_lot::MutexGuard;

use crate::group::{GroupSlot, SharedNumbering};
use crate::io::call_admission::Counted;
use crate::io::queue::{QueueSlot, WriteQueue};
use crate::io::reorder::{WriteNumbers, WriteOrder};
use crate::limits::PEERS_MAX;
use crate::manage::transfer::RoleTransfer;
use crate::mirror::{Inner, Leg, LegState, Mirror, State};
use crate::options::{Mode, OnCongestion, PeerOptions};
use crate::state::status::DesiredState;
use crate::wire::peer::{PeerSession, SharedSession};

/// Copy of the state for calls on one core.
#[derive(Default)]
pub(crate) struct AdmissionView {
    /// Hosts are served, from the local leg.
    pub(crate) reads_locally: bool,
    /// The session that may write to this replica.
    pub(crate) attached: Option<u64>,
    /// The call to each configured peer, if every write is sent to all legs and waits for them.
    writes: Option<[Option<ViewedLeg>; PEERS_MAX]>,
}

struct ViewedLeg {
    /// A view does not keep a session open that has ended.
    session: Weak<dyn PeerSession>,
    session_id: u64,
    durable: bool,
    half: Option<usize>,
}

impl ViewedLeg {
    fn call(&self) -> Option<LegCall> {
        let &ViewedLeg { ref session, session_id, durable, half } = self;
        Some(LegCall { session: session.upgrade()?, session_id, durable, half, numbers: None })
    }
}

#[expect(clippy::large_enum_variant, reason = "a box would be an allocation for each write")]
pub(crate) enum MirrorAdmission {
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

#[derive(Default)]
pub(crate) struct Dispatch {
    pub(crate) legs: [LegDispatch; PEERS_MAX],
    pub(crate) local: bool,
    /// Version of the state at admission.
    version: u64,
}

/// Part of a call for one peer.
#[derive(Default)]
pub(crate) enum LegDispatch {
    /// No I/O: there is no session, and the range is marked as out of sync.
    #[default]
    MarkOnly,
    Send(LegCall),
    Queue(LegCall, QueueSlots),
}

/// Places of a write in the queue of its leg, and in that of its group session.
#[derive(Clone)]
pub(crate) struct QueueSlots {
    pub(crate) own: QueueSlot,
    pub(crate) in_group: Option<GroupSlot>,
}

#[derive(Clone)]
pub(crate) struct LegCall {
    pub(crate) session: SharedSession,
    pub(crate) session_id: u64,
    /// The data has to be durable on the peer at completion.
    pub(crate) durable: bool,
    /// The half of the unflushed bitmap in which the call is marked.
    pub(crate) half: Option<usize>,
    /// Numbers of the write in the order of its session, or of the group session.
    pub(crate) numbers: Option<(SharedNumbering, WriteNumbers)>,
}

impl LegCall {
    pub(crate) fn order(&self) -> Option<WriteOrder> {
        self.numbers.as_ref().map(|(_, numbers)| numbers.first)
    }
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
    /// This core's view of the state, and its version.
    #[inline]
    pub(crate) fn view(&self) -> (u64, Rc<AdmissionView>) {
        self.calls.view(|| {
            let state = self.lock();
            (self.calls.version(), self.viewed(&state))
        })
    }

    fn viewed(&self, state: &State) -> AdmissionView {
        let serves = state.serving && state.replacement().is_none() && !state.local_device_failed;
        let admits = serves && state.barrier().is_none();
        let mut legs = [const { None }; PEERS_MAX];
        let known = legs.iter_mut().zip(state.legs.iter().zip(&self.legs)).all(|(view, leg)| {
            *view = viewed_leg(leg);
            view.is_some()
        });
        AdmissionView {
            reads_locally: serves,
            attached: state.attached.map(|attached| attached.session),
            writes: (admits && known).then_some(legs),
        }
    }

    /// Asks for admission of a write to a range, with `data_bytes` of payload. The caller holds
    /// references to its regions and the lock on its range.
    pub(crate) fn admit(&self, range: (u64, u64), data_bytes: u64) -> MirrorAdmission {
        match self.admit_by_view(range) {
            Some(dispatch) => MirrorAdmission::Admitted(dispatch),
            None => self.admit_locked(range, data_bytes),
        }
    }

    /// Admits a write that needs no decision; `None` if it does.
    #[inline]
    pub(crate) fn admit_by_view(&self, (offset, len): (u64, u64)) -> Option<Dispatch> {
        let (version, view) = self.view();
        let legs = view.writes.as_ref()?;
        let mut dispatch = Dispatch { local: true, version, ..Dispatch::default() };
        for (to, viewed) in dispatch.legs.iter_mut().zip(legs) {
            if let Some(viewed) = viewed {
                *to = LegDispatch::Send(viewed.call()?);
            }
        }
        self.calls.begin(Counted::HostCall);
        for (index, leg) in dispatch.legs.iter().enumerate() {
            if let LegDispatch::Send(leg_call) = leg {
                self.begin_leg_call(index, leg_call.half, offset, len);
            }
        }
        if self.calls.confirm(version) {
            return Some(dispatch);
        }
        for (index, leg) in dispatch.legs.iter().enumerate() {
            if let LegDispatch::Send(leg_call) = leg {
                self.call_ended(Counted::Leg(index, leg_call.half));
            }
        }
        self.call_ended(Counted::HostCall);
        None
    }

    /// Counts a write to a peer, and then marks it if the peer acknowledges from memory.
    #[inline]
    fn begin_leg_call(&self, leg: usize, half: Option<usize>, offset: u64, len: u64) {
        self.calls.begin(Counted::Leg(leg, half));
        if let Some(half) = half {
            self.mark_unflushed(leg, half, offset, len);
        }
    }

    #[cold]
    fn admit_locked(&self, (offset, len): (u64, u64), data_bytes: u64) -> MirrorAdmission {
        let state = self.lock();
        if let Some(stop) = state.barrier() {
            return stop;
        }
        // Check all legs before changing anything, so that a refusal needs no undo.
        let lease_ended = self.failover.lease_has_ended();
        for (index, (leg, own)) in self.legs.iter().zip(&state.legs).enumerate() {
            if let Some(stop) = admission_barrier((leg, own, index), len, &state, lease_ended) {
                return stop;
            }
        }
        let served_by_peer = state.local_device_failed;
        let mut dispatch = self.dispatch(&state);
        for (index, own) in state.legs.iter().enumerate() {
            dispatch.legs[index] =
                self.admit_leg(own, index, (offset, len), data_bytes, served_by_peer);
        }
        MirrorAdmission::Admitted(dispatch)
    }

    /// Counts a host call, which has no leg yet but the local one.
    fn dispatch(&self, state: &State) -> Dispatch {
        self.calls.begin(Counted::HostCall);
        let (local, version) = (!state.local_device_failed, self.calls.version());
        Dispatch { local, version, ..Dispatch::default() }
    }

    /// Admits the call to one leg. If a peer serves the volume because the local leg has failed,
    /// its calls are awaited even in asynchronous mode.
    fn admit_leg(
        &self,
        own: &LegState,
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
        let options = leg.options();
        let (mode, half, durable) = (options.mode, own.half(&options), own.durable(&options));
        drop(options);
        let queues = mode == Mode::Async && !served_by_peer;
        let mut in_group = None;
        // The queues of other members of a group need not be empty.
        let numbers = (queues || mode == Mode::Async && self.group.is_some()).then(|| {
            let parts = data_bytes.div_ceil(session.transfer_bytes()).max(1);
            let mut numbering = own.numbering.lock();
            // In the order of the numbers.
            in_group =
                own.group_session.as_ref().filter(|_| queues).and_then(|group| group.push(len));
            (own.numbering.clone(), numbering.begin(parts as u32))
        });
        let (session, session_id) = (session.clone(), own.session_id);
        let leg_call = LegCall { session, session_id, durable, half, numbers };
        self.begin_leg_call(index, half, offset, len);
        match queues {
            true => match leg.queue().push(len, Inner::boot_ns()) {
                Some(slot) => LegDispatch::Queue(leg_call, QueueSlots { own: slot, in_group }),
                // Space was checked under the same lock, and other tasks only free space.
                None => unreachable!("the queue fills only under the state's lock"),
            },
            false => LegDispatch::Send(leg_call),
        }
    }

    /// Admits a request to all peers that receive writes. Every other peer is recorded as out of
    /// date, as for a write.
    pub(crate) fn admit_request(&self) -> MirrorAdmission {
        let state = self.lock();
        if let Some(stop) = state.barrier() {
            return stop;
        }
        // The peer may have taken over.
        if self.failover.lease_has_ended() {
            return MirrorAdmission::Wait(state.changes);
        }
        for (leg, own) in self.legs.iter().zip(&state.legs).filter(|(_, own)| !own.receives_writes)
        {
            if let Some(stop) = lost_leg_barrier(&leg.options(), own, &state) {
                return stop;
            }
        }
        let mut dispatch = self.dispatch(&state);
        for (index, own) in state.legs.iter().enumerate() {
            if let Some(session) = own.session.clone().filter(|_| own.receives_writes) {
                self.calls.begin(Counted::Leg(index, None));
                let (session_id, durable) = (own.session_id, true);
                let (half, numbers) = (None, None);
                dispatch.legs[index] =
                    LegDispatch::Send(LegCall { session, session_id, durable, half, numbers });
            }
        }
        MirrorAdmission::Admitted(dispatch)
    }

    pub(crate) fn admit_flush(&self) -> MirrorAdmission {
        let state = self.lock();
        if let Some(stop) = state.barrier() {
            return stop;
        }
        // Flushed writes may be on another source by now.
        if self.failover.lease_has_ended() {
            return MirrorAdmission::Wait(state.changes);
        }
        // Legs that acknowledge from memory have to flush too, or be recorded as out of date.
        let local = !state.local_device_failed;
        let asks = |leg: &Leg| {
            let options = leg.options();
            (options.mode == Mode::Sync || !local) && options.tracks_unflushed()
        };
        let mut calls = [const { LegDispatch::MarkOnly }; PEERS_MAX];
        for index in (0..self.legs.len()).filter(|index| asks(&self.legs[*index])) {
            let own = &state.legs[index];
            if !own.receives_writes && !own.generation_bumped && own.has_unflushed && local {
                return MirrorAdmission::NeedsGeneration;
            }
            let Some(session) = own.session.clone().filter(|_| own.receives_writes) else {
                continue;
            };
            let (session_id, durable) = (own.session_id, false);
            let (half, numbers) = (None, None);
            calls[index] =
                LegDispatch::Send(LegCall { session, session_id, durable, half, numbers });
        }
        if self.blocks_flushes(&state) {
            return MirrorAdmission::Blocked(state.changes);
        }
        for (index, call) in calls.iter().enumerate() {
            if let LegDispatch::Send(_) = call {
                self.calls.begin(Counted::Leg(index, None));
            }
        }
        MirrorAdmission::Admitted(Dispatch { legs: calls, ..self.dispatch(&state) })
    }

    /// The host call has completed. Returns false when hosts are no longer served: this side was
    /// deposed meanwhile, and its successor may lack the call's data.
    #[inline]
    pub(crate) fn call_completed(&self, dispatch: &Dispatch) -> bool {
        self.call_ended(Counted::HostCall);
        self.calls.confirm(dispatch.version) || self.lock().serving
    }
}

/// A leg to which every write is sent and waited for; `None` for any other.
fn viewed_leg((own, leg): (&LegState, &Leg)) -> Option<ViewedLeg> {
    let options = leg.options();
    let session = own.session.as_ref().filter(|_| own.receives_writes)?;
    (options.mode == Mode::Sync).then(|| ViewedLeg {
        session: Arc::downgrade(session),
        session_id: own.session_id,
        durable: own.durable(&options),
        half: own.half(&options),
    })
}

impl LegState {
    /// The half of the unflushed bitmap in which writes are marked.
    fn half(&self, options: &PeerOptions) -> Option<usize> {
        options.tracks_unflushed().then_some(self.unflushed_half)
    }

    /// Whether a write has to be durable on the peer at completion.
    fn durable(&self, options: &PeerOptions) -> bool {
        !options.acks_from_memory() && self.volatile_cache
    }
}

impl State {
    /// The reason why no write or flush is admitted, if there is one.
    fn barrier(&self) -> Option<MirrorAdmission> {
        if let Some(moved) = self.moved() {
            return Some(moved);
        }
        if self.serving && (self.admission_blocks > 0 || self.write_holds > 0) {
            return Some(MirrorAdmission::Wait(self.changes));
        }
        let refused = !self.serving || self.is_unavailable();
        refused.then_some(MirrorAdmission::Refused(IoError::Unreachable))
    }

    /// Action of a host call while the replica moves to or from another mirror: wait, or follow
    /// the replica.
    pub(crate) fn moved(&self) -> Option<MirrorAdmission> {
        match &self.transfer {
            RoleTransfer::None => None,
            RoleTransfer::Running | RoleTransfer::Incoming => {
                Some(MirrorAdmission::Wait(self.changes))
            }
            RoleTransfer::Done(replacement) => Some(MirrorAdmission::Moved(replacement.clone())),
        }
    }
}

/// The reason why this leg keeps a write of `len` bytes from being admitted, if there is one.
fn admission_barrier(
    (leg, own, index): (&Leg, &LegState, usize),
    len: u64,
    state: &State,
    lease_ended: bool,
) -> Option<MirrorAdmission> {
    let options = leg.options();
    if own.receives_writes {
        let waits = options.mode == Mode::Sync || state.local_device_failed;
        if waits {
            return None;
        }
        // The peer may have taken over without the writes in the queue.
        if lease_ended {
            return Some(MirrorAdmission::Wait(state.changes));
        }
        if leg.queue().has_space(len) {
            return None;
        }
        return Some(match options.on_congestion {
            OnCongestion::Throttle => MirrorAdmission::QueueFull(index),
            OnCongestion::Detach => MirrorAdmission::Detach(index, own.session_id),
        });
    }
    lost_leg_barrier(&options, own, state)
}

/// The reason why a leg that receives no writes keeps one from being admitted, if there is one.
fn lost_leg_barrier(
    options: &PeerOptions,
    own: &LegState,
    state: &State,
) -> Option<MirrorAdmission> {
    if options.blocks_on_peer_loss() && own.desired_state == DesiredState::Connected {
        return Some(MirrorAdmission::Blocked(state.changes));
    }
    // The peer is attached, or about to be, and needs no exclusion from the arbiter's record.
    if state.serving_right.is_contested() && own.session.is_some() {
        return Some(MirrorAdmission::Wait(state.changes));
    }
    (!own.generation_bumped && !state.local_device_failed)
        .then_some(MirrorAdmission::NeedsGeneration)
}
