//! When to busy-wait before sleeping.
//!
//! A wake-up costs tens of microseconds, so an executor that expects work within a few of them is
//! better off looking again than sleeping. It spins only while recent waits ended within the bound,
//! gives up for exponentially longer times as they do not, and not at all for a while after the
//! scheduler took the core away for someone else.

use super::os;

/// After a lost core: no spinning for this long, in nanoseconds.
const YIELD_NS: u64 = 10_000_000;
/// How often to ask the scheduler, in nanoseconds.
const CHECK_NS: u64 = 1_000_000;
/// Failed spins before the first pause; pauses then double up to 2^`MAX_BACKOFF` sleeps.
const PATIENCE: u32 = 8;
const MAX_BACKOFF: u32 = 10;
/// A sleep that lasted less than this many bounds includes the cost of the wake-ups on both sides,
/// which spinning may have saved: after it, pauses are 2^`NEAR_BACKOFF` sleeps at most.
const NEAR_MISS: u64 = 4;
const NEAR_BACKOFF: u32 = 4;

/// The adaptive bound of one executor.
#[derive(Debug)]
pub(crate) struct Spin {
    max_ns: u64,
    /// The last budget was not 0.
    tried: bool,
    failures: u32,
    skip: u32,
    quiet_until: u64,
    checked_at: u64,
    preemptions: u64,
}

impl Spin {
    pub(crate) fn new(max_ns: u64) -> Spin {
        let preemptions = os::preemptions();
        let (quiet_until, checked_at) = (0, 0);
        Spin { max_ns, tried: false, failures: 0, skip: 0, quiet_until, checked_at, preemptions }
    }

    /// How long to spin now, in nanoseconds; 0 for not at all, as when it is not `allowed`.
    pub(crate) fn budget(&mut self, now: u64, allowed: bool) -> u64 {
        self.tried = false;
        if self.max_ns == 0 || !allowed || now < self.quiet_until {
            return 0;
        }
        if now.saturating_sub(self.checked_at) > CHECK_NS {
            self.checked_at = now;
            let preemptions = os::preemptions();
            let lost = preemptions - self.preemptions;
            self.preemptions = preemptions;
            if lost > 1 {
                self.quiet_until = now + YIELD_NS;
                return 0;
            }
        }
        if self.skip > 0 {
            self.skip -= 1;
            return 0;
        }
        self.tried = true;
        self.max_ns
    }

    /// The spin ended with work.
    pub(crate) fn paid(&mut self) {
        self.failures = 0;
    }

    /// The executor slept for `slept_ns`, whether it had spun before that or not.
    pub(crate) fn slept(&mut self, slept_ns: u64) {
        let near = slept_ns < self.max_ns * NEAR_MISS;
        let backoff = if near { NEAR_BACKOFF } else { MAX_BACKOFF };
        if self.tried {
            self.failures = (self.failures + 1).min(PATIENCE + MAX_BACKOFF);
            let over = self.failures.saturating_sub(PATIENCE).min(backoff);
            self.skip = if over > 0 { 1 << over } else { 0 };
        } else {
            self.skip = self.skip.min(1 << backoff);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_bound_never_spins() {
        assert_eq!(Spin::new(0).budget(1, true), 0);
    }

    #[test]
    fn failures_back_off_and_success_resets() {
        let mut spin = Spin::new(50_000);
        for _ in 0..PATIENCE {
            assert_eq!(spin.budget(1, true), 50_000);
            spin.slept(1_000_000);
        }
        spin.slept(1_000_000);
        assert_eq!(
            [spin.budget(1, true), spin.budget(1, true), spin.budget(1, true)],
            [0, 0, 50_000]
        );
        spin.paid();
        assert_eq!(spin.budget(1, true), 50_000);
    }
    /// Sleeps between spins until work would have come within the bound, after `before` sleeps of
    /// a millisecond each.
    fn sleeps_until_it_pays(before: u32, slept_ns: u64) -> u32 {
        let mut spin = Spin::new(50_000);
        for _ in 0..before {
            spin.budget(1, true);
            spin.slept(1_000_000);
        }
        (0..)
            .find(|_| {
                spin.budget(1, true) > 0 || {
                    spin.slept(slept_ns);
                    false
                }
            })
            .expect("it pays")
    }

    #[test]
    fn what_was_idle_for_long_spins_again_soon_once_work_comes_often() {
        assert!(sleeps_until_it_pays(100_000, 20_000) <= 1 + (1 << NEAR_BACKOFF));
        assert!(sleeps_until_it_pays(100_000, 1_000_000) <= 1 << MAX_BACKOFF);
    }

    #[test]
    fn what_was_not_allowed_is_no_failure() {
        let mut spin = Spin::new(50_000);
        for _ in 0..100 {
            assert_eq!(spin.budget(1, false), 0);
            spin.slept(1_000_000);
        }
        assert_eq!(spin.budget(1, true), 50_000);
    }
}
