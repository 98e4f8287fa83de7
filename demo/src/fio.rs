//! fio: fills the file, measures the local disk and the NBD export, and verifies over NBD.

use std::path::Path;
use std::process::Command;

use serde::Deserialize;

use crate::Error;
use crate::grid::{Cell, Direction};
use crate::process::{self, Interrupt};

/// Where fio's requests go.
#[derive(Clone, Copy, Debug)]
pub enum Target<'a> {
    /// A file, opened for direct I/O.
    File {
        /// Where it is.
        path: &'a Path,
        /// `io_uring` or `libaio`.
        engine: &'a str,
    },
    /// An NBD export.
    Nbd {
        /// `nbd://HOST:PORT/EXPORT`
        uri: &'a str,
    },
}

/// What fio is asked to do for how long.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Seconds that are measured.
    pub seconds: f64,
    /// Seconds before that.
    pub ramp_seconds: f64,
    /// Bytes of the target that are used.
    pub size_bytes: u64,
}

/// A result of fio, as far as it is used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FioResult {
    /// Requests a second.
    pub iops: f64,
    /// Requests.
    pub ios: u64,
    /// Mean time from submission to completion, in µs.
    pub latency_mean_us: f64,
    /// The 99th percentile of it, in µs.
    pub latency_p99_us: f64,
}

fn command(target: Target<'_>) -> Command {
    let mut fio = Command::new("fio");
    fio.args(["--name=demo", "--output-format=json", "--thread", "--group_reporting"]);
    match target {
        Target::File { path, engine } => {
            let mut filename = std::ffi::OsString::from("--filename=");
            filename.push(path);
            fio.arg(filename).arg(format!("--ioengine={engine}")).arg("--direct=1");
        }
        Target::Nbd { uri } => {
            fio.arg("--ioengine=nbd").arg(format!("--uri={uri}"));
        }
    }
    fio
}

/// Writes the whole file with random bytes: what was never written would be read without a disk.
///
/// # Errors
/// fio's failure, such as no space, or a file system without direct I/O.
pub fn fill(target: Target<'_>, size_bytes: u64, interrupt: &Interrupt) -> Result<(), Error> {
    let mut fio = command(target);
    fio.args(["--rw=write", "--bs=1m", "--iodepth=8", "--refill_buffers", "--end_fsync=1"]);
    fio.arg("--fallocate=posix").arg(format!("--size={size_bytes}"));
    let ended = process::run(&mut fio, interrupt)?;
    if ended.status.success() { Ok(()) } else { Err(ended.failure("filling the file with fio")) }
}

/// Measures one cell.
///
/// # Errors
/// fio's failure.
pub fn measure(
    target: Target<'_>,
    cell: &Cell,
    span: Span,
    interrupt: &Interrupt,
) -> Result<FioResult, Error> {
    let mut fio = command(target);
    fio.arg(format!("--rw={}", cell.direction.pattern()))
        .arg(format!("--bs={}", cell.block_bytes))
        .arg(format!("--iodepth={}", cell.depth))
        .arg(format!("--size={}", span.size_bytes))
        .args(["--time_based", "--norandommap", "--randrepeat=0"])
        .arg(format!("--runtime={}ms", (span.seconds * 1e3) as u64))
        .arg(format!("--ramp_time={}ms", (span.ramp_seconds * 1e3) as u64));
    let what = format!("measuring with fio ({})", cell.name());
    let ended = process::run(&mut fio, interrupt)?;
    if !ended.status.success() {
        return Err(ended.failure(&what));
    }
    parse(&ended.output, cell.direction).map_err(|detail| Error::unexpected(what, detail))
}

/// Writes `size_bytes` at random places with a checksum in each block, reads all of it and checks.
///
/// Gives the number of blocks written and checked.
///
/// # Errors
/// fio's failure: a wrong checksum is one.
pub fn verify(
    target: Target<'_>,
    size_bytes: u64,
    interrupt: &Interrupt,
) -> Result<(u64, u64), Error> {
    let mut fio = command(target);
    fio.args(["--rw=randwrite", "--bs=4k", "--iodepth=32", "--verify=crc32c", "--do_verify=1"])
        .args(["--verify_fatal=1", "--verify_state_save=0", "--randrepeat=0"])
        .arg(format!("--size={size_bytes}"));
    let what = "verifying with fio";
    let ended = process::run(&mut fio, interrupt)?;
    if !ended.status.success() {
        return Err(ended.failure(what));
    }
    let unexpected = |detail| Error::unexpected(what, detail);
    let written = parse(&ended.output, Direction::Write).map_err(unexpected)?;
    let checked = parse(&ended.output, Direction::Read).map_err(unexpected)?;
    Ok((written.ios, checked.ios))
}

/// Whether this fio can do an engine: `None`, or why not.
///
/// # Errors
/// That there is no fio at all.
pub fn missing_engine(engine: &str, interrupt: &Interrupt) -> Result<Option<String>, Error> {
    let ended = process::run(Command::new("fio").arg("--enghelp"), interrupt)?;
    if ended.output.lines().any(|line| line.trim() == engine) {
        return Ok(None);
    }
    let version = process::run(Command::new("fio").arg("--version"), interrupt)?.output;
    Ok(Some(format!("{} has no {engine} engine", version.trim())))
}

/// Which engine measures local disks here: io_uring, or libaio where containers forbid it.
///
/// # Errors
/// That neither works in `directory`, with what fio says: often a file system without direct I/O.
pub fn local_engine(directory: &Path, interrupt: &Interrupt) -> Result<&'static str, Error> {
    let probe = directory.join("probe");
    let mut last = None;
    for engine in ["io_uring", "libaio"] {
        let mut fio = command(Target::File { path: &probe, engine });
        fio.args(["--rw=write", "--bs=4k", "--size=64k"]);
        let ended = process::run(&mut fio, interrupt)?;
        let _ = std::fs::remove_file(&probe);
        if ended.status.success() {
            return Ok(engine);
        }
        last = Some(ended.failure(&format!("direct I/O in {}", directory.display())));
    }
    Err(last.expect("two engines were tried"))
}

#[derive(Deserialize)]
struct Output {
    jobs: Vec<Job>,
}

#[derive(Deserialize)]
struct Job {
    error: i64,
    read: Side,
    write: Side,
}

#[derive(Deserialize)]
struct Side {
    iops: f64,
    total_ios: u64,
    lat_ns: Lat,
    clat_ns: Lat,
}

#[derive(Deserialize)]
struct Lat {
    mean: f64,
    #[serde(default)]
    percentile: std::collections::BTreeMap<String, f64>,
}

fn parse(output: &str, direction: Direction) -> Result<FioResult, String> {
    // Warnings may stand before the JSON.
    let start = output.find('{').ok_or("no JSON in it")?;
    let mut values = serde_json::Deserializer::from_str(&output[start..]).into_iter::<Output>();
    let output = values.next().ok_or("no JSON in it")?.map_err(|error| error.to_string())?;
    let job = output.jobs.into_iter().next().ok_or("no job in it")?;
    if job.error != 0 {
        return Err(format!("error {}", job.error));
    }
    let side = match direction {
        Direction::Read => job.read,
        Direction::Write => job.write,
    };
    if side.total_ios == 0 {
        return Err("nothing was measured".to_owned());
    }
    let p99_ns = side.clat_ns.percentile.get("99.000000").copied().unwrap_or(f64::NAN);
    Ok(FioResult {
        iops: side.iops,
        ios: side.total_ios,
        latency_mean_us: side.lat_ns.mean / 1e3,
        latency_p99_us: p99_ns / 1e3,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = r#"fio: a warning
        {"fio version": "fio-3.33", "jobs": [{"error": 0,
          "read": {"iops": 1000.5, "total_ios": 2001, "lat_ns": {"mean": 950000.0},
                   "clat_ns": {"mean": 940000.0, "percentile": {"99.000000": 1500000}}},
          "write": {"iops": 0.0, "total_ios": 0, "lat_ns": {"mean": 0.0},
                    "clat_ns": {"mean": 0.0}}}]}
        "#;

    #[test]
    fn a_result_is_found_behind_warnings() {
        let result = parse(OUTPUT, Direction::Read).unwrap();
        assert_eq!((result.iops, result.ios), (1000.5, 2001));
        assert_eq!((result.latency_mean_us, result.latency_p99_us), (950.0, 1500.0));
        assert_eq!(parse(OUTPUT, Direction::Write), Err("nothing was measured".to_owned()));
    }

    #[test]
    fn a_failed_job_and_other_text_are_no_result() {
        let failed = OUTPUT.replace(r#""error": 0"#, r#""error": 84"#);
        assert_eq!(parse(&failed, Direction::Read), Err("error 84".to_owned()));
        assert!(parse("fio: engine nbd not loadable", Direction::Read).is_err());
    }
}
