//! What a catalogue holds, field by field as it is written; `docs/catalogue.md` describes it.
//!
//! Sizes and throughput are in the catalogue's own units ([`Units`]): a field `x_gb` is written
//! `x_gib` where the units say GiB, and `_mb_per_s` is written `_mib_per_s` where they say MiB/s.
//! What no source gives is `None`: not known, which is different from 0 and from unlimited.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::select::{Pattern, Range};

/// How far a source is to be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Confidence {
    /// The provider's own page or repository, or a copy of it.
    A,
    /// A third party that restates the provider's page.
    B,
    /// A single mention by a third party, or a rule of an older page that nothing newer repeats.
    C,
}

impl std::fmt::Display for Confidence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Confidence::A => "A",
            Confidence::B => "B",
            Confidence::C => "C",
        })
    }
}

/// Where numbers come from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// An address, or the title of a page.
    pub address: String,
    /// When it was written or stored, as far as it says.
    pub date: String,
    /// How far it is trusted.
    pub confidence: Confidence,
    /// Anything else worth knowing of it.
    pub note: Option<String>,
    /// The commit, of a repository.
    pub commit: Option<String>,
}

/// What the units of a catalogue mean.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Units {
    /// Unit of sizes: `GB` or `GiB`.
    pub size: SizeUnit,
    /// Bytes of one such unit.
    pub size_bytes: u64,
    /// Unit of throughput: `MB/s` or `MiB/s`.
    pub throughput: ThroughputUnit,
    /// Unit of blocks: `KB` or `KiB`.
    pub block: BlockUnit,
    /// Bytes of one such unit.
    pub block_bytes: u64,
    /// Block units in one unit of throughput: 1,000 or 1,024.
    pub blocks_per_throughput: u64,
    /// Why these.
    pub note: Option<String>,
}

impl Units {
    /// A size in the catalogue's unit.
    pub fn size_of(&self, bytes: u64) -> f64 {
        bytes as f64 / self.size_bytes as f64
    }

    /// Bytes of one unit of throughput.
    pub fn throughput_bytes(&self) -> u64 {
        self.block_bytes * self.blocks_per_throughput
    }

    /// A block in the catalogue's unit.
    pub fn block_of(&self, bytes: u64) -> f64 {
        bytes as f64 / self.block_bytes as f64
    }
}

/// Unit of sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SizeUnit {
    /// As a page prints it, 10^9 bytes where `size_bytes` says so.
    #[serde(rename = "GB")]
    Gb,
    /// 2^30 bytes.
    #[serde(rename = "GiB")]
    Gib,
}

impl SizeUnit {
    /// As printed.
    pub fn name(self) -> &'static str {
        match self {
            SizeUnit::Gb => "GB",
            SizeUnit::Gib => "GiB",
        }
    }
}

/// Unit of throughput.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ThroughputUnit {
    /// As a page prints it.
    #[serde(rename = "MB/s")]
    Mb,
    /// 2^20 bytes a second.
    #[serde(rename = "MiB/s")]
    Mib,
}

impl ThroughputUnit {
    /// As printed.
    pub fn name(self) -> &'static str {
        match self {
            ThroughputUnit::Mb => "MB/s",
            ThroughputUnit::Mib => "MiB/s",
        }
    }
}

/// Unit of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum BlockUnit {
    /// As a page prints it.
    #[serde(rename = "KB")]
    Kb,
    /// 2^10 bytes.
    #[serde(rename = "KiB")]
    Kib,
}

impl BlockUnit {
    /// As printed.
    pub fn name(self) -> &'static str {
        match self {
            BlockUnit::Kb => "KB",
            BlockUnit::Kib => "KiB",
        }
    }
}

/// How reads and writes at the same time share a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sharing {
    /// One budget: `read / read_max + write / write_max <= 1`.
    Shared,
    /// Each has its own.
    Independent,
    /// Half duplex: `read + write <= max`, one number for both.
    HalfDuplex,
}

/// Which sources a table rests on, and how far it is trusted where that differs from theirs.
pub type SourceKeys = Vec<String>;

/// How reads and writes share, for IOPS and for throughput.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mixing {
    /// Sources.
    pub source: SourceKeys,
    /// In place of the sources' own.
    pub confidence: Option<Confidence>,
    /// Of IOPS.
    pub iops: Sharing,
    /// Of throughput.
    pub throughput: Sharing,
    /// Anything else.
    pub note: Option<String>,
}

/// A type of disk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskType {
    /// Its name for people.
    pub title: String,
    /// Sources.
    pub source: SourceKeys,
    /// In place of the sources' own.
    pub confidence: Option<Confidence>,
    /// Smallest volume.
    #[serde(alias = "size_gib_min")]
    pub size_gb_min: Option<f64>,
    /// Largest volume.
    #[serde(alias = "size_gib_max")]
    pub size_gb_max: Option<f64>,
    /// Where volumes are of one size alone (local SSD).
    #[serde(alias = "size_gib_each")]
    pub size_gb_each: Option<f64>,
    /// Latency as its source words it.
    pub latency: Option<String>,
    /// Smallest block with which the highest throughput is reached.
    #[serde(alias = "block_kib_min_for_throughput")]
    pub block_kb_min_for_throughput: Option<f64>,
    /// Whether its writes leave the machine through the network's egress.
    #[serde(default)]
    pub uses_egress: bool,
    /// Limits that follow the size of the volume.
    pub volume: Option<VolumeLimits>,
    /// In place of those of `volume`, for regional disks.
    pub regional: Option<VolumeLimits>,
    /// Whether every disk of the type is replicated in two zones.
    #[serde(default)]
    pub always_regional: bool,
    /// Performance that is bought apart from the size.
    pub provisioned: Option<Provisioned>,
    /// How reads and writes share.
    pub mixing: Option<Mixing>,
    /// What one I/O in flight brings.
    pub queue: Option<Queue>,
    /// Anything else.
    pub note: Option<String>,
}

/// Limits that follow the size of the volumes of a type on a machine, all together:
/// `min(baseline + per_gb × size, max)`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeLimits {
    /// Sources.
    pub source: SourceKeys,
    /// In place of the sources' own.
    pub confidence: Option<Confidence>,
    /// Read IOPS of each GB.
    #[serde(alias = "read_iops_per_gib")]
    pub read_iops_per_gb: Option<f64>,
    /// Write IOPS of each GB.
    #[serde(alias = "write_iops_per_gib")]
    pub write_iops_per_gb: Option<f64>,
    /// Read throughput of each GB.
    #[serde(alias = "read_mib_per_s_per_gib")]
    pub read_mb_per_s_per_gb: Option<f64>,
    /// Write throughput of each GB.
    #[serde(alias = "write_mib_per_s_per_gib")]
    pub write_mb_per_s_per_gb: Option<f64>,
    /// IOPS that the first volume has whatever its size.
    #[serde(default)]
    pub baseline_iops: f64,
    /// Throughput that the first volume has whatever its size.
    #[serde(default, alias = "baseline_mib_per_s")]
    pub baseline_mb_per_s: f64,
    /// Most read IOPS at any size.
    pub read_iops_max: Option<f64>,
    /// Most write IOPS at any size.
    pub write_iops_max: Option<f64>,
    /// Most write IOPS by block size: the first row whose block is not smaller holds, the last
    /// for anything larger.
    #[serde(default)]
    pub write_iops_max_by_block: Vec<BlockCap>,
    /// Most read throughput at any size.
    #[serde(alias = "read_mib_per_s_max")]
    pub read_mb_per_s_max: Option<f64>,
    /// Most write throughput at any size.
    #[serde(alias = "write_mib_per_s_max")]
    pub write_mb_per_s_max: Option<f64>,
    /// Anything else.
    pub note: Option<String>,
}

/// A cap of IOPS for blocks up to a size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockCap {
    /// Largest block that it is for.
    #[serde(alias = "block_kib_max")]
    pub block_kb_max: f64,
    /// The cap.
    pub iops: f64,
}

/// Performance that is bought apart from the size, and what may be bought.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provisioned {
    /// Sources.
    pub source: SourceKeys,
    /// In place of the sources' own.
    pub confidence: Option<Confidence>,
    /// Fewest IOPS of a volume.
    pub iops_min: Option<f64>,
    /// Most IOPS of a volume.
    pub iops_max: Option<f64>,
    /// Most IOPS of each GB.
    #[serde(alias = "iops_per_gib_max")]
    pub iops_per_gb_max: Option<f64>,
    /// IOPS where none are asked for.
    pub iops_default: Option<f64>,
    /// IOPS that follow the throughput and cannot be bought: so many for each MB/s.
    #[serde(alias = "iops_per_mib_per_s")]
    pub iops_per_mb_per_s: Option<f64>,
    /// Least throughput of a volume.
    #[serde(alias = "mib_per_s_min")]
    pub mb_per_s_min: Option<f64>,
    /// Most throughput of a volume.
    #[serde(alias = "mib_per_s_max")]
    pub mb_per_s_max: Option<f64>,
    /// Least throughput for each IOPS bought.
    #[serde(alias = "mib_per_s_per_iops_min")]
    pub mb_per_s_per_iops_min: Option<f64>,
    /// Most throughput for each IOPS bought.
    #[serde(alias = "mib_per_s_per_iops_max")]
    pub mb_per_s_per_iops_max: Option<f64>,
    /// Least throughput for each GB.
    #[serde(alias = "mib_per_s_per_gib_min")]
    pub mb_per_s_per_gb_min: Option<f64>,
    /// Most throughput for each GB.
    #[serde(alias = "mib_per_s_per_gib_max")]
    pub mb_per_s_per_gb_max: Option<f64>,
    /// Throughput where none is asked for.
    #[serde(alias = "mib_per_s_default")]
    pub mb_per_s_default: Option<f64>,
    /// Throughput for each GB where none is asked for, if that is more.
    #[serde(alias = "mib_per_s_per_gib_default")]
    pub mb_per_s_per_gb_default: Option<f64>,
    /// Throughput that follows the IOPS and cannot be bought: so much for each IOPS.
    #[serde(alias = "mib_per_s_per_iops")]
    pub mb_per_s_per_iops: Option<f64>,
    /// Of the IOPS bought, those that cost nothing.
    pub iops_free: Option<f64>,
    /// Of the throughput bought, that which costs nothing.
    #[serde(alias = "mib_per_s_free")]
    pub mb_per_s_free: Option<f64>,
    /// Fewest vCPUs of a machine, by family.
    #[serde(default)]
    pub vcpus_min: BTreeMap<String, u32>,
    /// Anything else.
    pub note: Option<String>,
}

/// What one I/O in flight brings, which with Little's law bounds IOPS by the queue depth.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Queue {
    /// Sources.
    pub source: SourceKeys,
    /// In place of the sources' own.
    pub confidence: Option<Confidence>,
    /// IOPS that each I/O in flight surely brings.
    pub iops_per_io_low: f64,
    /// IOPS that each I/O in flight brings at best; as the low figure if absent.
    pub iops_per_io_high: Option<f64>,
    /// Anything else.
    pub note: Option<String>,
}

/// A family of machines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Family {
    /// Sources.
    pub source: SourceKeys,
    /// In place of the sources' own.
    pub confidence: Option<Confidence>,
    /// The vCPU counts that there are; not known if absent.
    pub vcpus: Option<Vec<u32>>,
    /// Most vCPUs, where the counts are not listed.
    pub vcpus_max: Option<u32>,
    /// Whether any count of vCPUs can be had (`n1-custom-6-…`).
    #[serde(default)]
    pub custom: bool,
    /// Machines whose names do not tell their vCPUs.
    #[serde(default)]
    pub machines: Vec<String>,
    /// Network egress of its machines.
    #[serde(default)]
    pub egress: Vec<EgressRow>,
    /// Types of disk and whether they can be attached: `yes`, `no` or `by-request`. Types not
    /// listed are not known to be refused.
    #[serde(default)]
    pub disks: BTreeMap<String, Support>,
    /// Anything else.
    pub note: Option<String>,
}

/// Whether a type of disk can be attached to a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Support {
    /// It can.
    Yes,
    /// It cannot.
    No,
    /// After asking the provider.
    ByRequest,
}

/// Network egress of some machines of a family.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EgressRow {
    /// vCPUs of the machines.
    pub vcpus: Option<Range>,
    /// Or their names.
    pub machine: Option<Pattern>,
    /// Default, in Gbit/s.
    pub gbit_per_s: f64,
    /// With the dearer networking tier, in Gbit/s.
    pub tier1_gbit_per_s: Option<f64>,
}

/// Limits of a machine for all volumes of some types together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmTable {
    /// Types of disk.
    pub types: Vec<String>,
    /// Families of machines; `*` is any that no other table of the type names.
    pub families: Vec<String>,
    /// Sources.
    pub source: SourceKeys,
    /// In place of the sources' own.
    pub confidence: Option<Confidence>,
    /// The rows.
    pub rows: Vec<VmRow>,
    /// Anything else.
    pub note: Option<String>,
}

/// Limits of some machines. `iops` and `mb_per_s` are of reads and writes together; the others of
/// each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmRow {
    /// vCPUs of the machines.
    pub vcpus: Option<Range>,
    /// Or their names.
    pub machine: Option<Pattern>,
    /// Reads and writes.
    pub iops: Option<f64>,
    /// Reads and writes.
    #[serde(alias = "mib_per_s")]
    pub mb_per_s: Option<f64>,
    /// Read IOPS.
    pub read_iops: Option<f64>,
    /// Write IOPS.
    pub write_iops: Option<f64>,
    /// Read throughput.
    #[serde(alias = "read_mib_per_s")]
    pub read_mb_per_s: Option<f64>,
    /// Write throughput.
    #[serde(alias = "write_mib_per_s")]
    pub write_mb_per_s: Option<f64>,
    /// Sources, in place of the table's.
    pub source: Option<SourceKeys>,
    /// In place of the table's.
    pub confidence: Option<Confidence>,
    /// Anything else.
    pub note: Option<String>,
}

/// Limits of a number of disks that each have one size (local SSD).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CountTable {
    /// The type of disk.
    #[serde(rename = "type")]
    pub kind: String,
    /// Sources.
    pub source: SourceKeys,
    /// In place of the sources' own.
    pub confidence: Option<Confidence>,
    /// Size of each, in place of the type's.
    #[serde(alias = "size_gib_each")]
    pub size_gb_each: Option<f64>,
    /// The rows.
    pub rows: Vec<CountRow>,
    /// Anything else.
    pub note: Option<String>,
}

/// Limits of so many disks, or of the disks that a machine comes with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CountRow {
    /// How many disks.
    pub disks: Range,
    /// The machine that comes with them; any that takes as many if absent.
    pub machine: Option<Pattern>,
    /// Read IOPS; not known if absent.
    pub read_iops: Option<f64>,
    /// Write IOPS.
    pub write_iops: Option<f64>,
    /// Read throughput.
    #[serde(alias = "read_mib_per_s")]
    pub read_mb_per_s: Option<f64>,
    /// Write throughput.
    #[serde(alias = "write_mib_per_s")]
    pub write_mb_per_s: Option<f64>,
}

/// How the network's egress bounds writes:
/// `max((egress − other) × throughput_per_gbit, share × egress × throughput_per_gbit) / multiplier`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Egress {
    /// Sources.
    pub source: SourceKeys,
    /// In place of the sources' own.
    pub confidence: Option<Confidence>,
    /// Egress of each vCPU, where families do not list it, in Gbit/s.
    pub gbit_per_s_per_vcpu: Option<f64>,
    /// Most of a machine by that rule, in Gbit/s.
    pub gbit_per_s_max: Option<f64>,
    /// Units of throughput in one Gbit/s, as the source counts them.
    pub throughput_per_gbit: f64,
    /// Bytes of that unit, which may differ from the catalogue's.
    pub throughput_bytes: u64,
    /// Bytes sent for each byte written to a zonal disk.
    pub multiplier_zonal: f64,
    /// Bytes sent for each byte written to a regional disk.
    pub multiplier_regional: f64,
    /// Part of the egress that disks keep when other traffic wants all of it, 0 to 1.
    pub disk_share: f64,
    /// How the source rounds.
    pub rounding: Rounding,
    /// Anything else.
    pub note: Option<String>,
}

/// How a source rounds what it computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rounding {
    /// Down.
    Floor,
    /// To the nearest.
    Nearest,
    /// Not at all.
    None,
}

/// What a vCPU can drive.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cpu {
    /// Sources.
    pub source: SourceKeys,
    /// In place of the sources' own.
    pub confidence: Option<Confidence>,
    /// Types of disk that it is said of.
    pub types: Vec<String>,
    /// Read IOPS of each free vCPU.
    pub read_iops_per_vcpu: f64,
    /// Write IOPS of each free vCPU.
    pub write_iops_per_vcpu: f64,
    /// Anything else.
    pub note: Option<String>,
}

/// What a type of disk costs, in USD a month.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// The type of disk.
    #[serde(rename = "type")]
    pub kind: String,
    /// The cloud's region.
    pub region: String,
    /// Sources.
    pub source: SourceKeys,
    /// In place of the sources' own.
    pub confidence: Option<Confidence>,
    /// Each GB of a zonal disk.
    #[serde(alias = "usd_per_gib")]
    pub usd_per_gb: f64,
    /// Each GB of a regional disk; not known if absent.
    #[serde(alias = "usd_per_gib_regional")]
    pub usd_per_gb_regional: Option<f64>,
    /// Each IOPS bought beyond the free ones.
    pub usd_per_iops: Option<f64>,
    /// Each MB/s bought beyond the free ones.
    #[serde(alias = "usd_per_mib_per_s")]
    pub usd_per_mb_per_s: Option<f64>,
    /// Whether the sources contradict each other so far that it is not to be used.
    #[serde(default)]
    pub disputed: bool,
    /// Anything else, such as prices of other terms.
    pub note: Option<String>,
}

/// A place where the sources contradict themselves or each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Inconsistency {
    /// Such as `I01`.
    pub id: String,
    /// Where, and what is printed there.
    #[serde(rename = "where")]
    pub place: String,
    /// What is wrong with it.
    pub why: String,
    /// What this catalogue takes instead, where it had to choose.
    pub used: Option<String>,
    /// Which results it touches; none if absent.
    pub touches: Option<Touches>,
}

/// Which results something touches: those that fit every selector given.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Touches {
    /// Types of disk.
    pub types: Option<Vec<String>>,
    /// Families of machines.
    pub families: Option<Vec<String>>,
    /// Names of machines.
    pub machines: Option<Vec<Pattern>>,
    /// vCPUs.
    pub vcpus: Option<Range>,
    /// Numbers of disks.
    pub disks: Option<Range>,
    /// Regional disks alone, or zonal ones alone.
    pub regional: Option<bool>,
    /// Sizes of a volume.
    #[serde(alias = "sizes_gib")]
    pub sizes_gb: Option<Vec<f64>>,
    /// Blocks larger than this.
    #[serde(alias = "block_kib_above")]
    pub block_kb_above: Option<f64>,
    /// Whether there are reads, or writes.
    pub direction: Option<Direction>,
    /// Whether there are both at once.
    pub mixed: Option<bool>,
    /// Limits that bind, or are next.
    pub limits: Option<Vec<LimitKind>>,
    /// Tables of `plan table` that show it.
    #[serde(default)]
    pub tables: Vec<TableKind>,
    /// Whether it is of tables alone and touches no prediction.
    #[serde(default)]
    pub tables_only: bool,
}

/// Reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Reads.
    Read,
    /// Writes.
    Write,
}

/// What limits a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LimitKind {
    /// The size of the volume, or what was provisioned for it.
    Volume,
    /// The machine, for one volume.
    Vm,
    /// The machine, whose limit several volumes share.
    SharedDisks,
    /// The network's egress, which bounds writes.
    Egress,
    /// A cap that depends on the size of the block.
    BlockSize,
    /// The queue depth, by Little's law.
    QueueDepth,
    /// The CPUs that drive the I/O.
    Cpu,
}

/// A table of `plan table`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TableKind {
    /// Rates and maxima of each type.
    Overview,
    /// Limits by size.
    Volume,
    /// Limits by machine.
    Vm,
    /// Reads and writes at the same time.
    Simultaneous,
    /// Egress and write throughput.
    Egress,
    /// Sizes that match a hard disk.
    Hdd,
    /// Prices.
    Price,
    /// Local SSDs by number.
    Count,
}

/// How a page lays out one of its tables, so that it can be regenerated. The numbers in it are
/// computed; here are the rows that the page chose and how it prints them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PageTable {
    /// Which table.
    pub table: TableKind,
    /// Its title on the page.
    pub title: String,
    /// The type of disk it is about, of tables about one.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// The types in the order of the page, of tables about several; by their names if empty.
    #[serde(default)]
    pub types: Vec<String>,
    /// The machines, of tables about machines: a family.
    pub family: Option<String>,
    /// Sizes of its rows.
    #[serde(default, alias = "sizes_gib")]
    pub sizes_gb: Vec<f64>,
    /// Sizes for which the page prints a mark and no numbers.
    #[serde(default, alias = "sizes_gib_marked")]
    pub sizes_gb_marked: Vec<f64>,
    /// vCPUs of its rows.
    #[serde(default)]
    pub vcpus: Vec<Range>,
    /// Largest blocks of its columns of read IOPS; one column for small blocks if empty.
    #[serde(default, alias = "read_blocks_kib")]
    pub read_blocks_kb: Vec<f64>,
    /// Largest blocks of its columns of write IOPS.
    #[serde(default, alias = "write_blocks_kib")]
    pub write_blocks_kb: Vec<f64>,
    /// Whether an egress table shows what each type of disk makes of it.
    #[serde(default)]
    pub by_type: bool,
    /// The machine whose maxima the rows of a simultaneous table share.
    pub machine: Option<String>,
    /// IOPS from 10,000 on are printed down to a multiple of this.
    pub iops_step_from_10000: Option<f64>,
    /// Throughput below this is printed with its decimals; all other is printed down to a whole.
    #[serde(alias = "decimals_below_mib_per_s")]
    pub decimals_below_mb_per_s: Option<f64>,
    /// What the page says below it.
    #[serde(default)]
    pub footnotes: Vec<String>,
    /// Cells that the page prints otherwise than its own rules give.
    #[serde(default)]
    pub exceptions: Vec<Exception>,
    /// A hard disk to compare with: IOPS.
    pub hdd_iops: Option<f64>,
    /// A hard disk to compare with: throughput.
    #[serde(alias = "hdd_mib_per_s")]
    pub hdd_mb_per_s: Option<f64>,
}

/// A cell that a page prints otherwise than its own rules give.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exception {
    /// The first cell of its row.
    pub row: String,
    /// The head of its column.
    pub column: String,
    /// What is printed.
    pub printed: String,
    /// The inconsistency that tells of it.
    pub id: String,
}

/// A figure that somebody expects or measured, to compare the model with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Observation {
    /// The type of disk.
    #[serde(rename = "type")]
    pub kind: String,
    /// Sources.
    pub source: SourceKeys,
    /// Whether it was measured, or is what the source expects.
    pub measured: bool,
    /// The machine.
    pub machine: Option<String>,
    /// Size of the volume.
    #[serde(alias = "size_gib")]
    pub size_gb: Option<f64>,
    /// How many disks.
    pub disks: Option<u32>,
    /// Read IOPS.
    pub read_iops: Option<f64>,
    /// Write IOPS.
    pub write_iops: Option<f64>,
    /// Read throughput.
    #[serde(alias = "read_mib_per_s")]
    pub read_mb_per_s: Option<f64>,
    /// Write throughput.
    #[serde(alias = "write_mib_per_s")]
    pub write_mb_per_s: Option<f64>,
    /// How it was had.
    pub note: Option<String>,
}

/// A catalogue: what one cloud's disks do, as its sources say at one date.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Catalogue {
    /// Version of the format, 1.
    pub format: u32,
    /// Short name, such as `gcp-2019`.
    pub name: String,
    /// For people.
    pub title: String,
    /// What it is of, as far as it is known.
    pub date: String,
    /// What it rests on, in a sentence.
    pub about: String,
    /// The least that its main tables are trusted.
    pub confidence: Confidence,
    /// The machine that is taken where none is named.
    pub machine_default: Option<String>,
    /// What the units mean.
    pub units: Units,
    /// What is known to be missing, in words.
    #[serde(default)]
    pub not_known: Vec<String>,
    /// Where numbers come from, by key.
    #[serde(rename = "source")]
    pub sources: BTreeMap<String, Source>,
    /// Types of disk, by name.
    #[serde(rename = "type")]
    pub types: BTreeMap<String, DiskType>,
    /// Families of machines, by name.
    #[serde(rename = "family")]
    pub families: BTreeMap<String, Family>,
    /// Limits of machines.
    #[serde(default)]
    pub per_vm: Vec<VmTable>,
    /// Limits of local SSDs by number.
    #[serde(default)]
    pub per_count: Vec<CountTable>,
    /// How egress bounds writes.
    pub egress: Option<Egress>,
    /// What vCPUs can drive.
    pub cpu: Option<Cpu>,
    /// Prices.
    #[serde(default, rename = "price")]
    pub prices: Vec<Price>,
    /// Where the sources contradict themselves.
    #[serde(default, rename = "inconsistency")]
    pub inconsistencies: Vec<Inconsistency>,
    /// Tables of the page.
    #[serde(default, rename = "page_table")]
    pub page_tables: Vec<PageTable>,
    /// Figures to compare with.
    #[serde(default, rename = "observation")]
    pub observations: Vec<Observation>,
}
