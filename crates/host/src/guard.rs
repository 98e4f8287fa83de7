//! Guard of data: whether a command may write to a device or file.
//!
//! A device in use (mounted, swap, part of another device) is never written to. A device with data
//! is written to only with the user's explicit consent, which names it exactly. A file without a
//! block of data, and a file that the caller made itself, are free. All commands that write use
//! this guard, with one message and one option, `--destroy-data`.

use std::fs::File;
use std::io::{self, Cursor};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use flagstone_units::exact_size;
use rustix::fs::{OFlags, SeekFrom};

use crate::inspect::{InspectTarget, UseKind, inspect, signatures};
use crate::{DeviceUse, inspect::Use};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuardedAccess {
    /// It only reads.
    Read,
    /// It writes, and destroys data.
    Write {
        /// The user has agreed to the loss of this target's data.
        agreed: bool,
        /// The caller made the file itself, so it holds no user's data.
        own_file: bool,
    },
}

/// State of a target that may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuardVerdict {
    /// A file that does not exist yet.
    Absent,
    /// It may be used as intended.
    Free,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{target} is not written to: {found}\n{advice}")]
pub struct Guarded {
    /// The target, as it was named.
    pub target: String,
    pub found: String,
    pub advice: String,
}

impl Guarded {
    /// A refusal that the user's consent lifts.
    pub fn needs_consent(target: &str, found: impl Into<String>) -> Guarded {
        let advice = format!("if its data may be destroyed, say --destroy-data={target}");
        Guarded { target: target.to_owned(), found: found.into(), advice }
    }
}

/// Checks a device or file. `name` is the target as the user named it.
pub fn check_path(name: &str, path: &Path, access: GuardedAccess) -> Result<GuardVerdict, Guarded> {
    let refused = |found: String, advice: &str| {
        Err(Guarded { target: name.to_owned(), found, advice: advice.to_owned() })
    };
    let found = match inspect(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound && !path.starts_with("/dev") => {
            return Ok(GuardVerdict::Absent);
        }
        Err(error) => return refused(error.to_string(), "nothing was done"),
    };
    if found.target == InspectTarget::Other {
        let what = "it is neither a block device nor a regular file".to_owned();
        return refused(what, "name a device or a file");
    }
    let GuardedAccess::Write { agreed, own_file } = access else { return Ok(GuardVerdict::Free) };
    if let Some(use_) = found.uses.iter().find(|use_| is_in_progress(use_)) {
        return refused(use_.to_string(), "free it first: what is in use is never written to");
    }
    if agreed {
        return Ok(GuardVerdict::Free);
    }
    match data_of(&found, own_file) {
        Some(what) => Err(Guarded::needs_consent(name, what)),
        None => Ok(GuardVerdict::Free),
    }
}

fn is_in_progress(use_: &Use) -> bool {
    !matches!(use_.kind, UseKind::Partitions { .. } | UseKind::Signature { .. })
}

/// Description of the data that a write would destroy; `None` without any.
fn data_of(found: &DeviceUse, own_file: bool) -> Option<String> {
    match found.target {
        InspectTarget::File { .. } if own_file || is_hole(&found.path) => None,
        InspectTarget::File { size_bytes } if size_bytes > 0 => {
            let what = format!("a file of {} with data", exact_size(size_bytes));
            Some(std::iter::once(what).chain(found.reasons()).collect::<Vec<_>>().join("; "))
        }
        InspectTarget::BlockDevice { .. } if found.is_free() => data_of_device(&found.path),
        _ if found.is_free() => None,
        _ => Some(found.reasons().join("; ")),
    }
}

/// Description of the data of a block device without a signature. Reads its start, and samples.
fn data_of_device(path: &Path) -> Option<String> {
    let unreadable = |error: io::Error| format!("it cannot be looked into: {error}");
    sampled(path).unwrap_or_else(|error| Some(unreadable(error)))
}

fn sampled(path: &Path) -> io::Result<Option<String>> {
    let mut device = File::options()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(path)?;
    let size_bytes = io::Seek::seek(&mut device, io::SeekFrom::End(0))?;
    let mut data = vec![0; size_bytes.min(JUDGED_BYTES) as usize];
    device.read_exact_at(&mut data, 0)?;
    if let Some(what) = contents(&data, size_bytes) {
        return Ok(Some(what));
    }
    for offset in samples(size_bytes, SAMPLE_BYTES) {
        let data = &mut data[..(size_bytes - offset).min(SAMPLE_BYTES) as usize];
        device.read_exact_at(data, offset)?;
        if let Some(what) = contents_at(data, offset) {
            return Ok(Some(what));
        }
    }
    Ok(None)
}

/// Bytes at the start of a device that [`contents`] judges.
pub const JUDGED_BYTES: u64 = 1 << 20;

/// Samples of a device that does not know which parts of it were written. Random data in 1 % of the
/// device escapes all of them once in 30,000 times. They take 16 MiB of reads in all: some seconds
/// on a slow disk.
pub const SAMPLES: u64 = 1024;

/// Length of a sample, in bytes.
pub const SAMPLE_BYTES: u64 = 16 << 10;

/// Offsets of at most [`SAMPLES`] samples of `sample_bytes`, from the start to the end of a device.
/// They are multiples of `sample_bytes`. A small device is covered as a whole.
pub fn samples(size_bytes: u64, sample_bytes: u64) -> impl Iterator<Item = u64> {
    let last = size_bytes.div_ceil(sample_bytes).saturating_sub(1);
    let count = SAMPLES.min(last + 1);
    let place = move |number: u64| match count {
        1 => 0,
        _ => (u128::from(last) * u128::from(number) / u128::from(count - 1)) as u64,
    };
    (0..count).map(move |number| place(number) * sample_bytes)
}

/// Description of the data of a part of a device beyond its start; `None` if all is zero.
pub fn contents_at(part: &[u8], offset_bytes: u64) -> Option<String> {
    let first = part.iter().position(|byte| *byte != 0)?;
    Some(format!("check its contents; byte {} is not zero", offset_bytes + first as u64))
}

/// Description of the data at the start of a device of `size_bytes` that cannot be inspected by
/// path, because it is served or open; `None` if all is zero.
pub fn contents(beginning: &[u8], size_bytes: u64) -> Option<String> {
    let first = beginning.iter().position(|byte| *byte != 0)?;
    // Reading from memory cannot fail, except at its end.
    let found = signatures(&mut Cursor::new(beginning), size_bytes).unwrap_or_default();
    let found: Vec<_> =
        found.iter().map(|one| format!("{} at byte {}", one.kind, one.offset_bytes)).collect();
    Some(match found.is_empty() {
        true => format!("check its contents; it is not zero from byte {first} on"),
        false => format!("it has the signature of {}", found.join(", and of ")),
    })
}

/// Returns true if no block of a file was ever written. A file system that does not know says that
/// all is data.
fn is_hole(path: &Path) -> bool {
    // It is opened before any executor runs, as `inspect` does.
    let file =
        File::options().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path);
    let Ok(file) = file else { return false };
    rustix::fs::seek(&file, SeekFrom::Data(0)) == Err(rustix::io::Errno::NXIO)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(agreed: bool) -> GuardedAccess {
        GuardedAccess::Write { agreed, own_file: false }
    }

    #[test]
    fn file_with_data_needs_consent() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("precious");
        assert_eq!(check_path("p", &path, write(false)), Ok(GuardVerdict::Absent));
        std::fs::write(&path, vec![1; 8192]).unwrap();
        let refused = check_path("p", &path, write(false)).unwrap_err().to_string();
        let text = "p is not written to: a file of 8 KiB with data\n\
                    if its data may be destroyed, say --destroy-data=p";
        assert_eq!(refused, text);
        assert_eq!(check_path("p", &path, write(true)), Ok(GuardVerdict::Free));
        assert_eq!(check_path("p", &path, GuardedAccess::Read), Ok(GuardVerdict::Free));
        let own = GuardedAccess::Write { agreed: false, own_file: true };
        assert_eq!(check_path("p", &path, own), Ok(GuardVerdict::Free));
    }

    #[test]
    fn file_of_holes_is_free() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("empty");
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(1 << 20).unwrap();
        assert_eq!(check_path("p", &path, write(false)), Ok(GuardVerdict::Free));
        std::os::unix::fs::FileExt::write_all_at(&file, b"x", 1 << 19).unwrap();
        assert!(check_path("p", &path, write(false)).is_err());
    }

    #[test]
    fn samples_span_the_device() {
        assert_eq!(samples(40 << 10, SAMPLE_BYTES).collect::<Vec<_>>(), [0, 16 << 10, 32 << 10]);
        assert_eq!(samples(512, SAMPLE_BYTES).collect::<Vec<_>>(), [0]);
        for size_bytes in [16 << 20, 17 << 20, 1 << 40, u64::MAX] {
            let found: Vec<_> = samples(size_bytes, SAMPLE_BYTES).collect();
            assert!(found.len() == SAMPLES as usize && found.is_sorted_by(|a, b| a < b));
            assert!(found[0] == 0 && size_bytes - found.last().unwrap() <= SAMPLE_BYTES);
        }
    }

    /// A device is looked into like a file, which stands for one here.
    #[test]
    fn samples_of_device_find_data() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("device");
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(1 << 30).unwrap();
        assert_eq!(sampled(&path).unwrap(), None);
        file.write_all_at(b"x", (1 << 30) - 1).unwrap();
        let found = sampled(&path).unwrap().unwrap();
        assert!(found.ends_with("byte 1073741823 is not zero"), "{found}");
        file.write_all_at(b"x", 5).unwrap();
        assert!(sampled(&path).unwrap().unwrap().contains("from byte 5 on"));
    }

    #[test]
    fn directories_and_missing_devices_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        assert!(check_path("d", directory.path(), GuardedAccess::Read).is_err());
        assert!(check_path("n", Path::new("/dev/no-such-device"), write(true)).is_err());
        assert!(check_path("z", Path::new("/dev/null"), GuardedAccess::Read).is_err());
    }
}
