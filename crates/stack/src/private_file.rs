//! Private files: keys, and hashes of tokens. An error never contains a part of the file, whose
//! text is erased when dropped.
//!
//! The mode lets only the owner read a file. The owner is not checked: another user's file with
//! this mode can be read by root alone, who checks the files of the service's user.

use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use zeroize::Zeroizing;

/// Where systemd puts credentials. It lets the service's user read them by an access list, which
/// shows as a permission of the group.
const CREDENTIALS: &str = "/run/credentials/";

/// Why a private file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PrivateFileError {
    /// It cannot be read, or is not UTF-8.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// It is a directory or a device.
    #[error("it is not a regular file")]
    Kind,
    /// Its mode.
    #[error("others may read it (mode {0:04o}): run chmod 600")]
    Mode(u32),
    /// It has more than this many bytes.
    #[error("it has more than {0} bytes")]
    Size(u64),
}

/// Reads a file of at most `bytes_max`.
///
/// # Errors
/// See [`PrivateFileError`].
pub fn read(path: &Path, bytes_max: u64) -> Result<Zeroizing<String>, PrivateFileError> {
    // Read at the start and when an operator asks for it, and no simulated run has files.
    #[expect(clippy::disallowed_methods)]
    let file = std::fs::File::open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(PrivateFileError::Kind);
    }
    let others = if path.starts_with(CREDENTIALS) { 0o007 } else { 0o077 };
    if metadata.mode() & others != 0 {
        return Err(PrivateFileError::Mode(metadata.mode() & 0o7777));
    }
    // A string that grows would leave copies behind.
    let room = metadata.len().min(bytes_max) as usize + 1;
    let mut text = Zeroizing::new(String::with_capacity(room));
    file.take(bytes_max + 1).read_to_string(&mut text)?;
    if text.len() as u64 > bytes_max {
        return Err(PrivateFileError::Size(bytes_max));
    }
    Ok(text)
}
