//! Pause detection: time in which a measured program stood still, stopped by a signal, by a frozen
//! container, or by a suspended machine.
//!
//! Neither fio's output nor its clock shows such pauses. A time-bounded job keeps counting while it
//! is stopped, and only its requests are missing. Suspend stops the monotonic clock that fio uses.
//! So `waitid(2)` is asked whether the program was stopped or continued since the last poll, and a
//! late poll by the boot-time clock shows that this process did not run either.

use std::time::Duration;

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use rustix::time::{ClockId, clock_gettime};

/// Lateness of a poll that is not explained by a busy CPU.
const LATE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Pauses {
    child: Pid,
    is_stopped: bool,
    last_look: Duration,
    paused: Duration,
}

impl Pauses {
    pub(crate) fn begin(child: Pid) -> Pauses {
        Pauses { child, is_stopped: false, last_look: now(), paused: Duration::ZERO }
    }

    /// Waits by `sleep`, then polls. Only lateness of the sleep itself counts: a caller that is
    /// slow between two waits is not a pause.
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

    pub(crate) fn seconds(&self) -> f64 {
        self.paused.as_secs_f64()
    }

    /// Whether the child is stopped, or was since the last poll.
    fn was_stopped(&mut self) -> bool {
        let mut was = self.is_stopped;
        let news = WaitIdOptions::STOPPED | WaitIdOptions::CONTINUED | WaitIdOptions::NOHANG;
        // It may have been stopped and then continued. An error means that the child has ended.
        for _ in 0..2 {
            let Ok(Some(status)) = waitid(WaitId::Pid(self.child), news) else { break };
            (self.is_stopped, was) = (status.stopped(), true);
        }
        was
    }
}

/// Boot-time clock, which includes suspend.
fn now() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_count_suspend_and_stop_once() {
        let ms = Duration::from_millis;
        let mut pauses = Pauses::begin(rustix::process::getpid());
        pauses.last_look = ms(1000);
        // A blocked terminal and a briefly busy CPU are not pauses.
        pauses.looked(ms(9500), ms(9020), false);
        assert_eq!(pauses.seconds(), 0.0);
        // The machine was suspended, and the program was stopped meanwhile.
        pauses.looked(ms(14_500), ms(9520), true);
        assert_eq!(pauses.seconds(), 5.0);
        pauses.looked(ms(14_520), ms(14_520), true);
        pauses.looked(ms(17_520), ms(14_540), false);
        assert_eq!(pauses.seconds(), 8.02);
        pauses.looked(ms(17_540), ms(17_540), false);
        assert_eq!(pauses.seconds(), 8.02);
    }
}
