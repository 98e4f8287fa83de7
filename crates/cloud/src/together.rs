//! Prediction of unlike disks that are used at once on one machine and share its limits.
//!
//! Each disk carries the same workload under its own limits. Disks of one type share what their
//! total size or number allows, all disks the limits of the machine, disks that use egress its
//! egress, and disks of the types that a CPU rule names its CPUs. Where a shared limit binds, all
//! of its disks slow down alike. Whether unlike types share one limit of the machine is in no
//! catalog, so one budget is assumed, the strictest rule.

use serde::Serialize;

use crate::caps::{Cap, QueueFigure, vm_caps};
use crate::catalog::{Catalog, LimitKind};
use crate::describe;
use crate::input::{DiskConfiguration, PlanError, Workload, listed};
use crate::mix::WorkloadMix;
use crate::placement::{Demand, Placement};
use crate::predict::SAME;
use crate::prediction::Rates;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JointPrediction {
    /// Disks of a type with one size are one entry, with their number.
    pub disks: Vec<JointDisk>,
    pub total: Rates,
    /// Shared limits that bind, in the order in which they were applied.
    pub binding: Vec<SharedLimit>,
    /// Gaps of the sources.
    pub not_known: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JointDisk {
    pub configuration: DiskConfiguration,
    /// Without the other disks on the machine: what [`Catalog::predict`] gives.
    pub own: Rates,
    pub together: Rates,
}

/// A limit that several disks share.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SharedLimit {
    pub kind: LimitKind,
    pub types: Vec<String>,
    /// IOPS of this workload that it allows all of them together.
    pub iops: f64,
}

struct Part<'a> {
    configuration: DiskConfiguration,
    placement: Placement<'a>,
    demand: Demand,
    mix: WorkloadMix,
    own_iops: f64,
    iops: f64,
}

impl Catalog {
    /// Predicts a workload on each of several disks of one machine, all at once.
    ///
    /// # Errors
    /// Those of [`Catalog::predict`], and disks that the machine does not take together.
    pub fn predict_together(
        &self,
        configurations: &[DiskConfiguration],
        workload: &Workload,
    ) -> Result<JointPrediction, PlanError> {
        workload.check()?;
        let mut parts = self
            .merged(configurations)
            .into_iter()
            .map(|configuration| self.part(configuration, workload))
            .collect::<Result<Vec<_>, _>>()?;
        check_fit_together(&parts)?;
        let mut shared = Shared { parts: &mut parts, binding: Vec::new() };
        shared.by_size(workload);
        shared.by_machine();
        shared.share(|part| Some(vec![part.placement.egress_cap()?]));
        shared.share(|part| {
            let mut caps = part.placement.soft_caps(workload, QueueFigure::Low);
            caps.retain(|cap| cap.kind == LimitKind::Cpu);
            Some(caps).filter(|caps| !caps.is_empty())
        });
        let binding = shared.still_binding();
        let rates = |iops: f64| Rates::of_blocks(workload.block_bytes, iops);
        Ok(JointPrediction {
            total: rates(parts.iter().map(|part| part.iops).sum()),
            binding,
            not_known: not_known(&parts, workload),
            disks: parts
                .into_iter()
                .map(|part| JointDisk {
                    own: rates(part.own_iops),
                    together: rates(part.iops),
                    configuration: part.configuration,
                })
                .collect(),
        })
    }

    /// The configurations, with disks of a type with one size as one: a machine takes only certain
    /// numbers of them.
    fn merged(&self, configurations: &[DiskConfiguration]) -> Vec<DiskConfiguration> {
        let mut out: Vec<DiskConfiguration> = Vec::new();
        for one in configurations {
            let each = self.types.get(&one.kind).is_some_and(|disk| disk.size_gb_each.is_some());
            let same = |other: &&mut DiskConfiguration| {
                each && DiskConfiguration { disks: one.disks, ..(**other).clone() } == *one
            };
            match out.iter_mut().find(same) {
                Some(other) => other.disks = other.disks.saturating_add(one.disks),
                None => out.push(one.clone()),
            }
        }
        out
    }

    fn part(
        &self,
        configuration: DiskConfiguration,
        workload: &Workload,
    ) -> Result<Part<'_>, PlanError> {
        let placement = Placement::of(self, &configuration)?;
        let demand = placement.demand(&configuration)?;
        let mix = WorkloadMix::new(workload, &self.units, placement.sharing());
        let mut caps = placement.hard_caps(&demand, workload.block_bytes);
        let known = mix.iops_under(caps.iter()).is_finite();
        caps.extend(placement.soft_caps(workload, QueueFigure::Low));
        let own_iops = mix.iops_under(caps.iter());
        match known {
            true => Ok(Part { configuration, placement, demand, mix, own_iops, iops: own_iops }),
            false => Err(placement.not_known()),
        }
    }
}

/// Refuses a total size or number of disks that the machine does not take.
fn check_fit_together(parts: &[Part<'_>]) -> Result<(), PlanError> {
    let of_one_size = |part: &&Part<'_>| part.placement.size_each().is_some();
    let count: u32 = parts.iter().filter(of_one_size).map(|part| part.demand.disks).sum();
    if parts.iter().filter(of_one_size).count() > 1 {
        parts.iter().filter(of_one_size).try_for_each(|part| part.placement.check_count(count))?;
    }
    let limited = |part: &&Part<'_>| part.placement.disk.size_gb_max_vm.is_some();
    let size = |part: &Part<'_>| part.demand.size * f64::from(part.demand.disks);
    let all: f64 = parts.iter().filter(limited).map(size).sum();
    parts.iter().try_for_each(|part| part.placement.check_all(all))
}

fn not_known(parts: &[Part<'_>], workload: &Workload) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    for part in parts {
        for line in describe::not_known(&part.placement, &part.mix, workload, None) {
            if !out.contains(&line) {
                out.push(line);
            }
        }
    }
    let with_limit = parts.iter().filter(|part| part.placement.vm.is_some());
    let types = types_of(with_limit);
    if types.len() > 1 {
        out.push(format!(
            "whether {} share the limit of {}: one budget is assumed, the strictest rule",
            listed(types.iter().map(String::as_str)),
            parts[0].placement.machine.name
        ));
    }
    out
}

fn types_of<'p, 'a: 'p>(parts: impl Iterator<Item = &'p Part<'a>>) -> Vec<String> {
    let mut types: Vec<String> = Vec::new();
    for part in parts {
        if !types.iter().any(|kind| kind == part.placement.kind) {
            types.push(part.placement.kind.to_owned());
        }
    }
    types
}

/// A shared limit that was applied, with the places of its disks.
struct Applied {
    limit: SharedLimit,
    places: Vec<usize>,
}

struct Shared<'p, 'a> {
    parts: &'p mut [Part<'a>],
    binding: Vec<Applied>,
}

impl<'a> Shared<'_, 'a> {
    /// Limits by the total size of a type, whose baseline counts once.
    fn by_size(&mut self, workload: &Workload) {
        for kind in types_of(self.parts.iter()) {
            let of_kind = |part: &&Part<'a>| {
                part.placement.kind == kind && part.placement.volume_limits().is_some()
            };
            let size = |part: &Part<'a>| part.demand.size * f64::from(part.demand.disks);
            let all: f64 = self.parts.iter().filter(of_kind).map(size).sum();
            self.share(|part| {
                let demand = Demand { size: all, disks: 1, ..part.demand };
                of_kind(&part).then(|| part.placement.disk_caps(&demand, workload.block_bytes))
            });
        }
    }

    /// Limits of the machine: each type uses up a part of its own, and together at most all.
    fn by_machine(&mut self) {
        let utilization = |part: &Part<'a>| {
            let (table, row) = part.placement.vm?;
            let source = row.source.as_ref().unwrap_or(&table.source);
            let caps: Vec<_> =
                vm_caps(row, LimitKind::SharedDisks, (source, row.confidence)).collect();
            Some(part.iops / part.mix.iops_under(caps.iter()))
        };
        let used: Vec<_> = self.parts.iter().map(utilization).collect();
        let all: f64 = used.iter().flatten().sum();
        let places = (0..used.len()).filter(|place| used[*place].is_some()).collect();
        self.slow_down(LimitKind::SharedDisks, places, 1.0 / all);
    }

    /// Slows the disks that have `caps` in common down to them.
    fn share(&mut self, caps: impl Fn(&Part<'a>) -> Option<Vec<Cap<'a>>>) {
        let of: Vec<Option<Vec<Cap<'_>>>> = self.parts.iter().map(caps).collect();
        let places: Vec<usize> = (0..of.len()).filter(|place| of[*place].is_some()).collect();
        let total: f64 = places.iter().map(|place| self.parts[*place].iops).sum();
        // The rules for mixed reads and writes may differ between types: the strictest counts.
        let limits = self.parts.iter().zip(&of).filter_map(|(part, caps)| {
            let caps = caps.as_ref()?;
            let one = |cap: &&Cap<'_>| part.mix.iops_under_one(cap);
            let lowest = caps.iter().min_by(|a, b| one(a).total_cmp(&one(b)))?;
            Some((part.mix.iops_under(caps.iter()), lowest.kind))
        });
        let Some((iops, kind)) = limits.min_by(|a, b| a.0.total_cmp(&b.0)) else { return };
        self.slow_down(kind, places, iops / total);
    }

    /// Slows disks down by `factor`, if it is below 1 and they are several.
    fn slow_down(&mut self, kind: LimitKind, places: Vec<usize>, factor: f64) {
        if places.len() < 2 || factor.is_nan() || factor >= 1.0 - SAME {
            return;
        }
        for place in &places {
            self.parts[*place].iops *= factor;
        }
        let iops = places.iter().map(|place| self.parts[*place].iops).sum();
        let types = types_of(places.iter().map(|place| &self.parts[*place]));
        self.binding.push(Applied { limit: SharedLimit { kind, types, iops }, places });
    }

    /// The applied limits whose disks no later limit slowed down further.
    fn still_binding(self) -> Vec<SharedLimit> {
        let parts = self.parts;
        let binds = |applied: &Applied| {
            let iops: f64 = applied.places.iter().map(|place| parts[*place].iops).sum();
            iops >= applied.limit.iops * (1.0 - SAME)
        };
        self.binding.into_iter().filter(binds).map(|applied| applied.limit).collect()
    }
}
