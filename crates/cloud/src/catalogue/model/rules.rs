//! Rules over all of it: egress, CPU, prices.

use serde::{Deserialize, Serialize};

use super::{Confidence, SourceKeys};

/// How the network's egress bounds writes:
/// `max((egress − other) × throughput_per_gbit, share × egress × throughput_per_gbit) / multiplier`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Egress {
    /// Sources.
    pub source: SourceKeys,
    /// In place of the sources' own.
    pub confidence: Option<Confidence>,
    /// Egress of each vCPU, where families do not list it, in Gbit/s.
    pub gbit_per_s_per_vcpu: Option<f64>,
    /// Most of a machine by that rule, in Gbit/s.
    pub gbit_per_s_max: Option<f64>,
    /// Units of throughput in one Gbit/s, as the source counts them.
    pub throughput_per_gbit: f64,
    /// Bytes of that unit, which may differ from the catalogue's.
    pub throughput_bytes: u64,
    /// Bytes sent for each byte written to a zonal disk.
    pub multiplier_zonal: f64,
    /// Bytes sent for each byte written to a regional disk.
    pub multiplier_regional: f64,
    /// Part of the egress that disks keep when other traffic wants all of it, 0 to 1.
    pub disk_share: f64,
    /// How the source rounds.
    pub rounding: Rounding,
    /// Anything else.
    pub note: Option<String>,
}

/// How a source rounds what it computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rounding {
    /// Down.
    Floor,
    /// To the nearest.
    Nearest,
    /// Not at all.
    None,
}

/// What a vCPU can drive.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cpu {
    /// Sources.
    pub source: SourceKeys,
    /// In place of the sources' own.
    pub confidence: Option<Confidence>,
    /// Types of disk that it is said of.
    pub types: Vec<String>,
    /// Read IOPS of each free vCPU.
    pub read_iops_per_vcpu: f64,
    /// Write IOPS of each free vCPU.
    pub write_iops_per_vcpu: f64,
    /// Anything else.
    pub note: Option<String>,
}

/// What a type of disk costs, in USD a month.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// The type of disk.
    #[serde(rename = "type")]
    pub kind: String,
    /// The cloud's region.
    pub region: String,
    /// Sources.
    pub source: SourceKeys,
    /// In place of the sources' own.
    pub confidence: Option<Confidence>,
    /// Each GB of a zonal disk.
    #[serde(alias = "usd_per_gib")]
    pub usd_per_gb: f64,
    /// Each GB of a regional disk; not known if absent.
    #[serde(alias = "usd_per_gib_regional")]
    pub usd_per_gb_regional: Option<f64>,
    /// Each IOPS bought beyond the free ones.
    pub usd_per_iops: Option<f64>,
    /// Each MB/s bought beyond the free ones.
    #[serde(alias = "usd_per_mib_per_s")]
    pub usd_per_mb_per_s: Option<f64>,
    /// Whether the sources contradict each other so far that it is not to be used.
    #[serde(default)]
    pub disputed: bool,
    /// Anything else, such as prices of other terms.
    pub note: Option<String>,
}
