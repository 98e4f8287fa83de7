//! Price drivers of a configuration, and the shortfall of cheaper types.

use crate::catalog::Catalog;
use crate::cheapest::fit::{Fit, caps, carries};
use crate::cheapest::need::{Need, RequiredLoad, Requirement, Scope};
use crate::cheapest::{Cheaper, PlanCandidate, placement};
use crate::describe;
use crate::input::{Machine, Workload};
use crate::placement::{Demand, Placement};
use crate::predict::binding_order;
use crate::prediction::Cost;

/// A price difference above rounding.
fn is_less(usd: f64, than: f64) -> bool {
    usd < than - 1e-6
}

/// Parts of the need without which fewer, smaller or slower disks of the type would be sufficient
/// and cheaper.
pub(super) fn decided_by(
    placement: &Placement<'_>,
    cost: &Cost,
    need: &Need,
    disks_max: u32,
) -> Vec<Requirement> {
    let capacity = placement.catalog.units.size_of(need.capacity_bytes);
    let without = |what: Requirement| {
        let mut loads = need.loads(placement);
        loads.retain(|load| load.what != what);
        let capacity = if what == Requirement::Capacity { 0.0 } else { capacity };
        let Ok(fit) = Fit::new(placement, loads, capacity) else { return false };
        let costs = (1..=disks_max).filter_map(|disks| placement.cost(&fit.with(disks).ok()?).ok());
        costs.into_iter().any(|less| is_less(less.usd_per_month, cost.usd_per_month))
    };
    [Requirement::Capacity, Requirement::Iops, Requirement::Throughput]
        .into_iter()
        .filter(|what| without(*what))
        .collect()
}

/// The shortfall of each type that would be cheaper than the best if only the capacity mattered.
pub(super) fn cheaper(
    catalog: &Catalog,
    need: &Need,
    scope: &Scope,
    kinds: &[&str],
    machines: &[Machine],
    all: &[PlanCandidate<'_>],
) -> Vec<Cheaper> {
    let best = all.first();
    let bound = best.map_or(f64::INFINITY, |best| best.cost.usd_per_month);
    let mut out: Vec<Cheaper> = Vec::new();
    for kind in kinds {
        let placements =
            machines.iter().filter_map(|machine| placement(catalog, kind, machine, scope).ok());
        // Machines differ in their shortfall; the best machine represents the type.
        let lacking = placements.filter_map(|placement| lacking(&placement, need, scope, bound));
        let part = |c: &Cheaper| c.has_iops / c.needs_iops;
        let best = lacking.max_by(|a, b| part(a).total_cmp(&part(b)));
        let enough = all.iter().find(|candidate| candidate.placement.kind == *kind);
        let enough_usd_per_month = enough.map(|candidate| candidate.cost.usd_per_month);
        out.extend(best.map(|cheaper| Cheaper { enough_usd_per_month, ..cheaper }));
    }
    out.sort_by(|a, b| a.usd_per_month.total_cmp(&b.usd_per_month).then(a.kind.cmp(&b.kind)));
    out
}

/// Disks for only the capacity, if they cost less than `bound` and fall short.
fn lacking(placement: &Placement<'_>, need: &Need, scope: &Scope, bound: f64) -> Option<Cheaper> {
    let capacity = placement.catalog.units.size_of(need.capacity_bytes);
    let fit = Fit::new(placement, Vec::new(), capacity).ok()?;
    let demand = (1..=scope.disks_max).find_map(|disks| fit.with(disks).ok())?;
    let cost = placement.cost(&demand).ok().filter(|cost| is_less(cost.usd_per_month, bound))?;
    let (load, has) = need
        .loads(placement)
        .into_iter()
        .map(|load| (load, carries(placement, &demand, &load)))
        .min_by(|(a, has_a), (b, has_b)| (has_a / a.iops).total_cmp(&(has_b / b.iops)))
        // A disk without IOPS is none: the fewest that can be bought are not known.
        .filter(|(load, has)| *has > 0.0 && is_less(*has, load.iops))?;
    Some(Cheaper {
        kind: placement.kind.to_owned(),
        disks: demand.disks,
        size: demand.size,
        usd_per_month: cost.usd_per_month,
        lacks: load.what,
        has_iops: has,
        needs_iops: load.iops,
        explanation: explanation(placement, &demand, &load),
        enough_usd_per_month: None,
    })
}

/// Explanation of the limit that binds the load.
fn explanation(placement: &Placement<'_>, demand: &Demand, load: &RequiredLoad) -> String {
    let caps = caps(placement, demand, load);
    let read_percent = (load.mix.read * 100.0).round() as u8;
    let workload = Workload::random(load.block_bytes, read_percent);
    match binding_order(&load.mix, &caps, 1).first() {
        Some((index, _)) => describe::explanation(placement, demand, &workload, &caps[*index]),
        None => "not known".to_owned(),
    }
}
