//! Time, real or simulated.

use std::future::{Future, poll_fn};
use std::ops::{Add, Sub};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::executor::Executor;

/// A point of monotonic time, with nanosecond resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(u64);

impl Instant {
    /// Nanoseconds since the runtime's epoch.
    pub fn as_nanos(self) -> u64 {
        self.0
    }

    #[cfg(feature = "sim")]
    pub(crate) fn from_nanos(nanos: u64) -> Instant {
        Instant(nanos)
    }

    /// Time since `earlier`; zero if that is later.
    pub fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Time from this point until now.
    pub fn elapsed(self) -> Duration {
        now().since(self)
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, span: Duration) -> Instant {
        Instant(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub for Instant {
    type Output = Duration;
    fn sub(self, earlier: Instant) -> Duration {
        self.since(earlier)
    }
}

/// The current time.
pub fn now() -> Instant {
    Instant(Executor::current().now())
}

/// Nanoseconds of a monotonic clock that runs on while the machine is suspended (`CLOCK_BOOTTIME`):
/// for rights that end at a time that another machine counts too. Sleeps do not count that time.
pub fn boot_nanos() -> u64 {
    Executor::current().driver().boot_time()
}

/// Time since the Unix epoch, for log lines and identifiers; it may jump.
pub fn wall_clock() -> Duration {
    Duration::from_nanos(Executor::current().driver().wall_clock())
}

/// Waits until `deadline`.
pub fn sleep_until(deadline: Instant) -> Sleep {
    Sleep { deadline, key: None }
}

/// Waits for `span`.
pub fn sleep(span: Duration) -> Sleep {
    sleep_until(now() + span)
}

/// Future of [`sleep`]. Dropping it removes the timer.
#[derive(Debug)]
pub struct Sleep {
    deadline: Instant,
    key: Option<(u64, u64)>,
}

impl Future for Sleep {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let executor = Executor::current();
        if executor.now() >= self.deadline.0 {
            return Poll::Ready(());
        }
        let known = self.key.is_some_and(|key| executor.update_timer(key, cx.waker()));
        if !known {
            self.key = Some(executor.add_timer(self.deadline.0, cx.waker().clone()));
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let (Some(key), Some(executor)) = (self.key, Executor::try_current()) {
            executor.remove_timer(key);
        }
    }
}

/// Pauses between attempts: each is twice the one before, up to a maximum.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    min: Duration,
    max: Duration,
    next: Duration,
}

impl Backoff {
    /// Starts with a pause of `min`.
    pub const fn new(min: Duration, max: Duration) -> Backoff {
        Backoff { min, max, next: min }
    }

    /// The same pauses from the one after `failures` others on.
    pub fn after(mut self, failures: u32) -> Backoff {
        // Beyond 16 doublings they are at any maximum.
        self.next = (self.min * (1 << failures.min(16))).min(self.max);
        self
    }

    /// Starts over, after a success.
    pub fn reset(&mut self) {
        self.next = self.min;
    }

    /// The next pause.
    pub fn advance(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.max);
        pause
    }

    /// Sleeps for a random part of the next pause, at least half of it. The jitter keeps the
    /// clients of a restarted server from reconnecting simultaneously.
    pub async fn sleep_with_jitter(&mut self) {
        let half = self.advance().as_nanos() as u64 / 2;
        sleep(Duration::from_nanos(half + crate::random_u64() % (half + 1))).await;
    }
}

/// The timeout expired first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("timed out")]
pub struct Elapsed;

/// Runs `future` for at most `span`, then drops it.
///
/// # Errors
/// [`Elapsed`] if the timeout expires.
pub async fn timeout<F: Future>(span: Duration, future: F) -> Result<F::Output, Elapsed> {
    let mut future = pin!(future);
    let mut timer = sleep(span);
    poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Ok(output));
        }
        Pin::new(&mut timer).poll(cx).map(|()| Err(Elapsed))
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_maximum() {
        let [min, max] = [20, 100].map(Duration::from_millis);
        let mut pauses = Backoff::new(min, max);
        let seen: Vec<_> = (0..4).map(|_| pauses.advance().as_millis()).collect();
        assert_eq!(seen, [20, 40, 80, 100]);
        pauses.reset();
        assert_eq!(pauses.advance(), min);
        for (failures, pause) in [(0, min), (2, 4 * min), (3, max), (u32::MAX, max)] {
            assert_eq!(pauses.after(failures).advance(), pause);
        }
    }
}
