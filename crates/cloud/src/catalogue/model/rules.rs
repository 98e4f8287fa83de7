//! Catalogue-wide rules: egress, CPU, prices.

use serde::{Deserialize, Serialize};

use super::{Confidence, SourceKeys};

/// Egress limit of writes: `max((egress − other) × throughput_per_gbit, share × egress ×
/// throughput_per_gbit) / multiplier`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Egress {
    /// Sources.
    pub source: SourceKeys,
    /// Overrides the confidence of the sources.
    pub confidence: Option<Confidence>,
    /// Egress per vCPU in Gbit/s, for families without a list.
    pub gbit_per_s_per_vcpu: Option<f64>,
    /// Maximum egress of a machine by that rule, in Gbit/s.
    pub gbit_per_s_max: Option<f64>,
    /// Throughput units per Gbit/s, in the source's counting.
    pub throughput_per_gbit: f64,
    /// Bytes of that unit, which may differ from the catalogue's.
    pub throughput_bytes: u64,
    /// Bytes sent per byte written to a zonal disk.
    pub multiplier_zonal: f64,
    /// Bytes sent per byte written to a regional disk.
    pub multiplier_regional: f64,
    /// Fraction of the egress, 0 to 1, that disks keep under other traffic.
    pub disk_share: f64,
    /// Rounding of the source.
    pub rounding: Rounding,
    /// Remark.
    pub note: Option<String>,
}

/// Rounding of computed figures by a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rounding {
    /// Down.
    Floor,
    /// To the nearest.
    Nearest,
    /// None.
    None,
}

/// IOPS per vCPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cpu {
    /// Sources.
    pub source: SourceKeys,
    /// Overrides the confidence of the sources.
    pub confidence: Option<Confidence>,
    /// Disk types with this rule.
    pub types: Vec<String>,
    /// Read IOPS per free vCPU.
    pub read_iops_per_vcpu: f64,
    /// Write IOPS per free vCPU.
    pub write_iops_per_vcpu: f64,
    /// Remark.
    pub note: Option<String>,
}

/// Price of a disk type, in USD per month.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Disk type.
    #[serde(rename = "type")]
    pub kind: String,
    /// The cloud's region.
    pub region: String,
    /// Sources.
    pub source: SourceKeys,
    /// Overrides the confidence of the sources.
    pub confidence: Option<Confidence>,
    /// Price per GB of a zonal disk.
    #[serde(alias = "usd_per_gib")]
    pub usd_per_gb: f64,
    /// Price per GB of a regional disk; not known if absent.
    #[serde(alias = "usd_per_gib_regional")]
    pub usd_per_gb_regional: Option<f64>,
    /// Price per IOPS above the free ones.
    pub usd_per_iops: Option<f64>,
    /// Price per MB/s above the free ones.
    #[serde(alias = "usd_per_mib_per_s")]
    pub usd_per_mb_per_s: Option<f64>,
    /// The sources disagree so much that the price is not used.
    #[serde(default)]
    pub disputed: bool,
    /// Remark, such as prices of other terms.
    pub note: Option<String>,
}
