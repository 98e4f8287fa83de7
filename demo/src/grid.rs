//! What is measured of the served volume: both directions, every depth, over every path.

use serde::Serialize;

/// Read or write, at random places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Random reads.
    Read,
    /// Random writes.
    Write,
}

impl Direction {
    /// As fio and `flagstone load` call it.
    pub fn pattern(self) -> &'static str {
        match self {
            Direction::Read => "randread",
            Direction::Write => "randwrite",
        }
    }

    /// As people call it.
    pub fn name(self) -> &'static str {
        match self {
            Direction::Read => "read",
            Direction::Write => "write",
        }
    }
}

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Cell {
    /// Bytes of one request.
    pub block_bytes: u32,
    /// What it does.
    pub direction: Direction,
    /// Requests in flight.
    pub depth: u32,
}

/// Bytes of a request.
const BLOCK_BYTES: u32 = 4 << 10;
/// Requests in flight: one shows what the way costs, some what it carries.
const DEPTHS: [u32; 2] = [1, 32];

/// All of them, in the table's order.
pub fn cells() -> Vec<Cell> {
    let of = |direction| DEPTHS.map(|depth| Cell { block_bytes: BLOCK_BYTES, direction, depth });
    [Direction::Read, Direction::Write].into_iter().flat_map(of).collect()
}

impl Cell {
    /// Such as `4 KiB random read, depth 32`.
    pub fn name(&self) -> String {
        let (kib, direction) = (self.block_bytes >> 10, self.direction.name());
        format!("{kib} KiB random {direction}, depth {}", self.depth)
    }
}

/// The way to the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Path {
    /// The file itself.
    Local,
    /// The volume over NVMe/TCP, from our own host.
    NvmeTcp,
    /// The volume over NBD, from fio.
    Nbd,
}

impl Path {
    /// As people call it.
    pub fn name(self) -> &'static str {
        match self {
            Path::Local => "local",
            Path::NvmeTcp => "NVMe/TCP",
            Path::Nbd => "NBD",
        }
    }
}

/// What was measured of one cell over one path.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// Requests a second.
    pub iops: f64,
    /// Mean time of a request, in µs.
    pub latency_mean_us: f64,
    /// 99 of 100 requests took no longer, in µs.
    pub latency_p99_us: f64,
    /// How busy the CPUs of the machine were, 0 to 1.
    pub cpu_busy: f64,
}
