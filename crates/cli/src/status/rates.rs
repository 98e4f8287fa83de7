//! Rates between two samples of a server's counters.

use std::collections::BTreeMap;

use flagstone_runtime::time::Instant;
use flagstone_server::api::document::{CallsDocument, IoDocument, VolumeDocument};

/// The counters of the last sample.
pub(super) struct RateTracker {
    last: Option<(Instant, BTreeMap<String, IoDocument>)>,
}

/// Rates of one kind of call.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct CallRates {
    /// Calls per second.
    pub(super) per_second: f64,
    /// Bytes per second.
    pub(super) bytes_per_second: f64,
    /// Mean latency in µs; 0 without calls.
    pub(super) mean_us: f64,
    /// 99th percentile of the latency in µs; 0 without calls.
    pub(super) p99_us: f64,
}

/// Rates of one volume.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct VolumeRates {
    pub(super) read: CallRates,
    pub(super) write: CallRates,
    pub(super) flush: CallRates,
    pub(super) discard: CallRates,
    pub(super) write_zeroes: CallRates,
}

impl RateTracker {
    pub(super) fn new() -> RateTracker {
        RateTracker { last: None }
    }

    /// Rates of the volumes since the last sample, which this one replaces. `None` for the first
    /// sample and after a restart of the server.
    pub(super) fn rates(
        &mut self,
        now: Instant,
        volumes: &[VolumeDocument],
    ) -> Vec<Option<VolumeRates>> {
        let seen = volumes.iter().map(|volume| (volume.name.clone(), volume.io.clone())).collect();
        let last = self.last.replace((now, seen));
        let rates = |volume: &VolumeDocument| {
            let (then, seen) = last.as_ref()?;
            let seconds = now.since(*then).as_secs_f64();
            between(seen.get(&volume.name)?, &volume.io, seconds)
        };
        volumes.iter().map(rates).collect()
    }
}

fn between(before: &IoDocument, after: &IoDocument, seconds: f64) -> Option<VolumeRates> {
    let rate = |of: fn(&IoDocument) -> &CallsDocument| {
        let (before, after) = (of(before), of(after));
        let count = after.count.checked_sub(before.count)?;
        let bytes = after.bytes.checked_sub(before.bytes)?;
        let latency = after.latency.histogram().since(&before.latency.histogram());
        let mean_us = match count {
            0 => 0.0,
            count => latency.sum_ns as f64 / count as f64 / 1e3,
        };
        Some(CallRates {
            per_second: count as f64 / seconds,
            bytes_per_second: bytes as f64 / seconds,
            mean_us,
            p99_us: latency.quantile_ns(0.99) / 1e3,
        })
    };
    (seconds > 0.0).then_some(())?;
    Some(VolumeRates {
        read: rate(|io| &io.read)?,
        write: rate(|io| &io.write)?,
        flush: rate(|io| &io.flush)?,
        discard: rate(|io| &io.discard)?,
        write_zeroes: rate(|io| &io.write_zeroes)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_counter_differences() {
        let io = |count: u64| {
            let read = CallsDocument { count, bytes: count * 4096, ..CallsDocument::default() };
            let mut io = IoDocument { read, ..IoDocument::default() };
            // Latencies from 2 to 2.56 µs.
            io.read.latency.buckets = vec![(Some(2.56), count)];
            io.read.latency.sum_us = count as f64 * 2.5;
            io
        };
        let rates = between(&io(10), &io(30), 2.0).unwrap();
        assert_eq!((rates.read.per_second, rates.read.bytes_per_second), (10.0, 40960.0));
        assert_eq!(rates.read.mean_us, 2.5);
        assert!((2.5..2.56).contains(&rates.read.p99_us), "{rates:?}");
        assert_eq!(rates.write, CallRates::default());
        // A restarted server, and two samples at the same time.
        assert_eq!(between(&io(30), &io(10), 1.0), None);
        assert_eq!(between(&io(10), &io(30), 0.0), None);
    }
}
