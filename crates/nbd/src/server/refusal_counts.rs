//! Refused requests of negotiations, by reason.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::handshake::NbdRefusalReason;

/// Refused negotiations by reason.
#[derive(Debug, Default)]
pub(crate) struct RefusalCounts([AtomicU64; NbdRefusalReason::NAMES.len()]);

impl RefusalCounts {
    pub(crate) fn refused(&self, reason: &NbdRefusalReason) {
        let at = NbdRefusalReason::NAMES.iter().position(|name| *name == reason.name());
        self.0[at.expect("all reasons have names")].fetch_add(1, Relaxed);
    }

    /// Refusals since the start, by the name of their reason.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        NbdRefusalReason::NAMES.into_iter().zip(self.0.iter().map(|count| count.load(Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_counted_by_reason() {
        let all = RefusalCounts::default();
        all.refused(&NbdRefusalReason::Tls);
        all.refused(&NbdRefusalReason::Busy);
        all.refused(&NbdRefusalReason::Busy);
        let counts: Vec<_> = all.all().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counts, [("tls", 1), ("busy", 2)]);
    }
}
