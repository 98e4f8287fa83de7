//! Throttle: slows hosts down to the speed of writing out. Pure.
//!
//! Below half of its limits, the tail does not slow hosts down. Above, hosts get a rate that falls
//! with the remaining room: twice the rate of writing out at half of the limit, the same rate at
//! three quarters. So the tail settles there, and hosts are slowed down evenly.
//!
//! Two limits bind: the slots of the log device hold blocks, and the table of recent changes holds
//! entries, of which compressed data has several per block.

use std::time::Duration;

use super::tail::TailLoad;

/// Part of the rate of writing out that hosts get at and above the limit, while slots are free.
const LEAST: f64 = 0.25;

/// Longest pause of a chunk, for any measured rate.
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// Rates of hosts and of the writing out.
#[derive(Clone, Copy, Debug)]
pub struct Throttle {
    /// Limits of the tail.
    limit: TailLoad,
    /// Measured rate of writing out, in blocks per second.
    rate: Option<f64>,
    /// Earliest start of the next chunk, as time since a fixed moment.
    next: Duration,
}

impl Throttle {
    /// Throttle for a tail with these limits.
    pub fn new(limit: TailLoad) -> Throttle {
        Throttle { limit, rate: None, next: Duration::ZERO }
    }

    /// Size of the tail, as parts of the limits of blocks and of entries.
    fn filled(&self, tail: TailLoad) -> (f64, f64) {
        let part = |own: u64, limit: u64| own as f64 / limit as f64;
        (part(tail.blocks, self.limit.blocks), part(tail.entries, self.limit.entries))
    }

    /// True when the tail slows hosts down.
    pub fn is_slowing(&self, tail: TailLoad) -> bool {
        2 * tail.blocks > self.limit.blocks || 2 * tail.entries > self.limit.entries
    }

    /// Measures the rate from blocks that were written out. Counts only while the tail slows hosts
    /// down: otherwise the devices are not always busy.
    pub fn measure(&mut self, blocks: u64, took: Duration, tail: TailLoad) {
        if self.is_slowing(tail) && !took.is_zero() {
            let now = blocks as f64 / took.as_secs_f64();
            self.rate = Some(self.rate.map_or(now, |rate| rate + (now - rate) / 4.0));
        }
    }

    /// Pause before a chunk of hosts.
    pub fn pause(&mut self, chunk: TailLoad, tail: TailLoad, now: Duration) -> Duration {
        let Some(rate) = self.rate.filter(|_| self.is_slowing(tail)) else {
            return Duration::ZERO;
        };
        let (of_blocks, of_entries) = self.filled(tail);
        // Entries leave the tail with their blocks.
        let blocks = match of_entries > of_blocks {
            true => chunk.entries as f64 * tail.blocks as f64 / tail.entries as f64,
            false => chunk.blocks as f64,
        };
        let share = (4.0 * (1.0 - of_blocks.max(of_entries))).max(LEAST);
        let begin = self.next.max(now);
        let takes = Duration::from_secs_f64((blocks / (rate * share)).min(1.0));
        self.next = (begin + takes).min(now + PAUSE_MAX);
        begin - now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Load of uncompressed blocks.
    fn plain(blocks: u64) -> TailLoad {
        TailLoad { blocks, entries: blocks }
    }

    /// Simulates hosts with one chunk of 16 blocks at a time, each of 1 ms, and devices of 10,000
    /// blocks/s. Each block has some entries. Returns the pauses in the second half of the time, in
    /// µs, and the most entries in the tail.
    fn pauses(limit: TailLoad, seconds: u64, entries: u64) -> (Vec<u64>, u64) {
        let mut pace = Throttle::new(limit);
        let (mut now, mut written, mut drained) = (Duration::ZERO, 0.0, 0.0);
        let (mut pauses, mut most) = (Vec::new(), 0);
        let load = |blocks| TailLoad { blocks, entries: entries * blocks };
        while now < Duration::from_secs(seconds) {
            let tail = load((written - drained) as u64);
            most = most.max(tail.entries);
            pace.measure(100, Duration::from_millis(10), tail);
            let pause = pace.pause(load(16), tail, now);
            let step = pause + Duration::from_millis(1);
            now += step;
            written += 16.0;
            drained = f64::min(written, drained + step.as_secs_f64() * 10_000.0);
            if now > Duration::from_secs(seconds / 2) {
                pauses.push(pause.as_micros() as u64);
            }
        }
        (pauses, most)
    }

    fn expect_even(pauses: &[u64]) {
        let mean = pauses.iter().sum::<u64>() / pauses.len() as u64;
        assert!((500..700).contains(&mean), "16 blocks take 1.6 ms at the devices: {mean}");
        let most = pauses.iter().max().unwrap();
        assert!(*most < 2 * mean, "{most} µs of {mean}");
    }

    #[test]
    fn hosts_slow_down_to_the_devices_without_stalls() {
        for limit in [1_000, 100_000] {
            expect_even(&pauses(plain(limit), 100, 1).0);
        }
    }

    /// Only blocks counted: compressed data filled the table of recent changes, and hosts stopped.
    #[test]
    fn compressed_data_is_slowed_before_the_table_is_full() {
        let limit = TailLoad { blocks: 1_000_000, entries: 8_000 };
        let (pauses, most) = pauses(limit, 100, 8);
        expect_even(&pauses);
        assert!(most < limit.entries, "{most}");
    }

    #[test]
    fn denser_chunk_than_the_tail_pauses_longer() {
        let limit = TailLoad { blocks: 10_000, entries: 8_000 };
        let tail = TailLoad { blocks: 3000, entries: 6000 };
        let next = |entries| {
            let mut pace = Throttle::new(limit);
            pace.measure(1000, Duration::from_secs(1), tail);
            pace.pause(TailLoad { blocks: 10, entries }, tail, Duration::ZERO);
            pace.pause(plain(1), tail, Duration::ZERO).as_millis()
        };
        assert_eq!((next(20), next(80)), (10, 40));
    }

    #[test]
    fn hosts_are_not_slowed_below_half_of_the_limit() {
        let mut pace = Throttle::new(plain(1000));
        pace.measure(100, Duration::from_secs(1), plain(400));
        pace.measure(100, Duration::from_secs(1), plain(600));
        let mut pause = |tail| pace.pause(plain(100), plain(tail), Duration::ZERO);
        assert_eq!(pause(500), Duration::ZERO);
        assert_eq!(pause(750), Duration::ZERO, "the first");
        assert_eq!(pause(750), Duration::from_millis(500), "bounded");
    }
}
