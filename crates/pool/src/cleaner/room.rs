//! Room: what a pass may still copy before the checkpoint after it. Pure.

use std::collections::BTreeSet;

use crate::limits::UNIT_BLOCKS;
use crate::ondisk::page::FANOUT;

/// What may still be copied. A stored block may have eight blocks of volumes, each in a leaf of its
/// own.
#[derive(Default)]
pub(super) struct Room {
    /// Payload of chunks, in blocks.
    blocks: usize,
    /// Recent changes, which take memory.
    entries: usize,
    /// Leaves that the checkpoint will write, and those that it will write already.
    leaves: usize,
    counted: BTreeSet<(u32, u64)>,
}

impl Room {
    pub(super) fn new(recent: usize, segment: usize) -> Room {
        let leaves = (recent / 2).max(segment);
        // A segment of units of one stored block each takes no more than one pass.
        let entries = (recent / 2).max(UNIT_BLOCKS * segment);
        // With the last blocks, there is room for a unit.
        Room { blocks: leaves + UNIT_BLOCKS, entries, leaves, counted: BTreeSet::new() }
    }

    /// Counts blocks of volumes that are copied together; returns false if there is no room for all
    /// of them.
    pub(super) fn take(&mut self, payload: usize, of_volumes: &[(u32, u64)]) -> bool {
        let leaf = |(volume, block): &(u32, u64)| (*volume, block / FANOUT as u64);
        let leaves: BTreeSet<(u32, u64)> =
            of_volumes.iter().map(leaf).filter(|leaf| !self.counted.contains(leaf)).collect();
        if payload > self.blocks || of_volumes.len() > self.entries || leaves.len() > self.leaves {
            return false;
        }
        self.blocks -= payload;
        self.entries -= of_volumes.len();
        self.leaves -= leaves.len();
        self.counted.extend(leaves);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_is_counted_whole_or_not() {
        let mut room = Room::new(8, 4);
        assert!(room.take(2, &[(1, 0), (1, 300)]), "two leaves of four");
        assert!(!room.take(1, &[(1, 1), (1, 600), (1, 900), (2, 0)]), "three more");
        assert!(room.take(1, &[(1, 1), (1, 600), (2, 0)]));
        assert!(!room.take(10, &[]), "nine blocks are left");
        assert!(room.take(9, &[(2, 1)]));
    }
}
