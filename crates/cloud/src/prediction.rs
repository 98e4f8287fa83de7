//! Prediction results.

use serde::Serialize;

use crate::catalogue::{Confidence, Inconsistency, LimitKind, Sharing};
use crate::input::{DiskConfiguration, Workload};

/// A rate as IOPS and as bytes: `bytes_per_s` is `iops` times the block size.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Rates {
    pub iops: f64,
    pub bytes_per_s: f64,
    /// Throughput in the catalogue's unit.
    pub throughput: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dimension {
    Iops,
    /// The catalogue's unit of throughput.
    Throughput,
}

/// A limit with the recommendations that lift it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PredictedLimit {
    pub kind: LimitKind,
    /// Unit of `read` and `write`.
    pub dimension: Dimension,
    /// The limit of reads; none if it does not limit them.
    pub read: Option<f64>,
    /// The limit of writes; none if it does not limit them.
    pub write: Option<f64>,
    /// IOPS of this workload, reads and writes together, under only this limit.
    pub workload_iops: f64,
    pub explanation: String,
    /// Recommendations that lift it, the most direct first.
    pub recommendations: Vec<LimitRecommendation>,
    pub sources: Vec<String>,
    /// Confidence of the table, or the lowest of its sources.
    pub confidence: Confidence,
}

/// A change that lifts a limit: the smallest that brings the workload to the next limit, where
/// it can be computed.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "action", rename_all = "kebab-case")]
pub enum LimitRecommendation {
    LargerVolume {
        size: f64,
        unit: &'static str,
    },
    ProvisionIops {
        iops: f64,
    },
    ProvisionThroughput {
        /// Throughput of each disk, in the catalogue's unit.
        throughput: f64,
        unit: &'static str,
    },
    MoreDisks {
        disks: u32,
    },
    /// A machine of the family with more vCPUs, or with another name.
    LargerMachine {
        /// vCPU range or name, as in the table: `16-31`, or a name.
        machine: String,
        /// IOPS of this workload under that machine's limit.
        workload_iops: f64,
    },
    /// Another machine family: this one has no larger limit.
    OtherFamily,
    LessNetwork {
        /// Maximum in Gbit/s.
        gbit_per_s: f64,
    },
    /// A zonal disk, which sends each write one time less.
    Zonal,
    DeeperQueue {
        in_flight: u64,
    },
    MoreCpus {
        vcpus: u32,
    },
    /// Larger blocks: the same IOPS with more bytes.
    LargerBlocks {
        /// Block size at which throughput limits.
        bytes: u64,
    },
    /// Smaller blocks: more IOPS with the same bytes, or a higher limit by block size.
    SmallerBlocks {
        /// Maximum block size.
        bytes: u64,
    },
    /// Another disk type: this one has no more at any size.
    OtherType,
}

/// Limits that the cloud enforces on any workload, for a layer that emulates them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ceilings {
    /// Read IOPS; `None` without a known limit.
    pub read_iops: Option<f64>,
    pub write_iops: Option<f64>,
    /// Write IOPS by block size in bytes, in the order of the blocks, the last for all larger ones;
    /// empty if they do not depend on the block size.
    pub write_iops_by_block: Vec<(u64, f64)>,
    pub read_bytes_per_s: Option<f64>,
    pub write_bytes_per_s: Option<f64>,
    /// Sharing rule of IOPS; the strictest if unknown.
    pub iops_sharing: Sharing,
    /// Sharing rule of throughput; the strictest if unknown.
    pub throughput_sharing: Sharing,
    /// Whether a source gives the sharing rules.
    pub sharing_known: bool,
    /// Service time of one I/O in µs, guarantee and best case, from the queue depth rule; `None` if
    /// unknown.
    pub service_us: Option<(f64, f64)>,
}

/// A source of a result.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SourceUse {
    pub key: String,
    pub address: String,
    pub date: String,
    /// Confidence of the used part.
    pub confidence: Confidence,
}

/// Price of the disks, without the machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cost {
    /// USD per month, for all disks.
    pub usd_per_month: f64,
    pub usd_capacity: f64,
    pub usd_iops: f64,
    pub usd_throughput: f64,
    pub region: String,
    pub sources: Vec<String>,
    pub confidence: Confidence,
}

/// Prediction of one workload on one configuration.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Prediction {
    pub catalogue: String,
    pub configuration: DiskConfiguration,
    pub workload: Workload,
    /// Unit of `throughput` and of limits in throughput.
    pub throughput_unit: &'static str,
    /// Sustained rate of reads and writes together: the lowest of all limits, with the guaranteed
    /// figure of the queue depth.
    pub total: Rates,
    pub read: Rates,
    pub write: Rates,
    /// Total with the best case of the queue depth, if that is higher.
    pub at_best: Option<Rates>,
    /// Total under the enforced limits only, without queue depth and CPU.
    pub allowed: Rates,
    /// Mean latency in µs (Little's law); unknown without a depth or without a queue depth rule.
    pub latency_us: Option<f64>,
    /// I/Os in flight that are guaranteed to reach `allowed`; unknown without that rule.
    pub depth_needed: Option<u64>,
    /// The binding limit: the one whose removal gains most.
    pub binding: PredictedLimit,
    /// The limit that binds after it.
    pub next: Option<PredictedLimit>,
    /// All limits, the lowest first.
    pub limits: Vec<PredictedLimit>,
    pub ceilings: Ceilings,
    /// Price of the disks; not known if absent.
    pub cost: Option<Cost>,
    /// Sources of the figures.
    pub sources: Vec<SourceUse>,
    /// Lowest confidence of `binding` and `next`.
    pub confidence: Confidence,
    /// Relevant contradictions of the sources.
    pub inconsistencies: Vec<Inconsistency>,
    /// Relevant gaps of the sources.
    pub not_known: Vec<String>,
    pub notes: Vec<String>,
}
