//! Several results of one disk, judged together: two results at different depths or block
//! sizes distinguish a latency from a cap, which one result does not.

use crate::judge::{Bottleneck, Cause, Judgment};
use crate::limits::TOLERANCE;
use crate::prediction::Recommendation;

/// Ratio of two depths or block sizes from which their results are compared.
const APART: f64 = 1.5;

/// Gain of IOPS, in parts of the gain of depth, from which a deeper queue helped.
const HELPED: f64 = 0.5;

/// Bottleneck of a result, with the fact that shows it.
enum Evidence {
    Cap(Cause),
    Latency(Cause),
}

/// Decides whether a latency or a cap holds a result, where other results of its disk show it.
pub fn judge_together<'j>(judgments: impl IntoIterator<Item = &'j mut Judgment>) {
    let mut judgments: Vec<&mut Judgment> = judgments.into_iter().collect();
    let evidence: Vec<_> = (0..judgments.len()).map(|index| of_others(index, &judgments)).collect();
    for (judgment, evidence) in judgments.iter_mut().zip(evidence) {
        let Some(evidence) = evidence else { continue };
        judgment.causes.retain(|cause| !is_of_one_result(cause));
        judgment.recommendations.retain(|one| {
            !matches!(one, Recommendation::OtherDepth { .. } | Recommendation::OtherBlocks { .. })
        });
        let cause = match evidence {
            Evidence::Cap(cause) => {
                judgment.bottleneck = Bottleneck::Cap;
                // Waiting for a cap makes the latency, which then proves nothing.
                judgment.causes.retain(|cause| !is_of_latency(cause));
                judgment.hypotheses.retain(|cause| !is_of_latency(cause));
                let of_latency = |one: &_| *one == Recommendation::ShorterPath;
                judgment.recommendations.retain(|one| !of_latency(one));
                cause
            }
            Evidence::Latency(cause) => {
                judgment.bottleneck = Bottleneck::Latency;
                judgment.hypotheses.retain(|cause| !is_of_cap(cause));
                cause
            }
        };
        judgment.causes.insert(0, cause);
    }
}

/// What one result makes probable, which a second one decides.
fn is_of_one_result(cause: &Cause) -> bool {
    use Cause::{LatencySpread, OneDepth, RateOverTime};
    matches!(cause, OneDepth { .. } | LatencySpread { .. } | RateOverTime { .. })
}

/// A latency above or below the model, which explains a result only without a cap.
fn is_of_latency(cause: &Cause) -> bool {
    use Cause::{FasterThanRule, Latency, MatchesRule, SlowPath, SlowerThanRule};
    matches!(
        cause,
        Latency { .. } | MatchesRule(_) | SlowerThanRule(_) | FasterThanRule(_) | SlowPath { .. }
    )
}

/// A cap that would allow the measured rate.
fn is_of_cap(cause: &Cause) -> bool {
    use Cause::{FittingMachine, FittingType, Observed};
    matches!(cause, FittingType { .. } | FittingMachine { .. } | Observed { .. })
}

/// The first evidence that another result gives, if this one needs any.
fn of_others(index: usize, judgments: &[&mut Judgment]) -> Option<Evidence> {
    let one = &*judgments[index];
    if !one.bottleneck.is_undecided() {
        return None;
    }
    let others = judgments.iter().enumerate().filter(|(other, _)| *other != index);
    others.map(|(_, other)| &**other).find_map(|other| compare(one, other))
}

fn compare(one: &Judgment, other: &Judgment) -> Option<Evidence> {
    let same_kind = one.configuration == other.configuration
        && one.workload.read_percent == other.workload.read_percent
        && one.workload.access == other.workload.access;
    let depths = one.measured.in_flight.zip(other.measured.in_flight);
    let (depth, other_depth) = depths.filter(|_| same_kind)?;
    let deeper = other_depth / depth;
    let larger = other.workload.block_bytes as f64 / one.workload.block_bytes as f64;
    let same = |ratio: f64| (ratio - 1.0).abs() <= TOLERANCE;
    let is_apart = |ratio: f64| ratio >= APART || ratio <= 1.0 / APART;
    let iops = other.measured.total.iops / one.measured.total.iops;
    let bytes = other.measured.total.bytes_per_s / one.measured.total.bytes_per_s;
    if same(larger) && is_apart(deeper) {
        let in_flight = other_depth;
        return match (same(iops), (iops - 1.0) / (deeper - 1.0) >= HELPED) {
            (true, _) => Some(Evidence::Cap(Cause::SameAtOtherDepth { in_flight })),
            (false, true) => Some(Evidence::Latency(Cause::FollowsDepth { in_flight })),
            _ => None,
        };
    }
    if is_apart(larger) && same(deeper) && same(bytes) {
        let block_bytes = other.workload.block_bytes;
        return Some(Evidence::Cap(Cause::SameThroughput { block_bytes }));
    }
    None
}
