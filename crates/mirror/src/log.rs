//! The write-intent log in use: which parts of the volume may differ from the peers', on disk
//! before they can.
//!
//! Promises:
//! - while a [`Pin`] lives, its regions are named by a durable record; taking one is a few atomic
//!   operations when they are hot, from any core, without I/O or memory;
//! - calls that wait for a record share the next one: one record is in flight at a time;
//! - a region leaves the record when no call is in it, the data device was flushed since the last
//!   one ended, and each of its bits that is set is durable in its page: whatever a power loss
//!   takes, the log names it;
//! - bits that are cleared in memory alone cost a longer resync at worst, and reach the disk in time;
//! - with nothing to do no task lives: whoever has something for the writer starts it.
//!
//! A log device that fails fails the writes that need it; hot regions go on.
//!
//! With [`Intent::EveryWrite`] each call waits for a record of its own first, as a log without hot
//! regions would have it. All of the above holds still.

use std::future::poll_fn;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use flagstone_blockdev::{IoError, SharedDevice};
use flagstone_runtime::{spawn_detached, time};

use crate::area::Area;
use crate::bitmap::Bitmap;
use crate::counter;
use crate::format::superblock::Progress;
use crate::hot::{Cells, HotSet, Plan, Reached};
use crate::id::Uuid;
use crate::limits::{COOL_TICK_MS, PAGES_PER_WRITE};
use crate::options::Intent;
use crate::pages::{CLEARED, Pages, SET, page_of};
use crate::turn::{Turn, Turns};
use crate::write::Finish;

/// What the log has cost and saved, since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Calls whose regions were hot: writes of metadata saved.
    pub hot_calls: u64,
    /// Calls that waited for a record.
    pub cold_calls: u64,
    /// Hot records written.
    pub record_writes: u64,
    /// Writes of bitmap pages, each of up to 64.
    pub page_writes: u64,
    /// Flushes of the data device before regions left.
    pub data_flushes: u64,
    /// Writes of metadata, or flushes, that failed.
    pub failures: u64,
    /// Regions that are hot now.
    pub hot_regions: u64,
}

#[derive(Debug, Default)]
struct Counters {
    hot_calls: AtomicU64,
    cold_calls: AtomicU64,
    record_writes: AtomicU64,
    page_writes: AtomicU64,
    data_flushes: AtomicU64,
    failures: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// See the module.
pub(crate) struct Log {
    name: Uuid,
    area: Area,
    data: SharedDevice,
    bits: Bitmap,
    pages: Pages,
    cells: Cells,
    turns: Arc<Turns>,
    state: Mutex<State>,
    ticking: AtomicBool,
    /// Nothing is written any more: another has the disks.
    retired: AtomicBool,
    /// [`Intent::EveryWrite`].
    every_write: AtomicBool,
    counters: Counters,
}

struct State {
    hot: HotSet,
    /// In use: calls may enter.
    open: bool,
    /// A task writes records, or is about to.
    writing: bool,
    /// Sequence of the latest record that is on the disk for certain.
    sequence: u64,
    /// Raised by each [`Log::notify`].
    changes: u64,
    wakers: Vec<Waker>,
}

/// Keeps the regions of a range hot, until it is dropped.
pub struct Pin {
    log: Arc<Log>,
    regions: Range<u32>,
}

impl Drop for Pin {
    fn drop(&mut self) {
        if self.log.cells.leave(self.regions.clone()) {
            self.log.notify();
        }
    }
}

/// Where a log that was found stands.
pub(crate) struct Start {
    pub(crate) name: Uuid,
    pub(crate) bits: Bitmap,
    pub(crate) pages: Pages,
    /// Sequence of its latest record.
    pub(crate) sequence: u64,
}

impl Log {
    pub(crate) fn new(area: Area, data: SharedDevice, start: Start) -> Arc<Log> {
        let shape = *area.shape();
        let state = State {
            hot: HotSet::new(shape.hot_regions),
            open: false,
            writing: false,
            sequence: start.sequence,
            changes: 0,
            wakers: Vec::new(),
        };
        Arc::new(Log {
            name: start.name,
            area,
            data,
            bits: start.bits,
            pages: start.pages,
            cells: Cells::new(shape.regions()),
            turns: Arc::default(),
            state: Mutex::new(state),
            ticking: AtomicBool::new(false),
            retired: AtomicBool::new(false),
            every_write: AtomicBool::new(false),
            counters: Counters::default(),
        })
    }

    pub(crate) fn bits(&self) -> &Bitmap {
        &self.bits
    }

    pub(crate) fn area(&self) -> &Area {
        &self.area
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes all who wait for something here: each looks again.
    fn notify(&self) {
        let wakers = {
            let mut state = self.lock();
            state.changes += 1;
            std::mem::take(&mut state.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    async fn wait<T>(&self, mut ready: impl FnMut(&mut State) -> Option<T>) -> T {
        poll_fn(|cx| {
            let mut state = self.lock();
            if let Some(value) = ready(&mut state) {
                return Poll::Ready(value);
            }
            if !state.wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
                state.wakers.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    pub(crate) fn statistics(&self) -> Statistics {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Statistics {
            hot_calls: get(&self.counters.hot_calls),
            cold_calls: get(&self.counters.cold_calls),
            record_writes: get(&self.counters.record_writes),
            page_writes: get(&self.counters.page_writes),
            data_flushes: get(&self.counters.data_flushes),
            failures: get(&self.counters.failures),
            hot_regions: self.lock().hot.len() as u64,
        }
    }
}

/// Calls enter and leave.
impl Log {
    fn regions(&self, offset: u64, len: u64) -> Range<u32> {
        let region = u64::from(self.area.shape().region_bytes);
        let end = offset.saturating_add(len).div_ceil(region).min(self.area.shape().regions());
        // A volume has at most 2^24 regions.
        (offset / region).min(end) as u32..end as u32
    }

    pub(crate) fn set_intent(&self, intent: Intent) {
        self.every_write.store(intent == Intent::EveryWrite, Ordering::Relaxed);
    }

    /// Enters the regions of a range, if all are hot and a call needs no record of its own.
    pub(crate) fn try_pin(self: &Arc<Self>, offset: u64, len: u64) -> Option<Pin> {
        if self.every_write.load(Ordering::Relaxed) {
            return None;
        }
        let pin = self.enter(self.regions(offset, len))?;
        count(&self.counters.hot_calls);
        Some(pin)
    }

    fn enter(self: &Arc<Self>, regions: Range<u32>) -> Option<Pin> {
        match self.cells.try_enter(regions.clone()) {
            Ok(()) => Some(Pin { log: self.clone(), regions }),
            Err(cold) => {
                if cold.awaited {
                    self.notify();
                }
                None
            }
        }
    }

    /// Enters the regions of a range, when they are hot.
    ///
    /// # Errors
    /// Of the log's device, or of the data device's flush. [`IoError::Unreachable`] when the log is
    /// not in use.
    pub(crate) async fn pin(self: &Arc<Self>, offset: u64, len: u64) -> Result<Pin, IoError> {
        if let Some(pin) = self.try_pin(offset, len) {
            return Ok(pin);
        }
        count(&self.counters.cold_calls);
        let regions = self.regions(offset, len);
        if self.every_write.load(Ordering::Relaxed) {
            // Before it is in any region: who closes the log has the turn, and waits for those in.
            Finish::new(write_own_record(self.clone())).await?;
            if let Some(pin) = self.enter(regions.clone()) {
                return Ok(pin);
            }
        }
        let (id, start) = {
            let mut state = self.lock();
            if !state.open {
                return Err(IoError::Unreachable);
            }
            (state.hot.ask(regions.clone()), !std::mem::replace(&mut state.writing, true))
        };
        let asking = Asking { log: self, id };
        if start {
            spawn_detached(write_records(self.clone()));
        }
        let result = self.wait(|state| state.hot.answer(id)).await;
        // Answered: there is nothing to give up any more.
        std::mem::forget(asking);
        result.map(|()| Pin { log: self.clone(), regions })
    }
}

/// A call that waits for its regions, until it gives up.
struct Asking<'a> {
    log: &'a Log,
    id: u64,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let again = self.log.lock().hot.abandon(&self.log.cells, self.id);
        if again {
            self.log.notify();
        }
    }
}

/// Records.
impl Log {
    /// Takes the log for metadata of another kind: no record or page is written meanwhile.
    pub(crate) async fn turn(&self) -> Turn {
        self.turns.take().await
    }

    /// Does what a plan says. In a turn.
    async fn carry_out(&self, plan: &Plan) -> Result<(), IoError> {
        let mut reached = Reached::Before;
        let result = self.try_carry_out(plan, &mut reached).await;
        {
            let mut state = self.lock();
            match result {
                Ok(()) => state.hot.landed(&self.cells, plan),
                Err(error) => state.hot.failed(&self.cells, plan, reached, error),
            }
        }
        if result.is_err() {
            count(&self.counters.failures);
        }
        self.notify();
        result
    }

    async fn try_carry_out(&self, plan: &Plan, reached: &mut Reached) -> Result<(), IoError> {
        if !plan.leaving.is_empty() {
            if self.data.geometry().volatile_cache {
                count(&self.counters.data_flushes);
                self.data.flush().await?;
            }
            let bits = u64::from(self.area.shape().region_bits());
            // A region lies on one page: see `limits::REGION_MAX_BITS`.
            let mut pages: Vec<u64> =
                plan.leaving.iter().map(|region| page_of(u64::from(*region) * bits)).collect();
            pages.sort_unstable();
            pages.dedup();
            for page in pages {
                self.persist(page..page + 1, SET).await?;
            }
        }
        if plan.needs_no_record() {
            return Ok(());
        }
        *reached = Reached::Record;
        let regions = self.lock().hot.record();
        self.write_record(&regions).await
    }

    async fn write_record(&self, regions: &[u32]) -> Result<(), IoError> {
        // After a failure the same slot again: the other holds the one that stands.
        let sequence = counter::next(self.lock().sequence)?;
        self.check_not_retired()?;
        count(&self.counters.record_writes);
        self.area.write_record(sequence, self.name, regions).await?;
        self.lock().sequence = sequence;
        Ok(())
    }
}

/// [`Intent::EveryWrite`]: one call's record, in a turn of its own. It names what is hot now.
async fn write_own_record(log: Arc<Log>) -> Result<(), IoError> {
    let _turn = log.turn().await;
    if !log.is_open() {
        return Err(IoError::Unreachable);
    }
    let regions = log.lock().hot.record();
    log.write_record(&regions).await.inspect_err(|_| count(&log.counters.failures))
}

/// Serves tickets until there are none.
async fn write_records(log: Arc<Log>) {
    loop {
        let turn = log.turn().await;
        let (plan, seen) = {
            let mut state = log.lock();
            let plan = state.hot.plan(&log.cells);
            if plan.is_empty() && !state.hot.has_queued() {
                state.writing = false;
                return;
            }
            (plan, state.changes)
        };
        if plan.is_empty() {
            // All regions are busy, and some were closed: the last call to leave one tells.
            drop(turn);
            log.wait(|state| (state.changes != seen).then_some(())).await;
            continue;
        }
        // Who waits is told of an error.
        let _ = log.carry_out(&plan).await;
        log.start_ticker();
    }
}

/// Bits and their pages.
impl Log {
    /// Sets bits whose regions are pinned, or which [`Log::persist_marks`] follows.
    pub(crate) fn mark(&self, bits: Range<u64>) {
        self.bits.set(bits.clone());
        self.pages.raise(&bits, SET);
    }

    /// Clears bits.
    pub(crate) fn clear(self: &Arc<Self>, bits: Range<u64>) {
        self.bits.clear(bits.clone());
        self.pages.raise(&bits, CLEARED);
        self.start_ticker();
    }

    /// Writes the pages of a range that have one of these flags. In a turn.
    async fn persist(&self, within: Range<u64>, flags: u8) -> Result<(), IoError> {
        let mut from = within.start;
        while let Some(run) = self.pages.next_run(from..within.end, flags) {
            from = run.end;
            self.persist_run(run).await?;
        }
        Ok(())
    }

    async fn persist_run(&self, run: Range<u64>) -> Result<(), IoError> {
        self.check_not_retired()?;
        let taken: Vec<u8> = run.clone().map(|page| self.pages.take(page)).collect();
        count(&self.counters.page_writes);
        let next = |page| self.pages.next_count(page);
        let result = self.area.write_pages(self.name, run.clone(), &self.bits, next).await;
        match result {
            Ok(()) => self.pages.written(run),
            // It is torn or not there: both are right again when it is written.
            Err(_) => {
                run.zip(taken).for_each(|(page, flags)| self.pages.give_back(page, flags | SET));
            }
        }
        result
    }

    /// Makes all bits durable that were set before this call.
    pub(crate) async fn persist_marks(&self) -> Result<(), IoError> {
        let _turn = self.turn().await;
        self.persist(0..self.pages.len(), SET).await
    }
}

/// Cooling.
impl Log {
    fn start_ticker(self: &Arc<Self>) {
        if !self.ticking.swap(true, Ordering::AcqRel) {
            spawn_detached(tick(Arc::downgrade(self)));
        }
    }

    /// Lets regions go that nobody writes to, and writes pages whose bits were cleared.
    async fn cool(&self) {
        let _turn = self.turn().await;
        let plan = {
            let mut state = self.lock();
            if state.open { state.hot.cool(&self.cells) } else { Plan::default() }
        };
        // What fails is tried again at the next look.
        if !plan.is_empty() && self.carry_out(&plan).await.is_err() {
            return;
        }
        for _ in 0..PAGES_PER_WRITE {
            let Some(run) = self.pages.next_run(0..self.pages.len(), CLEARED) else { return };
            if self.persist_run(run).await.is_err() {
                count(&self.counters.failures);
                return;
            }
        }
    }

    fn has_to_cool(&self) -> bool {
        self.lock().hot.len() > 0 || self.pages.next_run(0..self.pages.len(), CLEARED).is_some()
    }
}

async fn tick(log: Weak<Log>) {
    loop {
        time::sleep(Duration::from_millis(COOL_TICK_MS)).await;
        let Some(log) = log.upgrade() else { return };
        log.cool().await;
        if log.is_retired() {
            return;
        }
        if log.has_to_cool() {
            continue;
        }
        log.ticking.store(false, Ordering::Release);
        // Something may have come between the look and the store, and found us ticking.
        if !log.has_to_cool() || log.ticking.swap(true, Ordering::AcqRel) {
            return;
        }
    }
}

/// In use and out of it.
impl Log {
    /// No call is in, and the record says so: all bits are on disk, and the data is durable. In a
    /// turn.
    pub(crate) async fn settle(&self) -> Result<(), IoError> {
        if self.data.geometry().volatile_cache {
            count(&self.counters.data_flushes);
            self.data.flush().await?;
        }
        self.persist(0..self.pages.len(), SET).await?;
        self.write_record(&[]).await
    }

    /// What is on the log's device for certain. What it has come to since is more.
    pub(crate) fn progress(&self) -> Progress {
        let record_sequence = self.lock().sequence;
        Progress { record_sequence, page_writes: self.pages.all_writes() }
    }

    /// Nothing is written from now on. In a turn.
    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::Release);
        self.notify();
    }

    /// Waits until calls are let in no longer.
    pub(crate) async fn ended(&self) {
        self.wait(|state| (!state.open || self.is_retired()).then_some(())).await;
    }

    fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }

    fn check_not_retired(&self) -> Result<(), IoError> {
        if self.is_retired() { Err(IoError::Unreachable) } else { Ok(()) }
    }

    /// Lets calls in.
    pub(crate) fn open(&self) {
        self.lock().open = true;
    }

    /// True while calls are let in.
    pub(crate) fn is_open(&self) -> bool {
        self.lock().open
    }

    /// Refuses calls from now on, and waits for those that are in. In a turn.
    ///
    /// # Errors
    /// As of a record that lets regions go. Calls stay refused, and those regions named.
    pub(crate) async fn close(&self) -> Result<(), IoError> {
        {
            let mut state = self.lock();
            state.open = false;
            state.hot.refuse_all(IoError::Unreachable);
        }
        self.notify();
        // Regions that are empty leave; the others wait for their calls.
        self.wait(|state| {
            let _ = state.hot.close_all(&self.cells);
            (state.hot.len() == 0).then_some(())
        })
        .await;
        self.settle().await
    }
}
