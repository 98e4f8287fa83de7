//! Disk types: limits by size, provisioned performance, and sharing between reads and writes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Confidence, SourceKeys};
use crate::catalog::select::CountRange;

/// Sharing of a limit between simultaneous reads and writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sharing {
    /// One budget: `read / read_max + write / write_max <= 1`.
    Shared,
    Independent,
    /// Half duplex: `read + write <= max`, one number for both.
    HalfDuplex,
}

/// Sharing rules for IOPS and throughput.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mixing {
    pub source: SourceKeys,
    pub confidence: Option<Confidence>,
    pub iops: Sharing,
    pub throughput: Sharing,
    pub note: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskType {
    pub title: String,
    pub source: SourceKeys,
    pub confidence: Option<Confidence>,
    #[serde(alias = "size_gib_min")]
    pub size_gb_min: Option<f64>,
    #[serde(alias = "size_gib_max")]
    pub size_gb_max: Option<f64>,
    /// Of all disks of a machine.
    #[serde(alias = "size_gib_max_vm")]
    pub(crate) size_gb_max_vm: Option<f64>,
    /// The only size, for local SSDs.
    #[serde(alias = "size_gib_each")]
    pub size_gb_each: Option<f64>,
    /// In the words of its source.
    pub latency: Option<String>,
    /// Advice of the source about using such disks.
    #[serde(default)]
    pub advice: Vec<String>,
    /// vCPUs that the source advises for each disk.
    pub vcpus_per_disk: Option<CountRange>,
    /// Smallest block that reaches the highest throughput.
    #[serde(alias = "block_kib_min_for_throughput")]
    pub block_kb_min_for_throughput: Option<f64>,
    /// Writes use the network egress of the machine.
    #[serde(default)]
    pub(crate) uses_egress: bool,
    /// Limits by size.
    pub volume: Option<VolumeLimits>,
    /// Limits by size of regional disks, instead of `volume`.
    pub regional: Option<VolumeLimits>,
    /// Every disk of the type is replicated in two zones.
    #[serde(default)]
    pub(crate) always_regional: bool,
    /// Performance that is bought separately from the size.
    pub provisioned: Option<ProvisionedRule>,
    pub mixing: Option<Mixing>,
    pub queue: Option<QueueRule>,
    pub note: Option<String>,
}

/// Limits by the total size of a type's volumes on a machine: `min(baseline + per_gb × size, max)`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeLimits {
    pub source: SourceKeys,
    pub confidence: Option<Confidence>,
    #[serde(alias = "read_iops_per_gib")]
    pub read_iops_per_gb: Option<f64>,
    #[serde(alias = "write_iops_per_gib")]
    pub write_iops_per_gb: Option<f64>,
    #[serde(alias = "read_mib_per_s_per_gib")]
    pub read_mb_per_s_per_gb: Option<f64>,
    #[serde(alias = "write_mib_per_s_per_gib")]
    pub write_mb_per_s_per_gb: Option<f64>,
    /// Of the first volume at any size, as `baseline_mb_per_s`.
    #[serde(default)]
    pub baseline_iops: f64,
    #[serde(default, alias = "baseline_mib_per_s")]
    pub(crate) baseline_mb_per_s: f64,
    pub read_iops_max: Option<f64>,
    pub write_iops_max: Option<f64>,
    /// Maximum write IOPS: the first row with a block not smaller, or the last.
    #[serde(default)]
    pub(crate) write_iops_max_by_block: Vec<BlockCap>,
    #[serde(alias = "read_mib_per_s_max")]
    pub(crate) read_mb_per_s_max: Option<f64>,
    #[serde(alias = "write_mib_per_s_max")]
    pub(crate) write_mb_per_s_max: Option<f64>,
    pub note: Option<String>,
}

/// Maximum IOPS for blocks up to a size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BlockCap {
    /// Largest block of the row.
    #[serde(alias = "block_kib_max")]
    pub(crate) block_kb_max: f64,
    pub iops: f64,
}

/// Maximum IOPS from a size on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SizeCap {
    #[serde(alias = "size_gib_min")]
    pub(crate) size_gb_min: f64,
    pub(crate) iops: f64,
}

/// Range and price rules of performance that is bought separately from the size.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProvisionedRule {
    pub source: SourceKeys,
    pub confidence: Option<Confidence>,
    pub iops_min: Option<f64>,
    pub iops_max: Option<f64>,
    /// Maximum IOPS by size: the last row of a size not larger.
    #[serde(default)]
    pub(crate) iops_max_by_size: Vec<SizeCap>,
    #[serde(alias = "iops_per_gib_max")]
    pub iops_per_gb_max: Option<f64>,
    pub iops_default: Option<f64>,
    /// For types whose IOPS follow the throughput.
    #[serde(alias = "iops_per_mib_per_s")]
    pub iops_per_mb_per_s: Option<f64>,
    #[serde(alias = "mib_per_s_min")]
    pub mb_per_s_min: Option<f64>,
    #[serde(alias = "mib_per_s_max")]
    pub mb_per_s_max: Option<f64>,
    #[serde(alias = "mib_per_s_per_iops_min")]
    pub mb_per_s_per_iops_min: Option<f64>,
    #[serde(alias = "mib_per_s_per_iops_max")]
    pub mb_per_s_per_iops_max: Option<f64>,
    #[serde(alias = "mib_per_s_per_gib_min")]
    pub(crate) mb_per_s_per_gb_min: Option<f64>,
    #[serde(alias = "mib_per_s_per_gib_max")]
    pub(crate) mb_per_s_per_gb_max: Option<f64>,
    #[serde(alias = "mib_per_s_default")]
    pub mb_per_s_default: Option<f64>,
    /// If that is more.
    #[serde(alias = "mib_per_s_per_gib_default")]
    pub(crate) mb_per_s_per_gb_default: Option<f64>,
    /// For types whose throughput follows the IOPS.
    #[serde(alias = "mib_per_s_per_iops")]
    pub(crate) mb_per_s_per_iops: Option<f64>,
    pub iops_free: Option<f64>,
    #[serde(alias = "mib_per_s_free")]
    pub mb_per_s_free: Option<f64>,
    /// By family.
    #[serde(default)]
    pub(crate) vcpus_min: BTreeMap<String, u32>,
    pub note: Option<String>,
}

/// IOPS per I/O in flight, which bounds IOPS by the queue depth (Little's law).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueRule {
    pub source: SourceKeys,
    pub confidence: Option<Confidence>,
    /// Guaranteed IOPS of each I/O in flight.
    pub(crate) iops_per_io_low: f64,
    /// In the best case; `iops_per_io_low` if absent.
    pub(crate) iops_per_io_high: Option<f64>,
    pub note: Option<String>,
}
