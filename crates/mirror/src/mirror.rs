//! Mirror: a [`BlockDevice`] over a local leg and the legs of up to two peers.
//!
//! Guarantees of a completed call:
//!
//! - synchronous write: the data is on every leg that counts as up to date. A leg that missed it
//!   was durably recorded as out of date before the completion.
//! - asynchronous write: the data is on the local leg, and the log covers it until the peer has it.
//! - flush, FUA: the data is durable on the local leg. On legs that acknowledge from memory, as for
//!   a synchronous write.
//! - read: returns the latest completed data, and never data that the failure of one node could
//!   revert.
//! - discard: treated as a write of zeroes that may deallocate, because legs must not differ after
//!   a discard.
//!
//! One state, behind a lock that is held for a few instructions at a time, holds the role, the legs
//! that receive writes, and the blocked calls. Every host call inspects it, or its core's view of
//! it, once when it is admitted ([`crate::io::admission`]) and keeps what it found. A change of
//! that state (a disconnect, a change of role, the end of a resync) waits for calls that were
//! admitted earlier ([`crate::io::call_admission`]).
//!
//! Continue with [`crate::io::admission`], [`crate::io::write`], [`crate::io::new_generation`],
//! [`crate::session::connect`] and [`crate::session::resync`]. [`crate::session::target`] is the
//! receiving side.
//!
//! [`BlockDevice`]: flagstone_blockdev::BlockDevice

mod marks;
mod state;

use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use flagstone_blockdev::Geometry;
use flagstone_runtime::{spawn_detached, time};
use parking_lot::{Mutex, MutexGuard};

use crate::agree::versions::LinkVersions;
use crate::failover::members::MemberState;
use crate::failover::{Failover, FailoverOptions};
use crate::group::{Membership, follow_leader};
use crate::intent_log::bitmap::Bitmap;
use crate::intent_log::out_of_sync::OutOfSync;
use crate::io::admission::AdmissionView;
use crate::io::call_admission::{CallAdmission, Counted};
use crate::io::fifo_lock::FifoLock;
use crate::io::queue::WriteQueue;
use crate::io::range_lock::RangeLock;
use crate::limits::{LOCAL_IO_MS, PEERS_MAX};
use crate::manage::replica::Replica;
use crate::options::{Mode, PeerOptions};
use crate::reservations::ReplicatedReservations;
use crate::session::bad_ranges::BadRanges;
use crate::snapshot::LegSnapshots;
use crate::state::status::{DesiredState, LegPhase};

pub(crate) use self::state::{AttachedSource, GenerationBump, LegState, State, StateGuard};

/// A mirrored volume on this node. Clones are handles to the same mirror.
#[derive(Clone)]
pub struct Mirror(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) local: Replica,
    pub(crate) geometry: Geometry,
    pub(crate) versions: LinkVersions,
    pub(crate) range_lock: Arc<RangeLock>,
    pub(crate) legs: Vec<Leg>,
    pub(crate) group: Option<Membership>,
    /// Suspect blocks of the local leg: written before a crash and perhaps never flushed, so the
    /// device may return data that it will never persist. They are never reported to a peer as
    /// equal, and a resync that copies them also rewrites them locally.
    pub(crate) suspect: Bitmap,
    pub(crate) counters: Counters,
    state: Mutex<(State, Vec<Waker>)>,
    pub(crate) calls: CallAdmission<AdmissionView>,
    pub(crate) desired_state_lock: Arc<FifoLock>,
    pub(crate) failover: Failover,
    /// Held while bits of the log change together with bits of a leg's bitmap.
    marks: Mutex<()>,
    next_session: AtomicU64,
    /// Takes snapshots of the local device, if it can have any.
    pub(crate) leg_snapshots: OnceLock<Arc<dyn LegSnapshots>>,
    pub(crate) reservations: ReplicatedReservations,
}

/// The part of a leg that is not under the state's lock.
pub(crate) struct Leg {
    pub(crate) options: Mutex<PeerOptions>,
    /// Out-of-sync bitmap: blocks that the peer lacks.
    pub(crate) out_of_sync: OutOfSync,
    /// Unflushed bitmaps: blocks sent to the peer since its last flush began, and those sent
    /// before. The peer may lose them, or may not have received them yet.
    pub(crate) unflushed: [Bitmap; 2],
    /// Suspect blocks of the peer: sent to it but not flushed when the session was lost or, after a
    /// restart, possibly so. If a flush failed there, the peer may return data that it never
    /// persists. A resync copies these blocks without comparing checksums.
    pub(crate) suspect: Bitmap,
    /// Parts of `out_of_sync` that cannot be copied.
    bad_ranges: Mutex<BadRanges>,
    pub(crate) queue: Mutex<WriteQueue>,
    pub(crate) counters: LegCounters,
}

impl Leg {
    pub(crate) fn bad_ranges(&self) -> MutexGuard<'_, BadRanges> {
        self.bad_ranges.lock()
    }
}

/// Counters since the mirror was opened.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) writes: AtomicU64,
    pub(crate) local_ns: AtomicU64,
    /// Number of host calls, and the sum of their durations.
    pub(crate) calls: AtomicU64,
    pub(crate) calls_ns: AtomicU64,
    pub(crate) reads_from_peer: AtomicU64,
    /// Unreadable blocks of either leg that were rewritten, and their bytes.
    pub(crate) repairs: AtomicU64,
    pub(crate) repaired_bytes: AtomicU64,
    /// Repairs of host reads in progress.
    pub(crate) repairing: AtomicU64,
}

#[derive(Debug, Default)]
pub(crate) struct LegCounters {
    pub(crate) added_ns: AtomicU64,
    pub(crate) added_writes: AtomicU64,
    pub(crate) disconnects: AtomicU64,
    pub(crate) last_in_sync_s: AtomicU64,
    pub(crate) copied_bytes: AtomicU64,
    pub(crate) skipped_bytes: AtomicU64,
    /// Bytes that all resyncs together have copied or skipped.
    pub(crate) resynced_bytes: AtomicU64,
    pub(crate) total_bytes: AtomicU64,
    pub(crate) rate: AtomicU64,
    pub(crate) discards: AtomicU64,
    pub(crate) discarded_bytes: AtomicU64,
    /// Queued writes that were acknowledged to hosts and did not reach the peer, and their size,
    /// since the peer was last in sync.
    pub(crate) lost_writes: AtomicU64,
    pub(crate) lost_bytes: AtomicU64,
}

/// Adds to a counter that orders no other memory access.
pub(crate) fn count(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}

impl Mirror {
    /// Creates a mirror from an open replica and its peers. The order of `peers` is significant:
    /// the superblock stores each peer's desired state by position. The mirror does not serve hosts
    /// yet. Its tasks run on the current core until [`Mirror::close`].
    ///
    /// # Panics
    /// With more than [`PEERS_MAX`] peers.
    pub fn new(local: Replica, peers: Vec<PeerOptions>) -> Mirror {
        Mirror::speaking(LinkVersions::SPOKEN, local, peers)
    }

    /// Like [`Mirror::new`], but restricted to the given versions of the link. Used to play a node
    /// of another release.
    ///
    /// # Panics
    /// As [`Mirror::new`].
    pub fn speaking(versions: LinkVersions, local: Replica, peers: Vec<PeerOptions>) -> Mirror {
        Mirror::build(versions, local, peers, None, None)
    }

    /// As [`Mirror::speaking`], as a member of a consistency group if there is one. An earlier
    /// mirror in its place has ended.
    ///
    /// # Panics
    /// As [`Mirror::new`].
    pub fn in_group(
        versions: LinkVersions,
        local: Replica,
        peers: Vec<PeerOptions>,
        group: Option<Membership>,
    ) -> Mirror {
        Mirror::build(versions, local, peers, group, None)
    }

    /// As [`Mirror::in_group`], with automatic failover if there are options for it: the same for
    /// all members.
    ///
    /// # Panics
    /// As [`Mirror::new`], and with `failover` unless there is a single peer: in synchronous mode,
    /// or without a group in asynchronous mode, with [`FailoverOptions::max_lag`].
    pub fn with_failover(
        versions: LinkVersions,
        local: Replica,
        peers: Vec<PeerOptions>,
        group: Option<Membership>,
        failover: Option<FailoverOptions>,
    ) -> Mirror {
        if let Some(options) = &failover {
            let fits = is_pair(&peers, options) && (options.max_lag.is_none() || group.is_none());
            assert!(
                fits,
                "automatic failover is for a pair, asynchronous only with a greatest lag"
            );
        }
        Mirror::build(versions, local, peers, group, failover)
    }

    fn build(
        versions: LinkVersions,
        local: Replica,
        peers: Vec<PeerOptions>,
        group: Option<Membership>,
        failover: Option<FailoverOptions>,
    ) -> Mirror {
        assert!(peers.len() <= PEERS_MAX, "a superblock holds at most {PEERS_MAX} peers");
        let superblock = local.superblock();
        let geometry = superblock.geometry;
        let bitmap = || Bitmap::new(geometry.bits(), geometry.bit_bytes);
        let legs = peers.iter().map(|options| Leg {
            out_of_sync: OutOfSync::new(geometry.bits(), geometry.bit_bytes),
            unflushed: if options.tracks_unflushed() {
                [bitmap(), bitmap()]
            } else {
                [Bitmap::new(0, 1), Bitmap::new(0, 1)]
            },
            suspect: bitmap(),
            bad_ranges: Mutex::default(),
            queue: Mutex::new(WriteQueue::new(options.queue)),
            options: Mutex::new(options.clone()),
            counters: LegCounters::default(),
        });
        let legs: Vec<Leg> = legs.collect();
        let desired = superblock.desired_states[..peers.len()].iter();
        let state = State {
            role: superblock.role,
            legs: desired.copied().map(LegState::new).collect(),
            unverified: superblock.unverified,
            ..State::default()
        };
        let inner = Arc::new(Inner {
            geometry: mirrored_geometry(local.geometry()),
            local,
            versions,
            range_lock: Arc::default(),
            legs,
            failover: Failover::new(failover.clone(), superblock.arbiter, group.as_ref()),
            group,
            suspect: bitmap(),
            counters: Counters::default(),
            state: Mutex::new((state, Vec::new())),
            calls: CallAdmission::default(),
            desired_state_lock: Arc::default(),
            marks: Mutex::new(()),
            next_session: AtomicU64::new(1),
            leg_snapshots: OnceLock::new(),
            reservations: ReplicatedReservations::default(),
        });
        inner.load_out_of_sync();
        inner.load_suspect();
        for leg in 0..inner.legs.len() {
            spawn_detached(crate::session::connect::run(inner.clone(), leg));
        }
        spawn_detached(watch_local_io(Arc::downgrade(&inner)));
        if let Some(membership) = &inner.group {
            membership.take_place(&inner);
            if !membership.is_leader() {
                spawn_detached(follow_leader(Arc::downgrade(&inner)));
            }
        }
        if let Some(options) = failover {
            spawn_detached(crate::failover::task::run(inner.clone(), options.arbiter));
        }
        Mirror(inner)
    }
}

/// True for a single peer in synchronous mode, as automatic failover requires.
fn is_pair(peers: &[PeerOptions], failover: &FailoverOptions) -> bool {
    let mode = if failover.max_lag.is_some() { Mode::Async } else { Mode::Sync };
    matches!(peers, [peer] if peer.mode == mode)
}

/// Fails the local leg when a call to its devices hangs and this lets something continue: hosts,
/// through a peer in sync, or an order to change the role.
async fn watch_local_io(inner: Weak<Inner>) {
    let limit = Duration::from_millis(LOCAL_IO_MS);
    loop {
        time::sleep(limit / 4).await;
        let Some(inner) = inner.upgrade() else { return };
        let (closed, goes_on) = {
            let state = inner.lock();
            let in_sync = state.legs.iter().any(|leg| leg.phase == LegPhase::InSync);
            (state.closed, state.orders > 0 || state.serving && in_sync)
        };
        let io = inner.local.local_io().clone();
        if closed {
            drop(inner);
            // A hung read is repeated at the mirror that has taken over the replica.
            time::sleep(limit).await;
            return io.fail();
        }
        if goes_on && Duration::from_nanos(io.oldest_ns()) >= limit {
            tracing::error!(
                replica = %inner.local.superblock().replica,
                "a call to the local device has not ended for {limit:?}: the local leg has failed"
            );
            io.fail();
        }
    }
}

/// Geometry of a mirror over this leg. Discards are executed as writes of zeroes on all legs.
fn mirrored_geometry(local: Geometry) -> Geometry {
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
    pub(crate) fn lock(&self) -> StateGuard<'_> {
        StateGuard { calls: &self.calls, locked: self.state.lock(), is_changing: false }
    }

    /// Changes the state and wakes every task that waits for a change.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let value = change(&mut state);
        state.assert_sound(self.group.is_some());
        state.changes += 1;
        let arbitrated = self.group.as_ref().filter(|_| self.failover.is_automatic());
        let changed = arbitrated.filter(|membership| membership.saw(MemberState::of(&state)));
        drop(state);
        self.wake_waiters();
        if let Some(membership) = changed {
            membership.wake_leader();
        }
        value
    }

    /// Wakes every task in [`Inner::wait`].
    #[cold]
    pub(crate) fn wake_waiters(&self) {
        let wakers = std::mem::take(&mut self.state.lock().1);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Waits until `ready` returns a value. It is evaluated now and after each change.
    pub(crate) async fn wait<T>(
        &self,
        mut ready: impl FnMut(&mut StateGuard<'_>) -> Option<T>,
    ) -> T {
        poll_fn(|cx| {
            let mut state = self.lock();
            if let Some(value) = ready(&mut state) {
                return Poll::Ready(value);
            }
            let wakers = &mut state.locked.1;
            if !wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
                wakers.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    /// Waits until no such call is in flight. The caller has changed the state so that none is
    /// admitted any more.
    pub(crate) async fn wait_for_calls(&self, counted: Counted) {
        let _awaited = self.calls.await_calls();
        self.wait(|_| (self.calls.in_flight(counted) == 0).then_some(())).await;
    }

    /// Counts a call as ended. Any mark that it leaves has been set.
    #[inline]
    pub(crate) fn call_ended(&self, counted: Counted) {
        if self.calls.end(counted) {
            self.wake_waiters();
        }
    }

    pub(crate) fn next_session(&self) -> u64 {
        self.next_session.fetch_add(1, Ordering::Relaxed)
    }

    /// Ends the session of a leg that was lost or abandoned.
    pub(crate) fn disconnect(&self, leg: usize, session_id: u64) {
        self.end_session(leg, session_id, true);
    }

    /// Ends the session of a leg so that a new one begins.
    pub(crate) fn reconnect(&self, leg: usize, session_id: u64) {
        self.end_session(leg, session_id, false);
    }

    fn end_session(&self, leg: usize, session_id: u64, lost: bool) {
        let ended = self.change(|state| {
            let serves = state.serving;
            // No write follows, and none was lost. A moving mirror is an exception: its successor
            // serves at once.
            let in_order = !state.is_moving()
                && (!serves || state.admission_blocks > 0)
                && self.legs[leg].queue().writes() == 0;
            let own = &mut state.legs[leg];
            if !own.is_current(session_id) {
                return None;
            }
            if own.receives_writes {
                // An end by the operator's order is not a disconnect.
                let asked_for =
                    !serves || own.desired_state != DesiredState::Connected || own.full_resync;
                if lost && !asked_for {
                    count(&self.legs[leg].counters.disconnects, 1);
                }
                own.generation_bumped = false;
                own.has_unflushed |= self.legs[leg].unflushed.iter().any(|map| map.count() > 0);
                // Blocks sent since the last flush may not have arrived, or may be lost.
                for unflushed in &self.legs[leg].unflushed {
                    for index in 0..unflushed.words() {
                        self.legs[leg].out_of_sync.merge(index, unflushed.word(index));
                        self.legs[leg].suspect.merge(index, unflushed.word(index));
                    }
                    unflushed.clear(unflushed.all());
                }
            }
            if own.phase == LegPhase::InSync {
                let now = time::wall_clock().as_secs();
                self.legs[leg].counters.last_in_sync_s.store(now, Ordering::Relaxed);
            }
            let freezes = own.receives_writes && !in_order;
            let member_of = own.group_session.clone();
            let group_session = member_of.clone().filter(|_| freezes);
            // Before its queued writes fail: another member may wait for their end to complete its
            // resync.
            group_session.iter().for_each(|session| session.set_ended());
            own.is_admitted = false;
            (own.receives_writes, own.inconsistent, own.phase) =
                (false, false, LegPhase::Disconnected);
            Some((own.session.take()?, member_of, group_session))
        });
        if let Some((session, member_of, group_session)) = ended {
            session.close();
            // Queued writes fail now, and new writes need no space in the queue.
            let wakers = self.legs[leg].queue().wake_all();
            wakers.into_iter().for_each(Waker::wake);
            member_of.iter().for_each(|session| session.wake_all());
            if let (Some(membership), Some(session)) = (&self.group, group_session) {
                membership.group.end(leg, &session);
            }
        }
    }

    /// Current time, in nanoseconds of the runtime's clock.
    pub(crate) fn now_ns() -> u64 {
        time::now().as_nanos()
    }

    /// Current time for automatic failover, in nanoseconds of a clock that also runs while the
    /// machine is suspended: leases expire then, too.
    pub(crate) fn boot_ns() -> u64 {
        time::boot_nanos()
    }
}
