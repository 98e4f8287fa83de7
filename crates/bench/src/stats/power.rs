//! Power of the significance test: the smallest difference that a number of repetitions shows. A
//! negative result says little if the difference could hardly have been shown.

use super::{deviation, mean};

/// Repetitions of each side, and the difference, in standard deviations of one side, that the
/// two-sided test of Mann and Whitney at 5 % shows with a power of 80 % between normal
/// distributions. Simulated; the tests below repeat some of it.
const DIFFERENCE: [(usize, f64); 11] = [
    (4, 2.89),
    (5, 2.31),
    (6, 1.92),
    (7, 1.76),
    (8, 1.55),
    (9, 1.49),
    (10, 1.39),
    (12, 1.26),
    (15, 1.11),
    (20, 0.94),
    (30, 0.76),
];

/// Fewest repetitions of each side that can show a difference: 4 and 4 have 70 arrangements, 2 of
/// them extreme, and 2 / 70 is below 5 %; for 3 and 3 it is 2 / 20.
pub const REPETITIONS_LEAST: usize = DIFFERENCE[0].0;

/// Difference that is shown with a power of 80 %, in standard deviations, with at least
/// `repetitions` of each side; `None` if they cannot show any.
pub fn shown_deviations(repetitions: usize) -> Option<f64> {
    let (least, last) = (DIFFERENCE[0], DIFFERENCE[DIFFERENCE.len() - 1]);
    if repetitions < least.0 {
        return None;
    }
    if repetitions > last.0 {
        // It falls with the square root of the number.
        return Some(last.1 * (last.0 as f64 / repetitions as f64).sqrt());
    }
    let known = DIFFERENCE.iter().rev().find(|(count, _)| *count <= repetitions);
    known.map(|(_, deviations)| *deviations)
}

/// [`shown_deviations`] in % of the mean of `first`, with the variance of both samples.
pub fn shown_percent(first: &[f64], second: &[f64]) -> Option<f64> {
    let deviations = shown_deviations(first.len().min(second.len()))?;
    let variance = |values: &[f64]| deviation(values).map(|deviation| deviation.powi(2));
    let deviation = f64::midpoint(variance(first)?, variance(second)?).sqrt();
    let base = mean(first);
    (base > 0.0).then(|| 100.0 * deviations * deviation / base)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flagstone_runtime::rng::Rng;

    use crate::stats::{mann_whitney, normal};

    /// Share of sample pairs at this distance that the test distinguishes.
    fn power(count: usize, apart: f64) -> f64 {
        let mut rng = Rng::new(7);
        let trials = 4000;
        let mut shown = 0;
        for _ in 0..trials {
            let a: Vec<f64> = (0..count).map(|_| normal(&mut rng)).collect();
            let b: Vec<f64> = (0..count).map(|_| apart + normal(&mut rng)).collect();
            shown += usize::from(mann_whitney(&a, &b).is_some_and(|found| found.p < 0.05));
        }
        shown as f64 / trials as f64
    }

    #[test]
    fn shown_difference_has_80_percent_power() {
        for (count, apart) in &DIFFERENCE[..6] {
            let found = power(*count, *apart);
            assert!((0.77..0.83).contains(&found), "{count} apart by {apart}: {found}");
        }
    }

    #[test]
    fn power_by_number_of_repetitions() {
        assert_eq!(shown_deviations(3), None);
        assert_eq!(shown_deviations(4), Some(2.89));
        assert_eq!(shown_deviations(11), Some(1.39));
        assert!((shown_deviations(120).unwrap() - 0.38).abs() < 1e-9);
        assert_eq!(REPETITIONS_LEAST, 4);
        let first = [99.0, 101.0, 99.0, 101.0];
        let percent = shown_percent(&first, &first).unwrap();
        assert!((percent - 2.89 * (4.0_f64 / 3.0).sqrt()).abs() < 1e-9, "{percent}");
    }
}
