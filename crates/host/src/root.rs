//! Host files: of this host, or of a recorded tree below a directory.
//!
//! Paths have the host's form (`/sys/block/sda/size`). Reads are bounded, never wait for a writer
//! (a FIFO in a recorded tree), and return the reason of a failure.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{Mode, OFlags};

use crate::limits::{COMMAND_TIME_MAX, DIRECTORY_ENTRIES_MAX, FILE_BYTES_MAX};
use crate::process;

/// Directory of recorded command outputs, by command line.
const COMMANDS: &str = "/commands";

#[derive(Debug, Clone)]
pub struct Root {
    base: PathBuf,
}

impl Root {
    /// Files below `base`; `/` is this host.
    pub fn new(base: impl Into<PathBuf>) -> Root {
        Root { base: base.into() }
    }

    pub fn is_this_host(&self) -> bool {
        self.base == Path::new("/")
    }

    pub fn locate(&self, path: &str) -> PathBuf {
        self.base.join(path.trim_start_matches('/'))
    }

    /// The trimmed text of a small file; invalid UTF-8 becomes `�`.
    ///
    /// # Errors
    /// An open or read error, or `FileTooLarge`.
    pub fn read(&self, path: &str) -> io::Result<String> {
        let file = open(&self.locate(path))?;
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// Names in a directory, sorted.
    ///
    /// # Errors
    /// An open or read error, or `FileTooLarge` for too many entries.
    pub fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(self.locate(path))? {
            if names.len() == DIRECTORY_ENTRIES_MAX {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort_by(|a, b| natural(a).cmp(&natural(b)));
        Ok(names)
    }

    /// Whether a path exists, including a dangling link.
    pub fn exists(&self, path: &str) -> bool {
        std::fs::symlink_metadata(self.locate(path)).is_ok()
    }

    /// Output of a command on this host, or its recorded output.
    ///
    /// # Errors
    /// As [`process::output`] and [`Root::read`].
    pub fn command(&self, words: &[&str]) -> io::Result<String> {
        if !self.is_this_host() {
            return self.read(&format!("{COMMANDS}/{}", words.join(" ")));
        }
        let mut command = Command::new(words[0]);
        let output = process::output(command.args(&words[1..]), COMMAND_TIME_MAX, FILE_BYTES_MAX)?;
        Ok(String::from_utf8_lossy(&output).into_owned())
    }
}

/// Opens any kind of file for reading without blocking.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

/// Sort key that puts `sda2` before `sda10`: the letters, then the number of digits.
fn natural(name: &str) -> (&str, usize, &str) {
    let letters = name.trim_end_matches(|c: char| c.is_ascii_digit());
    (letters, name.len() - letters.len(), name)
}
