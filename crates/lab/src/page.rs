//! Experiment D: the limits of cloud disks themselves. A sample of the rows of Google's page of about
//! 2019 is emulated, measured, and compared with what the page prints.
//!
//! The emulation follows the catalogue's formulas, not these numbers: so a row that comes out as
//! printed says that formula, limiter and path are right, and one that does not says so, or that
//! this machine's CPUs were the limit.

use std::collections::BTreeMap;
use std::path::PathBuf;

use flagstone_bench::attach::{Choice, Initiator};
use flagstone_bench::campaign::{Campaign, Ending, Plan, Watcher};
use flagstone_bench::generator::Generator;
use flagstone_bench::job::{Job, Pattern};
use flagstone_bench::nature::{Nature, Origin};
use flagstone_bench::os::Interrupt;
use flagstone_bench::results::{Record, SCHEMA_VERSION as RESULTS_VERSION, Store};
use flagstone_bench::stats::median;
use flagstone_bench::table::Table;
use flagstone_bench::target::{Place, Target};
use flagstone_bench::units::format_number;
use serde::Serialize;

use crate::Error;
use crate::follow::Follow;
use crate::limits::BUSY_PERCENT;
use crate::node::{Node, device};
use crate::process::free_ports;

/// Version of the JSON form.
pub const SCHEMA_VERSION: u32 = 1;
/// The catalogue of the page.
pub(crate) const CATALOGUE: &str = "gcp-2019";
/// The page's MB: 4,500 writes of 16 KB are its 72 MB, so it has 1,000 KB, which are 1,024 bytes.
pub(crate) const PAGE_MB_BYTES: f64 = 1_024_000.0;
/// How far from what is printed a measurement may be, in %.
pub const TOLERANCE_PERCENT: f64 = 2.0;
/// Bytes of an emulated disk, whose size is what is emulated and not what is there. Nothing keeps
/// them.
const VOLUME_BYTES: u64 = 16 << 30;

/// A disk on a machine, with the cells of its row in the page's order.
#[derive(Clone, Copy, Debug)]
struct Disk {
    /// Of the page.
    table: &'static str,
    kind: &'static str,
    size_gb: u32,
    machine: &'static str,
    cells: [f64; 5],
}

/// The page's columns: reads a second, writes of 8 and of 16 KB a second, MB/s read and written.
pub(crate) const COLUMNS: [Column; 5] = [
    Column::new("read-16k", Pattern::RandRead, 16, false),
    Column::new("write-8k", Pattern::RandWrite, 8, false),
    Column::new("write-16k", Pattern::RandWrite, 16, false),
    Column::new("read-256k", Pattern::RandRead, 256, true),
    Column::new("write-256k", Pattern::RandWrite, 256, true),
];

/// What of a disk is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    pub(crate) job: &'static str,
    pub(crate) pattern: Pattern,
    pub(crate) kib: u64,
    pub(crate) is_throughput: bool,
}

impl Column {
    const fn new(job: &'static str, pattern: Pattern, kib: u64, is_throughput: bool) -> Column {
        Column { job, pattern, kib, is_throughput }
    }

    /// In the page's unit.
    fn figure(&self, record: &Record) -> f64 {
        match self.is_throughput {
            true => record.mb_per_s * 1e6 / PAGE_MB_BYTES,
            false => record.iops,
        }
    }

    pub(crate) fn unit(&self) -> &'static str {
        if self.is_throughput { "MB/s" } else { "IOPS" }
    }
}

const fn disk(
    table: &'static str,
    kind: &'static str,
    size_gb: u32,
    machine: &'static str,
    cells: [f64; 5],
) -> Disk {
    Disk { table, kind, size_gb, machine, cells }
}

/// Rows of each table about persistent disks. Those of local SSDs, from 170,000 IOPS up, are beyond
/// what a server and its host do together on a few CPUs: `lab fabric` is about them.
const DISKS: [Disk; 9] = [
    disk("volume", "pd-standard", 1000, "n1-standard-8", [750., 1500., 1500., 120., 120.]),
    disk("volume", "pd-standard", 10_000, "n1-standard-8", [3000., 15_000., 7500., 240., 240.]),
    disk("volume", "pd-ssd", 128, "n1-standard-8", [3840., 3840., 3840., 61., 61.]),
    disk("volume", "pd-ssd", 500, "n1-standard-8", [15_000., 15_000., 15_000., 240., 240.]),
    disk("machine", "pd-ssd", 4096, "n1-standard-1", [15_000., 9000., 4500., 240., 72.]),
    disk("machine", "pd-ssd", 4096, "n1-standard-16", [25_000., 25_000., 25_000., 1200., 400.]),
    disk("machine", "pd-ssd", 4096, "n1-standard-32", [60_000., 30_000., 25_000., 1200., 400.]),
    disk("C2", "pd-standard", 10_000, "c2-standard-30", [3000., 8000., 7500., 240., 240.]),
    disk("C2", "pd-ssd", 4096, "c2-standard-16", [8000., 4000., 4000., 320., 240.]),
];

impl Disk {
    fn name(&self) -> String {
        format!("{} GB {}, {}", self.size_gb, self.kind, self.machine)
    }

    fn volume_name(&self) -> String {
        format!("{}-{}-{}", self.kind, self.size_gb, self.machine)
    }

    fn volume(&self) -> String {
        let Disk { kind, size_gb, machine, .. } = self;
        format!(
            "[volume.{}]\nemulate = {{ like = \"{kind}\", size = \"{size_gb}GB\", machine = \
             \"{machine}\", catalog = \"{CATALOGUE}\" }}\ndevice = \"null:{}GiB\"\n\n",
            self.volume_name(),
            VOLUME_BYTES >> 30
        )
    }
}

/// What measures a column.
pub(crate) fn job(column: &Column, ramp_ms: u64, runtime_ms: u64) -> Job {
    Job {
        name: column.job.to_owned(),
        pattern: column.pattern,
        block_bytes: column.kib << 10,
        // 60,000 reads of 2.5 ms are 150 in flight; 4,700 large ones are 12.
        depth: if column.is_throughput { 32 } else { 256 },
        threads: 1,
        disks: 1,
        ramp_ms,
        runtime_ms,
        ..Job::default()
    }
}

/// What the page prints of a disk on a machine, if a row of it is among these.
pub(crate) fn printed(kind: &str, size_gb: u32, machine: &str, column: &Column) -> Option<f64> {
    let is = |d: &&Disk| (d.kind, d.size_gb, d.machine) == (kind, size_gb, machine);
    let cells = DISKS.iter().find(is)?.cells;
    let at = COLUMNS.iter().position(|other| other.job == column.job)?;
    cells.get(at).copied()
}

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

impl Options {
    fn plan(&self, port: u16) -> Plan {
        let address = |disk: &Disk| device(&[port], &disk.volume_name());
        let targets = DISKS
            .iter()
            .map(|disk| Target { name: disk.name(), disks: vec![Place::NvmeTcp(address(disk))] });
        let origins = DISKS
            .iter()
            .map(|disk| (address(disk), Origin { nature: Nature::Emulated, stack: disk.volume() }));
        Plan {
            schema_version: RESULTS_VERSION,
            suite: "limits".to_owned(),
            title: "Experiment D on EMULATED disks: the limits of Google's page".to_owned(),
            jobs: COLUMNS.iter().map(|column| job(column, self.ramp_ms, self.runtime_ms)).collect(),
            targets: targets.collect(),
            repetitions: self.repetitions,
            steady_state: false,
            precondition: false,
            file_bytes: VOLUME_BYTES,
            initiator: Choice::Flagstone,
            origins: origins.collect::<BTreeMap<_, _>>(),
            command: Some(self.command.clone()),
            destroy: DISKS.iter().map(address).collect(),
        }
    }
}

/// A cell of the page.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// Of the page.
    pub table: &'static str,
    /// The disk and the machine.
    pub disk: String,
    /// Such as `write-16k`.
    pub what: &'static str,
    /// `IOPS`, or the page's `MB/s` of 1,024,000 bytes.
    pub unit: &'static str,
    /// As printed.
    pub published: f64,
    /// Median of what was measured on an emulated disk.
    pub measured: f64,
    /// By how much more was measured, in %.
    pub difference_percent: f64,
    /// Whether that is within [`TOLERANCE_PERCENT`].
    pub agrees: bool,
    /// How busy this machine's CPUs were, in %.
    pub cpu_percent: Option<f64>,
}

impl Cell {
    /// Whether the CPUs of this machine may be what was measured.
    pub fn is_busy(&self) -> bool {
        self.cpu_percent.is_some_and(|percent| percent >= BUSY_PERCENT)
    }
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// `limits`.
    pub experiment: &'static str,
    /// Always true: the disks are.
    pub emulated: bool,
    /// Of the page, in its order.
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
    let scratch = tempfile::Builder::new()
        .prefix("flagstone-lab-")
        .tempdir()
        .map_err(Error::system("cannot make a directory for the server"))?;
    let [port] = free_ports()?;
    let mut server = Node::new(&options.program, scratch.path(), "lab");
    let socket = server.file("sock");
    let head = format!(
        "[server]\nlisten = [\"nvme-tcp://127.0.0.1:{port}\"]\napi = {socket:?}\ncores = 1\n\n"
    );
    let volumes: String = DISKS.iter().map(Disk::volume).collect();
    server.configure(&(head + &volumes))?;
    let plan = options.plan(port);
    plan.check()?;
    let store = Store::create(&options.results, &plan)?;
    server.start(interrupt)?;
    let campaign = Campaign {
        plan: &plan,
        store: &store,
        fio: None,
        generator: &Generator { program: options.program.clone() },
        initiator: &Initiator::of_machine(),
        interrupt,
    };
    let ending = campaign.run(&mut Follow { inner: watcher, later_s: 0.0 })?;
    if ending == Ending::Complete {
        server.stop(interrupt)?;
    }
    Ok(Outcome { ending, summary: summary(&store.records()?) })
}

fn summary(records: &[Record]) -> Summary {
    let mut cells = Vec::new();
    for disk in &DISKS {
        let name = disk.name();
        for (column, published) in COLUMNS.iter().zip(disk.cells) {
            let is = |r: &&Record| r.target == name && r.job == column.job;
            let of: Vec<&Record> = records.iter().filter(is).collect();
            let figures: Vec<f64> = of.iter().map(|record| column.figure(record)).collect();
            let Some(measured) = median(&figures) else { continue };
            let busy = |r: &&Record| Some(r.measurement.cpu.as_ref()?.busy_percent());
            let difference_percent = 100.0 * (measured / published - 1.0);
            cells.push(Cell {
                table: disk.table,
                disk: name.clone(),
                what: column.job,
                unit: column.unit(),
                published,
                measured,
                difference_percent,
                agrees: difference_percent.abs() <= TOLERANCE_PERCENT,
                cpu_percent: median(&of.iter().filter_map(busy).collect::<Vec<_>>()),
            });
        }
    }
    let doubts = doubts(&cells);
    Summary { schema_version: SCHEMA_VERSION, experiment: "limits", emulated: true, cells, doubts }
}

fn doubts(cells: &[Cell]) -> Vec<String> {
    let count = |is: &dyn Fn(&Cell) -> bool| cells.iter().filter(|cell| is(cell)).count();
    let differ = count(&|cell| !cell.agrees);
    let busy = count(&|cell| !cell.agrees && cell.is_busy());
    let mut doubts = vec![
        format!(
            "{} of {} cells are within {TOLERANCE_PERCENT:.0} % of what the page prints",
            cells.len() - differ,
            cells.len()
        ),
        "the disks are EMULATED after the catalogue's formulas: nothing here is a measurement of a \
         cloud"
            .to_owned(),
        "MB/s are the page's: 1,000 KB of 1,024 bytes; it cuts fractions off, so 61.44 is its 61"
            .to_owned(),
    ];
    if busy > 0 {
        doubts.push(format!(
            "of those that are not, {busy} kept this machine's CPUs {BUSY_PERCENT:.0} % busy or more: \
             they, and not the disk, may be what was measured"
        ));
    }
    doubts
}

/// Every cell, measured against published.
pub fn table(summary: &Summary) -> Table {
    let measured = format!("measured{}", Nature::Emulated.suffix());
    let head = ["table", "disk", "what", "published", &measured, "difference", "within 2 %", "CPU"];
    let mut table =
        Table::new("Google's page of about 2019, and the same on EMULATED disks", &head);
    for cell in &summary.cells {
        let number = |value| format!("{} {}", format_number(value, 0), cell.unit);
        table.rows.push(vec![
            cell.table.to_owned(),
            cell.disk.clone(),
            cell.what.to_owned(),
            number(cell.published),
            number(cell.measured),
            format!("{:.1} %", cell.difference_percent),
            match (cell.agrees, cell.is_busy()) {
                (true, _) => "yes",
                (false, true) => "no: CPUs busy",
                (false, false) => "NO",
            }
            .to_owned(),
            cell.cpu_percent.map_or_else(|| "-".to_owned(), |percent| format!("{percent:.0} %")),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use flagstone_bench::cpu::CpuUse;
    use flagstone_bench::measurement::Measurement;
    use flagstone_cloud::{Catalogue, Configuration, Workload};
    use flagstone_control::config::{Config, Layer};

    /// What the page prints is what the catalogue's formulas give, so the emulated disk can do it.
    #[test]
    fn the_catalogue_gives_what_the_page_prints() {
        let catalogue = Catalogue::builtin(CATALOGUE).unwrap();
        for disk in &DISKS {
            let bytes = u64::from(disk.size_gb) * 1_000_000_000;
            let place = Configuration::new(catalogue, disk.kind, bytes, disk.machine).unwrap();
            for (column, printed) in COLUMNS.iter().zip(disk.cells) {
                let reads = if column.pattern.writes() { 0 } else { 100 };
                let workload = Workload::random(column.kib << 10, reads);
                let allowed = catalogue.predict(&place, &workload).unwrap().allowed;
                let figure = match column.is_throughput {
                    true => allowed.bytes_per_s / PAGE_MB_BYTES,
                    false => allowed.iops,
                };
                let apart = 100.0 * (figure / printed - 1.0);
                assert!(apart.abs() < 1.0, "{} {}: {figure}", disk.name(), column.job);
            }
        }
    }

    #[test]
    fn the_disks_are_configured_rightly() {
        let text: String = DISKS.iter().map(Disk::volume).collect();
        let config = Config::parse("lab", &text).unwrap_or_else(|wrong| panic!("{wrong}\n{text}"));
        assert_eq!(config.volumes.len(), DISKS.len());
        for volume in &config.volumes {
            assert!(volume.layers.iter().any(|layer| matches!(layer, Layer::Limit(_))));
        }
        let options = Options {
            program: "flagstone".into(),
            command: "flagstone lab".to_owned(),
            results: "results".into(),
            ramp_ms: 0,
            runtime_ms: 100,
            repetitions: 1,
        };
        let plan = options.plan(1);
        plan.check().unwrap();
        assert_eq!(plan.steps().len(), DISKS.len() * COLUMNS.len());
        assert_eq!(plan.origins.len(), DISKS.len());
    }

    #[test]
    fn cells_that_differ_say_whether_the_machine_was_busy() {
        let record = |disk: &Disk, column: &Column, iops: f64, busy: f64| {
            let target = Target {
                name: disk.name(),
                disks: vec![Place::NvmeTcp("nvme-tcp://h/n".to_owned())],
            };
            let mut measurement = Measurement::default();
            measurement.total.iops = iops;
            measurement.total.bytes_per_s = iops * (column.kib << 10) as f64;
            measurement.cpu = Some(CpuUse {
                user_percent: busy,
                kernel_percent: 0.0,
                idle_percent: 100.0 - busy,
            });
            let job = Job { name: column.job.to_owned(), ..Job::default() };
            Record::new("limits", &job, &target, measurement)
        };
        let found = summary(&[
            record(&DISKS[0], &COLUMNS[0], 751.0, 20.0),
            record(&DISKS[0], &COLUMNS[1], 1400.0, 20.0),
            // 468.75 of 262,144 bytes are 120 MB of 1,024,000.
            record(&DISKS[0], &COLUMNS[3], 468.75, 20.0),
            record(&DISKS[6], &COLUMNS[0], 40_000.0, 99.0),
        ]);
        let table = table(&found);
        assert!(table.title.contains("EMULATED") && table.head[4].contains("EMULATED"));
        let verdicts: Vec<_> = table.rows.iter().map(|row| row[6].as_str()).collect();
        assert_eq!(verdicts, ["yes", "NO", "yes", "no: CPUs busy"]);
        assert_eq!(table.rows[2][3..6], ["120 MB/s", "120 MB/s", "0.0 %"]);
        assert!(found.doubts[0].starts_with("2 of 4 cells"));
        assert!(found.doubts.iter().any(|doubt| doubt.contains("of those that are not, 1")));
    }
}
