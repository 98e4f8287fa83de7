//! Measurement grid of the demo's served volume: random reads and writes, at each depth, over each
//! path to the data.

use flagstone_bench::job::{BenchJob, JobPattern};
use serde::Serialize;

/// Block size of every request, in bytes.
const BLOCK_BYTES: u32 = 4 << 10;
/// Requests in flight: 1 shows what the path adds to a request, 32 shows the throughput.
const DEPTHS: [u32; 2] = [1, 32];

/// Direction of random requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Random reads.
    Read,
    /// Random writes.
    Write,
}

impl Direction {
    /// The word in tables.
    pub fn name(self) -> &'static str {
        match self {
            Direction::Read => "read",
            Direction::Write => "write",
        }
    }
}

/// A row of the grid: a workload that is measured over every path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Workload {
    /// Bytes of a request.
    pub block_bytes: u32,
    /// Reads or writes.
    pub direction: Direction,
    /// Requests in flight.
    pub depth: u32,
}

/// All workloads, in the order of the table.
pub fn workloads() -> Vec<Workload> {
    let at_depths =
        |direction| DEPTHS.map(|depth| Workload { block_bytes: BLOCK_BYTES, direction, depth });
    [Direction::Read, Direction::Write].into_iter().flat_map(at_depths).collect()
}

impl Workload {
    /// For progress messages: `4 KiB random read, depth 32`.
    pub fn name(&self) -> String {
        let (kib, direction) = (self.block_bytes >> 10, self.direction.name());
        format!("{kib} KiB random {direction}, depth {}", self.depth)
    }

    /// The job for fio and for `flagstone load`, on the first `size_bytes` of the volume.
    pub(super) fn job(&self, size_bytes: u64, ramp_ms: u64, runtime_ms: u64) -> BenchJob {
        BenchJob {
            name: "demo".to_owned(),
            pattern: match self.direction {
                Direction::Read => JobPattern::RandRead,
                Direction::Write => JobPattern::RandWrite,
            },
            block_bytes: self.block_bytes.into(),
            depth: self.depth,
            size_bytes: Some(size_bytes),
            ramp_ms,
            runtime_ms,
            ..BenchJob::default()
        }
    }
}

/// Path from the generator to the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AccessPath {
    /// fio on the volume's file.
    Local,
    /// `flagstone load` on the volume over NVMe/TCP.
    NvmeTcp,
    /// fio on the volume over NBD.
    Nbd,
}

impl AccessPath {
    /// The word in tables and messages.
    pub fn name(self) -> &'static str {
        match self {
            AccessPath::Local => "local",
            AccessPath::NvmeTcp => "NVMe/TCP",
            AccessPath::Nbd => "NBD",
        }
    }
}

/// Results of one workload over one path.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PathFigures {
    /// Requests per second.
    pub iops: f64,
    /// Mean latency, in µs.
    pub latency_mean_us: f64,
    /// 99th percentile of the latency, in µs; none if too few requests were measured.
    pub latency_p99_us: Option<f64>,
    /// Busy share of this machine's CPUs during the measurement, 0 to 1.
    pub cpu_busy: f64,
}

/// One workload over all paths.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct GridRow {
    /// The workload.
    #[serde(flatten)]
    pub workload: Workload,
    /// On the file.
    pub local: PathFigures,
    /// Over NVMe/TCP.
    pub nvme_tcp: PathFigures,
    /// Over NBD; none where fio has no NBD engine.
    pub nbd: Option<PathFigures>,
}
