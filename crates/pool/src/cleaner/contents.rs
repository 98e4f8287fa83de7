//! Contents: the blocks, units and pages that a chunk header names. Pure.

use crate::ondisk::chunk::{ChunkHeader, ChunkRecord};
use crate::ondisk::page::PagePlace;
use crate::ondisk::unit::{UnitPlace, block_of, unit_of};

/// A block or page that a chunk header names.
#[derive(Clone, Copy)]
pub(super) struct FoundBlock {
    /// Source volume, level and index.
    pub(super) place: PagePlace,
    pub(super) birth: u64,
    pub(super) location: u64,
}

/// What a chunk header names at a place of the payload.
#[derive(Clone, Copy)]
pub(super) enum Named {
    /// A block of volumes or snapshots.
    Block(FoundBlock),
    /// Index of the first block of a unit, in the list of blocks.
    Unit(usize),
    /// A map page.
    Page(FoundBlock),
    /// A block or page of the metadata map.
    Metadata(FoundBlock),
}

/// What a chunk header names, in order of the payload. The blocks of units are in a list of their
/// own.
pub(super) struct Contents {
    pub(super) named: Vec<Named>,
    blocks: Vec<FoundBlock>,
}

impl Contents {
    pub(super) fn of(header: &ChunkHeader) -> Contents {
        let mut contents = Contents { named: Vec::new(), blocks: Vec::new() };
        let mut at = header.block + 1;
        let block_of = |volume: u32, index: u64| PagePlace { volume, level: 0, index };
        for record in &header.records {
            match record {
                ChunkRecord::Data { volume, block, .. } => {
                    let birth = header.sequence;
                    for (index, location) in (*block..).zip(at..).take(record.payload_blocks()) {
                        let place = block_of(*volume, index);
                        contents.named.push(Named::Block(FoundBlock { place, birth, location }));
                    }
                }
                ChunkRecord::Moved { volume, block, birth, .. } => {
                    let place = block_of(*volume, *block);
                    let found = FoundBlock { place, birth: *birth, location: at };
                    contents.named.push(Named::Block(found));
                }
                ChunkRecord::Page { place, birth } => {
                    let found = FoundBlock { place: *place, birth: *birth, location: at };
                    contents.named.push(match (place.volume, place.level) {
                        (0, _) => Named::Metadata(found),
                        (_, 0) => Named::Block(found),
                        _ => Named::Page(found),
                    });
                }
                ChunkRecord::Unit { volume, block, count, stored } => {
                    let parts = (*block..).take(usize::from(*count));
                    let parts = parts.map(|index| (block_of(*volume, index), header.sequence));
                    contents.unit(at, *count, *stored, parts);
                }
                ChunkRecord::MovedUnit { stored, parts } => {
                    let of = |part: &ChunkRecord| match part {
                        ChunkRecord::Moved { volume, block, birth, .. } => {
                            (block_of(*volume, *block), *birth)
                        }
                        ChunkRecord::Page { place, birth } => (*place, *birth),
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
            FoundBlock { place, birth, location }
        }));
    }

    /// The blocks of the unit, or the block stored alone, that is stored from `block` on.
    pub(super) fn piece_at(&self, block: u64) -> Option<&[FoundBlock]> {
        self.named.iter().find_map(|named| {
            let piece = match named {
                Named::Block(found) => std::slice::from_ref(found),
                Named::Unit(first) => self.blocks_of(*first),
                Named::Page(_) | Named::Metadata(_) => return None,
            };
            (piece[0].block() == block).then_some(piece)
        })
    }

    /// The blocks of the unit that begins here in the list.
    pub(super) fn blocks_of(&self, first: usize) -> &[FoundBlock] {
        let blocks = self.blocks[first].unit().map_or(1, |unit| usize::from(unit.blocks));
        &self.blocks[first..first + blocks]
    }
}

impl FoundBlock {
    /// Place of the block in a unit.
    pub(super) fn unit(&self) -> Option<UnitPlace> {
        unit_of(self.location)
    }

    pub(super) fn block(&self) -> u64 {
        block_of(self.location)
    }
}
