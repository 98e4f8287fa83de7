//! Pieces: a unit with live blocks, or a live block that is stored alone, and the space that a copy
//! of it takes. Pure.

use std::sync::Arc;

use crate::compress::decompressed_with;
use crate::crypt::VolumeCipher;
use crate::limits::{BLOCK_BYTES, UNIT_BLOCKS};
use crate::ondisk::chunk::ChunkRecord;
use crate::ondisk::entry::MapEntry;
use crate::ondisk::page::FANOUT;
use crate::ondisk::unit::{Codec, UnitPlace};

/// Space that copies take: payload, and bytes of the headers of their chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) payload: usize,
    header_bytes: usize,
}

impl Size {
    pub(super) fn of(record: &ChunkRecord) -> Size {
        Size { payload: record.payload_blocks(), header_bytes: record.header_bytes() }
    }

    pub(super) fn add(&mut self, other: Size) {
        self.payload += other.payload;
        self.header_bytes += other.header_bytes;
    }

    /// A part of a header is worth as much of a block.
    pub(super) fn bytes(self) -> usize {
        self.payload * BLOCK_BYTES + self.header_bytes
    }
}

/// A block of a unit, or a block by itself.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// [`ChunkRecord::Moved`] of a volume, or [`ChunkRecord::Page`] of level 0 for what snapshots
    /// have, and in the place of a dead block.
    pub(super) record: ChunkRecord,
    /// Its entry; `None` if it is dead.
    pub(super) live: Option<MapEntry>,
}

/// Encryption of a piece.
#[derive(Clone, Debug)]
pub(super) enum PieceKey {
    /// It is not encrypted.
    Plain,
    /// Its key is not here.
    Locked,
    /// It is encrypted.
    Unlocked(Arc<VolumeCipher>),
}

/// A unit with live blocks, or a live block that is stored alone.
pub(super) struct LivePiece {
    /// Place of the first block of the unit.
    pub(super) unit: Option<UnitPlace>,
    /// How the unit is compressed.
    pub(super) codec: Option<Codec>,
    /// How its volume wants cold data to be compressed.
    pub(super) cold: Option<Codec>,
    /// All blocks of the unit, or the one.
    pub(super) parts: Vec<Part>,
    /// The stored blocks.
    pub(super) stored: Vec<u8>,
    pub(super) key: PieceKey,
}

/// How a piece is copied that is not compressed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyForm {
    /// As it is stored.
    Stored,
    /// Each live block alone.
    Blocks,
}

pub(super) fn leaf_of(block: u64) -> u64 {
    block / FANOUT as u64
}

pub(super) fn live_entries(parts: &[Part]) -> impl Iterator<Item = MapEntry> {
    parts.iter().filter_map(|part| part.live)
}

/// The live blocks.
pub(super) fn live_parts(parts: &[Part]) -> impl Iterator<Item = &Part> {
    parts.iter().filter(|part| part.live.is_some())
}

pub(super) fn live(parts: &[Part]) -> impl Iterator<Item = (&ChunkRecord, MapEntry)> + Clone {
    parts.iter().filter_map(|part| Some((&part.record, part.live?)))
}

/// Number of live blocks.
pub(super) fn live_blocks(parts: &[Part]) -> usize {
    live(parts).count()
}

/// Leaves of volumes that refer to live blocks.
pub(super) fn leaves(parts: &[Part]) -> impl Iterator<Item = (u32, u64)> {
    live(parts).filter_map(|(record, _)| match record {
        ChunkRecord::Moved { volume, block, .. } => Some((*volume, leaf_of(*block))),
        _ => None,
    })
}

pub(super) fn copy(unit: Option<UnitPlace>, parts: &[Part]) -> CopyForm {
    match unit {
        Some(unit) if live(parts).count() <= usize::from(unit.stored) => CopyForm::Blocks,
        _ => CopyForm::Stored,
    }
}

pub(super) fn as_stored(unit: Option<UnitPlace>, parts: &[Part]) -> ChunkRecord {
    match unit {
        Some(UnitPlace { stored, .. }) => {
            let parts = parts.iter().map(|part| part.record.clone()).collect();
            ChunkRecord::MovedUnit { stored, parts }
        }
        None => parts[0].record.clone(),
    }
}

/// Space that a piece takes, unless it is compressed again.
pub(super) fn size(unit: Option<UnitPlace>, parts: &[Part]) -> Size {
    match copy(unit, parts) {
        CopyForm::Stored => Size::of(&as_stored(unit, parts)),
        CopyForm::Blocks => {
            let mut size = Size::default();
            live(parts).for_each(|(record, _)| size.add(Size::of(record)));
            size
        }
    }
}

impl LivePiece {
    /// The volume that wrote its first live block, and the block there.
    pub(super) fn place(&self) -> (u32, u64) {
        let (record, _) = live(&self.parts).next().expect("a piece has a live block");
        place_of(record)
    }

    /// Number of live blocks.
    pub(super) fn live(&self) -> usize {
        live_blocks(&self.parts)
    }

    pub(super) fn is_whole(&self) -> bool {
        self.live() == self.parts.len()
    }

    /// True if its live blocks are of several volumes.
    pub(super) fn is_mixed(&self) -> bool {
        let mut volumes = live(&self.parts).map(|(record, _)| place_of(record).0);
        let first = volumes.next();
        volumes.any(|volume| Some(volume) != first)
    }

    /// A block that is to stay uncompressed.
    pub(super) fn stays_plain(&self) -> bool {
        self.unit.is_none() && self.cold.is_none()
    }

    pub(super) fn is_locked(&self) -> bool {
        matches!(self.key, PieceKey::Locked)
    }

    pub(super) fn cipher(&self) -> Option<&VolumeCipher> {
        match &self.key {
            PieceKey::Plain | PieceKey::Locked => None,
            PieceKey::Unlocked(cipher) => Some(cipher),
        }
    }

    pub(super) fn sort_key(&self) -> (u32, bool, u64) {
        let (volume, block) = self.place();
        (volume, self.stays_plain(), block)
    }

    /// Pieces that hosts would write as one unit.
    pub(super) fn shares_cell(&self, other: &LivePiece) -> bool {
        let cell = |(volume, is_plain, block)| {
            (volume, is_plain, leaf_of(block), block / UNIT_BLOCKS as u64)
        };
        cell(self.sort_key()) == cell(other.sort_key())
    }

    /// Its live blocks, each by itself; `None` if they cannot be read.
    pub(super) fn alone(&self) -> Option<Vec<LivePiece>> {
        if self.is_locked() {
            return None;
        }
        self.contents(|part, block| {
            let stored = self.sealed(part, block);
            let (parts, key) = (vec![part.clone()], self.key.clone());
            LivePiece { unit: None, codec: None, cold: None, parts, stored, key }
        })
    }

    /// A block as it is stored alone.
    pub(super) fn sealed(&self, part: &Part, block: &[u8]) -> Vec<u8> {
        let mut block = block.to_vec();
        if let Some(cipher) = self.cipher() {
            cipher.encrypt_blocks(place_of(&part.record).1, &mut block);
        }
        block
    }

    /// Passes its live blocks on, decrypted; `None` if the unit is damaged.
    pub(super) fn contents<T>(&self, mut keep: impl FnMut(&Part, &[u8]) -> T) -> Option<Vec<T>> {
        let mut each = |data: &[u8]| {
            let blocks = self.parts.iter().zip(data.chunks(BLOCK_BYTES));
            let live = blocks.filter(|(part, _)| part.live.is_some());
            live.map(|(part, block)| keep(part, block)).collect()
        };
        match self.unit {
            None => match self.cipher() {
                None => Some(each(&self.stored)),
                Some(cipher) => {
                    let mut block = self.stored.clone();
                    cipher.decrypt_blocks(place_of(&self.parts[0].record).1, &mut block);
                    Some(each(&block))
                }
            },
            Some(unit) => decompressed_with(&self.stored, unit.blocks.into(), self.cipher(), each),
        }
    }
}

/// Volume and block of a copy.
pub(super) fn place_of(record: &ChunkRecord) -> (u32, u64) {
    match record {
        ChunkRecord::Moved { volume, block, .. } => (*volume, *block),
        ChunkRecord::Page { place, .. } => (place.volume, place.index),
        other => unreachable!("{other:?} is no copy"),
    }
}
