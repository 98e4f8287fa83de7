//! Latency histogram: from a microsecond to half a minute in steps of at most a quarter, in one
//! array.

/// Number of buckets: below 1,024 ns, then four to each of 25 doublings up to 34 s, and beyond.
pub const BUCKETS: usize = 2 + 4 * DOUBLINGS;

/// Buckets between the first and the last, in doublings.
const DOUBLINGS: usize = 25;

/// The first bucket ends at this power of two, in nanoseconds.
const FIRST_POWER: u32 = 10;

/// The bucket of a latency.
#[inline]
pub fn bucket_of(nanos: u64) -> usize {
    if nanos >> FIRST_POWER == 0 {
        return 0;
    }
    let power = nanos.ilog2();
    let quarter = (nanos >> (power - 2)) & 3;
    let bucket = 1 + 4 * (power - FIRST_POWER) as usize + quarter as usize;
    bucket.min(BUCKETS - 1)
}

/// Exclusive upper end of a bucket, in nanoseconds; `None` for the last.
pub fn end_ns(bucket: usize) -> Option<u64> {
    match bucket {
        0 => Some(1 << FIRST_POWER),
        bucket if bucket + 1 < BUCKETS => {
            let (doubling, quarter) = ((bucket - 1) / 4, (bucket - 1) % 4);
            Some((quarter as u64 + 5) << (FIRST_POWER as usize + doubling - 2))
        }
        _ => None,
    }
}

/// Number of latencies in each bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// Per bucket.
    pub counts: [u64; BUCKETS],
    /// Sum of all latencies, in nanoseconds.
    pub sum_ns: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: [0; BUCKETS], sum_ns: 0 }
    }
}

impl Histogram {
    /// Number of latencies.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Quantile for a share from 0 to 1, in nanoseconds, as if the latencies of a bucket were
    /// spread evenly over it; 0 without latencies.
    pub fn quantile_ns(&self, share: f64) -> f64 {
        let wanted = share * self.count() as f64;
        let mut before = 0.0;
        for (bucket, count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let count = *count as f64;
            if before + count >= wanted {
                let begin = bucket.checked_sub(1).and_then(end_ns).unwrap_or(0) as f64;
                let end = end_ns(bucket).map_or(begin, |end| end as f64);
                return begin + (end - begin) * ((wanted - before) / count).clamp(0.0, 1.0);
            }
            before += count;
        }
        0.0
    }

    /// Latencies since `earlier`, an earlier state of the same histogram.
    #[must_use]
    pub fn since(&self, earlier: &Histogram) -> Histogram {
        let mut difference = self.clone();
        for (count, before) in difference.counts.iter_mut().zip(&earlier.counts) {
            *count = count.saturating_sub(*before);
        }
        difference.sum_ns = difference.sum_ns.saturating_sub(earlier.sum_ns);
        difference
    }

    /// Number of latencies below 2 to the power of `power` nanoseconds, which is the end of a
    /// bucket: `power` is from 10 to 35.
    pub fn below_power(&self, power: u32) -> u64 {
        self.counts[..bucket_of(1 << power)].iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn buckets_follow_each_other() {
        assert_eq!(bucket_of(0), 0);
        assert_eq!(bucket_of(1023), 0);
        let mut begin = 0;
        for bucket in 0..BUCKETS - 1 {
            let end = end_ns(bucket).unwrap();
            assert!(end > begin);
            assert_eq!((bucket_of(begin), bucket_of(end - 1)), (bucket, bucket));
            if bucket > 0 {
                assert!((end - begin) * 4 <= begin, "{begin} {end}");
            }
            begin = end;
        }
        assert_eq!(begin, 1 << 35);
        assert_eq!((bucket_of(begin), bucket_of(u64::MAX)), (BUCKETS - 1, BUCKETS - 1));
        assert_eq!(end_ns(BUCKETS - 1), None);
    }

    proptest! {
        #[test]
        fn quantiles_are_within_a_quarter(
            mut nanos in prop::collection::vec(1024..1_u64 << 34, 1..200),
            share in 0.0..=1.0_f64,
        ) {
            let mut histogram = Histogram::default();
            for one in &nanos {
                histogram.counts[bucket_of(*one)] += 1;
            }
            nanos.sort_unstable();
            let place = (share * nanos.len() as f64).ceil() as usize;
            let exact = nanos[place.saturating_sub(1)] as f64;
            let found = histogram.quantile_ns(share);
            prop_assert!(found >= exact / 1.26 && found <= exact * 1.26, "{found} {exact}");
            let nothing = histogram.since(&histogram);
            prop_assert_eq!(nothing.count(), 0);
            for power in 10..=35 {
                let below = nanos.iter().filter(|one| **one < 1 << power).count();
                prop_assert_eq!(histogram.below_power(power), below as u64);
            }
        }
    }
}
