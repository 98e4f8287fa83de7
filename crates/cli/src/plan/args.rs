//! Options of `flagstone plan`.
//!
//! Values arrive as text and are parsed here, so that a mistake is reported in one line that says
//! what is accepted.

use clap::{Args, Subcommand, ValueEnum as _};
use flagstone_cloud::catalogue::{Catalogue, DEFAULT_CATALOGUE};
use flagstone_cloud::{AccessOrder, DiskConfiguration, Workload};
use flagstone_units::{parse_block_size, parse_size};

use super::several::{CurveArgs, PlanCompareArgs};
use crate::args::LoadPattern;

/// Arguments of `flagstone plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// The command.
    #[command(subcommand)]
    pub command: PlanCommand,
}

/// The commands of `flagstone plan`.
#[derive(Debug, Subcommand)]
pub enum PlanCommand {
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
    /// Print the limit and price tables of a catalogue
    Table(TableArgs),
    /// Print a built-in catalogue, as a template
    Catalog(CatalogArgs),
}

/// The catalogue option.
#[derive(Debug, Args)]
pub struct CatalogueArg {
    /// Limits and prices: gcp-current, gcp-2019, or a file
    #[arg(long = "catalog", value_name = "CATALOGUE", default_value = DEFAULT_CATALOGUE)]
    pub catalogue: String,
}

impl CatalogueArg {
    /// Opens the catalogue.
    ///
    /// # Errors
    /// The first mistake in it, in one line.
    pub fn open(&self) -> Result<Catalogue, String> {
        Catalogue::open(&self.catalogue).map_err(|error| error.to_string())
    }
}

/// Options of the disks and their machine.
#[derive(Debug, Args)]
pub struct DiskArgs {
    /// Type of disk, such as pd-ssd
    #[arg(long = "type", value_name = "TYPE")]
    pub kind: String,
    /// Size of each disk, such as 500GB or 1TiB; GB is 10^9 bytes, GiB is 2^30
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub size: Option<String>,
    /// Machine type, such as n2-standard-8; the catalogue's default if not given
    #[arg(long, value_name = "NAME")]
    pub machine: Option<String>,
    /// Number of disks, striped; as many as the machine comes with if not given, or 1
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub disks: Option<String>,
    /// Disks are replicated in two zones
    #[arg(long)]
    pub regional: bool,
    /// Provisioned IOPS of each disk, for types that sell them
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub iops: Option<String>,
    /// Provisioned throughput of each disk, such as 400MiB/s, for types that sell it
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    pub throughput: Option<String>,
    /// Other network egress of the machine, in Gbit/s
    #[arg(long, value_name = "GBPS", default_value = "0", allow_hyphen_values = true)]
    pub other_egress_gbps: String,
    /// The machine has Tier_1 networking
    #[arg(long)]
    pub tier1_networking: bool,
}

impl DiskArgs {
    /// The configuration in a catalogue.
    ///
    /// # Errors
    /// The first mistake, in one line.
    pub fn configuration(&self, catalogue: &Catalogue) -> Result<DiskConfiguration, String> {
        let disk = catalogue.disk_type(&self.kind).map_err(|error| error.to_string())?;
        let machine = self.machine.as_ref().or(catalogue.machine_default.as_ref());
        let machine = machine.ok_or("--machine is missing: write a machine type")?;
        let local = disk.size_gb_each.is_some();
        let size_bytes = match &self.size {
            Some(text) => parse_size(text).map_err(|error| format!("--size {text}: {error}"))?,
            None if local => 0,
            None => return Err("--size is missing: write the size of a disk, such as 500GB".into()),
        };
        let mut configuration = DiskConfiguration::new(catalogue, &self.kind, size_bytes, machine)
            .map_err(|error| error.to_string())?;
        let fixed = catalogue.fixed_disks(&self.kind, machine).unwrap_or(1);
        let disks = self.disks.as_ref().map(|text| count("--disks", text, 128));
        configuration.disks = disks.transpose()?.unwrap_or(fixed);
        configuration.regional = self.regional;
        configuration.tier1_networking = self.tier1_networking;
        configuration.other_egress_gbit_per_s =
            decimal("--other-egress-gbps", &self.other_egress_gbps)?;
        let iops = self.iops.as_ref().map(|text| decimal("--iops", text));
        configuration.provisioned_iops = iops.transpose()?;
        let throughput = self.throughput.as_ref().map(|text| bytes_per_s("--throughput", text));
        configuration.provisioned_bytes_per_s = throughput.transpose()?;
        Ok(configuration)
    }
}

/// Options of the workload.
#[derive(Debug, Args)]
pub struct WorkloadArgs {
    /// Bytes of one I/O; as in fio, 4k is 4,096
    #[arg(long, value_name = "SIZE", default_value = "4k", allow_hyphen_values = true)]
    pub bs: String,
    /// Order and kind of the I/O: read, write, randread, randwrite, readwrite or randrw
    #[arg(long, value_name = "PATTERN", default_value = "randread")]
    pub rw: String,
    /// I/Os in flight of each job; enough for every limit if not given
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub depth: Option<String>,
    /// Jobs, each with --depth in flight
    #[arg(long, value_name = "N", default_value = "1", allow_hyphen_values = true)]
    pub jobs: String,
    /// Percentage of reads, for readwrite and randrw; 50 if not given
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true)]
    pub read_percent: Option<String>,
}

impl WorkloadArgs {
    /// The workload.
    ///
    /// # Errors
    /// The first mistake, in one line.
    pub fn workload(&self) -> Result<Workload, String> {
        let known = LoadPattern::from_str(&self.rw, false).ok().filter(|pattern| !pattern.trims());
        let pattern = known.ok_or_else(|| {
            let words = "read, write, randread, randwrite, readwrite or randrw";
            format!("--rw {}: write one of {words}", printable(&self.rw))
        })?;
        let block_bytes =
            parse_block_size(&self.bs).map_err(|error| format!("--bs {}: {error}", self.bs))?;
        let mixed = pattern.reads() && pattern.writes();
        let asked =
            self.read_percent.as_ref().map(|text| count_from("--read-percent", text, 0, 100));
        let asked = asked.transpose()?;
        if asked.is_some() && !mixed {
            let text = "--read-percent is for readwrite and randrw: write --rw randrw";
            return Err(text.to_owned());
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

    /// fio's name of the pattern; for mixed patterns with the percentage of reads.
    pub fn pattern_text(&self, workload: &Workload) -> String {
        match workload.read_percent {
            0 | 100 => self.rw.clone(),
            percent => format!("{}, {percent} % reads", self.rw),
        }
    }
}

/// Arguments of `flagstone plan predict`.
#[derive(Debug, Args)]
pub struct PredictArgs {
    /// Disks.
    #[command(flatten)]
    pub disk: DiskArgs,
    /// Workload.
    #[command(flatten)]
    pub workload: WorkloadArgs,
    /// Catalogue.
    #[command(flatten)]
    pub catalogue: CatalogueArg,
    /// Print the prediction as JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `flagstone plan cheapest`.
#[derive(Debug, Args)]
pub struct CheapestArgs {
    /// Reads per second, of --bs each
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub read_iops: Option<String>,
    /// Writes per second, of --bs each
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub write_iops: Option<String>,
    /// Throughput of large I/O, such as 400MB/s: not at the same time as the IOPS, with their
    /// proportion of reads
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    pub throughput: Option<String>,
    /// Data to store, such as 1TB
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub capacity: Option<String>,
    /// Bytes of one I/O; as in fio, 4k is 4,096
    #[arg(long, value_name = "SIZE", default_value = "4k", allow_hyphen_values = true)]
    pub bs: String,
    /// Reads and writes are not needed at the same time
    #[arg(long)]
    pub not_at_once: bool,
    /// Families or machines to choose from, such as n1,n2,c3 or n2-standard-8; all if not given
    #[arg(long, value_name = "NAMES")]
    pub machines: Option<String>,
    /// Disk types to choose from, such as pd-ssd,pd-balanced; all if not given
    #[arg(long = "type", value_name = "TYPES")]
    pub kinds: Option<String>,
    /// Only disks replicated in two zones
    #[arg(long)]
    pub regional: bool,
    /// Whether to consider local SSDs, which lose their data when the machine stops: ok or no
    #[arg(long, value_name = "WORD", default_value = "no")]
    pub local_ssd: String,
    /// Maximum number of disks to stripe
    #[arg(long, value_name = "N", default_value = "16", allow_hyphen_values = true)]
    pub disks_max: String,
    /// Other network egress of the machine, in Gbit/s
    #[arg(long, value_name = "GBPS", default_value = "0", allow_hyphen_values = true)]
    pub other_egress_gbps: String,
    /// Machines have Tier_1 networking where it exists
    #[arg(long)]
    pub tier1_networking: bool,
    /// Prices of machines, and of disks instead of the catalogue's: a TOML file
    #[arg(long, value_name = "FILE")]
    pub price_file: Option<String>,
    /// Show only the cheapest of configurations that differ in the number of disks
    #[arg(long)]
    pub distinct: bool,
    /// Number of configurations to show
    #[arg(long, value_name = "N", default_value = "10", allow_hyphen_values = true)]
    pub top: String,
    /// The catalogue.
    #[command(flatten)]
    pub catalogue: CatalogueArg,
    /// Print the configurations as JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `flagstone plan explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// Output of fio 3 as json or json+; - is standard input
    #[arg(value_name = "RESULT")]
    pub result: String,
    /// The disks.
    #[command(flatten)]
    pub disk: DiskArgs,
    /// Deviation from the prediction, in %, that still counts as predicted
    #[arg(long, value_name = "PERCENT", default_value = "5", allow_hyphen_values = true)]
    pub tolerance: String,
    /// The catalogue.
    #[command(flatten)]
    pub catalogue: CatalogueArg,
    /// Print the judgment as JSON
    #[arg(long)]
    pub json: bool,
}

impl ExplainArgs {
    /// The tolerance as a fraction, 0 to less than 1.
    ///
    /// # Errors
    /// It is out of range; one line.
    pub fn tolerance(&self) -> Result<f64, String> {
        let percent = self.tolerance.parse::<f64>().ok().filter(|n| (0.0..100.0).contains(n));
        percent.map(|percent| percent / 100.0).ok_or_else(|| {
            let text = printable(&self.tolerance);
            format!("--tolerance {text}: write a number from 0 to less than 100")
        })
    }
}

/// Arguments of `flagstone plan table`.
#[derive(Debug, Args)]
pub struct TableArgs {
    /// Disk type, such as pd-standard; all tables if not given
    #[arg(long = "type", value_name = "TYPE")]
    pub kind: Option<String>,
    /// The catalogue.
    #[command(flatten)]
    pub catalogue: CatalogueArg,
    /// Print the tables as JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `flagstone plan catalog`.
#[derive(Debug, Args)]
pub struct CatalogArgs {
    /// Name of the catalogue; lists the names if not given
    pub name: Option<String>,
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
    let size = text.strip_suffix("/s");
    size.and_then(|size| parse_size(size).ok()).map(|bytes| bytes as f64).ok_or_else(|| {
        format!("{option} {}: write a rate such as 400MB/s or 400MiB/s", printable(text))
    })
}

pub(crate) fn printable(text: &str) -> String {
    text.chars().take(40).map(|c| if c.is_control() { '?' } else { c }).collect()
}
