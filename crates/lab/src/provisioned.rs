//! Experiment C: effect of a larger disk, measured with the fio job of the published walk-through
//! and judged by the planner.
//!
//! The emulated bed has two standard persistent disks, of 200 and 600 GB; the given bed has the
//! user's disks, which are only read. The walk-through measured 309 and 745 IOPS and called both as
//! expected. The formula of its own source gives 150 and 450, and so do the emulated disks, which
//! follow it.

use flagstone_bench::Error as BenchError;
use flagstone_bench::campaign::{CampaignPlan, Watcher};
use flagstone_bench::fio::Fio;
use flagstone_bench::generator::Generator;
use flagstone_bench::job::BenchJob;
use flagstone_bench::os::size_of;
use flagstone_bench::process::Interrupt;
use flagstone_bench::suite;
use flagstone_bench::table::Table;
use flagstone_bench::target::{BenchTarget, DiskAddress};
use flagstone_cloud::judge::{JudgmentVerdict, MeasuredRates};
use flagstone_cloud::{Catalog, DiskConfiguration, MeasuredRun, PlanError, Workload};
use flagstone_units::grouped;
use serde::Serialize;

use crate::Error;
use crate::bed::{self, BedTargets, ExperimentOutcome, RunOptions, SCHEMA_VERSION, here, suffix};
use crate::figures::{Figures, or_dash, percent};
use crate::node::{LabNode, device};
use crate::ports::free_ports;

/// Built-in suite with the walk-through's fio job.
const SUITE: &str = "provisioned-iops";
/// Catalog with the walk-through's formula.
const CATALOG: &str = "gcp-2019";
/// Type of the walk-through's disks.
const TYPE: &str = "pd-standard";
/// Machine of the emulated bed. The walk-through names none; no machine with 4 or more vCPUs limits
/// such a disk.
const MACHINE: &str = "n1-standard-8";
/// Requests in flight of the walk-through's job.
const IN_FLIGHT: u32 = 256;
/// Largest deviation from the prediction that counts as predicted, as in `plan explain`.
const TOLERANCE: f64 = 0.05;
/// Largest deviation from a published size that counts as that size: partitions and rounding.
const SAME_SIZE: f64 = 0.02;
const GB: u64 = 1_000_000_000;

/// Published sizes, in GB, with the measured IOPS.
const PUBLISHED: [(u64, f64); 2] = [(200, 309.0), (600, 745.0)];

#[derive(Clone, Debug)]
pub struct DiskProduct<'a> {
    pub catalog: &'a Catalog,
    pub disk_type: String,
    pub machine: String,
}

impl DiskProduct<'_> {
    /// The disk of this size, rounded to the whole GB that clouds sell.
    pub(crate) fn of_size(&self, bytes: u64) -> Result<DiskConfiguration, Error> {
        let bytes = (bytes as f64 / GB as f64).round().max(1.0) as u64 * GB;
        DiskConfiguration::new(self.catalog, &self.disk_type, bytes, &self.machine).map_err(usage)
    }

    fn predicted(&self, bytes: u64) -> Result<f64, Error> {
        let found = self.catalog.predict(&self.of_size(bytes)?, &Workload::random(4096, 100));
        Ok(found.map_err(usage)?.allowed.iops)
    }

    fn judged(&self, bytes: u64, iops: f64) -> Result<JudgedIops, Error> {
        let latency_us = Some(f64::from(IN_FLIGHT) / iops * 1e6);
        let measured = MeasuredRun {
            read: MeasuredRates { iops, bytes_per_s: iops * 4096.0, latency_us },
            in_flight: Some(IN_FLIGHT.into()),
            ..MeasuredRun::default()
        };
        let found = self.catalog.judge(&self.of_size(bytes)?, &measured, TOLERANCE);
        let found = found.map_err(usage)?;
        Ok(JudgedIops { iops, verdict: found.verdict, ratio: found.ratio })
    }

    fn published(&self, bytes: u64) -> Result<Option<JudgedIops>, Error> {
        let is = |gb: u64| (bytes as f64 / (gb * GB) as f64 - 1.0).abs() <= SAME_SIZE;
        let found = PUBLISHED.iter().find(|(gb, _)| is(*gb) && self.disk_type == TYPE);
        found.map(|(_, iops)| self.judged(bytes, *iops)).transpose()
    }
}

/// For `map_err` of the planner: a mistake in the request.
pub(crate) fn usage(error: PlanError) -> Error {
    BenchError::usage(error.to_string()).into()
}

#[derive(Clone, Debug)]
pub enum ProvisionedBed<'a> {
    Emulated,
    Given { targets: BedTargets, disks: Vec<BenchTarget>, product: DiskProduct<'a> },
}

/// IOPS, judged against the planner's prediction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct JudgedIops {
    /// Reads of 4 KiB per second.
    pub iops: f64,
    pub verdict: JudgmentVerdict,
    pub ratio: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProvisionedRow {
    pub disk: String,
    pub size_bytes: u64,
    /// Prediction of the planner, in reads of 4 KiB per second.
    pub(crate) predicted_iops: f64,
    pub measured: JudgedIops,
    pub figures: Figures,
    pub published: Option<JudgedIops>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProvisionedSummary {
    pub schema_version: u32,
    pub experiment: &'static str,
    pub emulated: bool,
    /// Whether the disks are the user's.
    pub real_nodes: bool,
    pub tool: String,
    #[serde(rename = "type")]
    pub disk_type: String,
    pub machine: String,
    pub catalog: String,
    /// Disks, in the order in which they were named.
    pub rows: Vec<ProvisionedRow>,
    pub caveats: Vec<String>,
}

struct Prepared<'a> {
    targets: BedTargets,
    disks: Vec<(BenchTarget, u64)>,
    product: DiskProduct<'a>,
    is_given: bool,
    server: Option<LabNode>,
    title: &'static str,
}

/// Runs the experiment.
///
/// # Errors
/// The first failure. The user's interruption during the measurements is a
/// [`CampaignEnd`](flagstone_bench::campaign::CampaignEnd).
pub fn run(
    run: &RunOptions,
    bed: &ProvisionedBed<'_>,
    watcher: &mut dyn Watcher,
    interrupt: &Interrupt,
) -> Result<ExperimentOutcome<ProvisionedSummary>, Error> {
    crate::check_is_new(&run.results)?;
    let scratch = crate::scratch()?;
    let mut prepared = match bed {
        ProvisionedBed::Emulated => emulated(run, scratch.path(), watcher, interrupt)?,
        ProvisionedBed::Given { targets, disks, product } => Prepared {
            disks: sizes(&run.generator(), disks, interrupt)?,
            targets: targets.clone(),
            product: product.clone(),
            is_given: true,
            server: None,
            title: "Experiment C on real disks",
        },
    };
    for (_, bytes) in &prepared.disks {
        prepared.product.predicted(*bytes)?;
    }
    let plan = plan(run, &prepared)?;
    let (parts, server) = ((&plan, std::slice::from_ref(&plan)), prepared.server.take());
    let (end, records) = run.campaign(parts, &prepared.targets, server, watcher, interrupt)?;
    let job = &plan.jobs[0].name;
    let mut rows = Vec::new();
    for (target, size_bytes) in &prepared.disks {
        let Some(figures) = Figures::of(&records, job, &target.name) else { continue };
        rows.push(row(&prepared.product, target, *size_bytes, figures)?);
    }
    let tool = records.first().map(|record| record.tool.clone()).unwrap_or_default();
    Ok(ExperimentOutcome { end, summary: summary(&prepared, rows, tool) })
}

fn plan(run: &RunOptions, prepared: &Prepared<'_>) -> Result<CampaignPlan, Error> {
    let suite = suite::find(SUITE)?;
    let timed = |job: &BenchJob| BenchJob {
        ramp_ms: run.ramp_ms,
        runtime_ms: run.runtime_ms,
        ..job.clone()
    };
    let jobs = suite.jobs.iter().map(timed).collect();
    let targets = prepared.disks.iter().map(|(target, _)| target.clone()).collect();
    let title = format!("{}: {}", prepared.title, suite.title);
    Ok(run.plan((SUITE, &title), jobs, targets, &prepared.targets))
}

/// The published disks on a server of this machine, read by fio over NBD, or by our own generator
/// where fio has no NBD engine.
fn emulated<'a>(
    run: &RunOptions,
    scratch: &std::path::Path,
    watcher: &mut dyn Watcher,
    interrupt: &Interrupt,
) -> Result<Prepared<'a>, Error> {
    let has_nbd = fio_has_nbd(interrupt)?;
    if !has_nbd {
        watcher.note("there is no fio with an nbd engine here: our own generator reads instead");
    }
    let [nvme_tcp, nbd]: [u16; 2] = free_ports()?;
    let server = LabNode::new(&run.program, scratch, "lab");
    let volumes: String = PUBLISHED.iter().map(|(gb, _)| volume(*gb)).collect();
    let listen = [format!("nvme-tcp://127.0.0.1:{nvme_tcp}"), format!("nbd://127.0.0.1:{nbd}")];
    server.configure_alone(&listen, &volumes)?;
    let disk = |(gb, _): &(u64, f64)| {
        let address = match has_nbd {
            true => DiskAddress::Nbd(format!("nbd://127.0.0.1:{nbd}/{}", name(*gb))),
            false => DiskAddress::NvmeTcp(device(&[nvme_tcp], &name(*gb))),
        };
        (BenchTarget { name: format!("{gb} GB {TYPE}"), disks: vec![address] }, gb * GB)
    };
    let disks: Vec<_> = PUBLISHED.iter().map(disk).collect();
    let origins = disks.iter().zip(&PUBLISHED);
    Ok(Prepared {
        targets: BedTargets::emulated(origins.map(|((t, _), (gb, _))| (t.address(), volume(*gb)))),
        disks,
        product: DiskProduct {
            catalog: Catalog::builtin(CATALOG).expect("a built-in catalog"),
            disk_type: TYPE.to_owned(),
            machine: MACHINE.to_owned(),
        },
        is_given: false,
        server: Some(server),
        title: "Experiment C on EMULATED disks",
    })
}

fn fio_has_nbd(interrupt: &Interrupt) -> Result<bool, Error> {
    match Fio::find(interrupt) {
        Ok(fio) => Ok(fio.has_engine("nbd", interrupt)?),
        Err(error) if error.is_lack_of_fio() => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn name(gb: u64) -> String {
    format!("pd-{gb}gb")
}

fn volume(gb: u64) -> String {
    format!(
        "[volume.{}]\ndisk_model = {{ profile = \"{TYPE}\", size = \"{gb}GB\", machine = \"{MACHINE}\", \
         catalog = \"{CATALOG}\" }}\ndevice = \"null:{gb}GB\"\n\n",
        name(gb)
    )
}

/// Targets of one disk each, with their sizes in bytes.
pub(crate) fn sizes(
    generator: &Generator,
    targets: &[BenchTarget],
    interrupt: &Interrupt,
) -> Result<Vec<(BenchTarget, u64)>, Error> {
    let size = |target: &BenchTarget| {
        let [disk] = &target.disks[..] else {
            let text = format!("{}: name one disk for each target", target.address());
            return Err(BenchError::Usage(text).into());
        };
        let bytes = match disk.path() {
            Some(path) => size_of(path).map_err(BenchError::file("cannot open", path))?,
            None => generator.size_bytes(&disk.to_string(), interrupt)?,
        };
        Ok((target.clone(), bytes))
    };
    targets.iter().map(size).collect()
}

fn row(
    product: &DiskProduct<'_>,
    target: &BenchTarget,
    size_bytes: u64,
    figures: Figures,
) -> Result<ProvisionedRow, Error> {
    Ok(ProvisionedRow {
        disk: target.name.clone(),
        size_bytes,
        predicted_iops: product.predicted(size_bytes)?,
        measured: product.judged(size_bytes, figures.iops)?,
        figures,
        published: product.published(size_bytes)?,
    })
}

fn summary(prepared: &Prepared<'_>, rows: Vec<ProvisionedRow>, tool: String) -> ProvisionedSummary {
    let figures: Vec<&Figures> = rows.iter().map(|row| &row.figures).collect();
    let DiskProduct { catalog, disk_type, machine } = &prepared.product;
    let mut caveats = bed::caveats(prepared.targets.machine.as_ref(), &figures);
    if prepared.is_given {
        caveats.push(format!(
            "that the disks are {disk_type} on {machine} was stated by the user, not detected; their \
             sizes were read"
        ));
        caveats.push(
            "reads of ranges that were never written may be faster than reads of the disk: write all \
             of a new disk once before"
                .to_owned(),
        );
    } else {
        caveats.extend([
            "the disks are emulated after the formula: agreement shows that the emulation is right, and \
             nothing about a cloud"
                .to_owned(),
            "the walk-through calls 309 and 745 IOPS as expected; its own formula gives 150 and 450"
                .to_owned(),
            "it reads 200 GiB of either disk, which is more than 200 GB; here all of each disk is read"
                .to_owned(),
            format!("the walk-through names no machine: {MACHINE} is used, which does not limit it"),
        ]);
    }
    ProvisionedSummary {
        schema_version: SCHEMA_VERSION,
        experiment: "provisioned",
        emulated: figures.iter().any(|figures| bed::is_emulated(figures.provenance)),
        real_nodes: prepared.is_given,
        tool,
        disk_type: disk_type.clone(),
        machine: machine.clone(),
        catalog: catalog.name.clone(),
        caveats,
        rows,
    }
}

/// Measured, predicted and published IOPS, each with the planner's judgment.
pub fn table(summary: &ProvisionedSummary) -> Table {
    let figures: Vec<&Figures> = summary.rows.iter().map(|row| &row.figures).collect();
    let measured = format!("measured{}", suffix(figures.iter().copied()));
    let head =
        ["disk", "size, GB", &measured, "n", "CV", "planner", "predicted", "published", "planner"];
    let title = format!(
        "IOPS of 4 KiB random reads by size: {}, as {} predicts for {}, and as NetApp published them",
        here(&figures, Some(&summary.machine)),
        summary.catalog,
        summary.disk_type
    );
    let mut table = Table::new(title, &head);
    let number = |iops: f64| grouped(iops, 0);
    for row in &summary.rows {
        table.rows.push(vec![
            row.disk.clone(),
            grouped(row.size_bytes as f64 / 1e9, 1),
            number(row.measured.iops),
            row.figures.repetitions.to_string(),
            percent(row.figures.coefficient_of_variation_percent, 1),
            words(&row.measured),
            number(row.predicted_iops),
            or_dash(row.published.as_ref(), |judged| number(judged.iops)),
            or_dash(row.published.as_ref(), words),
        ]);
    }
    table
}

fn words(judged: &JudgedIops) -> String {
    match judged.verdict {
        JudgmentVerdict::AsPredicted => "as predicted".to_owned(),
        JudgmentVerdict::Above => format!("above, {:.2} times", judged.ratio),
        JudgmentVerdict::Below => format!("below, {:.2} times", judged.ratio),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bed::tests::{given, run_options};
    use flagstone_bench::provenance::Provenance;
    use flagstone_config::{Config, LayerConfig};

    #[derive(Default)]
    struct Notes(Vec<String>);

    impl Watcher for Notes {
        fn note(&mut self, text: &str) {
            self.0.push(text.to_owned());
        }
        fn begin(&mut self, _: &str, _: f64) {}
        fn tick(&mut self) {}
        fn done(&mut self, _: &flagstone_bench::results::ResultRecord) {}
        fn steadiness(
            &mut self,
            _: &str,
            _: &str,
            _: u32,
            _: Option<flagstone_bench::stats::Steady>,
        ) {
        }
    }

    fn product() -> DiskProduct<'static> {
        DiskProduct {
            catalog: Catalog::builtin(CATALOG).unwrap(),
            disk_type: TYPE.to_owned(),
            machine: MACHINE.to_owned(),
        }
    }

    fn figures(provenance: Provenance, iops: f64) -> Figures {
        Figures {
            provenance,
            repetitions: 4,
            mib_per_s: 1.0,
            iops,
            latency_ms: 800.0,
            latency_p99_ms: None,
            coefficient_of_variation_percent: Some(1.0),
            cpu_percent: None,
        }
    }

    #[test]
    fn emulated_disks_follow_the_catalog() {
        let volumes: String = PUBLISHED.iter().map(|(gb, _)| volume(*gb)).collect();
        let config =
            Config::parse("lab", &volumes).unwrap_or_else(|wrong| panic!("{wrong}\n{volumes}"));
        assert_eq!(config.volumes.len(), PUBLISHED.len());
        for volume in &config.volumes {
            assert!(volume.layers.iter().any(|layer| matches!(layer, LayerConfig::Limit(_))));
        }
    }

    #[test]
    fn emulated_plan_has_the_published_job() {
        let directory = tempfile::tempdir().unwrap();
        let run = run_options("results".into());
        let never = Interrupt::never();
        let mut notes = Notes::default();
        let prepared = emulated(&run, directory.path(), &mut notes, &never).unwrap();
        let plan = plan(&run, &prepared).unwrap();
        plan.check().unwrap();
        let [job] = &plan.jobs[..] else { panic!("one job") };
        assert_eq!((job.depth, job.block_bytes, job.runtime_ms), (IN_FLIGHT, 4096, 100));
        assert!(!plan.destroys() && plan.title.contains("EMULATED"));
        for target in &plan.targets {
            assert_eq!(plan.origins[&target.address()].provenance, Provenance::Emulated);
            let is_nbd = matches!(target.disks[0], DiskAddress::Nbd(_));
            assert_eq!(is_nbd, notes.0.is_empty());
        }
    }

    #[test]
    fn sizes_are_judged_by_formula_and_publication() {
        for (bytes, iops) in [(200 * GB, 150.0), (600 * GB, 450.0)] {
            assert!((product().predicted(bytes).unwrap() - iops).abs() < 0.5);
            let published = product().published(bytes).unwrap().unwrap();
            assert_eq!(published.verdict, JudgmentVerdict::Above);
            assert_eq!(
                product().judged(bytes, iops).unwrap().verdict,
                JudgmentVerdict::AsPredicted
            );
        }
        assert_eq!(product().published(300 * GB).unwrap(), None);
        let other = DiskProduct { disk_type: "pd-ssd".to_owned(), ..product() };
        assert_eq!(other.published(200 * GB).unwrap(), None);
        let unknown = DiskProduct { disk_type: "pd-none".to_owned(), ..product() };
        assert!(unknown.predicted(200 * GB).is_err());
    }

    #[test]
    fn table_marks_disks_that_are_not_real() {
        let of = |provenance| {
            let target: BenchTarget = "/dev/sdb".parse().unwrap();
            let prepared = Prepared {
                targets: given(),
                disks: Vec::new(),
                product: product(),
                is_given: true,
                server: None,
                title: "",
            };
            let row = row(&product(), &target, 200 * GB, figures(provenance, 309.0)).unwrap();
            table(&summary(&prepared, vec![row], "fio".to_owned()))
        };
        let real = of(Provenance::Real);
        assert_eq!(real.head[2], "measured");
        assert!(!real.title.contains("EMULATED"));
        assert_eq!(
            real.rows[0][1..],
            ["200.0", "309", "4", "1.0 %", "above, 2.06 times", "150", "309", "above, 2.06 times"]
        );
        let emulated = of(Provenance::Emulated);
        assert!(emulated.title.contains("EMULATED") && emulated.head[2].contains("EMULATED"));
    }

    #[test]
    fn missing_disks_are_not_created() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("none");
        let target: BenchTarget = path.to_str().unwrap().parse().unwrap();
        let generator = Generator { program: "flagstone".into() };
        let found = sizes(&generator, &[target], &Interrupt::never());
        assert!(found.is_err() && !path.exists());
    }
}
