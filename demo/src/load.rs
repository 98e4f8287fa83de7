//! `flagstone load`: measures and verifies the volume over NVMe/TCP.

use std::path::Path;
use std::process::Command;

use serde::Deserialize;

use crate::Error;
use crate::grid::Cell;
use crate::process::{self, Interrupt};

/// A result, as far as it is used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadResult {
    /// Requests a second.
    pub iops: f64,
    /// Mean time of a request, in µs.
    pub latency_mean_us: f64,
    /// The 99th percentile of it, in µs.
    pub latency_p99_us: f64,
}

/// What a verified load found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Blocks written.
    pub blocks_written: u64,
    /// Blocks checked.
    pub blocks_checked: u64,
    /// Blocks that were lost, stale, torn, misplaced or corrupt.
    pub violations: u64,
}

#[derive(Deserialize)]
struct Output {
    total: Option<Operation>,
    errors: Vec<serde_json::Value>,
    verify: Option<Verify>,
}

#[derive(Deserialize)]
struct Operation {
    iops: f64,
    latency_us: Latency,
}

#[derive(Deserialize)]
struct Latency {
    mean: f64,
    p99: f64,
}

#[derive(Deserialize)]
struct Verify {
    blocks_written: u64,
    blocks_checked: u64,
    violations: u64,
    read_back: bool,
}

fn command(flagstone: &Path, target: &str) -> Command {
    let mut load = Command::new(flagstone);
    load.args(["load", target, "--json"]);
    load
}

/// Measures one cell for some seconds, after some that are not counted.
///
/// # Errors
/// The program's failure, or a request's.
pub fn measure(
    flagstone: &Path,
    target: &str,
    cell: &Cell,
    (seconds, ramp_seconds): (f64, f64),
    interrupt: &Interrupt,
) -> Result<LoadResult, Error> {
    let mut load = command(flagstone, target);
    let millis = |seconds: f64| format!("{}ms", (seconds * 1e3) as u64);
    load.args(["--rw", cell.direction.pattern()])
        .args(["--bs", &cell.block_bytes.to_string()])
        .args(["--depth", &cell.depth.to_string()])
        .args(["--time", &millis(seconds), "--ramp", &millis(ramp_seconds)]);
    let what = format!("measuring with flagstone load ({})", cell.name());
    let ended = process::run(&mut load, interrupt)?;
    let output = parse(&ended, &what)?;
    match output.total {
        Some(total) if output.errors.is_empty() => Ok(LoadResult {
            iops: total.iops,
            latency_mean_us: total.latency_us.mean,
            latency_p99_us: total.latency_us.p99,
        }),
        _ => Err(ended.failure(&what)),
    }
}

/// Writes and checks random blocks of the first `size_bytes`, then reads all of them back.
///
/// # Errors
/// The program's failure; wrong data is a result, not a failure.
pub fn verify(
    flagstone: &Path,
    target: &str,
    size_bytes: u64,
    seconds: f64,
    interrupt: &Interrupt,
) -> Result<Verified, Error> {
    let mut load = command(flagstone, target);
    load.args(["--rw", "randrw", "--bs", "4k", "--depth", "32", "--verify"])
        .args(["--size", &size_bytes.to_string()])
        .args(["--time", &format!("{}ms", (seconds * 1e3) as u64)]);
    let what = "verifying with flagstone load";
    let ended = process::run(&mut load, interrupt)?;
    match parse(&ended, what)?.verify {
        Some(verify) if verify.read_back => Ok(Verified {
            blocks_written: verify.blocks_written,
            blocks_checked: verify.blocks_checked,
            violations: verify.violations,
        }),
        _ => Err(ended.failure(what)),
    }
}

/// The results in what it printed: there are some of a failed load, too.
fn parse(ended: &process::Ended, what: &str) -> Result<Output, Error> {
    match serde_json::from_str(&ended.output) {
        Ok(output) => Ok(output),
        Err(_) if !ended.status.success() => Err(ended.failure(what)),
        Err(error) => Err(Error::unexpected(what, error)),
    }
}
