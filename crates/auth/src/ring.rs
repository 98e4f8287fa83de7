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
pub struct Ring<S>(Arc<RwLock<Vec<S>>>);

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
        Self(Arc::new(RwLock::new(secrets)))
    }

    /// Replaces the secrets, for exchanges that begin later. True if they differ.
    pub fn replace(&self, secrets: Vec<S>) -> bool {
        let mut known = self.0.write();
        let differs = *known != secrets;
        *known = secrets;
        differs
    }

    /// The secrets, the first of which is proven.
    pub fn secrets(&self) -> Vec<S> {
        self.0.read().clone()
    }

    /// The secret that is proven.
    pub fn first(&self) -> Option<S> {
        self.0.read().first().cloned()
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
        write!(f, "KeyRing({} secrets)", self.0.read().len())
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
}
