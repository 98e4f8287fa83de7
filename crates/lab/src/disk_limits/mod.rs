//! Experiment D: limits of cloud disks, measured and compared with the published limits.
//!
//! The emulated bed has a sample of the disks in the tables of Google's page of about 2019. The
//! emulation follows the catalog's formulas, not the printed numbers, so agreement shows that
//! formula, limiter and data path are right. The given bed has a disk of the user, which is
//! compared with the catalog's prediction.

mod sample;

use flagstone_bench::campaign::{CampaignPlan, Watcher};
use flagstone_bench::process::Interrupt;
use flagstone_bench::results::ResultRecord;
use flagstone_bench::table::{Table, UNKNOWN};
use flagstone_bench::target::{BenchTarget, DiskAddress};
use flagstone_units::grouped;
use serde::Serialize;

use self::sample::{
    CATALOG, LOCAL_SCALE, LimitColumn, PAGE_MB_BYTES, SAMPLE, SOLD, SampleDisk, job, job_name,
    printed,
};
use crate::Error;
use crate::bed::{self, BedTargets, ExperimentOutcome, RunOptions, SCHEMA_VERSION, here, suffix};
use crate::figures::{self, Figures, MIB, or_dash, percent};
use crate::limits::BUSY_PERCENT;
use crate::node::{LabNode, device};
use crate::ports::free_ports;
use crate::provisioned::{DiskProduct, sizes, usage};

/// Largest deviation from the expected figure that counts as agreement, in %.
pub(crate) const TOLERANCE_PERCENT: f64 = 2.0;
const SUITE: &str = "limits";

#[derive(Clone, Debug)]
pub enum LimitsBed<'a> {
    Emulated,
    Given {
        targets: BedTargets,
        /// The disk; all of it is written to.
        disk: BenchTarget,
        product: DiskProduct<'a>,
    },
}

#[derive(Clone, Debug, PartialEq)]
struct ExpectedLimit {
    column: LimitColumn,
    depth: u32,
    /// The page's figure or the prediction, in the column's unit.
    expected: f64,
    published: Option<f64>,
}

#[derive(Clone, Debug)]
struct LimitDisk {
    target: BenchTarget,
    table: Option<&'static str>,
    scale: u32,
    limits: Vec<ExpectedLimit>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LimitCell {
    /// Table of the page; none for a given disk.
    pub table: Option<&'static str>,
    pub disk: String,
    pub what: &'static str,
    /// `IOPS`, or the page's `MB/s` of 1,024,000 bytes.
    pub unit: &'static str,
    /// Factor by which the disk is emulated slower than the page has it; 1 for most.
    pub scale: u32,
    /// Expected figure: the page's, over [`LimitCell::scale`], of emulated disks; the catalog's
    /// prediction of a given disk.
    pub expected: f64,
    /// The page's figure over [`LimitCell::scale`], if it has this disk.
    pub published: Option<f64>,
    pub measured: f64,
    pub(crate) difference_percent: f64,
    /// Whether the deviation is within [`TOLERANCE_PERCENT`].
    pub(crate) agrees: bool,
    pub figures: Figures,
}

impl LimitCell {
    /// Whether the CPUs of this machine may have limited it.
    pub fn is_busy(&self) -> bool {
        self.figures.cpu_percent.is_some_and(|percent| percent >= BUSY_PERCENT)
    }

    fn verdict(&self) -> &'static str {
        match (self.agrees, self.is_busy()) {
            (true, _) => "yes",
            (false, true) => "no: CPUs busy",
            (false, false) if self.difference_percent > 0.0 => "no: more",
            (false, false) => "NO: less",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GivenDisk {
    pub disk: String,
    pub size_bytes: u64,
    #[serde(rename = "type")]
    pub disk_type: String,
    pub machine: String,
    pub catalog: String,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LimitsSummary {
    pub schema_version: u32,
    pub experiment: &'static str,
    pub emulated: bool,
    pub real_nodes: bool,
    #[serde(flatten)]
    pub given: Option<GivenDisk>,
    pub cells: Vec<LimitCell>,
    pub caveats: Vec<String>,
}

struct Prepared {
    targets: BedTargets,
    disks: Vec<LimitDisk>,
    given: Option<GivenDisk>,
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
    bed: &LimitsBed<'_>,
    watcher: &mut dyn Watcher,
    interrupt: &Interrupt,
) -> Result<ExperimentOutcome<LimitsSummary>, Error> {
    let scratch = crate::scratch()?;
    let mut prepared = match bed {
        LimitsBed::Emulated => emulated(run, scratch.path())?,
        LimitsBed::Given { targets, disk, product } => {
            targets.guard(std::slice::from_ref(disk), true)?;
            given(run, targets, disk, product, interrupt)?
        }
    };
    let plan = plan(run, &prepared);
    let parts = parts(&plan, &prepared.disks);
    let (server, targets) = (prepared.server.take(), &prepared.targets);
    let (end, records) = run.campaign((&plan, &parts), targets, server, watcher, interrupt)?;
    Ok(ExperimentOutcome { end, summary: summary(&prepared, &records) })
}

fn columns(disks: &[LimitDisk]) -> Vec<(LimitColumn, u32)> {
    let mut columns: Vec<(LimitColumn, u32)> = disks
        .iter()
        .flat_map(|disk| &disk.limits)
        .map(|limit| (limit.column, limit.depth))
        .collect();
    columns.sort_unstable_by_key(|(column, depth)| (column.order(), *depth));
    columns.dedup();
    columns
}

fn plan(run: &RunOptions, prepared: &Prepared) -> CampaignPlan {
    let job = |(column, depth): (LimitColumn, u32)| job(&column, depth, run);
    let jobs = columns(&prepared.disks).into_iter().map(job).collect();
    let targets = prepared.disks.iter().map(|disk| disk.target.clone()).collect();
    run.plan((SUITE, prepared.title), jobs, targets, &prepared.targets)
}

/// One part for each job, with the disks that have such a figure.
fn parts(plan: &CampaignPlan, disks: &[LimitDisk]) -> Vec<CampaignPlan> {
    let part = |job: &flagstone_bench::job::BenchJob| {
        let has = |disk: &&LimitDisk| {
            disk.limits.iter().any(|limit| job_name(&limit.column, limit.depth) == job.name)
        };
        let targets = disks.iter().filter(has).map(|disk| disk.target.clone()).collect();
        CampaignPlan { jobs: vec![job.clone()], targets, ..plan.clone() }
    };
    plan.jobs.iter().map(part).collect()
}

fn emulated(run: &RunOptions, scratch: &std::path::Path) -> Result<Prepared, Error> {
    let [port] = free_ports()?;
    let server = LabNode::new(&run.program, scratch, "lab");
    let volumes: String = SAMPLE.iter().map(SampleDisk::volume).collect();
    server.configure_alone(&[format!("nvme-tcp://127.0.0.1:{port}")], &volumes)?;
    let address = |disk: &SampleDisk| device(&[port], &disk.volume_name());
    let limit = |disk: &SampleDisk, (column, printed): &(LimitColumn, f64)| {
        let expected = printed / f64::from(disk.scale);
        let depth = disk.depth(column, *printed);
        ExpectedLimit { column: *column, depth, expected, published: Some(expected) }
    };
    let disk = |disk: &SampleDisk| LimitDisk {
        target: BenchTarget { name: disk.name(), disks: vec![DiskAddress::NvmeTcp(address(disk))] },
        table: Some(disk.table),
        scale: disk.scale,
        limits: disk.cells.iter().map(|cell| limit(disk, cell)).collect(),
    };
    Ok(Prepared {
        targets: BedTargets::emulated(SAMPLE.iter().map(|disk| (address(disk), disk.volume()))),
        disks: SAMPLE.iter().map(disk).collect(),
        given: None,
        server: Some(server),
        title: "Experiment D on EMULATED disks: the limits of Google's page",
    })
}

/// The user's disk with the figures by which any disk is sold.
fn given(
    run: &RunOptions,
    targets: &BedTargets,
    disk: &BenchTarget,
    product: &DiskProduct<'_>,
    interrupt: &Interrupt,
) -> Result<Prepared, Error> {
    let sizes = sizes(&run.generator(), std::slice::from_ref(disk), interrupt)?;
    let size_bytes = sizes[0].1;
    let limits: Result<_, Error> =
        SOLD.iter().map(|column| expected(product, size_bytes, column)).collect();
    Ok(Prepared {
        targets: targets.clone(),
        disks: vec![LimitDisk { target: disk.clone(), table: None, scale: 1, limits: limits? }],
        given: Some(GivenDisk {
            disk: disk.name.clone(),
            size_bytes,
            disk_type: product.disk_type.clone(),
            machine: product.machine.clone(),
            catalog: product.catalog.name.clone(),
        }),
        server: None,
        title: "Experiment D on a real disk: measured and published limits",
    })
}

fn expected(
    product: &DiskProduct<'_>,
    bytes: u64,
    column: &LimitColumn,
) -> Result<ExpectedLimit, Error> {
    let found = product.catalog.predict(&product.of_size(bytes)?, &column.workload());
    let allowed = found.map_err(usage)?.allowed;
    let expected = match column.is_throughput {
        true => allowed.bytes_per_s / PAGE_MB_BYTES,
        false => allowed.iops,
    };
    let gb = (bytes as f64 / 1e9).round() as u32;
    let is_page = product.catalog.name == CATALOG;
    let published = printed(&product.disk_type, gb, &product.machine, column).filter(|_| is_page);
    Ok(ExpectedLimit { column: *column, depth: column.deep(), expected, published })
}

fn summary(prepared: &Prepared, records: &[ResultRecord]) -> LimitsSummary {
    let mut cells = Vec::new();
    for disk in &prepared.disks {
        for limit in &disk.limits {
            let job = job_name(&limit.column, limit.depth);
            let Some(figures) = Figures::of(records, &job, &disk.target.name) else { continue };
            cells.push(cell(disk, limit, figures));
        }
    }
    let caveats = caveats(prepared, &cells);
    LimitsSummary {
        schema_version: SCHEMA_VERSION,
        experiment: "limits",
        emulated: cells.iter().any(|cell| bed::is_emulated(cell.figures.provenance)),
        real_nodes: prepared.given.is_some(),
        given: prepared.given.clone(),
        cells,
        caveats,
    }
}

fn cell(disk: &LimitDisk, limit: &ExpectedLimit, figures: Figures) -> LimitCell {
    let measured = match limit.column.is_throughput {
        true => figures.mib_per_s * MIB / PAGE_MB_BYTES,
        false => figures.iops,
    };
    let difference_percent = 100.0 * (measured / limit.expected - 1.0);
    LimitCell {
        table: disk.table,
        disk: disk.target.name.clone(),
        what: limit.column.job,
        unit: limit.column.unit(),
        scale: disk.scale,
        expected: limit.expected,
        published: limit.published,
        measured,
        difference_percent,
        agrees: difference_percent.abs() <= TOLERANCE_PERCENT,
        figures,
    }
}

fn caveats(prepared: &Prepared, cells: &[LimitCell]) -> Vec<String> {
    let agree = cells.iter().filter(|cell| cell.agrees).count();
    let against = match &prepared.given {
        Some(given) => format!("what {} predicts", given.catalog),
        None => "the page's figures".to_owned(),
    };
    let mut caveats = vec![format!(
        "{agree} of {} cells are within {TOLERANCE_PERCENT:.0} % of {against}",
        cells.len()
    )];
    let figures: Vec<&Figures> = cells.iter().map(|cell| &cell.figures).collect();
    caveats.extend(bed::caveats(prepared.targets.machine.as_ref(), &figures));
    caveats.push(
        "MB/s are the page's: 1,000 KB of 1,024 bytes; it cuts fractions off, so 61.44 is its 61"
            .to_owned(),
    );
    match &prepared.given {
        Some(GivenDisk { disk_type, machine, .. }) => caveats.push(format!(
            "that the disk is {disk_type} on {machine} was stated by the user, not detected; its size \
             was read"
        )),
        None => caveats.push(
            "rows of the page's tables of volumes, machines, C2, egress, regional disks, and \
             concurrent reads and writes; its tables of prices, of equivalents of a hard disk, and of \
             what other traffic leaves follow from these and are not measured"
                .to_owned(),
        ),
    }
    if cells.iter().any(|cell| cell.scale > 1) {
        caveats.push(format!(
            "local SSDs, from 280,000 IOPS up, exceed a server and its host on a few CPUs: their limits \
             and the page's figures are divided by {LOCAL_SCALE}; the page names no block size for their \
             IOPS, and at 4 KB their MB/s would be the limit, so they are measured with 2 KB"
        ));
    }
    let busy = cells.iter().filter(|cell| !cell.agrees && cell.is_busy()).count();
    if busy > 0 {
        caveats.push(format!(
            "of the cells that do not agree, {busy} kept this machine's CPUs {BUSY_PERCENT:.0} % busy \
             or more, which may have limited them"
        ));
    }
    caveats
}

/// Every cell: expected, published and measured.
pub fn table(summary: &LimitsSummary) -> Table {
    let figures: Vec<&Figures> = summary.cells.iter().map(|cell| &cell.figures).collect();
    let measured = format!("measured{}", suffix(figures.iter().copied()));
    let title = match &summary.given {
        Some(given) => format!(
            "{}, {} GB of {}: {}, and as {} predicts",
            given.disk,
            grouped(given.size_bytes as f64 / 1e9, 0),
            given.disk_type,
            here(&figures, Some(&given.machine)),
            given.catalog
        ),
        None => "Google's page of about 2019, and the same on EMULATED disks".to_owned(),
    };
    let heads =
        format!("table|disk|what|page prints|expected|{measured}|difference|within 2 %|n|CPU");
    let mut table = figures::table(title, &heads);
    for cell in &summary.cells {
        let number = |value: f64| format!("{} {}", grouped(value, 0), cell.unit);
        table.rows.push(vec![
            cell.table.unwrap_or(UNKNOWN).to_owned(),
            cell.disk.clone(),
            cell.what.to_owned(),
            or_dash(cell.published, number),
            number(cell.expected),
            number(cell.measured),
            percent(Some(cell.difference_percent), 1),
            cell.verdict().to_owned(),
            cell.figures.repetitions.to_string(),
            percent(cell.figures.cpu_percent, 0),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::sample::{COLUMNS, READ, READ_MB, SMALL_READ, WRITE};
    use super::*;
    use crate::bed::tests::{given as given_targets, run_options};
    use flagstone_bench::cpu::CpuUse;
    use flagstone_bench::measurement::Measurement;
    use flagstone_bench::provenance::Provenance;
    use flagstone_cloud::Catalog;
    use flagstone_config::{Config, LayerConfig};

    fn prepared() -> (tempfile::TempDir, Prepared) {
        let directory = tempfile::tempdir().unwrap();
        let prepared = emulated(&run_options("results".into()), directory.path()).unwrap();
        (directory, prepared)
    }

    /// The emulation follows the catalog, so the catalog must give the printed figures.
    #[test]
    fn catalog_predicts_the_printed_figures() {
        for disk in &SAMPLE {
            for (column, printed) in disk.cells {
                let figure = disk.allowed(column);
                let apart = 100.0 * (figure / printed - 1.0);
                assert!(apart.abs() < 1.0, "{} {}: {figure}", disk.name(), column.job);
            }
        }
    }

    #[test]
    fn sample_covers_every_table_of_the_page() {
        let tables = ["volume", "machine", "C2", "egress", "regional", "both at once", "local SSD"];
        for table in tables {
            assert!(SAMPLE.iter().filter(|disk| disk.table == table).count() >= 2, "{table}");
        }
        assert!(SAMPLE.iter().all(|disk| tables.contains(&disk.table)));
        let mut names: Vec<_> = SAMPLE.iter().map(SampleDisk::name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), SAMPLE.len(), "the names are different");
        assert!(COLUMNS.iter().all(|column| {
            SAMPLE.iter().any(|disk| disk.cells.iter().any(|(of, _)| of == column))
        }));
    }

    #[test]
    fn emulated_volumes_are_valid_and_limited() {
        let text: String = SAMPLE.iter().map(SampleDisk::volume).collect();
        let config = Config::parse("lab", &text).unwrap_or_else(|wrong| panic!("{wrong}\n{text}"));
        assert_eq!(config.volumes.len(), SAMPLE.len());
        for volume in &config.volumes {
            assert!(volume.layers.iter().any(|layer| matches!(layer, LayerConfig::Limit(_))));
        }
        let local = SAMPLE.iter().find(|disk| disk.disk_type == "local-ssd-nvme").unwrap();
        assert!(local.name().contains("4 x 375 GB") && local.name().contains("1/20 of it"));
        // A twentieth of 679,950, which follows from the page's figure per GB.
        assert!(local.volume().contains("read_iops = 33997,"), "{}", local.volume());
    }

    #[test]
    fn parts_measure_each_cell_once() {
        let (_directory, prepared) = prepared();
        let plan = plan(&run_options("results".into()), &prepared);
        plan.check().unwrap();
        let parts = parts(&plan, &prepared.disks);
        parts.iter().for_each(|part| part.check().unwrap());
        let cells: usize = SAMPLE.iter().map(|disk| disk.cells.len()).sum();
        assert_eq!(parts.iter().map(|part| part.steps().len()).sum::<usize>(), cells);
        assert!(bed::seconds(&parts[0]) > 0.0);
        assert_eq!(plan.origins.len(), SAMPLE.len());
    }

    #[test]
    fn queue_depth_suffices_for_the_printed_figure() {
        let depth = |at: usize, column: &LimitColumn| {
            let cell = SAMPLE[at].cells.iter().find(|(of, _)| of == column).unwrap();
            SAMPLE[at].depth(column, cell.1)
        };
        assert_eq!(depth(0, &READ), 4, "750 per second");
        assert_eq!(depth(6, &READ), 256, "60,000");
        // 1,200 MB/s are 4,688 of 256 KiB.
        assert_eq!(depth(6, &READ_MB), 32);
        assert_eq!(depth(22, &SMALL_READ), 256, "680,000, a twentieth of it");
        for disk in &SAMPLE {
            for (column, printed) in disk.cells {
                let per_s = match column.is_throughput {
                    true => printed * PAGE_MB_BYTES / (column.kib << 10) as f64,
                    false => *printed,
                } / f64::from(disk.scale);
                let depth = f64::from(disk.depth(column, *printed));
                assert!(depth > per_s * 0.0025, "{}: Little's law", disk.name());
                assert!(depth / per_s < 0.05, "{}: a queue of 50 ms", disk.name());
            }
        }
    }

    #[test]
    fn cells_report_agreement_and_busy_cpus() {
        let (_directory, prepared) = prepared();
        let record = |disk: &SampleDisk, column: &LimitColumn, iops: f64, busy: f64| {
            let disks = vec![DiskAddress::NvmeTcp("nvme-tcp://h/n".to_owned())];
            let target = BenchTarget { name: disk.name(), disks };
            let mut measurement = Measurement::default();
            measurement.total.iops = iops;
            measurement.total.bytes_per_s = iops * (column.kib << 10) as f64;
            measurement.cpu = Some(CpuUse {
                user_percent: busy,
                kernel_percent: 0.0,
                idle_percent: 100.0 - busy,
            });
            let printed = disk.cells.iter().find(|(of, _)| of == column).unwrap().1;
            let job = job(column, disk.depth(column, printed), &run_options("r".into()));
            let provenance = Provenance::Emulated;
            ResultRecord { provenance, ..ResultRecord::new("limits", &job, &target, measurement) }
        };
        let found = summary(
            &prepared,
            &[
                record(&SAMPLE[0], &READ, 751.0, 20.0),
                record(&SAMPLE[0], &WRITE, 1400.0, 20.0),
                // 468.75 of 262,144 bytes are 120 MB of 1,024,000.
                record(&SAMPLE[0], &READ_MB, 468.75, 20.0),
                record(&SAMPLE[6], &READ, 40_000.0, 99.0),
            ],
        );
        let table = table(&found);
        assert!(table.title.contains("EMULATED") && table.head[5].contains("EMULATED"));
        let verdicts: Vec<_> = table.rows.iter().map(|row| row[7].as_str()).collect();
        assert_eq!(verdicts, ["yes", "NO: less", "yes", "no: CPUs busy"]);
        assert_eq!(table.rows[2][3..7], ["120 MB/s", "120 MB/s", "120 MB/s", "0.0 %"]);
        assert!(found.emulated && !found.real_nodes);
        assert!(found.caveats[0].starts_with("2 of 4 cells"));
        assert!(!found.caveats.iter().any(|caveat| caveat.contains("divided by")));
        let scaled = summary(&prepared, &[record(&SAMPLE[22], &SMALL_READ, 34_000.0, 20.0)]);
        assert_eq!((scaled.cells[0].expected, scaled.cells[0].agrees), (34_000.0, true));
        assert!(scaled.caveats.iter().any(|caveat| caveat.contains("divided by 20")));
        assert!(found.caveats.iter().any(|caveat| caveat.contains("do not agree, 1")));
    }

    #[test]
    fn given_disk_is_judged_by_the_prediction() {
        let product = |machine: &str| DiskProduct {
            catalog: Catalog::builtin(CATALOG).unwrap(),
            disk_type: "pd-ssd".to_owned(),
            machine: machine.to_owned(),
        };
        let bytes = 500_000_000_000;
        let limit = expected(&product("n1-standard-8"), bytes, &SOLD[0]).unwrap();
        assert_eq!((limit.expected, limit.published), (15_000.0, Some(15_000.0)));
        assert_eq!(expected(&product("n1-standard-4"), bytes, &SOLD[0]).unwrap().published, None);
        assert!(expected(&product("z9"), bytes, &SOLD[0]).is_err());

        let target: BenchTarget = "/dev/sdb".parse().unwrap();
        let disk = LimitDisk { target, table: None, scale: 1, limits: vec![limit.clone()] };
        let figures = |iops: f64| Figures {
            provenance: Provenance::Real,
            repetitions: 4,
            mib_per_s: iops * 16.0 / 1024.0,
            iops,
            latency_ms: 1.0,
            latency_p99_ms: None,
            coefficient_of_variation_percent: None,
            cpu_percent: Some(10.0),
        };
        let cells: Vec<_> =
            [14_900.0, 12_000.0, 20_000.0].map(|iops| cell(&disk, &limit, figures(iops))).into();
        let prepared = Prepared {
            targets: given_targets(),
            disks: vec![disk],
            given: Some(GivenDisk {
                disk: "/dev/sdb".to_owned(),
                size_bytes: bytes,
                disk_type: "pd-ssd".to_owned(),
                machine: "n1-standard-8".to_owned(),
                catalog: CATALOG.to_owned(),
            }),
            server: None,
            title: "",
        };
        let found =
            LimitsSummary { caveats: caveats(&prepared, &cells), cells, ..summary(&prepared, &[]) };
        assert!(found.caveats[0].starts_with("1 of 3 cells"), "{:?}", found.caveats);
        let table = table(&found);
        let verdicts: Vec<_> = table.rows.iter().map(|row| row[7].as_str()).collect();
        assert_eq!(verdicts, ["yes", "NO: less", "no: more"]);
        assert!(table.title.starts_with("/dev/sdb, 500 GB of pd-ssd: here on n1-standard-8, and"));
    }
}
