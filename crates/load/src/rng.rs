//! A small, fast, seeded generator of random numbers (xoshiro256++): not for secrets.

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Rng([u64; 4]);

impl Rng {
    /// The generator of `seed`; any seed is good.
    pub(crate) fn new(seed: u64) -> Rng {
        let mut state = seed;
        Rng([(); 4].map(|()| split_mix(&mut state)))
    }

    /// 64 random bits.
    #[inline]
    pub(crate) fn next(&mut self) -> u64 {
        let s = &mut self.0;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A number below `bound`, which is not zero. The bias is below `bound / 2^64`.
    #[inline]
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// Fills `bytes` with incompressible data.
    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        let mut words = bytes.chunks_exact_mut(8);
        for word in &mut words {
            word.copy_from_slice(&self.next().to_le_bytes());
        }
        let rest = words.into_remainder();
        let last = self.next().to_le_bytes();
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

/// One step of SplitMix64, which also serves as a mixing function.
pub(crate) fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_replay_and_differ() {
        let draw = |seed| {
            let mut rng = Rng::new(seed);
            (0..8).map(|_| rng.next()).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn numbers_cover_the_range_evenly() {
        let mut rng = Rng::new(7);
        let mut hits = [0_u32; 10];
        for _ in 0..10_000 {
            hits[rng.below(10) as usize] += 1;
        }
        assert!(hits.iter().all(|hit| (800..1200).contains(hit)), "{hits:?}");
    }

    #[test]
    fn fill_leaves_no_byte_alone() {
        let mut bytes = [0_u8; 4099];
        Rng::new(3).fill(&mut bytes);
        assert!(bytes.chunks(9).all(|chunk| chunk.len() < 9 || chunk.iter().any(|b| *b != 0)));
    }
}
