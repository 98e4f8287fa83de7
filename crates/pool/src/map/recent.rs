//! Recent changes: table, of bounded size, of the changes since a checkpoint.
//!
//! Invariants:
//! - the latest change of a block wins, whether it was recorded for the block or for a range of
//!   zeroes;
//! - inserting allocates nothing below the capacity;
//! - the order of the table depends only on its content.

use flagstone_runtime::rng::mix64;

use crate::limits::{RANGES_MAX, ZERO_BY_BLOCK};
use crate::ondisk::entry::MapEntry;

#[derive(Clone, Copy, Debug)]
struct Slot {
    /// 0 in a free slot.
    volume: u32,
    block: u64,
    entry: MapEntry,
    order: u64,
}

const FREE: Slot = Slot { volume: 0, block: 0, entry: MapEntry::HOLE, order: 0 };

/// A range that was zeroed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZeroRange {
    /// Volume.
    pub volume: u32,
    /// First block.
    pub block: u64,
    /// Number of blocks.
    pub count: u64,
    order: u64,
}

impl ZeroRange {
    fn covers(&self, volume: u32, block: u64) -> bool {
        self.volume == volume && block >= self.block && block - self.block < self.count
    }
}

/// The new entry of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapChange {
    /// Volume.
    pub volume: u32,
    /// Block.
    pub block: u64,
    /// New entry; a hole if the block was zeroed.
    pub entry: MapEntry,
}

/// Table of recent changes.
#[derive(Debug)]
pub struct Recent {
    slots: Vec<Slot>,
    len: usize,
    /// Entries that were inserted as copies of the cleaner.
    copied: usize,
    ranges: Vec<ZeroRange>,
    order: u64,
    /// Unknown to hosts, so that none can choose blocks of neighboring slots, whose lookups are
    /// slow.
    seed: u64,
}

/// Entries in the table for this many zeroed blocks.
pub fn zero_entries(count: u64) -> usize {
    if count <= ZERO_BY_BLOCK { count as usize } else { 0 }
}

impl Recent {
    /// A table that holds `capacity` entries without allocating. `seed` is
    /// unknown to hosts: the number of the log.
    pub fn new(capacity: usize, seed: u64) -> Recent {
        let slots = vec![FREE; (2 * capacity.max(8)).next_power_of_two()];
        let ranges = Vec::with_capacity(RANGES_MAX);
        Recent { slots, len: 0, copied: 0, ranges, order: 0, seed }
    }

    /// Most entries without an allocation.
    pub fn capacity(&self) -> usize {
        self.slots.len() / 2
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Number of entries that were inserted as copies of the cleaner. They replace blocks in use,
    /// so they take no additional space.
    pub fn copied(&self) -> usize {
        self.copied
    }

    /// Number of ranges.
    pub fn ranges_len(&self) -> usize {
        self.ranges.len()
    }

    /// True without changes.
    pub fn is_empty(&self) -> bool {
        self.len == 0 && self.ranges.is_empty()
    }

    /// Index of a block's slot, or of the free slot for the block.
    fn slot_of(&self, volume: u32, block: u64) -> usize {
        let mask = self.slots.len() - 1;
        let mut index = mix64(mix64(block ^ u64::from(volume) << 44) ^ self.seed) as usize & mask;
        loop {
            let slot = &self.slots[index];
            if slot.volume == 0 || (slot.volume == volume && slot.block == block) {
                return index;
            }
            index = (index + 1) & mask;
        }
    }

    /// The entry of a block, if it changed.
    pub fn get(&self, volume: u32, block: u64) -> Option<MapEntry> {
        let slot = &self.slots[self.slot_of(volume, block)];
        let zeroed = self.zeroed(volume, block);
        match slot.volume != 0 {
            true if slot.order > zeroed => Some(slot.entry),
            _ if zeroed > 0 => Some(MapEntry::HOLE),
            _ => None,
        }
    }

    /// True if the volume has changes. Scans the whole table.
    pub fn has(&self, volume: u32) -> bool {
        self.slots.iter().any(|slot| slot.volume == volume)
            || self.ranges.iter().any(|range| range.volume == volume)
    }

    /// Order of the latest range that covers a block; 0 for none.
    fn zeroed(&self, volume: u32, block: u64) -> u64 {
        let covering = self.ranges.iter().rev().find(|range| range.covers(volume, block));
        covering.map_or(0, |range| range.order)
    }

    /// Records the entry of a block.
    pub fn insert(&mut self, volume: u32, block: u64, entry: MapEntry) {
        assert!(volume != 0, "the metadata map has no recent changes");
        if 2 * (self.len + 1) > self.slots.len() {
            self.grow();
        }
        let index = self.slot_of(volume, block);
        self.len += usize::from(self.slots[index].volume == 0);
        self.order += 1;
        self.slots[index] = Slot { volume, block, entry, order: self.order };
    }

    /// Records the entry of a block that the cleaner copied.
    pub fn insert_copy(&mut self, volume: u32, block: u64, entry: MapEntry) {
        let before = self.len;
        self.insert(volume, block, entry);
        self.copied += self.len - before;
    }

    /// Records that blocks read as zeroes.
    pub fn zero(&mut self, volume: u32, block: u64, count: u64) {
        if count <= ZERO_BY_BLOCK {
            (block..block + count).for_each(|block| self.insert(volume, block, MapEntry::HOLE));
        } else {
            self.order += 1;
            self.ranges.push(ZeroRange { volume, block, count, order: self.order });
        }
    }

    /// Used only in recovery, which may replay the content of two tables.
    fn grow(&mut self) {
        self.rebuild(2 * self.slots.len(), |_| true);
    }

    /// Removes the changes of one volume.
    pub fn forget(&mut self, volume: u32) {
        self.rebuild(self.slots.len(), |other| other != volume);
        self.ranges.retain(|range| range.volume != volume);
    }

    fn rebuild(&mut self, slots: usize, keep: impl Fn(u32) -> bool) {
        let slots = std::mem::replace(&mut self.slots, vec![FREE; slots]);
        let before = self.len;
        self.len = 0;
        for slot in slots.into_iter().filter(|slot| slot.volume != 0 && keep(slot.volume)) {
            let index = self.slot_of(slot.volume, slot.block);
            self.slots[index] = slot;
            self.len += 1;
        }
        self.copied = self.copied.saturating_sub(before - self.len);
    }

    /// Removes all changes, and keeps the memory.
    pub fn clear(&mut self) {
        self.slots.fill(FREE);
        self.ranges.clear();
        (self.len, self.copied, self.order) = (0, 0, 0);
    }

    /// Valid entries, by volume and block.
    pub fn sorted(&self) -> Vec<MapChange> {
        let used = self.slots.iter().filter(|slot| slot.volume != 0);
        let mut changes: Vec<MapChange> = used
            .map(|slot| {
                let zeroed = self.zeroed(slot.volume, slot.block) > slot.order;
                let entry = if zeroed { MapEntry::HOLE } else { slot.entry };
                MapChange { volume: slot.volume, block: slot.block, entry }
            })
            .collect();
        changes.sort_unstable_by_key(|change| (change.volume, change.block));
        changes
    }

    /// Zeroed ranges of a volume. The changes in [`Recent::sorted`] override them.
    pub fn ranges(&self, volume: u32) -> impl Iterator<Item = &ZeroRange> {
        self.ranges.iter().filter(move |range| range.volume == volume)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn copies_of_the_cleaner_are_counted_apart() {
        let mut recent = Recent::new(16, 5);
        recent.insert(1, 5, MapEntry { location: 1, birth: 1, checksum: 0 });
        for block in 5..8 {
            recent.insert_copy(1, block, MapEntry { location: 2, birth: 1, checksum: 0 });
        }
        assert_eq!((recent.len(), recent.copied()), (3, 2));
        recent.insert(2, 1, MapEntry::HOLE);
        recent.forget(1);
        assert_eq!((recent.len(), recent.copied()), (1, 0));
    }

    proptest! {
        #[test]
        fn latest_change_of_a_block_wins(
            steps in vec((1..4_u32, 0..400_u64, prop_oneof![Just(0), 1..300_u64]), 0..300),
        ) {
            let mut recent = Recent::new(16, 5);
            let mut model = BTreeMap::new();
            for (step, (volume, block, zeroes)) in (1..).zip(steps) {
                if zeroes == 0 {
                    let entry = MapEntry { location: step, birth: step, checksum: 1 };
                    recent.insert(volume, block, entry);
                    model.insert((volume, block), entry);
                } else {
                    recent.zero(volume, block, zeroes);
                    for block in block..block + zeroes {
                        model.insert((volume, block), MapEntry::HOLE);
                    }
                }
            }
            for volume in 1..4 {
                for block in 0..700 {
                    let expected = model.get(&(volume, block)).copied();
                    prop_assert_eq!(recent.get(volume, block), expected);
                }
            }
            for change in recent.sorted() {
                prop_assert_eq!(Some(&change.entry), model.get(&(change.volume, change.block)));
            }
            let is_known = |volume| model.keys().any(|(other, _)| *other == volume);
            prop_assert!((1..5).all(|volume| recent.has(volume) == is_known(volume)));
            recent.forget(2);
            prop_assert!(!recent.has(2));
            for (volume, block) in model.keys() {
                let expected = model.get(&(*volume, *block)).filter(|_| *volume != 2).copied();
                prop_assert_eq!(recent.get(*volume, *block), expected);
            }
            recent.clear();
            prop_assert!(recent.is_empty() && recent.get(1, 0).is_none());
        }
    }
}
