//! Same disks: other names of a disk, and the disks below and above it that have the same bytes.
//!
//! A multipath device and its paths are one disk. So are several paths without a multipath device.

use std::collections::BTreeSet;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use flagstone_host::root::Root;

/// Device number of a disk, or the identity of a file in its place.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let found = path.metadata().ok()?;
    Some(match found.file_type().is_block_device() {
        true => (0, found.rdev()),
        false => (found.dev(), found.ino()),
    })
}

/// Names of the disks with these paths, and of disks with the same bytes: below or above them, such
/// as the paths of a multipath device; with the same world-wide name; or the same partition of one
/// disk.
pub(super) fn same_disks(root: &Root, paths: &[String]) -> BTreeSet<String> {
    let names = root.list("/sys/class/block").unwrap_or_default();
    let files: Vec<_> = paths.iter().filter_map(|path| identity(Path::new(path))).collect();
    let is_own = |name: &&String| {
        identity(&root.locate(&format!("/dev/{name}"))).is_some_and(|disk| files.contains(&disk))
    };
    let own: BTreeSet<String> = names.iter().filter(is_own).cloned().collect();
    // Start from the pool's own disks in each direction: disks above a disk below one are its
    // siblings, with other bytes.
    let mut same: BTreeSet<String> = ["slaves", "holders"]
        .into_iter()
        .flat_map(|relation| related(root, own.clone(), relation))
        .collect();
    let known: BTreeSet<String> = same.iter().filter_map(|name| wwid(root, name)).collect();
    let of_own: Vec<Partition> =
        same.iter().filter_map(|name| Partition::read(root, name)).collect();
    let is_same = |name: &String| {
        wwid(root, name).is_some_and(|own| known.contains(&own))
            || Partition::read(root, name)
                .is_some_and(|other| of_own.iter().any(|own| own.is_same(&other)))
    };
    same.extend(names.into_iter().filter(is_same));
    same
}

/// A partition. It has no world-wide name.
struct Partition {
    /// Names and world-wide names of the partitioned disk.
    disk: BTreeSet<String>,
    number: String,
    /// First sector; `None` for a partition of the device mapper.
    start: Option<String>,
}

impl Partition {
    fn read(root: &Root, name: &str) -> Option<Partition> {
        let read = |file| root.read(&format!("/sys/class/block/{name}/{file}")).ok();
        let (disks, number, start) = if let Some(number) = read("partition") {
            let path = root.locate(&format!("/sys/class/block/{name}")).canonicalize().ok()?;
            let disk = path.parent()?.file_name()?.to_str()?.to_owned();
            (BTreeSet::from([disk]), number, Some(read("start")?))
        } else {
            // Partition made by kpartx: `part1-mpath-` and the name of the disk.
            let uuid = read("dm/uuid")?;
            let (number, _) = uuid.strip_prefix("part")?.split_once('-')?;
            let below = related(root, BTreeSet::from([name.to_owned()]), "slaves");
            let disks = below.into_iter().filter(|disk| disk != name).collect();
            (disks, number.to_owned(), None)
        };
        let wwids: Vec<String> = disks.iter().filter_map(|disk| wwid(root, disk)).collect();
        Some(Partition { disk: disks.into_iter().chain(wwids).collect(), number, start })
    }

    fn is_same(&self, other: &Partition) -> bool {
        let is_same_place = match (&self.start, &other.start) {
            (Some(own), Some(other)) => own == other,
            _ => self.number == other.number,
        };
        is_same_place && !self.disk.is_disjoint(&other.disk)
    }
}

/// These disks, and all that the relation leads to.
fn related(root: &Root, mut disks: BTreeSet<String>, relation: &str) -> BTreeSet<String> {
    let mut open: Vec<String> = disks.iter().cloned().collect();
    while let Some(name) = open.pop() {
        let next = root.list(&format!("/sys/class/block/{name}/{relation}"));
        open.extend(next.unwrap_or_default().into_iter().filter(|name| disks.insert(name.clone())));
    }
    disks
}

/// World-wide name of a disk.
fn wwid(root: &Root, name: &str) -> Option<String> {
    let read = |file| root.read(&format!("/sys/class/block/{name}/{file}")).ok();
    read("wwid").or_else(|| read("device/wwid")).filter(|wwid| !wwid.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use tempfile::TempDir;

    struct Machine(TempDir);

    impl Machine {
        /// Machine with these disks, and partitions such as `sda/sda1`.
        fn new(paths: &[&str]) -> Machine {
            let machine = Machine(tempfile::tempdir().unwrap());
            for directory in ["sys/class/block", "sys/devices", "dev"] {
                std::fs::create_dir_all(machine.file(directory)).unwrap();
            }
            for path in paths {
                let name = path.split('/').next_back().unwrap();
                std::fs::create_dir_all(machine.file(&format!("sys/devices/{path}"))).unwrap();
                let link = machine.file(&format!("sys/class/block/{name}"));
                symlink(format!("../../devices/{path}"), link).unwrap();
                std::fs::write(machine.file(&format!("dev/{name}")), "").unwrap();
            }
            machine
        }

        fn file(&self, path: &str) -> std::path::PathBuf {
            self.0.path().join(path)
        }

        fn set(&self, name: &str, attribute: &str, text: &str) {
            let path = self.file(&format!("sys/class/block/{name}/{attribute}"));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }

        /// Makes `upper` a device on top of `lower`.
        fn stack(&self, upper: &str, lower: &str) {
            self.set(upper, &format!("slaves/{lower}"), "");
            self.set(lower, &format!("holders/{upper}"), "");
        }

        fn partition(&self, name: &str, number: u32, start: u64) {
            self.set(name, "partition", &format!("{number}\n"));
            self.set(name, "start", &format!("{start}\n"));
        }

        fn same(&self, name: &str) -> Vec<String> {
            let path = self.file(&format!("dev/{name}")).to_str().unwrap().to_owned();
            same_disks(&Root::new(self.0.path()), &[path]).into_iter().collect()
        }
    }

    #[test]
    fn siblings_of_a_logical_volume_are_other_disks() {
        let machine = Machine::new(&["sda", "sda/sda1", "dm-0", "dm-1"]);
        machine.stack("dm-0", "sda1");
        machine.stack("dm-1", "sda1");
        assert_eq!(machine.same("dm-0"), ["dm-0", "sda1"]);
        assert_eq!(machine.same("sda1"), ["dm-0", "dm-1", "sda1"]);
    }

    #[test]
    fn partition_is_the_same_on_every_path_of_its_disk() {
        let paths = ["sda", "sdb", "sdc", "sda/sda1", "sda/sda2", "sdb/sdb1", "sdb/sdb2"];
        let machine = Machine::new(&[&paths[..], &["sdc/sdc1"]].concat());
        for (disk, wwid) in [("sda", "naa.1"), ("sdb", "naa.1"), ("sdc", "naa.2")] {
            machine.set(disk, "device/wwid", wwid);
        }
        for disk in ["sda", "sdb"] {
            machine.partition(&format!("{disk}1"), 1, 2048);
            machine.partition(&format!("{disk}2"), 2, 1 << 20);
        }
        machine.partition("sdc1", 1, 2048);
        assert_eq!(machine.same("sda1"), ["sda1", "sdb1"]);
    }

    #[test]
    fn partition_of_a_multipath_device_is_on_its_paths() {
        let paths = ["sda", "sdb", "sdc", "sda/sda1", "sda/sda2", "sdb/sdb1", "sdc/sdc1"];
        let machine = Machine::new(&[&paths[..], &["dm-0", "dm-1", "dm-2"]].concat());
        for (name, number) in [("sda1", 1), ("sda2", 2), ("sdb1", 1), ("sdc1", 1)] {
            machine.partition(name, number, 2048 * u64::from(number));
        }
        for (upper, lower) in [("dm-0", "sda"), ("dm-0", "sdb"), ("dm-1", "dm-0"), ("dm-2", "dm-0")]
        {
            machine.stack(upper, lower);
        }
        machine.set("dm-1", "dm/uuid", "part1-mpath-naa.1\n");
        machine.set("dm-2", "dm/uuid", "part2-mpath-naa.1\n");
        assert_eq!(machine.same("dm-1"), ["dm-0", "dm-1", "sda", "sda1", "sdb", "sdb1"]);
    }
}
