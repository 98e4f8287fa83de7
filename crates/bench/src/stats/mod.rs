//! Statistics of repetitions: median, confidence, significance, and steady state of rounds. All
//! functions are pure; resampling uses a seeded generator.

mod bootstrap;
mod mann_whitney;
mod power;
mod reproducibility;
mod steady;

pub use bootstrap::{ConfidenceInterval, median_interval, median_ratio_interval};
pub use mann_whitney::{Significance, mann_whitney};
pub use power::{REPETITIONS_LEAST, shown_deviations, shown_percent};
pub use reproducibility::{run_to_run_variation, run_to_run_variation_percent};
pub use steady::{Steady, WINDOW, steady};

/// Median: the mean of the two middle values of an even number. `None` without values.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n.is_multiple_of(2) => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
        _ => Some(sorted[middle]),
    }
}

/// Normal distribution with mean 0 and standard deviation 1 (Box and Muller, 1958).
#[cfg(test)]
fn normal(rng: &mut flagstone_runtime::rng::Rng) -> f64 {
    let mut uniform = || (rng.below(1 << 40) as f64 + 0.5) / (1u64 << 40) as f64;
    let (radius, turn) = ((-2.0 * uniform().ln()).sqrt(), std::f64::consts::TAU * uniform());
    radius * turn.cos()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Standard deviation of a sample; `None` with fewer than two values.
fn deviation(values: &[f64]) -> Option<f64> {
    let mean = mean(values);
    let squares = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
    (values.len() >= 2).then(|| (squares / (values.len() - 1) as f64).sqrt())
}

/// Coefficient of variation: standard deviation over mean, in %; `None` with fewer than two values.
pub fn coefficient_of_variation_percent(values: &[f64]) -> Option<f64> {
    let (deviation, mean) = (deviation(values)?, mean(values));
    (mean != 0.0).then(|| 100.0 * deviation / mean)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_and_even_counts() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(coefficient_of_variation_percent(&[1.0]), None);
        let noise = coefficient_of_variation_percent(&[9.0, 10.0, 11.0]).unwrap();
        assert!((noise - 10.0).abs() < 1e-12);
    }
}
