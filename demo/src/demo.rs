//! What happens, in order: file, server, measurements, checks, the lab's experiments, clean-up.

use std::path::{Path as FilePath, PathBuf};
use std::process::Command;
use std::time::Duration;

use flagstone_bench::os::Stopwatch;
use tempfile::TempDir;

use crate::Error;
use crate::cpu::CpuTime;
use crate::fio::{self, Span, Target};
use crate::grid::{Cell, Measured, Path, cells};
use crate::lab::{self, Lab};
use crate::load;
use crate::process::{self, Interrupt};
use crate::progress::Progress;
use crate::report::{Check, Report, Row, SCHEMA_VERSION, Survived};
use crate::server::Server;
use crate::table::grouped;

/// Seconds before a measurement that are not counted: this part of the measurement's.
const RAMP_PART: f64 = 0.25;
/// How long the machine is watched before anything is measured.
const WATCHED: Duration = Duration::from_millis(500);
/// Bytes that are verified over each path.
const VERIFY_BYTES: u64 = 64 << 20;
/// Seconds of writes and reads over NVMe/TCP before all that was written is read back.
const VERIFY_SECONDS: f64 = 2.0;

/// What is asked.
#[derive(Clone, Debug)]
pub struct Options {
    /// The program.
    pub flagstone: PathBuf,
    /// Where the volume's file goes, in a directory of its own: on the disk to measure.
    pub directory: PathBuf,
    /// Size of the volume.
    pub size_bytes: u64,
    /// Seconds of each measurement.
    pub seconds: f64,
    /// Where the report and the results of the experiments go.
    pub results: PathBuf,
}

/// Runs the demo; gives what came of it, and where the report is. Nothing else is left behind,
/// whatever comes of it.
///
/// # Errors
/// What went wrong, and what to do about it.
pub fn run(options: &Options, interrupt: &Interrupt) -> Result<(Report, PathBuf), Error> {
    let watch = Stopwatch::start();
    let version = process::run(Command::new(&options.flagstone).arg("--version"), interrupt)?;
    let nbd_skipped = fio::missing_engine("nbd", interrupt)?;
    let cells = cells();
    let paths = if nbd_skipped.is_none() { 3 } else { 2 };
    let mut progress = Progress::new(2 + cells.len() * paths + paths - 1 + lab::STEPS);

    let scratch = scratch(&options.directory)?;
    let engine = fio::local_engine(scratch.path(), interrupt)?;
    let file = scratch.path().join("volume");
    let local = Target::File { path: &file, engine };
    progress.begin("filling the volume's file");
    fio::fill(local, options.size_bytes, interrupt)?;
    let size = grouped((options.size_bytes >> 20) as f64);
    progress.end(&format!("filled a file of {size} MiB in {}", scratch.path().display()));

    let before = CpuTime::now()?;
    std::thread::sleep(WATCHED);
    let others_busy = CpuTime::now()?.busy_since(before);

    progress.begin("starting flagstone serve");
    let server = Server::start(&options.flagstone, &file, &scratch.path().join("serve.log"))?;
    let (device, uri) = (server.nvme_tcp_device(), server.nbd_uri());
    progress.end(&format!("serving {device} and {uri}"));

    let bench = Bench {
        options,
        interrupt,
        local,
        device: &device,
        nbd: nbd_skipped.is_none().then_some(Target::Nbd { uri: &uri }),
    };
    let mut rows = Vec::with_capacity(cells.len());
    for cell in &cells {
        rows.push(bench.row(cell, &mut progress)?);
    }
    let checks = bench.checks(&mut progress)?;
    server.stop(interrupt)?;
    let lab = Lab {
        flagstone: &options.flagstone,
        results: &options.results,
        scratch: scratch.path(),
        seconds: options.seconds,
        interrupt,
    };
    let lab = lab.run(&mut progress)?;
    drop(progress);
    scratch.close().map_err(Error::io("cannot remove the demo's directory"))?;
    let report = Report {
        schema_version: SCHEMA_VERSION,
        flagstone: version.output.trim().to_owned(),
        local_engine: engine.to_owned(),
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        others_busy,
        volume_bytes: options.size_bytes,
        seconds: options.seconds,
        rows,
        checks,
        nbd_skipped,
        mirror: Survived::from(&lab.failover),
        lab,
        took_s: watch.seconds(),
    };
    let page = lab::page(&report.extras(), &options.results)?;
    Ok((report, page))
}

fn scratch(directory: &FilePath) -> Result<TempDir, Error> {
    std::fs::create_dir_all(directory)
        .and_then(|()| tempfile::Builder::new().prefix("flagstone-demo-").tempdir_in(directory))
        .map_err(Error::io(format!("cannot make a directory in {}", directory.display())))
}

/// What a measurement needs.
struct Bench<'a> {
    options: &'a Options,
    interrupt: &'a Interrupt,
    local: Target<'a>,
    device: &'a str,
    nbd: Option<Target<'a>>,
}

impl Bench<'_> {
    /// One cell over every path, one right after the other, so that they meet the same disk.
    fn row(&self, cell: &Cell, progress: &mut Progress) -> Result<Row, Error> {
        let local = step(progress, cell, Path::Local, || self.fio(self.local, cell))?;
        let nvme_tcp = step(progress, cell, Path::NvmeTcp, || self.load(cell))?;
        let nbd = match self.nbd {
            Some(target) => Some(step(progress, cell, Path::Nbd, || self.fio(target, cell))?),
            None => None,
        };
        Ok(Row { cell: *cell, local, nvme_tcp, nbd })
    }

    fn fio(&self, target: Target<'_>, cell: &Cell) -> Result<Measured, Error> {
        let Options { seconds, size_bytes, .. } = *self.options;
        let span = Span { seconds, ramp_seconds: seconds * RAMP_PART, size_bytes };
        let before = CpuTime::now()?;
        let result = fio::measure(target, cell, span, self.interrupt)?;
        Ok(Measured {
            iops: result.iops,
            latency_mean_us: result.latency_mean_us,
            latency_p99_us: result.latency_p99_us,
            cpu_busy: CpuTime::now()?.busy_since(before),
        })
    }

    fn load(&self, cell: &Cell) -> Result<Measured, Error> {
        let seconds = self.options.seconds;
        let times = (seconds, seconds * RAMP_PART);
        let before = CpuTime::now()?;
        let flagstone = &self.options.flagstone;
        let result = load::measure(flagstone, self.device, cell, times, self.interrupt)?;
        Ok(Measured {
            iops: result.iops,
            latency_mean_us: result.latency_mean_us,
            latency_p99_us: result.latency_p99_us,
            cpu_busy: CpuTime::now()?.busy_since(before),
        })
    }

    /// Checks the data over every path but the local one.
    fn checks(&self, progress: &mut Progress) -> Result<Vec<Check>, Error> {
        let Options { flagstone, size_bytes, .. } = self.options;
        let size_bytes = VERIFY_BYTES.min(*size_bytes);
        progress.begin("verifying over NVMe/TCP");
        let verified =
            load::verify(flagstone, self.device, size_bytes, VERIFY_SECONDS, self.interrupt)?;
        progress.end("verified over NVMe/TCP");
        let mut checks = vec![Check::nvme_tcp(verified)];
        if let Some(target) = self.nbd {
            progress.begin("verifying over NBD");
            // A wrong checksum fails it, with fio's own message.
            let (blocks_written, blocks_checked) = fio::verify(target, size_bytes, self.interrupt)?;
            progress.end("verified over NBD");
            let path = Path::Nbd;
            checks.push(Check { path, blocks_written, blocks_checked, wrong_blocks: 0 });
        }
        Ok(checks)
    }
}

/// One measurement, with its progress.
fn step(
    progress: &mut Progress,
    cell: &Cell,
    path: Path,
    measure: impl FnOnce() -> Result<Measured, Error>,
) -> Result<Measured, Error> {
    let what = format!("{}, {}", cell.name(), path.name());
    progress.begin(&what);
    let measured = measure()?;
    progress.end(&format!("{what}: {} IOPS", grouped(measured.iops)));
    Ok(measured)
}
