//! Disk profile (`profile = "pd-ssd"`): limit and latency of a disk from a catalog.
//!
//! The catalog has the limits of the disk's size, its machine and its network, the sharing between
//! reads and writes, and the weight of large writes. This module converts them to a limit of
//! [`flagstone_limit`], so that a volume is allowed exactly the rates that `flagstone plan predict`
//! predicts. Values missing from the catalog are not limited, and a remark says so.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use flagstone_cloud::catalog::{DEFAULT_CATALOG, Sharing};
use flagstone_cloud::limits::MIN_BLOCK_BYTES;
use flagstone_cloud::prediction::Dimension;
use flagstone_cloud::{
    Catalog, CatalogError, Ceilings, Confidence, DiskConfiguration, LimitKind, Placement,
    PlanError, Workload,
};
use flagstone_limit::{Budget, IoSize, IoStep, Limit, LimitError, Rate};

use super::diagnostic::{SourceLocation, shown};
use super::model::{DiskProfile, Provisioned};
use super::reader::Reader;
use super::schema::PROFILE;
use crate::limits::MAX_CATALOGS;
use flagstone_units::{format_duration, format_size};

/// Options of `flagstone plan`, which messages of the catalog name, and the matching keys.
const OPTIONS: [(&str, &str); 6] = [
    ("--regional", "`regional`"),
    ("--throughput", "`provisioned_throughput`"),
    ("--iops", "`provisioned_iops`"),
    ("--tier1-networking", "`tier1_networking`"),
    ("--size", "`size`"),
    ("--machine", "`machine`"),
];

/// The catalogs of one configuration, each read once.
#[derive(Default)]
pub(crate) struct Catalogs {
    read: RefCell<BTreeMap<String, Option<Rc<Catalog>>>>,
}

impl Catalogs {
    /// The catalog that the table names. A mistake in the catalog is reported once, at the first
    /// key that names it.
    fn of(&self, reader: &Reader<'_>) -> Option<Rc<Catalog>> {
        let written = text(reader, "catalog");
        if written.is_none() && reader.has("catalog") {
            return None;
        }
        let name = written.unwrap_or_else(|| DEFAULT_CATALOG.to_owned());
        let mut read = self.read.borrow_mut();
        if let Some(catalog) = read.get(&name) {
            return catalog.clone();
        }
        let place = reader.value_place("catalog");
        if read.len() == MAX_CATALOGS {
            let message = format!("more than {MAX_CATALOGS} catalogs");
            reader.report().error(&place, message, "join some of them in one file");
            return None;
        }
        let opened = open(&name).map(Rc::new);
        if let Err(error) = &opened {
            let line = error.line.map(|line| format!("line {line}: ")).unwrap_or_default();
            let message = format!("bad catalog {}: {line}{}", shown(&name), error.message);
            reader.report().error(&place, message, &error.help);
        }
        read.entry(name).or_insert(opened.ok()).clone()
    }
}

/// As [`Catalog::open`], for regular files only: reading a pipe or a device could block forever.
fn open(name: &str) -> Result<Catalog, CatalogError> {
    let special = std::fs::metadata(name).is_ok_and(|found| !found.is_file());
    if special && Catalog::builtin(name).is_none() {
        return Err(CatalogError {
            file: name.to_owned(),
            line: None,
            message: "it is not a file".to_owned(),
            help: format!(
                "write {}, or the path of a catalog",
                Catalog::builtin_names().join(" or ")
            ),
        });
    }
    match Catalog::builtin(name) {
        Some(catalog) => Ok(catalog.clone()),
        None => Catalog::read(Path::new(name)),
    }
}

/// A disk of a catalog, as a limit and a latency.
pub(crate) struct ProfiledDisk {
    pub(crate) provisioned: Provisioned,
    /// Latency of each I/O that the catalog's queue depth rule guarantees.
    pub(crate) latency: Option<Duration>,
}

impl ProfiledDisk {
    /// The limit, with a remark about the modeled latency unless the file gives one.
    pub(crate) fn with_latency(mut self, written: bool) -> Provisioned {
        if let (Some(latency), Some(profile)) = (self.latency, &mut self.provisioned.profile)
            && !written
        {
            profile.remarks.push(format!(
                "the latency of {} is that of the rule of the queue depth; the catalog has no distribution of it",
                format_duration(latency)
            ));
        }
        self.provisioned
    }
}

/// Reports keys of a disk profile that have no effect without `profile`.
pub(crate) fn refuse_alone(reader: &Reader<'_>) {
    let keys = PROFILE.keys.iter().map(|key| key.name).filter(|key| *key != "profile");
    for key in keys.filter(|key| reader.has(key)) {
        let help = "write profile = \"TYPE\" too, such as \"pd-ssd\", or remove it";
        reader.report().error(&reader.key_place(key), format!("`{key}` without `profile`"), help);
    }
}

/// Reports numbers written beside `profile`, which takes them from the catalog.
pub(crate) fn refuse_others(reader: &Reader<'_>, accepted: &[&str]) {
    for (key, place) in reader.keys_in_order() {
        if PROFILE.key(key).is_some() || accepted.contains(&key) || !reader.knows(key) {
            continue;
        }
        let message = format!("`{key}` is part of `profile`");
        let help = format!("remove `{key}`, or write all numbers in place of `profile`");
        let related = ("the disk is given at", &reader.key_place("profile"));
        reader.report().error_with(&place, message, help, related);
    }
}

/// Reports that a disk model needs a latency, which the catalog does not have for this disk.
pub(crate) fn latency_is_not_known(reader: &Reader<'_>, disk: &ProfiledDisk) {
    let profile = disk.provisioned.profile.as_ref();
    let (kind, catalog) =
        (text(reader, "profile"), profile.map(|profile| profile.catalog.as_str()));
    let message = format!(
        "the latency of {} is not known: {} has no rule of it",
        kind.as_deref().unwrap_or("it"),
        catalog.unwrap_or("the catalog")
    );
    let help = "write it too, such as latency = \"800us\", p99 = \"3ms\"; `limit` needs none";
    reader.report().error(&reader.key_place("profile"), message, help);
}

fn text(reader: &Reader<'_>, key: &str) -> Option<String> {
    reader.parsed(key, |text| Ok::<_, Infallible>(text.to_owned())).map(|text| text.value)
}

/// Reads the disk profile of a table. Mistakes are reported at their keys.
pub(crate) fn read(reader: &Reader<'_>, catalogs: &Catalogs) -> Option<ProfiledDisk> {
    let reported = reader.report().count();
    let kind = text(reader, "profile");
    let catalog = catalogs.of(reader);
    let machine = text(reader, "machine");
    let size = reader.size("size");
    let disks = reader.count("disks");
    let options = ProfileOptions {
        regional: reader.boolean("regional"),
        tier1_networking: reader.boolean("tier1_networking"),
        other_egress_gbps: reader.count("other_egress_gbps").map_or(0, |gbps| gbps.value),
        provisioned_iops: reader.count("provisioned_iops").map(|iops| iops.value as f64),
        provisioned_bytes_per_s: reader
            .rate("provisioned_throughput")
            .map(|rate| rate.value as f64),
    };
    // An unreadable value would be reported a second time, as missing.
    if reader.report().count() > reported {
        return None;
    }
    let (kind, catalog) = (kind?, catalog?);
    let refused = |error: PlanError, keys: &[&str]| refuse(reader, &catalog, error, keys);
    let disk = catalog.disk_type(&kind).map_err(|error| refused(error, &["profile"])).ok()?;
    let Some(machine) = machine.or_else(|| catalog.machine_default.clone()) else {
        let help = "write the type of its machine, such as machine = \"n2-standard-8\"";
        reader.report().error(&reader.key_place("profile"), "`profile` without `machine`", help);
        return None;
    };
    if size.is_none() && disk.size_gb_each.is_none() {
        let help = "write the size of the disk, such as size = \"500GB\"";
        reader.report().error(&reader.key_place("profile"), "`profile` without `size`", help);
        return None;
    }
    let size_bytes = size.map_or(0, |size| size.value);
    let made = DiskConfiguration::new(&catalog, &kind, size_bytes, &machine);
    let mut configuration = made.map_err(|error| refused(error, &["machine"])).ok()?;
    let fixed = catalog.fixed_disks(&kind, &machine).unwrap_or(1);
    configuration.disks = disks.map_or(fixed, |disks| disks.value as u32);
    options.apply(&catalog, &mut configuration, refused).ok()?;
    let ceilings = catalog.ceilings(&configuration).map_err(|error| refused(error, &[])).ok()?;
    let limit = limit(&catalog, &configuration, &ceilings).map_err(|error| {
        let message = format!("{} of {kind} cannot be a limit", described(&configuration));
        reader.report().error(&reader.key_place("profile"), message, error);
    });
    let numbers = limit.ok()?;
    let profile = Some(Box::new(describe(&catalog, &configuration)));
    let latency = ceilings.service_us.map(|(sure, _)| Duration::from_nanos((sure * 1e3) as u64));
    Some(ProfiledDisk { provisioned: Provisioned { numbers, profile }, latency })
}

/// Reports an error of the model at the first of `keys` that is written, with option names
/// translated to keys.
fn refuse(reader: &Reader<'_>, catalog: &Catalog, error: PlanError, keys: &[&str]) {
    let key = keys.iter().find(|key| reader.has(key)).unwrap_or(&"profile");
    let (mut found, mut accepted) = match error {
        PlanError::Input { found, accepted } => (found, accepted),
        PlanError::NotKnown(what) => {
            let accepted = format!("{} has no limit of it: write the numbers", catalog.name);
            (format!("not known: {what}"), accepted)
        }
    };
    for (option, name) in OPTIONS {
        found = found.replace(option, name);
        accepted = accepted.replace(option, name);
    }
    let place: SourceLocation = reader.value_place(key);
    reader.report().error(&place, found, accepted);
}

struct ProfileOptions {
    regional: bool,
    tier1_networking: bool,
    other_egress_gbps: u64,
    provisioned_iops: Option<f64>,
    provisioned_bytes_per_s: Option<f64>,
}

impl ProfileOptions {
    /// Applies one option after the other, so that an error is reported at the key that caused it.
    fn apply(
        &self,
        catalog: &Catalog,
        configuration: &mut DiskConfiguration,
        refused: impl Fn(PlanError, &[&str]),
    ) -> Result<(), ()> {
        let placement = |configuration: &DiskConfiguration, keys: &[&str]| {
            Placement::of(catalog, configuration).map_err(|error| refused(error, keys))
        };
        placement(configuration, &["machine"])?;
        configuration.regional = self.regional;
        placement(configuration, &["regional"])?;
        configuration.tier1_networking = self.tier1_networking;
        placement(configuration, &["tier1_networking"])?;
        configuration.other_egress_gbit_per_s = self.other_egress_gbps as f64;
        let placement = placement(configuration, &["other_egress_gbps"])?;
        match placement.size_each() {
            Some(_) => {
                let keys = if configuration.size_bytes == 0 { "disks" } else { "size" };
                placement.demand(configuration).map_err(|error| refused(error, &[keys]))?;
            }
            None => {
                let size = catalog.units.size_of(configuration.size_bytes);
                placement.check_size(size).map_err(|error| refused(error, &["size"]))?;
            }
        }
        configuration.provisioned_iops = self.provisioned_iops;
        if self.provisioned_iops.is_some() {
            placement
                .demand(configuration)
                .map_err(|error| refused(error, &["provisioned_iops"]))?;
        }
        configuration.provisioned_bytes_per_s = self.provisioned_bytes_per_s;
        let keys = ["provisioned_throughput"];
        placement.demand(configuration).map(drop).map_err(|error| refused(error, &keys))
    }
}

#[derive(Debug, thiserror::Error)]
enum NoLimit {
    #[error("{0}")]
    Config(#[from] LimitError),
    #[error("{0}")]
    Plan(#[from] PlanError),
}

fn limit(
    catalog: &Catalog,
    configuration: &DiskConfiguration,
    ceilings: &Ceilings,
) -> Result<Limit, NoLimit> {
    let placement = Placement::of(catalog, configuration)?;
    let demand = placement.demand(configuration)?;
    // A machine limit for reads and writes together is one more budget.
    let caps = placement.hard_caps(&demand, MIN_BLOCK_BYTES);
    let together = |dimension| {
        let both = caps.iter().filter(|cap| cap.together && cap.dimension == dimension);
        both.filter_map(|cap| cap.read).min_by(f64::total_cmp)
    };
    let unit = catalog.units.throughput_bytes() as f64;
    let limit = Limit {
        ios: budget(
            together(Dimension::Iops),
            (ceilings.read_iops, ceilings.write_iops),
            ceilings.iops_sharing,
        ),
        bytes: budget(
            together(Dimension::Throughput).map(|most| most * unit),
            (ceilings.read_bytes_per_s, ceilings.write_bytes_per_s),
            ceilings.throughput_sharing,
        ),
        read_size: IoSize::One,
        write_size: write_size(ceilings)?,
    };
    limit.check()?;
    Ok(limit)
}

fn whole(per_second: f64) -> u64 {
    per_second.round() as u64
}

fn budget(total: Option<f64>, most: (Option<f64>, Option<f64>), sharing: Sharing) -> Budget {
    let total = total.map(whole);
    let (read, write) = (most.0.map(whole), most.1.map(whole));
    let rates = match (read, write, sharing) {
        (Some(read), Some(write), Sharing::HalfDuplex | Sharing::Shared) if read == write => {
            // One number for both, at most the machine's limit for both.
            let both = total.map_or(read, |total| total.min(read));
            return Budget::total(both);
        }
        (Some(read), Some(write), Sharing::HalfDuplex | Sharing::Shared) => {
            Budget::shared(read, write)
        }
        (read, write, _) => {
            Budget { read: read.map(Rate::new), write: write.map(Rate::new), ..Budget::default() }
        }
    };
    Budget { total: total.map(Rate::new), ..rates }
}

/// Weight of large writes: above the block size with the highest IOPS a write counts as several.
fn write_size(ceilings: &Ceilings) -> Result<IoSize, LimitError> {
    let Some(most) = ceilings.write_iops else { return Ok(IoSize::One) };
    let mut steps: Vec<IoStep> = Vec::new();
    // A row holds for blocks larger than the previous row's.
    for pair in ceilings.write_iops_by_block.windows(2) {
        let millionths = (most / pair[1].1 * 1e6).round();
        let before = steps.last().map_or(1e6, |step| f64::from(step.millionths));
        if millionths != before {
            let above_bytes = u32::try_from(pair[0].0).unwrap_or(u32::MAX);
            steps.push(IoStep { above_bytes, millionths: millionths as u32 });
        }
    }
    match steps.is_empty() {
        true => Ok(IoSize::One),
        false => IoSize::steps(steps),
    }
}

fn described(configuration: &DiskConfiguration) -> String {
    match configuration.size_bytes {
        0 => format!("{} disks", configuration.disks),
        bytes => format_size(bytes),
    }
}

/// Description of the disk for people, with the confidence and the remarks of the sources of its
/// numbers for every kind of I/O.
fn describe(catalog: &Catalog, configuration: &DiskConfiguration) -> DiskProfile {
    let mut confidence = Confidence::A;
    let mut remarks = Vec::new();
    let mut add = |remark: String| {
        if !remarks.contains(&remark) {
            remarks.push(remark);
        }
    };
    for block_bytes in [4 << 10, 64 << 10, 1 << 20] {
        for read_percent in [100, 0, 50] {
            let workload = Workload::random(block_bytes, read_percent);
            let Ok(mut found) = catalog.predict(configuration, &workload) else { continue };
            found.ignore_price();
            let enforced = |limit: &&flagstone_cloud::PredictedLimit| {
                !matches!(limit.kind, LimitKind::Cpu | LimitKind::QueueDepth)
            };
            let binding = found.limits.iter().find(enforced);
            confidence = confidence.max(binding.map_or(Confidence::A, |limit| limit.confidence));
            found.not_known.into_iter().for_each(|what| add(format!("not known: {what}")));
            for touched in found.inconsistencies {
                let used = touched.used.map(|used| format!("; taken here: {used}"));
                add(format!(
                    "the sources contradict themselves ({}): {}{}",
                    touched.id,
                    touched.place,
                    used.unwrap_or_default()
                ));
            }
            found.notes.into_iter().for_each(&mut add);
        }
    }
    let rule = catalog.types.get(&configuration.kind).and_then(|disk| disk.mixing.as_ref());
    let rule = rule.map(|rule| catalog.confidence_of(&rule.source, rule.confidence));
    let disks = match configuration.disks {
        1 => String::new(),
        many => format!("{many} x "),
    };
    let size = match configuration.size_bytes {
        0 => String::new(),
        bytes => format!("{} of ", format_size(bytes)),
    };
    let regional = if configuration.regional { "regional " } else { "" };
    DiskProfile {
        disk: format!(
            "{disks}{size}{regional}{} on {}",
            configuration.kind, configuration.machine.name
        ),
        catalog: catalog.name.clone(),
        date: catalog.date.clone(),
        confidence: confidence.max(rule.unwrap_or(Confidence::A)),
        remarks,
    }
}
