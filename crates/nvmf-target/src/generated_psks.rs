//! Generated PSKs: the TLS PSKs of secure channel concatenation (Base 8.3.5.5.9), by identity.
//!
//! Invariants:
//! - a PSK opens connections of the host and subsystem that made it by authentication, for
//!   [`GENERATED_PSK_LIFETIME`], unless the keys of that are replaced before;
//! - each pair has at most [`GENERATED_PSKS_PER_PAIR`], of which the oldest gives way, so that a host
//!   displaces its own alone. Pairs are bounded by the configured keys;
//! - PSKs are erased when they end, and never printed.

use std::collections::{BTreeMap, VecDeque};

use flagstone_auth::KeyVersion;
use flagstone_auth::tls::Psk;
use flagstone_nvme::Nqn;
use flagstone_runtime::time::Instant;
use parking_lot::RwLock;

use crate::limits::{GENERATED_PSK_LIFETIME, GENERATED_PSKS_PER_PAIR};
use crate::tls::ProvenNames;

struct Generated {
    psk: Psk,
    keys: KeyVersion,
    since: Instant,
}

impl Generated {
    fn is_valid(&self, now: Instant) -> bool {
        now - self.since < GENERATED_PSK_LIFETIME && self.keys.is_current()
    }
}

/// PSK of an exchange that has succeeded.
pub(crate) struct NewPsk {
    pub(crate) psk: Psk,
    /// Keys that the exchange began with.
    pub(crate) keys: KeyVersion,
    /// This side has proven its key, too.
    pub(crate) proven: bool,
}

/// See the module. Entries are ordered by age, the oldest first.
#[derive(Default)]
pub(crate) struct GeneratedPsks(RwLock<BTreeMap<(Nqn, Nqn), VecDeque<Generated>>>);

impl GeneratedPsks {
    /// Adds `new`, instead of the one with the identity `replaced`.
    pub(crate) fn insert(&self, new: NewPsk, replaced: Option<&[u8]>, now: Instant) {
        let NewPsk { psk, keys, .. } = new;
        let Some(names) = ProvenNames::of(&psk.identity) else { return };
        let mut pairs = self.0.write();
        let pair = pairs.entry((names.host, names.subsystem)).or_default();
        pair.retain(|known| Some(known.psk.identity.as_slice()) != replaced);
        while pair.len() >= GENERATED_PSKS_PER_PAIR {
            pair.pop_front();
        }
        pair.push_back(Generated { psk, keys, since: now });
    }

    /// The PSK with this identity, if it is still valid at `now`. On any thread.
    pub(crate) fn find(&self, identity: &[u8], now: Instant) -> Option<Psk> {
        let names = ProvenNames::of(identity)?;
        let pairs = self.0.read();
        let pair = pairs.get(&(names.host, names.subsystem))?;
        let found = pair.iter().find(|known| known.psk.identity == identity)?;
        found.is_valid(now).then(|| found.psk.clone())
    }

    /// Erases those that are not valid any more.
    pub(crate) fn erase_invalid(&self, now: Instant) {
        let any_invalid = |pair: &VecDeque<Generated>| pair.iter().any(|one| !one.is_valid(now));
        if !self.0.read().values().any(any_invalid) {
            return;
        }
        self.0.write().retain(|_, pair| {
            pair.retain(|one| one.is_valid(now));
            !pair.is_empty()
        });
    }

    /// Number of PSKs.
    pub(crate) fn count(&self) -> usize {
        self.0.read().values().map(VecDeque::len).sum()
    }
}

impl std::fmt::Debug for GeneratedPsks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GeneratedPsks({})", self.count())
    }
}

#[cfg(test)]
mod tests {
    use flagstone_auth::tls::{PskHash, TlsKey, offered};
    use flagstone_auth::{KeyPair, KeyRing};
    use flagstone_runtime::{block_on, time};

    use super::*;

    fn psk(host: &str, byte: u8) -> Psk {
        let key = TlsKey::new(&[byte; 32], Some(PskHash::Sha256)).unwrap();
        offered(&key, host, "nqn.2026-01.test:s").remove(0)
    }

    fn made(psk: &Psk) -> NewPsk {
        let keys = KeyPair::shared(&KeyRing::new(Vec::new())).version();
        NewPsk { psk: psk.clone(), keys, proven: true }
    }

    #[test]
    fn flood_displaces_only_psks_of_its_own_pair() {
        block_on(async {
            let (all, now) = (GeneratedPsks::default(), time::now());
            let other = psk("nqn.2026-01.test:other", 1);
            all.insert(made(&other), None, now);
            let own: Vec<_> = (0..=GENERATED_PSKS_PER_PAIR as u8)
                .map(|byte| psk("nqn.2026-01.test:h", byte))
                .collect();
            for one in &own {
                all.insert(made(one), None, now);
            }
            assert_eq!(all.find(&own[0].identity, now), None);
            assert!(
                own[1..].iter().chain([&other]).all(|one| all.find(&one.identity, now).is_some())
            );
            let count = GENERATED_PSKS_PER_PAIR + 1;
            assert_eq!(all.count(), count);
        })
        .unwrap();
    }

    #[test]
    fn replaced_and_expired_psks_open_nothing() {
        block_on(async {
            let (all, now) = (GeneratedPsks::default(), time::now());
            let [old, new, late] = [1, 2, 3].map(|byte| psk("nqn.2026-01.test:h", byte));
            all.insert(made(&old), None, now);
            all.insert(made(&new), Some(&old.identity), now);
            assert_eq!(
                (all.find(&old.identity, now), all.find(&new.identity, now)),
                (None, Some(new.clone()))
            );
            all.insert(made(&late), None, now + GENERATED_PSK_LIFETIME / 2);
            let end = now + GENERATED_PSK_LIFETIME;
            assert_eq!(all.find(&new.identity, end), None);
            all.erase_invalid(end);
            assert_eq!((all.count(), all.find(&late.identity, end)), (1, Some(late)));
            all.erase_invalid(end + GENERATED_PSK_LIFETIME);
            assert_eq!(all.count(), 0);
        })
        .unwrap();
    }
}
