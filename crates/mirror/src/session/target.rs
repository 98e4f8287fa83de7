//! Target side: a replica that serves the source attached to it.
//!
//! Guarantees:
//! - writes are accepted from one session at a time, the one with the highest epoch. An attachment
//!   is answered when no call of an earlier session is in progress and its epoch is durable;
//! - a replica that serves hosts itself accepts no source;
//! - ordered writes start in their order, however they arrive ([`crate::io::reorder`]), and each is
//!   durable before writes that depend on it start: after a power loss, too, the data of a target
//!   in sync is the source's at one moment of its past;
//! - a reply of [`PeerReply::Done`] means that the effect is durable.
//!
//! All input may be hostile: ranges, orders and requests are checked.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Poll, Waker};

use flagstone_blockdev::{IoError, IoFuture, SharedDevice, ZeroFlags};
use flagstone_runtime::{Buf, BufMut, spawn};
use parking_lot::Mutex;

use crate::agree::generation::{GenerationHistory, GenerationList};
use crate::agree::versions::LinkVersion;
use crate::id::{Generation, MirrorId};
use crate::io::call_admission::Counted;
use crate::io::reorder::{ReorderBuffer, WriteOrder};
use crate::io::request::RunToCompletion;
use crate::limits::{BAD_RANGES_MAX, HISTORY_LEN, PAGE_BYTES, PEERS_MAX};
use crate::manage::order::OrderProgress;
use crate::manage::resolve::RunningResolution;
use crate::mirror::{AttachedSource, Inner, LegState, Mirror, State};
use crate::ondisk::bitmap_page::WORDS;
use crate::ondisk::superblock::{RecordedRight, ReplicaRole, Superblock};
use crate::options::Mode;
use crate::state::machine::{Event, Resolution, next};
use crate::state::status::LegPhase;
use crate::wire::peer::{
    AttachRequest, BadRangeReport, PeerAnswer, PeerRefusal, PeerReply, PeerRequest, ReplicaIdentity,
};

/// One connection of a source, at the target. Its carrier (a controller, or a simulated network)
/// passes in calls from any core, and drops the session when the connection is gone.
pub struct TargetSession {
    inner: Arc<Inner>,
    number: u64,
    /// Order of its writes, which the sessions of a group share.
    reorder: Mutex<Arc<Mutex<ReorderBuffer>>>,
    /// Replica at the other end, after it has identified itself, and the epoch reported to it.
    asker: Mutex<(MirrorId, u64)>,
    /// Pages of a record of reservations that have arrived, in order.
    reservation_pages: Mutex<Vec<u8>>,
}

impl Mirror {
    /// A session for a source that has connected.
    pub fn session(&self) -> Arc<TargetSession> {
        let number = self.0.next_session();
        let inner = self.0.clone();
        let (reorder, asker) = (Mutex::default(), Mutex::default());
        let reservation_pages = Mutex::default();
        Arc::new(TargetSession { inner, number, reorder, asker, reservation_pages })
    }
}

impl Drop for TargetSession {
    fn drop(&mut self) {
        self.inner.detach(|attached| attached.session == self.number);
    }
}

/// A call that changes the local leg without a host: for the attached source, or a rewrite for a
/// resync from here. A source can attach, and the role can change, only after all of these have
/// ended.
pub(crate) struct SourceCall(Arc<Inner>);

impl Drop for SourceCall {
    fn drop(&mut self) {
        self.0.call_ended(Counted::SourceCall);
    }
}

impl TargetSession {
    /// Whether this session is the attached one.
    pub fn is_attached(&self) -> bool {
        self.inner.is_attached(self.number)
    }

    fn enter(&self) -> Result<SourceCall, IoError> {
        loop {
            let (version, view) = self.inner.view();
            if view.attached != Some(self.number) {
                return Err(IoError::Unreachable);
            }
            let call = self.inner.begin_rewrite();
            if self.inner.calls.confirm(version) {
                return Ok(call);
            }
        }
    }

    /// Submits a write: `call` writes to the leg's device when the order permits, durably if its
    /// second argument is true. While it waits, it holds the result of `while_waiting`. If that is
    /// `None`, the write is refused and may be sent again. A write that can start immediately is
    /// never refused for that reason.
    ///
    /// An ordered write is durable before writes that depend on it start. Otherwise a power loss
    /// could take it back from the device's cache, and leave later ones.
    pub fn submit_in_order<P: 'static>(
        &self,
        order: Option<WriteOrder>,
        while_waiting: impl FnOnce() -> Option<P> + 'static,
        call: impl FnOnce(&SharedDevice, bool) -> IoFuture<()> + 'static,
    ) -> IoFuture<()> {
        let served = match self.enter() {
            Ok(served) => served,
            Err(error) => return IoFuture::ready(Err(error)),
        };
        let inner = self.inner.clone();
        let Some(order) = order else {
            return match call(inner.local.data(), false).try_now() {
                Ok(result) => IoFuture::ready(result),
                Err(call) => IoFuture::later(RunToCompletion::new(async move {
                    let _served = served;
                    call.await
                })),
            };
        };
        let (reorder, number) = (self.reorder.lock().clone(), self.number);
        if reorder.lock().arrived(order).is_err() {
            return IoFuture::ready(Err(IoError::OutOfRange));
        }
        IoFuture::later(async move {
            let early = !reorder.lock().may_start(order, Waker::noop());
            if early {
                let Some(_waiting) = while_waiting() else {
                    reorder.lock().withdrawn(order);
                    return Err(IoError::NoMemory);
                };
                wait_in_order(&inner, &reorder, number, order).await?;
            } else {
                drop(while_waiting);
            }
            RunToCompletion::new(async move {
                let _served = served;
                let leg = inner.local.data();
                call(leg, leg.geometry().volatile_cache).await?;
                let done = reorder.lock().completed(order.number);
                while let Some(waker) = { reorder.lock().next_to_wake() } {
                    waker.wake();
                }
                done.map_err(|_| IoError::OutOfRange)
            })
            .await
        })
    }

    /// Writes to the leg.
    pub fn write(
        &self,
        offset: u64,
        data: Buf,
        fua: bool,
        order: Option<WriteOrder>,
    ) -> IoFuture<()> {
        let write = move |leg: &SharedDevice, durable| leg.write(offset, data, fua || durable);
        self.submit_in_order(order, || Some(()), write)
    }

    /// Writes zeroes to the leg.
    pub fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        flags: ZeroFlags,
        order: Option<WriteOrder>,
    ) -> IoFuture<()> {
        let zero = move |leg: &SharedDevice, durable| {
            leg.write_zeroes(offset, len, ZeroFlags { fua: flags.fua || durable, ..flags })
        };
        self.submit_in_order(order, || Some(()), zero)
    }

    /// Reads from the leg. Data found after another session attached, or after hosts were served
    /// here, may not be the source's and is not returned.
    pub fn read(&self, offset: u64, buf: BufMut) -> IoFuture<BufMut> {
        if !self.is_attached() {
            return IoFuture::ready(Err(IoError::Unreachable));
        }
        let (inner, number) = (self.inner.clone(), self.number);
        IoFuture::later(async move {
            let found = inner.local.data().read(offset, buf).await;
            if inner.is_attached(number) { found } else { Err(IoError::Unreachable) }
        })
    }

    /// Flushes the leg.
    pub fn flush(&self) -> IoFuture<()> {
        match self.is_attached() {
            true => self.inner.local.data().flush(),
            false => IoFuture::ready(Err(IoError::Unreachable)),
        }
    }

    /// Answers a request.
    pub fn ask(self: &Arc<Self>, request: PeerRequest) -> IoFuture<PeerAnswer> {
        let session = self.clone();
        IoFuture::later(async move { Ok(session.answer(request).await) })
    }

    async fn answer(&self, request: PeerRequest) -> PeerAnswer {
        let inner = &self.inner;
        match request {
            PeerRequest::Identify { asker } => {
                let identity = inner.identity(asker);
                *self.asker.lock() = (asker, identity.view.epoch);
                inner.peer_is_reachable(asker);
                return Ok(PeerReply::Identity(identity));
            }
            PeerRequest::Attach(attach) => return self.attach(attach).await,
            PeerRequest::Discard { base, expected } => {
                return inner.discard_data(base, expected).await;
            }
            PeerRequest::HandOver => {
                let (asker, _) = *self.asker.lock();
                return inner.hand_over(asker).await;
            }
            PeerRequest::Depose { .. } | PeerRequest::Claim { .. } | PeerRequest::Remove { .. }
                if inner.versions.highest() < LinkVersion::DEPOSES =>
            {
                return Err(PeerRefusal::Version);
            }
            PeerRequest::Depose { volume, epoch } => {
                let (asker, _) = *self.asker.lock();
                return inner.follow_announcement(asker, (volume, epoch), true).await;
            }
            PeerRequest::Claim { volume, epoch } => {
                let (asker, _) = *self.asker.lock();
                return inner.follow_announcement(asker, (volume, epoch), false).await;
            }
            PeerRequest::Remove { volume, epoch } => {
                let (asker, _) = *self.asker.lock();
                return inner.follow_removal(asker, (volume, epoch)).await;
            }
            PeerRequest::ZeroNewSpace { .. }
                if inner.versions.highest() < LinkVersion::ZEROES_NEW_SPACE =>
            {
                return Err(PeerRefusal::Version);
            }
            PeerRequest::ZeroNewSpace { usable_bytes } => {
                return inner.zero_new_space(usable_bytes);
            }
            _ => {}
        }
        // Only the attached source may send other requests.
        let served = self.enter().map_err(|_| PeerRefusal::NotAttached)?;
        let Some(attached) = inner.lock().attached else { return Err(PeerRefusal::NotAttached) };
        match request {
            PeerRequest::BitmapPage { page } => inner.read_bitmap_page(page),
            PeerRequest::Checksums { offset, len, unit_bytes } => {
                inner.checksums(offset, len, unit_bytes).await
            }
            PeerRequest::Ancestors { generations } => inner.merge_ancestors(generations).await,
            PeerRequest::JoinGroup { session } => self.join_group(session),
            PeerRequest::Snapshot(request) => {
                crate::snapshot::target::answer(inner, served, request).await
            }
            PeerRequest::SnapshotIds { after } => {
                drop(served);
                inner.snapshot_ids(after).await
            }
            PeerRequest::Reservations(page) => {
                inner.keep_reservations(served, &self.reservation_pages, page).await
            }
            PeerRequest::BeginResync { base } => inner.begin_resync(base).await,
            PeerRequest::BadRange(report) => inner.bad_range(report).await,
            PeerRequest::Renew { offer, failover_after_ms, lag_ms } => {
                inner.renew(offer, failover_after_ms, lag_ms).await
            }
            PeerRequest::EndResync { generation } => inner.adopt_generation(generation, true).await,
            PeerRequest::NewGeneration { generation } => {
                inner.adopt_generation(generation, false).await
            }
            PeerRequest::RunDegraded { generation, lost: _ } => {
                inner.adopt_generation(generation, false).await
            }
            PeerRequest::Promote { epoch, revision, leaves } => {
                // This is the last call of its session.
                drop(served);
                let progress =
                    OrderProgress::handed_over(epoch.saturating_sub(1), revision, leaves);
                inner.promote(progress, attached).await
            }
            _ => Err(PeerRefusal::NotNow),
        }
    }

    async fn attach(&self, attach: AttachRequest) -> PeerAnswer {
        let inner = &self.inner;
        if !inner.versions.contains(attach.version) {
            return Err(PeerRefusal::Version);
        }
        if attach.group != inner.group_tag() {
            return Err(PeerRefusal::Group);
        }
        let _role_change = inner.begin_role_change().await;
        if inner.arbitrating().failover.is_fencing() {
            return Err(PeerRefusal::NotNow);
        }
        inner.check_attach(&attach)?;
        inner.check_size(&attach)?;
        // From here on, no earlier session starts a call. Calls in progress end first.
        inner.end_attachment().await;
        inner.check_attach(&attach)?;
        // Another node has announced meanwhile that it takes the role.
        let (asker, reported) = *self.asker.lock();
        if !asker.is_none() && inner.local.superblock().epoch > reported {
            return Err(PeerRefusal::Changed);
        }
        let mark = inner.failover.mark_attached(attach.asks);
        let admit = move |superblock: &mut Superblock, slot: usize| {
            superblock.arbiter = mark(superblock.arbiter);
            (superblock.role, superblock.designated_successor) = (ReplicaRole::Target, None);
            superblock.removed = false;
            superblock.epoch = superblock.epoch.max(attach.epoch);
            if attach.in_sync {
                superblock.unverified = false;
                let mut generations = superblock.generations(slot);
                generations.settle();
                superblock.set_generations(slot, &generations);
                (superblock.flags.crashed, superblock.flags.served_alone) = (false, false);
            }
        };
        // A connection of this mirror may be recording another peer in the same slot.
        inner.update_peer(attach.source, admit).await.map_err(|_| PeerRefusal::Failed)?;
        let reorder = Arc::<Mutex<ReorderBuffer>>::default();
        *self.reorder.lock() = reorder.clone();
        let attached = AttachedSource { session: self.number, source: attach.source };
        inner.change(|state| {
            (state.role, state.attached, state.counted_in_sync) =
                (ReplicaRole::Target, Some(attached), attach.in_sync);
            // All data of the source is durable here.
            state.unverified &= !attach.in_sync;
            state.reorder = Some(reorder);
            state.attachments += 1;
        });
        inner.failover.attached();
        Ok(PeerReply::Done)
    }

    /// Joins a group session. The source has not sent a write in this session yet.
    fn join_group(&self, session: u64) -> PeerAnswer {
        let membership = self.inner.group.as_ref().ok_or(PeerRefusal::Group)?;
        if session == 0 {
            return Err(PeerRefusal::Range);
        }
        let reorder = membership.group.joined(session);
        *self.reorder.lock() = reorder.clone();
        self.inner.change(|state| state.reorder = Some(reorder));
        Ok(PeerReply::Done)
    }
}

impl State {
    pub(crate) fn leg_of(&self, source: MirrorId) -> Option<usize> {
        let last_handshake = self.legs.iter().position(|leg| leg.peer == source);
        // With a single peer, the source is known even without a handshake of this leg.
        last_handshake.or((self.legs.len() == 1).then_some(0))
    }
}

impl Inner {
    /// Begins a rewrite of the local leg.
    pub(crate) fn begin_rewrite(self: &Arc<Self>) -> SourceCall {
        self.calls.begin(Counted::SourceCall);
        SourceCall(self.clone())
    }

    fn is_attached(&self, session: u64) -> bool {
        self.view().1.attached == Some(session)
    }

    /// Detaches the session: it starts no more calls. Its writes that wait for their order fail,
    /// because their predecessors may never arrive.
    fn detach(&self, which: impl FnOnce(&AttachedSource) -> bool) {
        let reorder = self.change(|state| {
            let attached = state.attached.take_if(|attached| which(attached))?;
            if let Some(leg) = state.leg_of(attached.source).filter(|_| state.counted_in_sync) {
                let now = flagstone_runtime::time::wall_clock().as_secs();
                self.legs[leg].counters.last_in_sync_s.store(now, Ordering::Relaxed);
            }
            state.reorder.take()
        });
        if let Some(reorder) = reorder {
            let wakers = reorder.lock().wake_all();
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    pub(crate) fn detach_source(&self) {
        self.detach(|_| true);
    }

    /// Detaches the session, and waits for its calls.
    pub(crate) async fn end_attachment(&self) {
        self.detach_source();
        self.wait_for_calls(Counted::SourceCall).await;
    }
}

async fn wait_in_order(
    inner: &Arc<Inner>,
    reorder: &Mutex<ReorderBuffer>,
    number: u64,
    order: WriteOrder,
) -> Result<(), IoError> {
    poll_fn(|cx| {
        if reorder.lock().may_start(order, cx.waker()) {
            return Poll::Ready(Ok(()));
        }
        if inner.is_attached(number) {
            Poll::Pending
        } else {
            Poll::Ready(Err(IoError::Unreachable))
        }
    })
    .await
}

/// Requests to the replica.
impl Inner {
    /// Retries the leg of a disconnected peer at once, because the peer identifies itself and so is
    /// reachable. Not after a completed handshake: both sides would trigger each other forever.
    fn peer_is_reachable(&self, asker: MirrorId) {
        let lost = |leg: &LegState| {
            (leg.peer == asker || leg.peer.is_none()) && leg.phase == LegPhase::Disconnected
        };
        let state = self.lock();
        if !state.serving || !state.legs.iter().any(lost) {
            return;
        }
        drop(state);
        self.change(|state| {
            state
                .legs
                .iter_mut()
                .filter(|leg| lost(leg))
                .for_each(|leg| leg.reconnect_requests += 1);
        });
    }

    pub(crate) fn identity(&self, asker: MirrorId) -> ReplicaIdentity {
        let mut view = self.local.view(self.slot_of(asker));
        let known =
            self.local.superblock().peers.iter().filter(|peer| !peer.replica.is_none()).count();
        let state = self.lock();
        view.serving |= state.serving;
        // Until it is brought up to date, the data may not match any point in time.
        view.inconsistent |= state.unverified;
        view.dirty |= self.legs.iter().any(|leg| leg.out_of_sync.count() > 0);
        let queues = self.legs.iter().any(|leg| leg.options().mode == Mode::Async);
        let several = known > 1 || self.legs.len() > 1;
        let together = queues || several || self.group.is_some();
        if together && state.role == ReplicaRole::Source {
            // Never prefer this data after a crash:
            // - asynchronous: the peer never got some acknowledged writes;
            // - several targets: each would consider its own data the better one, without knowledge
            //   of the others;
            // - group: each member would decide for itself.
            (view.serving, view.crashed) = (true, false);
        }
        // The log of a deposed source may still be open while calls in flight end.
        view.serving &= state.role != ReplicaRole::Deposed;
        ReplicaIdentity {
            view,
            role: state.role,
            is_serving: state.serving,
            volatile_cache: self.local.data().geometry().volatile_cache,
            is_discarding: state.resolution == Resolution::Discards,
            has_source: state.attached.is_some(),
            keeps_reservations: self.reservations.are_kept(),
            versions: self.versions,
        }
    }

    fn check_attach(&self, attach: &AttachRequest) -> Result<(), PeerRefusal> {
        let superblock = self.local.superblock();
        if attach.volume != superblock.volume || attach.source == superblock.replica {
            return Err(PeerRefusal::Unrelated);
        }
        let event = Event::Attached { epoch: attach.epoch };
        next(&self.machine_state(), event).map_err(|refusal| self.refusal(refusal))?;
        if attach.expected != superblock.current {
            return Err(PeerRefusal::Changed);
        }
        Ok(())
    }

    /// If the source's volume has another size, requests that size for this replica.
    fn check_size(&self, attach: &AttachRequest) -> Result<(), PeerRefusal> {
        let here = self.local.superblock().geometry.usable_bytes;
        let wanted = attach.usable_bytes;
        if wanted == here || wanted == 0 {
            return Ok(());
        }
        let whole = wanted.is_multiple_of(PAGE_BYTES as u64);
        if !whole || wanted > self.local.room_bytes() {
            return Err(PeerRefusal::Range);
        }
        self.change(|state| state.requested_bytes = Some(wanted));
        Err(PeerRefusal::NotNow)
    }

    /// The superblock slot of a peer: its own, a free slot, or a replaced peer's.
    pub(crate) fn slot_of(&self, replica: MirrorId) -> usize {
        let peers = self.local.superblock().peers;
        if let Some(known) = peers.iter().position(|peer| peer.replica == replica) {
            return known;
        }
        let present: Vec<MirrorId> = self.lock().legs.iter().map(|leg| leg.peer).collect();
        let free = peers.iter().position(|peer| peer.replica.is_none());
        let gone = || peers.iter().position(|peer| !present.contains(&peer.replica));
        free.or_else(gone).unwrap_or(0)
    }

    /// Superblock slot of the peer of a leg's last handshake.
    pub(crate) fn slot_of_leg(&self, leg: usize) -> usize {
        // A separate statement, so that the lock is released: `slot_of` takes it too.
        let peer = self.lock().legs[leg].peer;
        self.slot_of(peer)
    }

    fn read_bitmap_page(&self, page: u64) -> PeerAnswer {
        let words = (self.local.superblock().geometry.bits()).div_ceil(64);
        let first = page.checked_mul(WORDS as u64).filter(|first| *first < words);
        let first = first.ok_or(PeerRefusal::Range)?;
        let word = |index: usize| self.local.word(first + index as u64);
        Ok(PeerReply::BitmapPage(Box::new(std::array::from_fn(word))))
    }

    async fn begin_resync(&self, base: Generation) -> PeerAnswer {
        let begin = move |superblock: &mut Superblock| {
            superblock.flags.inconsistent = true;
            superblock.arbiter.serving_right = RecordedRight::Unknown;
            superblock.not_received.clear();
            if !base.is_none() {
                superblock.current = base;
            }
        };
        self.change(|state| {
            state.counted_in_sync = false;
            state.reported_bad_ranges.clear();
        });
        self.failover.withdraw_proof();
        self.local.update(begin).await.map_err(|_| PeerRefusal::Failed)?;
        Ok(PeerReply::Done)
    }

    /// Records that the source's resync has copied everything but these ranges. Once the list is
    /// complete and durable, the operator may let this replica serve by force.
    async fn bad_range(&self, report: BadRangeReport) -> PeerAnswer {
        let BadRangeReport { offset, len, index, count } = report;
        let (index, count) = (usize::from(index), usize::from(count));
        let page = PAGE_BYTES as u64;
        let whole = len > 0 && offset.is_multiple_of(page) && len.is_multiple_of(page);
        let end = offset.checked_add(len).ok_or(PeerRefusal::Range)?;
        let size = self.local.superblock().geometry.usable_bytes;
        if !whole || end > size || index >= count || count > BAD_RANGES_MAX {
            return Err(PeerRefusal::Range);
        }
        if !self.local.superblock().flags.inconsistent {
            return Err(PeerRefusal::NotNow);
        }
        let list = {
            let mut state = self.lock();
            let list = &mut state.reported_bad_ranges;
            list.truncate(index);
            if list.len() < index || list.last().is_some_and(|before| before.end > offset) {
                return Err(PeerRefusal::Range);
            }
            list.push(offset..end);
            list.clone()
        };
        if list.len() == count {
            self.local.data().flush().await.map_err(|_| PeerRefusal::Failed)?;
            let put = move |superblock: &mut Superblock| superblock.not_received = list;
            self.local.update(put).await.map_err(|_| PeerRefusal::Failed)?;
        }
        Ok(PeerReply::Done)
    }

    /// Merges the generation history of the source, whose data this replica has or is about to
    /// have. An inconsistent replica's history is not used before the resync completes.
    async fn merge_ancestors(&self, generations: GenerationList<HISTORY_LEN>) -> PeerAnswer {
        let remember = move |superblock: &mut Superblock| {
            let GenerationHistory { current, bases, .. } = superblock.generations(0);
            let known = |generation| generation == current || bases.contains(generation);
            superblock.history.merge(&generations, known)
        };
        if remember(&mut self.local.superblock()) {
            self.local.update(remember).await.map_err(|_| PeerRefusal::Failed)?;
        }
        Ok(PeerReply::Done)
    }

    /// Adopts the generation of the source's data. At the end of a resync, the log is cleared after
    /// the superblock is durable, because all blocks that it names are then equal.
    async fn adopt_generation(&self, generation: Generation, resync: bool) -> PeerAnswer {
        let superblock = self.local.superblock();
        if generation.is_none() || (superblock.flags.inconsistent && !resync) {
            return Err(PeerRefusal::Inconsistent);
        }
        self.local.data().flush().await.map_err(|_| PeerRefusal::Failed)?;
        let adopt = move |superblock: &mut Superblock| {
            let mut generations = superblock.generations(0);
            generations.adopt(generation);
            // The log no longer covers differences to other peers.
            for peer in 1..PEERS_MAX {
                for base in superblock.peers[peer].bases.iter() {
                    generations.history.remember(base);
                }
                superblock.peers[peer].bases = GenerationList::default();
            }
            superblock.set_generations(0, &generations);
            superblock.flags.inconsistent = false;
            superblock.not_received.clear();
            (superblock.flags.crashed, superblock.flags.served_alone) = (false, false);
            superblock.unverified &= !resync;
        };
        self.local.update(adopt).await.map_err(|_| PeerRefusal::Failed)?;
        if resync {
            self.forget_marks();
        }
        self.change(|state| {
            state.counted_in_sync = true;
            state.unverified &= !resync;
        });
        Ok(PeerReply::Done)
    }

    async fn promote(self: &Arc<Self>, progress: OrderProgress, by: AttachedSource) -> PeerAnswer {
        let _role_change = self.begin_role_change().await;
        if self.lock().attached != Some(by) {
            return Err(PeerRefusal::NotNow);
        }
        let decided = next(&self.machine_state(), Event::Promoted);
        let (after, actions) = decided.map_err(|_| PeerRefusal::NotNow)?;
        // While the source can still abort for all members of a group.
        if let Some(membership) = self.group.as_ref().filter(|group| group.is_leader()) {
            for member in membership.group().members().into_iter().flatten() {
                member.local.check_log().await.map_err(|_| PeerRefusal::Failed)?;
            }
        }
        let done = self.perform(after, actions.iter(), progress).await;
        done.map(|_| PeerReply::Done).map_err(|_| PeerRefusal::Failed)
    }

    /// Discards the local data for the peer's: see [`PeerRequest::Discard`].
    pub(crate) async fn discard_data(
        self: &Arc<Self>,
        base: Generation,
        expected: Generation,
    ) -> PeerAnswer {
        let begun = self.begin_resolution(Resolution::Discards);
        let resolution = begun.map_err(|refusal| self.refusal(refusal))?;
        self.discard_to_the_end(resolution, base, expected).await
    }

    /// Discards the local data, also if the caller is dropped: the peer has to see the resolution
    /// while the data may be discarded.
    pub(crate) async fn discard_to_the_end(
        self: &Arc<Self>,
        resolution: RunningResolution,
        base: Generation,
        expected: Generation,
    ) -> PeerAnswer {
        let inner = self.clone();
        let discard = spawn(async move {
            let _role_change = inner.begin_role_change().await;
            let answer = inner.discard_data_locked(base, expected).await;
            drop(resolution);
            answer
        });
        discard.await.unwrap_or(Err(PeerRefusal::Failed))
    }

    /// As [`Inner::discard_data`], for a caller that holds the role lock and has begun the
    /// resolution.
    pub(crate) async fn discard_data_locked(
        &self,
        base: Generation,
        expected: Generation,
    ) -> PeerAnswer {
        let superblock = self.local.superblock();
        if superblock.current != expected {
            return Err(PeerRefusal::Changed);
        }
        let decided = next(&self.machine_state(), Event::Discarded);
        decided.map_err(|refusal| self.refusal(refusal))?;
        let known = superblock.peers.iter().any(|peer| peer.bases.contains(base));
        if !base.is_none() && !known {
            return Err(PeerRefusal::Changed);
        }
        let discard = move |superblock: &mut Superblock| {
            superblock.current = base;
            superblock.flags.inconsistent = !base.is_none();
            superblock.not_received.clear();
            (superblock.flags.crashed, superblock.flags.served_alone) = (false, false);
            (superblock.role, superblock.designated_successor) = (ReplicaRole::Target, None);
            for peer in &mut superblock.peers {
                peer.bases = GenerationList::default();
            }
            superblock.history = GenerationList::default();
        };
        self.local.update(discard).await.map_err(|_| PeerRefusal::Failed)?;
        self.change(|state| state.role = ReplicaRole::Target);
        Ok(PeerReply::Done)
    }
}

#[cfg(test)]
#[path = "target_tests.rs"]
mod tests;
