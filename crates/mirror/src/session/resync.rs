//! Resync: copies a peer's out-of-sync blocks to it.
//!
//! Guarantees:
//! - exactly the marked blocks are sent. With comparison, a block is sent only if it differs or the
//!   peer may not have it durably;
//! - blocks that may not be durable locally, although they can be read, are made durable here as
//!   well;
//! - it completes under constant writes: these go to both legs, so no new block falls behind;
//! - a copy locks its range against writes, so older data never overwrites a newer write;
//! - copies to an asynchronous target do not wait in its queue, and a queued write that a copy
//!   includes may still arrive after it. So the resync ends only when all writes that were queued
//!   at the last copy have completed: from then on, each block of the target shows the last write
//!   to it that has left the queue;
//! - it makes progress, slowly, even when blocked host writes hold all memory;
//! - bits are cleared only after the peer has flushed the copies, so an interrupted resync resumes
//!   where it was;
//! - its rate is set by [`crate::session::pace`].

use std::future::poll_fn;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use flagstone_blockdev::{IoError, IoFuture, ZeroFlags};
use flagstone_runtime::time::{self, Sleep};
use flagstone_runtime::{Buf, BufMut, spawn_detached};

use crate::io::memory::for_copy;
use crate::limits::{COPIES, COPIES_PER_FLUSH, COPY_BYTES, PEER_FLUSH_MS};
use crate::mirror::{Inner, count};
use crate::session::connect::SessionEnd;
use crate::session::pace::Pace;
use crate::session::target::checksum;
use crate::wire::peer::{RequestError, SharedSession, checksums};

/// Interval at which the rate and the hosts' latency are sampled.
const SAMPLE_NS: u64 = 100_000_000;

struct ResyncCopier {
    inner: Arc<Inner>,
    leg: usize,
    session: SharedSession,
    session_id: u64,
    lanes: [Option<IoFuture<Range<u64>>>; COPIES],
    /// Copied but not flushed by the peer.
    copied: Vec<Range<u64>>,
    flush: Option<(IoFuture<()>, Vec<Range<u64>>)>,
    /// Bits below it were visited in this pass.
    cursor: u64,
    pace: Pace,
    pause: Option<Sleep>,
    sampled_ns: u64,
    copied_then: u64,
}

/// Copies all marked blocks, until none is left.
pub(crate) async fn copy(
    inner: &Arc<Inner>,
    leg: usize,
    session: &SharedSession,
    session_id: u64,
) -> Result<(), SessionEnd> {
    let own = &inner.legs[leg];
    let now = Inner::now_ns();
    let limits = own.options().pace;
    for counter in [&own.counters.copied_bytes, &own.counters.skipped_bytes] {
        counter.store(0, Ordering::Relaxed);
    }
    own.counters.total_bytes.store(own.out_of_sync.bytes(), Ordering::Relaxed);
    let mut copying = ResyncCopier {
        inner: inner.clone(),
        leg,
        session: session.clone(),
        session_id,
        lanes: [const { None }; COPIES],
        copied: Vec::with_capacity(COPIES_PER_FLUSH + COPIES),
        flush: None,
        cursor: 0,
        pace: Pace::new(limits, now, inner.mean_latency_ns()),
        pause: None,
        sampled_ns: now,
        copied_then: 0,
    };
    let result = poll_fn(|cx| copying.poll(cx)).await;
    own.counters.rate.store(0, Ordering::Relaxed);
    result
}

impl ResyncCopier {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SessionEnd>> {
        loop {
            self.sample();
            let mut moved = match self.poll_lanes(cx) {
                Ok(moved) => moved,
                Err(error) => return Poll::Ready(Err(error)),
            };
            match self.poll_flush(cx) {
                Ok(done) => moved |= done,
                Err(error) => return Poll::Ready(Err(error)),
            }
            moved |= self.fill(cx);
            moved |= self.start_flush();
            if self.is_idle() {
                if self.inner.legs[self.leg].out_of_sync.count() == 0 {
                    return Poll::Ready(Ok(()));
                }
                // Bits may have been set behind the cursor.
                self.cursor = 0;
                moved |= self.pause.is_none();
            }
            if !moved {
                return Poll::Pending;
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.lanes.iter().all(Option::is_none) && self.flush.is_none() && self.copied.is_empty()
    }

    fn poll_lanes(&mut self, cx: &mut Context<'_>) -> Result<bool, SessionEnd> {
        let mut moved = false;
        for lane in &mut self.lanes {
            let Some(copy) = lane else { continue };
            let Poll::Ready(result) = Pin::new(copy).poll(cx) else { continue };
            *lane = None;
            moved = true;
            self.copied.push(result.map_err(|error| SessionEnd::Peer(RequestError::Io(error)))?);
        }
        Ok(moved)
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Result<bool, SessionEnd> {
        let Some((flush, _)) = &mut self.flush else { return Ok(false) };
        let Poll::Ready(result) = Pin::new(flush).poll(cx) else { return Ok(false) };
        result.map_err(|error| SessionEnd::Peer(RequestError::Io(error)))?;
        let (_, runs) = self.flush.take().expect("the flush was polled");
        for run in runs {
            self.inner.suspect.clear(run.clone());
            if !self.inner.copied(self.leg, self.session_id, run) {
                return Err(SessionEnd::Lost);
            }
        }
        Ok(true)
    }

    /// Starts copies while a lane is free, something is left to copy, and the pace allows it.
    fn fill(&mut self, cx: &mut Context<'_>) -> bool {
        let mut moved = false;
        // Bounded, because unflushed copies are repeated after a crash.
        while self.copied.len() < 2 * COPIES_PER_FLUSH
            && let Some(free) = self.lanes.iter().position(Option::is_none)
        {
            if let Some(pause) = &mut self.pause {
                if Pin::new(pause).poll(cx).is_pending() {
                    return moved;
                }
                self.pause = None;
            }
            let out_of_sync = &self.inner.legs[self.leg].out_of_sync;
            let most = COPY_BYTES / u64::from(self.inner.local.superblock().geometry.bit_bytes);
            let Some(run) = out_of_sync.next_run(self.cursor, most.max(1)) else { return moved };
            self.cursor = run.end;
            let bytes = self.inner.bytes_of(&run).1;
            let now = Inner::now_ns();
            let begins = self.pace.copy(bytes, now);
            if begins > now {
                // The next copy pays for this one.
                self.pause = Some(time::sleep(Duration::from_nanos(begins - now)));
            }
            self.lanes[free] = Some(self.copy_run(run));
            moved = true;
        }
        moved
    }

    fn copy_run(&self, run: Range<u64>) -> IoFuture<Range<u64>> {
        let (inner, leg, session) = (self.inner.clone(), self.leg, self.session.clone());
        IoFuture::later(async move {
            let (offset, len) = inner.bytes_of(&run);
            let trusted = !inner.legs[leg].suspect.any(run.clone());
            let compare = trusted && inner.legs[leg].options().compare;
            let mut at = offset;
            // One bit may cover more than one copy.
            while at < offset + len {
                let piece = COPY_BYTES.min(offset + len - at);
                copy_piece(&inner, leg, &session, (at, piece), compare).await?;
                at += piece;
            }
            Ok(run)
        })
    }

    fn start_flush(&mut self) -> bool {
        let last = self.lanes.iter().all(Option::is_none) && !self.copied.is_empty();
        if self.flush.is_some() || !(last || self.copied.len() >= COPIES_PER_FLUSH) {
            return false;
        }
        let copied = std::mem::take(&mut self.copied);
        let suspect = copied.iter().any(|run| self.inner.suspect.any(run.clone()));
        let (inner, there) = (self.inner.clone(), self.session.flush());
        let flush = match suspect {
            false => there,
            true => IoFuture::later(async move {
                inner.local.data().flush().await?;
                there.await
            }),
        };
        self.flush = Some((flush, copied));
        true
    }

    /// Reports the hosts' latency to the pace.
    fn sample(&mut self) {
        let now = Inner::now_ns();
        let span = now.saturating_sub(self.sampled_ns);
        if span < SAMPLE_NS {
            return;
        }
        let counters = &self.inner.legs[self.leg].counters;
        let done = counters.copied_bytes.load(Ordering::Relaxed)
            + counters.skipped_bytes.load(Ordering::Relaxed);
        let rate = done.saturating_sub(self.copied_then) as f64 * 1e9 / span as f64;
        (self.sampled_ns, self.copied_then) = (now, done);
        counters.rate.store(rate as u64, Ordering::Relaxed);
        let hosts = &self.inner.counters;
        let calls = hosts.calls.load(Ordering::Relaxed);
        let nanos = hosts.calls_ns.load(Ordering::Relaxed);
        // The operator may have changed the limits.
        self.pace.set(self.inner.legs[self.leg].options().pace);
        self.pace.update(calls, nanos, rate, now);
    }
}

impl Inner {
    /// Offset and length of a run of bits, in bytes.
    pub(crate) fn bytes_of(&self, run: &Range<u64>) -> (u64, u64) {
        let geometry = self.local.superblock().geometry;
        let bit = u64::from(geometry.bit_bytes);
        let offset = run.start * bit;
        (offset, (run.end * bit).min(geometry.usable_bytes) - offset)
    }

    fn mean_latency_ns(&self) -> Option<f64> {
        let calls = self.counters.calls.load(Ordering::Relaxed);
        let nanos = self.counters.calls_ns.load(Ordering::Relaxed);
        (calls >= 100).then(|| nanos as f64 / calls as f64)
    }
}

/// Copies a range under its lock, with memory acquired first: waiting host writes hold memory.
async fn copy_piece(
    inner: &Arc<Inner>,
    leg: usize,
    session: &SharedSession,
    (offset, len): (u64, u64),
    compare: bool,
) -> Result<(), IoError> {
    let memory = for_copy(len as usize).await;
    let _guard = inner.range_lock.copy(offset, len).acquired().await;
    let data = inner.local.data().read(offset, memory).await?;
    let data = inner.rewrite_suspect(offset, data).await;
    let counters = &inner.legs[leg].counters;
    if compare {
        let unit = u32::try_from(len).map_err(|_| IoError::OutOfRange)?;
        let theirs = checksums(session, offset, len, unit).await.map_err(io_error)?;
        if theirs.first() == Some(&checksum(&data)) {
            count(&counters.skipped_bytes, len);
            return Ok(());
        }
    }
    // Suspect until the peer has flushed it.
    let suspect = &inner.legs[leg].suspect;
    suspect.set(suspect.bits_of(offset, len));
    if is_zero(&data) {
        // Holes stay holes, and no data is sent.
        session.write_zeroes(offset, len, HOLE, None).await?;
    } else {
        session.copy(offset, data).await?;
    }
    count(&counters.copied_bytes, len);
    Ok(())
}

/// Zeroes that may stay unallocated.
const HOLE: ZeroFlags = ZeroFlags { fua: false, may_deallocate: true, fast_only: false };

fn is_zero(data: &[u8]) -> bool {
    data.iter().all(|byte| *byte == 0)
}

impl Inner {
    /// Writes back data that was read here if it may not be durable here. The caller holds the lock
    /// on its range. If the write fails, the data still goes to the peer.
    async fn rewrite_suspect(&self, offset: u64, data: BufMut) -> Buf {
        let (data, device) = (data.freeze(), self.local.data());
        let len = data.len() as u64;
        if self.suspect.any(self.suspect.bits_of(offset, len)) {
            let written = match is_zero(&data) {
                true => device.write_zeroes(offset, len, HOLE).await,
                false => device.write(offset, data.clone(), false).await,
            };
            if let Err(error) = written {
                let replica = self.local.superblock().replica;
                tracing::warn!(%replica, offset, len, "could not rewrite suspect data: {error}");
            }
        }
        data
    }
}

/// A refusal during a resync is treated as a lost peer.
fn io_error(error: RequestError) -> IoError {
    match error {
        RequestError::Io(error) => error,
        RequestError::Refused(_)
        | RequestError::UnexpectedReply
        | RequestError::NoCommonVersion(_) => IoError::Unreachable,
    }
}

/// Flushes a peer that acknowledges from memory, to bound what its loss makes copied again.
pub(crate) async fn keep_flushed(
    inner: Arc<Inner>,
    leg: usize,
    session: SharedSession,
    session_id: u64,
) {
    if !inner.legs[leg].options().tracks_unflushed() {
        return;
    }
    let mut half = inner.lock().legs[leg].unflushed_half;
    loop {
        time::sleep(Duration::from_millis(PEER_FLUSH_MS)).await;
        if inner.legs[leg].unflushed[half].count() == 0 {
            continue;
        }
        // Later writes are marked in the other half, which is empty.
        inner.lock().legs[leg].unflushed_half = 1 - half;
        inner.wait(|state| (state.legs[leg].unflushed_in_flight[half] == 0).then_some(())).await;
        if let Err(error) = session.flush().await {
            inner.disconnect(leg, session_id);
            if error != IoError::Unreachable {
                // In a separate task, because this one may end with its session.
                spawn_detached(async move { inner.record_failed_flush().await });
            }
            return;
        }
        if !inner.unflushed_is_durable(leg, session_id, half) {
            return;
        }
        half = 1 - half;
        let mut state = inner.lock();
        state.legs[leg].has_unflushed = inner.legs[leg].unflushed[half].count() > 0;
    }
}
