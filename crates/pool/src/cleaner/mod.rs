//! Cleaner: copies live blocks out of the segments with the fewest of them, and lets a checkpoint
//! free these segments.
//!
//! Invariants:
//! - a block is copied only if the map has it at this place now, and the copy takes effect only if
//!   the map still does;
//! - a segment that cannot be read, or whose live blocks are not found, stays as it is, and is tried
//!   again later;
//! - a block of snapshots is copied once; the checkpoint after it makes all maps that have the block
//!   refer to the copy, so a replay never sees one of them changed alone;
//! - map pages and metadata are not copied: the checkpoint writes them again;
//! - no checkpoint runs and no lineage changes between a look at a tree and the effect of the copy,
//!   because one task does both in turn.

pub(crate) mod gain;
mod owners;
mod pack;
mod victims;

use std::collections::BTreeSet;

use flagstone_blockdev::IoError;
use flagstone_runtime::buf;

use crate::checkpoint::METADATA_LEVEL;
use crate::compress::{Compression, decompressed};
use crate::limits::{BLOCK_BYTES, UNIT_BLOCKS};
use crate::log::append::chunk_memory;
use crate::manage::shared::{Shared, State};
use crate::map::tree::{Tree, read_page};
use crate::ondisk::Block;
use crate::ondisk::chunk::{
    CHECKSUM_BYTES, ChunkHeader, MOVED_RECORD_BYTES, RECORD_SPACE_BYTES, Record,
};
use crate::ondisk::entry::Entry;
use crate::ondisk::page::{FANOUT, PagePlace};
use crate::ondisk::unit::{Codec, UnitPlace};
use gain::Gain;
use owners::{Node, Owners};
use pack::{Copied, GiveUps, Moved, Packed, pack};
use victims::{Budget, choose};

/// Copies whose records fit the header of a chunk: 111.
const COPIES_MAX: usize = RECORD_SPACE_BYTES / (MOVED_RECORD_BYTES + CHECKSUM_BYTES);

/// Live blocks of segments, gathered for the next chunks.
#[derive(Default)]
struct Copies {
    blocks: Vec<Copied>,
    /// Old locations of the pages that the next checkpoint will copy.
    pages: BTreeSet<u64>,
    /// A block or page was left, because the next checkpoint would have to copy too many pages.
    skipped: bool,
    room: Room,
    /// Blocks were left for the next pass.
    limited: bool,
    give_ups: GiveUps,
    owners: Owners,
}

/// What may still be copied before the next checkpoint. A stored block may have eight blocks of
/// volumes, each in a leaf of its own.
#[derive(Default)]
struct Room {
    /// Payload of chunks, in blocks.
    blocks: usize,
    /// Recent changes, which take memory.
    entries: usize,
    /// Leaves that the checkpoint will write, and those that it will write already.
    leaves: usize,
    counted: BTreeSet<(u32, u64)>,
}

impl Room {
    fn new(recent: usize, segment: usize) -> Room {
        let leaves = (recent / 2).max(segment);
        // With the last blocks, there is room for a unit.
        let blocks = leaves + UNIT_BLOCKS;
        // A segment of units of one stored block each takes no more than one pass.
        let entries = (recent / 2).max(UNIT_BLOCKS * segment);
        Room { blocks, entries, leaves, counted: BTreeSet::new() }
    }

    /// Counts a block of a volume; returns false if there is no room for it.
    fn take(&mut self, volume: u32, block: u64) -> bool {
        let leaf = (volume, block / FANOUT as u64);
        let is_new = !self.counted.contains(&leaf);
        if self.entries == 0 || is_new && self.leaves == 0 {
            return false;
        }
        if is_new {
            self.leaves -= 1;
            self.counted.insert(leaf);
        }
        self.entries -= 1;
        true
    }
}

/// A block or page that a chunk header names.
#[derive(Clone, Copy)]
struct Found {
    /// Its source and place.
    place: PagePlace,
    birth: u64,
    location: u64,
}

/// Payload of a chunk that is being cleaned, read when its first live block is found.
#[derive(Default)]
struct Payload {
    bytes: Option<Vec<u8>>,
    /// The last unit that was decompressed, and the block where it is stored.
    unit: Option<(u64, Vec<u8>)>,
}

impl Payload {
    /// The content of a block of the chunk; `None` if it is damaged.
    fn content(&mut self, first: u64, entry: Entry) -> Option<Block> {
        let at = (entry.block() - first) as usize * BLOCK_BYTES;
        let bytes = self.bytes.as_ref().expect("it was read");
        let stored = bytes.get(at..at + entry.stored_blocks() * BLOCK_BYTES)?;
        let Some(place) = entry.unit() else {
            return entry.matches(stored).then(|| stored.try_into().expect("a block"));
        };
        if self.unit.as_ref().is_none_or(|(block, _)| *block != entry.block()) {
            let data = entry
                .matches(stored)
                .then(|| decompressed(stored, place.blocks.into(), <[u8]>::to_vec));
            self.unit = Some((entry.block(), data??));
        }
        let (_, data) = self.unit.as_ref()?;
        data.get(usize::from(place.index) * BLOCK_BYTES..)?.get(..BLOCK_BYTES)?.try_into().ok()
    }
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
            // Maps that are being reaped are not whole.
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
            let segment = self.storage.layout.segment_blocks() as usize;
            copies.room = Room::new(state.sizes.recent, segment);
        }
        let victims = self.victims();
        let mut is_first_whole = None;
        for segment in &victims {
            let mut done = self.clean_segment(*segment, &mut copies).await;
            if done == Err(IoError::ReadFault) {
                tracing::error!(pool = self.name, segment, "segment cannot be read: it stays");
                self.state.lock().leave_alone(*segment);
                // Nothing is known of its live blocks.
                is_first_whole.get_or_insert((false, false));
                done = Ok(());
            }
            if let Err(error) = done {
                return Err(self.fail_cleaning(error));
            }
            is_first_whole.get_or_insert((!copies.limited, !copies.skipped && !copies.limited));
            if copies.limited {
                break;
            }
        }
        if let Err(error) = self.write_copies(&mut copies).await {
            return Err(self.fail_cleaning(error));
        }
        let (Some(first), Some((is_tried, is_whole))) = (victims.first().copied(), is_first_whole)
        else {
            self.state.lock().clean = true;
            self.progress.notify();
            return Ok(());
        };
        let live = self.state.lock().live_in(first);
        self.checkpoint().await?;
        let mut state = self.state.lock();
        state.cleaned.0 += victims.len() as u64 - u64::from(copies.limited);
        let after = self.room(&mut state);
        // What is withheld from use is no gain, and no sign of a clean pool.
        if state.evacuated.is_none() {
            state.gain.count(before, after, is_tried);
        }
        // The counted blocks belong to a chunk or map page that is damaged.
        let is_stuck = state.segments.is_closed(first) && state.live_in(first) >= live;
        if is_stuck && is_whole && state.deleting == 0 {
            tracing::error!(pool = self.name, segment = first, "live blocks not found: it stays");
            state.leave_alone(first);
            state.gain = Gain::default();
        }
        state.clean = state.gain.is_over();
        drop(state);
        self.progress.notify();
        Ok(())
    }

    fn fail_cleaning(&self, error: IoError) -> IoError {
        self.state.lock().fail(IoError::WriteFault);
        self.progress.notify();
        error
    }

    /// Free blocks, and those that hosts took since the opening.
    fn room(&self, state: &mut State) -> u64 {
        let segment = u64::from(self.storage.layout.segment_blocks());
        state.segments.free() as u64 * segment + state.host_blocks
    }

    fn victims(&self) -> Vec<u32> {
        let mut state = self.state.lock();
        let state: &mut State = &mut state;
        let segment_blocks = self.storage.layout.segment_blocks();
        let free_blocks = state.segments.free() as u64 * u64::from(segment_blocks);
        let evacuated = state.evacuated.clone();
        // During an evacuation, the device has segments for what the others have no room for. Larger
        // passes then spread the checkpoint after each over more of them.
        let share = if evacuated.is_some() { 2 } else { 4 };
        let budget = Budget {
            // A copy takes a header per chunk.
            live_max: segment_blocks - 1 - segment_blocks.div_ceil(self.chunk_blocks() as u32),
            copies: (state.sizes.recent as u64 / 2).min(free_blocks / share),
        };
        // An evacuated device is emptied whatever that gains, as long as a checkpoint has room on the
        // others, which takes half of the reserve. Hosts stop at the whole reserve, so they cannot
        // take that room for good.
        let (free, reserve) = (state.segments.free(), state.sizes.reserve);
        if let Some(range) = evacuated.clone().filter(|_| free > reserve / 2) {
            let room = (free - reserve / 2) as u64 * u64::from(segment_blocks) / 2;
            let budget = Budget { live_max: segment_blocks, copies: budget.copies.min(room) };
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
        // From chunk to chunk: payload is never taken for a header.
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
        let mut payload = Payload::default();
        let mut at = header.block + 1;
        let block_of = |volume: u32, index: u64| PagePlace { volume, level: 0, index };
        for record in &header.records {
            let (place, birth) = match record {
                Record::Data { volume, block, .. } => (block_of(*volume, *block), header.sequence),
                Record::Moved { volume, block, birth, .. } => (block_of(*volume, *block), *birth),
                Record::Page { place, birth } => (*place, *birth),
                Record::Unit { volume, block, count, stored } => {
                    let place = block_of(*volume, *block);
                    let birth = header.sequence;
                    let parts = (place.index..).take(usize::from(*count));
                    let parts = parts.map(|index| (PagePlace { index, ..place }, birth));
                    let unit = UnitPlace { index: 0, blocks: *count, stored: *stored };
                    self.clean_unit(header, at, unit, parts, &mut payload, copies).await?;
                    at += u64::from(*stored);
                    continue;
                }
                Record::MovedUnit { stored, parts } => {
                    let count = parts.len() as u8;
                    let parts = parts.iter().map(|part| match part {
                        Record::Moved { volume, block, birth, .. } => {
                            (block_of(*volume, *block), *birth)
                        }
                        Record::Page { place, birth } => (*place, *birth),
                        other => unreachable!("{other:?} is no part of a unit"),
                    });
                    let unit = UnitPlace { index: 0, blocks: count, stored: *stored };
                    self.clean_unit(header, at, unit, parts, &mut payload, copies).await?;
                    at += u64::from(*stored);
                    continue;
                }
                _ => continue,
            };
            for (index, location) in (place.index..).zip(at..).take(record.payload_blocks()) {
                let found = Found { place: PagePlace { index, ..place }, birth, location };
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

    /// Copies the live blocks of a unit that is stored at `at`.
    async fn clean_unit(
        &self,
        header: &ChunkHeader,
        at: u64,
        unit: UnitPlace,
        parts: impl Iterator<Item = (PagePlace, u64)>,
        payload: &mut Payload,
        copies: &mut Copies,
    ) -> Result<(), IoError> {
        for (index, (place, birth)) in (0..unit.blocks).zip(parts) {
            let location = UnitPlace { index, ..unit }.location(at);
            let found = Found { place, birth, location };
            self.copy_if_live(header, found, payload, copies).await?;
        }
        Ok(())
    }

    /// The entry of a map, if it has a block or page at this place.
    async fn has(&self, node: &Node, found: Found) -> Result<Option<Entry>, IoError> {
        let PagePlace { level, index, .. } = found.place;
        let (storage, cache) = (&self.storage, &self.cache);
        let entry = match level {
            0 => node.tree.lookup(storage, cache, index).await?,
            level => node.tree.lookup_page(storage, cache, level, index).await?,
        };
        Ok(Some(entry).filter(|entry| entry.location == found.location))
    }

    /// The top of what has a block or page, and its entry.
    async fn top(&self, found: Found, owners: &Owners) -> Result<Option<(Node, Entry)>, IoError> {
        for node in owners.tops(found.place.volume, found.birth) {
            if let Some(entry) = self.has(&node, found).await? {
                return Ok(Some((node, entry)));
            }
        }
        Ok(None)
    }

    /// Adds everything that has a block or page to the moving places; returns false if that is too
    /// much for the next checkpoint.
    async fn add_holders(
        &self,
        top: Node,
        found: Found,
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
                // What shares a page gets the same copy.
                let page = node.tree.lookup_page(storage, cache, level, index).await?.location;
                if !copies.pages.contains(&page) {
                    pages.insert(page);
                }
            }
            if copies.pages.len() + pages.len() > self.state.lock().sizes.moving {
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
        found: Found,
        payload: &mut Payload,
        copies: &mut Copies,
    ) -> Result<(), IoError> {
        if copies.limited {
            return Ok(());
        }
        let Found { place, birth, location } = found;
        let Some((top, entry)) = self.top(found, &copies.owners).await? else { return Ok(()) };
        // A block that was changed since is dead at the next checkpoint.
        if !top.is_snapshot && self.state.lock().recent(top.id, place.index).is_some() {
            return Ok(());
        }
        if payload.bytes.is_none() {
            // Writers hold memory while they wait for the cleaner. The buffer is returned before
            // the copies need one.
            let memory = buf::acquire_more(header.checksums.len() * BLOCK_BYTES).await;
            payload.bytes = Some(self.storage.read(header.block + 1, memory).await?.to_vec());
        }
        let Some(bytes) = payload.content(header.block + 1, entry) else {
            return self.skip_damaged(top.id, place.index, location);
        };
        copies.limited |= copies.room.blocks < UNIT_BLOCKS
            || !top.is_snapshot && !copies.room.take(top.id, place.index);
        if copies.limited {
            return Ok(());
        }
        let record = match top.is_snapshot {
            true => Record::Page { place, birth },
            false => Record::Moved { volume: top.id, block: place.index, old: location, birth },
        };
        if top.is_snapshot && !self.add_holders(top, found, copies).await? {
            return Ok(());
        }
        let codec = self.cold_codec(top.id).or(entry.unit().map(|_| Codec::Zstd));
        copies.blocks.push(Copied { record, old: entry, codec, bytes });
        if copies.blocks.len() >= COPIES_MAX.min(copies.room.blocks) {
            self.write_copies(copies).await?;
        }
        Ok(())
    }

    /// How the cleaner compresses the blocks of a volume or snapshot. What is compressed stays so
    /// whatever the setting: a full pool has no room to unpack it.
    fn cold_codec(&self, id: u32) -> Option<Codec> {
        let state = self.state.lock();
        let source = state.catalog.volumes.get(&id)?.source();
        let volume = state.catalog.volumes.get(&source)?;
        Compression::of(&volume.properties).when_cold()
    }

    /// A damaged block stays where reads find its damage, instead of getting a new checksum.
    fn skip_damaged(&self, volume: u32, block: u64, location: u64) -> Result<(), IoError> {
        let device = &self.storage.device_of(location).name;
        tracing::error!(device, location, volume, block, "block is damaged; its segment stays");
        self.state.lock().leave_alone(self.storage.layout.segment_of(location));
        Ok(())
    }

    async fn move_metadata(&self, found: Found) -> Result<(), IoError> {
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

    async fn move_page(&self, found: Found, copies: &mut Copies) -> Result<(), IoError> {
        let Some((top, entry)) = self.top(found, &copies.owners).await? else { return Ok(()) };
        // What cannot be read must not fail the checkpoint, or keep it from moving everything else.
        read_page(&self.storage, &self.cache, entry, found.place).await?;
        if top.is_snapshot {
            return self.add_holders(top, found, copies).await.map(drop);
        }
        let place = PagePlace { volume: top.id, ..found.place };
        self.state.lock().moving.touched.insert(place);
        Ok(())
    }

    /// Writes the gathered copies as chunks.
    async fn write_copies(&self, copies: &mut Copies) -> Result<(), IoError> {
        let blocks = std::mem::take(&mut copies.blocks);
        for packed in pack(blocks, self.chunk_blocks(), &mut copies.give_ups) {
            copies.room.blocks = copies.room.blocks.saturating_sub(packed.payload_blocks());
            self.write_packed(packed).await?;
        }
        Ok(())
    }

    async fn write_packed(&self, packed: Packed) -> Result<(), IoError> {
        let Packed { records, bytes, entries } = packed;
        let mut memory = chunk_memory(bytes.len() / BLOCK_BYTES).await;
        memory[BLOCK_BYTES..].copy_from_slice(&bytes);
        drop(bytes);
        {
            let mut state = self.state.lock();
            state.admitted.0 += entries.iter().filter(|moved| !moved.shared).count();
            state.cleaned.1 += entries.len() as u64;
        }
        let appended = self.append(records, memory).await?;
        let mut state = self.state.lock();
        for Moved { old, new, shared } in entries {
            if shared {
                let location = new.location + appended.payload;
                state.moving.blocks.insert(old, Entry { location, ..new });
            }
        }
        Ok(())
    }
}
