//! Packing: copies of live blocks as chunks, in compressed units where they shrink. Pure.
//!
//! Copies are sorted by volume and block, so that what belongs together gets into one unit and is
//! read with one I/O. A chunk takes as much as fits its header and payload: it is as dense as one
//! that hosts write, or cleaning would gain nothing.

use std::collections::BTreeMap;

use crate::compress::{GiveUp, compressed};
use crate::limits::{BLOCK_BYTES, UNIT_BLOCKS};
use crate::ondisk::chunk::{CHECKSUM_BYTES, RECORD_SPACE_BYTES, Record};
use crate::ondisk::entry::Entry;
use crate::ondisk::unit::{Codec, Payload};
use crate::ondisk::{Block, checksum};

/// A block to copy.
pub(super) struct Copied {
    /// [`Record::Moved`] of a volume, or [`Record::Page`] of level 0 for what snapshots have.
    pub(super) record: Record,
    /// Its entry.
    pub(super) old: Entry,
    /// How to compress it.
    pub(super) codec: Option<Codec>,
    /// Content.
    pub(super) bytes: Block,
}

impl Copied {
    /// The volume that wrote it, and the block there.
    fn place(&self) -> (u32, u64) {
        match &self.record {
            Record::Moved { volume, block, .. } => (*volume, *block),
            Record::Page { place, .. } => (place.volume, place.index),
            other => unreachable!("{other:?} is no copy"),
        }
    }

    /// Blocks of different volumes share no unit.
    fn shares_unit(&self, other: &Copied) -> bool {
        self.place().0 == other.place().0 && self.codec == other.codec
    }
}

/// A copied block.
pub(super) struct Moved {
    /// Old location.
    pub(super) old: u64,
    /// New entry, whose location counts from the payload of the chunk.
    pub(super) new: Entry,
    /// Snapshots have it.
    pub(super) shared: bool,
}

/// Copies as the content of a chunk.
#[derive(Default)]
pub(super) struct Packed {
    pub(super) records: Vec<Record>,
    pub(super) bytes: Vec<u8>,
    pub(super) entries: Vec<Moved>,
}

impl Packed {
    pub(super) fn payload_blocks(&self) -> usize {
        self.bytes.len() / BLOCK_BYTES
    }

    fn header_bytes(&self) -> usize {
        let records: usize = self.records.iter().map(Record::encoded_len).sum();
        records + CHECKSUM_BYTES * self.payload_blocks()
    }

    fn has_room(&self, record: &Record, chunk_blocks: usize) -> bool {
        self.payload_blocks() + record.payload_blocks() <= chunk_blocks
            && self.header_bytes() + record.header_bytes() <= RECORD_SPACE_BYTES
    }

    /// Adds the stored blocks of a record with the blocks that it copies.
    fn add(&mut self, record: Record, stored: &[u8], copied: &[Copied]) {
        let checksums: Vec<u32> = stored.chunks(BLOCK_BYTES).map(checksum).collect();
        let mut payload = Payload::of(self.payload_blocks() as u64, 0, &checksums);
        let new: Vec<Entry> = match &record {
            Record::MovedUnit { stored, parts } => {
                payload.unit(parts.len() as u8, *stored).collect()
            }
            _ => vec![payload.block()],
        };
        self.entries.extend(copied.iter().zip(new).map(|(copied, new)| Moved {
            old: copied.old.location,
            new: Entry { birth: copied.old.birth, ..new },
            shared: matches!(copied.record, Record::Page { .. }),
        }));
        self.bytes.extend_from_slice(stored);
        self.records.push(record);
    }
}

/// Give-up on plain blocks that do not compress, by volume. Blocks of units did, so they are always
/// compressed again.
#[derive(Default)]
pub(super) struct GiveUps(BTreeMap<u32, GiveUp>);

impl GiveUps {
    /// The stored blocks of a unit, if it shrinks.
    fn compressed(&mut self, unit: &[Copied], bytes: &[u8]) -> Option<Vec<u8>> {
        let codec = unit[0].codec?;
        let was_unit = unit.iter().any(|copied| copied.old.unit().is_some());
        let give_up = self.0.entry(unit[0].place().0).or_default();
        if unit.len() < 2 || !was_unit && !give_up.tries() {
            return None;
        }
        let stored = compressed(codec, bytes, <[u8]>::to_vec);
        if !was_unit {
            give_up.count(stored.is_some());
        }
        stored
    }
}

/// Packs copies into chunks of at most this many payload blocks.
pub(super) fn pack(
    mut copies: Vec<Copied>,
    chunk_blocks: usize,
    give_ups: &mut GiveUps,
) -> Vec<Packed> {
    copies.sort_by_key(Copied::place);
    let mut chunks = Vec::new();
    let mut open = Packed::default();
    let mut add = |record: Record, stored: &[u8], copied: &[Copied]| {
        if !open.has_room(&record, chunk_blocks) {
            chunks.push(std::mem::take(&mut open));
        }
        open.add(record, stored, copied);
    };
    for same in copies.chunk_by(Copied::shares_unit) {
        for unit in same.chunks(UNIT_BLOCKS.min(chunk_blocks)) {
            let bytes: Vec<u8> = unit.iter().flat_map(|copied| copied.bytes).collect();
            match give_ups.compressed(unit, &bytes) {
                Some(stored) => {
                    let parts = unit.iter().map(|copied| copied.record.clone()).collect();
                    let blocks = (stored.len() / BLOCK_BYTES) as u8;
                    add(Record::MovedUnit { stored: blocks, parts }, &stored, unit);
                }
                None => {
                    for (copied, bytes) in unit.iter().zip(bytes.chunks(BLOCK_BYTES)) {
                        add(copied.record.clone(), bytes, std::slice::from_ref(copied));
                    }
                }
            }
        }
    }
    if !open.records.is_empty() {
        chunks.push(open);
    }
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::PoolId;
    use crate::ondisk::chunk::ChunkHeader;
    use crate::ondisk::layout::Layout;
    use crate::ondisk::page::PagePlace;
    use crate::ondisk::superblock::{DeviceRecord, SUPERBLOCK_AREA_BYTES};
    use crate::ondisk::unit::UnitPlace;

    fn copied(volume: u32, block: u64, codec: Option<Codec>, shared: bool) -> Copied {
        let birth = 7;
        let old = 100 + block;
        let record = match shared {
            true => Record::Page { place: PagePlace { volume, level: 0, index: block }, birth },
            false => Record::Moved { volume, block, old, birth },
        };
        let mut bytes = [volume as u8; BLOCK_BYTES];
        bytes[..8].copy_from_slice(&block.to_le_bytes());
        let old = Entry { location: old, birth, checksum: checksum(&bytes) };
        Copied { record, old, codec, bytes }
    }

    /// Each copy has its content at the place that its new entry names.
    fn check(chunks: &[Packed], count: usize) {
        let mut found = 0;
        for chunk in chunks {
            for moved in &chunk.entries {
                let block = moved.old - 100;
                let first = moved.new.block() as usize * BLOCK_BYTES;
                let stored = &chunk.bytes[first..first + moved.new.stored_blocks() * BLOCK_BYTES];
                assert!(moved.new.matches(stored) && moved.new.birth == 7);
                let content = match moved.new.unit() {
                    None => stored.to_vec(),
                    Some(unit) => {
                        let at = usize::from(unit.index) * BLOCK_BYTES;
                        let part = |data: &[u8]| data[at..at + BLOCK_BYTES].to_vec();
                        crate::compress::decompressed(stored, unit.blocks.into(), part).unwrap()
                    }
                };
                assert_eq!(content[..8], block.to_le_bytes());
                found += 1;
            }
        }
        assert_eq!(found, count);
    }

    #[test]
    fn copies_of_a_volume_share_units_whatever_the_order() {
        let zstd = Some(Codec::Zstd);
        let copies: Vec<_> = (0..48)
            .map(|at| copied(1 + at as u32 % 3, at / 3 * 5 % 16, zstd, at % 2 == 0))
            .collect();
        let chunks = pack(copies, 255, &mut GiveUps::default());
        check(&chunks, 48);
        assert_eq!((chunks.len(), chunks[0].payload_blocks()), (1, 6), "two units of each volume");
    }

    #[test]
    fn full_batch_of_any_kind_fits_headers() {
        let mut rng = flagstone_runtime::rng::Rng::new(1);
        for chunk_blocks in [7, 15, 255] {
            let codecs = [None, Some(Codec::Lz4), Some(Codec::Zstd)];
            let copies: Vec<_> = (0..super::super::COPIES_MAX as u64)
                .map(|block| {
                    let mut copied =
                        copied(1, block, codecs[rng.below(3) as usize], rng.chance(0.5));
                    if rng.chance(0.3) {
                        let noise = copied.bytes[8..].chunks_exact_mut(8);
                        noise.for_each(|word| word.copy_from_slice(&rng.next_u64().to_le_bytes()));
                    }
                    copied
                })
                .collect();
            let count = copies.len();
            let chunks = pack(copies, chunk_blocks, &mut GiveUps::default());
            check(&chunks, count);
            let size_bytes = SUPERBLOCK_AREA_BYTES + 64 * 512 * 4096;
            let device = DeviceRecord { id: PoolId::default(), size_bytes, segments: 64 };
            let layout = Layout::new(512, &[device]).unwrap();
            for Packed { records, bytes, .. } in chunks {
                let checksums: Vec<u32> = bytes.chunks(BLOCK_BYTES).map(checksum).collect();
                assert!(checksums.len() <= chunk_blocks);
                let at = layout.first_block(1);
                let header = ChunkHeader {
                    log: 1,
                    sequence: 9,
                    durable: 9,
                    block: at,
                    following: 2,
                    records,
                    checksums,
                };
                let mut block = [0; BLOCK_BYTES];
                header.encode(&mut block);
                assert_eq!(ChunkHeader::decode(&block, at, &layout), Ok(header));
            }
        }
    }

    #[test]
    fn noise_is_rarely_tried_and_units_always() {
        let mut rng = flagstone_runtime::rng::Rng::new(1);
        let mut give_ups = GiveUps::default();
        let mut noise = |is_unit: bool| {
            let mut copied = copied(1, 0, Some(Codec::Lz4), false);
            copied.bytes.fill_with(|| rng.next_u64() as u8);
            if is_unit {
                copied.old.location = UnitPlace { index: 0, blocks: 8, stored: 1 }.location(100);
            }
            copied
        };
        for _ in 0..100 {
            let unit = [noise(false), noise(false)];
            assert!(give_ups.compressed(&unit, &[unit[0].bytes, unit[1].bytes].concat()).is_none());
        }
        let equal = [0; 2 * BLOCK_BYTES];
        assert!(give_ups.compressed(&[noise(false), noise(false)], &equal).is_none(), "skipped");
        assert!(give_ups.compressed(&[noise(true), noise(true)], &equal).is_some());
    }
}
