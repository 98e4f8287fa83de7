//! What decides: why a configuration is no cheaper, and why cheaper ones are not enough.

use crate::catalogue::Catalogue;
use crate::cheapest::fit::{Fit, caps, carries};
use crate::cheapest::need::{Load, Need, Scope, What};
use crate::cheapest::{Candidate, Cheaper, site};
use crate::describe;
use crate::input::{Machine, Workload};
use crate::predict::binding_order;
use crate::prediction::Cost;
use crate::site::{Demand, Site};

/// A price that is lower by more than rounding.
fn is_less(usd: f64, than: f64) -> bool {
    usd < than - 1e-6
}

/// The needs without which fewer, smaller or slower disks of the type would do, for less.
pub(super) fn decided_by(site: &Site<'_>, cost: &Cost, need: &Need, disks_max: u32) -> Vec<What> {
    let capacity = site.catalogue.units.size_of(need.capacity_bytes);
    let without = |what: What| {
        let mut loads = need.loads(site);
        loads.retain(|load| load.what != what);
        let capacity = if what == What::Capacity { 0.0 } else { capacity };
        let Ok(fit) = Fit::new(site, loads, capacity) else { return false };
        let costs = (1..=disks_max).filter_map(|disks| site.cost(&fit.with(disks).ok()?).ok());
        costs.into_iter().any(|less| is_less(less.usd_per_month, cost.usd_per_month))
    };
    [What::Capacity, What::Iops, What::Throughput]
        .into_iter()
        .filter(|what| without(*what))
        .collect()
}

/// Of each type that would be cheaper than the best if the capacity alone counted: what it lacks.
pub(super) fn cheaper(
    catalogue: &Catalogue,
    need: &Need,
    scope: &Scope,
    kinds: &[&str],
    machines: &[Machine],
    all: &[Candidate<'_>],
) -> Vec<Cheaper> {
    let best = all.first();
    let bound = best.map_or(f64::INFINITY, |best| best.cost.usd_per_month);
    let mut out: Vec<Cheaper> = Vec::new();
    for kind in kinds {
        let sites =
            machines.iter().filter_map(|machine| site(catalogue, kind, machine, scope).ok());
        // What one machine lacks another may have: the one that is best at it speaks for the type.
        let lacking = sites.filter_map(|site| lacking(&site, need, scope, bound));
        let part = |c: &Cheaper| c.has_iops / c.needs_iops;
        let best = lacking.max_by(|a, b| part(a).total_cmp(&part(b)));
        let enough = all.iter().find(|candidate| candidate.site.kind == *kind);
        let enough_usd_per_month = enough.map(|candidate| candidate.cost.usd_per_month);
        out.extend(best.map(|cheaper| Cheaper { enough_usd_per_month, ..cheaper }));
    }
    out.sort_by(|a, b| a.usd_per_month.total_cmp(&b.usd_per_month).then(a.kind.cmp(&b.kind)));
    out
}

/// The disks that the capacity alone needs, if they cost less than `bound` and lack something.
fn lacking(site: &Site<'_>, need: &Need, scope: &Scope, bound: f64) -> Option<Cheaper> {
    let capacity = site.catalogue.units.size_of(need.capacity_bytes);
    let fit = Fit::new(site, Vec::new(), capacity).ok()?;
    let demand = (1..=scope.disks_max).find_map(|disks| fit.with(disks).ok())?;
    let cost = site.cost(&demand).ok().filter(|cost| is_less(cost.usd_per_month, bound))?;
    let (load, has) = need
        .loads(site)
        .into_iter()
        .map(|load| (load, carries(site, &demand, &load)))
        .min_by(|(a, has_a), (b, has_b)| (has_a / a.iops).total_cmp(&(has_b / b.iops)))
        .filter(|(load, has)| is_less(*has, load.iops))?;
    Some(Cheaper {
        kind: site.kind.to_owned(),
        disks: demand.disks,
        size: demand.size,
        usd_per_month: cost.usd_per_month,
        lacks: load.what,
        has_iops: has,
        needs_iops: load.iops,
        because: because(site, &demand, &load),
        enough_usd_per_month: None,
    })
}

/// The limit that binds the load, in words.
fn because(site: &Site<'_>, demand: &Demand, load: &Load) -> String {
    let caps = caps(site, demand, load);
    let read_percent = (load.mix.read * 100.0).round() as u8;
    let workload = Workload::random(load.block_bytes, read_percent);
    match binding_order(&load.mix, &caps, 1).first() {
        Some((index, _)) => describe::because(site, demand, &workload, &caps[*index]),
        None => "not known".to_owned(),
    }
}
