//! Prediction results.

use serde::Serialize;

use crate::catalogue::{Confidence, LimitKind, Sharing};
use crate::input::{DiskConfiguration, Workload};

/// A rate as IOPS and as bytes: `bytes_per_s` is `iops` times the block size.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Rates {
    /// I/Os per second.
    pub iops: f64,
    /// Bytes per second.
    pub bytes_per_s: f64,
    /// Throughput in the catalogue's unit.
    pub throughput: f64,
}

/// Dimension of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dimension {
    /// I/Os a second.
    Iops,
    /// The catalogue's unit of throughput.
    Throughput,
}

/// A limit with the recommendations that lift it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PredictedLimit {
    /// Kind of the limit.
    pub kind: LimitKind,
    /// Unit of `read` and `write`.
    pub dimension: Dimension,
    /// The limit of reads; none if it does not limit them.
    pub read: Option<f64>,
    /// The limit of writes; none if it does not limit them.
    pub write: Option<f64>,
    /// IOPS of this workload, reads and writes together, under only this limit.
    pub workload_iops: f64,
    /// Explanation of the number.
    pub explanation: String,
    /// Recommendations that lift it, the most direct first.
    pub recommendations: Vec<LimitRecommendation>,
    /// Keys of its sources.
    pub sources: Vec<String>,
    /// Confidence of the table, or the lowest of its sources.
    pub confidence: Confidence,
}

/// A change that lifts a limit: the smallest that brings the workload to the next limit, where
/// it can be computed.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "action", rename_all = "kebab-case")]
pub enum LimitRecommendation {
    /// Disks of at least this size, in the catalogue's unit.
    LargerVolume {
        /// Size of each disk.
        size: f64,
        /// Unit of `size`.
        unit: &'static str,
    },
    /// More IOPS bought for each disk.
    ProvisionIops {
        /// IOPS of each disk.
        iops: f64,
    },
    /// More throughput bought for each disk.
    ProvisionThroughput {
        /// Throughput of each disk, in the catalogue's unit.
        throughput: f64,
        /// Its unit.
        unit: &'static str,
    },
    /// More disks of this type, striped.
    MoreDisks {
        /// Total number of disks.
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
    /// Less other egress.
    LessNetwork {
        /// Maximum in Gbit/s.
        gbit_per_s: f64,
    },
    /// A zonal disk, which sends each write one time less.
    Zonal,
    /// More I/Os in flight.
    DeeperQueue {
        /// I/Os in flight of all jobs.
        in_flight: u64,
    },
    /// More CPUs.
    MoreCpus {
        /// vCPUs.
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
    /// Write IOPS.
    pub write_iops: Option<f64>,
    /// Write IOPS by block size in bytes, in the order of the blocks, the last for all larger ones;
    /// empty if they do not depend on the block size.
    pub write_iops_by_block: Vec<(u64, f64)>,
    /// Read bytes per second.
    pub read_bytes_per_s: Option<f64>,
    /// Write bytes per second.
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
    /// Key in the catalogue.
    pub key: String,
    /// Address.
    pub address: String,
    /// Date.
    pub date: String,
    /// Confidence of the used part.
    pub confidence: Confidence,
}

/// A contradiction of the sources that affects a result.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Touched {
    /// Identifier, such as `I08`.
    pub id: String,
    /// Place and printed text.
    #[serde(rename = "where")]
    pub place: String,
    /// The contradiction.
    pub why: String,
    /// The value that the catalogue uses.
    pub used: Option<String>,
}

/// Price of the disks, without the machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cost {
    /// USD per month, for all disks.
    pub usd_per_month: f64,
    /// Part for the size.
    pub usd_capacity: f64,
    /// Part for provisioned IOPS.
    pub usd_iops: f64,
    /// Part for provisioned throughput.
    pub usd_throughput: f64,
    /// Region.
    pub region: String,
    /// Keys of its sources.
    pub sources: Vec<String>,
    /// Confidence.
    pub confidence: Confidence,
}

/// Prediction of one workload on one configuration.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Prediction {
    /// The catalogue's name.
    pub catalogue: String,
    /// The configuration.
    pub configuration: DiskConfiguration,
    /// The workload.
    pub workload: Workload,
    /// Unit of `throughput` and of limits in throughput.
    pub throughput_unit: &'static str,
    /// Sustained rate of reads and writes together: the lowest of all limits, with the guaranteed
    /// figure of the queue depth.
    pub total: Rates,
    /// Reads of the total.
    pub read: Rates,
    /// Writes of the total.
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
    /// Enforced limits.
    pub ceilings: Ceilings,
    /// Price of the disks; not known if absent.
    pub cost: Option<Cost>,
    /// Sources of the figures.
    pub sources: Vec<SourceUse>,
    /// Lowest confidence of `binding` and `next`.
    pub confidence: Confidence,
    /// Relevant contradictions of the sources.
    pub inconsistencies: Vec<Touched>,
    /// Relevant gaps of the sources.
    pub not_known: Vec<String>,
    /// Notes.
    pub notes: Vec<String>,
}
