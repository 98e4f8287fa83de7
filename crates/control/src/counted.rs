//! A layer that counts: what goes through a volume, and how long it takes.
//!
//! Promises: what the child answers is not changed, and when it answers at once, so does this. Each
//! core counts for itself, without locked instructions; whoever asks adds the cores up, and may see
//! the numbers of a call that ends meanwhile in part. The steady state takes nothing from the heap.
//!
//! A call that is answered at once costs some additions. The clock is read for the others alone,
//! from when they did not end at once: so the latencies are those of calls that had to wait for
//! something, and the rest count as below a microsecond.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use flagstone_blockdev::{BlockDevice, Geometry, IoFuture, SharedDevice, ZeroFlags};
use flagstone_runtime::time::{self, Instant};
use flagstone_runtime::{Buf, BufMut, core_index, cores};

use crate::latency::{BUCKETS, Histogram, bucket_of};

/// Kinds of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// `read`, and what is `known` without one.
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

impl Call {
    /// All, in the order of [`Totals::calls`].
    pub const ALL: [Call; 5] =
        [Call::Read, Call::Write, Call::Flush, Call::Discard, Call::WriteZeroes];

    /// Its name in documents and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Call::Read => "read",
            Call::Write => "write",
            Call::Flush => "flush",
            Call::Discard => "discard",
            Call::WriteZeroes => "write_zeroes",
        }
    }
}

/// See the module's promises.
pub struct Counted {
    child: SharedDevice,
    counters: Arc<Counters>,
}

/// What a volume counted, on all cores.
pub struct Counters {
    /// Of each core, by its index; made when it counts first.
    cores: Box<[OnceLock<Arc<CoreCounters>>]>,
}

/// No core's index.
const UNKNOWN: usize = usize::MAX;

thread_local! {
    /// The index of this thread's core, which a thread keeps: asked for once, as asking costs more
    /// than counting.
    static CORE: Cell<usize> = const { Cell::new(UNKNOWN) };
}

#[cold]
fn find_core() -> usize {
    let core = core_index();
    CORE.set(core);
    core
}

/// What one core counts, and it alone.
#[derive(Default)]
struct CoreCounters {
    calls: [CallCounters; Call::ALL.len()],
}

#[derive(Default)]
struct CallCounters {
    at_once: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
    begun: AtomicU64,
    ended: AtomicU64,
    waited_ns: AtomicU64,
    /// Made by the first call that waits: most volumes never see most kinds of calls.
    latencies: OnceLock<Box<[AtomicU64; BUCKETS]>>,
}

/// Adds to a number that one core alone changes.
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

impl Counters {
    pub(crate) fn new() -> Counters {
        Counters { cores: cores().iter().map(|_| OnceLock::new()).collect() }
    }

    /// This core's. A core of a runtime larger than the one that this was made in counts with
    /// another, and then numbers may be lost.
    #[inline]
    fn here(&self) -> &Arc<CoreCounters> {
        let core = match CORE.get() {
            UNKNOWN => find_core(),
            core => core,
        };
        let core = self.cores.get(core).unwrap_or(&self.cores[0]);
        core.get_or_init(Arc::default)
    }

    /// What was counted so far.
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

impl std::fmt::Debug for Counters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Counters")
    }
}

/// What a volume counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Of each kind, in the order of [`Call::ALL`].
    pub calls: [CallTotals; Call::ALL.len()],
}

impl Totals {
    /// Of one kind.
    pub fn of(&self, call: Call) -> &CallTotals {
        &self.calls[call as usize]
    }
}

/// What was counted of one kind of calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallTotals {
    /// Calls that ended, well or not.
    pub count: u64,
    /// Those of them that failed.
    pub errors: u64,
    /// Bytes of those that ended well; of flushes none.
    pub bytes: u64,
    /// Calls in progress.
    pub in_flight: u64,
    /// How long calls took.
    pub latency: Histogram,
}

impl CallTotals {
    fn add(&mut self, call: &CallCounters) {
        let at_once = call.at_once.load(Relaxed);
        // First what ends, then what begins: or a call that does both meanwhile would be negative.
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

/// A call in progress. It ends when dropped; one whose outcome nobody waited for has failed.
struct Watch {
    core: Arc<CoreCounters>,
    call: Call,
    bytes: u64,
    begun: Instant,
    is_ok: bool,
}

impl Watch {
    fn new(core: Arc<CoreCounters>, call: Call, bytes: u64) -> Watch {
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
        add(&counters.ended, 1);
    }
}

impl Counted {
    /// Counts what goes through `child`, on the cores of this runtime. The counters are shared with
    /// whoever asks.
    pub fn new(child: SharedDevice) -> (Counted, Arc<Counters>) {
        let counters = Arc::new(Counters::new());
        (Counted::with(child, counters.clone()), counters)
    }

    /// The same with counters that were there before, from [`Counters::new`].
    pub(crate) fn with(child: SharedDevice, counters: Arc<Counters>) -> Counted {
        Counted { child, counters }
    }

    #[inline]
    fn count<T: 'static>(&self, call: Call, bytes: u64, outcome: IoFuture<T>) -> IoFuture<T> {
        let core = self.counters.here();
        match outcome.try_now() {
            Ok(result) => {
                let counters = &core.calls[call as usize];
                add(&counters.at_once, 1);
                counters.outcome(result.is_ok(), bytes);
                IoFuture::ready(result)
            }
            Err(later) => {
                let watch = Watch::new(core.clone(), call, bytes);
                IoFuture::later(async move {
                    let result = later.await;
                    watch.end(result.is_ok());
                    result
                })
            }
        }
    }
}

impl std::fmt::Debug for Counted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Counted")
    }
}

impl BlockDevice for Counted {
    fn geometry(&self) -> Geometry {
        self.child.geometry()
    }

    fn refresh(&self) {
        self.child.refresh();
    }

    fn must_reopen(&self) -> bool {
        self.child.must_reopen()
    }

    fn known(&self, offset: u64, len: usize) -> Option<Buf> {
        let known = self.child.known(offset, len)?;
        let core = self.counters.here();
        let counters = &core.calls[Call::Read as usize];
        add(&counters.at_once, 1);
        add(&counters.bytes, len as u64);
        Some(known)
    }

    fn read(&self, offset: u64, buf: BufMut) -> IoFuture<BufMut> {
        let bytes = buf.len() as u64;
        self.count(Call::Read, bytes, self.child.read(offset, buf))
    }

    fn write(&self, offset: u64, data: Buf, fua: bool) -> IoFuture<()> {
        let bytes = data.len() as u64;
        self.count(Call::Write, bytes, self.child.write(offset, data, fua))
    }

    fn flush(&self) -> IoFuture<()> {
        self.count(Call::Flush, 0, self.child.flush())
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.count(Call::Discard, len, self.child.discard(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        self.count(Call::WriteZeroes, len, self.child.write_zeroes(offset, len, flags))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use flagstone_blockdev::{
        Delay, DelayConfig, Fault, FaultConfig, FaultRate, Latency, NullDevice,
    };
    use flagstone_runtime::{Config, buf, run, sync::Notify};

    use super::*;

    fn null() -> SharedDevice {
        Arc::new(NullDevice::new(1 << 20, 512).unwrap())
    }

    fn summary(counters: &Counters, call: Call) -> (u64, u64, u64, u64) {
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
            let (faulty, _control) = Fault::new(null(), config).unwrap();
            let (device, counters) = Counted::new(Arc::new(faulty));
            for _ in 0..4 {
                device.read(512, buf::alloc(1024).await).await.unwrap();
                let _ = device.write(0, buf::alloc(512).await.freeze(), false).await;
            }
            let _ = device.read(1, buf::alloc(512).await).await.unwrap_err();
            device.discard(0, 4096).await.unwrap();
            device.write_zeroes(0, 512, ZeroFlags::default()).await.unwrap();
            device.flush().await.unwrap();
            assert_eq!(summary(&counters, Call::Read), (5, 1, 4096, 0));
            assert_eq!(summary(&counters, Call::Write), (4, 2, 1024, 0));
            assert_eq!(summary(&counters, Call::Discard), (1, 0, 4096, 0));
            assert_eq!(summary(&counters, Call::WriteZeroes), (1, 0, 512, 0));
            assert_eq!(summary(&counters, Call::Flush), (1, 0, 0, 0));
        })
        .unwrap();
    }

    #[test]
    fn what_is_answered_at_once_stays_so_and_what_is_known_is_a_read() {
        flagstone_runtime::block_on(async {
            let (device, counters) = Counted::new(null());
            assert!(device.flush().try_now().is_ok());
            let known = device.known(0, 4096).is_some();
            assert_eq!(summary(&counters, Call::Read).0, u64::from(known));
            assert_eq!(counters.totals().of(Call::Flush).latency.sum_ns, 0);
        })
        .unwrap();
    }

    #[test]
    fn calls_that_wait_are_timed() {
        flagstone_runtime::block_on(async {
            let read = Latency::fixed(Duration::from_millis(3));
            let delay = Delay::new(null(), DelayConfig { read, ..DelayConfig::default() }).unwrap();
            let (device, counters) = Counted::new(Arc::new(delay));
            let call = device.read(0, buf::alloc(512).await);
            assert_eq!(summary(&counters, Call::Read), (0, 0, 0, 1));
            call.await.unwrap();
            assert_eq!(summary(&counters, Call::Read), (1, 0, 512, 0));
            let totals = counters.totals();
            let latency = &totals.of(Call::Read).latency;
            assert!(latency.sum_ns >= 3_000_000, "{latency:?}");
            assert!(latency.quantile_ns(0.5) >= 2_500_000.0, "{latency:?}");
            // One that nobody waits for any more ends too.
            drop(device.read(0, buf::alloc(512).await));
            assert_eq!(summary(&counters, Call::Read), (2, 1, 512, 0));
        })
        .unwrap();
    }

    #[test]
    fn cores_are_added_up() {
        let config = Config { cores: 2, ..Config::default() };
        run(&config, || async {
            let (device, counters) = Counted::new(null());
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
            let all = || (summary(&counters, Call::Flush).0 == 200).then_some(());
            while time::timeout(Duration::from_millis(1), never.wait_for(all)).await.is_err() {}
        })
        .unwrap();
    }
}
