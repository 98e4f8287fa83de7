//! Gathering: finds the live blocks and pages of a segment, and adds them to the copies of a pass.
//!
//! Invariant: the live blocks of a unit are copied together or not at all, because each block that
//! stays keeps the whole unit.

use std::collections::BTreeSet;

use flagstone_blockdev::IoError;
use flagstone_runtime::buf;

use super::Copies;
use super::contents::{Contents, FoundBlock, Named};
use super::owners::{AncestryNode, Owners};
use super::piece::{LivePiece, Part, PieceKey, leaves, live_blocks};
use crate::checkpoint::METADATA_LEVEL;
use crate::compress::{Compression, decompressed_with, is_unit};
use crate::limits::{BLOCK_BYTES, UNIT_BLOCKS};
use crate::manage::shared::Shared;
use crate::map::tree::{Tree, read_page};
use crate::ondisk::chunk::{ChunkHeader, ChunkRecord, is_header_of};
use crate::ondisk::entry::MapEntry;
use crate::ondisk::page::{FANOUT, PagePlace};
use crate::ondisk::unit::{Codec, UnitPlace, decode_header};

impl Copies {
    /// True if the limits allow no more blocks.
    fn is_full(&self) -> bool {
        self.blocks >= self.blocks_max
    }

    /// True if the limits allow a piece of these parts.
    pub(super) fn has_room(&self, parts: &[Part]) -> bool {
        let new: BTreeSet<(u32, u64)> =
            leaves(parts).filter(|leaf| !self.leaves.contains(leaf)).collect();
        self.blocks + live_blocks(parts) <= self.blocks_max && self.has_leaves(&new)
    }

    fn has_leaves(&self, new: &BTreeSet<(u32, u64)>) -> bool {
        self.leaves.len() + new.len() <= self.leaves_max
    }

    /// True if the leaves of these parts are too many.
    fn lacks_leaves(&self, parts: &[Part]) -> bool {
        let new = leaves(parts).filter(|leaf| !self.leaves.contains(leaf)).collect();
        !self.has_leaves(&new)
    }

    pub(super) fn count(&mut self, parts: &[Part]) {
        self.blocks += live_blocks(parts);
        self.leaves.extend(leaves(parts));
    }
}

/// A block that a map has: its top owner, and its entry in the map of this owner.
#[derive(Clone, Copy)]
pub(super) struct Live {
    pub(super) top: AncestryNode,
    pub(super) entry: MapEntry,
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
        // Follow the lengths in the headers, so that payload is never parsed as a header.
        while at < blocks.end {
            let Some(header) = self.header_at(at).await? else { break };
            let end = at + header.blocks();
            self.clean_chunk(&header, copies).await?;
            at = end;
        }
        Ok(())
    }

    /// The chunk header in a block; `None` if no copy has one.
    pub(super) async fn header_at(&self, at: u64) -> Result<Option<ChunkHeader>, IoError> {
        let header = self.storage.read_one(at).await?;
        Ok(match ChunkHeader::decode(&header, at, &self.storage.layout) {
            Err(_) if self.storage.pairs.is_some() => self.read_other_header(at).await,
            decoded => decoded.ok(),
        })
    }

    /// Repairs a chunk header from the other copy.
    async fn read_other_header(&self, at: u64) -> Option<ChunkHeader> {
        let is_header = move |bytes: &[u8]| is_header_of(bytes, at);
        let read = self.storage.repair(at, BLOCK_BYTES, is_header).await?;
        let block = read.content[..].try_into().ok()?;
        ChunkHeader::decode(block, at, &self.storage.layout).ok()
    }

    async fn clean_chunk(&self, header: &ChunkHeader, copies: &mut Copies) -> Result<(), IoError> {
        let contents = Contents::of(header);
        let mut payload = None;
        for named in &contents.named {
            match *named {
                // Later segments of a pass may have pages that can be moved, which are not counted.
                Named::Block(_) | Named::Unit(_) if copies.is_full() => copies.skipped = true,
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

    /// Adds all owners of these blocks or pages, each with its top owner, to the moving places;
    /// returns false, and adds none, if they are too many for the next checkpoint.
    pub(super) async fn add_holders(
        &self,
        moved: &[(AncestryNode, FoundBlock)],
        copies: &mut Copies,
    ) -> Result<bool, IoError> {
        let (mut places, mut pages) = (Vec::new(), BTreeSet::new());
        for (top, found) in moved {
            if !self.find_holders(*top, *found, copies, &mut places, &mut pages).await? {
                copies.skipped = true;
                return Ok(false);
            }
        }
        copies.pages.append(&mut pages);
        self.state.lock().moving.places.extend(places);
        Ok(true)
    }

    /// True if a pass that moves nothing else has room for all owners of these blocks.
    async fn fits_alone(
        &self,
        moved: &[(AncestryNode, FoundBlock)],
        copies: &mut Copies,
    ) -> Result<bool, IoError> {
        let others = std::mem::take(&mut copies.pages);
        let (mut places, mut pages, mut fits) = (Vec::new(), BTreeSet::new(), Ok(true));
        for (top, found) in moved {
            fits = self.find_holders(*top, *found, copies, &mut places, &mut pages).await;
            if fits != Ok(true) {
                break;
            }
        }
        copies.pages = others;
        fits
    }

    /// Finds the places of a block or page in all its owners, and the pages above them that do not
    /// move yet; returns false if the pages are too many for the next checkpoint.
    async fn find_holders(
        &self,
        top: AncestryNode,
        found: FoundBlock,
        copies: &Copies,
        places: &mut Vec<(PagePlace, u64)>,
        pages: &mut BTreeSet<u64>,
    ) -> Result<bool, IoError> {
        let (storage, cache) = (&self.storage, &self.cache);
        let mut next = vec![top];
        while let Some(node) = next.pop() {
            let place = PagePlace { volume: node.id, ..found.place };
            places.push((place, found.location));
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
                return Ok(false);
            }
            for child in copies.owners.children(node.id) {
                if self.has(&child, found).await?.is_some() {
                    next.push(child);
                }
            }
        }
        Ok(true)
    }

    /// The live blocks among these, without those that the next checkpoint frees because they were
    /// overwritten since the last one.
    pub(super) async fn live(
        &self,
        blocks: &[FoundBlock],
        owners: &Owners,
    ) -> Result<[Option<Live>; UNIT_BLOCKS], IoError> {
        let mut live = [None; UNIT_BLOCKS];
        for (live, found) in live.iter_mut().zip(blocks) {
            let Some((top, entry)) = self.top(*found, owners).await? else { continue };
            let is_dead =
                !top.is_snapshot && self.state.lock().recent(top.id, found.place.index).is_some();
            *live = (!is_dead).then_some(Live { top, entry });
        }
        Ok(live)
    }

    /// The payload of a chunk; empty if it has two copies, and none can be read as a whole.
    pub(super) async fn payload<'a>(
        &self,
        header: &ChunkHeader,
        payload: &'a mut ReadPayload,
    ) -> Result<&'a [u8], IoError> {
        if payload.is_none() {
            // Writers hold memory while they wait for the cleaner, so this may not take the
            // ordinary memory. The buffer is returned before the copies need one.
            let memory = buf::acquire_more(header.checksums.len() * BLOCK_BYTES).await;
            *payload = Some(match self.storage.read(header.block + 1, memory).await {
                Ok(read) => read.to_vec(),
                // Each copy may have other defects: pieces are read one by one.
                Err(IoError::ReadFault) if self.storage.pairs.is_some() => Vec::new(),
                Err(error) => return Err(error),
            });
        }
        Ok(payload.as_deref().unwrap_or_default())
    }

    /// Copies the live blocks among those of a unit, or a block that is stored alone.
    async fn copy(
        &self,
        header: &ChunkHeader,
        blocks: &[FoundBlock],
        payload: &mut ReadPayload,
        copies: &mut Copies,
    ) -> Result<(), IoError> {
        let live = self.live(blocks, &copies.owners).await?;
        let Some(first) = live.iter().flatten().next() else { return Ok(()) };
        let parts = parts(blocks, &live);
        // Before the payload is read, because later segments of a pass often have no room.
        if !copies.has_room(&parts) {
            copies.skipped = true;
            copies.lacked_leaves |= copies.lacks_leaves(&parts);
            return Ok(());
        }
        let bytes = self.payload(header, payload).await?;
        let at = (blocks[0].block() - header.block - 1) as usize * BLOCK_BYTES;
        let stored = bytes.get(at..at + first.entry.stored_blocks() * BLOCK_BYTES);
        copies.slices.spend(1).await;
        let key = self.piece_key(first.top.id);
        let mut read = stored.and_then(|stored| verified(stored, &live, &key));
        let mut other = Vec::new();
        if read.is_none() && self.storage.pairs.is_some() {
            let memory = buf::acquire_more(first.entry.stored_blocks() * BLOCK_BYTES).await;
            other.extend_from_slice(&self.storage.read_entry(first.entry, memory).await?);
            read = verified(&other, &live, &key);
        }
        let (Some((stored, codec)), Some(found)) = (read, blocks.first()) else {
            let block = found_block(blocks, &live);
            return self.skip_damaged(first.top.id, block, first.entry.location);
        };
        let unit = found.unit().map(|unit| UnitPlace { index: 0, ..unit });
        let piece = LivePiece {
            unit,
            codec,
            cold: self.cold_codec(first.top.id),
            parts,
            stored: stored.to_vec(),
            key,
        };
        let shared = of_snapshots(blocks, &live);
        if self.add_holders(&shared, copies).await? {
            copies.count(&piece.parts);
            copies.packer.add(piece);
        } else if shared.len() > 1 && !self.fits_alone(&shared, copies).await? {
            self.copy_alone(blocks, &live, &piece, copies).await?;
        }
        self.write_copies(copies, false).await
    }

    /// Copies the blocks of a unit that has too many owners for any pass, each that has room by
    /// itself. The blocks of a unit may be in different leaves, and each leaf may be in each of
    /// many snapshots: without this, the segment could never be emptied.
    async fn copy_alone(
        &self,
        blocks: &[FoundBlock],
        live: &[Option<Live>; UNIT_BLOCKS],
        piece: &LivePiece,
        copies: &mut Copies,
    ) -> Result<(), IoError> {
        let found = blocks.iter().zip(live).filter_map(|(found, live)| Some((found, (*live)?.top)));
        for (alone, (found, top)) in piece.alone().unwrap_or_default().into_iter().zip(found) {
            if !top.is_snapshot || self.add_holders(&[(top, *found)], copies).await? {
                copies.count(&alone.parts);
                copies.packer.add(alone);
            }
        }
        Ok(())
    }

    /// Key of the blocks of a volume or snapshot. What an order deletes meanwhile counts as locked.
    pub(super) fn piece_key(&self, id: u32) -> PieceKey {
        let state = self.state.lock();
        match state.volume_table.key_volume(id) {
            None => PieceKey::Locked,
            Some(volume) if volume.encryption.is_none() => PieceKey::Plain,
            Some(volume) => {
                let cipher = state.ciphers.get(&volume.id);
                cipher.map_or(PieceKey::Locked, |cipher| PieceKey::Unlocked(cipher.clone()))
            }
        }
    }

    /// Codec of the cleaner for the blocks of a volume or snapshot.
    pub(super) fn cold_codec(&self, id: u32) -> Option<Codec> {
        if !self.has_units() {
            return None;
        }
        let state = self.state.lock();
        let source = state.volume_table.volumes.get(&id)?.source();
        let volume = state.volume_table.volumes.get(&source)?;
        Compression::of(&volume.properties).when_cold()
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
            return self.add_holders(&[(top, found)], copies).await.map(drop);
        }
        let place = PagePlace { volume: top.id, ..found.place };
        self.state.lock().moving.touched.insert(place);
        Ok(())
    }
}

/// The stored blocks and the codec of a unit, if each live block of it is whole.
pub(super) fn verified<'a>(
    stored: &'a [u8],
    live: &[Option<Live>; UNIT_BLOCKS],
    key: &PieceKey,
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
    let blocks = unit.blocks.into();
    let is_whole = match key {
        PieceKey::Locked => is_unit(stored, blocks),
        PieceKey::Plain => decompressed_with(stored, blocks, None, |_| ()).is_some(),
        PieceKey::Unlocked(cipher) => {
            decompressed_with(stored, blocks, Some(cipher), |_| ()).is_some()
        }
    };
    is_whole.then_some((stored, Some(codec)))
}

/// The first live block, for messages.
fn found_block(blocks: &[FoundBlock], live: &[Option<Live>; UNIT_BLOCKS]) -> u64 {
    let mut live = blocks.iter().zip(live).filter(|(_, live)| live.is_some());
    live.next().map_or(0, |(found, _)| found.place.index)
}

/// The live blocks whose top owner is a snapshot.
pub(super) fn of_snapshots(
    blocks: &[FoundBlock],
    live: &[Option<Live>; UNIT_BLOCKS],
) -> Vec<(AncestryNode, FoundBlock)> {
    let shared = blocks.iter().zip(live).filter_map(|(found, live)| Some(((*live)?.top, *found)));
    shared.filter(|(top, _)| top.is_snapshot).collect()
}

/// The parts of a piece: blocks of a unit, of which some are live.
pub(super) fn parts(blocks: &[FoundBlock], live: &[Option<Live>; UNIT_BLOCKS]) -> Vec<Part> {
    let part = |(found, live): (&FoundBlock, &Option<Live>)| {
        let FoundBlock { place, birth, location } = *found;
        let record = match live {
            Some(Live { top, .. }) if !top.is_snapshot => {
                ChunkRecord::Moved { volume: top.id, block: place.index, old: location, birth }
            }
            // The record of a dead block has no effect.
            _ => ChunkRecord::Page { place, birth },
        };
        Part { record, live: live.map(|live| live.entry) }
    };
    blocks.iter().zip(live).map(part).collect()
}
