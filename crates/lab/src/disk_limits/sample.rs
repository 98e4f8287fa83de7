//! Sample of the disks in the tables of Google's page: the printed figures, the emulated volume,
//! and the jobs that measure them.

use flagstone_bench::job::{AccessPattern, BenchJob};
use flagstone_cloud::{Catalog, DiskConfiguration, Workload};

use crate::bed::RunOptions;

pub(crate) const CATALOG: &str = "gcp-2019";
/// Bytes of the page's MB: 4,500 writes of 16 KB are its 72 MB, so it is 1,000 KB of 1,024 bytes.
pub(crate) const PAGE_MB_BYTES: f64 = 1_024_000.0;
/// Size of an emulated volume, in bytes. It differs from the disk's size, and stores nothing.
const VOLUME_BYTES: u64 = 16 << 30;

/// Figure of a disk: a column of one of the page's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LimitColumn {
    pub(crate) job: &'static str,
    pub(super) read_percent: u8,
    pub(super) kib: u64,
    pub(crate) is_throughput: bool,
}

pub(super) const READ: LimitColumn = LimitColumn::new("read-16k", 100, 16, false);
pub(super) const WRITE: LimitColumn = LimitColumn::new("write-8k", 0, 8, false);
pub(super) const WRITE_16: LimitColumn = LimitColumn::new("write-16k", 0, 16, false);
pub(super) const READ_MB: LimitColumn = LimitColumn::new("read-256k", 100, 256, true);
pub(super) const WRITE_MB: LimitColumn = LimitColumn::new("write-256k", 0, 256, true);
/// Concurrent reads and writes of 8 KB per second: the page's points (2,250, 3,750) are 37.5 %
/// reads, rounded to 38 %.
const MIXED_38: LimitColumn = LimitColumn::new("mixed-8k-38r", 38, 8, false);
/// The page's points (15,000, 22,500).
const MIXED_40: LimitColumn = LimitColumn::new("mixed-8k-40r", 40, 8, false);
/// The page's points (7,500, 7,500).
const MIXED_50: LimitColumn = LimitColumn::new("mixed-8k-50r", 50, 8, false);
/// MB/s of concurrent reads and writes, at a ratio of one to one.
const MIXED_50_MB: LimitColumn = LimitColumn::new("mixed-256k-50r", 50, 256, true);
/// MB/s of concurrent reads and writes at two to one: the page's point (800, 400).
const MIXED_67_MB: LimitColumn = LimitColumn::new("mixed-256k-67r", 67, 256, true);
/// Reads per second of local SSDs. The page names no size; at 4 KB their MB/s would be the limit.
pub(super) const SMALL_READ: LimitColumn = LimitColumn::new("read-2k", 100, 2, false);
pub(super) const SMALL_WRITE: LimitColumn = LimitColumn::new("write-2k", 0, 2, false);

/// Columns of the page's tables of volumes and machines, which apply to any disk.
pub(crate) const SOLD: [LimitColumn; 5] = [READ, WRITE, WRITE_16, READ_MB, WRITE_MB];

pub(super) const COLUMNS: [LimitColumn; 12] = [
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

impl LimitColumn {
    const fn new(
        job: &'static str,
        read_percent: u8,
        kib: u64,
        is_throughput: bool,
    ) -> LimitColumn {
        LimitColumn { job, read_percent, kib, is_throughput }
    }

    fn pattern(&self) -> AccessPattern {
        match self.read_percent {
            0 => AccessPattern::RandWrite,
            100 => AccessPattern::RandRead,
            _ => AccessPattern::RandRw,
        }
    }

    pub(crate) fn workload(&self) -> Workload {
        Workload::random(self.kib << 10, self.read_percent)
    }

    pub(super) fn order(&self) -> usize {
        COLUMNS.iter().position(|column| column == self).unwrap_or(COLUMNS.len())
    }

    /// Requests in flight that suffice for any disk: 60,000 reads of 2.5 ms are 150 in flight,
    /// 4,700 large ones are 12.
    pub(super) fn deep(&self) -> u32 {
        if self.is_throughput { 32 } else { 256 }
    }

    pub(crate) fn unit(&self) -> &'static str {
        if self.is_throughput { "MB/s" } else { "IOPS" }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct SampleDisk {
    pub(super) table: &'static str,
    pub(super) disk_type: &'static str,
    /// Size of each of [`SampleDisk::disks`], in GB.
    pub(super) size_gb: u32,
    pub(super) disks: u32,
    pub(super) regional: bool,
    pub(super) machine: &'static str,
    /// Factor by which it is emulated slower than the page has it.
    pub(super) scale: u32,
    pub(super) cells: &'static [(LimitColumn, f64)],
}

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
    disk_type: &'static str,
    size_gb: u32,
    machine: &'static str,
    cells: &'static [(LimitColumn, f64)],
) -> SampleDisk {
    SampleDisk { table, disk_type, size_gb, disks: 1, regional: false, machine, scale: 1, cells }
}

const fn regional(disk: SampleDisk) -> SampleDisk {
    SampleDisk { regional: true, ..disk }
}

/// All local SSDs of a machine, as in the page's figures.
const fn local(disk_type: &'static str, cells: &'static [(LimitColumn, f64)]) -> SampleDisk {
    let disks = LOCAL_DISKS;
    SampleDisk {
        disks,
        scale: LOCAL_SCALE,
        ..disk("local SSD", disk_type, 375, "n1-standard-16", cells)
    }
}

/// Disks of 375 GB in the page's figures, which are per 1,500 GB.
const LOCAL_DISKS: u32 = 4;
/// Slowdown of local SSDs: 280,000 IOPS exceed a server and its host on a few CPUs.
pub(super) const LOCAL_SCALE: u32 = 20;

/// Rows of each of the page's tables of limits. Its other tables have prices, or follow from these.
pub(super) const SAMPLE: [SampleDisk; 24] = [
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
    // Half of the disks: the page has figures per GB too.
    SampleDisk {
        disks: 2,
        ..local("local-ssd-nvme", &[(SMALL_READ, 340_000.0), (WRITE_MB, 700.0)])
    },
];

impl SampleDisk {
    pub(super) fn name(&self) -> String {
        let SampleDisk { disk_type, size_gb, machine, disks, .. } = self;
        let count = if *disks > 1 { format!("{disks} x ") } else { String::new() };
        let regional = if self.regional { " regional" } else { "" };
        let scale =
            if self.scale > 1 { format!(", 1/{} of it", self.scale) } else { String::new() };
        format!("{count}{size_gb} GB{regional} {disk_type}, {machine}{scale}")
    }

    pub(super) fn volume_name(&self) -> String {
        let SampleDisk { disk_type, size_gb, machine, disks, .. } = self;
        let regional = if self.regional { "-regional" } else { "" };
        format!("{disks}-{disk_type}-{size_gb}{regional}-{machine}")
    }

    fn place(&self) -> (&'static Catalog, DiskConfiguration) {
        let catalog = Catalog::builtin(CATALOG).expect("a built-in catalog");
        let bytes = u64::from(self.size_gb) * 1_000_000_000;
        let place = DiskConfiguration::new(catalog, self.disk_type, bytes, self.machine)
            .expect("disk and machine are in it: a test goes through them");
        (catalog, DiskConfiguration { disks: self.disks, regional: self.regional, ..place })
    }

    /// Figure by the catalog's formulas, in the page's unit, not scaled.
    pub(super) fn allowed(&self, column: &LimitColumn) -> f64 {
        let (catalog, place) = self.place();
        let found = catalog.predict(&place, &column.workload());
        let allowed = found.expect("its limits are in the catalog").allowed;
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
        let SampleDisk { disk_type, size_gb, machine, disks, regional, .. } = self;
        format!(
            "disk_model = {{ profile = \"{disk_type}\", size = \"{size_gb}GB\", machine = \"{machine}\", \
             catalog = \"{CATALOG}\", disks = {disks}, regional = {regional} }}\n"
        )
    }

    /// Limits by the same formulas, over the scale: the catalog has no such slow disk.
    fn scaled_limit(&self) -> String {
        let scaled = |column: &LimitColumn| self.allowed(column) / f64::from(self.scale);
        let bytes = |column: &LimitColumn| (scaled(column) * PAGE_MB_BYTES) as u64;
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

/// IOPS per request in flight. The page's rule of thumb is 400; half of that doubles the queue. In
/// a longer queue the first requests wait, and requests from before the measurement are not
/// counted.
const IOPS_PER_IO: f64 = 200.0;
const DEPTHS: [u32; 2] = [4, 256];

impl SampleDisk {
    /// Requests in flight that reach a printed figure, a power of two.
    pub(super) fn depth(&self, column: &LimitColumn, printed: f64) -> u32 {
        let figure = printed / f64::from(self.scale);
        let per_s = match column.is_throughput {
            true => figure * PAGE_MB_BYTES / (column.kib << 10) as f64,
            false => figure,
        };
        let [least, most] = DEPTHS;
        ((per_s / IOPS_PER_IO) as u32).clamp(least, most).next_power_of_two()
    }
}

pub(super) fn job_name(column: &LimitColumn, depth: u32) -> String {
    format!("{}-qd{depth}", column.job)
}

pub(super) fn job(column: &LimitColumn, depth: u32, run: &RunOptions) -> BenchJob {
    BenchJob {
        write_percent: 100 - column.read_percent,
        block_bytes: column.kib << 10,
        depth,
        ..run.job(job_name(column, depth), column.pattern())
    }
}

pub(crate) fn printed(
    disk_type: &str,
    size_gb: u32,
    machine: &str,
    column: &LimitColumn,
) -> Option<f64> {
    let is_it = |d: &&SampleDisk| {
        (d.disk_type, d.size_gb, d.machine) == (disk_type, size_gb, machine)
            && (d.disks, d.regional, d.scale) == (1, false, 1)
    };
    let cells = SAMPLE.iter().filter(is_it).flat_map(|disk| disk.cells);
    cells.into_iter().find_map(|(of, printed)| (of == column).then_some(*printed))
}
