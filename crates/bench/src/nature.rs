//! Whether a result is of a real disk: an emulated one must never be taken for it. Every table and
//! picture names what is not known to be real, beside its name.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::environment::{Disk, Environment};
use crate::target::Target;

/// What a result is of.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Nature {
    /// A device of this machine, or a file on one.
    Real,
    /// A volume that Flagstone or another server gives: what is behind it was not told.
    Served,
    /// Nobody noted it.
    #[default]
    Unknown,
    /// Memory: no disk at all.
    Memory,
    /// A volume that acts as another disk, by emulated latency, delays or faults.
    Emulated,
}

impl Nature {
    /// What follows the name of such a thing.
    pub fn suffix(self) -> &'static str {
        match self {
            Nature::Real => "",
            Nature::Served => " [served]",
            Nature::Unknown => " [origin unknown]",
            Nature::Memory => " [MEMORY]",
            Nature::Emulated => " [EMULATED]",
        }
    }

    /// A sentence to be read before the numbers; `None` of real disks.
    pub fn warning(self) -> Option<&'static str> {
        match self {
            Nature::Real => None,
            Nature::Served => Some(
                "a served volume; what is behind it was not told (--stack, --emulated), so it may be \
                 emulated",
            ),
            Nature::Unknown => {
                Some("of a kind that was not noted, so it may be emulated or in memory")
            }
            Nature::Memory => Some("in memory: it says nothing of any disk"),
            Nature::Emulated => {
                Some("EMULATED: made to act like a disk, and no measurement of a real one")
            }
        }
    }

    /// Of a disk as it was found, and of what was told of it.
    pub fn of_disk(disk: &Disk, told: Option<&Origin>) -> Nature {
        if let Some(told) = told {
            return told.nature;
        }
        let device = disk.device.as_deref().unwrap_or_default();
        let mount = disk.mount.as_deref().unwrap_or_default();
        let in_memory =
            ["ram", "zram", "nullb", "pmem"].iter().any(|kind| device.starts_with(kind))
                || mount.starts_with("tmpfs ")
                || mount.starts_with("ramfs ");
        // What the kernel attached over a network says whose it is.
        let is_ours = disk.model.as_deref().is_some_and(|model| model.starts_with("Flagstone"));
        match disk.kind.as_str() {
            _ if in_memory => Nature::Memory,
            "served" => Nature::Served,
            _ if is_ours || device.starts_with("nbd") => Nature::Served,
            "device" | "file" => Nature::Real,
            _ => Nature::Unknown,
        }
    }

    /// Of all disks of a target: the least real of them.
    pub fn of_target(
        target: &Target,
        environment: &Environment,
        origins: &BTreeMap<String, Origin>,
    ) -> Nature {
        let of = |disk: String| match environment.disks.get(&disk) {
            Some(found) => Nature::of_disk(found, origins.get(&disk)),
            None => origins.get(&disk).map_or(Nature::Unknown, |told| told.nature),
        };
        let all = target.disks.iter().map(|disk| of(disk.to_string()));
        all.max().unwrap_or_default()
    }
}

/// What the user told of a disk that cannot be looked into.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// What it is.
    pub nature: Nature,
    /// What it is made of, as its server is configured; may be empty.
    #[serde(default)]
    pub stack: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(kind: &str, device: &str, model: &str, mount: &str) -> Disk {
        let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Disk {
            kind: kind.to_owned(),
            device: text(device),
            model: text(model),
            mount: text(mount),
            ..Disk::default()
        }
    }

    #[test]
    fn what_is_found_is_judged() {
        for (found, nature) in [
            (disk("device", "nvme0n1", "Samsung", ""), Nature::Real),
            (disk("file", "sda", "", "ext4 rw"), Nature::Real),
            (disk("file", "", "", "tmpfs rw"), Nature::Memory),
            (disk("device", "zram0", "", ""), Nature::Memory),
            (disk("device", "nvme1n1", "Flagstone", ""), Nature::Served),
            (disk("device", "nbd0", "", ""), Nature::Served),
            (disk("served", "", "", ""), Nature::Served),
            (disk("", "", "", ""), Nature::Unknown),
        ] {
            assert_eq!(Nature::of_disk(&found, None), nature, "{found:?}");
            let told = Origin { nature: Nature::Emulated, stack: String::new() };
            assert_eq!(Nature::of_disk(&found, Some(&told)), Nature::Emulated);
        }
    }

    #[test]
    fn a_target_is_as_real_as_its_least_real_disk() {
        let target: Target = "x=/a,/b".parse().unwrap();
        let mut environment = Environment::default();
        environment.disks.insert("/a".to_owned(), disk("device", "sda", "", ""));
        assert_eq!(Nature::of_target(&target, &environment, &BTreeMap::new()), Nature::Unknown);
        environment.disks.insert("/b".to_owned(), disk("device", "sdb", "", ""));
        assert_eq!(Nature::of_target(&target, &environment, &BTreeMap::new()), Nature::Real);
        let told = Origin { nature: Nature::Emulated, stack: String::new() };
        let origins = BTreeMap::from([("/b".to_owned(), told)]);
        assert_eq!(Nature::of_target(&target, &environment, &origins), Nature::Emulated);
    }

    #[test]
    fn all_but_real_disks_are_marked() {
        for nature in [Nature::Served, Nature::Unknown, Nature::Memory, Nature::Emulated] {
            assert!(nature.suffix().starts_with(" [") && nature.warning().is_some());
        }
        assert_eq!((Nature::Real.suffix(), Nature::Real.warning()), ("", None));
    }
}
