//! Cheapest search: disks and machines that carry a need at the lowest price.
//!
//! The search is exact. It tries every type, machine and number of disks, each with the smallest
//! sufficient configuration (`fit` explains why that is the cheapest). For types whose limits
//! follow the total size, the smallest number of disks is sufficient: limits and price depend only
//! on the sum, so more disks are never cheaper.

mod fit;
mod machines;
mod near;
mod need;
mod prices;
mod shortfall;

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

pub use need::{Need, Requirement, Scope};
pub use prices::Prices;
pub use shortfall::Shortfall;

use crate::caps::UnknownLimit;
use crate::catalog::{Catalog, Confidence};
use crate::describe;
use crate::input::{Machine, PlanError, listed};
use crate::placement::{Demand, Placement};
use crate::prediction::{Cost, SourceUse};
use fit::{Fit, carries};
use need::RequiredLoad;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CheapestReport {
    pub catalog: String,
    pub need: Need,
    pub scope: Scope,
    pub size_unit: &'static str,
    pub throughput_unit: &'static str,
    pub machines_priced: bool,
    /// Number of combinations of type, machine and number of disks tried.
    pub tried: u64,
    pub found: Vec<CheapestPlan>,
    /// Why nothing was found; `None` if something was.
    pub shortfall: Option<Shortfall>,
    /// Types that would be cheaper than the first of `found` if only the capacity mattered, and
    /// their shortfall.
    pub cheaper: Vec<Cheaper>,
    /// Gaps of the sources that excluded candidates.
    pub not_known: Vec<String>,
    pub sources: Vec<SourceUse>,
}

/// Disks and a machine that carry the need.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CheapestPlan {
    #[serde(rename = "type")]
    pub kind: String,
    pub disks: u32,
    pub size: f64,
    /// IOPS bought for each disk, for types that sell them.
    pub iops: Option<f64>,
    /// Throughput bought for each disk, for types that sell it.
    pub throughput: Option<f64>,
    pub regional: bool,
    /// The smallest machine, or the cheapest where machines are priced.
    pub machine: Machine,
    /// The smallest machine of each other family, if machines have no prices.
    pub or_machines: Vec<String>,
    pub cost: Cost,
    pub usd_machine: Option<f64>,
    pub usd_per_month: f64,
    pub usd_per_iops: Option<f64>,
    /// Reserve in percent, for each part of the need.
    pub headroom: Vec<Headroom>,
    /// Parts of the need without which it would be cheaper.
    pub decided_by: Vec<Requirement>,
    /// The provider must approve the combination.
    pub by_request: bool,
    /// Configurations that this one represents, in a distinct search.
    pub others: Option<Others>,
    pub confidence: Confidence,
}

/// Configurations that differ from a cheaper one only in the number of disks and the resulting size
/// and performance.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Others {
    pub count: u32,
    pub disks_min: u32,
    pub disks_max: u32,
    pub usd_per_month_max: f64,
}

/// Reserve above the need.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Headroom {
    pub of: Requirement,
    /// Percentage of reads of the load: 100, 0 or a mix.
    pub read_percent: Option<f64>,
    pub percent: f64,
}

/// A cheaper type that does not carry the need.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cheaper {
    #[serde(rename = "type")]
    pub kind: String,
    /// Number of disks that meets the capacity.
    pub disks: u32,
    pub size: f64,
    pub usd_per_month: f64,
    pub lacks: Requirement,
    pub has_iops: f64,
    pub needs_iops: f64,
    pub explanation: String,
    /// Monthly price of a sufficient configuration of the type on its smallest machine; `None` if
    /// there is none.
    pub enough_usd_per_month: Option<f64>,
}

#[derive(Debug, Clone)]
struct PlanCandidate<'a> {
    placement: Placement<'a>,
    demand: Demand,
    cost: Cost,
    usd_machine: Option<f64>,
}

impl PlanCandidate<'_> {
    fn order(&self) -> (u32, &str, Option<u32>) {
        (self.demand.disks, self.placement.kind, self.placement.machine.vcpus)
    }

    fn usd(&self) -> f64 {
        self.cost.usd_per_month + self.usd_machine.unwrap_or(0.0)
    }
}

impl Catalog {
    /// The `most` cheapest configurations for a need. `prices` has the prices of machines; disk
    /// prices come from the catalog ([`Prices::apply`] replaces them). If `distinct`, the cheapest
    /// of configurations that differ only in the number of disks represents the others
    /// ([`CheapestPlan::others`]).
    pub fn cheapest(
        &self,
        need: &Need,
        scope: &Scope,
        prices: &Prices,
        (most, distinct): (usize, bool),
    ) -> Result<CheapestReport, PlanError> {
        need.check(scope)?;
        let machines = machines::machines(self, &scope.machines, prices)?;
        let kinds = self.kinds(scope)?;
        let search = |need: &Need| Search::run(self, need, (scope, prices), (&kinds, &machines));
        let Search { tried, not_known, all, .. } = search(need);
        let shortfall = all.is_empty().then(|| shortfall::of(need, scope, search));
        let groups = grouped(&all, prices.has_machines());
        let rows = match distinct {
            true => one_of_each(groups),
            false => groups.into_iter().map(|group| (group, None)).collect(),
        };
        let found: Vec<CheapestPlan> = rows
            .into_iter()
            .take(most)
            .map(|(group, others)| CheapestPlan { others, ..found(&group, need, scope) })
            .collect();
        let cheaper = near::cheaper(self, need, scope, &kinds, &machines, &all);
        let uses = found.iter().flat_map(|found| {
            let price = self.prices.iter().find(|price| price.kind == found.kind);
            let disk = self.types.get(&found.kind);
            [price.map(|p| (&p.source, p.confidence)), disk.map(|d| (&d.source, d.confidence))]
        });
        let sources = self.source_uses(uses.flatten());
        Ok(CheapestReport {
            catalog: self.name.clone(),
            need: need.clone(),
            scope: scope.clone(),
            size_unit: self.units.size.name(),
            throughput_unit: self.units.throughput.name(),
            machines_priced: prices.has_machines(),
            tried,
            found,
            shortfall,
            cheaper,
            not_known: not_known
                .into_iter()
                .map(|(what, left_out)| what + &left_out_text(&left_out, &machines))
                .collect(),
            sources,
        })
    }

    fn kinds(&self, scope: &Scope) -> Result<Vec<&str>, PlanError> {
        for name in &scope.types {
            self.disk_type(name)?;
        }
        let wanted = |name: &&String| scope.types.is_empty() || scope.types.contains(*name);
        let all = self.types.iter().filter(|(name, _)| wanted(name));
        Ok(all
            .filter(|(name, disk)| {
                let local = disk.size_gb_each.is_some()
                    || self.per_count.iter().any(|table| table.kind == **name);
                let zones = !scope.regional || disk.regional.is_some() || disk.always_regional;
                zones && (!local || scope.local_ssd)
            })
            .map(|(name, _)| name.as_str())
            .collect())
    }
}

/// Machines that a gap of the sources excluded, by family.
type LeftOut = BTreeMap<String, BTreeSet<String>>;

/// Machines of a family that are named; of more, their number is.
const MACHINES_NAMED: usize = 3;

/// Families without any other machine in the search, and the machines of the others.
fn left_out_text(left_out: &LeftOut, machines: &[Machine]) -> String {
    let tried = |family: &str| machines.iter().filter(|machine| machine.family == family).count();
    let (whole, part): (Vec<_>, Vec<_>) =
        left_out.iter().partition(|(family, names)| names.len() == tried(family.as_str()));
    let mut out = Vec::new();
    if !whole.is_empty() {
        let families = listed(whole.iter().map(|(family, _)| family.as_str()));
        out.push(format!("of machines of {families}"));
    }
    let some = |(family, names): &(&String, &BTreeSet<String>)| match names.len() {
        1..=MACHINES_NAMED => listed(names.iter().map(String::as_str)),
        many => format!("{many} machines of {family}"),
    };
    if !part.is_empty() {
        out.push(format!("of {}", part.iter().map(some).collect::<Vec<_>>().join(", ")));
    }
    match out.is_empty() {
        true => String::new(),
        false => format!(" {}", out.join(", and ")),
    }
}

/// Whether a scope selects regional disks of a type. An always regional type has no separate
/// limits.
fn is_regional(catalog: &Catalog, kind: &str, scope: &Scope) -> bool {
    scope.regional && catalog.types.get(kind).is_some_and(|disk| disk.regional.is_some())
}

/// A disk type on a machine, if the combination is available and its limits are known.
fn placement<'a>(
    catalog: &'a Catalog,
    kind: &str,
    machine: &Machine,
    scope: &Scope,
) -> Result<Placement<'a>, Option<String>> {
    let regional = is_regional(catalog, kind, scope);
    let tier1_networking = scope.tier1_networking && catalog.egress_of(machine, true).is_some();
    let placement = Placement::new(
        catalog,
        kind,
        machine,
        regional,
        scope.other_egress_gbit_per_s,
        tier1_networking,
    );
    let placement = placement.map_err(|_| None)?;
    let has_tables = catalog.per_vm.iter().any(|t| t.types.iter().any(|known| known == kind));
    if placement.vm.is_none() && has_tables && placement.size_each().is_none() {
        return Err(Some(format!("limits of {kind}, so that they are left out,")));
    }
    Ok(placement)
}

pub(super) struct Search<'s, 'a> {
    catalog: &'a Catalog,
    need: Need,
    scope: &'s Scope,
    prices: &'s Prices,
    tried: u64,
    /// Gaps of the sources, with the machines that they exclude.
    not_known: BTreeMap<String, LeftOut>,
    all: Vec<PlanCandidate<'a>>,
}

/// Subject of a gap of the sources.
enum GapOf {
    Disk,
    Machine,
}

/// The machine's properties that matter for a type: its row, its egress, and its vCPUs if the CPU
/// rule applies.
type Signature = (Option<usize>, Option<u64>, Option<u32>);

impl<'s, 'a> Search<'s, 'a> {
    /// Every sufficient configuration, the cheapest first.
    fn run(
        catalog: &'a Catalog,
        need: &Need,
        (scope, prices): (&'s Scope, &'s Prices),
        (kinds, machines): (&[&str], &[Machine]),
    ) -> Search<'s, 'a> {
        let need = need.clone();
        let (not_known, all) = (BTreeMap::new(), Vec::new());
        let mut search = Search { catalog, need, scope, prices, tried: 0, not_known, all };
        for kind in kinds {
            search.kind(kind, machines);
        }
        search
            .all
            .sort_by(|a, b| a.usd().total_cmp(&b.usd()).then_with(|| a.order().cmp(&b.order())));
        search
    }

    fn kind(&mut self, kind: &str, machines: &[Machine]) {
        let mut known: BTreeMap<Signature, Vec<(Demand, Cost)>> = BTreeMap::new();
        for machine in machines {
            let placement = match placement(self.catalog, kind, machine, self.scope) {
                Ok(placement) => placement,
                Err(None) => continue,
                Err(Some(what)) => {
                    self.leave_out(what, machine);
                    continue;
                }
            };
            if let Some((what, of)) = self.gap(&placement) {
                match of {
                    GapOf::Disk => drop(self.not_known.entry(what).or_default()),
                    GapOf::Machine => self.leave_out(what, machine),
                }
                continue;
            }
            let usd_machine = self.prices.machine(&machine.name);
            if self.prices.has_machines() && usd_machine.is_none() {
                self.leave_out("prices, so that they are left out,".to_owned(), machine);
                continue;
            }
            let key = (
                placement.vm.map(|(_, row)| std::ptr::from_ref(row).addr()),
                placement.egress_gbit_per_s.map(f64::to_bits),
                placement.machine.vcpus.filter(|_| placement.cpu().is_some()),
            );
            let local = placement.size_each().is_some();
            let fits = match known.get(&key).filter(|_| !local) {
                Some(fits) => fits.clone(),
                None => self.fits(&placement),
            };
            let candidates = fits.iter().map(|(demand, cost)| PlanCandidate {
                placement: placement.clone(),
                demand: *demand,
                cost: cost.clone(),
                usd_machine,
            });
            self.all.extend(candidates);
            known.insert(key, fits);
        }
    }

    /// A gap of the sources that leaves open whether a placement carries the need.
    fn gap(&self, placement: &Placement<'a>) -> Option<(String, GapOf)> {
        let loads = self.need.loads(placement);
        let find = |load: &RequiredLoad| {
            let unknown = placement.unknown_limits(&load.mix);
            unknown.into_iter().find(|limit| load.depends_on(limit.dimension(), placement))
        };
        let limit = loads.iter().find_map(find)?;
        let (what, kind) = (limit.dimension().name(), placement.kind);
        Some(match limit {
            UnknownLimit::Disk(_) => {
                let unknown = describe::unknown_limit(placement, &limit);
                (format!("{unknown}, so that it is left out"), GapOf::Disk)
            }
            UnknownLimit::Egress => {
                ("the network egress, so that they are left out,".to_owned(), GapOf::Machine)
            }
            UnknownLimit::Machine(_) => {
                (format!("{what} limits of {kind}, so that they are left out,"), GapOf::Machine)
            }
        })
    }

    fn leave_out(&mut self, what: String, machine: &Machine) {
        let families = self.not_known.entry(what).or_default();
        families.entry(machine.family.clone()).or_default().insert(machine.name.clone());
    }

    /// Every sufficient number of disks, with the smallest configuration of each disk.
    fn fits(&mut self, placement: &Placement<'a>) -> Vec<(Demand, Cost)> {
        let mut out = Vec::new();
        let capacity = self.catalog.units.size_of(self.need.capacity_bytes);
        let Ok(fit) = Fit::new(placement, self.need.loads(placement), capacity) else { return out };
        // Limits and price depend only on the total size.
        let first_is_least =
            placement.disk.provisioned.is_none() && placement.size_each().is_none();
        for disks in 1..=self.scope.disks_max {
            self.tried += 1;
            let Ok(demand) = fit.with(disks) else { continue };
            if demand.iops == Some(0.0) {
                let kind = placement.kind;
                let what = format!("the smallest IOPS of {kind}, so that it is left out");
                self.not_known.entry(what).or_default();
                break;
            }
            match placement.cost(&demand) {
                Ok(cost) => out.push((demand, cost)),
                Err(no_price) => {
                    self.not_known.entry(no_price.0).or_default();
                    break;
                }
            }
            if first_is_least {
                break;
            }
        }
        out
    }
}

/// Groups candidates that are one row to a reader, the cheapest groups first. With machine prices:
/// by type, number of disks and family. Without: the same disks on any machine.
fn grouped<'c, 'a>(all: &'c [PlanCandidate<'a>], priced: bool) -> Vec<Vec<&'c PlanCandidate<'a>>> {
    let same = |a: &PlanCandidate<'_>, b: &PlanCandidate<'_>| {
        let disks = a.placement.kind == b.placement.kind && a.demand.disks == b.demand.disks;
        match priced {
            true => disks && a.placement.machine.family == b.placement.machine.family,
            false => disks && a.demand == b.demand,
        }
    };
    let mut groups: Vec<Vec<&PlanCandidate<'a>>> = Vec::new();
    for candidate in all {
        match groups.iter_mut().find(|group| same(group[0], candidate)) {
            Some(group) => group.push(candidate),
            None => groups.push(vec![candidate]),
        }
    }
    groups
}

/// A row for the reader and the configurations that it represents.
type Row<'c, 'a> = (Vec<&'c PlanCandidate<'a>>, Option<Others>);

/// The cheapest configuration of each type and machine family, with the ones it represents. A
/// row whose disks fit machines of several families stands for all of them.
fn one_of_each<'c, 'a>(groups: Vec<Vec<&'c PlanCandidate<'a>>>) -> Vec<Row<'c, 'a>> {
    let same = |a: &PlanCandidate<'_>, b: &PlanCandidate<'_>| {
        a.placement.kind == b.placement.kind
            && a.placement.machine.family == b.placement.machine.family
    };
    let mut rows: Vec<Row<'c, 'a>> = Vec::new();
    for group in groups {
        let shown = |one: &PlanCandidate<'_>| {
            rows.iter().position(|(row, _)| row.iter().any(|other| same(one, other)))
        };
        let row = shown(group[0]);
        let new: Vec<_> = group.iter().copied().filter(|one| shown(one).is_none()).collect();
        if !new.is_empty() {
            rows.push((new, None));
            continue;
        }
        let Some((_, others)) = row.and_then(|row| rows.get_mut(row)) else { continue };
        let disks = group[0].demand.disks;
        let usd = group[0].usd();
        let before = others.unwrap_or(Others {
            count: 0,
            disks_min: disks,
            disks_max: disks,
            usd_per_month_max: usd,
        });
        *others = Some(Others {
            count: before.count + 1,
            disks_min: before.disks_min.min(disks),
            disks_max: before.disks_max.max(disks),
            usd_per_month_max: before.usd_per_month_max.max(usd),
        });
    }
    rows
}

fn found(group: &[&PlanCandidate<'_>], need: &Need, scope: &Scope) -> CheapestPlan {
    let best = group[0];
    let PlanCandidate { placement, demand, cost, usd_machine } = best;
    let catalog = placement.catalog;
    let mut or_machines: Vec<(&str, &str)> = Vec::new();
    for other in &group[1..] {
        let machine = &other.placement.machine;
        let known = machine.family == placement.machine.family
            || or_machines.iter().any(|(family, _)| *family == machine.family);
        if usd_machine.is_none() && !known {
            or_machines.push((&machine.family, &machine.name));
        }
    }
    let loads = need.loads(placement);
    let capacity = catalog.units.size_of(need.capacity_bytes);
    let mut headroom: Vec<Headroom> = loads
        .iter()
        .map(|load| Headroom {
            of: load.what,
            read_percent: Some(load.mix.read * 100.0),
            percent: (carries(placement, demand, load) / load.iops - 1.0) * 100.0,
        })
        .collect();
    if capacity > 0.0 {
        let has = demand.size * f64::from(demand.disks);
        let percent = (has / capacity - 1.0) * 100.0;
        headroom.push(Headroom { of: Requirement::Capacity, read_percent: None, percent });
    }
    let part = placement.disk.provisioned.as_ref();
    let total = need.read_iops + need.write_iops;
    let table = placement.vm.map(|(table, row)| {
        let source = row.source.as_ref().unwrap_or(&table.source);
        catalog.confidence_of(source, row.confidence.or(table.confidence))
    });
    let is_whole = loads.iter().all(|load| placement.unknown_limits(&load.mix).is_empty());
    let rules = if is_whole { table.unwrap_or(Confidence::A) } else { Confidence::C };
    CheapestPlan {
        kind: placement.kind.to_owned(),
        disks: demand.disks,
        size: demand.size,
        iops: demand.iops.filter(|_| part.is_some_and(|part| part.iops_per_mb_per_s.is_none())),
        throughput: demand
            .throughput
            .filter(|_| part.is_some_and(|part| part.mb_per_s_per_iops.is_none())),
        regional: placement.regional || placement.disk.always_regional,
        machine: placement.machine.clone(),
        or_machines: or_machines.into_iter().map(|(_, name)| name.to_owned()).collect(),
        cost: cost.clone(),
        usd_machine: *usd_machine,
        usd_per_month: best.usd(),
        usd_per_iops: (total > 0.0).then(|| best.usd() / total),
        headroom,
        decided_by: near::decided_by(placement, cost, need, scope.disks_max),
        by_request: placement.by_request,
        others: None,
        confidence: cost.confidence.max(rules),
    }
}
