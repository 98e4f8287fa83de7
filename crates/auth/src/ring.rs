//! Key ring: the secrets of one owner, which may be replaced while connections use them.
//!
//! Rotation: the verifying side gets the new secret beside the old one, then the proving side puts
//! it first, then both drop the old one. Exchanges in progress keep the secrets they began with.

use std::sync::Arc;

use parking_lot::RwLock;

use crate::secret::Secret;
use crate::tls::TlsKey;

/// Most secrets of a ring: one, and its replacement.
pub const RING_SECRETS: usize = 2;

/// Secrets of one owner, shared by everything that uses them. The first is proven to others; all
/// are accepted. Two rings are equal if they are the same ring.
pub struct Ring<S>(Arc<RwLock<Kept<S>>>);

struct Kept<S> {
    secrets: Vec<S>,
    /// Replacements by other secrets.
    replacements: u64,
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
    /// Ring of `secrets`, the first of which is proven.
    pub fn new(secrets: Vec<S>) -> Self {
        Self(Arc::new(RwLock::new(Kept { secrets, replacements: 0 })))
    }

    /// Replaces the secrets, for exchanges that begin later. True if they differ.
    pub fn replace(&self, secrets: Vec<S>) -> bool {
        let mut kept = self.0.write();
        let differs = kept.secrets != secrets;
        kept.replacements += u64::from(differs);
        kept.secrets = secrets;
        differs
    }

    /// The secrets, the first of which is proven.
    pub fn secrets(&self) -> Vec<S> {
        self.0.read().secrets.clone()
    }

    /// The secret that is proven.
    pub fn first(&self) -> Option<S> {
        self.0.read().secrets.first().cloned()
    }

    fn replacements(&self) -> u64 {
        self.0.read().replacements
    }
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
    /// The host proves that it knows one of them.
    pub host: KeyRing,
    /// The controller proves that it knows one of them; `None` if it need not, or cannot.
    pub controller: Option<KeyRing>,
}

impl KeyPair {
    /// One ring that both sides know and prove, as nodes of a mirror do. A response of one side is
    /// no response of the other, because the formula contains who gives it.
    pub fn shared(ring: &KeyRing) -> Self {
        Self { host: ring.clone(), controller: Some(ring.clone()) }
    }

    /// The present secrets of the pair, for what they make.
    pub fn version(&self) -> KeyVersion {
        let replacements = |ring: &KeyRing| (ring.clone(), ring.replacements());
        KeyVersion([Some(&self.host), self.controller.as_ref()].map(|ring| ring.map(replacements)))
    }
}

/// Secrets of a pair at one time.
#[derive(Clone, Debug)]
pub struct KeyVersion([Option<(KeyRing, u64)>; 2]);

impl KeyVersion {
    /// True if none of them has been replaced since.
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
    fn replaced_secret_of_either_side_ends_a_version() {
        let [host, controller] = [1, 2].map(|byte| KeyRing::new(secrets(byte)));
        let pair = KeyPair { host: host.clone(), controller: Some(controller.clone()) };
        let first = pair.version();
        assert!(!host.replace(secrets(1)) && first.is_current());
        assert!(host.replace(secrets(3)) && !first.is_current());
        let second = pair.version();
        assert!(second.is_current());
        assert!(controller.replace(secrets(4)) && !second.is_current());
        // Not even by the same secrets again.
        assert!(controller.replace(secrets(2)) && host.replace(secrets(1)));
        assert!(!first.is_current());
    }
}
