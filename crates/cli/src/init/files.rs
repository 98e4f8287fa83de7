//! New files of an installation: all of them are written, or none.
//!
//! Each is written beside its place, under a name that no file has, and made durable; then all are
//! renamed. A failure removes what was written. The rename of the last file completes the
//! installation: a crash before it leaves files that nothing reads yet.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

/// User and group, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) user: u32,
    pub(crate) group: u32,
}

#[derive(Debug)]
pub(crate) struct NewFile {
    pub(crate) path: PathBuf,
    pub(crate) text: Zeroizing<String>,
    pub(crate) mode: u32,
    /// None: the user who runs the program.
    pub(crate) owner: Option<Owner>,
    /// Its content in words, for the user.
    pub(crate) what: &'static str,
}

/// Names that are tried for a file beside its place. A crash leaves one in use.
const STAGED_NAMES_MAX: u32 = 100;

impl NewFile {
    /// Writes it beside its place, and returns the name. The directory may belong to a less
    /// privileged user, so a link there is not followed, and the owner is changed last.
    fn stage(&self) -> io::Result<PathBuf> {
        // Nothing can be renamed over a directory: found out before any file is replaced.
        if fs::symlink_metadata(&self.path).is_ok_and(|found| found.is_dir()) {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        let (staged, file) = self.create()?;
        let filled = self.fill(file);
        if filled.is_err() {
            let _ = fs::remove_file(&staged);
        }
        filled.map(|()| staged)
    }

    fn create(&self) -> io::Result<(PathBuf, File)> {
        let mut options = OpenOptions::new();
        // This follows no link.
        options.write(true).create_new(true).mode(0o600);
        for number in 1..=STAGED_NAMES_MAX {
            let staged = self.path.with_added_extension(format!("new{number}"));
            match options.open(&staged) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                opened => return Ok((staged, opened?)),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    fn fill(&self, mut file: File) -> io::Result<()> {
        file.write_all(self.text.as_bytes())?;
        file.set_permissions(fs::Permissions::from_mode(self.mode))?;
        if let Some(Owner { user, group }) = self.owner {
            fchown(&file, Some(user), Some(group))?;
        }
        file.sync_all()
    }
}

/// A path that two of the files have, in whatever spelling.
pub(crate) fn repeated(files: &[NewFile]) -> Option<&Path> {
    let mut seen = BTreeSet::new();
    let mut paths = files.iter().map(|file| file.path.as_path());
    paths.find(|path| !seen.insert(place(path)))
}

/// The path, with its directory as the system names it. One whose directory does not exist yet, or
/// cannot be read, is as written.
fn place(path: &Path) -> PathBuf {
    let found = fs::canonicalize(directory(path)).ok().zip(path.file_name());
    found.map_or_else(|| path.to_owned(), |(directory, name)| directory.join(name))
}

fn directory(path: &Path) -> &Path {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// Makes a directory and those above it. One that exists is left as it is.
pub(crate) fn make_directory(path: &Path, mode: u32, owner: Option<Owner>) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
    }
    DirBuilder::new().mode(mode).create(path)?;
    let Some(Owner { user, group }) = owner else { return Ok(()) };
    fchown(open(path)?, Some(user), Some(group))
}

/// Opens a file or directory. No executor runs here.
fn open(path: &Path) -> io::Result<File> {
    File::options().read(true).open(path)
}

/// Writes all files, in the order of their last renames.
///
/// # Errors
/// The path that failed, and why. New files are not there then; a replaced one may be.
pub(crate) fn write_all(files: &[NewFile]) -> Result<(), (PathBuf, io::Error)> {
    let fresh: Vec<_> = files.iter().map(|file| !exists(&file.path)).collect();
    let mut staged = Vec::new();
    let done = write_or_stop(files, &mut staged);
    if done.is_err() {
        // Fails for renamed files.
        staged.iter().for_each(|staged| drop(fs::remove_file(staged)));
        for (file, fresh) in files.iter().zip(fresh) {
            if fresh {
                let _ = fs::remove_file(&file.path);
            }
        }
    }
    done
}

fn write_or_stop(files: &[NewFile], staged: &mut Vec<PathBuf>) -> Result<(), (PathBuf, io::Error)> {
    let at = |file: &NewFile| file.path.clone();
    for file in files {
        staged.push(file.stage().map_err(|error| (at(file), error))?);
    }
    for (file, staged) in files.iter().zip(staged) {
        let placed =
            fs::rename(staged, &file.path).and_then(|()| open(directory(&file.path))?.sync_all());
        placed.map_err(|error| (at(file), error))?;
    }
    Ok(())
}

/// Whether anything is at `path`, including a dangling link.
pub(crate) fn exists(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, symlink};

    use super::*;

    fn file(path: PathBuf, text: &str, mode: u32) -> NewFile {
        NewFile { path, text: Zeroizing::new(text.to_owned()), mode, owner: None, what: "" }
    }

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn failed_write_leaves_nothing_new() {
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        fs::write(at("old"), "old").unwrap();
        // A directory cannot be replaced by a file, and nothing can be made in a missing one.
        fs::create_dir(at("directory")).unwrap();
        for last in ["directory", "missing/file"] {
            let files = [
                file(at("new"), "1", 0o600),
                file(at("more"), "2", 0o644),
                file(at(last), "3", 0o600),
            ];
            let (path, _) = write_all(&files).unwrap_err();
            assert_eq!(path, at(last));
            assert_eq!(names(scratch.path()), ["directory", "old"], "{last}");
        }
        let files = [file(at("old"), "new", 0o600), file(at("new"), "1", 0o640)];
        write_all(&files).unwrap();
        assert_eq!(names(scratch.path()), ["directory", "new", "old"]);
        assert_eq!(fs::read_to_string(at("old")).unwrap(), "new");
        assert_eq!(fs::metadata(at("new")).unwrap().mode() & 0o7777, 0o640);
    }

    #[test]
    fn links_are_replaced_not_followed() {
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        fs::write(at("victim"), "safe").unwrap();
        for name in ["key", "key.new", "key.new1"] {
            symlink(at("victim"), at(name)).unwrap();
        }
        write_all(&[file(at("key"), "secret", 0o600)]).unwrap();
        assert_eq!(fs::read_to_string(at("victim")).unwrap(), "safe");
        assert!(fs::symlink_metadata(at("key")).unwrap().is_file());
        // Files of the user beside it stay, whatever their names.
        assert_eq!(names(scratch.path()), ["key", "key.new", "key.new1", "victim"]);
    }

    #[test]
    fn one_path_in_two_spellings_is_found() {
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        symlink(scratch.path(), at("link")).unwrap();
        for (other, is_same) in [("a", true), ("./a", true), ("link/a", true), ("b", false)] {
            let files = [file(at("a"), "", 0o600), file(at(other), "", 0o600)];
            assert_eq!(repeated(&files).is_some(), is_same, "{other}");
        }
    }
}
