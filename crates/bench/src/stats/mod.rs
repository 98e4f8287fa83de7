//! What several repetitions say: their middle, how sure it is, whether two of them differ, and
//! whether a series of rounds has become steady. All of it is pure and has no chance in it but a
//! seeded generator's.

mod again;
mod bootstrap;
mod mann_whitney;
mod power;
mod steady;

pub use again::{another_run, another_run_percent};
pub use bootstrap::{Interval, median_interval, median_ratio_interval};
pub use mann_whitney::{Significance, mann_whitney};
pub use power::{REPETITIONS_LEAST, shown_deviations, shown_percent};
pub use steady::{Steady, WINDOW, steady};

/// The median: the mean of the two in the middle of an even number. `None` of nothing.
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

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Standard deviation of a sample. `None` of fewer than two.
fn deviation(values: &[f64]) -> Option<f64> {
    let mean = mean(values);
    let squares = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
    (values.len() >= 2).then(|| (squares / (values.len() - 1) as f64).sqrt())
}

/// Standard deviation of a sample over its mean, in %: how noisy it is. `None` of fewer than two.
pub fn noise_percent(values: &[f64]) -> Option<f64> {
    let (deviation, mean) = (deviation(values)?, mean(values));
    (mean != 0.0).then(|| 100.0 * deviation / mean)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(noise_percent(&[1.0]), None);
        let noise = noise_percent(&[9.0, 10.0, 11.0]).unwrap();
        assert!((noise - 10.0).abs() < 1e-12);
    }
}
