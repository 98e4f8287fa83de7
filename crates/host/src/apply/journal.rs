//! Change journal: one JSON line per change, on stable storage before the change is made.
//!
//! A truncated last line belongs to a change that never started, and is dropped. Any other
//! malformed line stops apply and undo, because its change is unknown.

use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};
use serde::{Deserialize, Serialize};

use crate::limits::{JOURNAL_BYTES_MAX, JOURNAL_ENTRIES_MAX};
use crate::root::Root;

use super::persist::{SYSCTL_FILE, UDEV_FILE};
use super::{ApplyError, is_setting};

pub const JOURNAL: &str = "/var/lib/flagstone/doctor.journal";
/// Lock file. Never replaced, unlike the journal: two programs could lock two journals.
const LOCK: &str = "/var/lib/flagstone/doctor.lock";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "entry", deny_unknown_fields)]
pub(super) enum JournalEntry {
    /// A setting is about to change.
    Setting { file: String, before: String, after: String },
    /// The kernel chose another value after the previous change.
    Took { file: String, value: String },
    /// A file is about to be replaced; `before` is absent if it did not exist.
    File { file: String, before: Option<String>, after: String },
}

impl JournalEntry {
    fn is_allowed(&self) -> bool {
        match self {
            JournalEntry::Setting { file, .. } | JournalEntry::Took { file, .. } => {
                is_setting(file)
            }
            JournalEntry::File { file, .. } => file == UDEV_FILE || file == SYSCTL_FILE,
        }
    }
}

pub(super) struct Journal {
    path: PathBuf,
    file: File,
    lock: File,
    entries: Vec<JournalEntry>,
}

impl Journal {
    pub(super) fn open(root: &Root) -> Result<Journal, ApplyError> {
        let path = root.locate(JOURNAL);
        let directory = parent(&path)?;
        std::fs::create_dir_all(directory)?;
        let lock = lock(&root.locate(LOCK))?;
        let mut file = create(&path)?;
        let (entries, whole) = read(&file)?;
        file.set_len(whole as u64)?;
        file.seek(SeekFrom::End(0))?;
        sync_directory(directory)?;
        Ok(Journal { path, file, lock, entries })
    }

    /// The entries, without a lock and without a change of any file.
    pub(super) fn peek(root: &Root) -> Result<Vec<JournalEntry>, ApplyError> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        match rustix::fs::open(root.locate(JOURNAL), flags, Mode::empty()) {
            Ok(file) => Ok(read(&File::from(file))?.0),
            Err(rustix::io::Errno::NOENT) => Ok(Vec::new()),
            Err(error) => Err(ApplyError::Journal(error.into())),
        }
    }

    pub(super) fn entries(&self) -> &[JournalEntry] {
        &self.entries
    }

    pub(super) fn add(&mut self, entry: JournalEntry) -> Result<(), ApplyError> {
        if self.entries.len() >= JOURNAL_ENTRIES_MAX {
            return Err(ApplyError::Journal(io::Error::other(
                "it is full: undo the changes that it holds",
            )));
        }
        self.file.write_all(line(&entry)?.as_bytes())?;
        self.file.sync_data()?;
        self.entries.push(entry);
        Ok(())
    }

    /// Replaces all entries atomically: a crash leaves the old ones or the new ones.
    pub(super) fn replace(&mut self, entries: Vec<JournalEntry>) -> Result<(), ApplyError> {
        let lines = entries.iter().map(line).collect::<Result<String, _>>()?;
        replace_file(&self.path, &lines)?;
        self.entries = entries;
        Ok(())
    }

    /// Closes the journal, and removes it if it is empty.
    pub(super) fn close(self) -> Result<(), ApplyError> {
        if self.entries.is_empty() {
            std::fs::remove_file(&self.path)?;
            sync_directory(parent(&self.path)?)?;
        }
        Ok(())
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        // Closing the file is not enough: a child between fork and exec may still have it open.
        let _ = rustix::fs::flock(&self.lock, FlockOperation::Unlock);
    }
}

/// The entries, and the bytes of the whole lines.
fn read(mut file: &File) -> Result<(Vec<JournalEntry>, usize), ApplyError> {
    let mut bytes = Vec::new();
    Read::by_ref(&mut file).take(JOURNAL_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > JOURNAL_BYTES_MAX {
        return Err(ApplyError::Journal(io::ErrorKind::FileTooLarge.into()));
    }
    let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |last| last + 1);
    Ok((parse(&bytes[..whole])?, whole))
}

fn create(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(File::from(rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?))
}

fn lock(path: &Path) -> Result<File, ApplyError> {
    let file = create(path)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(ApplyError::Busy),
        Err(error) => Err(ApplyError::Journal(error.into())),
    }
}

fn line(entry: &JournalEntry) -> io::Result<String> {
    Ok(serde_json::to_string(entry).map_err(io::Error::other)? + "\n")
}

fn parse(bytes: &[u8]) -> Result<Vec<JournalEntry>, ApplyError> {
    let lines = bytes.split(|&byte| byte == b'\n').enumerate();
    let lines = lines.filter(|(_, line)| !line.is_empty());
    lines
        .map(|(index, line)| {
            let corrupt = |why: String| ApplyError::Corrupt { line: index + 1, why };
            let entry: JournalEntry =
                serde_json::from_slice(line).map_err(|error| corrupt(error.to_string()))?;
            match entry.is_allowed() {
                true => Ok(entry),
                false => Err(corrupt("names a file that is never changed here".to_owned())),
            }
        })
        .collect()
}

pub(super) fn parent(path: &Path) -> io::Result<&Path> {
    path.parent().ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

/// Replaces a file atomically: a crash leaves the old one or the new one.
pub(super) fn replace_file(path: &Path, text: &str) -> io::Result<()> {
    let directory = parent(path)?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = directory.join(name);
    let flags =
        OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH;
    let mut file = File::from(rustix::fs::open(&new, flags, mode)?);
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    sync_directory(directory)
}

pub(super) fn sync_directory(directory: &Path) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::fsync(rustix::fs::open(directory, flags, Mode::empty())?)?)
}
