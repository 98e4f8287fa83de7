//! Options of the `flagstone plan` commands that take several disk types.

use clap::Args;
use flagstone_cloud::catalogue::Catalogue;
use flagstone_cloud::{DiskConfiguration, Machine, PlanError, Workload};
use flagstone_units::parse_size;

use super::args::{CatalogueArg, WorkloadArgs, bytes_per_s, count, decimal, printable};
use super::usage;
use crate::exit::Exit;
use crate::output::complain;

/// Maximum number of types: more lines are indistinguishable, and more columns do not fit.
const TYPES_MAX: usize = 6;

/// Options of the types and the machine.
#[derive(Debug, Args)]
pub struct TypesArgs {
    /// Types of disk, such as pd-ssd,pd-balanced,hyperdisk-balanced
    #[arg(long = "type", value_name = "TYPES")]
    pub kinds: String,
    /// Machine type, such as n2-standard-8; the catalogue's default if not given
    #[arg(long, value_name = "NAME")]
    pub machine: Option<String>,
    /// Disks are replicated in two zones
    #[arg(long)]
    pub regional: bool,
    /// Provisioned IOPS of each disk, for types that sell them; the free amount if not given
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

/// Parsed types and machine.
#[derive(Debug)]
pub(super) struct Types {
    pub(super) kinds: Vec<String>,
    pub(super) machine: Machine,
    pub(super) iops: Option<f64>,
    pub(super) bytes_per_s: Option<f64>,
    pub(super) other_egress_gbit_per_s: f64,
}

impl TypesArgs {
    /// Parses the options with a catalogue.
    ///
    /// # Errors
    /// The first mistake, in one line.
    pub(super) fn types(&self, catalogue: &Catalogue) -> Result<Types, String> {
        let words = self.kinds.split(',').map(str::trim).filter(|word| !word.is_empty());
        let mut kinds: Vec<String> = Vec::new();
        for word in words {
            catalogue.disk_type(word).map_err(|error| error.to_string())?;
            if !kinds.iter().any(|known| known == word) {
                kinds.push(word.to_owned());
            }
        }
        if !(1..=TYPES_MAX).contains(&kinds.len()) {
            let text = printable(&self.kinds);
            return Err(format!("--type {text}: write 1 to {TYPES_MAX} types, with commas"));
        }
        let machine = self.machine.as_ref().or(catalogue.machine_default.as_ref());
        let machine = machine.ok_or("--machine is missing: write a machine type")?;
        let iops = self.iops.as_ref().map(|text| decimal("--iops", text));
        let throughput = self.throughput.as_ref().map(|text| bytes_per_s("--throughput", text));
        Ok(Types {
            kinds,
            machine: catalogue.machine(machine).map_err(|error| error.to_string())?,
            iops: iops.transpose()?,
            bytes_per_s: throughput.transpose()?,
            other_egress_gbit_per_s: decimal("--other-egress-gbps", &self.other_egress_gbps)?,
        })
    }
}

/// Options of the workloads.
#[derive(Debug, Args)]
pub struct LoadsArgs {
    /// Bytes of one I/O: one size for both, or one for IOPS and one for MB/s
    #[arg(long, value_name = "SIZES", default_value = "4k,256k", allow_hyphen_values = true)]
    pub bs: String,
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

impl LoadsArgs {
    /// The workload for IOPS and the workload for throughput.
    ///
    /// # Errors
    /// The first mistake, in one line.
    pub(super) fn loads(&self, rw: &str) -> Result<[Workload; 2], String> {
        let sizes: Vec<&str> = self.bs.split(',').map(str::trim).collect();
        let (small, large) = match sizes[..] {
            [one] => (one, one),
            [small, large] => (small, large),
            _ => {
                let text = printable(&self.bs);
                return Err(format!("--bs {text}: write one size, or two such as 4k,256k"));
            }
        };
        Ok([self.load(rw, small)?, self.load(rw, large)?])
    }

    fn load(&self, rw: &str, bs: &str) -> Result<Workload, String> {
        let args = WorkloadArgs {
            bs: bs.to_owned(),
            rw: rw.to_owned(),
            depth: self.depth.clone(),
            jobs: self.jobs.clone(),
            read_percent: self.read_percent.clone(),
        };
        args.workload()
    }
}

/// Arguments of `flagstone plan compare`.
#[derive(Debug, Args)]
pub struct PlanCompareArgs {
    /// The types.
    #[command(flatten)]
    pub types: TypesArgs,
    /// Capacity of each type, such as 1TB
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub capacity: String,
    /// Order and kind of the I/O, as in fio; random reads and random writes, each separately, if
    /// not given
    #[arg(long, value_name = "PATTERN")]
    pub rw: Option<String>,
    /// The workload.
    #[command(flatten)]
    pub loads: LoadsArgs,
    /// Prices of disks instead of the catalogue's: a TOML file
    #[arg(long, value_name = "FILE")]
    pub price_file: Option<String>,
    /// The catalogue.
    #[command(flatten)]
    pub catalogue: CatalogueArg,
    /// Print the comparison as JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `flagstone plan curve`.
#[derive(Debug, Args)]
pub struct CurveArgs {
    /// Dimension of the horizontal axis: size, vcpus, bs or depth
    #[arg(long, value_name = "WHAT")]
    pub over: String,
    /// The types.
    #[command(flatten)]
    pub types: TypesArgs,
    /// Size of each disk, such as 500GB; not with --over size
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub size: Option<String>,
    /// Disks of each type, striped; as many as the machine comes with if not given, or 1
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub disks: Option<String>,
    /// Order and kind of the I/O: read, write, randread, randwrite, readwrite or randrw
    #[arg(long, value_name = "PATTERN", default_value = "randread")]
    pub rw: String,
    /// The workload.
    #[command(flatten)]
    pub loads: LoadsArgs,
    /// Start of the range, such as 10GB, 4 (vCPUs), 4k or 1; the smallest possible if not given
    #[arg(long, value_name = "PLACE", allow_hyphen_values = true)]
    pub from: Option<String>,
    /// End of the range; slightly beyond the last change if not given
    #[arg(long, value_name = "PLACE", allow_hyphen_values = true)]
    pub to: Option<String>,
    /// Picture file, an SVG; .svg is added to a name without it; curve.svg if not given
    #[arg(long, short = 'o', value_name = "FILE")]
    pub output: Option<String>,
    /// The catalogue.
    #[command(flatten)]
    pub catalogue: CatalogueArg,
    /// Print the curves as JSON; writes a picture only with --output
    #[arg(long)]
    pub json: bool,
}

impl CurveArgs {
    /// Configuration of each type; the swept dimension is a placeholder.
    ///
    /// # Errors
    /// The first mistake, in one line.
    pub(super) fn configurations(
        &self,
        catalogue: &Catalogue,
        over_size: bool,
    ) -> Result<Vec<DiskConfiguration>, String> {
        let types = self.types.types(catalogue)?;
        if over_size && self.size.is_some() {
            return Err("--size is what --over size changes: leave it out, or write --to".into());
        }
        let size = self.size.as_ref().map(|text| {
            parse_size(text).map_err(|error| format!("--size {}: {error}", printable(text)))
        });
        let size = size.transpose()?;
        let disks = self.disks.as_ref().map(|text| count("--disks", text, 128)).transpose()?;
        let one = |kind: &String| {
            let disk = catalogue.disk_type(kind).map_err(|error| error.to_string())?;
            let local = disk.size_gb_each.is_some();
            if size.is_none() && !local && !over_size {
                return Err("--size is missing: write the size of a disk, such as 500GB".into());
            }
            let fixed = catalogue.fixed_disks(kind, &types.machine.name).unwrap_or(1);
            // Provisioned values apply only to types that sell them.
            let part = disk.provisioned.as_ref();
            let iops = types.iops.filter(|_| part.is_some_and(|p| p.iops_per_mb_per_s.is_none()));
            let sells = |part: &flagstone_cloud::catalogue::ProvisionedRule| {
                part.throughput_range(1.0, Some(1.0)).is_some()
            };
            Ok(DiskConfiguration {
                kind: kind.clone(),
                size_bytes: if local { 0 } else { size.unwrap_or(0) },
                disks: disks.unwrap_or(fixed),
                machine: types.machine.clone(),
                regional: self.types.regional,
                other_egress_gbit_per_s: types.other_egress_gbit_per_s,
                tier1_networking: self.types.tier1_networking,
                provisioned_iops: iops,
                provisioned_bytes_per_s: types.bytes_per_s.filter(|_| part.is_some_and(sells)),
            })
        };
        types.kinds.iter().map(one).collect()
    }
}

/// Exit status if no type is possible, after the reasons are printed in one line: unknown to the
/// catalogue, or a mistake. `None` if at least one type is possible. `cannot` has the error of each
/// type.
pub(super) fn none_can<'a>(
    catalogue: &Catalogue,
    cannot: impl Iterator<Item = Option<&'a PlanError>>,
) -> Option<Exit> {
    let errors: Vec<&PlanError> = cannot.collect::<Option<_>>()?;
    let mut why: Vec<String> = Vec::new();
    for text in errors.iter().map(|error| error.to_string()) {
        if !why.contains(&text) {
            why.push(text);
        }
    }
    let why = why.join("; ");
    if errors.iter().all(|error| matches!(error, PlanError::NotKnown(_))) {
        complain(&format!("flagstone: {why} (catalogue {})\n", catalogue.name));
        return Some(Exit::Failed);
    }
    Some(usage(&why))
}
