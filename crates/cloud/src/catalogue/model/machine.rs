//! Machines: families, egress, and the limits of a machine for its disks.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Confidence, SourceKeys};
use crate::catalogue::select::{Pattern, Range};

/// A family of machines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Family {
    /// Sources.
    pub source: SourceKeys,
    /// In place of the sources' own.
    pub confidence: Option<Confidence>,
    /// The vCPU counts that there are; not known if absent.
    pub vcpus: Option<Vec<u32>>,
    /// Most vCPUs, where the counts are not listed.
    pub vcpus_max: Option<u32>,
    /// Whether any count of vCPUs can be had (`n1-custom-6-…`).
    #[serde(default)]
    pub custom: bool,
    /// Machines whose names do not tell their vCPUs.
    #[serde(default)]
    pub machines: Vec<String>,
    /// Network egress of its machines.
    #[serde(default)]
    pub egress: Vec<EgressRow>,
    /// Types of disk and whether they can be attached: `yes`, `no` or `by-request`. Types not
    /// listed are not known to be refused.
    #[serde(default)]
    pub disks: BTreeMap<String, Support>,
    /// Anything else.
    pub note: Option<String>,
}

/// Whether a type of disk can be attached to a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Support {
    /// It can.
    Yes,
    /// It cannot.
    No,
    /// After asking the provider.
    ByRequest,
}

/// Network egress of some machines of a family.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EgressRow {
    /// vCPUs of the machines.
    pub vcpus: Option<Range>,
    /// Or their names.
    pub machine: Option<Pattern>,
    /// Default, in Gbit/s.
    pub gbit_per_s: f64,
    /// With the dearer networking tier, in Gbit/s.
    pub tier1_gbit_per_s: Option<f64>,
}

/// Limits of a machine for all volumes of some types together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmTable {
    /// Types of disk.
    pub types: Vec<String>,
    /// Families of machines; `*` is any that no other table of the type names.
    pub families: Vec<String>,
    /// Sources.
    pub source: SourceKeys,
    /// In place of the sources' own.
    pub confidence: Option<Confidence>,
    /// The rows.
    pub rows: Vec<VmRow>,
    /// Anything else.
    pub note: Option<String>,
}

/// Limits of some machines. `iops` and `mb_per_s` are of reads and writes together; the others of
/// each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmRow {
    /// vCPUs of the machines.
    pub vcpus: Option<Range>,
    /// Or their names.
    pub machine: Option<Pattern>,
    /// Reads and writes.
    pub iops: Option<f64>,
    /// Reads and writes.
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
    /// Sources, in place of the table's.
    pub source: Option<SourceKeys>,
    /// In place of the table's.
    pub confidence: Option<Confidence>,
    /// Anything else.
    pub note: Option<String>,
}

/// Limits of a number of disks that each have one size (local SSD).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CountTable {
    /// The type of disk.
    #[serde(rename = "type")]
    pub kind: String,
    /// Sources.
    pub source: SourceKeys,
    /// In place of the sources' own.
    pub confidence: Option<Confidence>,
    /// Size of each, in place of the type's.
    #[serde(alias = "size_gib_each")]
    pub size_gb_each: Option<f64>,
    /// The rows.
    pub rows: Vec<CountRow>,
    /// Anything else.
    pub note: Option<String>,
}

/// Limits of so many disks, or of the disks that a machine comes with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CountRow {
    /// How many disks.
    pub disks: Range,
    /// The machine that comes with them; any that takes as many if absent.
    pub machine: Option<Pattern>,
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
