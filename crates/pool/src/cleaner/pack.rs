//! Packing: copies of live blocks as chunks, in compressed units where they shrink. Pure.
//!
//! Copies are gathered in pieces, each a block that is stored alone or the live blocks of a unit,
//! and sorted by volume and block, so that what belongs together gets into one unit and is read
//! with one I/O. A chunk takes as much as fits its header and payload: it is as dense as one that
//! hosts write, or cleaning would gain nothing.
//!
//! Invariant: a piece takes at most the blocks that it takes now, and at most one for each live
//! block. Pieces are compressed again together only if that makes them smaller; otherwise a unit
//! is copied as it is stored, or its live blocks alone. So hardly any unit with dead blocks is
//! left. What is locked is copied as it is stored, because nothing else is possible without its
//! key.

use std::collections::{BTreeMap, VecDeque};

use super::piece::{
    CopyForm, LivePiece, Part, Size, as_stored, copy, leaf_of, live, live_entries, size,
};
use crate::compress::{GiveUp, compressed_with};
use crate::limits::{BLOCK_BYTES, UNIT_BLOCKS};
use crate::ondisk::checksum;
use crate::ondisk::chunk::{ChunkRecord, RECORD_SPACE_BYTES};
use crate::ondisk::entry::MapEntry;
use crate::ondisk::unit::{Codec, Payload};

/// Stored blocks of the pieces that are sorted together: 1 MiB.
const SORTED_BLOCKS: usize = 256;

/// Live blocks of the pieces that are sorted together, which bounds their records: 96 KiB.
const SORTED_PARTS: usize = 1024;

/// A copied block.
pub(super) struct Moved {
    /// Old location.
    pub(super) old: u64,
    /// New entry, whose location counts from the payload of the chunk.
    pub(super) new: MapEntry,
    /// Snapshots have it.
    pub(super) shared: bool,
}

/// Copies as the content of a chunk.
#[derive(Default)]
pub(super) struct Packed {
    pub(super) records: Vec<ChunkRecord>,
    pub(super) bytes: Vec<u8>,
    pub(super) entries: Vec<Moved>,
    header_bytes: usize,
}

impl Packed {
    fn payload_blocks(&self) -> usize {
        self.bytes.len() / BLOCK_BYTES
    }

    fn has_room(&self, record: &ChunkRecord, payload_max: usize) -> bool {
        self.payload_blocks() + record.payload_blocks() <= payload_max
            && self.header_bytes + record.header_bytes() <= RECORD_SPACE_BYTES
    }

    fn add(&mut self, copied: Copied) {
        let Copied { record, stored, parts } = copied;
        let checksums: Vec<u32> = stored.chunks(BLOCK_BYTES).map(checksum).collect();
        let mut payload = Payload::of(self.payload_blocks() as u64, 0, &checksums);
        let new: Vec<MapEntry> = match &record {
            ChunkRecord::MovedUnit { stored, parts } => {
                payload.unit(parts.len() as u8, *stored).collect()
            }
            _ => vec![payload.block()],
        };
        let live = parts.iter().zip(new).filter_map(|(part, new)| Some((part, part.live?, new)));
        self.entries.extend(live.map(|(part, old, new)| Moved {
            old: old.location,
            new: MapEntry { birth: old.birth, ..new },
            shared: matches!(part.record, ChunkRecord::Page { .. }),
        }));
        self.bytes.extend_from_slice(&stored);
        self.header_bytes += record.header_bytes();
        self.records.push(record);
    }
}

/// The stored blocks of a record, with the parts that it copies, each in a block of its own or all
/// in one unit.
#[derive(Debug)]
pub(super) struct Copied {
    pub(super) record: ChunkRecord,
    pub(super) stored: Vec<u8>,
    pub(super) parts: Vec<Part>,
}

/// Packs pieces into chunks.
#[derive(Default)]
pub(super) struct Packer {
    /// Most payload blocks of a chunk.
    chunk_blocks: usize,
    pieces: Vec<LivePiece>,
    /// Pieces that are being packed, and the lengths of their groups, each of which may become a
    /// unit.
    sorted: VecDeque<LivePiece>,
    groups: VecDeque<usize>,
    /// Stored blocks and live blocks of these pieces.
    gathered: (usize, usize),
    /// Copies for the next chunks. Their payload is limited by those of the pieces and a chunk.
    copied: VecDeque<Copied>,
    /// Payload blocks and header bytes of these copies.
    waiting: (usize, usize),
    /// Weight of the dead blocks of unlocked units that were copied as they are stored.
    held: u64,
    /// Give-up on plain blocks that do not compress, by volume. Blocks of units did compress, so
    /// they are always tried.
    give_ups: BTreeMap<u32, GiveUp>,
}

impl Packer {
    pub(super) fn new(chunk_blocks: usize) -> Packer {
        Packer { chunk_blocks, ..Packer::default() }
    }

    /// Adds a piece, before [`Packer::pack_next`]. A block that stays plain is copied as it comes,
    /// and so is a locked piece: nothing is gained by sorting it.
    pub(super) fn add(&mut self, piece: LivePiece) {
        if piece.stays_plain() || piece.is_locked() {
            let LivePiece { unit, parts, stored, .. } = piece;
            return self.put(Copied { record: as_stored(unit, &parts), stored, parts });
        }
        self.gathered.0 += piece.stored.len() / BLOCK_BYTES;
        self.gathered.1 += piece.live();
        self.pieces.push(piece);
    }

    /// Packs one unit, if enough pieces are gathered or all are to be packed. Returns the number of
    /// units that it worked on, or `None` if nothing is left to pack. The caller lets other tasks
    /// run between calls.
    pub(super) fn pack_next(&mut self, all: bool) -> Option<usize> {
        let is_due = self.gathered.0 >= SORTED_BLOCKS || self.gathered.1 >= SORTED_PARTS;
        if self.groups.is_empty() && (is_due || all) {
            let mut pieces = std::mem::take(&mut self.pieces);
            pieces.sort_by_key(LivePiece::sort_key);
            self.groups = groups(&pieces).iter().map(|group| group.len()).collect();
            self.sorted = pieces.into();
        }
        let count = self.groups.pop_front()?;
        let group: Vec<LivePiece> = self.sorted.drain(..count).collect();
        self.pack(&group);
        if self.groups.is_empty() {
            self.gathered = (0, 0);
        }
        Some(1 + group.len())
    }

    /// Payload blocks and copied blocks that are in memory, at most.
    pub(super) fn unwritten(&self) -> (usize, usize) {
        let parts: usize = self.copied.iter().map(|copied| copied.parts.len()).sum();
        (self.gathered.0 + self.waiting.0, self.gathered.1 + parts)
    }

    /// Weight that dead blocks of copied units hold, except for locked ones, which later passes
    /// leave alone.
    pub(super) fn held(&self) -> u64 {
        self.held
    }

    /// The next chunk, if it is full or all copies are to be written: the first copies that fit
    /// together, after [`Packer::pack_next`] has packed what is due. It takes at most `room`
    /// payload blocks if a copy fits there, otherwise those of a new segment.
    pub(super) fn next(&mut self, room: usize, all: bool) -> Option<Packed> {
        let is_full = self.waiting.0 >= self.chunk_blocks || self.waiting.1 >= RECORD_SPACE_BYTES;
        if self.copied.is_empty() || !all && !is_full {
            return None;
        }
        let fits = self.copied.iter().any(|copied| copied.record.payload_blocks() <= room);
        let payload_max = if fits { self.chunk_blocks.min(room) } else { self.chunk_blocks };
        let mut packed = Packed::default();
        for copied in std::mem::take(&mut self.copied) {
            if packed.has_room(&copied.record, payload_max) {
                self.waiting.0 -= copied.record.payload_blocks();
                self.waiting.1 -= copied.record.header_bytes();
                packed.add(copied);
            } else {
                self.copied.push_back(copied);
            }
        }
        Some(packed)
    }

    fn pack(&mut self, group: &[LivePiece]) {
        match self.compressed(group) {
            Some((record, stored)) => {
                let parts = group.iter().flat_map(|piece| &piece.parts);
                let live = parts.filter(|part| part.live.is_some());
                self.put(Copied { record, stored, parts: live.cloned().collect() });
            }
            None if group.len() > 1 => group.iter().for_each(|piece| self.pack_alone(piece)),
            None => self.copy(&group[0]),
        }
    }

    /// Packs the live blocks of a unit with dead ones, which nothing else leaves.
    fn pack_alone(&mut self, piece: &LivePiece) {
        let alone = std::slice::from_ref(piece);
        let packed = if piece.is_whole() { None } else { self.compressed(alone) };
        match packed {
            Some((record, stored)) => {
                let live = piece.parts.iter().filter(|part| part.live.is_some());
                self.put(Copied { record, stored, parts: live.cloned().collect() });
            }
            None => self.copy(piece),
        }
    }

    /// The pieces as one unit, if that is smaller than each of them alone, or frees dead blocks.
    fn compressed(&mut self, group: &[LivePiece]) -> Option<(ChunkRecord, Vec<u8>)> {
        let parts = || group.iter().flat_map(|piece| live(&piece.parts));
        if group[0].stays_plain() || !(2..=UNIT_BLOCKS).contains(&parts().count()) {
            return None;
        }
        let any = |of: fn(&LivePiece) -> Option<Codec>, codec| {
            group.iter().any(|piece| of(piece) == Some(codec))
        };
        let is_zstd = any(|piece| piece.codec, Codec::Zstd);
        // What is compressed stays so whatever the setting: a full pool has no room to unpack it.
        let wants_lz4 = any(|piece| piece.cold, Codec::Lz4);
        let codec = if wants_lz4 && !is_zstd { Codec::Lz4 } else { Codec::Zstd };
        if let [only] = group
            && only.is_whole()
            && (only.cold.is_none() || only.codec == Some(codec) || is_zstd)
        {
            return None;
        }
        let was_unit = group.iter().any(|piece| piece.unit.is_some());
        let give_up = self.give_ups.entry(group[0].place().0).or_default();
        if !was_unit && !give_up.tries() {
            return None;
        }
        let mut bytes = Vec::with_capacity(UNIT_BLOCKS * BLOCK_BYTES);
        for piece in group {
            piece.contents(|_, block| bytes.extend_from_slice(block))?;
        }
        // All pieces of a volume have the same data key.
        let stored = compressed_with(codec, &bytes, group[0].cipher(), <[u8]>::to_vec);
        if !was_unit {
            give_up.count(stored.is_some());
        }
        let stored = stored?;
        let parts = parts().map(|(record, _)| record.clone()).collect();
        let record = ChunkRecord::MovedUnit { stored: (stored.len() / BLOCK_BYTES) as u8, parts };
        let mut alone = Size::default();
        group.iter().for_each(|piece| alone.add(size(piece.unit, &piece.parts)));
        let packed = Size::of(&record);
        let frees = group.iter().any(|piece| !piece.is_whole()) && packed.payload <= alone.payload;
        (frees || packed.bytes() < alone.bytes()).then_some((record, stored))
    }

    /// Copies a piece without compressing it again.
    fn copy(&mut self, piece: &LivePiece) {
        if copy(piece.unit, &piece.parts) == CopyForm::Blocks {
            let blocks = piece.contents(|part, block| (part.clone(), piece.sealed(part, block)));
            // A unit that is damaged is not gathered.
            if let Some(blocks) = blocks {
                for (part, block) in blocks {
                    let record = part.record.clone();
                    self.put(Copied { record, stored: block, parts: vec![part] });
                }
                return;
            }
        }
        let record = as_stored(piece.unit, &piece.parts);
        if piece.unit.is_some() {
            let weight = live_entries(&piece.parts).next().map_or(0, |entry| entry.weight());
            let dead = piece.parts.len() - piece.live();
            self.held += dead as u64 * u64::from(weight);
        }
        self.put(Copied { record, stored: piece.stored.clone(), parts: piece.parts.clone() });
    }

    /// Adds a copy that is packed already.
    pub(super) fn put(&mut self, copied: Copied) {
        self.waiting.0 += copied.record.payload_blocks();
        self.waiting.1 += copied.record.header_bytes();
        self.copied.push_back(copied);
    }
}

/// Groups of sorted pieces that may become a unit each: pieces that hosts would write as one unit
/// stay together, and few of them are joined with the next. A piece with blocks of several volumes
/// is a group of its own: the volumes may have left the domain of deduplication that they shared.
fn groups(pieces: &[LivePiece]) -> Vec<&[LivePiece]> {
    let mut groups = Vec::new();
    let (mut first, mut at, mut live) = (0, 0, 0);
    let joins_next = |one: &LivePiece, next: &LivePiece| {
        one.shares_cell(next) && !one.is_mixed() && !next.is_mixed()
    };
    for cell in pieces.chunk_by(joins_next) {
        let own: usize = cell.iter().map(LivePiece::live).sum();
        // A unit across many leaves could not be moved for snapshots that have each of them.
        let leaf = |(volume, is_plain, block)| (volume, is_plain, leaf_of(block));
        let joins = |first: usize| {
            let is_mixed = cell[0].is_mixed() || pieces[first].is_mixed();
            !is_mixed && leaf(cell[0].sort_key()) == leaf(pieces[first].sort_key())
        };
        if live + own > UNIT_BLOCKS || !joins(first) {
            groups.push(&pieces[first..at]);
            (first, live) = (at, 0);
        }
        for piece in cell {
            // Snapshots may have several versions of a block.
            if live > 0 && live + piece.live() > UNIT_BLOCKS {
                groups.push(&pieces[first..at]);
                (first, live) = (at, 0);
            }
            (at, live) = (at + 1, live + piece.live());
        }
    }
    groups.push(&pieces[first..at]);
    groups.retain(|group| !group.is_empty());
    groups
}

#[cfg(test)]
#[path = "pack_tests.rs"]
mod tests;
