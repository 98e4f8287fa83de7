//! Keys: the key of an operator encrypts ("wraps") the random data key of a volume, which is stored
//! with the volume.
//!
//! Invariants: keys are erased when dropped, stay in one place on the heap, and are never printed;
//! a wrapped key opens with the right key of the right pool alone, so a wrong key is refused before
//! anything is decrypted.

use std::fmt;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use base64ct::{Base64, Encoding};
use flagstone_runtime::random_u64;
use zeroize::Zeroizing;

use super::VolumeCipher;
use super::xts::XTS_KEY_BYTES;
use crate::id::PoolId;

/// Length of a key of an operator, in bytes.
pub const KEY_BYTES: usize = 32;

/// Length of a wrapped data key, in bytes: version, nonce, encrypted key, tag.
pub const WRAPPED_BYTES: usize = 1 + NONCE_BYTES + XTS_KEY_BYTES + TAG_BYTES;

/// Length of a nonce of AES-256-GCM, in bytes.
pub const NONCE_BYTES: usize = 12;

/// Length of a tag of AES-256-GCM, in bytes.
pub const TAG_BYTES: usize = 16;

/// Length of the associated data of a sealed key, in bytes: a label, and an identifier.
pub const ASSOCIATED_BYTES: usize = 32;

/// First byte of a wrapped key: an XTS-AES-256 key in AES-256-GCM.
const WRAPPED_VERSION: u8 = 1;

/// Associated data, before the identifier of the pool.
const LABEL: &[u8; 16] = b"flagstone volume";

/// Key of an operator, which wraps data keys.
pub struct WrappingKey(Box<Zeroizing<[u8; KEY_BYTES]>>);

impl fmt::Debug for WrappingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WrappingKey(..)")
    }
}

impl WrappingKey {
    /// Form of a key in a text, as messages name it.
    pub const TEXT_FORM: &str = "64 hexadecimal digits or Base64 of 32 bytes";

    /// The key in a text: 64 hexadecimal digits, or the Base64 of 32 bytes, with white space around
    /// it. `None` for any other text.
    pub fn parse(text: &str) -> Option<WrappingKey> {
        let text = text.trim();
        let mut key = WrappingKey(Box::new(Zeroizing::new([0; KEY_BYTES])));
        if text.len() == 2 * KEY_BYTES {
            for (byte, pair) in key.0.iter_mut().zip(text.as_bytes().chunks(2)) {
                let digit = |at: usize| char::from(pair[at]).to_digit(16);
                *byte = (digit(0)? << 4 | digit(1)?) as u8;
            }
            return Some(key);
        }
        let decoded = Base64::decode(text, &mut key.0[..]).ok()?.len();
        (decoded == KEY_BYTES).then_some(key)
    }

    /// Encrypts `secret` with AES-256-GCM and this nonce, which this key must not have had before.
    /// It opens only with the same associated data.
    pub fn seal(
        &self,
        associated: &[u8; ASSOCIATED_BYTES],
        nonce: [u8; NONCE_BYTES],
        secret: &mut [u8],
    ) -> [u8; TAG_BYTES] {
        let nonce = Nonce::assume_unique_for_key(nonce);
        let sealed =
            self.sealing().seal_in_place_separate_tag(nonce, Aad::from(associated), secret);
        let mut tag = [0; TAG_BYTES];
        tag.copy_from_slice(sealed.expect("the input is short").as_ref());
        tag
    }

    /// Decrypts what [`WrappingKey::seal`] encrypted, with its tag at the end. `None` with another
    /// key, associated data or nonce, or if a bit differs.
    pub fn open<'a>(
        &self,
        associated: &[u8; ASSOCIATED_BYTES],
        nonce: [u8; NONCE_BYTES],
        sealed: &'a mut [u8],
    ) -> Option<&'a [u8]> {
        let nonce = Nonce::assume_unique_for_key(nonce);
        let opened = self.sealing().open_in_place(nonce, Aad::from(associated), sealed).ok()?;
        Some(opened)
    }

    /// The key with these bytes.
    pub fn from_bytes(bytes: &[u8; KEY_BYTES]) -> WrappingKey {
        let mut key = WrappingKey(Box::new(Zeroizing::new([0; KEY_BYTES])));
        key.0.copy_from_slice(bytes);
        key
    }

    /// Bytes of the key, which the caller keeps secret.
    pub fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }

    fn sealing(&self) -> LessSafeKey {
        let key = UnboundKey::new(&AES_256_GCM, &self.0[..]);
        LessSafeKey::new(key.expect("the key has the length of the algorithm"))
    }
}

/// Random key of the data of a volume and its clones.
pub(crate) struct DataKey(Box<Zeroizing<[u8; XTS_KEY_BYTES]>>);

/// A data key as it is stored.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct WrappedKey(pub [u8; WRAPPED_BYTES]);

impl fmt::Debug for WrappedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WrappedKey(..)")
    }
}

fn associated(pool: PoolId) -> [u8; ASSOCIATED_BYTES] {
    let mut data = [0; ASSOCIATED_BYTES];
    data[..16].copy_from_slice(LABEL);
    data[16..].copy_from_slice(&pool.0);
    data
}

impl DataKey {
    /// A new key.
    pub(crate) fn random() -> DataKey {
        let mut key = DataKey(Box::new(Zeroizing::new([0; XTS_KEY_BYTES])));
        for word in key.0.chunks_mut(8) {
            word.copy_from_slice(&random_u64().to_le_bytes());
        }
        key
    }

    /// Encrypts the key with that of an operator.
    pub(crate) fn wrap(&self, pool: PoolId, key: &WrappingKey) -> WrappedKey {
        let mut wrapped = [0; WRAPPED_BYTES];
        wrapped[0] = WRAPPED_VERSION;
        let mut random = [0; 16];
        random[..8].copy_from_slice(&random_u64().to_le_bytes());
        random[8..].copy_from_slice(&random_u64().to_le_bytes());
        let mut nonce = [0; NONCE_BYTES];
        nonce.copy_from_slice(&random[..NONCE_BYTES]);
        let (head, tag) = wrapped.split_at_mut(WRAPPED_BYTES - TAG_BYTES);
        head[1..1 + NONCE_BYTES].copy_from_slice(&nonce);
        let secret = &mut head[1 + NONCE_BYTES..];
        secret.copy_from_slice(&self.0[..]);
        tag.copy_from_slice(&key.seal(&associated(pool), nonce, secret));
        WrappedKey(wrapped)
    }

    /// The key, ready for use.
    pub(crate) fn cipher(&self) -> VolumeCipher {
        VolumeCipher::new(&self.0, random_u64())
    }
}

impl WrappedKey {
    /// The data key; `None` with another key than the one that wrapped it, or another pool.
    pub(crate) fn unwrap(&self, pool: PoolId, key: &WrappingKey) -> Option<DataKey> {
        if self.0[0] != WRAPPED_VERSION {
            return None;
        }
        let (nonce, sealed) = self.0[1..].split_at(NONCE_BYTES);
        let mut opened = Zeroizing::new([0; XTS_KEY_BYTES + TAG_BYTES]);
        opened.copy_from_slice(sealed);
        let nonce = nonce.try_into().ok()?;
        let secret = key.open(&associated(pool), nonce, &mut *opened)?;
        let mut data = DataKey(Box::new(Zeroizing::new([0; XTS_KEY_BYTES])));
        data.0.copy_from_slice(secret);
        Some(data)
    }
}

#[cfg(test)]
mod tests {
    use flagstone_runtime::sim::{SimConfig, Simulation};

    use super::*;

    fn key(byte: u8) -> WrappingKey {
        WrappingKey(Box::new(Zeroizing::new([byte; KEY_BYTES])))
    }

    #[test]
    fn keys_are_hexadecimal_or_base64() {
        let hex = "0a".repeat(32);
        let base64 = "CgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgo=";
        for text in [&hex, &hex.to_uppercase(), &format!("{hex}\n"), &format!(" {base64}\n")] {
            assert_eq!(WrappingKey::parse(text).expect(text).0[..], [10; KEY_BYTES]);
        }
        for text in ["", "0a", &hex[1..], &"0g".repeat(32), &base64[4..], &hex.repeat(2), "größe"]
        {
            assert!(WrappingKey::parse(text).is_none(), "{text}");
        }
        assert_eq!(format!("{:?}", key(1)), "WrappingKey(..)");
    }

    #[test]
    fn wrapped_key_opens_with_its_key_and_pool_alone() {
        let sim = Simulation::new(1, SimConfig::default());
        let node = sim.add_node("server");
        let done = sim.spawn_on(node, async {
            let (data, pool) = (DataKey::random(), PoolId([7; 16]));
            let wrapped = data.wrap(pool, &key(1));
            assert!(wrapped.unwrap(pool, &key(1)).unwrap().0[..] == data.0[..]);
            assert_eq!(format!("{wrapped:?}"), "WrappedKey(..)");
            assert!(wrapped.unwrap(pool, &key(2)).is_none());
            assert!(wrapped.unwrap(PoolId([8; 16]), &key(1)).is_none());
            for at in 0..WRAPPED_BYTES {
                let mut damaged = wrapped;
                damaged.0[at] ^= 1;
                assert!(damaged.unwrap(pool, &key(1)).is_none(), "byte {at}");
            }
            assert_ne!(data.wrap(pool, &key(1)), wrapped, "the nonce is new");
        });
        sim.block_on(async { done.await.unwrap() });
    }
}
