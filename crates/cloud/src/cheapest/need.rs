//! Need and scope of the cheapest search.

use serde::Serialize;

use crate::input::{PlanError, check_block};
use crate::limits::{MAX_BLOCK_BYTES, MAX_DISKS};
use crate::mix::WorkloadMix;
use crate::placement::Placement;
use crate::prediction::Dimension;

/// Largest accepted need, in IOPS, bytes per second and bytes: more than all disks of a cloud
/// together.
const NEED_MAX: f64 = 1e18;

/// Required performance and capacity. IOPS and throughput are separate loads that need not be
/// carried at the same time: many small I/Os, and fewer large ones.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Need {
    /// Reads per second, of `block_bytes` each.
    pub read_iops: f64,
    /// Writes per second, of `block_bytes` each.
    pub write_iops: f64,
    /// Bytes per second of large I/Os, with the IOPS' proportion of reads; each part alone if they
    /// are separate. Without IOPS, both pure reads and pure writes must reach it.
    pub bytes_per_s: f64,
    /// Capacity in bytes, of all disks together.
    pub capacity_bytes: u64,
    /// Bytes of each counted I/O.
    pub block_bytes: u64,
    /// Reads and writes are simultaneous (true) or separate (false).
    pub at_once: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Scope {
    /// Families, such as `n2`, or machines, such as `n2-standard-8`; all if empty.
    pub machines: Vec<String>,
    pub types: Vec<String>,
    /// Only disks replicated in two zones.
    pub regional: bool,
    /// Include disks that lose their data when the machine stops.
    pub local_ssd: bool,
    pub tier1_networking: bool,
    pub other_egress_gbit_per_s: f64,
    pub disks_max: u32,
}

impl Default for Scope {
    /// Zonal disks that keep their data, up to 16.
    fn default() -> Scope {
        Scope {
            machines: Vec::new(),
            types: Vec::new(),
            regional: false,
            local_ssd: false,
            tier1_networking: false,
            other_egress_gbit_per_s: 0.0,
            disks_max: 16,
        }
    }
}

impl Need {
    pub(super) fn check(&self, scope: &Scope) -> Result<(), PlanError> {
        for (what, value) in [
            ("read IOPS", self.read_iops),
            ("write IOPS", self.write_iops),
            ("bytes a second", self.bytes_per_s),
            ("bytes of capacity", self.capacity_bytes as f64),
            ("Gbit/s of other traffic", scope.other_egress_gbit_per_s),
        ] {
            if !(0.0..=NEED_MAX).contains(&value) {
                return Err(PlanError::input(format!("{value} {what}"), "write a number from 0"));
            }
        }
        if self.read_iops + self.write_iops + self.bytes_per_s == 0.0 && self.capacity_bytes == 0 {
            let accepted = "write --read-iops, --write-iops, --throughput or --capacity";
            return Err(PlanError::input("nothing is needed", accepted));
        }
        check_block(self.block_bytes)?;
        if !(1..=MAX_DISKS).contains(&scope.disks_max) {
            let found = format!("up to {} disks", scope.disks_max);
            return Err(PlanError::input(found, format!("write a number from 1 to {MAX_DISKS}")));
        }
        Ok(())
    }

    pub(super) fn parts(&self) -> Vec<Requirement> {
        [
            (Requirement::Capacity, self.capacity_bytes > 0),
            (Requirement::Iops, self.read_iops + self.write_iops > 0.0),
            (Requirement::Throughput, self.bytes_per_s > 0.0),
        ]
        .into_iter()
        .filter_map(|(part, needed)| needed.then_some(part))
        .collect()
    }

    /// The need reduced to one part, with the same proportion of reads.
    pub(super) fn only(&self, part: Requirement) -> Need {
        /// Of the IOPS, only their proportion is left.
        const NEARLY_NONE: f64 = 1e-12;
        let iops = if part == Requirement::Iops { 1.0 } else { NEARLY_NONE };
        Need {
            read_iops: self.read_iops * iops,
            write_iops: self.write_iops * iops,
            bytes_per_s: if part == Requirement::Throughput { self.bytes_per_s } else { 0.0 },
            capacity_bytes: if part == Requirement::Capacity { self.capacity_bytes } else { 0 },
            ..*self
        }
    }

    /// The need with a part of its IOPS and throughput and all of its capacity.
    pub(super) fn scaled(&self, part: f64) -> Need {
        Need {
            read_iops: self.read_iops * part,
            write_iops: self.write_iops * part,
            bytes_per_s: self.bytes_per_s * part,
            ..*self
        }
    }

    /// The loads that a configuration has to carry, each separately.
    pub(super) fn loads(&self, placement: &Placement<'_>) -> Vec<RequiredLoad> {
        let units = &placement.catalog.units;
        let load = |what, iops, read, block_bytes| {
            let mix = WorkloadMix::of_reads(read, block_bytes, units, placement.sharing());
            RequiredLoad { what, iops, block_bytes, mix }
        };
        let total = self.read_iops + self.write_iops;
        let alone = [(self.read_iops, 1.0), (self.write_iops, 0.0)];
        let parts: Vec<(f64, f64)> = match self.at_once {
            true if total > 0.0 => vec![(total, self.read_iops / total)],
            _ => alone.into_iter().filter(|(iops, _)| *iops > 0.0).collect(),
        };
        let mut loads: Vec<RequiredLoad> = parts
            .iter()
            .map(|(iops, read)| load(Requirement::Iops, *iops, *read, self.block_bytes))
            .collect();
        if self.bytes_per_s > 0.0 {
            let large = large_block_bytes(placement);
            let block = large.max(self.block_bytes).min(MAX_BLOCK_BYTES);
            let iops = self.bytes_per_s / block as f64;
            let shares: Vec<(f64, f64)> = match total > 0.0 {
                true => parts.iter().map(|(part, read)| (iops * part / total, *read)).collect(),
                false => vec![(iops, 1.0), (iops, 0.0)],
            };
            let large = |(iops, read)| load(Requirement::Throughput, iops, read, block);
            loads.extend(shares.into_iter().map(large));
        }
        loads
    }
}

/// Block, in KB, that reaches the highest throughput if no source gives one.
const LARGE_BLOCKS: f64 = 256.0;

fn large_block_bytes(placement: &Placement<'_>) -> u64 {
    let large = placement.disk.block_kb_min_for_throughput.unwrap_or(LARGE_BLOCKS);
    (large * placement.catalog.units.block_bytes as f64) as u64
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Requirement {
    Capacity,
    Iops,
    Throughput,
}

impl std::fmt::Display for Requirement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Requirement::Capacity => "capacity",
            Requirement::Iops => "IOPS",
            Requirement::Throughput => "throughput",
        })
    }
}

/// IOPS of one mix and block size.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequiredLoad {
    pub(super) what: Requirement,
    pub(super) iops: f64,
    pub(super) block_bytes: u64,
    pub(super) mix: WorkloadMix,
}

impl RequiredLoad {
    /// Whether a limit in this dimension decides about the load: its own, and throughput for large
    /// blocks.
    pub(super) fn depends_on(&self, dimension: Dimension, placement: &Placement<'_>) -> bool {
        match (dimension, self.what) {
            (Dimension::Iops, what) => what == Requirement::Iops,
            (Dimension::Throughput, Requirement::Throughput) => true,
            (Dimension::Throughput, _) => self.block_bytes >= large_block_bytes(placement),
        }
    }
}
