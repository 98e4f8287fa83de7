//! The command line of `flagstone plan`.
//!
//! Values are taken as text and read here, so that a mistake is one line that says what is
//! accepted.

use clap::{Args, Subcommand, ValueEnum as _};
use flagstone_cloud::catalogue::{Catalogue, DEFAULT_CATALOGUE};
use flagstone_cloud::{Access, Configuration, Workload};
use flagstone_control::units::{parse_block_size, parse_size};

use super::several::{CompareArgs, CurveArgs};
use crate::args::Pattern;

/// Arguments of `flagstone plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// What to plan.
    #[command(subcommand)]
    pub command: PlanCommand,
}

/// The commands of `flagstone plan`.
#[derive(Debug, Subcommand)]
pub enum PlanCommand {
    /// Predict what a disk, size and machine will do, and which limit binds
    Predict(Box<PredictArgs>),
    /// Find the cheapest disks and machine that do what is needed
    Cheapest(Box<CheapestArgs>),
    /// Judge a fio result: as predicted, above or below, what held it, and what would help
    Explain(Box<ExplainArgs>),
    /// Put types of disk side by side: what each does, by which limit, and for how much
    Compare(Box<CompareArgs>),
    /// Draw IOPS and MB/s over size, vCPUs, block or queue depth, with the limit that binds
    Curve(Box<CurveArgs>),
    /// Print the tables of limits and prices that a catalogue stands for
    Table(TableArgs),
    /// Print a catalogue of the program, to begin one's own from
    Catalog(CatalogArgs),
}

/// Which catalogue.
#[derive(Debug, Args)]
pub struct CatalogueArg {
    /// Limits and prices: gcp-current, gcp-2019, or a file
    #[arg(long = "catalog", value_name = "CATALOGUE", default_value = DEFAULT_CATALOGUE)]
    pub catalogue: String,
}

impl CatalogueArg {
    /// The catalogue.
    ///
    /// # Errors
    /// The first mistake in it, on one line.
    pub fn open(&self) -> Result<Catalogue, String> {
        Catalogue::open(&self.catalogue).map_err(|error| error.to_string())
    }
}

/// The disks and the machine that they are attached to.
#[derive(Debug, Args)]
pub struct DiskArgs {
    /// Type of disk, such as pd-ssd
    #[arg(long = "type", value_name = "TYPE")]
    pub kind: String,
    /// Size of each disk, such as 500GB or 1TiB; GB is 10^9 bytes, GiB is 2^30
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub size: Option<String>,
    /// Machine type, such as n2-standard-8; the catalogue's own default if not given
    #[arg(long, value_name = "NAME")]
    pub machine: Option<String>,
    /// Disks of that type and size, striped; as many as the machine comes with if not given, or 1
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub disks: Option<String>,
    /// The disks are replicated in two zones
    #[arg(long)]
    pub regional: bool,
    /// IOPS bought for each disk, of types that sell them
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub iops: Option<String>,
    /// Throughput bought for each disk, of types that sell it, such as 400MiB/s
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    pub throughput: Option<String>,
    /// What else the machine sends, in Gbit/s
    #[arg(long, value_name = "GBPS", default_value = "0", allow_hyphen_values = true)]
    pub network_gbps: String,
    /// The machine has the dearer networking tier, Tier_1
    #[arg(long)]
    pub tier1: bool,
}

impl DiskArgs {
    /// The configuration that they mean in a catalogue.
    ///
    /// # Errors
    /// The first mistake, on one line.
    pub fn configuration(&self, catalogue: &Catalogue) -> Result<Configuration, String> {
        let disk = catalogue.disk_type(&self.kind).map_err(|error| error.to_string())?;
        let machine = self.machine.as_ref().or(catalogue.machine_default.as_ref());
        let machine = machine.ok_or("--machine is missing: write a machine type")?;
        let local = disk.size_gb_each.is_some();
        let size_bytes = match &self.size {
            Some(text) => parse_size(text).map_err(|error| format!("--size {text}: {error}"))?,
            None if local => 0,
            None => return Err("--size is missing: write the size of a disk, such as 500GB".into()),
        };
        let mut configuration = Configuration::new(catalogue, &self.kind, size_bytes, machine)
            .map_err(|error| error.to_string())?;
        let fixed = catalogue.fixed_disks(&self.kind, machine).unwrap_or(1);
        let disks = self.disks.as_ref().map(|text| count("--disks", text, 128));
        configuration.disks = disks.transpose()?.unwrap_or(fixed);
        configuration.regional = self.regional;
        configuration.tier1 = self.tier1;
        configuration.network_gbit_per_s = decimal("--network-gbps", &self.network_gbps)?;
        let iops = self.iops.as_ref().map(|text| decimal("--iops", text));
        configuration.provisioned_iops = iops.transpose()?;
        let throughput = self.throughput.as_ref().map(|text| bytes_per_s("--throughput", text));
        configuration.provisioned_bytes_per_s = throughput.transpose()?;
        Ok(configuration)
    }
}

/// What is done to the disks.
#[derive(Debug, Args)]
pub struct WorkloadArgs {
    /// Bytes of one I/O; as in fio, 4k is 4,096
    #[arg(long, value_name = "SIZE", default_value = "4k", allow_hyphen_values = true)]
    pub bs: String,
    /// Order and kind of the I/O: read, write, randread, randwrite, readwrite or randrw
    #[arg(long, value_name = "PATTERN", default_value = "randread")]
    pub rw: String,
    /// I/Os in flight of each job; as many as it takes if not given
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub depth: Option<String>,
    /// Jobs, each with --depth in flight
    #[arg(long, value_name = "N", default_value = "1", allow_hyphen_values = true)]
    pub jobs: String,
    /// Reads among a hundred I/Os, for readwrite and randrw; 50 if not given
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true)]
    pub read_percent: Option<String>,
}

impl WorkloadArgs {
    /// The workload that they mean.
    ///
    /// # Errors
    /// The first mistake, on one line.
    pub fn workload(&self) -> Result<Workload, String> {
        let known = Pattern::from_str(&self.rw, false).ok().filter(|pattern| !pattern.trims());
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
            access: if pattern.is_random() { Access::Random } else { Access::Sequential },
            depth,
            jobs: count("--jobs", &self.jobs, 1 << 16)?,
        };
        workload.check().map_err(|error| error.to_string())?;
        Ok(workload)
    }

    /// The pattern by fio's name, mixed ones with their reads.
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
    /// The disks.
    #[command(flatten)]
    pub disk: DiskArgs,
    /// The workload.
    #[command(flatten)]
    pub workload: WorkloadArgs,
    /// The catalogue.
    #[command(flatten)]
    pub catalogue: CatalogueArg,
    /// The prediction as JSON on standard output
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `flagstone plan cheapest`.
#[derive(Debug, Args)]
pub struct CheapestArgs {
    /// Reads a second, of --bs each
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub read_iops: Option<String>,
    /// Writes a second, of --bs each
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub write_iops: Option<String>,
    /// Throughput of large I/O, such as 400MB/s: not at the same time as the IOPS, and reads to
    /// writes as in them
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    pub throughput: Option<String>,
    /// What is to be kept, such as 1TB
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub capacity: Option<String>,
    /// Bytes of one I/O; as in fio, 4k is 4,096
    #[arg(long, value_name = "SIZE", default_value = "4k", allow_hyphen_values = true)]
    pub bs: String,
    /// The reads and the writes are not needed at the same time
    #[arg(long)]
    pub not_at_once: bool,
    /// Families or machines to choose from, such as n1,n2,c3 or n2-standard-8; all if not given
    #[arg(long, value_name = "NAMES")]
    pub machines: Option<String>,
    /// Types of disk to choose from, such as pd-ssd,pd-balanced; all if not given
    #[arg(long = "type", value_name = "TYPES")]
    pub kinds: Option<String>,
    /// Only disks that are replicated in two zones
    #[arg(long)]
    pub regional: bool,
    /// Whether disks that lose their data when the machine stops will do: ok or no
    #[arg(long, value_name = "WORD", default_value = "no")]
    pub local_ssd: String,
    /// Most disks to stripe
    #[arg(long, value_name = "N", default_value = "16", allow_hyphen_values = true)]
    pub disks_max: String,
    /// What else the machine sends, in Gbit/s
    #[arg(long, value_name = "GBPS", default_value = "0", allow_hyphen_values = true)]
    pub network_gbps: String,
    /// Machines have the dearer networking tier, Tier_1, where there is one
    #[arg(long)]
    pub tier1: bool,
    /// Prices of machines, and of disks in place of the catalogue's: a TOML file
    #[arg(long, value_name = "FILE")]
    pub price_file: Option<String>,
    /// Of configurations that differ in the number of disks alone, and in what follows from it, show
    /// the cheapest
    #[arg(long)]
    pub distinct: bool,
    /// How many configurations to show
    #[arg(long, value_name = "N", default_value = "10", allow_hyphen_values = true)]
    pub top: String,
    /// The catalogue.
    #[command(flatten)]
    pub catalogue: CatalogueArg,
    /// The configurations as JSON on standard output
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `flagstone plan explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// What fio 3 printed as json or json+; - is standard input
    #[arg(value_name = "RESULT")]
    pub result: String,
    /// The disks.
    #[command(flatten)]
    pub disk: DiskArgs,
    /// How far from the prediction, in %, is still as predicted
    #[arg(long, value_name = "PERCENT", default_value = "5", allow_hyphen_values = true)]
    pub tolerance: String,
    /// The catalogue.
    #[command(flatten)]
    pub catalogue: CatalogueArg,
    /// The judgement as JSON on standard output
    #[arg(long)]
    pub json: bool,
}

impl ExplainArgs {
    /// The tolerance as a part, 0 to less than 1.
    ///
    /// # Errors
    /// That it is none, on one line.
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
    /// Type of disk, such as pd-standard; all tables if not given
    #[arg(long = "type", value_name = "TYPE")]
    pub kind: Option<String>,
    /// The catalogue.
    #[command(flatten)]
    pub catalogue: CatalogueArg,
    /// The tables as JSON on standard output
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `flagstone plan catalog`.
#[derive(Debug, Args)]
pub struct CatalogArgs {
    /// Name of the catalogue; the names are listed if none is given
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

/// A number that is not negative.
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
