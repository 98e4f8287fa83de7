//! Responses of DH-HMAC-CHAP (Base 8.3.5.5.5, 8.3.5.5.6): proof that a side knows its secret.

use crate::concatenation::Concatenation;
use crate::group::SharedSecret;
use crate::hash::{Digest64, Hash};
use crate::secret::Secret;

/// Names of both sides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// Name of the host.
    pub host: String,
    /// Name of the subsystem.
    pub subsystem: String,
}

/// Inputs of a response, besides secret and names.
pub(crate) struct Question<'a> {
    pub(crate) hash: Hash,
    pub(crate) challenge: &'a [u8],
    pub(crate) sequence: u32,
    pub(crate) transaction: u16,
    pub(crate) concatenation: Concatenation,
    pub(crate) shared_secret: Option<&'a SharedSecret>,
}

impl Question<'_> {
    /// Response of the host with this secret.
    pub(crate) fn host_response(&self, secret: &Secret, names: &Names) -> Digest64 {
        self.respond(&secret.key(&names.host), b"HostHost", &names.host, &names.subsystem)
    }

    /// Response of the controller whose subsystem has this secret.
    pub(crate) fn controller_response(&self, secret: &Secret, names: &Names) -> Digest64 {
        self.respond(&secret.key(&names.subsystem), b"Controller", &names.subsystem, &names.host)
    }

    fn respond(&self, key: &[u8], label: &[u8], own: &str, other: &str) -> Digest64 {
        let augmented = self
            .shared_secret
            .map(|secret| self.hash.hmac(&self.hash.digest(secret), &[self.challenge]));
        let challenge = augmented.as_ref().map_or(self.challenge, |value| value);
        self.hash.hmac(
            key,
            &[
                challenge,
                &self.sequence.to_le_bytes(),
                &self.transaction.to_le_bytes(),
                &[self.concatenation.id()],
                label,
                own.as_bytes(),
                &[0],
                other.as_bytes(),
            ],
        )
    }
}
