//! Several results of one disk, judged together: two results at different depths or block
//! sizes distinguish a latency from a cap, which one result does not.

use crate::judge::{Bottleneck, Cause, Judgment};
use crate::limits::TOLERANCE;
use crate::prediction::Recommendation;

/// Ratio of two depths or block sizes from which their results are compared.
const APART: f64 = 1.5;

/// Gain of IOPS, in parts of the gain of depth, from which a deeper queue helped.
const HELPED: f64 = 0.5;

enum Told {
    Cap(Cause),
    Latency(Cause),
    Nothing,
}

/// Decides whether a latency or a cap holds a result, where other results of its disk show it.
pub fn judge_together<'j>(judgments: impl IntoIterator<Item = &'j mut Judgment>) {
    let mut judgments: Vec<&mut Judgment> = judgments.into_iter().collect();
    let told: Vec<Told> = (0..judgments.len()).map(|index| told_of(index, &judgments)).collect();
    for (judgment, told) in judgments.iter_mut().zip(told) {
        let (bottleneck, cause) = match told {
            Told::Cap(cause) => (Bottleneck::Cap, cause),
            Told::Latency(cause) => (Bottleneck::Latency, cause),
            Told::Nothing => continue,
        };
        judgment.bottleneck = bottleneck;
        judgment.causes.retain(|cause| !matches!(cause, Cause::OneDepth { .. }));
        judgment.causes.insert(0, cause);
        judgment.recommendations.retain(|one| {
            !matches!(one, Recommendation::OtherDepth { .. } | Recommendation::OtherBlocks { .. })
        });
    }
}

fn told_of(index: usize, judgments: &[&mut Judgment]) -> Told {
    let one = &*judgments[index];
    if one.bottleneck != Bottleneck::LatencyOrCap {
        return Told::Nothing;
    }
    let others = judgments.iter().enumerate().filter(|(other, _)| *other != index);
    let told = others.map(|(_, other)| compare(one, other));
    told.into_iter().find(|told| !matches!(told, Told::Nothing)).unwrap_or(Told::Nothing)
}

fn compare(one: &Judgment, other: &Judgment) -> Told {
    let same_kind = one.configuration == other.configuration
        && one.workload.read_percent == other.workload.read_percent
        && one.workload.access == other.workload.access;
    let depths = one.measured.in_flight.zip(other.measured.in_flight);
    let Some((depth, other_depth)) = depths.filter(|_| same_kind) else { return Told::Nothing };
    let deeper = other_depth / depth;
    let larger = other.workload.block_bytes as f64 / one.workload.block_bytes as f64;
    let same = |ratio: f64| (ratio - 1.0).abs() <= TOLERANCE;
    let is_apart = |ratio: f64| ratio >= APART || ratio <= 1.0 / APART;
    let iops = other.measured.total.iops / one.measured.total.iops;
    let bytes = other.measured.total.bytes_per_s / one.measured.total.bytes_per_s;
    if same(larger) && is_apart(deeper) {
        let in_flight = other_depth;
        return match (same(iops), (iops - 1.0) / (deeper - 1.0) >= HELPED) {
            (true, _) => Told::Cap(Cause::SameAtOtherDepth { in_flight }),
            (false, true) => Told::Latency(Cause::FollowsDepth { in_flight }),
            _ => Told::Nothing,
        };
    }
    if is_apart(larger) && same(deeper) && same(bytes) {
        return Told::Cap(Cause::SameThroughput { block_bytes: other.workload.block_bytes });
    }
    Told::Nothing
}
