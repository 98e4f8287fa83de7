//! Rank test of Mann and Whitney (1947): whether one of two samples tends to be larger. It assumes
//! no normal distribution, which benchmark results do not have.

use crate::limits::EXACT_PAIRS;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Significance {
    /// Mann and Whitney's U of the first sample.
    pub u: f64,
    pub p: f64,
    /// Smallest possible p-value of samples of these sizes, without ties.
    pub(crate) p_least: f64,
}

/// Compares two samples; `None` if one is empty. Exact for small samples, with mid-ranks for ties;
/// else by the normal approximation with corrections for ties and continuity.
pub fn mann_whitney(a: &[f64], b: &[f64]) -> Option<Significance> {
    let (n, m) = (a.len(), b.len());
    if n == 0 || m == 0 {
        return None;
    }
    let mut all: Vec<f64> = a.iter().chain(b).copied().collect();
    all.sort_by(f64::total_cmp);
    let ties: Vec<usize> = all.chunk_by(|x, y| x == y).map(<[f64]>::len).collect();
    let mut twice_u = 0;
    for x in a {
        twice_u += b.iter().map(|y| usize::from(x > y) + usize::from(x >= y)).sum::<usize>();
    }
    let u = twice_u as f64 / 2.0;
    let p_least = (2.0 / choices(n + m, n)).min(1.0);
    if n * m > EXACT_PAIRS {
        return Some(Significance { u, p: approximate(n, m, u, &ties), p_least });
    }
    let p = Arrangements::of(n, m, &ties).p(twice_u);
    Some(Significance { u, p, p_least })
}

/// Number of arrangements of two samples with each value of 2 U: every choice of the first sample
/// among the pooled values, of which equal ones count half.
struct Arrangements(Vec<f64>);

impl Arrangements {
    fn of(n: usize, m: usize, ties: &[usize]) -> Arrangements {
        let most = 2 * n * m;
        // ways[i][s]: i values of the first sample among those so far, with 2 U = s.
        let mut ways = vec![vec![0.0; most + 1]; n + 1];
        ways[0][0] = 1.0;
        let mut below = 0;
        for count in ties {
            let mut next = vec![vec![0.0; most + 1]; n + 1];
            for i in 0..=n.min(below) {
                let of_second = below - i;
                for taken in 0..=(*count).min(n - i) {
                    if of_second > m || of_second + count - taken > m {
                        continue;
                    }
                    let more = 2 * taken * of_second + taken * (count - taken);
                    let choices = choices(*count, taken);
                    for s in 0..=2 * i * of_second {
                        if ways[i][s] > 0.0 {
                            next[i + taken][s + more] += ways[i][s] * choices;
                        }
                    }
                }
            }
            ways = next;
            below += count;
        }
        Arrangements(ways.swap_remove(n))
    }

    /// Two-sided p-value. The distribution with ties need not be symmetric: it counts all
    /// arrangements that are at least as far from the middle.
    fn p(&self, twice_u: usize) -> f64 {
        let most = self.0.len() - 1;
        let distance = |s: usize| (2 * s).abs_diff(most);
        let far = self.0.iter().enumerate().filter(|(s, _)| distance(*s) >= distance(twice_u));
        let far: f64 = far.map(|(_, ways)| ways).sum();
        (far / self.0.iter().sum::<f64>()).min(1.0)
    }
}

/// Binomial coefficient.
fn choices(of: usize, taken: usize) -> f64 {
    (0..taken).fold(1.0, |all, at| all * (of - at) as f64 / (at + 1) as f64)
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

    /// Regression test: the normal approximation was used for small samples with ties.
    #[test]
    fn exact_p_values_with_ties() {
        // By counting the 70 choices of 4 among 8 values: 4 are at least as far on either side.
        let (a, b) = ([300.0, 300.0, 300.0, 200.0], [200.0, 100.0, 100.0, 100.0]);
        let found = mann_whitney(&a, &b).unwrap();
        assert_eq!(found.u, 15.5);
        assert!((found.p - by_counting(&a, &b)).abs() < 1e-12, "{found:?}");
        assert!((found.p - 4.0 / 70.0).abs() < 1e-12, "{found:?}");
        for (a, b) in [
            (&[1.0, 1.0, 2.0][..], &[1.0, 2.0, 2.0, 3.0][..]),
            (&[5.0, 5.0, 5.0, 5.0], &[5.0, 5.0, 6.0, 7.0]),
            (&[1.0, 4.0, 4.0, 9.0, 9.0], &[1.0, 1.0, 4.0]),
        ] {
            assert!((p(a, b) - by_counting(a, b)).abs() < 1e-12, "{a:?} {b:?}");
            assert!((p(a, b) - p(b, a)).abs() < 1e-12);
        }
    }

    /// Tries every choice of the first sample.
    fn by_counting(a: &[f64], b: &[f64]) -> f64 {
        let all: Vec<f64> = a.iter().chain(b).copied().collect();
        let distance = |chosen: u32| {
            let (mut u, is_first) = (0.0, |at: usize| chosen >> at & 1 == 1);
            for x in (0..all.len()).filter(|at| is_first(*at)) {
                for y in (0..all.len()).filter(|at| !is_first(*at)) {
                    u += if all[x] > all[y] {
                        1.0
                    } else if all[x] == all[y] {
                        0.5
                    } else {
                        0.0
                    };
                }
            }
            (u - (a.len() * b.len()) as f64 / 2.0_f64).abs()
        };
        let choices = || (0_u32..1 << all.len()).filter(|c| c.count_ones() as usize == a.len());
        let own = distance((1 << a.len()) - 1);
        choices().filter(|chosen| distance(*chosen) >= own).count() as f64
            / choices().count() as f64
    }

    #[test]
    fn three_repetitions_never_reach_5_percent() {
        let found = mann_whitney(&[1.0, 2.0, 3.0], &[7.0, 8.0, 9.0]).unwrap();
        assert!((found.p_least - 0.1).abs() < 1e-12);
        assert_eq!(found.p, mann_whitney(&[7.0, 8.0, 9.0], &[1.0, 2.0, 3.0]).unwrap().p);
    }
}
