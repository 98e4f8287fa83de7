//! Options of the `flagstone plan` commands that take several disk types.

use clap::Args;
use flagstone_cloud::catalog::Catalog;
use flagstone_cloud::{DiskConfiguration, PlanError, Workload};

use super::args::{CatalogArg, JobArgs, MachineArgs, bytes, count, optional, printable};
use super::once;
use crate::exit::Failure;

/// Maximum number of types: more lines are indistinguishable, and more columns do not fit.
const TYPES_MAX: usize = 6;

#[derive(Debug, Args)]
pub(crate) struct TypesArgs {
    /// Types of disk, such as pd-ssd,pd-balanced,hyperdisk-balanced
    #[arg(long = "type", value_name = "TYPES")]
    pub(crate) kinds: String,
    #[command(flatten)]
    pub(crate) machine: MachineArgs,
}

impl TypesArgs {
    /// The types, and a configuration on their machine.
    pub(super) fn types(
        &self,
        catalog: &Catalog,
    ) -> Result<(Vec<String>, DiskConfiguration), String> {
        let words = self.kinds.split(',').map(str::trim).filter(|word| !word.is_empty());
        let mut kinds: Vec<String> = Vec::new();
        for word in words {
            catalog.disk_type(word).map_err(|error| error.to_string())?;
            if !kinds.iter().any(|known| known == word) {
                kinds.push(word.to_owned());
            }
        }
        if !(1..=TYPES_MAX).contains(&kinds.len()) {
            let text = printable(&self.kinds);
            return Err(format!("--type {text}: write 1 to {TYPES_MAX} types, with commas"));
        }
        Ok((kinds, self.machine.on(catalog)?))
    }
}

#[derive(Debug, Args)]
pub(crate) struct LoadsArgs {
    /// Bytes of one I/O: one size for both, or one for IOPS and one for MB/s
    #[arg(long, value_name = "SIZES", default_value = "4k,256k", allow_hyphen_values = true)]
    pub(crate) bs: String,
    #[command(flatten)]
    pub(crate) jobs: JobArgs,
}

impl LoadsArgs {
    /// The workload for IOPS and the workload for throughput.
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
        Ok([self.jobs.workload(rw, small)?, self.jobs.workload(rw, large)?])
    }
}

#[derive(Debug, Args)]
pub(crate) struct PlanCompareArgs {
    #[command(flatten)]
    pub(crate) types: TypesArgs,
    /// Capacity of each type, such as 1TB
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) capacity: String,
    /// Order and kind of the I/O, as in fio; random reads and random writes, each separately, if
    /// not given
    #[arg(long, value_name = "PATTERN")]
    pub(crate) rw: Option<String>,
    #[command(flatten)]
    pub(crate) loads: LoadsArgs,
    /// Prices of disks instead of the catalog's: a TOML file
    #[arg(long, value_name = "FILE")]
    pub(crate) price_file: Option<String>,
    #[command(flatten)]
    pub(crate) catalog: CatalogArg,
}

#[derive(Debug, Args)]
pub(crate) struct CurveArgs {
    /// Dimension of the horizontal axis: size, vcpus, bs or depth
    #[arg(long, value_name = "WHAT")]
    pub(crate) over: String,
    #[command(flatten)]
    pub(crate) types: TypesArgs,
    /// Size of each disk, such as 500GB; not with --over size
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) size: Option<String>,
    /// Disks of each type, striped; as many as the machine comes with if not given, or 1
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub(crate) disks: Option<String>,
    /// Order and kind of the I/O: read, write, randread, randwrite, readwrite or randrw
    #[arg(long, value_name = "PATTERN", default_value = "randread")]
    pub(crate) rw: String,
    #[command(flatten)]
    pub(crate) loads: LoadsArgs,
    /// Start of the range, such as 10GB, 4 (vCPUs), 4k or 1; the smallest possible if not given
    #[arg(long, value_name = "PLACE", allow_hyphen_values = true)]
    pub(crate) from: Option<String>,
    /// End of the range; slightly beyond the last change if not given
    #[arg(long, value_name = "PLACE", allow_hyphen_values = true)]
    pub(crate) to: Option<String>,
    /// Picture file, an SVG; .svg is added to a name without it; curve.svg if not given
    #[arg(long, short = 'o', value_name = "FILE")]
    pub(crate) output: Option<String>,
    #[command(flatten)]
    pub(crate) catalog: CatalogArg,
}

impl CurveArgs {
    /// Configuration of each type; the swept dimension is a placeholder.
    pub(super) fn configurations(
        &self,
        catalog: &Catalog,
        over_size: bool,
    ) -> Result<Vec<DiskConfiguration>, String> {
        let (kinds, on) = self.types.types(catalog)?;
        if over_size && self.size.is_some() {
            return Err("--size is what --over size changes: leave it out, or write --to".into());
        }
        let size = optional("--size", &self.size, bytes)?;
        let disks = self.disks.as_ref().map(|text| count("--disks", text, 128)).transpose()?;
        let one = |kind: &String| {
            let disk = catalog.disk_type(kind).map_err(|error| error.to_string())?;
            let local = disk.size_gb_each.is_some();
            if size.is_none() && !local && !over_size {
                return Err("--size is missing: write the size of a disk, such as 500GB".into());
            }
            let fixed = catalog.fixed_disks(kind, &on.machine.name).unwrap_or(1);
            // Provisioned values apply only to types that sell them.
            let part = disk.provisioned.as_ref();
            let iops =
                on.provisioned_iops.filter(|_| part.is_some_and(|p| p.iops_per_mb_per_s.is_none()));
            let sells = |part: &flagstone_cloud::catalog::ProvisionedRule| {
                part.throughput_range(1.0, Some(1.0)).is_some()
            };
            Ok(DiskConfiguration {
                kind: kind.clone(),
                size_bytes: if local { 0 } else { size.unwrap_or(0) },
                disks: disks.unwrap_or(fixed),
                provisioned_iops: iops,
                provisioned_bytes_per_s: on
                    .provisioned_bytes_per_s
                    .filter(|_| part.is_some_and(sells)),
                ..on.clone()
            })
        };
        kinds.iter().map(one).collect()
    }
}

/// Fails if no type is possible, with the reasons in one line: unknown to the catalog, or a
/// mistake. `cannot` has the error of each type.
pub(super) fn none_can<'a>(
    catalog: &Catalog,
    cannot: impl Iterator<Item = Option<&'a PlanError>>,
) -> Result<(), Failure> {
    let Some(errors) = cannot.collect::<Option<Vec<_>>>() else { return Ok(()) };
    let why = once(errors.iter().map(|error| error.to_string())).join("; ");
    Err(match errors.iter().all(|error| matches!(error, PlanError::NotKnown(_))) {
        true => Failure::failed(format!("{why} (catalog {})", catalog.name)),
        false => Failure::usage(why),
    })
}
