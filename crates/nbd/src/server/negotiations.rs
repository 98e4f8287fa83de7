//! Negotiations in progress, by source address, and the refused ones by reason.
//!
//! Invariant: one address has at most half of all connections in negotiation, at least
//! [`NEGOTIATIONS_PER_SOURCE`], so that a client that opens many and completes none leaves room for
//! others.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use flagstone_transport::{Source, source_of};
use parking_lot::Mutex;

use crate::handshake::NbdRefusalReason;
use crate::limits::NEGOTIATIONS_PER_SOURCE;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Negotiations {
    in_progress: Mutex<BTreeMap<Source, usize>>,
    refused: [AtomicU64; NbdRefusalReason::NAMES.len()],
}

/// A negotiation in progress.
pub(crate) struct Negotiation<'a> {
    all: &'a Negotiations,
    source: Source,
}

impl Negotiations {
    /// Begins a negotiation of `peer`, as of `Stream::peer`; `None` at its limit.
    pub(crate) fn begin(&self, peer: &str, connections_max: usize) -> Option<Negotiation<'_>> {
        let source = peer.parse::<SocketAddr>().ok().map(|address| source_of(address.ip()));
        let most = NEGOTIATIONS_PER_SOURCE.max(connections_max / 2);
        let mut in_progress = self.in_progress.lock();
        let own = in_progress.entry(source).or_default();
        // A Unix socket is protected by its directory.
        if *own >= most && source.is_some() {
            return None;
        }
        *own += 1;
        Some(Negotiation { all: self, source })
    }

    /// Negotiations of all sources.
    pub(crate) fn count(&self) -> usize {
        self.in_progress.lock().values().sum()
    }

    pub(crate) fn refused(&self, reason: &NbdRefusalReason) {
        let at = NbdRefusalReason::NAMES.iter().position(|name| *name == reason.name());
        self.refused[at.expect("all reasons have names")].fetch_add(1, Relaxed);
    }

    /// Refusals since the start, by the name of their reason.
    pub(crate) fn refusals(&self) -> impl Iterator<Item = (&'static str, u64)> {
        NbdRefusalReason::NAMES
            .into_iter()
            .zip(self.refused.iter().map(|count| count.load(Relaxed)))
    }
}

impl Drop for Negotiation<'_> {
    fn drop(&mut self) {
        let mut in_progress = self.all.in_progress.lock();
        if let Some(own) = in_progress.get_mut(&self.source) {
            *own -= 1;
            if *own == 0 {
                in_progress.remove(&self.source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negotiations_of_one_address_leave_room_for_others() {
        let all = Negotiations::default();
        let begin = |peer: &str| all.begin(peer, 64);
        let held: Vec<_> =
            (0..32).map(|port| begin(&format!("192.0.2.1:{port}")).unwrap()).collect();
        assert!(begin("192.0.2.1:99").is_none());
        assert!(begin("[::ffff:192.0.2.1]:99").is_none(), "the same address");
        let other = begin("192.0.2.2:1").expect("another address");
        let local: Vec<_> = (0..100).map(|_| begin("unix").expect("a local client")).collect();
        assert_eq!(all.count(), 133);
        drop((held, other, local));
        assert_eq!(all.count(), 0);
        assert!(all.in_progress.lock().is_empty());
        assert!(begin("192.0.2.1:1").is_some());
    }

    #[test]
    fn refusals_are_counted_by_reason() {
        let all = Negotiations::default();
        all.refused(&NbdRefusalReason::Tls);
        all.refused(&NbdRefusalReason::Busy);
        all.refused(&NbdRefusalReason::Busy);
        let counts: Vec<_> = all.refusals().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counts, [("tls", 1), ("busy", 2)]);
    }
}
