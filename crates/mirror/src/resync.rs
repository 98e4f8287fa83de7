//! Bringing a peer up to date.
//!
//! Promises:
//! - what is marked is sent, and nothing else; with comparison only what differs, or of which nobody
//!   knows that the peer has it durably;
//! - what may not be durable here, though it is read here, is so when the peer has it;
//! - it ends under constant writes: they go to both legs, so no new part falls behind;
//! - a copy holds its range against writes, so that an older copy never lands on a newer write;
//! - it goes on, slowly, though hosts' writes that wait for its end hold all memory;
//! - marks are cleared when the peer has flushed what was copied: cut short at any moment, the next
//!   resync goes on with what is left;
//! - it is as fast as [`crate::pace`] allows.

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

use crate::connect::Ended;
use crate::limits::{COPIES, COPIES_PER_FLUSH, COPY_BYTES, PEER_FLUSH_MS};
use crate::memory::for_copy;
use crate::mirror::{Inner, count};
use crate::pace::Pace;
use crate::peer::{AskError, SharedSession, checksums};
use crate::target::sum;

/// Rate and hosts' latency are looked at so often.
const LOOK_NS: u64 = 100_000_000;

/// A resync under way.
struct Copying {
    inner: Arc<Inner>,
    leg: usize,
    session: SharedSession,
    serial: u64,
    lanes: [Option<IoFuture<Range<u64>>>; COPIES],
    /// Copied and not flushed there.
    copied: Vec<Range<u64>>,
    flush: Option<(IoFuture<()>, Vec<Range<u64>>)>,
    /// Bits before it were looked at in this pass.
    cursor: u64,
    pace: Pace,
    pause: Option<Sleep>,
    looked_ns: u64,
    copied_then: u64,
}

/// Copies all that is marked, until nothing is.
pub(crate) async fn copy(
    inner: &Arc<Inner>,
    leg: usize,
    session: &SharedSession,
    serial: u64,
) -> Result<(), Ended> {
    let own = &inner.legs[leg];
    let now = Inner::now_ns();
    let limits = own.options().pace;
    for counter in [&own.counters.copied_bytes, &own.counters.skipped_bytes] {
        counter.store(0, Ordering::Relaxed);
    }
    own.counters.total_bytes.store(own.todo.bytes(), Ordering::Relaxed);
    let mut copying = Copying {
        inner: inner.clone(),
        leg,
        session: session.clone(),
        serial,
        lanes: [const { None }; COPIES],
        copied: Vec::with_capacity(COPIES_PER_FLUSH + COPIES),
        flush: None,
        cursor: 0,
        pace: Pace::new(limits, now, inner.mean_latency_ns()),
        pause: None,
        looked_ns: now,
        copied_then: 0,
    };
    let result = poll_fn(|cx| copying.poll(cx)).await;
    own.counters.rate.store(0, Ordering::Relaxed);
    result
}

impl Copying {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Ended>> {
        loop {
            self.look();
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
                if self.inner.legs[self.leg].todo.count() == 0 {
                    return Poll::Ready(Ok(()));
                }
                // What was set behind the cursor.
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

    fn poll_lanes(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let mut moved = false;
        for lane in &mut self.lanes {
            let Some(copy) = lane else { continue };
            let Poll::Ready(result) = Pin::new(copy).poll(cx) else { continue };
            *lane = None;
            moved = true;
            self.copied.push(result.map_err(|error| Ended::Peer(AskError::Io(error)))?);
        }
        Ok(moved)
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let Some((flush, _)) = &mut self.flush else { return Ok(false) };
        let Poll::Ready(result) = Pin::new(flush).poll(cx) else { return Ok(false) };
        result.map_err(|error| Ended::Peer(AskError::Io(error)))?;
        let (_, runs) = self.flush.take().expect("it was polled");
        for run in runs {
            self.inner.unproven.clear(run.clone());
            if !self.inner.copied(self.leg, self.serial, run) {
                return Err(Ended::Lost);
            }
        }
        Ok(true)
    }

    /// Begins copies while there is a lane, something to copy, and the pace allows.
    fn fill(&mut self, cx: &mut Context<'_>) -> bool {
        let mut moved = false;
        // What is copied and not flushed is bounded: it is copied again after a crash.
        while self.copied.len() < 2 * COPIES_PER_FLUSH
            && let Some(free) = self.lanes.iter().position(Option::is_none)
        {
            if let Some(pause) = &mut self.pause {
                if Pin::new(pause).poll(cx).is_pending() {
                    return moved;
                }
                self.pause = None;
            }
            let todo = &self.inner.legs[self.leg].todo;
            let most = COPY_BYTES / u64::from(self.inner.local.superblock().shape.bit_bytes);
            let Some(run) = todo.next_run(self.cursor, most.max(1)) else { return moved };
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
            let proven = !inner.legs[leg].unproven.any(run.clone());
            let compare = proven && inner.legs[leg].options().compare;
            let mut at = offset;
            // One bit may stand for more than one copy.
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
        let unproven = copied.iter().any(|run| self.inner.unproven.any(run.clone()));
        let (inner, there) = (self.inner.clone(), self.session.flush());
        let flush = match unproven {
            false => there,
            true => IoFuture::later(async move {
                inner.local.data().flush().await?;
                there.await
            }),
        };
        self.flush = Some((flush, copied));
        true
    }

    /// Tells the pace how hosts fare.
    fn look(&mut self) {
        let now = Inner::now_ns();
        let span = now.saturating_sub(self.looked_ns);
        if span < LOOK_NS {
            return;
        }
        let counters = &self.inner.legs[self.leg].counters;
        let done = counters.copied_bytes.load(Ordering::Relaxed)
            + counters.skipped_bytes.load(Ordering::Relaxed);
        let rate = done.saturating_sub(self.copied_then) as f64 * 1e9 / span as f64;
        (self.looked_ns, self.copied_then) = (now, done);
        counters.rate.store(rate as u64, Ordering::Relaxed);
        let hosts = &self.inner.counters;
        let calls = hosts.calls.load(Ordering::Relaxed);
        let nanos = hosts.calls_ns.load(Ordering::Relaxed);
        // The operator may have set others since.
        self.pace.set(self.inner.legs[self.leg].options().pace);
        self.pace.see(calls, nanos, rate, now);
    }
}

impl Inner {
    /// Offset and length, in bytes, of a run of bits.
    pub(crate) fn bytes_of(&self, run: &Range<u64>) -> (u64, u64) {
        let shape = self.local.superblock().shape;
        let bit = u64::from(shape.bit_bytes);
        let offset = run.start * bit;
        (offset, (run.end * bit).min(shape.usable_bytes) - offset)
    }

    /// What hosts' calls took on average so far.
    fn mean_latency_ns(&self) -> Option<f64> {
        let calls = self.counters.calls.load(Ordering::Relaxed);
        let nanos = self.counters.calls_ns.load(Ordering::Relaxed);
        (calls >= 100).then(|| nanos as f64 / calls as f64)
    }
}

/// Copies a range, holding it. Memory comes first: hosts' writes that wait for the range hold theirs.
async fn copy_piece(
    inner: &Arc<Inner>,
    leg: usize,
    session: &SharedSession,
    (offset, len): (u64, u64),
    compare: bool,
) -> Result<(), IoError> {
    let memory = for_copy(len as usize).await;
    let _held = inner.overlap.copy(offset, len).held().await;
    let data = inner.local.data().read(offset, memory).await?;
    let data = inner.prove(offset, data).await;
    let counters = &inner.legs[leg].counters;
    if compare {
        let unit = u32::try_from(len).map_err(|_| IoError::OutOfRange)?;
        let theirs = checksums(session, offset, len, unit).await.map_err(io)?;
        if theirs.first() == Some(&sum(&data)) {
            count(&counters.skipped_bytes, len);
            return Ok(());
        }
    }
    // Until it has flushed it.
    let unproven = &inner.legs[leg].unproven;
    unproven.set(unproven.bits_of(offset, len));
    if is_zero(&data) {
        // Holes stay holes, and nothing travels.
        session.write_zeroes(offset, len, HOLE, None).await?;
    } else {
        session.copy(offset, data).await?;
    }
    count(&counters.copied_bytes, len);
    Ok(())
}

/// Zeroes that need not take room.
const HOLE: ZeroFlags = ZeroFlags { fua: false, may_deallocate: true, fast_only: false };

fn is_zero(data: &[u8]) -> bool {
    data.iter().all(|byte| *byte == 0)
}

impl Inner {
    /// Writes what was read here once more where it is not known to be here durably, though it can be
    /// read. Its range is held. Where it cannot be written it goes to the peer all the same.
    async fn prove(&self, offset: u64, data: BufMut) -> Buf {
        let (data, device) = (data.freeze(), self.local.data());
        let len = data.len() as u64;
        if self.unproven.any(self.unproven.bits_of(offset, len)) {
            let written = match is_zero(&data) {
                true => device.write_zeroes(offset, len, HOLE).await,
                false => device.write(offset, data.clone(), false).await,
            };
            if let Err(error) = written {
                let replica = self.local.superblock().replica;
                tracing::warn!(%replica, offset, len, "cannot be written once more here: {error}");
            }
        }
        data
    }
}

/// A peer that refuses in the midst of a resync is as good as gone.
fn io(error: AskError) -> IoError {
    match error {
        AskError::Io(error) => error,
        AskError::Refused(_) | AskError::Nonsense | AskError::NoCommonVersion(_) => {
            IoError::Unreachable
        }
    }
}

/// Has a peer that acknowledges from memory flush now and then, so that what would have to be copied
/// again when it is lost stays little.
pub(crate) async fn keep_flushed(
    inner: Arc<Inner>,
    leg: usize,
    session: SharedSession,
    serial: u64,
) {
    if !inner.legs[leg].options().remembers() {
        return;
    }
    let mut half = inner.lock().legs[leg].told_now;
    loop {
        time::sleep(Duration::from_millis(PEER_FLUSH_MS)).await;
        if inner.legs[leg].told[half].count() == 0 {
            continue;
        }
        // Writes from now on are marked in the other half, which is clear.
        inner.lock().legs[leg].told_now = 1 - half;
        inner.wait(|state| (state.legs[leg].told_in_flight[half] == 0).then_some(())).await;
        if let Err(error) = session.flush().await {
            inner.lose(leg, serial);
            if error != IoError::Unreachable {
                // This task may end with its session.
                spawn_detached(async move { inner.record_failed_flush().await });
            }
            return;
        }
        if !inner.told_is_durable(leg, serial, half) {
            return;
        }
        half = 1 - half;
        let mut state = inner.lock();
        state.legs[leg].unflushed = inner.legs[leg].told[half].count() > 0;
    }
}
