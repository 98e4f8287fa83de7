//! Lane: the I/O loop of one core, with slots that each have at most one I/O in flight.
//!
//! All slots live in one task. A completion sets a bit; the lane polls the slots whose bits are
//! set, and each starts its next I/O immediately. Devices that complete immediately are handled in
//! a loop, never by recursion, and the loop yields to other tasks of the core every
//! [`IOS_PER_POLL`] I/Os.
//!
//! The clock is read once per I/O: the end of one I/O is the start of the next in its slot.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use flagstone_blockdev::{IoError, IoFuture, SharedDevice};
use flagstone_runtime::{Buf, BufMut, buf, time};

use crate::limits::{CATCH_UP, ERROR_PAUSE, IOS_PER_POLL, IOS_PER_SLOT};
use crate::plan::{OpKind, PlannedIo};
use crate::slots::{WokenSlots, wakers};
use crate::stats::{Gauge, Reading, Stats};

/// Source of the I/Os of a lane, and receiver of their outcomes.
pub(crate) trait LaneWorkload {
    /// The next I/O for `slot`.
    fn next(&mut self, slot: usize) -> Next;
    /// Payload of the write `op`; `None` if there is no memory for it now.
    fn payload(&mut self, slot: usize, op: &PlannedIo) -> Option<Buf>;
    fn ended(&mut self, slot: usize, op: &PlannedIo, outcome: IoOutcome<'_>);
    fn violations(&self) -> u64 {
        0
    }
    /// Progresses background work. Ready when none is left.
    fn poll_side(&mut self, _cx: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }
}

pub(crate) enum Next {
    Io(PlannedIo),
    /// Wait until the background work has progressed.
    Wait,
    End,
}

pub(crate) enum IoOutcome<'a> {
    Read(&'a [u8]),
    /// A completed change.
    Done,
    Failed,
}

/// Signals that end a lane from outside. Shared by cores.
#[derive(Debug, Default)]
pub(crate) struct LaneSignals {
    /// Start no more I/Os.
    pub(crate) stop: AtomicBool,
    /// The time limit has passed: lanes with a time limit check the clock.
    pub(crate) time_up: AtomicBool,
    /// Do not wait for I/Os in flight.
    pub(crate) abandon: AtomicBool,
}

/// State that a lane shares with its observers.
#[derive(Clone, Debug)]
pub(crate) struct Links {
    pub(crate) signals: Arc<LaneSignals>,
    pub(crate) gauge: Arc<Gauge>,
    pub(crate) woken: Arc<WokenSlots>,
}

/// Bounds of a lane. Times are nanoseconds of the runtime's clock.
#[derive(Clone, Debug)]
pub(crate) struct LaneBounds {
    pub(crate) depth: usize,
    pub(crate) io_bytes_max: usize,
    pub(crate) fua: bool,
    /// Start of the measurement: see [`LaneBounds::by_end`].
    pub(crate) measure_from_ns: u64,
    /// True for a job with a time limit: I/Os count by their end. Then as many I/Os that started in
    /// the warm-up are counted as are in flight at the end, and the rate over the time until the
    /// last has ended is the rate of the device, for any queue depth. False for a job with a number
    /// of I/Os: they count by their start.
    pub(crate) by_end: bool,
    /// No I/O starts from then on.
    pub(crate) end_at_ns: u64,
    pub(crate) ios: u64,
    pub(crate) bytes: u64,
    pub(crate) rate_iops: Option<u64>,
    pub(crate) errors_max: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LaneEnd {
    Complete,
    Errors,
    Stopped,
}

enum Flight {
    Idle,
    Read(IoFuture<BufMut>),
    Change(IoFuture<()>),
}

struct Slot {
    flight: Flight,
    op: PlannedIo,
    started_ns: u64,
    /// Read buffer, while no read is in flight.
    buf: Option<BufMut>,
    /// Rest of that buffer during a shorter read.
    tail: Option<BufMut>,
}

/// Schedule of a rate: on average one I/O per `1 / rate` seconds, to the nanosecond.
struct Pace {
    due_ns: u64,
    period_ns: u64,
    period_rest: u64,
    rest: u64,
    rate: u64,
    timer: Option<time::Sleep>,
}

impl Pace {
    fn new(rate: u64, from_ns: u64) -> Pace {
        let (period_ns, period_rest) = (1_000_000_000 / rate, 1_000_000_000 % rate);
        Pace { due_ns: from_ns, period_ns, period_rest, rest: 0, rate, timer: None }
    }

    /// True if an I/O may start now, which consumes its turn.
    fn take(&mut self, now_ns: u64) -> bool {
        if self.due_ns > now_ns {
            return false;
        }
        let oldest = now_ns.saturating_sub(CATCH_UP.as_nanos() as u64);
        self.due_ns = self.due_ns.max(oldest) + self.period_ns;
        self.rest += self.period_rest;
        if self.rest >= self.rate {
            self.rest -= self.rate;
            self.due_ns += 1;
        }
        true
    }
}

/// Future that runs the I/Os of `W` and returns their statistics.
pub(crate) struct Lane<'a, W> {
    device: SharedDevice,
    workload: &'a mut W,
    bounds: LaneBounds,
    links: Links,
    wakers: Vec<Waker>,
    slots: Vec<Slot>,
    /// Slots to poll in this turn or the next.
    due: VecDeque<u32>,
    /// Slots that must wait to start an I/O, because of the rate, a pause or the workload.
    idle: Vec<u32>,
    in_flight: usize,
    pace: Option<Pace>,
    paused_until_ns: u64,
    pause_timer: Option<time::Sleep>,
    /// A slot was waiting in this poll, so any other idle slot would be too.
    blocked: bool,
    /// A slot waits for background work of the workload.
    waiting: bool,
    ios_left: u64,
    bytes_left: u64,
    end: Option<LaneEnd>,
    stats: Stats,
    reading: Reading,
}

impl<'a, W: LaneWorkload> Lane<'a, W> {
    /// `None` at the limit of pooled memory. `kinds` are the kinds of I/O of the workload.
    pub(crate) fn new(
        device: SharedDevice,
        workload: &'a mut W,
        bounds: LaneBounds,
        links: Links,
        kinds: &[OpKind],
    ) -> Option<Lane<'a, W>> {
        let reads = kinds.contains(&OpKind::Read);
        let mut slots = Vec::with_capacity(bounds.depth);
        for _ in 0..bounds.depth {
            let buf = if reads { Some(buf::try_alloc(bounds.io_bytes_max)?) } else { None };
            slots.push(Slot {
                flight: Flight::Idle,
                op: PlannedIo::FLUSH,
                started_ns: 0,
                buf,
                tail: None,
            });
        }
        let now_ns = time::now().as_nanos();
        // The second lane of a core continues where the first one ended.
        let reading = links.gauge.read();
        Some(Lane {
            device,
            workload,
            wakers: wakers(&links.woken, bounds.depth),
            links,
            slots,
            due: (0..bounds.depth as u32).collect(),
            idle: Vec::with_capacity(bounds.depth),
            in_flight: 0,
            pace: bounds.rate_iops.map(|rate| Pace::new(rate, now_ns)),
            paused_until_ns: 0,
            pause_timer: None,
            blocked: false,
            waiting: false,
            ios_left: bounds.ios,
            bytes_left: bounds.bytes,
            end: None,
            stats: Stats::for_kinds(kinds.iter().copied()),
            reading,
            bounds,
        })
    }

    /// Stops starting I/Os; the first reason is kept.
    fn finish(&mut self, why: LaneEnd) {
        self.end.get_or_insert(why);
    }

    /// Polls or refills one slot and subtracts its I/Os from `budget`. True if the slot must be
    /// polled again at once.
    fn advance(&mut self, slot: u32, budget: &mut usize) -> bool {
        let index = slot as usize;
        let mut now_ns = if !matches!(self.slots[index].flight, Flight::Idle) {
            match self.poll_slot(index) {
                Some(now_ns) => now_ns,
                None => return false,
            }
        } else if self.end.is_some() {
            return false;
        } else if self.blocked {
            self.idle.push(slot);
            return false;
        } else {
            time::now().as_nanos()
        };
        for _ in 0..IOS_PER_SLOT.min(*budget) {
            if self.end.is_some() {
                return false;
            }
            let Some(op) = self.choose(slot, now_ns) else { return false };
            self.begin(index, op, now_ns);
            *budget -= 1;
            match self.poll_new(index) {
                Some(ended_ns) => now_ns = ended_ns,
                None => return false,
            }
        }
        true
    }

    /// Polls the I/O in flight; returns the time of its end if it has ended.
    fn poll_slot(&mut self, index: usize) -> Option<u64> {
        let mut cx = Context::from_waker(&self.wakers[index]);
        let polled = match &mut self.slots[index].flight {
            Flight::Idle => Poll::Pending,
            Flight::Read(future) => Pin::new(future).poll(&mut cx).map_ok(Some),
            Flight::Change(future) => Pin::new(future).poll(&mut cx).map_ok(|()| None),
        };
        match polled {
            Poll::Pending => None,
            Poll::Ready(result) => Some(self.ended(index, result)),
        }
    }

    /// Polls an I/O that was just started; returns the time of its end if it has ended already.
    fn poll_new(&mut self, index: usize) -> Option<u64> {
        match std::mem::replace(&mut self.slots[index].flight, Flight::Idle) {
            Flight::Idle => {}
            Flight::Read(future) => match future.try_now() {
                Ok(result) => return Some(self.ended(index, result.map(Some))),
                Err(future) => self.slots[index].flight = Flight::Read(future),
            },
            Flight::Change(future) => match future.try_now() {
                Ok(result) => return Some(self.ended(index, result.map(|()| None))),
                Err(future) => self.slots[index].flight = Flight::Change(future),
            },
        }
        self.poll_slot(index)
    }

    /// The next I/O of the slot. If there is none, the slot is waiting or the lane ends.
    fn choose(&mut self, slot: u32, now_ns: u64) -> Option<PlannedIo> {
        let counts = now_ns >= self.bounds.measure_from_ns;
        if now_ns >= self.bounds.end_at_ns || self.ios_left == 0 || self.bytes_left == 0 {
            self.finish(LaneEnd::Complete);
            return None;
        }
        let may = now_ns >= self.paused_until_ns
            && self.pace.as_mut().is_none_or(|pace| pace.take(now_ns));
        if !may {
            self.set_idle(slot);
            return None;
        }
        match self.workload.next(slot as usize) {
            Next::Io(op) => {
                if counts && op.kind != OpKind::Flush {
                    self.ios_left -= 1;
                    self.bytes_left = self.bytes_left.saturating_sub(op.len as u64);
                }
                Some(op)
            }
            Next::Wait => {
                self.waiting = true;
                self.set_idle(slot);
                None
            }
            Next::End => {
                self.finish(LaneEnd::Complete);
                None
            }
        }
    }

    fn set_idle(&mut self, slot: u32) {
        self.blocked = true;
        self.idle.push(slot);
    }

    fn begin(&mut self, index: usize, op: PlannedIo, now_ns: u64) {
        self.in_flight += 1;
        let slot = &mut self.slots[index];
        slot.op = op;
        slot.started_ns = now_ns;
        slot.flight = match op.kind {
            OpKind::Read => Flight::Read(match slot.buf.take() {
                Some(mut buf) => {
                    if buf.len() > op.len {
                        slot.tail = Some(buf.split_off(op.len));
                    }
                    self.device.read(op.offset, buf)
                }
                None => match buf::try_alloc(op.len) {
                    Some(buf) => self.device.read(op.offset, buf),
                    None => IoFuture::ready(Err(IoError::NoMemory)),
                },
            }),
            OpKind::Write => Flight::Change(match self.workload.payload(index, &op) {
                Some(data) => self.device.write(op.offset, data, self.bounds.fua),
                None => IoFuture::ready(Err(IoError::NoMemory)),
            }),
            OpKind::Trim => Flight::Change(self.device.discard(op.offset, op.len as u64)),
            OpKind::Flush => Flight::Change(self.device.flush()),
        };
    }

    /// Ends the I/O of a slot, with the buffer of a read; returns the time.
    fn ended(&mut self, index: usize, result: Result<Option<BufMut>, IoError>) -> u64 {
        let now_ns = time::now().as_nanos();
        let slot = &mut self.slots[index];
        // Drop it before notifying the workload, so that the workload is the only owner of the
        // payload.
        slot.flight = Flight::Idle;
        let (op, tail) = (slot.op, slot.tail.take());
        match result {
            Ok(data) => {
                let outcome = data.as_deref().map_or(IoOutcome::Done, IoOutcome::Read);
                self.workload.ended(index, &op, outcome);
                if let Some(mut buf) = data {
                    // If the device returns another buffer, the tail is lost, and the next longer
                    // read allocates a new one.
                    let whole = tail.is_none_or(|tail| buf.unsplit(tail).is_ok());
                    let whole = whole && buf.len() == self.bounds.io_bytes_max;
                    self.slots[index].buf = whole.then_some(buf);
                }
                self.count(index, now_ns);
            }
            Err(error) => {
                drop(tail);
                if op.kind == OpKind::Read {
                    // The device dropped the buffer; the pool will most likely supply the same one
                    // again.
                    self.slots[index].buf = buf::try_alloc(self.bounds.io_bytes_max);
                }
                self.workload.ended(index, &op, IoOutcome::Failed);
                self.count_error(&op, error, now_ns);
            }
        }
        now_ns
    }

    #[inline]
    fn count(&mut self, index: usize, now_ns: u64) {
        self.in_flight -= 1;
        let Slot { op, started_ns, .. } = self.slots[index];
        let counts_at = if self.bounds.by_end { now_ns } else { started_ns };
        if counts_at < self.bounds.measure_from_ns {
            return;
        }
        let latency_ns = now_ns.saturating_sub(started_ns);
        self.stats.record(op.kind, op.len, latency_ns);
        self.stats.last_ns = now_ns;
        if op.kind != OpKind::Flush {
            self.reading.ios += 1;
            self.reading.bytes += op.len as u64;
            self.reading.latency_sum_ns = self.reading.latency_sum_ns.saturating_add(latency_ns);
        }
    }

    fn count_error(&mut self, op: &PlannedIo, error: IoError, now_ns: u64) {
        self.in_flight -= 1;
        self.stats.record_error(op.kind, error);
        self.stats.last_ns = now_ns;
        self.reading.errors += 1;
        self.paused_until_ns = now_ns + ERROR_PAUSE.as_nanos() as u64;
        if self.stats.failed > self.bounds.errors_max {
            self.finish(LaneEnd::Errors);
        }
    }

    fn poll_timers(&mut self, cx: &mut Context<'_>) {
        if self.idle.is_empty() {
            return;
        }
        let now_ns = time::now().as_nanos();
        if self.paused_until_ns > now_ns {
            let until = self.paused_until_ns;
            poll_at(&mut self.pause_timer, until, now_ns, cx);
        } else if let Some(pace) = &mut self.pace {
            poll_at(&mut pace.timer, pace.due_ns, now_ns, cx);
        }
    }

    /// Checks for changes since the last poll.
    fn take_stock(&mut self, cx: &mut Context<'_>) {
        self.links.woken.listen(cx.waker());
        let due = &mut self.due;
        self.links.woken.drain(|slot| due.push_back(slot as u32));
        let _ = self.workload.poll_side(cx);
        (self.blocked, self.waiting) = (false, false);
        self.due.extend(self.idle.drain(..));
        if self.bounds.end_at_ns != u64::MAX && self.links.signals.time_up.load(Ordering::Relaxed) {
            self.finish(LaneEnd::Complete);
        }
        if self.links.signals.stop.load(Ordering::Relaxed) {
            self.finish(LaneEnd::Stopped);
        }
    }

    fn is_over(&mut self, cx: &mut Context<'_>) -> Option<LaneEnd> {
        let end = self.end?;
        let abandoned = self.links.signals.abandon.load(Ordering::Relaxed);
        let done = self.in_flight == 0 && self.workload.poll_side(cx).is_ready();
        (done || abandoned).then_some(end)
    }
}

/// Polls a timer for `at_ns`. If that time has passed, polls the lane again.
fn poll_at(timer: &mut Option<time::Sleep>, at_ns: u64, now_ns: u64, cx: &mut Context<'_>) {
    let span = std::time::Duration::from_nanos(at_ns.saturating_sub(now_ns));
    let sleep = timer.insert(time::sleep(span));
    if Pin::new(sleep).poll(cx).is_ready() {
        cx.waker().wake_by_ref();
    }
}

impl<W: LaneWorkload> Future for Lane<'_, W> {
    type Output = (LaneEnd, Stats);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<(LaneEnd, Stats)> {
        let lane = &mut *self;
        lane.take_stock(cx);
        let mut budget = IOS_PER_POLL;
        while budget > 0
            && let Some(slot) = lane.due.pop_front()
        {
            budget -= 1;
            if lane.advance(slot, &mut budget) {
                lane.due.push_back(slot);
            }
        }
        lane.reading.violations = lane.workload.violations();
        lane.links.gauge.show(&lane.reading);
        if let Some(end) = lane.is_over(cx) {
            lane.stats.unfinished = lane.in_flight as u64;
            return Poll::Ready((end, std::mem::take(&mut lane.stats)));
        }
        let side_is_done = lane.workload.poll_side(cx).is_ready();
        if !lane.due.is_empty() || (lane.waiting && side_is_done) {
            cx.waker().wake_by_ref();
        } else {
            lane.poll_timers(cx);
        }
        Poll::Pending
    }
}
