//! Prediction results.

use serde::Serialize;

use crate::catalog::{Confidence, Inconsistency, LimitKind, Sharing, ThroughputUnit};
use crate::input::{DiskConfiguration, Workload};

/// A rate as IOPS and as bytes: `bytes_per_s` is `iops` times the block size.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Rates {
    pub iops: f64,
    pub bytes_per_s: f64,
    /// 10^6 bytes per second, whatever the catalog's unit.
    pub mb_per_s: f64,
}

impl Rates {
    /// A rate of `iops` and `bytes_per_s`.
    pub(crate) fn new(iops: f64, bytes_per_s: f64) -> Rates {
        Rates { iops, bytes_per_s, mb_per_s: bytes_per_s / 1e6 }
    }

    pub(crate) fn of_blocks(block_bytes: u64, iops: f64) -> Rates {
        Rates::new(iops, iops * block_bytes as f64)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dimension {
    Iops,
    /// The catalog's unit of throughput.
    Throughput,
}

impl Dimension {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Dimension::Iops => "IOPS",
            Dimension::Throughput => "throughput",
        }
    }
}

/// A limit with the recommendations that lift it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PredictedLimit {
    pub kind: LimitKind,
    /// Unit of `read` and `write`: IOPS, or MB/s of 10^6 bytes.
    pub dimension: Dimension,
    /// The limit of reads; none if it does not limit them.
    pub read: Option<f64>,
    /// The limit of writes; none if it does not limit them.
    pub write: Option<f64>,
    /// IOPS of this workload, reads and writes together, under only this limit.
    pub workload_iops: f64,
    pub explanation: String,
    /// Recommendations that lift it, the most direct first.
    pub recommendations: Vec<Recommendation>,
    pub sources: Vec<String>,
    /// Confidence of the table, or the lowest of its sources.
    pub confidence: Confidence,
}

/// A change of the configuration, of the job or of the measurement. A change that lifts a limit is
/// the smallest that brings the workload to the next limit, where it can be computed; `Display`
/// explains each. `machine` is a name, or a vCPU range as in the table, such as `16-31`, and
/// `workload_iops` are the IOPS of this workload under that machine's limit. `throughput` is each
/// disk's, in the catalog's unit. `bytes` is the largest or smallest block that gains something.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "action", rename_all = "kebab-case")]
pub enum Recommendation {
    LargerVolume { size: f64, unit: &'static str },
    ProvisionIops { iops: f64 },
    ProvisionThroughput { throughput: f64, unit: &'static str },
    MoreDisks { disks: u32 },
    LargerMachine { machine: String, workload_iops: f64 },
    OtherFamily,
    LessNetwork { gbit_per_s: f64 },
    Zonal,
    DeeperQueue(DeeperQueue),
    MoreCpus { vcpus: u32 },
    LargerBlocks { bytes: u64 },
    SmallerBlocks { bytes: u64 },
    OtherType,
    AsynchronousEngine,
    MoreJobs { jobs: u64 },
    StreamsWithOffsets,
    OwnOffsets,
    DirectIo,
    NoThrottle { by: String },
    FewerFlushes,
    LongerRun { seconds: f64 },
    WriteFirst,
    CheckConfiguration,
    ShorterPath,
    Pool { fullness_percent: u32, iops: f64 },
    OtherDepth { in_flight: u64 },
    OtherBlocks { bytes: u64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct DeeperQueue {
    pub in_flight: u64,
    /// Resulting IOPS, if the latency was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iops: Option<f64>,
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
    pub(crate) sharing_known: bool,
    /// Service time of one I/O in µs, guarantee and best case, from the queue depth rule; `None` if
    /// unknown.
    pub service_us: Option<(f64, f64)>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SourceUse {
    pub key: String,
    pub address: String,
    pub date: String,
    /// Confidence in the values of this source that the prediction uses.
    pub confidence: Confidence,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cost {
    /// USD per month, for all disks.
    pub usd_per_month: f64,
    pub(crate) usd_capacity: f64,
    pub(crate) usd_iops: f64,
    pub(crate) usd_throughput: f64,
    pub region: String,
    pub sources: Vec<String>,
    pub confidence: Confidence,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Prediction {
    pub catalog: String,
    pub configuration: DiskConfiguration,
    pub workload: Workload,
    /// Unit of the source's figures, for text.
    pub throughput_unit: ThroughputUnit,
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
    pub limits: Vec<PredictedLimit>,
    pub ceilings: Ceilings,
    /// Price of the disks; not known if absent.
    pub cost: Option<Cost>,
    pub sources: Vec<SourceUse>,
    /// Lowest confidence of `binding` and `next`.
    pub confidence: Confidence,
    pub inconsistencies: Vec<Inconsistency>,
    /// What the catalog does not say; a missing price is the last.
    pub not_known: Vec<String>,
    pub notes: Vec<String>,
    /// Advice of the source about the disk type.
    pub advice: Vec<String>,
}

impl Prediction {
    /// Removes a missing price from what is not known, for callers to whom prices do not matter.
    pub fn ignore_price(&mut self) {
        if self.cost.is_none() {
            self.not_known.pop();
        }
    }
}
