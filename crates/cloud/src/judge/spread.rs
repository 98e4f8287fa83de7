//! Spread of a measurement: the distribution of its latencies, and the variation of its rate.
//!
//! A throttle holds each I/O back until its turn, so that a full queue has nearly equal latencies
//! or, if the throttle refills in intervals, latencies in steps, at a steady rate. The latency of a
//! disk differs from I/O to I/O, and with it the rate. Neither is a proof: a path with a constant
//! delay has equal latencies too, and I/Os that overtake each other differ under a throttle. The
//! spread therefore makes a cap or a latency probable, and never certain.

use serde::Serialize;

use crate::judge::Cause;

/// Distribution and variation as measured. `Default` stands for unknown.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MeasuredSpread {
    /// Percentages, 0 to 100, and latencies in µs, ascending; empty if not measured.
    pub percentiles: Vec<(f64, f64)>,
    /// Standard deviation of the IOPS over time, as a part of their mean; `None` if not measured.
    pub iops_deviation: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LatencyShape {
    /// Nearly equal latencies.
    Narrow,
    /// A few latencies, far from each other.
    Steps,
    /// No common latency.
    Wide,
}

/// What the spread makes probable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Likely {
    Cap,
    Latency,
}

/// Percentages of the distribution that are judged; the rest are exceptions.
const BODY: std::ops::RangeInclusive<f64> = 5.0..=99.0;

/// Fewest percentiles that show a shape.
const BODY_MIN: usize = 5;

/// Ratio up to which latencies are equal.
const EQUAL: f64 = 1.25;

/// Ratio from which latencies are far apart.
const APART: f64 = 3.0;

/// Largest number of steps of a throttle.
const STEPS_MAX: usize = 3;

/// Deviation of the rate up to which it is steady, and from which it varies.
const STEADY: f64 = 0.02;
const VARYING: f64 = 0.1;

/// Fewest I/Os in flight that form a queue. A single I/O may have a constant latency of its own.
const QUEUE_MIN: f64 = 4.0;

impl MeasuredSpread {
    pub(super) fn figures(&self) -> impl Iterator<Item = f64> {
        let latencies = self.percentiles.iter().flat_map(|(percent, us)| [*percent, *us]);
        latencies.chain(self.iops_deviation)
    }

    /// What the spread makes probable with `in_flight` I/Os in the queue, if anything.
    pub(super) fn likely(&self, in_flight: Option<f64>) -> Option<Likely> {
        let varies = self.iops_deviation.map(|deviation| deviation >= VARYING);
        let steady = self.iops_deviation.is_some_and(|deviation| deviation <= STEADY);
        let queue = in_flight.is_some_and(|in_flight| in_flight >= QUEUE_MIN);
        match self.shape()?.0 {
            LatencyShape::Narrow if queue && steady => Some(Likely::Cap),
            // The fast I/Os of a step show that the latency of the disk is short.
            LatencyShape::Steps if queue && varies != Some(true) => Some(Likely::Cap),
            LatencyShape::Wide if varies == Some(true) => Some(Likely::Latency),
            _ => None,
        }
    }

    /// The facts, for a reader.
    pub(super) fn causes(&self) -> Vec<Cause> {
        let shape = self.shape().map(|(shape, median_us, p99_us)| Cause::LatencySpread {
            shape,
            median_us,
            p99_us,
        });
        let rate = self.iops_deviation.map(|deviation| Cause::RateOverTime { deviation });
        shape.into_iter().chain(rate).collect()
    }

    /// The shape, with the median and the 99th percentile; `None` in between, or if too few
    /// percentiles are known.
    fn shape(&self) -> Option<(LatencyShape, f64, f64)> {
        let at = |percent: f64| {
            let near = |(other, _): &&(f64, f64)| (other - percent).abs() < 1e-6;
            self.percentiles.iter().find(near).map(|(_, us)| *us)
        };
        let (median, p99) = (at(50.0)?, at(99.0)?);
        let body: Vec<f64> =
            self.percentiles.iter().filter(|(p, _)| BODY.contains(p)).map(|(_, us)| *us).collect();
        let known = body.len() >= BODY_MIN && body[0] > 0.0 && body.is_sorted();
        let steps = steps(&body);
        let shape = match steps {
            _ if !known => return None,
            Some(1) => LatencyShape::Narrow,
            Some(2..=STEPS_MAX) => LatencyShape::Steps,
            _ if p99 >= APART * median => LatencyShape::Wide,
            _ => return None,
        };
        Some((shape, median, p99))
    }
}

/// Number of groups of equal latencies that are far apart, each of at least two percentiles;
/// `None` if there are latencies in between.
fn steps(body: &[f64]) -> Option<usize> {
    let groups = body.chunk_by(|a, b| *b < APART * *a);
    let equal = |group: &[f64]| group.len() > 1 && group[group.len() - 1] <= EQUAL * group[0];
    let groups: Vec<bool> = groups.map(equal).collect();
    groups.iter().all(|equal| *equal).then_some(groups.len())
}
