//! Options of `flagstone plan`.
//!
//! Values arrive as text and are parsed here, so that a mistake is reported in one line that says
//! what is accepted.

use clap::{Args, Subcommand};
use flagstone_cloud::catalog::{Catalog, DEFAULT_CATALOG};
use flagstone_cloud::{AccessOrder, DiskConfiguration, Workload};
use flagstone_config::device_spec::DeviceSpec;
use flagstone_units::{missing_size_unit, parse_rate, parse_size};

use super::disk_types::{CurveArgs, PlanCompareArgs};
use crate::exit::Failure;
use crate::words::{PATTERNS, find};

#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    #[command(subcommand)]
    pub(crate) command: PlanCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PlanCommand {
    /// Predict the performance of a disk, size and machine, and the limit that binds
    Predict(Box<PredictArgs>),
    /// Find the cheapest disks and machine for a need
    Cheapest(Box<CheapestArgs>),
    /// Compare a fio result with the prediction: bottleneck, causes and recommendations
    Explain(Box<ExplainArgs>),
    /// Compare disk types: performance, binding limit and price
    Compare(Box<PlanCompareArgs>),
    /// Plot IOPS and MB/s over size, vCPUs, block size or queue depth, with the limit that binds
    Curve(Box<CurveArgs>),
    /// Predict a pool on a disk: random writes and reads by fullness, against the raw disk and the
    /// larger disk that does the same
    Pool(Box<PlanPoolArgs>),
    /// Survey existing data, read-only: savings by zeroes, compression and deduplication
    Savings(Box<PlanSavingsArgs>),
    /// Print the limit and price tables of a catalog
    Table(TableArgs),
    /// Print a built-in catalog, as a template
    Catalog(CatalogArgs),
}

#[derive(Debug, Args)]
pub(crate) struct CatalogArg {
    /// Limits and prices: gcp-current, gcp-2019, or a file
    #[arg(long = "catalog", value_name = "CATALOG", default_value = DEFAULT_CATALOG)]
    pub(crate) catalog: String,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl CatalogArg {
    /// Opens the catalog.
    pub(crate) fn open(&self) -> Result<Catalog, Failure> {
        Catalog::open(&self.catalog).map_err(Failure::usage)
    }
}

#[derive(Debug, Args)]
pub(crate) struct MachineArgs {
    /// Machine type, such as n2-standard-8; the catalog's default if not given
    #[arg(long, value_name = "NAME")]
    pub(crate) machine: Option<String>,
    /// Disks are replicated in two zones
    #[arg(long)]
    pub(crate) regional: bool,
    /// Provisioned IOPS of each disk, for types that sell them; the type's default if not given
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub(crate) iops: Option<String>,
    /// Provisioned throughput of each disk, such as 400MiB/s, for types that sell it
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    pub(crate) throughput: Option<String>,
    /// Other network egress of the machine, in Gbit/s
    #[arg(long, value_name = "GBPS", default_value = "0", allow_hyphen_values = true)]
    pub(crate) other_egress_gbps: String,
    /// The machine has Tier_1 networking
    #[arg(long)]
    pub(crate) tier1_networking: bool,
}

impl MachineArgs {
    /// A configuration without a type and a size: one disk on the machine.
    pub(super) fn on(&self, catalog: &Catalog) -> Result<DiskConfiguration, String> {
        let machine = self.machine.as_ref().or(catalog.machine_default.as_ref());
        let machine = machine.ok_or("--machine is missing: write a machine type")?;
        Ok(DiskConfiguration {
            kind: String::new(),
            size_bytes: 0,
            disks: 1,
            machine: catalog.machine(machine).map_err(|error| error.to_string())?,
            regional: self.regional,
            other_egress_gbit_per_s: decimal("--other-egress-gbps", &self.other_egress_gbps)?,
            tier1_networking: self.tier1_networking,
            provisioned_iops: optional("--iops", &self.iops, decimal)?,
            provisioned_bytes_per_s: optional("--throughput", &self.throughput, bytes_per_s)?,
        })
    }
}

/// The option of one of several unlike disks.
const DISK: &str = "--disk";

/// Disks of a machine: `--disks` has the same bound.
const UNLIKE_MAX: usize = 128;

#[derive(Debug, Args)]
pub(crate) struct DiskArgs {
    /// Type of disk, such as pd-ssd
    #[arg(long = "type", value_name = "TYPE")]
    pub(crate) kind: Option<String>,
    /// Size of each disk, such as 500GB or 1TiB; GB is 10^9 bytes, GiB is 2^30
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) size: Option<String>,
    /// Number of disks, striped; as many as the machine comes with if not given, or 1
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub(crate) disks: Option<String>,
    #[command(flatten)]
    pub(crate) machine: MachineArgs,
}

impl DiskArgs {
    /// The configuration in a catalog.
    pub(crate) fn configuration(&self, catalog: &Catalog) -> Result<DiskConfiguration, String> {
        let kind = self.kind.as_ref().ok_or("--type is missing: write one, such as pd-ssd")?;
        self.of_type(catalog, kind, self.size.as_deref(), "--size")
    }

    /// The configuration of a type with this size.
    fn of_type(
        &self,
        catalog: &Catalog,
        kind: &str,
        size: Option<&str>,
        option: &str,
    ) -> Result<DiskConfiguration, String> {
        let disk = catalog.disk_type(kind).map_err(|error| error.to_string())?;
        let size_bytes = match size {
            Some(text) => bytes(option, text)?,
            None if disk.size_gb_each.is_some() => 0,
            None if option == DISK => {
                return Err(format!("{DISK} {kind}: write its size too, such as {kind}:500GB"));
            }
            None => return Err("--size is missing: write the size of a disk, such as 500GB".into()),
        };
        let on = self.machine.on(catalog)?;
        let fixed = catalog.fixed_disks(kind, &on.machine.name).unwrap_or(1);
        let disks = self.disks.as_ref().map(|text| count("--disks", text, 128)).transpose()?;
        let (kind, disks) = (kind.to_owned(), disks.unwrap_or(fixed));
        Ok(DiskConfiguration { kind, size_bytes, disks, ..on })
    }

    /// Configurations of `TYPE:SIZE`, or of `TYPE` for local SSDs.
    pub(super) fn unlike(
        &self,
        catalog: &Catalog,
        disks: &[String],
    ) -> Result<Vec<DiskConfiguration>, String> {
        if disks.len() > UNLIKE_MAX {
            return Err(format!("--disk: at most {UNLIKE_MAX} disks"));
        }
        let one = |text: &String| {
            let (kind, size) = match text.split_once(':') {
                Some((kind, size)) => (kind, Some(size)),
                None => (text.as_str(), None),
            };
            self.of_type(catalog, kind, size, DISK)
        };
        disks.iter().map(one).collect()
    }
}

#[derive(Debug, Args)]
pub(crate) struct JobArgs {
    /// I/Os in flight of each job; enough for every limit if not given
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub(crate) depth: Option<String>,
    /// Jobs, each with --depth in flight
    #[arg(long, value_name = "N", default_value = "1", allow_hyphen_values = true)]
    pub(crate) jobs: String,
    /// Percentage of reads, for readwrite and randrw; 50 if not given
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true)]
    pub(crate) read_percent: Option<String>,
}

impl JobArgs {
    /// The workload of a pattern and a block size.
    pub(super) fn workload(&self, rw: &str, bs: &str) -> Result<Workload, String> {
        let known = find(PATTERNS, rw).filter(|pattern| !pattern.trims());
        let pattern = known.ok_or_else(|| {
            let words = "read, write, randread, randwrite, readwrite or randrw";
            format!("--rw {}: write one of {words}", printable(rw))
        })?;
        let block_bytes = block_bytes("--bs", bs)?;
        let mixed = pattern.reads() && pattern.writes();
        let asked = self.read_percent.as_ref();
        let asked = asked.map(|text| count_from("--read-percent", text, 0, 100)).transpose()?;
        if asked.is_some() && !mixed {
            return Err(NOT_MIXED.to_owned());
        }
        let read_percent = match (mixed, pattern.reads()) {
            (true, _) => asked.unwrap_or(50),
            (false, true) => 100,
            (false, false) => 0,
        };
        let depth = self.depth.as_ref().map(|text| count("--depth", text, 1 << 20)).transpose()?;
        let workload = Workload {
            block_bytes,
            read_percent: read_percent as u8,
            access: if pattern.is_random() { AccessOrder::Random } else { AccessOrder::Sequential },
            depth,
            jobs: count("--jobs", &self.jobs, 1 << 16)?,
        };
        workload.check().map_err(|error| error.to_string())?;
        Ok(workload)
    }
}

/// A percentage of reads of a pattern that only reads or only writes.
pub(super) const NOT_MIXED: &str = "--read-percent is for readwrite and randrw: write --rw randrw";

#[derive(Debug, Args)]
pub(crate) struct WorkloadArgs {
    /// Bytes of one I/O; as in fio, 4k is 4,096
    #[arg(long, value_name = "SIZE", default_value = "4k", allow_hyphen_values = true)]
    pub(crate) bs: String,
    /// Order and kind of the I/O: read, write, randread, randwrite, readwrite or randrw
    #[arg(long, value_name = "PATTERN", default_value = "randread")]
    pub(crate) rw: String,
    #[command(flatten)]
    pub(crate) jobs: JobArgs,
}

impl WorkloadArgs {
    /// fio's name of the pattern; for mixed patterns with the percentage of reads.
    pub(crate) fn pattern_text(&self, workload: &Workload) -> String {
        match workload.read_percent {
            0 | 100 => self.rw.clone(),
            percent => format!("{}, {percent} % reads", self.rw),
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct PredictArgs {
    #[command(flatten)]
    pub(crate) disk: DiskArgs,
    /// One of several unlike disks that are used at once and share the machine's limits, instead of
    /// --type and --size (repeatable)
    #[arg(long = "disk", value_name = "TYPE:SIZE", conflicts_with_all = ["kind", "size", "disks", "iops", "throughput"])]
    pub(crate) unlike: Vec<String>,
    #[command(flatten)]
    pub(crate) workload: WorkloadArgs,
    #[command(flatten)]
    pub(crate) catalog: CatalogArg,
}

#[derive(Debug, Args)]
pub(crate) struct CheapestArgs {
    /// Reads per second, of --bs each
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub(crate) read_iops: Option<String>,
    /// Writes per second, of --bs each
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub(crate) write_iops: Option<String>,
    /// Throughput of large I/O, such as 400MB/s: not at the same time as the IOPS, with their
    /// proportion of reads
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    pub(crate) throughput: Option<String>,
    /// Data to store, such as 1TB
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) capacity: Option<String>,
    /// Bytes of one I/O; as in fio, 4k is 4,096
    #[arg(long, value_name = "SIZE", default_value = "4k", allow_hyphen_values = true)]
    pub(crate) bs: String,
    /// Reads and writes are not needed at the same time
    #[arg(long)]
    pub(crate) not_at_once: bool,
    /// Families or machines to choose from, such as n1,n2,c3 or n2-standard-8; all if not given
    #[arg(long, value_name = "NAMES")]
    pub(crate) machines: Option<String>,
    /// Disk types to choose from, such as pd-ssd,pd-balanced; all if not given
    #[arg(long = "type", value_name = "TYPES")]
    pub(crate) kinds: Option<String>,
    /// Only disks replicated in two zones
    #[arg(long)]
    pub(crate) regional: bool,
    /// Whether to consider local SSDs, which lose their data when the machine stops: ok or no
    #[arg(long, value_name = "WORD", default_value = "no")]
    pub(crate) local_ssd: String,
    /// Maximum number of disks to stripe
    #[arg(long, value_name = "N", default_value = "16", allow_hyphen_values = true)]
    pub(crate) disks_max: String,
    /// Other network egress of the machine, in Gbit/s
    #[arg(long, value_name = "GBPS", default_value = "0", allow_hyphen_values = true)]
    pub(crate) other_egress_gbps: String,
    /// Machines have Tier_1 networking where it exists
    #[arg(long)]
    pub(crate) tier1_networking: bool,
    /// Prices of machines, and of disks instead of the catalog's: a TOML file
    #[arg(long, value_name = "FILE")]
    pub(crate) price_file: Option<String>,
    /// Show every sufficient number of disks, not only the cheapest of each type and machine family
    #[arg(long)]
    pub(crate) variants: bool,
    /// Number of configurations to show
    #[arg(long, value_name = "N", default_value = "10", allow_hyphen_values = true)]
    pub(crate) top: String,
    #[command(flatten)]
    pub(crate) catalog: CatalogArg,
}

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// Outputs of fio 3 as json or json+, of one disk, which are judged together; - is standard
    /// input
    #[arg(value_name = "RESULT", required = true)]
    pub(crate) results: Vec<String>,
    #[command(flatten)]
    pub(crate) disk: DiskArgs,
    /// Deviation from the prediction, in %, that still counts as predicted
    #[arg(long, value_name = "PERCENT", default_value = "5", allow_hyphen_values = true)]
    pub(crate) tolerance: String,
    #[command(flatten)]
    pub(crate) catalog: CatalogArg,
}

impl ExplainArgs {
    /// The tolerance as a fraction, 0 to less than 1.
    pub(crate) fn tolerance(&self) -> Result<f64, String> {
        let percent = self.tolerance.parse::<f64>().ok().filter(|n| (0.0..100.0).contains(n));
        percent.map(|percent| percent / 100.0).ok_or_else(|| {
            let text = printable(&self.tolerance);
            format!("--tolerance {text}: write a number from 0 to less than 100")
        })
    }
}

#[derive(Debug, Args)]
pub(crate) struct PlanPoolArgs {
    #[command(flatten)]
    pub(crate) disk: DiskArgs,
    /// Bytes of one I/O, a multiple of 4 KiB
    #[arg(long, value_name = "SIZE", default_value = "4k", allow_hyphen_values = true)]
    pub(crate) bs: String,
    /// I/Os in flight; enough for every limit if not given
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub(crate) depth: Option<String>,
    /// How full the pool is, in percent of its segments
    #[arg(long, value_name = "PERCENTS", default_value = "50,75,90", allow_hyphen_values = true)]
    pub(crate) fullness: String,
    /// Bytes over which the I/O is spread; everything in use if not given
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) working_set: Option<String>,
    /// Memory of the pool's map cache
    #[arg(long, value_name = "SIZE", default_value = "64MiB", allow_hyphen_values = true)]
    pub(crate) cache: String,
    /// Picture file, an SVG; .svg is added to a name without it
    #[arg(long, short = 'o', value_name = "FILE")]
    pub(crate) output: Option<String>,
    #[command(flatten)]
    pub(crate) catalog: CatalogArg,
}

#[derive(Debug, Args)]
pub(crate) struct PlanSavingsArgs {
    /// The data: a disk, a file, or a volume as nbd://HOST:PORT/EXPORT or nvme-tcp://HOST:PORT/NQN
    pub(crate) target: DeviceSpec,
    /// Data to read: all, a share such as 5%, or a size such as 2GiB
    #[arg(long, value_name = "AMOUNT", default_value = "2GiB", allow_hyphen_values = true)]
    pub(crate) sample: String,
    /// Seed of the sample
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) price: PriceArgs,
    #[command(flatten)]
    pub(crate) catalog: CatalogArg,
}

#[derive(Debug, Args)]
pub(crate) struct PriceArgs {
    /// Type of disk whose capacity is priced, such as pd-ssd
    #[arg(long = "type", value_name = "TYPE")]
    pub(crate) kind: Option<String>,
    /// Disks are replicated in two zones
    #[arg(long)]
    pub(crate) regional: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TableArgs {
    /// Disk type, such as pd-standard; all tables if not given
    #[arg(long = "type", value_name = "TYPE")]
    pub(crate) kind: Option<String>,
    #[command(flatten)]
    pub(crate) catalog: CatalogArg,
}

#[derive(Debug, Args)]
pub(crate) struct CatalogArgs {
    /// Name of the catalog; lists the names if not given
    pub(crate) name: Option<String>,
}

/// The value of an option, if it is given.
pub(crate) fn optional<T>(
    option: &str,
    text: &Option<String>,
    parse: impl Fn(&str, &str) -> Result<T, String>,
) -> Result<Option<T>, String> {
    text.as_ref().map(|text| parse(option, text)).transpose()
}

/// The size of a block such as `4k`, in bytes.
pub(crate) fn block_bytes(option: &str, text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|error| format!("{option} {}: {error}", printable(text)))
}

/// The size of a disk such as `500GB`, in bytes.
pub(crate) fn bytes(option: &str, text: &str) -> Result<u64, String> {
    // No disk is smaller than the first or larger than the second.
    let sizes = 1 << 30..=1 << 60;
    let found = missing_size_unit(text, &sizes)
        .map(|help| Err(format!("{option} {}: {help}", printable(text))));
    found.unwrap_or_else(|| block_bytes(option, text))
}

/// A whole number from 1.
pub(crate) fn count(option: &str, text: &str, most: u32) -> Result<u32, String> {
    count_from(option, text, 1, most)
}

pub(crate) fn count_from(option: &str, text: &str, least: u32, most: u32) -> Result<u32, String> {
    text.parse::<u32>().ok().filter(|number| (least..=most).contains(number)).ok_or_else(|| {
        format!("{option} {}: write a whole number from {least} to {most}", printable(text))
    })
}

/// A number from 0.
pub(crate) fn decimal(option: &str, text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| {
        format!("{option} {}: write a number from 0, such as 4 or 0.5", printable(text))
    })
}

/// A rate such as `400MB/s`, in bytes a second.
pub(crate) fn bytes_per_s(option: &str, text: &str) -> Result<f64, String> {
    let rate =
        parse_rate(text).map_err(|error| format!("{option} {}: {error}", printable(text)))?;
    Ok(rate as f64)
}

pub(crate) fn printable(text: &str) -> String {
    text.chars().take(40).map(|c| if c.is_control() { '?' } else { c }).collect()
}
