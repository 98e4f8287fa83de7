//! Change journal: one JSON line per change, on stable storage before the change is made.
//!
//! Undo writes what the journal says, so only the user who runs the doctor may write it: its
//! directory is not the service's, and a directory of another user is refused.
//!
//! A truncated last line belongs to a change that never started, and is dropped. Any other
//! malformed line stops apply and undo, because its change is unknown.

use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

use crate::limits::{JOURNAL_BYTES_MAX, JOURNAL_ENTRIES_MAX};
use crate::root::Root;

use super::persist::{self, SYSCTL_FILE, UDEV_FILE};
use super::{ApplyError, is_setting};

/// Directory of the journal and its lock. The unit gives `/var/lib/flagstone` to the service.
const DIRECTORY: &str = "/var/lib/flagstone-doctor";
pub const JOURNAL: &str = "/var/lib/flagstone-doctor/journal";
/// Lock file. Never replaced, unlike the journal: two programs could lock two journals.
const LOCK: &str = "/var/lib/flagstone-doctor/lock";

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
    /// Why undo must not follow the entry, or `None`.
    fn refusal(&self) -> Option<&'static str> {
        match self {
            JournalEntry::Setting { file, .. } | JournalEntry::Took { file, .. }
                if is_setting(file) =>
            {
                None
            }
            JournalEntry::File { file, before, .. } if file == UDEV_FILE || file == SYSCTL_FILE => {
                let is_ours = before.as_ref().is_none_or(|before| persist::is_ours(file, before));
                (!is_ours).then_some("restores lines that the doctor does not write")
            }
            _ => Some("names a file that is never changed here"),
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
        let directory = &root.locate(DIRECTORY);
        make_directory(directory)?;
        let lock = lock(&root.locate(LOCK))?;
        let mut file = own(create(&path)?, FileType::RegularFile)?;
        let (entries, whole) = read(&file)?;
        file.set_len(whole as u64)?;
        file.seek(SeekFrom::End(0))?;
        sync_directory(directory)?;
        Ok(Journal { path, file, lock, entries })
    }

    /// The entries, without a lock and without a change of any file.
    pub(super) fn peek(root: &Root) -> Result<Vec<JournalEntry>, ApplyError> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let open = || {
            own_directory(&root.locate(DIRECTORY))?;
            own(
                File::from(rustix::fs::open(root.locate(JOURNAL), flags, Mode::empty())?),
                FileType::RegularFile,
            )
        };
        match open() {
            Ok(file) => Ok(read(&file)?.0),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(ApplyError::Journal(error)),
        }
    }

    /// Whether there is a journal.
    ///
    /// # Errors
    /// This user may not look.
    pub(super) fn is_there(root: &Root) -> Result<bool, ApplyError> {
        match std::fs::symlink_metadata(root.locate(JOURNAL)) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(ApplyError::Journal(error)),
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

/// Makes the directory, for this user alone, unless it exists and is this user's.
fn make_directory(directory: &Path) -> io::Result<()> {
    std::fs::create_dir_all(parent(directory)?)?;
    match std::fs::DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    own_directory(directory)
}

fn own_directory(directory: &Path) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = File::from(rustix::fs::open(directory, flags, Mode::empty())?);
    own(file, FileType::Directory).map(drop)
}

/// `file`, if it is of this type, belongs to this user, and no other user may write it.
fn own(file: File, of_type: FileType) -> io::Result<File> {
    let status = rustix::fs::fstat(&file)?;
    let others = Mode::WGRP | Mode::WOTH;
    let is_own = status.st_uid == geteuid().as_raw()
        && !Mode::from_raw_mode(status.st_mode).intersects(others)
        && FileType::from_raw_mode(status.st_mode) == of_type;
    match is_own {
        true => Ok(file),
        false => Err(io::Error::other(format!(
            "another user than the caller owns {DIRECTORY} or the journal, or may write there: \
             examine it, then remove it"
        ))),
    }
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
            match entry.refusal() {
                None => Ok(entry),
                Some(why) => Err(corrupt(why.to_owned())),
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
