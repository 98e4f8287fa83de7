//! Random numbers that a seed repeats.

/// SplitMix64: enough to choose when to kill and what to send.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// The same seed makes the same numbers.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The seed that `variable` of the environment gives, else `default`; told on the terminal,
    /// so that a failure can be repeated.
    ///
    /// # Panics
    /// If the variable is not a number.
    pub fn from_env(variable: &str, default: u64) -> Self {
        let seed = std::env::var(variable).map_or(default, |text| {
            text.parse().unwrap_or_else(|_| panic!("{variable}={text} is not a number"))
        });
        eprintln!("{variable}={seed}");
        Self::new(seed)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next_u64() % bound
    }

    /// Bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next_u64() as u8).collect()
    }
}
