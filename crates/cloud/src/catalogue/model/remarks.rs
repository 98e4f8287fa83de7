//! Contradictions of sources, the results that they affect, and measurements of others.

use serde::{Deserialize, Serialize};

use super::{SourceKeys, TableKind};
use crate::catalogue::select::{CountRange, NamePattern};

/// A contradiction within a source or between sources.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Inconsistency {
    /// Identifier, such as `I01`.
    pub id: String,
    /// Place and printed text.
    #[serde(rename = "where")]
    pub place: String,
    /// The contradiction.
    pub why: String,
    /// The value that this catalogue uses, if it had to choose.
    pub used: Option<String>,
    /// Affected results; none if absent.
    pub touches: Option<Touches>,
}

/// Selector of affected results: a result must match every given member.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Touches {
    /// Disk types.
    pub types: Option<Vec<String>>,
    /// Machine families.
    pub families: Option<Vec<String>>,
    /// Names of machines.
    pub machines: Option<Vec<NamePattern>>,
    /// vCPUs.
    pub vcpus: Option<CountRange>,
    /// Numbers of disks.
    pub disks: Option<CountRange>,
    /// Only regional disks (true) or only zonal ones (false).
    pub regional: Option<bool>,
    /// Volume sizes.
    #[serde(alias = "sizes_gib")]
    pub sizes_gb: Option<Vec<f64>>,
    /// Blocks larger than this.
    #[serde(alias = "block_kib_above")]
    pub block_kb_above: Option<f64>,
    /// Workloads with reads, or with writes.
    pub direction: Option<IoDirection>,
    /// Workloads with both reads and writes.
    pub mixed: Option<bool>,
    /// Limits that bind or are next.
    pub limits: Option<Vec<LimitKind>>,
    /// Tables of `plan table` that show the contradiction.
    #[serde(default)]
    pub tables: Vec<TableKind>,
    /// Only tables are affected, no predictions.
    #[serde(default)]
    pub tables_only: bool,
}

/// Reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IoDirection {
    /// Reads.
    Read,
    /// Writes.
    Write,
}

/// Kind of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LimitKind {
    /// Size of the volume, or its provisioned performance.
    Volume,
    /// Machine, for one volume.
    Vm,
    /// Machine, shared by several volumes.
    SharedDisks,
    /// Network egress, for writes.
    Egress,
    /// Maximum for the block size.
    BlockSize,
    /// Queue depth (Little's law).
    QueueDepth,
    /// CPUs that drive the I/O.
    Cpu,
}

/// A published figure, expected or measured, for comparison with the model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Observation {
    /// Disk type.
    #[serde(rename = "type")]
    pub kind: String,
    /// Sources.
    pub source: SourceKeys,
    /// Measured (true), or expected by the source (false).
    pub measured: bool,
    /// The machine.
    pub machine: Option<String>,
    /// Size of the volume.
    #[serde(alias = "size_gib")]
    pub size_gb: Option<f64>,
    /// Number of disks.
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
    /// Circumstances of the figure.
    pub note: Option<String>,
}
