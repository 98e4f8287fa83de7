//! Stats layer: counts the calls of a volume and measures their latency.
//!
//! Invariants: results of the child are unchanged, and immediate results stay immediate. Each core
//! counts separately, without locked instructions. A reader adds up the cores, and may see the
//! numbers of a concurrently ending call in part. The steady state allocates nothing.
//!
//! An immediate call costs some additions. The clock is read only for other calls, from the moment
//! at which they did not complete immediately. So only calls that had to wait have measured
//! latencies, and all others count as below a microsecond.
//!
//! All calls of a volume pass this layer, so it also makes Compare and Write atomic.

pub mod latency;

use std::cell::Cell;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, OnceLock};

use crate::exclusion::Exclusion;
use crate::limits::COMPARE_LEAST_BYTES;
use crate::{IoError, IoFuture, Layer, SharedDevice};
use flagstone_runtime::time::{self, Instant};
use flagstone_runtime::{Buf, BufMut, buf, core_index, cores};

use latency::{BUCKETS, Histogram, bucket_of};

/// Kinds of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// `read`, and cached reads.
    Read,
    /// `write`
    Write,
    /// `flush`
    Flush,
    /// `discard`
    Discard,
    /// `write_zeroes`
    WriteZeroes,
}

impl CallKind {
    /// All kinds, in the order of [`Totals::calls`].
    pub const ALL: [CallKind; 5] = [
        CallKind::Read,
        CallKind::Write,
        CallKind::Flush,
        CallKind::Discard,
        CallKind::WriteZeroes,
    ];

    /// True if it changes data.
    fn is_change(self) -> bool {
        matches!(self, CallKind::Write | CallKind::Discard | CallKind::WriteZeroes)
    }

    /// Its name in documents and metrics.
    pub fn name(self) -> &'static str {
        match self {
            CallKind::Read => "read",
            CallKind::Write => "write",
            CallKind::Flush => "flush",
            CallKind::Discard => "discard",
            CallKind::WriteZeroes => "write_zeroes",
        }
    }
}

/// Layer that counts calls.
pub struct StatsLayer {
    child: SharedDevice,
    counters: Arc<Counters>,
    exclusion: Arc<Exclusion>,
}

/// Counters of a volume on all cores.
pub struct Counters {
    /// Per core, by its index; created at its first call.
    cores: Box<[OnceLock<Arc<CoreCounters>>]>,
}

/// The index of a thread that is not a core.
const UNKNOWN: usize = usize::MAX;

thread_local! {
    /// Cached index of this thread's core, because looking it up costs more than counting.
    static CORE: Cell<usize> = const { Cell::new(UNKNOWN) };
}

#[cold]
fn find_core() -> usize {
    let core = core_index();
    CORE.set(core);
    core
}

/// Counters of one core, which only this core changes.
#[derive(Default)]
struct CoreCounters {
    calls: [CallCounters; CallKind::ALL.len()],
}

#[derive(Default)]
struct CallCounters {
    at_once: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
    begun: AtomicU64,
    ended: AtomicU64,
    waited_ns: AtomicU64,
    /// Allocated at the first call that waits, because most volumes never see most kinds of calls.
    latencies: OnceLock<Box<[AtomicU64; BUCKETS]>>,
}

/// Adds to a counter that only one core changes.
#[inline]
fn add(number: &AtomicU64, more: u64) {
    number.store(number.load(Relaxed).wrapping_add(more), Relaxed);
}

impl CallCounters {
    #[inline]
    fn outcome(&self, is_ok: bool, bytes: u64) {
        match is_ok {
            true => add(&self.bytes, bytes),
            false => add(&self.errors, 1),
        }
    }
}

impl Default for Counters {
    /// The counters of a device, at zero, for each core.
    fn default() -> Counters {
        Counters { cores: cores().iter().map(|_| OnceLock::new()).collect() }
    }
}

impl Counters {
    /// The counters of this core. A core beyond the number of cores at creation shares the counters
    /// of another core, and may lose counts.
    #[inline]
    fn here(&self) -> &Arc<CoreCounters> {
        let core = match CORE.get() {
            UNKNOWN => find_core(),
            core => core,
        };
        let core = self.cores.get(core).unwrap_or(&self.cores[0]);
        core.get_or_init(Arc::default)
    }

    /// Changes in progress, on all cores.
    fn changes_in_flight(&self) -> u64 {
        let calls = self.cores.iter().filter_map(OnceLock::get).flat_map(|core| &core.calls);
        let kinds = CallKind::ALL.iter().cycle();
        let in_flight = |call: &CallCounters| {
            let ended = call.ended.load(Acquire);
            call.begun.load(Relaxed).saturating_sub(ended)
        };
        calls.zip(kinds).filter(|(_, kind)| kind.is_change()).map(|(call, _)| in_flight(call)).sum()
    }

    /// Counts so far.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for core in self.cores.iter().filter_map(OnceLock::get) {
            for (total, call) in totals.calls.iter_mut().zip(&core.calls) {
                total.add(call);
            }
        }
        totals
    }
}

/// Counts of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Per kind, in the order of [`CallKind::ALL`].
    pub calls: [CallTotals; CallKind::ALL.len()],
}

impl Totals {
    /// Counts of one kind.
    pub fn of(&self, call: CallKind) -> &CallTotals {
        &self.calls[call as usize]
    }
}

/// Counts of one kind of calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallTotals {
    /// Ended calls, successful or not.
    pub count: u64,
    /// Failed calls.
    pub errors: u64,
    /// Bytes of successful calls; zero for flushes.
    pub bytes: u64,
    /// Calls in progress.
    pub in_flight: u64,
    /// Latency of the calls.
    pub latency: Histogram,
}

impl CallTotals {
    fn add(&mut self, call: &CallCounters) {
        let at_once = call.at_once.load(Relaxed);
        // Read the ended calls before the begun ones: a call that does both in between would make
        // the difference negative.
        let ended = call.ended.load(Relaxed);
        self.in_flight += call.begun.load(Relaxed).saturating_sub(ended);
        self.count += at_once + ended;
        self.errors += call.errors.load(Relaxed);
        self.bytes += call.bytes.load(Relaxed);
        self.latency.sum_ns += call.waited_ns.load(Relaxed);
        self.latency.counts[0] += at_once;
        for (count, more) in self
            .latency
            .counts
            .iter_mut()
            .zip(call.latencies.get().into_iter().flat_map(|l| l.iter()))
        {
            *count += more.load(Relaxed);
        }
    }
}

/// A call in progress. It ends when dropped; a call whose future was dropped counts as failed.
struct Watch {
    core: Arc<CoreCounters>,
    call: CallKind,
    bytes: u64,
    begun: Instant,
    is_ok: bool,
}

impl Watch {
    fn new(core: Arc<CoreCounters>, call: CallKind, bytes: u64) -> Watch {
        add(&core.calls[call as usize].begun, 1);
        Watch { core, call, bytes, begun: time::now(), is_ok: false }
    }

    fn end(mut self, is_ok: bool) {
        self.is_ok = is_ok;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let counters = &self.core.calls[self.call as usize];
        let nanos = u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        add(&counters.waited_ns, nanos);
        let latencies =
            counters.latencies.get_or_init(|| Box::new([const { AtomicU64::new(0) }; BUCKETS]));
        add(&latencies[bucket_of(nanos)], 1);
        counters.outcome(self.is_ok, self.bytes);
        // Release: a reader that sees the end also sees the effects of the call.
        counters.ended.store(counters.ended.load(Relaxed).wrapping_add(1), Release);
    }
}

impl StatsLayer {
    /// Counts the calls of `child` on the cores of this runtime. The counters are shared with
    /// readers.
    pub fn new(child: SharedDevice) -> (StatsLayer, Arc<Counters>) {
        let counters = Arc::new(Counters::default());
        (StatsLayer::with(child, counters.clone()), counters)
    }

    /// The same with existing counters.
    pub fn with(child: SharedDevice, counters: Arc<Counters>) -> StatsLayer {
        StatsLayer { child, counters, exclusion: Arc::default() }
    }
}

impl Layer for StatsLayer {
    fn child(&self) -> &SharedDevice {
        &self.child
    }

    fn try_read_cached(&self, offset: u64, len: usize) -> Option<Buf> {
        let known = self.child.try_read_cached(offset, len)?;
        let core = self.counters.here();
        let counters = &core.calls[CallKind::Read as usize];
        add(&counters.at_once, 1);
        add(&counters.bytes, len as u64);
        Some(known)
    }

    #[inline]
    fn pass<T: 'static>(
        &self,
        call: CallKind,
        offset: u64,
        len: u64,
        make: impl FnOnce(&SharedDevice) -> IoFuture<T> + 'static,
    ) -> IoFuture<T> {
        if self.exclusion.is_on()
            && call.is_change()
            && self.child.geometry().check(offset, len).is_ok()
        {
            let (child, counters) = (self.child.clone(), self.counters.clone());
            let exclusion = self.exclusion.clone();
            return IoFuture::later(async move {
                let _range = exclusion.lock(offset, len).await;
                counted(&counters, call, len, make(&child)).await
            });
        }
        counted(&self.counters, call, len, make(&self.child))
    }

    fn compare_and_write(
        &self,
        offset: u64,
        expected: Buf,
        data: Buf,
        fua: bool,
    ) -> IoFuture<bool> {
        let len = data.len() as u64;
        let checked = match expected.len() == data.len() {
            true => self.child.geometry().check_change(offset, len),
            false => Err(IoError::Misaligned),
        };
        if let Err(error) = checked {
            return IoFuture::ready(Err(error));
        }
        let (child, counters) = (self.child.clone(), self.counters.clone());
        let exclusion = self.exclusion.clone();
        IoFuture::later(async move {
            let changes = || counters.changes_in_flight();
            let _range = exclusion.exclude(offset, len, changes).await;
            let mut at = 0;
            while at < expected.len() {
                let place = compare_place(&child, expected.len() - at)?;
                let len = place.len() as u64;
                let read = child.read(offset + at as u64, place);
                let found = counted(&counters, CallKind::Read, len, read).await?;
                if found[..] != expected[at..at + found.len()] {
                    return Ok(false);
                }
                at += found.len();
            }
            let written = child.write(offset, data, fua);
            counted(&counters, CallKind::Write, len, written).await.map(|()| true)
        })
    }
}

/// Counts a call of `len` bytes that has begun.
#[inline]
fn counted<T: 'static>(
    counters: &Counters,
    call: CallKind,
    len: u64,
    outcome: IoFuture<T>,
) -> IoFuture<T> {
    let core = counters.here();
    match outcome.try_now() {
        Ok(result) => {
            let counters = &core.calls[call as usize];
            add(&counters.at_once, 1);
            counters.outcome(result.is_ok(), len);
            IoFuture::ready(result)
        }
        Err(later) => {
            let watch = Watch::new(core.clone(), call, len);
            IoFuture::later(async move {
                let result = later.await;
                watch.end(result.is_ok());
                result
            })
        }
    }
}

/// Buffer to compare the next of `left` bytes. Others may wait for the range with all memory, so it
/// never waits: at the ceiling it takes a small one, unless a block is larger than that.
fn compare_place(device: &SharedDevice, left: usize) -> Result<BufMut, IoError> {
    let least = left.min(COMPARE_LEAST_BYTES);
    let fits = least.is_multiple_of(device.geometry().block_bytes as usize);
    let place = buf::try_alloc(left).or_else(|| fits.then(|| buf::alloc_small(least)));
    place.ok_or(IoError::NoMemory)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::{
        BlockDevice, DelayConfig, DelayLayer, DelayTime, FaultConfig, FaultLayer, FaultRate,
        NullDevice, ZeroFlags,
    };
    use flagstone_runtime::{RuntimeConfig, buf, run, sync::Notify};

    use super::*;

    fn null() -> SharedDevice {
        Arc::new(NullDevice::new(1 << 20, 512).unwrap())
    }

    fn summary(counters: &Counters, call: CallKind) -> (u64, u64, u64, u64) {
        let totals = counters.totals();
        let of = totals.of(call);
        assert_eq!(of.latency.count(), of.count, "{call:?}");
        (of.count, of.errors, of.bytes, of.in_flight)
    }

    #[test]
    fn calls_are_counted_by_kind() {
        flagstone_runtime::block_on(async {
            let config =
                FaultConfig { write: FaultRate::Every(2), seed: 0, ..FaultConfig::default() };
            let (faulty, _control) = FaultLayer::new(null(), config).unwrap();
            let (device, counters) = StatsLayer::new(Arc::new(faulty));
            for _ in 0..4 {
                device.read(512, buf::alloc(1024).await).await.unwrap();
                let _ = device.write(0, buf::alloc(512).await.freeze(), false).await;
            }
            let _ = device.read(1, buf::alloc(512).await).await.unwrap_err();
            device.discard(0, 4096).await.unwrap();
            device.write_zeroes(0, 512, ZeroFlags::default()).await.unwrap();
            device.flush().await.unwrap();
            assert_eq!(summary(&counters, CallKind::Read), (5, 1, 4096, 0));
            assert_eq!(summary(&counters, CallKind::Write), (4, 2, 1024, 0));
            assert_eq!(summary(&counters, CallKind::Discard), (1, 0, 4096, 0));
            assert_eq!(summary(&counters, CallKind::WriteZeroes), (1, 0, 512, 0));
            assert_eq!(summary(&counters, CallKind::Flush), (1, 0, 0, 0));
        })
        .unwrap();
    }

    #[test]
    fn stats_keep_immediate_calls_and_count_cached_reads() {
        flagstone_runtime::block_on(async {
            let (device, counters) = StatsLayer::new(null());
            assert!(device.flush().try_now().is_ok());
            let known = BlockDevice::try_read_cached(&device, 0, 4096).is_some();
            assert_eq!(summary(&counters, CallKind::Read).0, u64::from(known));
            assert_eq!(counters.totals().of(CallKind::Flush).latency.sum_ns, 0);
        })
        .unwrap();
    }

    #[test]
    fn calls_that_wait_are_timed() {
        flagstone_runtime::block_on(async {
            let read = DelayTime::fixed(Duration::from_millis(3));
            let delay =
                DelayLayer::new(null(), DelayConfig { read, ..DelayConfig::default() }).unwrap();
            let (device, counters) = StatsLayer::new(Arc::new(delay));
            let call = device.read(0, buf::alloc(512).await);
            assert_eq!(summary(&counters, CallKind::Read), (0, 0, 0, 1));
            call.await.unwrap();
            assert_eq!(summary(&counters, CallKind::Read), (1, 0, 512, 0));
            let totals = counters.totals();
            let latency = &totals.of(CallKind::Read).latency;
            assert!(latency.sum_ns >= 3_000_000, "{latency:?}");
            assert!(latency.quantile_ns(0.5) >= 2_500_000.0, "{latency:?}");
            // A call whose future is dropped ends too.
            drop(device.read(0, buf::alloc(512).await));
            assert_eq!(summary(&counters, CallKind::Read), (2, 1, 512, 0));
        })
        .unwrap();
    }

    #[test]
    fn counts_of_cores_add_up() {
        let config = RuntimeConfig { cores: 2, ..RuntimeConfig::default() };
        run(&config, || async {
            let (device, counters) = StatsLayer::new(null());
            let device = Arc::new(device);
            for core in cores() {
                let device = device.clone();
                core.spawn(move || async move {
                    for _ in 0..100 {
                        device.flush().await.unwrap();
                    }
                });
            }
            let never = Notify::new();
            let all = || (summary(&counters, CallKind::Flush).0 == 200).then_some(());
            while time::timeout(Duration::from_millis(1), never.wait_for(all)).await.is_err() {}
        })
        .unwrap();
    }

    const BLOCK: usize = 512;

    async fn block(byte: u8) -> Buf {
        let mut block = buf::alloc(BLOCK).await;
        block.fill(byte);
        block.freeze()
    }

    /// A volume on a slow disk: each call takes some other time.
    fn slow() -> SharedDevice {
        let memory = Arc::new(crate::MemoryDevice::new(1 << 20, BLOCK as u32).unwrap());
        let time = DelayTime { fixed: Duration::ZERO, jitter: Duration::from_millis(10) };
        let config = DelayConfig { read: time, write: time, ..DelayConfig::default() };
        Arc::new(StatsLayer::new(Arc::new(DelayLayer::new(memory, config).unwrap())).0)
    }

    #[test]
    fn compare_and_write_writes_only_equal_blocks() {
        flagstone_runtime::block_on(async {
            let device = slow();
            let swap = async |expected, new| {
                device.compare_and_write(0, block(expected).await, block(new).await, false).await
            };
            assert_eq!(swap(0, 1).await, Ok(true));
            assert_eq!(swap(0, 2).await, Ok(false));
            assert_eq!(swap(1, 3).await, Ok(true));
            assert_eq!(device.read(0, buf::alloc(BLOCK).await).await.unwrap()[..], [3; BLOCK]);
            let wrong = device.compare_and_write(1, block(0).await, block(1).await, false);
            assert_eq!(wrong.await, Err(IoError::Misaligned));
        })
        .unwrap();
    }

    /// Without an exclusion, two tasks that read the same number lose an increment.
    #[test]
    fn concurrent_compare_and_writes_lose_no_update() {
        const TASKS: u8 = 8;
        const EACH: u8 = 8;
        for seed in 0..20 {
            flagstone_runtime::sim::Simulation::new(seed, Default::default()).block_on(async {
                let device = slow();
                let mut tasks = Vec::new();
                for _ in 0..TASKS {
                    let device = device.clone();
                    tasks.push(flagstone_runtime::spawn(async move {
                        for _ in 0..EACH {
                            loop {
                                let now = device.read(0, buf::alloc(BLOCK).await).await.unwrap()[0];
                                let (old, new) = (block(now).await, block(now + 1).await);
                                if device.compare_and_write(0, old, new, false).await.unwrap() {
                                    break;
                                }
                            }
                        }
                    }));
                }
                for task in tasks {
                    task.await.unwrap();
                }
                let end = device.read(0, buf::alloc(BLOCK).await).await.unwrap();
                assert_eq!(end[..], [TASKS * EACH; BLOCK]);
            });
        }
    }

    /// A write in progress, begun before or after the exclusion is on, is not overwritten by a
    /// comparison with what was there before it.
    #[test]
    fn compare_and_write_never_undoes_concurrent_write() {
        for seed in 0..100 {
            flagstone_runtime::sim::Simulation::new(seed, Default::default()).block_on(async {
                let device = slow();
                for round in 1..4 {
                    let (before, written) = (2 * round - 2, 2 * round - 1);
                    let write = flagstone_runtime::spawn({
                        let device = device.clone();
                        async move { device.write(0, block(written).await, false).await }
                    });
                    flagstone_runtime::task::yield_now().await;
                    let (old, new) = (block(before).await, block(99).await);
                    let swapped = device.compare_and_write(0, old, new, false).await.unwrap();
                    write.await.unwrap().unwrap();
                    let end = device.read(0, buf::alloc(BLOCK).await).await.unwrap()[0];
                    assert_eq!(end, written, "{seed} {round} {swapped}");
                    device.write(0, block(2 * round).await, false).await.unwrap();
                }
            });
        }
    }
}
