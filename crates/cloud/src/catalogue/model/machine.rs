//! Machines: families, egress, and the limits of a machine for its disks.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Confidence, SourceKeys};
use crate::catalogue::select::{CountRange, NamePattern};

/// A machine family.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineFamily {
    /// Sources.
    pub source: SourceKeys,
    /// Overrides the confidence of the sources.
    pub confidence: Option<Confidence>,
    /// The available vCPU counts; not known if absent.
    pub vcpus: Option<Vec<u32>>,
    /// Maximum vCPUs, if the counts are not listed.
    pub vcpus_max: Option<u32>,
    /// Any vCPU count is available (`n1-custom-6-…`).
    #[serde(default)]
    pub custom: bool,
    /// Machines whose names do not contain their vCPUs.
    #[serde(default)]
    pub machines: Vec<String>,
    /// Network egress of the machines.
    #[serde(default)]
    pub egress: Vec<EgressRow>,
    /// Disk types that can be attached: `yes`, `no` or `by-request`. A type not listed is not known
    /// to be refused.
    #[serde(default)]
    pub disks: BTreeMap<String, Support>,
    /// Remark.
    pub note: Option<String>,
}

/// Whether a disk type can be attached to a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Support {
    /// Supported.
    Yes,
    /// Not supported.
    No,
    /// Supported on request to the provider.
    ByRequest,
}

/// Network egress of some machines of a family.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EgressRow {
    /// vCPUs of the machines.
    pub vcpus: Option<CountRange>,
    /// Names of the machines, instead of vCPUs.
    pub machine: Option<NamePattern>,
    /// Default egress, in Gbit/s.
    pub gbit_per_s: f64,
    /// Egress with Tier_1 networking, in Gbit/s.
    pub tier1_gbit_per_s: Option<f64>,
}

/// Limits of a machine for all volumes of some types together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmTable {
    /// Disk types.
    pub types: Vec<String>,
    /// Machine families; `*` stands for families without a table of their own for the type.
    pub families: Vec<String>,
    /// Sources.
    pub source: SourceKeys,
    /// Overrides the confidence of the sources.
    pub confidence: Option<Confidence>,
    /// Rows.
    pub rows: Vec<VmRow>,
    /// Remark.
    pub note: Option<String>,
}

/// Limits of some machines. `iops` and `mb_per_s` limit reads and writes together; the others limit
/// each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmRow {
    /// vCPUs of the machines.
    pub vcpus: Option<CountRange>,
    /// Names of the machines, instead of vCPUs.
    pub machine: Option<NamePattern>,
    /// IOPS of reads and writes together.
    pub iops: Option<f64>,
    /// Throughput of reads and writes together.
    #[serde(alias = "mib_per_s")]
    pub mb_per_s: Option<f64>,
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
    /// Sources instead of the table's.
    pub source: Option<SourceKeys>,
    /// Overrides the table's confidence.
    pub confidence: Option<Confidence>,
    /// Remark.
    pub note: Option<String>,
}

/// Limits by the number of disks, for disks of one size (local SSD).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CountTable {
    /// The disk type.
    #[serde(rename = "type")]
    pub kind: String,
    /// Sources.
    pub source: SourceKeys,
    /// Overrides the confidence of the sources.
    pub confidence: Option<Confidence>,
    /// Size of each disk, instead of the type's.
    #[serde(alias = "size_gib_each")]
    pub size_gb_each: Option<f64>,
    /// Rows.
    pub rows: Vec<CountRow>,
    /// Remark.
    pub note: Option<String>,
}

/// Limits of a number of disks, or of the disks that a machine comes with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CountRow {
    /// Number of disks.
    pub disks: CountRange,
    /// The machine that comes with the disks; any machine with that number if absent.
    pub machine: Option<NamePattern>,
    /// Read IOPS; not known if absent.
    pub read_iops: Option<f64>,
    /// Write IOPS.
    pub write_iops: Option<f64>,
    /// Read throughput.
    #[serde(alias = "read_mib_per_s")]
    pub read_mb_per_s: Option<f64>,
    /// Write throughput.
    #[serde(alias = "write_mib_per_s")]
    pub write_mb_per_s: Option<f64>,
}
