//! Rates between two samples of a server's counters.

use std::collections::BTreeMap;
use std::iter::zip;

use flagstone_runtime::time::Instant;
use flagstone_server::api::document::{CallsDocument, IoDocument, VolumeDocument};

pub(super) struct RateTracker {
    last: Option<(Instant, BTreeMap<String, IoDocument>)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct CallRates {
    pub(super) per_second: f64,
    pub(super) bytes_per_second: f64,
    /// Mean latency in µs; 0 without calls.
    pub(super) mean_us: f64,
    /// 99th percentile of the latency in µs; 0 without calls.
    pub(super) p99_us: f64,
}

/// Rates of one volume, in the order of [`by_kind`].
pub(super) type VolumeRates = [CallRates; 5];

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

/// Reads, writes, flushes, discards and writes of zeroes.
pub(super) fn by_kind(io: &IoDocument) -> [&CallsDocument; 5] {
    [&io.read, &io.write, &io.flush, &io.discard, &io.write_zeroes]
}

fn between(before: &IoDocument, after: &IoDocument, seconds: f64) -> Option<VolumeRates> {
    (seconds > 0.0).then_some(())?;
    let rate = |(before, after): (&CallsDocument, &CallsDocument)| {
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
    let rates: Option<Vec<_>> = zip(by_kind(before), by_kind(after)).map(rate).collect();
    rates?.try_into().ok()
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
        let [read, write, ..] = rates;
        assert_eq!((read.per_second, read.bytes_per_second), (10.0, 40960.0));
        assert_eq!(read.mean_us, 2.5);
        assert!((2.5..2.56).contains(&read.p99_us), "{rates:?}");
        assert_eq!(write, CallRates::default());
        // A restarted server, and two samples at the same time.
        assert_eq!(between(&io(30), &io(10), 1.0), None);
        assert_eq!(between(&io(10), &io(30), 0.0), None);
    }
}
