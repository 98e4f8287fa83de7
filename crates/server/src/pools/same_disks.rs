//! Same disks: other names of a disk, and the disks below and above it, which have the same bytes.
//!
//! A multipath device and its paths are one disk, and so are several paths without it.

use std::collections::BTreeSet;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use flagstone_host::root::Root;

/// Number of a disk, or of the file in place of one.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let found = path.metadata().ok()?;
    Some(match found.file_type().is_block_device() {
        true => (0, found.rdev()),
        false => (found.dev(), found.ino()),
    })
}

/// Names of the disks with these paths, and of others that are the same: below or above them, such as
/// the paths of a multipath device, or with the same world-wide name.
pub(super) fn same_disks(root: &Root, paths: &[String]) -> BTreeSet<String> {
    let names = root.list("/sys/class/block").unwrap_or_default();
    let files: Vec<_> = paths.iter().filter_map(|path| identity(Path::new(path))).collect();
    let is_own = |name: &&String| {
        identity(&root.locate(&format!("/dev/{name}"))).is_some_and(|disk| files.contains(&disk))
    };
    let own: BTreeSet<String> = names.iter().filter(is_own).cloned().collect();
    // Each from the pool's own disks: above a disk below one are its siblings, which are other disks.
    let mut same: BTreeSet<String> = ["slaves", "holders"]
        .into_iter()
        .flat_map(|relation| related(root, own.clone(), relation))
        .collect();
    let known: BTreeSet<String> = same.iter().filter_map(|name| wwid(root, name)).collect();
    same.extend(
        names.into_iter().filter(|name| wwid(root, name).is_some_and(|own| known.contains(&own))),
    );
    same
}

/// Disks, and those that a relation leads to.
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
        /// Has these disks, and partitions of them such as `sda/sda1`.
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

        /// `upper` is made of `lower`.
        fn stack(&self, upper: &str, lower: &str) {
            self.set(upper, &format!("slaves/{lower}"), "");
            self.set(lower, &format!("holders/{upper}"), "");
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
}
