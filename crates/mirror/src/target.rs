//! The receiving side: what a replica does for a source that is attached to it.
//!
//! Promises:
//! - writes are taken from one session at a time, that of the highest epoch; an attachment is
//!   answered when no call of an earlier one is in hand any more, and its epoch is durable;
//! - a replica that serves hosts itself is nobody's target;
//! - ordered writes start in their order, however they arrive ([`crate::order`]);
//! - what is answered "done" is durable.
//!
//! Everything in a request may be hostile: ranges are checked by the device below, orders by their
//! gate, and what makes no sense is refused.

use std::future::poll_fn;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use flagstone_blockdev::{IoError, IoFuture, SharedDevice, ZeroFlags};
use flagstone_runtime::{Buf, BufMut, buf};

use crate::format::bitmap_page::WORDS;
use crate::format::superblock::{Role, Superblock};
use crate::generation::{Lineage, List};
use crate::id::{Generation, Uuid};
use crate::limits::{BIT_MIN_BYTES, CHECK_BYTES, HISTORY_LEN, PAGE_BYTES, PEERS_MAX};
use crate::mirror::{Attached, Inner, LegState, Mirror, State};
use crate::options::Mode;
use crate::order::{Gate, Order};
use crate::peer::{About, Answer, Attach, Refusal, Reply, Request};
use crate::state::Phase;
use crate::versions::Version;
use crate::write::Finish;

/// One connection of a source, at the target. What carries it (a controller, a simulated network)
/// hands each call in, from any core, and drops it when the connection is gone.
pub struct TargetSession {
    inner: Arc<Inner>,
    number: u64,
    gate: Arc<Mutex<Gate>>,
    /// The replica at the other end, once it has said who it is.
    asker: Mutex<Uuid>,
}

impl Mirror {
    /// A session for a source that has connected.
    pub fn session(&self) -> Arc<TargetSession> {
        let number = self.0.next_session();
        let inner = self.0.clone();
        Arc::new(TargetSession { inner, number, gate: Arc::default(), asker: Mutex::default() })
    }
}

impl Drop for TargetSession {
    fn drop(&mut self) {
        self.inner.detach(|attached| attached.session == self.number);
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A call in hand of the session that is attached.
struct Served(Arc<Inner>);

impl Drop for Served {
    fn drop(&mut self) {
        let last = {
            let mut state = self.0.lock();
            state.served -= 1;
            state.served == 0
        };
        if last {
            self.0.change(|_| {});
        }
    }
}

impl TargetSession {
    /// Whether it is the one that is attached.
    pub fn is_attached(&self) -> bool {
        self.inner.is_attached(self.number)
    }

    fn enter(&self) -> Result<Served, IoError> {
        let mut state = self.inner.lock();
        if state.attached.is_none_or(|attached| attached.session != self.number) {
            return Err(IoError::Unreachable);
        }
        state.served += 1;
        Ok(Served(self.inner.clone()))
    }

    /// A write: `call` makes it, to the leg's device, when it is its turn. If it has to wait for that,
    /// it holds what `park` gives; where that is nothing it is turned away, and may come again. One
    /// whose turn it is already is never turned away so.
    pub fn in_turn<P: 'static>(
        &self,
        order: Option<Order>,
        park: impl FnOnce() -> Option<P> + 'static,
        call: impl FnOnce(&SharedDevice) -> IoFuture<()> + 'static,
    ) -> IoFuture<()> {
        let served = match self.enter() {
            Ok(served) => served,
            Err(error) => return IoFuture::ready(Err(error)),
        };
        let inner = self.inner.clone();
        let Some(order) = order else {
            let call = call(inner.local.data());
            return IoFuture::later(Finish::new(async move {
                let _served = served;
                call.await
            }));
        };
        if lock(&self.gate).arrived(order).is_err() {
            return IoFuture::ready(Err(IoError::OutOfRange));
        }
        let (gate, number) = (self.gate.clone(), self.number);
        IoFuture::later(async move {
            let early = !lock(&gate).may_start(order, Waker::noop());
            if early {
                let Some(_parked) = park() else {
                    lock(&gate).turned_away(order);
                    return Err(IoError::NoMemory);
                };
                turn(&inner, &gate, number, order).await?;
            } else {
                drop(park);
            }
            Finish::new(async move {
                let _served = served;
                call(inner.local.data()).await?;
                let done = lock(&gate).completed(order.number);
                while let Some(waker) = { lock(&gate).next_to_wake() } {
                    waker.wake();
                }
                done.map_err(|_| IoError::OutOfRange)
            })
            .await
        })
    }

    /// Writes.
    pub fn write(&self, offset: u64, data: Buf, fua: bool, order: Option<Order>) -> IoFuture<()> {
        self.in_turn(order, || Some(()), move |leg| leg.write(offset, data, fua))
    }

    /// Writes zeroes.
    pub fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        flags: ZeroFlags,
        order: Option<Order>,
    ) -> IoFuture<()> {
        self.in_turn(order, || Some(()), move |leg| leg.write_zeroes(offset, len, flags))
    }

    /// Reads. What is found once another session may have written, or a host here, is not the
    /// source's data: it is given to nobody.
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

    /// Flushes.
    pub fn flush(&self) -> IoFuture<()> {
        match self.is_attached() {
            true => self.inner.local.data().flush(),
            false => IoFuture::ready(Err(IoError::Unreachable)),
        }
    }

    /// Answers a request.
    pub fn ask(self: &Arc<Self>, request: Request) -> IoFuture<Answer> {
        let session = self.clone();
        IoFuture::later(async move { Ok(session.answer(request).await) })
    }

    async fn answer(&self, request: Request) -> Answer {
        let inner = &self.inner;
        match request {
            Request::Identify { asker } => {
                *lock(&self.asker) = asker;
                inner.is_there(asker);
                return Ok(Reply::About(inner.about(asker)));
            }
            Request::Attach(attach) => return self.attach(attach).await,
            Request::Surrender { base, expected } => return inner.surrender(base, expected).await,
            Request::HandOver => {
                let asker = *lock(&self.asker);
                return inner.hand_over(asker).await;
            }
            Request::ClearRoom { .. } if inner.versions.highest() < Version::CLEARS_ROOM => {
                return Err(Refusal::Version);
            }
            Request::ClearRoom { usable_bytes } => return inner.clear_room(usable_bytes),
            _ => {}
        }
        // All others come from the source that is attached.
        let served = self.enter().map_err(|_| Refusal::NotAttached)?;
        let Some(attached) = inner.lock().attached else { return Err(Refusal::NotAttached) };
        match request {
            Request::Bits { page } => inner.bits_page(page),
            Request::Checksums { offset, len, unit_bytes } => {
                inner.checksums(offset, len, unit_bytes).await
            }
            Request::Ancestors { generations } => inner.descend(generations).await,
            Request::BeginResync { base } => inner.begin_resync(base).await,
            Request::EndResync { generation } => inner.adopt(generation, true).await,
            Request::Rename { generation } => inner.adopt(generation, false).await,
            Request::GoAlone { generation, lost: _ } => inner.adopt(generation, false).await,
            Request::Promote { epoch } => {
                // It is the last call of its session.
                drop(served);
                inner.promoted(epoch, attached).await
            }
            _ => Err(Refusal::NotNow),
        }
    }

    async fn attach(&self, attach: Attach) -> Answer {
        let inner = &self.inner;
        if !inner.versions.contains(attach.version) {
            return Err(Refusal::Version);
        }
        let _changing = inner.changing().await;
        inner.admissible(&attach)?;
        inner.has_size(&attach)?;
        // From here on no earlier session begins a call; those in hand end first.
        inner.end_attachment().await;
        inner.admissible(&attach)?;
        let admit = move |superblock: &mut Superblock, slot: usize| {
            (superblock.role, superblock.heir) = (Role::Target, None);
            superblock.epoch = superblock.epoch.max(attach.epoch);
            if attach.in_sync {
                superblock.doubtful = false;
                let mut lineage = superblock.lineage(slot);
                lineage.settle();
                superblock.set_lineage(slot, &lineage);
                (superblock.flags.crashed, superblock.flags.served_alone) = (false, false);
            }
        };
        // A link of ours may be about to remember another peer.
        inner.update_with(attach.source, admit).await.map_err(|_| Refusal::Failed)?;
        *lock(&self.gate) = Gate::default();
        let attached = Attached { session: self.number, source: attach.source };
        inner.change(|state| {
            (state.role, state.attached, state.fed) =
                (Role::Target, Some(attached), attach.in_sync);
            // The source has nothing that may not be here durably.
            state.doubtful &= !attach.in_sync;
            state.gate = Some(self.gate.clone());
        });
        Ok(Reply::Done)
    }
}

impl State {
    /// The leg that leads to the source that is attached.
    pub(crate) fn leg_of(&self, source: Uuid) -> Option<usize> {
        let met = self.legs.iter().position(|leg| leg.peer == source);
        // Whose only peer it is need not have met it by its own link.
        met.or((self.legs.len() == 1).then_some(0))
    }
}

impl Inner {
    fn is_attached(&self, session: u64) -> bool {
        self.lock().attached.is_some_and(|attached| attached.session == session)
    }

    /// The session that is attached is so no longer: it begins no call from here on, and those of
    /// its writes that wait for their order give up, for what they wait for may never come.
    fn detach(&self, which: impl FnOnce(&Attached) -> bool) {
        let gate = self.change(|state| {
            let attached = state.attached.take_if(|attached| which(attached))?;
            if let Some(leg) = state.leg_of(attached.source).filter(|_| state.fed) {
                let now = flagstone_runtime::time::wall_clock().as_secs();
                self.legs[leg].counters.last_in_sync_s.store(now, Ordering::Relaxed);
            }
            state.gate.take()
        });
        if let Some(gate) = gate {
            let wakers = lock(&gate).wake_all();
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    /// The same, and waits until none of its calls is in hand.
    pub(crate) async fn end_attachment(&self) {
        self.detach(|_| true);
        self.wait(|state| (state.served == 0).then_some(())).await;
    }
}

/// Waits until an ordered write may start.
async fn turn(
    inner: &Arc<Inner>,
    gate: &Mutex<Gate>,
    number: u64,
    order: Order,
) -> Result<(), IoError> {
    poll_fn(|cx| {
        if lock(gate).may_start(order, cx.waker()) {
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
    /// A peer that was out of reach asks who we are: so it can be reached, and a link that waits
    /// before it tries again need not. One that was met is not hurried: that would go on for ever.
    fn is_there(&self, asker: Uuid) {
        let lost =
            |leg: &LegState| (leg.peer == asker || leg.peer.is_none()) && leg.phase == Phase::Lost;
        let state = self.lock();
        if !state.active || !state.legs.iter().any(lost) {
            return;
        }
        drop(state);
        self.change(|state| {
            state.legs.iter_mut().filter(|leg| lost(leg)).for_each(|leg| leg.kicks += 1);
        });
    }

    /// What we say of ourselves, as this peer has to see it.
    pub(crate) fn about(&self, asker: Uuid) -> About {
        let mut view = self.local.view(self.slot_of(asker));
        let known =
            self.local.superblock().peers.iter().filter(|peer| !peer.replica.is_none()).count();
        let state = self.lock();
        view.serving |= state.active;
        // No moment in time is certainly there, as long as it was not brought up to date.
        view.inconsistent |= state.doubtful;
        view.dirty |= self.legs.iter().any(|leg| leg.todo.count() > 0);
        let queues = self.legs.iter().any(|leg| leg.options().mode == Mode::Async);
        let several = known > 1 || self.legs.len() > 1;
        if (queues || several) && state.role == Role::Source {
            // Asynchronous: hosts were told what the peer never got, and a crash must not make its
            // data the better. Several targets: each would think its own to be that, out of the
            // others' sight.
            (view.serving, view.crashed) = (true, false);
        }
        About {
            view,
            role: state.role,
            active: state.active,
            volatile_cache: self.local.data().geometry().volatile_cache,
            versions: self.versions,
        }
    }

    fn admissible(&self, attach: &Attach) -> Result<(), Refusal> {
        let superblock = self.local.superblock();
        if attach.volume != superblock.volume || attach.source == superblock.replica {
            return Err(Refusal::Unrelated);
        }
        let state = self.lock();
        if state.closed || state.moving {
            return Err(Refusal::NotNow);
        }
        if state.active {
            return Err(Refusal::Active);
        }
        if state.local_failed {
            return Err(Refusal::Failed);
        }
        // A higher epoch than any seen, or the one that we have admitted already.
        if attach.epoch < superblock.epoch {
            return Err(Refusal::Fenced(superblock.epoch));
        }
        if attach.expected != superblock.current {
            return Err(Refusal::Changed);
        }
        Ok(())
    }

    /// The source's volume has another size: asks whoever can give the replica another to do so.
    fn has_size(&self, attach: &Attach) -> Result<(), Refusal> {
        let here = self.local.superblock().shape.usable_bytes;
        let wanted = attach.usable_bytes;
        if wanted == here || wanted == 0 {
            return Ok(());
        }
        let whole = wanted.is_multiple_of(PAGE_BYTES as u64);
        if !whole || wanted > self.local.room_bytes() {
            return Err(Refusal::Range);
        }
        self.change(|state| state.wanted_bytes = Some(wanted));
        Err(Refusal::NotNow)
    }

    /// The place of a peer in the superblock: its own; else a free one; else that of a peer that
    /// is not there any more, whose node was replaced.
    pub(crate) fn slot_of(&self, replica: Uuid) -> usize {
        let peers = self.local.superblock().peers;
        if let Some(known) = peers.iter().position(|peer| peer.replica == replica) {
            return known;
        }
        let present: Vec<Uuid> = self.lock().legs.iter().map(|leg| leg.peer).collect();
        let free = peers.iter().position(|peer| peer.replica.is_none());
        let gone = || peers.iter().position(|peer| !present.contains(&peer.replica));
        free.or_else(gone).unwrap_or(0)
    }

    /// The same of the peer that was met by a leg.
    pub(crate) fn slot_of_leg(&self, leg: usize) -> usize {
        // The lock is given back first: the other takes it too.
        let peer = self.lock().legs[leg].peer;
        self.slot_of(peer)
    }

    fn bits_page(&self, page: u64) -> Answer {
        let words = (self.local.superblock().shape.bits()).div_ceil(64);
        let first = page.checked_mul(WORDS as u64).filter(|first| *first < words);
        let first = first.ok_or(Refusal::Range)?;
        let word = |index: usize| self.local.word(first + index as u64);
        Ok(Reply::Bits(Box::new(std::array::from_fn(word))))
    }

    async fn checksums(&self, offset: u64, len: u64, unit_bytes: u32) -> Answer {
        let sound = unit_bytes >= BIT_MIN_BYTES && len <= CHECK_BYTES;
        let within = self.local.data().geometry().check(offset, len).is_ok();
        if !sound || !within || !len.is_multiple_of(u64::from(BIT_MIN_BYTES)) {
            return Err(Refusal::Range);
        }
        let mut sums = self.sums(offset, len, unit_bytes).await.map_err(|_| Refusal::Failed)?;
        let doubtful = self.lock().doubtful;
        for (sum, at) in sums.iter_mut().zip((offset..).step_by(unit_bytes as usize)) {
            let unproven = self.unproven.any(self.unproven.bits_of(at, u64::from(unit_bytes)));
            // Equal data is to be written once more.
            if doubtful || unproven {
                *sum = !*sum;
            }
        }
        Ok(Reply::Checksums(sums))
    }

    /// Checksums of the local leg, one for each `unit_bytes`, of at most [`CHECK_BYTES`]. A copy may
    /// wait for them, or a range be held meanwhile, and hosts' writes with all memory for that.
    pub(crate) async fn sums(
        &self,
        offset: u64,
        len: u64,
        unit_bytes: u32,
    ) -> Result<Vec<u64>, IoError> {
        let memory = buf::acquire_more(len as usize).await;
        let data = self.local.data().read(offset, memory).await?;
        Ok(data.chunks(unit_bytes as usize).map(sum).collect())
    }

    async fn begin_resync(&self, base: Generation) -> Answer {
        let begin = move |superblock: &mut Superblock| {
            superblock.flags.inconsistent = true;
            if !base.is_none() {
                superblock.current = base;
            }
        };
        self.change(|state| state.fed = false);
        self.local.update(begin).await.map_err(|_| Refusal::Failed)?;
        Ok(Reply::Done)
    }

    /// Our data is the source's, or about to be: what that comes from ours comes from. While a
    /// resync has not ended nobody asks an inconsistent replica for its past.
    async fn descend(&self, generations: List<HISTORY_LEN>) -> Answer {
        let remember = move |superblock: &mut Superblock| {
            let Lineage { current, bases, .. } = superblock.lineage(0);
            let known = |generation| generation == current || bases.contains(generation);
            superblock.history.unite(&generations, known)
        };
        if remember(&mut self.local.superblock()) {
            self.local.update(remember).await.map_err(|_| Refusal::Failed)?;
        }
        Ok(Reply::Done)
    }

    /// Our data is the source's, of this generation. At the end of a resync the log is forgotten,
    /// after the superblock is durable: what it names is equal now.
    async fn adopt(&self, generation: Generation, resync: bool) -> Answer {
        let superblock = self.local.superblock();
        if generation.is_none() || (superblock.flags.inconsistent && !resync) {
            return Err(Refusal::Inconsistent);
        }
        self.local.data().flush().await.map_err(|_| Refusal::Failed)?;
        let adopt = move |superblock: &mut Superblock| {
            let mut lineage = superblock.lineage(0);
            lineage.adopt(generation);
            // What the log covered for others, it covers no more.
            for peer in 1..PEERS_MAX {
                for base in superblock.peers[peer].bases.iter() {
                    lineage.history.remember(base);
                }
                superblock.peers[peer].bases = List::default();
            }
            superblock.set_lineage(0, &lineage);
            superblock.flags.inconsistent = false;
            (superblock.flags.crashed, superblock.flags.served_alone) = (false, false);
            superblock.doubtful &= !resync;
        };
        self.local.update(adopt).await.map_err(|_| Refusal::Failed)?;
        if resync {
            self.forget_marks();
        }
        self.change(|state| {
            state.fed = true;
            state.doubtful &= !resync;
        });
        Ok(Reply::Done)
    }

    async fn promoted(self: &Arc<Self>, epoch: u64, by: Attached) -> Answer {
        let _changing = self.changing().await;
        let still = self.lock().attached == Some(by);
        if !still || self.local.superblock().flags.inconsistent {
            return Err(Refusal::NotNow);
        }
        self.activate(epoch.saturating_sub(1), false).await.map_err(|_| Refusal::Failed)?;
        Ok(Reply::Done)
    }

    /// The operator gives this data up: see [`Request::Surrender`].
    pub(crate) async fn surrender(
        self: &Arc<Self>,
        base: Generation,
        expected: Generation,
    ) -> Answer {
        let _changing = self.changing().await;
        self.surrender_held(base, expected).await
    }

    /// The same of one that changes roles already.
    pub(crate) async fn surrender_held(&self, base: Generation, expected: Generation) -> Answer {
        let superblock = self.local.superblock();
        if self.lock().active {
            return Err(Refusal::Active);
        }
        if superblock.current != expected {
            return Err(Refusal::Changed);
        }
        let known = superblock.peers.iter().any(|peer| peer.bases.contains(base));
        if !base.is_none() && !known {
            return Err(Refusal::Changed);
        }
        let surrender = move |superblock: &mut Superblock| {
            superblock.current = base;
            superblock.flags.inconsistent = !base.is_none();
            (superblock.flags.crashed, superblock.flags.served_alone) = (false, false);
            (superblock.role, superblock.heir) = (Role::Target, None);
            for peer in &mut superblock.peers {
                peer.bases = List::default();
            }
            superblock.history = List::default();
        };
        self.local.update(surrender).await.map_err(|_| Refusal::Failed)?;
        self.change(|state| state.role = Role::Target);
        Ok(Reply::Done)
    }
}

/// A checksum of a part: strong enough that equal ones are taken for equal data.
pub(crate) fn sum(part: &[u8]) -> u64 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, part)
}

#[cfg(test)]
#[path = "target_tests.rs"]
mod tests;
