//! The rows of Google's page that are measured, and what measures them: the disks with the cells that
//! the page prints of them, how each is emulated, and how deep a queue a cell takes.

use flagstone_bench::job::{Job, Pattern};
use flagstone_bench::results::Record;
use flagstone_cloud::{Catalogue, Configuration, Workload};

/// The catalogue of the page.
pub(crate) const CATALOGUE: &str = "gcp-2019";
/// The page's MB: 4,500 writes of 16 KB are its 72 MB, so it has 1,000 KB, which are 1,024 bytes.
pub(crate) const PAGE_MB_BYTES: f64 = 1_024_000.0;
/// Bytes of an emulated disk, whose size is what is emulated and not what is there. Nothing keeps
/// them.
pub(super) const VOLUME_BYTES: u64 = 16 << 30;

/// What of a disk is measured: a column of one of the page's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) job: &'static str,
    /// Reads among a hundred.
    pub(super) read_percent: u8,
    pub(super) kib: u64,
    pub(crate) is_throughput: bool,
}

/// Reads a second.
pub(super) const READ: Column = Column::new("read-16k", 100, 16, false);
/// Writes of 8 KB a second.
pub(super) const WRITE: Column = Column::new("write-8k", 0, 8, false);
/// Writes of 16 KB a second.
pub(super) const WRITE_16: Column = Column::new("write-16k", 0, 16, false);
/// MB/s read.
pub(super) const READ_MB: Column = Column::new("read-256k", 100, 256, true);
/// MB/s written.
pub(super) const WRITE_MB: Column = Column::new("write-256k", 0, 256, true);
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
pub(super) const SMALL_READ: Column = Column::new("read-2k", 100, 2, false);
/// Writes a second of local SSDs.
pub(super) const SMALL_WRITE: Column = Column::new("write-2k", 0, 2, false);

/// What the page's tables of volumes and of machines have: any disk is sold by these.
pub(crate) const SOLD: [Column; 5] = [READ, WRITE, WRITE_16, READ_MB, WRITE_MB];

/// All of them, in the order in which they are measured.
pub(super) const COLUMNS: [Column; 12] = [
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
    pub(super) fn figure(&self, record: &Record) -> f64 {
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
pub(super) struct Disk {
    /// Of the page.
    pub(super) table: &'static str,
    pub(super) kind: &'static str,
    /// Of each of [`Disk::disks`].
    pub(super) size_gb: u32,
    pub(super) disks: u32,
    pub(super) regional: bool,
    pub(super) machine: &'static str,
    /// It is emulated so many times slower than the page has it.
    pub(super) scale: u32,
    pub(super) cells: &'static [(Column, f64)],
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
pub(super) const LOCAL_SCALE: u32 = 20;

/// Rows of each of the page's tables of limits; its other tables are of prices, and of what follows
/// from these.
pub(super) const DISKS: [Disk; 24] = [
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
    pub(super) fn name(&self) -> String {
        let Disk { kind, size_gb, machine, disks, .. } = self;
        let count = if *disks > 1 { format!("{disks} x ") } else { String::new() };
        let regional = if self.regional { " regional" } else { "" };
        let scale =
            if self.scale > 1 { format!(", 1/{} of it", self.scale) } else { String::new() };
        format!("{count}{size_gb} GB{regional} {kind}, {machine}{scale}")
    }

    pub(super) fn volume_name(&self) -> String {
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
    pub(super) fn allowed(&self, column: &Column) -> f64 {
        let (catalogue, place) = self.place();
        let found = catalogue.predict(&place, &column.workload());
        let allowed = found.expect("its limits are in the catalogue").allowed;
        if column.is_throughput { allowed.bytes_per_s / PAGE_MB_BYTES } else { allowed.iops }
    }

    pub(super) fn volume(&self) -> String {
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
    pub(super) fn depth(&self, column: &Column, printed: f64) -> u32 {
        let figure = printed / f64::from(self.scale);
        let per_s = match column.is_throughput {
            true => figure * PAGE_MB_BYTES / (column.kib << 10) as f64,
            false => figure,
        };
        let [least, most] = DEPTHS;
        ((per_s / IOPS_PER_IO) as u32).clamp(least, most).next_power_of_two()
    }
}

pub(super) fn job_name(column: &Column, depth: u32) -> String {
    format!("{}-qd{depth}", column.job)
}

/// Each column with each depth that its cells take, in the order in which they are measured.
pub(super) fn jobs() -> Vec<(Column, u32)> {
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

pub(super) fn measuring(column: &Column, depth: u32, ramp_ms: u64, runtime_ms: u64) -> Job {
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
