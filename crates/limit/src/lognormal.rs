//! Lognormal distribution, given by its median and 99th percentile.

use std::time::Duration;

use crate::limits::DEVIATIONS_MAX;

/// The 99th percentile of the standard normal distribution.
const Z_99: f64 = 2.326_347_874_040_841;

/// A lognormal distribution; without a tail, a constant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Lognormal {
    median_ns: f64,
    sigma: f64,
}

impl Lognormal {
    /// `p99` must be at least `median`, and both greater than zero.
    pub(crate) fn new(median: Duration, p99: Duration) -> Lognormal {
        let (median_ns, p99_ns) = (median.as_nanos() as f64, p99.as_nanos() as f64);
        Lognormal { median_ns, sigma: (p99_ns / median_ns).ln() / Z_99 }
    }

    /// The mean, which determines throughput (Little's law).
    pub(crate) fn mean(&self) -> Duration {
        Duration::from_nanos((self.median_ns * (self.sigma * self.sigma / 2.0).exp()) as u64)
    }

    /// Maps 64 random bits to a draw.
    pub(crate) fn draw(&self, bits: u64) -> Duration {
        if self.sigma == 0.0 {
            return Duration::from_nanos(self.median_ns as u64);
        }
        // The middle of one of 2^53 equal parts of 0 to 1: neither end is ever drawn.
        let uniform = ((bits >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        let deviation = normal_quantile(uniform).clamp(-DEVIATIONS_MAX, DEVIATIONS_MAX);
        Duration::from_nanos((self.median_ns * (self.sigma * deviation).exp()) as u64)
    }
}

/// Quantile function of the standard normal distribution, for 0 < p < 1: the rational approximation
/// of P. J. Acklam, whose relative error is below 1.15 × 10^-9.
fn normal_quantile(p: f64) -> f64 {
    const A: [f64; 6] = [
        -3.969_683_028_665_376e1,
        2.209_460_984_245_205e2,
        -2.759_285_104_469_687e2,
        1.383_577_518_672_69e2,
        -3.066_479_806_614_716e1,
        2.506_628_277_459_239,
    ];
    const B: [f64; 6] = [
        -5.447_609_879_822_406e1,
        1.615_858_368_580_409e2,
        -1.556_989_798_598_866e2,
        6.680_131_188_771_972e1,
        -1.328_068_155_288_572e1,
        1.0,
    ];
    const C: [f64; 6] = [
        -7.784_894_002_430_293e-3,
        -3.223_964_580_411_365e-1,
        -2.400_758_277_161_838,
        -2.549_732_539_343_734,
        4.374_664_141_464_968,
        2.938_163_982_698_783,
    ];
    const D: [f64; 5] = [
        7.784_695_709_041_462e-3,
        3.224_671_290_700_398e-1,
        2.445_134_137_142_996,
        3.754_408_661_907_416,
        1.0,
    ];
    const TAIL: f64 = 0.02425;
    let polynomial = |terms: &[f64], x: f64| terms.iter().fold(0.0, |sum, term| sum * x + term);
    let tail = |p: f64| {
        let q = (-2.0 * p.ln()).sqrt();
        polynomial(&C, q) / polynomial(&D, q)
    };
    if p < TAIL {
        tail(p)
    } else if p > 1.0 - TAIL {
        -tail(1.0 - p)
    } else {
        let q = p - 0.5;
        let r = q * q;
        q * polynomial(&A, r) / polynomial(&B, r)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lognormal_quantiles_match_tables() {
        for (p, z) in [
            (0.5, 0.0),
            (0.841_344_746_068_543, 1.0),
            (0.975, 1.959_963_984_540_054),
            (0.99, Z_99),
            (0.999_968_328_758_167, 4.0),
            (0.01, -Z_99),
        ] {
            assert!((normal_quantile(p) - z).abs() < 1e-8, "{p}: {}", normal_quantile(p));
        }
    }

    #[test]
    fn lognormal_matches_median_p99_and_mean() {
        let us = Duration::from_micros;
        let law = Lognormal::new(us(800), us(3000));
        // Even steps through all draws, without randomness.
        let steps = 100_000_u64;
        let draws: Vec<Duration> =
            (0..steps).map(|step| law.draw((u64::MAX / steps) * step + (1 << 40))).collect();
        let at = |share: f64| draws[(steps as f64 * share) as usize].as_nanos() as f64 / 1000.0;
        assert!((at(0.5) - 800.0).abs() < 1.0, "{}", at(0.5));
        assert!((at(0.99) - 3000.0).abs() < 3.0, "{}", at(0.99));
        assert!(draws.is_sorted());
        let mean = draws.iter().sum::<Duration>() / steps as u32;
        let error = mean.as_secs_f64() / law.mean().as_secs_f64() - 1.0;
        assert!(error.abs() < 0.001, "{mean:?}, {:?}", law.mean());
    }

    #[test]
    fn lognormal_without_tail_is_constant() {
        let us = Duration::from_micros;
        let constant = Lognormal::new(us(500), us(500));
        assert_eq!([0, 1, u64::MAX].map(|bits| constant.draw(bits)), [us(500); 3]);
        let law = Lognormal::new(us(100), us(1000));
        assert!(law.draw(0) > us(0) && law.draw(u64::MAX) < us(100_000));
    }
}
