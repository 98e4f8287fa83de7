//! Data protection: every target is inspected before anything writes to it.
//!
//! A disk that is in use (mounted, swap, part of another device) is never written to. A disk with
//! data is written to only with the user's explicit consent. A file is free if this program made
//! it, which a marker beside it records ([`marker`]), and if it is still the same file.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use flagstone_host::inspect::{InspectTarget as Kind, Use, UseKind};
use flagstone_host::{DeviceUse, inspect};
use flagstone_units::size_text;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::target::{BenchTarget, DiskAddress};

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Marker {
    made_by: String,
    device: u64,
    inode: u64,
}

const MADE_BY: &str = "flagstone bench";
const MARKER_BYTES: u64 = 4096;

/// Path of the marker beside a file.
pub fn marker(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".flagstone-bench");
    PathBuf::from(name)
}

/// Writes the marker of a file.
///
/// # Errors
/// The system's.
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

/// State of a disk that may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardVerdict {
    /// A file that does not exist yet.
    Absent,
    /// It may be written to.
    Free,
}

/// Checks all disks of a target. `destroy` are the addresses of disks whose data may be destroyed,
/// exactly as written.
///
/// # Errors
/// [`Error::Guarded`] with the findings.
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
    let refused = |found: String, recommendation: String| {
        Err(Error::Guarded { target: name.clone(), found, recommendation })
    };
    let Some(path) = disk.path() else {
        if writes && !agreed {
            let recommendation = format!("if its data may be destroyed, say --destroy-data={name}");
            return refused(
                "a served volume cannot be looked into from here".to_owned(),
                recommendation,
            );
        }
        return Ok(GuardVerdict::Free);
    };
    let found = match inspect(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound && !path.starts_with("/dev") => {
            return Ok(GuardVerdict::Absent);
        }
        Err(error) => return refused(error.to_string(), "nothing was done".to_owned()),
    };
    if found.target == Kind::Other {
        return refused(
            "it is neither a block device nor a regular file".to_owned(),
            "name a device or a file".to_owned(),
        );
    }
    if !writes {
        return Ok(GuardVerdict::Free);
    }
    if let Some(use_) = found.uses.iter().find(|use_| is_in_progress(use_)) {
        return refused(
            use_.to_string(),
            "free it first: what is in use is never written to".to_owned(),
        );
    }
    match holds(&found) {
        Some(what) if !agreed => {
            refused(what, format!("if its data may be destroyed, say --destroy-data={name}"))
        }
        _ => Ok(GuardVerdict::Free),
    }
}

fn is_in_progress(use_: &Use) -> bool {
    !matches!(use_.kind, UseKind::Partitions { .. } | UseKind::Signature { .. })
}

fn holds(found: &DeviceUse) -> Option<String> {
    match found.target {
        Kind::File { .. } if is_ours(&found.path) => None,
        Kind::File { size_bytes } if size_bytes > 0 => {
            let mut all =
                vec![format!("a file of {} that bench did not make", size_text(size_bytes))];
            all.extend(found.reasons());
            Some(all.join("; "))
        }
        _ if found.is_free() => None,
        _ => Some(found.reasons().join("; ")),
    }
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
        assert!(
            error.contains("bench did not make") && error.contains("--destroy-data="),
            "{error}"
        );
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
        let served = DiskAddress::Nbd("nbd://h/e".to_owned());
        assert!(judge(&served, true, &[]).is_err() && judge(&served, false, &[]).is_ok());
        assert!(judge(&served, true, &["nbd://h/e".to_owned()]).is_ok());
    }
}
