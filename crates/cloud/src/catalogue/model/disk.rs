//! Disk types: limits by size, provisioned performance, and sharing between reads and writes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Confidence, SourceKeys};

/// Sharing of a limit between simultaneous reads and writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sharing {
    /// One budget: `read / read_max + write / write_max <= 1`.
    Shared,
    /// Separate budgets.
    Independent,
    /// Half duplex: `read + write <= max`, one number for both.
    HalfDuplex,
}

/// Sharing rules for IOPS and throughput.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mixing {
    /// Sources.
    pub source: SourceKeys,
    /// Overrides the confidence of the sources.
    pub confidence: Option<Confidence>,
    /// Rule for IOPS.
    pub iops: Sharing,
    /// Rule for throughput.
    pub throughput: Sharing,
    /// Remark.
    pub note: Option<String>,
}

/// A disk type.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskType {
    /// Display name.
    pub title: String,
    /// Sources.
    pub source: SourceKeys,
    /// Overrides the confidence of the sources.
    pub confidence: Option<Confidence>,
    /// Smallest volume.
    #[serde(alias = "size_gib_min")]
    pub size_gb_min: Option<f64>,
    /// Largest volume.
    #[serde(alias = "size_gib_max")]
    pub size_gb_max: Option<f64>,
    /// The only size, for local SSDs.
    #[serde(alias = "size_gib_each")]
    pub size_gb_each: Option<f64>,
    /// Latency in the words of its source.
    pub latency: Option<String>,
    /// Smallest block that reaches the highest throughput.
    #[serde(alias = "block_kib_min_for_throughput")]
    pub block_kb_min_for_throughput: Option<f64>,
    /// Writes use the network egress of the machine.
    #[serde(default)]
    pub uses_egress: bool,
    /// Limits by size.
    pub volume: Option<VolumeLimits>,
    /// Limits by size of regional disks, instead of `volume`.
    pub regional: Option<VolumeLimits>,
    /// Every disk of the type is replicated in two zones.
    #[serde(default)]
    pub always_regional: bool,
    /// Performance that is bought separately from the size.
    pub provisioned: Option<ProvisionedRule>,
    /// Sharing between reads and writes.
    pub mixing: Option<Mixing>,
    /// Queue depth rule.
    pub queue: Option<QueueRule>,
    /// Remark.
    pub note: Option<String>,
}

/// Limits by the total size of a type's volumes on a machine: `min(baseline + per_gb × size, max)`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeLimits {
    /// Sources.
    pub source: SourceKeys,
    /// Overrides the confidence of the sources.
    pub confidence: Option<Confidence>,
    /// Read IOPS per GB.
    #[serde(alias = "read_iops_per_gib")]
    pub read_iops_per_gb: Option<f64>,
    /// Write IOPS per GB.
    #[serde(alias = "write_iops_per_gib")]
    pub write_iops_per_gb: Option<f64>,
    /// Read throughput per GB.
    #[serde(alias = "read_mib_per_s_per_gib")]
    pub read_mb_per_s_per_gb: Option<f64>,
    /// Write throughput per GB.
    #[serde(alias = "write_mib_per_s_per_gib")]
    pub write_mb_per_s_per_gb: Option<f64>,
    /// IOPS of the first volume at any size.
    #[serde(default)]
    pub baseline_iops: f64,
    /// Throughput of the first volume at any size.
    #[serde(default, alias = "baseline_mib_per_s")]
    pub baseline_mb_per_s: f64,
    /// Maximum read IOPS.
    pub read_iops_max: Option<f64>,
    /// Maximum write IOPS.
    pub write_iops_max: Option<f64>,
    /// Maximum write IOPS by block size: the first row with a block not smaller, or the last row.
    #[serde(default)]
    pub write_iops_max_by_block: Vec<BlockCap>,
    /// Maximum read throughput.
    #[serde(alias = "read_mib_per_s_max")]
    pub read_mb_per_s_max: Option<f64>,
    /// Maximum write throughput.
    #[serde(alias = "write_mib_per_s_max")]
    pub write_mb_per_s_max: Option<f64>,
    /// Remark.
    pub note: Option<String>,
}

/// Maximum IOPS for blocks up to a size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockCap {
    /// Largest block of the row.
    #[serde(alias = "block_kib_max")]
    pub block_kb_max: f64,
    /// Maximum IOPS.
    pub iops: f64,
}

/// Range and price rules of performance that is bought separately from the size.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProvisionedRule {
    /// Sources.
    pub source: SourceKeys,
    /// Overrides the confidence of the sources.
    pub confidence: Option<Confidence>,
    /// Minimum IOPS of a volume.
    pub iops_min: Option<f64>,
    /// Maximum IOPS of a volume.
    pub iops_max: Option<f64>,
    /// Maximum IOPS per GB.
    #[serde(alias = "iops_per_gib_max")]
    pub iops_per_gb_max: Option<f64>,
    /// Default IOPS.
    pub iops_default: Option<f64>,
    /// IOPS per MB/s, for types whose IOPS follow the throughput and are not sold.
    #[serde(alias = "iops_per_mib_per_s")]
    pub iops_per_mb_per_s: Option<f64>,
    /// Minimum throughput of a volume.
    #[serde(alias = "mib_per_s_min")]
    pub mb_per_s_min: Option<f64>,
    /// Maximum throughput of a volume.
    #[serde(alias = "mib_per_s_max")]
    pub mb_per_s_max: Option<f64>,
    /// Minimum throughput per IOPS bought.
    #[serde(alias = "mib_per_s_per_iops_min")]
    pub mb_per_s_per_iops_min: Option<f64>,
    /// Maximum throughput per IOPS bought.
    #[serde(alias = "mib_per_s_per_iops_max")]
    pub mb_per_s_per_iops_max: Option<f64>,
    /// Minimum throughput per GB.
    #[serde(alias = "mib_per_s_per_gib_min")]
    pub mb_per_s_per_gb_min: Option<f64>,
    /// Maximum throughput per GB.
    #[serde(alias = "mib_per_s_per_gib_max")]
    pub mb_per_s_per_gb_max: Option<f64>,
    /// Default throughput.
    #[serde(alias = "mib_per_s_default")]
    pub mb_per_s_default: Option<f64>,
    /// Default throughput per GB, if that is more.
    #[serde(alias = "mib_per_s_per_gib_default")]
    pub mb_per_s_per_gb_default: Option<f64>,
    /// Throughput per IOPS, for types whose throughput follows the IOPS and is not sold.
    #[serde(alias = "mib_per_s_per_iops")]
    pub mb_per_s_per_iops: Option<f64>,
    /// Free IOPS.
    pub iops_free: Option<f64>,
    /// Free throughput.
    #[serde(alias = "mib_per_s_free")]
    pub mb_per_s_free: Option<f64>,
    /// Minimum vCPUs of the machine, by family.
    #[serde(default)]
    pub vcpus_min: BTreeMap<String, u32>,
    /// Remark.
    pub note: Option<String>,
}

/// IOPS per I/O in flight, which bounds IOPS by the queue depth (Little's law).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueRule {
    /// Sources.
    pub source: SourceKeys,
    /// Overrides the confidence of the sources.
    pub confidence: Option<Confidence>,
    /// Guaranteed IOPS of each I/O in flight.
    pub iops_per_io_low: f64,
    /// IOPS of each I/O in flight in the best case; the guaranteed figure if absent.
    pub iops_per_io_high: Option<f64>,
    /// Remark.
    pub note: Option<String>,
}
