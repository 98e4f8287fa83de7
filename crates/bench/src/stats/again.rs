//! How far another run of as many repetitions may come out from this one. That is more than the noise
//! of a single repetition suggests where there are few: they do not say well how much they vary.

use super::{deviation, median};

/// Repetitions of either run, and how far apart their medians are at most, 19 times of 20, in standard
/// deviations of the first one's repetitions: by simulation with normal distributions, which the
/// tests below repeat for some.
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

/// How far another run's median is from this one's at most, 19 times of 20, if nothing differs between
/// runs that does not differ between repetitions. `None` of fewer than two repetitions.
pub fn another_run(values: &[f64]) -> Option<f64> {
    let known = APART.iter().rev().find(|(repetitions, _)| *repetitions <= values.len())?;
    Some(known.1 * deviation(values)?)
}

/// The same in % of this run's median.
pub fn another_run_percent(values: &[f64]) -> Option<f64> {
    let middle = median(values).filter(|middle| *middle != 0.0)?;
    Some(100.0 * another_run(values)? / middle)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::bootstrap::Generator;

    #[test]
    fn nineteen_of_twenty_other_runs_are_within() {
        for count in [2, 3, 4, 5, 10] {
            let mut generator = Generator(11);
            let mut run =
                || -> Vec<f64> { (0..count).map(|_| 100.0 + generator.normal()).collect() };
            let trials = 20_000;
            let mut within = 0;
            for _ in 0..trials {
                let (first, second) = (run(), run());
                let apart = (median(&second).unwrap() - median(&first).unwrap()).abs();
                within += usize::from(apart <= another_run(&first).unwrap());
            }
            let share = within as f64 / trials as f64;
            assert!((0.945..0.955).contains(&share), "{count} repetitions: {share}");
        }
    }

    #[test]
    fn fewer_repetitions_say_less() {
        assert_eq!(another_run_percent(&[]), None);
        assert_eq!(another_run(&[5.0]), None);
        assert_eq!(another_run_percent(&[0.0, 0.0]), None);
        assert_eq!(another_run_percent(&[5.0, 5.0]), Some(0.0));
        let percent = another_run_percent(&[9.0, 10.0, 11.0]).unwrap();
        assert!((percent - 38.3).abs() < 1e-9, "{percent}");
        let of = |count: usize| {
            let values: Vec<f64> = (0..count).map(|at| 100.0 + (at % 2) as f64).collect();
            another_run_percent(&values).unwrap()
        };
        assert!(of(4) > of(6) && of(6) > of(20));
        // More than the table has: as the last that it has, which is on the safe side.
        assert!(of(100) > 0.0);
    }
}
