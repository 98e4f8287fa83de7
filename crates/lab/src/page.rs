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
use flagstone_cloud::{Catalogue, Configuration, Workload};
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

/// What of a disk is measured: a column of one of the page's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) job: &'static str,
    /// Reads among a hundred.
    read_percent: u8,
    kib: u64,
    pub(crate) is_throughput: bool,
}

/// Reads a second.
const READ: Column = Column::new("read-16k", 100, 16, false);
/// Writes of 8 KB a second.
const WRITE: Column = Column::new("write-8k", 0, 8, false);
/// Writes of 16 KB a second.
const WRITE_16: Column = Column::new("write-16k", 0, 16, false);
/// MB/s read.
const READ_MB: Column = Column::new("read-256k", 100, 256, true);
/// MB/s written.
const WRITE_MB: Column = Column::new("write-256k", 0, 256, true);
/// Reads and writes at once, of 8 KB, a second: the page's points (2,250, 3,750) are 37.5 % reads,
/// which 38 % are nearest to.
const MIXED_38: Column = Column::new("mixed-8k-38r", 38, 8, false);
/// The page's points (15,000, 22,500).
const MIXED_40: Column = Column::new("mixed-8k-40r", 40, 8, false);
/// The page's points (7,500, 7,500).
const MIXED_50: Column = Column::new("mixed-8k-50r", 50, 8, false);
/// MB/s of both at once, one for one.
const MIXED_50_MB: Column = Column::new("mixed-256k-50r", 50, 256, true);
/// MB/s of both at once, two for one: as 800 and 400 are.
const MIXED_67_MB: Column = Column::new("mixed-256k-67r", 67, 256, true);
/// Reads a second of local SSDs, for which the page says no size: at 4 KB their MB/s would bind.
const SMALL_READ: Column = Column::new("read-2k", 100, 2, false);
/// Writes a second of local SSDs.
const SMALL_WRITE: Column = Column::new("write-2k", 0, 2, false);

/// What the page's tables of volumes and of machines have: any disk is sold by these.
pub(crate) const SOLD: [Column; 5] = [READ, WRITE, WRITE_16, READ_MB, WRITE_MB];

/// All of them, in the order in which they are measured.
const COLUMNS: [Column; 12] = [
    READ,
    WRITE,
    WRITE_16,
    READ_MB,
    WRITE_MB,
    MIXED_38,
    MIXED_40,
    MIXED_50,
    MIXED_50_MB,
    MIXED_67_MB,
    SMALL_READ,
    SMALL_WRITE,
];

impl Column {
    const fn new(job: &'static str, read_percent: u8, kib: u64, is_throughput: bool) -> Column {
        Column { job, read_percent, kib, is_throughput }
    }

    fn pattern(&self) -> Pattern {
        match self.read_percent {
            0 => Pattern::RandWrite,
            100 => Pattern::RandRead,
            _ => Pattern::RandRw,
        }
    }

    pub(crate) fn workload(&self) -> Workload {
        Workload::random(self.kib << 10, self.read_percent)
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

/// A disk on a machine, with the cells of its row.
#[derive(Clone, Copy, Debug)]
struct Disk {
    /// Of the page.
    table: &'static str,
    kind: &'static str,
    /// Of each of [`Disk::disks`].
    size_gb: u32,
    disks: u32,
    regional: bool,
    machine: &'static str,
    /// It is emulated so many times slower than the page has it.
    scale: u32,
    cells: &'static [(Column, f64)],
}

/// A row of the columns that tables of volumes and machines share.
macro_rules! row {
    ($read:expr, $write:expr, $write_16:expr, $read_mb:expr, $write_mb:expr) => {
        &[
            (READ, $read as f64),
            (WRITE, $write as f64),
            (WRITE_16, $write_16 as f64),
            (READ_MB, $read_mb as f64),
            (WRITE_MB, $write_mb as f64),
        ]
    };
}

const fn disk(
    table: &'static str,
    kind: &'static str,
    size_gb: u32,
    machine: &'static str,
    cells: &'static [(Column, f64)],
) -> Disk {
    Disk { table, kind, size_gb, disks: 1, regional: false, machine, scale: 1, cells }
}

const fn regional(disk: Disk) -> Disk {
    Disk { regional: true, ..disk }
}

/// All that a machine may have of them, as the page's figures are of.
const fn local(kind: &'static str, cells: &'static [(Column, f64)]) -> Disk {
    let disks = LOCAL_DISKS;
    Disk { disks, scale: LOCAL_SCALE, ..disk("local SSD", kind, 375, "n1-standard-16", cells) }
}

/// Disks of 375 GB behind the page's figures: it divides them by 1,500 GB.
const LOCAL_DISKS: u32 = 4;
/// From 280,000 IOPS up they are beyond what a server and its host do together on a few CPUs.
const LOCAL_SCALE: u32 = 20;

/// Rows of each of the page's tables of limits; its other tables are of prices, and of what follows
/// from these.
const DISKS: [Disk; 24] = [
    disk("volume", "pd-standard", 1000, "n1-standard-8", row!(750, 1500, 1500, 120, 120)),
    disk("volume", "pd-standard", 10_000, "n1-standard-8", row!(3000, 15_000, 7500, 240, 240)),
    disk("volume", "pd-ssd", 128, "n1-standard-8", row!(3840, 3840, 3840, 61, 61)),
    disk("volume", "pd-ssd", 500, "n1-standard-8", row!(15_000, 15_000, 15_000, 240, 240)),
    disk("machine", "pd-ssd", 4096, "n1-standard-1", row!(15_000, 9000, 4500, 240, 72)),
    disk("machine", "pd-ssd", 4096, "n1-standard-16", row!(25_000, 25_000, 25_000, 1200, 400)),
    disk("machine", "pd-ssd", 4096, "n1-standard-32", row!(60_000, 30_000, 25_000, 1200, 400)),
    disk("C2", "pd-standard", 10_000, "c2-standard-4", row!(3000, 4000, 4000, 240, 240)),
    disk("C2", "pd-standard", 10_000, "c2-standard-30", row!(3000, 8000, 7500, 240, 240)),
    disk("C2", "pd-ssd", 4096, "c2-standard-16", row!(8000, 4000, 4000, 320, 240)),
    disk("C2", "pd-ssd", 4096, "c2-standard-60", row!(30_000, 15_000, 15_000, 1200, 400)),
    disk("egress", "pd-standard", 600, "n1-standard-1", &[(WRITE_MB, 72.0)]),
    disk("egress", "pd-standard", 1200, "n1-standard-2", &[(WRITE_MB, 144.0)]),
    disk("egress", "pd-ssd", 834, "n1-standard-8", &[(WRITE_MB, 400.0)]),
    regional(disk("regional", "pd-standard", 10_000, "n1-standard-1", &[(WRITE_MB, 36.0)])),
    regional(disk("regional", "pd-standard", 10_000, "n1-standard-8", &[(WRITE_MB, 200.0)])),
    regional(disk("regional", "pd-ssd", 4096, "n1-standard-1", &[(WRITE_MB, 36.0)])),
    regional(disk("regional", "pd-ssd", 4096, "n1-standard-32", &[(WRITE_MB, 200.0)])),
    disk(
        "both at once",
        "pd-standard",
        16_384,
        "n1-standard-8",
        &[(MIXED_38, 6000.0), (MIXED_50_MB, 240.0)],
    ),
    disk(
        "both at once",
        "pd-ssd",
        8192,
        "n1-standard-8",
        &[(MIXED_50, 15_000.0), (MIXED_67_MB, 1200.0)],
    ),
    disk("both at once", "pd-ssd", 8192, "n1-standard-32", &[(MIXED_40, 37_500.0)]),
    local("local-ssd-scsi", &[(SMALL_READ, 400_000.0), (SMALL_WRITE, 280_000.0)]),
    local(
        "local-ssd-nvme",
        &[(SMALL_READ, 680_000.0), (SMALL_WRITE, 360_000.0), (READ_MB, 2650.0), (WRITE_MB, 1400.0)],
    ),
    // Half of them: the page's figures are of a GB, too.
    Disk { disks: 2, ..local("local-ssd-nvme", &[(SMALL_READ, 340_000.0), (WRITE_MB, 700.0)]) },
];

impl Disk {
    fn name(&self) -> String {
        let Disk { kind, size_gb, machine, disks, .. } = self;
        let count = if *disks > 1 { format!("{disks} x ") } else { String::new() };
        let regional = if self.regional { " regional" } else { "" };
        let scale =
            if self.scale > 1 { format!(", 1/{} of it", self.scale) } else { String::new() };
        format!("{count}{size_gb} GB{regional} {kind}, {machine}{scale}")
    }

    fn volume_name(&self) -> String {
        let Disk { kind, size_gb, machine, disks, .. } = self;
        let regional = if self.regional { "-regional" } else { "" };
        format!("{disks}-{kind}-{size_gb}{regional}-{machine}")
    }

    fn place(&self) -> (&'static Catalogue, Configuration) {
        let catalogue = Catalogue::builtin(CATALOGUE).expect("a catalogue of the program");
        let bytes = u64::from(self.size_gb) * 1_000_000_000;
        let place = Configuration::new(catalogue, self.kind, bytes, self.machine)
            .expect("disk and machine are in it: a test goes through them");
        (catalogue, Configuration { disks: self.disks, regional: self.regional, ..place })
    }

    /// What the catalogue's formulas allow, in the page's unit; not scaled.
    fn allowed(&self, column: &Column) -> f64 {
        let (catalogue, place) = self.place();
        let found = catalogue.predict(&place, &column.workload());
        let allowed = found.expect("its limits are in the catalogue").allowed;
        if column.is_throughput { allowed.bytes_per_s / PAGE_MB_BYTES } else { allowed.iops }
    }

    fn volume(&self) -> String {
        let gib = VOLUME_BYTES >> 30;
        format!(
            "[volume.{}]\n{}block_size = 512\ndevice = \"null:{gib}GiB\"\n\n",
            self.volume_name(),
            if self.scale == 1 { self.emulation() } else { self.scaled_limit() },
        )
    }

    fn emulation(&self) -> String {
        let Disk { kind, size_gb, machine, disks, regional, .. } = self;
        format!(
            "emulate = {{ like = \"{kind}\", size = \"{size_gb}GB\", machine = \"{machine}\", \
             catalog = \"{CATALOGUE}\", disks = {disks}, regional = {regional} }}\n"
        )
    }

    /// The same formulas' numbers, divided: a catalogue has no slower disk of the kind.
    fn scaled_limit(&self) -> String {
        let scaled = |column: &Column| self.allowed(column) / f64::from(self.scale);
        let bytes = |column: &Column| (scaled(column) * PAGE_MB_BYTES) as u64;
        format!(
            "limit = {{ read_iops = {}, write_iops = {}, read_throughput = \"{}B/s\", \
             write_throughput = \"{}B/s\" }}\n",
            scaled(&SMALL_READ) as u64,
            scaled(&SMALL_WRITE) as u64,
            bytes(&READ_MB),
            bytes(&WRITE_MB),
        )
    }
}

/// In flight for each so many I/Os a second: twice what the page's own rule says is needed, one for
/// each 400. A queue longer than that keeps its first I/Os waiting, and those that were begun before
/// the measurement are not counted.
const IOPS_PER_IO: f64 = 200.0;
/// Fewest and most in flight.
const DEPTHS: [u32; 2] = [4, 256];

impl Disk {
    /// What has to be in flight to reach a cell, in powers of two.
    fn depth(&self, column: &Column, printed: f64) -> u32 {
        let figure = printed / f64::from(self.scale);
        let per_s = match column.is_throughput {
            true => figure * PAGE_MB_BYTES / (column.kib << 10) as f64,
            false => figure,
        };
        let [least, most] = DEPTHS;
        ((per_s / IOPS_PER_IO) as u32).clamp(least, most).next_power_of_two()
    }
}

fn job_name(column: &Column, depth: u32) -> String {
    format!("{}-qd{depth}", column.job)
}

/// Each column with each depth that its cells take, in the order in which they are measured.
fn jobs() -> Vec<(Column, u32)> {
    let mut jobs = Vec::new();
    for column in COLUMNS {
        let mut depths: Vec<u32> = Vec::new();
        for disk in &DISKS {
            let cells = disk.cells.iter().filter(|(of, _)| *of == column);
            depths.extend(cells.map(|(of, printed)| disk.depth(of, *printed)));
        }
        depths.sort_unstable();
        depths.dedup();
        jobs.extend(depths.into_iter().map(|depth| (column, depth)));
    }
    jobs
}

/// What measures a column on a disk of which nobody says what it reaches: deep enough for any.
pub(crate) fn job(column: &Column, ramp_ms: u64, runtime_ms: u64) -> Job {
    // 60,000 reads of 2.5 ms are 150 in flight; 4,700 large ones are 12.
    let depth = if column.is_throughput { 32 } else { 256 };
    Job { name: column.job.to_owned(), ..measuring(column, depth, ramp_ms, runtime_ms) }
}

fn measuring(column: &Column, depth: u32, ramp_ms: u64, runtime_ms: u64) -> Job {
    Job {
        name: job_name(column, depth),
        pattern: column.pattern(),
        write_percent: 100 - column.read_percent,
        block_bytes: column.kib << 10,
        depth,
        threads: 1,
        disks: 1,
        ramp_ms,
        runtime_ms,
        ..Job::default()
    }
}

/// What the page prints of one disk on a machine, if a row of it is among these.
pub(crate) fn printed(kind: &str, size_gb: u32, machine: &str, column: &Column) -> Option<f64> {
    let is_it = |d: &&Disk| {
        (d.kind, d.size_gb, d.machine) == (kind, size_gb, machine)
            && (d.disks, d.regional, d.scale) == (1, false, 1)
    };
    let cells = DISKS.iter().filter(is_it).flat_map(|disk| disk.cells);
    cells.into_iter().find_map(|(of, printed)| (of == column).then_some(*printed))
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
