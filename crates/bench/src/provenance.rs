//! Provenance of a result: real, served, in memory or emulated. Every table and picture marks
//! targets that are not known to be real disks.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::environment::{DiskKind, DiskRecord, Environment};
use crate::target::BenchTarget;

#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Provenance {
    /// A device of this machine, or a file on one.
    Real,
    /// A served volume with unknown devices behind it.
    Served,
    #[default]
    Unknown,
    Memory,
    /// A volume with emulated latency, delays or faults.
    Emulated,
}

impl Provenance {
    /// Mark behind a target's name; empty for real disks.
    pub fn suffix(self) -> &'static str {
        match self {
            Provenance::Real => "",
            Provenance::Served => " [served]",
            Provenance::Unknown => " [origin unknown]",
            Provenance::Memory => " [MEMORY]",
            Provenance::Emulated => " [EMULATED]",
        }
    }

    /// Warning above the results; `None` for real disks.
    pub fn warning(self) -> Option<&'static str> {
        match self {
            Provenance::Real => None,
            Provenance::Served => Some(
                "a served volume; what backs it is unknown (--stack, --emulated), so it may be \
                 emulated",
            ),
            Provenance::Unknown => {
                Some("of a kind that was not noted, so it may be emulated or in memory")
            }
            Provenance::Memory => Some("in memory: it says nothing of any disk"),
            Provenance::Emulated => {
                Some("EMULATED: made to act like a disk, and no measurement of a real one")
            }
        }
    }

    /// Provenance of a disk as it was found; the user's statement takes precedence.
    pub fn of_disk(disk: &DiskRecord, stated: Option<&Origin>) -> Provenance {
        if let Some(stated) = stated {
            return stated.provenance;
        }
        let device = disk.device.as_deref().unwrap_or_default();
        let mount = disk.mount.as_deref().unwrap_or_default();
        let in_memory =
            ["ram", "zram", "nullb", "pmem"].iter().any(|kind| device.starts_with(kind))
                || mount.starts_with("tmpfs ")
                || mount.starts_with("ramfs ");
        // The model of a disk attached over NVMe/TCP names its server.
        let is_ours = disk.model.as_deref().is_some_and(|model| model.starts_with("Flagstone"));
        match disk.kind {
            _ if in_memory => Provenance::Memory,
            DiskKind::Served => Provenance::Served,
            _ if is_ours || device.starts_with("nbd") => Provenance::Served,
            DiskKind::Device | DiskKind::File => Provenance::Real,
            DiskKind::Unknown => Provenance::Unknown,
        }
    }

    /// Provenance of a target: its least real disk's.
    pub(crate) fn of_target(
        target: &BenchTarget,
        environment: &Environment,
        origins: &BTreeMap<String, Origin>,
    ) -> Provenance {
        let of = |disk: String| match environment.disks.get(&disk) {
            Some(found) => Provenance::of_disk(found, origins.get(&disk)),
            None => origins.get(&disk).map_or(Provenance::Unknown, |origin| origin.provenance),
        };
        let all = target.disks.iter().map(|disk| of(disk.to_string()));
        all.max().unwrap_or_default()
    }
}

/// The user's statement on a disk that cannot be inspected.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    pub provenance: Provenance,
    #[serde(default)]
    pub stack: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(kind: DiskKind, device: &str, model: &str, mount: &str) -> DiskRecord {
        let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        DiskRecord {
            kind,
            device: text(device),
            model: text(model),
            mount: text(mount),
            ..DiskRecord::default()
        }
    }

    #[test]
    fn provenance_of_disk_kinds() {
        for (found, provenance) in [
            (disk(DiskKind::Device, "nvme0n1", "Samsung", ""), Provenance::Real),
            (disk(DiskKind::File, "sda", "", "ext4 rw"), Provenance::Real),
            (disk(DiskKind::File, "", "", "tmpfs rw"), Provenance::Memory),
            (disk(DiskKind::Device, "zram0", "", ""), Provenance::Memory),
            (disk(DiskKind::Device, "nvme1n1", "Flagstone", ""), Provenance::Served),
            (disk(DiskKind::Device, "nbd0", "", ""), Provenance::Served),
            (disk(DiskKind::Served, "", "", ""), Provenance::Served),
            (disk(DiskKind::Unknown, "", "", ""), Provenance::Unknown),
        ] {
            assert_eq!(Provenance::of_disk(&found, None), provenance, "{found:?}");
            let stated = Origin { provenance: Provenance::Emulated, stack: String::new() };
            assert_eq!(Provenance::of_disk(&found, Some(&stated)), Provenance::Emulated);
        }
    }

    #[test]
    fn target_has_provenance_of_least_real_disk() {
        let target: BenchTarget = "x=/a,/b".parse().unwrap();
        let mut environment = Environment::default();
        environment.disks.insert("/a".to_owned(), disk(DiskKind::Device, "sda", "", ""));
        assert_eq!(
            Provenance::of_target(&target, &environment, &BTreeMap::new()),
            Provenance::Unknown
        );
        environment.disks.insert("/b".to_owned(), disk(DiskKind::Device, "sdb", "", ""));
        assert_eq!(
            Provenance::of_target(&target, &environment, &BTreeMap::new()),
            Provenance::Real
        );
        let stated = Origin { provenance: Provenance::Emulated, stack: String::new() };
        let origins = BTreeMap::from([("/b".to_owned(), stated)]);
        assert_eq!(Provenance::of_target(&target, &environment, &origins), Provenance::Emulated);
    }

    #[test]
    fn provenance_marks_and_warnings() {
        for provenance in
            [Provenance::Served, Provenance::Unknown, Provenance::Memory, Provenance::Emulated]
        {
            assert!(provenance.suffix().starts_with(" [") && provenance.warning().is_some());
        }
        assert_eq!((Provenance::Real.suffix(), Provenance::Real.warning()), ("", None));
    }
}
