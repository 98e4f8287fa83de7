//! Measurement grid of the demo's served volume: random reads and writes, at each depth, over each
//! path to the data.

use flagstone_bench::job::{AccessPattern, BenchJob};
use serde::Serialize;

const BLOCK_BYTES: u32 = 4 << 10;
/// Requests in flight: 1 shows what the path adds to a request, 32 shows the throughput.
const DEPTHS: [u32; 2] = [1, 32];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GridDirection {
    Read,
    Write,
}

impl GridDirection {
    pub fn name(self) -> &'static str {
        match self {
            GridDirection::Read => "read",
            GridDirection::Write => "write",
        }
    }
}

/// A row of the grid: a workload that is measured over every path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct GridWorkload {
    pub block_bytes: u32,
    pub direction: GridDirection,
    pub depth: u32,
}

pub fn workloads() -> Vec<GridWorkload> {
    let at_depths =
        |direction| DEPTHS.map(|depth| GridWorkload { block_bytes: BLOCK_BYTES, direction, depth });
    [GridDirection::Read, GridDirection::Write].into_iter().flat_map(at_depths).collect()
}

impl GridWorkload {
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
                GridDirection::Read => AccessPattern::RandRead,
                GridDirection::Write => AccessPattern::RandWrite,
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
    pub fn name(self) -> &'static str {
        match self {
            AccessPath::Local => "local",
            AccessPath::NvmeTcp => "NVMe/TCP",
            AccessPath::Nbd => "NBD",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PathFigures {
    pub iops: f64,
    pub latency_mean_us: f64,
    /// 99th percentile of the latency, in µs; none if too few requests were measured.
    pub latency_p99_us: Option<f64>,
    /// Busy share of this machine's CPUs during the measurement, 0 to 1.
    pub(crate) cpu_busy: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct GridRow {
    #[serde(flatten)]
    pub workload: GridWorkload,
    pub local: PathFigures,
    pub(crate) nvme_tcp: PathFigures,
    /// Over NBD; none where fio has no NBD engine.
    pub nbd: Option<PathFigures>,
}
