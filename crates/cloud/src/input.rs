//! Planner input: a workload, and the disks and machine that carry it.

use flagstone_units::nearest_name;
use serde::Serialize;

use crate::catalog::{Catalog, MachineFamily, NamePattern};
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
        self.known_machine(family_name, family, name).ok_or_else(|| {
            let meant = self.nearest_machine(family_name, family, name);
            let meant = meant.map(|name| format!("did you mean `{name}`? ")).unwrap_or_default();
            let accepted = meant + &machines_of(family_name, family);
            PlanError::input(format!("no machine `{}`", shown(name)), accepted)
        })
    }

    /// A machine of a family that exists as far as the catalog knows.
    fn known_machine(
        &self,
        family_name: &str,
        family: &MachineFamily,
        name: &str,
    ) -> Option<Machine> {
        let machine =
            |vcpus| Machine { name: name.to_owned(), family: family_name.to_owned(), vcpus };
        if family.names(name) {
            return Some(machine(None));
        }
        let words: Vec<&str> = name.split('-').skip(1).collect();
        let vcpus = words.get(1).and_then(|word| number(word))?;
        let within = family.vcpus_most().is_none_or(|most| vcpus <= most);
        let exists = family.vcpus.as_ref().map_or(within, |all| all.contains(&vcpus));
        let is_kind = |kind: &str| self.kinds_of(family_name, family).contains(&kind);
        let is_known = match words.as_slice() {
            ["custom", _] => family.custom && within,
            ["custom", _, memory] | ["custom", _, memory, "ext"] => {
                family.custom && within && number(memory).is_some()
            }
            [_, _] if self.lists_all(family_name, family) => {
                exists && self.named_machines(family_name).any(|known| known == name)
            }
            [kind, _] => exists && is_kind(kind),
            // An addition, such as `-lssd`, makes another machine.
            [kind, _, _] => {
                let mut patterns = self.patterns(family_name);
                exists && is_kind(kind) && patterns.any(|pattern| pattern.matches(name))
            }
            _ => false,
        };
        is_known.then(|| machine(Some(vcpus)))
    }

    /// Patterns of a family's machines in the tables of the catalog.
    fn patterns<'a>(&'a self, family: &str) -> impl Iterator<Item = &'a NamePattern> {
        let of_families = self.families.values().flat_map(|family| {
            let local = family.local_ssd.iter().flat_map(|local| &local.rows);
            let egress = family.egress.iter().filter_map(|row| row.machine.as_ref());
            egress.chain(local.filter_map(|row| row.machine.as_ref()))
        });
        let per_vm = self.per_vm.iter().flat_map(|table| &table.rows);
        let per_count = self.per_count.iter().flat_map(|table| &table.rows);
        let prefix = format!("{family}-");
        of_families
            .chain(per_vm.filter_map(|row| row.machine.as_ref()))
            .chain(per_count.filter_map(|row| row.machine.as_ref()))
            .filter(move |pattern| pattern.0.starts_with(&prefix))
    }

    /// Machines of a family that the tables name in full.
    pub(crate) fn named_machines<'a>(&'a self, family: &str) -> impl Iterator<Item = &'a str> {
        self.patterns(family).map(|pattern| pattern.0.as_str()).filter(|name| !name.contains('*'))
    }

    /// Kinds of a family's machines, such as `standard`: the kinds that the tables name, and the
    /// usual ones unless the tables list every machine.
    pub(crate) fn kinds_of(&self, family_name: &str, family: &MachineFamily) -> Vec<&str> {
        let named = self.named_machines(family_name).filter(|name| !family.names(name));
        let mut kinds: Vec<&str> = named.filter_map(|name| name.split('-').nth(1)).collect();
        if kinds.is_empty() && family_name.starts_with('m') {
            kinds.extend(MEMORY_KINDS);
        } else if !self.lists_all(family_name, family) {
            kinds.extend(USUAL_KINDS);
        }
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    }

    /// Whether the tables list every machine of a family: they name some, and none of a usual kind.
    pub(crate) fn lists_all(&self, family_name: &str, family: &MachineFamily) -> bool {
        let named = || self.named_machines(family_name).filter(|name| !family.names(name));
        let is_usual = |name: &str| name.split('-').any(|word| USUAL_KINDS.contains(&word));
        named().next().is_some() && !named().any(is_usual)
    }

    /// The machine that a wrong name may mean.
    fn nearest_machine(
        &self,
        family_name: &str,
        family: &MachineFamily,
        name: &str,
    ) -> Option<String> {
        let counts = family.vcpus.iter().flatten();
        let written = name.split('-').filter_map(number).map(Some);
        let counts: Vec<u32> = written.flatten().chain(counts.copied()).collect();
        let kinds = self.kinds_of(family_name, family);
        let plain = counts.iter().flat_map(|count| {
            kinds.iter().map(move |kind| format!("{family_name}-{kind}-{count}"))
        });
        let patterns = self
            .patterns(family_name)
            .flat_map(|pattern| kinds.iter().map(|kind| pattern.0.replacen('*', kind, 1)));
        let known = plain.chain(patterns).chain(family.machines.iter().cloned());
        let known: Vec<String> =
            known.filter(|name| self.known_machine(family_name, family, name).is_some()).collect();
        let names = || known.iter().map(String::as_str);
        // A name with a wrong addition starts with the machine's.
        let longest = || {
            let starts = names().filter(|known| name.starts_with(&format!("{known}-")));
            starts.max_by_key(|known| known.len())
        };
        let standard = || names().find(|known| known.contains("-standard-"));
        let found = nearest_name(name, names()).or_else(longest).or_else(standard);
        found.or_else(|| names().next()).map(str::to_owned)
    }
}

/// Kinds of machines that most families have.
const USUAL_KINDS: &[&str] = &["highcpu", "highmem", "standard"];
/// Kinds of machines with most memory.
const MEMORY_KINDS: &[&str] = &["hypermem", "megamem", "ultramem"];

fn number(word: &str) -> Option<u32> {
    let is_number = word.bytes().all(|b| b.is_ascii_digit());
    word.parse().ok().filter(|n| is_number && *n > 0)
}

fn machines_of(name: &str, family: &MachineFamily) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invented_machines_are_refused() {
        let current = Catalog::builtin("gcp-current").unwrap();
        for (name, meant) in [
            ("n2-banana-8", "n2-standard-8"),
            ("n2-stadnart-16", "n2-standard-16"),
            ("n2-standard-8-metal", "n2-standard-8"),
            ("c3-standard-88-lsd", "c3-standard-88-lssd"),
            ("n2-8", "n2-standard-8"),
            ("m1-standard-40", "m1-ultramem-40"),
            ("e2-standard-8-micro", "e2-standard-8"),
        ] {
            let error = current.machine(name).unwrap_err().to_string();
            assert!(error.contains(&format!("did you mean `{meant}`?")), "{name}: {error}");
        }
        for name in [
            "n2-highcpu-8",
            "n1-custom-6-12288",
            "n2-custom-6-12288-ext",
            "c3-standard-192-metal",
            "c3-highcpu-192-metal",
            "z3-highmem-88-highlssd",
            "c4-standard-288-lssd",
            "m1-ultramem-40",
            "m4-megamem-56",
            "e2-medium",
            "a2-ultragpu-8g",
        ] {
            assert!(current.machine(name).is_ok(), "{name}");
        }
        for name in ["n2-custom-6-many", "n2-custom-6-1-2", "c2-custom-4-8", "n2-standard-7"] {
            assert!(current.machine(name).is_err(), "{name}");
        }
    }
}
