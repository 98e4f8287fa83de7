//! Prediction: all limits, the binding one, the next one, and the recommendations that lift them.
//!
//! The binding limit is the one whose removal gains most; the next limit binds after that. If
//! several limits are equal, so that lifting only one gains nothing, the first in the order of
//! [`LimitKind`] binds and the others are next.

use crate::caps::{Cap, QueueFigure};
use crate::catalog::{Catalog, Confidence, LimitKind, SourceKeys};
use crate::describe;
use crate::input::{DiskConfiguration, PlanError, Workload};
use crate::mix::WorkloadMix;
use crate::placement::{Demand, Placement};
use crate::prediction::{Ceilings, Dimension, PredictedLimit, Prediction, Rates};
use crate::recommendation::Recommender;

/// Relative difference below which two figures are equal: they come from the same limits.
pub(crate) const SAME: f64 = 1e-9;

impl Catalog {
    /// Predicts a workload on a configuration.
    ///
    /// # Errors
    /// Invalid or impossible input, or no known limit.
    pub fn predict(
        &self,
        configuration: &DiskConfiguration,
        workload: &Workload,
    ) -> Result<Prediction, PlanError> {
        workload.check()?;
        let placement = Placement::of(self, configuration)?;
        let demand = placement.demand(configuration)?;
        let mix = WorkloadMix::new(workload, &self.units, placement.sharing());
        let hard = placement.hard_caps(&demand, workload.block_bytes);
        let allowed = mix.iops_under(hard.iter());
        if !allowed.is_finite() {
            return Err(placement.not_known());
        }
        let all = |figure| {
            let mut caps = hard.clone();
            caps.extend(placement.soft_caps(workload, figure));
            caps
        };
        let caps = all(QueueFigure::Low);
        let total = mix.iops_under(caps.iter());
        let best = mix.iops_under(all(QueueFigure::High).iter());
        let order = binding_order(&mix, &caps, caps.len());
        let limits = limits(&placement, &demand, workload, &mix, &caps, &order);
        let rates = |iops: f64| Rates::of_blocks(workload.block_bytes, iops);
        let binding = limits[order[0].0].clone();
        let next = order.get(1).map(|(index, _)| limits[*index].clone());
        let confidence = least(&placement, &mix, &binding, next.as_ref());
        let kinds: Vec<_> = order.iter().take(2).map(|(index, _)| caps[*index].kind).collect();
        let in_flight = workload.in_flight().filter(|_| placement.disk.queue.is_some());
        let mut sorted = limits;
        sorted.retain(|limit| limit.workload_iops.is_finite());
        sorted
            .sort_by(|a, b| a.workload_iops.total_cmp(&b.workload_iops).then(a.kind.cmp(&b.kind)));
        let cost = placement.cost(&demand);
        Ok(Prediction {
            catalog: self.name.clone(),
            configuration: configuration.clone(),
            workload: workload.clone(),
            throughput_unit: self.units.throughput,
            total: rates(total),
            read: rates(total * mix.read),
            write: rates(total * mix.write),
            at_best: (best > total * (1.0 + SAME)).then(|| rates(best)),
            allowed: rates(allowed),
            latency_us: in_flight.map(|in_flight| in_flight as f64 / total * 1e6),
            depth_needed: placement
                .disk
                .queue
                .as_ref()
                .map(|queue| (allowed / queue.iops_per_io_low * (1.0 - SAME)).ceil() as u64),
            ceilings: ceilings(&placement, &demand),
            sources: self.source_uses(used(&placement, &mix, &sorted, &caps, &cost)),
            confidence,
            inconsistencies: placement.inconsistencies(&demand, workload, &kinds),
            not_known: describe::not_known(&placement, &mix, workload, cost.as_ref().err()),
            advice: placement.disk.advice.clone(),
            notes: describe::notes(&placement, &mix, workload, &binding, demand.disks),
            binding,
            next,
            limits: sorted,
            cost: cost.ok(),
        })
    }

    /// Limits that the cloud enforces on a configuration, for any workload.
    pub fn ceilings(&self, configuration: &DiskConfiguration) -> Result<Ceilings, PlanError> {
        let placement = Placement::of(self, configuration)?;
        let demand = placement.demand(configuration)?;
        let found = ceilings(&placement, &demand);
        let any = found.read_iops.or(found.write_iops).or(found.read_bytes_per_s);
        any.or(found.write_bytes_per_s).map(|_| found).ok_or_else(|| placement.not_known())
    }
}

/// Indexes of the first `count` limits in the order in which they bind, each with the IOPS without
/// it and the limits before it.
pub(crate) fn binding_order(
    mix: &WorkloadMix,
    caps: &[Cap<'_>],
    count: usize,
) -> Vec<(usize, f64)> {
    let mut left: Vec<usize> =
        (0..caps.len()).filter(|index| mix.iops_under_one(&caps[*index]).is_finite()).collect();
    let mut order = Vec::with_capacity(count);
    while order.len() < count && !left.is_empty() {
        let without = |index: usize| {
            mix.iops_under(left.iter().filter(|other| **other != index).map(|other| &caps[*other]))
        };
        let now = mix.iops_under(left.iter().map(|index| &caps[*index]));
        let rank = |index: usize| {
            let gain = without(index);
            // A gain within rounding is no gain.
            let gain = if gain <= now * (1.0 + SAME) { now } else { gain };
            (gain, mix.iops_under_one(&caps[index]), caps[index].kind)
        };
        let best = left.iter().copied().map(|index| (index, rank(index))).min_by(|a, b| {
            let (gain_a, alone_a, kind_a) = a.1;
            let (gain_b, alone_b, kind_b) = b.1;
            let alone = match (alone_a - alone_b).abs() <= SAME * alone_a {
                true => std::cmp::Ordering::Equal,
                false => alone_a.total_cmp(&alone_b),
            };
            gain_b.total_cmp(&gain_a).then(alone).then(kind_a.cmp(&kind_b))
        });
        let Some((index, (gain, _, _))) = best else { break };
        order.push((index, gain));
        left.retain(|other| *other != index);
    }
    order
}

fn limits(
    placement: &Placement<'_>,
    demand: &Demand,
    workload: &Workload,
    mix: &WorkloadMix,
    caps: &[Cap<'_>],
    order: &[(usize, f64)],
) -> Vec<PredictedLimit> {
    let recommender = Recommender { placement, demand, workload, mix, caps };
    let total = mix.iops_under(caps.iter());
    let limit = |(index, cap): (usize, &Cap<'_>)| {
        let place = order.iter().position(|(bound, _)| *bound == index);
        let target = place.and_then(|place| target(order, place, total));
        recommender.limit(cap, mix.iops_under_one(cap), target)
    };
    caps.iter().enumerate().map(limit).collect()
}

/// IOPS that lifting the limit at `place` and its equals can reach. `None` for limits
/// after the next limit and its equals.
fn target(order: &[(usize, f64)], place: usize, total: f64) -> Option<f64> {
    let level = |place: usize| if place == 0 { total } else { order[place - 1].1 };
    let same = |a: f64, b: f64| a <= b * (1.0 + SAME);
    if place > 1 && !same(level(place), level(1)) {
        return None;
    }
    let behind = order[place..].iter().map(|(_, gain)| *gain);
    Some(behind.clone().find(|gain| !same(*gain, level(place))).unwrap_or(f64::INFINITY))
}

fn least(
    placement: &Placement<'_>,
    mix: &WorkloadMix,
    binding: &PredictedLimit,
    next: Option<&PredictedLimit>,
) -> Confidence {
    let rule = placement.mixing_rule(mix);
    let rule = rule.map(|rule| placement.catalog.confidence_of(&rule.source, rule.confidence));
    let worst = binding.confidence.max(next.map_or(Confidence::A, |next| next.confidence));
    let worst = worst.max(rule.unwrap_or(Confidence::A));
    // The prediction assumes that an unknown limit does not bind.
    if placement.unknown_limits(mix).is_empty() { worst } else { Confidence::C }
}

fn used<'a>(
    placement: &Placement<'a>,
    mix: &WorkloadMix,
    limits: &[PredictedLimit],
    caps: &[Cap<'a>],
    cost: &Result<crate::prediction::Cost, crate::price::NoPrice>,
) -> Vec<(&'a SourceKeys, Option<Confidence>)> {
    let mut uses: Vec<(&SourceKeys, Option<Confidence>)> = Vec::new();
    for limit in limits {
        let same = caps.iter().find(|cap| cap.kind == limit.kind && *cap.source == limit.sources);
        uses.extend(same.map(|cap| (cap.source, cap.confidence)));
    }
    let rule = placement.mixing_rule(mix);
    uses.extend(rule.map(|rule| (&rule.source, rule.confidence)));
    let family = placement.catalog.families.get(&placement.machine.family);
    let local = family.and_then(|family| family.local_ssd.as_ref());
    let local = local.filter(|_| placement.size_each().is_some());
    uses.extend(local.map(|local| (&local.source, local.confidence)));
    let price = placement.price().filter(|_| cost.is_ok());
    uses.extend(price.map(|price| (&price.source, price.confidence)));
    uses
}

/// Enforced limits, for all disks together.
pub(crate) fn ceilings(placement: &Placement<'_>, demand: &Demand) -> Ceilings {
    // The smallest block has no limit by block size; the others are listed.
    let caps = placement.hard_caps(demand, crate::limits::MIN_BLOCK_BYTES);
    let units = &placement.catalog.units;
    let under = |dimension, of: fn(&Cap<'_>) -> Option<f64>| {
        let found = caps.iter().filter(|cap| cap.dimension == dimension).filter_map(of);
        found.min_by(f64::total_cmp)
    };
    let bytes = |throughput: f64| throughput * units.throughput_bytes() as f64;
    let write_iops = under(Dimension::Iops, |cap| cap.write);
    let by_block =
        placement.volume_limits().map_or(&[][..], |part| &part.write_iops_max_by_block[..]);
    let (iops_sharing, throughput_sharing) = placement.sharing();
    Ceilings {
        read_iops: under(Dimension::Iops, |cap| cap.read),
        write_iops,
        write_iops_by_block: by_block
            .iter()
            .map(|row| {
                let block_bytes = (row.block_kb_max * units.block_bytes as f64) as u64;
                (block_bytes, write_iops.map_or(row.iops, |most| most.min(row.iops)))
            })
            .collect(),
        read_bytes_per_s: under(Dimension::Throughput, |cap| cap.read).map(bytes),
        write_bytes_per_s: under(Dimension::Throughput, |cap| cap.write).map(bytes),
        iops_sharing,
        throughput_sharing,
        sharing_known: placement.disk.mixing.is_some(),
        service_us: placement.service_us(),
    }
}

impl std::fmt::Display for LimitKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            LimitKind::Volume => "volume",
            LimitKind::Vm => "machine",
            LimitKind::SharedDisks => "machine, shared by its disks",
            LimitKind::Egress => "network egress",
            LimitKind::BlockSize => "block size",
            LimitKind::QueueDepth => "queue depth",
            LimitKind::Cpu => "CPU",
        })
    }
}
