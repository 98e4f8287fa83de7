//! Index of fingerprints: where a block with a fingerprint was seen, in bounded memory. Pure.
//!
//! A hint, not a reference: the block may have moved or died, or have another content with the same
//! fingerprint. The block of a hint is read and compared before it is used.
//!
//! The table has sets of eight entries. A new entry replaces the oldest of its set, so the index
//! is a window over the blocks that were seen last. Memory is allocated in parts, each when its
//! first entry comes, so that neither a begin nor an end takes long. Without memory for a part, its
//! entries are lost.

use crate::limits::{BLOCK_BYTES, DEDUP_INDEX_BYTES_MAX, DEDUP_INDEX_BYTES_PER_TIB};

/// Entries of a set, newest first: two cache lines.
const SET: usize = 8;

/// Entries of a part: 1 MiB.
const PART: usize = 1 << 16;

/// Length of an entry, in bytes.
const ENTRY_BYTES: u64 = 16;

/// Blocks in 1 TiB.
const TIB_BLOCKS: u64 = (1 << 40) / BLOCK_BYTES as u64;

/// Bits of a location.
const LOCATION_BITS: u32 = 48;

/// Where a block was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hint {
    /// Location as in map entries.
    pub(crate) location: u64,
    /// Blocks from the header of its chunk to the first block of the location: 1 to 255.
    pub(crate) distance: u8,
}

/// An entry; all zero if empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Entry {
    fingerprint: u64,
    /// Location and distance, which is not 0.
    place: u64,
}

/// Index of fingerprints.
pub(crate) struct Index {
    sets: usize,
    /// Entries, [`PART`] in each part but the last; empty before the first one comes.
    parts: Vec<Vec<Entry>>,
}

/// Memory of the index of a pool with this number of blocks, in bytes.
fn bytes_of(blocks: u64) -> u64 {
    let part = u128::from(blocks) * u128::from(DEDUP_INDEX_BYTES_PER_TIB) / u128::from(TIB_BLOCKS);
    (part as u64).min(DEDUP_INDEX_BYTES_MAX)
}

/// Sets of the index of a pool with this number of blocks.
fn sets_of(blocks: u64) -> usize {
    (bytes_of(blocks) / ENTRY_BYTES / SET as u64).max(1) as usize
}

impl Index {
    /// An empty index for a pool of this number of blocks.
    pub(crate) fn new(blocks: u64) -> Index {
        let sets = sets_of(blocks);
        Index { sets, parts: vec![Vec::new(); (sets * SET).div_ceil(PART)] }
    }

    /// True if it has the size for a pool of this number of blocks.
    pub(crate) fn is_for(&self, blocks: u64) -> bool {
        self.sets == sets_of(blocks)
    }

    /// Memory of the entries, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.len() as u64 * ENTRY_BYTES).sum()
    }

    /// Frees a part; false when none is left.
    pub(crate) fn free_part(&mut self) -> bool {
        self.parts.pop().is_some()
    }

    /// Numbers of the part and of its entries for a fingerprint.
    fn place(&self, fingerprint: u64) -> (usize, std::ops::Range<usize>) {
        let set = ((u128::from(fingerprint) * self.sets as u128) >> 64) as usize;
        let at = set * SET % PART;
        (set * SET / PART, at..at + SET)
    }

    /// The hint for a fingerprint.
    pub(crate) fn get(&self, fingerprint: u64) -> Option<Hint> {
        let (part, range) = self.place(fingerprint);
        let set = self.parts[part].get(range)?;
        let found = |entry: &&Entry| entry.fingerprint == fingerprint && entry.place != 0;
        set.iter().find(found).map(|entry| Hint {
            location: entry.place & ((1 << LOCATION_BITS) - 1),
            distance: (entry.place >> LOCATION_BITS) as u8,
        })
    }

    /// Enters a block, in place of an earlier hint for its fingerprint, or of the oldest of its
    /// set.
    pub(crate) fn put(&mut self, fingerprint: u64, hint: Hint) {
        let Hint { location, distance } = hint;
        assert!(distance > 0 && location >> LOCATION_BITS == 0, "{hint:?} is no place of a block");
        let (number, range) = self.place(fingerprint);
        let entries = (self.sets * SET - number * PART).min(PART);
        let part = &mut self.parts[number];
        if part.is_empty() {
            if part.try_reserve_exact(entries).is_err() {
                return;
            }
            part.resize(entries, Entry::default());
        }
        let set = &mut part[range];
        let found = |entry: &Entry| entry.fingerprint == fingerprint;
        let last = set.iter().position(found).unwrap_or(SET - 1);
        set[..=last].rotate_right(1);
        let place = u64::from(distance) << LOCATION_BITS | location;
        set[0] = Entry { fingerprint, place };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::unit::UnitPlace;

    fn hint(location: u64) -> Hint {
        Hint { location, distance: 1 + (location % 255) as u8 }
    }

    #[test]
    fn index_is_bounded_by_pool_and_limit() {
        assert_eq!(bytes_of(TIB_BLOCKS / 1024), 1 << 20);
        assert_eq!(bytes_of(TIB_BLOCKS), 1 << 30);
        assert_eq!(bytes_of(128 * TIB_BLOCKS), DEDUP_INDEX_BYTES_MAX);
        assert_eq!(std::mem::size_of::<Entry>() as u64, ENTRY_BYTES);
        assert_eq!(Index::new(0).sets, 1);
        assert!(Index::new(TIB_BLOCKS).is_for(2 * TIB_BLOCKS));
        assert!(!Index::new(TIB_BLOCKS).is_for(TIB_BLOCKS / 2));
    }

    /// A pool holds its lock while an index begins.
    #[test]
    fn memory_is_allocated_and_freed_in_parts() {
        let part_bytes = PART as u64 * ENTRY_BYTES;
        let mut index = Index::new(TIB_BLOCKS / 1024 * 5 / 2);
        assert_eq!((index.bytes(), index.get(7)), (0, None));
        index.put(7, hint(1));
        assert_eq!((index.bytes(), index.get(7)), (part_bytes, Some(hint(1))));
        index.put(u64::MAX, hint(2));
        assert_eq!((index.bytes(), index.get(u64::MAX)), (part_bytes * 3 / 2, Some(hint(2))));
        (0..1 << 12).for_each(|at| index.put(at << 52, hint(at)));
        assert_eq!(index.bytes(), part_bytes * 5 / 2);
        assert!((0..1 << 12).all(|at| index.get(at << 52) == Some(hint(at))));
        let freed = std::iter::from_fn(|| index.free_part().then(|| index.bytes()));
        assert_eq!(freed.collect::<Vec<_>>(), [part_bytes * 2, part_bytes, 0]);
    }

    #[test]
    fn newest_hints_of_a_set_are_found() {
        // One set.
        let mut index = Index::new(0);
        assert_eq!(index.get(0), None, "an empty entry has fingerprint 0");
        for at in 0..20 {
            index.put(at * 7, hint(1000 + at));
        }
        for at in 0..20 {
            let expected = (at >= 12).then(|| hint(1000 + at));
            assert_eq!(index.get(at * 7), expected, "{at}");
        }
        index.put(12 * 7, hint(5));
        assert_eq!(index.get(12 * 7), Some(hint(5)));
        index.put(1, hint(6));
        assert_eq!((index.get(13 * 7), index.get(12 * 7)), (None, Some(hint(5))));
    }

    #[test]
    fn place_in_a_unit_is_kept() {
        let mut index = Index::new(TIB_BLOCKS / 1024);
        let location = UnitPlace { index: 7, blocks: 8, stored: 7 }.location((1 << 37) - 1);
        for fingerprint in [0, 1, u64::MAX] {
            index.put(fingerprint, Hint { location, distance: 255 });
            assert_eq!(index.get(fingerprint), Some(Hint { location, distance: 255 }));
        }
    }
}
