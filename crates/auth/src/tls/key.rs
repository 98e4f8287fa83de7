//! Configured PSK in its interchange format `NVMeTLSkey-1:HH:BASE64:` (NVMe/TCP 3.6.1.5).
//!
//! The text holds 32 or 48 bytes and their CRC-32. HH says how the bytes become the retained PSK:
//! 00, as they are; 01 and 02, by HKDF with SHA-256 and SHA-384 over the host's name.

use base64ct::{Base64, Encoding};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::hash::Hash;
use crate::secret::crc_of;

/// Hash function of a PSK, and with it the cipher suite, by its identifier in texts and identities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum PskHash {
    /// SHA-256, for TLS_AES_128_GCM_SHA256.
    Sha256 = 1,
    /// SHA-384, for TLS_AES_256_GCM_SHA384.
    Sha384 = 2,
}

impl PskHash {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Sha256, Self::Sha384];

    /// Identifier.
    pub const fn id(self) -> u8 {
        self as u8
    }

    /// Function with identifier `id`.
    pub fn from_id(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|hash| hash.id() == id)
    }

    /// Bytes of a digest: 32 or 48.
    pub const fn bytes(self) -> usize {
        self.hash().digest_bytes()
    }

    pub(super) const fn hash(self) -> Hash {
        match self {
            Self::Sha256 => Hash::Sha256,
            Self::Sha384 => Hash::Sha384,
        }
    }
}

/// Configured PSK of a host, or of a pair of mirror nodes. Its bytes are erased when it is dropped,
/// and `Debug` does not show them.
#[derive(Clone)]
pub struct TlsKey {
    bytes: Zeroizing<Vec<u8>>,
    transformation: Option<PskHash>,
}

/// Prefix of the text.
const PREFIX: &str = "NVMeTLSkey-1:";

/// Longest text of a key: prefix, hash, base64 of 52 bytes, colon.
const MAX_TEXT_BYTES: usize = 13 + 3 + 72 + 1;

/// Why a text is no key. The message never holds a part of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsKeyError {
    /// Another prefix, no final colon, or too long.
    #[error(
        "a TLS key has the form NVMeTLSkey-1:01:BASE64: (00, 01 or 02; see `nvme gen-tls-key`)"
    )]
    Form,
    /// HH is unknown.
    #[error("the second field of a TLS key is 00, 01 or 02")]
    Transformation,
    /// Not base64.
    #[error("the TLS key's third field is not base64")]
    Base64,
    /// Not the length that belongs to HH.
    #[error("a TLS key has 32 bytes (00, 01) or 48 bytes (00, 02), this one {0}")]
    Length(usize),
    /// The CRC does not match.
    #[error("the TLS key's CRC does not match: a character is wrong or missing")]
    Crc,
}

impl TlsKey {
    /// Key of `bytes` random bytes: 32 or 48; as many as the digest of its transformation.
    ///
    /// # Errors
    /// Another length.
    pub fn new(bytes: &[u8], transformation: Option<PskHash>) -> Result<Self, TlsKeyError> {
        let fits = |hash: &PskHash| hash.bytes() == bytes.len();
        if !transformation.as_ref().map_or(PskHash::ALL.iter().any(fits), fits) {
            return Err(TlsKeyError::Length(bytes.len()));
        }
        Ok(Self { bytes: Zeroizing::new(bytes.to_vec()), transformation })
    }

    /// Reads a key from its text, as nvme-cli's `gen-tls-key` prints it.
    ///
    /// # Errors
    /// The defect, without the text.
    pub fn parse(text: &str) -> Result<Self, TlsKeyError> {
        let text = text.trim();
        if text.len() > MAX_TEXT_BYTES {
            return Err(TlsKeyError::Form);
        }
        let rest = text.strip_prefix(PREFIX).ok_or(TlsKeyError::Form)?;
        let (transformation, rest) = rest.split_once(':').ok_or(TlsKeyError::Form)?;
        let base64 = rest.strip_suffix(':').ok_or(TlsKeyError::Form)?;
        let transformation = match transformation {
            "00" => None,
            "01" => Some(PskHash::Sha256),
            "02" => Some(PskHash::Sha384),
            _ => return Err(TlsKeyError::Transformation),
        };
        let decoded = Base64::decode_vec(base64).map_err(|_| TlsKeyError::Base64)?;
        let decoded = Zeroizing::new(decoded);
        let Some((bytes, crc)) = decoded.split_last_chunk::<4>() else {
            return Err(TlsKeyError::Length(0));
        };
        let key = Self::new(bytes, transformation)?;
        if crc_of(bytes) != *crc {
            return Err(TlsKeyError::Crc);
        }
        Ok(key)
    }

    /// True if `text` is meant to be a key of this kind.
    pub fn is_meant(text: &str) -> bool {
        text.trim_start().starts_with("NVMeTLSkey")
    }

    /// The text that [`TlsKey::parse`] reads.
    pub fn text(&self) -> Zeroizing<String> {
        let mut bytes = Zeroizing::new(self.bytes.to_vec());
        bytes.extend_from_slice(&crc_of(&self.bytes));
        let base64 = Zeroizing::new(Base64::encode_string(&bytes));
        let id = self.transformation.map_or(0, PskHash::id);
        Zeroizing::new(format!("{PREFIX}{id:02}:{}:", base64.as_str()))
    }

    /// Fingerprint: 16 hexadecimal digits, the same for the same key. It does not reveal a random
    /// key.
    pub fn fingerprint(&self) -> String {
        let digest = Hash::Sha256.hmac(b"flagstone key fingerprint", &[self.text().as_bytes()]);
        digest[..8].iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Bytes of the key: 32 or 48.
    pub fn length(&self) -> usize {
        self.bytes.len()
    }

    /// The hash that turns the key into the retained PSK, if one does.
    pub fn transformation(&self) -> Option<PskHash> {
        self.transformation
    }

    /// Hash of the PSKs that a host offers with this key: its transformation's, or the hash
    /// whose digest is as long as the key.
    pub fn psk_hash(&self) -> PskHash {
        self.transformation.unwrap_or(match self.bytes.len() {
            48 => PskHash::Sha384,
            _ => PskHash::Sha256,
        })
    }

    /// Bytes of the key, for another representation. The caller erases its copies.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// In constant time.
impl PartialEq for TlsKey {
    fn eq(&self, other: &Self) -> bool {
        self.transformation == other.transformation && bool::from(self.bytes.ct_eq(&other.bytes))
    }
}

impl Eq for TlsKey {}

impl std::fmt::Debug for TlsKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TlsKey({} bytes)", self.bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// From libnvme's tests (test/psk.c).
    const PLAIN: &str = "NVMeTLSkey-1:00:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
    const SHA256: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
    const SHA384: &str =
        "NVMeTLSkey-1:02:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:";

    #[test]
    fn tls_keys_of_libnvme_are_read_and_written() {
        for (text, bytes, hash) in [
            (PLAIN, 32, None),
            (SHA256, 32, Some(PskHash::Sha256)),
            (SHA384, 48, Some(PskHash::Sha384)),
        ] {
            let key = TlsKey::parse(text).unwrap();
            assert_eq!((key.length(), key.transformation()), (bytes, hash));
            assert_eq!(key.bytes()[..4], [0x55, 0x12, 0xdb, 0xb6]);
            assert_eq!(key.text().as_str(), text);
            assert_eq!(format!("{key:?}"), format!("TlsKey({bytes} bytes)"));
            assert!(TlsKey::is_meant(text));
        }
        let prints = [PLAIN, SHA256].map(|text| TlsKey::parse(text).unwrap().fingerprint());
        assert_ne!(prints[0], prints[1]);
    }

    #[test]
    fn damaged_tls_keys_are_refused_with_the_reason() {
        let swap = |from: &str, to: &str| TlsKey::parse(&SHA256.replace(from, to)).unwrap_err();
        assert_eq!(swap("key-1", "key-2"), TlsKeyError::Form);
        assert_eq!(swap(":01:", ":03:"), TlsKeyError::Transformation);
        assert_eq!(swap(":01:", ":02:"), TlsKeyError::Length(32));
        assert_eq!(swap("LrZ:", "LrZ"), TlsKeyError::Form);
        assert_eq!(swap("VRLb", "VRLc"), TlsKeyError::Crc);
        assert_eq!(swap("VRLb", "V*Lb"), TlsKeyError::Base64);
        assert_eq!(swap("VRLb", ""), TlsKeyError::Length(29));
        assert_eq!(TlsKey::parse(&"N".repeat(10_000)).unwrap_err(), TlsKeyError::Form);
    }

    proptest! {
        #[test]
        fn text_of_a_tls_key_parses_to_the_same(bytes in prop::collection::vec(any::<u8>(), 48),
                                                hash in 0..3u8, long: bool) {
            let hash = PskHash::from_id(hash);
            let length = hash.map_or(if long { 48 } else { 32 }, PskHash::bytes);
            let key = TlsKey::new(&bytes[..length], hash).unwrap();
            prop_assert_eq!(TlsKey::parse(&key.text()).unwrap(), key);
        }

        #[test]
        fn arbitrary_tls_key_text_never_panics(text in ".{0,120}") {
            let _ = TlsKey::parse(&text);
            let _ = TlsKey::parse(&format!("NVMeTLSkey-1:01:{text}:"));
        }
    }
}
