//! Disk that hangs: a file on a file system that can be frozen. Reads are answered, and writes and
//! flushes wait until it is thawed.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::scratch::Scratch;
use crate::tools::{find, unable};

/// Space for the file system itself.
const EXTRA_BYTES: u64 = 64 << 20;

/// A mounted file system. Dropping it thaws and unmounts it; programs may still use its files.
#[derive(Debug)]
pub struct Freezer(PathBuf);

impl Freezer {
    /// A file system with a sparse file of `size_bytes`, and the path of the file. None where file
    /// systems cannot be mounted.
    ///
    /// # Panics
    /// If a file cannot be made.
    pub fn new(test: &str, scratch: &Scratch, size_bytes: u64) -> Option<(Freezer, PathBuf)> {
        let image = scratch.disk("frozen.img", size_bytes + EXTRA_BYTES);
        let folder = scratch.join("frozen");
        std::fs::create_dir(&folder).expect("scratch directories are writable");
        let is_mounted = done("mkfs.ext4", &["-q".as_ref(), &image])
            && done("mount", &["-o".as_ref(), "loop".as_ref(), &image, &folder]);
        if !is_mounted {
            unable(test, "file systems cannot be mounted");
            return None;
        }
        let (freezer, path) = (Freezer(folder.clone()), folder.join("disk"));
        let made = std::fs::File::create_new(&path).and_then(|file| file.set_len(size_bytes));
        made.expect("the file system is writable");
        Some((freezer, path))
    }

    /// Lets writes wait.
    ///
    /// # Panics
    /// If it cannot be frozen.
    pub fn freeze(&self) {
        assert!(done("fsfreeze", &["-f".as_ref(), &self.0]), "{} is not frozen", self.0.display());
    }

    /// Lets waiting writes continue.
    ///
    /// # Panics
    /// If it cannot be thawed.
    pub fn thaw(&self) {
        assert!(done("fsfreeze", &["-u".as_ref(), &self.0]), "{} is frozen", self.0.display());
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        done("fsfreeze", &["-u".as_ref(), &self.0]);
        done("umount", &["-l".as_ref(), &self.0]);
    }
}

/// A loop device. Dropping it detaches it.
#[derive(Debug)]
pub struct LoopDevice(PathBuf);

impl LoopDevice {
    /// A loop device on a file. None where there is none: see [`unable`].
    pub fn new(test: &str, file: &Path) -> Option<LoopDevice> {
        let losetup = find("losetup")?;
        let made = Command::new(losetup).args(["--find", "--show"]).arg(file).output().ok()?;
        let path = String::from_utf8(made.stdout).ok()?;
        if !made.status.success() {
            unable(test, "loop devices cannot be attached");
            return None;
        }
        Some(LoopDevice(PathBuf::from(path.trim())))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Whether writes or flushes to it have begun and not ended.
    ///
    /// # Panics
    /// If the kernel does not say it.
    pub fn has_writes_in_flight(&self) -> bool {
        let name = self.0.file_name().expect("a loop device has a name");
        let counts = Path::new("/sys/block").join(name).join("inflight");
        let counts = std::fs::read_to_string(counts).expect("a block device has counters");
        counts.split_whitespace().nth(1).expect("counts of reads and writes") != "0"
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        done("losetup", &["--detach".as_ref(), &self.0]);
    }
}

fn done(program: &str, arguments: &[&Path]) -> bool {
    let Some(program) = find(program) else { return false };
    Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
}
