//! Encryption at rest: XTS-AES-256 of the data of a volume, with a random key that is stored
//! wrapped by a key of the operator.
//!
//! A block that is stored alone has its number in the volume as tweak, which it keeps for life: the
//! cleaner moves it as it is stored, and snapshots and clones share it. A compressed unit has a
//! nonce in its header, because the cleaner may join blocks that are not consecutive. Checksums are
//! of the encrypted bytes, so everything but reading and writing works without the key.
//!
//! Invariants:
//! - all volumes and snapshots that may share blocks have the same data key;
//! - no two units of a key have the same nonce, and no nonce is a block number.

pub mod key;
mod xts;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::limits::BLOCK_BYTES;
use xts::{XTS_KEY_BYTES, Xts};

/// Length of the nonce of a unit, in bytes.
pub(crate) const UNIT_NONCE_BYTES: usize = 16;

/// Cipher of the data of a volume and its clones.
pub struct VolumeCipher {
    xts: Xts,
    /// Upper half of the nonces of units: random, with the highest bit, which no block number has.
    nonce_base: u64,
    units: AtomicU64,
}

impl fmt::Debug for VolumeCipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("VolumeCipher(..)")
    }
}

fn tweak(block: u64) -> [u8; 16] {
    u128::from(block).to_le_bytes()
}

impl VolumeCipher {
    pub(crate) fn new(key: &[u8; XTS_KEY_BYTES], random: u64) -> VolumeCipher {
        let nonce_base = random | 1 << 63;
        VolumeCipher { xts: Xts::new(key), nonce_base, units: AtomicU64::new(0) }
    }

    /// Encrypts consecutive blocks of a volume in place.
    pub fn encrypt_blocks(&self, first: u64, data: &mut [u8]) {
        for (block, bytes) in (first..).zip(data.chunks_mut(BLOCK_BYTES)) {
            self.xts.encrypt(tweak(block), bytes);
        }
    }

    /// Decrypts consecutive blocks of a volume in place.
    pub fn decrypt_blocks(&self, first: u64, data: &mut [u8]) {
        for (block, bytes) in (first..).zip(data.chunks_mut(BLOCK_BYTES)) {
            self.xts.decrypt(tweak(block), bytes);
        }
    }

    /// Encrypts the content of a compressed unit in place; returns its nonce.
    pub(crate) fn encrypt_unit(&self, data: &mut [u8]) -> [u8; UNIT_NONCE_BYTES] {
        let number = self.units.fetch_add(1, Ordering::Relaxed);
        let nonce = (u128::from(self.nonce_base) << 64 | u128::from(number)).to_le_bytes();
        self.xts.encrypt(nonce, data);
        nonce
    }

    /// Decrypts the content of a compressed unit in place.
    pub(crate) fn decrypt_unit(&self, nonce: [u8; UNIT_NONCE_BYTES], data: &mut [u8]) {
        self.xts.decrypt(nonce, data);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Instant;

    use super::*;

    /// A cipher whose key is not secret.
    pub(crate) fn cipher() -> VolumeCipher {
        let mut key = [3; XTS_KEY_BYTES];
        key[XTS_KEY_BYTES / 2..].fill(4);
        VolumeCipher::new(&key, 5)
    }

    #[test]
    fn blocks_depend_on_their_place_and_units_on_nonces() {
        let cipher = cipher();
        let plain = [7; 3 * BLOCK_BYTES];
        let mut data = plain;
        cipher.encrypt_blocks(5, &mut data);
        let blocks: Vec<&[u8]> = data.chunks(BLOCK_BYTES).collect();
        assert!(blocks[0] != blocks[1] && blocks[1] != blocks[2] && blocks[0] != &plain[..4096]);
        // Each block can be read alone.
        let mut second = blocks[1].to_vec();
        cipher.decrypt_blocks(6, &mut second);
        assert_eq!(second, plain[..BLOCK_BYTES]);
        cipher.decrypt_blocks(5, &mut data);
        assert_eq!(data, plain);
        let (mut first, mut second) = ([1; 48], [1; 48]);
        let nonces = (cipher.encrypt_unit(&mut first), cipher.encrypt_unit(&mut second));
        assert!(nonces.0 != nonces.1 && first != second);
        cipher.decrypt_unit(nonces.1, &mut second);
        assert_eq!(second, [1; 48]);
        assert_eq!(format!("{cipher:?}"), "VolumeCipher(..)");
    }

    /// Prints GB/s of one core. Run it with `--ignored --nocapture`.
    #[test]
    #[ignore = "a measurement"]
    #[expect(clippy::disallowed_methods, reason = "no simulation")]
    fn cipher_speed() {
        let cipher = cipher();
        let mut data = vec![1; 64 * BLOCK_BYTES];
        let mut measure = |name, of: fn(&VolumeCipher, u64, &mut [u8])| {
            let begun = Instant::now();
            (0..4000).for_each(|round| of(&cipher, round, &mut data));
            let bytes = 4000.0 * data.len() as f64;
            println!("{name}: {:.2} GB/s", bytes / begun.elapsed().as_secs_f64() / 1e9);
        };
        measure("encrypt", VolumeCipher::encrypt_blocks);
        measure("decrypt", VolumeCipher::decrypt_blocks);
    }
}
