//! Keep alive: a controller whose host has gone silent is taken away (Base 3.9).
//!
//! It is traffic based: any command counts, and to count is to set a flag. A timer looks at the flag
//! [`KEEP_ALIVE_LOOKS`] times in a time-out, so a silent host is noticed after one time-out, and a
//! quarter of it at most.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use flagstone_runtime::time;

use crate::limits::{KEEP_ALIVE_LOOKS, KEEP_ALIVE_UNIT_MS};

/// The timer's setting and the flag.
#[derive(Debug)]
pub(super) struct KeepAlive {
    traffic: AtomicBool,
    setting: Mutex<Setting>,
}

#[derive(Debug)]
struct Setting {
    timeout_ms: u32,
    revision: u64,
    waiting: Option<Waker>,
}

impl KeepAlive {
    /// A time-out of `timeout_ms` rounded up to whole units; 0 is none.
    pub(super) fn new(timeout_ms: u32) -> KeepAlive {
        let setting = Setting { timeout_ms: round_up(timeout_ms), revision: 0, waiting: None };
        KeepAlive { traffic: AtomicBool::new(false), setting: Mutex::new(setting) }
    }

    fn lock(&self) -> MutexGuard<'_, Setting> {
        self.setting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a command. Writes only when nothing was counted since the timer last looked, so that
    /// cores do not fight for the flag.
    #[inline]
    pub(super) fn saw_traffic(&self) {
        if !self.traffic.load(Relaxed) {
            self.traffic.store(true, Relaxed);
        }
    }

    /// The time-out, milliseconds; 0 is none.
    pub(super) fn timeout_ms(&self) -> u32 {
        self.lock().timeout_ms
    }

    /// Sets the time-out, rounded up to whole units, and starts it anew.
    pub(super) fn set_timeout_ms(&self, timeout_ms: u32) {
        let waker = {
            let mut setting = self.lock();
            setting.timeout_ms = round_up(timeout_ms);
            setting.revision += 1;
            setting.waiting.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Sets the time-out to less than a unit.
    #[cfg(test)]
    pub(super) fn shorten(&self, timeout_ms: u32) {
        self.lock().timeout_ms = timeout_ms;
    }

    /// Ends when the host was silent for its time-out. One task waits at a time.
    pub(super) async fn expired(&self) {
        let mut silent_looks = 0;
        loop {
            let (timeout_ms, revision) = {
                let setting = self.lock();
                (setting.timeout_ms, setting.revision)
            };
            if timeout_ms == 0 {
                self.changed(revision).await;
                continue;
            }
            let span = Duration::from_millis(u64::from(timeout_ms)) / KEEP_ALIVE_LOOKS;
            let same = time::timeout(span, self.changed(revision)).await.is_err();
            let heard = self.traffic.swap(false, Relaxed);
            silent_looks = if same && !heard { silent_looks + 1 } else { 0 };
            if silent_looks == KEEP_ALIVE_LOOKS {
                return;
            }
        }
    }

    async fn changed(&self, revision: u64) {
        poll_fn(|context| {
            let mut setting = self.lock();
            if setting.revision != revision {
                return Poll::Ready(());
            }
            setting.waiting = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

fn round_up(timeout_ms: u32) -> u32 {
    timeout_ms.checked_next_multiple_of(KEEP_ALIVE_UNIT_MS).unwrap_or(timeout_ms)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flagstone_runtime::sim::{Config, Simulation};
    use flagstone_runtime::spawn;
    use std::future::Future;
    use std::rc::Rc;

    #[test]
    fn traffic_puts_the_end_off_and_a_new_setting_starts_anew() {
        flagstone_runtime::block_on(async {
            let keep_alive = KeepAlive::new(0);
            let mut expired = std::pin::pin!(keep_alive.expired());
            // Without a time-out only a new setting counts.
            let poll = poll_fn(|context| Poll::Ready(expired.as_mut().poll(context))).await;
            assert!(poll.is_pending());
            keep_alive.saw_traffic();
            keep_alive.set_timeout_ms(1);
            assert_eq!(keep_alive.timeout_ms(), KEEP_ALIVE_UNIT_MS);
            keep_alive.shorten(1);
            expired.await;
            assert!(!keep_alive.traffic.load(Relaxed), "it was looked at before the end");
        })
        .unwrap();
    }

    #[test]
    fn silence_is_noticed_after_a_time_out_and_a_quarter_at_most() {
        let sim = Simulation::new(1, Config::default());
        for heard_ms in [0, 1, 499, 500, 501, 1300, 7777] {
            let silent = sim.block_on(async move {
                let keep_alive = Rc::new(KeepAlive::new(2000));
                let watched = keep_alive.clone();
                let end = spawn(async move {
                    watched.expired().await;
                    time::now()
                });
                for _ in 0..heard_ms {
                    time::sleep(Duration::from_millis(1)).await;
                    keep_alive.saw_traffic();
                }
                let heard = time::now();
                end.await.expect("nobody aborts it").since(heard)
            });
            let bounds = Duration::from_millis(2000)..=Duration::from_millis(2500);
            assert!(bounds.contains(&silent), "{silent:?} after traffic of {heard_ms} ms");
        }
    }

    #[test]
    fn time_outs_are_whole_units() {
        for (asked, given) in [(0, 0), (1, 1000), (1000, 1000), (15_001, 16_000)] {
            assert_eq!(KeepAlive::new(asked).timeout_ms(), given);
        }
        assert_eq!(KeepAlive::new(u32::MAX).timeout_ms(), u32::MAX);
    }
}
