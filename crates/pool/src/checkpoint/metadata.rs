//! Metadata: the usage table and the volume table, as blocks of volume 0.

use flagstone_blockdev::IoError;

use super::OldMaps;
use super::merge::{Merge, MergeInput};
use super::relocate::Moving;
use crate::limits::{BLOCK_BYTES, PAGES_PER_CHUNK};
use crate::log::append::chunk_memory;
use crate::manage::shared::{Shared, State};
use crate::manage::space::USAGE_PER_BLOCK;
use crate::manage::usage::SegmentUsage;
use crate::map::recent::MapChange;
use crate::map::tree::Tree;
use crate::ondisk::ancestry::Ownership;
use crate::ondisk::chunk::ChunkRecord;
use crate::ondisk::entry::MapEntry;
use crate::ondisk::page::PagePlace;
use crate::ondisk::volume_table::VolumeTable;
use crate::ondisk::{Block, checksum};

/// Level of the root of the metadata map.
pub(crate) const METADATA_LEVEL: u8 = 3;

/// First block of what dead blocks of units hold in the metadata map.
pub(crate) const HELD_BLOCK: u64 = 1 << 21;

/// First block of the volume table in the metadata map.
pub(crate) const VOLUME_TABLE_BLOCK: u64 = 1 << 22;

/// Metadata of the last checkpoint, or of the one being written.
pub(crate) struct Metadata {
    tree: Tree,
    usage_on_disk: SegmentUsage,
    pub(crate) usage: SegmentUsage,
    pub(crate) volume_table_bytes: Vec<u8>,
}

/// Splits bytes into blocks, and pads the last one with zeroes.
fn blocks_of(bytes: &[u8]) -> impl Iterator<Item = Block> {
    bytes.chunks(BLOCK_BYTES).map(|part| {
        let mut block = [0; BLOCK_BYTES];
        block[..part.len()].copy_from_slice(part);
        block
    })
}

fn usage_block(usage: &[u32]) -> Block {
    let mut block = [0; BLOCK_BYTES];
    for (bytes, count) in block.chunks_mut(4).zip(usage) {
        bytes.copy_from_slice(&count.to_le_bytes());
    }
    block
}

impl Metadata {
    /// The metadata of the last checkpoint.
    pub(crate) fn of(state: &State) -> Metadata {
        Metadata {
            tree: Tree { volume: 0, level: METADATA_LEVEL, root: state.superblock.root },
            usage_on_disk: state.usage.clone(),
            usage: state.meta_usage.clone(),
            volume_table_bytes: state.volume_table_bytes.clone(),
        }
    }

    /// Writes the changes since the last checkpoint, and the blocks being moved. Returns the new
    /// root.
    ///
    /// # Errors
    /// Errors of the devices, or a damaged page.
    pub(super) async fn write(
        &mut self,
        old: &OldMaps<'_>,
        usage: &SegmentUsage,
        volume_table: &VolumeTable,
        moving: &Moving,
        birth: u64,
    ) -> Result<MapEntry, IoError> {
        let (shared, volume_table_bytes) = (old.shared, volume_table.encode());
        let moved = |index: u64| moving.touched.contains(&PagePlace { volume: 0, level: 0, index });
        let mut blocks: Vec<(u64, Option<Block>)> = Vec::new();
        let parts = usage.weights.chunks(USAGE_PER_BLOCK);
        for (index, (new, old)) in
            (0..).zip(parts.zip(self.usage_on_disk.weights.chunks(USAGE_PER_BLOCK)))
        {
            if new != old || moved(index) {
                blocks.push((index, Some(usage_block(new))));
            }
        }
        let parts = usage.held.chunks(USAGE_PER_BLOCK);
        for (at, (new, old)) in
            (HELD_BLOCK..).zip(parts.zip(self.usage_on_disk.held.chunks(USAGE_PER_BLOCK)))
        {
            let is_hole = new.iter().all(|held| *held == 0);
            if new != old || moved(at) {
                blocks.push((at, (!is_hole).then(|| usage_block(new))));
            }
        }
        let before: Vec<Block> = blocks_of(&self.volume_table_bytes).collect();
        let new: Vec<Block> = blocks_of(&volume_table_bytes).collect();
        for (index, at) in (VOLUME_TABLE_BLOCK..).enumerate().take(before.len().max(new.len())) {
            if new.get(index) != before.get(index) || moved(at) {
                blocks.push((at, new.get(index).copied()));
            }
        }
        let mut changes = Vec::with_capacity(blocks.len());
        for part in blocks.chunks(PAGES_PER_CHUNK.min(shared.chunk_blocks())) {
            write_blocks(shared, part, &mut changes).await?;
        }
        let input = MergeInput {
            changes,
            zeroes: Vec::new(),
            touched: moving
                .touched
                .iter()
                .filter(|place| place.volume == 0 && place.level > 0)
                .copied()
                .collect(),
        };
        let merge = Merge::new(old, &mut self.usage, self.tree, Ownership::default(), birth);
        let merged = merge.run(input, METADATA_LEVEL);
        self.volume_table_bytes = volume_table_bytes;
        Ok(merged.await?.tree.root)
    }
}

/// Writes blocks as one chunk, and records their entries for the metadata map.
async fn write_blocks(
    shared: &Shared,
    blocks: &[(u64, Option<Block>)],
    changes: &mut Vec<MapChange>,
) -> Result<(), IoError> {
    let present: Vec<(u64, &Block)> =
        blocks.iter().filter_map(|(index, block)| Some((*index, block.as_ref()?))).collect();
    let mut memory = chunk_memory(present.len()).await;
    for ((_, block), bytes) in present.iter().zip(memory[BLOCK_BYTES..].chunks_mut(BLOCK_BYTES)) {
        bytes.copy_from_slice(&block[..]);
    }
    let place = |index: u64| PagePlace { volume: 0, level: 0, index };
    let record = |(index, _): &(u64, &Block)| ChunkRecord::Page { place: place(*index), birth: 0 };
    let records = present.iter().map(record).collect();
    let appended = shared.append(records, memory).await?;
    let mut location = appended.payload;
    for (index, block) in blocks {
        let entry = block.as_ref().map_or(MapEntry::HOLE, |block| {
            let entry =
                MapEntry { location, birth: appended.sequence, checksum: checksum(&block[..]) };
            location += 1;
            entry
        });
        changes.push(MapChange { volume: 0, block: *index, entry });
    }
    Ok(())
}
