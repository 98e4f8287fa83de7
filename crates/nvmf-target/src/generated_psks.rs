//! Generated PSKs: the TLS PSKs of secure channel concatenation (Base 8.3.5.5.9), by identity.
//!
//! Invariants:
//! - a PSK opens queues of the host and subsystem whose authentication made it, and is checked in
//!   the handshake and in Connect. It ends with the first controller that has had an I/O queue
//!   with it, whatever its admin queue uses,
//!   after [`GENERATED_PSK_LIFETIME`], and when the keys of that authentication are replaced. It
//!   outlives the controller that made it, because the host reconnects with TLS, and a controller
//!   whose I/O queues fail to connect;
//! - each host has at most [`GENERATED_PSKS_PER_HOST`], and displaces only its own: the PSK whose
//!   last use (creation, or opening of a queue) is the oldest. So a PSK whose queues are being
//!   connected is displaced last. Only hosts with a configured key make PSKs;
//! - PSKs are erased when they end, and never printed.

use std::collections::{BTreeMap, VecDeque};

use flagstone_auth::tls::Psk;
use flagstone_auth::{KeyUse, KeyVersion};
use flagstone_nvme::Nqn;
use flagstone_runtime::time::Instant;
use parking_lot::RwLock;

use crate::limits::{GENERATED_PSK_LIFETIME, GENERATED_PSKS_PER_HOST};
use crate::tls::ProvenNames;

struct Generated {
    psk: Psk,
    keys: KeyVersion,
    key: KeyUse,
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
    /// The key that the host has proven.
    pub(crate) key: KeyUse,
    /// This side has proven its key, too.
    pub(crate) proven: bool,
}

/// By host, ordered by the time at which each was made or last opened a queue, oldest first.
#[derive(Default)]
pub(crate) struct GeneratedPsks(RwLock<BTreeMap<Nqn, VecDeque<Generated>>>);

impl GeneratedPsks {
    /// Adds `new`, instead of the one with the identity `replaced`.
    pub(crate) fn insert(&self, new: NewPsk, replaced: Option<&[u8]>, now: Instant) {
        let NewPsk { psk, keys, key, .. } = new;
        let Some(names) = ProvenNames::of(&psk.identity) else { return };
        let mut hosts = self.0.write();
        let own = hosts.entry(names.host).or_default();
        own.retain(|known| known.is_valid(now) && Some(known.psk.identity.as_slice()) != replaced);
        while own.len() >= GENERATED_PSKS_PER_HOST {
            own.pop_front();
        }
        own.push_back(Generated { psk, keys, key, since: now });
    }

    /// A queue of the PSK with this identity is being attached. Returns the use of the key by which
    /// the host has made it. `None` if the PSK has ended, in which case the queue must not be
    /// attached.
    pub(crate) fn begin_use(&self, identity: &[u8], now: Instant) -> Option<KeyUse> {
        let names = ProvenNames::of(identity)?;
        let mut hosts = self.0.write();
        let own = hosts.get_mut(&names.host)?;
        let at = own.iter().position(|known| known.psk.identity == identity);
        let used = at.filter(|&at| own[at].is_valid(now)).and_then(|at| own.remove(at))?;
        let key = used.key.clone();
        own.push_back(used);
        Some(key)
    }

    /// The PSK with this identity still opens queues.
    pub(crate) fn is_valid(&self, identity: &[u8], now: Instant) -> bool {
        self.look_up(identity, now, |_| ()).is_some()
    }

    /// Erases the PSK with this identity.
    pub(crate) fn remove(&self, identity: &[u8]) {
        let Some(names) = ProvenNames::of(identity) else { return };
        let mut hosts = self.0.write();
        let Some(own) = hosts.get_mut(&names.host) else { return };
        own.retain(|known| known.psk.identity != identity);
        if own.is_empty() {
            hosts.remove(&names.host);
        }
    }

    /// The PSK with this identity, if it is still valid at `now`. On any thread.
    pub(crate) fn find(&self, identity: &[u8], now: Instant) -> Option<Psk> {
        self.look_up(identity, now, Psk::clone)
    }

    fn look_up<T>(&self, identity: &[u8], now: Instant, of: impl FnOnce(&Psk) -> T) -> Option<T> {
        let names = ProvenNames::of(identity)?;
        let hosts = self.0.read();
        let found = hosts.get(&names.host)?.iter().find(|known| known.psk.identity == identity)?;
        found.is_valid(now).then(|| of(&found.psk))
    }

    /// Erases expired keys.
    pub(crate) fn erase_invalid(&self, now: Instant) {
        let any_invalid = |own: &VecDeque<Generated>| own.iter().any(|one| !one.is_valid(now));
        if !self.0.read().values().any(any_invalid) {
            return;
        }
        self.0.write().retain(|_, own| {
            own.retain(|one| one.is_valid(now));
            !own.is_empty()
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
        NewPsk { psk: psk.clone(), keys, key: KeyUse::default(), proven: true }
    }

    fn of(host: &str, count: usize) -> Vec<Psk> {
        (0..count).map(|byte| psk(host, byte as u8)).collect()
    }

    #[test]
    fn flood_displaces_only_psks_of_its_own_host() {
        block_on(async {
            let (all, now) = (GeneratedPsks::default(), time::now());
            let other = psk("nqn.2026-01.test:other", 1);
            all.insert(made(&other), None, now);
            let own = of("nqn.2026-01.test:h", GENERATED_PSKS_PER_HOST);
            // Whatever the subsystem is.
            let key = TlsKey::new(&[7; 32], Some(PskHash::Sha256)).unwrap();
            let oldest = offered(&key, "nqn.2026-01.test:h", "nqn.2026-01.test:s2").remove(0);
            for one in [&oldest].into_iter().chain(&own) {
                all.insert(made(one), None, now);
            }
            assert_eq!(all.find(&oldest.identity, now), None);
            assert!(own.iter().chain([&other]).all(|one| all.find(&one.identity, now).is_some()));
            assert_eq!(all.count(), GENERATED_PSKS_PER_HOST + 1);
        })
        .unwrap();
    }

    /// Its admin queue is connected, and its I/O queues follow.
    #[test]
    fn psk_that_is_just_being_connected_is_displaced_last() {
        block_on(async {
            let (all, now) = (GeneratedPsks::default(), time::now());
            let own = of("nqn.2026-01.test:h", GENERATED_PSKS_PER_HOST * 2);
            let (first, more) = own.split_at(GENERATED_PSKS_PER_HOST);
            for one in first {
                all.insert(made(one), None, now);
            }
            // Connected earlier: its host does not need it any more.
            assert!(all.begin_use(&first[0].identity, now).is_some());
            assert!([5, 3].iter().all(|&at| all.begin_use(&first[at].identity, now).is_some()));
            let missing = || {
                let all = first.iter().map(|one| all.find(&one.identity, now));
                Vec::from_iter(
                    all.enumerate().filter(|(_, found)| found.is_none()).map(|one| one.0),
                )
            };
            let (last, others) = more.split_last().unwrap();
            for (at, one) in others.iter().enumerate() {
                all.insert(made(one), None, now);
                let longest_ago = [1, 2, 4];
                if let Some(displaced) = longest_ago.get(..=at) {
                    assert_eq!(missing(), displaced);
                }
            }
            let kept = |at: usize| !missing().contains(&at);
            assert_eq!([0, 5, 3].map(kept), [false, false, true]);
            all.insert(made(last), None, now);
            assert!(!kept(3) && all.find(&more[0].identity, now).is_some());
        })
        .unwrap();
    }

    /// Between the check in Connect and the attachment of the queue, another core ends it.
    #[test]
    fn psk_that_has_ended_cannot_be_used() {
        block_on(async {
            let (all, now) = (GeneratedPsks::default(), time::now());
            let [ended, expired, kept] = [1, 2, 3].map(|byte| psk("nqn.2026-01.test:h", byte));
            for one in [&ended, &expired] {
                all.insert(made(one), None, now);
                assert!(all.begin_use(&one.identity, now).is_some());
            }
            all.remove(&ended.identity);
            assert!(all.begin_use(&ended.identity, now).is_none());
            let end = now + GENERATED_PSK_LIFETIME;
            assert!(all.begin_use(&expired.identity, end).is_none());
            let keys = KeyRing::new(Vec::new());
            let pair = KeyPair::shared(&keys);
            all.insert(NewPsk { keys: pair.version(), ..made(&kept) }, None, end);
            assert!(all.begin_use(&kept.identity, end).is_some());
            let secret = flagstone_auth::Secret::new(&[1; 32], None).unwrap();
            keys.replace(vec![secret]);
            assert!(all.begin_use(&kept.identity, end).is_none());
            assert!(all.begin_use(b"nonsense", end).is_none());
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
