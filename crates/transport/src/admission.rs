//! Admission of handshakes that cost computation: [`InFlight`] bounds them, [`FailureDelays`] delay
//! the sources that fail.
//!
//! Invariants:
//! - a source waits for its delay before its handshake takes a place among all;
//! - while more than half of all places are taken, a handshake has [`CROWDED_TIMEOUT`]. So peers
//!   that stall keep others out for a moment, not for the whole time limit;
//! - every handshake that made this side compute and did not succeed counts as a failure of its
//!   source, also one that took too long, was evicted or was dropped.

use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use flagstone_runtime::time::{self, Instant};
use parking_lot::Mutex;

use crate::failure_delays::{FailureDelays, FailureKind};
use crate::in_flight::{InFlight, InFlightPlace};
use crate::limits::CROWDED_TIMEOUT;

/// Failure delays that several kinds of handshakes share.
pub type SharedDelays = Arc<Mutex<FailureDelays<Instant>>>;

/// Admission of connections to their handshakes.
#[derive(Debug)]
pub struct HandshakeAdmission {
    in_flight: Arc<InFlight>,
    delays: SharedDelays,
}

impl HandshakeAdmission {
    /// Admits the handshakes that `in_flight` has places for, after the delays of their sources.
    pub fn new(in_flight: Arc<InFlight>, delays: SharedDelays) -> HandshakeAdmission {
        HandshakeAdmission { in_flight, delays }
    }

    /// Waits for the delay of `source`, `None` for a Unix socket, at most for `delay_max`. Returns
    /// `None` at a limit of [`InFlight`].
    pub async fn admit(
        &self,
        source: Option<IpAddr>,
        delay_max: Duration,
    ) -> Option<AdmittedHandshake<'_>> {
        let queued = self.in_flight.queue(source)?;
        let delay = self.delays.lock().delay(source, time::now()).min(delay_max);
        if !delay.is_zero() {
            time::sleep(delay).await;
        }
        Some(AdmittedHandshake { admission: self, source, place: queued.begin()? })
    }

    /// Checks for a crowd once in each [`CROWDED_TIMEOUT`].
    async fn within<F: Future>(&self, timeout: Duration, handshake: F) -> Option<F::Output> {
        let begun = time::now();
        let mut handshake = pin!(handshake);
        loop {
            let left = timeout.saturating_sub(begun.elapsed());
            let part = left.min(CROWDED_TIMEOUT);
            if let Ok(result) = time::timeout(part, handshake.as_mut()).await {
                return Some(result);
            }
            if part == left || self.in_flight.is_crowded() {
                return None;
            }
        }
    }
}

/// Handshake that may begin.
#[derive(Debug)]
pub struct AdmittedHandshake<'a> {
    admission: &'a HandshakeAdmission,
    source: Option<IpAddr>,
    place: InFlightPlace,
}

impl AdmittedHandshake<'_> {
    /// Runs the handshake for at most `timeout`. `kind` says how an error counts, `None` for one
    /// that costs this side nothing. Returns `None` if the handshake took too long or was evicted.
    pub async fn run<T, E>(
        self,
        timeout: Duration,
        handshake: impl Future<Output = Result<T, E>>,
        kind: impl FnOnce(&E) -> Option<FailureKind>,
    ) -> Option<Result<T, E>> {
        let AdmittedHandshake { admission, source, mut place } = self;
        let mut failure = PendingFailure { admission, source, kind: Some(FailureKind::Unfinished) };
        let result = {
            let mut handshake = pin!(admission.within(timeout, handshake));
            let mut evicted = pin!(place.evicted());
            poll_fn(|context| {
                // First, because a handshake that has succeeded cannot be evicted any more.
                if let Poll::Ready(result) = handshake.as_mut().poll(context) {
                    return Poll::Ready(result);
                }
                evicted.as_mut().poll(context).map(|()| None)
            })
            .await
        };
        failure.kind = match &result {
            Some(Ok(_)) => None,
            Some(Err(error)) => kind(error),
            None => Some(FailureKind::Unfinished),
        };
        result
    }
}

/// Records the failure of a handshake when it is dropped, also in its midst.
struct PendingFailure<'a> {
    admission: &'a HandshakeAdmission,
    source: Option<IpAddr>,
    /// `None` if it succeeded.
    kind: Option<FailureKind>,
}

impl Drop for PendingFailure<'_> {
    fn drop(&mut self) {
        if let Some(kind) = self.kind {
            self.admission.delays.lock().failed(self.source, kind, time::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::rc::Rc;

    use flagstone_runtime::sim::{SimConfig, Simulation};
    use flagstone_runtime::spawn_detached;

    use super::*;
    use crate::limits::{FAILURE_DELAY, UNFINISHED_DELAY_MAX};

    const TIMEOUT: Duration = Duration::from_secs(600);

    const fn guess(_: &()) -> Option<FailureKind> {
        Some(FailureKind::Guess)
    }

    const fn unfinished(_: &()) -> Option<FailureKind> {
        Some(FailureKind::Unfinished)
    }

    fn source(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([192, 0, 2, last]))
    }

    fn admission(all_max: usize, source_max: usize) -> Rc<HandshakeAdmission> {
        let in_flight = InFlight::new(all_max, source_max);
        Rc::new(HandshakeAdmission::new(in_flight, SharedDelays::default()))
    }

    fn simulated(test: impl AsyncFnOnce()) {
        Simulation::new(1, SimConfig::default()).block_on(test());
    }

    /// Attackers that stall, and connect again as often as they can.
    fn stall(all: &Rc<HandshakeAdmission>, sources: u8, connections: usize) {
        for attacker in 1..=sources {
            for _ in 0..connections {
                let all = all.clone();
                spawn_detached(async move {
                    loop {
                        if let Some(admitted) = all.admit(source(attacker), TIMEOUT).await {
                            admitted.run(TIMEOUT, pending::<Result<(), ()>>(), unfinished).await;
                        } else {
                            time::sleep(Duration::from_millis(10)).await;
                        }
                    }
                });
            }
        }
    }

    /// Four addresses that stall as many handshakes as they may.
    #[test]
    fn stalled_handshakes_leave_room_for_others() {
        simulated(async || {
            let all = admission(128, 32);
            stall(&all, 4, 100);
            for _ in 0..100 {
                let begun = time::now();
                let admitted = all.admit(source(9), TIMEOUT).await.expect("a place");
                let handshake = async {
                    time::sleep(Duration::from_millis(50)).await;
                    Ok::<(), ()>(())
                };
                let ended = admitted.run(TIMEOUT, handshake, unfinished).await;
                assert_eq!(ended, Some(Ok(())), "it is not evicted");
                assert_eq!(begun.elapsed(), Duration::from_millis(50));
                time::sleep(Duration::from_millis(250)).await;
            }
        });
    }

    /// Sources that have a place each, none of which can be evicted.
    #[test]
    fn crowd_of_stalled_handshakes_ends_soon() {
        simulated(async || {
            let all = admission(128, 32);
            stall(&all, 200, 1);
            time::sleep(Duration::from_millis(1)).await;
            assert!(all.admit(source(201), TIMEOUT).await.is_none());
            for _ in 0..100 {
                let begun = time::now();
                while all.admit(source(201), TIMEOUT).await.is_none() {
                    time::sleep(Duration::from_millis(10)).await;
                }
                assert!(begun.elapsed() <= CROWDED_TIMEOUT * 2, "{:?}", begun.elapsed());
                time::sleep(Duration::from_millis(250)).await;
            }
        });
    }

    #[test]
    fn few_slow_handshakes_have_their_whole_time() {
        simulated(async || {
            let all = admission(4, 4);
            let slow = async {
                time::sleep(TIMEOUT / 2).await;
                Ok::<(), ()>(())
            };
            let first = all.admit(source(1), TIMEOUT).await.unwrap();
            let second = all.admit(source(1), TIMEOUT).await.unwrap();
            assert_eq!(first.run(TIMEOUT, slow, unfinished).await, Some(Ok(())));
            assert_eq!(all.delays.lock().delay(source(1), time::now()), Duration::ZERO);
            let begun = time::now();
            assert!(second.run(TIMEOUT, pending::<Result<(), ()>>(), unfinished).await.is_none());
            assert_eq!(begun.elapsed(), TIMEOUT);
        });
    }

    #[test]
    fn failed_and_unfinished_handshakes_delay_their_source() {
        simulated(async || {
            let all = admission(4, 4);
            let delay = |last| all.delays.lock().delay(source(last), time::now());
            let begin = async |last| all.admit(source(last), TIMEOUT).await.unwrap();
            let timeout = Duration::from_millis(10);
            let stalled = || pending::<Result<(), ()>>();
            begin(1).await.run(TIMEOUT, async { Err::<(), ()>(()) }, guess).await;
            begin(2).await.run(timeout, stalled(), guess).await;
            let dropped = begin(3).await.run(TIMEOUT, stalled(), guess);
            assert!(time::timeout(timeout, dropped).await.is_err());
            // The peer has no key, which costs nothing.
            begin(4).await.run(TIMEOUT, async { Err::<(), ()>(()) }, |()| None).await;
            assert_eq!([1, 2, 3, 4].map(delay), [1, 1, 1, 0].map(|times| FAILURE_DELAY * times));
            let at = time::now();
            begin(1).await;
            assert_eq!(at.elapsed(), FAILURE_DELAY);
        });
    }

    /// A peer that gives up before its delay is over must not prolong it without end.
    #[test]
    fn peer_that_retries_over_a_cut_link_gets_in() {
        simulated(async || {
            let all = admission(4, 4);
            for _ in 0..20 {
                let admitted = all.admit(source(1), TIMEOUT).await.unwrap();
                admitted.run(Duration::from_millis(10), pending::<Result<(), ()>>(), guess).await;
            }
            let begun = time::now();
            all.admit(source(1), TIMEOUT).await.unwrap();
            assert_eq!(begun.elapsed(), UNFINISHED_DELAY_MAX);
        });
    }
}
