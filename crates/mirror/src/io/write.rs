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

use flagstone_blockdev::{IoError, IoFuture, SharedDevice, ZeroFlags};
use flagstone_runtime::buf::ParkedMemory;
use flagstone_runtime::{Buf, spawn_detached};
use std::future::{Future, poll_fn};
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::intent_log::recover::is_inconclusive;
use crate::io::admission::{Admission, Dispatch, LegCall, LegDispatch};
use crate::io::memory::with_memory;
use crate::io::queue::{QueueSlot, SendDecision};
use crate::io::range_lock::RangeGuard;
use crate::io::reorder::WriteOrder;
use crate::limits::PEERS_MAX;
use crate::manage::replica::RegionRef;
use crate::mirror::{Inner, count};
use crate::options::Mode;
use crate::session::resync::is_outage;
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

    fn into_data(self) -> Option<Buf> {
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

    fn to_device(&self, device: &SharedDevice, offset: u64, len: u64, fua: bool) -> IoFuture<()> {
        match self {
            WriteOp::Write(data) => device.write(offset, data.clone(), fua),
            WriteOp::Zero { may_deallocate } => {
                let may_deallocate = *may_deallocate;
                let flags = ZeroFlags { fua, may_deallocate, fast_only: false };
                device.write_zeroes(offset, len, flags)
            }
        }
    }

    fn to_session(
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

/// A future that runs to completion even when it is dropped.
pub(crate) struct RunToCompletion<T: 'static = ()>(Option<IoFuture<T>>);

impl<T: 'static> RunToCompletion<T> {
    pub(crate) fn new(
        work: impl Future<Output = Result<T, IoError>> + 'static,
    ) -> RunToCompletion<T> {
        RunToCompletion(Some(IoFuture::later(work)))
    }
}

impl<T: 'static> Future for RunToCompletion<T> {
    type Output = Result<T, IoError>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(work) = &mut self.0 else { return Poll::Pending };
        let polled = Pin::new(work).poll(cx);
        if polled.is_ready() {
            self.0 = None;
        }
        polled
    }
}

impl<T: 'static> Drop for RunToCompletion<T> {
    fn drop(&mut self) {
        if let Some(work) = self.0.take() {
            spawn_detached(async move {
                // The result is not needed: everything to be recorded is recorded inside.
                let _ = work.await;
            });
        }
    }
}

struct WriteRequest {
    dispatch: Dispatch,
    op: WriteOp,
    offset: u64,
    len: u64,
    fua: bool,
    guard: RangeGuard,
    region_ref: Option<RegionRef>,
    /// No further piece of its host call follows.
    is_last: bool,
}

/// Executes a host write, in pieces if it is long, because the number of active regions is bounded.
pub(crate) async fn change(
    inner: Arc<Inner>,
    (offset, len): (u64, u64),
    op: WriteOp,
    fua: bool,
) -> Result<(), IoError> {
    let longest = inner.local.longest_piece();
    let (mut at, end, mut op) = (offset, offset + len, op);
    loop {
        let piece = (longest - at % longest).min(end - at);
        let (part, rest) = match at + piece == end {
            true => (op, None),
            false => op.split_at(piece),
        };
        match change_piece(inner.clone(), (at, piece), part, rest, fua).await? {
            Some(rest) => op = rest,
            None => return Ok(()),
        }
        at += piece;
    }
}

/// Executes one piece, and returns the rest.
async fn change_piece(
    inner: Arc<Inner>,
    (offset, len): (u64, u64),
    op: WriteOp,
    rest: Option<WriteOp>,
    fua: bool,
) -> Result<Option<WriteOp>, IoError> {
    let began = Inner::now_ns();
    let mut parked = None;
    let request = loop {
        let guard = inner.range_lock.change(offset, len).acquired().await;
        match admit_write(&inner, (offset, len), op.data_bytes()).await? {
            WriteAdmission::Admitted(dispatch, region_ref) => {
                let is_last = rest.is_none();
                break WriteRequest { dispatch, op, offset, len, fua, guard, region_ref, is_last };
            }
            WriteAdmission::Wait(admission) => {
                // Release the range: a resync may need it before the write can be admitted.
                drop(guard);
                if let Admission::Moved(replacement) = admission {
                    Box::pin(change(replacement.0, (offset, len), op, fua)).await?;
                    return Ok(rest);
                }
                if let (Admission::Blocked(_), None, WriteOp::Write(data)) =
                    (&admission, &parked, &op)
                {
                    parked = ParkedMemory::hold(data);
                    if parked.is_none() {
                        drop((op, rest));
                        return Err(inner.reject_after_delay().await);
                    }
                }
                inner.wait_for_admission(admission).await?;
            }
        }
    };
    drop(parked);
    let result = RunToCompletion::new(run(inner.clone(), request)).await;
    count(&inner.counters.writes, 1);
    count(&inner.counters.calls, 1);
    count(&inner.counters.calls_ns, Inner::now_ns().saturating_sub(began));
    result.map(|()| rest)
}

enum WriteAdmission {
    Admitted(Dispatch, Option<RegionRef>),
    Wait(Admission),
}

/// Activates the regions and asks for admission.
async fn admit_write(
    inner: &Arc<Inner>,
    range: (u64, u64),
    data_bytes: u64,
) -> Result<WriteAdmission, IoError> {
    let region_ref = match inner.lock().local_device_failed {
        true => None,
        false => Some(inner.local.reference(range.0, range.1)),
    };
    let region_ref = match region_ref {
        None => None,
        Some(region_ref) => match region_ref.await {
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
            Admission::Admitted(dispatch) => {
                return Ok(WriteAdmission::Admitted(dispatch, region_ref));
            }
            Admission::NeedsGeneration => {
                if let Err(error) = inner.ensure_new_generation().await {
                    inner.degrade_or_fail(error).await?;
                }
            }
            Admission::Refused(error) => return Err(error),
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

/// Results by leg, and the durations until the local leg and until all legs had completed.
struct LegResults {
    local: Option<Result<(), IoError>>,
    remote: [Option<Result<(), IoError>>; PEERS_MAX],
    local_ns: u64,
    all_ns: u64,
}

/// Submits to all legs at once and waits for all of them.
async fn submit(inner: &Arc<Inner>, request: &WriteRequest) -> LegResults {
    let range = (request.offset, request.len);
    let began = Inner::now_ns();
    let mut remote = [const { None }; PEERS_MAX];
    for (index, leg) in request.dispatch.legs.iter().enumerate() {
        match leg {
            LegDispatch::MarkOnly => {}
            LegDispatch::Send(leg_call) => {
                remote[index] = Some(request.op.to_session(leg_call, range, request.fua, None));
            }
            LegDispatch::Queue(leg_call, slot, numbers) => {
                let queued = QueuedWrite { leg: index, leg_call: leg_call.clone(), slot: *slot };
                let (inner, op, order) = (inner.clone(), request.op.clone(), numbers.first);
                spawn_detached(send_queued(inner, queued, op, range, order));
            }
        }
    }
    let (op, device, fua) = (&request.op, inner.local.data(), request.fua);
    let to_device = || op.to_device(device, range.0, range.1, fua);
    let mut local = request.dispatch.local.then(to_device);
    let mut results = LegResults { local: None, remote: [None; PEERS_MAX], local_ns: 0, all_ns: 0 };
    poll_fn(|cx| {
        if let Some(call) = &mut local
            && let Poll::Ready(result) = Pin::new(call).poll(cx)
        {
            (local, results.local) = (None, Some(result));
            results.local_ns = Inner::now_ns().saturating_sub(began);
        }
        for (call, results) in remote.iter_mut().zip(&mut results.remote) {
            if let Some(running) = call
                && let Poll::Ready(result) = Pin::new(running).poll(cx)
            {
                (*call, *results) = (None, Some(result));
            }
        }
        let pending = local.is_some() || remote.iter().any(Option::is_some);
        if pending { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    if results.local == Some(Err(IoError::NoMemory)) {
        results.local = Some(with_memory(to_device).await);
    }
    results.all_ns = Inner::now_ns().saturating_sub(began);
    results
}

async fn run(inner: Arc<Inner>, request: WriteRequest) -> Result<(), IoError> {
    let results = submit(&inner, &request).await;
    count(&inner.counters.local_ns, results.local_ns);
    let result = complete(&inner, &request, &results).await;
    let serving = inner.call_completed();
    let WriteRequest { guard, region_ref, op, is_last, .. } = request;
    drop((guard, region_ref));
    result?;
    if !serving {
        return Err(IoError::Unreachable);
    }
    if results.remote.iter().flatten().any(Result::is_err) {
        // The data is written, so the blocked call keeps none of it except pieces still to come.
        let rest = if is_last { None } else { op.into_data() };
        inner.wait_while_blocked(rest).await?;
    }
    Ok(())
}

/// Records the results. Only afterwards may a new session to a peer decide anything.
async fn complete(
    inner: &Arc<Inner>,
    request: &WriteRequest,
    results: &LegResults,
) -> Result<(), IoError> {
    let result = record_results(inner, request, results).await;
    for (leg, dispatch) in request.dispatch.legs.iter().enumerate() {
        if let LegDispatch::Send(leg_call) = dispatch {
            inner.leg_completed(leg, leg_call.half);
        }
    }
    result
}

async fn record_results(
    inner: &Arc<Inner>,
    request: &WriteRequest,
    results: &LegResults,
) -> Result<(), IoError> {
    // Also for a failed write: a peer may still run degraded, and waiting costs little.
    inner.complete_numbers(&request.dispatch);
    let (mut up_to_date, mut queued_peer, mut peer_missed) = (None, None, false);
    for (leg, result) in results.remote.iter().enumerate() {
        let leg_call = match &request.dispatch.legs[leg] {
            LegDispatch::Send(leg_call) => leg_call,
            LegDispatch::Queue(leg_call, ..) => {
                queued_peer = queued_peer.or(Some((leg, leg_call.session_id)));
                continue;
            }
            LegDispatch::MarkOnly => continue,
        };
        if let Some(error) = result.unwrap_or(Err(IoError::Unreachable)).err() {
            inner.mark_suspect(leg, request.offset, request.len);
            if !inner.is_known_to_lack(leg, leg_call, (request.offset, request.len), error) {
                inner.disconnect(leg, leg_call.session_id);
                peer_missed = true;
            }
            continue;
        }
        let added = results.all_ns.saturating_sub(results.local_ns);
        count(&inner.legs[leg].counters.added_ns, added);
        count(&inner.legs[leg].counters.added_writes, 1);
        if inner.is_up_to_date(leg, leg_call.session_id) {
            up_to_date = Some((leg, leg_call.session_id));
        }
    }
    let Err(error) = results.local.unwrap_or(Err(IoError::WriteFault)) else {
        return if peer_missed { inner.record_difference().await } else { Ok(()) };
    };
    let degraded = inner.run_degraded(up_to_date.or(queued_peer), error).await;
    if degraded.is_err() {
        // Reads return the local data from now on. A peer may have received the failed write and
        // must not look equal: after a crash here its data would be preferred.
        let mut equal = false;
        for (leg, dispatch) in request.dispatch.legs.iter().enumerate() {
            if !matches!(dispatch, LegDispatch::MarkOnly) {
                inner.mark(leg, request.offset, request.len);
                equal |= inner.disconnect_unless_inconsistent(leg);
            }
        }
        if equal || peer_missed {
            // The host gets the first error.
            let _ = inner.record_difference().await;
        }
    }
    degraded
}

impl Inner {
    /// Called after setting a mark: ends the session, even a new one, unless the peer is
    /// inconsistent and so copies all marks first. Returns true when the peer could have looked
    /// equal.
    fn disconnect_unless_inconsistent(&self, leg: usize) -> bool {
        let (session_id, inconsistent) = {
            let own = &self.lock().legs[leg];
            (own.session_id, own.session.is_some() && own.inconsistent)
        };
        if !inconsistent {
            self.disconnect(leg, session_id);
        }
        !inconsistent
    }

    /// True when the peer knows that it may lack a range that it could not write: it is
    /// inconsistent, and the list of its bad ranges covers the range or was not sent yet.
    fn is_known_to_lack(
        &self,
        leg: usize,
        leg_call: &LegCall,
        (offset, len): (u64, u64),
        error: IoError,
    ) -> bool {
        let state = self.lock();
        let own = &state.legs[leg];
        let list = &own.reported_bad_ranges;
        let covers = |bad: &Range<u64>| bad.start <= offset && offset + len <= bad.end;
        !is_outage(error)
            && own.is_current(leg_call.session_id)
            && own.inconsistent
            && (list.is_empty() || list.iter().any(covers))
    }

    /// Marks the write as completed for the numbering of later writes.
    fn complete_numbers(&self, dispatch: &Dispatch) {
        for (leg, dispatch) in dispatch.legs.iter().enumerate() {
            if let LegDispatch::Queue(leg_call, _, numbers) = dispatch {
                let mut state = self.lock();
                let own = &mut state.legs[leg];
                if own.session_id == leg_call.session_id {
                    own.numbering.completed(*numbers);
                }
            }
        }
    }

    /// A session whose peer can run degraded: it has every completed write, or queued them.
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

struct QueuedWrite {
    leg: usize,
    leg_call: LegCall,
    slot: QueueSlot,
}

async fn send_queued(
    inner: Arc<Inner>,
    queued: QueuedWrite,
    op: WriteOp,
    range: (u64, u64),
    order: WriteOrder,
) {
    let QueuedWrite { leg, leg_call, slot } = queued;
    let goes = poll_fn(|cx| {
        let decision = inner.legs[leg].queue().send(slot, cx.waker());
        if let SendDecision::Send { next } = decision {
            next.into_iter().for_each(std::task::Waker::wake);
            return Poll::Ready(true);
        }
        // Checked after the waker was stored: a session that ends from now on wakes this task.
        let lost = !inner.lock().legs[leg].is_current(leg_call.session_id);
        if lost { Poll::Ready(false) } else { Poll::Pending }
    })
    .await;
    let result = match goes {
        true => op.to_session(&leg_call, range, false, Some(order)).await,
        false => Err(IoError::Unreachable),
    };
    if result.is_err() {
        inner.mark_suspect(leg, range.0, range.1);
        inner.disconnect(leg, leg_call.session_id);
        count(&inner.legs[leg].counters.lost_writes, 1);
        count(&inner.legs[leg].counters.lost_bytes, range.1);
    }
    inner.leave_queue(leg, slot);
    inner.leg_completed(leg, leg_call.half);
}

impl Inner {
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
