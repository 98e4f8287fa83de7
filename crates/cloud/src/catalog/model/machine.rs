//! Machines: families, egress, and the limits of a machine for its disks.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Confidence, SourceKeys};
use crate::catalog::select::{CountRange, NamePattern};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineFamily {
    pub source: SourceKeys,
    pub confidence: Option<Confidence>,
    /// Not known if absent.
    pub vcpus: Option<Vec<u32>>,
    /// If the counts are not listed.
    pub(crate) vcpus_max: Option<u32>,
    /// Any vCPU count is available (`n1-custom-6-…`).
    #[serde(default)]
    pub custom: bool,
    /// Whose names lack their vCPUs.
    #[serde(default)]
    pub machines: Vec<String>,
    #[serde(default)]
    pub egress: Vec<EgressRow>,
    /// Disk types that can be attached: `yes`, `no` or `by-request`. A type not listed is not
    /// refused.
    #[serde(default)]
    pub disks: BTreeMap<String, Support>,
    /// Local SSDs of a machine; none if absent.
    pub local_ssd: Option<LocalSsd>,
    pub note: Option<String>,
}

impl MachineFamily {
    /// Whether the family names this machine.
    pub(crate) fn names(&self, machine: &str) -> bool {
        self.machines.iter().any(|known| known == machine)
    }

    /// The most vCPUs of a machine; `None` if not known.
    pub fn vcpus_most(&self) -> Option<u32> {
        self.vcpus_max.or_else(|| self.vcpus.as_ref()?.iter().max().copied())
    }
}

/// Local SSDs of a machine family. Machines that come with their disks have rows in [`CountTable`]
/// and none here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LocalSsd {
    pub source: SourceKeys,
    pub confidence: Option<Confidence>,
    /// Types of the rows.
    #[serde(default)]
    pub types: Vec<String>,
    /// Machines without a row have none.
    #[serde(default)]
    pub rows: Vec<LocalSsdRow>,
    /// vCPUs that the highest figures need.
    pub vcpus_for_maximum: Option<u32>,
    pub note: Option<String>,
}

/// Numbers of local SSDs that some machines of a family take.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LocalSsdRow {
    pub vcpus: Option<CountRange>,
    pub machine: Option<NamePattern>,
    /// Such as `["1-8", "16", "24"]`.
    pub disks: Vec<CountRange>,
}

/// Whether a disk type can be attached to a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Support {
    Yes,
    No,
    ByRequest,
}

/// Network egress of some machines of a family.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EgressRow {
    pub vcpus: Option<CountRange>,
    pub machine: Option<NamePattern>,
    pub gbit_per_s: f64,
    /// With Tier_1 networking.
    pub(crate) tier1_gbit_per_s: Option<f64>,
}

/// Limits of a machine for all volumes of some types together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmTable {
    pub types: Vec<String>,
    /// Machine families; `*` stands for families without a table of their own for the type.
    pub families: Vec<String>,
    pub source: SourceKeys,
    pub confidence: Option<Confidence>,
    pub rows: Vec<VmRow>,
    pub note: Option<String>,
}

/// Limits of some machines. `iops` and `mb_per_s` limit reads and writes together; the others limit
/// each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmRow {
    pub vcpus: Option<CountRange>,
    pub machine: Option<NamePattern>,
    /// Of reads and writes together, as `mb_per_s`.
    pub iops: Option<f64>,
    #[serde(alias = "mib_per_s")]
    pub mb_per_s: Option<f64>,
    pub read_iops: Option<f64>,
    pub write_iops: Option<f64>,
    #[serde(alias = "read_mib_per_s")]
    pub read_mb_per_s: Option<f64>,
    #[serde(alias = "write_mib_per_s")]
    pub write_mb_per_s: Option<f64>,
    /// Instead of the table's, as `confidence`.
    pub source: Option<SourceKeys>,
    pub confidence: Option<Confidence>,
    pub note: Option<String>,
}

/// Limits by the number of disks, for disks of one size (local SSD).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CountTable {
    #[serde(rename = "type")]
    pub kind: String,
    pub source: SourceKeys,
    pub confidence: Option<Confidence>,
    /// Instead of the type's.
    #[serde(alias = "size_gib_each")]
    pub size_gb_each: Option<f64>,
    pub rows: Vec<CountRow>,
    pub note: Option<String>,
}

/// Limits of a number of disks, or of the disks that a machine comes with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CountRow {
    pub disks: CountRange,
    /// The machine that comes with the disks; any machine with that number if absent.
    pub machine: Option<NamePattern>,
    /// Not known if absent.
    pub read_iops: Option<f64>,
    pub write_iops: Option<f64>,
    #[serde(alias = "read_mib_per_s")]
    pub read_mb_per_s: Option<f64>,
    #[serde(alias = "write_mib_per_s")]
    pub write_mb_per_s: Option<f64>,
}
