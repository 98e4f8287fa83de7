//! What happened between two looks.

use std::collections::BTreeMap;

use flagstone_control::api::document::{CallsDocument, IoDocument, VolumeDocument};
use flagstone_runtime::time::Instant;

/// What was seen at the last look.
pub(super) struct View {
    last: Option<(Instant, BTreeMap<String, IoDocument>)>,
}

/// What calls of one kind did in a span of time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rate {
    /// Calls a second.
    pub(super) per_second: f64,
    /// Bytes a second.
    pub(super) bytes_per_second: f64,
    /// Mean latency; 0 without calls, as is the next.
    pub(super) mean_us: f64,
    /// 99th percentile of the latency.
    pub(super) p99_us: f64,
}

/// The rates of one volume.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rates {
    pub(super) read: Rate,
    pub(super) write: Rate,
    pub(super) flush: Rate,
    pub(super) discard: Rate,
    pub(super) write_zeroes: Rate,
}

impl View {
    pub(super) fn new() -> View {
        View { last: None }
    }

    /// What the volumes did since the last look, and remembers this one. Of a first look, and of a
    /// server that began anew, nothing is known.
    pub(super) fn rates(&mut self, now: Instant, volumes: &[VolumeDocument]) -> Vec<Option<Rates>> {
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

fn between(before: &IoDocument, after: &IoDocument, seconds: f64) -> Option<Rates> {
    let rate = |of: fn(&IoDocument) -> &CallsDocument| {
        let (before, after) = (of(before), of(after));
        let count = after.count.checked_sub(before.count)?;
        let bytes = after.bytes.checked_sub(before.bytes)?;
        let latency = after.latency.histogram().since(&before.latency.histogram());
        let mean_us = match count {
            0 => 0.0,
            count => latency.sum_ns as f64 / count as f64 / 1e3,
        };
        Some(Rate {
            per_second: count as f64 / seconds,
            bytes_per_second: bytes as f64 / seconds,
            mean_us,
            p99_us: latency.quantile_ns(0.99) / 1e3,
        })
    };
    (seconds > 0.0).then_some(())?;
    Some(Rates {
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
    fn rates_are_differences_over_time() {
        let io = |count: u64| {
            let read = CallsDocument { count, bytes: count * 4096, ..CallsDocument::default() };
            let mut io = IoDocument { read, ..IoDocument::default() };
            // So many of 2 to 2.56 us.
            io.read.latency.buckets = vec![(Some(2.56), count)];
            io.read.latency.sum_us = count as f64 * 2.5;
            io
        };
        let rates = between(&io(10), &io(30), 2.0).unwrap();
        assert_eq!((rates.read.per_second, rates.read.bytes_per_second), (10.0, 40960.0));
        assert_eq!(rates.read.mean_us, 2.5);
        assert!((2.5..2.56).contains(&rates.read.p99_us), "{rates:?}");
        assert_eq!(rates.write, Rate::default());
        // A server that began anew, and a look at the same moment.
        assert_eq!(between(&io(30), &io(10), 1.0), None);
        assert_eq!(between(&io(10), &io(30), 0.0), None);
    }
}
