//! Where sources contradict themselves, which results that touches, and what others measured.

use serde::{Deserialize, Serialize};

use super::{SourceKeys, TableKind};
use crate::catalogue::select::{Pattern, Range};

/// A place where the sources contradict themselves or each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Inconsistency {
    /// Such as `I01`.
    pub id: String,
    /// Where, and what is printed there.
    #[serde(rename = "where")]
    pub place: String,
    /// What is wrong with it.
    pub why: String,
    /// What this catalogue takes instead, where it had to choose.
    pub used: Option<String>,
    /// Which results it touches; none if absent.
    pub touches: Option<Touches>,
}

/// Which results something touches: those that fit every selector given.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Touches {
    /// Types of disk.
    pub types: Option<Vec<String>>,
    /// Families of machines.
    pub families: Option<Vec<String>>,
    /// Names of machines.
    pub machines: Option<Vec<Pattern>>,
    /// vCPUs.
    pub vcpus: Option<Range>,
    /// Numbers of disks.
    pub disks: Option<Range>,
    /// Regional disks alone, or zonal ones alone.
    pub regional: Option<bool>,
    /// Sizes of a volume.
    #[serde(alias = "sizes_gib")]
    pub sizes_gb: Option<Vec<f64>>,
    /// Blocks larger than this.
    #[serde(alias = "block_kib_above")]
    pub block_kb_above: Option<f64>,
    /// Whether there are reads, or writes.
    pub direction: Option<Direction>,
    /// Whether there are both at once.
    pub mixed: Option<bool>,
    /// Limits that bind, or are next.
    pub limits: Option<Vec<LimitKind>>,
    /// Tables of `plan table` that show it.
    #[serde(default)]
    pub tables: Vec<TableKind>,
    /// Whether it is of tables alone and touches no prediction.
    #[serde(default)]
    pub tables_only: bool,
}

/// Reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Reads.
    Read,
    /// Writes.
    Write,
}

/// What limits a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LimitKind {
    /// The size of the volume, or what was provisioned for it.
    Volume,
    /// The machine, for one volume.
    Vm,
    /// The machine, whose limit several volumes share.
    SharedDisks,
    /// The network's egress, which bounds writes.
    Egress,
    /// A cap that depends on the size of the block.
    BlockSize,
    /// The queue depth, by Little's law.
    QueueDepth,
    /// The CPUs that drive the I/O.
    Cpu,
}

/// A figure that somebody expects or measured, to compare the model with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Observation {
    /// The type of disk.
    #[serde(rename = "type")]
    pub kind: String,
    /// Sources.
    pub source: SourceKeys,
    /// Whether it was measured, or is what the source expects.
    pub measured: bool,
    /// The machine.
    pub machine: Option<String>,
    /// Size of the volume.
    #[serde(alias = "size_gib")]
    pub size_gb: Option<f64>,
    /// How many disks.
    pub disks: Option<u32>,
    /// Read IOPS.
    pub read_iops: Option<f64>,
    /// Write IOPS.
    pub write_iops: Option<f64>,
    /// Read throughput.
    #[serde(alias = "read_mib_per_s")]
    pub read_mb_per_s: Option<f64>,
    /// Write throughput.
    #[serde(alias = "write_mib_per_s")]
    pub write_mb_per_s: Option<f64>,
    /// How it was had.
    pub note: Option<String>,
}
