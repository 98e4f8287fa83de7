//! Throttle: slows hosts down to the speed at which the log device is written out. Pure.
//!
//! Below half of its limit the tail does not slow hosts down. Above, they get a rate that falls
//! with the room that is left: twice that of the writing out at half, the same at three quarters,
//! so the tail settles there, and hosts never stop and go.

use std::time::Duration;

/// Share of the rate that hosts get from the limit on, until no slot is free.
const LEAST: f64 = 0.25;

/// Longest pause of a chunk, whatever was measured.
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// Rates of hosts and of the writing out.
#[derive(Clone, Copy, Debug)]
pub struct Throttle {
    /// Blocks of the tail.
    limit: u64,
    /// Measured rate of the writing out, in blocks per second.
    rate: Option<f64>,
    /// When the next chunk may begin, as time since any fixed moment.
    next: Duration,
}

impl Throttle {
    /// The pace of a tail with this limit, in blocks.
    pub fn new(limit: u64) -> Throttle {
        Throttle { limit, rate: None, next: Duration::ZERO }
    }

    /// The share of the limit that the tail has reached.
    fn filled(&self, tail: u64) -> f64 {
        tail as f64 / self.limit as f64
    }

    /// True when the tail slows hosts down.
    pub fn is_slowing(&self, tail: u64) -> bool {
        2 * tail > self.limit
    }

    /// Counts blocks that were written out. Only a tail that slows hosts down keeps the devices
    /// busy.
    pub fn measure(&mut self, blocks: u64, took: Duration, tail: u64) {
        if self.is_slowing(tail) && !took.is_zero() {
            let now = blocks as f64 / took.as_secs_f64();
            self.rate = Some(self.rate.map_or(now, |rate| rate + (now - rate) / 4.0));
        }
    }

    /// The pause before a chunk of hosts with these blocks.
    pub fn pause(&mut self, blocks: u64, tail: u64, now: Duration) -> Duration {
        let Some(rate) = self.rate.filter(|_| self.is_slowing(tail)) else {
            return Duration::ZERO;
        };
        let share = (4.0 * (1.0 - self.filled(tail))).max(LEAST);
        let begin = self.next.max(now);
        let takes = Duration::from_secs_f64((blocks as f64 / (rate * share)).min(1.0));
        self.next = (begin + takes).min(now + PAUSE_MAX);
        begin - now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hosts with one chunk of 16 blocks after the other, each of 1 ms, against devices of 10,000
    /// blocks/s: pauses in the last half of the time, in µs.
    fn pauses(limit: u64, seconds: u64) -> Vec<u64> {
        let mut pace = Throttle::new(limit);
        let (mut now, mut written, mut drained) = (Duration::ZERO, 0.0, 0.0);
        let mut pauses = Vec::new();
        while now < Duration::from_secs(seconds) {
            let tail = (written - drained) as u64;
            pace.measure(100, Duration::from_millis(10), tail);
            let pause = pace.pause(16, tail, now);
            let step = pause + Duration::from_millis(1);
            now += step;
            written += 16.0;
            drained = f64::min(written, drained + step.as_secs_f64() * 10_000.0);
            if now > Duration::from_secs(seconds / 2) {
                pauses.push(pause.as_micros() as u64);
            }
        }
        pauses
    }

    #[test]
    fn hosts_slow_down_to_the_devices_without_stalls() {
        for limit in [1_000, 100_000] {
            let pauses = pauses(limit, 100);
            let mean = pauses.iter().sum::<u64>() / pauses.len() as u64;
            assert!((500..700).contains(&mean), "16 blocks take 1.6 ms at the devices: {mean}");
            let most = pauses.iter().max().unwrap();
            assert!(*most < 2 * mean, "{most} µs of {mean}");
        }
    }

    #[test]
    fn hosts_are_not_slowed_below_half_of_the_limit() {
        let mut pace = Throttle::new(1000);
        pace.measure(100, Duration::from_secs(1), 400);
        pace.measure(100, Duration::from_secs(1), 600);
        assert_eq!(pace.pause(100, 500, Duration::ZERO), Duration::ZERO);
        assert_eq!(pace.pause(100, 750, Duration::ZERO), Duration::ZERO, "the first");
        assert_eq!(pace.pause(100, 750, Duration::ZERO), Duration::from_millis(500), "bounded");
    }
}
