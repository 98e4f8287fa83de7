//! Write request: one host write, or one piece of it, from admission to completion.
//!
//! A request owns its payload, its range lock, its region references and its admission, and knows
//! how far each leg is. They are private, and [`WriteRequest::execute`] is the only way to use
//! them: it returns a future that runs to completion even when it is dropped. So an abandoned
//! request keeps its range locked and its regions active until its I/O has ended on every leg and
//! is recorded.

use std::future::{Future, poll_fn};
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use flagstone_blockdev::{IoError, IoFuture};
use flagstone_runtime::spawn_detached;

use crate::io::admission::{Dispatch, LegCall, LegDispatch};
use crate::io::call_admission::Counted;
use crate::io::memory::with_memory;
use crate::io::range_lock::RangeGuard;
use crate::io::write::{QueuedWrite, WriteOp, send_queued};
use crate::limits::PEERS_MAX;
use crate::manage::replica::RegionRef;
use crate::mirror::{Inner, count};
use crate::session::resync::is_outage;

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

/// The part of a write for one host call.
pub(crate) struct WritePart {
    pub(crate) op: WriteOp,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) fua: bool,
    /// No further piece of its host call follows.
    pub(crate) is_last: bool,
    /// Start of the host call, or of the piece.
    pub(crate) began_ns: u64,
}

/// How far a leg is.
#[derive(Default)]
enum LegStatus {
    /// The leg is not called, or has the write in its queue.
    #[default]
    NotCalled,
    Running(IoFuture<()>),
    Ended(Result<(), IoError>),
}

impl LegStatus {
    /// True when the call ends now.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> bool {
        let LegStatus::Running(call) = self else { return false };
        let Poll::Ready(result) = Pin::new(call).poll(cx) else { return false };
        *self = LegStatus::Ended(result);
        true
    }

    fn is_running(&self) -> bool {
        matches!(self, LegStatus::Running(_))
    }

    fn result(&self) -> Option<Result<(), IoError>> {
        match self {
            LegStatus::Ended(result) => Some(*result),
            LegStatus::NotCalled | LegStatus::Running(_) => None,
        }
    }
}

/// One write of a host, from admission to its answer.
pub(crate) struct WriteRequest {
    part: WritePart,
    dispatch: Dispatch,
    guard: RangeGuard,
    region_ref: Option<RegionRef>,
    local: LegStatus,
    remote: [LegStatus; PEERS_MAX],
    /// The call to the leg no longer counts as in flight.
    ended: [bool; PEERS_MAX],
    /// Time from the first leg's end to the last one's, in nanoseconds.
    added_ns: u64,
}

impl WriteRequest {
    /// An admitted write that holds the lock on its range and references to its regions.
    pub(crate) fn new(
        part: WritePart,
        dispatch: Dispatch,
        guard: RangeGuard,
        region_ref: Option<RegionRef>,
    ) -> WriteRequest {
        let (local, remote) = (LegStatus::NotCalled, [const { LegStatus::NotCalled }; PEERS_MAX]);
        let ended = [false; PEERS_MAX];
        WriteRequest { part, dispatch, guard, region_ref, local, remote, ended, added_ns: 0 }
    }

    /// Executes the write, and records its result.
    pub(crate) fn execute(self, inner: Arc<Inner>) -> RunToCompletion {
        RunToCompletion::new(self.run(inner))
    }

    async fn run(self, inner: Arc<Inner>) -> Result<(), IoError> {
        let began_ns = self.part.began_ns;
        let result = self.run_legs(&inner).await;
        count(&inner.counters.writes, 1);
        count(&inner.counters.calls, 1);
        count(&inner.counters.calls_ns, Inner::now_ns().saturating_sub(began_ns));
        result
    }

    async fn run_legs(mut self, inner: &Arc<Inner>) -> Result<(), IoError> {
        self.submit(inner);
        self.legs_ended(inner).await;
        let result = self.record(inner).await;
        self.end_leg_calls(inner);
        let serving = inner.call_completed(&self.dispatch);
        let is_queued = self.dispatch.legs.iter().any(|leg| matches!(leg, LegDispatch::Queue(..)));
        let WriteRequest { part, remote, guard, region_ref, .. } = self;
        drop((guard, region_ref));
        result?;
        if !serving {
            return Err(IoError::Unreachable);
        }
        if is_queued {
            inner.await_lease().await?;
        }
        if remote.iter().filter_map(LegStatus::result).any(|result| result.is_err()) {
            // The data is written, so the blocked call keeps none of it except pieces still to
            // come.
            let rest = if part.is_last { None } else { part.op.into_data() };
            inner.wait_while_blocked(rest).await?;
        }
        Ok(())
    }

    fn call_local(&self, inner: &Inner) -> IoFuture<()> {
        let WritePart { op, offset, len, fua, .. } = &self.part;
        op.to_device(inner.local.data(), *offset, *len, *fua)
    }

    /// Submits to all legs at once.
    fn submit(&mut self, inner: &Arc<Inner>) {
        let range = (self.part.offset, self.part.len);
        for (index, leg) in self.dispatch.legs.iter().enumerate() {
            match leg {
                LegDispatch::MarkOnly => {}
                LegDispatch::Send(leg_call) => {
                    let order = leg_call.order();
                    let call = self.part.op.to_session(leg_call, range, self.part.fua, order);
                    self.remote[index] = LegStatus::Running(call);
                }
                LegDispatch::Queue(leg_call, slots) => {
                    let (leg_call, slots) = (leg_call.clone(), slots.clone());
                    let queued = QueuedWrite { leg: index, leg_call, slots };
                    let (inner, op) = (inner.clone(), self.part.op.clone());
                    spawn_detached(send_queued(inner, queued, op, range));
                }
            }
        }
        if self.dispatch.local {
            self.local = LegStatus::Running(self.call_local(inner));
        }
    }

    /// Waits for all legs.
    async fn legs_ended(&mut self, inner: &Arc<Inner>) {
        let began = Inner::now_ns();
        let mut local_ns = 0;
        poll_fn(|cx| {
            if self.local.poll_end(cx) {
                local_ns = Inner::now_ns().saturating_sub(began);
            }
            let mut pending = self.local.is_running();
            for leg in &mut self.remote {
                leg.poll_end(cx);
                pending |= leg.is_running();
            }
            if pending { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
        if self.local.result() == Some(Err(IoError::NoMemory)) {
            let result = with_memory(|| self.call_local(inner)).await;
            self.local = LegStatus::Ended(result);
        }
        count(&inner.counters.local_ns, local_ns);
        let all_ns = Inner::now_ns().saturating_sub(began);
        self.added_ns = all_ns.saturating_sub(local_ns);
    }

    /// From now on a new session to a peer may be decided.
    fn end_leg_calls(&mut self, inner: &Inner) {
        for (leg, dispatch) in self.dispatch.legs.iter().enumerate() {
            let LegDispatch::Send(leg_call) = dispatch else { continue };
            if !std::mem::replace(&mut self.ended[leg], true) {
                inner.call_ended(Counted::Leg(leg, leg_call.half));
            }
        }
    }

    /// Records the results. Only afterwards may a new session to a peer decide anything, unless the
    /// arbiter is asked meanwhile: the peer may be back before it answers, and the range is marked.
    async fn record(&mut self, inner: &Arc<Inner>) -> Result<(), IoError> {
        let range = (self.part.offset, self.part.len);
        // Also for a failed write: a peer may still run degraded, and waiting costs little.
        self.dispatch.complete_numbers();
        let mut peer_missed = false;
        for (leg, result) in self.remote.iter().enumerate() {
            let LegDispatch::Send(leg_call) = &self.dispatch.legs[leg] else { continue };
            match result.result().unwrap_or(Err(IoError::Unreachable)) {
                Ok(()) => {
                    count(&inner.legs[leg].counters.added_ns, self.added_ns);
                    count(&inner.legs[leg].counters.added_writes, 1);
                }
                Err(error) => {
                    inner.mark_suspect(leg, range.0, range.1);
                    if !inner.is_known_to_lack(leg, leg_call, range, error) {
                        inner.disconnect(leg, leg_call.session_id);
                        peer_missed = true;
                    }
                }
            }
        }
        let Err(error) = self.local.result().unwrap_or(Err(IoError::WriteFault)) else {
            if peer_missed && inner.failover.is_automatic() {
                self.end_leg_calls(inner);
            }
            return if peer_missed { inner.record_difference().await } else { Ok(()) };
        };
        let degraded = inner.run_degraded(self.successor(inner), error).await;
        // A source that has left the service hands over in this session. Its activity log covers
        // the range.
        let left = inner.failover.is_automatic() && !inner.lock().serving;
        if degraded.is_err() && !left {
            // Reads return the local data from now on. A peer may have received the failed write
            // and must not look equal: after a crash here its data would be preferred.
            let mut equal = false;
            for (leg, dispatch) in self.dispatch.legs.iter().enumerate() {
                if !matches!(dispatch, LegDispatch::MarkOnly) {
                    inner.mark(leg, range.0, range.1);
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

    /// A peer that has this write and all earlier writes, or else has them in its queue.
    fn successor(&self, inner: &Inner) -> Option<(usize, u64)> {
        let (mut up_to_date, mut queued_peer) = (None, None);
        for (leg, dispatch) in self.dispatch.legs.iter().enumerate() {
            match dispatch {
                LegDispatch::Send(LegCall { session_id, .. })
                    if self.remote[leg].result() == Some(Ok(()))
                        && inner.is_up_to_date(leg, *session_id) =>
                {
                    up_to_date = Some((leg, *session_id));
                }
                LegDispatch::Queue(LegCall { session_id, .. }, _) => {
                    queued_peer = queued_peer.or(Some((leg, *session_id)));
                }
                LegDispatch::MarkOnly | LegDispatch::Send(_) => {}
            }
        }
        up_to_date.or(queued_peer)
    }
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
}

impl Dispatch {
    /// Marks the write as completed for the numbering of later writes.
    fn complete_numbers(&self) {
        for leg in &self.legs {
            if let LegDispatch::Queue(LegCall { numbers: Some((numbering, numbers)), .. }, _)
            | LegDispatch::Send(LegCall { numbers: Some((numbering, numbers)), .. }) = leg
            {
                numbering.lock().completed(*numbers);
            }
        }
    }
}
