//! Limits of a configuration as numbers: hard limits, which the cloud enforces, and soft limits of
//! the workload (queue depth and CPU).

use crate::catalog::{Confidence, LimitKind, Rounding, SourceKeys, VmRow, VolumeLimits};
use crate::input::Workload;
use crate::mix::WorkloadMix;
use crate::placement::{Demand, Placement};
use crate::prediction::Dimension;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cap<'a> {
    pub kind: LimitKind,
    /// Unit of `read` and `write`.
    pub dimension: Dimension,
    /// Limit of reads; `None` if it does not limit them.
    pub read: Option<f64>,
    /// Limit of writes; `None` if it does not limit them.
    pub write: Option<f64>,
    /// Reads and writes share one budget, whatever the type's rule.
    pub together: bool,
    /// A limit of the workload, which the cloud does not enforce.
    pub(crate) soft: bool,
    pub source: &'a SourceKeys,
    /// Confidence of the table, if it has its own.
    pub confidence: Option<Confidence>,
}

/// Choice between the two figures of the queue depth rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QueueFigure {
    Low,
    High,
}

impl<'a> Cap<'a> {
    /// A limit that the cloud enforces, shared by the type's rule.
    fn hard(
        kind: LimitKind,
        dimension: Dimension,
        [read, write]: [Option<f64>; 2],
        (source, confidence): Basis<'a>,
    ) -> Cap<'a> {
        Cap { kind, dimension, read, write, together: false, soft: false, source, confidence }
    }

    /// IOPS that reads and writes of the workload share.
    fn soft(kind: LimitKind, iops: [f64; 2], basis: Basis<'a>) -> Cap<'a> {
        let cap = Cap::hard(kind, Dimension::Iops, iops.map(Some), basis);
        Cap { together: true, soft: true, ..cap }
    }

    fn limits_any(&self) -> bool {
        self.read.is_some() || self.write.is_some()
    }
}

type Basis<'a> = (&'a SourceKeys, Option<Confidence>);

/// Limits by size in one dimension; reads, then writes.
pub(crate) struct VolumeRule {
    pub(crate) baseline: f64,
    /// Per unit of size.
    pub(crate) rates: [Option<f64>; 2],
    pub(crate) most: [Option<f64>; 2],
}

impl VolumeLimits {
    pub(crate) fn rule(&self, dimension: Dimension) -> VolumeRule {
        match dimension {
            Dimension::Iops => VolumeRule {
                baseline: self.baseline_iops,
                rates: [self.read_iops_per_gb, self.write_iops_per_gb],
                most: [self.read_iops_max, self.write_iops_max],
            },
            Dimension::Throughput => VolumeRule {
                baseline: self.baseline_mb_per_s,
                rates: [self.read_mb_per_s_per_gb, self.write_mb_per_s_per_gb],
                most: [self.read_mb_per_s_max, self.write_mb_per_s_max],
            },
        }
    }
}

impl<'a> Placement<'a> {
    /// Limits that the cloud enforces, for one block size.
    pub fn hard_caps(&self, demand: &Demand, block_bytes: u64) -> Vec<Cap<'a>> {
        let mut caps = self.disk_caps(demand, block_bytes);
        if let Some((table, row)) = self.vm {
            let kind = match demand.disks {
                1 => LimitKind::Vm,
                _ => LimitKind::SharedDisks,
            };
            let source = row.source.as_ref().unwrap_or(&table.source);
            let own = if row.source.is_some() { None } else { table.confidence };
            caps.extend(vm_caps(row, kind, (source, row.confidence.or(own))));
        }
        caps.extend(self.egress_cap());
        caps
    }

    pub(crate) fn disk_caps(&self, demand: &Demand, block_bytes: u64) -> Vec<Cap<'a>> {
        let mut caps = Vec::with_capacity(8);
        let disks = f64::from(demand.disks);
        if let Some(limits) = self.volume_limits() {
            let block = self.catalog.units.block_of(block_bytes);
            caps.extend(volume_caps(limits, demand.size * disks, block));
        }
        if let Some(part) = &self.disk.provisioned {
            let bought =
                [(Dimension::Iops, demand.iops), (Dimension::Throughput, demand.throughput)];
            let basis = (&part.source, part.confidence);
            let cap = |(dimension, each): (_, Option<f64>)| {
                let most = each.map(|each| each * disks);
                Cap::hard(LimitKind::Volume, dimension, [most; 2], basis)
            };
            caps.extend(bought.map(cap).into_iter().filter(Cap::limits_any));
        }
        if let Some((table, row)) = self.count_row(demand.disks) {
            let limits = [
                (Dimension::Iops, [row.read_iops, row.write_iops]),
                (Dimension::Throughput, [row.read_mb_per_s, row.write_mb_per_s]),
            ];
            let basis = (&table.source, table.confidence);
            let cap = |(dimension, each)| Cap::hard(LimitKind::Volume, dimension, each, basis);
            caps.extend(limits.map(cap).into_iter().filter(Cap::limits_any));
        }
        caps
    }

    /// Limits of the workload: queue depth and CPU.
    pub(crate) fn soft_caps(&self, workload: &Workload, figure: QueueFigure) -> Vec<Cap<'a>> {
        let mut caps = Vec::with_capacity(2);
        if let (Some(in_flight), Some(queue)) = (workload.in_flight(), &self.disk.queue) {
            let each = match figure {
                QueueFigure::Low => queue.iops_per_io_low,
                QueueFigure::High => queue.iops_per_io_high.unwrap_or(queue.iops_per_io_low),
            };
            let most = in_flight as f64 * each;
            let basis = (&queue.source, queue.confidence);
            caps.push(Cap::soft(LimitKind::QueueDepth, [most; 2], basis));
        }
        if let (Some(cpu), Some(vcpus)) = (self.cpu(), self.machine.vcpus) {
            let most = [cpu.read_iops_per_vcpu, cpu.write_iops_per_vcpu]
                .map(|each| f64::from(vcpus) * each);
            caps.push(Cap::soft(LimitKind::Cpu, most, (&cpu.source, cpu.confidence)));
        }
        caps
    }

    /// Write throughput under the egress limit, in the catalog's unit.
    pub(crate) fn egress_cap(&self) -> Option<Cap<'a>> {
        let egress = self.catalog.egress.as_ref().filter(|_| self.disk.uses_egress)?;
        let most = self.egress_throughput(self.egress_gbit_per_s?, self.other_egress_gbit_per_s);
        let basis = (&egress.source, egress.confidence);
        Some(Cap::hard(LimitKind::Egress, Dimension::Throughput, [None, Some(most)], basis))
    }

    /// Write throughput, in the catalog's unit, with an egress of `gbit` and `other` Gbit/s of
    /// other traffic. Rounds like its source.
    pub(crate) fn egress_throughput(&self, gbit: f64, other: f64) -> f64 {
        let Some(egress) = &self.catalog.egress else { return f64::INFINITY };
        let left = (gbit - other).max(egress.disk_share * gbit);
        let multiplier = match self.regional {
            true => egress.multiplier_regional,
            false => egress.multiplier_zonal,
        };
        let own = left * egress.throughput_per_gbit / multiplier;
        let rounded = match egress.rounding {
            Rounding::Floor => floor(own),
            Rounding::Nearest => own.round(),
            Rounding::None => own,
        };
        rounded * self.egress_unit()
    }

    /// Catalog throughput units in one unit of the egress rule.
    pub(crate) fn egress_unit(&self) -> f64 {
        let own = self.catalog.units.throughput_bytes() as f64;
        self.catalog.egress.as_ref().map_or(1.0, |egress| egress.throughput_bytes as f64 / own)
    }
}

/// A limit that exists, and that no source of the catalog gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnknownLimit {
    /// Of a disk by its size.
    Disk(Dimension),
    /// Of the machine for all disks of the type.
    Machine(Dimension),
    /// Of the machine's network, which bounds writes of the type.
    Egress,
}

impl UnknownLimit {
    pub(crate) fn dimension(self) -> Dimension {
        match self {
            UnknownLimit::Disk(dimension) | UnknownLimit::Machine(dimension) => dimension,
            UnknownLimit::Egress => Dimension::Throughput,
        }
    }
}

const DIMENSIONS: [Dimension; 2] = [Dimension::Iops, Dimension::Throughput];

impl Placement<'_> {
    /// Limits of a mix that are not known. A type that sells performance may leave throughput to
    /// the machine; the absence of the machine's whole row is reported apart.
    pub(crate) fn unknown_limits(&self, mix: &WorkloadMix) -> Vec<UnknownLimit> {
        let lacks =
            |[read, write]: [bool; 2]| (mix.read > 0.0 && !read) || (mix.write > 0.0 && !write);
        let mut out = Vec::new();
        if let Some(limits) = self.volume_limits() {
            let is_known = |dimension| {
                let VolumeRule { rates, most, .. } = limits.rule(dimension);
                let by_block =
                    dimension == Dimension::Iops && !limits.write_iops_max_by_block.is_empty();
                let [read, write] = [0, 1].map(|at| rates[at].is_some() || most[at].is_some());
                [read, write || by_block]
            };
            let unknown = DIMENSIONS.into_iter().filter(|dimension| lacks(is_known(*dimension)));
            out.extend(unknown.map(UnknownLimit::Disk));
        }
        if let Some((_, row)) = self.vm {
            let is_known = |dimension| match dimension {
                Dimension::Iops => {
                    [row.read_iops, row.write_iops].map(|each| row.iops.or(each).is_some())
                }
                Dimension::Throughput => [row.read_mb_per_s, row.write_mb_per_s]
                    .map(|each| row.mb_per_s.or(each).is_some()),
            };
            let unknown = DIMENSIONS.into_iter().filter(|dimension| lacks(is_known(*dimension)));
            out.extend(unknown.map(UnknownLimit::Machine));
        }
        if mix.write > 0.0 && self.disk.uses_egress && self.egress_gbit_per_s.is_none() {
            out.push(UnknownLimit::Egress);
        }
        out
    }
}

/// Rounds down, with a tolerance for binary fractions (0.12 × 1,500 is 180).
pub(crate) fn floor(number: f64) -> f64 {
    (number * (1.0 + 4.0 * f64::EPSILON)).floor()
}

/// `min(baseline + rate × size, most)`; `None` without a rate and a maximum.
fn by_size(baseline: f64, rate: Option<f64>, size: f64, most: Option<f64>) -> Option<f64> {
    let scaled = rate.map(|rate| baseline + rate * size);
    match (scaled, most) {
        (Some(scaled), Some(most)) => Some(scaled.min(most)),
        (scaled, most) => scaled.or(most),
    }
}

/// The limits by size. `size` is the total of all disks.
pub(crate) fn volume_caps(limits: &VolumeLimits, size: f64, block: f64) -> Vec<Cap<'_>> {
    let basis = (&limits.source, limits.confidence);
    let blocks = &limits.write_iops_max_by_block;
    let first = blocks.first().map(|first| first.iops);
    let mut caps = Vec::with_capacity(3);
    for dimension in [Dimension::Iops, Dimension::Throughput] {
        let VolumeRule { baseline, rates: [read, write], most } = limits.rule(dimension);
        let write_most = most[1].or(first.filter(|_| dimension == Dimension::Iops));
        let each =
            [by_size(baseline, read, size, most[0]), by_size(baseline, write, size, write_most)];
        caps.push(Cap::hard(LimitKind::Volume, dimension, each, basis));
    }
    if let (Some(first), Some(last)) = (blocks.first(), blocks.last())
        && block > first.block_kb_max
    {
        let row = blocks.iter().find(|row| block <= row.block_kb_max).unwrap_or(last);
        let most = [None, Some(row.iops)];
        caps.push(Cap::hard(LimitKind::BlockSize, Dimension::Iops, most, basis));
    }
    caps
}

pub(crate) fn vm_caps<'a>(
    row: &'a VmRow,
    kind: LimitKind,
    basis: Basis<'a>,
) -> impl Iterator<Item = Cap<'a>> {
    let limits = [
        (Dimension::Iops, row.iops, [row.read_iops, row.write_iops]),
        (Dimension::Throughput, row.mb_per_s, [row.read_mb_per_s, row.write_mb_per_s]),
    ];
    let cap = move |(dimension, both, each): (_, Option<f64>, [Option<f64>; 2])| {
        let cap = Cap::hard(kind, dimension, each.map(|each| both.or(each)), basis);
        Cap { together: both.is_some(), ..cap }
    };
    limits.into_iter().map(cap).filter(Cap::limits_any)
}
