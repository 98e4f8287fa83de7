//! Tree: lookups in the copy-on-write map of a volume, as of the last checkpoint.

use std::sync::Arc;

use flagstone_blockdev::IoError;

use super::cache::PageCache;
use crate::ondisk::checksum;
use crate::ondisk::entry::MapEntry;
use crate::ondisk::page::{FANOUT, MapPage, PagePlace, span};
use crate::read_retries::FailedRead;
use crate::storage::Storage;

/// The map of a volume at a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tree {
    /// Volume; 0 for the metadata map.
    pub volume: u32,
    /// Level of the root.
    pub level: u8,
    /// The root page; a hole for an empty map.
    pub root: MapEntry,
}

/// Result of a lookup on the path to a block.
#[derive(Clone, Debug)]
pub(crate) enum PathLookup {
    /// The leaf with the block.
    Leaf(Arc<MapPage>),
    /// A hole of this many blocks, from the block of the lookup on.
    Holes(u64),
}

/// Result of a lookup above the leaves.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LeafLookup {
    /// Entry and place of the leaf.
    Leaf(MapEntry, PagePlace),
    /// As [`PathLookup::Holes`].
    Holes(u64),
}

/// Reason why a page cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageError {
    /// Its content is not what was written, or an earlier checkpoint gave it up.
    Damaged,
    /// The device failed the read.
    Unread(FailedRead),
}

impl From<PageError> for IoError {
    fn from(error: PageError) -> IoError {
        match error {
            PageError::Damaged => IoError::ReadFault,
            PageError::Unread(unread) => unread.error,
        }
    }
}

/// Reads a page, through the cache.
///
/// # Errors
/// [`PageError`].
pub(crate) async fn read_page(
    storage: &Storage,
    cache: &PageCache,
    entry: MapEntry,
    place: PagePlace,
) -> Result<Arc<MapPage>, PageError> {
    if let Some(page) = cache.get(entry) {
        return Ok(page);
    }
    if entry == MapEntry::LOST {
        return Err(PageError::Damaged);
    }
    let location = entry.location;
    let block = storage.read_entry_block(entry).await;
    let block = block.map_err(|error| PageError::Unread(FailedRead { location, error }))?;
    let damaged = |reason: &dyn std::fmt::Display| {
        let device = &storage.device_of(entry.location).name;
        tracing::error!(device, block = entry.location, ?place, %reason, "map page is damaged");
        PageError::Damaged
    };
    if checksum(&block) != entry.checksum {
        return Err(damaged(&"its checksum is wrong"));
    }
    let page = MapPage::decode(&block, place, storage.layout.blocks());
    let page = Arc::new(page.map_err(|error| damaged(&error))?);
    cache.put(entry, page.clone());
    Ok(page)
}

impl Tree {
    /// Leaf of a block, or extent of the hole around the block.
    pub(crate) async fn find(
        &self,
        storage: &Storage,
        cache: &PageCache,
        block: u64,
    ) -> Result<PathLookup, PageError> {
        Ok(match self.find_leaf(storage, cache, block).await? {
            LeafLookup::Leaf(entry, place) => {
                PathLookup::Leaf(read_page(storage, cache, entry, place).await?)
            }
            LeafLookup::Holes(count) => PathLookup::Holes(count),
        })
    }

    /// The same without a read of the leaf.
    pub(crate) async fn find_leaf(
        &self,
        storage: &Storage,
        cache: &PageCache,
        block: u64,
    ) -> Result<LeafLookup, PageError> {
        if block >= span(self.level) {
            return Ok(LeafLookup::Holes(u64::MAX - block));
        }
        let (mut entry, mut level) = (self.root, self.level);
        loop {
            let covered = span(level);
            if entry.is_hole() {
                return Ok(LeafLookup::Holes(covered - block % covered));
            }
            let place = PagePlace { volume: self.volume, level, index: block / covered };
            if level == 1 {
                return Ok(LeafLookup::Leaf(entry, place));
            }
            let page = read_page(storage, cache, entry, place).await?;
            level -= 1;
            entry = page.entries[(block / span(level)) as usize % FANOUT];
        }
    }

    /// Entry of a block, if every page on the path is cached.
    pub(crate) fn lookup_cached(&self, cache: &PageCache, block: u64) -> Option<MapEntry> {
        if block >= span(self.level) {
            return Some(MapEntry::HOLE);
        }
        let (mut entry, mut level) = (self.root, self.level);
        while level > 0 && !entry.is_hole() {
            let page = cache.get(entry)?;
            level -= 1;
            entry = page.entries[(block / span(level)) as usize % FANOUT];
        }
        Some(entry)
    }

    /// Entry of a block.
    pub(crate) async fn lookup(
        &self,
        storage: &Storage,
        cache: &PageCache,
        block: u64,
    ) -> Result<MapEntry, PageError> {
        Ok(match self.find(storage, cache, block).await? {
            PathLookup::Leaf(page) => page.entries[block as usize % FANOUT],
            PathLookup::Holes(_) => MapEntry::HOLE,
        })
    }

    /// Entry of a page of the tree; a hole if the page does not exist.
    pub(crate) async fn lookup_page(
        &self,
        storage: &Storage,
        cache: &PageCache,
        level: u8,
        index: u64,
    ) -> Result<MapEntry, PageError> {
        if level > self.level || (level == self.level && index > 0) {
            return Ok(MapEntry::HOLE);
        }
        let block = index.saturating_mul(span(level));
        if block >= span(self.level) {
            return Ok(MapEntry::HOLE);
        }
        let (mut entry, mut at) = (self.root, self.level);
        while at > level && !entry.is_hole() {
            let place = PagePlace { volume: self.volume, level: at, index: block / span(at) };
            let page = read_page(storage, cache, entry, place).await?;
            at -= 1;
            entry = page.entries[(block / span(at)) as usize % FANOUT];
        }
        Ok(entry)
    }
}
