//! What came of a job, as data. The JSON form is described in `docs/load-json.md`; a change that a
//! reader could notice beyond new fields raises [`SCHEMA_VERSION`].

use std::fmt;

use flagstone_blockdev::Geometry;
use serde::{Deserialize, Serialize};

use crate::job::{BlockSize, Job, Pattern, Range, Verify};
use crate::limits::VIOLATIONS_KEPT;
pub use crate::plan::OpKind;
use crate::stats::{OpStats, Stats};
use crate::usage::Usage;
use crate::verify::{Violation, ViolationKind};

/// Version of the JSON form.
pub const SCHEMA_VERSION: u32 = 1;

/// How it went, worst first: a job with several kinds of trouble has the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Data was wrong: see [`Results::verify`].
    VerifyFailed,
    /// I/Os in flight never ended.
    Unresponsive,
    /// More I/Os failed than the job suffers.
    IoErrors,
    /// It was stopped before its end.
    Stopped,
    /// All is well.
    Complete,
}

/// Everything that came of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// How it went.
    pub outcome: Outcome,
    /// What was asked.
    pub job: JobSummary,
    /// Of what.
    pub device: DeviceSummary,
    /// From the first counted I/O's possible start to the last counted one's end, in seconds.
    pub elapsed_s: f64,
    /// Reads, writes and trims together, if there were any.
    pub total: Option<OperationResults>,
    /// By kind, those that there were.
    pub operations: Vec<OperationResults>,
    /// Failed I/Os by kind.
    pub errors: Vec<ErrorCount>,
    /// I/Os that were given up because they never ended.
    pub unfinished_ios: u64,
    /// CPU time of the whole process; absent for verified jobs, whose checks would be counted, and
    /// where the system does not tell.
    pub cpu: Option<CpuResults>,
    /// One a second.
    pub samples: Vec<Sample>,
    /// Of a verified job.
    pub verify: Option<VerifyResults>,
}

/// What was asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobSummary {
    /// Kind and order of the I/Os.
    pub pattern: Pattern,
    /// Percent of reads, of mixed patterns.
    pub read_percent: Option<u8>,
    /// Sizes of the I/Os.
    pub block_sizes: Vec<BlockSize>,
    /// I/Os in flight over all cores.
    pub depth: usize,
    /// Cores.
    pub cores: usize,
    /// Start of the range, in bytes.
    pub offset_bytes: u64,
    /// Length of the range, in bytes.
    pub size_bytes: u64,
    /// Seed.
    pub seed: u64,
    /// Rate, in I/Os a second.
    pub rate_iops: Option<u64>,
    /// Warm-up, in seconds.
    pub warm_up_s: f64,
    /// Writes are durable.
    pub fua: bool,
    /// Writes between flushes.
    pub flush_every: Option<u32>,
    /// Data is checked.
    pub verify: bool,
}

impl JobSummary {
    pub(crate) fn new(job: &Job, range: Range) -> JobSummary {
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
            verify: job.verify.is_some(),
        }
    }
}

/// The device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceSummary {
    /// Size, in bytes.
    pub size_bytes: u64,
    /// Block, in bytes.
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

/// I/Os of one kind, or of all kinds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OperationResults {
    /// The kind; absent for all together.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub operation: Option<OpKind>,
    /// Completed I/Os.
    pub ios: u64,
    /// Their bytes.
    pub bytes: u64,
    /// I/Os a second.
    pub iops: f64,
    /// 10^6 bytes a second.
    pub mb_per_s: f64,
    /// 2^20 bytes a second.
    pub mib_per_s: f64,
    /// Latency.
    pub latency_us: Latency,
}

/// Latency in microseconds. Mean, least and most are exact, the others right to 3 digits.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Mean.
    pub mean: f64,
    /// Standard deviation.
    pub stddev: f64,
    /// Least.
    pub min: f64,
    /// Most.
    pub max: f64,
    /// Median.
    pub p50: f64,
    /// 90 of 100 are not above.
    pub p90: f64,
    /// 95 of 100 are not above.
    pub p95: f64,
    /// 99 of 100 are not above.
    pub p99: f64,
    /// 99.9 of 100 are not above.
    pub p99_9: f64,
    /// 99.99 of 100 are not above.
    pub p99_99: f64,
    /// 99.999 of 100 are not above.
    pub p99_999: f64,
}

impl Latency {
    fn new(stats: &OpStats) -> Latency {
        let us = |ns: u64| ns as f64 / 1e3;
        // The histogram rounds up within its resolution; no percentile exceeds what was seen.
        let at =
            |q: f64| us(stats.latency_ns.value_at_quantile(q).clamp(stats.min_ns, stats.max_ns));
        Latency {
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

    /// The percentiles with their names.
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
            latency_us: Latency::new(stats),
        }
    }
}

/// The results of all kinds together, and of each.
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
    /// What failed.
    pub operation: OpKind,
    /// With which error: the device's, in snake case.
    pub error: String,
    /// How many.
    pub count: u64,
}

/// CPU time of the process while I/Os were counted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CpuResults {
    /// In user space, in seconds.
    pub user_s: f64,
    /// In the kernel, in seconds.
    pub system_s: f64,
    /// In user space, in microseconds an I/O.
    pub user_us_per_io: f64,
    /// In the kernel, in microseconds an I/O.
    pub system_us_per_io: f64,
    /// CPUs kept busy.
    pub cpus: f64,
}

impl CpuResults {
    pub(crate) fn new(usage: Usage, ios: u64, elapsed_s: f64) -> CpuResults {
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

/// What happened in one interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// End of the interval, in seconds since the start, warm-up included.
    pub at_s: f64,
    /// I/Os a second.
    pub iops: f64,
    /// 10^6 bytes a second.
    pub mb_per_s: f64,
    /// Mean latency, in microseconds; 0 without I/Os.
    pub mean_latency_us: f64,
    /// Failed I/Os in the interval.
    pub errors: u64,
}

/// What the checks of a verified job found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VerifyResults {
    /// Names the run in its stamps.
    pub run_id: u64,
    /// Writes of blocks that completed.
    pub blocks_written: u64,
    /// Reads of blocks that were judged.
    pub blocks_checked: u64,
    /// Blocks that held what they must not.
    pub violations: u64,
    /// The first of them.
    pub first: Vec<ViolationReport>,
    /// All blocks of the range were read back after the job's own I/Os.
    pub read_back: bool,
}

impl VerifyResults {
    /// Two cores together.
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

/// A [`Violation`], for a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViolationReport {
    /// What is wrong.
    pub kind: ViolationKind,
    /// Where on the device, in bytes.
    pub offset_bytes: u64,
    /// All of it, in words.
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

impl Outcome {
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Outcome::VerifyFailed => "verification FAILED",
            Outcome::Unresponsive => "the device did not answer",
            Outcome::IoErrors => "ended by I/O errors",
            Outcome::Stopped => "stopped early",
            Outcome::Complete => "complete",
        }
    }
}

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        crate::report::write(self, f)
    }
}

/// Whether a job is told to check data, and only that.
pub(crate) fn is_recorded(job: &Job) -> bool {
    matches!(job.verify, Some(Verify::Recorded { .. }))
}
