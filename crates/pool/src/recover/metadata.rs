//! Metadata of the last checkpoint: usage table and volume table, read through the metadata map.

use super::superblocks::device_error;
use crate::checkpoint::{HELD_BLOCK, METADATA_LEVEL, VOLUME_TABLE_BLOCK};
use crate::error::PoolError;
use crate::limits::BLOCK_BYTES;
use crate::manage::space::USAGE_PER_BLOCK;
use crate::manage::usage::SegmentUsage;
use crate::map::cache::PageCache;
use crate::map::tree::{PageError, Tree, read_page};
use crate::ondisk::entry::MapEntry;
use crate::ondisk::page::{FANOUT, PagePlace, root_level};
use crate::ondisk::superblock::Superblock;
use crate::ondisk::unit::BLOCK_WEIGHT;
use crate::ondisk::volume_table::VolumeTable;
use crate::ondisk::{Block, FormatError, checksum};
use crate::storage::Storage;

/// Content of a checkpoint.
pub(crate) struct Checkpoint {
    pub(crate) volume_table: VolumeTable,
    pub(crate) volume_table_bytes: Vec<u8>,
    pub(crate) trees: Vec<Tree>,
    pub(crate) usage: SegmentUsage,
    pub(crate) meta_usage: SegmentUsage,
}

fn metadata_error(storage: &Storage, block: u64, reason: FormatError) -> PoolError {
    let device = storage.device_of(block).name.clone();
    PoolError::Metadata { device, block, reason }
}

/// Reads the checkpoint of a superblock.
///
/// # Errors
/// [`PoolError`] names the device and the block that cannot be read or used.
pub(crate) async fn read_checkpoint(
    storage: &Storage,
    cache: &PageCache,
    superblock: &Superblock,
) -> Result<Checkpoint, PoolError> {
    let (segments, root) = (storage.layout.segments() as usize, superblock.root);
    let mut found = Checkpoint {
        volume_table: VolumeTable::default(),
        volume_table_bytes: Vec::new(),
        trees: Vec::new(),
        usage: SegmentUsage::new(segments),
        meta_usage: SegmentUsage::new(segments),
    };
    let mut volume_table_len = 0;
    let mut pages = vec![(METADATA_LEVEL, 0_u64, root)];
    // Depth first and ascending, so that the volume table's blocks come in order.
    while let Some((level, index, entry)) = pages.pop() {
        if entry.is_hole() {
            continue;
        }
        if entry.unit().is_some() {
            return Err(metadata_error(storage, entry.location, FormatError::Field("root")));
        }
        let segment = storage.layout.segment_of(entry.location) as usize;
        let weight = &mut found.meta_usage.weights[segment];
        *weight = weight.saturating_add(BLOCK_WEIGHT);
        if level > 0 {
            let place = PagePlace { volume: 0, level, index };
            let page =
                read_page(storage, cache, entry, place).await.map_err(|error| match error {
                    PageError::Damaged => {
                        metadata_error(storage, entry.location, FormatError::Checksum)
                    }
                    PageError::Unread(unread) => {
                        device_error(storage, unread.location, unread.error)
                    }
                })?;
            let below = page.entries.iter().enumerate().rev();
            let child = |at: usize| index * FANOUT as u64 + at as u64;
            pages.extend(below.map(|(at, entry)| (level - 1, child(at), *entry)));
            continue;
        }
        let block = read_checked(storage, entry).await?;
        let bad = |reason| metadata_error(storage, entry.location, reason);
        if index < VOLUME_TABLE_BLOCK {
            found.read_usage(index, &block, storage.layout.segment_blocks()).map_err(bad)?;
        } else {
            if index == VOLUME_TABLE_BLOCK {
                volume_table_len = VolumeTable::decode_len(&block).map_err(bad)?;
            }
            let at = (index - VOLUME_TABLE_BLOCK) as usize * BLOCK_BYTES;
            if at != found.volume_table_bytes.len() || at >= volume_table_len {
                return Err(bad(FormatError::Field("volume table")));
            }
            found.volume_table_bytes.extend(block);
        }
    }
    if root.is_hole() || found.volume_table_bytes.len() < volume_table_len || volume_table_len == 0
    {
        return Err(metadata_error(storage, root.location, FormatError::Field("volume table")));
    }
    found.volume_table_bytes.truncate(volume_table_len);
    let volume_table = VolumeTable::decode(&found.volume_table_bytes, storage.layout.blocks());
    found.volume_table =
        volume_table.map_err(|reason| metadata_error(storage, root.location, reason))?;
    let mut volumes = found.volume_table.volumes.values();
    // An older program would take its blocks for plaintext.
    if !superblock.encryption && volumes.any(|volume| volume.encryption.is_some()) {
        return Err(metadata_error(storage, root.location, FormatError::Field("encryption")));
    }
    let trees = found.volume_table.volumes.values();
    found.trees = trees
        .map(|volume| Tree {
            volume: volume.id,
            level: root_level(volume.blocks),
            root: volume.root,
        })
        .collect();
    Ok(found)
}

impl Checkpoint {
    fn read_usage(
        &mut self,
        index: u64,
        block: &Block,
        segment_blocks: u32,
    ) -> Result<(), FormatError> {
        let (index, table, weight_max) = match index.checked_sub(HELD_BLOCK) {
            // It may be too high.
            Some(index) => (index, &mut self.usage.held, u32::MAX),
            None => (index, &mut self.usage.weights, BLOCK_WEIGHT * segment_blocks),
        };
        let first = usize::try_from(index).unwrap_or(usize::MAX).saturating_mul(USAGE_PER_BLOCK);
        let counts = block
            .chunks(4)
            .map(|bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
        for (segment, count) in (first..).zip(counts) {
            match table.get_mut(segment) {
                Some(usage) if count <= weight_max => *usage = count,
                None if count == 0 => {}
                _ => return Err(FormatError::Field("live blocks")),
            }
        }
        Ok(())
    }
}

async fn read_checked(storage: &Storage, entry: MapEntry) -> Result<Block, PoolError> {
    let block = storage.read_entry_block(entry).await;
    let block = block.map_err(|error| device_error(storage, entry.location, error))?;
    if checksum(&block) != entry.checksum {
        return Err(metadata_error(storage, entry.location, FormatError::Checksum));
    }
    Ok(block)
}

const _: () = assert!((VOLUME_TABLE_BLOCK as u128) < (FANOUT as u128).pow(METADATA_LEVEL as u32));
