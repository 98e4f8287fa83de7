//! Mirror: a [`BlockDevice`] over a local leg and the legs of up to two peers.
//!
//! | completed call | guarantee |
//! | --- | --- |
//! | write, synchronous | The data is on every leg that counts as up to date. A leg that missed it was durably recorded as out of date before the completion. |
//! | write, asynchronous | The data is on the local leg, and the log covers it until the peer has it. |
//! | flush, FUA | The data is durable on the local leg. On legs that acknowledge from memory, as for a synchronous write. |
//! | read | Returns the latest completed data, and never data that the failure of one node could take back. |
//! | discard | Treated as a write of zeroes that may deallocate, because legs must not differ in what a discard leaves. |
//!
//! One state, behind a lock that is held for a few instructions at a time, holds the role, the legs
//! that receive writes, and the blocked calls. Every host call inspects it, or its core's view of it,
//! once when it is admitted ([`crate::io::admission`]) and keeps what it found. A change of that
//! state (a disconnect, a change of role, the end of a resync) waits for calls that were admitted
//! earlier ([`crate::io::call_gate`]).
//!
//! Continue with [`crate::io::admission`], [`crate::io::write`], [`crate::io::new_generation`],
//! [`crate::session::connect`] and [`crate::session::resync`]. [`crate::session::target`] is the receiving side.
//!
//! [`BlockDevice`]: flagstone_blockdev::BlockDevice

use std::future::poll_fn;
use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use flagstone_blockdev::{Geometry, IoError};
use flagstone_runtime::{spawn_detached, time};
use parking_lot::{Mutex, MutexGuard};

use crate::agree::versions::LinkVersions;
use crate::failover::{Failover, FailoverOptions, Published};
use crate::group::{GroupSession, Membership, SharedNumbering, follow_leader};
use crate::id::{Generation, MirrorId};
use crate::intent_log::bitmap::Bitmap;
use crate::intent_log::out_of_sync::{CopyToken, OutOfSync};
use crate::io::admission::AdmissionView;
use crate::io::call_gate::{CallGate, Counted};
use crate::io::fifo_lock::FifoLock;
use crate::io::queue::WriteQueue;
use crate::io::range_lock::RangeLock;
use crate::io::reorder::ReorderBuffer;
use crate::limits::{LOCAL_IO_MS, PEERS_MAX};
use crate::manage::replica::Replica;
use crate::manage::transfer::Transfer;
use crate::ondisk::superblock::ReplicaRole;
use crate::options::{Mode, PeerOptions};
use crate::session::bad_ranges::BadRanges;
use crate::state::arbitration::Standing;
use crate::state::status::{DesiredState, LegPhase};
use crate::wire::peer::{ReplicaIdentity, SharedSession};

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
    pub(crate) calls: CallGate<AdmissionView>,
    pub(crate) desired_state_lock: Arc<FifoLock>,
    pub(crate) failover: Failover,
    /// Held while bits of the log change together with bits of a leg's bitmap.
    marks: Mutex<()>,
    next_session: AtomicU64,
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
    /// since it was last in sync.
    pub(crate) lost_writes: AtomicU64,
    pub(crate) lost_bytes: AtomicU64,
}

/// Adds to a counter that orders no other memory access.
pub(crate) fn count(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) role: ReplicaRole,
    pub(crate) serving: bool,
    /// How often this node has stopped serving hosts. A read compares it before and after.
    pub(crate) service_ends: u64,
    /// Number of reasons for which new host calls are blocked.
    pub(crate) admission_blocks: u32,
    /// Blocked writes: waiting for admission, or recorded and waiting to be acknowledged.
    pub(crate) blocked: usize,
    pub(crate) legs: Vec<LegState>,
    pub(crate) local_device_failed: bool,
    /// A flush of the local device failed earlier. Its contents may not be durable, even after
    /// later successful flushes, until a resync to it completes.
    pub(crate) unverified: bool,
    pub(crate) bumping_generation: bool,
    pub(crate) generation_error: Option<IoError>,
    pub(crate) changing_role: bool,
    /// Orders to change the role that have not ended, including orders that wait for another
    /// change.
    pub(crate) orders: usize,
    /// See [`promised`](crate::state::machine::State::promised).
    pub(crate) promised: u64,
    /// See [`announced`](crate::state::machine::State::announced).
    pub(crate) announced: u64,
    /// Right to serve without the peer, of a node that serves.
    pub(crate) standing: Standing,
    /// What the arbiter's record says about the peer.
    pub(crate) published: Option<Published>,
    /// How often a source has attached.
    pub(crate) attachments: u64,
    /// The local leg has just failed, and a peer is being asked to run degraded.
    pub(crate) degrading: bool,
    /// The session that may write to this replica.
    pub(crate) attached: Option<AttachedSource>,
    /// Bad ranges that the attached source has begun to report.
    pub(crate) reported_bad_ranges: Vec<Range<u64>>,
    /// The attached source counts this replica as in sync.
    pub(crate) counted_in_sync: bool,
    pub(crate) reorder: Option<Arc<Mutex<ReorderBuffer>>>,
    pub(crate) closed: bool,
    pub(crate) transfer: Transfer,
    pub(crate) requested_bytes: Option<u64>,
    /// The space that the volume is about to grow into is being zeroed for a source.
    pub(crate) zeroing: bool,
    /// That zeroing failed, and the source has not been informed yet.
    pub(crate) zeroing_failed: bool,
    pub(crate) changes: u64,
}

/// The locked state. Changing it invalidates the views of all cores: see [`crate::io::call_gate`].
pub(crate) struct StateGuard<'a> {
    gate: &'a CallGate<AdmissionView>,
    locked: MutexGuard<'a, (State, Vec<Waker>)>,
    /// The version is invalid until the lock is released.
    is_changing: bool,
}

impl Deref for StateGuard<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.locked.0
    }
}

impl DerefMut for StateGuard<'_> {
    fn deref_mut(&mut self) -> &mut State {
        if !std::mem::replace(&mut self.is_changing, true) {
            self.gate.begin_change();
        }
        &mut self.locked.0
    }
}

impl Drop for StateGuard<'_> {
    fn drop(&mut self) {
        if self.is_changing {
            self.gate.end_change();
        }
    }
}

impl State {
    /// From now on hosts are not served here, and reads may find data of the next source.
    pub(crate) fn stop_serving(&mut self) {
        self.serving = false;
        self.service_ends += 1;
    }

    /// The local leg has failed and no peer serves the volume.
    pub(crate) fn is_unavailable(&self) -> bool {
        self.local_device_failed && !self.legs.iter().any(|leg| leg.phase == LegPhase::InSync)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttachedSource {
    pub(crate) session: u64,
    pub(crate) source: MirrorId,
}

/// The part of a leg that is under the state's lock.
#[derive(Default)]
pub(crate) struct LegState {
    pub(crate) desired_state: DesiredState,
    pub(crate) phase: LegPhase,
    /// The peer's replica at the last handshake; none before the first.
    pub(crate) peer: MirrorId,
    pub(crate) session: Option<SharedSession>,
    /// Identifies the session. Each new session gets the next number.
    pub(crate) session_id: u64,
    pub(crate) receives_writes: bool,
    /// With automatic failover: the peer has admitted this session as its source.
    pub(crate) is_admitted: bool,
    /// A generation was started after this peer was lost.
    pub(crate) generation_bumped: bool,
    pub(crate) unflushed_half: usize,
    /// The last session ended with writes that were not flushed.
    pub(crate) has_unflushed: bool,
    pub(crate) volatile_cache: bool,
    pub(crate) last_handshake: Option<ReplicaIdentity>,
    /// Versions of the link that the peer announced then, even if nothing else could be parsed.
    pub(crate) versions: Option<LinkVersions>,
    /// Attach no earlier, in nanoseconds: the peer was detached for a congested queue.
    pub(crate) attach_not_before_ns: u64,
    /// Incremented by each command that the connection task has to act on.
    pub(crate) reconnect_requests: u64,
    /// Copy everything after the next handshake.
    pub(crate) full_resync: bool,
    /// The role is being handed over through this session, which is kept meanwhile.
    pub(crate) handing_over: bool,
    /// The peer is durably inconsistent: a resync to it has begun, and the peer has not been
    /// informed of its end. Until then, differences need no other record.
    pub(crate) inconsistent: bool,
    /// Bad ranges, in whole bits, that were reported to the peer in this session.
    pub(crate) reported_bad_ranges: Vec<Range<u64>>,
    /// Generation under which the peer was asked to run degraded, until it answers.
    pub(crate) degraded_as: Generation,
    /// Of this session, or of the group session. Locked after the state.
    pub(crate) numbering: SharedNumbering,
    /// The group session of this session, also after its end.
    pub(crate) group_session: Option<Arc<GroupSession>>,
    /// Writes have been sent in it.
    pub(crate) opened_group_session: bool,
    /// The peer refused the last attachment because of its group.
    pub(crate) refused_group: bool,
}

impl State {
    /// Holds after each change, also in release: going on would lose or mix data.
    fn assert_sound(&self, grouped: bool) {
        let sound = !self.serving || self.role == ReplicaRole::Source;
        assert!(sound, "hosts are served only by the source, and not by a {} node", self.role);
        let two_sources = self.serving && self.attached.is_some();
        assert!(!two_sources, "a node that serves hosts has a source attached");
        for leg in self.legs.iter().filter(|leg| leg.receives_writes) {
            assert!(leg.session.is_some(), "writes are sent to a peer without a session");
            assert_eq!(
                leg.opened_group_session, grouped,
                "writes of a consistency group are sent outside of its session"
            );
        }
    }
}

impl LegState {
    fn new(desired_state: DesiredState) -> LegState {
        LegState { desired_state, volatile_cache: true, ..LegState::default() }
    }

    /// True while this session takes writes and has not been lost.
    pub(crate) fn is_current(&self, session_id: u64) -> bool {
        self.session_id == session_id && self.session.is_some()
    }
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

    /// As [`Mirror::speaking`], as a member of a consistency group. An earlier mirror in its place has
    /// ended.
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

    /// Like [`Mirror::speaking`], with automatic failover if there are options for it. Such a mirror
    /// is in no consistency group.
    ///
    /// # Panics
    /// As [`Mirror::new`], and with `failover` unless there is a single peer in synchronous mode.
    pub fn with_failover(
        versions: LinkVersions,
        local: Replica,
        peers: Vec<PeerOptions>,
        failover: Option<FailoverOptions>,
    ) -> Mirror {
        assert!(failover.is_none() || is_pair(&peers), "automatic failover is for a pair in sync");
        Mirror::build(versions, local, peers, None, failover)
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
            group,
            suspect: bitmap(),
            counters: Counters::default(),
            state: Mutex::new((state, Vec::new())),
            calls: CallGate::default(),
            desired_state_lock: Arc::default(),
            failover: Failover::new(failover.clone(), superblock.arbiter),
            marks: Mutex::new(()),
            next_session: AtomicU64::new(1),
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

/// A single peer in synchronous mode: what automatic failover is for.
fn is_pair(peers: &[PeerOptions]) -> bool {
    matches!(peers, [peer] if peer.mode == Mode::Sync)
}

/// Fails the local leg when a call to its devices hangs and something else can go on without it:
/// hosts, through a peer that is in sync, or an order to change the role, which has to end.
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
            // A read that hangs is repeated at the mirror that has taken over the replica.
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
        StateGuard { gate: &self.calls, locked: self.state.lock(), is_changing: false }
    }

    /// Changes the state and wakes every task that waits for a change.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let value = change(&mut state);
        state.assert_sound(self.group.is_some());
        state.changes += 1;
        drop(state);
        self.wake_waiters();
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

    /// Waits until no such call is in flight. The caller has changed the state so that no new one
    /// is admitted.
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

    /// Copies the log's bits to the out-of-sync bitmap of every peer.
    pub(crate) fn load_out_of_sync(&self) {
        for leg in &self.legs {
            for index in 0..leg.out_of_sync.words() {
                leg.out_of_sync.merge(index, self.local.word(index));
            }
        }
    }

    /// Loads the suspect bitmaps. Blocks that a log names when it is opened may be durable on
    /// neither leg: they were in active regions, or had been sent to a peer that had not flushed. A
    /// newly created log names everything and implies nothing of the kind.
    fn load_suspect(&self) {
        if self.local.log_lost().is_some() {
            return;
        }
        let crashed = self.local.superblock().flags.crashed;
        let here = Some(&self.suspect).filter(|_| crashed);
        let maps = self.legs.iter().map(|leg| &leg.suspect).chain(here);
        for map in maps {
            (0..map.words()).for_each(|index| map.merge(index, self.local.word(index)));
        }
    }

    /// Marks a range that a leg lacks, or may lack.
    pub(crate) fn mark(&self, leg: usize, offset: u64, len: u64) {
        let marks = self.marks.lock();
        self.mark_locked(&marks, leg, offset, len);
    }

    fn mark_locked(&self, _marks: &MutexGuard<'_, ()>, leg: usize, offset: u64, len: u64) {
        let out_of_sync = &self.legs[leg].out_of_sync;
        let bits = out_of_sync.bits_of(offset, len);
        out_of_sync.mark(bits.clone());
        self.local.mark(bits);
    }

    /// Marks a range that was sent to a leg and failed: the leg may lack it.
    pub(crate) fn mark_suspect(&self, leg: usize, offset: u64, len: u64) {
        let suspect = &self.legs[leg].suspect;
        let marks = self.marks.lock();
        suspect.set(suspect.bits_of(offset, len));
        self.mark_locked(&marks, leg, offset, len);
    }

    /// Clears all marks: no block that the log names differs any more.
    pub(crate) fn forget_marks(&self) {
        let _marks = self.marks.lock();
        self.legs.iter().for_each(|leg| leg.out_of_sync.clear_all());
        let maps =
            self.legs.iter().flat_map(|leg| std::iter::once(&leg.suspect).chain(&leg.unflushed));
        maps.chain([&self.suspect]).for_each(|map| map.clear(map.all()));
        self.local.clear(0..self.local.superblock().geometry.bits());
    }

    /// Marks a range that is being sent to a leg, which may lose it or not have it yet. The caller
    /// has counted the call.
    pub(crate) fn mark_unflushed(&self, leg: usize, half: usize, offset: u64, len: u64) {
        let unflushed = &self.legs[leg].unflushed[half];
        let bits = unflushed.bits_of(offset, len);
        // The writer that set them set the log's bits too, and no bit of this half is cleared while
        // a call is counted in it.
        if unflushed.has_all(bits.clone()) {
            return;
        }
        let _marks = self.marks.lock();
        unflushed.set(bits.clone());
        self.local.mark(bits);
    }

    /// Clears the bits of the log that no other bitmap contains.
    fn clear_log(&self, _marks: &MutexGuard<'_, ()>, bits: Range<u64>) {
        let named = |bits: Range<u64>| {
            self.legs.iter().any(|leg| {
                leg.out_of_sync.any(bits.clone())
                    || leg.unflushed.iter().any(|map| map.any(bits.clone()))
            })
        };
        if !named(bits.clone()) {
            return self.local.clear(bits);
        }
        for bit in bits.filter(|bit| !named(*bit..bit + 1)) {
            self.local.clear(bit..bit + 1);
        }
    }

    /// Clears the marks of a run that was copied and that the peer has durably, except for the
    /// blocks in `kept`, in ascending order. The whole run stays marked if a block was marked again
    /// since the copy began. False, without a change, when the session has ended.
    pub(crate) fn copied(
        &self,
        leg: usize,
        session_id: u64,
        copy: CopyToken,
        kept: &[Range<u64>],
    ) -> bool {
        let state = self.lock();
        let current = state.legs[leg].is_current(session_id);
        if current {
            let own = &self.legs[leg];
            let marks = self.marks.lock();
            let mut cleared = Vec::new();
            own.out_of_sync.finish_copy(copy, kept, |run| cleared.push(run));
            for run in cleared {
                own.suspect.clear(run.clone());
                self.suspect.clear(run.clone());
                self.clear_log(&marks, run);
            }
        }
        current
    }

    /// Clears half of the unflushed bitmap after a peer's flush; false if the session ended.
    pub(crate) fn unflushed_is_durable(&self, leg: usize, session_id: u64, half: usize) -> bool {
        let state = self.lock();
        let current = state.legs[leg].is_current(session_id);
        if current {
            let unflushed = &self.legs[leg].unflushed[half];
            let mut from = 0;
            while let Some(run) = unflushed.next_run(from, 1 << 16) {
                from = run.end;
                let marks = self.marks.lock();
                unflushed.clear(run.clone());
                self.clear_log(&marks, run);
            }
        }
        current
    }

    /// Ends the session of a leg because it was lost or given up.
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
            // No write follows it, and none was lost.
            // A mirror that moves to another one has one: its successor serves at once.
            let in_order = !state.is_moving()
                && (!serves || state.admission_blocks > 0)
                && self.legs[leg].queue().writes() == 0;
            let own = &mut state.legs[leg];
            if !own.is_current(session_id) {
                return None;
            }
            if own.receives_writes {
                // An end that the operator asked for does not count as a disconnect.
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
            // Before its queued writes fail: another member may wait for them to end its resync.
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

    /// Current time of automatic failover, in nanoseconds of a clock that runs on while the machine is
    /// suspended: a lease ends meanwhile, too.
    pub(crate) fn boot_ns() -> u64 {
        time::boot_nanos()
    }
}
