//! A device that fails as it is told: for tests.
//!
//! Promises: a failed call has no effect on the child; calls that are not to fail go to the child
//! as they are; from one core, the same seed and calls give the same faults. A failed flush poisons
//! the device as it does a real one: changes and flushes fail until [`FaultControl::reopen`].

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flagstone_runtime::{Buf, BufMut};

use crate::limits::FAULT_MAX_RANGES;
use crate::rng::Rng;
use crate::{BlockDevice, ConfigError, Geometry, IoError, IoFuture, SharedDevice, ZeroFlags};

/// How often calls of a kind fail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FaultRate {
    /// Never.
    #[default]
    Never,
    /// Every n-th call, 1 for each.
    Every(u64),
    /// So many in a million, at random.
    PerMillion(u32),
}

impl FaultRate {
    fn check(self) -> Result<(), ConfigError> {
        match self {
            FaultRate::Every(0) => Err(ConfigError::FaultPeriod),
            FaultRate::PerMillion(rate @ 1_000_001..) => Err(ConfigError::FaultRate(rate)),
            _ => Ok(()),
        }
    }

    fn strikes(self, call: u64, rng: &mut Rng) -> bool {
        match self {
            FaultRate::Never => false,
            FaultRate::Every(period) => call.is_multiple_of(period),
            FaultRate::PerMillion(rate) => rng.below(1_000_000) < u64::from(rate),
        }
    }
}

/// What fails; nothing by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultConfig {
    /// Determines the random faults.
    pub seed: u64,
    /// Reads that fail with [`IoError::ReadFault`].
    pub read: FaultRate,
    /// Writes and write-zeroes that fail with [`IoError::WriteFault`].
    pub write: FaultRate,
    /// Flushes that fail with [`IoError::WriteFault`] and poison the device.
    pub flush: FaultRate,
}

/// Calls that were made and that were failed on purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounters {
    /// Reads.
    pub reads: u64,
    /// Writes and write-zeroes.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards.
    pub discards: u64,
    /// Reads that were failed.
    pub read_faults: u64,
    /// Writes, write-zeroes and discards that were failed.
    pub write_faults: u64,
    /// Flushes that were failed.
    pub flush_faults: u64,
}

/// The faults of one direction.
#[derive(Debug, Default)]
struct Faults {
    rate: FaultRate,
    next: u64,
    ranges: Vec<Range<u64>>,
}

impl Faults {
    fn strike(&mut self, call: u64, range: &Range<u64>, rng: &mut Rng) -> bool {
        if self.next > 0 {
            self.next -= 1;
            return true;
        }
        let hit = |bad: &Range<u64>| bad.start < range.end && range.start < bad.end;
        self.rate.strikes(call, rng) || self.ranges.iter().any(hit)
    }
}

#[derive(Debug)]
struct State {
    rng: Rng,
    reads: Faults,
    writes: Faults,
    flushes: Faults,
    poisoned: bool,
    unreachable: bool,
    counters: FaultCounters,
}

impl State {
    fn new(config: &FaultConfig) -> State {
        let faults = |rate| Faults { rate, ..Faults::default() };
        State {
            rng: Rng::new(config.seed),
            reads: faults(config.read),
            writes: faults(config.write),
            flushes: faults(config.flush),
            poisoned: false,
            unreachable: false,
            counters: FaultCounters::default(),
        }
    }

    fn read(&mut self, range: &Range<u64>) -> Result<(), IoError> {
        self.counters.reads += 1;
        let error = if self.unreachable {
            IoError::Unreachable
        } else if self.reads.strike(self.counters.reads, range, &mut self.rng) {
            IoError::ReadFault
        } else {
            return Ok(());
        };
        self.counters.read_faults += 1;
        Err(error)
    }

    fn write(&mut self, range: &Range<u64>) -> Result<(), IoError> {
        self.counters.writes += 1;
        let error = match self.refusal() {
            Some(error) => error,
            None if self.writes.strike(self.counters.writes, range, &mut self.rng) => {
                IoError::WriteFault
            }
            None => return Ok(()),
        };
        self.counters.write_faults += 1;
        Err(error)
    }

    fn discard(&mut self) -> Result<(), IoError> {
        self.counters.discards += 1;
        let Some(error) = self.refusal() else { return Ok(()) };
        self.counters.write_faults += 1;
        Err(error)
    }

    fn flush(&mut self) -> Result<(), IoError> {
        self.counters.flushes += 1;
        let error = match self.refusal() {
            Some(error) => error,
            None if self.flushes.strike(self.counters.flushes, &(0..0), &mut self.rng) => {
                self.poisoned = true;
                IoError::WriteFault
            }
            None => return Ok(()),
        };
        self.counters.flush_faults += 1;
        Err(error)
    }

    /// Why every change fails now.
    fn refusal(&self) -> Option<IoError> {
        match (self.unreachable, self.poisoned) {
            (true, _) => Some(IoError::Unreachable),
            (_, true) => Some(IoError::Poisoned),
            _ => None,
        }
    }
}

#[derive(Debug)]
struct Shared(Mutex<State>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See the module's promises.
pub struct Fault {
    child: SharedDevice,
    shared: Arc<Shared>,
}

/// Tells a [`Fault`] what to do, from any core, while it is in use.
#[derive(Clone, Debug)]
pub struct FaultControl(Arc<Shared>);

impl Fault {
    /// Wraps `child`.
    ///
    /// # Errors
    /// [`ConfigError`] for a rate above 1,000,000 in a million or a period of 0.
    pub fn new(
        child: SharedDevice,
        config: FaultConfig,
    ) -> Result<(Fault, FaultControl), ConfigError> {
        for rate in [config.read, config.write, config.flush] {
            rate.check()?;
        }
        let shared = Arc::new(Shared(Mutex::new(State::new(&config))));
        Ok((Fault { child, shared: shared.clone() }, FaultControl(shared)))
    }
}

impl FaultControl {
    /// Fails reads that touch the range (bytes), until [`FaultControl::heal`].
    ///
    /// # Panics
    /// Beyond 1,024 ranges.
    pub fn fail_reads(&self, range: Range<u64>) {
        add_range(&mut self.0.lock().reads.ranges, range);
    }

    /// Fails writes and write-zeroes that touch the range (bytes), until [`FaultControl::heal`].
    ///
    /// # Panics
    /// Beyond 1,024 ranges.
    pub fn fail_writes(&self, range: Range<u64>) {
        add_range(&mut self.0.lock().writes.ranges, range);
    }

    /// Fails the next `count` reads.
    pub fn fail_next_reads(&self, count: u64) {
        self.0.lock().reads.next = count;
    }

    /// Fails the next `count` writes or write-zeroes.
    pub fn fail_next_writes(&self, count: u64) {
        self.0.lock().writes.next = count;
    }

    /// Fails the next flush, which poisons the device.
    pub fn fail_next_flush(&self) {
        self.0.lock().flushes.next = 1;
    }

    /// Fails everything with [`IoError::Unreachable`], or no longer.
    pub fn set_unreachable(&self, unreachable: bool) {
        self.0.lock().unreachable = unreachable;
    }

    /// Ends the poison of a failed flush, as opening a real device again does.
    pub fn reopen(&self) {
        self.0.lock().poisoned = false;
    }

    /// Ends all faults: rates, ranges, counts, poison and unreachability. Counters stay.
    pub fn heal(&self) {
        let mut state = self.0.lock();
        (state.reads, state.writes, state.flushes) = Default::default();
        (state.poisoned, state.unreachable) = (false, false);
    }

    /// What was called and failed so far.
    pub fn counters(&self) -> FaultCounters {
        self.0.lock().counters
    }
}

fn add_range(ranges: &mut Vec<Range<u64>>, range: Range<u64>) {
    assert!(ranges.len() < FAULT_MAX_RANGES, "more than {FAULT_MAX_RANGES} fault ranges");
    ranges.push(range);
}

/// The range of a call; one that is out of bounds is for the child to refuse.
fn range_of(offset: u64, len: u64) -> Range<u64> {
    offset..offset.saturating_add(len)
}

impl std::fmt::Debug for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fault({:?})", self.shared.lock())
    }
}

impl BlockDevice for Fault {
    fn geometry(&self) -> Geometry {
        self.child.geometry()
    }

    fn refresh(&self) {
        self.child.refresh();
    }

    fn must_reopen(&self) -> bool {
        self.shared.lock().poisoned || self.child.must_reopen()
    }

    fn read(&self, offset: u64, buf: BufMut) -> IoFuture<BufMut> {
        let verdict = self.shared.lock().read(&range_of(offset, buf.len() as u64));
        match verdict {
            Ok(()) => self.child.read(offset, buf),
            Err(error) => IoFuture::ready(Err(error)),
        }
    }

    fn write(&self, offset: u64, data: Buf, fua: bool) -> IoFuture<()> {
        let verdict = self.shared.lock().write(&range_of(offset, data.len() as u64));
        match verdict {
            Ok(()) => self.child.write(offset, data, fua),
            Err(error) => IoFuture::ready(Err(error)),
        }
    }

    fn flush(&self) -> IoFuture<()> {
        let verdict = self.shared.lock().flush();
        match verdict {
            Ok(()) => self.child.flush(),
            Err(error) => IoFuture::ready(Err(error)),
        }
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        let verdict = self.shared.lock().discard();
        match verdict {
            Ok(()) => self.child.discard(offset, len),
            Err(error) => IoFuture::ready(Err(error)),
        }
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        let verdict = self.shared.lock().write(&range_of(offset, len));
        match verdict {
            Ok(()) => self.child.write_zeroes(offset, len, flags),
            Err(error) => IoFuture::ready(Err(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use flagstone_runtime::buf;

    use super::*;
    use crate::MemoryDevice;

    fn device(config: FaultConfig) -> (Fault, FaultControl) {
        Fault::new(Arc::new(MemoryDevice::new(1 << 20, 512).unwrap()), config).unwrap()
    }

    fn now<T>(call: IoFuture<T>) -> Result<T, IoError> {
        call.try_now().ok().expect("memory answers at once")
    }

    fn write(device: &Fault, offset: u64, value: u8) -> Result<(), IoError> {
        let data = Buf::copy_of(&[value; 512]).unwrap();
        now(device.write(offset, data, false))
    }

    fn read(device: &Fault, offset: u64) -> Result<u8, IoError> {
        now(device.read(offset, buf::try_alloc(512).unwrap())).map(|buf| buf[0])
    }

    #[test]
    fn ranges_and_counts_fail_and_heal() {
        let (device, control) = device(FaultConfig::default());
        control.fail_reads(1024..1536);
        control.fail_writes(2048..2049);
        assert_eq!(read(&device, 1024), Err(IoError::ReadFault));
        assert_eq!((read(&device, 512), read(&device, 1536)), (Ok(0), Ok(0)));
        assert_eq!(write(&device, 2048, 1), Err(IoError::WriteFault));
        assert_eq!(read(&device, 2048), Ok(0), "a failed write has no effect");
        control.fail_next_writes(2);
        assert_eq!(write(&device, 0, 1), Err(IoError::WriteFault));
        let zeroes = device.write_zeroes(0, 512, ZeroFlags::default());
        assert_eq!(now(zeroes), Err(IoError::WriteFault));
        assert_eq!(write(&device, 0, 1), Ok(()));
        control.heal();
        assert_eq!((read(&device, 1024), write(&device, 2048, 1)), (Ok(0), Ok(())));
        let counters = control.counters();
        assert_eq!((counters.reads, counters.read_faults), (5, 1));
        assert_eq!((counters.writes, counters.write_faults), (5, 3));
    }

    #[test]
    fn a_failed_flush_poisons_until_reopened() {
        let (device, control) = device(FaultConfig::default());
        control.fail_next_flush();
        assert_eq!(now(device.flush()), Err(IoError::WriteFault));
        assert_eq!(now(device.flush()), Err(IoError::Poisoned));
        assert_eq!(write(&device, 0, 1), Err(IoError::Poisoned));
        assert_eq!(now(device.discard(0, 512)), Err(IoError::Poisoned));
        assert_eq!(read(&device, 0), Ok(0));
        control.reopen();
        assert_eq!((write(&device, 0, 1), now(device.flush())), (Ok(()), Ok(())));
        assert_eq!(control.counters().flush_faults, 2);
    }

    #[test]
    fn rates_strike_as_often_as_asked() {
        let read_rate = FaultRate::PerMillion(250_000);
        let config = FaultConfig {
            seed: 1,
            read: read_rate,
            write: FaultRate::Every(3),
            ..FaultConfig::default()
        };
        let run = |config| {
            let (device, _) = device(config);
            (0..1000)
                .map(|_| (read(&device, 0).is_err(), write(&device, 0, 1).is_err()))
                .collect::<Vec<_>>()
        };
        let first = run(config);
        assert_eq!(first, run(config));
        assert_ne!(first, run(FaultConfig { seed: 2, ..config }));
        assert!((150..350).contains(&first.iter().filter(|both| both.0).count()));
        assert_eq!(first.iter().filter(|both| both.1).count(), 333);
    }

    #[test]
    fn unreachable_fails_everything_until_it_is_back() {
        let (device, control) = device(FaultConfig::default());
        control.set_unreachable(true);
        assert_eq!(read(&device, 0), Err(IoError::Unreachable));
        assert_eq!(write(&device, 0, 1), Err(IoError::Unreachable));
        assert_eq!(now(device.flush()), Err(IoError::Unreachable));
        control.set_unreachable(false);
        assert_eq!((read(&device, 0), write(&device, 0, 1)), (Ok(0), Ok(())));
    }

    #[test]
    fn impossible_rates_are_refused() {
        let child = || Arc::new(MemoryDevice::new(1 << 20, 512).unwrap());
        let refused =
            |read| Fault::new(child(), FaultConfig { read, ..FaultConfig::default() }).unwrap_err();
        assert_eq!(refused(FaultRate::Every(0)), ConfigError::FaultPeriod);
        assert_eq!(refused(FaultRate::PerMillion(1_000_001)), ConfigError::FaultRate(1_000_001));
    }
}
