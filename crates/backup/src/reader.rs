//! Reader of a backup at any offset. Indexes and pieces that were read last stay in memory.
//!
//! Invariants: returned data has the right checksums; both caches are bounded.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::document::{BackupEntry, Manifest};
use crate::error::BackupError;
use crate::index::{Extent, PieceRef};
use crate::limits::{BLOCK_BYTES, INDEXES_CACHED, PIECES_CACHED, RANGE_BLOCKS};
use crate::pieces::download;
use crate::repository::Repository;

/// Entries that were used last, in this order.
struct Cache<K, V> {
    entries: Vec<(K, V)>,
    max: usize,
}

impl<K: Eq, V: Clone> Cache<K, V> {
    fn new(max: usize) -> Mutex<Cache<K, V>> {
        Mutex::new(Cache { entries: Vec::with_capacity(max), max })
    }

    fn get(&mut self, key: &K) -> Option<V> {
        let place = self.entries.iter().position(|(own, _)| own == key)?;
        let entry = self.entries.remove(place);
        let value = entry.1.clone();
        self.entries.push(entry);
        Some(value)
    }

    fn insert(&mut self, key: K, value: V) {
        self.entries.retain(|(own, _)| *own != key);
        if self.entries.len() == self.max {
            self.entries.remove(0);
        }
        self.entries.push((key, value));
    }
}

type Content = Arc<Vec<u8>>;

/// Run of blocks of a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Length, in bytes.
    pub len: u64,
    /// True if all of it is zeroes that take no space.
    pub is_hole: bool,
}

/// Backup that is read at any offset.
pub struct BackupReader {
    repository: Arc<Repository>,
    manifest: Manifest,
    indexes: Mutex<Cache<u32, Arc<Vec<Extent>>>>,
    pieces: Mutex<Cache<PieceRef, Content>>,
}

/// Blocks `from..to` of a range.
struct Part {
    range: u32,
    from: u32,
    to: u32,
}

/// Parts of `offset..offset + len`, in bytes, each in one range.
fn parts(offset: u64, len: u64) -> impl Iterator<Item = Part> {
    let (mut at, end) = (offset / BLOCK_BYTES, (offset + len) / BLOCK_BYTES);
    std::iter::from_fn(move || {
        let (range, from) = ((at / u64::from(RANGE_BLOCKS)) as u32, at % u64::from(RANGE_BLOCKS));
        let blocks = (end - at).min(u64::from(RANGE_BLOCKS) - from);
        at += blocks;
        let (from, to) = (from as u32, (from + blocks) as u32);
        (blocks > 0).then_some(Part { range, from, to })
    })
}

/// Extents that have blocks of `from..to`.
fn within(extents: &[Extent], from: u32, to: u32) -> &[Extent] {
    let first = extents.partition_point(|extent| extent.first + extent.blocks <= from);
    let end = extents.partition_point(|extent| extent.first < to);
    &extents[first..end.max(first)]
}

/// Adds blocks to the runs. False if they would be a run too many.
fn extend(runs: &mut Vec<Run>, blocks: u32, is_hole: bool, max: usize) -> bool {
    let len = u64::from(blocks) * BLOCK_BYTES;
    let count = runs.len();
    match runs.last_mut() {
        Some(last) if last.is_hole == is_hole => last.len += len,
        _ if blocks == 0 => {}
        _ if count == max => return false,
        _ => runs.push(Run { len, is_hole }),
    }
    true
}

impl BackupReader {
    /// Reads the manifest of a backup.
    ///
    /// # Errors
    /// It is missing or damaged, its key is missing, or the store fails.
    pub async fn open(
        repository: Arc<Repository>,
        entry: &BackupEntry,
    ) -> Result<BackupReader, BackupError> {
        repository.prefix_key().await?;
        let manifest = repository.manifest(entry).await?;
        let (indexes, pieces) = (Cache::new(INDEXES_CACHED), Cache::new(PIECES_CACHED));
        Ok(BackupReader { repository, manifest, indexes, pieces })
    }

    /// Size of the volume, in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.manifest.snapshot.size_bytes
    }

    fn check(&self, offset: u64, len: u64) -> Result<(), BackupError> {
        let is_whole = offset.is_multiple_of(BLOCK_BYTES) && len.is_multiple_of(BLOCK_BYTES);
        let end = offset.checked_add(len);
        match is_whole && end.is_some_and(|end| end <= self.size_bytes()) {
            true => Ok(()),
            false => Err(BackupError::Limit("the range is not within the volume".to_owned())),
        }
    }

    async fn index(&self, range: u32) -> Result<Arc<Vec<Extent>>, BackupError> {
        if let Some(found) = self.indexes.lock().get(&range) {
            return Ok(found);
        }
        let extents = Arc::new(self.repository.index(&self.manifest, range).await?);
        self.indexes.lock().insert(range, extents.clone());
        Ok(extents)
    }

    /// Pieces of these extents, from memory or the store.
    async fn contents(&self, extents: &[Extent]) -> Result<Vec<Content>, BackupError> {
        let mut found: Vec<Option<Content>> = Vec::with_capacity(extents.len());
        {
            let mut pieces = self.pieces.lock();
            found.extend(extents.iter().map(|extent| pieces.get(&extent.piece)));
        }
        let missing = extents.iter().zip(&found).filter(|(_, content)| content.is_none());
        let missing: Vec<PieceRef> = missing.map(|(extent, _)| extent.piece).collect();
        let mut read = download(&self.repository, missing).await?;
        let mut contents = Vec::with_capacity(extents.len());
        for (extent, content) in extents.iter().zip(found) {
            contents.push(match content {
                Some(content) => content,
                // Two extents may have one piece.
                None => match read.remove(&extent.piece) {
                    Some(content) => {
                        let content = Arc::new(content?);
                        self.pieces.lock().insert(extent.piece, content.clone());
                        content
                    }
                    None => self.one(extent.piece).await?,
                },
            });
        }
        Ok(contents)
    }

    async fn one(&self, piece: PieceRef) -> Result<Content, BackupError> {
        if let Some(found) = self.pieces.lock().get(&piece) {
            return Ok(found);
        }
        let mut read = download(&self.repository, vec![piece]).await?;
        let content = read
            .remove(&piece)
            .ok_or_else(|| BackupError::damaged(piece.pack, "a piece was not read"))?;
        content.map(Arc::new)
    }

    /// Fills `out` from `offset`, both multiples of 4,096 bytes.
    ///
    /// # Errors
    /// The range is beyond the end, an object is missing or damaged, or the store fails.
    pub async fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), BackupError> {
        self.check(offset, out.len() as u64)?;
        out.fill(0);
        let mut start = 0;
        for Part { range, from, to } in parts(offset, out.len() as u64) {
            let index = self.index(range).await?;
            // Each group fits the cache, so that a piece is read once.
            for extents in within(&index, from, to).chunks(PIECES_CACHED / 2) {
                let contents = self.contents(extents).await?;
                for (extent, content) in extents.iter().zip(contents) {
                    let first = extent.first.max(from);
                    let end = (extent.first + extent.blocks).min(to);
                    let [skip, at, len] =
                        [extent.skip + (first - extent.first), first - from, end - first]
                            .map(|blocks| blocks as usize * BLOCK_BYTES as usize);
                    out[start + at..][..len].copy_from_slice(&content[skip..skip + len]);
                }
            }
            start += (to - from) as usize * BLOCK_BYTES as usize;
        }
        Ok(())
    }

    /// Runs from `offset`, in order, that cover the range or the start of it: at most `max`.
    ///
    /// # Errors
    /// As of [`BackupReader::read`].
    pub async fn runs(&self, offset: u64, len: u64, max: usize) -> Result<Vec<Run>, BackupError> {
        self.check(offset, len)?;
        let mut runs: Vec<Run> = Vec::new();
        'parts: for Part { range, from, to } in parts(offset, len) {
            let index = self.index(range).await?;
            let mut at = from;
            for extent in within(&index, from, to) {
                let (first, end) = (extent.first.max(from), (extent.first + extent.blocks).min(to));
                if !extend(&mut runs, first - at, true, max)
                    || !extend(&mut runs, end - first, false, max)
                {
                    break 'parts;
                }
                at = end;
            }
            if !extend(&mut runs, to - at, true, max) {
                break;
            }
        }
        Ok(runs)
    }
}
