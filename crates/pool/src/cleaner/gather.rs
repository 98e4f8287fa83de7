//! Gathering: finds the live blocks and pages of a segment, and adds them to the copies of a pass.
//!
//! Invariant: the live blocks of a unit are copied together or not at all, because each of them alone
//! may take as much as the unit.

use std::collections::BTreeSet;

use flagstone_blockdev::IoError;
use flagstone_runtime::buf;

use super::Copies;
use super::owners::{Node, Owners};
use super::pack::{Part, Piece, size};
use crate::checkpoint::METADATA_LEVEL;
use crate::compress::{Compression, decompressed};
use crate::limits::{BLOCK_BYTES, UNIT_BLOCKS};
use crate::manage::shared::Shared;
use crate::map::tree::{Tree, read_page};
use crate::ondisk::chunk::{ChunkHeader, Record};
use crate::ondisk::entry::Entry;
use crate::ondisk::page::{FANOUT, PagePlace};
use crate::ondisk::unit::{Codec, UnitPlace, decode_header};

/// A block or page that a chunk header names.
#[derive(Clone, Copy)]
pub(super) struct Found {
    /// Its source and place.
    place: PagePlace,
    birth: u64,
    location: u64,
}

/// What a chunk header names at a place of the payload.
#[derive(Clone, Copy)]
pub(super) enum Named {
    /// A block of volumes or snapshots.
    Block(Found),
    /// The first of the blocks of a unit, and their number.
    Unit(usize),
    /// A map page.
    Page(Found),
    /// A block or page of the metadata map.
    Metadata(Found),
}

/// What a chunk header names, in order of the payload. The blocks of units are in a list of their own.
pub(super) struct Contents {
    pub(super) named: Vec<Named>,
    blocks: Vec<Found>,
}

impl Contents {
    pub(super) fn of(header: &ChunkHeader) -> Contents {
        let mut contents = Contents { named: Vec::new(), blocks: Vec::new() };
        let mut at = header.block + 1;
        let block_of = |volume: u32, index: u64| PagePlace { volume, level: 0, index };
        for record in &header.records {
            match record {
                Record::Data { volume, block, .. } => {
                    let birth = header.sequence;
                    for (index, location) in (*block..).zip(at..).take(record.payload_blocks()) {
                        let place = block_of(*volume, index);
                        contents.named.push(Named::Block(Found { place, birth, location }));
                    }
                }
                Record::Moved { volume, block, birth, .. } => {
                    let place = block_of(*volume, *block);
                    let found = Found { place, birth: *birth, location: at };
                    contents.named.push(Named::Block(found));
                }
                Record::Page { place, birth } => {
                    let found = Found { place: *place, birth: *birth, location: at };
                    contents.named.push(match (place.volume, place.level) {
                        (0, _) => Named::Metadata(found),
                        (_, 0) => Named::Block(found),
                        _ => Named::Page(found),
                    });
                }
                Record::Unit { volume, block, count, stored } => {
                    let parts = (*block..).take(usize::from(*count));
                    let parts = parts.map(|index| (block_of(*volume, index), header.sequence));
                    contents.unit(at, *count, *stored, parts);
                }
                Record::MovedUnit { stored, parts } => {
                    let of = |part: &Record| match part {
                        Record::Moved { volume, block, birth, .. } => {
                            (block_of(*volume, *block), *birth)
                        }
                        Record::Page { place, birth } => (*place, *birth),
                        other => unreachable!("{other:?} is no part of a unit"),
                    };
                    contents.unit(at, parts.len() as u8, *stored, parts.iter().map(of));
                }
                _ => {}
            }
            at += record.payload_blocks() as u64;
        }
        contents
    }

    fn unit(
        &mut self,
        at: u64,
        blocks: u8,
        stored: u8,
        parts: impl Iterator<Item = (PagePlace, u64)>,
    ) {
        self.named.push(Named::Unit(self.blocks.len()));
        self.blocks.extend((0..blocks).zip(parts).map(|(index, (place, birth))| {
            let location = UnitPlace { index, blocks, stored }.location(at);
            Found { place, birth, location }
        }));
    }

    /// The blocks of the unit that begins here in the list.
    pub(super) fn blocks_of(&self, first: usize) -> &[Found] {
        let unit = self.blocks[first].unit().expect("it is of a unit");
        &self.blocks[first..first + usize::from(unit.blocks)]
    }
}

impl Found {
    /// Place of the block in a unit.
    pub(super) fn unit(&self) -> Option<UnitPlace> {
        crate::ondisk::unit::unit_of(self.location)
    }

    fn block(&self) -> u64 {
        crate::ondisk::unit::block_of(self.location)
    }
}

/// A block that a map has.
#[derive(Clone, Copy)]
pub(super) struct Live {
    top: Node,
    pub(super) entry: Entry,
    /// It is dead at the next checkpoint.
    pub(super) is_changed: bool,
}

/// Payload of a chunk, read when its first live block is found.
pub(super) type ReadPayload = Option<Vec<u8>>;

impl Shared {
    pub(super) async fn clean_segment(
        &self,
        segment: u32,
        copies: &mut Copies,
    ) -> Result<(), IoError> {
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
        let contents = Contents::of(header);
        let mut payload = None;
        for named in &contents.named {
            match *named {
                Named::Block(found) => self.copy(header, &[found], &mut payload, copies).await?,
                Named::Unit(first) => {
                    let blocks = contents.blocks_of(first);
                    self.copy(header, blocks, &mut payload, copies).await?;
                }
                Named::Page(found) => self.move_page(found, copies).await?,
                Named::Metadata(found) => self.move_metadata(found).await?,
            }
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

    /// The live blocks among these.
    pub(super) async fn live(
        &self,
        blocks: &[Found],
        owners: &Owners,
    ) -> Result<[Option<Live>; UNIT_BLOCKS], IoError> {
        let mut live = [None; UNIT_BLOCKS];
        for (live, found) in live.iter_mut().zip(blocks) {
            let Some((top, entry)) = self.top(*found, owners).await? else { continue };
            let is_changed =
                !top.is_snapshot && self.state.lock().recent(top.id, found.place.index).is_some();
            *live = Some(Live { top, entry, is_changed });
        }
        Ok(live)
    }

    /// Copies the live blocks among those of a unit, or a block that is stored alone.
    async fn copy(
        &self,
        header: &ChunkHeader,
        blocks: &[Found],
        payload: &mut ReadPayload,
        copies: &mut Copies,
    ) -> Result<(), IoError> {
        if copies.limited {
            return Ok(());
        }
        let live = self.live(blocks, &copies.owners).await?;
        let live = live.map(|live| live.filter(|live| !live.is_changed));
        let Some(first) = live.iter().flatten().next() else { return Ok(()) };
        if payload.is_none() {
            // Writers hold memory while they wait for the cleaner. The buffer is returned before
            // the copies need one.
            let memory = buf::acquire_more(header.checksums.len() * BLOCK_BYTES).await;
            *payload = Some(self.storage.read(header.block + 1, memory).await?.to_vec());
        }
        let at = (blocks[0].block() - header.block - 1) as usize * BLOCK_BYTES;
        let stored = payload
            .as_ref()
            .and_then(|bytes| bytes.get(at..at + first.entry.stored_blocks() * BLOCK_BYTES));
        let read = stored.and_then(|stored| verified(stored, &live));
        let (Some((stored, codec)), Some(found)) = (read, blocks.first()) else {
            let block = found_block(blocks, &live);
            return self.skip_damaged(first.top.id, block, first.entry.location);
        };
        let unit = found.unit().map(|unit| UnitPlace { index: 0, ..unit });
        let piece = Piece {
            unit,
            codec,
            cold: self.cold_codec(first.top.id),
            parts: parts(blocks, &live),
            stored: stored.to_vec(),
        };
        let of_volumes: Vec<(u32, u64)> = piece.of_volumes().collect();
        let payload_blocks = size(unit, &piece.parts).payload;
        if !copies.room.take(payload_blocks, &of_volumes) {
            copies.limited = true;
            return Ok(());
        }
        for (found, live) in blocks.iter().zip(live) {
            if let Some(Live { top, .. }) = live
                && top.is_snapshot
                && !self.add_holders(top, *found, copies).await?
            {
                return Ok(());
            }
        }
        for packed in copies.packer.add(piece) {
            self.write_packed(packed, &mut copies.written).await?;
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
}

/// The stored blocks and the codec of a unit, if each live block of it is whole.
fn verified<'a>(
    stored: &'a [u8],
    live: &[Option<Live>; UNIT_BLOCKS],
) -> Option<(&'a [u8], Option<Codec>)> {
    let mut entries = live.iter().flatten().map(|live| live.entry);
    let first = entries.next()?;
    if !first.matches(stored) {
        return None;
    }
    let Some(unit) = first.unit() else { return Some((stored, None)) };
    // Another checksum of the same unit is damage of a map.
    if !entries.all(|entry| entry.is_with(&first)) {
        return None;
    }
    let (codec, _) = decode_header(stored, unit.blocks.into()).ok()?;
    decompressed(stored, unit.blocks.into(), |_| ())?;
    Some((stored, Some(codec)))
}

/// The first live block, for messages.
fn found_block(blocks: &[Found], live: &[Option<Live>; UNIT_BLOCKS]) -> u64 {
    let mut live = blocks.iter().zip(live).filter(|(_, live)| live.is_some());
    live.next().map_or(0, |(found, _)| found.place.index)
}

/// The parts of a piece: blocks of a unit, of which some are live.
pub(super) fn parts(blocks: &[Found], live: &[Option<Live>; UNIT_BLOCKS]) -> Vec<Part> {
    let part = |(found, live): (&Found, &Option<Live>)| {
        let Found { place, birth, location } = *found;
        let record = match live {
            Some(Live { top, .. }) if !top.is_snapshot => {
                Record::Moved { volume: top.id, block: place.index, old: location, birth }
            }
            // A copy without effect, for a dead block.
            _ => Record::Page { place, birth },
        };
        Part { record, live: live.map(|live| live.entry) }
    };
    blocks.iter().zip(live).map(part).collect()
}
