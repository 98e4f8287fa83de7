//! Local SSD: whether a disk loses its content when its machine stops.

use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use crate::facts::is_lost_with_machine;
use crate::root::Root;

/// The model of the disk behind a path, a device or a file, if the disk loses its content when its
/// machine stops: a cloud's local SSD, or memory.
pub fn volatile_model(root: &Root, path: &Path) -> Option<String> {
    let found = std::fs::metadata(path).ok()?;
    let number = match found.file_type().is_block_device() {
        true => found.rdev(),
        false => found.dev(),
    };
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let of_number = root.locate(&format!("/sys/dev/block/{major}:{minor}"));
    let mut directory = std::fs::canonicalize(of_number).ok()?;
    if directory.join("partition").exists() {
        directory.pop();
    }
    let name = directory.file_name()?.to_str()?.to_owned();
    let model = std::fs::read_to_string(directory.join("device/model")).ok();
    let model = model.map(|model| model.trim().to_owned());
    is_lost_with_machine(&name, model.as_deref()).then(|| model.unwrap_or(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disk_behind_a_file_is_judged_by_its_model() {
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join("image");
        std::fs::write(&file, "").unwrap();
        let number = std::fs::metadata(&file).unwrap().dev();
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let root = scratch.path().join("root");
        let numbers = root.join("sys/dev/block");
        std::fs::create_dir_all(&numbers).unwrap();
        for (disk, model, expected) in [
            ("nvme0n1", Some("nvme_card"), Some("nvme_card")),
            ("nvme1n1", Some("nvme_card-pd"), None),
            (
                "nvme2n1",
                Some("Amazon EC2 NVMe Instance Storage"),
                Some("Amazon EC2 NVMe Instance Storage"),
            ),
            ("sda", Some("Samsung"), None),
            ("sdb", None, None),
            ("zram0", None, Some("zram0")),
        ] {
            let own = root.join("disks").join(disk);
            std::fs::create_dir_all(own.join("device")).unwrap();
            std::fs::create_dir_all(own.join("part")).unwrap();
            std::fs::write(own.join("part/partition"), "1").unwrap();
            if let Some(model) = model {
                std::fs::write(own.join("device/model"), format!("{model}   \n")).unwrap();
            }
            for target in [own.clone(), own.join("part")] {
                let link = numbers.join(format!("{major}:{minor}"));
                let _ = std::fs::remove_file(&link);
                std::os::unix::fs::symlink(&target, &link).unwrap();
                let found = volatile_model(&Root::new(&root), &file);
                assert_eq!(found.as_deref(), expected, "{}", target.display());
            }
        }
        assert_eq!(volatile_model(&Root::new(&root), &root.join("absent")), None);
    }
}
