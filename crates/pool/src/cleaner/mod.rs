//! Cleaner: copies live blocks out of the segments with the fewest of them, and lets a checkpoint
//! free these segments.
//!
//! Invariants:
//! - a block is copied only if the map has it at this place now, and the copy takes effect only if
//!   the map still does;
//! - a segment that cannot be read, or whose live blocks are not found, stays as it is;
//! - map pages and metadata are not copied: the checkpoint writes them again;
//! - no checkpoint runs between a look at a tree and the effect of the copy, because one task does
//!   both in turn.

mod victims;

use flagstone_blockdev::IoError;
use flagstone_runtime::buf;

use crate::checkpoint::METADATA_LEVEL;
use crate::limits::{BLOCK_BYTES, FRUITLESS_PASSES};
use crate::log::append::chunk_memory;
use crate::manage::shared::Shared;
use crate::map::tree::Tree;
use crate::ondisk::chunk::{
    CHECKSUM_BYTES, ChunkHeader, MOVED_RECORD_BYTES, RECORD_SPACE_BYTES, Record,
};
use crate::ondisk::entry::Entry;
use crate::ondisk::page::PagePlace;
use crate::ondisk::{Block, checksum};
use victims::{Budget, choose};

/// Copies whose records fit the header of a chunk: 111.
const COPIES_MAX: usize = RECORD_SPACE_BYTES / (MOVED_RECORD_BYTES + CHECKSUM_BYTES);

/// Live blocks of a segment, gathered for one chunk.
#[derive(Default)]
struct Copies {
    records: Vec<Record>,
    blocks: Vec<Block>,
}

impl Shared {
    /// Cleans some segments, and makes the checkpoint that frees them.
    ///
    /// # Errors
    /// Of the devices; the pool then fails every change.
    pub(crate) async fn clean(&self) -> Result<(), IoError> {
        let (crowded, before) = {
            let mut state = self.state.lock();
            state.wanted.cleaning = false;
            (2 * state.active.len() > self.sizes.recent, state.segments.free())
        };
        if crowded {
            self.checkpoint().await?;
        }
        let victims = self.victims();
        for segment in &victims {
            match self.clean_segment(*segment).await {
                Ok(()) => {}
                Err(IoError::ReadFault) => {
                    tracing::error!(pool = self.name, segment, "segment cannot be read: it stays");
                    self.state.lock().damaged.insert(*segment);
                }
                Err(error) => {
                    self.state.lock().fail(IoError::WriteFault);
                    self.progress.notify();
                    return Err(error);
                }
            }
        }
        let Some(first) = victims.first().copied() else {
            self.state.lock().clean = true;
            self.progress.notify();
            return Ok(());
        };
        let live = self.state.lock().live_in(first);
        self.checkpoint().await?;
        let mut state = self.state.lock();
        // Near the limit of its density a pool gains nothing from one pass: copies, their headers
        // and the checkpoint take what the victims give.
        state.cleaned.0 += victims.len() as u64;
        let gained = state.segments.free() > before;
        state.fruitless = if gained { 0 } else { state.fruitless + 1 };
        // The counted blocks belong to a chunk or map page that is damaged.
        if state.segments.is_closed(first) && state.live_in(first) >= live && state.deleting == 0 {
            tracing::error!(pool = self.name, segment = first, "live blocks not found: it stays");
            state.damaged.insert(first);
            state.fruitless = 0;
        }
        state.clean = state.fruitless >= FRUITLESS_PASSES;
        drop(state);
        self.progress.notify();
        Ok(())
    }

    fn victims(&self) -> Vec<u32> {
        let mut state = self.state.lock();
        let segment_blocks = self.storage.layout.segment_blocks();
        let free_blocks = state.segments.free() as u64 * u64::from(segment_blocks);
        let budget = Budget {
            // A copy takes a header per chunk.
            live_max: segment_blocks - 1 - segment_blocks.div_ceil(self.chunk_blocks() as u32),
            copies: (self.sizes.recent as u64 / 2).min(free_blocks / 4),
        };
        let closed = (0..state.segments.count() as u32)
            .filter(|segment| {
                state.segments.is_closed(*segment) && !state.damaged.contains(segment)
            })
            .map(|segment| (segment, state.live_in(segment)));
        choose(closed, &budget)
    }

    async fn clean_segment(&self, segment: u32) -> Result<(), IoError> {
        let layout = &self.storage.layout;
        let blocks = layout.first_block(segment)..layout.first_block(segment + 1);
        let mut copies = Copies::default();
        let mut at = blocks.start;
        // From chunk to chunk: payload is never taken for a header.
        while at < blocks.end {
            let header = self.storage.read_one(at).await?;
            let Ok(header) = ChunkHeader::decode(&header, at, layout) else { break };
            let end = at + header.blocks();
            self.clean_chunk(&header, &mut copies).await?;
            at = end;
        }
        self.write_copies(&mut copies).await
    }

    async fn clean_chunk(&self, header: &ChunkHeader, copies: &mut Copies) -> Result<(), IoError> {
        let mut payload = None;
        let mut at = header.block + 1;
        for record in &header.records {
            match record {
                Record::Data { volume, block, count } => {
                    for (block, location) in (*block..).take(usize::from(*count)).zip(at..) {
                        let place = (*volume, block, location);
                        self.copy_if_live(header, place, &mut payload, copies).await?;
                    }
                }
                Record::Moved { volume, block, .. } => {
                    let place = (*volume, *block, at);
                    self.copy_if_live(header, place, &mut payload, copies).await?;
                }
                Record::Page(place) => self.move_if_live(*place, at).await?,
                Record::Zero { .. } | Record::Volume(_) | Record::Delete { .. } => {}
            }
            at += record.payload_blocks() as u64;
        }
        Ok(())
    }

    /// The tree of a volume, unless the volume is being deleted: then its blocks are freed anyway.
    fn tree_of(&self, volume: u32) -> Option<Tree> {
        let state = self.state.lock();
        match volume {
            0 => Some(Tree { volume, level: METADATA_LEVEL, root: state.superblock.root }),
            _ if state.is_present(volume) => state.trees.get(&volume).copied(),
            _ => None,
        }
    }

    async fn copy_if_live(
        &self,
        header: &ChunkHeader,
        (volume, block, location): (u32, u64, u64),
        payload: &mut Option<Vec<u8>>,
        copies: &mut Copies,
    ) -> Result<(), IoError> {
        let Some(tree) = self.tree_of(volume) else { return Ok(()) };
        let recent = self.state.lock().recent(volume, block);
        let entry = match recent {
            Some(entry) => entry,
            None => tree.lookup(&self.storage, &self.cache, block).await?,
        };
        if entry.location != location {
            return Ok(());
        }
        let bytes = match payload {
            Some(bytes) => bytes,
            None => {
                // Writers hold memory while they wait for the cleaner. The buffer is returned
                // before the copies need one.
                let memory = buf::acquire_more(header.checksums.len() * BLOCK_BYTES).await;
                payload.insert(self.storage.read(header.block + 1, memory).await?.to_vec())
            }
        };
        let index = (location - header.block - 1) as usize;
        let bytes = &bytes[index * BLOCK_BYTES..][..BLOCK_BYTES];
        if checksum(bytes) != entry.checksum {
            return self.skip_damaged(volume, block, location);
        }
        if copies.blocks.len() == COPIES_MAX.min(self.chunk_blocks()) {
            self.write_copies(copies).await?;
        }
        copies.records.push(Record::Moved { volume, block, old: location, birth: entry.birth });
        copies.blocks.push(bytes.try_into().expect("a block"));
        Ok(())
    }

    /// A damaged block stays where reads find its damage, instead of getting a new checksum.
    fn skip_damaged(&self, volume: u32, block: u64, location: u64) -> Result<(), IoError> {
        let device = &self.storage.device_of(location).name;
        tracing::error!(device, location, volume, block, "block is damaged; its segment stays");
        self.state.lock().damaged.insert(self.storage.layout.segment_of(location));
        Ok(())
    }

    async fn move_if_live(&self, place: PagePlace, location: u64) -> Result<(), IoError> {
        let Some(tree) = self.tree_of(place.volume) else { return Ok(()) };
        let (storage, cache) = (&self.storage, &self.cache);
        let found = match place.level {
            0 if place.volume != 0 => Entry::HOLE,
            0 => tree.lookup(storage, cache, place.index).await?,
            level => tree.lookup_page(storage, cache, level, place.index).await?,
        };
        if found.location == location {
            self.state.lock().moving.push(place);
        }
        Ok(())
    }

    async fn write_copies(&self, copies: &mut Copies) -> Result<(), IoError> {
        if copies.records.is_empty() {
            return Ok(());
        }
        let mut memory = chunk_memory(copies.blocks.len()).await;
        let places = memory[BLOCK_BYTES..].chunks_mut(BLOCK_BYTES);
        for (block, place) in copies.blocks.drain(..).zip(places) {
            place.copy_from_slice(&block);
        }
        let records = std::mem::take(&mut copies.records);
        {
            let mut state = self.state.lock();
            state.admitted.0 += records.len();
            state.cleaned.1 += records.len() as u64;
        }
        self.append(records, memory).await.map(drop)
    }
}
