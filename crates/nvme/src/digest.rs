//! CRC32C, the digest of NVMe/TCP headers and data (NVMe/TCP 3.3).
//!
//! The polynomial is Castagnoli's, reflected, all ones in and out, as in iSCSI (RFC 3720 B.4 has
//! test vectors). On the wire it is little-endian, after the header or after the data. The header
//! digest covers only the header, the data digest only the data: no padding, and no other digest.

use crate::limits::DIGEST_BYTES;
use crc_fast::{CrcAlgorithm, Digest};

/// The CRC32C of `bytes`.
#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// A CRC32C over data that arrives in pieces.
///
/// Four bytes of state, so that each transfer can keep one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crc32c {
    state: u32,
}

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

impl Crc32c {
    /// The state before the first byte.
    pub const fn new() -> Self {
        Self { state: u32::MAX }
    }

    /// Adds the next piece of the data.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        let mut digest =
            Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(self.state));
        digest.update(bytes);
        // The register of a 32-bit CRC: the upper half of the state is always 0.
        self.state = digest.get_state() as u32;
    }

    /// The CRC32C of all pieces so far.
    #[inline]
    pub const fn value(self) -> u32 {
        !self.state
    }

    /// [`Crc32c::value`] in wire format.
    #[inline]
    pub const fn wire(self) -> [u8; DIGEST_BYTES] {
        self.value().to_le_bytes()
    }
}

/// The digest of `bytes` in wire format.
#[inline]
pub fn wire_digest(bytes: &[u8]) -> [u8; DIGEST_BYTES] {
    crc32c(bytes).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn crc32c_matches_rfc_3720() {
        let ascending: [u8; 32] = core::array::from_fn(|index| index as u8);
        let descending: [u8; 32] = core::array::from_fn(|index| 31 - index as u8);
        assert_eq!(wire_digest(&[0; 32]), [0xaa, 0x36, 0x91, 0x8a]);
        assert_eq!(wire_digest(&[0xff; 32]), [0x43, 0xab, 0xa8, 0x62]);
        assert_eq!(wire_digest(&ascending), [0x4e, 0x79, 0xdd, 0x46]);
        assert_eq!(wire_digest(&descending), [0x5c, 0xdb, 0x3f, 0x11]);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(b""), 0);
        assert_eq!(Crc32c::new().value(), 0);
    }

    /// CRC32C bit by bit, straight from its definition.
    fn reference(bytes: &[u8]) -> u32 {
        !bytes.iter().fold(u32::MAX, |crc, &byte| {
            (0..8).fold(crc ^ u32::from(byte), |crc, _| {
                (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg())
            })
        })
    }

    proptest! {
        #[test]
        fn incremental_digest_matches(
            bytes in prop::collection::vec(any::<u8>(), 0..3000),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
        ) {
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.sort_unstable();
            let mut crc = Crc32c::new();
            let mut start = 0;
            for cut in cuts {
                crc.update(&bytes[start..cut]);
                start = cut;
            }
            crc.update(&bytes[start..]);
            prop_assert_eq!(crc.value(), reference(&bytes));
            prop_assert_eq!(crc.wire(), wire_digest(&bytes));
        }
    }
}
