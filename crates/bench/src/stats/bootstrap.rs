//! Confidence intervals by the percentile bootstrap (Efron, 1979).

use flagstone_runtime::rng::Rng;
use serde::{Deserialize, Serialize};

use super::median;
use crate::limits::RESAMPLES;

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConfidenceInterval {
    pub low: f64,
    pub high: f64,
}

/// Fixed seed: the same results give the same report.
const SEED: u64 = 0x666c_6167_7374_6f6e;

fn resampled_median(rng: &mut Rng, values: &[f64], scratch: &mut Vec<f64>) -> f64 {
    scratch.clear();
    scratch.extend((0..values.len()).map(|_| values[rng.below(values.len() as u64) as usize]));
    median(scratch).unwrap_or(f64::NAN)
}

fn ends(mut samples: Vec<f64>) -> Option<ConfidenceInterval> {
    samples.retain(|sample| sample.is_finite());
    samples.sort_by(f64::total_cmp);
    let at = |share: f64| samples[((samples.len() - 1) as f64 * share).round() as usize];
    (!samples.is_empty()).then(|| ConfidenceInterval { low: at(0.025), high: at(0.975) })
}

/// Interval of the median; `None` with fewer than three values.
pub fn median_interval(values: &[f64]) -> Option<ConfidenceInterval> {
    if values.len() < 3 {
        return None;
    }
    let (mut rng, mut scratch) = (Rng::new(SEED), Vec::new());
    ends((0..RESAMPLES).map(|_| resampled_median(&mut rng, values, &mut scratch)).collect())
}

pub fn median_ratio_interval(a: &[f64], b: &[f64]) -> Option<ConfidenceInterval> {
    if a.len() < 3 || b.len() < 3 {
        return None;
    }
    let (mut rng, mut scratch) = (Rng::new(SEED), Vec::new());
    let mut ratio = || {
        let top = resampled_median(&mut rng, a, &mut scratch);
        top / resampled_median(&mut rng, b, &mut scratch)
    };
    ends((0..RESAMPLES).map(|_| ratio()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_interval_is_deterministic() {
        let values: Vec<f64> = (1..=21).map(f64::from).collect();
        let interval = median_interval(&values).unwrap();
        // The exact distribution of the resampled median of 21 values has its 2.5 % tails at 7 and
        // 15.
        assert!((6.0..=8.0).contains(&interval.low), "{interval:?}");
        assert!((14.0..=16.0).contains(&interval.high), "{interval:?}");
        assert_eq!(median_interval(&values), Some(interval));
        assert_eq!(median_interval(&[1.0, 2.0]), None);
        assert_eq!(median_interval(&[5.0; 3]), Some(ConfidenceInterval { low: 5.0, high: 5.0 }));
    }

    #[test]
    fn median_ratio_interval_of_constants() {
        let interval = median_ratio_interval(&[2.0, 2.0, 2.0], &[4.0, 4.0, 4.0]).unwrap();
        assert_eq!((interval.low, interval.high), (0.5, 0.5));
        assert_eq!(median_ratio_interval(&[1.0; 3], &[0.0; 3]), None);
    }
}
