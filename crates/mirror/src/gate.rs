//! Where every change of a host passes once: it finds out which legs it goes to, and is counted.
//!
//! What it finds holds until the call has ended, since whoever changes it waits for the calls that
//! began before. Marks that must be there before the data is are made here, under the same lock, so
//! that a session that ends cannot miss them.

use std::sync::{MutexGuard, PoisonError};

use flagstone_blockdev::IoError;

use crate::limits::PEERS_MAX;
use crate::mirror::{Inner, Leg, LegState, Mirror, State};
use crate::options::{Mode, PeerOptions};
use crate::order::Span;
use crate::peer::SharedSession;
use crate::queue::{Place, Queue, WhenFull};
use crate::state::Wish;

/// What a call finds at the gate.
#[expect(clippy::large_enum_variant, reason = "a box would be an allocation for each write")]
pub(crate) enum Passage {
    /// It goes to these legs. [`Inner::ended`] is to be called.
    Go(Going),
    /// It waits for the change after this one, without holding anything. Not for long.
    Wait(u64),
    /// The same until a peer is up to date again, or somebody decides: for as long as that takes.
    Held(u64),
    /// A generation has to be minted first.
    Mint,
    /// An asynchronous peer's queue is full: it waits for room, without holding anything.
    Full(usize),
    /// The same, and the peer is to be left behind.
    Behind(usize, u64),
    /// Another mirror has the replica now.
    Moved(Mirror),
    /// Hosts are not served here.
    Refused(IoError),
}

/// Where a call goes.
#[derive(Clone, Default)]
pub(crate) struct Going {
    pub(crate) legs: [LegGoing; PEERS_MAX],
    pub(crate) local: bool,
}

/// What a call does about a peer's leg.
#[derive(Clone, Default)]
pub(crate) enum LegGoing {
    /// Nothing: there is none, or it is marked as lacking the range.
    #[default]
    Marked,
    /// Waits for it.
    Send(Sending),
    /// Leaves it to the queue.
    Queue(Sending, Place, Span),
}

/// A call to a session.
#[derive(Clone)]
pub(crate) struct Sending {
    pub(crate) session: SharedSession,
    pub(crate) serial: u64,
    /// Has to be durable there.
    pub(crate) durable: bool,
    /// The half of what was told that it is marked in.
    pub(crate) half: Option<usize>,
}

impl Leg {
    pub(crate) fn options(&self) -> MutexGuard<'_, PeerOptions> {
        self.options.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// A change of a range asks to pass, with so many bytes of data. Its regions are hot, and it
    /// holds its range.
    pub(crate) fn pass(&self, (offset, len): (u64, u64), data_bytes: u64) -> Passage {
        let mut state = self.lock();
        if let Some(elsewhere) = state.elsewhere() {
            return elsewhere;
        }
        if !state.active {
            return Passage::Refused(IoError::Unreachable);
        }
        if state.holds > 0 {
            return Passage::Wait(state.changes);
        }
        if state.is_nowhere() {
            return Passage::Refused(IoError::Unreachable);
        }
        // First whether it passes at all: nothing has to be undone.
        for (index, (leg, own)) in self.legs.iter().zip(&state.legs).enumerate() {
            if let Some(stop) = stops(leg, own, index, len, &state) {
                return stop;
            }
        }
        let mut going = Going { local: !state.local_failed, ..Going::default() };
        let carried = state.local_failed;
        for (index, own) in state.legs.iter_mut().enumerate() {
            going.legs[index] = self.pass_leg(own, index, (offset, len), data_bytes, carried);
        }
        state.in_flight += 1;
        Passage::Go(going)
    }

    /// A leg that carries the volume alone is waited for, also an asynchronous one.
    fn pass_leg(
        &self,
        own: &mut LegState,
        index: usize,
        (offset, len): (u64, u64),
        data_bytes: u64,
        carried: bool,
    ) -> LegGoing {
        let leg = &self.legs[index];
        let Some(session) = own.session.as_ref().filter(|_| own.foreground) else {
            self.mark(index, offset, len);
            return LegGoing::Marked;
        };
        let (mode, remembers) = {
            let options = leg.options();
            (options.mode, options.remembers())
        };
        let half = remembers.then_some(own.told_now);
        let durable = !remembers && own.volatile_cache;
        let sending = Sending { session: session.clone(), serial: own.serial, durable, half };
        let going = match mode {
            Mode::Async if !carried => match leg.queue().push(len, Inner::now_ns()) {
                Some(place) => {
                    let parts = data_bytes.div_ceil(session.transfer_bytes()).max(1);
                    let span = own.numbering.begin(parts as u32);
                    LegGoing::Queue(sending, place, span)
                }
                // There was room a moment ago, and others only make room.
                None => unreachable!("the queue fills under the state's lock alone"),
            },
            Mode::Sync | Mode::Async => LegGoing::Send(sending),
        };
        if let Some(half) = half {
            self.mark_told(index, half, offset, len);
            own.told_in_flight[half] += 1;
            own.unflushed = true;
        }
        own.sending += 1;
        going
    }

    /// A flush of a host asks to pass.
    pub(crate) fn pass_flush(&self) -> Passage {
        let mut state = self.lock();
        if let Some(elsewhere) = state.elsewhere() {
            return elsewhere;
        }
        if !state.active {
            return Passage::Refused(IoError::Unreachable);
        }
        if state.holds > 0 {
            return Passage::Wait(state.changes);
        }
        if state.is_nowhere() {
            return Passage::Refused(IoError::Unreachable);
        }
        // Legs that acknowledge from memory have to flush too, or be recorded as out of date.
        let local = !state.local_failed;
        let asks = |leg: &Leg| {
            let options = leg.options();
            (options.mode == Mode::Sync || !local) && options.remembers()
        };
        let mut going = Going { local, ..Going::default() };
        for index in (0..self.legs.len()).filter(|index| asks(&self.legs[*index])) {
            let own = &mut state.legs[index];
            if !own.foreground && !own.minted && own.unflushed && local {
                return Passage::Mint;
            }
            let Some(session) = own.session.clone().filter(|_| own.foreground) else { continue };
            let (serial, durable) = (own.serial, false);
            going.legs[index] = LegGoing::Send(Sending { session, serial, durable, half: None });
        }
        for (own, going) in state.legs.iter_mut().zip(&going.legs) {
            own.sending += usize::from(matches!(going, LegGoing::Send(_)));
        }
        state.in_flight += 1;
        Passage::Go(going)
    }

    /// The call to one leg has ended, and what it left has been marked.
    pub(crate) fn sent(&self, leg: usize, half: Option<usize>) {
        let end = |own: &mut LegState| {
            own.sending -= 1;
            let mut last = own.sending == 0;
            if let Some(half) = half {
                own.told_in_flight[half] -= 1;
                last |= own.told_in_flight[half] == 0;
            }
            last
        };
        // Those who wait for the last one are few, and most calls are not it.
        let last = end(&mut self.lock().legs[leg]);
        if last {
            self.change(|_| {});
        }
    }

    /// A call of a host has ended.
    pub(crate) fn ended(&self) {
        let held = {
            let mut state = self.lock();
            state.in_flight -= 1;
            state.in_flight == 0 && state.holds > 0
        };
        if held {
            self.change(|_| {});
        }
    }
}

impl State {
    /// What a call of a host does whose mirror gives its replica to another.
    pub(crate) fn elsewhere(&self) -> Option<Passage> {
        match &self.successor {
            Some(successor) => Some(Passage::Moved(successor.clone())),
            None => self.moving.then_some(Passage::Wait(self.changes)),
        }
    }
}

/// Why a change of `len` bytes cannot pass because of this leg.
fn stops(leg: &Leg, own: &LegState, index: usize, len: u64, state: &State) -> Option<Passage> {
    let options = leg.options();
    if own.foreground {
        let waits = options.mode == Mode::Sync || state.local_failed;
        if waits || leg.queue().has_room(len) {
            return None;
        }
        return Some(match options.when_full {
            WhenFull::SlowDown => Passage::Full(index),
            WhenFull::Track => Passage::Behind(index, own.serial),
        });
    }
    if options.is_strict() && own.wish == Wish::Mirror {
        return Some(Passage::Held(state.changes));
    }
    (!own.minted && !state.local_failed).then_some(Passage::Mint)
}
