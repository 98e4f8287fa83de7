//! Map page: 252 entries of one level of a volume's tree.

use super::entry::{ENTRY_BYTES, MapEntry};
use super::{Block, FormatError, begin, begins, put};
use crate::limits::BLOCK_BYTES;

const MAGIC: &[u8; 8] = b"FSPOOLM\n";
const ENTRIES_AT: usize = 64;

/// Entries of a page.
pub const FANOUT: usize = (BLOCK_BYTES - ENTRIES_AT) / ENTRY_BYTES;

/// Highest level of a root: 252⁶ blocks exceed every volume.
pub const LEVEL_MAX: u8 = 6;

/// Blocks covered by a page of this level; 1 for level 0.
pub fn span(level: u8) -> u64 {
    (FANOUT as u64).pow(u32::from(level))
}

/// Level of the root for a volume of this many blocks.
pub fn root_level(blocks: u64) -> u8 {
    (1..LEVEL_MAX).find(|level| span(*level) >= blocks).unwrap_or(LEVEL_MAX)
}

/// Place of a page or block in the trees of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PagePlace {
    /// Volume; 0 for the metadata map.
    pub volume: u32,
    /// Level: 1 for a leaf.
    pub level: u8,
    /// First block divided by the span of the level.
    pub index: u64,
}

/// A decoded page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapPage {
    /// Volume that wrote it first. Snapshots and clones share it.
    pub volume: u32,
    /// Entries in order.
    pub entries: [MapEntry; FANOUT],
}

impl Default for MapPage {
    fn default() -> MapPage {
        MapPage { volume: 0, entries: [MapEntry::HOLE; FANOUT] }
    }
}

impl MapPage {
    /// True without entries: such a page is not stored.
    pub fn is_empty(&self) -> bool {
        self.entries.iter().all(MapEntry::is_hole)
    }

    /// Encodes the page. `level` and `index` are its place in the tree.
    pub fn encode(&self, level: u8, index: u64, block: &mut [u8]) {
        block.fill(0);
        begin(block, MAGIC);
        put(block, 10, &[level]);
        put(block, 12, &self.volume.to_le_bytes());
        put(block, 16, &index.to_le_bytes());
        for (entry, bytes) in self.entries.iter().zip(block[ENTRIES_AT..].chunks_mut(ENTRY_BYTES)) {
            entry.encode(bytes);
        }
    }

    /// Decodes the page of `place` in a pool of `blocks`. The caller has compared its checksum with
    /// the entry that refers to the page. Another volume of the same ancestry may have written the
    /// page.
    ///
    /// # Errors
    /// [`FormatError`] for any other content.
    pub fn decode(block: &Block, place: PagePlace, blocks: u64) -> Result<MapPage, FormatError> {
        let fields = begins(block, MAGIC)?;
        let found = PagePlace { level: block[10], volume: fields.u32(12), index: fields.u64(16) };
        let same_kind = (found.volume == 0) == (place.volume == 0);
        if !same_kind || (found.level, found.index) != (place.level, place.index) {
            return Err(FormatError::Foreign);
        }
        let mut page = MapPage { volume: found.volume, ..MapPage::default() };
        let stored = block[ENTRIES_AT..].chunks(ENTRY_BYTES);
        for (entry, bytes) in page.entries.iter_mut().zip(stored) {
            *entry = MapEntry::decode(bytes, blocks)?;
            // Only data of volumes is compressed.
            if entry.unit().is_some() && (place.level > 1 || place.volume == 0) {
                return Err(FormatError::Field("entry"));
            }
        }
        Ok(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::VERSION;

    const PLACE: PagePlace = PagePlace { volume: 7, level: 2, index: 9 };

    fn encoded() -> (MapPage, Block) {
        let mut page = MapPage { volume: 3, ..MapPage::default() };
        page.entries[0] = MapEntry { location: 5, birth: 1, checksum: 2 };
        page.entries[FANOUT - 1] = MapEntry { location: 99, birth: 3, checksum: 4 };
        let mut block = [0xA5; BLOCK_BYTES];
        page.encode(PLACE.level, PLACE.index, &mut block);
        (page, block)
    }

    #[test]
    fn map_page_round_trips() {
        let (page, block) = encoded();
        assert_eq!(MapPage::decode(&block, PLACE, 100), Ok(page));
    }

    #[test]
    fn map_page_of_another_place_is_refused() {
        let (_, mut block) = encoded();
        for place in [
            PagePlace { volume: 0, ..PLACE },
            PagePlace { level: 1, ..PLACE },
            PagePlace { index: 0, ..PLACE },
        ] {
            assert_eq!(MapPage::decode(&block, place, 100), Err(FormatError::Foreign));
        }
        assert_eq!(MapPage::decode(&block, PLACE, 99), Err(FormatError::Field("entry")));
        block[8] += 1;
        assert_eq!(MapPage::decode(&block, PLACE, 100), Err(FormatError::Version(VERSION + 1)));
        block[0] = 0;
        assert_eq!(MapPage::decode(&block, PLACE, 100), Err(FormatError::Absent));
    }

    #[test]
    fn root_level_is_the_smallest_that_covers() {
        assert_eq!((root_level(1), root_level(252), root_level(253)), (1, 1, 2));
        assert_eq!(root_level(span(3)), 3);
        assert_eq!(root_level(span(3) + 1), 4);
        assert!(span(LEVEL_MAX) >= crate::limits::VOLUME_BLOCKS_MAX);
    }
}
