//! The command line of those commands of `flagstone plan` that take several types of disk.

use clap::Args;
use flagstone_cloud::catalogue::Catalogue;
use flagstone_cloud::{Configuration, Machine, PlanError, Workload};
use flagstone_control::units::parse_size;

use super::args::{CatalogueArg, WorkloadArgs, bytes_per_s, count, decimal, printable};
use super::usage;
use crate::exit::Exit;
use crate::output::complain;

/// Most types at once: more lines are not told apart, and more columns do not fit.
const TYPES_MAX: usize = 6;

/// The types and the machine.
#[derive(Debug, Args)]
pub struct TypesArgs {
    /// Types of disk, such as pd-ssd,pd-balanced,hyperdisk-balanced
    #[arg(long = "type", value_name = "TYPES")]
    pub kinds: String,
    /// Machine type, such as n2-standard-8; the catalogue's own default if not given
    #[arg(long, value_name = "NAME")]
    pub machine: Option<String>,
    /// The disks are replicated in two zones
    #[arg(long)]
    pub regional: bool,
    /// IOPS bought for each disk, of types that sell them; what is free if not given
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

/// What the types and the machine are.
#[derive(Debug)]
pub(super) struct Types {
    pub(super) kinds: Vec<String>,
    pub(super) machine: Machine,
    pub(super) iops: Option<f64>,
    pub(super) bytes_per_s: Option<f64>,
    pub(super) network_gbit_per_s: f64,
}

impl TypesArgs {
    /// What they mean in a catalogue.
    ///
    /// # Errors
    /// The first mistake, on one line.
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
            network_gbit_per_s: decimal("--network-gbps", &self.network_gbps)?,
        })
    }
}

/// What is done to the disks.
#[derive(Debug, Args)]
pub struct LoadsArgs {
    /// Bytes of one I/O: one size for both, or one for IOPS and one for MB/s
    #[arg(long, value_name = "SIZES", default_value = "4k,256k", allow_hyphen_values = true)]
    pub bs: String,
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

impl LoadsArgs {
    /// The load that IOPS are counted of, and the one for MB/s.
    ///
    /// # Errors
    /// The first mistake, on one line.
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
pub struct CompareArgs {
    /// The types.
    #[command(flatten)]
    pub types: TypesArgs,
    /// What a disk of each type holds, such as 1TB
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub capacity: String,
    /// Order and kind of the I/O, as in fio; random reads and random writes, each alone, if not given
    #[arg(long, value_name = "PATTERN")]
    pub rw: Option<String>,
    /// The workload.
    #[command(flatten)]
    pub loads: LoadsArgs,
    /// Prices of disks in place of the catalogue's: a TOML file
    #[arg(long, value_name = "FILE")]
    pub price_file: Option<String>,
    /// The catalogue.
    #[command(flatten)]
    pub catalogue: CatalogueArg,
    /// The comparison as JSON on standard output
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `flagstone plan curve`.
#[derive(Debug, Args)]
pub struct CurveArgs {
    /// What changes from left to right: size, vcpus, bs or depth
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
    /// Where it begins, such as 10GB, 4 (vCPUs), 4k or 1; as far as it goes if not given
    #[arg(long, value_name = "PLACE", allow_hyphen_values = true)]
    pub from: Option<String>,
    /// Where it ends; a little beyond the last change if not given
    #[arg(long, value_name = "PLACE", allow_hyphen_values = true)]
    pub to: Option<String>,
    /// The picture: FILE.svg, FILE.png, or both if FILE has neither ending; curve if not given
    #[arg(long, short = 'o', value_name = "FILE")]
    pub output: Option<String>,
    /// The catalogue.
    #[command(flatten)]
    pub catalogue: CatalogueArg,
    /// The curves as JSON on standard output; a picture only if --output is given
    #[arg(long)]
    pub json: bool,
}

impl CurveArgs {
    /// The disks of each type; what changes stands for itself.
    ///
    /// # Errors
    /// The first mistake, on one line.
    pub(super) fn configurations(
        &self,
        catalogue: &Catalogue,
        over_size: bool,
    ) -> Result<Vec<Configuration>, String> {
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
            // What a type does not sell it is not asked for.
            let part = disk.provisioned.as_ref();
            let iops = types.iops.filter(|_| part.is_some_and(|p| p.iops_per_mb_per_s.is_none()));
            let sells = |part: &flagstone_cloud::catalogue::Provisioned| {
                part.throughput_range(1.0, Some(1.0)).is_some()
            };
            Ok(Configuration {
                kind: kind.clone(),
                size_bytes: if local { 0 } else { size.unwrap_or(0) },
                disks: disks.unwrap_or(fixed),
                machine: types.machine.clone(),
                regional: self.types.regional,
                network_gbit_per_s: types.network_gbit_per_s,
                tier1: self.types.tier1,
                provisioned_iops: iops,
                provisioned_bytes_per_s: types.bytes_per_s.filter(|_| part.is_some_and(sells)),
            })
        };
        types.kinds.iter().map(one).collect()
    }
}

/// How a command ends where no type at all can be had so, having said why on one line: not known
/// to the catalogue, or asked wrongly. `None` if one can; `cannot` is what stands against each.
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
