//! Relocation: makes maps refer to the new places of the blocks and pages that the cleaner moves
//! out of its segments. Maps that share a page share its copy, which keeps the birth of the page,
//! so ownership does not change.

use std::collections::{BTreeMap, BTreeSet};

use flagstone_blockdev::IoError;

use super::MaintenanceWork;
use crate::limits::{BLOCK_BYTES, PAGES_PER_CHUNK};
use crate::log::append::chunk_memory;
use crate::map::tree::read_page;
use crate::ondisk::checksum;
use crate::ondisk::chunk::ChunkRecord;
use crate::ondisk::entry::MapEntry;
use crate::ondisk::page::{FANOUT, MapPage, PagePlace};

/// Blocks and pages that the cleaner moves out of its segments.
#[derive(Debug, Default)]
pub(crate) struct Moving {
    /// New entries of blocks that snapshots have, by old location.
    pub(crate) blocks: BTreeMap<u64, MapEntry>,
    /// Places of the pages that refer to `blocks`, in every map that has them, and of pages of
    /// snapshots. Level 0 stands for a block, whose old location this is.
    pub(crate) places: BTreeMap<PagePlace, u64>,
    /// Pages owned by one volume, pages of volume 0, and metadata blocks: merging rewrites them.
    pub(crate) touched: BTreeSet<PagePlace>,
}

/// Pages to copy, with their old entries.
type Batch = Vec<(MapEntry, PagePlace, MapPage)>;

impl MaintenanceWork<'_> {
    /// Copies the moving pages, and changes the trees that have them.
    ///
    /// # Errors
    /// Errors of the devices; [`IoError::ReadFault`] for an unreadable page, after which nothing
    /// may move.
    pub(super) async fn relocate(&mut self, moving: &Moving) -> Result<(), IoError> {
        // New entries of blocks and pages, by old location.
        let mut moved = moving.blocks.clone();
        for (old, new) in &moving.blocks {
            self.retire(MapEntry { location: *old, ..*new })?;
            self.add(*new);
        }
        let mut below: BTreeMap<u32, BTreeSet<u64>> = BTreeMap::new();
        for (place, old) in moving.places.iter().filter(|(place, _)| place.level == 0) {
            below.entry(place.volume).or_default().insert(place.index);
            if let Some(new) = moving.blocks.get(old) {
                self.change_weight(*place, MapEntry { location: *old, ..*new }, *new);
            }
        }
        let levels = self.trees.values().map(|tree| tree.level).max().unwrap_or(0);
        for level in 1..=levels {
            let parent = |index: &u64| index / FANOUT as u64;
            let mut indexes: BTreeMap<u32, BTreeSet<u64>> = below
                .into_iter()
                .map(|(id, below)| (id, below.iter().map(parent).collect()))
                .collect();
            for place in moving.places.keys().filter(|place| place.level == level) {
                indexes.entry(place.volume).or_default().insert(place.index);
            }
            self.relocate_level(level, &indexes, &mut moved).await?;
            below = indexes;
        }
        for tree in self.trees.values_mut() {
            tree.root = moved.get(&tree.root.location).copied().unwrap_or(tree.root);
        }
        Ok(())
    }

    /// A copy may be compressed otherwise than the block was.
    fn change_weight(&mut self, place: PagePlace, old: MapEntry, new: MapEntry) {
        let own = self.volume_table.ownership(place.volume).is_own(new.birth, place.index + 1);
        let changed = |weight: u64| {
            weight.saturating_sub(old.weight().into()).saturating_add(new.weight().into())
        };
        if let Some(volume) = self.volume_table.volumes.get_mut(&place.volume) {
            volume.weight = changed(volume.weight);
            if !own {
                volume.shared_weight = changed(volume.shared_weight);
            }
        }
    }

    /// Copies the pages of one level. A page that several trees share is copied once. Pages of
    /// several trees fill a chunk, because with many snapshots each tree has only a page or two.
    async fn relocate_level(
        &mut self,
        level: u8,
        indexes: &BTreeMap<u32, BTreeSet<u64>>,
        moved: &mut BTreeMap<u64, MapEntry>,
    ) -> Result<(), IoError> {
        let (storage, cache) = (&self.shared.storage, &self.shared.cache);
        let batch_max = PAGES_PER_CHUNK.min(self.shared.chunk_blocks());
        let (mut batch, mut batched) = (Batch::new(), BTreeSet::new());
        for (id, indexes) in indexes {
            let tree = self.trees.get(id).filter(|tree| level <= tree.level).copied();
            let Some(tree) = tree else { continue };
            for index in indexes {
                let old = tree.lookup_page(storage, cache, level, *index).await?;
                let is_done = moved.contains_key(&old.location) || batched.contains(&old.location);
                if !old.is_stored() || is_done {
                    continue;
                }
                let place = PagePlace { volume: *id, level, index: *index };
                let mut page = (*read_page(storage, cache, old, place).await?).clone();
                for entry in &mut page.entries {
                    *entry = moved.get(&entry.location).copied().unwrap_or(*entry);
                }
                batched.insert(old.location);
                batch.push((old, place, page));
                if batch.len() == batch_max {
                    self.relocate_batch(&mut batch, moved).await?;
                    batched.clear();
                }
            }
        }
        self.relocate_batch(&mut batch, moved).await
    }

    async fn relocate_batch(
        &mut self,
        batch: &mut Batch,
        moved: &mut BTreeMap<u64, MapEntry>,
    ) -> Result<(), IoError> {
        if batch.is_empty() {
            return Ok(());
        }
        let entries = self.copy_pages(batch).await?;
        for ((old, ..), new) in batch.drain(..).zip(entries) {
            self.retire(old)?;
            self.add(new);
            moved.insert(old.location, new);
        }
        Ok(())
    }

    /// Writes pages as one chunk; returns their entries.
    async fn copy_pages(
        &self,
        pages: &[(MapEntry, PagePlace, MapPage)],
    ) -> Result<Vec<MapEntry>, IoError> {
        let mut memory = chunk_memory(pages.len()).await;
        let mut records = Vec::with_capacity(pages.len());
        let mut entries = Vec::with_capacity(pages.len());
        let blocks = memory[BLOCK_BYTES..].chunks_mut(BLOCK_BYTES);
        for ((old, place, page), block) in pages.iter().zip(blocks) {
            page.encode(place.level, place.index, block);
            entries.push(MapEntry { checksum: checksum(block), ..*old });
            let place = PagePlace { volume: page.volume, ..*place };
            records.push(ChunkRecord::Page { place, birth: old.birth });
        }
        let appended = self.shared.append(records, memory).await?;
        for ((entry, (.., page)), location) in entries.iter_mut().zip(pages).zip(appended.payload..)
        {
            entry.location = location;
            self.shared.cache.put(*entry, std::sync::Arc::new(page.clone()));
        }
        Ok(entries)
    }
}
