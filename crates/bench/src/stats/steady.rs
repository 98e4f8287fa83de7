//! Steady state after SNIA's Performance Test Specification: the range and drift of the last rounds
//! are bounded.

use serde::{Deserialize, Serialize};

/// Rounds in the measurement window.
pub const WINDOW: usize = 5;
/// Largest range over the mean of the window, in %.
const RANGE_PERCENT: f64 = 20.0;
/// Largest rise of the least-squares line over the window, in % of the mean.
const DRIFT_PERCENT: f64 = 10.0;

/// Steadiness of the last [`WINDOW`] rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Steady {
    pub range_percent: f64,
    /// Rise or fall of the fitted line over the window, in % of the mean.
    pub drift_percent: f64,
    pub is_steady: bool,
}

/// Checks the last rounds; `None` if there are too few.
pub fn steady(rounds: &[f64]) -> Option<Steady> {
    let window = rounds.get(rounds.len().checked_sub(WINDOW)?..)?;
    let mean = window.iter().sum::<f64>() / WINDOW as f64;
    if mean <= 0.0 {
        return None;
    }
    let largest = window.iter().copied().fold(f64::MIN, f64::max);
    let smallest = window.iter().copied().fold(f64::MAX, f64::min);
    let middle = (WINDOW - 1) as f64 / 2.0;
    let at = |index: usize| index as f64 - middle;
    let covariance: f64 = window.iter().enumerate().map(|(i, y)| at(i) * (y - mean)).sum();
    let variance: f64 = (0..WINDOW).map(|i| at(i).powi(2)).sum();
    let rise = covariance / variance * (WINDOW - 1) as f64;
    let range_percent = 100.0 * (largest - smallest) / mean;
    let drift_percent = 100.0 * rise.abs() / mean;
    let is_steady = range_percent <= RANGE_PERCENT && drift_percent <= DRIFT_PERCENT;
    Some(Steady { range_percent, drift_percent, is_steady })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steady_state_range_and_drift() {
        assert_eq!(steady(&[1.0; 4]), None);
        let flat = steady(&[500.0, 100.0, 101.0, 99.0, 100.0, 100.0]).unwrap();
        assert!(flat.is_steady && (flat.range_percent - 2.0).abs() < 1e-9, "{flat:?}");
        // Rises by 12 of 106 on a line: the range of 11 % is within the bound, the drift is not.
        let rising = steady(&[100.0, 103.0, 106.0, 109.0, 112.0]).unwrap();
        assert!(!rising.is_steady && (rising.drift_percent - 1200.0 / 106.0).abs() < 1e-9);
        assert!(!steady(&[100.0, 125.0, 80.0, 125.0, 100.0]).unwrap().is_steady);
    }
}
