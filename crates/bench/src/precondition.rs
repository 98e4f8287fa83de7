//! Targets before they are measured: reads of what was never written do not reach a disk, and
//! writes to it cost what later ones do not.

use std::path::Path;

use crate::error::Error;
use crate::guard;
use crate::os;

/// Places that are looked at to see whether a disk has been filled.
const SAMPLES: u64 = 64;
/// Bytes of each.
const SAMPLE_BYTES: usize = 4096;

/// Makes a file that holds nothing yet, of its whole size and with its note, so that a fill that is
/// interrupted is known as unfinished, and the file as ours.
///
/// # Errors
/// The system's.
pub fn make(path: &Path, size_bytes: u64) -> Result<(), Error> {
    let make = || std::fs::File::create(path).and_then(|file| file.set_len(size_bytes));
    make().map_err(Error::file("cannot make", path))?;
    guard::mark(path)
}

/// Whether data is everywhere that is looked: at places spread over the whole, and its end.
pub fn is_filled(path: &Path, size_bytes: u64) -> bool {
    let last = size_bytes.saturating_sub(SAMPLE_BYTES as u64);
    (0..=SAMPLES).all(|at| {
        let offset = (u128::from(last) * u128::from(at) / u128::from(SAMPLES)) as u64;
        os::read_at(path, offset, SAMPLE_BYTES)
            .is_ok_and(|bytes| bytes.iter().any(|byte| *byte != 0))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_found() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        make(&path, 1 << 20).unwrap();
        assert!(guard::is_ours(&path) && !is_filled(&path, 1 << 20));
        std::fs::write(&path, vec![7; 1 << 20]).unwrap();
        assert!(is_filled(&path, 1 << 20));
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(2 << 20).unwrap();
        assert!(!is_filled(&path, 2 << 20));
    }
}
