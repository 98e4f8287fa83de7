//! Map entry: location, birth and checksum of a data block or of a map page.

use super::unit::is_location;
use super::{Fields, FormatError, put};

/// Length of an encoded entry, in bytes.
pub const ENTRY_BYTES: usize = 16;

/// Largest location, and largest sequence.
pub const U48_MAX: u64 = (1 << 48) - 1;

/// Where a block is, since when, and the checksum of its content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapEntry {
    /// Block of the pool, and the place in a compressed unit (see [`super::unit`]); 0 if nothing is
    /// stored.
    pub location: u64,
    /// Sequence of the chunk that first had the content. Copies of the cleaner keep it.
    pub birth: u64,
    /// Checksum of the content.
    pub checksum: u32,
}

impl MapEntry {
    /// Nothing stored: reads as zeroes.
    pub const HOLE: MapEntry = MapEntry { location: 0, birth: 0, checksum: 0 };

    /// Unknown content: the page that had the entry is damaged. Reads fail until the block is
    /// written.
    pub const LOST: MapEntry = MapEntry { location: 0, birth: 0, checksum: 1 };

    /// True for a hole.
    pub fn is_hole(&self) -> bool {
        *self == MapEntry::HOLE
    }

    /// True with a location.
    pub fn is_stored(&self) -> bool {
        self.location != 0
    }

    /// Writes the entry to 16 bytes.
    pub fn encode(&self, bytes: &mut [u8]) {
        put(bytes, 0, &self.location.to_le_bytes()[..6]);
        put(bytes, 6, &self.birth.to_le_bytes()[..6]);
        put(bytes, 12, &self.checksum.to_le_bytes());
    }

    /// Decodes an entry.
    ///
    /// # Errors
    /// [`FormatError::Field`] for a location of `blocks` or more, or an entry without a location
    /// that is neither [`MapEntry::HOLE`] nor [`MapEntry::LOST`].
    pub fn decode(bytes: &[u8], blocks: u64) -> Result<MapEntry, FormatError> {
        let fields = Fields(bytes);
        let u48 = |at| {
            let mut wide = [0; 8];
            wide[..6].copy_from_slice(&fields.bytes::<6>(at));
            u64::from_le_bytes(wide)
        };
        let entry = MapEntry { location: u48(0), birth: u48(6), checksum: fields.u32(12) };
        let is_known = match entry.is_stored() {
            true => is_location(entry.location, blocks),
            false => [MapEntry::HOLE, MapEntry::LOST].contains(&entry),
        };
        if !is_known {
            return Err(FormatError::Field("entry"));
        }
        Ok(entry)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn entry_round_trips(location in 1..1_u64 << 37, birth in 0..=U48_MAX, checksum: u32) {
            let entry = MapEntry { location, birth, checksum };
            let mut bytes = [0; ENTRY_BYTES];
            entry.encode(&mut bytes);
            prop_assert_eq!(MapEntry::decode(&bytes, location + 1), Ok(entry));
            prop_assert_eq!(MapEntry::decode(&bytes, location), Err(FormatError::Field("entry")));
        }
    }

    #[test]
    fn entries_without_location_are_holes_or_lost() {
        let mut bytes = [0; ENTRY_BYTES];
        assert_eq!(MapEntry::decode(&bytes, 1), Ok(MapEntry::HOLE));
        bytes[12] = 1;
        assert_eq!(MapEntry::decode(&bytes, 1), Ok(MapEntry::LOST));
        bytes[15] = 1;
        assert_eq!(MapEntry::decode(&bytes, 1), Err(FormatError::Field("entry")));
    }
}
