//! Adaptive busy-polling before sleep.
//!
//! A wake-up costs tens of microseconds, so an executor that expects work within a few of them
//! polls instead of sleeping. It polls only while recent waits ended within the bound. After
//! failures it pauses for exponentially longer times, and it pauses after the scheduler took the
//! core away for another thread.
//!
//! Waiting for a timer does not justify polling: its expiry is known, so a sleep is as good. If
//! timers expire often (commands beyond a rate limit, an emulated latency), the number of waits
//! that ended with work between the last two timers predicts the next round. The wait after as many
//! is expected to end with the timer, and is slept, unless the timer is so near that sleeping and
//! waking up cost as much.

use super::os;

/// Pause of polling after a lost core, in nanoseconds.
const YIELD_NS: u64 = 10_000_000;
/// Interval between checks for a lost core, in nanoseconds.
const CHECK_NS: u64 = 1_000_000;
/// Failed polls before the first pause; pauses then double up to 2^`MAX_BACKOFF` sleeps.
const FAILURES_ALLOWED: u32 = 8;
const MAX_BACKOFF: u32 = 10;
/// A sleep shorter than this many bounds includes wake-up costs on both sides, which polling may
/// have saved. After such a sleep, pauses are at most 2^`NEAR_BACKOFF` sleeps.
const NEAR_MISS: u64 = 4;
const NEAR_BACKOFF: u32 = 4;
/// After a timer ended a wait, the next timer is expected for this many bounds.
const TIMER_SPAN: u64 = 16;

/// Adaptive polling state of one executor.
#[derive(Debug, Default)]
pub(crate) struct BusyPoll {
    max_ns: u64,
    /// The last budget was greater than 0.
    tried: bool,
    failures: u32,
    skip: u32,
    quiet_until: u64,
    checked_at: u64,
    preemptions: u64,
    /// Waits that ended with work: since the last timer, and between the two timers before; and the
    /// time until which another timer is expected.
    worked: u32,
    usual: u32,
    timer_until: u64,
}

impl BusyPoll {
    pub(crate) fn new(max_ns: u64) -> BusyPoll {
        BusyPoll { max_ns, preemptions: os::preemptions(), ..BusyPoll::default() }
    }

    /// How long to poll now, in nanoseconds, with the next timer at `deadline`; 0 for not at all,
    /// as if polling is not `allowed`.
    pub(crate) fn budget(&mut self, now: u64, deadline: u64, allowed: bool) -> u64 {
        self.tried = false;
        let far = deadline.saturating_sub(now) > self.max_ns;
        let for_timer = far && self.worked >= self.usual && now < self.timer_until;
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

    /// The poll ended with work.
    pub(crate) fn paid(&mut self) {
        self.worked = self.worked.saturating_add(1);
        self.failures = 0;
    }

    /// A timer ended the wait, as expected.
    pub(crate) fn timed_out(&mut self, now: u64) {
        (self.usual, self.worked) = (self.worked, 0);
        self.timer_until = now + self.max_ns * TIMER_SPAN;
        self.backed_off(u64::MAX);
    }

    /// The executor slept for `slept_ns` until work came, with or without polling before.
    pub(crate) fn slept(&mut self, slept_ns: u64) {
        self.worked = self.worked.saturating_add(1);
        self.backed_off(slept_ns);
    }

    fn backed_off(&mut self, slept_ns: u64) {
        let near = slept_ns < self.max_ns * NEAR_MISS;
        let backoff = if near { NEAR_BACKOFF } else { MAX_BACKOFF };
        if self.tried {
            self.failures = (self.failures + 1).min(FAILURES_ALLOWED + MAX_BACKOFF);
            let over = self.failures.saturating_sub(FAILURES_ALLOWED).min(backoff);
            self.skip = if over > 0 { 1 << over } else { 0 };
        } else {
            self.skip = self.skip.min(1 << backoff);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAR: u64 = u64::MAX;

    #[test]
    fn zero_bound_never_polls() {
        assert_eq!(BusyPoll::new(0).budget(1, FAR, true), 0);
    }

    #[test]
    fn failures_back_off_and_success_resets() {
        let mut spin = BusyPoll::new(50_000);
        for _ in 0..FAILURES_ALLOWED {
            assert_eq!(spin.budget(1, FAR, true), 50_000);
            spin.slept(1_000_000);
        }
        spin.slept(1_000_000);
        assert_eq!(
            [spin.budget(1, FAR, true), spin.budget(1, FAR, true), spin.budget(1, FAR, true)],
            [0, 0, 50_000]
        );
        spin.paid();
        assert_eq!(spin.budget(1, FAR, true), 50_000);
    }

    /// Number of sleeps between polls until work would have arrived within the bound, after
    /// `before` sleeps of a millisecond each.
    fn sleeps_until_it_pays(before: u32, slept_ns: u64) -> u32 {
        let mut spin = BusyPoll::new(50_000);
        for _ in 0..before {
            spin.budget(1, FAR, true);
            spin.slept(1_000_000);
        }
        (0..)
            .find(|_| {
                spin.budget(1, FAR, true) > 0 || {
                    spin.slept(slept_ns);
                    false
                }
            })
            .expect("polling pays")
    }

    #[test]
    fn polling_resumes_soon_after_long_idle() {
        assert!(sleeps_until_it_pays(100_000, 20_000) <= 1 + (1 << NEAR_BACKOFF));
        assert!(sleeps_until_it_pays(100_000, 1_000_000) <= 1 << MAX_BACKOFF);
    }

    #[test]
    fn disallowed_polls_do_not_count_as_failures() {
        let mut spin = BusyPoll::new(50_000);
        for _ in 0..100 {
            assert_eq!(spin.budget(1, FAR, false), 0);
            spin.slept(1_000_000);
        }
        assert_eq!(spin.budget(1, FAR, true), 50_000);
    }

    #[test]
    fn timers_do_not_cause_polling() {
        let mut spin = BusyPoll::new(50_000);
        // A rate limit: one timer every 200 us. Its completions bring two more commands within 30
        // us, and then the wait is for the next timer.
        let mut spun = [0; 3];
        for timer in 1..1000_u64 {
            let now = timer * 200_000;
            spin.timed_out(now);
            for (wait, after) in [1_000, 15_000, 31_000].into_iter().enumerate() {
                let budget = spin.budget(now + after, FAR, true);
                spun[wait] += u32::from(budget > 0);
                match (wait, budget) {
                    (2, _) => {}
                    (_, 0) => spin.slept(14_000),
                    _ => spin.paid(),
                }
            }
        }
        assert!(spun[0] > 990 && spun[1] > 990 && spun[2] == 0, "{spun:?}");
        // Sleeping until a near timer would cost as much.
        let now = 999 * 200_000 + 31_000;
        assert_eq!([now + 50_000, now + 50_001].map(|at| spin.budget(now, at, true)), [50_000, 0]);
        // Timers without other work cause back-off, as any other long wait does.
        let mut spin = BusyPoll::new(50_000);
        let spins = (1..1000_u64).filter(|second| {
            let now = second * 1_000_000_000;
            let budget = spin.budget(now, FAR, true);
            spin.timed_out(now + 1_000_000);
            budget > 0
        });
        assert!(spins.count() < 50);
    }

    #[test]
    fn rare_timer_does_not_stop_polling() {
        let mut spin = BusyPoll::new(50_000);
        let mut spun = 0;
        for wait in 1..100_000_u64 {
            let now = wait * 20_000;
            if wait % 5000 == 0 {
                spin.timed_out(now);
            } else if spin.budget(now, FAR, true) > 0 {
                spin.paid();
                spun += 1;
            }
        }
        assert!(spun > 98_000, "{spun}");
    }
}
