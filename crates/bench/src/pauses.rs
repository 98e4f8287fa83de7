//! Time in which a program that is measured stood still: it was stopped by a signal, or it and we
//! were, by one, by a frozen container, or with the whole machine, which slept.
//!
//! Neither what fio reports nor its own clock tells. A job that is bounded by time counts on while
//! it is stopped, and ends when it would have: only its requests are missing. A machine that sleeps
//! stops the monotonic clock, by which fio measures, and us with it. So the kernel is asked whether
//! the program was stopped or continued since the last look, by `waitid(2)`, which keeps that until
//! it is asked; and that we ourselves were not run is seen by the clock that goes on in a suspended
//! machine.

use std::time::Duration;

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use rustix::time::{ClockId, clock_gettime};

/// A look that comes so much later than it was meant to comes of no busy CPU: somebody held us up.
const LATE: Duration = Duration::from_secs(1);

/// Looks at a child of this process again and again.
#[derive(Debug)]
pub(crate) struct Pauses {
    child: Option<Pid>,
    is_stopped: bool,
    last_look: Duration,
    paused: Duration,
}

impl Pauses {
    /// Of a child by its number, from now on.
    pub(crate) fn begin(child: u32) -> Pauses {
        let child = i32::try_from(child).ok().and_then(Pid::from_raw);
        Pauses { child, is_stopped: false, last_look: now(), paused: Duration::ZERO }
    }

    /// Waits by `sleep`, and looks whether it stood still meanwhile. That the caller is late by
    /// itself, as its terminal makes it wait, is no pause.
    pub(crate) fn wait(&mut self, span: Duration, sleep: impl FnOnce(Duration)) {
        let before = now();
        sleep(span);
        let was_stopped = self.was_stopped();
        self.looked(now(), before + span, was_stopped);
    }

    fn looked(&mut self, at: Duration, expected: Duration, was_stopped: bool) {
        if was_stopped || at > expected + LATE {
            self.paused += at.saturating_sub(self.last_look);
        }
        self.last_look = at;
    }

    /// How long it stood still, in seconds.
    pub(crate) fn seconds(&self) -> f64 {
        self.paused.as_secs_f64()
    }

    /// Whether it is stopped, or was since the last look.
    fn was_stopped(&mut self) -> bool {
        let mut was = self.is_stopped;
        let news = WaitIdOptions::STOPPED | WaitIdOptions::CONTINUED | WaitIdOptions::NOHANG;
        // It may have been stopped and then continued. An error is a child that has ended.
        for _ in 0..2 {
            let Some(Ok(Some(status))) = self.child.map(|pid| waitid(WaitId::Pid(pid), news))
            else {
                break;
            };
            (self.is_stopped, was) = (status.stopped(), true);
        }
        was
    }
}

/// Goes on while the machine sleeps.
fn now() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_late_by_far_or_was_stopped_counts_once() {
        let ms = Duration::from_millis;
        let mut pauses = Pauses::begin(0);
        pauses.last_look = ms(1000);
        // The terminal made us wait, and a busy CPU for a moment.
        pauses.looked(ms(9500), ms(9020), false);
        assert_eq!(pauses.seconds(), 0.0);
        // The machine slept, and the program was stopped meanwhile.
        pauses.looked(ms(14_500), ms(9520), true);
        assert_eq!(pauses.seconds(), 5.0);
        pauses.looked(ms(14_520), ms(14_520), true);
        pauses.looked(ms(17_520), ms(14_540), false);
        assert_eq!(pauses.seconds(), 8.02);
        pauses.looked(ms(17_540), ms(17_540), false);
        assert_eq!(pauses.seconds(), 8.02);
    }
}
