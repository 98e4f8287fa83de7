//! Reproducibility: how far the median of another run with as many repetitions may differ. With few
//! repetitions that is more than their variation suggests, because they estimate it poorly.

use super::{deviation, median};

/// Repetitions of either run, and the largest distance of their medians in 19 of 20 cases, in
/// standard deviations of the first run's repetitions. Simulated with normal distributions; the
/// tests below repeat some of it.
const APART: [(usize, f64); 13] = [
    (2, 12.82),
    (3, 3.83),
    (4, 2.38),
    (5, 2.02),
    (6, 1.64),
    (7, 1.53),
    (8, 1.35),
    (9, 1.30),
    (10, 1.17),
    (12, 1.05),
    (15, 0.95),
    (20, 0.79),
    (30, 0.65),
];

/// Largest distance of another run's median in 19 of 20 cases, if runs differ only as repetitions
/// do. `None` with fewer than two repetitions.
pub fn run_to_run_variation(values: &[f64]) -> Option<f64> {
    let known = APART.iter().rev().find(|(repetitions, _)| *repetitions <= values.len())?;
    Some(known.1 * deviation(values)?)
}

/// [`run_to_run_variation`] in % of this run's median.
pub fn run_to_run_variation_percent(values: &[f64]) -> Option<f64> {
    let middle = median(values).filter(|middle| *middle != 0.0)?;
    Some(100.0 * run_to_run_variation(values)? / middle)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::normal;
    use flagstone_runtime::rng::Rng;

    #[test]
    fn run_to_run_variation_covers_95_percent() {
        for count in [2, 3, 4, 5, 10] {
            let mut rng = Rng::new(11);
            let mut run = || -> Vec<f64> { (0..count).map(|_| 100.0 + normal(&mut rng)).collect() };
            let trials = 20_000;
            let mut within = 0;
            for _ in 0..trials {
                let (first, second) = (run(), run());
                let apart = (median(&second).unwrap() - median(&first).unwrap()).abs();
                within += usize::from(apart <= run_to_run_variation(&first).unwrap());
            }
            let share = within as f64 / trials as f64;
            assert!((0.945..0.955).contains(&share), "{count} repetitions: {share}");
        }
    }

    #[test]
    fn run_to_run_variation_by_repetitions() {
        assert_eq!(run_to_run_variation_percent(&[]), None);
        assert_eq!(run_to_run_variation(&[5.0]), None);
        assert_eq!(run_to_run_variation_percent(&[0.0, 0.0]), None);
        assert_eq!(run_to_run_variation_percent(&[5.0, 5.0]), Some(0.0));
        let percent = run_to_run_variation_percent(&[9.0, 10.0, 11.0]).unwrap();
        assert!((percent - 38.3).abs() < 1e-9, "{percent}");
        let of = |count: usize| {
            let values: Vec<f64> = (0..count).map(|at| 100.0 + (at % 2) as f64).collect();
            run_to_run_variation_percent(&values).unwrap()
        };
        assert!(of(4) > of(6) && of(6) > of(20));
        // Above the table's last entry, that entry applies, which is conservative.
        assert!(of(100) > 0.0);
    }
}
