//! Refusal log: one line in the log per refused peer, name and reason.
//!
//! Peers decide how often they are refused, or end a connection, and under which name. Without a
//! limit, a stranger could displace other lines of the log. Therefore:
//! - the same refusal is logged once within [`REFUSAL_REPEAT`]: hosts retry for as long as they
//!   run;
//! - all refusals together are logged [`REFUSALS_BURST`] times at once, then once per
//!   [`REFUSAL_PERIOD`]. The next line has the number of omitted refusals;
//! - names are escaped and cut off, so that they cannot forge lines.

use std::collections::VecDeque;
use std::fmt::{self, Display};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;

use flagstone_runtime::time::{self, Instant};
use parking_lot::Mutex;

use crate::limits::{
    REFUSAL_NAME_CHARS, REFUSAL_PERIOD, REFUSAL_REPEAT, REFUSALS_BURST, REFUSALS_KNOWN,
};

/// Refusals of one protocol. All connections of a server share it.
#[derive(Debug)]
pub struct RefusalLog {
    what: &'static str,
    happened: &'static str,
    limit: Mutex<RefusalLimit>,
}

impl RefusalLog {
    /// `what` is refused, such as "NVMe/TCP Connect".
    pub fn new(what: &'static str) -> RefusalLog {
        RefusalLog { what, happened: "refused", limit: Mutex::default() }
    }

    /// Log of connections that this side ends, or that end with an error. `what` ends.
    pub fn of_ends(what: &'static str) -> RefusalLog {
        RefusalLog { happened: "ended", ..RefusalLog::new(what) }
    }

    /// Logs that `peer`, as of `Stream::peer`, was refused for `reason`. `name` is who or what it
    /// named, as received. Call it on a core of the runtime.
    pub fn refused(&self, peer: &str, name: &[u8], reason: &dyn Display) {
        let reason = reason.to_string();
        let key = key(peer, name, &reason);
        let decision = self.limit.lock().decide(key, time::now());
        let RefusalDecision::Log { left_out } = decision else { return };
        let (what, happened, name) = (self.what, self.happened, PeerName(name));
        if left_out > 0 {
            tracing::warn!(%peer, %name, left_out, "{what} {happened}: {reason}");
        } else {
            tracing::warn!(%peer, %name, "{what} {happened}: {reason}");
        }
    }
}

/// Identifies equal refusals. A retry comes from another port.
fn key(peer: &str, name: &[u8], reason: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    match peer.parse::<SocketAddr>() {
        Ok(address) => address.ip().hash(&mut hasher),
        Err(_) => peer.hash(&mut hasher),
    }
    (name, reason).hash(&mut hasher);
    hasher.finish()
}

/// Name from a peer: any bytes.
struct PeerName<'a>(&'a [u8]);

impl Display for PeerName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.0[..self.0.len().min(REFUSAL_NAME_CHARS)];
        write!(f, "{}", shown.escape_ascii())?;
        if shown.len() < self.0.len() { f.write_str("...") } else { Ok(()) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RefusalDecision {
    /// Log it, with the number of refusals left out since the last line.
    Log {
        left_out: u64,
    },
    LeaveOut,
}

#[derive(Debug, Default)]
struct RefusalLimit {
    /// Logged refusals, oldest first.
    known: VecDeque<(u64, Instant)>,
    /// Time at which the burst is available again; later times mean that less of it is.
    full_at: Option<Instant>,
    left_out: u64,
}

impl RefusalLimit {
    fn decide(&mut self, key: u64, now: Instant) -> RefusalDecision {
        while self.known.front().is_some_and(|(_, at)| now.since(*at) >= REFUSAL_REPEAT) {
            self.known.pop_front();
        }
        if self.known.iter().any(|(known, _)| *known == key) {
            return RefusalDecision::LeaveOut;
        }
        let full_at = self.full_at.filter(|at| *at > now).unwrap_or(now) + REFUSAL_PERIOD;
        if full_at.since(now) > REFUSAL_PERIOD * REFUSALS_BURST {
            self.left_out += 1;
            return RefusalDecision::LeaveOut;
        }
        self.full_at = Some(full_at);
        if self.known.len() >= REFUSALS_KNOWN {
            self.known.pop_front();
        }
        self.known.push_back((key, now));
        RefusalDecision::Log { left_out: std::mem::take(&mut self.left_out) }
    }
}

#[cfg(test)]
mod tests {
    use flagstone_runtime::block_on;

    use super::*;

    fn with_time(test: impl FnOnce(Instant)) {
        block_on(async { test(time::now()) }).expect("an executor");
    }

    #[test]
    fn equal_refusal_is_logged_once_per_period() {
        with_time(|now| {
            let mut limit = RefusalLimit::default();
            assert_eq!(limit.decide(1, now), RefusalDecision::Log { left_out: 0 });
            assert_eq!(limit.decide(1, now + REFUSAL_REPEAT / 2), RefusalDecision::LeaveOut);
            assert_eq!(limit.decide(1, now + REFUSAL_REPEAT), RefusalDecision::Log { left_out: 0 });
        });
    }

    #[test]
    fn flood_of_refusals_is_rate_limited() {
        with_time(|now| {
            let mut limit = RefusalLimit::default();
            let logged = |limit: &mut RefusalLimit, keys: std::ops::Range<u64>, now: Instant| {
                keys.filter(|key| limit.decide(*key, now) != RefusalDecision::LeaveOut).count()
            };
            assert_eq!(logged(&mut limit, 0..1000, now), REFUSALS_BURST as usize);
            assert!(limit.known.len() <= REFUSALS_KNOWN);
            let later = now + REFUSAL_PERIOD;
            let left_out = 1000 - u64::from(REFUSALS_BURST);
            assert_eq!(limit.decide(2000, later), RefusalDecision::Log { left_out });
            assert_eq!(logged(&mut limit, 3000..4000, later), 0);
            let much_later = now + REFUSAL_PERIOD * 100;
            assert_eq!(logged(&mut limit, 5000..6000, much_later), REFUSALS_BURST as usize);
        });
    }

    #[test]
    fn retry_from_another_port_is_equal() {
        let [one, two, other] = ["192.0.2.1:1", "192.0.2.1:2", "192.0.2.2:1"];
        assert_eq!(key(one, b"x", "no"), key(two, b"x", "no"));
        assert_ne!(key(one, b"x", "no"), key(other, b"x", "no"));
        assert_ne!(key(one, b"x", "no"), key(one, b"y", "no"));
        assert_ne!(key(one, b"x", "no"), key(one, b"x", "never"));
    }

    #[test]
    fn hostile_names_are_escaped_and_cut_off() {
        assert_eq!(PeerName(b"a\n\x1b\xff").to_string(), "a\\n\\x1b\\xff");
        let long = PeerName(&[b'x'; 1000]).to_string();
        assert_eq!(long.len(), REFUSAL_NAME_CHARS + 3);
    }
}
