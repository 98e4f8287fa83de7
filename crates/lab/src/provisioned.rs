//! Experiment C: what a larger disk brings. Two standard persistent disks, of 200 and 600 GB, are
//! emulated and read by the published walk-through's own fio job; what comes out stands beside the
//! formula and what was published, each with the planner's judgement.
//!
//! The walk-through measured 309 and 745 IOPS and called both as expected. The formula of its own
//! source gives 150 and 450, and so does the emulated disk, which follows it: no tool should call
//! that the same.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use flagstone_bench::attach::{Choice, Initiator};
use flagstone_bench::campaign::{Campaign, Ending, Plan, Watcher};
use flagstone_bench::fio::Fio;
use flagstone_bench::generator::Generator;
use flagstone_bench::job::Job;
use flagstone_bench::nature::{Nature, Origin};
use flagstone_bench::os::{self, Interrupt};
use flagstone_bench::results::{Record, Store};
use flagstone_bench::stats::{median, noise_percent};
use flagstone_bench::suite;
use flagstone_bench::table::Table;
use flagstone_bench::target::{Place, Target};
use flagstone_bench::units::format_number;
use flagstone_cloud::judge::{Part, Verdict};
use flagstone_cloud::{Catalogue, Configuration, Measured, PlanError};
use serde::Serialize;

use crate::Error;
use crate::follow::Follow;
use crate::limits::OUTPUT_BYTES;
use crate::node::{Node, device};
use crate::ports::free_ports;

/// Version of the JSON form.
pub const SCHEMA_VERSION: u32 = 1;
/// The suite, built into bench, that is the walk-through's command.
pub(crate) const SUITE: &str = "provisioned-iops";
/// The catalogue that has the walk-through's formula.
const CATALOGUE: &str = "gcp-2019";
/// The type of the disks.
const TYPE: &str = "pd-standard";
/// The walk-through names no machine; none of 4 vCPUs or more limits such a disk.
const MACHINE: &str = "n1-standard-8";
/// No file is made; a plan has a size of such.
const FILE_BYTES: u64 = 1 << 20;
/// How far from the prediction a measurement may be and still be as predicted: as `plan explain`.
pub(crate) const TOLERANCE: f64 = 0.05;

/// A published row: the size in GB, what was measured, and the formula's 0.75 IOPS a GB.
pub const PUBLISHED: [(u32, f64, f64); 2] = [(200, 309.0, 150.0), (600, 745.0, 450.0)];

/// What is asked.
#[derive(Clone, Debug)]
pub struct Options {
    /// The `flagstone` program.
    pub program: PathBuf,
    /// What was typed, for whoever wants to do it again.
    pub command: String,
    /// Where the results go: a directory without results.
    pub results: PathBuf,
    /// Warm-up of each measurement, in ms.
    pub ramp_ms: u64,
    /// Length of each measurement, in ms.
    pub runtime_ms: u64,
    /// Of each measurement.
    pub repetitions: u32,
}

/// A figure with its judgement.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Judged {
    /// Reads of 4 KiB a second.
    pub iops: f64,
    /// Against the planner's prediction.
    pub verdict: Verdict,
    /// Over what is predicted.
    pub ratio: f64,
}

/// A disk.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Its size.
    pub size_gb: u32,
    /// The formula's.
    pub formula: Judged,
    /// What was measured here, on an emulated disk; none if the run ended before.
    pub measured: Option<Judged>,
    /// How often.
    pub repetitions: usize,
    /// Standard deviation over mean, in %.
    pub noise_percent: Option<f64>,
    /// What was published.
    pub published: Judged,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// `provisioned`.
    pub experiment: &'static str,
    /// Always true: the disks are.
    pub emulated: bool,
    /// What drove the disks.
    pub tool: String,
    /// By size.
    pub rows: Vec<Row>,
    /// What the numbers do not say by themselves.
    pub doubts: Vec<String>,
}

/// What came of it.
pub type Outcome = crate::Outcome<Summary>;

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
    let fio = fio_with_nbd(interrupt)?;
    if fio.is_none() {
        watcher.note("there is no fio with an nbd engine here: our own generator reads instead");
    }
    let ports: [u16; 2] = free_ports()?;
    let mut server = Node::new(&options.program, scratch.path(), "lab");
    let volumes: String = PUBLISHED.iter().map(|(gb, ..)| volume(*gb)).collect();
    let listen =
        [format!("nvme-tcp://127.0.0.1:{}", ports[0]), format!("nbd://127.0.0.1:{}", ports[1])];
    server.configure_alone(&listen, &volumes)?;
    let plan = plan(options, ports, fio.is_some())?;
    plan.check()?;
    let store = Store::create(&options.results, &plan)?;
    server.start(interrupt)?;
    let generator = Generator { program: options.program.clone() };
    let campaign = Campaign {
        plan: &plan,
        store: &store,
        fio: fio.as_ref(),
        generator: &generator,
        initiator: &Initiator::of_machine(),
        interrupt,
    };
    let ending = campaign.run(&mut Follow { inner: watcher, later_s: 0.0 })?;
    if ending == Ending::Complete {
        server.stop(interrupt)?;
    }
    Ok(Outcome { ending, summary: summary(&store.records()?)? })
}

/// The fio of this machine, if it can drive NBD.
fn fio_with_nbd(interrupt: &Interrupt) -> Result<Option<Fio>, Error> {
    let fio = match Fio::find(interrupt) {
        Ok(fio) => fio,
        Err(error) if error.is_lack_of_fio() => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let program = std::env::var_os("FIO").filter(|name| !name.is_empty());
    let mut engines = Command::new(program.unwrap_or_else(|| "fio".into()));
    let ended = os::run(engines.arg("--enghelp"), OUTPUT_BYTES, interrupt, &mut || {})?;
    Ok(ended.output.lines().any(|line| line.trim() == "nbd").then_some(fio))
}

fn name(gb: u32) -> String {
    format!("pd-{gb}gb")
}

fn volume(gb: u32) -> String {
    format!(
        "[volume.{}]\nemulate = {{ like = \"{TYPE}\", size = \"{gb}GB\", machine = \"{MACHINE}\", \
         catalog = \"{CATALOGUE}\" }}\ndevice = \"null:{gb}GB\"\n\n",
        name(gb)
    )
}

fn plan(options: &Options, [nvme_tcp, nbd]: [u16; 2], with_fio: bool) -> Result<Plan, Error> {
    let suite = suite::find(SUITE)?;
    let place = |gb: u32| match with_fio {
        true => Place::Nbd(format!("nbd://127.0.0.1:{nbd}/{}", name(gb))),
        false => Place::NvmeTcp(device(&[nvme_tcp], &name(gb))),
    };
    let target = |gb: u32| Target { name: format!("{gb} GB {TYPE}"), disks: vec![place(gb)] };
    let targets = PUBLISHED.iter().map(|(gb, ..)| target(*gb)).collect();
    let origin = |gb: u32| Origin { nature: Nature::Emulated, stack: volume(gb) };
    let origins = PUBLISHED.iter().map(|(gb, ..)| (place(*gb).to_string(), origin(*gb)));
    let timed =
        |job: &Job| Job { ramp_ms: options.ramp_ms, runtime_ms: options.runtime_ms, ..job.clone() };
    Ok(Plan {
        title: format!("Experiment C on EMULATED disks: {}", suite.title),
        jobs: suite.jobs.iter().map(timed).collect(),
        repetitions: options.repetitions,
        initiator: Choice::Flagstone,
        origins: origins.collect::<BTreeMap<_, _>>(),
        command: Some(options.command.clone()),
        ..Plan::new(&suite, targets, FILE_BYTES)
    })
}

/// What the planner says of so many reads a second on such a disk.
///
/// # Errors
/// That the catalogue does not have the disk.
fn judge(catalogue: &Catalogue, gb: u32, iops: f64) -> Result<Judged, PlanError> {
    const IN_FLIGHT: u32 = 256;
    let size_bytes = u64::from(gb) * 1_000_000_000;
    let configuration = Configuration::new(catalogue, TYPE, size_bytes, MACHINE)?;
    let latency_us = Some(f64::from(IN_FLIGHT) / iops * 1e6);
    let measured = Measured {
        read: Part { iops, bytes_per_s: iops * 4096.0, latency_us },
        in_flight: Some(IN_FLIGHT.into()),
        ..Measured::default()
    };
    let found = catalogue.judge(&configuration, &measured, TOLERANCE)?;
    Ok(Judged { iops, verdict: found.verdict, ratio: found.ratio })
}

fn summary(records: &[Record]) -> Result<Summary, Error> {
    let catalogue = Catalogue::builtin(CATALOGUE).expect("a catalogue of the program");
    let judge = |gb, iops| {
        judge(catalogue, gb, iops).map_err(|error| Error::Unexpected {
            what: format!("the catalogue {CATALOGUE}"),
            detail: error.to_string(),
        })
    };
    let mut rows = Vec::new();
    for (size_gb, published, formula) in PUBLISHED {
        let target = format!("{size_gb} GB {TYPE}");
        let of = records.iter().filter(|record| record.target == target);
        let iops: Vec<f64> = of.map(|record| record.iops).collect();
        rows.push(Row {
            size_gb,
            formula: judge(size_gb, formula)?,
            measured: median(&iops).map(|iops| judge(size_gb, iops)).transpose()?,
            repetitions: iops.len(),
            noise_percent: noise_percent(&iops),
            published: judge(size_gb, published)?,
        });
    }
    let tool = records.first().map(|record| record.tool.clone()).unwrap_or_default();
    let doubts = vec![
        "the disks are EMULATED after the formula: that they follow it says that the emulation is \
         right, and nothing of a cloud"
            .to_owned(),
        "the walk-through calls 309 and 745 IOPS as expected; its own formula gives 150 and 450"
            .to_owned(),
        "it reads 200 GiB of either disk, which is more than 200 GB; here all of each disk is read"
            .to_owned(),
        format!(
            "the walk-through names no machine: {MACHINE} is taken, which does not limit such a disk"
        ),
    ];
    Ok(Summary {
        schema_version: SCHEMA_VERSION,
        experiment: "provisioned",
        emulated: true,
        tool,
        rows,
        doubts,
    })
}

/// Measured, formula and published, each with what the planner says.
pub fn table(summary: &Summary) -> Table {
    let emulated = Nature::Emulated.suffix();
    let measured = format!("measured{emulated}");
    let head = [
        "size, GB",
        &measured,
        "n",
        "noise",
        "planner",
        "formula",
        "planner",
        "published",
        "planner",
    ];
    let title = format!(
        "IOPS of 4 KiB random reads by size, here on EMULATED disks ({}), and as NetApp published them",
        if summary.tool.is_empty() { "nothing was measured" } else { &summary.tool }
    );
    let mut table = Table::new(title, &head);
    let number = |judged: &Judged| format_number(judged.iops, 0);
    for row in &summary.rows {
        let dash = || "-".to_owned();
        table.rows.push(vec![
            row.size_gb.to_string(),
            row.measured.as_ref().map_or_else(dash, number),
            row.repetitions.to_string(),
            row.noise_percent.map_or_else(dash, |percent| format!("{percent:.1} %")),
            row.measured.as_ref().map_or_else(dash, words),
            number(&row.formula),
            words(&row.formula),
            number(&row.published),
            words(&row.published),
        ]);
    }
    table
}

pub(crate) fn words(judged: &Judged) -> String {
    match judged.verdict {
        Verdict::AsPredicted => "as predicted".to_owned(),
        Verdict::Above => format!("above, {:.2} times", judged.ratio),
        Verdict::Below => format!("below, {:.2} times", judged.ratio),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flagstone_bench::measurement::Measurement;
    use flagstone_control::config::{Config, Layer};

    #[test]
    fn the_disks_are_like_the_published_ones() {
        let volumes: String = PUBLISHED.iter().map(|(gb, ..)| volume(*gb)).collect();
        let config =
            Config::parse("lab", &volumes).unwrap_or_else(|wrong| panic!("{wrong}\n{volumes}"));
        assert_eq!(config.volumes.len(), PUBLISHED.len());
        for volume in &config.volumes {
            assert!(volume.layers.iter().any(|layer| matches!(layer, Layer::Limit(_))));
        }
    }

    #[test]
    fn published_figures_are_told_as_they_are() {
        let record = |gb: u32, iops: f64| {
            let target = Target {
                name: format!("{gb} GB {TYPE}"),
                disks: vec![Place::Nbd("nbd://h/e".to_owned())],
            };
            let mut measurement = Measurement::default();
            measurement.total.iops = iops;
            Record::new(SUITE, &Job::default(), &target, measurement)
        };
        let summary = summary(&[record(200, 150.2), record(200, 149.9)]).unwrap();
        let table = table(&summary);
        let [small, large] = &table.rows[..] else { panic!("two sizes") };
        assert!(table.title.contains("EMULATED") && table.head[1].contains("EMULATED"));
        assert_eq!(small[1..5], ["150", "2", "0.1 %", "as predicted"]);
        assert_eq!(small[5..], ["150", "as predicted", "309", "above, 2.06 times"]);
        assert_eq!(large[1..5], ["-", "0", "-", "-"]);
        assert_eq!(large[5..], ["450", "as predicted", "745", "above, 1.66 times"]);
    }

    #[test]
    fn it_is_the_walk_throughs_job_on_emulated_disks() {
        let options = Options {
            program: "flagstone".into(),
            command: "flagstone lab".to_owned(),
            results: "results".into(),
            ramp_ms: 1000,
            runtime_ms: 3000,
            repetitions: 2,
        };
        for with_fio in [true, false] {
            let plan = plan(&options, [1, 2], with_fio).unwrap();
            plan.check().unwrap();
            let [job] = &plan.jobs[..] else { panic!("one job") };
            assert_eq!((job.depth, job.block_bytes, job.runtime_ms), (256, 4096, 3000));
            assert!(!plan.writes() && plan.title.contains("EMULATED"));
            for target in &plan.targets {
                assert_eq!(plan.origins[&target.address()].nature, Nature::Emulated);
                assert_eq!(matches!(target.disks[0], Place::Nbd(_)), with_fio);
            }
        }
    }
}
