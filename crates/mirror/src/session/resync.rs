//! Resync: copies a peer's out-of-sync blocks to it.
//!
//! Guarantees:
//! - exactly the marked blocks are sent. With comparison, a block is sent only if it differs or the
//!   peer may not have it durably;
//! - blocks that may not be durable locally, although they can be read, are made durable here as
//!   well;
//! - it completes under constant writes: these go to both legs, so no new block falls behind;
//! - a copy locks its range against writes, so older data never overwrites a newer write. A local
//!   write of an abandoned copy keeps its lock until it has ended;
//! - copies to an asynchronous target do not wait in its queue, and a queued write that a copy
//!   includes may still arrive after it. So the resync ends only when all writes that were queued
//!   at the last copy have completed: from then on, each block of the target shows the last write
//!   to it that has left the queue;
//! - a mark is cleared only by a copy that began after it ([`crate::intent_log::out_of_sync`]);
//! - blocks that a leg cannot read or write stay marked and are listed
//!   ([`crate::session::bad_ranges`]), and the rest is copied;
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

use flagstone_blockdev::{Extent, IoError, IoFuture, SharedDevice, ZeroFlags};
use flagstone_runtime::time::{self, Sleep};
use flagstone_runtime::{Buf, BufMut, spawn_detached};

use crate::intent_log::out_of_sync::CopyToken;
use crate::intent_log::recover::is_inconclusive;
use crate::io::call_admission::Counted;
use crate::io::memory::for_copy;
use crate::io::range_lock::RangeGuard;
use crate::io::request::RunToCompletion;
use crate::limits::{
    BAD_SPLITS_MAX, BIT_MIN_BYTES, COPIES, COPIES_PER_FLUSH, COPY_BYTES, NO_MEMORY_RETRY_MS,
    PEER_FLUSH_MS,
};
use crate::mirror::{Inner, count};
use crate::session::bad_ranges::{BadRange, BadRangeCause};
use crate::session::checksums::checksum;
use crate::session::connect::SessionEnd;
use crate::session::pace::ResyncPace;
use crate::wire::peer::{PeerRefusal, RequestError, SharedSession, checksums};

/// Interval at which the rate and the hosts' latency are sampled.
const SAMPLE_NS: u64 = 100_000_000;

struct ResyncCopier {
    inner: Arc<Inner>,
    leg: usize,
    session: SharedSession,
    session_id: u64,
    lanes: [Option<IoFuture<Result<CopiedRun, CopyFailure>>>; COPIES],
    /// Runs that are copied, and not flushed by the peer.
    copied: Vec<CopiedRun>,
    flush: Option<(IoFuture<()>, Vec<CopiedRun>)>,
    /// Bits below this one were visited in this pass.
    cursor: u64,
    /// Bits of a bad range to retry in this pass.
    retry: Option<Range<u64>>,
    pace: ResyncPace,
    pause: Option<Sleep>,
    sampled_ns: u64,
    copied_then: u64,
}

/// A run that was copied, except for its bad ranges.
struct CopiedRun {
    copy: CopyToken,
    /// Bad ranges of the run, in ascending order.
    bad: Vec<BadRange>,
}

/// Failure of a whole copy.
enum CopyFailure {
    /// No memory at present: the copy is repeated.
    NoMemory,
    Local(IoError),
    Peer(IoError),
}

impl CopyFailure {
    fn local(error: IoError) -> CopyFailure {
        if error == IoError::NoMemory { CopyFailure::NoMemory } else { CopyFailure::Local(error) }
    }

    fn peer(error: IoError) -> CopyFailure {
        if error == IoError::NoMemory { CopyFailure::NoMemory } else { CopyFailure::Peer(error) }
    }
}

/// How a pass over the marked blocks ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PassEnd {
    /// No block is marked.
    Complete,
    /// Only bad ranges are left.
    OnlyBadRanges,
}

/// Copies all marked blocks, until none is left outside of bad ranges. Of the bad ranges, only
/// `retry` is tried again.
pub(crate) async fn copy(
    inner: &Arc<Inner>,
    leg: usize,
    session: &SharedSession,
    session_id: u64,
    retry: Option<Range<u64>>,
) -> Result<PassEnd, SessionEnd> {
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
        retry: retry.map(|bytes| own.out_of_sync.bits_of(bytes.start, bytes.end - bytes.start)),
        pace: ResyncPace::new(limits, now, inner.mean_latency_ns()),
        pause: None,
        sampled_ns: now,
        copied_then: 0,
    };
    let result = poll_fn(|cx| copying.poll(cx)).await;
    own.counters.rate.store(0, Ordering::Relaxed);
    result
}

impl ResyncCopier {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<PassEnd, SessionEnd>> {
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
                    return Poll::Ready(Ok(PassEnd::Complete));
                }
                // Bits may have been set behind the cursor.
                self.cursor = 0;
                if self.next_run().is_none() {
                    return Poll::Ready(Ok(PassEnd::OnlyBadRanges));
                }
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
            match result.unwrap_or_else(|error| Err(CopyFailure::peer(error))) {
                Ok(copied) => self.copied.push(copied),
                Err(CopyFailure::Local(error)) => return Err(SessionEnd::Local(error)),
                Err(CopyFailure::Peer(error)) => return Err(SessionEnd::Peer(error.into())),
                Err(CopyFailure::NoMemory) => {
                    self.pause = Some(time::sleep(Duration::from_millis(NO_MEMORY_RETRY_MS)));
                }
            }
        }
        Ok(moved)
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Result<bool, SessionEnd> {
        let Some((flush, _)) = &mut self.flush else { return Ok(false) };
        let Poll::Ready(result) = Pin::new(flush).poll(cx) else { return Ok(false) };
        result.map_err(|error| SessionEnd::Peer(RequestError::Io(error)))?;
        let (_, copied) = self.flush.take().expect("the flush was polled");
        let own = &self.inner.legs[self.leg];
        for CopiedRun { copy, bad } in copied {
            let (offset, len) = self.inner.bytes_of(&copy.run());
            let mut kept: Vec<Range<u64>> = Vec::new();
            kept.extend(bad.iter().map(|bad| own.out_of_sync.bits_of(bad.offset, bad.len)));
            own.bad_ranges()
                .replace(offset, len, &bad)
                .map_err(|_| SessionEnd::TooManyBadRanges)?;
            if !self.inner.copied(self.leg, self.session_id, copy, &kept) {
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
            let Some(run) = self.next_run() else { return moved };
            let out_of_sync = &self.inner.legs[self.leg].out_of_sync;
            let Some(copy) = out_of_sync.begin_copy(run.start, run.end - run.start) else {
                return moved;
            };
            let run = copy.run();
            self.cursor = self.cursor.max(run.end);
            let bytes = self.inner.bytes_of(&run).1;
            let now = Inner::now_ns();
            let begins = self.pace.copy(bytes, now);
            if begins > now {
                // A copy delays the next one.
                self.pause = Some(time::sleep(Duration::from_nanos(begins - now)));
            }
            self.lanes[free] = Some(self.copy_run(copy));
            moved = true;
        }
        moved
    }

    /// The next run to copy: the bad range to retry, then marked blocks outside of bad ranges.
    fn next_run(&mut self) -> Option<Range<u64>> {
        let own = &self.inner.legs[self.leg];
        let most = COPY_BYTES / u64::from(self.inner.local.superblock().geometry.bit_bytes);
        if let Some(retry) = self.retry.take()
            && let Some(run) = own.out_of_sync.next_run(retry.start, most.max(1))
            && run.start < retry.end
        {
            return Some(run.start..run.end.min(retry.end));
        }
        self.inner.next_run_outside_bad_ranges(self.leg, self.cursor, most.max(1))
    }

    fn copy_run(&self, copy: CopyToken) -> IoFuture<Result<CopiedRun, CopyFailure>> {
        let (inner, leg, session) = (self.inner.clone(), self.leg, self.session.clone());
        IoFuture::later(async move { Ok(copy_run(inner, leg, session, copy).await) })
    }

    fn start_flush(&mut self) -> bool {
        let last = self.lanes.iter().all(Option::is_none) && !self.copied.is_empty();
        if self.flush.is_some() || !(last || self.copied.len() >= COPIES_PER_FLUSH) {
            return false;
        }
        let copied = std::mem::take(&mut self.copied);
        let suspect = copied.iter().any(|copied| self.inner.suspect.any(copied.copy.run()));
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
    /// The first run of blocks from `from` on that are marked and not in bad ranges.
    pub(crate) fn next_run_outside_bad_ranges(
        &self,
        leg: usize,
        mut from: u64,
        most: u64,
    ) -> Option<Range<u64>> {
        let own = &self.legs[leg];
        let bad_ranges = own.bad_ranges();
        loop {
            let run = own.out_of_sync.next_run(from, most)?;
            let (offset, len) = self.bytes_of(&run);
            let Some(bad) = bad_ranges.overlap(&(offset..offset + len)) else { return Some(run) };
            let bad = own.out_of_sync.bits_of(bad.start, bad.end - bad.start);
            if run.start < bad.start {
                return Some(run.start..bad.start);
            }
            from = bad.end;
        }
    }

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

async fn copy_run(
    inner: Arc<Inner>,
    leg: usize,
    session: SharedSession,
    copy: CopyToken,
) -> Result<CopiedRun, CopyFailure> {
    let (offset, len) = inner.bytes_of(&copy.run());
    let trusted = !inner.legs[leg].suspect.any(copy.run());
    let compare = trusted && inner.legs[leg].options().compare;
    let (mut at, mut bad) = (offset, Vec::new());
    // One bit may cover more than one copy.
    while at < offset + len {
        let piece = (at, COPY_BYTES.min(offset + len - at));
        if let Some(cause) = copy_piece(&inner, leg, &session, piece, compare).await? {
            copy_around_bad(&inner, leg, &session, (piece, cause), compare, &mut bad).await?;
        }
        at += piece.1;
    }
    Ok(CopiedRun { copy, bad })
}

/// Copies a piece that failed in halves, in ascending order, until the failing parts are found.
async fn copy_around_bad(
    inner: &Arc<Inner>,
    leg: usize,
    session: &SharedSession,
    (piece, cause): ((u64, u64), BadRangeCause),
    compare: bool,
    bad: &mut Vec<BadRange>,
) -> Result<(), CopyFailure> {
    let unit = u64::from(BIT_MIN_BYTES);
    let mut splits = 0;
    // Parts to do, the next one last: failed parts, and untried ones.
    let mut parts = vec![(piece, Some(cause))];
    while let Some(((at, len), failed)) = parts.pop() {
        let failed = match failed {
            None => copy_piece(inner, leg, session, (at, len), compare).await?,
            failed => failed,
        };
        let Some(cause) = failed else { continue };
        if len <= unit || splits == BAD_SPLITS_MAX {
            bad.push(BadRange { offset: at, len, cause });
            continue;
        }
        splits += 1;
        let half = (len / 2).next_multiple_of(unit);
        parts.push(((at + half, len - half), None));
        parts.push(((at, half), None));
    }
    Ok(())
}

/// Copies a range under its lock. Acquires memory first, because host writes that wait for the lock
/// hold memory. Returns the cause if the range is bad.
async fn copy_piece(
    inner: &Arc<Inner>,
    leg: usize,
    session: &SharedSession,
    (offset, len): (u64, u64),
    compare: bool,
) -> Result<Option<BadRangeCause>, CopyFailure> {
    let memory = for_copy(len as usize).await;
    let guard = inner.range_lock.copy(offset, len).acquired().await;
    let service_ends = inner.lock().service_ends;
    let data = match read_local(inner.local.data(), offset, memory).await {
        Ok(data) => data,
        Err(error) if is_outage(error) => return Err(CopyFailure::local(error)),
        Err(_) => return Ok(Some(BadRangeCause::SourceUnreadable)),
    };
    let (_guard, data, bad) = inner.rewrite_suspect(guard, service_ends, offset, data).await?;
    let counters = &inner.legs[leg].counters;
    if compare {
        let unit = u32::try_from(len).map_err(|_| CopyFailure::Local(IoError::OutOfRange))?;
        match checksums(session, offset, len, unit).await {
            Ok(theirs) if theirs.first() == Some(&checksum(&data)) => {
                count(&counters.skipped_bytes, len);
                count(&counters.resynced_bytes, len);
                return Ok(bad);
            }
            // The data differs, or is unreadable there: writing it may repair it.
            Ok(_) | Err(RequestError::Refused(PeerRefusal::Failed)) => {}
            Err(error) => return Err(CopyFailure::peer(io_error(error))),
        }
    }
    // Suspect until the peer has flushed it.
    let suspect = &inner.legs[leg].suspect;
    suspect.set(suspect.bits_of(offset, len));
    let sent = if is_zero(&data) {
        // Holes stay holes, and no data is sent.
        session.write_zeroes(offset, len, HOLE, None).await
    } else {
        session.copy(offset, data).await
    };
    match sent {
        Ok(()) => {
            count(&counters.copied_bytes, len);
            count(&counters.resynced_bytes, len);
            Ok(bad)
        }
        Err(error) if is_outage(error) => Err(CopyFailure::peer(error)),
        Err(_) => Ok(Some(BadRangeCause::TargetUnwritable)),
    }
}

/// Reads a piece, unless the device reports a hole. The range is locked, so a hole stays one.
async fn read_local(
    device: &SharedDevice,
    offset: u64,
    mut memory: BufMut,
) -> Result<BufMut, IoError> {
    let known = device.allocated(offset, memory.len() as u64).await;
    if known.is_ok_and(|extents| is_hole(&extents, memory.len() as u64)) {
        memory.fill(0);
        return Ok(memory);
    }
    device.read(offset, memory).await
}

fn is_hole(extents: &[Extent], len: u64) -> bool {
    let covered: u64 = extents.iter().map(|extent| extent.len).sum();
    covered >= len && extents.iter().all(|extent| extent.is_hole)
}

/// True for an error of the whole leg, not of a range.
pub(crate) fn is_outage(error: IoError) -> bool {
    is_inconclusive(error) || error == IoError::Poisoned
}

/// Zeroes that may stay unallocated.
const HOLE: ZeroFlags = ZeroFlags { fua: false, may_deallocate: true, fast_only: false };

fn is_zero(data: &[u8]) -> bool {
    data.iter().all(|byte| *byte == 0)
}

impl Inner {
    /// Writes back data that was read here if it may not be durable here, under the lock on its
    /// range. If the write fails, the data still goes to the peer, and the range is bad.
    async fn rewrite_suspect(
        self: &Arc<Self>,
        guard: RangeGuard,
        service_ends: u64,
        offset: u64,
        data: BufMut,
    ) -> Result<(RangeGuard, Buf, Option<BadRangeCause>), CopyFailure> {
        let data = data.freeze();
        let len = data.len() as u64;
        if !self.suspect.any(self.suspect.bits_of(offset, len)) {
            return Ok((guard, data, None));
        }
        let (device, rewrite, own) =
            (self.local.data().clone(), self.begin_rewrite(), data.clone());
        // This node may have lost its role during the read. The next source waits for rewrites in
        // progress, and its writes do not lock the range.
        if self.lock().service_ends != service_ends {
            return Err(CopyFailure::peer(IoError::Unreachable));
        }
        // The write may land at any time until it ends: newer writes wait, even if this copy is
        // abandoned with its session.
        let rewriting = RunToCompletion::new(async move {
            let written = match is_zero(&own) {
                true => device.write_zeroes(offset, len, HOLE).await,
                false => device.write(offset, own, false).await,
            };
            drop(rewrite);
            Ok((guard, written))
        });
        let (guard, written) = rewriting.await.map_err(CopyFailure::local)?;
        match written {
            Ok(()) => Ok((guard, data, None)),
            Err(error) if is_outage(error) => Err(CopyFailure::local(error)),
            Err(error) => {
                let replica = self.local.superblock().replica;
                tracing::warn!(%replica, offset, len, "could not rewrite suspect data: {error}");
                Ok((guard, data, Some(BadRangeCause::SourceUnwritable)))
            }
        }
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

/// Flushes a peer that acknowledges from memory, which bounds the blocks to copy again after its
/// loss.
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
        inner.wait_for_calls(Counted::Leg(leg, Some(half))).await;
        if let Err(error) = session.flush().await {
            inner.disconnect(leg, session_id);
            if error != IoError::Unreachable {
                // In a separate task, because this one may end with its session.
                spawn_detached(async move { inner.record_loss().await });
            }
            return;
        }
        if !inner.unflushed_is_durable(leg, session_id, half) {
            return;
        }
        half = 1 - half;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use flagstone_blockdev::stats::CallKind;
    use flagstone_blockdev::{BlockDevice as _, MemoryDevice, StatsLayer};
    use flagstone_runtime::{block_on, buf};

    use super::*;

    #[test]
    fn holes_of_the_source_are_not_read() {
        block_on(async {
            let memory = Arc::new(MemoryDevice::new(8 << 20, 4096).unwrap());
            let data = Buf::copy_of(&[7; 4096]).unwrap();
            memory.write(5 << 20, data, false).await.unwrap();
            let (counted, counters) = StatsLayer::new(memory);
            let counted = Arc::new(counted) as SharedDevice;
            for mib in 0..8_u64 {
                let read = read_local(&counted, mib << 20, buf::alloc(1 << 20).await).await;
                let read = read.unwrap();
                assert_eq!(is_zero(&read), mib != 5);
                assert!(mib != 5 || read[..4096] == [7; 4096]);
            }
            assert_eq!(counters.totals().of(CallKind::Read).count, 1);
            let extent = |len, is_hole| Extent { len, is_hole };
            assert!(!is_hole(&[extent(4096, true)], 8192), "the rest is unknown");
            assert!(!is_hole(&[extent(4096, true), extent(4096, false)], 8192));
        })
        .unwrap();
    }
}
