//! Cleaner: copies live blocks out of the segments that have the fewest, and lets a checkpoint free
//! these segments.
//!
//! Invariants:
//! - a block is copied only if the map has it at this place now, and the copy takes effect only if
//!   the map still does;
//! - a segment that cannot be read, or whose live blocks are not found, is kept and tried again
//!   later;
//! - a block of snapshots is copied once. The next checkpoint makes all maps that have the block
//!   refer to the copy, so a replay never sees only some of them changed;
//! - map pages and metadata are not copied: the checkpoint rewrites them;
//! - no checkpoint runs and no ancestry changes between the lookup in a tree and the effect of the
//!   copy, because one task does both in turn.

pub(crate) mod gain;
mod owners;
mod turns;
mod victims;

use std::collections::BTreeSet;

use flagstone_blockdev::IoError;
use flagstone_runtime::buf;

use crate::checkpoint::METADATA_LEVEL;
use crate::limits::{BLOCK_BYTES, MOVING_MAX};
use crate::log::append::chunk_memory;
use crate::manage::shared::{Shared, State};
use crate::map::tree::{Tree, read_page};
use crate::ondisk::chunk::{
    CHECKSUM_BYTES, ChunkHeader, ChunkRecord, MOVED_RECORD_BYTES, RECORD_SPACE_BYTES,
};
use crate::ondisk::entry::MapEntry;
use crate::ondisk::page::{FANOUT, PagePlace};
use crate::ondisk::{Block, checksum};
use gain::Gain;
use owners::{AncestryNode, Owners};
use victims::{PassBudget, choose};

/// Copies whose records fit the header of a chunk: 111.
const COPIES_MAX: usize = RECORD_SPACE_BYTES / (MOVED_RECORD_BYTES + CHECKSUM_BYTES);

/// Live blocks of a segment, gathered for one chunk.
#[derive(Default)]
struct Copies {
    /// Records of the copies, with the old entries of the blocks.
    records: Vec<(ChunkRecord, MapEntry)>,
    blocks: Vec<Block>,
    /// Old locations of the pages that the next checkpoint will copy.
    pages: BTreeSet<u64>,
    /// Limit of `pages`.
    pages_max: usize,
    /// Leaves of volumes that the next checkpoint will write because of copies.
    leaves: BTreeSet<(u32, u64)>,
    /// Limit of `leaves`.
    leaves_max: usize,
    /// True if a block or page was skipped because the next checkpoint would have to copy too many
    /// pages.
    skipped: bool,
    owners: Owners,
}

/// A block or page that a chunk header names.
#[derive(Clone, Copy)]
struct FoundBlock {
    /// Source volume, level and index.
    place: PagePlace,
    birth: u64,
    location: u64,
}

impl Shared {
    /// Cleans some segments, and makes the checkpoint that frees them.
    ///
    /// # Errors
    /// Errors of the devices. The pool then fails every change.
    pub(crate) async fn clean(&self) -> Result<(), IoError> {
        let (crowded, before) = {
            let mut state = self.state.lock();
            state.wanted.cleaning = false;
            // Maps that are being reaped lack pages.
            let crowded = 2 * state.active.len() > state.sizes.recent || state.deleting > 0;
            (crowded, self.room(&mut state))
        };
        if crowded {
            self.checkpoint().await?;
        }
        let mut copies = Copies::default();
        {
            let mut state = self.state.lock();
            if state.deleting > 0 {
                (state.wanted.checkpoint, state.wanted.cleaning) = (true, true);
                return Ok(());
            }
            copies.owners = Owners::of(&state);
        }
        let victims = self.victims();
        let (leaves_max, has_spare) = {
            let mut state = self.state.lock();
            // Moving a block that n snapshots share rewrites n leaves. Spare blocks limit the
            // number of rewritten pages in small pools, memory in large ones.
            let spare = self.spare_blocks(&mut state) / 2;
            copies.pages_max = state.sizes.moving.max((spare as usize).min(MOVING_MAX));
            (state.sizes.recent / 2, spare > 0)
        };
        let mut is_first_whole = None;
        let mut cleaned = 0;
        for segment in &victims {
            // The first segment is always cleaned, without a limit.
            copies.leaves_max = if is_first_whole.is_none() { usize::MAX } else { leaves_max };
            let mut done = self.clean_segment(*segment, &mut copies).await;
            if done == Err(IoError::ReadFault) {
                tracing::error!(pool = self.name, segment, "segment cannot be read: it stays");
                self.state.lock().leave_alone(*segment);
                // The live blocks of an unreadable segment are unknown.
                is_first_whole.get_or_insert(false);
                done = Ok(());
            }
            if let Err(error) = done {
                return Err(self.fail_cleaning(error));
            }
            is_first_whole.get_or_insert(!copies.skipped);
            cleaned += 1;
            let mut state = self.state.lock();
            // Hosts have used up the spare segments meanwhile.
            if has_spare && state.segments.free() < state.checkpoint_segments() {
                break;
            }
        }
        if let Err(error) = self.write_copies(&mut copies).await {
            return Err(self.fail_cleaning(error));
        }
        let (Some(first), Some(is_whole)) = (victims.first().copied(), is_first_whole) else {
            let mut state = self.state.lock();
            (state.nothing_to_clean, state.cleaner_gains_nothing) = (true, true);
            drop(state);
            self.progress.notify();
            return Ok(());
        };
        let live = self.state.lock().live_in(first);
        self.checkpoint().await?;
        let mut state = self.state.lock();
        state.cleaned.0 += cleaned;
        let after = self.room(&mut state);
        // Freed segments of an evacuated device are not reused, and segments that still have
        // readers are reused later: neither is a gain or a sign that cleaning is over.
        if state.evacuated.is_none() && !state.segments.awaits_reads() {
            state.gain.count(before, after);
        }
        // The remaining live blocks belong to a damaged chunk or map page.
        let is_stuck = state.segments.is_closed(first) && state.live_in(first) >= live;
        if is_stuck && is_whole && state.deleting == 0 {
            tracing::error!(pool = self.name, segment = first, "live blocks not found: it stays");
            state.leave_alone(first);
            state.gain = Gain::default();
        }
        state.nothing_to_clean = state.gain.is_over();
        drop(state);
        self.progress.notify();
        Ok(())
    }

    fn fail_cleaning(&self, error: IoError) -> IoError {
        self.state.lock().fail(IoError::WriteFault);
        self.progress.notify();
        error
    }

    /// Free blocks plus the blocks written for hosts since the opening, so that writes of hosts do
    /// not hide the gain of a pass.
    fn room(&self, state: &mut State) -> u64 {
        let segment = u64::from(self.storage.layout.segment_blocks());
        state.segments.free() as u64 * segment + state.host_blocks
    }

    /// Budget for copies of data blocks: half of the free space beyond the next checkpoint's need.
    /// The other half is for copied pages of snapshots, each in a chunk of its own.
    fn spare_blocks(&self, state: &mut State) -> u64 {
        let spare = state.segments.free().saturating_sub(state.checkpoint_segments());
        spare as u64 * u64::from(self.storage.layout.segment_blocks()) / 2
    }

    fn victims(&self) -> Vec<u32> {
        let mut state = self.state.lock();
        let state: &mut State = &mut state;
        let segment_blocks = self.storage.layout.segment_blocks();
        let free_blocks = state.segments.free() as u64 * u64::from(segment_blocks);
        let evacuated = state.evacuated.clone();
        let spare = self.spare_blocks(state);
        // An evacuation copies more per pass, so that more segments share the cost of a checkpoint.
        // If the other devices run out of segments, the log still has those of the evacuated
        // device.
        let share = if evacuated.is_some() { 2 } else { 4 };
        let budget = PassBudget {
            // Copies need one header block per chunk.
            live_max: segment_blocks - 1 - segment_blocks.div_ceil(self.chunk_blocks() as u32),
            // In a nearly full pool, a small pass frees less than its checkpoint writes, so a large
            // pool copies more per pass.
            copies: (state.sizes.recent as u64 / 2)
                .min(free_blocks / share)
                .max((state.sizes.copies as u64).min(spare)),
        };
        // Evacuate even without a gain, while the other devices have more free segments than a
        // checkpoint (half of the reserve) and the reservations need. Host writes leave more than
        // that free, so they cannot block an evacuation for ever.
        let (sizes, supply) = (state.sizes, state.supply());
        let kept = supply.kept_by_evacuation(&sizes);
        let for_writes = state.cleans_for_writes(budget.live_max);
        if let Some(range) = evacuated.clone().filter(|_| supply.free > kept && !for_writes) {
            let room = (supply.free - kept) as u64 * u64::from(segment_blocks) / 2;
            let budget = PassBudget { live_max: segment_blocks, copies: budget.copies.min(room) };
            let closed = range.filter(|segment| state.can_clean(*segment));
            let victims = choose(closed.map(|segment| (segment, state.live_in(segment))), &budget);
            if !victims.is_empty() {
                return victims;
            }
        }
        let is_evacuated =
            |segment: &u32| evacuated.as_ref().is_some_and(|range| range.contains(segment));
        let closed = (0..state.segments.count() as u32)
            .filter(|segment| state.can_clean(*segment) && !is_evacuated(segment))
            .map(|segment| (segment, state.live_in(segment)));
        choose(closed, &budget)
    }

    async fn clean_segment(&self, segment: u32, copies: &mut Copies) -> Result<(), IoError> {
        let layout = &self.storage.layout;
        let blocks = layout.first_block(segment)..layout.first_block(segment + 1);
        let mut at = blocks.start;
        // Follow the lengths in the headers, so that payload is never parsed as a header.
        while at < blocks.end {
            let header = self.storage.read_one(at).await?;
            let Ok(header) = ChunkHeader::decode(&header, at, layout) else { break };
            let end = at + header.blocks();
            self.clean_chunk(&header, copies).await?;
            at = end;
        }
        Ok(())
    }

    async fn clean_chunk(&self, header: &ChunkHeader, copies: &mut Copies) -> Result<(), IoError> {
        let mut payload = None;
        let mut at = header.block + 1;
        let block_of = |volume: u32, index: u64| PagePlace { volume, level: 0, index };
        for record in &header.records {
            let (place, birth) = match record {
                ChunkRecord::Data { volume, block, .. } => {
                    (block_of(*volume, *block), header.sequence)
                }
                ChunkRecord::Moved { volume, block, birth, .. } => {
                    (block_of(*volume, *block), *birth)
                }
                ChunkRecord::Page { place, birth } => (*place, *birth),
                _ => continue,
            };
            for (index, location) in (place.index..).zip(at..).take(record.payload_blocks()) {
                let found = FoundBlock { place: PagePlace { index, ..place }, birth, location };
                match (place.volume, place.level) {
                    (0, _) => self.move_metadata(found).await?,
                    (_, 0) => self.copy_if_live(header, found, &mut payload, copies).await?,
                    _ => self.move_page(found, copies).await?,
                }
            }
            at += record.payload_blocks() as u64;
        }
        Ok(())
    }

    /// The entry of a map, if it has a block or page at this place.
    async fn has(
        &self,
        node: &AncestryNode,
        found: FoundBlock,
    ) -> Result<Option<MapEntry>, IoError> {
        let PagePlace { level, index, .. } = found.place;
        let (storage, cache) = (&self.storage, &self.cache);
        let entry = match level {
            0 => node.tree.lookup(storage, cache, index).await?,
            level => node.tree.lookup_page(storage, cache, level, index).await?,
        };
        Ok(Some(entry).filter(|entry| entry.location == found.location))
    }

    /// Top owner of a block or page, and the entry in the map of this owner.
    async fn top(
        &self,
        found: FoundBlock,
        owners: &Owners,
    ) -> Result<Option<(AncestryNode, MapEntry)>, IoError> {
        for node in owners.tops(found.place.volume, found.birth) {
            if let Some(entry) = self.has(&node, found).await? {
                return Ok(Some((node, entry)));
            }
        }
        Ok(None)
    }

    /// Adds all owners of a block or page to the moving places; returns false if they are too many
    /// for the next checkpoint.
    async fn add_holders(
        &self,
        top: AncestryNode,
        found: FoundBlock,
        copies: &mut Copies,
    ) -> Result<bool, IoError> {
        let (storage, cache) = (&self.storage, &self.cache);
        let (mut holders, mut pages, mut next) = (Vec::new(), BTreeSet::new(), vec![top]);
        while let Some(node) = next.pop() {
            let place = PagePlace { volume: node.id, ..found.place };
            holders.push(place);
            let mut index = place.index;
            for level in place.level + 1..=node.tree.level {
                index /= FANOUT as u64;
                // Maps that share a page get the same copy.
                let page = node.tree.lookup_page(storage, cache, level, index).await?.location;
                if !copies.pages.contains(&page) {
                    pages.insert(page);
                }
            }
            if copies.pages.len() + pages.len() > copies.pages_max {
                copies.skipped = true;
                return Ok(false);
            }
            for child in copies.owners.children(node.id) {
                if self.has(&child, found).await?.is_some() {
                    next.push(child);
                }
            }
        }
        copies.pages.append(&mut pages);
        self.state.lock().moving.places.extend(holders);
        Ok(true)
    }

    async fn copy_if_live(
        &self,
        header: &ChunkHeader,
        found: FoundBlock,
        payload: &mut Option<Vec<u8>>,
        copies: &mut Copies,
    ) -> Result<(), IoError> {
        let FoundBlock { place, birth, location } = found;
        let Some((top, entry)) = self.top(found, &copies.owners).await? else { return Ok(()) };
        // The next checkpoint frees a block that was overwritten since the last one.
        if !top.is_snapshot && self.state.lock().recent(top.id, place.index).is_some() {
            return Ok(());
        }
        let bytes = match payload {
            Some(bytes) => bytes,
            None => {
                // Writers hold memory while they wait for the cleaner, so this may not take the
                // ordinary memory. The buffer is returned before the copies need one.
                let memory = buf::acquire_more(header.checksums.len() * BLOCK_BYTES).await;
                payload.insert(self.storage.read(header.block + 1, memory).await?.to_vec())
            }
        };
        let index = (location - header.block - 1) as usize;
        let bytes = &bytes[index * BLOCK_BYTES..][..BLOCK_BYTES];
        if checksum(bytes) != entry.checksum {
            return self.skip_damaged(top.id, place.index, location);
        }
        let record = match top.is_snapshot {
            true => ChunkRecord::Page { place, birth },
            false => {
                ChunkRecord::Moved { volume: top.id, block: place.index, old: location, birth }
            }
        };
        if top.is_snapshot && !self.add_holders(top, found, copies).await? {
            return Ok(());
        }
        if !top.is_snapshot {
            let leaf = (top.id, place.index / FANOUT as u64);
            if copies.leaves.len() >= copies.leaves_max && !copies.leaves.contains(&leaf) {
                copies.skipped = true;
                return Ok(());
            }
            copies.leaves.insert(leaf);
        }
        copies.records.push((record, entry));
        copies.blocks.push(bytes.try_into().expect("a block"));
        if copies.blocks.len() == COPIES_MAX.min(self.chunk_blocks()) {
            self.write_chunk_of(copies).await?;
        }
        Ok(())
    }

    /// Keeps a damaged block in place: a copy would get a new checksum, which would hide the damage
    /// from reads.
    fn skip_damaged(&self, volume: u32, block: u64, location: u64) -> Result<(), IoError> {
        let device = &self.storage.device_of(location).name;
        tracing::error!(device, location, volume, block, "block is damaged; its segment stays");
        self.state.lock().leave_alone(self.storage.layout.segment_of(location));
        Ok(())
    }

    async fn move_metadata(&self, found: FoundBlock) -> Result<(), IoError> {
        let root = self.state.lock().superblock.root;
        let tree = Tree { volume: 0, level: METADATA_LEVEL, root };
        let PagePlace { level, index, .. } = found.place;
        let (storage, cache) = (&self.storage, &self.cache);
        let entry = match level {
            0 => tree.lookup(storage, cache, index).await?,
            level => tree.lookup_page(storage, cache, level, index).await?,
        };
        if entry.location == found.location {
            if level > 0 {
                read_page(&self.storage, &self.cache, entry, found.place).await?;
            }
            self.state.lock().moving.touched.insert(found.place);
        }
        Ok(())
    }

    async fn move_page(&self, found: FoundBlock, copies: &mut Copies) -> Result<(), IoError> {
        let Some((top, entry)) = self.top(found, &copies.owners).await? else { return Ok(()) };
        // A page that cannot be read must not fail the checkpoint, or keep it from moving other
        // pages.
        read_page(&self.storage, &self.cache, entry, found.place).await?;
        if top.is_snapshot {
            return self.add_holders(top, found, copies).await.map(drop);
        }
        let place = PagePlace { volume: top.id, ..found.place };
        self.state.lock().moving.touched.insert(place);
        Ok(())
    }

    /// Writes all gathered copies.
    async fn write_copies(&self, copies: &mut Copies) -> Result<(), IoError> {
        while !copies.records.is_empty() {
            self.write_chunk_of(copies).await?;
        }
        Ok(())
    }

    /// Writes the first copies as a chunk, which fills its segment to the end if possible: unused
    /// blocks at the end of a segment are lost space.
    async fn write_chunk_of(&self, copies: &mut Copies) -> Result<(), IoError> {
        let room = self.state.lock().position.room();
        let count = if room == 0 { copies.blocks.len() } else { copies.blocks.len().min(room) };
        let mut memory = chunk_memory(count).await;
        let places = memory[BLOCK_BYTES..].chunks_mut(BLOCK_BYTES);
        for (block, place) in copies.blocks.drain(..count).zip(places) {
            place.copy_from_slice(&block);
        }
        let (records, entries): (Vec<ChunkRecord>, Vec<MapEntry>) =
            copies.records.drain(..count).unzip();
        let is_shared = |record: &ChunkRecord| matches!(record, ChunkRecord::Page { .. });
        let shared: Vec<bool> = records.iter().map(is_shared).collect();
        {
            let mut state = self.state.lock();
            state.admitted.0 += shared.iter().filter(|shared| !**shared).count();
            state.cleaned.1 += records.len() as u64;
        }
        let appended = self.append(records, memory).await?;
        let mut state = self.state.lock();
        for ((old, location), shared) in entries.into_iter().zip(appended.payload..).zip(shared) {
            if shared {
                state.moving.blocks.insert(old.location, MapEntry { location, ..old });
            }
        }
        Ok(())
    }
}
