//! What is answered.

use serde::Serialize;

use crate::catalogue::{Confidence, LimitKind, Sharing};
use crate::input::{Configuration, Workload};

/// A rate, in both of its forms: `bytes_per_s` is `iops` times the block.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Rates {
    /// I/Os a second.
    pub iops: f64,
    /// Bytes a second.
    pub bytes_per_s: f64,
    /// The same in the catalogue's unit of throughput, as its pages count.
    pub throughput: f64,
}

/// What a limit is expressed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dimension {
    /// I/Os a second.
    Iops,
    /// The catalogue's unit of throughput.
    Throughput,
}

/// A limit, and what would lift it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Limit {
    /// What limits.
    pub kind: LimitKind,
    /// What `read` and `write` are in.
    pub dimension: Dimension,
    /// The limit of reads; none if it does not limit them.
    pub read: Option<f64>,
    /// The limit of writes; none if it does not limit them.
    pub write: Option<f64>,
    /// IOPS of this workload, reads and writes together, if nothing else limited it.
    pub workload_iops: f64,
    /// Where the number comes from, in words.
    pub because: String,
    /// What would lift it, the most direct first.
    pub lifts: Vec<Remedy>,
    /// Keys of its sources.
    pub sources: Vec<String>,
    /// The least of its sources, or what the table says of itself.
    pub confidence: Confidence,
}

/// What would lift a limit. Each carries the least change that brings the workload to the limit
/// behind it, where that can be computed.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "change", rename_all = "kebab-case")]
pub enum Remedy {
    /// Disks of at least this size each, in the catalogue's unit.
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
        /// How many in all.
        disks: u32,
    },
    /// A machine of the family with more vCPUs, or of another name.
    LargerMachine {
        /// As the table has it: `16-31`, or a name.
        machine: String,
        /// IOPS of this workload that its limit allows.
        workload_iops: f64,
    },
    /// Another family of machines; this one has nothing larger.
    OtherFamily,
    /// Less other traffic.
    LessNetwork {
        /// Gbit/s at most.
        gbit_per_s: f64,
    },
    /// A zonal disk, which sends each write once less.
    Zonal,
    /// More I/Os in flight.
    DeeperQueue {
        /// In flight, of all jobs.
        in_flight: u64,
    },
    /// More CPUs.
    MoreCpus {
        /// vCPUs.
        vcpus: u32,
    },
    /// Larger blocks: not more IOPS, more bytes.
    LargerBlocks {
        /// Where throughput takes over.
        bytes: u64,
    },
    /// Smaller blocks: more IOPS of the same bytes, or a higher cap.
    SmallerBlocks {
        /// At most.
        bytes: u64,
    },
    /// Another type of disk: this one has no more at any size.
    OtherType,
}

/// What the cloud enforces, whatever the workload does; for a layer that is to behave so.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ceilings {
    /// Read IOPS; none if nothing known limits them.
    pub read_iops: Option<f64>,
    /// Write IOPS.
    pub write_iops: Option<f64>,
    /// Write IOPS of blocks up to a number of bytes, in the order of the blocks, the last for
    /// anything larger; empty if they do not depend on the block.
    pub write_iops_by_block: Vec<(u64, f64)>,
    /// Bytes read a second.
    pub read_bytes_per_s: Option<f64>,
    /// Bytes written a second.
    pub write_bytes_per_s: Option<f64>,
    /// How reads and writes share the IOPS; the strictest rule if it is not known.
    pub iops_sharing: Sharing,
    /// How reads and writes share the throughput; the strictest rule if it is not known.
    pub throughput_sharing: Sharing,
    /// Whether a source gives these rules.
    pub sharing_known: bool,
    /// Service time of one I/O, in µs: what it surely is not above, and what it is at best. From
    /// the rule of the queue depth; none if it is not known.
    pub service_us: Option<(f64, f64)>,
}

/// A source that a result rests on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SourceUse {
    /// Key in the catalogue.
    pub key: String,
    /// Where it is.
    pub address: String,
    /// Of when.
    pub date: String,
    /// How far it is trusted, for what was used of it.
    pub confidence: Confidence,
}

/// An inconsistency of the sources that touches a result.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Touched {
    /// Such as `I08`.
    pub id: String,
    /// Where it is, and what is printed there.
    #[serde(rename = "where")]
    pub place: String,
    /// What is wrong.
    pub why: String,
    /// What the catalogue takes.
    pub used: Option<String>,
}

/// What the disks cost. Machines are not in it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cost {
    /// USD a month, of all disks.
    pub usd_per_month: f64,
    /// Of it, for the size.
    pub usd_capacity: f64,
    /// Of it, for provisioned IOPS.
    pub usd_iops: f64,
    /// Of it, for provisioned throughput.
    pub usd_throughput: f64,
    /// Where.
    pub region: String,
    /// Keys of its sources.
    pub sources: Vec<String>,
    /// How far it is trusted.
    pub confidence: Confidence,
}

/// The prediction of one workload on one configuration.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Prediction {
    /// The catalogue's name.
    pub catalogue: String,
    /// What was asked.
    pub configuration: Configuration,
    /// What was asked.
    pub workload: Workload,
    /// Unit of `throughput` and of limits in throughput.
    pub throughput_unit: &'static str,
    /// Sustained, reads and writes together: the least of all limits, with the sure figure of the
    /// queue depth.
    pub total: Rates,
    /// Of it, reads.
    pub read: Rates,
    /// Of it, writes.
    pub write: Rates,
    /// Together, with the best figure of the queue depth, where that is more.
    pub at_best: Option<Rates>,
    /// Together, by what the cloud enforces alone: without queue depth and CPU.
    pub allowed: Rates,
    /// Mean latency in µs by Little's law; not known without a depth, or without a rule for what
    /// one I/O in flight brings.
    pub latency_us: Option<f64>,
    /// I/Os in flight that surely reach `allowed`; not known without that rule.
    pub depth_needed: Option<u64>,
    /// The limit that binds: the one without which there would be most.
    pub binding: Limit,
    /// The limit that would bind then.
    pub next: Option<Limit>,
    /// All limits, the lowest first.
    pub limits: Vec<Limit>,
    /// What is enforced.
    pub ceilings: Ceilings,
    /// What the disks cost; not known if absent.
    pub cost: Option<Cost>,
    /// What it rests on.
    pub sources: Vec<SourceUse>,
    /// The least of what `binding` and `next` rest on.
    pub confidence: Confidence,
    /// Where the sources contradict themselves and it matters here.
    pub inconsistencies: Vec<Touched>,
    /// What the sources do not say and would matter here.
    pub not_known: Vec<String>,
    /// Anything else worth knowing.
    pub notes: Vec<String>,
}
