//! Merge: applies changes to a copy-on-write tree, level by level from the leaves.
//!
//! Invariants:
//! - old pages never change;
//! - the usage loses each block and page that only the old tree refers to, unless the parent owns
//!   it, and gains the new ones;
//! - a page without entries is not written;
//! - entries of a damaged page are lost, and their blocks stay counted as used.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use flagstone_blockdev::IoError;

use super::{OldMaps, leaf_end};
use crate::limits::{BLOCK_BYTES, PAGES_PER_CHUNK};
use crate::log::append::chunk_memory;
use crate::manage::shared::Shared;
use crate::manage::usage::SegmentUsage;
use crate::map::recent::MapChange;
use crate::map::tree::{LeafLookup, Tree, read_page};
use crate::ondisk::ancestry::Ownership;
use crate::ondisk::checksum;
use crate::ondisk::chunk::ChunkRecord;
use crate::ondisk::entry::MapEntry;
use crate::ondisk::page::{FANOUT, MapPage, PagePlace, span};

/// Changes to merge into one tree.
#[derive(Debug, Default)]
pub(crate) struct MergeInput {
    /// Changed blocks, ascending. They override `zeroes`.
    pub(crate) changes: Vec<MapChange>,
    /// Ranges of zeroes, in blocks.
    pub(crate) zeroes: Vec<Range<u64>>,
    /// Pages to rewrite although their entries did not change.
    pub(crate) touched: Vec<PagePlace>,
}

impl MergeInput {
    pub(crate) fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.zeroes.is_empty() && self.touched.is_empty()
    }
}

/// Result of a merge.
pub(crate) struct Merged {
    pub(crate) tree: Tree,
    /// Mapped blocks, new minus old.
    pub(crate) mapped: i64,
    /// Their weight, new minus old.
    pub(crate) weight: i64,
    /// Blocks shared with the parent that the new tree no longer has.
    pub(crate) unshared: u64,
    /// Their weight.
    pub(crate) unshared_weight: u64,
}

/// New entries of pages, by index.
type Level = Vec<(u64, MapEntry)>;

pub(super) struct Merge<'a> {
    shared: &'a Shared,
    maps: &'a OldMaps<'a>,
    usage: &'a mut SegmentUsage,
    old: Tree,
    ownership: Ownership,
    /// Birth of new pages.
    birth: u64,
    changed: Changed,
}

/// Changes of the counts of a volume.
#[derive(Debug, Default)]
struct Changed {
    mapped: i64,
    weight: i64,
    unshared: u64,
    unshared_weight: u64,
}

impl Changed {
    /// Counts a changed entry, of which the tree owned the old one or not.
    fn count(&mut self, old: MapEntry, new: MapEntry, own: bool) {
        if !own && old.is_stored() {
            self.unshared += 1;
            self.unshared_weight += u64::from(old.weight());
        }
        self.mapped += i64::from(!new.is_hole()) - i64::from(!old.is_hole());
        self.weight += i64::from(new.mapped_weight()) - i64::from(old.mapped_weight());
    }
}

impl<'a> Merge<'a> {
    pub(super) fn new(
        maps: &'a OldMaps<'a>,
        usage: &'a mut SegmentUsage,
        old: Tree,
        ownership: Ownership,
        birth: u64,
    ) -> Merge<'a> {
        let shared = maps.shared;
        Merge { shared, maps, usage, old, ownership, birth, changed: Changed::default() }
    }

    /// Applies the changes; the new root has `level`.
    ///
    /// # Errors
    /// Errors of the devices, or a damaged page.
    pub(crate) async fn run(mut self, input: MergeInput, level: u8) -> Result<Merged, IoError> {
        assert!(level >= self.old.level, "volumes grow only");
        let old = self.old;
        let mut pages = self.leaves(&input).await?;
        for above in 2..=level {
            // The old root becomes the first page below a new one.
            let moves_down = above == old.level + 1 && !old.root.is_hole();
            if moves_down && pages.first().is_none_or(|(index, _)| *index > 0) {
                pages.insert(0, (0, old.root));
            }
            let touched = input.touched.iter().filter(|place| place.level == above);
            let touched = touched.map(|place| place.index).collect();
            pages = self.inner(above, &pages, touched).await?;
        }
        let root = pages.first().map_or(old.root, |(_, entry)| *entry);
        let Changed { mapped, weight, unshared, unshared_weight } = self.changed;
        let tree = Tree { level, root, ..old };
        Ok(Merged { tree, mapped, weight, unshared, unshared_weight })
    }

    /// Drops an entry of the old tree. Returns true if the tree owned it, so that it was freed.
    fn retire(&mut self, entry: MapEntry, level: u8, index: u64) -> Result<bool, IoError> {
        let own = self.ownership.is_own(entry.birth, (index + 1).saturating_mul(span(level)));
        if own {
            self.shared.retire(self.usage, entry)?;
        }
        Ok(own)
    }

    /// Entry and content of an old page. Entries of a damaged page are lost, except in the metadata
    /// map, which must be whole.
    async fn old_page(&self, level: u8, index: u64) -> Result<(MapEntry, Arc<MapPage>), IoError> {
        let (storage, cache) = (&self.shared.storage, &self.shared.cache);
        let place = PagePlace { volume: self.old.volume, level, index };
        let lookup = async || self.old.lookup_page(storage, cache, level, index).await;
        let entry = self.maps.read(lookup).await?.unwrap_or(MapEntry::LOST);
        if entry.is_hole() {
            return Ok((entry, Arc::default()));
        }
        let read = async || read_page(storage, cache, entry, place).await;
        match self.maps.read(read).await? {
            Some(page) => Ok((entry, page)),
            None if place.volume == 0 => Err(IoError::ReadFault),
            None => {
                tracing::error!(pool = self.shared.name, ?place, "map page is lost");
                let page = MapPage { entries: [MapEntry::LOST; FANOUT], ..MapPage::default() };
                Ok((entry, Arc::new(page)))
            }
        }
    }

    /// Indexes of the leaves that may change, ascending. Reads none of them: they may be more than
    /// the cache has room for.
    async fn leaves_to_change(&self, input: &MergeInput) -> Result<BTreeSet<u64>, IoError> {
        let leaf_of = |block: u64| block / FANOUT as u64;
        let mut leaves: BTreeSet<u64> =
            input.changes.iter().map(|change| leaf_of(change.block)).collect();
        leaves.extend(input.touched.iter().filter(|place| place.level == 1).map(|leaf| leaf.index));
        for range in &input.zeroes {
            let mut block = range.start;
            while block < range.end {
                let (storage, cache) = (&self.shared.storage, &self.shared.cache);
                let find = async || self.old.find_leaf(storage, cache, block).await;
                block = match self.maps.read(find).await? {
                    Some(LeafLookup::Holes(count)) => block.saturating_add(count),
                    Some(LeafLookup::Leaf(..)) | None => {
                        leaves.insert(leaf_of(block));
                        leaf_end(leaf_of(block))
                    }
                };
            }
        }
        Ok(leaves)
    }

    async fn leaves(&mut self, input: &MergeInput) -> Result<Level, IoError> {
        let mut batch = Vec::new();
        let mut done = Level::new();
        let mut changes = input.changes.as_slice();
        let touched: BTreeSet<u64> =
            input.touched.iter().filter(|place| place.level == 1).map(|leaf| leaf.index).collect();
        for index in self.leaves_to_change(input).await? {
            let (entry, old) = self.old_page(1, index).await?;
            let mut page = (*old).clone();
            let blocks = leaf_end(index) - FANOUT as u64..leaf_end(index);
            for range in &input.zeroes {
                let part = range.start.max(blocks.start)..range.end.min(blocks.end);
                for block in part {
                    page.entries[(block - blocks.start) as usize] = MapEntry::HOLE;
                }
            }
            let own = changes.partition_point(|change| change.block < blocks.end);
            for change in &changes[..own] {
                page.entries[(change.block - blocks.start) as usize] = change.entry;
            }
            changes = &changes[own..];
            if page == *old && !touched.contains(&index) {
                continue;
            }
            for ((new, old), block) in page.entries.iter().zip(&old.entries).zip(blocks) {
                if new != old {
                    let own = self.retire(*old, 0, block)?;
                    self.usage.add(&self.shared.storage.layout, *new);
                    self.changed.count(*old, *new, own);
                }
            }
            self.replace(1, index, entry, page, &mut batch, &mut done).await?;
        }
        self.write(1, &mut batch, &mut done).await?;
        Ok(done)
    }

    async fn inner(
        &mut self,
        level: u8,
        below: &[(u64, MapEntry)],
        touched: BTreeSet<u64>,
    ) -> Result<Level, IoError> {
        let mut batch = Vec::new();
        let mut done = Level::new();
        let parent = |index: u64| index / FANOUT as u64;
        let mut indexes = touched;
        indexes.extend(below.iter().map(|(index, _)| parent(*index)));
        let mut below = below;
        for index in indexes {
            let (entry, old) = self.old_page(level, index).await?;
            let mut page = (*old).clone();
            let own = below.partition_point(|(child, _)| parent(*child) <= index);
            for (child, entry) in &below[..own] {
                page.entries[*child as usize % FANOUT] = *entry;
            }
            below = &below[own..];
            self.replace(level, index, entry, page, &mut batch, &mut done).await?;
        }
        self.write(level, &mut batch, &mut done).await?;
        Ok(done)
    }

    /// Replaces an old page by a new one, or removes it.
    async fn replace(
        &mut self,
        level: u8,
        index: u64,
        old: MapEntry,
        mut page: MapPage,
        batch: &mut Vec<(u64, MapPage)>,
        done: &mut Level,
    ) -> Result<(), IoError> {
        self.retire(old, level, index)?;
        if page.is_empty() {
            // Write the pages of the batch first, to keep the order of indexes.
            self.write(level, batch, done).await?;
            done.push((index, MapEntry::HOLE));
            return Ok(());
        }
        page.volume = self.old.volume;
        batch.push((index, page));
        if batch.len() == PAGES_PER_CHUNK.min(self.shared.chunk_blocks()) {
            self.write(level, batch, done).await?;
        }
        Ok(())
    }

    /// Writes the pages of a batch as one chunk.
    async fn write(
        &mut self,
        level: u8,
        batch: &mut Vec<(u64, MapPage)>,
        done: &mut Level,
    ) -> Result<(), IoError> {
        if batch.is_empty() {
            return Ok(());
        }
        let place = |index: u64| PagePlace { volume: self.old.volume, level, index };
        let mut memory = chunk_memory(batch.len()).await;
        let mut checksums = Vec::with_capacity(batch.len());
        for ((index, page), block) in
            batch.iter().zip(memory[BLOCK_BYTES..].chunks_mut(BLOCK_BYTES))
        {
            page.encode(level, *index, block);
            checksums.push(checksum(block));
        }
        let birth = self.birth;
        let record =
            |(index, _): &(u64, MapPage)| ChunkRecord::Page { place: place(*index), birth };
        let records = batch.iter().map(record).collect();
        let appended = self.shared.append(records, memory).await?;
        let written = batch.drain(..).zip(checksums).zip(appended.payload..);
        for (((index, page), checksum), location) in written.collect::<Vec<_>>() {
            let entry = MapEntry { location, birth, checksum };
            self.usage.add(&self.shared.storage.layout, entry);
            self.shared.cache.put(entry, Arc::new(page));
            done.push((index, entry));
        }
        Ok(())
    }
}
