//! Encryption of a prefix: its indexes and pieces are sealed with AES-256-GCM.
//!
//! A prefix has a random key, which its head stores sealed with the operator's key. Each writer has
//! a key of its own, derived from that of the prefix, so that a nonce is the place of sealed
//! data: a writer stores each index and each piece once.
//!
//! The entry of a backup in the head has a message authentication code, and has the checksum of its
//! manifest, which has those of all indexes.
//!
//! Invariants: sealed data opens only as the same index or piece of the same writer; keys are
//! erased when dropped, and never printed.

use std::fmt;

use flagstone_pool::WrappingKey;
use flagstone_pool::crypt::key::{ASSOCIATED_BYTES, KEY_BYTES, NONCE_BYTES, TAG_BYTES};
use hmac::{Hmac, Mac as _};
use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::document::BackupEntry;
use crate::id::{Checksum, WriterId};

/// Bytes that sealing adds.
pub const SEAL_BYTES: u32 = TAG_BYTES as u32;

/// Label of sealed prefix keys, before 16 bytes of zeroes.
const LABEL: &[u8; 16] = b"flagstone backup";

/// Label of the codes of entries, which no other use of the key begins with.
const ENTRY_LABEL: &[u8; 16] = b"flagstone entry ";

const SEALED_BYTES: usize = NONCE_BYTES + KEY_BYTES + TAG_BYTES;

/// Key of a prefix as its head stores it: nonce, encrypted key, tag; in hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SealedKey([u8; SEALED_BYTES]);

/// Key of a prefix.
pub(crate) struct PrefixKey(WrappingKey);

/// Place of what a writer seals.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// Index of a range.
    Index(u32),
    /// Piece of a pack: number of the pack, offset.
    Piece(u32, u32),
}

impl fmt::Debug for SealedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealedKey(..)")
    }
}

impl fmt::Debug for PrefixKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrefixKey(..)")
    }
}

impl TryFrom<String> for SealedKey {
    type Error = String;

    fn try_from(text: String) -> Result<SealedKey, String> {
        crate::id::parse_hex(&text).map(SealedKey)
    }
}

impl From<SealedKey> for String {
    fn from(key: SealedKey) -> String {
        crate::id::hex(&key.0)
    }
}

fn random(bytes: &mut [u8]) {
    let read = getrandom(&mut *bytes, GetRandomFlags::empty());
    assert_eq!(read, Ok(bytes.len()), "the kernel has random numbers");
}

fn associated() -> [u8; ASSOCIATED_BYTES] {
    let mut data = [0; ASSOCIATED_BYTES];
    data[..LABEL.len()].copy_from_slice(LABEL);
    data
}

impl SealedKey {
    /// The key; `None` with another operator's key than the one that sealed it.
    pub(crate) fn open(&self, key: &WrappingKey) -> Option<PrefixKey> {
        let (nonce, sealed) = self.0.split_first_chunk::<NONCE_BYTES>()?;
        let mut sealed = Zeroizing::new(sealed.to_vec());
        let opened = key.open(&associated(), *nonce, &mut sealed)?;
        Some(PrefixKey(WrappingKey::from_bytes(opened.try_into().ok()?)))
    }
}

impl PrefixKey {
    pub(crate) fn random() -> PrefixKey {
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        random(&mut key[..]);
        PrefixKey(WrappingKey::from_bytes(&key))
    }

    /// Seals the key with that of an operator.
    pub(crate) fn seal_with(&self, key: &WrappingKey) -> SealedKey {
        let mut sealed = [0; SEALED_BYTES];
        let (nonce, rest) = sealed.split_at_mut(NONCE_BYTES);
        random(nonce);
        let (secret, tag) = rest.split_at_mut(KEY_BYTES);
        secret.copy_from_slice(self.0.bytes());
        let nonce = std::array::from_fn(|at| nonce[at]);
        tag.copy_from_slice(&key.seal(&associated(), nonce, secret));
        SealedKey(sealed)
    }

    fn of_writer(&self, writer: WriterId) -> WrappingKey {
        let mut mac = Hmac::<Sha256>::new_from_slice(self.0.bytes()).expect("any length is right");
        mac.update(LABEL);
        mac.update(&writer.0);
        let derived = Zeroizing::new(<[u8; KEY_BYTES]>::from(mac.finalize().into_bytes()));
        WrappingKey::from_bytes(&derived)
    }

    /// Message authentication code of a backup's entry in the head, and so of its manifest.
    pub(crate) fn mac_of(&self, entry: &BackupEntry) -> Checksum {
        let mut mac = Hmac::<Sha256>::new_from_slice(self.0.bytes()).expect("any length is right");
        mac.update(ENTRY_LABEL);
        let plain = BackupEntry { mac: None, ..entry.clone() };
        mac.update(&serde_json::to_vec(&plain).expect("documents are JSON"));
        Checksum(mac.finalize().into_bytes().into())
    }

    /// Checks that a writer with this key made the entry.
    ///
    /// # Errors
    /// It has no code, or a wrong one.
    pub(crate) fn check_entry(&self, entry: &BackupEntry) -> Result<(), &'static str> {
        // The code is public, so the time of a comparison says nothing.
        match entry.mac == Some(self.mac_of(entry)) {
            true => Ok(()),
            false => Err("an entry was made without the key of this prefix"),
        }
    }

    /// Encrypts `content` in place, and appends the tag.
    pub(crate) fn seal(&self, writer: WriterId, place: Place, content: &mut Vec<u8>) {
        let key = self.of_writer(writer);
        let tag = key.seal(&[0; ASSOCIATED_BYTES], place.nonce(), content);
        content.extend_from_slice(&tag);
    }

    /// Decrypts what [`PrefixKey::seal`] made for the same place.
    ///
    /// # Errors
    /// It was made for another place or with another key, or was changed.
    pub(crate) fn open(
        &self,
        writer: WriterId,
        place: Place,
        sealed: &[u8],
    ) -> Result<Vec<u8>, &'static str> {
        let mut sealed = sealed.to_vec();
        let key = self.of_writer(writer);
        let opened = key.open(&[0; ASSOCIATED_BYTES], place.nonce(), &mut sealed);
        let len = opened.ok_or("it cannot be decrypted: it was changed, or is of another place")?;
        let len = len.len();
        sealed.truncate(len);
        Ok(sealed)
    }
}

impl Place {
    fn nonce(self) -> [u8; NONCE_BYTES] {
        let (kind, number, offset) = match self {
            Place::Piece(pack, offset) => (0_u32, pack, offset),
            Place::Index(range) => (1, range, 0),
        };
        let mut nonce = [0; NONCE_BYTES];
        for (at, number) in [kind, number, offset].into_iter().enumerate() {
            nonce[4 * at..][..4].copy_from_slice(&number.to_le_bytes());
        }
        nonce
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operator(byte: u8) -> WrappingKey {
        WrappingKey::from_bytes(&[byte; KEY_BYTES])
    }

    #[test]
    fn prefix_key_opens_with_its_operators_key_alone() {
        let key = PrefixKey::random();
        let sealed = key.seal_with(&operator(1));
        let text = serde_json::to_string(&sealed).expect("a text");
        let read: SealedKey = serde_json::from_str(&text).expect("the same text");
        assert!(read.open(&operator(1)).expect("its key").0.bytes() == key.0.bytes());
        assert!(read.open(&operator(2)).is_none());
        for at in 0..SEALED_BYTES {
            let mut damaged = sealed;
            damaged.0[at] ^= 1;
            assert!(damaged.open(&operator(1)).is_none(), "byte {at}");
        }
        assert!(serde_json::from_str::<SealedKey>("\"00\"").is_err());
        assert_eq!(format!("{sealed:?} {key:?}"), "SealedKey(..) PrefixKey(..)");
    }

    #[test]
    fn sealed_content_opens_at_its_own_place_alone() {
        let key = PrefixKey::random();
        let (writer, place) = (WriterId([1; 16]), Place::Piece(3, 4));
        let mut sealed = b"content".to_vec();
        key.seal(writer, place, &mut sealed);
        assert_eq!(sealed.len(), 7 + SEAL_BYTES as usize);
        assert_eq!(key.open(writer, place, &sealed).as_deref(), Ok(&b"content"[..]));
        for other in [Place::Piece(4, 3), Place::Piece(3, 0), Place::Index(3)] {
            assert!(key.open(writer, other, &sealed).is_err(), "{other:?}");
        }
        assert!(key.open(WriterId([2; 16]), place, &sealed).is_err());
        assert!(PrefixKey::random().open(writer, place, &sealed).is_err());
        for at in 0..sealed.len() {
            let mut damaged = sealed.clone();
            damaged[at] ^= 1;
            assert!(key.open(writer, place, &damaged).is_err(), "byte {at}");
            assert!(key.open(writer, place, &sealed[..at]).is_err(), "{at} bytes");
        }
    }
}
