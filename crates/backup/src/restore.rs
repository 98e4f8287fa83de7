//! Restore: the content of a backup, in order. Several downloads are in flight; what is returned
//! has the right checksums.

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::future::{BoxFuture, FutureExt as _};
use futures_util::stream::FuturesOrdered;

use crate::document::{BackupEntry, Manifest};
use crate::error::BackupError;
use crate::index::Extent;
use crate::limits::{BLOCK_BYTES, DOWNLOADS_MAX, RANGE_BYTES, WINDOW_BYTES_MAX};
use crate::pieces::download;
use crate::repository::Repository;

/// Part of a volume's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Offset in the volume, in bytes: the end of the previous chunk.
    pub offset: u64,
    /// Length, in bytes.
    pub len: u64,
    /// Data; a hole if `None`.
    pub data: Option<Vec<u8>>,
}

/// Extents that are downloaded together, with the offset of their range.
struct Window {
    start: u64,
    extents: Vec<Extent>,
}

type Download = BoxFuture<'static, Result<Vec<Chunk>, BackupError>>;

/// Reader of a backup.
pub struct Restore {
    repository: Arc<Repository>,
    manifest: Arc<Manifest>,
    /// End of the last chunk.
    at: u64,
    next_range: u32,
    windows: VecDeque<Window>,
    downloads: FuturesOrdered<Download>,
    ready: VecDeque<Chunk>,
    /// The failure that ended the restore. The chunks after it would look like a hole.
    failure: Option<BackupError>,
}

/// Divides extents into windows.
fn windows(start: u64, extents: Vec<Extent>, from: u64) -> VecDeque<Window> {
    let mut windows: VecDeque<Window> = VecDeque::new();
    let mut bytes = 0;
    for extent in extents {
        if start + u64::from(extent.first + extent.blocks) * BLOCK_BYTES <= from {
            continue;
        }
        let piece = usize::from(extent.piece.blocks) * BLOCK_BYTES as usize;
        match windows.back_mut() {
            Some(window) if bytes + piece <= WINDOW_BYTES_MAX => {
                window.extents.push(extent);
                bytes += piece;
            }
            _ => {
                windows.push_back(Window { start, extents: vec![extent] });
                bytes = piece;
            }
        }
    }
    windows
}

async fn contents(repository: Arc<Repository>, window: Window) -> Result<Vec<Chunk>, BackupError> {
    let pieces = window.extents.iter().map(|extent| extent.piece).collect();
    let found = download(&repository, pieces).await?;
    let chunk = |extent: &Extent| {
        let content = found[&extent.piece].as_ref().map_err(Clone::clone)?;
        let [skip, len, first] =
            [extent.skip, extent.blocks, extent.first].map(|n| u64::from(n) * BLOCK_BYTES);
        let data = content[skip as usize..(skip + len) as usize].to_vec();
        Ok(Chunk { offset: window.start + first, len, data: Some(data) })
    };
    window.extents.iter().map(chunk).collect()
}

impl Restore {
    /// Reads the manifest of a backup.
    ///
    /// # Errors
    /// It is missing or damaged, or the store fails.
    pub async fn open(
        repository: Arc<Repository>,
        entry: &BackupEntry,
    ) -> Result<Restore, BackupError> {
        let manifest = Arc::new(repository.manifest(entry).await?);
        Ok(Restore {
            repository,
            manifest,
            at: 0,
            next_range: 0,
            windows: VecDeque::new(),
            downloads: FuturesOrdered::new(),
            ready: VecDeque::new(),
            failure: None,
        })
    }

    /// Leaves out what is before `at`, in bytes. The next chunk may begin earlier.
    pub fn skip_to(&mut self, at: u64) {
        self.at = self.at.max(at - at % BLOCK_BYTES).min(self.manifest.snapshot.size_bytes);
        self.next_range = self.next_range.max((self.at / RANGE_BYTES) as u32);
        self.ready.retain(|chunk| chunk.offset + chunk.len > self.at);
    }

    /// Begins downloads, as many as are allowed in flight.
    async fn fill(&mut self) -> Result<(), BackupError> {
        while self.downloads.len() < DOWNLOADS_MAX {
            if let Some(window) = self.windows.pop_front() {
                self.downloads.push_back(contents(self.repository.clone(), window).boxed());
                continue;
            }
            if self.next_range == self.manifest.snapshot.ranges() {
                return Ok(());
            }
            let range = self.next_range;
            let extents = self.repository.index(&self.manifest, range).await?;
            self.windows = windows(u64::from(range) * RANGE_BYTES, extents, self.at);
            self.next_range += 1;
        }
        Ok(())
    }

    /// The next chunk; `None` at the end of the volume.
    ///
    /// # Errors
    /// An object is missing or damaged, or the store fails. Each later call returns the same error.
    pub async fn next(&mut self) -> Result<Option<Chunk>, BackupError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let next = self.advance().await;
        self.failure = next.as_ref().err().cloned();
        next
    }

    async fn advance(&mut self) -> Result<Option<Chunk>, BackupError> {
        while self.ready.is_empty() {
            self.fill().await?;
            match self.downloads.next().await {
                Some(chunks) => {
                    let at = self.at;
                    let needed = chunks?.into_iter().filter(|chunk| chunk.offset + chunk.len > at);
                    self.ready.extend(needed);
                }
                None => break,
            }
        }
        let size = self.manifest.snapshot.size_bytes;
        let until = self.ready.front().map_or(size, |chunk| chunk.offset);
        if self.at < until {
            let hole = Chunk { offset: self.at, len: until - self.at, data: None };
            self.at = until;
            return Ok(Some(hole));
        }
        let mut chunk = self.ready.pop_front();
        if let Some(chunk) = &mut chunk {
            let passed = self.at - chunk.offset;
            if let Some(data) = chunk.data.as_mut().filter(|_| passed > 0) {
                data.drain(..passed as usize);
                (chunk.offset, chunk.len) = (self.at, chunk.len - passed);
            }
            self.at = chunk.offset + chunk.len;
        }
        Ok(chunk)
    }
}
