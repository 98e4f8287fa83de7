//! When to busy-wait before sleeping.
//!
//! A wake-up costs tens of microseconds, so an executor that expects work within a few of them is
//! better off looking again than sleeping. It spins only while recent waits ended within the bound,
//! gives up for exponentially longer times as they do not, and not at all for a while after the
//! scheduler took the core away for someone else.
//!
//! A timer is no reason to spin: when it goes off is known, so a sleep until then is as good. Where
//! timers go off often (commands beyond a limit, an emulated latency), as many waits as ended with
//! work before the last one are expected to do so again; the next is for the timer, and is slept.

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
/// After a timer ended a wait: for this many bounds the next one is expected.
const TIMER_SPAN: u64 = 16;

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
    /// Waits that ended with work: since a timer ended one, and between that one and the timer
    /// before; and until when another is expected.
    worked: u32,
    usual: u32,
    timer_until: u64,
}

impl Spin {
    pub(crate) fn new(max_ns: u64) -> Spin {
        let preemptions = os::preemptions();
        Spin {
            max_ns,
            tried: false,
            failures: 0,
            skip: 0,
            quiet_until: 0,
            checked_at: 0,
            preemptions,
            worked: 0,
            usual: 0,
            timer_until: 0,
        }
    }

    /// How long to spin now, in nanoseconds; 0 for not at all, as when it is not `allowed`.
    pub(crate) fn budget(&mut self, now: u64, allowed: bool) -> u64 {
        self.tried = false;
        let for_timer = self.worked >= self.usual && now < self.timer_until;
        if self.max_ns == 0 || !allowed || now < self.quiet_until || for_timer {
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
        self.worked = self.worked.saturating_add(1);
        self.failures = 0;
    }

    /// A timer ended the wait: the sleep was as long as it was to be.
    pub(crate) fn timed_out(&mut self, now: u64) {
        (self.usual, self.worked) = (self.worked, 0);
        self.timer_until = now + self.max_ns * TIMER_SPAN;
        self.backed_off(u64::MAX);
    }

    /// The executor slept for `slept_ns` until there was work, whether it had spun before that or
    /// not.
    pub(crate) fn slept(&mut self, slept_ns: u64) {
        self.worked = self.worked.saturating_add(1);
        self.backed_off(slept_ns);
    }

    fn backed_off(&mut self, slept_ns: u64) {
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

    #[test]
    fn timers_are_no_reason_to_spin() {
        let mut spin = Spin::new(50_000);
        // A limit: a timer every 200 us; its answers bring two more commands within 30 us, and then
        // the wait is for the next timer.
        let mut spun = [0; 3];
        for timer in 1..1000_u64 {
            let now = timer * 200_000;
            spin.timed_out(now);
            for (wait, after) in [1_000, 15_000, 31_000].into_iter().enumerate() {
                let budget = spin.budget(now + after, true);
                spun[wait] += u32::from(budget > 0);
                match (wait, budget) {
                    (2, _) => {}
                    (_, 0) => spin.slept(14_000),
                    _ => spin.paid(),
                }
            }
        }
        assert!(spun[0] > 990 && spun[1] > 990 && spun[2] == 0, "{spun:?}");
        // Alone they make it give up as any other wait does that is long.
        let mut spin = Spin::new(50_000);
        let spins = (1..1000_u64).filter(|second| {
            let now = second * 1_000_000_000;
            let budget = spin.budget(now, true);
            spin.timed_out(now + 1_000_000);
            budget > 0
        });
        assert!(spins.count() < 50);
    }

    #[test]
    fn a_rare_timer_does_not_stop_what_pays() {
        let mut spin = Spin::new(50_000);
        let mut spun = 0;
        for wait in 1..100_000_u64 {
            let now = wait * 20_000;
            if wait % 5000 == 0 {
                spin.timed_out(now);
            } else if spin.budget(now, true) > 0 {
                spin.paid();
                spun += 1;
            }
        }
        assert!(spun > 98_000, "{spun}");
    }
}
