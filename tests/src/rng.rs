//! Random choices that are repeatable from a seed.

pub use flagstone_runtime::rng::Rng;

/// Generator seeded from the environment variable `variable`, or with `default`. Prints the seed,
/// so that a failure can be repeated.
///
/// # Panics
/// If the variable is not a number.
pub fn from_env(variable: &str, default: u64) -> Rng {
    let seed = std::env::var(variable).map_or(default, |text| {
        text.parse().unwrap_or_else(|_| panic!("{variable}={text} is not a number"))
    });
    eprintln!("{variable}={seed}");
    Rng::new(seed)
}
