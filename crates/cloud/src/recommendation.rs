//! Recommendations that lift a limit: the smallest change that brings the workload to the
//! following limit.

use flagstone_units::display::size;
use flagstone_units::grouped;

use crate::caps::{Cap, vm_caps, volume_caps};
use crate::catalog::LimitKind;
use crate::describe;
use crate::input::Workload;
use crate::mix::WorkloadMix;
use crate::placement::{Demand, Placement};
use crate::prediction::{DeeperQueue, Dimension, PredictedLimit, Recommendation};

/// Largest size to try for types without a maximum, in the catalog's unit.
const SIZE_TRIED_MAX: f64 = 65536.0;

/// Tolerance of a target, whose computed value may miss in the last digit.
const REACHED: f64 = 1.0 - 1e-9;

pub(crate) struct Recommender<'s, 'a> {
    pub(crate) placement: &'s Placement<'a>,
    pub(crate) demand: &'s Demand,
    pub(crate) workload: &'s Workload,
    pub(crate) mix: &'s WorkloadMix,
    pub(crate) caps: &'s [Cap<'a>],
}

impl Recommender<'_, '_> {
    /// A limit as a result, with recommendations if it is to be lifted to `target`.
    pub(crate) fn limit(
        &self,
        cap: &Cap<'_>,
        workload_iops: f64,
        target: Option<f64>,
    ) -> PredictedLimit {
        let Recommender { placement, demand, workload, mix, .. } = *self;
        let unit = match cap.dimension {
            Dimension::Iops => 1.0,
            Dimension::Throughput => placement.catalog.units.throughput_bytes() as f64 / 1e6,
        };
        PredictedLimit {
            kind: cap.kind,
            dimension: cap.dimension,
            read: cap.read.filter(|_| mix.read > 0.0).map(|read| read * unit),
            write: cap.write.filter(|_| mix.write > 0.0).map(|write| write * unit),
            workload_iops,
            explanation: describe::explanation(placement, demand, workload, cap),
            recommendations: target.map_or_else(Vec::new, |target| self.of(cap, target)),
            sources: cap.source.clone(),
            confidence: placement.catalog.confidence_of(cap.source, cap.confidence),
        }
    }

    /// Recommendations that lift `cap` to `target` IOPS of the workload.
    pub(crate) fn of(&self, cap: &Cap<'_>, target: f64) -> Vec<Recommendation> {
        let target = if target.is_finite() { target } else { 2.0 * self.mix.iops_under_one(cap) };
        let mut recommendations = match cap.kind {
            LimitKind::Volume => self.of_volume(cap, target),
            LimitKind::Vm | LimitKind::SharedDisks => self.of_machine(cap, target),
            LimitKind::Egress => self.of_egress(target),
            LimitKind::BlockSize => self.of_block(),
            LimitKind::QueueDepth => self.of_queue(target),
            LimitKind::Cpu => self.of_cpu(cap, target),
        };
        recommendations.extend(self.other_blocks(cap));
        recommendations
    }

    fn of_volume(&self, cap: &Cap<'_>, target: f64) -> Vec<Recommendation> {
        if self.placement.disk.provisioned.is_some() {
            return self.of_purchase(cap, target);
        }
        if self.placement.size_each().is_some() {
            return self.more_disks(cap, target);
        }
        let Some(limits) = self.placement.volume_limits() else {
            return vec![Recommendation::OtherType];
        };
        let block = self.placement.catalog.units.block_of(self.workload.block_bytes);
        let disks = f64::from(self.demand.disks);
        let at = |size: f64| {
            let caps = volume_caps(limits, size * disks, block);
            let same =
                |other: &&Cap<'_>| other.kind == cap.kind && other.dimension == cap.dimension;
            caps.iter().find(same).map_or(f64::INFINITY, |cap| self.mix.iops_under_one(cap))
        };
        let disk = self.placement.disk;
        let of_machine = disk.size_gb_max_vm.map_or(f64::INFINITY, |most| most / disks);
        let largest = disk.size_gb_max.unwrap_or(SIZE_TRIED_MAX).min(of_machine).floor();
        let most = at(largest);
        if most <= at(self.demand.size) {
            return vec![Recommendation::OtherType];
        }
        let size = smallest(self.demand.size.floor(), largest, |size| {
            at(size) >= target.min(most) * REACHED
        });
        let mut recommendations = vec![Recommendation::LargerVolume {
            size,
            unit: self.placement.catalog.units.size.name(),
        }];
        if most < target {
            recommendations.push(Recommendation::OtherType);
        }
        recommendations
    }

    fn of_purchase(&self, cap: &Cap<'_>, target: f64) -> Vec<Recommendation> {
        let Some(part) = &self.placement.disk.provisioned else { return Vec::new() };
        let disks = f64::from(self.demand.disks);
        let factor = target / self.mix.iops_under_one(cap);
        let each = |bought: Option<f64>| (bought.unwrap_or(0.0) * factor).ceil();
        let unit = self.placement.catalog.units.throughput.name();
        let size = self.demand.size;
        let (iops, throughput) = (each(self.demand.iops), each(self.demand.throughput));
        let wanted = match cap.dimension {
            Dimension::Iops => match part.iops_per_mb_per_s {
                Some(rate) => (None, Some((iops / rate).ceil())),
                None => (Some(iops), None),
            },
            Dimension::Throughput => match part.mb_per_s_per_iops {
                Some(rate) => (Some((throughput / rate).ceil()), None),
                None => (None, Some(throughput)),
            },
        };
        let more = Recommendation::MoreDisks { disks: (disks * factor).ceil() as u32 };
        match wanted {
            (Some(iops), _) if part.iops_range(size).is_some_and(|range| iops <= range.max) => {
                vec![Recommendation::ProvisionIops { iops }]
            }
            (_, Some(throughput)) => {
                let bought = self.demand.iops;
                let most = |iops| part.throughput_range(size, iops).map_or(0.0, |range| range.max);
                if throughput <= most(bought) {
                    return vec![Recommendation::ProvisionThroughput { throughput, unit }];
                }
                // More throughput may need more IOPS.
                let iops = part.mb_per_s_per_iops_max.map(|rate| (throughput / rate).ceil());
                let sold = part.iops_range(size).zip(iops).is_some_and(|(r, iops)| iops <= r.max);
                match iops {
                    Some(iops) if sold && throughput <= most(Some(iops)) => vec![
                        Recommendation::ProvisionThroughput { throughput, unit },
                        Recommendation::ProvisionIops { iops },
                    ],
                    _ => vec![more],
                }
            }
            _ => vec![more],
        }
    }

    fn more_disks(&self, cap: &Cap<'_>, target: f64) -> Vec<Recommendation> {
        let kind = self.placement.kind;
        if self.placement.catalog.fixed_disks(kind, &self.placement.machine.name).is_some() {
            return vec![Recommendation::OtherFamily];
        }
        let at = |disks: u32| {
            let demand = Demand { disks, ..*self.demand };
            let caps = self.placement.disk_caps(&demand, self.workload.block_bytes);
            let same = |other: &&Cap<'_>| other.dimension == cap.dimension;
            caps.iter().find(same).map(|cap| self.mix.iops_under_one(cap))
        };
        let now = at(self.demand.disks).unwrap_or(0.0);
        let better = (self.demand.disks + 1..=64)
            .filter_map(|disks| at(disks).map(|iops| (disks, iops)))
            .filter(|(_, iops)| *iops > now)
            .collect::<Vec<_>>();
        let enough = better.iter().find(|(_, iops)| *iops >= target * REACHED);
        match enough.or(better.first()) {
            Some((disks, _)) => vec![Recommendation::MoreDisks { disks: *disks }],
            None => vec![Recommendation::OtherType],
        }
    }

    fn of_machine(&self, cap: &Cap<'_>, target: f64) -> Vec<Recommendation> {
        let Some((table, own)) = self.placement.vm else { return Vec::new() };
        let now = self.mix.iops_under_one(cap);
        let at = |row| {
            let mut caps = vm_caps(row, cap.kind, (&table.source, None));
            let same = caps.find(|other| other.dimension == cap.dimension);
            // An unknown limit promises nothing.
            let iops = same.map(|cap| self.mix.iops_under_one(&cap));
            iops.filter(|iops| iops.is_finite()).unwrap_or(0.0)
        };
        let mut better: Vec<_> = table
            .rows
            .iter()
            .filter(|row| *row != own)
            .map(|row| (row, at(row)))
            .filter(|(_, iops)| *iops > now * (1.0 + 1e-9))
            .collect();
        better.sort_by(|a, b| a.0.vcpus.cmp(&b.0.vcpus).then(a.1.total_cmp(&b.1)));
        let enough = better.iter().find(|(_, iops)| *iops >= target * REACHED);
        let most = better.iter().max_by(|a, b| a.1.total_cmp(&b.1));
        let Some((row, workload_iops)) = enough.or(most) else {
            return vec![Recommendation::OtherFamily];
        };
        let machine = match (&row.vcpus, &row.machine) {
            (Some(range), _) => format!("{} with {range} vCPUs", self.placement.machine.family),
            (None, Some(pattern)) => pattern.0.clone(),
            (None, None) => self.placement.machine.family.clone(),
        };
        vec![Recommendation::LargerMachine { machine, workload_iops: *workload_iops }]
    }

    fn of_egress(&self, target: f64) -> Vec<Recommendation> {
        let placement = self.placement;
        let (Some(rule), Some(gbit)) = (&placement.catalog.egress, placement.egress_gbit_per_s)
        else {
            return Vec::new();
        };
        let wanted = target * self.mix.write * self.mix.throughput_per_io;
        let mut recommendations = Vec::new();
        let reached = |gbit, other| placement.egress_throughput(gbit, other) >= wanted * REACHED;
        if placement.other_egress_gbit_per_s > 0.0 {
            // In steps of 0.1 Gbit/s, the granularity of traffic shaping.
            let steps = (placement.other_egress_gbit_per_s * 10.0).ceil() as u32;
            let other = (0..steps).rev().map(|step| f64::from(step) / 10.0);
            let enough = other.into_iter().find(|other| reached(gbit, *other));
            recommendations.push(Recommendation::LessNetwork { gbit_per_s: enough.unwrap_or(0.0) });
        }
        if placement.regional {
            recommendations.push(Recommendation::Zonal);
        }
        let family = placement.catalog.families.get(&placement.machine.family);
        let rows = family.map_or(&[][..], |family| &family.egress[..]);
        let name = |vcpus: &dyn std::fmt::Display| {
            format!("{} with {vcpus} vCPUs", placement.machine.family)
        };
        let is_enough = |more| more > gbit && reached(more, placement.other_egress_gbit_per_s);
        let larger = match rule.gbit_per_s_per_vcpu {
            Some(each) if rows.is_empty() => {
                let most = rule.gbit_per_s_max.unwrap_or(f64::INFINITY);
                let mut sizes =
                    (1..=1024).map(|vcpus| (vcpus, (f64::from(vcpus) * each).min(most)));
                sizes.find(|(_, more)| is_enough(*more)).map(|(vcpus, more)| (name(&vcpus), more))
            }
            _ => rows
                .iter()
                .filter(|row| is_enough(row.gbit_per_s))
                .find_map(|row| Some((name(row.vcpus.as_ref()?), row.gbit_per_s))),
        };
        if let Some((machine, more)) = larger {
            let write = placement.egress_throughput(more, placement.other_egress_gbit_per_s);
            let workload_iops = write / (self.mix.write * self.mix.throughput_per_io);
            recommendations.push(Recommendation::LargerMachine { machine, workload_iops });
        }
        if recommendations.is_empty() {
            recommendations.push(Recommendation::OtherFamily);
        }
        recommendations
    }

    fn of_block(&self) -> Vec<Recommendation> {
        let block =
            self.placement.volume_limits().and_then(|part| part.write_iops_max_by_block.first());
        let unit = self.placement.catalog.units.block_bytes as f64;
        let bytes = block.map_or(0, |row| (row.block_kb_max * unit) as u64);
        vec![Recommendation::SmallerBlocks { bytes }]
    }

    fn of_queue(&self, target: f64) -> Vec<Recommendation> {
        let each = self.placement.disk.queue.as_ref().map_or(1.0, |queue| queue.iops_per_io_low);
        vec![Recommendation::DeeperQueue(DeeperQueue {
            in_flight: whole_up(target / each),
            iops: None,
        })]
    }

    fn of_cpu(&self, cap: &Cap<'_>, target: f64) -> Vec<Recommendation> {
        let vcpus = f64::from(self.placement.machine.vcpus.unwrap_or(1));
        let needed = vcpus * target / self.mix.iops_under_one(cap);
        vec![Recommendation::MoreCpus {
            vcpus: u32::try_from(whole_up(needed)).unwrap_or(u32::MAX),
        }]
    }

    /// Block size at which the other dimension of hard limits binds.
    fn other_blocks(&self, cap: &Cap<'_>) -> Option<Recommendation> {
        if cap.soft || cap.kind == LimitKind::BlockSize {
            return None;
        }
        let under = |dimension| {
            let hard = self.caps.iter().filter(|cap| !cap.soft && cap.dimension == dimension);
            self.mix.iops_under(hard)
        };
        let (iops, throughput) = (under(Dimension::Iops), under(Dimension::Throughput));
        if !iops.is_finite() || !throughput.is_finite() || iops <= 0.0 {
            return None;
        }
        let bytes = self.workload.block_bytes as f64 * throughput / iops;
        let bytes = (bytes / 512.0).floor() as u64 * 512;
        match cap.dimension {
            Dimension::Iops if bytes > self.workload.block_bytes => {
                Some(Recommendation::LargerBlocks { bytes })
            }
            Dimension::Throughput if (512..self.workload.block_bytes).contains(&bytes) => {
                Some(Recommendation::SmallerBlocks { bytes })
            }
            _ => None,
        }
    }
}

fn whole_up(number: f64) -> u64 {
    (number * REACHED).ceil().max(1.0) as u64
}

/// The smallest whole number above `low`, and at most `high`, from which `enough` holds.
fn smallest(low: f64, high: f64, enough: impl Fn(f64) -> bool) -> f64 {
    let (mut low, mut high) = (low, high);
    while high - low > 1.0 {
        let middle = ((low + high) / 2.0).floor();
        if enough(middle) { high = middle } else { low = middle }
    }
    high
}

impl std::fmt::Display for Recommendation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        use Recommendation::*;
        match self {
            LargerVolume { size, unit } => {
                write!(f, "a volume of {} {unit}", grouped(*size, 0))
            }
            ProvisionIops { iops } => {
                write!(f, "{} provisioned IOPS", grouped(*iops, 0))
            }
            ProvisionThroughput { throughput, unit } => {
                write!(f, "{} {unit} of provisioned throughput", grouped(*throughput, 0))
            }
            MoreDisks { disks } => write!(f, "{disks} disks"),
            LargerMachine { machine, workload_iops } => {
                write!(f, "{machine} (allows {} IOPS)", grouped(*workload_iops, 0))
            }
            OtherFamily => f.write_str("another machine family: this one has no larger limit"),
            LessNetwork { gbit_per_s } => {
                write!(f, "at most {gbit_per_s} Gbit/s of other traffic")
            }
            Zonal => f.write_str("a zonal disk"),
            DeeperQueue(queue) => {
                let in_flight = grouped(queue.in_flight as f64, 0);
                match queue.iops.map(|iops| grouped(iops, 0)) {
                    None => write!(f, "{in_flight} I/Os in flight"),
                    Some(iops) => write!(
                        f,
                        "deeper queue: {in_flight} in flight give {iops} IOPS at the same latency"
                    ),
                }
            }
            MoreCpus { vcpus } => write!(f, "{vcpus} free vCPUs"),
            LargerBlocks { bytes } => {
                write!(f, "larger blocks, up to {}: more MB/s at the same IOPS", size(*bytes))
            }
            SmallerBlocks { bytes } => {
                write!(f, "smaller blocks, down to {}: more IOPS at the same MB/s", size(*bytes))
            }
            OtherType => f.write_str("another type of disk: this one has no more at any size"),
            AsynchronousEngine => {
                f.write_str("an engine that keeps many in flight, such as io_uring or libaio")
            }
            MoreJobs { jobs } => write!(f, "more jobs: {jobs}, each on a separate CPU"),
            StreamsWithOffsets => {
                f.write_str("several streams: more sequential jobs, each with its own offset")
            }
            OwnOffsets => f.write_str("a separate offset for each job, such as offset_increment"),
            DirectIo => f.write_str("direct=1, to bypass the page cache"),
            NoThrottle { by } => write!(f, "a run without {by}"),
            FewerFlushes => f.write_str("fewer flushes, or more jobs"),
            LongerRun { seconds } => {
                write!(f, "check: run for {} s or more, and look at the end", grouped(*seconds, 0))
            }
            WriteFirst => f.write_str("check: write the whole range before reading it"),
            CheckConfiguration => {
                f.write_str("check: look up the type, size and machine, and give them here")
            }
            OtherDepth { in_flight } => write!(
                f,
                "check: {} in flight; more IOPS mean latency, the same IOPS a cap",
                grouped(*in_flight as f64, 0)
            ),
            OtherBlocks { bytes } => write!(
                f,
                "check: blocks of {}; the same MB/s mean a cap of throughput",
                size(*bytes)
            ),
            Pool { fullness_percent, iops } => write!(
                f,
                "a pool on this disk (flagstone plan pool): {} IOPS when it is {fullness_percent} % full",
                grouped(*iops, 0)
            ),
            ShorterPath => f.write_str("find the latency in the path: measure the disk directly"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smallest_sufficient_number() {
        assert_eq!(smallest(10.0, 100.0, |n| n >= 37.0), 37.0);
        assert_eq!(smallest(10.0, 100.0, |_| true), 11.0);
        assert_eq!(smallest(10.0, 100.0, |_| false), 100.0);
    }
}
