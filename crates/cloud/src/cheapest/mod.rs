//! The cheapest disks and machines that carry what is needed, of all that there are.
//!
//! Exact, not heuristic: every type, machine and number of disks is tried, each with the least that
//! is enough of it (`fit` says why the least is the cheapest). Of types whose limits follow the size
//! of all disks together, the smallest number of disks is: more of them are never cheaper, as limits
//! and price depend on the sum alone.

mod fit;
mod machines;
mod near;
mod need;
mod prices;

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

pub use need::{Need, Scope, What};
pub use prices::Prices;

use crate::catalogue::{Catalogue, Confidence};
use crate::input::{Machine, PlanError};
use crate::prediction::{Cost, SourceUse};
use crate::site::{Demand, Site};
use fit::{Fit, carries};

/// What was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Answer {
    /// The catalogue's name.
    pub catalogue: String,
    /// What was asked.
    pub need: Need,
    /// What was asked.
    pub scope: Scope,
    /// Unit of sizes.
    pub size_unit: &'static str,
    /// Unit of throughput.
    pub throughput_unit: &'static str,
    /// Whether machines are in the prices.
    pub machines_priced: bool,
    /// Combinations of type, machine and number of disks that were tried.
    pub tried: u64,
    /// The cheapest first.
    pub found: Vec<Found>,
    /// Types that would be cheaper than the first of `found` if the capacity alone were needed, and
    /// what they lack.
    pub cheaper: Vec<Cheaper>,
    /// What could not be taken into account, as the sources do not say.
    pub not_known: Vec<String>,
    /// What it rests on.
    pub sources: Vec<SourceUse>,
}

/// Disks and a machine that are enough.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Found {
    /// Type of the disks.
    #[serde(rename = "type")]
    pub kind: String,
    /// How many, striped.
    pub disks: u32,
    /// Size of each.
    pub size: f64,
    /// IOPS bought for each, of types that sell them.
    pub iops: Option<f64>,
    /// Throughput bought for each, of types that sell it.
    pub throughput: Option<f64>,
    /// Whether they are replicated in two zones.
    pub regional: bool,
    /// The smallest machine, or the cheapest where machines are priced.
    pub machine: Machine,
    /// The smallest of each other family, where machines are not priced.
    pub or_machines: Vec<String>,
    /// What the disks cost.
    pub cost: Cost,
    /// What the machine costs, in USD a month.
    pub usd_machine: Option<f64>,
    /// All of it, in USD a month.
    pub usd_per_month: f64,
    /// USD a month for each IOPS that is needed.
    pub usd_per_iops: Option<f64>,
    /// How much more than is needed, in percent, of each thing that is needed.
    pub headroom: Vec<Headroom>,
    /// What is needed without which it would be cheaper.
    pub decided_by: Vec<What>,
    /// Whether the provider has to be asked first.
    pub by_request: bool,
    /// Configurations that this one stands for, where each type was asked for once.
    pub others: Option<Others>,
    /// The least of what it rests on.
    pub confidence: Confidence,
}

/// Configurations that differ from a cheaper one in the number of disks, and in the size and the
/// performance that go with it, and in nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Others {
    /// How many.
    pub count: u32,
    /// The smallest number of disks of one of them.
    pub disks_min: u32,
    /// The largest number of disks of one of them.
    pub disks_max: u32,
    /// What the dearest costs, in USD a month.
    pub usd_per_month_max: f64,
}

/// How much more than is needed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Headroom {
    /// Of what.
    pub of: What,
    /// Whether the load is of reads (100), of writes (0) or of both.
    pub read_percent: Option<f64>,
    /// In percent of what is needed.
    pub percent: f64,
}

/// A type that would be cheaper and is not enough.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cheaper {
    /// The type.
    #[serde(rename = "type")]
    pub kind: String,
    /// How many, with which the capacity is met.
    pub disks: u32,
    /// Size of each.
    pub size: f64,
    /// What they cost, in USD a month.
    pub usd_per_month: f64,
    /// What they lack.
    pub lacks: What,
    /// What they have of it, IOPS of the load.
    pub has_iops: f64,
    /// What is needed of it.
    pub needs_iops: f64,
    /// What limits them, in words.
    pub because: String,
    /// What enough of the type costs a month with its machine's smallest; none if nothing is.
    pub enough_usd_per_month: Option<f64>,
}

/// One of all: enough disks on a machine.
#[derive(Debug, Clone)]
struct Candidate<'a> {
    site: Site<'a>,
    demand: Demand,
    cost: Cost,
    usd_machine: Option<f64>,
}

impl Candidate<'_> {
    fn usd(&self) -> f64 {
        self.cost.usd_per_month + self.usd_machine.unwrap_or(0.0)
    }
}

impl Catalogue {
    /// The `most` cheapest configurations for a need. `prices` are of machines; the catalogue's own
    /// are of disks ([`Prices::apply`] puts others in their place).
    ///
    /// # Errors
    /// What was asked is wrong.
    pub fn cheapest(
        &self,
        need: &Need,
        scope: &Scope,
        prices: &Prices,
        most: usize,
    ) -> Result<Answer, PlanError> {
        self.search(need, scope, prices, most, false)
    }

    /// As [`Catalogue::cheapest`], but of configurations that differ in the number of disks alone,
    /// and in what follows from it, the cheapest stands for all ([`Found::others`]).
    ///
    /// # Errors
    /// As [`Catalogue::cheapest`].
    pub fn cheapest_distinct(
        &self,
        need: &Need,
        scope: &Scope,
        prices: &Prices,
        most: usize,
    ) -> Result<Answer, PlanError> {
        self.search(need, scope, prices, most, true)
    }

    fn search(
        &self,
        need: &Need,
        scope: &Scope,
        prices: &Prices,
        most: usize,
        distinct: bool,
    ) -> Result<Answer, PlanError> {
        need.check(scope)?;
        let mut search = Search {
            catalogue: self,
            need,
            scope,
            prices,
            tried: 0,
            not_known: BTreeMap::new(),
            all: Vec::new(),
        };
        let machines = machines::machines(self, &scope.machines)?;
        let kinds = self.kinds(scope)?;
        for kind in &kinds {
            search.kind(kind, &machines);
        }
        let Search { tried, not_known, mut all, .. } = search;
        all.sort_by(|a, b| {
            let order = a.usd().total_cmp(&b.usd());
            let order = order.then(a.demand.disks.cmp(&b.demand.disks));
            order.then_with(|| {
                let of = |c: &Candidate<'_>| (c.site.kind.to_owned(), c.site.machine.vcpus);
                of(a).cmp(&of(b))
            })
        });
        let groups = grouped(&all, prices.has_machines());
        let rows = match distinct {
            true => one_of_each(groups, prices.has_machines()),
            false => groups.into_iter().map(|group| (group, None)).collect(),
        };
        let found: Vec<Found> = rows
            .into_iter()
            .take(most)
            .map(|(group, others)| Found { others, ..found(&group, need, scope) })
            .collect();
        let cheaper = near::cheaper(self, need, scope, &kinds, &machines, &all);
        let uses = found.iter().flat_map(|found| {
            let price = self.prices.iter().find(|price| price.kind == found.kind);
            let disk = self.types.get(&found.kind);
            price
                .map(|p| (&p.source, p.confidence))
                .into_iter()
                .chain(disk.map(|d| (&d.source, d.confidence)))
        });
        let sources = self.source_uses(uses);
        Ok(Answer {
            catalogue: self.name.clone(),
            need: need.clone(),
            scope: scope.clone(),
            size_unit: self.units.size.name(),
            throughput_unit: self.units.throughput.name(),
            machines_priced: prices.has_machines(),
            tried,
            found,
            cheaper,
            not_known: not_known
                .into_iter()
                .map(|(what, families)| match families.is_empty() {
                    true => what,
                    false => format!(
                        "{what} {}",
                        crate::input::listed(families.iter().map(String::as_str))
                    ),
                })
                .collect(),
            sources,
        })
    }

    /// The types that may be chosen.
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

/// Whether disks of a type are regional ones in a scope: a type that is always has no other limits.
fn is_regional(catalogue: &Catalogue, kind: &str, scope: &Scope) -> bool {
    scope.regional && catalogue.types.get(kind).is_some_and(|disk| disk.regional.is_some())
}

/// A type of disk on a machine, if it can be had and its limits are known.
fn site<'a>(
    catalogue: &'a Catalogue,
    kind: &str,
    machine: &Machine,
    scope: &Scope,
) -> Result<Site<'a>, Option<String>> {
    let regional = is_regional(catalogue, kind, scope);
    let tier1 = scope.tier1 && catalogue.egress_of(machine, true).is_some();
    let site = Site::new(catalogue, kind, machine, regional, scope.network_gbit_per_s, tier1);
    let site = site.map_err(|_| None)?;
    let has_tables = catalogue.per_vm.iter().any(|t| t.types.iter().any(|known| known == kind));
    if site.vm.is_none() && has_tables && site.size_each().is_none() {
        return Err(Some(format!("limits of {kind}, so that they are left out, of machines of")));
    }
    Ok(site)
}

struct Search<'s, 'a> {
    catalogue: &'a Catalogue,
    need: &'s Need,
    scope: &'s Scope,
    prices: &'s Prices,
    tried: u64,
    /// What is not known, and of which families.
    not_known: BTreeMap<String, BTreeSet<String>>,
    all: Vec<Candidate<'a>>,
}

/// What of a machine matters for a type: its row, its egress, and its vCPUs where CPUs limit.
type Signature = (Option<usize>, Option<u64>, Option<u32>);

impl<'a> Search<'_, 'a> {
    fn kind(&mut self, kind: &str, machines: &[Machine]) {
        let mut known: BTreeMap<Signature, Vec<(Demand, Cost)>> = BTreeMap::new();
        for machine in machines {
            let site = match site(self.catalogue, kind, machine, self.scope) {
                Ok(site) => site,
                Err(None) => continue,
                Err(Some(what)) => {
                    self.not_known.entry(what).or_default().insert(machine.family.clone());
                    continue;
                }
            };
            let usd_machine = self.prices.machine(&machine.name);
            if self.prices.has_machines() && usd_machine.is_none() {
                let what = "prices, so that they are left out, of machines of".to_owned();
                self.not_known.entry(what).or_default().insert(machine.family.clone());
                continue;
            }
            let key = (
                site.vm.map(|(_, row)| std::ptr::from_ref(row).addr()),
                site.egress_gbit_per_s.map(f64::to_bits),
                site.machine.vcpus.filter(|_| site.cpu().is_some()),
            );
            let local = site.size_each().is_some();
            let fits = match known.get(&key).filter(|_| !local) {
                Some(fits) => fits.clone(),
                None => self.fits(&site),
            };
            let candidates = fits.iter().map(|(demand, cost)| Candidate {
                site: site.clone(),
                demand: *demand,
                cost: cost.clone(),
                usd_machine,
            });
            self.all.extend(candidates);
            known.insert(key, fits);
        }
    }

    /// All numbers of disks that are enough, each with the least of each disk.
    fn fits(&mut self, site: &Site<'a>) -> Vec<(Demand, Cost)> {
        let mut out = Vec::new();
        let capacity = self.catalogue.units.size_of(self.need.capacity_bytes);
        let Ok(fit) = Fit::new(site, self.need.loads(site), capacity) else { return out };
        // The sum alone counts: see the module.
        let first_is_least = site.disk.provisioned.is_none() && site.size_each().is_none();
        for disks in 1..=self.scope.disks_max {
            self.tried += 1;
            let Ok(demand) = fit.with(disks) else { continue };
            match site.cost(&demand) {
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

/// Candidates that are one row to a reader, the cheapest groups first: where machines have prices,
/// each type, number of disks and family at its cheapest; else the same disks on whatever machine.
fn grouped<'c, 'a>(all: &'c [Candidate<'a>], priced: bool) -> Vec<Vec<&'c Candidate<'a>>> {
    let same = |a: &Candidate<'_>, b: &Candidate<'_>| {
        let disks = a.site.kind == b.site.kind && a.demand.disks == b.demand.disks;
        match priced {
            true => disks && a.site.machine.family == b.site.machine.family,
            false => disks && a.demand == b.demand,
        }
    };
    let mut groups: Vec<Vec<&Candidate<'a>>> = Vec::new();
    for candidate in all {
        match groups.iter_mut().find(|group| same(group[0], candidate)) {
            Some(group) => group.push(candidate),
            None => groups.push(vec![candidate]),
        }
    }
    groups
}

/// A row to a reader, and those that it stands for.
type Row<'c, 'a> = (Vec<&'c Candidate<'a>>, Option<Others>);

/// The cheapest group of each type (and family, where machines have prices), with those that it
/// stands for.
fn one_of_each<'c, 'a>(groups: Vec<Vec<&'c Candidate<'a>>>, priced: bool) -> Vec<Row<'c, 'a>> {
    let same = |a: &Candidate<'_>, b: &Candidate<'_>| {
        let family = a.site.machine.family == b.site.machine.family;
        a.site.kind == b.site.kind && (family || !priced)
    };
    let mut rows: Vec<Row<'c, 'a>> = Vec::new();
    for group in groups {
        let Some((_, others)) = rows.iter_mut().find(|(row, _)| same(row[0], group[0])) else {
            rows.push((group, None));
            continue;
        };
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

fn found(group: &[&Candidate<'_>], need: &Need, scope: &Scope) -> Found {
    let best = group[0];
    let Candidate { site, demand, cost, usd_machine } = best;
    let catalogue = site.catalogue;
    let mut or_machines: Vec<(&str, &str)> = Vec::new();
    for other in &group[1..] {
        let machine = &other.site.machine;
        let known = machine.family == site.machine.family
            || or_machines.iter().any(|(family, _)| *family == machine.family);
        if usd_machine.is_none() && !known {
            or_machines.push((&machine.family, &machine.name));
        }
    }
    let loads = need.loads(site);
    let capacity = catalogue.units.size_of(need.capacity_bytes);
    let mut headroom: Vec<Headroom> = loads
        .iter()
        .map(|load| Headroom {
            of: load.what,
            read_percent: Some(load.mix.read * 100.0),
            percent: (carries(site, demand, load) / load.iops - 1.0) * 100.0,
        })
        .collect();
    if capacity > 0.0 {
        let has = demand.size * f64::from(demand.disks);
        let percent = (has / capacity - 1.0) * 100.0;
        headroom.push(Headroom { of: What::Capacity, read_percent: None, percent });
    }
    let part = site.disk.provisioned.as_ref();
    let total = need.read_iops + need.write_iops;
    let table = site.vm.map(|(table, row)| {
        let source = row.source.as_ref().unwrap_or(&table.source);
        catalogue.confidence_of(source, row.confidence.or(table.confidence))
    });
    Found {
        kind: site.kind.to_owned(),
        disks: demand.disks,
        size: demand.size,
        iops: demand.iops.filter(|_| part.is_some_and(|part| part.iops_per_mb_per_s.is_none())),
        throughput: demand
            .throughput
            .filter(|_| part.is_some_and(|part| part.mb_per_s_per_iops.is_none())),
        regional: site.regional || site.disk.always_regional,
        machine: site.machine.clone(),
        or_machines: or_machines.into_iter().map(|(_, name)| name.to_owned()).collect(),
        cost: cost.clone(),
        usd_machine: *usd_machine,
        usd_per_month: best.usd(),
        usd_per_iops: (total > 0.0).then(|| best.usd() / total),
        headroom,
        decided_by: near::decided_by(site, cost, need, scope.disks_max),
        by_request: site.by_request,
        others: None,
        confidence: cost.confidence.max(table.unwrap_or(Confidence::A)),
    }
}
