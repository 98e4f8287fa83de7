//! What is needed, and what may be chosen from.

use serde::Serialize;

use crate::catalogue::Catalogue;
use crate::input::PlanError;
use crate::limits::{MAX_BLOCK_BYTES, MAX_DISKS, MIN_BLOCK_BYTES};
use crate::mix::Mix;
use crate::site::Site;

/// The largest need of any kind that is taken, in IOPS, bytes a second and bytes alike: beyond what
/// all disks of a cloud do together.
const NEED_MAX: f64 = 1e18;

/// What the disks are to do. IOPS and throughput are two loads that need not be carried at the same
/// time: many small I/Os, and fewer large ones.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Need {
    /// Reads a second, of `block_bytes` each.
    pub read_iops: f64,
    /// Writes a second, of `block_bytes` each.
    pub write_iops: f64,
    /// Bytes a second of large I/Os, reads and writes together in the proportion of the IOPS; where
    /// no IOPS are needed, of reads alone and of writes alone.
    pub bytes_per_s: f64,
    /// Bytes to keep, on all disks together.
    pub capacity_bytes: u64,
    /// Bytes of each of the I/Os that are counted.
    pub block_bytes: u64,
    /// Whether the reads and the writes come at the same time, or each alone.
    pub at_once: bool,
}

/// What may be chosen from.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Scope {
    /// Families, such as `n2`, or machines, such as `n2-standard-8`; all there are if empty.
    pub machines: Vec<String>,
    /// Types of disk; all there are if empty.
    pub types: Vec<String>,
    /// Only disks that are replicated in two zones.
    pub regional: bool,
    /// Also disks that lose their data when the machine stops.
    pub local_ssd: bool,
    /// Whether machines have the dearer networking tier, where there is one.
    pub tier1: bool,
    /// What else the machine sends, in Gbit/s.
    pub network_gbit_per_s: f64,
    /// Most disks of a configuration.
    pub disks_max: u32,
}

impl Default for Scope {
    /// Anything of one zone that keeps its data, up to 16 disks.
    fn default() -> Scope {
        Scope {
            machines: Vec::new(),
            types: Vec::new(),
            regional: false,
            local_ssd: false,
            tier1: false,
            network_gbit_per_s: 0.0,
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
            ("Gbit/s of other traffic", scope.network_gbit_per_s),
        ] {
            if !(0.0..=NEED_MAX).contains(&value) {
                return Err(PlanError::input(format!("{value} {what}"), "write a number from 0"));
            }
        }
        if self.read_iops + self.write_iops + self.bytes_per_s == 0.0 && self.capacity_bytes == 0 {
            let accepted = "write --read-iops, --write-iops, --throughput or --capacity";
            return Err(PlanError::input("nothing is needed", accepted));
        }
        if !(MIN_BLOCK_BYTES..=MAX_BLOCK_BYTES).contains(&self.block_bytes) {
            let found = format!("a block of {} bytes", self.block_bytes);
            return Err(PlanError::input(found, "write a size from 512 to 32MiB"));
        }
        if !(1..=MAX_DISKS).contains(&scope.disks_max) {
            let found = format!("up to {} disks", scope.disks_max);
            return Err(PlanError::input(found, format!("write a number from 1 to {MAX_DISKS}")));
        }
        Ok(())
    }

    /// The loads that a configuration has to carry, each by itself.
    pub(super) fn loads(&self, site: &Site<'_>) -> Vec<Load> {
        let catalogue = site.catalogue;
        let total = self.read_iops + self.write_iops;
        let alone = [(self.read_iops, 1.0), (self.write_iops, 0.0)];
        let parts: Vec<(f64, f64)> = match self.at_once {
            true if total > 0.0 => vec![(total, self.read_iops / total)],
            _ => alone.into_iter().filter(|(iops, _)| *iops > 0.0).collect(),
        };
        let mut loads: Vec<Load> = parts
            .iter()
            .map(|(iops, read)| {
                Load::new(catalogue, site, What::Iops, *iops, *read, self.block_bytes)
            })
            .collect();
        if self.bytes_per_s > 0.0 {
            let units = &catalogue.units;
            let large = site.disk.block_kb_min_for_throughput.unwrap_or(LARGE_BLOCKS);
            let large = (large * units.block_bytes as f64) as u64;
            let block = large.max(self.block_bytes).min(MAX_BLOCK_BYTES);
            let iops = self.bytes_per_s / block as f64;
            let reads: Vec<f64> = match total > 0.0 {
                true => vec![self.read_iops / total],
                false => vec![1.0, 0.0],
            };
            let load = |read| Load::new(catalogue, site, What::Throughput, iops, read, block);
            loads.extend(reads.into_iter().map(load));
        }
        loads
    }
}

/// Block with which the highest throughput is reached where no source says, in KB.
const LARGE_BLOCKS: f64 = 256.0;

/// What a load is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// Bytes to keep.
    Capacity,
    /// I/Os a second.
    Iops,
    /// Bytes a second.
    Throughput,
}

impl std::fmt::Display for What {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            What::Capacity => "capacity",
            What::Iops => "IOPS",
            What::Throughput => "throughput",
        })
    }
}

/// So many I/Os a second of one mix and block.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    pub(super) what: What,
    pub(super) iops: f64,
    pub(super) block_bytes: u64,
    pub(super) mix: Mix,
}

impl Load {
    fn new(
        catalogue: &Catalogue,
        site: &Site<'_>,
        what: What,
        iops: f64,
        read: f64,
        block_bytes: u64,
    ) -> Load {
        let units = &catalogue.units;
        let (of_iops, of_throughput) = site.sharing();
        let throughput_per_io = units.block_of(block_bytes) / units.blocks_per_throughput as f64;
        let mix = Mix {
            read,
            write: 1.0 - read,
            throughput_per_io,
            iops: of_iops,
            throughput: of_throughput,
        };
        Load { what, iops, block_bytes, mix }
    }
}
