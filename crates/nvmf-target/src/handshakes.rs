//! Handshakes: the authentication exchanges of all connections, by source address and result.
//!
//! Invariants:
//! - at most [`HANDSHAKES`] are in flight, and at most [`HANDSHAKES_PER_SOURCE`] of one address;
//! - each ends once, with success or a [`FailureReason`]; a handshake dropped earlier counts as
//!   abandoned, because it made this side compute too;
//! - failures of an address delay its next handshakes, the longer the more there were. A Connect
//!   without the TLS that it needs tries no key, and delays nothing.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use flagstone_auth::Explanation;
use flagstone_runtime::time;
use flagstone_transport::{FailureKind, InFlight, InFlightPlace, SharedDelays};

use crate::limits::{HANDSHAKES, HANDSHAKES_PER_SOURCE};

/// Why a host is not authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureReason {
    /// The subsystem has keys, and none for this host.
    NoKey,
    /// The exchange failed here.
    Refused(Explanation),
    /// The host asks this side for a proof, and this side has no controller key.
    NoOwnKey,
    /// The host does not trust this side: it has another key for the subsystem.
    Distrusted,
    /// The connection ended, or took too long, in the middle of the exchange.
    Abandoned,
    /// Too many exchanges are in flight.
    Busy,
    /// The host has to use TLS, and does not.
    NoTls,
    /// The TLS PSK that the host has generated ended between the TLS handshake and Connect.
    PskEnded,
    /// The names in Connect differ from the names that the host has proven by TLS.
    OtherIdentity,
    /// The key that the host has proven was withdrawn meanwhile.
    Withdrawn,
}

impl FailureReason {
    /// All reasons.
    pub const ALL: [Self; 16] = [
        Self::NoKey,
        Self::NoOwnKey,
        Self::Refused(Explanation::Failed),
        Self::Refused(Explanation::ProtocolNotUsable),
        Self::Refused(Explanation::ConcatenationMismatch),
        Self::Refused(Explanation::HashNotUsable),
        Self::Refused(Explanation::GroupNotUsable),
        Self::Refused(Explanation::IncorrectPayload),
        Self::Refused(Explanation::IncorrectMessage),
        Self::Distrusted,
        Self::Abandoned,
        Self::Busy,
        Self::NoTls,
        Self::PskEnded,
        Self::OtherIdentity,
        Self::Withdrawn,
    ];

    /// Name, for metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoKey => "no-key",
            Self::NoOwnKey => "no-controller-key",
            Self::Refused(Explanation::Failed) => "wrong-key",
            Self::Refused(Explanation::ProtocolNotUsable) => "protocol",
            Self::Refused(Explanation::ConcatenationMismatch) => "concatenation",
            Self::Refused(Explanation::HashNotUsable) => "hash",
            Self::Refused(Explanation::GroupNotUsable) => "group",
            Self::Refused(Explanation::IncorrectPayload) => "payload",
            Self::Refused(Explanation::IncorrectMessage) => "message",
            Self::Distrusted => "distrusted",
            Self::Abandoned => "abandoned",
            Self::Busy => "busy",
            Self::NoTls => "no-tls",
            Self::PskEnded => "psk-ended",
            Self::OtherIdentity => "other-identity",
            Self::Withdrawn => "withdrawn-key",
        }
    }
}

impl std::fmt::Display for FailureReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoKey => f.write_str("the subsystem has no key for this host"),
            Self::NoOwnKey => f.write_str(
                "the host asks this server for a proof, and its [host.NAME] has no \
                 controller_key_file",
            ),
            Self::Refused(Explanation::Failed) => f.write_str("the host has another key"),
            Self::Refused(explanation) => write!(f, "{explanation}"),
            Self::Distrusted => {
                f.write_str("the host does not trust this side: it has another controller key")
            }
            Self::Abandoned => f.write_str("the exchange was not completed"),
            Self::Busy => f.write_str("too many authentications in progress"),
            Self::NoTls => f.write_str("the host has to use TLS"),
            Self::PskEnded => f.write_str("the TLS PSK that the host has generated has ended"),
            Self::OtherIdentity => {
                f.write_str("the host has proven another name by TLS than it gives")
            }
            Self::Withdrawn => f.write_str("the key that the host has proven was withdrawn"),
        }
    }
}

/// Results of authentication since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuthenticationTotals {
    /// Exchanges that succeeded: one per queue.
    pub succeeded: u64,
    /// Failures, in the order of [`FailureReason::ALL`].
    pub failed: [u64; FailureReason::ALL.len()],
}

/// Handshakes of a target: authentications and TLS.
#[derive(Debug)]
pub(crate) struct Handshakes {
    in_flight: Arc<InFlight>,
    delays: SharedDelays,
    succeeded: AtomicU64,
    failed: [AtomicU64; FailureReason::ALL.len()],
}

impl Default for Handshakes {
    fn default() -> Self {
        Self {
            in_flight: InFlight::new(HANDSHAKES, HANDSHAKES_PER_SOURCE),
            delays: SharedDelays::default(),
            succeeded: AtomicU64::default(),
            failed: Default::default(),
        }
    }
}

impl Handshakes {
    /// Begins a handshake of `source`, `None` for a Unix socket. `None` at a limit. Call it on a
    /// core of the runtime, as all of these.
    pub(crate) fn begin(self: &Arc<Self>, source: Option<IpAddr>) -> Option<PendingHandshake> {
        let Some(place) = self.in_flight.begin(source) else {
            self.count(FailureReason::Busy);
            return None;
        };
        Some(PendingHandshake { all: self.clone(), source, ended: false, place })
    }

    /// Time that a new handshake of `source` has to wait.
    pub(crate) fn delay(&self, source: Option<IpAddr>) -> Duration {
        self.delays.lock().delay(source, time::now())
    }

    /// Records a failure of `source`.
    pub(crate) fn failed(&self, source: Option<IpAddr>, reason: FailureReason) {
        self.count(reason);
        let kind = match reason {
            // No key was tried, and nothing computed. A host that tries without TLS first, or whose
            // key has not been configured yet, must not be delayed when it comes with its key.
            FailureReason::NoTls => return,
            // With the host's key, so no guess.
            FailureReason::NoOwnKey
            | FailureReason::Abandoned
            | FailureReason::Busy
            | FailureReason::PskEnded
            | FailureReason::Withdrawn => FailureKind::Unfinished,
            _ => FailureKind::Guess,
        };
        self.delays.lock().failed(source, kind, time::now());
    }

    /// Delays of sources, which handshakes of TLS share.
    pub(crate) fn delays(&self) -> SharedDelays {
        self.delays.clone()
    }

    fn count(&self, reason: FailureReason) {
        let at = FailureReason::ALL.iter().position(|known| *known == reason);
        self.failed[at.expect("all reasons are listed")].fetch_add(1, Relaxed);
    }

    /// Results since the start.
    pub(crate) fn totals(&self) -> AuthenticationTotals {
        AuthenticationTotals {
            succeeded: self.succeeded.load(Relaxed),
            failed: std::array::from_fn(|at| self.failed[at].load(Relaxed)),
        }
    }
}

/// Handshake in flight.
#[derive(Debug)]
pub(crate) struct PendingHandshake {
    all: Arc<Handshakes>,
    source: Option<IpAddr>,
    ended: bool,
    place: InFlightPlace,
}

impl PendingHandshake {
    /// Ends it with success.
    pub(crate) fn succeed(mut self) {
        self.ended = true;
        self.all.succeeded.fetch_add(1, Relaxed);
        self.all.delays.lock().succeeded(self.source);
    }

    /// True if it is evicted, and has to end.
    pub(crate) fn is_evicted(&self) -> bool {
        self.place.is_evicted()
    }

    /// Records its failure, once; the host may still have to fetch the reason. True if it was the
    /// first.
    pub(crate) fn fail(&mut self, reason: FailureReason) -> bool {
        let first = !std::mem::replace(&mut self.ended, true);
        if first {
            self.all.failed(self.source, reason);
        }
        first
    }
}

impl Drop for PendingHandshake {
    fn drop(&mut self) {
        self.fail(FailureReason::Abandoned);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flagstone_runtime::block_on;
    use flagstone_transport::limits::{FAILURE_DELAY, FAILURE_DELAY_MAX};

    fn source(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([192, 0, 2, last]))
    }

    fn failures(all: &Handshakes, reason: FailureReason) -> u64 {
        let at = FailureReason::ALL.iter().position(|known| *known == reason).unwrap();
        all.totals().failed[at]
    }

    #[test]
    fn handshakes_are_bounded_in_all_and_by_source() {
        block_on(async {
            let all = Arc::new(Handshakes::default());
            let mut held: Vec<_> =
                (0..HANDSHAKES_PER_SOURCE).map(|_| all.begin(source(1)).unwrap()).collect();
            assert!(all.begin(source(1)).is_none());
            let others = (HANDSHAKES - HANDSHAKES_PER_SOURCE) as u8;
            held.extend((0..others).map(|other| all.begin(source(2 + other)).unwrap()));
            assert!(!held[0].is_evicted());
            held.push(all.begin(source(254)).unwrap());
            assert!(held[0].is_evicted() && !held[1].is_evicted());
            assert!(all.begin(source(1)).is_none());
            assert_eq!(failures(&all, FailureReason::Busy), 2);
            // The evicted one frees its source, and only the other frees a place.
            held.remove(0).succeed();
            assert!(all.begin(source(1)).is_none());
            drop(held.remove(0));
            assert!(all.begin(source(1)).is_some());
            drop(held);
            assert_eq!(all.totals().succeeded, 1);
        })
        .unwrap();
    }

    /// Regression: a host that tried without TLS first was delayed like a guesser of keys.
    #[test]
    fn missing_tls_is_no_guess() {
        block_on(async {
            let all = Handshakes::default();
            for _ in 0..8 {
                all.failed(source(1), FailureReason::NoTls);
            }
            assert_eq!(all.delay(source(1)), Duration::ZERO);
            assert_eq!(failures(&all, FailureReason::NoTls), 8);
            all.failed(source(1), FailureReason::OtherIdentity);
            assert_eq!(all.delay(source(1)), FAILURE_DELAY);
        })
        .unwrap();
    }

    #[test]
    fn failed_authentication_delays_only_its_address() {
        block_on(async {
            let all = Arc::new(Handshakes::default());
            let mut delays = Vec::new();
            for _ in 0..8 {
                let mut one = all.begin(source(1)).unwrap();
                assert!(one.fail(FailureReason::Refused(Explanation::Failed)));
                assert!(!one.fail(FailureReason::Distrusted));
                delays.push(all.delay(source(1)));
            }
            assert_eq!(delays[..3], [1, 2, 4].map(|times| FAILURE_DELAY * times));
            assert_eq!(delays[7], FAILURE_DELAY_MAX);
            assert_eq!((all.delay(source(2)), all.delay(None)), (Duration::ZERO, Duration::ZERO));
            assert_eq!(failures(&all, FailureReason::Refused(Explanation::Failed)), 8);
            assert_eq!(failures(&all, FailureReason::Abandoned), 0);
            drop(all.begin(source(2)));
            assert_eq!(failures(&all, FailureReason::Abandoned), 1);
            assert_eq!(all.delay(source(2)), FAILURE_DELAY);
        })
        .unwrap();
    }
}
