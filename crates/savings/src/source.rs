//! Sources of a survey: a local file or disk of any size, also one in use, or a block device.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom};
use std::os::unix::fs::{FileExt as _, FileTypeExt as _};
use std::path::Path;
use std::sync::Arc;

use flagstone_blockdev::SharedDevice;
use flagstone_runtime::{buf, compute};

use crate::measure::{RunFacts, measure};
use crate::{BLOCK_BYTES, RUN_BYTES};

/// A local file or disk, opened read-only and without a lock.
#[derive(Clone, Debug)]
pub struct FileSource {
    file: Arc<File>,
    size_bytes: u64,
}

impl FileSource {
    /// Opens a file or block device.
    ///
    /// # Errors
    /// The system's, and that it is neither.
    pub fn open(path: &Path) -> io::Result<FileSource> {
        // Before the open, which waits for the other end of a FIFO.
        let kind = path.metadata()?.file_type();
        let other = match () {
            () if kind.is_dir() => Some("a directory"),
            () if kind.is_fifo() => Some("a FIFO"),
            () if kind.is_socket() => Some("a socket"),
            () => None,
        };
        if let Some(other) = other {
            let why = format!("it is {other}; name a file, a disk or a partition");
            return Err(io::Error::other(why));
        }
        #[expect(clippy::disallowed_methods, reason = "a survey is not simulated")]
        let mut file = File::open(path)?;
        let size_bytes = file
            .seek(SeekFrom::End(0))
            .map_err(|_| io::Error::other("it has no size; name a file, a disk or a partition"))?;
        Ok(FileSource { file: Arc::new(file), size_bytes })
    }
}

/// Data to survey.
#[derive(Clone, Debug)]
pub enum Source {
    File(FileSource),
    Device(SharedDevice),
}

impl Source {
    pub fn size_bytes(&self) -> u64 {
        match self {
            Source::File(file) => file.size_bytes,
            Source::Device(device) => device.geometry().size_bytes,
        }
    }

    /// Reads and measures a run. What cannot be read is part of the facts.
    ///
    /// # Errors
    /// The thread that measures could not be started.
    pub(crate) async fn facts(&self, run: u64) -> io::Result<RunFacts> {
        let offset = run * RUN_BYTES;
        let len = RUN_BYTES.min(self.size_bytes() - offset) as usize;
        match self {
            Source::File(file) => {
                let file = file.file.clone();
                compute(move || RunData::of_file(&file, offset, len).facts(run)).await
            }
            Source::Device(device) => {
                let data = RunData::of_device(device, offset, len).await;
                compute(move || data.facts(run)).await
            }
        }
    }
}

/// Data of a run, continued with zeroes to a whole block.
struct RunData {
    len: usize,
    data: Vec<u8>,
    /// Error of each block that could not be read.
    failed: Vec<Option<String>>,
}

impl RunData {
    fn new(len: usize) -> RunData {
        let data = vec![0; len.next_multiple_of(BLOCK_BYTES)];
        RunData { len, failed: vec![None; data.len() / BLOCK_BYTES], data }
    }

    fn of_file(file: &File, offset: u64, len: usize) -> RunData {
        let mut run = RunData::new(len);
        if file.read_exact_at(&mut run.data[..len], offset).is_err() {
            for at in (0..len).step_by(BLOCK_BYTES) {
                let end = len.min(at + BLOCK_BYTES);
                let read = file.read_exact_at(&mut run.data[at..end], offset + at as u64);
                run.failed[at / BLOCK_BYTES] = read.err().map(|error| error.to_string());
            }
        }
        run
    }

    async fn of_device(device: &SharedDevice, offset: u64, len: usize) -> RunData {
        let mut run = RunData::new(len);
        if let Ok(read) = device.read(offset, buf::alloc(len).await).await {
            run.data[..len].copy_from_slice(&read);
            return run;
        }
        let unit = BLOCK_BYTES.max(device.geometry().block_bytes as usize);
        for at in (0..len).step_by(unit) {
            let end = len.min(at + unit);
            match device.read(offset + at as u64, buf::alloc(end - at).await).await {
                Ok(read) => run.data[at..end].copy_from_slice(&read),
                Err(error) => {
                    let blocks = at / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES);
                    run.failed[blocks].fill(Some(error.to_string()));
                }
            }
        }
        run
    }

    fn facts(self, run: u64) -> RunFacts {
        let mut facts = measure(run, &self.data, |block| self.failed[block].is_none());
        for (number, error) in self.failed.into_iter().enumerate() {
            let Some(error) = error else { continue };
            let at = number * BLOCK_BYTES;
            let offset = run * RUN_BYTES + at as u64;
            let bytes = BLOCK_BYTES.min(self.len - at) as u64;
            match facts.unreadable.last_mut() {
                Some(last) if last.0 + last.1 == offset && last.2 == error => last.1 += bytes,
                _ => facts.unreadable.push((offset, bytes, error)),
            }
        }
        facts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The open waited for a writer.
    #[test]
    fn fifo_is_refused_without_waiting() {
        let directory = tempfile::tempdir().unwrap();
        let fifo = directory.path().join("fifo");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
        assert!(made.success());
        let refused = FileSource::open(&fifo).unwrap_err().to_string();
        assert!(refused.contains("a FIFO") && refused.contains("name a file"), "{refused}");
    }
}
