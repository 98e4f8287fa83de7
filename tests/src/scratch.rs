//! A directory that exists as long as a test does.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A fresh directory, removed with all that it holds when dropped.
///
/// Its path is short: Unix sockets, whose paths end at 107 bytes, are made in it.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes a directory under the system's directory for temporary files.
    ///
    /// # Panics
    /// If no directory can be made there.
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path =
                std::env::temp_dir().join(format!("flagstone-{}-{number}", std::process::id()));
            match fs::create_dir(&path) {
                Ok(()) => return Self(path),
                // Left by a test process that was killed, and had the same number.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => panic!("making {}: {error}", path.display()),
            }
        }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The path of `name` in the directory.
    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Makes a sparse file of `size_bytes` zeroes, and returns its path.
    ///
    /// # Panics
    /// If the file cannot be made.
    pub fn disk(&self, name: &str, size_bytes: u64) -> PathBuf {
        let path = self.join(name);
        File::create_new(&path)
            .and_then(|file| file.set_len(size_bytes))
            .unwrap_or_else(|error| panic!("making {}: {error}", path.display()));
        path
    }

    /// Makes a file of `size_bytes` that no part of equals another at the same offset in a block:
    /// a 64-bit counter times an odd number, so that lost, stale and misplaced blocks all show.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn pattern(&self, name: &str, size_bytes: u64) -> PathBuf {
        let path = self.join(name);
        let words = size_bytes.div_ceil(8);
        let bytes: Vec<u8> = (1..=words)
            .flat_map(|word| word.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes())
            .take(usize::try_from(size_bytes).expect("a test file fits memory"))
            .collect();
        fs::write(&path, bytes)
            .unwrap_or_else(|error| panic!("writing {}: {error}", path.display()));
        path
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A test that failed may have left something that cannot be removed; its own message
        // matters more.
        let _ = fs::remove_dir_all(&self.0);
    }
}
