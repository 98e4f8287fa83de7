//! Index of a range of a volume: its extents, sorted, and the pieces of packs that have their data.
//! Blocks without an extent are zeroes.
//!
//! Invariants of a decoded index: extents are within the range, sorted and do not overlap; pieces
//! are within packs of this range. An index is changed by making a new one with [`merge`].

use std::collections::BTreeMap;

use crate::id::{Checksum, WriterId};
use crate::limits::{
    BLOCK_BYTES, INDEX_BYTES_MAX, INDEX_WRITERS_MAX, PACK_BYTES_MAX, PIECE_BLOCKS_MAX,
    RANGE_BLOCKS, RANGE_PACKS,
};

const MAGIC: &[u8; 8] = b"FSBINDEX";
/// Version of the format.
pub const INDEX_VERSION: u32 = 1;
const HEADER_BYTES: usize = 32;
/// Bytes of the number of the writer that stored the index, at the end of the header.
const AUTHOR_BYTES: usize = 8;
const WRITER_BYTES: usize = 16;
const EXTENT_BYTES: usize = 60;
const PLAIN: u16 = 0;
const ZSTD: u16 = 1;

/// Piece of a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PieceRef {
    /// Writer of the pack.
    pub writer: WriterId,
    /// Number of the pack.
    pub pack: u32,
    /// Offset in the pack, in bytes.
    pub offset: u32,
    /// Length in the pack, in bytes.
    pub stored: u32,
    /// Length of the content, in blocks.
    pub blocks: u16,
    /// True if it is compressed with Zstandard.
    pub is_zstd: bool,
    /// Checksum of the content.
    pub checksum: Checksum,
}

/// Run of blocks that are in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First block, from the beginning of the range.
    pub first: u32,
    /// Number of blocks.
    pub blocks: u32,
    /// Blocks of the piece before the first one.
    pub skip: u32,
    /// The piece.
    pub piece: PieceRef,
}

impl Extent {
    fn end(&self) -> u32 {
        self.first.saturating_add(self.blocks)
    }

    /// Part of the extent that is in `from..to`, if there is any.
    fn part(&self, from: u32, to: u32) -> Option<Extent> {
        let (first, end) = (self.first.max(from), self.end().min(to));
        (first < end).then(|| Extent {
            first,
            blocks: end - first,
            skip: self.skip + (first - self.first),
            piece: self.piece,
        })
    }
}

/// Changed run of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// First block, from the beginning of the range.
    pub first: u32,
    /// Number of blocks.
    pub blocks: u32,
    /// Piece with the new content, as long as the run; zeroes if `None`.
    pub piece: Option<PieceRef>,
}

/// Extents after `changes`, which are sorted and do not overlap.
pub fn merge(old: &[Extent], changes: &[Change]) -> Vec<Extent> {
    let mut merged = Vec::with_capacity(old.len() + changes.len());
    let mut old = old.iter().copied();
    let mut current = old.next();
    for change in changes {
        let (from, to) = (change.first, change.first + change.blocks);
        while let Some(extent) = current.filter(|extent| extent.first < to) {
            merged.extend(extent.part(0, from));
            current = extent.part(to, RANGE_BLOCKS).or_else(|| old.next());
        }
        merged.extend(new_extent(change));
    }
    merged.extend(current);
    merged.extend(old);
    merged
}

fn new_extent(change: &Change) -> Option<Extent> {
    let piece = change.piece?;
    Some(Extent { first: change.first, blocks: change.blocks, skip: 0, piece })
}

/// Encodes the index that `author` stores; `None` if its extents are in packs of too many writers.
pub fn encode(range: u32, author: WriterId, extents: &[Extent]) -> Option<Vec<u8>> {
    let mut writers: BTreeMap<WriterId, u32> =
        extents.iter().map(|extent| (extent.piece.writer, 0)).collect();
    if writers.len() > INDEX_WRITERS_MAX {
        return None;
    }
    let mut out = Vec::new();
    out.extend_from_slice(MAGIC);
    let counts = [INDEX_VERSION, range, writers.len() as u32, extents.len() as u32];
    counts.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
    out.extend_from_slice(&author.0[..AUTHOR_BYTES]);
    for (number, (writer, place)) in writers.iter_mut().enumerate() {
        *place = number as u32;
        out.extend_from_slice(&writer.0);
    }
    for extent in extents {
        let piece = &extent.piece;
        let encoding = if piece.is_zstd { ZSTD } else { PLAIN };
        out.extend_from_slice(&extent.first.to_le_bytes());
        for number in [extent.blocks as u16, extent.skip as u16, piece.blocks, encoding] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        for number in [writers[&piece.writer], piece.pack, piece.offset, piece.stored] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&piece.checksum.0);
    }
    let checksum = Checksum::of(&out);
    out.extend_from_slice(&checksum.0);
    Some(out)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("2 bytes"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

/// Decodes the index of a range that `author` stored.
///
/// # Errors
/// The contradiction, if it is no valid index of the range by this writer.
pub fn decode(range: u32, author: WriterId, bytes: &[u8]) -> Result<Vec<Extent>, &'static str> {
    let body = bytes.len().checked_sub(32).filter(|len| *len >= HEADER_BYTES);
    let (body, checksum) = bytes.split_at(body.ok_or("it is too short")?);
    if bytes.len() > INDEX_BYTES_MAX {
        return Err("it is too long");
    }
    if !body.starts_with(MAGIC) {
        return Err("it is no index");
    }
    if u32_at(body, 8) != INDEX_VERSION {
        return Err("this program does not know the version of its format");
    }
    if Checksum::of(body).0 != *checksum {
        return Err("its checksum is wrong");
    }
    if u32_at(body, 12) != range {
        return Err("it is the index of another range");
    }
    if body[HEADER_BYTES - AUTHOR_BYTES..HEADER_BYTES] != author.0[..AUTHOR_BYTES] {
        return Err("it is the index of another backup");
    }
    let (writers, extents) = (u32_at(body, 16) as usize, u32_at(body, 20) as usize);
    if writers > INDEX_WRITERS_MAX || extents > RANGE_BLOCKS as usize {
        return Err("it has too many entries");
    }
    let table = HEADER_BYTES + writers * WRITER_BYTES;
    if body.len() != table + extents * EXTENT_BYTES {
        return Err("its length is wrong");
    }
    let writer = |number: u32| {
        let at = HEADER_BYTES + number as usize * WRITER_BYTES;
        let is_known = (number as usize) < writers;
        is_known.then(|| WriterId(body[at..at + WRITER_BYTES].try_into().expect("16 bytes")))
    };
    let mut end = 0;
    let mut decoded = Vec::with_capacity(extents);
    for entry in body[table..].chunks_exact(EXTENT_BYTES) {
        let extent = Extent {
            first: u32_at(entry, 0),
            blocks: u16_at(entry, 4).into(),
            skip: u16_at(entry, 6).into(),
            piece: PieceRef {
                blocks: u16_at(entry, 8),
                is_zstd: u16_at(entry, 10) == ZSTD,
                writer: writer(u32_at(entry, 12)).ok_or("an extent has an unknown writer")?,
                pack: u32_at(entry, 16),
                offset: u32_at(entry, 20),
                stored: u32_at(entry, 24),
                checksum: Checksum(entry[28..60].try_into().expect("32 bytes")),
            },
        };
        if u16_at(entry, 10) > ZSTD {
            return Err("a piece has an unknown encoding");
        }
        check_extent(range, &extent, end)?;
        end = extent.end();
        decoded.push(extent);
    }
    Ok(decoded)
}

/// Checks an extent that must begin at block `end` or later.
fn check_extent(range: u32, extent: &Extent, end: u32) -> Result<(), &'static str> {
    let piece = &extent.piece;
    let is_within = extent.first < RANGE_BLOCKS && extent.end() <= RANGE_BLOCKS;
    if extent.blocks == 0 || extent.first < end || !is_within {
        return Err("extents are empty, overlap or leave the range");
    }
    if u32::from(piece.blocks) > PIECE_BLOCKS_MAX
        || extent.skip + extent.blocks > u32::from(piece.blocks)
    {
        return Err("an extent leaves its piece");
    }
    let plain = u32::from(piece.blocks) * BLOCK_BYTES as u32;
    let is_sound = if piece.is_zstd { piece.stored < plain } else { piece.stored == plain };
    if !is_sound || piece.stored == 0 {
        return Err("a piece has an impossible length");
    }
    if u64::from(piece.offset) + u64::from(piece.stored) > PACK_BYTES_MAX as u64 {
        return Err("a piece leaves its pack");
    }
    if piece.pack / RANGE_PACKS != range {
        return Err("a pack belongs to another range");
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    const AUTHOR: WriterId = WriterId([9; 16]);

    pub(crate) fn piece(number: u32, blocks: u32) -> PieceRef {
        PieceRef {
            writer: WriterId([number as u8; 16]),
            pack: 3 * RANGE_PACKS + number % RANGE_PACKS,
            offset: number,
            stored: blocks * BLOCK_BYTES as u32,
            blocks: blocks as u16,
            is_zstd: false,
            checksum: Checksum([number as u8; 32]),
        }
    }

    /// Source of each block: number of the piece, and block in it.
    fn map_of(extents: &[Extent]) -> BTreeMap<u32, (u32, u32)> {
        let blocks = |extent: &Extent| {
            let Extent { first, skip, piece, .. } = *extent;
            (0..extent.blocks).map(move |at| (first + at, (piece.offset, skip + at)))
        };
        extents.iter().flat_map(blocks).collect()
    }

    /// Changes in order, from lengths of gaps, lengths, and whether they are zeroes.
    fn changes(plan: &[(u32, u32, bool)], number: &mut u32) -> Vec<Change> {
        let mut at = 0;
        let change = |&(gap, blocks, is_zero): &(u32, u32, bool)| {
            *number += 1;
            let first = at + gap;
            at = first + blocks;
            Change { first, blocks, piece: (!is_zero).then(|| piece(*number, blocks)) }
        };
        plan.iter().map(change).collect()
    }

    proptest! {
        /// Against a map of single blocks.
        #[test]
        fn merge_equals_a_map_of_blocks(
            rounds in prop::collection::vec(
                prop::collection::vec((0_u32..6, 1_u32..12, any::<bool>()), 0..12), 1..6)
        ) {
            let (mut extents, mut model, mut number) = (Vec::new(), BTreeMap::new(), 0);
            for plan in &rounds {
                let changes = changes(plan, &mut number);
                extents = merge(&extents, &changes);
                for change in &changes {
                    for at in 0..change.blocks {
                        match &change.piece {
                            Some(piece) => model.insert(change.first + at, (piece.offset, at)),
                            None => model.remove(&(change.first + at)),
                        };
                    }
                }
                prop_assert_eq!(map_of(&extents), model.clone());
                let bytes = encode(3, AUTHOR, &extents).expect("few writers");
                prop_assert_eq!(decode(3, AUTHOR, &bytes), Ok(extents.clone()));
            }
        }

        #[test]
        fn altered_index_is_refused(at in 0_usize..400, bit in 0_u8..8, len in 0_usize..400) {
            let extents = merge(&[], &changes(&[(1, 4, false), (0, 64, false)], &mut 0));
            let good = encode(3, AUTHOR, &extents).expect("few writers");
            let mut bad = good.clone();
            let place = at % bad.len();
            bad[place] ^= 1 << bit;
            prop_assert!(decode(3, AUTHOR, &bad).is_err());
            prop_assert!(decode(3, AUTHOR, &good[..len % good.len()]).is_err());
            prop_assert!(decode(4, AUTHOR, &good).is_err());
            prop_assert!(decode(3, WriterId([8; 16]), &good).is_err());
        }

        /// With the right checksum, so that the later checks are reached.
        #[test]
        fn hostile_index_is_bounded(
            edits in prop::collection::vec((0_usize..400, any::<u8>()), 1..6)
        ) {
            let extents = merge(&[], &changes(&[(1, 4, false), (0, 64, false)], &mut 0));
            let mut bytes = encode(3, AUTHOR, &extents).expect("few writers");
            let body = bytes.len() - 32;
            for (at, value) in edits {
                bytes[at % body] = value;
            }
            let checksum = Checksum::of(&bytes[..body]);
            bytes[body..].copy_from_slice(&checksum.0);
            if let Ok(extents) = decode(3, AUTHOR, &bytes) {
                let mut end = 0;
                for extent in extents {
                    prop_assert!(extent.first >= end && extent.end() <= RANGE_BLOCKS);
                    prop_assert!(extent.skip + extent.blocks <= u32::from(extent.piece.blocks));
                    end = extent.end();
                }
            }
        }
    }

    #[test]
    fn largest_index_is_within_its_limit() {
        let extents = RANGE_BLOCKS as usize * EXTENT_BYTES + INDEX_WRITERS_MAX * WRITER_BYTES;
        assert!(HEADER_BYTES + extents + 32 <= INDEX_BYTES_MAX);
    }
}
