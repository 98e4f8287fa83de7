//! Statistics of one core, and their combination over cores.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use flagstone_blockdev::IoError;
use hdrhistogram::Histogram;

use crate::limits::LATENCY_MAX_NS;
use crate::plan::OpKind;

/// Significant decimal digits of a latency.
const DIGITS: u8 = 3;

#[derive(Clone, Debug)]
pub(crate) struct OpStats {
    pub(crate) ios: u64,
    pub(crate) bytes: u64,
    pub(crate) sum_ns: u64,
    pub(crate) min_ns: u64,
    pub(crate) max_ns: u64,
    pub(crate) latency_ns: Histogram<u64>,
}

impl OpStats {
    pub(crate) fn new() -> OpStats {
        let latency_ns = Histogram::new_with_bounds(1, LATENCY_MAX_NS, DIGITS)
            .expect("the bounds and digits are in the histogram's range");
        OpStats { ios: 0, bytes: 0, sum_ns: 0, min_ns: u64::MAX, max_ns: 0, latency_ns }
    }

    pub(crate) fn merge(&mut self, other: &OpStats) {
        self.ios += other.ios;
        self.bytes += other.bytes;
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        self.min_ns = self.min_ns.min(other.min_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
        self.latency_ns.add(&other.latency_ns).expect("all histograms have the same bounds");
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Stats {
    ops: [Option<Box<OpStats>>; OpKind::ALL.len()],
    pub(crate) errors: BTreeMap<(OpKind, &'static str), u64>,
    pub(crate) failed: u64,
    pub(crate) unfinished: u64,
    /// Time of the last completion, nanoseconds of the runtime's clock.
    pub(crate) last_ns: u64,
}

impl Stats {
    /// Allocates the statistics of `kinds` in advance.
    pub(crate) fn for_kinds(kinds: impl IntoIterator<Item = OpKind>) -> Stats {
        let mut stats = Stats::default();
        for kind in kinds {
            stats.ops[kind as usize] = Some(Box::new(OpStats::new()));
        }
        stats
    }

    #[inline]
    pub(crate) fn record(&mut self, kind: OpKind, bytes: usize, latency_ns: u64) {
        let op = self.ops[kind as usize].get_or_insert_with(|| Box::new(OpStats::new()));
        op.ios += 1;
        op.bytes += bytes as u64;
        op.sum_ns = op.sum_ns.saturating_add(latency_ns);
        op.min_ns = op.min_ns.min(latency_ns);
        op.max_ns = op.max_ns.max(latency_ns);
        op.latency_ns.saturating_record(latency_ns);
    }

    pub(crate) fn record_error(&mut self, kind: OpKind, error: IoError) {
        self.failed += 1;
        *self.errors.entry((kind, error_name(error))).or_default() += 1;
    }

    /// Statistics of `kind`, if it had any I/Os.
    pub(crate) fn of(&self, kind: OpKind) -> Option<&OpStats> {
        self.ops[kind as usize].as_deref().filter(|op| op.ios > 0)
    }

    pub(crate) fn add_trouble(&mut self, other: &Stats) {
        for (key, count) in &other.errors {
            *self.errors.entry(*key).or_default() += count;
        }
        self.failed += other.failed;
        self.unfinished += other.unfinished;
    }

    pub(crate) fn merge(&mut self, other: &Stats) {
        for (mine, theirs) in self.ops.iter_mut().zip(&other.ops) {
            match (mine, theirs) {
                (Some(mine), Some(theirs)) => mine.merge(theirs),
                (mine @ None, Some(theirs)) => *mine = Some(theirs.clone()),
                (_, None) => {}
            }
        }
        self.add_trouble(other);
        self.last_ns = self.last_ns.max(other.last_ns);
    }
}

pub(crate) fn error_name(error: IoError) -> &'static str {
    match error {
        IoError::OutOfRange => "out_of_range",
        IoError::Misaligned => "misaligned",
        IoError::ReadOnly => "read_only",
        IoError::NoSpace => "no_space",
        IoError::Unsupported => "unsupported",
        IoError::ReadFault => "read_fault",
        IoError::WriteFault => "write_fault",
        IoError::Poisoned => "poisoned",
        IoError::Unreachable => "unreachable",
        IoError::NoMemory => "no_memory",
    }
}

/// Live progress of a core. One core writes, any core reads.
#[derive(Debug, Default)]
pub(crate) struct Gauge {
    /// In the order of the fields of [`Reading`].
    counters: [AtomicU64; 5],
    /// The job's own I/Os are over; the range is being read back.
    pub(crate) reads_back: AtomicBool,
}

/// Values of a [`Gauge`], or the difference of two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reading {
    /// Completed I/Os, without flushes. The following fields exclude flushes, too.
    pub(crate) ios: u64,
    pub(crate) bytes: u64,
    pub(crate) latency_sum_ns: u64,
    pub(crate) errors: u64,
    pub(crate) violations: u64,
}

impl Gauge {
    pub(crate) fn show(&self, reading: &Reading) {
        for (counter, value) in self.counters.iter().zip(reading.to_array()) {
            counter.store(value, Ordering::Relaxed);
        }
    }

    pub(crate) fn read(&self) -> Reading {
        Reading::of(self.counters.each_ref().map(|counter| counter.load(Ordering::Relaxed)))
    }
}

impl Reading {
    fn of([ios, bytes, latency_sum_ns, errors, violations]: [u64; 5]) -> Reading {
        Reading { ios, bytes, latency_sum_ns, errors, violations }
    }

    fn to_array(self) -> [u64; 5] {
        [self.ios, self.bytes, self.latency_sum_ns, self.errors, self.violations]
    }

    fn combine(self, other: Reading, with: fn(u64, u64) -> u64) -> Reading {
        let (mine, theirs) = (self.to_array(), other.to_array());
        Reading::of(std::array::from_fn(|index| with(mine[index], theirs[index])))
    }

    pub(crate) fn plus(self, other: Reading) -> Reading {
        self.combine(other, u64::saturating_add)
    }

    pub(crate) fn since(self, earlier: Reading) -> Reading {
        self.combine(earlier, u64::saturating_sub)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn core_statistics_add_up() {
        let mut first = Stats::for_kinds([OpKind::Read]);
        let mut second = Stats::for_kinds([OpKind::Read, OpKind::Write]);
        first.record(OpKind::Read, 4096, 1_000);
        second.record(OpKind::Read, 4096, 3_000);
        second.record(OpKind::Write, 512, 2 * LATENCY_MAX_NS);
        second.record_error(OpKind::Write, IoError::NoSpace);
        first.merge(&second);
        let reads = first.of(OpKind::Read).unwrap();
        assert_eq!((reads.ios, reads.bytes, reads.sum_ns), (2, 8192, 4_000));
        assert_eq!((reads.min_ns, reads.max_ns), (1_000, 3_000));
        assert_eq!(reads.latency_ns.len(), 2);
        let writes = first.of(OpKind::Write).unwrap();
        assert_eq!(writes.max_ns, 2 * LATENCY_MAX_NS);
        assert_eq!(writes.latency_ns.len(), 1);
        assert_eq!(first.errors[&(OpKind::Write, "no_space")], 1);
        assert!(first.of(OpKind::Flush).is_none());
    }
}
