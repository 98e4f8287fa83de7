//! Planner input: a workload, and the disks and machine that carry it.

use flagstone_units::nearest_name;
use serde::Serialize;

use crate::catalog::Catalog;
use crate::limits::{MAX_BLOCK_BYTES, MAX_DEPTH, MAX_DISKS, MAX_SHOWN_CHARS, MIN_BLOCK_BYTES};

/// Reason for a missing result, in one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    #[error("{found}: {accepted}")]
    Input { found: String, accepted: String },
    #[error("not known: {0}")]
    NotKnown(String),
}

impl PlanError {
    pub(crate) fn input(found: impl Into<String>, accepted: impl Into<String>) -> PlanError {
        PlanError::Input { found: found.into(), accepted: accepted.into() }
    }
}

/// Order of the I/O offsets. No source has different limits for the two; only the recommendations
/// differ (streams, merging).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AccessOrder {
    Random,
    Sequential,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Workload {
    pub block_bytes: u64,
    pub read_percent: u8,
    pub access: AccessOrder,
    /// I/Os in flight of each job; enough for every limit if `None`.
    pub depth: Option<u32>,
    /// Jobs, each with `depth` in flight.
    pub jobs: u32,
}

impl Workload {
    /// Random I/O of one block size, deep enough for every limit.
    pub fn random(block_bytes: u64, read_percent: u8) -> Workload {
        Workload { block_bytes, read_percent, access: AccessOrder::Random, depth: None, jobs: 1 }
    }

    /// I/Os in flight of all jobs; `None` for enough for every limit.
    pub fn in_flight(&self) -> Option<u64> {
        self.depth.map(|depth| u64::from(depth) * u64::from(self.jobs))
    }

    pub fn read_part(&self) -> f64 {
        f64::from(self.read_percent) / 100.0
    }

    pub fn check(&self) -> Result<(), PlanError> {
        check_block(self.block_bytes)?;
        if self.read_percent > 100 {
            let found = format!("{} reads among a hundred", self.read_percent);
            return Err(PlanError::input(found, "write a number from 0 to 100"));
        }
        match self.in_flight() {
            Some(in_flight) if !(1..=u64::from(MAX_DEPTH)).contains(&in_flight) => {
                let found = format!("{in_flight} I/Os in flight");
                Err(PlanError::input(found, format!("write a depth from 1 to {MAX_DEPTH}")))
            }
            _ => Ok(()),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// Such as `n2-standard-8`.
    pub name: String,
    /// Such as `n2`.
    pub family: String,
    /// vCPUs; `None` if neither the name nor the catalog says.
    pub vcpus: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DiskConfiguration {
    /// Type of the disks, such as `pd-ssd`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Bytes of each disk; 0 for local SSDs, whose size follows from the type.
    pub size_bytes: u64,
    pub disks: u32,
    pub machine: Machine,
    pub regional: bool,
    pub other_egress_gbit_per_s: f64,
    pub tier1_networking: bool,
    /// IOPS bought for each disk, for types that sell them; the type's default if `None`.
    pub provisioned_iops: Option<f64>,
    /// Throughput bought for each disk, in bytes a second; the type's default if `None`.
    pub provisioned_bytes_per_s: Option<f64>,
}

impl DiskConfiguration {
    /// One zonal disk on a machine without other egress.
    ///
    /// # Errors
    /// A type or machine that the catalog lacks.
    pub fn new(
        catalog: &Catalog,
        kind: &str,
        size_bytes: u64,
        machine: &str,
    ) -> Result<DiskConfiguration, PlanError> {
        catalog.disk_type(kind)?;
        Ok(DiskConfiguration {
            kind: kind.to_owned(),
            size_bytes,
            disks: 1,
            machine: catalog.machine(machine)?,
            regional: false,
            other_egress_gbit_per_s: 0.0,
            tier1_networking: false,
            provisioned_iops: None,
            provisioned_bytes_per_s: None,
        })
    }

    pub(crate) fn check_numbers(&self) -> Result<(), PlanError> {
        if !(1..=MAX_DISKS).contains(&self.disks) {
            let found = format!("{} disks", self.disks);
            return Err(PlanError::input(found, format!("write a number from 1 to {MAX_DISKS}")));
        }
        for (what, value) in [
            ("Gbit/s of other traffic", Some(self.other_egress_gbit_per_s)),
            ("provisioned IOPS", self.provisioned_iops),
            ("bytes a second provisioned", self.provisioned_bytes_per_s),
        ] {
            if value.is_some_and(|value| !value.is_finite() || value < 0.0) {
                let found = format!("{} {what}", value.unwrap_or(0.0));
                return Err(PlanError::input(found, "write a number from 0"));
            }
        }
        Ok(())
    }
}

pub(crate) fn check_block(bytes: u64) -> Result<(), PlanError> {
    let found = || format!("a block of {bytes} bytes");
    let fits = (MIN_BLOCK_BYTES..=MAX_BLOCK_BYTES).contains(&bytes);
    fits.then_some(()).ok_or_else(|| PlanError::input(found(), "write a size from 512 to 32MiB"))
}

/// Input quoted in a message: on one line, truncated.
pub(crate) fn shown(text: &str) -> String {
    text.chars().take(MAX_SHOWN_CHARS).map(|c| if c.is_control() { '?' } else { c }).collect()
}

pub(crate) fn listed<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    words.into_iter().collect::<Vec<_>>().join(", ")
}

impl Catalog {
    /// Looks up a disk type.
    ///
    /// # Errors
    /// The type is unknown; the message lists the known ones.
    pub fn disk_type(&self, name: &str) -> Result<&crate::catalog::DiskType, PlanError> {
        self.types.get(name).ok_or_else(|| {
            let known = || self.types.keys().map(String::as_str);
            let meant = nearest_name(name, known()).map(|name| format!("did you mean `{name}`? "));
            PlanError::input(
                format!("unknown type of disk `{}`", shown(name)),
                format!("{}{} has {}", meant.unwrap_or_default(), self.name, listed(known())),
            )
        })
    }

    /// Parses a machine name: family, kind and vCPUs, such as `n2-standard-8`,
    /// `c3-standard-88-lssd`, `n1-custom-6-12288` or `a2-highgpu-1g`.
    ///
    /// # Errors
    /// The catalog lacks the family, or the family lacks the machine.
    pub fn machine(&self, name: &str) -> Result<Machine, PlanError> {
        let mut words = name.split('-');
        let family_name = words.next().unwrap_or("");
        let plain = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        let Some(family) = self.families.get(family_name).filter(|_| plain) else {
            let found = format!("unknown machine `{}`", shown(name));
            let families = listed(self.families.keys().map(String::as_str));
            let accepted = format!(
                "write a family, its kind and its vCPUs, such as n2-standard-8; {} has {families}",
                self.name
            );
            return Err(PlanError::input(found, accepted));
        };
        let machine =
            |vcpus| Machine { name: name.to_owned(), family: family_name.to_owned(), vcpus };
        if family.machines.iter().any(|known| known == name) {
            return Ok(machine(None));
        }
        let custom = name.split('-').nth(1) == Some("custom");
        let number = |word: &&str| word.bytes().all(|b| b.is_ascii_digit()) && !word.is_empty();
        let digits = match custom {
            true => name.split('-').nth(2).filter(|word| number(word)),
            false => name.rsplit('-').find(number),
        };
        let vcpus = digits.and_then(|digits| digits.parse::<u32>().ok()).filter(|n| *n > 0);
        let most = family.vcpus_most();
        let within = |n: &u32| most.is_none_or(|most| *n <= most);
        let exists = |n: &u32| match &family.vcpus {
            Some(all) if !(custom && family.custom) => all.contains(n),
            _ => within(n) && (!custom || family.custom),
        };
        match vcpus.filter(exists) {
            Some(vcpus) => Ok(machine(Some(vcpus))),
            None => Err(PlanError::input(
                format!("no machine `{}`", shown(name)),
                machines_of(family_name, family),
            )),
        }
    }
}

fn machines_of(name: &str, family: &crate::catalog::MachineFamily) -> String {
    let mut parts = Vec::new();
    match (&family.vcpus, family.vcpus_max) {
        (Some(all), _) => {
            let all: Vec<_> = all.iter().map(u32::to_string).collect();
            parts.push(format!("{name} has {} vCPUs", all.join(", ")));
        }
        (None, Some(most)) => parts.push(format!("{name} has 1 to {most} vCPUs")),
        (None, None) => {}
    }
    if !family.machines.is_empty() {
        parts.push(format!("write {}", family.machines.join(", ")));
    }
    if parts.is_empty() {
        parts.push(format!("write {name}-standard-N with its vCPUs"));
    }
    parts.join("; ")
}
