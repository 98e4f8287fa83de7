//! Results of a job, as data. `docs/load-json.md` describes the JSON form. A change that a reader
//! could notice, other than a new field, increments [`SCHEMA_VERSION`].

use std::fmt;

use flagstone_blockdev::Geometry;
use serde::{Deserialize, Serialize};

use crate::job::{AccessPattern, BlockSize, JobRange, LoadJob, Verify};
use crate::limits::VIOLATIONS_KEPT;
use crate::payload::WriteDataKind;
pub use crate::plan::OpKind;
use crate::stats::{OpStats, Stats};
use crate::usage::CpuUsage;
use crate::verify::{Violation, ViolationKind};

/// Version of the JSON form.
pub const SCHEMA_VERSION: u32 = 1;

/// Outcome, worst first: the first variant that applies is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadOutcome {
    /// Wrong data: see [`LoadResults::verify`].
    VerifyFailed,
    /// I/Os in flight did not end.
    Unresponsive,
    /// More I/Os failed than the job tolerates.
    IoErrors,
    Stopped,
    Complete,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadResults {
    pub schema_version: u32,
    pub outcome: LoadOutcome,
    pub job: JobSummary,
    pub device: DeviceSummary,
    /// From the earliest possible start of the first counted I/O to the end of the last one, in
    /// seconds.
    pub elapsed_s: f64,
    /// Reads, writes and trims together, if there were any.
    pub total: Option<OperationResults>,
    /// By kind, for kinds with I/Os.
    pub operations: Vec<OperationResults>,
    /// Failed I/Os by kind.
    pub errors: Vec<ErrorCount>,
    /// I/Os that were abandoned because they did not end.
    pub unfinished_ios: u64,
    /// CPU time of the whole process. Absent for verified jobs, whose checks would be included, and
    /// if the system does not report it.
    pub cpu: Option<CpuResults>,
    pub samples: Vec<Sample>,
    pub verify: Option<VerifyResults>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobSummary {
    /// Kind and order of the I/Os.
    pub pattern: AccessPattern,
    pub read_percent: Option<u8>,
    pub block_sizes: Vec<BlockSize>,
    /// I/Os in flight over all cores.
    pub depth: usize,
    pub cores: usize,
    pub offset_bytes: u64,
    pub size_bytes: u64,
    pub seed: u64,
    pub rate_iops: Option<u64>,
    pub warm_up_s: f64,
    pub fua: bool,
    pub flush_every: Option<u32>,
    /// Kind of the written data.
    #[serde(default)]
    pub data: WriteDataKind,
    pub verify: bool,
}

impl JobSummary {
    pub(crate) fn new(job: &LoadJob, range: JobRange) -> JobSummary {
        let mixed = job.pattern.reads() && job.pattern.writes();
        JobSummary {
            pattern: job.pattern,
            read_percent: mixed.then_some(job.read_percent),
            block_sizes: job.block_sizes.clone(),
            depth: job.depth,
            cores: job.cores,
            offset_bytes: range.offset_bytes,
            size_bytes: range.size_bytes,
            seed: job.seed,
            rate_iops: job.rate_iops,
            warm_up_s: job.warm_up.as_secs_f64(),
            fua: job.fua,
            flush_every: job.flush_every,
            data: job.data.kind(),
            verify: job.verify.is_some(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceSummary {
    pub size_bytes: u64,
    pub block_bytes: u32,
    /// Completed writes need a flush to be durable.
    pub volatile_cache: bool,
}

impl DeviceSummary {
    pub(crate) fn new(geometry: &Geometry) -> DeviceSummary {
        let Geometry { size_bytes, block_bytes, volatile_cache, .. } = *geometry;
        DeviceSummary { size_bytes, block_bytes, volatile_cache }
    }
}

/// Statistics of one kind of I/O, or of all kinds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OperationResults {
    /// The kind; absent for the total.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub operation: Option<OpKind>,
    pub ios: u64,
    pub bytes: u64,
    pub iops: f64,
    /// 10^6 bytes per second.
    pub mb_per_s: f64,
    pub mib_per_s: f64,
    pub latency_us: LatencySummary,
}

/// Latency in microseconds. Mean, minimum and maximum are exact, the others correct to 3 digits.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatencySummary {
    pub mean: f64,
    pub stddev: f64,
    pub min: f64,
    pub max: f64,
    pub p50: f64,
    pub p90: f64,
    pub p95: f64,
    pub p99: f64,
    pub p99_9: f64,
    pub p99_99: f64,
    pub p99_999: f64,
}

impl LatencySummary {
    fn new(stats: &OpStats) -> LatencySummary {
        let us = |ns: u64| ns as f64 / 1e3;
        // The histogram rounds up within its resolution; no percentile may exceed the maximum.
        let at =
            |q: f64| us(stats.latency_ns.value_at_quantile(q).clamp(stats.min_ns, stats.max_ns));
        LatencySummary {
            mean: us(stats.sum_ns) / stats.ios as f64,
            stddev: stats.latency_ns.stdev() / 1e3,
            min: us(stats.min_ns),
            max: us(stats.max_ns),
            p50: at(0.5),
            p90: at(0.9),
            p95: at(0.95),
            p99: at(0.99),
            p99_9: at(0.999),
            p99_99: at(0.9999),
            p99_999: at(0.99999),
        }
    }

    pub fn percentiles(&self) -> [(&'static str, f64); 7] {
        [
            ("50", self.p50),
            ("90", self.p90),
            ("95", self.p95),
            ("99", self.p99),
            ("99.9", self.p99_9),
            ("99.99", self.p99_99),
            ("99.999", self.p99_999),
        ]
    }
}

impl OperationResults {
    fn new(operation: Option<OpKind>, stats: &OpStats, elapsed_s: f64) -> OperationResults {
        let rate = |count: u64| if elapsed_s > 0.0 { count as f64 / elapsed_s } else { 0.0 };
        OperationResults {
            operation,
            ios: stats.ios,
            bytes: stats.bytes,
            iops: rate(stats.ios),
            mb_per_s: rate(stats.bytes) / 1e6,
            mib_per_s: rate(stats.bytes) / f64::from(1 << 20),
            latency_us: LatencySummary::new(stats),
        }
    }
}

pub(crate) fn operations(
    stats: &Stats,
    elapsed_s: f64,
) -> (Option<OperationResults>, Vec<OperationResults>) {
    let each = OpKind::ALL.into_iter().filter_map(|kind| {
        let stats = stats.of(kind)?;
        Some(OperationResults::new(Some(kind), stats, elapsed_s))
    });
    let data = [OpKind::Read, OpKind::Write, OpKind::Trim];
    let sum = data.into_iter().filter_map(|kind| stats.of(kind)).fold(None, |sum, stats| {
        let mut sum: OpStats = sum.unwrap_or_else(OpStats::new);
        sum.merge(stats);
        Some(sum)
    });
    (sum.map(|sum| OperationResults::new(None, &sum, elapsed_s)), each.collect())
}

/// Failed I/Os of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorCount {
    pub operation: OpKind,
    /// The device's error, in snake case.
    pub error: String,
    pub count: u64,
}

/// CPU time of the process while I/Os were counted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CpuResults {
    pub user_s: f64,
    pub system_s: f64,
    /// In user space, in microseconds per I/O.
    pub user_us_per_io: f64,
    /// In the kernel, in microseconds per I/O.
    pub system_us_per_io: f64,
    pub cpus: f64,
}

impl CpuResults {
    pub(crate) fn new(usage: CpuUsage, ios: u64, elapsed_s: f64) -> CpuResults {
        let (user_s, system_s) = (usage.user.as_secs_f64(), usage.system.as_secs_f64());
        let each = |seconds: f64| if ios == 0 { 0.0 } else { seconds * 1e6 / ios as f64 };
        CpuResults {
            user_s,
            system_s,
            user_us_per_io: each(user_s),
            system_us_per_io: each(system_s),
            cpus: if elapsed_s > 0.0 { (user_s + system_s) / elapsed_s } else { 0.0 },
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// End of the interval, in seconds since the start, warm-up included.
    pub at_s: f64,
    pub iops: f64,
    /// 10^6 bytes per second.
    pub mb_per_s: f64,
    /// Mean latency, in microseconds; 0 without I/Os.
    pub mean_latency_us: f64,
    /// Failed I/Os in the interval.
    pub errors: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VerifyResults {
    pub run_id: u64,
    pub blocks_written: u64,
    pub blocks_checked: u64,
    pub violations: u64,
    pub first: Vec<ViolationReport>,
    /// All blocks of the range were read back after the job's own I/Os.
    pub read_back: bool,
}

impl VerifyResults {
    pub(crate) fn plus(mut self, other: VerifyResults) -> VerifyResults {
        self.blocks_written += other.blocks_written;
        self.blocks_checked += other.blocks_checked;
        self.violations += other.violations;
        self.first.extend(other.first);
        self.first.truncate(VIOLATIONS_KEPT);
        self.read_back &= other.read_back;
        self
    }
}

/// A [`Violation`] in a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViolationReport {
    pub kind: ViolationKind,
    pub offset_bytes: u64,
    pub message: String,
}

impl From<&Violation> for ViolationReport {
    fn from(violation: &Violation) -> ViolationReport {
        ViolationReport {
            kind: violation.kind,
            offset_bytes: violation.offset_bytes,
            message: violation.to_string(),
        }
    }
}

impl LoadOutcome {
    pub(crate) fn describe(self) -> &'static str {
        match self {
            LoadOutcome::VerifyFailed => "verification FAILED",
            LoadOutcome::Unresponsive => "the device did not answer",
            LoadOutcome::IoErrors => "ended by I/O errors",
            LoadOutcome::Stopped => "stopped early",
            LoadOutcome::Complete => "complete",
        }
    }
}

impl fmt::Display for LoadResults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        crate::report::write(self, f)
    }
}

/// Whether a job only checks recorded data.
pub(crate) fn is_recorded(job: &LoadJob) -> bool {
    matches!(job.verify, Some(Verify::Recorded { .. }))
}
