//! Catalog-wide rules: egress, CPU, prices.

use serde::{Deserialize, Serialize};

use super::{Confidence, SourceKeys};

/// Egress limit of writes: `max((egress − other) × throughput_per_gbit, share × egress ×
/// throughput_per_gbit) / multiplier`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Egress {
    pub source: SourceKeys,
    pub confidence: Option<Confidence>,
    /// For families without a list.
    pub(crate) gbit_per_s_per_vcpu: Option<f64>,
    /// Maximum by that rule.
    pub(crate) gbit_per_s_max: Option<f64>,
    /// Throughput units per Gbit/s, in the source's counting.
    pub(crate) throughput_per_gbit: f64,
    /// Bytes of that unit, which may differ from the catalog's.
    pub throughput_bytes: u64,
    /// Bytes sent per byte written.
    pub(crate) multiplier_zonal: f64,
    pub(crate) multiplier_regional: f64,
    /// Fraction of the egress, 0 to 1, that disks keep under other traffic.
    pub(crate) disk_share: f64,
    /// `floor`, `nearest` or `none`.
    pub(crate) rounding: Rounding,
    pub note: Option<String>,
}

/// Rounding of computed figures by a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Rounding {
    Floor,
    Nearest,
    None,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cpu {
    pub source: SourceKeys,
    pub confidence: Option<Confidence>,
    pub types: Vec<String>,
    pub(crate) read_iops_per_vcpu: f64,
    pub(crate) write_iops_per_vcpu: f64,
    pub note: Option<String>,
}

/// Price of a disk type, in USD per month.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    #[serde(rename = "type")]
    pub kind: String,
    pub region: String,
    pub source: SourceKeys,
    pub confidence: Option<Confidence>,
    #[serde(alias = "usd_per_gib")]
    pub usd_per_gb: f64,
    /// Not known if absent.
    #[serde(alias = "usd_per_gib_regional")]
    pub usd_per_gb_regional: Option<f64>,
    /// Above the free ones, as `usd_per_mb_per_s`.
    pub usd_per_iops: Option<f64>,
    #[serde(alias = "usd_per_mib_per_s")]
    pub usd_per_mb_per_s: Option<f64>,
    /// The sources disagree too far for the price to be used.
    #[serde(default)]
    pub(crate) disputed: bool,
    pub note: Option<String>,
}
