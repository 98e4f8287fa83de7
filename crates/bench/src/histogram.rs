//! Latency histogram with fio's bins.

use crate::limits::HISTOGRAM_BINS;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    bins: Vec<(u64, u64)>,
    count: u64,
}

impl Histogram {
    /// From pairs of nanoseconds and counts, in any order and with duplicates. `None` if there are
    /// too many, or if the counts overflow.
    pub fn new(mut bins: Vec<(u64, u64)>) -> Option<Histogram> {
        if bins.len() > HISTOGRAM_BINS {
            return None;
        }
        bins.sort_unstable();
        bins.dedup_by(|later, earlier| {
            let same = later.0 == earlier.0;
            if same {
                earlier.1 = earlier.1.saturating_add(later.1);
            }
            same
        });
        let count = bins.iter().try_fold(0u64, |sum, (_, count)| sum.checked_add(*count))?;
        Some(Histogram { bins, count })
    }

    pub(crate) fn merged(&self, other: &Histogram) -> Option<Histogram> {
        Histogram::new(self.bins.iter().chain(&other.bins).copied().collect())
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn bins(&self) -> &[(u64, u64)] {
        &self.bins
    }

    /// Percentile in ns; `None` without samples.
    pub(crate) fn percentile_ns(&self, percent: f64) -> Option<u64> {
        let rank = (self.count as f64 * percent.clamp(0.0, 100.0) / 100.0).ceil() as u64;
        let mut seen = 0;
        for (nanos, count) in &self.bins {
            seen += count;
            if seen >= rank.max(1) {
                return Some(*nanos);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn histogram_percentiles() {
        let bins = (1..=100).rev().map(|n| (n * 10, 1)).collect();
        let histogram = Histogram::new(bins).unwrap();
        for (percent, nanos) in [(0.0, 10), (50.0, 500), (50.1, 510), (99.0, 990), (100.0, 1000)] {
            assert_eq!(histogram.percentile_ns(percent), Some(nanos), "{percent}");
        }
        assert_eq!(Histogram::default().percentile_ns(50.0), None);
        assert_eq!(Histogram::new(vec![(1, u64::MAX), (2, 1)]), None);
    }

    proptest! {
        #[test]
        fn histogram_percentile_matches_sorted_list(
            mut list in proptest::collection::vec(0u64..1000, 1..200), percent in 0.0f64..=100.0,
        ) {
            let (left, right) = list.split_at(list.len() / 2);
            let of = |part: &[u64]| Histogram::new(part.iter().map(|n| (*n, 1)).collect()).unwrap();
            let histogram = of(left).merged(&of(right)).unwrap();
            list.sort_unstable();
            let rank = ((list.len() as f64 * percent / 100.0).ceil() as usize).max(1);
            prop_assert_eq!(histogram.percentile_ns(percent), Some(list[rank - 1]));
        }
    }
}
