//! Keep alive: removes a controller whose host is silent (Base 3.9).
//!
//! It is traffic based: every command counts, and counting sets a flag. A timer checks the flag
//! [`KEEP_ALIVE_LOOKS`] times per timeout, so a silent host is detected within 1 to 1.25 timeouts.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Poll, Waker};
use std::time::Duration;

use flagstone_runtime::time;
use parking_lot::Mutex;

use crate::limits::{KEEP_ALIVE_LOOKS, KEEP_ALIVE_UNIT_MS};

/// Timer setting and traffic flag.
#[derive(Debug)]
pub(super) struct KeepAliveTimer {
    traffic: AtomicBool,
    setting: Mutex<Setting>,
}

#[derive(Debug)]
struct Setting {
    timeout_ms: u32,
    revision: u64,
    waiting: Option<Waker>,
}

impl KeepAliveTimer {
    /// Timeout of `timeout_ms`, rounded up to whole units; 0 disables it.
    pub(super) fn new(timeout_ms: u32) -> KeepAliveTimer {
        let setting = Setting { timeout_ms: round_up(timeout_ms), revision: 0, waiting: None };
        KeepAliveTimer { traffic: AtomicBool::new(false), setting: Mutex::new(setting) }
    }

    /// Records traffic. It writes only if the flag is clear, which keeps cores from contending for
    /// the cache line.
    #[inline]
    pub(super) fn saw_traffic(&self) {
        if !self.traffic.load(Relaxed) {
            self.traffic.store(true, Relaxed);
        }
    }

    /// Timeout, in milliseconds; 0 if disabled.
    pub(super) fn timeout_ms(&self) -> u32 {
        self.setting.lock().timeout_ms
    }

    /// Sets the timeout, rounded up to whole units, and restarts it.
    pub(super) fn set_timeout_ms(&self, timeout_ms: u32) {
        let waker = {
            let mut setting = self.setting.lock();
            setting.timeout_ms = round_up(timeout_ms);
            setting.revision += 1;
            setting.waiting.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }

    /// Sets a timeout shorter than one unit.
    #[cfg(test)]
    pub(super) fn shorten(&self, timeout_ms: u32) {
        self.setting.lock().timeout_ms = timeout_ms;
    }

    /// Completes when the host has been silent for the timeout. Only one task may wait at a time.
    pub(super) async fn expired(&self) {
        let mut silent_looks = 0;
        loop {
            let (timeout_ms, revision) = {
                let setting = self.setting.lock();
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
            let mut setting = self.setting.lock();
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
    use flagstone_runtime::sim::{SimConfig, Simulation};
    use flagstone_runtime::spawn;
    use std::future::Future;
    use std::rc::Rc;

    #[test]
    fn traffic_and_new_setting_restart_timer() {
        flagstone_runtime::block_on(async {
            let keep_alive = KeepAliveTimer::new(0);
            let mut expired = std::pin::pin!(keep_alive.expired());
            // While disabled, only a new setting wakes the task.
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
    fn silence_detected_within_1_25_timeouts() {
        let sim = Simulation::new(1, SimConfig::default());
        for heard_ms in [0, 1, 499, 500, 501, 1300, 7777] {
            let silent = sim.block_on(async move {
                let keep_alive = Rc::new(KeepAliveTimer::new(2000));
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
                end.await.expect("the task is not aborted").since(heard)
            });
            let bounds = Duration::from_millis(2000)..=Duration::from_millis(2500);
            assert!(bounds.contains(&silent), "{silent:?} after traffic of {heard_ms} ms");
        }
    }

    #[test]
    fn timeouts_round_to_whole_units() {
        for (asked, given) in [(0, 0), (1, 1000), (1000, 1000), (15_001, 16_000)] {
            assert_eq!(KeepAliveTimer::new(asked).timeout_ms(), given);
        }
        assert_eq!(KeepAliveTimer::new(u32::MAX).timeout_ms(), u32::MAX);
    }
}
