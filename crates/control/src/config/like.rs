//! `like = "pd-ssd"`: a limit and a latency that are those of a disk of a catalogue.
//!
//! The catalogue says what the disk's own size, its machine and its network allow, how reads and
//! writes share it, and what large writes count as; this says it in the words of
//! [`flagstone_limit`], which then allows what `flagstone plan predict` predicts. What the catalogue
//! does not know is no limit, and is told as a remark.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use flagstone_cloud::catalogue::{DEFAULT_CATALOGUE, Sharing};
use flagstone_cloud::limits::MIN_BLOCK_BYTES;
use flagstone_cloud::prediction::Dimension;
use flagstone_cloud::{
    Catalogue, CatalogueError, Ceilings, Confidence, Configuration, LimitKind, PlanError, Site,
    Workload,
};
use flagstone_limit::{Budget, ConfigError, IoSize, IoStep, Limit, Rate};

use super::diagnostic::{Place, shown};
use super::model::{Like, Provisioned};
use super::reader::Reader;
use crate::limits::MAX_CATALOGUES;
use crate::units::{format_duration, format_size};

/// The keys of a disk that something is like.
const KEYS: [&str; 10] = [
    "like",
    "size",
    "machine",
    "catalog",
    "disks",
    "regional",
    "provisioned_iops",
    "provisioned_throughput",
    "network_gbps",
    "tier1",
];

/// What the options of `flagstone plan`, which the catalogue's messages name, are called here.
const OPTIONS: [(&str, &str); 6] = [
    ("--regional", "`regional`"),
    ("--throughput", "`provisioned_throughput`"),
    ("--iops", "`provisioned_iops`"),
    ("--tier1", "`tier1`"),
    ("--size", "`size`"),
    ("--machine", "`machine`"),
];

/// The catalogues of one configuration, each read once.
#[derive(Default)]
pub(crate) struct Catalogues {
    read: RefCell<BTreeMap<String, Option<Rc<Catalogue>>>>,
}

impl Catalogues {
    /// The catalogue that the table names. A mistake in it is told where it is named, once.
    fn of(&self, reader: &Reader<'_>) -> Option<Rc<Catalogue>> {
        let written = text(reader, "catalog");
        if written.is_none() && reader.has("catalog") {
            return None;
        }
        let name = written.unwrap_or_else(|| DEFAULT_CATALOGUE.to_owned());
        let mut read = self.read.borrow_mut();
        if let Some(catalogue) = read.get(&name) {
            return catalogue.clone();
        }
        let place = reader.key_place("catalog");
        if read.len() == MAX_CATALOGUES {
            let message = format!("more than {MAX_CATALOGUES} catalogues");
            reader.report().error(&place, message, "join some of them in one file");
            return None;
        }
        let opened = open(&name).map(Rc::new);
        if let Err(error) = &opened {
            let line = error.line.map(|line| format!("line {line}: ")).unwrap_or_default();
            let message = format!("bad catalogue {}: {line}{}", shown(&name), error.message);
            reader.report().error(&place, message, &error.help);
        }
        read.entry(name).or_insert(opened.ok()).clone()
    }
}

/// As [`Catalogue::open`], of plain files alone: another may keep its reader waiting for ever.
fn open(name: &str) -> Result<Catalogue, CatalogueError> {
    let special = std::fs::metadata(name).is_ok_and(|found| !found.is_file());
    if special && Catalogue::builtin(name).is_none() {
        return Err(CatalogueError {
            file: name.to_owned(),
            line: None,
            message: "it is not a file".to_owned(),
            help: format!(
                "write {}, or the path of a catalogue",
                Catalogue::builtin_names().join(" or ")
            ),
        });
    }
    match Catalogue::builtin(name) {
        Some(catalogue) => Ok(catalogue.clone()),
        None => Catalogue::read(Path::new(name)),
    }
}

/// A disk of a catalogue, as a limit and a latency.
pub(crate) struct LikeDisk {
    pub(crate) provisioned: Provisioned,
    /// Of each I/O: what the catalogue's rule of the queue depth makes sure of.
    pub(crate) latency: Option<Duration>,
}

impl LikeDisk {
    /// The limit, with a remark on the latency that is emulated below it.
    pub(crate) fn with_latency(mut self, written: bool) -> Provisioned {
        if let (Some(latency), Some(like)) = (self.latency, &mut self.provisioned.like)
            && !written
        {
            like.remarks.push(format!(
                "the latency of {} is that of the rule of the queue depth; the catalogue has no distribution of it",
                format_duration(latency)
            ));
        }
        self.provisioned
    }
}

/// Without `like`, what says of which disk has no effect.
pub(crate) fn refuse_alone(reader: &Reader<'_>) {
    for key in KEYS.iter().skip(1).filter(|key| reader.has(key)) {
        let help = "write like = \"TYPE\" too, such as \"pd-ssd\", or remove it";
        reader.report().error(&reader.key_place(key), format!("`{key}` without `like`"), help);
    }
}

/// With `like`, numbers are the catalogue's.
pub(crate) fn refuse_others(reader: &Reader<'_>, accepted: &[&str]) {
    for (key, place) in reader.keys_in_order() {
        if KEYS.contains(&key) || accepted.contains(&key) || !reader.knows(key) {
            continue;
        }
        let message = format!("`{key}` beside `like`, which says it already");
        let help = format!("remove `{key}`, or write all numbers in place of `like`");
        let related = ("the disk is given at", &reader.key_place("like"));
        reader.report().error_with(&place, message, help, related);
    }
}

/// An emulation needs a latency, which no catalogue gives for this disk.
pub(crate) fn latency_is_not_known(reader: &Reader<'_>, disk: &LikeDisk) {
    let like = disk.provisioned.like.as_ref();
    let (kind, catalogue) = (text(reader, "like"), like.map(|like| like.catalogue.as_str()));
    let message = format!(
        "the latency of {} is not known: {} has no rule of it",
        kind.as_deref().unwrap_or("it"),
        catalogue.unwrap_or("the catalogue")
    );
    let help = "write it too, such as latency = \"800us\", p99 = \"3ms\"; `limit` needs none";
    reader.report().error(&reader.key_place("like"), message, help);
}

fn text(reader: &Reader<'_>, key: &str) -> Option<String> {
    reader.parsed(key, |text| Ok::<_, Infallible>(text.to_owned())).map(|text| text.value)
}

/// The disk that the table is like; mistakes are told where they were made.
pub(crate) fn read(reader: &Reader<'_>, catalogues: &Catalogues) -> Option<LikeDisk> {
    let told = reader.report().count();
    let kind = text(reader, "like");
    let catalogue = catalogues.of(reader);
    let machine = text(reader, "machine");
    let size = reader.size("size");
    let disks = reader.count("disks");
    let asked = Asked {
        regional: reader.flag("regional"),
        tier1: reader.flag("tier1"),
        network_gbps: reader.count("network_gbps").map_or(0, |gbps| gbps.value),
        provisioned_iops: reader.count("provisioned_iops").map(|iops| iops.value as f64),
        provisioned_bytes_per_s: reader
            .rate("provisioned_throughput")
            .map(|rate| rate.value as f64),
    };
    // What could not be read would be reported a second time, as missing.
    if reader.report().count() > told {
        return None;
    }
    let (kind, catalogue) = (kind?, catalogue?);
    let refused = |error: PlanError, keys: &[&str]| refuse(reader, &catalogue, error, keys);
    let disk = catalogue.disk_type(&kind).map_err(|error| refused(error, &["like"])).ok()?;
    let Some(machine) = machine.or_else(|| catalogue.machine_default.clone()) else {
        let help = "write the type of its machine, such as machine = \"n2-standard-8\"";
        reader.report().error(&reader.key_place("like"), "`like` without `machine`", help);
        return None;
    };
    if size.is_none() && disk.size_gb_each.is_none() {
        let help = "write the size of the disk, such as size = \"500GB\"";
        reader.report().error(&reader.key_place("like"), "`like` without `size`", help);
        return None;
    }
    let size_bytes = size.map_or(0, |size| size.value);
    let made = Configuration::new(&catalogue, &kind, size_bytes, &machine);
    let mut configuration = made.map_err(|error| refused(error, &["machine"])).ok()?;
    let fixed = catalogue.fixed_disks(&kind, &machine).unwrap_or(1);
    configuration.disks = disks.map_or(fixed, |disks| disks.value as u32);
    asked.settle(&catalogue, &mut configuration, refused).ok()?;
    let ceilings = catalogue.ceilings(&configuration).map_err(|error| refused(error, &[])).ok()?;
    let limit = limit(&catalogue, &configuration, &ceilings).map_err(|error| {
        let message = format!("{} of {kind} cannot be a limit", described(&configuration));
        reader.report().error(&reader.key_place("like"), message, error);
    });
    let numbers = limit.ok()?;
    let like = Some(Box::new(describe(&catalogue, &configuration)));
    let latency = ceilings.service_us.map(|(sure, _)| Duration::from_nanos((sure * 1e3) as u64));
    Some(LikeDisk { provisioned: Provisioned { numbers, like }, latency })
}

/// A mistake in what was asked, at the first of `keys` that is written, in the words of the file.
fn refuse(reader: &Reader<'_>, catalogue: &Catalogue, error: PlanError, keys: &[&str]) {
    let key = keys.iter().find(|key| reader.has(key)).unwrap_or(&"like");
    let (mut found, mut accepted) = match error {
        PlanError::Input { found, accepted } => (found, accepted),
        PlanError::NotKnown(what) => {
            let accepted = format!("{} has no limit of it: write the numbers", catalogue.name);
            (format!("not known: {what}"), accepted)
        }
    };
    for (option, name) in OPTIONS {
        found = found.replace(option, name);
        accepted = accepted.replace(option, name);
    }
    let place: Place = reader.key_place(key);
    reader.report().error(&place, found, accepted);
}

/// What else was asked of a disk.
struct Asked {
    regional: bool,
    tier1: bool,
    network_gbps: u64,
    provisioned_iops: Option<f64>,
    provisioned_bytes_per_s: Option<f64>,
}

impl Asked {
    /// Puts one after the other into the configuration, so that what cannot be had is told of the
    /// key that asked for it.
    fn settle(
        &self,
        catalogue: &Catalogue,
        configuration: &mut Configuration,
        refused: impl Fn(PlanError, &[&str]),
    ) -> Result<(), ()> {
        let site = |configuration: &Configuration, keys: &[&str]| {
            Site::of(catalogue, configuration).map_err(|error| refused(error, keys))
        };
        site(configuration, &["machine"])?;
        configuration.regional = self.regional;
        site(configuration, &["regional"])?;
        configuration.tier1 = self.tier1;
        site(configuration, &["tier1"])?;
        configuration.network_gbit_per_s = self.network_gbps as f64;
        let site = site(configuration, &["network_gbps"])?;
        match site.size_each() {
            Some(_) => {
                let keys = if configuration.size_bytes == 0 { "disks" } else { "size" };
                site.demand(configuration).map_err(|error| refused(error, &[keys]))?;
            }
            None => {
                let size = catalogue.units.size_of(configuration.size_bytes);
                site.check_size(size).map_err(|error| refused(error, &["size"]))?;
            }
        }
        configuration.provisioned_iops = self.provisioned_iops;
        if self.provisioned_iops.is_some() {
            site.demand(configuration).map_err(|error| refused(error, &["provisioned_iops"]))?;
        }
        configuration.provisioned_bytes_per_s = self.provisioned_bytes_per_s;
        let keys = ["provisioned_throughput"];
        site.demand(configuration).map(drop).map_err(|error| refused(error, &keys))
    }
}

/// Why a disk cannot be a limit.
#[derive(Debug, thiserror::Error)]
enum NoLimit {
    #[error("{0}")]
    Config(#[from] ConfigError),
    #[error("{0}")]
    Plan(#[from] PlanError),
}

/// The ceilings of a configuration as a limit.
fn limit(
    catalogue: &Catalogue,
    configuration: &Configuration,
    ceilings: &Ceilings,
) -> Result<Limit, NoLimit> {
    let site = Site::of(catalogue, configuration)?;
    let demand = site.demand(configuration)?;
    // What a machine has for reads and writes together is a budget beside theirs.
    let caps = site.hard_caps(&demand, MIN_BLOCK_BYTES);
    let together = |dimension| {
        let both = caps.iter().filter(|cap| cap.together && cap.dimension == dimension);
        both.filter_map(|cap| cap.read).min_by(f64::total_cmp)
    };
    let unit = catalogue.units.throughput_bytes() as f64;
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

/// A rate is a whole number a second.
fn whole(per_second: f64) -> u64 {
    per_second.round() as u64
}

fn budget(total: Option<f64>, most: (Option<f64>, Option<f64>), sharing: Sharing) -> Budget {
    let total = total.map(whole);
    let (read, write) = (most.0.map(whole), most.1.map(whole));
    let rates = match (read, write, sharing) {
        (Some(read), Some(write), Sharing::HalfDuplex | Sharing::Shared) if read == write => {
            // One number for both, and no more than what the machine has for both.
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

/// Writes that are larger than what has the most of them a second count as more than one.
fn write_size(ceilings: &Ceilings) -> Result<IoSize, ConfigError> {
    let Some(most) = ceilings.write_iops else { return Ok(IoSize::One) };
    let mut steps: Vec<IoStep> = Vec::new();
    // A row holds for blocks above those of the row before it.
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

fn described(configuration: &Configuration) -> String {
    match configuration.size_bytes {
        0 => format!("{} disks", configuration.disks),
        bytes => format_size(bytes),
    }
}

/// The disk for people: what its numbers rest on is asked of the model, for I/O of every kind that
/// meets another limit.
fn describe(catalogue: &Catalogue, configuration: &Configuration) -> Like {
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
            let Ok(found) = catalogue.predict(configuration, &workload) else { continue };
            let enforced = |limit: &&flagstone_cloud::Limit| {
                !matches!(limit.kind, LimitKind::Cpu | LimitKind::QueueDepth)
            };
            let binding = found.limits.iter().find(enforced);
            confidence = confidence.max(binding.map_or(Confidence::A, |limit| limit.confidence));
            found.not_known.into_iter().for_each(|what| {
                // What it costs is no matter here.
                if !what.contains("price") {
                    add(format!("not known: {what}"));
                }
            });
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
    let rule = catalogue.types.get(&configuration.kind).and_then(|disk| disk.mixing.as_ref());
    let rule = rule.map(|rule| catalogue.confidence_of(&rule.source, rule.confidence));
    let disks = match configuration.disks {
        1 => String::new(),
        many => format!("{many} x "),
    };
    let size = match configuration.size_bytes {
        0 => String::new(),
        bytes => format!("{} of ", format_size(bytes)),
    };
    let regional = if configuration.regional { "regional " } else { "" };
    Like {
        disk: format!(
            "{disks}{size}{regional}{} on {}",
            configuration.kind, configuration.machine.name
        ),
        catalogue: catalogue.name.clone(),
        date: catalogue.date.clone(),
        confidence: confidence.max(rule.unwrap_or(Confidence::A)),
        remarks,
    }
}
