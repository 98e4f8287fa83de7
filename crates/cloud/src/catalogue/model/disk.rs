//! Types of disk: limits by size, what can be bought, how reads and writes share.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Confidence, SourceKeys};

/// How reads and writes at the same time share a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sharing {
    /// One budget: `read / read_max + write / write_max <= 1`.
    Shared,
    /// Each has its own.
    Independent,
    /// Half duplex: `read + write <= max`, one number for both.
    HalfDuplex,
}

/// How reads and writes share, for IOPS and for throughput.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mixing {
    /// Sources.
    pub source: SourceKeys,
    /// In place of the sources' own.
    pub confidence: Option<Confidence>,
    /// Of IOPS.
    pub iops: Sharing,
    /// Of throughput.
    pub throughput: Sharing,
    /// Anything else.
    pub note: Option<String>,
}

/// A type of disk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskType {
    /// Its name for people.
    pub title: String,
    /// Sources.
    pub source: SourceKeys,
    /// In place of the sources' own.
    pub confidence: Option<Confidence>,
    /// Smallest volume.
    #[serde(alias = "size_gib_min")]
    pub size_gb_min: Option<f64>,
    /// Largest volume.
    #[serde(alias = "size_gib_max")]
    pub size_gb_max: Option<f64>,
    /// Where volumes are of one size alone (local SSD).
    #[serde(alias = "size_gib_each")]
    pub size_gb_each: Option<f64>,
    /// Latency as its source words it.
    pub latency: Option<String>,
    /// Smallest block with which the highest throughput is reached.
    #[serde(alias = "block_kib_min_for_throughput")]
    pub block_kb_min_for_throughput: Option<f64>,
    /// Whether its writes leave the machine through the network's egress.
    #[serde(default)]
    pub uses_egress: bool,
    /// Limits that follow the size of the volume.
    pub volume: Option<VolumeLimits>,
    /// In place of those of `volume`, for regional disks.
    pub regional: Option<VolumeLimits>,
    /// Whether every disk of the type is replicated in two zones.
    #[serde(default)]
    pub always_regional: bool,
    /// Performance that is bought apart from the size.
    pub provisioned: Option<Provisioned>,
    /// How reads and writes share.
    pub mixing: Option<Mixing>,
    /// What one I/O in flight brings.
    pub queue: Option<Queue>,
    /// Anything else.
    pub note: Option<String>,
}

/// Limits that follow the size of the volumes of a type on a machine, all together:
/// `min(baseline + per_gb × size, max)`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeLimits {
    /// Sources.
    pub source: SourceKeys,
    /// In place of the sources' own.
    pub confidence: Option<Confidence>,
    /// Read IOPS of each GB.
    #[serde(alias = "read_iops_per_gib")]
    pub read_iops_per_gb: Option<f64>,
    /// Write IOPS of each GB.
    #[serde(alias = "write_iops_per_gib")]
    pub write_iops_per_gb: Option<f64>,
    /// Read throughput of each GB.
    #[serde(alias = "read_mib_per_s_per_gib")]
    pub read_mb_per_s_per_gb: Option<f64>,
    /// Write throughput of each GB.
    #[serde(alias = "write_mib_per_s_per_gib")]
    pub write_mb_per_s_per_gb: Option<f64>,
    /// IOPS that the first volume has whatever its size.
    #[serde(default)]
    pub baseline_iops: f64,
    /// Throughput that the first volume has whatever its size.
    #[serde(default, alias = "baseline_mib_per_s")]
    pub baseline_mb_per_s: f64,
    /// Most read IOPS at any size.
    pub read_iops_max: Option<f64>,
    /// Most write IOPS at any size.
    pub write_iops_max: Option<f64>,
    /// Most write IOPS by block size: the first row whose block is not smaller holds, the last
    /// for anything larger.
    #[serde(default)]
    pub write_iops_max_by_block: Vec<BlockCap>,
    /// Most read throughput at any size.
    #[serde(alias = "read_mib_per_s_max")]
    pub read_mb_per_s_max: Option<f64>,
    /// Most write throughput at any size.
    #[serde(alias = "write_mib_per_s_max")]
    pub write_mb_per_s_max: Option<f64>,
    /// Anything else.
    pub note: Option<String>,
}

/// A cap of IOPS for blocks up to a size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockCap {
    /// Largest block that it is for.
    #[serde(alias = "block_kib_max")]
    pub block_kb_max: f64,
    /// The cap.
    pub iops: f64,
}

/// Performance that is bought apart from the size, and what may be bought.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provisioned {
    /// Sources.
    pub source: SourceKeys,
    /// In place of the sources' own.
    pub confidence: Option<Confidence>,
    /// Fewest IOPS of a volume.
    pub iops_min: Option<f64>,
    /// Most IOPS of a volume.
    pub iops_max: Option<f64>,
    /// Most IOPS of each GB.
    #[serde(alias = "iops_per_gib_max")]
    pub iops_per_gb_max: Option<f64>,
    /// IOPS where none are asked for.
    pub iops_default: Option<f64>,
    /// IOPS that follow the throughput and cannot be bought: so many for each MB/s.
    #[serde(alias = "iops_per_mib_per_s")]
    pub iops_per_mb_per_s: Option<f64>,
    /// Least throughput of a volume.
    #[serde(alias = "mib_per_s_min")]
    pub mb_per_s_min: Option<f64>,
    /// Most throughput of a volume.
    #[serde(alias = "mib_per_s_max")]
    pub mb_per_s_max: Option<f64>,
    /// Least throughput for each IOPS bought.
    #[serde(alias = "mib_per_s_per_iops_min")]
    pub mb_per_s_per_iops_min: Option<f64>,
    /// Most throughput for each IOPS bought.
    #[serde(alias = "mib_per_s_per_iops_max")]
    pub mb_per_s_per_iops_max: Option<f64>,
    /// Least throughput for each GB.
    #[serde(alias = "mib_per_s_per_gib_min")]
    pub mb_per_s_per_gb_min: Option<f64>,
    /// Most throughput for each GB.
    #[serde(alias = "mib_per_s_per_gib_max")]
    pub mb_per_s_per_gb_max: Option<f64>,
    /// Throughput where none is asked for.
    #[serde(alias = "mib_per_s_default")]
    pub mb_per_s_default: Option<f64>,
    /// Throughput for each GB where none is asked for, if that is more.
    #[serde(alias = "mib_per_s_per_gib_default")]
    pub mb_per_s_per_gb_default: Option<f64>,
    /// Throughput that follows the IOPS and cannot be bought: so much for each IOPS.
    #[serde(alias = "mib_per_s_per_iops")]
    pub mb_per_s_per_iops: Option<f64>,
    /// Of the IOPS bought, those that cost nothing.
    pub iops_free: Option<f64>,
    /// Of the throughput bought, that which costs nothing.
    #[serde(alias = "mib_per_s_free")]
    pub mb_per_s_free: Option<f64>,
    /// Fewest vCPUs of a machine, by family.
    #[serde(default)]
    pub vcpus_min: BTreeMap<String, u32>,
    /// Anything else.
    pub note: Option<String>,
}

/// What one I/O in flight brings, which with Little's law bounds IOPS by the queue depth.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Queue {
    /// Sources.
    pub source: SourceKeys,
    /// In place of the sources' own.
    pub confidence: Option<Confidence>,
    /// IOPS that each I/O in flight surely brings.
    pub iops_per_io_low: f64,
    /// IOPS that each I/O in flight brings at best; as the low figure if absent.
    pub iops_per_io_high: Option<f64>,
    /// Anything else.
    pub note: Option<String>,
}
