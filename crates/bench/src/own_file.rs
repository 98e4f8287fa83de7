//! Own files: files that bench made, which hold nothing but its own data.
//!
//! A random identity is stored in the file, as an extended attribute, and in a note beside it. The
//! note also has the file's inode, its size and the time of its last change, as of the end of the
//! last run. A file is ours only if all of them match: a copy, another file with a reused inode,
//! and a file that something else has written to are not. File systems without user attributes
//! have no own files. A run that crashes while it writes leaves a note that no longer matches.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::XattrFlags;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::os;

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Marker {
    made_by: String,
    identity: String,
    #[serde(flatten)]
    state: FileState,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct FileState {
    device: u64,
    inode: u64,
    size_bytes: u64,
    /// Time of the last change of data or attributes, which only the kernel sets.
    changed_unix_s: i64,
    changed_ns: i64,
}

impl FileState {
    fn of(path: &Path) -> std::io::Result<FileState> {
        let found = fs::metadata(path)?;
        Ok(FileState {
            device: found.dev(),
            inode: found.ino(),
            size_bytes: found.len(),
            changed_unix_s: found.ctime(),
            changed_ns: found.ctime_nsec(),
        })
    }

    fn is_same_file(&self, other: &FileState) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// Made by bench, and changed only by its runs.
    Ours,
    /// Made by bench, and changed since the end of its last run.
    Changed,
    Foreign,
}

const MADE_BY: &str = "flagstone bench";
const MARKER_BYTES: u64 = 4096;
const ATTRIBUTE: &str = "user.flagstone.bench";
/// Bytes of an identity: 128 random bits in hexadecimal digits.
const IDENTITY_BYTES: usize = 32;

pub fn marker(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".flagstone-bench");
    PathBuf::from(name)
}

/// Makes a file ours: the caller has created it, or has truncated it with consent. On a file system
/// without user attributes it stays foreign.
///
/// # Errors
/// System errors.
pub fn mark(path: &Path) -> Result<(), Error> {
    let identity = format!("{:032x}", os::random_bits());
    match rustix::fs::setxattr(path, ATTRIBUTE, identity.as_bytes(), XattrFlags::empty()) {
        Ok(()) => write(path, identity),
        Err(Errno::OPNOTSUPP | Errno::PERM | Errno::NOSYS) => Ok(()),
        Err(error) => Err(Error::file("cannot set an attribute of", path)(error.into())),
    }
}

/// Records the state of an own file after writes of a run. Without it, the next run asks for
/// consent; so its errors are harmless.
pub fn settle(path: &Path) {
    if let Some((note, now)) = found(path)
        && note.state != now
    {
        let _ = write(path, note.identity);
    }
}

fn write(path: &Path, identity: String) -> Result<(), Error> {
    let state = FileState::of(path).map_err(Error::file("cannot look at", path))?;
    let note = Marker { made_by: MADE_BY.to_owned(), identity, state };
    let text = serde_json::to_string(&note).expect("a note is always JSON") + "\n";
    let beside = marker(path);
    fs::write(&beside, text).map_err(Error::file("cannot write", beside))
}

/// The note of a file that bench made, and the state of the file.
fn found(path: &Path) -> Option<(Marker, FileState)> {
    let text = os::read_text(&marker(path), MARKER_BYTES).ok()?;
    let note: Marker = serde_json::from_str(&text).ok()?;
    let mut identity = [0; IDENTITY_BYTES];
    let length = rustix::fs::getxattr(path, ATTRIBUTE, &mut identity[..]).ok()?;
    let now = FileState::of(path).ok()?;
    let is_same = note.made_by == MADE_BY
        && length == IDENTITY_BYTES
        && note.identity.as_bytes() == identity
        && note.state.is_same_file(&now);
    is_same.then_some((note, now))
}

pub fn ownership(path: &Path) -> Ownership {
    match found(path) {
        Some((note, now)) if note.state == now => Ownership::Ours,
        Some(_) => Ownership::Changed,
        None => Ownership::Foreign,
    }
}

pub fn is_ours(path: &Path) -> bool {
    ownership(path) == Ownership::Ours
}

/// Files whose state a run records when it has written to them: own files, and new ones.
/// Consent to destroy other data holds for one run, so their files stay foreign.
#[derive(Debug, Default)]
pub struct OwnFiles(Vec<PathBuf>);

impl OwnFiles {
    /// The own files among `paths`, before a run. A run that only reads owns the files it makes.
    pub fn before<'a>(paths: impl Iterator<Item = &'a Path>, writes: bool) -> OwnFiles {
        let is_own = |path: &&Path| (writes && is_ours(path)) || !path.exists();
        OwnFiles(paths.filter(is_own).map(Path::to_owned).collect())
    }

    pub fn settle(&self) {
        self.0.iter().for_each(|path| settle(path));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An own file of 4 bytes; `None` on a file system without user attributes.
    fn own(directory: &Path) -> Option<PathBuf> {
        let path = directory.join("ours");
        fs::write(&path, "data").unwrap();
        mark(&path).unwrap();
        marker(&path).exists().then_some(path)
    }

    /// Writes in place until the file system's clock has moved on.
    fn overwrite(path: &Path, data: &str) {
        let before = FileState::of(path).unwrap();
        while FileState::of(path).unwrap() == before {
            fs::write(path, data).unwrap();
        }
    }

    #[test]
    fn marker_belongs_to_one_inode() {
        let directory = tempfile::tempdir().unwrap();
        let Some(path) = own(directory.path()) else { return };
        assert_eq!(ownership(&path), Ownership::Ours);
        // Another file with that name, while the first one still has its inode.
        let other = directory.path().join("other");
        fs::write(&other, "precious").unwrap();
        fs::rename(&path, directory.path().join("kept")).unwrap();
        fs::rename(&other, &path).unwrap();
        assert_eq!(ownership(&path), Ownership::Foreign);
    }

    #[test]
    fn file_with_reused_inode_is_not_ours() {
        let directory = tempfile::tempdir().unwrap();
        let Some(path) = own(directory.path()) else { return };
        // A new file has no attribute, or another one. The note matches in all else.
        rustix::fs::removexattr(&path, ATTRIBUTE).unwrap();
        for identity in [String::new(), "0".repeat(IDENTITY_BYTES)] {
            write(&path, identity).unwrap();
            assert_eq!(ownership(&path), Ownership::Foreign);
        }
        let other = "1".repeat(IDENTITY_BYTES);
        rustix::fs::setxattr(&path, ATTRIBUTE, other.as_bytes(), XattrFlags::empty()).unwrap();
        write(&path, "0".repeat(IDENTITY_BYTES)).unwrap();
        assert_eq!(ownership(&path), Ownership::Foreign);
    }

    #[test]
    fn file_overwritten_in_place_is_not_ours() {
        let directory = tempfile::tempdir().unwrap();
        let Some(path) = own(directory.path()) else { return };
        let files = OwnFiles::before([path.as_path()].into_iter(), true);
        overwrite(&path, "runs");
        assert_eq!(ownership(&path), Ownership::Changed);
        files.settle();
        assert_eq!(ownership(&path), Ownership::Ours, "the run itself wrote");

        overwrite(&path, "user");
        OwnFiles::before([path.as_path()].into_iter(), true).settle();
        assert_eq!(ownership(&path), Ownership::Changed, "a later run claims no foreign data");
        let reads = directory.path().join("absent");
        assert_eq!(OwnFiles::before([reads.as_path()].into_iter(), false).0, [reads]);
    }

    #[test]
    fn notes_of_other_programs_do_not_count() {
        let directory = tempfile::tempdir().unwrap();
        let Some(path) = own(directory.path()) else { return };
        let note = fs::read_to_string(marker(&path)).unwrap();
        let older = r#"{"made_by":"flagstone bench","device":1,"inode":2}"#;
        for text in [older, "", "nonsense", &note.replace(MADE_BY, "another")] {
            fs::write(marker(&path), text).unwrap();
            assert_eq!(ownership(&path), Ownership::Foreign, "{text}");
        }
    }
}
