//! Write-intent log in use: records on disk which parts of the volume may differ from the peers'
//! before they can differ.
//!
//! Guarantees:
//! - while a [`RegionRef`] lives, a durable record names its regions. Taking one costs a few atomic
//!   operations when the regions are active, from any core, without I/O or allocation;
//! - calls that wait for a record share the next one, and one record is in flight at a time;
//! - a region leaves the record only when no call is in it, the data device was flushed after its
//!   last call ended, and each of its set bits is durable in its page. So after any power failure
//!   the log names every difference;
//! - a bit cleared only in memory costs at most a longer resync, and reaches the disk in time;
//! - an idle log has no task. The caller that produces work for the writer starts it.
//!
//! If the log device fails, writes that need it fail, and writes to active regions continue.
//!
//! With [`IntentLogMode::EveryWrite`] each call first waits for a record of its own, as in a log
//! without active regions. All guarantees hold unchanged.

use std::future::poll_fn;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use flagstone_blockdev::{IoError, SharedDevice};
use flagstone_runtime::{spawn_detached, time};
use parking_lot::{Mutex, MutexGuard};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::id::MirrorId;
use crate::intent_log::active_regions::{ActiveSet, FailureStage, RegionTable, WriterWork};
use crate::intent_log::bitmap::Bitmap;
use crate::intent_log::log_area::LogArea;
use crate::intent_log::pages::{CLEARED, Pages, SET, UNCOPIED, page_of};
use crate::io::fifo_lock::{FifoGuard, FifoLock};
use crate::io::request::RunToCompletion;
use crate::limits::{EVICT_TICK_MS, PAGES_PER_WRITE};
use crate::ondisk::counter;
use crate::ondisk::layout::ReplicaGeometry;
use crate::ondisk::superblock::LogProgress;
use crate::options::IntentLogMode;

/// Counters of the log since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IntentLogStatistics {
    /// Calls whose regions were active, which needed no metadata write.
    pub activity_log_hits: u64,
    /// Calls that waited for a record.
    pub activity_log_misses: u64,
    /// Activity records written.
    pub record_writes: u64,
    /// Writes of bitmap pages, of up to 64 pages each.
    pub page_writes: u64,
    /// Flushes of the data device before regions were evicted.
    pub data_flushes: u64,
    /// Failed writes of metadata, and failed flushes.
    pub failures: u64,
    /// Regions active now.
    pub active_regions: u64,
}

#[derive(Debug, Default)]
struct Counters {
    activity_log_hits: AtomicU64,
    activity_log_misses: AtomicU64,
    record_writes: AtomicU64,
    page_writes: AtomicU64,
    data_flushes: AtomicU64,
    failures: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The log, its bitmap and its writer.
pub(crate) struct IntentLog {
    geometry: ReplicaGeometry,
    /// Changed under the FIFO lock.
    place: Mutex<LogLocation>,
    data: SharedDevice,
    bits: Bitmap,
    pages: Pages,
    table: RegionTable,
    fifo: Arc<FifoLock>,
    state: Mutex<State>,
    ticking: AtomicBool,
    /// True if no more writes are allowed: another mirror owns the devices.
    retired: AtomicBool,
    /// No writes any more: which of two logs the superblock names is unknown.
    frozen: AtomicBool,
    /// [`IntentLogMode::EveryWrite`] is in effect.
    every_write: AtomicBool,
    counters: Counters,
}

/// Where the log is stored, and its name there.
#[derive(Clone)]
pub(crate) struct LogLocation {
    pub(crate) name: MirrorId,
    pub(crate) area: LogArea,
}

struct State {
    active: ActiveSet,
    /// In use: calls may enter.
    open: bool,
    /// A task writes records, or is about to.
    writing: bool,
    /// Sequence number of the latest record that is certainly on disk.
    sequence: u64,
    /// Incremented by each [`IntentLog::notify`].
    changes: u64,
    wakers: Vec<Waker>,
}

/// Region reference: keeps the regions of a range active until it is dropped.
pub struct RegionRef {
    log: Arc<IntentLog>,
    regions: Range<u32>,
}

impl Drop for RegionRef {
    fn drop(&mut self) {
        if self.log.table.leave(self.regions.clone()) {
            self.log.notify();
        }
    }
}

pub(crate) struct LogWriterStart {
    pub(crate) name: MirrorId,
    pub(crate) bits: Bitmap,
    pub(crate) pages: Pages,
    pub(crate) sequence: u64,
}

impl IntentLog {
    pub(crate) fn new(area: LogArea, data: SharedDevice, start: LogWriterStart) -> Arc<IntentLog> {
        let geometry = *area.geometry();
        let state = State {
            active: ActiveSet::new(geometry.active_regions_max),
            open: false,
            writing: false,
            sequence: start.sequence,
            changes: 0,
            wakers: Vec::new(),
        };
        Arc::new(IntentLog {
            geometry,
            place: Mutex::new(LogLocation { name: start.name, area }),
            data,
            bits: start.bits,
            pages: start.pages,
            table: RegionTable::new(geometry.regions()),
            fifo: Arc::default(),
            state: Mutex::new(state),
            ticking: AtomicBool::new(false),
            retired: AtomicBool::new(false),
            frozen: AtomicBool::new(false),
            every_write: AtomicBool::new(false),
            counters: Counters::default(),
        })
    }

    pub(crate) fn bits(&self) -> &Bitmap {
        &self.bits
    }

    pub(crate) fn geometry(&self) -> &ReplicaGeometry {
        &self.geometry
    }

    pub(crate) fn place(&self) -> LogLocation {
        self.place.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

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

    pub(crate) fn statistics(&self) -> IntentLogStatistics {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        IntentLogStatistics {
            activity_log_hits: get(&self.counters.activity_log_hits),
            activity_log_misses: get(&self.counters.activity_log_misses),
            record_writes: get(&self.counters.record_writes),
            page_writes: get(&self.counters.page_writes),
            data_flushes: get(&self.counters.data_flushes),
            failures: get(&self.counters.failures),
            active_regions: self.lock().active.len() as u64,
        }
    }
}

/// Calls entering and leaving.
impl IntentLog {
    fn regions(&self, offset: u64, len: u64) -> Range<u32> {
        let region = u64::from(self.geometry.region_bytes);
        let end = offset.saturating_add(len).div_ceil(region).min(self.geometry.regions());
        // A volume has at most 2^24 regions.
        (offset / region).min(end) as u32..end as u32
    }

    pub(crate) fn set_intent_log_mode(&self, mode: IntentLogMode) {
        self.every_write.store(mode == IntentLogMode::EveryWrite, Ordering::Relaxed);
    }

    /// References the regions of a range, if all are active and no call needs its own record.
    pub(crate) fn try_reference(self: &Arc<Self>, offset: u64, len: u64) -> Option<RegionRef> {
        if self.every_write.load(Ordering::Relaxed) {
            return None;
        }
        let region_ref = self.enter(self.regions(offset, len))?;
        count(&self.counters.activity_log_hits);
        Some(region_ref)
    }

    fn enter(self: &Arc<Self>, regions: Range<u32>) -> Option<RegionRef> {
        match self.table.try_enter(regions.clone()) {
            Ok(()) => Some(RegionRef { log: self.clone(), regions }),
            Err(inactive) => {
                if inactive.awaited {
                    self.notify();
                }
                None
            }
        }
    }

    /// References the regions of a range, waiting until they are active.
    ///
    /// # Errors
    /// Of the log device, or of the flush of the data device. [`IoError::Unreachable`] when the log
    /// is not in use.
    pub(crate) async fn reference(
        self: &Arc<Self>,
        offset: u64,
        len: u64,
    ) -> Result<RegionRef, IoError> {
        if let Some(region_ref) = self.try_reference(offset, len) {
            return Ok(region_ref);
        }
        count(&self.counters.activity_log_misses);
        let regions = self.regions(offset, len);
        if self.every_write.load(Ordering::Relaxed) {
            // Before any region: closing the log takes the lock and then waits for calls inside.
            RunToCompletion::new(write_own_record(self.clone())).await?;
            if let Some(region_ref) = self.enter(regions.clone()) {
                return Ok(region_ref);
            }
        }
        let (id, start) = {
            let mut state = self.lock();
            if !state.open {
                return Err(IoError::Unreachable);
            }
            (state.active.ask(regions.clone()), !std::mem::replace(&mut state.writing, true))
        };
        let asking = PendingRegions { log: self, id };
        if start {
            spawn_detached(write_records(self.clone()));
        }
        let result = self.wait(|state| state.active.answer(id)).await;
        // The request is answered, so there is nothing to abandon.
        std::mem::forget(asking);
        result.map(|()| RegionRef { log: self.clone(), regions })
    }
}

/// A call that waits for its regions. Dropping it abandons the request.
struct PendingRegions<'a> {
    log: &'a IntentLog,
    id: u64,
}

impl Drop for PendingRegions<'_> {
    fn drop(&mut self) {
        let again = self.log.lock().active.abandon(&self.log.table, self.id);
        if again {
            self.log.notify();
        }
    }
}

/// Records.
impl IntentLog {
    /// Locks the log for other metadata: no record or page is written meanwhile.
    pub(crate) async fn exclusive(&self) -> FifoGuard {
        self.fifo.acquire().await
    }

    /// Executes a plan. The caller holds the lock.
    async fn execute(&self, plan: &WriterWork) -> Result<(), IoError> {
        let mut reached = FailureStage::BeforeRecord;
        let result = self.try_carry_out(plan, &mut reached).await;
        {
            let mut state = self.lock();
            match result {
                Ok(()) => state.active.succeeded(&self.table, plan),
                Err(error) => state.active.failed(&self.table, plan, reached, error),
            }
        }
        if result.is_err() {
            count(&self.counters.failures);
        }
        self.notify();
        result
    }

    async fn try_carry_out(
        &self,
        plan: &WriterWork,
        reached: &mut FailureStage,
    ) -> Result<(), IoError> {
        if !plan.evicted.is_empty() {
            if self.data.geometry().volatile_cache {
                count(&self.counters.data_flushes);
                self.data.flush().await?;
            }
            let bits = u64::from(self.geometry.region_bits());
            // A region never spans pages: see `limits::REGION_MAX_BITS`.
            let mut pages: Vec<u64> =
                plan.evicted.iter().map(|region| page_of(u64::from(*region) * bits)).collect();
            pages.sort_unstable();
            pages.dedup();
            for page in pages {
                self.persist(page..page + 1, SET).await?;
            }
        }
        if plan.needs_no_record() {
            return Ok(());
        }
        *reached = FailureStage::Record;
        let regions = self.lock().active.record();
        self.write_record(&regions).await
    }

    async fn write_record(&self, regions: &[u32]) -> Result<(), IoError> {
        // After a failure, write the same slot again: the other slot holds the valid record.
        let sequence = counter::next(self.lock().sequence)?;
        self.check_not_retired()?;
        count(&self.counters.record_writes);
        let LogLocation { name, area } = self.place();
        area.write_record(sequence, name, regions).await?;
        self.lock().sequence = sequence;
        Ok(())
    }
}

/// Writes one call's record ([`IntentLogMode::EveryWrite`]), naming the regions active now.
async fn write_own_record(log: Arc<IntentLog>) -> Result<(), IoError> {
    let _guard = log.exclusive().await;
    if !log.is_open() {
        return Err(IoError::Unreachable);
    }
    let regions = log.lock().active.record();
    log.write_record(&regions).await.inspect_err(|_| count(&log.counters.failures))
}

/// Serves tickets until none is left.
async fn write_records(log: Arc<IntentLog>) {
    loop {
        let guard = log.exclusive().await;
        let (plan, seen) = {
            let mut state = log.lock();
            let plan = state.active.plan(&log.table);
            if plan.is_empty() && !state.active.has_queued() {
                state.writing = false;
                return;
            }
            (plan, state.changes)
        };
        if plan.is_empty() {
            // All regions are busy, and some were closed: the last call to leave one notifies.
            drop(guard);
            log.wait(|state| (state.changes != seen).then_some(())).await;
            continue;
        }
        // The waiting calls get the error.
        let _ = log.execute(&plan).await;
        log.start_ticker();
    }
}

/// Bits and their pages.
impl IntentLog {
    /// Sets bits that a region reference or [`IntentLog::persist_marks`] makes durable.
    pub(crate) fn mark(&self, bits: Range<u64>) {
        self.bits.set(bits.clone());
        self.pages.raise(&bits, SET);
    }

    pub(crate) fn clear(self: &Arc<Self>, bits: Range<u64>) {
        self.bits.clear(bits.clone());
        self.pages.raise(&bits, CLEARED);
        self.start_ticker();
    }

    /// Writes the pages of a range that have one of these flags. The caller holds the lock.
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
        let LogLocation { name, area } = self.place();
        let result = area.write_pages(name, run.clone(), &self.bits, next).await;
        match result {
            Ok(()) => self.pages.written(run),
            // The pages may be torn or unchanged. Either way they are correct after the next write.
            Err(_) => {
                run.zip(taken).for_each(|(page, flags)| self.pages.give_back(page, flags | SET));
            }
        }
        result
    }

    /// Makes all bits durable that were set before this call.
    pub(crate) async fn persist_marks(&self) -> Result<(), IoError> {
        let _guard = self.exclusive().await;
        self.persist(0..self.pages.len(), SET).await
    }
}

/// Moving to another place.
impl IntentLog {
    /// Makes every page count as not copied.
    pub(crate) fn begin_copies(&self) {
        self.pages.raise_all(UNCOPIED);
    }

    /// Copies the pages that have changed since they were last copied. Returns their number.
    pub(crate) async fn copy_pages(&self, to: &LogLocation) -> Result<u64, IoError> {
        let (mut from, mut copied) = (0, 0);
        while let Some(run) = self.pages.next_run(from..self.pages.len(), UNCOPIED) {
            (from, copied) = (run.end, copied + run.end - run.start);
            run.clone().for_each(|page| self.pages.take_one(page, UNCOPIED));
            let count = |page| Ok(self.pages.writes(page));
            to.area.write_pages(to.name, run, &self.bits, count).await?;
        }
        Ok(copied)
    }

    /// Copies the latest record. The caller holds the lock.
    pub(crate) async fn copy_record(&self, to: &LogLocation) -> Result<(), IoError> {
        let (sequence, regions) = {
            let state = self.lock();
            (state.sequence, state.active.record())
        };
        to.area.write_record(sequence, to.name, &regions).await
    }

    /// Moves the log to `to`, which has the same content. The caller holds the lock.
    pub(crate) fn moved(&self, to: LogLocation) {
        *self.place.lock() = to;
    }

    /// Ends all writes, as if the log device had failed. The caller holds the lock.
    pub(crate) fn freeze(&self) {
        self.frozen.store(true, Ordering::Release);
    }
}

/// Eviction.
impl IntentLog {
    fn start_ticker(self: &Arc<Self>) {
        if !self.ticking.swap(true, Ordering::AcqRel) {
            spawn_detached(tick(Arc::downgrade(self)));
        }
    }

    /// Evicts idle regions, and writes pages whose bits were cleared.
    async fn evict_idle(&self) {
        let _guard = self.exclusive().await;
        let plan = {
            let mut state = self.lock();
            if state.open { state.active.evict_idle(&self.table) } else { WriterWork::default() }
        };
        // A failure is retried at the next tick.
        if !plan.is_empty() && self.execute(&plan).await.is_err() {
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

    fn has_work(&self) -> bool {
        self.lock().active.len() > 0 || self.pages.next_run(0..self.pages.len(), CLEARED).is_some()
    }
}

async fn tick(log: Weak<IntentLog>) {
    loop {
        time::sleep(Duration::from_millis(EVICT_TICK_MS)).await;
        let Some(log) = log.upgrade() else { return };
        log.evict_idle().await;
        if log.is_retired() {
            return;
        }
        if log.has_work() {
            continue;
        }
        log.ticking.store(false, Ordering::Release);
        // Work may have arrived after the check, while the ticker was still registered.
        if !log.has_work() || log.ticking.swap(true, Ordering::AcqRel) {
            return;
        }
    }
}

/// Opening and closing.
impl IntentLog {
    /// Brings the log to rest: no call inside, all bits on disk, data durable. Under the lock.
    pub(crate) async fn quiesce(&self) -> Result<(), IoError> {
        if self.data.geometry().volatile_cache {
            count(&self.counters.data_flushes);
            self.data.flush().await?;
        }
        self.persist(0..self.pages.len(), SET).await?;
        self.write_record(&[]).await
    }

    /// Progress that is certainly on the log device; the device may have more.
    pub(crate) fn progress(&self) -> LogProgress {
        let record_sequence = self.lock().sequence;
        LogProgress { record_sequence, page_writes: self.pages.all_writes() }
    }

    /// Stops all writes for good. The caller holds the lock.
    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::Release);
        self.notify();
    }

    /// Waits until calls are no longer admitted.
    pub(crate) async fn ended(&self) {
        self.wait(|state| (!state.open || self.is_retired()).then_some(())).await;
    }

    fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }

    fn check_not_retired(&self) -> Result<(), IoError> {
        match self.is_retired() {
            true => Err(IoError::Unreachable),
            false if self.frozen.load(Ordering::Acquire) => Err(IoError::WriteFault),
            false => Ok(()),
        }
    }

    pub(crate) fn open(&self) {
        self.lock().open = true;
    }

    pub(crate) fn is_open(&self) -> bool {
        self.lock().open
    }

    /// Refuses new calls and waits for those inside. The caller holds the lock.
    ///
    /// # Errors
    /// As of a record that evicts regions. Calls stay refused, and the regions stay named.
    pub(crate) async fn close(&self) -> Result<(), IoError> {
        {
            let mut state = self.lock();
            state.open = false;
            state.active.refuse_all(IoError::Unreachable);
        }
        self.notify();
        // Empty regions leave now; the others wait for their calls.
        self.wait(|state| {
            let _ = state.active.close_all(&self.table);
            (state.active.len() == 0).then_some(())
        })
        .await;
        self.quiesce().await
    }
}
