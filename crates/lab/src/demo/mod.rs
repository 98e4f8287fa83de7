//! Demo: a volume on a file is served, attached over NVMe/TCP and NBD, measured against its file
//! and verified; then the pool, mirror, fabric and failover experiments run, shortened. `make demo`
//! is `flagstone lab demo`.
//!
//! Invariants:
//! - fio measures the file and the NBD export, `flagstone load` the NVMe/TCP namespace, each as a
//!   process of its own, as a user would run it;
//! - only the report and the results stay. All other files are in one directory that is removed at
//!   the end, after Ctrl-C too, and every process that was started is stopped.
//!
//! It fails if fio is missing, if a server or node does not start, or if a measurement fails. Wrong
//! data is a result: [`DemoReport::is_right`].

pub mod experiments;
pub mod grid;
pub mod report;
mod tables;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use flagstone_bench::Error as BenchError;
use flagstone_bench::disturbance::{Disturbance, DisturbanceMeter};
use flagstone_bench::fio::Fio;
use flagstone_bench::generator::Generator;
use flagstone_bench::measurement::Measurement;
use flagstone_bench::os::Stopwatch;
use flagstone_bench::precondition;
use flagstone_bench::process::{self, Interrupt};
use flagstone_bench::server::{CpuMeter, Servers};
use flagstone_bench::target::{BenchTarget, DiskAddress};
use flagstone_units::grouped;
use serde::Serialize;
use tempfile::TempDir;

use self::experiments::Runner;
use self::grid::{AccessPath, GridRow, GridWorkload, PathFigures, workloads};
use self::report::DataCheck;
pub use self::report::DemoReport;
use crate::Error;
use crate::bed::SCHEMA_VERSION;
use crate::failover::Follower;
use crate::limits::OUTPUT_BYTES;
use crate::node::{LabNode, device};
use crate::ports::free_ports;

/// Warm-up of a measurement, as a share of its length.
const RAMP_SHARE: f64 = 0.25;
/// Bytes that are verified over each path.
const VERIFY_BYTES: u64 = 64 << 20;
/// Length of the verifying load over NVMe/TCP, before all of it is read back.
const VERIFY_TIME: Duration = Duration::from_secs(2);
const VOLUME: &str = "demo";

#[derive(Clone, Debug)]
pub struct DemoOptions {
    pub program: PathBuf,
    pub command: String,
    /// Directory in which the volume's file is made, on the disk to measure.
    pub directory: PathBuf,
    pub size_bytes: u64,
    pub runtime_ms: u64,
    /// Directory of the report and of the experiments' results. Results of an earlier demo are
    /// replaced.
    pub results: PathBuf,
}

/// Runs the demo. Returns the report and the path of its HTML page.
pub fn run(
    options: &DemoOptions,
    follower: &mut dyn Follower,
    interrupt: &Interrupt,
) -> Result<(DemoReport, PathBuf), Error> {
    let watch = Stopwatch::start();
    let fio = Fio::find(interrupt)?;
    let has_nbd = fio.has_engine("nbd", interrupt)?;
    let workloads = workloads();
    let paths = if has_nbd { 3 } else { 2 };
    let grid_steps = workloads.len() * paths;
    let steps = 2 + grid_steps + paths - 1 + experiments::steps();
    let mut parts = Parts { follower, steps, conditions: Vec::new() };
    parts.follower.steps(steps);
    let follower = &mut *parts.follower;

    let scratch = scratch(&options.directory)?;
    let file = scratch.path().join("volume");
    let local =
        BenchTarget { name: "local".to_owned(), disks: vec![DiskAddress::Path(file.clone())] };
    follower.begin("filling the volume's file");
    precondition::make(&file, options.size_bytes)?;
    fio.fill(&local, Some(options.size_bytes), interrupt, &mut || {})?;
    let mib = grouped((options.size_bytes >> 20) as f64, 0);
    follower.end(&format!("filled a file of {mib} MiB in {}", scratch.path().display()));

    follower.begin("starting flagstone serve");
    let ports: [u16; 2] = free_ports()?;
    let uri = device(&ports[..1], VOLUME);
    let nbd = format!("nbd://127.0.0.1:{}/{VOLUME}", ports[1]);
    let mut server = LabNode::new(&options.program, scratch.path(), "server");
    let listen =
        [format!("nvme-tcp://127.0.0.1:{}", ports[0]), format!("nbd://127.0.0.1:{}", ports[1])];
    server.configure(&format!(
        "[server]\nlisten = {listen:?}\napi = {:?}\n\n[volume.{VOLUME}]\ndevice = {file:?}\n",
        server.file("sock")
    ))?;
    server.start(interrupt)?;
    follower.end(&format!("serving {uri} and {nbd}"));

    let nbd = BenchTarget { name: "NBD".to_owned(), disks: vec![DiskAddress::Nbd(nbd)] };
    let bench = Bench {
        options,
        interrupt,
        fio: &fio,
        generator: Generator { program: options.program.clone() },
        local: &local,
        uri: &uri,
        nbd: has_nbd.then_some(&nbd),
    };
    let rows = parts.measure("served volume", grid_steps, &mut |follower| {
        workloads.iter().map(|workload| bench.row(workload, follower)).collect()
    })?;
    let checks = bench.checks(parts.follower)?;
    server.stop(interrupt)?;
    let experiments = Runner { options, scratch: scratch.path(), interrupt }.run(&mut parts)?;
    let conditions = parts.conditions;
    scratch.close().map_err(Error::system("cannot remove the demo's directory"))?;
    let report = DemoReport {
        schema_version: SCHEMA_VERSION,
        flagstone: env!("CARGO_PKG_VERSION").to_owned(),
        local_engine: fio.engine().to_owned(),
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        conditions,
        volume_bytes: options.size_bytes,
        seconds: options.runtime_ms as f64 / 1e3,
        rows,
        checks,
        nbd_skipped: (!has_nbd).then(|| format!("{} has no nbd engine", fio.version())),
        lab: experiments,
        took_s: watch.seconds(),
    };
    let page = experiments::page(&report.sections(), &options.results)?;
    Ok((report, page))
}

fn scratch(directory: &Path) -> Result<TempDir, Error> {
    std::fs::create_dir_all(directory)
        .and_then(|()| tempfile::Builder::new().prefix("flagstone-demo-").tempdir_in(directory))
        .map_err(|cause| BenchError::file("cannot make a directory in", directory)(cause).into())
}

/// A part of the demo, and how much of the CPUs others took from it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PartConditions {
    pub part: &'static str,
    pub disturbance: Disturbance,
    /// Disturbance of the first figures, if the part was repeated because of it.
    pub repeated_for: Option<Disturbance>,
}

struct Parts<'a> {
    follower: &'a mut dyn Follower,
    steps: usize,
    conditions: Vec<PartConditions>,
}

impl Parts<'_> {
    /// Measures a part of `steps` steps, and repeats it once if the machine was too busy.
    fn measure<T>(
        &mut self,
        part: &'static str,
        steps: usize,
        measure: &mut dyn FnMut(&mut dyn Follower) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.believable(part, steps, |follower| {
            let meter = DisturbanceMeter::start();
            let measured = measure(follower)?;
            Ok((measured, meter.end()))
        })
    }

    fn believable<T>(
        &mut self,
        part: &'static str,
        steps: usize,
        mut measure: impl FnMut(&mut dyn Follower) -> Result<(T, Disturbance), Error>,
    ) -> Result<T, Error> {
        let (mut measured, mut disturbance) = measure(self.follower)?;
        let repeated_for = Some(disturbance).filter(|first| first.is_too_much());
        if repeated_for.is_some() {
            self.steps += steps;
            self.follower.steps(self.steps);
            (measured, disturbance) = measure(self.follower)?;
        }
        self.conditions.push(PartConditions { part, disturbance, repeated_for });
        Ok(measured)
    }
}

struct Bench<'a> {
    options: &'a DemoOptions,
    interrupt: &'a Interrupt,
    fio: &'a Fio,
    generator: Generator,
    local: &'a BenchTarget,
    uri: &'a str,
    nbd: Option<&'a BenchTarget>,
}

impl Bench<'_> {
    /// One workload over every path, in direct succession: the disk is in the same state for all.
    fn row(&self, workload: &GridWorkload, follower: &mut dyn Follower) -> Result<GridRow, Error> {
        let mut step = |path: AccessPath, target: Option<&BenchTarget>| {
            let what = format!("{}, {}", workload.name(), path.name());
            follower.begin(&what);
            let figures = self.measure(workload, target)?;
            follower.end(&format!("{what}: {} IOPS", grouped(figures.iops, 0)));
            Ok::<_, Error>(figures)
        };
        let local = step(AccessPath::Local, Some(self.local))?;
        let nvme_tcp = step(AccessPath::NvmeTcp, None)?;
        let nbd = self.nbd.map(|target| step(AccessPath::Nbd, Some(target))).transpose()?;
        Ok(GridRow { workload: *workload, local, nvme_tcp, nbd })
    }

    /// fio on a target, or `flagstone load` on the namespace if there is none.
    fn measure(
        &self,
        workload: &GridWorkload,
        target: Option<&BenchTarget>,
    ) -> Result<PathFigures, Error> {
        let runtime_ms = self.options.runtime_ms;
        let ramp_ms = (runtime_ms as f64 * RAMP_SHARE) as u64;
        let job = workload.job(self.options.size_bytes, ramp_ms, runtime_ms);
        let servers = Servers::default();
        let mut meter = CpuMeter::new(&servers, ramp_ms);
        let measurement = match target {
            Some(target) => {
                let mut tick = || meter.tick();
                Measurement::of_fio(&self.fio.measure(&job, target, self.interrupt, &mut tick)?)
            }
            None => {
                let mut tick = || meter.tick();
                self.generator.measure(&job, self.uri, self.interrupt, &mut tick)?.measurement()
            }
        };
        let cpu = meter.end().host.unwrap_or_default();
        Ok(PathFigures {
            iops: measurement.total.iops,
            latency_mean_us: measurement.total.latency_mean_us,
            latency_p99_us: measurement.total.percentile_us("99"),
            cpu_busy: cpu.busy_percent() / 100.0,
        })
    }

    /// Verifies the data over NVMe/TCP, and over NBD where fio can.
    fn checks(&self, follower: &mut dyn Follower) -> Result<Vec<DataCheck>, Error> {
        let size_bytes = VERIFY_BYTES.min(self.options.size_bytes);
        follower.begin("verifying over NVMe/TCP");
        let mut checks = vec![self.verify_nvme_tcp(size_bytes)?];
        follower.end("verified over NVMe/TCP");
        if let Some(target) = self.nbd {
            follower.begin("verifying over NBD");
            // fio fails if a checksum is wrong.
            let (blocks_written, blocks_checked) =
                self.fio.verify(target, size_bytes, self.interrupt)?;
            follower.end("verified over NBD");
            let path = AccessPath::Nbd;
            checks.push(DataCheck { path, blocks_written, blocks_checked, wrong_blocks: 0 });
        }
        Ok(checks)
    }

    /// Random writes and reads with verification, then a read of all written blocks.
    fn verify_nvme_tcp(&self, size_bytes: u64) -> Result<DataCheck, Error> {
        let (size, time) = (size_bytes.to_string(), format!("{}ms", VERIFY_TIME.as_millis()));
        let words = ["load", self.uri, "--json", "--rw", "randrw", "--bs", "4k", "--depth", "32"];
        let more = ["--verify", "--size", &size, "--time", &time, "--destroy-data", self.uri];
        let mut load = Command::new(&self.options.program);
        load.args(words).args(more);
        let ended = process::run(&mut load, OUTPUT_BYTES, self.interrupt, &mut || {})?;
        let results = crate::failover::load::results("flagstone load --verify", &ended)?;
        let verified = results.verify.filter(|verified| verified.read_back);
        let not_read =
            || Error::unexpected("flagstone load --verify", "the blocks were not read back");
        let verified = verified.ok_or_else(not_read)?;
        Ok(DataCheck {
            path: AccessPath::NvmeTcp,
            blocks_written: verified.blocks_written,
            blocks_checked: verified.blocks_checked,
            wrong_blocks: verified.violations,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Counted(usize);

    impl Follower for Counted {
        fn steps(&mut self, count: usize) {
            self.0 = count;
        }
        fn begin(&mut self, _: &str) {}
        fn end(&mut self, _: &str) {}
    }

    #[test]
    fn disturbed_part_is_repeated_once() {
        let steal = |steal_percent| Disturbance { steal_percent, others_percent: 0.0 };
        let conditions = |first: f64, second: f64| {
            let (mut follower, mut taken) = (Counted::default(), 0);
            let mut parts = Parts { follower: &mut follower, steps: 10, conditions: Vec::new() };
            let mut measure = |_: &mut dyn Follower| {
                taken += 1;
                Ok((taken, steal([first, second][taken - 1])))
            };
            let measured = parts.believable("x", 3, &mut measure).unwrap();
            let found = parts.conditions.remove(0);
            (measured, follower.0, found.disturbance, found.repeated_for)
        };
        assert_eq!(conditions(5.0, 0.0), (1, 0, steal(5.0), None));
        assert_eq!(conditions(40.0, 5.0), (2, 13, steal(5.0), Some(steal(40.0))));
        assert_eq!(conditions(40.0, 50.0), (2, 13, steal(50.0), Some(steal(40.0))), "no third");
    }
}
