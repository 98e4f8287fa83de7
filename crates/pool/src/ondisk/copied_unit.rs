//! Short form of [`ChunkRecord::MovedUnit`]: the copies of consecutive blocks of one volume that
//! were consecutive before, in a unit or stored alone. A header then has room for 111 copied
//! units, as it has for 111 copied blocks, so a copy of what hosts wrote is about as dense as the
//! original.

use super::chunk::ChunkRecord;
use super::entry::U48_MAX;
use super::page::PagePlace;
use super::unit::{UnitPlace, block_of, is_location, unit_of};
use super::{Fields, put};
use crate::limits::VOLUME_BLOCKS_MAX;

/// Length of the encoded short form, in bytes.
pub(super) const SHORT_BYTES: usize = 32;

/// Parts of a unit, of which each continues the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    volume: u32,
    block: u64,
    /// Old location of the first part; 0 if all are of snapshots.
    old: u64,
    birth: u64,
    /// Bits of the parts that are a [`ChunkRecord::Page`].
    pages: u8,
}

/// The location of the part `by` parts later.
fn later(old: u64, by: u8) -> Option<u64> {
    match unit_of(old) {
        None => old.checked_add(by.into()),
        Some(unit) => {
            let index = unit.index.checked_add(by).filter(|index| *index < unit.blocks)?;
            Some(UnitPlace { index, ..unit }.location(block_of(old)))
        }
    }
}

/// The location of the part `by` parts earlier.
fn earlier(old: u64, by: u8) -> Option<u64> {
    match unit_of(old) {
        None => old.checked_sub(by.into()).filter(|old| *old > 0),
        Some(unit) => {
            let index = unit.index.checked_sub(by)?;
            Some(UnitPlace { index, ..unit }.location(block_of(old)))
        }
    }
}

impl Run {
    /// The run that these parts are, if they are one.
    pub(super) fn of(parts: &[ChunkRecord]) -> Option<Run> {
        let (volume, block, birth) = match parts.first()? {
            ChunkRecord::Moved { volume, block, birth, .. } => (*volume, *block, *birth),
            ChunkRecord::Page { place, birth } => (place.volume, place.index, *birth),
            _ => return None,
        };
        let mut run = Run { volume, block, old: 0, birth, pages: 0 };
        for (index, part) in (0..).zip(parts) {
            match part {
                ChunkRecord::Page { .. } => run.pages |= 1 << index,
                ChunkRecord::Moved { old, .. } if run.old == 0 => run.old = earlier(*old, index)?,
                _ => {}
            }
        }
        let same = (0..).zip(parts).all(|(index, part)| run.part(index).as_ref() == Some(part));
        same.then_some(run)
    }

    fn part(&self, index: u8) -> Option<ChunkRecord> {
        let Run { volume, birth, .. } = *self;
        let block = self.block.checked_add(index.into())?;
        Some(match self.pages >> index & 1 {
            1 => ChunkRecord::Page { place: PagePlace { volume, level: 0, index: block }, birth },
            _ => ChunkRecord::Moved { volume, block, old: later(self.old, index)?, birth },
        })
    }

    pub(super) fn encode(&self, bytes: &mut [u8]) {
        bytes[3] = self.pages;
        put(bytes, 4, &self.volume.to_le_bytes());
        put(bytes, 8, &self.block.to_le_bytes());
        put(bytes, 16, &self.old.to_le_bytes());
        put(bytes, 24, &self.birth.to_le_bytes());
    }

    /// Decodes the parts of a unit of so many blocks, in a pool of so many blocks.
    pub(super) fn decode(bytes: &[u8], count: u8, blocks: u64) -> Option<Vec<ChunkRecord>> {
        let fields = Fields(bytes.get(..SHORT_BYTES)?);
        let run = Run {
            volume: fields.u32(4),
            block: fields.u64(8),
            old: fields.u64(16),
            birth: fields.u64(24),
            pages: bytes[3],
        };
        let all = u8::MAX >> (8 - count);
        let end = run.block.checked_add(count.into())?;
        let fits = run.volume != 0 && end <= VOLUME_BLOCKS_MAX && run.birth <= U48_MAX;
        if !fits || run.pages & !all != 0 || (run.pages == all) != (run.old == 0) {
            return None;
        }
        let parts: Option<Vec<ChunkRecord>> = (0..count).map(|index| run.part(index)).collect();
        let is_possible = |part: &ChunkRecord| match part {
            ChunkRecord::Moved { old, .. } => is_location(*old, blocks),
            _ => true,
        };
        parts.filter(|parts| parts.iter().all(is_possible))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(block: u64, old: u64) -> ChunkRecord {
        ChunkRecord::Moved { volume: 3, block, old, birth: 9 }
    }

    fn page(block: u64) -> ChunkRecord {
        ChunkRecord::Page { place: PagePlace { volume: 3, level: 0, index: block }, birth: 9 }
    }

    fn in_unit(index: u8) -> u64 {
        UnitPlace { index, blocks: 5, stored: 2 }.location(100)
    }

    fn round_trip(parts: &[ChunkRecord]) -> Option<Vec<ChunkRecord>> {
        let mut bytes = [0; SHORT_BYTES];
        Run::of(parts)?.encode(&mut bytes);
        Run::decode(&bytes, parts.len() as u8, 200)
    }

    #[test]
    fn consecutive_parts_have_the_short_form() {
        let unit: Vec<ChunkRecord> = (0..5).map(|at| moved(7 + at, in_unit(at as u8))).collect();
        let mut mixed = unit.clone();
        mixed[0] = page(7);
        mixed[3] = page(10);
        let alone = vec![moved(7, 100), moved(8, 101)];
        for parts in [unit, mixed, alone, vec![page(7), page(8)]] {
            assert_eq!(round_trip(&parts), Some(parts));
        }
    }

    #[test]
    fn other_parts_have_none() {
        let birth = ChunkRecord::Moved { volume: 3, block: 8, old: 101, birth: 8 };
        let volume = ChunkRecord::Moved { volume: 4, block: 8, old: 101, birth: 9 };
        for second in [birth, volume, moved(9, 101), moved(8, 102), moved(8, in_unit(1))] {
            assert_eq!(Run::of(&[moved(7, 100), second]), None);
        }
        assert_eq!(Run::of(&[page(7), moved(8, in_unit(0))]), None, "nothing precedes the unit");
    }
}
