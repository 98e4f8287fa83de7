//! Rank test of Mann and Whitney (1947): whether one of two samples tends to be larger. It assumes
//! no normal distribution, which benchmark results do not have.

use crate::limits::EXACT_PAIRS;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Significance {
    /// Mann and Whitney's U of the first sample.
    pub u: f64,
    pub p: f64,
    /// Smallest possible p-value of samples of these sizes.
    pub(crate) p_least: f64,
}

/// Compares two samples; `None` if one is empty. Exact for small samples without ties, else by the
/// normal approximation with corrections for ties and continuity.
pub fn mann_whitney(a: &[f64], b: &[f64]) -> Option<Significance> {
    let (n, m) = (a.len(), b.len());
    if n == 0 || m == 0 {
        return None;
    }
    let mut u = 0.0;
    for x in a {
        for y in b {
            u += if x > y {
                1.0
            } else if x == y {
                0.5
            } else {
                0.0
            };
        }
    }
    let mut all: Vec<f64> = a.iter().chain(b).copied().collect();
    all.sort_by(f64::total_cmp);
    let ties: Vec<usize> = all.chunk_by(|x, y| x == y).map(<[f64]>::len).collect();
    let has_ties = ties.iter().any(|count| *count > 1);
    let small = n * m <= EXACT_PAIRS;
    let p_least = if small { exact(n, m, 0.0) } else { 0.0 };
    let p = if has_ties || !small { approximate(n, m, u, &ties) } else { exact(n, m, u) };
    Some(Significance { u, p, p_least })
}

/// Exact two-sided p-value, by counting the arrangements.
fn exact(n: usize, m: usize, u: f64) -> f64 {
    let pairs = n * m;
    // ways[i][s] after j of the second sample: arrangements of i and j values with U = s.
    let mut ways = vec![vec![0.0; pairs + 1]; n + 1];
    for row in &mut ways {
        row[0] = 1.0;
    }
    for j in 1..=m {
        for i in 1..=n {
            // The largest value is of the first sample (j more pairs), or of the second.
            for s in (0..=pairs).rev() {
                let first = if s >= j { ways[i - 1][s - j] } else { 0.0 };
                ways[i][s] += first;
            }
        }
    }
    let total: f64 = ways[n].iter().sum();
    let tail = u.min(pairs as f64 - u).floor() as usize;
    let below: f64 = ways[n][..=tail].iter().sum();
    (2.0 * below / total).min(1.0)
}

fn approximate(n: usize, m: usize, u: f64, ties: &[usize]) -> f64 {
    let (n, m) = (n as f64, m as f64);
    let total = n + m;
    let tied: f64 = ties.iter().map(|count| (*count as f64).powi(3) - *count as f64).sum();
    let variance = n * m / 12.0 * (total + 1.0 - tied / (total * (total - 1.0)));
    if variance <= 0.0 {
        return 1.0;
    }
    let z = ((u - n * m / 2.0).abs() - 0.5).max(0.0) / variance.sqrt();
    libm::erfc(z / std::f64::consts::SQRT_2).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn p(a: &[f64], b: &[f64]) -> f64 {
        mann_whitney(a, b).unwrap().p
    }

    #[test]
    fn mann_whitney_exact_p_values() {
        // Disjoint samples: 2 of 20 arrangements of 3 and 3, of 252 of 5 and 5, of 70 of 4 and 4.
        assert!((p(&[1.0, 2.0, 3.0], &[4.0, 5.0, 6.0]) - 0.1).abs() < 1e-12);
        let low: Vec<f64> = (0..5).map(f64::from).collect();
        let high: Vec<f64> = (10..15).map(f64::from).collect();
        assert!((p(&low, &high) - 2.0 / 252.0).abs() < 1e-12);
        // Hollander and Wolfe's placental permeability: U = 35, two-sided p = 0.2544.
        let term = [0.80, 0.83, 1.89, 1.04, 1.45, 1.38, 1.91, 1.64, 0.73, 1.46];
        let early = [1.15, 0.88, 0.90, 0.74, 1.21];
        let found = mann_whitney(&term, &early).unwrap();
        assert_eq!(found.u, 35.0);
        assert!((found.p - 0.254_412).abs() < 1e-5, "{found:?}");
    }

    #[test]
    fn mann_whitney_ties_and_large_samples() {
        assert_eq!(p(&[1.0; 4], &[1.0; 4]), 1.0);
        let a: Vec<f64> = (0..100).map(f64::from).collect();
        let b: Vec<f64> = (50..150).map(|n| f64::from(n) + 0.5).collect();
        assert!(p(&a, &b) < 1e-6 && p(&a, &a) > 0.9);
        assert!((approximate(100, 100, 5803.2, &[]) - 0.05).abs() < 1e-3);
        assert_eq!(mann_whitney(&[], &[1.0]), None);
    }

    #[test]
    fn three_repetitions_never_reach_5_percent() {
        let found = mann_whitney(&[1.0, 2.0, 3.0], &[7.0, 8.0, 9.0]).unwrap();
        assert!((found.p_least - 0.1).abs() < 1e-12);
        assert_eq!(found.p, mann_whitney(&[7.0, 8.0, 9.0], &[1.0, 2.0, 3.0]).unwrap().p);
    }
}
