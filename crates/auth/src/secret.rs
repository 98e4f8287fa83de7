//! Secrets of hosts and subsystems in their representation `DHHC-1:HH:BASE64:` (Base 8.3.5.5.7).
//!
//! The text holds 32, 48 or 64 bytes and their CRC-32. HH says how the bytes become the key: 00, as
//! they are; 01, 02 and 03, by HMAC with SHA-256, SHA-384 and SHA-512 over the owner's name.

use base64ct::{Base64, Encoding};
use crc_fast::CrcAlgorithm;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::hash::{Digest64, Hash};

/// Secret of one host or one subsystem. Its text and bytes are erased when it is dropped, and
/// `Debug` does not show them.
#[derive(Clone)]
pub struct Secret {
    bytes: Zeroizing<Vec<u8>>,
    transformation: Option<Hash>,
}

/// Longest text of a secret: prefix, base64 of 68 bytes, colon.
const MAX_TEXT_BYTES: usize = 10 + 92 + 1;

/// Reason why a text is not a secret. The message never contains a part of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// Wrong prefix, no final colon, or too long.
    #[error(
        "a secret has the form DHHC-1:00:BASE64: (00, 01, 02 or 03; see `flagstone key generate`)"
    )]
    Form,
    /// HH is unknown.
    #[error("the second field of a secret is 00, 01, 02 or 03")]
    Transformation,
    /// Not base64.
    #[error("the secret's third field is not base64")]
    Base64,
    /// Not 32, 48 or 64 bytes before the CRC.
    #[error("a secret has 32, 48 or 64 bytes, this one {0}")]
    Length(usize),
    /// The CRC does not match.
    #[error("the secret's CRC does not match: a character is wrong or missing")]
    Crc,
}

impl Secret {
    /// Secret of `bytes` random bytes: 32, 48 or 64. With a `transformation`, the length of its
    /// digest.
    ///
    /// # Errors
    /// Another length.
    pub fn new(bytes: &[u8], transformation: Option<Hash>) -> Result<Self, SecretError> {
        if Hash::from_digest_bytes(bytes.len()).is_none() {
            return Err(SecretError::Length(bytes.len()));
        }
        Ok(Self { bytes: Zeroizing::new(bytes.to_vec()), transformation })
    }

    /// Reads a secret from its text, as nvme-cli's `gen-dhchap-key` prints it.
    ///
    /// # Errors
    /// The defect, without the text.
    pub fn parse(text: &str) -> Result<Self, SecretError> {
        let text = text.trim();
        if text.len() > MAX_TEXT_BYTES {
            return Err(SecretError::Form);
        }
        let rest = text.strip_prefix("DHHC-1:").ok_or(SecretError::Form)?;
        let (transformation, rest) = rest.split_once(':').ok_or(SecretError::Form)?;
        let base64 = rest.strip_suffix(':').ok_or(SecretError::Form)?;
        let transformation = match transformation {
            "00" => None,
            "01" => Some(Hash::Sha256),
            "02" => Some(Hash::Sha384),
            "03" => Some(Hash::Sha512),
            _ => return Err(SecretError::Transformation),
        };
        let decoded = Base64::decode_vec(base64).map_err(|_| SecretError::Base64)?;
        let decoded = Zeroizing::new(decoded);
        let Some((bytes, crc)) = decoded.split_last_chunk::<4>() else {
            return Err(SecretError::Length(0));
        };
        let secret = Self::new(bytes, transformation)?;
        if crc_of(bytes) != *crc {
            return Err(SecretError::Crc);
        }
        Ok(secret)
    }

    /// The text that [`Secret::parse`] reads.
    pub fn text(&self) -> Zeroizing<String> {
        let mut bytes = Zeroizing::new(self.bytes.to_vec());
        bytes.extend_from_slice(&crc_of(&self.bytes));
        let base64 = Zeroizing::new(Base64::encode_string(&bytes));
        let id = self.transformation.map_or(0, Hash::id);
        Zeroizing::new(format!("DHHC-1:{id:02}:{}:", base64.as_str()))
    }

    /// Fingerprint: 16 hexadecimal digits, the same for the same secret. It does not reveal a
    /// random secret.
    pub fn fingerprint(&self) -> String {
        fingerprint(&self.text())
    }

    /// Bytes of the secret: 32, 48 or 64.
    pub fn length(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes of the secret, for another representation. The caller must erase its copies.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Hash function that turns the secret into a key, if any.
    pub fn transformation(&self) -> Option<Hash> {
        self.transformation
    }

    /// Key of the owner with name `nqn`.
    pub(crate) fn key(&self, nqn: &str) -> Digest64 {
        match self.transformation {
            None => self.bytes.clone(),
            Some(hash) => hash.hmac(&self.bytes, &[nqn.as_bytes(), b"NVMe-over-Fabrics"]),
        }
    }
}

/// In constant time.
impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.transformation == other.transformation && bool::from(self.bytes.ct_eq(&other.bytes))
    }
}

impl Eq for Secret {}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Secret({} bytes)", self.bytes.len())
    }
}

/// 16 hexadecimal digits that identify a key's text.
pub(crate) fn fingerprint(text: &str) -> String {
    let digest = Hash::Sha256.hmac(b"flagstone key fingerprint", &[text.as_bytes()]);
    digest[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// CRC-32 of RFC 1952, least significant byte first.
pub(crate) fn crc_of(bytes: &[u8]) -> [u8; 4] {
    (crc_fast::checksum(CrcAlgorithm::Crc32IsoHdlc, bytes) as u32).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// From libnvme's documentation of the format.
    const SAMPLE: &str = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";

    #[test]
    fn secrets_of_nvme_cli_are_read_and_written() {
        let secret = Secret::parse(SAMPLE).unwrap();
        assert_eq!((secret.length(), secret.transformation()), (32, None));
        assert_eq!(secret.text().as_str(), SAMPLE);
        assert_eq!(format!("{secret:?}"), "Secret(32 bytes)");
        let other = Secret::new(&[7; 32], None).unwrap();
        assert_eq!(secret.fingerprint(), Secret::parse(SAMPLE).unwrap().fingerprint());
        assert_ne!(secret.fingerprint(), other.fingerprint());
        assert_eq!(secret.fingerprint().len(), 16);
    }

    #[test]
    fn damaged_secrets_are_refused_with_the_reason() {
        let swap = |from: &str, to: &str| Secret::parse(&SAMPLE.replace(from, to)).unwrap_err();
        assert_eq!(swap("DHHC-1", "DHHC-2"), SecretError::Form);
        assert_eq!(swap(":00:", ":04:"), SecretError::Transformation);
        assert_eq!(swap("aQ2n:", "aQ2n"), SecretError::Form);
        assert_eq!(swap("ia6z", "ia6y"), SecretError::Crc);
        assert_eq!(swap("ia6z", "i*6z"), SecretError::Base64);
        assert_eq!(swap("ia6z", ""), SecretError::Length(29));
        assert_eq!(Secret::parse("DHHC-1:00::").unwrap_err(), SecretError::Length(0));
        assert_eq!(Secret::parse(&"D".repeat(10_000)).unwrap_err(), SecretError::Form);
    }

    proptest! {
        #[test]
        fn text_of_a_secret_parses_to_the_same(bytes in prop::collection::vec(any::<u8>(), 64),
                                               size in 0..3usize, hash in 0..4u8) {
            let bytes = &bytes[..[32, 48, 64][size]];
            let secret = Secret::new(bytes, Hash::from_id(hash)).unwrap();
            let read = Secret::parse(&secret.text()).unwrap();
            prop_assert_eq!(read.text(), secret.text());
            prop_assert_eq!(read.key("nqn.a").to_vec(), secret.key("nqn.a").to_vec());
        }

        #[test]
        fn arbitrary_text_never_panics(text in ".{0,120}") {
            let _ = Secret::parse(&text);
            let _ = Secret::parse(&format!("DHHC-1:01:{text}:"));
        }
    }
}
