//! Data to write: random, compressible, or the beginning of a file.

use std::io::Read;
use std::path::Path;

use flagstone_load::WriteData;
use flagstone_load::limits::SAMPLE_BYTES_MAX;

use crate::exit::Failure;

/// The first bytes of a file, as data to write.
///
/// # Errors
/// The reason, for a file that cannot be read, is empty, or is no regular file.
pub(crate) fn of_file(path: &Path) -> Result<WriteData, Failure> {
    let failed = |error: std::io::Error| Failure::usage(format!("{}: {error}", path.display()));
    // Opening a FIFO would wait for its writer.
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(Failure::usage(format!("{}: name a regular file", path.display())));
    }
    let file = std::fs::OpenOptions::new().read(true).open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(SAMPLE_BYTES_MAX as u64).read_to_end(&mut bytes).map_err(failed)?;
    match bytes.is_empty() {
        true => Err(Failure::usage(format!("{}: the file is empty", path.display()))),
        false => Ok(WriteData::Sample(bytes.into())),
    }
}
