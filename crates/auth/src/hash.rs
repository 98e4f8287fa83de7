//! Hash functions of DH-HMAC-CHAP (Base 8.3.5.5.2) and HMAC over them.

use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256, Sha384, Sha512};
use zeroize::Zeroizing;

/// Hash function, by its identifier on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Hash {
    /// SHA-256, 32 bytes.
    Sha256 = 1,
    /// SHA-384, 48 bytes.
    Sha384 = 2,
    /// SHA-512, 64 bytes.
    Sha512 = 3,
}

/// Bytes of the longest digest.
pub(crate) const MAX_DIGEST_BYTES: usize = 64;

/// Digest or HMAC, erased when dropped.
pub(crate) type Digest64 = Zeroizing<Vec<u8>>;

impl Hash {
    /// All functions, the weakest first.
    pub const ALL: [Self; 3] = [Self::Sha256, Self::Sha384, Self::Sha512];

    /// Identifier on the wire.
    pub const fn id(self) -> u8 {
        self as u8
    }

    /// Function with identifier `id`.
    pub fn from_id(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|hash| hash.id() == id)
    }

    /// Function whose digest has `bytes` bytes.
    pub fn from_digest_bytes(bytes: usize) -> Option<Self> {
        Self::ALL.into_iter().find(|hash| hash.digest_bytes() == bytes)
    }

    /// Bytes of a digest: 32, 48 or 64.
    pub const fn digest_bytes(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }

    /// Digest of `data`.
    pub(crate) fn digest(self, data: &[u8]) -> Digest64 {
        Zeroizing::new(match self {
            Self::Sha256 => Sha256::digest(data).to_vec(),
            Self::Sha384 => Sha384::digest(data).to_vec(),
            Self::Sha512 => Sha512::digest(data).to_vec(),
        })
    }

    /// HMAC of the concatenated `parts` under `key`.
    pub(crate) fn hmac(self, key: &[u8], parts: &[&[u8]]) -> Digest64 {
        Zeroizing::new(match self {
            Self::Sha256 => hmac::<Hmac<Sha256>>(key, parts),
            Self::Sha384 => hmac::<Hmac<Sha384>>(key, parts),
            Self::Sha512 => hmac::<Hmac<Sha512>>(key, parts),
        })
    }
}

impl std::fmt::Display for Hash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Sha256 => "SHA-256",
            Self::Sha384 => "SHA-384",
            Self::Sha512 => "SHA-512",
        })
    }
}

fn hmac<M: Mac + hmac::digest::KeyInit>(key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    // HMAC takes keys of every length (RFC 2104).
    let Ok(mut mac) = <M as Mac>::new_from_slice(key) else { unreachable!("HMAC refuses no key") };
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// RFC 4231, test case 2.
    #[test]
    fn hmac_matches_rfc_4231() {
        let [a, b, c] =
            Hash::ALL.map(|hash| hex(&hash.hmac(b"Jefe", &[b"what do ya want ", b"for nothing?"])));
        assert!(a.starts_with("5bdcc146bf60754e6a042426089575c7"));
        assert!(b.starts_with("af45d2e376484031617f78d2b58a6b1b"));
        assert!(c.starts_with("164b7a7bfcf819e2e395fbe73b56e0a3"));
    }

    #[test]
    fn hash_ids_and_lengths_are_distinct() {
        for hash in Hash::ALL {
            assert_eq!(Hash::from_id(hash.id()), Some(hash));
            assert_eq!(Hash::from_digest_bytes(hash.digest_bytes()), Some(hash));
            assert_eq!(hash.digest(b"x").len(), hash.digest_bytes());
        }
        assert_eq!((Hash::from_id(0), Hash::from_id(4)), (None, None));
    }
}
