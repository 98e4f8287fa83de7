//! Scratch directory that lives as long as a test.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A new directory, removed with its content on drop.
///
/// Its path is short, because it holds Unix sockets, whose paths are limited to 107 bytes.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Creates a directory in the system's temporary directory.
    ///
    /// # Panics
    ///
    /// If the directory cannot be created.
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path =
                std::env::temp_dir().join(format!("flagstone-{}-{number}", std::process::id()));
            match fs::create_dir(&path) {
                Ok(()) => return Self(path),
                // Left by a killed test process with the same process ID.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => panic!("making {}: {error}", path.display()),
            }
        }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Path of `name` in the directory.
    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Creates a sparse file of `size_bytes` zeroes. Returns its path.
    ///
    /// # Panics
    ///
    /// If the file cannot be created.
    pub fn disk(&self, name: &str, size_bytes: u64) -> PathBuf {
        let path = self.join(name);
        File::create_new(&path)
            .and_then(|file| file.set_len(size_bytes))
            .unwrap_or_else(|error| panic!("making {}: {error}", path.display()));
        path
    }

    /// Creates a file of `size_bytes` without repeating blocks: a 64-bit counter times an odd
    /// number, so that lost, stale and misplaced blocks are detected.
    ///
    /// # Panics
    ///
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
        // A failed test may leave a file that cannot be removed. Its own message matters more.
        let _ = fs::remove_dir_all(&self.0);
    }
}
