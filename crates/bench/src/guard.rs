//! Data protection: every target passes [`flagstone_host::guard`] before anything writes to it.
//!
//! A file is free if bench made it, which a marker beside it records ([`marker`]), and if it is
//! still the same file. A served volume is opened and surveyed, as `flagstone load` does.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

pub use flagstone_host::guard::GuardVerdict;
use flagstone_host::guard::{Guarded, GuardedAccess, check_path};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::served;
use crate::target::{BenchTarget, DiskAddress};

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Marker {
    made_by: String,
    device: u64,
    inode: u64,
}

const MADE_BY: &str = "flagstone bench";
const MARKER_BYTES: u64 = 4096;

pub fn marker(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".flagstone-bench");
    PathBuf::from(name)
}

pub fn mark(path: &Path) -> Result<(), Error> {
    let metadata = fs::metadata(path).map_err(Error::file("cannot look at", path))?;
    let note =
        Marker { made_by: MADE_BY.to_owned(), device: metadata.dev(), inode: metadata.ino() };
    let text = serde_json::to_string(&note).expect("a note is always JSON") + "\n";
    let beside = marker(path);
    fs::write(&beside, text).map_err(Error::file("cannot write", beside))
}

/// Whether the marker names exactly this file.
pub fn is_ours(path: &Path) -> bool {
    let Ok(text) = crate::os::read_text(&marker(path), MARKER_BYTES) else { return false };
    let Ok(note) = serde_json::from_str::<Marker>(&text) else { return false };
    let same = |m: fs::Metadata| (m.dev(), m.ino()) == (note.device, note.inode);
    note.made_by == MADE_BY && fs::metadata(path).is_ok_and(same)
}

/// Checks all disks of a target. `destroy` are the addresses of disks whose data may be destroyed,
/// exactly as written.
pub fn check(
    target: &BenchTarget,
    writes: bool,
    destroy: &[String],
) -> Result<Vec<GuardVerdict>, Error> {
    target.disks.iter().map(|disk| judge(disk, writes, destroy)).collect()
}

fn judge(disk: &DiskAddress, writes: bool, destroy: &[String]) -> Result<GuardVerdict, Error> {
    let name = disk.to_string();
    let agreed = destroy.contains(&name);
    let Some(path) = disk.path() else {
        let found = if writes && !agreed { served::data_of(&name) } else { None };
        return match found {
            Some(found) => Err(Guarded::needs_consent(&name, found).into()),
            None => Ok(GuardVerdict::Free),
        };
    };
    let access = match writes {
        true => GuardedAccess::Write { agreed, own_file: is_ours(path) },
        false => GuardedAccess::Read,
    };
    Ok(check_path(&name, path, access)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(path: &Path, writes: bool, destroy: &[String]) -> Result<GuardVerdict, Error> {
        judge(&DiskAddress::Path(path.to_owned()), writes, destroy)
    }

    #[test]
    fn foreign_file_needs_destroy_consent() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("precious");
        assert_eq!(judged(&path, true, &[]).unwrap(), GuardVerdict::Absent);
        fs::write(&path, "data").unwrap();
        let error = judged(&path, true, &[]).unwrap_err().to_string();
        assert!(error.contains("with data") && error.contains("--destroy-data="), "{error}");
        assert!(judged(&path, true, &["precious".to_owned()]).is_err(), "not the exact name");
        assert_eq!(judged(&path, true, &[path.display().to_string()]).unwrap(), GuardVerdict::Free);
        assert_eq!(judged(&path, false, &[]).unwrap(), GuardVerdict::Free, "reads destroy nothing");
    }

    #[test]
    fn marker_belongs_to_one_inode() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ours");
        fs::write(&path, "data").unwrap();
        mark(&path).unwrap();
        assert_eq!(judged(&path, true, &[]).unwrap(), GuardVerdict::Free);
        // Another file with that name, while the first one still has its inode.
        let other = directory.path().join("other");
        fs::write(&other, "precious").unwrap();
        fs::rename(&path, directory.path().join("kept")).unwrap();
        fs::rename(&other, &path).unwrap();
        assert!(judged(&path, true, &[]).is_err());
    }

    #[test]
    fn guard_directory_missing_device_served_volume() {
        let directory = tempfile::tempdir().unwrap();
        assert!(judged(directory.path(), false, &[]).is_err());
        assert!(judged(Path::new("/dev/no-such-device"), true, &[]).is_err(), "no file in /dev");
        assert!(judged(Path::new("/dev/null"), false, &[]).is_err());
        let served = DiskAddress::Nbd("nbd://127.0.0.1:1/e".to_owned());
        assert!(judge(&served, true, &[]).is_err() && judge(&served, false, &[]).is_ok());
        assert!(judge(&served, true, &["nbd://127.0.0.1:1/e".to_owned()]).is_ok());
    }
}
