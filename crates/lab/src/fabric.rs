//! Experiment B: local NVMe SSDs against the same over NVMe/TCP, beside what MayaScale published.
//!
//! One to four SSDs are emulated, striped, and read and written at random: in the process of the
//! generator, as a local disk is, and through a server of its own, with the limit of the network
//! that the published machine had. A machine of few CPUs reaches neither the disks' limits nor the
//! network's; where its CPUs were the limit, that is said. `scale` makes disks and network slower
//! by a factor, so that the model and not the machine is seen.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use flagstone_bench::attach::Choice;
use flagstone_bench::campaign::{Ending, Plan, Watcher};
use flagstone_bench::compare::Comparison;
use flagstone_bench::cpu::{CpuUse, Snapshot};
use flagstone_bench::environment;
use flagstone_bench::fio::arguments::shell;
use flagstone_bench::generator::{Generator, LoadRun, arguments};
use flagstone_bench::job::{Job, Pattern};
use flagstone_bench::nature::{Nature, Origin};
use flagstone_bench::os::{Interrupt, unix_seconds};
use flagstone_bench::published::by_disks;
use flagstone_bench::results::{Record, SCHEMA_VERSION as RESULTS_VERSION, Store};
use flagstone_bench::stats::median;
use flagstone_bench::table::Table;
use flagstone_bench::target::{Place, Target};
use flagstone_bench::units::format_number;
use flagstone_control::config::Config;
use flagstone_control::stack::open_volume;
use flagstone_load::job::BlockSize;
use flagstone_load::results::{Outcome as LoadOutcome, Results};
use flagstone_load::{Job as LoadJob, Pattern as LoadPattern, Stop};
use flagstone_runtime::{Config as RuntimeConfig, run as run_cores};
use serde::Serialize;

use crate::Error;
use crate::limits::BUSY_PERCENT;
use crate::node::{Node, device};
use crate::ports::free_ports;

/// Version of the JSON form.
pub const SCHEMA_VERSION: u32 = 1;
/// Most SSDs, as published.
pub const DISKS: u32 = 4;
/// What is compared.
pub(crate) const LOCAL: &str = "local";
/// With that.
pub(crate) const FABRIC: &str = "NVMe/TCP";
/// Of one SSD, as published: reads and writes of 4 KiB a second.
const DISK_IOPS: (u64, u64) = (180_000, 100_000);
/// Of one SSD. No source says; 32 in flight at 180,000 a second are 178 µs.
const LATENCY_US: u64 = 100;
/// The network of n1-highcpu-16, in bytes a second: the 16 Gbit/s that the page's rows need.
const NETWORK_BYTES_PER_S: u64 = 2_000_000_000;
/// Of 4,096 bytes of data, what else goes over the wire: NVMe/TCP's header, and TCP's and IP's.
const WIRE_PART: f64 = 4096.0 / 4190.0;
/// In flight on each disk.
pub(crate) const DEPTH: u32 = 32;
/// Ceiling of the pooled buffers of the local generator.
const MEMORY_BYTES: usize = 256 << 20;

/// What is asked.
#[derive(Clone, Debug)]
pub struct Options {
    /// The `flagstone` program.
    pub program: PathBuf,
    /// What was typed, for whoever wants to do it again.
    pub command: String,
    /// Where the results go: a directory without results.
    pub results: PathBuf,
    /// By how much disks and network are slower than the published ones.
    pub scale: u32,
    /// Warm-up of each measurement, in ms.
    pub ramp_ms: u64,
    /// Length of each measurement, in ms.
    pub runtime_ms: u64,
    /// Of each measurement.
    pub repetitions: u32,
    /// How many SSDs, from 1 to [`DISKS`] each.
    pub disks: Vec<u32>,
}

impl Options {
    fn volume_name(disks: u32) -> String {
        format!("ssd-x{disks}")
    }

    /// So many SSDs as one volume, with the network's limit above them where they are remote.
    fn volume(&self, disks: u32, is_remote: bool) -> String {
        let scaled = |rate: u64| (rate / u64::from(self.scale)).max(1);
        let (reads, writes) = DISK_IOPS;
        let network = scaled((NETWORK_BYTES_PER_S as f64 * WIRE_PART) as u64);
        let network = match is_remote {
            true => {
                format!(", read_throughput = \"{network}B/s\", write_throughput = \"{network}B/s\"")
            }
            false => String::new(),
        };
        let backing = match disks {
            1 => "device = \"null:375GiB\"\n".to_owned(),
            _ => {
                let all = vec!["\"null:375GiB\""; disks as usize].join(", ");
                format!("stripe = {{ chunk = \"64KiB\", devices = [{all}] }}\n")
            }
        };
        format!(
            "[volume.{}]\nlimit = {{ read_iops = {}, write_iops = {}{network} }}\n\
             emulate = {{ latency = \"{LATENCY_US}us\" }}\n{backing}\n",
            Options::volume_name(disks),
            scaled(reads) * u64::from(disks),
            scaled(writes) * u64::from(disks),
        )
    }

    fn volumes(&self, is_remote: bool) -> String {
        (1..=DISKS).map(|disks| self.volume(disks, is_remote)).collect()
    }

    fn job(&self, pattern: Pattern, disks: u32) -> Job {
        Job {
            name: format!("{pattern}-x{disks}"),
            pattern,
            depth: DEPTH * disks,
            disks,
            ramp_ms: self.ramp_ms,
            runtime_ms: self.runtime_ms,
            ..Job::default()
        }
    }

    fn jobs(&self) -> Vec<Job> {
        let of = |pattern| self.disks.iter().map(move |disks| self.job(pattern, *disks));
        [Pattern::RandWrite, Pattern::RandRead].into_iter().flat_map(of).collect()
    }

    fn plan(&self, port: u16) -> Plan {
        let addresses = |is_remote: bool| -> Vec<Place> {
            let name = |disks| match is_remote {
                true => Place::NvmeTcp(device(&[port], &Options::volume_name(disks))),
                // It is in no file: what it is made of is in the origin.
                false => Place::Path(format!("emulated-{}", Options::volume_name(disks)).into()),
            };
            (1..=DISKS).map(name).collect()
        };
        let mut targets = Vec::new();
        let mut origins = BTreeMap::new();
        for (name, is_remote) in [(LOCAL, false), (FABRIC, true)] {
            let disks = addresses(is_remote);
            for (at, disk) in (1..).zip(&disks) {
                let stack = self.volume(at, is_remote);
                origins.insert(disk.to_string(), Origin { nature: Nature::Emulated, stack });
            }
            targets.push(Target { name: name.to_owned(), disks });
        }
        Plan {
            schema_version: RESULTS_VERSION,
            suite: "fabric".to_owned(),
            title: "Experiment B on EMULATED disks: local SSDs against NVMe/TCP".to_owned(),
            jobs: self.jobs(),
            targets,
            repetitions: self.repetitions,
            steady_state: false,
            precondition: false,
            file_bytes: 1 << 20,
            initiator: Choice::Flagstone,
            origins,
            command: Some(self.command.clone()),
            destroy: Vec::new(),
        }
    }
}

/// A job on one of both sides: medians.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// `randread` or `randwrite`.
    pub rw: Pattern,
    /// SSDs.
    pub disks: u32,
    /// `local` or `NVMe/TCP`.
    pub on: String,
    /// How often.
    pub repetitions: usize,
    /// Requests of 4 KiB a second.
    pub iops: f64,
    /// What disks and network allow.
    pub model_iops: f64,
    /// Mean latency, in µs.
    pub latency_us: f64,
    /// How busy this machine's CPUs were, in %.
    pub cpu_percent: Option<f64>,
    /// What allowed no more.
    pub bound: Bound,
}

/// What bound a cell. In JSON, its name in small letters; for a reader, [`Bound::words`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Bound {
    /// The model's disks.
    Disks,
    /// The model's network.
    Network,
    /// The CPU of this machine, and not the model.
    Cpu,
    /// How long a request takes: no more are in flight.
    Latency,
}

impl Bound {
    /// As a table says it.
    pub fn words(self) -> &'static str {
        match self {
            Bound::Disks => "the disks",
            Bound::Network => "the network",
            Bound::Cpu => "the CPU of this machine",
            Bound::Latency => "latency",
        }
    }
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// `fabric`.
    pub experiment: &'static str,
    /// Always true: disks and network are.
    pub emulated: bool,
    /// By how much disks and network are slower than the published ones.
    pub scale: u32,
    /// Each job on both sides.
    pub cells: Vec<Cell>,
    /// What the numbers do not say by themselves.
    pub doubts: Vec<String>,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Whether it was done.
    pub ending: Ending,
    /// What was found, of the part that was done.
    pub summary: Summary,
    /// In the published form, and what was published.
    pub tables: Vec<Table>,
}

/// Runs the experiment.
///
/// # Errors
/// What went wrong. The user's interruption while things are measured is an [`Ending`].
pub fn run(
    options: &Options,
    watcher: &mut dyn Watcher,
    interrupt: &Interrupt,
) -> Result<Outcome, Error> {
    let scratch = crate::scratch()?;
    let [port] = free_ports()?;
    let mut server = Node::new(&options.program, scratch.path(), "lab");
    let listen = [format!("nvme-tcp://127.0.0.1:{port}")];
    server.configure_alone(&listen, &options.volumes(true))?;
    let plan = options.plan(port);
    plan.check()?;
    let store = Store::create(&options.results, &plan)?;
    store.environment(&environment::record(&[], None))?;
    server.start(interrupt)?;
    let bench = Bench { options, plan: &plan, store: &store, interrupt };
    let ending = match bench.measure_all(watcher) {
        Ok(()) => {
            server.stop(interrupt)?;
            Ending::Complete
        }
        Err(error) if error.is_interruption() => Ending::Interrupted,
        Err(error) => return Err(error),
    };
    let records = store.records()?;
    let tables = by_disks(&Comparison::of_targets(records.clone()), 1);
    let tables = tables.into_iter().chain(flagstone_bench::published::published("fabric"));
    Ok(Outcome { ending, summary: summary(options, &records), tables: tables.collect() })
}

struct Bench<'a> {
    options: &'a Options,
    plan: &'a Plan,
    store: &'a Store,
    interrupt: &'a Interrupt,
}

impl Bench<'_> {
    fn measure_all(&self, watcher: &mut dyn Watcher) -> Result<(), Error> {
        let steps = self.plan.steps();
        for (at, step) in steps.iter().enumerate() {
            self.interrupt.check()?;
            let left_s = steps[at..].iter().map(|step| self.plan.step_seconds(*step)).sum();
            let (job, target) = (&self.plan.jobs[step.job], &self.plan.targets[step.target]);
            watcher.begin(&format!("{} on {}", job.name, target.name), left_s);
            let started_unix_s = unix_seconds();
            let before = Snapshot::take();
            let run = match &target.disks[job.disks as usize - 1] {
                Place::NvmeTcp(uri) => {
                    // Its depth is that of all disks together, as the volume is all of them.
                    let generator = Generator { program: self.options.program.clone() };
                    generator.measure(job, uri, self.interrupt, &mut || watcher.tick())?
                }
                other => LoadRun {
                    results: self.local(job)?,
                    command: format!("in this process, on {other}"),
                    paused_s: 0.0,
                },
            };
            let mut measurement = run.measurement();
            let cpus = Snapshot::take().since(&before);
            measurement.cpu = (!cpus.is_empty()).then(|| CpuUse::mean(&cpus));
            let raw = serde_json::to_string(&run.results).expect("results are always JSON");
            let raw = self.store.raw(&job.name, step.target, step.repetition, &raw)?;
            let record = Record {
                nature: Nature::Emulated,
                repetition: step.repetition,
                started_unix_s,
                tool: "flagstone load".to_owned(),
                command: run.command,
                raw: Some(raw),
                // By the disk, as the published table and its suite have it.
                depth: DEPTH,
                ..Record::new(&self.plan.suite, job, target, measurement)
            };
            self.store.append(&record)?;
            watcher.done(&record);
        }
        Ok(())
    }

    /// In this process, on a core of its own: as a program uses a disk of its machine.
    fn local(&self, job: &Job) -> Result<Results, Error> {
        let unexpected = |detail: String| Error::Unexpected {
            what: shell("flagstone", &arguments(job, "an emulated disk").unwrap_or_default()),
            detail,
        };
        let text = self.options.volumes(false);
        let config = Config::parse("lab", &text).map_err(|wrong| unexpected(wrong.to_string()))?;
        let load = load_job(job);
        let (stop, interrupt) = (Stop::new(), self.interrupt);
        let runtime =
            RuntimeConfig { cores: 1, memory_bytes: MEMORY_BYTES, ..RuntimeConfig::default() };
        let index = job.disks as usize - 1;
        let ended = run_cores(&runtime, || async {
            let opened = open_volume(&config, index, &[]).await;
            let device = opened.map_err(|error| error.to_string())?.device;
            let look = |_: &flagstone_load::Progress| {
                if interrupt.is_raised() {
                    stop.stop();
                }
            };
            let results = flagstone_load::run(device, &load, &stop, look).await;
            results.map_err(|error| error.to_string())
        });
        let results = ended.map_err(|error| unexpected(error.to_string()))?.map_err(unexpected)?;
        self.interrupt.check()?;
        match results.outcome {
            LoadOutcome::Complete => Ok(results),
            other => Err(unexpected(format!("it ended as {other:?}"))),
        }
    }
}

fn load_job(job: &Job) -> LoadJob {
    LoadJob {
        pattern: match job.pattern {
            Pattern::RandRead => LoadPattern::RandRead,
            _ => LoadPattern::RandWrite,
        },
        read_percent: 50,
        block_sizes: vec![BlockSize { bytes: job.block_bytes as usize, weight: 1 }],
        depth: job.depth as usize,
        cores: 1,
        time: Some(Duration::from_millis(job.runtime_ms)),
        ios: None,
        bytes: None,
        offset_bytes: 0,
        size_bytes: None,
        seed: 0,
        rate_iops: None,
        warm_up: Duration::from_millis(job.ramp_ms),
        flush_every: None,
        fua: false,
        errors_max: 0,
        verify: None,
    }
}

/// What disks and network allow a job, in requests a second, and which of them allows no more.
fn model(options: &Options, rw: Pattern, disks: u32, is_remote: bool) -> (f64, Bound) {
    let each = if rw.writes() { DISK_IOPS.1 } else { DISK_IOPS.0 };
    let of_disks = each as f64 * f64::from(disks);
    let of_network = NETWORK_BYTES_PER_S as f64 * WIRE_PART / 4096.0;
    let (allowed, bound) = match is_remote && of_network < of_disks {
        true => (of_network, Bound::Network),
        false => (of_disks, Bound::Disks),
    };
    (allowed / f64::from(options.scale), bound)
}

/// Nearer to what is allowed than this, in %, it is what was measured.
const NEAR_PERCENT: f64 = 3.0;

fn summary(options: &Options, records: &[Record]) -> Summary {
    let mut cells = Vec::new();
    for job in options.jobs() {
        for on in [LOCAL, FABRIC] {
            let is = |record: &&Record| record.job == job.name && record.target == on;
            let of: Vec<&Record> = records.iter().filter(is).collect();
            let middle = |pick: &dyn Fn(&Record) -> Option<f64>| {
                median(&of.iter().filter_map(|record| pick(record)).collect::<Vec<_>>())
            };
            let Some(iops) = middle(&|record| Some(record.iops)) else { continue };
            let (model_iops, of_model) = model(options, job.pattern, job.disks, on == FABRIC);
            let cpu_percent =
                middle(&|record| Some(record.measurement.cpu.as_ref()?.busy_percent()));
            let bound = match cpu_percent {
                _ if iops >= model_iops * (1.0 - NEAR_PERCENT / 100.0) => of_model,
                // The generator of a local disk has one core, whatever the machine has.
                _ if on == LOCAL => Bound::Cpu,
                Some(percent) if percent >= BUSY_PERCENT => Bound::Cpu,
                _ => Bound::Latency,
            };
            cells.push(Cell {
                rw: job.pattern,
                disks: job.disks,
                on: on.to_owned(),
                repetitions: of.len(),
                iops,
                model_iops,
                latency_us: middle(&|record| Some(record.latency_mean_us)).unwrap_or_default(),
                cpu_percent,
                bound,
            });
        }
    }
    let doubts = doubts(options, &cells);
    Summary {
        schema_version: SCHEMA_VERSION,
        experiment: "fabric",
        emulated: true,
        scale: options.scale,
        cells,
        doubts,
    }
}

fn doubts(options: &Options, cells: &[Cell]) -> Vec<String> {
    let mut doubts = vec![
        "disks and network are EMULATED: nothing here is a measurement of a cloud".to_owned(),
        "generator and server share the CPUs of this machine; the published server and client had 16 \
         vCPUs each"
            .to_owned(),
    ];
    if options.scale > 1 {
        doubts.push(format!(
            "disks and network are {} times slower than the published ones: compare ratios, not IOPS",
            options.scale
        ));
    }
    let busy: Vec<String> = cells
        .iter()
        .filter(|cell| cell.bound == Bound::Cpu)
        .map(|cell| format!("{} x{} {}", cell.rw, cell.disks, cell.on))
        .collect();
    if !busy.is_empty() {
        doubts.push(format!(
            "the CPU of this machine, not the model, was the limit of: {}; --scale makes the model \
             slower",
            busy.join("; ")
        ));
    }
    doubts
}

/// Each cell with what bound it.
pub fn table(summary: &Summary) -> Table {
    let iops = format!("IOPS{}", Nature::Emulated.suffix());
    let head = ["rw", "disks", "on", &iops, "allowed", "mean ms", "n", "CPU", "bound by"];
    let mut table = Table::new("what bound it, on EMULATED disks", &head);
    for cell in &summary.cells {
        table.rows.push(vec![
            cell.rw.to_string(),
            cell.disks.to_string(),
            cell.on.clone(),
            format_number(cell.iops, 0),
            format_number(cell.model_iops, 0),
            format!("{:.3}", cell.latency_us / 1e3),
            cell.repetitions.to_string(),
            cell.cpu_percent.map_or_else(|| "-".to_owned(), |percent| format!("{percent:.0} %")),
            cell.bound.words().to_owned(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use flagstone_bench::measurement::Measurement;
    use flagstone_control::config::Layer;

    use super::*;

    fn options(scale: u32) -> Options {
        Options {
            program: "flagstone".into(),
            command: "flagstone lab".to_owned(),
            results: "results".into(),
            scale,
            ramp_ms: 0,
            runtime_ms: 50,
            repetitions: 2,
            disks: (1..=DISKS).collect(),
        }
    }

    #[test]
    fn both_sides_are_configured_rightly() {
        for (scale, is_remote) in [(1, false), (1, true), (10, true)] {
            let text = options(scale).volumes(is_remote);
            let config =
                Config::parse("lab", &text).unwrap_or_else(|wrong| panic!("{wrong}\n{text}"));
            assert_eq!(config.volumes.len(), DISKS as usize);
            for volume in &config.volumes {
                assert!(volume.layers.iter().any(|layer| matches!(layer, Layer::Emulate(_))));
            }
        }
        let plan = options(1).plan(1);
        plan.check().unwrap();
        assert_eq!(plan.steps().len(), 2 * 2 * 2 * DISKS as usize);
        for disk in plan.targets.iter().flat_map(|target| &target.disks) {
            assert_eq!(plan.origins[&disk.to_string()].nature, Nature::Emulated);
        }
    }

    #[test]
    fn a_local_disk_is_measured_in_this_process() {
        let (options, never) = (options(1000), Interrupt::never());
        let directory = tempfile::tempdir().unwrap();
        let plan = options.plan(1);
        let store = Store::create(directory.path(), &plan).unwrap();
        let bench = Bench { options: &options, plan: &plan, store: &store, interrupt: &never };
        let results = bench.local(&options.job(Pattern::RandRead, 4)).unwrap();
        assert!(results.total.is_some_and(|total| total.ios > 0));
    }

    #[test]
    fn what_bound_it_is_told() {
        let options = options(1);
        let plan = options.plan(1);
        let record = |job: usize, target: usize, iops: f64, busy: f64| {
            let mut measurement = Measurement::default();
            measurement.total.iops = iops;
            measurement.cpu = Some(CpuUse {
                user_percent: busy,
                kernel_percent: 0.0,
                idle_percent: 100.0 - busy,
            });
            Record::new("fabric", &plan.jobs[job], &plan.targets[target], measurement)
        };
        let found = summary(
            &options,
            &[
                record(0, 0, 99_500.0, 50.0),
                record(0, 1, 60_000.0, 99.0),
                record(1, 1, 150_000.0, 40.0),
                // Four of them read more than the network has.
                record(7, 1, 477_000.0, 99.0),
            ],
        );
        let bound: Vec<_> = found.cells.iter().map(|cell| cell.bound).collect();
        assert_eq!(bound, [Bound::Disks, Bound::Cpu, Bound::Latency, Bound::Network]);
        let json = serde_json::to_value(&found.cells).unwrap();
        let named: Vec<_> = json.as_array().unwrap().iter().map(|cell| &cell["bound"]).collect();
        assert_eq!(named, ["disks", "cpu", "latency", "network"]);
        let told: Vec<_> = table(&found).rows.into_iter().filter_map(|mut row| row.pop()).collect();
        assert_eq!(told, ["the disks", "the CPU of this machine", "latency", "the network"]);
        let doubts = found.doubts.join("\n");
        assert!(doubts.contains("was the limit of: randwrite x1 NVMe/TCP;"), "{doubts}");
        assert!(table(&found).title.contains("EMULATED"));
    }
}
