//! HKDF (RFC 5869) and HKDF-Expand-Label (RFC 8446, section 7.1).

use crate::hash::{Digest64, Hash};
use zeroize::Zeroizing;

/// HKDF-Extract.
pub(super) fn extract(hash: Hash, salt: &[u8], input: &[u8]) -> Digest64 {
    hash.hmac(salt, &[input])
}

/// HKDF-Extract with a salt of zeroes.
pub(super) fn extract_unsalted(hash: Hash, input: &[u8]) -> Digest64 {
    extract(hash, &[0; 64][..hash.digest_bytes()], input)
}

/// HKDF-Expand to `length` bytes, at most 255 digests.
fn expand(hash: Hash, key: &[u8], info: &[&[u8]], length: usize) -> Zeroizing<Vec<u8>> {
    let mut out = Zeroizing::new(Vec::with_capacity(length + hash.digest_bytes()));
    let mut last: Digest64 = Zeroizing::new(Vec::new());
    let mut counter = 0_u8;
    while out.len() < length {
        counter += 1;
        let mut parts = vec![last.as_slice()];
        parts.extend(info);
        let count = [counter];
        parts.push(&count);
        last = hash.hmac(key, &parts);
        out.extend_from_slice(&last);
    }
    out.truncate(length);
    out
}

/// HKDF-Expand-Label; `label` without the prefix `tls13 `. `None` if the context is too long for
/// the label, which counts it in one byte.
pub(super) fn expand_label(
    hash: Hash,
    key: &[u8],
    label: &str,
    context: &[u8],
    length: u16,
) -> Option<Zeroizing<Vec<u8>>> {
    const PREFIX: &[u8] = b"tls13 ";
    let label_length = u8::try_from(PREFIX.len() + label.len()).ok()?;
    let context_length = u8::try_from(context.len()).ok()?;
    let info: [&[u8]; 6] = [
        &length.to_be_bytes(),
        &[label_length],
        PREFIX,
        label.as_bytes(),
        &[context_length],
        context,
    ];
    Some(expand(hash, key, &info, usize::from(length)))
}

/// Expansion by libnvme before 1.14: the length in little endian, and no lengths of label and
/// context.
pub(super) fn expand_compat(
    hash: Hash,
    key: &[u8],
    label: &str,
    context: &[u8],
    length: u16,
) -> Zeroizing<Vec<u8>> {
    let info: [&[u8]; 4] = [&length.to_le_bytes(), b"tls13 ", label.as_bytes(), context];
    expand(hash, key, &info, usize::from(length))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// RFC 5869, test case 1.
    #[test]
    fn hkdf_matches_rfc_5869() {
        let salt: Vec<u8> = (0..=0x0c).collect();
        let info: Vec<u8> = (0xf0..=0xf9).collect();
        let key = extract(Hash::Sha256, &salt, &[0x0b; 22]);
        assert_eq!(hex(&key), "077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5");
        assert_eq!(
            hex(&expand(Hash::Sha256, &key, &[&info], 42)),
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
        );
    }

    /// RFC 8448, section 3: early secret without a PSK, and the secret derived from it.
    #[test]
    fn expand_label_matches_rfc_8448() {
        let early = extract_unsalted(Hash::Sha256, &[0; 32]);
        assert_eq!(hex(&early), "33ad0a1c607ec03b09e6cd9893680ce210adf300aa1f2660e1b22e10f170f92a");
        let nothing = Hash::Sha256.digest(b"");
        let derived = expand_label(Hash::Sha256, &early, "derived", &nothing, 32).unwrap();
        assert_eq!(
            hex(&derived),
            "6f2615a108c702c5678f54fc9dbab69716c076189c48250cebeac3576c3611ba"
        );
    }

    #[test]
    fn label_with_a_long_context_is_refused() {
        assert!(expand_label(Hash::Sha256, b"key", "label", &[0; 255], 32).is_some());
        assert!(expand_label(Hash::Sha256, b"key", "label", &[0; 256], 32).is_none());
    }
}
