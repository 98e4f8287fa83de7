//! Experiment D: the limits of cloud disks themselves. A sample of the rows of Google's page of about
//! 2019 is emulated, measured, and compared with what the page prints.
//!
//! The emulation follows the catalogue's formulas, not these numbers: so a row that comes out as
//! printed says that formula, limiter and path are right, and one that does not says so, or that
//! this machine's CPUs were the limit.

mod sample;

use std::collections::BTreeMap;
use std::path::PathBuf;

use flagstone_bench::attach::{Choice, Initiator};
use flagstone_bench::campaign::{Campaign, Ending, Plan, Watcher};
use flagstone_bench::generator::Generator;
use flagstone_bench::job::Job;
use flagstone_bench::nature::{Nature, Origin};
use flagstone_bench::os::Interrupt;
use flagstone_bench::results::{Record, SCHEMA_VERSION as RESULTS_VERSION, Store};
use flagstone_bench::stats::median;
use flagstone_bench::table::Table;
use flagstone_bench::target::{Place, Target};
use flagstone_bench::units::format_number;
use serde::Serialize;

pub(crate) use self::sample::{CATALOGUE, Column, PAGE_MB_BYTES, SOLD, job, printed};
use self::sample::{DISKS, Disk, LOCAL_SCALE, VOLUME_BYTES, job_name, jobs, measuring};
use crate::Error;
use crate::follow::Follow;
use crate::limits::BUSY_PERCENT;
use crate::node::{Node, device};
use crate::ports::free_ports;

/// Version of the JSON form.
pub const SCHEMA_VERSION: u32 = 1;
/// How far from what is printed a measurement may be, in %.
pub const TOLERANCE_PERCENT: f64 = 2.0;
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
    fn job(&self, column: &Column, depth: u32) -> Job {
        measuring(column, depth, self.ramp_ms, self.runtime_ms)
    }

    /// What is to be measured of one column with one depth: the disks that have it.
    fn part(&self, whole: &Plan, (column, depth): &(Column, u32)) -> Plan {
        let is = |disk: &Disk, (of, printed): &(Column, f64)| {
            of == column && disk.depth(of, *printed) == *depth
        };
        let has = |disk: &&Disk| disk.cells.iter().any(|cell| is(disk, cell));
        let names: Vec<_> = DISKS.iter().filter(has).map(Disk::name).collect();
        let targets = whole.targets.iter().filter(|target| names.contains(&target.name));
        Plan {
            jobs: vec![self.job(column, *depth)],
            targets: targets.cloned().collect(),
            ..whole.clone()
        }
    }

    fn seconds(&self, whole: &Plan, job: &(Column, u32)) -> f64 {
        let part = self.part(whole, job);
        part.steps().into_iter().map(|step| part.step_seconds(step)).sum()
    }

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
            jobs: jobs().iter().map(|(column, depth)| self.job(column, *depth)).collect(),
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
    /// So many times slower than the page has it: 1 but for local SSDs.
    pub scale: u32,
    /// As printed, divided by [`Cell::scale`].
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
    let [port] = free_ports()?;
    let mut server = Node::new(&options.program, scratch.path(), "lab");
    let volumes: String = DISKS.iter().map(Disk::volume).collect();
    let listen = [format!("nvme-tcp://127.0.0.1:{port}")];
    server.configure_alone(&listen, &volumes)?;
    let plan = options.plan(port);
    plan.check()?;
    let store = Store::create(&options.results, &plan)?;
    server.start(interrupt)?;
    let mut ending = Ending::Complete;
    let jobs = jobs();
    for (at, job) in jobs.iter().enumerate() {
        let part = options.part(&plan, job);
        let campaign = Campaign {
            plan: &part,
            store: &store,
            fio: None,
            generator: &Generator { program: options.program.clone() },
            initiator: &Initiator::of_machine(),
            interrupt,
        };
        let later_s = jobs[at + 1..].iter().map(|job| options.seconds(&plan, job)).sum();
        ending = campaign.run(&mut Follow { inner: &mut *watcher, later_s })?;
        if ending == Ending::Interrupted {
            break;
        }
    }
    if ending == Ending::Complete {
        server.stop(interrupt)?;
    }
    Ok(Outcome { ending, summary: summary(&store.records()?) })
}

fn summary(records: &[Record]) -> Summary {
    let mut cells = Vec::new();
    for disk in &DISKS {
        let name = disk.name();
        for (column, published) in disk.cells {
            let job = job_name(column, disk.depth(column, *published));
            let is = |r: &&Record| r.target == name && r.job == job;
            let of: Vec<&Record> = records.iter().filter(is).collect();
            let figures: Vec<f64> = of.iter().map(|record| column.figure(record)).collect();
            let published = published / f64::from(disk.scale);
            let Some(measured) = median(&figures) else { continue };
            let busy = |r: &&Record| Some(r.measurement.cpu.as_ref()?.busy_percent());
            let difference_percent = 100.0 * (measured / published - 1.0);
            cells.push(Cell {
                table: disk.table,
                disk: name.clone(),
                scale: disk.scale,
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
        "rows of its tables of volumes, machines, C2, egress, regional disks, and reads and writes at \
         once; those of prices, of what equals a hard disk, and of what other traffic leaves are not \
         measured, as they follow from these"
            .to_owned(),
    ];
    if cells.iter().any(|cell| cell.scale > 1) {
        doubts.push(format!(
            "local SSDs, from 280,000 IOPS up, are beyond a server and its host on a few CPUs: both \
             their limits and what the page prints are divided by {LOCAL_SCALE}; the page says no size \
             for their IOPS, and at 4 KB their MB/s would bind, so they are measured with 2 KB"
        ));
    }
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
    use super::sample::{COLUMNS, READ, READ_MB, SMALL_READ, WRITE};
    use super::*;
    use flagstone_bench::cpu::CpuUse;
    use flagstone_bench::measurement::Measurement;
    use flagstone_control::config::{Config, Layer};

    /// What the page prints is what the catalogue's formulas give, so the emulated disk can do it.
    #[test]
    fn the_catalogue_gives_what_the_page_prints() {
        for disk in &DISKS {
            for (column, printed) in disk.cells {
                let figure = disk.allowed(column);
                let apart = 100.0 * (figure / printed - 1.0);
                assert!(apart.abs() < 1.0, "{} {}: {figure}", disk.name(), column.job);
            }
        }
    }

    /// Every table of limits that the page has, with two rows or more.
    #[test]
    fn each_of_the_pages_tables_has_rows() {
        let tables = ["volume", "machine", "C2", "egress", "regional", "both at once", "local SSD"];
        for table in tables {
            assert!(DISKS.iter().filter(|disk| disk.table == table).count() >= 2, "{table}");
        }
        assert!(DISKS.iter().all(|disk| tables.contains(&disk.table)));
        let mut names: Vec<_> = DISKS.iter().map(Disk::name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), DISKS.len(), "the names are different");
        assert!(COLUMNS.iter().all(|column| {
            DISKS.iter().any(|disk| disk.cells.iter().any(|(of, _)| of == column))
        }));
    }

    #[test]
    fn the_disks_are_configured_rightly() {
        let text: String = DISKS.iter().map(Disk::volume).collect();
        let config = Config::parse("lab", &text).unwrap_or_else(|wrong| panic!("{wrong}\n{text}"));
        assert_eq!(config.volumes.len(), DISKS.len());
        for volume in &config.volumes {
            assert!(volume.layers.iter().any(|layer| matches!(layer, Layer::Limit(_))));
        }
        let local = DISKS.iter().find(|disk| disk.kind == "local-ssd-nvme").unwrap();
        assert!(local.name().contains("4 x 375 GB") && local.name().contains("1/20 of it"));
        // A twentieth of 679,950, which the page's figure of a GB gives.
        assert!(local.volume().contains("read_iops = 33997,"), "{}", local.volume());
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
        let jobs = jobs();
        let parts = jobs.iter().map(|job| options.part(&plan, job));
        let parts: Vec<_> = parts.inspect(|part| part.check().unwrap()).collect();
        let cells: usize = DISKS.iter().map(|disk| disk.cells.len()).sum();
        assert_eq!(parts.iter().map(|part| part.steps().len()).sum::<usize>(), cells);
        assert!(options.seconds(&plan, &jobs[0]) > 0.0);
        assert_eq!(plan.origins.len(), DISKS.len());
    }

    #[test]
    fn queues_are_as_long_as_it_takes() {
        let depth = |at: usize, column: &Column| {
            let cell = DISKS[at].cells.iter().find(|(of, _)| of == column).unwrap();
            DISKS[at].depth(column, cell.1)
        };
        assert_eq!(depth(0, &READ), 4, "750 a second");
        assert_eq!(depth(6, &READ), 256, "60,000");
        // 1,200 MB/s are 4,688 of 256 KiB.
        assert_eq!(depth(6, &READ_MB), 32);
        assert_eq!(depth(22, &SMALL_READ), 256, "680,000, a twentieth of it");
        for disk in &DISKS {
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
            let printed = disk.cells.iter().find(|(of, _)| of == column).unwrap().1;
            let name = job_name(column, disk.depth(column, printed));
            let job = Job { name, ..Job::default() };
            Record::new("limits", &job, &target, measurement)
        };
        let found = summary(&[
            record(&DISKS[0], &READ, 751.0, 20.0),
            record(&DISKS[0], &WRITE, 1400.0, 20.0),
            // 468.75 of 262,144 bytes are 120 MB of 1,024,000.
            record(&DISKS[0], &READ_MB, 468.75, 20.0),
            record(&DISKS[6], &READ, 40_000.0, 99.0),
        ]);
        let table = table(&found);
        assert!(table.title.contains("EMULATED") && table.head[4].contains("EMULATED"));
        let verdicts: Vec<_> = table.rows.iter().map(|row| row[6].as_str()).collect();
        assert_eq!(verdicts, ["yes", "NO", "yes", "no: CPUs busy"]);
        assert_eq!(table.rows[2][3..6], ["120 MB/s", "120 MB/s", "0.0 %"]);
        assert!(found.doubts[0].starts_with("2 of 4 cells"));
        assert!(!found.doubts.iter().any(|doubt| doubt.contains("divided by")));
        let scaled = summary(&[record(&DISKS[22], &SMALL_READ, 34_000.0, 20.0)]);
        assert_eq!((scaled.cells[0].published, scaled.cells[0].agrees), (34_000.0, true));
        assert!(scaled.doubts.iter().any(|doubt| doubt.contains("divided by 20")));
        assert!(found.doubts.iter().any(|doubt| doubt.contains("of those that are not, 1")));
    }
}
