//! Usage: live blocks per segment, by weight.
//!
//! A dead block of a compressed unit keeps its space while another block of the unit is live. What
//! dead blocks may hold is counted apart, and never too low: exactly for units that become live or
//! dead in one checkpoint, too high for units that die in several, until the cleaner has emptied
//! their segment.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::limits::UNIT_BLOCKS;
use crate::ondisk::entry::MapEntry;
use crate::ondisk::layout::PoolLayout;
use crate::ondisk::unit::{BLOCK_WEIGHT, BLOCK_WEIGHT_U64};

/// Live blocks per segment, by weight.
#[derive(Clone, Debug)]
pub(crate) struct SegmentUsage {
    /// Live blocks, in parts of a block ([`BLOCK_WEIGHT`]).
    pub(crate) weights: Vec<u32>,
    /// Dead blocks of units that may have live ones, in parts of a block, at least.
    pub(crate) held: Vec<u32>,
    /// Blocks that are missing, of units of which this checkpoint added some; by stored block.
    adding: BTreeMap<u64, u8>,
    /// Blocks that died in this checkpoint, of units that may have live ones; by stored block.
    dying: BTreeMap<u64, u8>,
}

impl SegmentUsage {
    pub(crate) fn new(segments: usize) -> SegmentUsage {
        SegmentUsage {
            weights: vec![0; segments],
            held: vec![0; segments],
            adding: BTreeMap::new(),
            dying: BTreeMap::new(),
        }
    }

    /// Adds empty segments.
    pub(crate) fn extend(&mut self, segments: usize) {
        let count = self.weights.len() + segments;
        self.weights.resize(count, 0);
        self.held.resize(count, 0);
    }

    /// Weight of the live blocks of all segments.
    pub(crate) fn total(&self) -> u64 {
        self.weights.iter().map(|weight| u64::from(*weight)).sum()
    }

    /// Weight that dead blocks of units hold in a segment, at most. A unit that dies over several
    /// checkpoints stays counted, but one that holds space has a live block for at most seven dead
    /// ones of the same weight.
    pub(crate) fn held_in(&self, segment: usize, segment_blocks: u32) -> u32 {
        let (most, weight) = (segment_blocks * BLOCK_WEIGHT, self.weights[segment]);
        let of_live = weight.saturating_mul(UNIT_BLOCKS as u32 - 1);
        self.held[segment].min(most.saturating_sub(weight)).min(of_live)
    }

    /// Blocks that dead blocks of units hold in all segments, at most.
    pub(crate) fn held(&self, segment_blocks: u32) -> u64 {
        let held = |segment| u64::from(self.held_in(segment, segment_blocks));
        (0..self.held.len()).map(held).sum::<u64>().div_ceil(BLOCK_WEIGHT_U64)
    }

    /// Ends a checkpoint: later blocks of the same units are counted from zero.
    pub(crate) fn settle(&mut self) {
        self.adding.clear();
        self.dying.clear();
    }

    /// Counts a block or page as no longer used; false if its segment has too few live blocks.
    #[must_use]
    pub(crate) fn retire(&mut self, layout: &PoolLayout, entry: MapEntry) -> bool {
        if !entry.is_stored() {
            return true;
        }
        let segment = layout.segment_of(entry.location) as usize;
        let Some(left) = self.weights[segment].checked_sub(entry.weight()) else { return false };
        self.weights[segment] = left;
        if left == 0 {
            // The checkpoint may still add blocks of units here: those count their unit again.
            self.held[segment] = 0;
            let blocks = layout.first_block(segment as u32)..layout.first_block(segment as u32 + 1);
            remove_range(&mut self.adding, &blocks);
            remove_range(&mut self.dying, &blocks);
        } else if let Some(unit) = entry.unit() {
            let died = self.dying.entry(entry.block()).or_default();
            *died += 1;
            let held = &mut self.held[segment];
            *held = match *died == unit.blocks {
                true => held.saturating_sub((u32::from(unit.blocks) - 1) * entry.weight()),
                false => held.saturating_add(entry.weight()),
            };
            if *died == unit.blocks {
                self.dying.remove(&entry.block());
            }
        }
        true
    }

    /// Counts a block or page as used. The first block of a unit counts the others as dead, and
    /// each that follows takes itself off.
    pub(crate) fn add(&mut self, layout: &PoolLayout, entry: MapEntry) {
        if !entry.is_stored() {
            return;
        }
        let segment = layout.segment_of(entry.location) as usize;
        self.weights[segment] += entry.weight();
        let Some(unit) = entry.unit() else { return };
        let held = &mut self.held[segment];
        match self.adding.get_mut(&entry.block()) {
            None => {
                *held = held.saturating_add((u32::from(unit.blocks) - 1) * entry.weight());
                self.adding.insert(entry.block(), unit.blocks - 1);
            }
            Some(missing) => {
                *held = held.saturating_sub(entry.weight());
                *missing = missing.saturating_sub(1);
                if *missing == 0 {
                    self.adding.remove(&entry.block());
                }
            }
        }
    }
}

fn remove_range(units: &mut BTreeMap<u64, u8>, blocks: &Range<u64>) {
    while let Some(first) = units.range(blocks.clone()).next().map(|(block, _)| *block) {
        units.remove(&first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::PoolId;
    use crate::ondisk::superblock::DeviceRecord;
    use crate::ondisk::unit::UnitPlace;

    fn layout() -> PoolLayout {
        let device = DeviceRecord { id: PoolId::default(), size_bytes: 1 << 30, segments: 64 };
        PoolLayout::new(64, &[device]).unwrap()
    }

    /// Blocks of a unit of eight in four.
    fn unit(block: u64) -> Vec<MapEntry> {
        let location = |index| UnitPlace { index, blocks: 8, stored: 4 }.location(block);
        (0..8).map(|index| MapEntry { location: location(index), birth: 1, checksum: 1 }).collect()
    }

    #[test]
    fn dead_blocks_of_live_units_are_counted() {
        let layout = layout();
        let mut usage = SegmentUsage::new(64);
        let (first, second) = (unit(1), unit(5));
        // The blocks of two units take turns; one block of each is dead from the beginning.
        for (a, b) in first[1..].iter().zip(&second[1..]) {
            usage.add(&layout, *a);
            usage.add(&layout, *b);
        }
        usage.settle();
        assert_eq!((usage.weights[0], usage.held[0]), (14 * 420, 2 * 420));
        assert_eq!(usage.held(64), 1);
        for entry in &first[1..4] {
            assert!(usage.retire(&layout, *entry));
        }
        assert_eq!((usage.weights[0], usage.held[0]), (11 * 420, 5 * 420));
        for entry in first[4..].iter().chain(&second[1..]) {
            assert!(usage.retire(&layout, *entry));
        }
        assert_eq!((usage.weights[0], usage.held[0]), (0, 0), "the segment is free");
        assert!(!usage.retire(&layout, first[0]));
    }

    #[test]
    fn units_that_die_slowly_hold_little() {
        let layout = layout();
        let mut usage = SegmentUsage::new(64);
        let units: Vec<_> = (0..8).map(|number| unit(1 + 4 * number)).collect();
        units.iter().flatten().for_each(|entry| usage.add(&layout, *entry));
        usage.settle();
        for part in 0..8 {
            for entry in units[1..].iter().map(|unit| unit[part]) {
                assert!(usage.retire(&layout, entry));
            }
            usage.settle();
        }
        for entry in &units[0][1..] {
            assert!(usage.retire(&layout, *entry));
        }
        assert_eq!((usage.weights[0], usage.held_in(0, 64)), (420, 7 * 420));
    }

    #[test]
    fn unit_that_dies_whole_holds_nothing() {
        let layout = layout();
        let mut usage = SegmentUsage::new(64);
        let (first, second) = (unit(1), unit(5));
        first.iter().chain(&second).for_each(|entry| usage.add(&layout, *entry));
        usage.settle();
        assert_eq!((usage.weights[0], usage.held[0]), (8 * BLOCK_WEIGHT, 0));
        for (a, b) in first.iter().zip(&second[..2]) {
            assert!(usage.retire(&layout, *a) && usage.retire(&layout, *b));
        }
        for entry in &first[2..] {
            assert!(usage.retire(&layout, *entry));
        }
        assert_eq!((usage.weights[0], usage.held[0]), (6 * 420, 2 * 420));
    }

    /// Regression: a pass copied blocks of deleted snapshots first, and the same checkpoint freed
    /// them before it added the others of the unit. The dead ones were not counted.
    #[test]
    fn unit_in_an_emptied_segment_is_counted_anew() {
        let layout = layout();
        let mut usage = SegmentUsage::new(64);
        let (own, other) = (unit(1), unit(65));
        usage.add(&layout, other[0]);
        for entry in &own[..2] {
            usage.add(&layout, *entry);
        }
        for entry in &own[..2] {
            assert!(usage.retire(&layout, *entry));
        }
        assert_eq!((usage.weights[0], usage.held[0]), (0, 0));
        for entry in &own[2..] {
            usage.add(&layout, *entry);
        }
        assert_eq!((usage.weights[0], usage.held[0]), (6 * 420, 2 * 420));
        assert_eq!((usage.weights[1], usage.held[1]), (420, 7 * 420), "another segment");
        for entry in &own[2..] {
            assert!(usage.retire(&layout, *entry));
        }
        assert!(usage.adding.keys().eq([&65]) && usage.dying.is_empty());
    }
}
