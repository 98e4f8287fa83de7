//! Pace of a resync: how fast it copies. A pure core, with time and measurements as arguments.
//!
//! Guarantees:
//! - never faster than the limit over any interval, except for one copy;
//! - adaptive: while hosts are active, their calls take at most about twice as long as without the
//!   resync, and the resync keeps at least its minimum rate. While hosts are idle, it takes the
//!   full bandwidth.

/// Limits on the rate of a resync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PaceLimits {
    /// Maximum, in bytes per second; `None` for no limit.
    pub max_bytes_per_s: Option<u64>,
    /// Yields to host calls.
    pub adaptive: bool,
    /// Minimum rate even against host calls, in bytes per second.
    pub min_bytes_per_s: u64,
}

impl Default for PaceLimits {
    fn default() -> PaceLimits {
        PaceLimits { max_bytes_per_s: None, adaptive: true, min_bytes_per_s: 16 << 20 }
    }
}

/// Interval between adjustments, in nanoseconds.
const STEP_NS: u64 = 100_000_000;
/// With fewer calls per interval, hosts count as idle.
const FEW_CALLS: u64 = 4;
/// Weight of one interval in the moving average of the latency without resync.
const QUIET_WEIGHT: f64 = 1.0 / 16.0;

/// The rate control of one resync.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResyncPace {
    limits: PaceLimits,
    /// The next copy may start at this time.
    next_ns: u64,
    /// Current rate, in bytes per second.
    rate: f64,
    step_began_ns: u64,
    /// Number of calls and sum of their latencies at the start of the interval.
    calls_then: u64,
    nanos_then: u64,
    /// Mean latency of host calls with little resync, in nanoseconds.
    quiet_ns: Option<f64>,
}

/// No limit: faster than any link.
const UNLIMITED: f64 = 1e12;

impl ResyncPace {
    /// `quiet_ns` is the mean latency of host calls before the resync, if known.
    pub(crate) fn new(limits: PaceLimits, now_ns: u64, quiet_ns: Option<f64>) -> ResyncPace {
        let rate = limits.max_bytes_per_s.map_or(UNLIMITED, |max| max as f64);
        ResyncPace {
            limits,
            next_ns: now_ns,
            rate,
            step_began_ns: now_ns,
            calls_then: 0,
            nanos_then: 0,
            quiet_ns,
        }
    }

    fn most(&self) -> f64 {
        self.limits.max_bytes_per_s.map_or(UNLIMITED, |max| max as f64)
    }

    pub(crate) fn set(&mut self, limits: PaceLimits) {
        if self.limits != limits {
            self.limits = limits;
            self.rate = self.most();
        }
    }

    /// Schedules a copy of `bytes`. Returns when it may start, on the runtime's clock.
    pub(crate) fn copy(&mut self, bytes: u64, now_ns: u64) -> u64 {
        let begins = self.next_ns.max(now_ns);
        let span = bytes as f64 / self.rate.max(1.0) * 1e9;
        self.next_ns = begins.saturating_add(span as u64);
        begins
    }

    /// Updates the rate. `calls` and `nanos` are the total number of host calls and the sum of
    /// their durations; `copied` is the current rate of the resync, in bytes per second.
    pub(crate) fn update(&mut self, calls: u64, nanos: u64, copied: f64, now_ns: u64) {
        if !self.limits.adaptive || now_ns < self.step_began_ns + STEP_NS {
            return;
        }
        let made = calls.saturating_sub(self.calls_then);
        let mean = nanos.saturating_sub(self.nanos_then) as f64 / made.max(1) as f64;
        (self.step_began_ns, self.calls_then, self.nanos_then) = (now_ns, calls, nanos);
        let floor = (self.limits.min_bytes_per_s as f64).min(self.most());
        if made < FEW_CALLS {
            self.rate = (self.rate * 2.0).clamp(floor, self.most());
            return;
        }
        let Some(quiet) = self.quiet_ns else {
            // No baseline yet: slow down for one interval to measure it.
            if self.rate <= floor {
                self.quiet_ns = Some(mean);
            }
            self.rate = floor;
            return;
        };
        if mean > 2.0 * quiet {
            self.rate = (self.rate.min(copied.max(floor)) * 0.7).max(floor);
        } else {
            self.rate = (self.rate * 1.15).min(self.most()).max(floor);
        }
        if self.rate <= floor * 1.2 {
            // Nearly without resync, so this is the current baseline.
            self.quiet_ns = Some(quiet + (mean - quiet) * QUIET_WEIGHT);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const MIB: u64 = 1 << 20;

    /// Simulates some seconds against hosts whose calls take `quiet_ns`, stretched by the resync's
    /// share of the disk. Returns the mean rate and the mean latency of the second half.
    fn run(
        limits: PaceLimits,
        disk: f64,
        quiet_ns: f64,
        calls_per_s: u64,
        seconds: u64,
    ) -> (f64, f64) {
        let mut pace = ResyncPace::new(limits, 0, None);
        let (mut now, mut calls, mut nanos) = (0, 0u64, 0u64);
        let (mut copied, mut latency_sum, mut latency_count) = (0u64, 0.0, 0u64);
        while now < seconds * SECOND {
            let step = 10_000_000;
            let until = now + step;
            let mut moved = 0;
            while pace.next_ns < until && (moved as f64) < disk * 0.01 {
                pace.copy(256 << 10, now);
                moved += 256 << 10;
            }
            let share = (moved as f64 / (disk * 0.01)).min(0.95);
            let latency = quiet_ns / (1.0 - share);
            let made = calls_per_s / 100;
            (calls, nanos) = (calls + made, nanos + (latency * made as f64) as u64);
            if now > seconds * SECOND / 2 {
                copied += moved;
                (latency_sum, latency_count) = (latency_sum + latency, latency_count + 1);
            }
            now = until;
            pace.update(calls, nanos, moved as f64 * 100.0, now);
        }
        (copied as f64 / (seconds as f64 / 2.0), latency_sum / latency_count as f64)
    }

    #[test]
    fn limit_holds_over_any_interval() {
        let limits = PaceLimits { max_bytes_per_s: Some(10 * MIB), ..PaceLimits::default() };
        let mut pace = ResyncPace::new(limits, 0, None);
        let begins: Vec<u64> = (0..101).map(|_| pace.copy(MIB, 0)).collect();
        assert_eq!(begins[0], 0);
        assert!(begins.windows(2).all(|pair| pair[1] - pair[0] == SECOND / 10));
        assert_eq!(pace.copy(MIB, 100 * SECOND), 100 * SECOND, "idle time is not saved up");
    }

    #[test]
    fn new_limit_applies_to_next_copy() {
        let slow = PaceLimits { max_bytes_per_s: Some(MIB), ..PaceLimits::default() };
        let mut pace = ResyncPace::new(slow, 0, None);
        pace.copy(MIB, 0);
        assert_eq!(pace.copy(MIB, 0), SECOND);
        pace.set(PaceLimits { max_bytes_per_s: Some(4 * MIB), ..slow });
        pace.copy(MIB, 0);
        assert_eq!(pace.copy(MIB, 0), 2 * SECOND + SECOND / 4);
    }

    #[test]
    fn idle_hosts_leave_full_bandwidth() {
        let (rate, _) = run(PaceLimits::default(), 400e6, 200_000.0, 0, 10);
        assert!(rate > 360e6, "{rate}");
    }

    #[test]
    fn busy_hosts_keep_half_their_speed_during_resync() {
        let limits = PaceLimits::default();
        let (rate, latency) = run(limits, 400e6, 200_000.0, 5000, 60);
        assert!(latency < 2.2 * 200_000.0, "{latency}");
        assert!(rate > 1.5 * limits.min_bytes_per_s as f64, "{rate}");
        // A disk that can hardly serve both.
        let (rate, _) = run(limits, 20e6, 200_000.0, 5000, 60);
        assert!(rate >= 0.9 * limits.min_bytes_per_s as f64, "{rate}");
    }
}
