//! Fingerprints of blocks: keyed hashes, of which 64 bits are kept.
//!
//! The key is random for each opening, so that no host can choose blocks with equal fingerprints to
//! crowd others out of the index. The [domain](super::Domain) is part of the hash, so that blocks
//! of different domains do not meet in the index.

use flagstone_runtime::random_u64;

use super::Domain;

/// Hash function of an opening.
pub(crate) struct Fingerprints {
    key: [u8; 32],
}

impl Default for Fingerprints {
    fn default() -> Fingerprints {
        let mut key = [0; 32];
        key.chunks_mut(8).for_each(|part| part.copy_from_slice(&random_u64().to_le_bytes()));
        Fingerprints { key }
    }
}

impl Fingerprints {
    /// Fingerprint of a block.
    pub(crate) fn of(&self, domain: Domain, block: &[u8]) -> u64 {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&domain.0);
        hasher.update(block);
        let hash = hasher.finalize();
        let (first, _) = hash.as_bytes().split_first_chunk().expect("a hash has 32 bytes");
        u64::from_le_bytes(*first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_depend_on_key_domain_and_content() {
        let (one, other) = (Fingerprints { key: [1; 32] }, Fingerprints { key: [2; 32] });
        let (here, there) = (Domain::of("a"), Domain::of("b"));
        let print = one.of(here, &[7; 4096]);
        assert_eq!(print, one.of(here, &[7; 4096]));
        assert_ne!(print, one.of(here, &[8; 4096]));
        assert_ne!(print, one.of(there, &[7; 4096]));
        assert_ne!(print, other.of(here, &[7; 4096]));
    }
}
