//! Contradictions of sources, the results that they affect, and measurements of others.

use serde::{Deserialize, Serialize};

use super::{SourceKeys, TableKind};
use crate::catalog::select::{CountRange, NamePattern};

/// A contradiction within a source or between sources.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Inconsistency {
    pub id: String,
    /// With the printed text.
    #[serde(rename = "where")]
    pub place: String,
    pub why: String,
    /// The value that this catalog uses, if it had to choose.
    pub used: Option<String>,
    /// Affected results; none if absent.
    #[serde(skip_serializing)]
    pub touches: Option<Touches>,
}

/// Selector of affected results: a result must match every given member.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Touches {
    pub types: Option<Vec<String>>,
    pub families: Option<Vec<String>>,
    pub machines: Option<Vec<NamePattern>>,
    pub vcpus: Option<CountRange>,
    pub disks: Option<CountRange>,
    /// Only regional disks (true) or only zonal ones (false).
    pub regional: Option<bool>,
    #[serde(alias = "sizes_gib")]
    pub(crate) sizes_gb: Option<Vec<f64>>,
    /// Disks of this size or larger, all disks together.
    #[serde(alias = "size_gib_min")]
    pub(crate) size_gb_min: Option<f64>,
    /// Blocks larger than this.
    #[serde(alias = "block_kib_above")]
    pub(crate) block_kb_above: Option<f64>,
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
    pub(crate) tables_only: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IoDirection {
    Read,
    Write,
}

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
    #[serde(rename = "type")]
    pub kind: String,
    pub source: SourceKeys,
    /// Measured (true), or expected by the source (false).
    pub measured: bool,
    pub machine: Option<String>,
    #[serde(alias = "size_gib")]
    pub size_gb: Option<f64>,
    pub disks: Option<u32>,
    pub read_iops: Option<f64>,
    pub write_iops: Option<f64>,
    #[serde(alias = "read_mib_per_s")]
    pub read_mb_per_s: Option<f64>,
    #[serde(alias = "write_mib_per_s")]
    pub write_mb_per_s: Option<f64>,
    /// Circumstances of the figure.
    pub note: Option<String>,
}
