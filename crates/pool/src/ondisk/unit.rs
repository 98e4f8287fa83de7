//! Compressed unit: 2 to 8 blocks of a volume that share fewer blocks of the pool.
//!
//! The stored blocks begin with a header of 8 bytes (codec, number of blocks, length of the
//! compressed bytes), then the compressed bytes, then zeroes. Those of an encrypted volume have a
//! header of 32 bytes, and everything after it is encrypted. Each block of the unit has an entry
//! whose location also says which block of the unit it is, how many there are, and how many blocks
//! are stored; the checksum in the entry is that of the checksums of the stored blocks. So a reader
//! compares the checksum before it decompresses anything, and knows the size of the result.
//!
//! Invariants: a unit lies in one segment; decompression fills exactly the blocks of the unit or
//! fails, whatever the bytes are.

use super::checksum;
use super::entry::MapEntry;
use super::{Fields, FormatError, put};
use crate::crypt::UNIT_NONCE_BYTES;
use crate::limits::{BLOCK_BYTES, UNIT_BLOCKS};

/// Weight of a block that is stored alone, in the counts of live blocks. A block of a unit weighs
/// its part of the stored blocks, which is a whole number: 840 is divisible by 1 to 8. So the parts
/// of a unit weigh what it takes, and a segment never weighs more than it holds.
pub const BLOCK_WEIGHT: u32 = 840;

/// [`BLOCK_WEIGHT`] for sums.
pub const BLOCK_WEIGHT_U64: u64 = BLOCK_WEIGHT as u64;

/// Length of the header of a unit, in bytes.
pub const HEADER_BYTES: usize = 8;

/// Length of the header of an encrypted unit, in bytes: a multiple of an AES block.
pub(crate) const ENCRYPTED_HEADER_BYTES: usize = 32;

/// Offset of the compressed bytes in a decrypted content, in bytes.
pub(crate) const CONTENT_AT: usize = 8;

/// Bit in the first byte of an encrypted unit.
const ENCRYPTED: u8 = 0x80;
const NONCE_AT: usize = 16;

/// Bits of the block number in a location: 2^24 segments of 2^13 blocks need 37.
const BLOCK_BITS: u32 = 39;
const BLOCK_MASK: u64 = (1 << BLOCK_BITS) - 1;

/// Algorithm of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// LZ4 block format.
    Lz4,
    /// One Zstandard frame.
    Zstd,
}

/// Place of a block in a compressed unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitPlace {
    /// Number of the block in the unit, from 0.
    pub index: u8,
    /// Blocks of the unit: 2 to 8.
    pub blocks: u8,
    /// Blocks that are stored: at most 7/8 of `blocks`.
    pub stored: u8,
}

/// True if storing so many blocks for a unit is worthwhile: 7/8 or less.
pub fn is_worthwhile(blocks: usize, stored: usize) -> bool {
    (2..=UNIT_BLOCKS).contains(&blocks) && stored > 0 && stored * 8 <= blocks * 7
}

/// The block of the pool in a location: the first stored block, for a unit.
pub fn block_of(location: u64) -> u64 {
    location & BLOCK_MASK
}

/// Weight of a block of a unit, or of a block alone.
fn weight(unit: Option<UnitPlace>) -> u32 {
    unit.map_or(BLOCK_WEIGHT, |unit| BLOCK_WEIGHT / u32::from(unit.blocks) * u32::from(unit.stored))
}

/// The place in a unit that a location has.
pub fn unit_of(location: u64) -> Option<UnitPlace> {
    let bits = |at: u32| ((location >> at) & 7) as u8;
    let stored = bits(BLOCK_BITS + 6);
    (stored > 0).then(|| UnitPlace {
        index: bits(BLOCK_BITS),
        blocks: bits(BLOCK_BITS + 3) + 1,
        stored,
    })
}

impl UnitPlace {
    /// The location of this block of a unit that is stored from `block` on.
    pub fn location(&self, block: u64) -> u64 {
        let bits = |value: u8, at: u32| u64::from(value) << (BLOCK_BITS + at);
        block | bits(self.index, 0) | bits(self.blocks - 1, 3) | bits(self.stored, 6)
    }
}

/// True if a location is possible in a pool of this number of blocks.
pub fn is_location(location: u64, blocks: u64) -> bool {
    let stored = match unit_of(location) {
        None => 1,
        Some(UnitPlace { index, blocks, stored })
            if index < blocks && is_worthwhile(blocks.into(), stored.into()) =>
        {
            u64::from(stored)
        }
        Some(_) => return false,
    };
    let block = block_of(location);
    (location >> BLOCK_BITS == 0 || unit_of(location).is_some())
        && block > 0
        && block + stored <= blocks
}

impl MapEntry {
    /// The first block of the pool that has the content.
    pub fn block(&self) -> u64 {
        block_of(self.location)
    }

    /// The place in a compressed unit.
    pub fn unit(&self) -> Option<UnitPlace> {
        unit_of(self.location)
    }

    /// Blocks to read for the content.
    pub fn stored_blocks(&self) -> usize {
        self.unit().map_or(1, |unit| unit.stored.into())
    }

    /// Weight in the counts of live blocks.
    pub fn weight(&self) -> u32 {
        if self.is_stored() { weight(self.unit()) } else { 0 }
    }

    /// Weight in the counts of a volume. The space of a lost block stays in use, and nobody knows
    /// whether the block was compressed.
    pub fn mapped_weight(&self) -> u32 {
        if *self == MapEntry::LOST { BLOCK_WEIGHT } else { self.weight() }
    }

    /// The same unit, or the same block.
    pub fn is_with(&self, other: &MapEntry) -> bool {
        self.unit().is_some()
            && self.block() == other.block()
            && other.unit().map(|unit| unit.blocks) == self.unit().map(|unit| unit.blocks)
            && self.checksum == other.checksum
    }

    /// Whether these stored blocks are the ones that were written.
    pub fn matches(&self, stored: &[u8]) -> bool {
        let sum = match self.unit() {
            Some(_) => {
                let mut sums = [0; UNIT_BLOCKS];
                let blocks = stored.chunks(BLOCK_BYTES);
                let count = blocks.len();
                sums.iter_mut().zip(blocks).for_each(|(sum, block)| *sum = checksum(block));
                unit_checksum(&sums[..count])
            }
            None => checksum(stored),
        };
        sum == self.checksum
    }
}

/// Payload of a chunk, of which records take their blocks in order.
pub(crate) struct Payload<'a> {
    next: u64,
    birth: u64,
    checksums: &'a [u32],
}

impl<'a> Payload<'a> {
    /// The payload from a block on, with the sequence of its chunk.
    pub(crate) fn of(first: u64, birth: u64, checksums: &'a [u32]) -> Payload<'a> {
        Payload { next: first, birth, checksums }
    }

    /// Takes a block that is stored alone.
    ///
    /// # Panics
    /// At the end: a header is decoded only if each payload block has an owner.
    pub(crate) fn block(&mut self) -> MapEntry {
        let (first, rest) = self.checksums.split_first().expect("each payload block has an owner");
        let entry = MapEntry { location: self.next, birth: self.birth, checksum: *first };
        (self.next, self.checksums) = (self.next + 1, rest);
        entry
    }

    /// Takes the stored blocks of a unit, and returns the entries of its blocks.
    ///
    /// # Panics
    /// As [`Payload::block`].
    pub(crate) fn unit(
        &mut self,
        blocks: u8,
        stored: u8,
    ) -> impl Iterator<Item = MapEntry> + use<> {
        let (own, rest) = self.checksums.split_at(usize::from(stored));
        let (first, birth, checksum) = (self.next, self.birth, unit_checksum(own));
        (self.next, self.checksums) = (self.next + u64::from(stored), rest);
        (0..blocks).map(move |index| {
            let location = UnitPlace { index, blocks, stored }.location(first);
            MapEntry { location, birth, checksum }
        })
    }
}

/// Checksum of a unit: of the checksums of its stored blocks.
pub fn unit_checksum(checksums: &[u32]) -> u32 {
    let mut bytes = [0; 4 * UNIT_BLOCKS];
    for (bytes, checksum) in bytes.chunks_mut(4).zip(checksums) {
        bytes.copy_from_slice(&checksum.to_le_bytes());
    }
    checksum(&bytes[..4 * checksums.len()])
}

/// Compressed bytes of a unit, as its header describes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitBody<'a> {
    /// The compressed bytes.
    Plain(&'a [u8]),
    /// The encrypted content: [`put_content_len`], the compressed bytes, zeroes.
    Encrypted {
        /// Tweak of the content.
        nonce: [u8; UNIT_NONCE_BYTES],
        /// All bytes after the header.
        content: &'a [u8],
    },
}

fn codec_byte(codec: Codec) -> u8 {
    match codec {
        Codec::Lz4 => 1,
        Codec::Zstd => 2,
    }
}

/// Writes the header of a unit, whose compressed bytes follow it.
pub fn encode_header(codec: Codec, blocks: usize, compressed: usize, unit: &mut [u8]) {
    unit[0] = codec_byte(codec);
    unit[1] = blocks as u8;
    put(unit, 2, &[0; 2]);
    put(unit, 4, &(compressed as u32).to_le_bytes());
}

/// Writes the header of an encrypted unit, whose encrypted content follows it.
pub(crate) fn encode_encrypted_header(
    codec: Codec,
    blocks: usize,
    nonce: [u8; UNIT_NONCE_BYTES],
    unit: &mut [u8],
) {
    unit[..ENCRYPTED_HEADER_BYTES].fill(0);
    unit[0] = codec_byte(codec) | ENCRYPTED;
    unit[1] = blocks as u8;
    put(unit, NONCE_AT, &nonce);
}

/// Writes the length of the compressed bytes, which follow it after [`CONTENT_AT`] bytes, in a
/// content that is about to be encrypted.
pub(crate) fn put_content_len(compressed: usize, content: &mut [u8]) {
    content[..CONTENT_AT].fill(0);
    put(content, 0, &(compressed as u32).to_le_bytes());
}

/// The compressed bytes in a decrypted content.
pub(crate) fn compressed_of(content: &[u8]) -> Option<&[u8]> {
    let len = usize::try_from(Fields(content.get(..CONTENT_AT)?).u32(0)).ok()?;
    content.get(CONTENT_AT..CONTENT_AT.checked_add(len)?)
}

/// Codec and body of the stored blocks of a unit of `blocks`.
///
/// # Errors
/// [`FormatError::Field`].
pub fn decode_header(stored: &[u8], blocks: usize) -> Result<(Codec, UnitBody<'_>), FormatError> {
    let bad = FormatError::Field("unit");
    let fields = Fields(stored.get(..HEADER_BYTES).ok_or(bad)?);
    let codec = match stored[0] & !ENCRYPTED {
        1 => Codec::Lz4,
        2 => Codec::Zstd,
        _ => return Err(bad),
    };
    if usize::from(stored[1]) != blocks {
        return Err(bad);
    }
    if stored[0] & ENCRYPTED != 0 {
        let header = Fields(stored.get(..ENCRYPTED_HEADER_BYTES).ok_or(bad)?);
        let content = &stored[ENCRYPTED_HEADER_BYTES..];
        if !content.len().is_multiple_of(16) {
            return Err(bad);
        }
        return Ok((codec, UnitBody::Encrypted { nonce: header.bytes(NONCE_AT), content }));
    }
    let compressed = usize::try_from(fields.u32(4)).map_err(|_| bad)?;
    let end = HEADER_BYTES.checked_add(compressed).ok_or(bad)?;
    Ok((codec, UnitBody::Plain(stored.get(HEADER_BYTES..end).ok_or(bad)?)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn locations_of_units_round_trip(block in 1..1_u64 << 37, index in 0..8_u8, blocks in 2..=8_u8, stored in 1..8_u8) {
            let place = UnitPlace { index, blocks, stored };
            let location = place.location(block);
            prop_assert!(location < 1 << 48);
            prop_assert_eq!((block_of(location), unit_of(location)), (block, Some(place)));
            let possible = index < blocks && is_worthwhile(blocks.into(), stored.into());
            prop_assert_eq!(is_location(location, block + 8), possible);
            prop_assert!(!is_location(location, block));
        }

        #[test]
        fn any_location_is_decoded_without_panic(location in 0..1_u64 << 48, blocks in 0..1_u64 << 37) {
            if is_location(location, blocks) {
                prop_assert!(block_of(location) < blocks);
            }
        }
    }

    #[test]
    fn parts_weigh_exactly_what_a_unit_takes() {
        for blocks in 2..=8_u8 {
            for stored in 1..blocks {
                let part = weight(Some(UnitPlace { index: 0, blocks, stored }));
                assert_eq!(u32::from(blocks) * part, u32::from(stored) * BLOCK_WEIGHT);
            }
        }
    }

    #[test]
    fn location_of_a_block_alone_has_no_unit() {
        assert_eq!((block_of(77), unit_of(77)), (77, None));
        assert!(is_location(77, 78) && !is_location(77, 77) && !is_location(0, 77));
        assert!(!is_location(1 << BLOCK_BITS | 77, 78), "an index without a unit");
    }
}
