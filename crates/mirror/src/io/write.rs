//! Host writes: sent to all legs in parallel, and recorded as needed before the host is answered.
//!
//! 1. Lock the range against overlapping calls, and activate its regions.
//! 2. Ask for admission, which selects the legs. A leg without a session is marked as out of sync.
//! 3. Submit to all legs at once.
//! 4. Record failures. A peer that failed is marked and disconnected, and a new generation is made
//!    durable. If the local leg failed, an up-to-date peer runs degraded without it. With no such
//!    peer the local data still counts: whatever a peer may have received beyond it is marked, a
//!    peer that could look equal is disconnected, and a new generation is started. If that cannot
//!    be recorded, nothing is served here any more.
//! 5. Answer the host.
//!
//! From step 3 on, a dropped call still completes: data on one leg only must be recorded.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use flagstone_blockdev::{IoError, IoFuture, SharedDevice, ZeroFlags};
use flagstone_runtime::Buf;
use flagstone_runtime::buf::WaitingMemory;

use crate::group::GroupSlot;
use crate::intent_log::recover::is_inconclusive;
use crate::io::admission::{Dispatch, LegCall, MirrorAdmission, QueueSlots};
use crate::io::call_admission::Counted;
use crate::io::queue::{QueueSlot, SendDecision};
use crate::io::range_lock::RangeRequest;
use crate::io::reorder::WriteOrder;
use crate::io::request::{WritePart, WriteRequest};
use crate::manage::replica::RegionRef;
use crate::mirror::{Inner, count};
use crate::options::Mode;
use crate::state::status::LegPhase;

#[derive(Clone)]
pub(crate) enum WriteOp {
    Write(Buf),
    Zero { may_deallocate: bool },
}

impl WriteOp {
    /// Payload, in bytes.
    fn data_bytes(&self) -> u64 {
        match self {
            WriteOp::Write(data) => data.len() as u64,
            WriteOp::Zero { .. } => 0,
        }
    }

    pub(crate) fn into_data(self) -> Option<Buf> {
        match self {
            WriteOp::Write(data) => Some(data),
            WriteOp::Zero { .. } => None,
        }
    }

    /// Splits the operation into the first `at` bytes and the rest.
    fn split_at(self, at: u64) -> (WriteOp, Option<WriteOp>) {
        match self {
            WriteOp::Write(mut data) => {
                let first = data.slice(0..at as usize);
                data.advance(at as usize);
                (WriteOp::Write(first), Some(WriteOp::Write(data)))
            }
            WriteOp::Zero { .. } => (self.clone(), Some(self)),
        }
    }

    pub(crate) fn to_device(
        &self,
        device: &SharedDevice,
        offset: u64,
        len: u64,
        fua: bool,
    ) -> IoFuture<()> {
        match self {
            WriteOp::Write(data) => device.write(offset, data.clone(), fua),
            WriteOp::Zero { may_deallocate } => {
                let may_deallocate = *may_deallocate;
                let flags = ZeroFlags { fua, may_deallocate, fast_only: false };
                device.write_zeroes(offset, len, flags)
            }
        }
    }

    pub(crate) fn to_session(
        &self,
        leg_call: &LegCall,
        (offset, len): (u64, u64),
        fua: bool,
        order: Option<WriteOrder>,
    ) -> IoFuture<()> {
        let fua = fua || leg_call.durable;
        match self {
            WriteOp::Write(data) => leg_call.session.write(offset, data.clone(), fua, order),
            WriteOp::Zero { may_deallocate } => {
                let may_deallocate = *may_deallocate;
                let flags = ZeroFlags { fua, may_deallocate, fast_only: false };
                leg_call.session.write_zeroes(offset, len, flags, order)
            }
        }
    }
}

/// Executes a host write.
pub(crate) fn change(
    inner: &Arc<Inner>,
    (offset, len): (u64, u64),
    op: WriteOp,
    fua: bool,
) -> IoFuture<()> {
    let part = WritePart { op, offset, len, fua, is_last: true, began_ns: Inner::now_ns() };
    match begin_now(inner, part) {
        Ok(request) => IoFuture::later(request.execute(inner.clone())),
        Err(part) => IoFuture::later(change_pieces(inner.clone(), part)),
    }
}

/// Begins a write that has to wait for nothing, which is the usual case.
#[inline]
fn begin_now(inner: &Arc<Inner>, part: WritePart) -> Result<WriteRequest, WritePart> {
    let (offset, len) = (part.offset, part.len);
    if offset % inner.local.longest_piece() + len > inner.local.longest_piece() {
        return Err(part);
    }
    let RangeRequest::Granted(guard) = inner.range_lock.change(offset, len) else {
        return Err(part);
    };
    let Some(region_ref) = inner.local.try_reference(offset, len) else { return Err(part) };
    match inner.admit_by_view((offset, len)) {
        Some(dispatch) => Ok(WriteRequest::new(part, dispatch, guard, Some(region_ref))),
        None => Err(part),
    }
}

/// Executes a host write, in pieces if it is long, because the number of active regions is bounded.
async fn change_pieces(inner: Arc<Inner>, whole: WritePart) -> Result<(), IoError> {
    let longest = inner.local.longest_piece();
    let (mut at, end, mut op) = (whole.offset, whole.offset + whole.len, whole.op);
    loop {
        let len = (longest - at % longest).min(end - at);
        let (first, rest) = match at + len == end {
            true => (op, None),
            false => op.split_at(len),
        };
        let (fua, is_last, began_ns) = (whole.fua, rest.is_none(), Inner::now_ns());
        let part = WritePart { op: first, offset: at, len, fua, is_last, began_ns };
        match change_piece(inner.clone(), part, rest).await? {
            Some(rest) => op = rest,
            None => return Ok(()),
        }
        at += len;
    }
}

/// Executes one piece, and returns the rest.
async fn change_piece(
    inner: Arc<Inner>,
    part: WritePart,
    rest: Option<WriteOp>,
) -> Result<Option<WriteOp>, IoError> {
    let (offset, len) = (part.offset, part.len);
    let mut waiting = None;
    let request = loop {
        let guard = inner.range_lock.change(offset, len).acquired().await;
        match admit_write(&inner, (offset, len), part.op.data_bytes()).await? {
            WriteAdmission::Admitted(dispatch, region_ref) => {
                break WriteRequest::new(part, dispatch, guard, region_ref);
            }
            WriteAdmission::Wait(admission) => {
                // Release the range: a resync may need it before the write can be admitted.
                drop(guard);
                if let MirrorAdmission::Moved(replacement) = admission {
                    change(&replacement.0, (offset, len), part.op, part.fua).await?;
                    return Ok(rest);
                }
                if let (MirrorAdmission::Blocked(_), None, WriteOp::Write(data)) =
                    (&admission, &waiting, &part.op)
                {
                    waiting = WaitingMemory::hold(data);
                    if waiting.is_none() {
                        drop((part, rest));
                        return Err(inner.reject_after_delay().await);
                    }
                }
                inner.wait_for_admission(admission).await?;
            }
        }
    };
    drop(waiting);
    request.execute(inner).await.map(|()| rest)
}

enum WriteAdmission {
    Admitted(Dispatch, Option<RegionRef>),
    Wait(MirrorAdmission),
}

/// Activates the regions and asks for admission.
async fn admit_write(
    inner: &Arc<Inner>,
    range: (u64, u64),
    data_bytes: u64,
) -> Result<WriteAdmission, IoError> {
    let local_device_failed = inner.lock().local_device_failed;
    let region_ref = match local_device_failed {
        true => None,
        false => match inner.local.reference(range.0, range.1).await {
            Ok(region_ref) => Some(region_ref),
            Err(error) => {
                // The log is closed before the replica moves to another mirror.
                let moved = inner.lock().moved();
                if let Some(moved) = moved {
                    return Ok(WriteAdmission::Wait(moved));
                }
                inner.degrade_or_fail(error).await?;
                None
            }
        },
    };
    loop {
        match inner.admit(range, data_bytes) {
            MirrorAdmission::Admitted(dispatch) => {
                return Ok(WriteAdmission::Admitted(dispatch, region_ref));
            }
            MirrorAdmission::NeedsGeneration => {
                if let Err(error) = inner.ensure_new_generation().await {
                    // Abandoned when the replica begins to move to another mirror.
                    let moved = inner.lock().moved();
                    if let Some(moved) = moved {
                        return Ok(WriteAdmission::Wait(moved));
                    }
                    inner.degrade_or_fail(error).await?;
                }
            }
            MirrorAdmission::Refused(error) => return Err(error),
            admission => return Ok(WriteAdmission::Wait(admission)),
        }
    }
}

impl Inner {
    /// Handles a failure to write the log or superblock before any data was written: an up-to-date
    /// peer runs degraded without this leg, or the host gets the error.
    async fn degrade_or_fail(self: &Arc<Self>, error: IoError) -> Result<(), IoError> {
        // The log is closed when this side gives up the role. Nothing was written yet, so a lack of
        // memory is the host's to retry and says nothing about the leg.
        if is_inconclusive(error) || !self.lock().serving {
            return Err(error);
        }
        self.run_degraded(self.successor_candidate(), error).await
    }
}

impl Inner {
    /// Session whose peer can run degraded: it has every completed write, or has queued it.
    pub(crate) fn successor_candidate(&self) -> Option<(usize, u64)> {
        let queued_peer = || {
            let state = self.lock();
            let mut legs = state.legs.iter().enumerate();
            let found =
                legs.find(|(_, own)| own.phase == LegPhase::InSync && own.session.is_some());
            found.map(|(leg, own)| (leg, own.session_id))
        };
        self.first_up_to_date().or_else(queued_peer)
    }

    /// Waits until an asynchronous peer has every write so far; false if its session ended first.
    pub(crate) async fn catch_up(&self, leg: usize, session_id: u64) -> bool {
        self.wait_for_queue(leg).await;
        // A write that failed to reach the peer ended the session before it left the queue.
        self.lock().legs[leg].is_current(session_id)
    }

    /// True when this session's peer has every completed write.
    pub(crate) fn is_up_to_date(&self, leg: usize, session_id: u64) -> bool {
        let state = self.lock();
        let in_sync = state.legs[leg].phase == LegPhase::InSync;
        let at_once = state.local_device_failed || self.legs[leg].options().mode == Mode::Sync;
        state.legs[leg].is_current(session_id) && in_sync && at_once
    }

    /// A session whose peer has every completed write.
    pub(crate) fn first_up_to_date(&self) -> Option<(usize, u64)> {
        let found = |leg: usize| (leg, self.lock().legs[leg].session_id);
        (0..self.legs.len())
            .map(found)
            .find(|(leg, session_id)| self.is_up_to_date(*leg, *session_id))
    }
}

pub(crate) struct QueuedWrite {
    pub(crate) leg: usize,
    pub(crate) leg_call: LegCall,
    pub(crate) slots: QueueSlots,
}

pub(crate) async fn send_queued(
    inner: Arc<Inner>,
    queued: QueuedWrite,
    op: WriteOp,
    range: (u64, u64),
) {
    let QueuedWrite { leg, leg_call, slots } = queued;
    let result = match inner.wait_for_turn(leg, leg_call.session_id, &slots).await {
        true => op.to_session(&leg_call, range, false, leg_call.order()).await,
        false => Err(IoError::Unreachable),
    };
    if result.is_err() {
        inner.mark_suspect(leg, range.0, range.1);
        inner.disconnect(leg, leg_call.session_id);
        count(&inner.legs[leg].counters.lost_writes, 1);
        count(&inner.legs[leg].counters.lost_bytes, range.1);
    }
    inner.leave_queues(leg, &slots);
    inner.call_ended(Counted::Leg(leg, leg_call.half));
    if result.is_err() {
        inner.record_loss().await;
    }
}

/// Turn of an entry of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Waits,
    /// It is the next to be sent.
    Next,
    /// It is not sent any more.
    Lost,
}

/// Turn of an entry. Also wakes the following one if it may be sent.
pub(crate) fn turn(decision: SendDecision) -> Turn {
    match decision {
        SendDecision::Wait => Turn::Waits,
        SendDecision::Lost => Turn::Lost,
        SendDecision::Send { next } => {
            next.into_iter().for_each(std::task::Waker::wake);
            Turn::Next
        }
    }
}

impl Inner {
    /// Waits until an entry of the queues is the next to be sent, and counts it as sent; false if
    /// its session ended first.
    pub(crate) async fn wait_for_turn(
        &self,
        leg: usize,
        session_id: u64,
        slots: &QueueSlots,
    ) -> bool {
        let mut own_turn = Turn::Waits;
        poll_fn(|cx| {
            if own_turn == Turn::Waits {
                own_turn = turn(self.legs[leg].queue().send(slots.own, cx.waker()));
            }
            let in_group =
                || slots.in_group.as_ref().map_or(Turn::Next, |slot| slot.turn(cx.waker()));
            let both = if own_turn == Turn::Next { in_group() } else { own_turn };
            if both != Turn::Waits {
                return Poll::Ready(both == Turn::Next);
            }
            // Checked after the waker was stored: a session that ends from now on wakes this task.
            let lost = !self.lock().legs[leg].is_current(session_id);
            if lost { Poll::Ready(false) } else { Poll::Pending }
        })
        .await
    }

    /// Removes an entry that was acknowledged or given up.
    pub(crate) fn leave_queues(&self, leg: usize, slots: &QueueSlots) {
        self.leave_queue(leg, slots.own);
        slots.in_group.iter().for_each(GroupSlot::leave);
    }

    fn leave_queue(&self, leg: usize, slot: QueueSlot) {
        let mut queue = self.legs[leg].queue();
        queue.completed(slot);
        let next = queue.next_to_send();
        let space_wakers = queue.take_space_wakers();
        drop(queue);
        next.into_iter().chain(space_wakers).for_each(std::task::Waker::wake);
        while let Some(waker) = { self.legs[leg].queue().next_past() } {
            waker.wake();
        }
    }

    /// Waits until every write now in a peer's queue has been acknowledged or given up.
    pub(crate) async fn wait_for_queue(&self, leg: usize) {
        let end = self.legs[leg].queue().end();
        poll_fn(|cx| match self.legs[leg].queue().is_past(end, cx.waker()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
    }
}
