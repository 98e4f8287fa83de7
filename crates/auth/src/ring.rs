//! Key ring: the secrets of one owner, which may be replaced while connections use them.
//!
//! Rotation: the verifying side adds the new secret to the old one, then the authenticating side
//! puts it first, then both drop the old one. Exchanges in progress keep their secrets. A
//! [`KeyUse`] informs those who have proven a secret that it was withdrawn.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;

use crate::secret::Secret;
use crate::tls::TlsKey;

/// Most secrets of a ring: one, and its replacement.
pub const RING_SECRETS: usize = 2;

/// Secrets of one owner, shared by all users. The owner authenticates itself with the first secret,
/// and accepts all. Two rings are equal if they are the same ring.
pub struct Ring<S>(Arc<RwLock<Kept<S>>>);

struct Kept<S> {
    /// Equal secrets share their use.
    secrets: Vec<(S, KeyUse)>,
    /// Number of replacements.
    replacements: u64,
}

/// Use of a secret of a ring, by which its withdrawal is found.
#[derive(Clone, Debug, Default)]
pub struct KeyUse(Arc<AtomicBool>);

impl KeyUse {
    /// True once the ring does not have the secret any more, even if it has it again.
    pub fn is_withdrawn(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    fn withdraw(&self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Secrets of DH-HMAC-CHAP.
pub type KeyRing = Ring<Secret>;

/// Keys of TLS.
pub type TlsRing = Ring<TlsKey>;

impl<S> Clone for Ring<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S: Clone + PartialEq> Ring<S> {
    /// Ring of `secrets`. The owner authenticates itself with the first.
    pub fn new(secrets: Vec<S>) -> Self {
        Self(Arc::new(RwLock::new(Kept { secrets: with_uses(secrets, &[]), replacements: 0 })))
    }

    /// Replaces the secrets, for later exchanges, and withdraws missing ones. True if
    /// they differ.
    pub fn replace(&self, secrets: Vec<S>) -> bool {
        let mut kept = self.0.write();
        let differs = !kept.secrets.iter().map(|(known, _)| known).eq(&secrets);
        kept.replacements += u64::from(differs);
        let next = with_uses(secrets, &kept.secrets);
        for (old, used) in &kept.secrets {
            if !next.iter().any(|(secret, _)| secret == old) {
                used.withdraw();
            }
        }
        kept.secrets = next;
        differs
    }

    /// The secrets; the first is used to authenticate the owner.
    pub fn secrets(&self) -> Vec<S> {
        self.0.read().secrets.iter().map(|(secret, _)| secret.clone()).collect()
    }

    /// The secrets, each with the use of whoever proves it.
    pub fn uses(&self) -> Vec<(S, KeyUse)> {
        self.0.read().secrets.clone()
    }

    /// Secret used to authenticate the owner.
    pub fn first(&self) -> Option<S> {
        self.0.read().secrets.first().map(|(secret, _)| secret.clone())
    }

    fn replacements(&self) -> u64 {
        self.0.read().replacements
    }
}

/// Gives each secret its use: that of an equal one, before or among `known`, or a new one.
fn with_uses<S: PartialEq>(secrets: Vec<S>, known: &[(S, KeyUse)]) -> Vec<(S, KeyUse)> {
    let mut all: Vec<(S, KeyUse)> = Vec::with_capacity(secrets.len());
    for secret in secrets {
        let mut same = known.iter().chain(&all).filter(|(other, _)| *other == secret);
        let used = same.next().map_or_else(KeyUse::default, |(_, used)| used.clone());
        all.push((secret, used));
    }
    all
}

impl<S> PartialEq for Ring<S> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<S> Eq for Ring<S> {}

impl<S> std::fmt::Debug for Ring<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KeyRing({} secrets)", self.0.read().secrets.len())
    }
}

/// Keys between one host and one subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPair {
    /// Secrets with which the host authenticates itself.
    pub host: KeyRing,
    /// Secrets with which the controller authenticates itself; `None` if it need not, or cannot.
    pub controller: Option<KeyRing>,
    /// Whether the two can do without.
    pub demand: KeyDemand,
}

/// Whether a connection needs keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyDemand {
    /// None is made without authentication.
    Required,
    /// The target asks for nothing, but answers a host that authenticates. A host that expects a
    /// proof of the target authenticates unasked, and connects without if the target has no key of
    /// it. An attacker on the way can bring that about, so it is for the time in which the nodes of
    /// a pair get keys.
    Optional,
}

impl KeyPair {
    /// One ring for both sides, as between the nodes of a mirror. The response of one side is not
    /// valid for the other, because the formula includes the side.
    pub fn shared(ring: &KeyRing) -> Self {
        let controller = Some(ring.clone());
        Self { host: ring.clone(), controller, demand: KeyDemand::Required }
    }

    /// Version of the present secrets. Keys derived from them are valid only for this version.
    pub fn version(&self) -> KeyVersion {
        let replacements = |ring: &KeyRing| (ring.clone(), ring.replacements());
        KeyVersion([Some(&self.host), self.controller.as_ref()].map(|ring| ring.map(replacements)))
    }
}

/// Version of the secrets of a pair.
#[derive(Clone, Debug)]
pub struct KeyVersion([Option<(KeyRing, u64)>; 2]);

impl KeyVersion {
    /// True if no secret has been replaced since.
    pub fn is_current(&self) -> bool {
        self.0.iter().flatten().all(|(ring, replacements)| ring.replacements() == *replacements)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets(byte: u8) -> Vec<Secret> {
        vec![Secret::new(&[byte; 32], None).unwrap()]
    }

    #[test]
    fn uses_end_with_the_withdrawal_of_their_secret() {
        let [old, new] = [1, 2].map(secrets);
        let ring = KeyRing::new([old.clone(), old.clone()].concat());
        let first: Vec<_> = ring.uses().into_iter().map(|(_, used)| used).collect();
        let withdrawn = || first.iter().map(KeyUse::is_withdrawn).collect::<Vec<_>>();
        // Another place, and one of two equal lines: the secret is still there.
        ring.replace([new.clone(), old.clone()].concat());
        let added = ring.uses().remove(0).1;
        assert_eq!(withdrawn(), [false, false]);
        ring.replace(new.clone());
        assert!(withdrawn() == [true, true] && !added.is_withdrawn());
        ring.replace([old, new].concat());
        assert!(withdrawn() == [true, true] && !ring.uses()[0].1.is_withdrawn());
        ring.replace(Vec::new());
        assert!(added.is_withdrawn() && ring.first().is_none());
    }

    #[test]
    fn replaced_secret_of_either_side_ends_a_version() {
        let [host, controller] = [1, 2].map(|byte| KeyRing::new(secrets(byte)));
        let pair = KeyPair {
            host: host.clone(),
            controller: Some(controller.clone()),
            demand: KeyDemand::Required,
        };
        let first = pair.version();
        assert!(!host.replace(secrets(1)) && first.is_current());
        assert!(host.replace(secrets(3)) && !first.is_current());
        let second = pair.version();
        assert!(second.is_current());
        assert!(controller.replace(secrets(4)) && !second.is_current());
        // Replacing secrets by equal ones changes the version, too.
        assert!(controller.replace(secrets(2)) && host.replace(secrets(1)));
        assert!(!first.is_current());
    }
}
