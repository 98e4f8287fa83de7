//! Confidence intervals by the percentile bootstrap (Efron, 1979).

use serde::{Deserialize, Serialize};

use super::median;
use crate::limits::RESAMPLES;

/// 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConfidenceInterval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// SplitMix64 (Steele, Lea, Flood, 2014): sufficient for resampling, and equal on all platforms.
pub(super) struct Generator(pub(super) u64);

impl Generator {
    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        ((u128::from(z) * bound as u128) >> 64) as usize
    }

    fn resampled_median(&mut self, values: &[f64], scratch: &mut Vec<f64>) -> f64 {
        scratch.clear();
        scratch.extend((0..values.len()).map(|_| values[self.below(values.len())]));
        median(scratch).unwrap_or(f64::NAN)
    }
}

#[cfg(test)]
impl Generator {
    /// Normal distribution with mean 0 and standard deviation 1 (Box and Muller, 1958).
    pub(super) fn normal(&mut self) -> f64 {
        let mut uniform = || (self.below(1 << 40) as f64 + 0.5) / (1u64 << 40) as f64;
        let (radius, turn) = ((-2.0 * uniform().ln()).sqrt(), std::f64::consts::TAU * uniform());
        radius * turn.cos()
    }
}

/// Fixed seed: the same results give the same report.
const SEED: u64 = 0x666c_6167_7374_6f6e;

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
    let (mut generator, mut scratch) = (Generator(SEED), Vec::new());
    ends((0..RESAMPLES).map(|_| generator.resampled_median(values, &mut scratch)).collect())
}

/// Interval of the median of `a` over the median of `b`.
pub fn median_ratio_interval(a: &[f64], b: &[f64]) -> Option<ConfidenceInterval> {
    if a.len() < 3 || b.len() < 3 {
        return None;
    }
    let (mut generator, mut scratch) = (Generator(SEED), Vec::new());
    let mut ratio = || {
        let top = generator.resampled_median(a, &mut scratch);
        top / generator.resampled_median(b, &mut scratch)
    };
    ends((0..RESAMPLES).map(|_| ratio()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_holds_the_median_and_is_the_same_each_time() {
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
    fn a_ratio() {
        let interval = median_ratio_interval(&[2.0, 2.0, 2.0], &[4.0, 4.0, 4.0]).unwrap();
        assert_eq!((interval.low, interval.high), (0.5, 0.5));
        assert_eq!(median_ratio_interval(&[1.0; 3], &[0.0; 3]), None);
    }
}
