//! Failure delays: the wait of a source address before its next handshake, the longer the more of
//! its handshakes failed.
//!
//! Invariants: a source waits for its own failures only; at most [`FAILED_SOURCES`] are remembered.
//! One network of IPv6 hosts (/64) is one source, because a single host may use all its addresses.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ops::Sub;
use std::time::Duration;

use flagstone_runtime::time::Backoff;

use crate::limits::{
    FAILED_SOURCES, FAILURE_DELAY, FAILURE_DELAY_MAX, FAILURE_MEMORY, UNFINISHED_DELAY_MAX,
};

/// A source of connections; `None` for a Unix socket.
pub type PeerSource = Option<IpAddr>;

/// The source that an address belongs to.
pub fn source_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(ip) => {
            let [a, b, c, d, ..] = ip.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        ip => ip,
    }
}

/// The source of a connection, from the address of its peer.
pub fn source_of_peer(peer: &str) -> PeerSource {
    peer.parse::<SocketAddr>().ok().map(|address| source_of(address.ip()))
}

/// How a handshake failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The peer has no key, or another one.
    Guess,
    /// The handshake was not completed, as when a link is cut. The delay of these stays below the
    /// connect timeouts of peers, which otherwise could not connect again.
    Unfinished,
}

#[derive(Clone, Copy, Debug)]
struct Failures<I> {
    guesses: u32,
    unfinished: u32,
    last: I,
}

/// Failures by source. `I` is the clock's instant.
#[derive(Debug)]
pub struct FailureDelays<I> {
    sources: BTreeMap<PeerSource, Failures<I>>,
}

impl<I> Default for FailureDelays<I> {
    fn default() -> FailureDelays<I> {
        FailureDelays { sources: BTreeMap::new() }
    }
}

impl<I: Copy + Ord + Sub<Output = Duration>> FailureDelays<I> {
    /// Time that a new handshake of `source` has to wait.
    pub fn delay(&self, source: PeerSource, now: I) -> Duration {
        let recent = |one: &&Failures<I>| now - one.last < FAILURE_MEMORY;
        match self.sources.get(&source.map(source_of)).filter(recent) {
            None => Duration::ZERO,
            Some(known) => delay_after(known.guesses, FAILURE_DELAY_MAX)
                .max(delay_after(known.unfinished, UNFINISHED_DELAY_MAX)),
        }
    }

    /// Forgives half of the unfinished handshakes of `source`, which has completed one: the delays
    /// of its further connections must not exceed its connect timeout together. Not all of them,
    /// because others may have made them behind the same address.
    pub fn succeeded(&mut self, source: PeerSource) {
        if let Some(known) = self.sources.get_mut(&source.map(source_of)) {
            known.unfinished /= 2;
        }
    }

    /// Records a failure of `source`.
    pub fn failed(&mut self, source: PeerSource, kind: FailureKind, now: I) {
        let source = source.map(source_of);
        let sources = &mut self.sources;
        if sources.len() >= FAILED_SOURCES && !sources.contains_key(&source) {
            sources.retain(|_, known| now - known.last < FAILURE_MEMORY);
            let oldest = sources.iter().min_by_key(|(_, known)| known.last).map(|(ip, _)| *ip);
            if let Some(oldest) = oldest.filter(|_| sources.len() >= FAILED_SOURCES) {
                sources.remove(&oldest);
            }
        }
        let none = Failures { guesses: 0, unfinished: 0, last: now };
        let known = sources.entry(source).or_insert(none);
        if now - known.last >= FAILURE_MEMORY {
            *known = none;
        }
        known.last = now;
        match kind {
            FailureKind::Guess => known.guesses = known.guesses.saturating_add(1),
            // Failures without effect on the delay would only be left to forgive.
            FailureKind::Unfinished
                if delay_after(known.unfinished, UNFINISHED_DELAY_MAX) < UNFINISHED_DELAY_MAX =>
            {
                known.unfinished += 1;
            }
            FailureKind::Unfinished => {}
        }
    }
}

fn delay_after(failures: u32, max: Duration) -> Duration {
    let further = failures.checked_sub(1);
    let delay = |further| Backoff::new(FAILURE_DELAY, max).after(further).advance();
    further.map_or(Duration::ZERO, delay)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock in whole milliseconds.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    struct Ms(u64);

    impl Sub for Ms {
        type Output = Duration;
        fn sub(self, earlier: Ms) -> Duration {
            Duration::from_millis(self.0.saturating_sub(earlier.0))
        }
    }

    fn source(text: &str) -> PeerSource {
        Some(text.parse().unwrap())
    }

    #[test]
    fn delays_double_up_to_a_maximum_and_are_forgotten() {
        let mut delays = FailureDelays::default();
        let mut seen = Vec::new();
        for _ in 0..8 {
            delays.failed(source("192.0.2.1"), FailureKind::Guess, Ms(5));
            seen.push(delays.delay(source("192.0.2.1"), Ms(5)));
        }
        assert_eq!(seen[..3], [1, 2, 4].map(|times| FAILURE_DELAY * times));
        assert_eq!(seen[7], FAILURE_DELAY_MAX);
        assert_eq!(delays.delay(source("192.0.2.2"), Ms(5)), Duration::ZERO);
        assert_eq!(delays.delay(None, Ms(5)), Duration::ZERO);
        let later = Ms(5 + FAILURE_MEMORY.as_millis() as u64);
        assert_eq!(delays.delay(source("192.0.2.1"), later), Duration::ZERO);
        delays.failed(source("192.0.2.1"), FailureKind::Guess, later);
        assert_eq!(delays.delay(source("192.0.2.1"), later), FAILURE_DELAY);
    }

    #[test]
    fn unfinished_handshakes_delay_for_less() {
        let mut delays = FailureDelays::default();
        let one = source("192.0.2.1");
        for _ in 0..8 {
            delays.failed(one, FailureKind::Unfinished, Ms(5));
        }
        assert_eq!(delays.delay(one, Ms(5)), UNFINISHED_DELAY_MAX);
        delays.failed(one, FailureKind::Guess, Ms(5));
        assert_eq!(delays.delay(one, Ms(5)), UNFINISHED_DELAY_MAX);
        for _ in 0..7 {
            delays.failed(one, FailureKind::Guess, Ms(5));
        }
        assert_eq!(delays.delay(one, Ms(5)), FAILURE_DELAY_MAX);
    }

    /// Regression (chain-keys 29): each queue of a host waited for handshakes that had been cut, so
    /// that the host gave up during the next one, without end.
    #[test]
    fn successes_end_the_delay_for_unfinished_handshakes() {
        let mut delays = FailureDelays::default();
        let [one, other] = ["192.0.2.1", "192.0.2.2"].map(source);
        for source in [one, other] {
            delays.failed(source, FailureKind::Unfinished, Ms(5));
        }
        delays.succeeded(one);
        assert_eq!(delays.delay(one, Ms(5)), Duration::ZERO);
        assert_eq!(delays.delay(other, Ms(5)), FAILURE_DELAY);
        // Guesses count on: another process of that machine may have made them.
        delays.failed(one, FailureKind::Guess, Ms(5));
        delays.succeeded(one);
        assert_eq!(delays.delay(one, Ms(5)), FAILURE_DELAY);
    }

    /// A host with a key and an attacker without may share an address.
    #[test]
    fn success_forgives_only_half_of_the_unfinished_handshakes() {
        let mut delays = FailureDelays::default();
        let one = source("192.0.2.1");
        for _ in 0..1000 {
            delays.failed(one, FailureKind::Unfinished, Ms(5));
        }
        let mut seen = Vec::new();
        for _ in 0..3 {
            seen.push(delays.delay(one, Ms(5)));
            delays.succeeded(one);
        }
        assert_eq!(seen, [UNFINISHED_DELAY_MAX, FAILURE_DELAY, Duration::ZERO]);
        // Two of the attacker for each success of the host.
        for _ in 0..8 {
            delays.failed(one, FailureKind::Unfinished, Ms(5));
            delays.failed(one, FailureKind::Unfinished, Ms(5));
            assert!(delays.delay(one, Ms(5)) >= 2 * FAILURE_DELAY);
            delays.succeeded(one);
        }
        assert_eq!(delays.delay(one, Ms(5)), FAILURE_DELAY);
    }

    #[test]
    fn addresses_of_one_host_are_one_source() {
        let mut delays = FailureDelays::default();
        delays.failed(source("2001:db8::1"), FailureKind::Guess, Ms(0));
        delays.failed(source("192.0.2.1"), FailureKind::Guess, Ms(0));
        for same in ["2001:db8::2", "2001:db8:0:0:ffff::9", "::ffff:192.0.2.1"] {
            assert_eq!(delays.delay(source(same), Ms(0)), FAILURE_DELAY, "{same}");
        }
        assert_eq!(delays.delay(source("2001:db8:0:1::1"), Ms(0)), Duration::ZERO);
    }

    #[test]
    fn remembered_sources_are_bounded() {
        let mut delays = FailureDelays::default();
        for ip in 0..FAILED_SOURCES as u32 + 10 {
            delays.failed(Some(IpAddr::from(ip.to_be_bytes())), FailureKind::Guess, Ms(ip.into()));
        }
        assert_eq!(delays.sources.len(), FAILED_SOURCES);
        assert!(!delays.sources.contains_key(&source("0.0.0.0")));
    }
}
