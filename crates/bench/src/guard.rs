//! Data protection: every target passes [`flagstone_host::guard`] before anything writes to it.
//!
//! A file that bench made, and that nothing else has changed, is free ([`crate::own_file`]). A
//! served volume is opened and surveyed, as `flagstone load` does.

use std::path::Path;

pub use flagstone_host::guard::GuardVerdict;
use flagstone_host::guard::{Guarded, GuardedAccess, check_path};

use crate::error::Error;
use crate::own_file::{Ownership, ownership};
use crate::served;
use crate::target::{BenchTarget, DiskAddress};

/// Checks a file or device that is written to. `agreed` is the consent to destroy its data.
///
/// # Errors
/// It is in use, or has data without consent.
pub fn check_write(name: &str, path: &Path, agreed: bool) -> Result<GuardVerdict, Guarded> {
    let owner = ownership(path);
    let access = GuardedAccess::Write { agreed, own_file: owner == Ownership::Ours };
    check_path(name, path, access).map_err(|mut guarded| {
        if owner == Ownership::Changed {
            guarded.found += "; bench made it, but it has changed since its last run ended";
        }
        guarded
    })
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
    Ok(match writes {
        true => check_write(&name, path, agreed)?,
        false => check_path(&name, path, GuardedAccess::Read)?,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::own_file;

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
    fn changed_own_file_needs_consent() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ours");
        fs::write(&path, "data").unwrap();
        own_file::mark(&path).unwrap();
        if !own_file::marker(&path).exists() {
            return;
        }
        assert_eq!(judged(&path, true, &[]).unwrap(), GuardVerdict::Free);
        fs::write(&path, "precious").unwrap();
        let error = judged(&path, true, &[]).unwrap_err().to_string();
        assert!(error.contains("bench made it, but it has changed"), "{error}");
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
