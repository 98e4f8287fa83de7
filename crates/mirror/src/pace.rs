//! How fast a resync copies: a pure core, told the time and what it sees.
//!
//! Promises:
//! - never faster than the limit, over any stretch of time, but for one copy;
//! - adaptive: while hosts write or read, it takes as much as leaves their calls at most about
//!   twice as slow as without it, and never less than the floor, so that it ends; while they are
//!   silent, it takes all that there is.

/// How fast resync may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PaceLimits {
    /// At most this, in bytes a second; `None` for as fast as it goes.
    pub max_bytes_per_s: Option<u64>,
    /// Yields to hosts' calls.
    pub adaptive: bool,
    /// Never slower than this while it can be had, in bytes a second.
    pub min_bytes_per_s: u64,
}

impl Default for PaceLimits {
    fn default() -> PaceLimits {
        PaceLimits { max_bytes_per_s: None, adaptive: true, min_bytes_per_s: 16 << 20 }
    }
}

/// Hosts' latency is looked at in steps of this, in nanoseconds.
const STEP_NS: u64 = 100_000_000;
/// Fewer calls in a step say nothing: hosts are as good as silent.
const FEW_CALLS: u64 = 4;
/// A long term mean over so many steps is what calls take without resync.
const QUIET_WEIGHT: f64 = 1.0 / 16.0;

/// See the module's promises.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    limits: PaceLimits,
    /// Copies may begin from here on.
    next_ns: u64,
    /// Current rate, in bytes a second.
    rate: f64,
    step_began_ns: u64,
    /// Calls and their latency, summed up, at the beginning of the step.
    calls_then: u64,
    nanos_then: u64,
    /// Mean latency of hosts' calls with little resync, in nanoseconds.
    quiet_ns: Option<f64>,
}

/// Without a limit of any kind: more than any link.
const UNLIMITED: f64 = 1e12;

impl Pace {
    /// `quiet_ns`: what hosts' calls took on average before, where that is known.
    pub(crate) fn new(limits: PaceLimits, now_ns: u64, quiet_ns: Option<f64>) -> Pace {
        let rate = limits.max_bytes_per_s.map_or(UNLIMITED, |max| max as f64);
        Pace {
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

    /// Takes other limits, if they are others.
    pub(crate) fn set(&mut self, limits: PaceLimits) {
        if self.limits != limits {
            self.limits = limits;
            self.rate = self.most();
        }
    }

    /// A copy of `bytes` is to begin: when it may, in the time of the runtime.
    pub(crate) fn copy(&mut self, bytes: u64, now_ns: u64) -> u64 {
        let begins = self.next_ns.max(now_ns);
        let span = bytes as f64 / self.rate.max(1.0) * 1e9;
        self.next_ns = begins.saturating_add(span as u64);
        begins
    }

    /// Tells how many calls hosts have made in all, and how long these took together. `copied` is
    /// what resync moves now, in bytes a second.
    pub(crate) fn see(&mut self, calls: u64, nanos: u64, copied: f64, now_ns: u64) {
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
            // Nothing is known yet: go slowly for a step, and learn.
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
            // As good as without resync: this is what calls take now.
            self.quiet_ns = Some(quiet + (mean - quiet) * QUIET_WEIGHT);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const MIB: u64 = 1 << 20;

    /// Runs for some seconds against hosts whose calls take `quiet_ns` and longer by resync's share
    /// of the disk; returns the mean rate and mean latency of the last half.
    fn run(
        limits: PaceLimits,
        disk: f64,
        quiet_ns: f64,
        calls_per_s: u64,
        seconds: u64,
    ) -> (f64, f64) {
        let mut pace = Pace::new(limits, 0, None);
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
            pace.see(calls, nanos, moved as f64 * 100.0, now);
        }
        (copied as f64 / (seconds as f64 / 2.0), latency_sum / latency_count as f64)
    }

    #[test]
    fn the_limit_holds_over_any_stretch() {
        let limits = PaceLimits { max_bytes_per_s: Some(10 * MIB), ..PaceLimits::default() };
        let mut pace = Pace::new(limits, 0, None);
        let begins: Vec<u64> = (0..101).map(|_| pace.copy(MIB, 0)).collect();
        assert_eq!(begins[0], 0);
        assert!(begins.windows(2).all(|pair| pair[1] - pair[0] == SECOND / 10));
        assert_eq!(pace.copy(MIB, 100 * SECOND), 100 * SECOND, "an idle time is not saved up");
    }

    #[test]
    fn another_limit_holds_from_the_next_copy_on() {
        let slow = PaceLimits { max_bytes_per_s: Some(MIB), ..PaceLimits::default() };
        let mut pace = Pace::new(slow, 0, None);
        pace.copy(MIB, 0);
        assert_eq!(pace.copy(MIB, 0), SECOND);
        pace.set(PaceLimits { max_bytes_per_s: Some(4 * MIB), ..slow });
        pace.copy(MIB, 0);
        assert_eq!(pace.copy(MIB, 0), 2 * SECOND + SECOND / 4);
    }

    #[test]
    fn silent_hosts_leave_everything() {
        let (rate, _) = run(PaceLimits::default(), 400e6, 200_000.0, 0, 10);
        assert!(rate > 360e6, "{rate}");
    }

    #[test]
    fn busy_hosts_are_at_most_about_twice_as_slow_and_resync_goes_on() {
        let limits = PaceLimits::default();
        let (rate, latency) = run(limits, 400e6, 200_000.0, 5000, 60);
        assert!(latency < 2.2 * 200_000.0, "{latency}");
        assert!(rate > 1.5 * limits.min_bytes_per_s as f64, "{rate}");
        // A disk that has hardly room for both.
        let (rate, _) = run(limits, 20e6, 200_000.0, 5000, 60);
        assert!(rate >= 0.9 * limits.min_bytes_per_s as f64, "{rate}");
    }
}
