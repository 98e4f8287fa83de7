//! Prediction of unlike disks that are used at once on one machine and share its limits.
//!
//! Each disk carries the same workload under its own limits. The machine's limits for a type are
//! shared by the disks of that type, egress by all disks that use it, and CPUs by all disks of the
//! types that a CPU rule names. Where a shared limit binds, all of its disks slow down alike.

use serde::Serialize;

use crate::caps::{Cap, QueueFigure, vm_caps};
use crate::catalog::{Catalog, LimitKind};
use crate::input::{DiskConfiguration, PlanError, Workload};
use crate::mix::WorkloadMix;
use crate::placement::Placement;
use crate::prediction::Rates;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JointPrediction {
    pub disks: Vec<JointDisk>,
    pub total: Rates,
    /// Shared limits that bind, in the order in which they were applied.
    pub binding: Vec<SharedLimit>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JointDisk {
    pub configuration: DiskConfiguration,
    pub own: Rates,
    pub together: Rates,
}

/// A limit of the machine that several disks share.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SharedLimit {
    pub kind: LimitKind,
    pub types: Vec<String>,
    /// IOPS of this workload that it allows all of them together.
    pub iops: f64,
}

struct Part<'a> {
    placement: Placement<'a>,
    mix: WorkloadMix,
    own_iops: f64,
    iops: f64,
}

impl Catalog {
    /// Predicts a workload on each of several disks of one machine, all at once.
    pub fn predict_together(
        &self,
        configurations: &[DiskConfiguration],
        workload: &Workload,
    ) -> Result<JointPrediction, PlanError> {
        workload.check()?;
        let part = |configuration: &DiskConfiguration| {
            let placement = Placement::of(self, configuration)?;
            let demand = placement.demand(configuration)?;
            let mix = WorkloadMix::new(workload, &self.units, placement.sharing());
            let mut caps = placement.disk_caps(&demand, workload.block_bytes);
            let soft = placement.soft_caps(workload, QueueFigure::Low);
            caps.extend(soft.into_iter().filter(|cap| cap.kind == LimitKind::QueueDepth));
            let own_iops = mix.iops_under(caps.iter());
            match own_iops.is_finite() {
                true => Ok(Part { placement, mix, own_iops, iops: own_iops }),
                false => Err(placement.not_known()),
            }
        };
        let mut parts = configurations.iter().map(part).collect::<Result<Vec<_>, _>>()?;
        let mut binding = Vec::new();
        let mut kinds: Vec<&str> = parts.iter().map(|part| part.placement.kind).collect();
        kinds.sort_unstable();
        kinds.dedup();
        for kind in kinds {
            share(&mut parts, &mut binding, |placement| {
                let (table, row) = placement.vm.filter(|_| placement.kind == kind)?;
                let source = row.source.as_ref().unwrap_or(&table.source);
                let caps = vm_caps(row, LimitKind::SharedDisks, (source, row.confidence));
                Some(caps.collect())
            });
        }
        share(&mut parts, &mut binding, |placement| Some(vec![placement.egress_cap()?]));
        share(&mut parts, &mut binding, |placement| {
            let mut caps = placement.soft_caps(workload, QueueFigure::Low);
            caps.retain(|cap| cap.kind == LimitKind::Cpu);
            Some(caps).filter(|caps| !caps.is_empty())
        });
        let rates = |iops: f64| Rates::of_blocks(workload.block_bytes, iops);
        let disks = configurations.iter().zip(&parts).map(|(configuration, part)| JointDisk {
            configuration: configuration.clone(),
            own: rates(part.own_iops),
            together: rates(part.iops),
        });
        Ok(JointPrediction {
            disks: disks.collect(),
            total: rates(parts.iter().map(|part| part.iops).sum()),
            binding,
        })
    }
}

/// Slows the parts that have `caps` in common down to them.
fn share<'a>(
    parts: &mut [Part<'a>],
    binding: &mut Vec<SharedLimit>,
    caps: impl Fn(&Placement<'a>) -> Option<Vec<Cap<'a>>>,
) {
    let of: Vec<Option<Vec<Cap<'_>>>> = parts.iter().map(|part| caps(&part.placement)).collect();
    let total: f64 =
        parts.iter().zip(&of).filter(|(_, of)| of.is_some()).map(|(p, _)| p.iops).sum();
    // The rules for mixed reads and writes may differ between types: the strictest counts.
    let limits = parts.iter().zip(&of).filter_map(|(part, caps)| {
        let caps = caps.as_ref()?;
        Some((part.mix.iops_under(caps.iter()), caps.first()?.kind))
    });
    let Some((iops, kind)) = limits.min_by(|a, b| a.0.total_cmp(&b.0)) else { return };
    if total <= iops {
        return;
    }
    let mut types: Vec<String> = Vec::new();
    for (part, _) in parts.iter_mut().zip(&of).filter(|(_, of)| of.is_some()) {
        part.iops *= iops / total;
        if !types.iter().any(|kind| kind == part.placement.kind) {
            types.push(part.placement.kind.to_owned());
        }
    }
    binding.push(SharedLimit { kind, types, iops });
}
