//! Preparation of targets before a measurement: reads of unwritten ranges do not reach a disk, and
//! first writes cost more than later ones. [`crate::served`] does the same for served volumes.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

use crate::error::Error;
use crate::limits::{FIO_OUTPUT_BYTES, FIO_SAID_BYTES};
use crate::os;
use crate::own_file;
use crate::process::{self, Interrupt};

/// Samples that are read to decide whether a disk is filled.
const SAMPLES: u64 = 64;
pub(crate) const SAMPLE_BYTES: usize = 4096;

/// Creates a sparse file of the full size with its marker, so that an interrupted fill is
/// recognized as unfinished and the file as ours. The marker is written before the size: a crash
/// between both leaves an empty file without data to protect.
///
/// # Errors
/// No space on the file system; system errors. A new file is removed again.
pub fn make(path: &Path, size_bytes: u64) -> Result<(), Error> {
    let before = std::fs::metadata(path);
    check_room(&[path], size_bytes)?;
    let made = std::fs::File::create(path)
        .map_err(Error::file("cannot make", path))
        .and_then(|file| own_file::mark(path).map(|()| file))
        .and_then(|file| file.set_len(size_bytes).map_err(Error::file("cannot make", path)))
        .map(|()| own_file::settle(path));
    if made.is_err() && before.is_err() {
        // Removal errors of a file that was not created are harmless; an older file is left
        // untouched.
        let _ = std::fs::remove_file(path);
        let _ = std::fs::remove_file(own_file::marker(path));
    }
    made
}

/// Checks that file systems have space for new files of this size. A fill that fails halfway would
/// have taken the space from other users.
pub(crate) fn check_room(paths: &[&Path], size_bytes: u64) -> Result<(), Error> {
    let mut wanted: BTreeMap<u64, u64> = BTreeMap::new();
    for path in paths {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new("."));
        let own = std::fs::metadata(path).map_or(0, |metadata| metadata.blocks() * 512);
        // Unknown space is found out by the fill.
        let Ok(device) = std::fs::metadata(parent).map(|metadata| metadata.dev()) else { continue };
        let Ok(found) = rustix::fs::statvfs(parent) else { continue };
        let all = wanted.entry(device).or_default();
        *all = all.saturating_add(size_bytes.saturating_sub(own));
        let free = found.f_bavail.saturating_mul(found.f_frsize);
        if *all > free {
            return Err(Error::Usage(format!(
                "{} of {:.2} GB does not fit: {:.2} GB are wanted here in all, and its file system \
                 has {:.2} GB free; make it smaller, or make room",
                path.display(),
                size_bytes as f64 / 1e9,
                *all as f64 / 1e9,
                free as f64 / 1e9
            )));
        }
    }
    Ok(())
}

/// Discards a whole device with `blkdiscard`. Its own check for signatures is switched off: the
/// guard has asked for consent.
///
/// # Errors
/// The program is missing, the device cannot discard, or an interruption.
pub(crate) fn discard(path: &Path, interrupt: &Interrupt) -> Result<(), Error> {
    let mut command = Command::new("blkdiscard");
    command.arg("--force").arg(path);
    let ended = process::run(&mut command, FIO_OUTPUT_BYTES, interrupt, &mut || {})?;
    if ended.status.success() {
        return Ok(());
    }
    Err(Error::ToolFailed {
        tool: "blkdiscard",
        status: ended.status.to_string(),
        command: format!("blkdiscard --force {}", path.display()),
        said: ended.message(FIO_SAID_BYTES),
    })
}

/// Whether all samples, spread over the whole disk and at its end, have data.
pub fn is_filled(path: &Path, size_bytes: u64) -> bool {
    places(size_bytes, SAMPLE_BYTES as u64).all(|offset| {
        os::read_at(path, offset, SAMPLE_BYTES)
            .is_ok_and(|bytes| bytes.iter().any(|byte| *byte != 0))
    })
}

/// Offsets of the samples in bytes, aligned to the sample size, because devices read whole blocks.
pub(crate) fn places(size_bytes: u64, sample: u64) -> impl Iterator<Item = u64> {
    let last = size_bytes.saturating_sub(sample);
    (0..=SAMPLES).map(move |at| {
        let offset = (u128::from(last) * u128::from(at) / u128::from(SAMPLES)) as u64;
        offset / sample * sample
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_discard_is_quoted() {
        let error = discard(Path::new("/dev/null"), &Interrupt::never()).unwrap_err().to_string();
        assert!(error.contains("blkdiscard"), "{error}");
    }

    #[test]
    fn file_larger_than_free_space_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        let refused = make(&path, 1 << 60).unwrap_err().to_string();
        assert!(refused.contains("f of 1152921504.61 GB does not fit"), "{refused}");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        // Each of several files may fit while their sum does not.
        let free = rustix::fs::statvfs(directory.path()).unwrap();
        let third = free.f_bavail * free.f_frsize / 3;
        let names = ["a", "b", "c", "d"].map(|name| directory.path().join(name));
        let paths = names.each_ref().map(std::path::PathBuf::as_path);
        assert!(check_room(&paths[..1], third).is_ok());
        assert!(check_room(&paths, third).unwrap_err().to_string().contains("wanted here in all"));
        make(&path, 1 << 20).unwrap();
        assert!(make(&path, 1 << 60).is_err());
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 1 << 20, "it is left as it was");
    }

    #[test]
    fn file_without_marker_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        std::fs::create_dir(own_file::marker(&path)).unwrap();
        assert!(make(&path, 1 << 20).is_err());
        assert!(!path.exists());
    }

    #[test]
    fn unwritten_areas_are_found() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        make(&path, 1 << 20).unwrap();
        assert!(own_file::is_ours(&path) && !is_filled(&path, 1 << 20));
        std::fs::write(&path, vec![7; 1 << 20]).unwrap();
        assert!(is_filled(&path, 1 << 20));
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(2 << 20).unwrap();
        assert!(!is_filled(&path, 2 << 20));
    }
}
