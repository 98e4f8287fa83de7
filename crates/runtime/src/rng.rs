//! Seeded random numbers: small, fast, and the same on every machine. Not for secrets.
//!
//! Recorded seeds of the simulator depend on the sequences of [`Rng`], which therefore never
//! change.

/// xoshiro256** seeded through splitmix64.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// The generator of `seed`.
    pub fn new(seed: u64) -> Rng {
        let mut state = seed;
        Rng { state: [(); 4].map(|()| split_mix64(&mut state)) }
    }

    /// 64 random bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let shifted = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= shifted;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A number in `0..bound`; 0 when `bound` is 0. The bias is below `bound / 2^64`.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A number in `low..=high`; `low` when the range is empty.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    /// True with this probability (0.0 never, 1.0 always).
    pub fn chance(&mut self, probability: f64) -> bool {
        // 53 bits: every such number is an exact f64 below 1.
        ((self.next_u64() >> 11) as f64) < probability * (1_u64 << 53) as f64
    }

    /// Fills `bytes` with incompressible data.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        let mut words = bytes.chunks_exact_mut(8);
        for word in &mut words {
            word.copy_from_slice(&self.next_u64().to_le_bytes());
        }
        let rest = words.into_remainder();
        let last = self.next_u64().to_le_bytes();
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

/// The increment of SplitMix64: 2^64 divided by the golden ratio.
const GOLDEN_GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

/// One step of SplitMix64: 64 random bits, from a state of which every value is good.
pub fn split_mix64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(GOLDEN_GAMMA);
    mix64(*state)
}

/// The bits at `index` of the SplitMix64 sequence of `seed`, without the ones before.
pub fn split_mix64_at(seed: u64, index: u64) -> u64 {
    mix64(seed.wrapping_add(index.wrapping_add(1).wrapping_mul(GOLDEN_GAMMA)))
}

/// Scrambles 64 bits, one to one: the output function of SplitMix64.
pub fn mix64(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_repeat_and_differ() {
        let draw = |seed| {
            let mut rng = Rng::new(seed);
            [rng.next_u64(), rng.next_u64(), rng.next_u64()]
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn ranges_are_respected_and_covered() {
        let mut rng = Rng::new(1);
        let mut seen = [0_u32; 4];
        for _ in 0..1000 {
            seen[rng.between(2, 5) as usize - 2] += 1;
            assert!(!rng.chance(0.0));
            assert!(rng.chance(1.0));
        }
        assert!(seen.iter().all(|count| *count > 150), "{seen:?}");
        assert_eq!(rng.below(0), 0);
        assert_eq!(rng.between(9, 3), 9);
        assert_eq!(rng.between(0, u64::MAX).leading_zeros() / 64, 0);
    }

    /// Recorded simulator seeds depend on these.
    #[test]
    fn known_sequences_never_change() {
        let mut rng = Rng::new(42);
        assert_eq!(
            [rng.next_u64(), rng.next_u64()],
            [0x1578_0B2E_0C2E_C716, 0x6104_D986_6D11_3A7E]
        );
        let mut state = 42;
        let steps = [split_mix64(&mut state), split_mix64(&mut state)];
        assert_eq!(steps, [split_mix64_at(42, 0), split_mix64_at(42, 1)]);
        assert_eq!(steps[0], 0xBDD7_3226_2FEB_6E95);
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
    fn fill_covers_every_byte() {
        let mut bytes = [0_u8; 4099];
        Rng::new(3).fill(&mut bytes);
        assert!(bytes.chunks(9).all(|chunk| chunk.len() < 9 || chunk.iter().any(|b| *b != 0)));
    }
}
