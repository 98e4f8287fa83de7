//! Fault layer: injects errors, for tests.
//!
//! Invariants: a failed call has no effect on the child; other calls pass through unchanged. On one
//! core, the same seed and calls give the same faults. A failed flush poisons the layer as it would
//! a real device: changes and flushes fail until [`FaultControl::reopen`].

use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::limits::FAULT_MAX_RANGES;
use crate::stats::CallKind;
use crate::{IoError, IoFuture, Layer, LayerConfigError, SharedDevice};
use flagstone_runtime::rng::Rng;

/// Rate of failing calls of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FaultRate {
    /// Never.
    #[default]
    Never,
    /// Every n-th call, 1 for each.
    Every(u64),
    /// This many in a million, at random.
    PerMillion(u32),
}

impl FaultRate {
    fn check(self) -> Result<(), LayerConfigError> {
        match self {
            FaultRate::Every(0) => Err(LayerConfigError::FaultPeriod),
            FaultRate::PerMillion(rate @ 1_000_001..) => Err(LayerConfigError::FaultRate(rate)),
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

/// Faults of a layer; none by default.
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

#[derive(Debug, Default)]
struct Faults {
    rate: FaultRate,
    calls: u64,
    next: u64,
    ranges: Vec<Range<u64>>,
}

impl Faults {
    fn strike(&mut self, range: &Range<u64>, rng: &mut Rng) -> bool {
        if self.next > 0 {
            self.next -= 1;
            return true;
        }
        let hit = |bad: &Range<u64>| bad.start < range.end && range.start < bad.end;
        self.rate.strikes(self.calls, rng) || self.ranges.iter().any(hit)
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
        }
    }

    fn read(&mut self, range: Range<u64>) -> Result<(), IoError> {
        self.reads.calls += 1;
        if self.unreachable {
            return Err(IoError::Unreachable);
        }
        let fails = self.reads.strike(&range, &mut self.rng);
        if fails { Err(IoError::ReadFault) } else { Ok(()) }
    }

    fn write(&mut self, range: Range<u64>) -> Result<(), IoError> {
        self.writes.calls += 1;
        self.refusal()?;
        let fails = self.writes.strike(&range, &mut self.rng);
        if fails { Err(IoError::WriteFault) } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), IoError> {
        self.flushes.calls += 1;
        self.refusal()?;
        self.poisoned = self.flushes.strike(&(0..0), &mut self.rng);
        if self.poisoned { Err(IoError::WriteFault) } else { Ok(()) }
    }

    /// Fails while every change fails.
    fn refusal(&self) -> Result<(), IoError> {
        match (self.unreachable, self.poisoned) {
            (true, _) => Err(IoError::Unreachable),
            (_, true) => Err(IoError::Poisoned),
            _ => Ok(()),
        }
    }
}

/// Layer that injects faults.
#[derive(Debug)]
pub struct FaultLayer {
    child: SharedDevice,
    state: Arc<Mutex<State>>,
}

/// Controls a [`FaultLayer`] while it is in use, from any core.
#[derive(Clone, Debug)]
pub struct FaultControl(Arc<Mutex<State>>);

impl FaultLayer {
    /// Wraps `child`.
    ///
    /// # Errors
    /// [`LayerConfigError`] for a rate above 1,000,000 in a million or a period of 0.
    pub fn new(
        child: SharedDevice,
        config: FaultConfig,
    ) -> Result<(FaultLayer, FaultControl), LayerConfigError> {
        for rate in [config.read, config.write, config.flush] {
            rate.check()?;
        }
        let state = Arc::new(Mutex::new(State::new(&config)));
        Ok((FaultLayer { child, state: state.clone() }, FaultControl(state)))
    }
}

impl FaultControl {
    /// Fails reads that touch the range (bytes), until [`FaultControl::heal`].
    ///
    /// # Panics
    /// After 1,024 ranges.
    pub fn fail_reads(&self, range: Range<u64>) {
        add_range(&mut self.0.lock().reads.ranges, range);
    }

    /// Fails writes and write-zeroes that touch the range (bytes), until [`FaultControl::heal`].
    ///
    /// # Panics
    /// After 1,024 ranges.
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

    /// Starts or stops failing every call with [`IoError::Unreachable`].
    pub fn set_unreachable(&self, unreachable: bool) {
        self.0.lock().unreachable = unreachable;
    }

    /// Clears the poison of a failed flush, as reopening a real device does.
    pub fn reopen(&self) {
        self.0.lock().poisoned = false;
    }

    /// Ends all faults: rates, ranges, counts, poison and unreachability.
    pub fn heal(&self) {
        let mut state = self.0.lock();
        (state.reads, state.writes, state.flushes) = Default::default();
        (state.poisoned, state.unreachable) = (false, false);
    }
}

fn add_range(ranges: &mut Vec<Range<u64>>, range: Range<u64>) {
    assert!(ranges.len() < FAULT_MAX_RANGES, "more than {FAULT_MAX_RANGES} fault ranges");
    ranges.push(range);
}

impl Layer for FaultLayer {
    fn child(&self) -> &SharedDevice {
        &self.child
    }

    fn must_reopen(&self) -> bool {
        self.state.lock().poisoned || self.child.must_reopen()
    }

    fn pass<T: 'static>(
        &self,
        call: CallKind,
        offset: u64,
        len: u64,
        make: impl FnOnce(&SharedDevice) -> IoFuture<T> + 'static,
    ) -> IoFuture<T> {
        // If the range is out of bounds, the child refuses it.
        let range = offset..offset.saturating_add(len);
        let check = match call {
            CallKind::Read => self.state.lock().read(range),
            CallKind::Write | CallKind::WriteZeroes => self.state.lock().write(range),
            CallKind::Flush => self.state.lock().flush(),
            CallKind::Discard => self.state.lock().refusal(),
        };
        IoFuture::checked(check, || make(&self.child))
    }
}

#[cfg(test)]
mod tests {
    use flagstone_runtime::{Buf, buf};

    use super::*;
    use crate::{BlockDevice, MemoryDevice, ZeroFlags};

    fn device(config: FaultConfig) -> (FaultLayer, FaultControl) {
        FaultLayer::new(Arc::new(MemoryDevice::new(1 << 20, 512).unwrap()), config).unwrap()
    }

    fn now<T>(call: IoFuture<T>) -> Result<T, IoError> {
        call.try_now().ok().expect("memory answers at once")
    }

    fn write(device: &FaultLayer, offset: u64, value: u8) -> Result<(), IoError> {
        let data = Buf::copy_of(&[value; 512]).unwrap();
        now(device.write(offset, data, false))
    }

    fn read(device: &FaultLayer, offset: u64) -> Result<u8, IoError> {
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
    }

    #[test]
    fn failed_flush_poisons_until_reopened() {
        let (device, control) = device(FaultConfig::default());
        control.fail_next_flush();
        assert_eq!(now(device.flush()), Err(IoError::WriteFault));
        assert_eq!(now(device.flush()), Err(IoError::Poisoned));
        assert_eq!(write(&device, 0, 1), Err(IoError::Poisoned));
        assert_eq!(now(device.discard(0, 512)), Err(IoError::Poisoned));
        assert_eq!(read(&device, 0), Ok(0));
        control.reopen();
        assert_eq!((write(&device, 0, 1), now(device.flush())), (Ok(()), Ok(())));
    }

    #[test]
    fn fault_rates_match_configuration() {
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
    fn unreachable_device_fails_all_calls() {
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
        let refused = |read| {
            FaultLayer::new(child(), FaultConfig { read, ..FaultConfig::default() }).unwrap_err()
        };
        assert_eq!(refused(FaultRate::Every(0)), LayerConfigError::FaultPeriod);
        assert_eq!(
            refused(FaultRate::PerMillion(1_000_001)),
            LayerConfigError::FaultRate(1_000_001)
        );
    }
}
