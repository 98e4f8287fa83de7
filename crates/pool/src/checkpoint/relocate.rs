//! Relocation: maps refer to the new places of blocks and pages that the cleaner wants out of their
//! segments. Everything that shares a page gets the same copy of it, with the birth of the old one,
//! so their owners stay the same.

use std::collections::{BTreeMap, BTreeSet};

use flagstone_blockdev::IoError;

use super::Work;
use crate::limits::{BLOCK_BYTES, PAGES_PER_CHUNK};
use crate::log::append::chunk_memory;
use crate::map::tree::read_page;
use crate::ondisk::checksum;
use crate::ondisk::chunk::Record;
use crate::ondisk::entry::Entry;
use crate::ondisk::page::{FANOUT, MapPage, PagePlace};

/// What the cleaner wants out of its segments.
#[derive(Debug, Default)]
pub(crate) struct Moving {
    /// New places of blocks that snapshots have, by old location.
    pub(crate) blocks: BTreeMap<u64, Entry>,
    /// Pages of snapshots, and with level 0 blocks of `blocks`, in every map that has them.
    pub(crate) places: BTreeSet<PagePlace>,
    /// Pages that one volume owns, pages of volume 0, and metadata: merging writes them again.
    pub(crate) touched: BTreeSet<PagePlace>,
}

/// Pages that are copied, with the entries of their old places.
type Batch = Vec<(Entry, PagePlace, MapPage)>;

impl Work<'_> {
    /// Copies what moves, and changes the trees that have it.
    ///
    /// # Errors
    /// Of the devices; [`IoError::ReadFault`] for a page that cannot be read: then nothing may move.
    pub(super) async fn relocate(&mut self, moving: &Moving) -> Result<(), IoError> {
        // New entries by old location, of blocks and pages.
        let mut moved = moving.blocks.clone();
        for (old, new) in &moving.blocks {
            self.retire(Entry { location: *old, ..*new })?;
            self.add(*new);
        }
        let mut places = moving.places.iter().peekable();
        while let Some(first) = places.peek().copied() {
            let mut own = Vec::new();
            while let Some(place) = places.next_if(|place| place.volume == first.volume) {
                own.push(*place);
            }
            self.relocate_in(first.volume, &own, &mut moved).await?;
        }
        Ok(())
    }

    async fn relocate_in(
        &mut self,
        id: u32,
        places: &[PagePlace],
        moved: &mut BTreeMap<u64, Entry>,
    ) -> Result<(), IoError> {
        let Some(mut tree) = self.trees.get(&id).copied() else { return Ok(()) };
        let (storage, cache) = (&self.shared.storage, &self.shared.cache);
        let at = |level: u8| {
            places.iter().filter(move |place| place.level == level).map(|place| place.index)
        };
        let mut below: BTreeSet<u64> = at(0).collect();
        for level in 1..=tree.level {
            let parents = below.iter().map(|index| index / FANOUT as u64);
            let indexes: BTreeSet<u64> = at(level).chain(parents).collect();
            let mut batch = Batch::new();
            for index in &indexes {
                let old = tree.lookup_page(storage, cache, level, *index).await?;
                if !old.is_stored() || moved.contains_key(&old.location) {
                    continue;
                }
                let place = PagePlace { volume: id, level, index: *index };
                let mut page = (*read_page(storage, cache, old, place).await?).clone();
                for entry in &mut page.entries {
                    *entry = moved.get(&entry.location).copied().unwrap_or(*entry);
                }
                batch.push((old, place, page));
            }
            for part in batch.chunks(PAGES_PER_CHUNK.min(self.shared.chunk_blocks())) {
                for ((old, ..), new) in part.iter().zip(self.copy_pages(part).await?) {
                    self.retire(*old)?;
                    self.add(new);
                    moved.insert(old.location, new);
                }
            }
            below = indexes;
        }
        tree.root = moved.get(&tree.root.location).copied().unwrap_or(tree.root);
        self.trees.insert(id, tree);
        Ok(())
    }

    /// Writes pages as one chunk; returns their entries.
    async fn copy_pages(
        &self,
        pages: &[(Entry, PagePlace, MapPage)],
    ) -> Result<Vec<Entry>, IoError> {
        let mut memory = chunk_memory(pages.len()).await;
        let mut records = Vec::with_capacity(pages.len());
        let mut entries = Vec::with_capacity(pages.len());
        let blocks = memory[BLOCK_BYTES..].chunks_mut(BLOCK_BYTES);
        for ((old, place, page), block) in pages.iter().zip(blocks) {
            page.encode(place.level, place.index, block);
            entries.push(Entry { checksum: checksum(block), ..*old });
            let place = PagePlace { volume: page.volume, ..*place };
            records.push(Record::Page { place, birth: old.birth });
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
