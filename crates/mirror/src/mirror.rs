//! A mirror: a [`BlockDevice`] over a local leg and the legs of up to two peers.
//!
//! | completed | promise |
//! | --- | --- |
//! | write, synchronous | it is on every leg that counts as up to date; a leg that lacks it is recorded as out of date, durably, before the completion |
//! | write, asynchronous | it is on the local leg, and the log covers it until the peer has it |
//! | flush, FUA | durable on the local leg, and as above on legs that acknowledge from memory |
//! | read | what was completed last; never what a failure of one node may take back |
//! | discard | a write of zeroes that may deallocate: legs must not differ in what it leaves |
//!
//! One state, under a lock that is held for some instructions, says who serves, which legs take
//! writes, and who waits. Every call of a host looks at it once as it begins ([`crate::gate`]), and
//! goes on as it was then: who changes it (a lost peer, a role, a resync that ends) waits for the
//! calls that began before. Read [`crate::gate`], then [`crate::write`], [`crate::mint`],
//! [`crate::connect`], [`crate::resync`], and [`crate::target`] for the other side.
//!
//! [`BlockDevice`]: flagstone_blockdev::BlockDevice

use std::future::poll_fn;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use flagstone_blockdev::{Geometry, IoError};
use flagstone_runtime::{spawn_detached, time};

use crate::bitmap::Bitmap;
use crate::format::superblock::Role;
use crate::id::{Generation, Uuid};
use crate::limits::PEERS_MAX;
use crate::options::PeerOptions;
use crate::order::{Gate, Numbering};
use crate::overlap::Overlap;
use crate::peer::{About, SharedSession};
use crate::queue::Queue;
use crate::replica::Replica;
use crate::state::{Phase, Wish};
use crate::turn::Turns;
use crate::versions::Versions;

/// See the module. A handle: clones are the same mirror.
#[derive(Clone)]
pub struct Mirror(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) local: Replica,
    pub(crate) geometry: Geometry,
    /// The versions of the link that we speak.
    pub(crate) versions: Versions,
    pub(crate) overlap: Arc<Overlap>,
    pub(crate) legs: Vec<Leg>,
    /// What was written here before a crash and may not have been flushed: if a flush failed then, the
    /// device shows it and never writes it. So it is shown to no peer as equal, and what is copied of it
    /// is written here once more.
    pub(crate) unproven: Bitmap,
    pub(crate) counters: Counters,
    state: Mutex<State>,
    /// Whoever changes a wish takes a turn.
    pub(crate) wishing: Arc<Turns>,
    /// Held while bits that the log has are set or cleared together with a leg's.
    marks: Mutex<()>,
    next_session: AtomicU64,
}

/// What of a peer's leg is not under the lock.
pub(crate) struct Leg {
    pub(crate) options: Mutex<PeerOptions>,
    /// What the peer lacks.
    pub(crate) todo: Bitmap,
    /// What it was told and may lose, or may not have yet: before and after the latest flush of it
    /// began.
    pub(crate) told: [Bitmap; 2],
    /// What it was sent and had not flushed when it was lost, or may have before this mirror was made.
    /// If that was because a flush failed, it shows what it never writes, and it may have forgotten:
    /// this is copied whether or not it looks equal.
    pub(crate) unproven: Bitmap,
    pub(crate) queue: Mutex<Queue>,
    pub(crate) counters: LegCounters,
}

/// Counters since the mirror was opened.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) writes: AtomicU64,
    pub(crate) local_ns: AtomicU64,
    /// Calls of hosts, and what they took together.
    pub(crate) calls: AtomicU64,
    pub(crate) calls_ns: AtomicU64,
    pub(crate) reads_from_peer: AtomicU64,
}

/// Counters of a leg.
#[derive(Debug, Default)]
pub(crate) struct LegCounters {
    pub(crate) added_ns: AtomicU64,
    pub(crate) added_writes: AtomicU64,
    pub(crate) losses: AtomicU64,
    pub(crate) last_in_sync_s: AtomicU64,
    pub(crate) copied_bytes: AtomicU64,
    pub(crate) skipped_bytes: AtomicU64,
    pub(crate) total_bytes: AtomicU64,
    pub(crate) rate: AtomicU64,
    pub(crate) given_up: AtomicU64,
    pub(crate) given_up_bytes: AtomicU64,
}

/// Adds to a counter that orders nothing.
pub(crate) fn count(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}

/// What is under the lock.
pub(crate) struct State {
    pub(crate) role: Role,
    /// Hosts are served.
    pub(crate) active: bool,
    /// How often hosts ceased to be served here.
    pub(crate) terms: u64,
    /// New calls of hosts wait, for so many reasons.
    pub(crate) holds: u32,
    /// Calls of hosts that have begun and not ended.
    pub(crate) in_flight: usize,
    /// Writes that are held: at the gate, or on their way back to the host.
    pub(crate) waiting: usize,
    pub(crate) legs: Vec<LegState>,
    /// The local leg has failed.
    pub(crate) local_failed: bool,
    /// What is read of the local leg may not be on it durably, though it was flushed since, until a
    /// resync to it has ended.
    pub(crate) doubtful: bool,
    pub(crate) minting: bool,
    pub(crate) mint_error: Option<IoError>,
    /// A change of role is under way.
    pub(crate) changing: bool,
    /// The local leg has just failed, and a peer is asked to go on alone.
    pub(crate) leaving_local: bool,
    /// The session that may write to us.
    pub(crate) attached: Option<Attached>,
    /// It counts us as in sync.
    pub(crate) fed: bool,
    /// The order of its writes.
    pub(crate) gate: Option<Arc<Mutex<Gate>>>,
    /// Its calls in hand.
    pub(crate) served: usize,
    pub(crate) closed: bool,
    /// The replica is being given to another mirror: calls of hosts wait, and then go there.
    pub(crate) moving: bool,
    /// That one.
    pub(crate) successor: Option<Mirror>,
    /// A source wants the replica to have this size.
    pub(crate) wanted_bytes: Option<u64>,
    /// What the volume is to grow over is being zeroed for a source.
    pub(crate) clearing: bool,
    /// It was, in vain, and the source has not heard of it.
    pub(crate) clear_failed: bool,
    /// Changes so far.
    pub(crate) changes: u64,
    wakers: Vec<Waker>,
}

impl State {
    /// Hosts are not served here from now on: what they read belongs to whoever serves them next.
    pub(crate) fn end_term(&mut self) {
        self.active = false;
        self.terms += 1;
    }

    /// The local leg has failed, and no peer carries the volume.
    pub(crate) fn is_nowhere(&self) -> bool {
        self.local_failed && !self.legs.iter().any(|leg| leg.phase == Phase::InSync)
    }
}

/// The source that we are a target of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attached {
    pub(crate) session: u64,
    pub(crate) source: Uuid,
}

/// What of a leg is under the lock.
pub(crate) struct LegState {
    pub(crate) wish: Wish,
    pub(crate) phase: Phase,
    /// The replica that was met by this way; none before.
    pub(crate) peer: Uuid,
    pub(crate) session: Option<SharedSession>,
    /// Of the session; each has the next.
    pub(crate) serial: u64,
    /// Writes go to it.
    pub(crate) foreground: bool,
    /// A generation was minted since it was lost.
    pub(crate) minted: bool,
    /// Writes that were sent to it, of any session, and have not ended.
    pub(crate) sending: usize,
    /// The same by the half of `told` that they are marked in.
    pub(crate) told_in_flight: [usize; 2],
    pub(crate) told_now: usize,
    /// Something was told since the last flush of the peer.
    pub(crate) unflushed: bool,
    pub(crate) numbering: Numbering,
    /// Its device may lose completed writes.
    pub(crate) volatile_cache: bool,
    /// What it said when it was met last.
    pub(crate) met: Option<About>,
    /// The versions of the link that it spoke then, also where that was all that was understood.
    pub(crate) versions: Option<Versions>,
    /// It fell too far behind: do not attach before, in the runtime's nanoseconds.
    pub(crate) not_before_ns: u64,
    /// Commands that the link has to look at.
    pub(crate) kicks: u64,
    /// Copy everything at the next meeting.
    pub(crate) full: bool,
    /// The role goes over by this session: it is kept though nobody serves meanwhile.
    pub(crate) handing_over: bool,
    /// It is durably inconsistent: a resync to it has begun, and its end has not been told. Until
    /// then its data is nobody's, whatever of it differs.
    pub(crate) inconsistent: bool,
    /// It was asked to go on alone under this name, and is not known to have heard of it.
    pub(crate) alone_as: Generation,
}

impl LegState {
    fn new(wish: Wish) -> LegState {
        LegState {
            wish,
            phase: Phase::Lost,
            peer: Uuid::default(),
            session: None,
            serial: 0,
            foreground: false,
            minted: false,
            sending: 0,
            told_in_flight: [0; 2],
            told_now: 0,
            unflushed: false,
            numbering: Numbering::default(),
            volatile_cache: true,
            met: None,
            versions: None,
            not_before_ns: 0,
            kicks: 0,
            full: false,
            handing_over: false,
            inconsistent: false,
            alone_as: Generation::NONE,
        }
    }

    /// True while this session takes writes and has not been lost.
    pub(crate) fn is_current(&self, serial: u64) -> bool {
        self.serial == serial && self.session.is_some()
    }
}

impl Mirror {
    /// A mirror of an open replica and these peers, in their order: what the operator wanted of each
    /// last is in the replica's superblock by this order. It serves nobody yet; its tasks
    /// run on this core until [`Mirror::close`].
    ///
    /// # Panics
    /// With more than [`PEERS_MAX`] peers.
    pub fn new(local: Replica, peers: Vec<PeerOptions>) -> Mirror {
        Mirror::speaking(Versions::SPOKEN, local, peers)
    }

    /// The same of a node that speaks these versions of the link alone, as one of another release
    /// does.
    ///
    /// # Panics
    /// As [`Mirror::new`].
    pub fn speaking(versions: Versions, local: Replica, peers: Vec<PeerOptions>) -> Mirror {
        assert!(peers.len() <= PEERS_MAX, "a superblock has room for {PEERS_MAX} peers");
        let superblock = local.superblock();
        let shape = superblock.shape;
        let todo = || Bitmap::new(shape.bits(), shape.bit_bytes);
        let legs = peers.iter().map(|options| Leg {
            todo: todo(),
            told: if options.remembers() {
                [todo(), todo()]
            } else {
                [Bitmap::new(0, 1), Bitmap::new(0, 1)]
            },
            unproven: todo(),
            queue: Mutex::new(Queue::new(options.queue)),
            options: Mutex::new(options.clone()),
            counters: LegCounters::default(),
        });
        let legs: Vec<Leg> = legs.collect();
        let state = State {
            role: superblock.role,
            active: false,
            terms: 0,
            holds: 0,
            in_flight: 0,
            waiting: 0,
            legs: superblock.wishes[..peers.len()].iter().copied().map(LegState::new).collect(),
            local_failed: false,
            doubtful: superblock.doubtful,
            minting: false,
            mint_error: None,
            changing: false,
            leaving_local: false,
            attached: None,
            fed: false,
            gate: None,
            served: 0,
            closed: false,
            moving: false,
            successor: None,
            wanted_bytes: None,
            clearing: false,
            clear_failed: false,
            changes: 0,
            wakers: Vec::new(),
        };
        let inner = Arc::new(Inner {
            geometry: geometry(local.geometry()),
            local,
            versions,
            overlap: Arc::default(),
            legs,
            unproven: todo(),
            counters: Counters::default(),
            state: Mutex::new(state),
            wishing: Arc::default(),
            marks: Mutex::new(()),
            next_session: AtomicU64::new(1),
        });
        inner.take_marks_over();
        inner.note_unproven();
        for leg in 0..inner.legs.len() {
            spawn_detached(crate::connect::run(inner.clone(), leg));
        }
        Mirror(inner)
    }
}

/// Of a mirror over this leg: what hosts discard is zeroed on all legs.
fn geometry(local: Geometry) -> Geometry {
    let discard_zeroes = local.can_discard && local.can_write_zeroes;
    Geometry { discard_zeroes, ..local }
}

impl std::fmt::Debug for Mirror {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let superblock = self.0.local.superblock();
        write!(f, "Mirror(volume {}, replica {})", superblock.volume, superblock.replica)
    }
}

impl Inner {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and has all who wait for a change look at it again.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let value = change(&mut state);
        state.changes += 1;
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        value
    }

    /// Waits until `ready` gives a value; it is asked now and after each change.
    pub(crate) async fn wait<T>(&self, mut ready: impl FnMut(&mut State) -> Option<T>) -> T {
        poll_fn(|cx| {
            let mut state = self.lock();
            if let Some(value) = ready(&mut state) {
                return Poll::Ready(value);
            }
            if !state.wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
                state.wakers.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    /// A number for a session of a source.
    pub(crate) fn next_session(&self) -> u64 {
        self.next_session.fetch_add(1, Ordering::Relaxed)
    }

    /// What the log names is what each peer may lack.
    pub(crate) fn take_marks_over(&self) {
        for leg in &self.legs {
            for index in 0..leg.todo.words() {
                leg.todo.merge(index, self.local.word(index));
            }
        }
    }

    /// What a log names when it is opened may be on neither leg durably: what was hot, and what a peer
    /// was told. A log that was made anew names everything, and says nothing of that.
    fn note_unproven(&self) {
        if self.local.lost().is_some() {
            return;
        }
        let crashed = self.local.superblock().flags.crashed;
        let here = Some(&self.unproven).filter(|_| crashed);
        let maps = self.legs.iter().map(|leg| &leg.unproven).chain(here);
        for map in maps {
            (0..map.words()).for_each(|index| map.merge(index, self.local.word(index)));
        }
    }

    /// A leg lacks a range, or may.
    pub(crate) fn mark(&self, leg: usize, offset: u64, len: u64) {
        let todo = &self.legs[leg].todo;
        let bits = todo.bits_of(offset, len);
        let _marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        todo.set(bits.clone());
        self.local.mark(bits);
    }

    /// A leg was sent a range in vain: it lacks it, though it may show it.
    pub(crate) fn mark_unproven(&self, leg: usize, offset: u64, len: u64) {
        let unproven = &self.legs[leg].unproven;
        unproven.set(unproven.bits_of(offset, len));
        self.mark(leg, offset, len);
    }

    /// Nothing that the log names differs any more.
    pub(crate) fn forget_marks(&self) {
        let _marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        let maps = self
            .legs
            .iter()
            .flat_map(|leg| [&leg.todo, &leg.unproven].into_iter().chain(&leg.told));
        maps.chain([&self.unproven]).for_each(|map| map.clear(map.all()));
        self.local.clear(0..self.local.superblock().shape.bits());
    }

    /// A leg is told of a range, and may lose it or not have it yet.
    pub(crate) fn mark_told(&self, leg: usize, half: usize, offset: u64, len: u64) {
        let told = &self.legs[leg].told[half];
        let bits = told.bits_of(offset, len);
        let _marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        told.set(bits.clone());
        self.local.mark(bits);
    }

    /// Clears bits of one of the maps; in the log those that no other map has.
    fn unmark(&self, map: &Bitmap, bits: Range<u64>) {
        let _marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        map.clear(bits.clone());
        let maps = self.legs.iter().flat_map(|leg| std::iter::once(&leg.todo).chain(&leg.told));
        let named = |bits: Range<u64>| maps.clone().any(|map| map.any(bits.clone()));
        if !named(bits.clone()) {
            return self.local.clear(bits);
        }
        for bit in bits.filter(|bit| !named(*bit..bit + 1)) {
            self.local.clear(bit..bit + 1);
        }
    }

    /// The peer has these bits durably, unless its session has ended.
    pub(crate) fn copied(&self, leg: usize, serial: u64, bits: Range<u64>) -> bool {
        let state = self.lock();
        let current = state.legs[leg].is_current(serial);
        if current {
            self.legs[leg].unproven.clear(bits.clone());
            self.unmark(&self.legs[leg].todo, bits);
        }
        current
    }

    /// The peer has flushed all that was told before: one half is clear.
    pub(crate) fn told_is_durable(&self, leg: usize, serial: u64, half: usize) -> bool {
        let state = self.lock();
        let current = state.legs[leg].is_current(serial);
        if current {
            let told = &self.legs[leg].told[half];
            let mut from = 0;
            while let Some(run) = told.next_run(from, 1 << 16) {
                from = run.end;
                self.unmark(told, run);
            }
        }
        current
    }

    /// The session of a leg is lost, or is given up.
    pub(crate) fn lose(&self, leg: usize, serial: u64) {
        self.end_session(leg, serial, true);
    }

    /// The session of a leg ends so that another begins.
    pub(crate) fn meet_anew(&self, leg: usize, serial: u64) {
        self.end_session(leg, serial, false);
    }

    fn end_session(&self, leg: usize, serial: u64, lost: bool) {
        let session = self.change(|state| {
            let serves = state.active;
            let own = &mut state.legs[leg];
            if !own.is_current(serial) {
                return None;
            }
            if own.foreground {
                // What the operator has asked for is no loss.
                let asked_for = !serves || own.wish != Wish::Mirror || own.full;
                if lost && !asked_for {
                    count(&self.legs[leg].counters.losses, 1);
                }
                own.minted = false;
                // What it was told it may not have, or lose.
                for told in &self.legs[leg].told {
                    for index in 0..told.words() {
                        self.legs[leg].todo.merge(index, told.word(index));
                        self.legs[leg].unproven.merge(index, told.word(index));
                    }
                    told.clear(told.all());
                }
            }
            if own.phase == Phase::InSync {
                let now = time::wall_clock().as_secs();
                self.legs[leg].counters.last_in_sync_s.store(now, Ordering::Relaxed);
            }
            (own.foreground, own.inconsistent, own.phase) = (false, false, Phase::Lost);
            own.session.take()
        });
        if let Some(session) = session {
            session.close();
            // What was not sent yet is given up, and writes need no room any more.
            let wakers = self.legs[leg].queue().wake_all();
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    /// Time, in the runtime's nanoseconds.
    pub(crate) fn now_ns() -> u64 {
        time::now().as_nanos()
    }
}
