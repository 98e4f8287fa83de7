//! Limits of a configuration as numbers: hard limits, which the cloud enforces, and soft limits of
//! the workload (queue depth and CPU).

use crate::catalogue::{
    Confidence, CountRow, LimitKind, ProvisionedRule, Rounding, SourceKeys, VmRow, VolumeLimits,
};
use crate::input::Workload;
use crate::placement::{Demand, Placement};
use crate::prediction::Dimension;

/// One limit as numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cap<'a> {
    /// Kind of the limit.
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
    pub soft: bool,
    /// Keys of its sources.
    pub source: &'a SourceKeys,
    /// Confidence of the table, if it has its own.
    pub confidence: Option<Confidence>,
}

/// Choice between the two figures of the queue depth rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueFigure {
    /// The guaranteed figure.
    Low,
    /// The best case.
    High,
}

impl<'a> Placement<'a> {
    /// Limits that the cloud enforces, for one block size.
    pub fn hard_caps(&self, demand: &Demand, block_bytes: u64) -> Vec<Cap<'a>> {
        let mut caps = Vec::with_capacity(8);
        self.disk_caps(demand, block_bytes, &mut caps);
        if let Some((table, row)) = self.vm {
            let kind = match demand.disks {
                1 => LimitKind::Vm,
                _ => LimitKind::SharedDisks,
            };
            let source = row.source.as_ref().unwrap_or(&table.source);
            let own = if row.source.is_some() { None } else { table.confidence };
            vm_caps(row, kind, source, row.confidence.or(own), &mut caps);
        }
        self.egress_cap(&mut caps);
        caps
    }

    /// Limits of the disks without the machine's.
    pub(crate) fn disk_caps(&self, demand: &Demand, block_bytes: u64, caps: &mut Vec<Cap<'a>>) {
        if let Some(limits) = self.volume_limits() {
            let block = self.catalogue.units.block_of(block_bytes);
            volume_caps(limits, demand.size * f64::from(demand.disks), block, caps);
        }
        if let Some(part) = &self.disk.provisioned {
            provisioned_caps(part, demand, caps);
        }
        if let Some((table, row)) = self.count_row(demand.disks) {
            count_caps(row, &table.source, table.confidence, caps);
        }
    }

    /// Limits of the workload: queue depth and CPU.
    pub fn soft_caps(&self, workload: &Workload, figure: QueueFigure) -> Vec<Cap<'a>> {
        let mut caps = Vec::with_capacity(2);
        if let (Some(in_flight), Some(queue)) = (workload.in_flight(), &self.disk.queue) {
            let each = match figure {
                QueueFigure::Low => queue.iops_per_io_low,
                QueueFigure::High => queue.iops_per_io_high.unwrap_or(queue.iops_per_io_low),
            };
            let most = Some(in_flight as f64 * each);
            caps.push(Cap {
                kind: LimitKind::QueueDepth,
                dimension: Dimension::Iops,
                read: most,
                write: most,
                together: true,
                soft: true,
                source: &queue.source,
                confidence: queue.confidence,
            });
        }
        if let (Some(cpu), Some(vcpus)) = (self.cpu(), self.machine.vcpus) {
            caps.push(Cap {
                kind: LimitKind::Cpu,
                dimension: Dimension::Iops,
                read: Some(f64::from(vcpus) * cpu.read_iops_per_vcpu),
                write: Some(f64::from(vcpus) * cpu.write_iops_per_vcpu),
                together: true,
                soft: true,
                source: &cpu.source,
                confidence: cpu.confidence,
            });
        }
        caps
    }

    /// Write throughput under the egress limit, in the catalogue's unit.
    pub(crate) fn egress_cap(&self, caps: &mut Vec<Cap<'a>>) {
        let (Some(egress), Some(gbit)) = (&self.catalogue.egress, self.egress_gbit_per_s) else {
            return;
        };
        if !self.disk.uses_egress {
            return;
        }
        caps.push(Cap {
            kind: LimitKind::Egress,
            dimension: Dimension::Throughput,
            read: None,
            write: Some(self.egress_throughput(gbit, self.other_egress_gbit_per_s)),
            together: false,
            soft: false,
            source: &egress.source,
            confidence: egress.confidence,
        });
    }

    /// Write throughput, in the catalogue's unit, with an egress of `gbit` and `other` Gbit/s of
    /// other traffic. Rounds like its source.
    pub(crate) fn egress_throughput(&self, gbit: f64, other: f64) -> f64 {
        let Some(egress) = &self.catalogue.egress else { return f64::INFINITY };
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

    /// Catalogue throughput units in one unit of the egress rule.
    pub(crate) fn egress_unit(&self) -> f64 {
        let own = self.catalogue.units.throughput_bytes() as f64;
        self.catalogue.egress.as_ref().map_or(1.0, |egress| egress.throughput_bytes as f64 / own)
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

/// Adds the limits by size. `size` is the total of all disks.
pub(crate) fn volume_caps<'a>(
    limits: &'a VolumeLimits,
    size: f64,
    block: f64,
    caps: &mut Vec<Cap<'a>>,
) {
    let cap = |kind, dimension, read, write| Cap {
        kind,
        dimension,
        read,
        write,
        together: false,
        soft: false,
        source: &limits.source,
        confidence: limits.confidence,
    };
    let blocks = &limits.write_iops_max_by_block;
    let write_most = limits.write_iops_max.or_else(|| blocks.first().map(|first| first.iops));
    let base = limits.baseline_iops;
    let read = by_size(base, limits.read_iops_per_gb, size, limits.read_iops_max);
    let write = by_size(base, limits.write_iops_per_gb, size, write_most);
    caps.push(cap(LimitKind::Volume, Dimension::Iops, read, write));
    let base = limits.baseline_mb_per_s;
    let read = by_size(base, limits.read_mb_per_s_per_gb, size, limits.read_mb_per_s_max);
    let write = by_size(base, limits.write_mb_per_s_per_gb, size, limits.write_mb_per_s_max);
    caps.push(cap(LimitKind::Volume, Dimension::Throughput, read, write));
    if let (Some(first), Some(last)) = (blocks.first(), blocks.last())
        && block > first.block_kb_max
    {
        let row = blocks.iter().find(|row| block <= row.block_kb_max).unwrap_or(last);
        caps.push(cap(LimitKind::BlockSize, Dimension::Iops, None, Some(row.iops)));
    }
}

fn provisioned_caps<'a>(part: &'a ProvisionedRule, demand: &Demand, caps: &mut Vec<Cap<'a>>) {
    let disks = f64::from(demand.disks);
    let bought = [(Dimension::Iops, demand.iops), (Dimension::Throughput, demand.throughput)];
    for (dimension, each) in bought {
        let most = each.map(|each| each * disks);
        caps.extend(most.is_some().then_some(Cap {
            kind: LimitKind::Volume,
            dimension,
            read: most,
            write: most,
            together: false,
            soft: false,
            source: &part.source,
            confidence: part.confidence,
        }));
    }
}

fn count_caps<'a>(
    row: &'a CountRow,
    source: &'a SourceKeys,
    confidence: Option<Confidence>,
    caps: &mut Vec<Cap<'a>>,
) {
    let kinds = [
        (Dimension::Iops, row.read_iops, row.write_iops),
        (Dimension::Throughput, row.read_mb_per_s, row.write_mb_per_s),
    ];
    for (dimension, read, write) in kinds {
        if read.is_some() || write.is_some() {
            caps.push(Cap {
                kind: LimitKind::Volume,
                dimension,
                read,
                write,
                together: false,
                soft: false,
                source,
                confidence,
            });
        }
    }
}

/// Adds the limits of a machine.
pub(crate) fn vm_caps<'a>(
    row: &'a VmRow,
    kind: LimitKind,
    source: &'a SourceKeys,
    confidence: Option<Confidence>,
    caps: &mut Vec<Cap<'a>>,
) {
    let kinds = [
        (Dimension::Iops, row.iops, row.read_iops, row.write_iops),
        (Dimension::Throughput, row.mb_per_s, row.read_mb_per_s, row.write_mb_per_s),
    ];
    for (dimension, both, read, write) in kinds {
        let (read, write) = (both.or(read), both.or(write));
        if read.is_some() || write.is_some() {
            let together = both.is_some();
            let soft = false;
            caps.push(Cap { kind, dimension, read, write, together, soft, source, confidence });
        }
    }
}
