//! Tests of packing: content, density, and that nothing takes more than it took.

use std::sync::Arc;

use flagstone_runtime::rng::Rng;

use super::*;
use crate::cleaner::piece::{PieceKey, place_of};
use crate::compress::decompressed_with;
use crate::crypt::tests::cipher;
use crate::id::PoolId;
use crate::ondisk::chunk::ChunkHeader;
use crate::ondisk::layout::PoolLayout;
use crate::ondisk::page::PagePlace;
use crate::ondisk::superblock::{DeviceRecord, SUPERBLOCK_AREA_BYTES};

const BIRTH: u64 = 7;
const LZ4: Option<Codec> = Some(Codec::Lz4);
const ZSTD: Option<Codec> = Some(Codec::Zstd);

/// Content of blocks.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Shrinks alone.
    Text,
    /// Each block repeats the same noise.
    Equal,
    /// Shrinks with Zstandard alone: it has no matches.
    Digits,
    Noise,
}

fn data(kind: Kind, blocks: usize, rng: &mut Rng) -> Vec<u8> {
    let mut noise =
        |bytes: usize| -> Vec<u8> { (0..bytes).map(|_| rng.next_u64() as u8).collect() };
    match kind {
        Kind::Text => (0..blocks * BLOCK_BYTES).map(|at| (at / 50) as u8).collect(),
        Kind::Equal => noise(BLOCK_BYTES).repeat(blocks),
        Kind::Digits => noise(blocks * BLOCK_BYTES).iter().map(|byte| b'0' + byte % 10).collect(),
        Kind::Noise => noise(blocks * BLOCK_BYTES),
    }
}

/// A unit of blocks of a volume from `first` on, or one block; `None` if it does not shrink. Bits
/// of
/// `dead` are the blocks that are dead. Old locations are unique by `at`.
fn piece(
    (volume, first, at): (u32, u64, u64),
    codec: Option<Codec>,
    cold: Option<Codec>,
    data: &[u8],
    dead: u8,
    shared: bool,
) -> Option<LivePiece> {
    keyed(&PieceKey::Plain, (volume, first, at), (codec, cold), data, dead, shared)
}

/// As [`piece`], encrypted with a key.
fn keyed(
    key: &PieceKey,
    (volume, first, at): (u32, u64, u64),
    (codec, cold): (Option<Codec>, Option<Codec>),
    data: &[u8],
    dead: u8,
    shared: bool,
) -> Option<LivePiece> {
    let blocks = (data.len() / BLOCK_BYTES) as u8;
    let cipher = match key {
        PieceKey::Unlocked(cipher) => Some(&**cipher),
        PieceKey::Plain | PieceKey::Locked => None,
    };
    let stored = match (codec, cipher) {
        (None, None) => data.to_vec(),
        (None, Some(cipher)) => {
            let mut stored = data.to_vec();
            cipher.encrypt_blocks(first, &mut stored);
            stored
        }
        (Some(codec), cipher) => compressed_with(codec, data, cipher, <[u8]>::to_vec)?,
    };
    let sums: Vec<u32> = stored.chunks(BLOCK_BYTES).map(checksum).collect();
    let mut payload = Payload::of(at, BIRTH, &sums);
    let count = (stored.len() / BLOCK_BYTES) as u8;
    let entries: Vec<MapEntry> = match codec {
        None => vec![payload.block()],
        Some(_) => payload.unit(blocks, count).collect(),
    };
    let unit = entries[0].unit();
    let part = |(block, entry): (u64, &MapEntry)| {
        let is_dead = dead >> (block - first) & 1 == 1;
        let birth = BIRTH;
        let record = match shared || is_dead {
            true => {
                ChunkRecord::Page { place: PagePlace { volume, level: 0, index: block }, birth }
            }
            false => ChunkRecord::Moved { volume, block, old: entry.location, birth },
        };
        Part { record, live: (!is_dead).then_some(*entry) }
    };
    let parts = (first..).zip(&entries).map(part).collect();
    Some(LivePiece { unit, codec, cold, parts, stored, key: key.clone() })
}

fn whole(first: u64, codec: Option<Codec>, cold: Option<Codec>, data: &[u8]) -> LivePiece {
    piece((1, first, 1000 + 8 * first), codec, cold, data, 0, false).expect("it shrinks")
}

/// Two volumes that shared blocks are in different domains now.
#[test]
fn unit_of_two_volumes_is_packed_by_itself() {
    let text = |blocks| data(Kind::Text, blocks, &mut Rng::new(1));
    let mixed = || {
        let mut mixed = piece((1, 8, 3000), LZ4, LZ4, &text(6), 0b0011, false).unwrap();
        for (at, part) in (0..).zip(&mut mixed.parts).skip(4) {
            if let ChunkRecord::Moved { volume, block, .. } = &mut part.record {
                (*volume, *block) = (2, at);
            }
        }
        mixed
    };
    for others in [&[6][..], &[0, 16], &[0, 6, 14, 20]] {
        let other = |first: &u64| {
            piece((1, *first, 1000 + 8 * first), LZ4, LZ4, &text(2), 0, false).unwrap()
        };
        let pieces = others.iter().map(other).chain([mixed()]).collect();
        let chunks = pack_all(pieces, 64);
        let units =
            chunks.iter().flat_map(|chunk| &chunk.records).filter_map(|record| match record {
                ChunkRecord::MovedUnit { parts, .. } => {
                    Some(parts.iter().map(place_of).collect::<Vec<_>>())
                }
                _ => None,
            });
        let of_both: Vec<_> =
            units.filter(|parts| parts.iter().any(|(volume, _)| *volume == 2)).collect();
        assert_eq!(of_both, [[(1, 10), (1, 11), (2, 4), (2, 5)]], "{others:?}");
    }
}

fn pack_all(pieces: Vec<LivePiece>, chunk_blocks: usize) -> Vec<Packed> {
    let mut packer = Packer::new(chunk_blocks);
    let mut chunks = Vec::new();
    for piece in pieces {
        packer.add(piece);
        while packer.pack_next(false).is_some() {}
        chunks.extend(std::iter::from_fn(|| packer.next(chunk_blocks, false)));
    }
    while packer.pack_next(true).is_some() {}
    chunks.extend(std::iter::from_fn(|| packer.next(chunk_blocks, true)));
    chunks
}

/// Packs pieces, compares the content of each block at the place that its new entry names, and
/// returns the payload of the chunks and their number.
fn check(pieces: Vec<LivePiece>, chunk_blocks: usize) -> (usize, usize) {
    let mut expected = BTreeMap::new();
    for piece in &pieces {
        let blocks = piece.contents(|part, block| {
            let content = (place_of(&part.record).1, block.to_vec());
            (part.live.unwrap().location, content)
        });
        expected.extend(blocks.unwrap());
    }
    let key = pieces.first().map_or(PieceKey::Plain, |piece| piece.key.clone());
    let cipher = match &key {
        PieceKey::Unlocked(cipher) => Some(&**cipher),
        PieceKey::Plain | PieceKey::Locked => None,
    };
    let chunks = pack_all(pieces, chunk_blocks);
    let size_bytes = SUPERBLOCK_AREA_BYTES + 64 * 512 * 4096;
    let device = DeviceRecord { id: PoolId::default(), size_bytes, segments: 64 };
    let layout = PoolLayout::new(512, &[device]).unwrap();
    let mut payload = 0;
    for chunk in &chunks {
        for moved in &chunk.entries {
            let first = moved.new.block() as usize * BLOCK_BYTES;
            let stored = &chunk.bytes[first..first + moved.new.stored_blocks() * BLOCK_BYTES];
            assert!(moved.new.matches(stored) && moved.new.birth == BIRTH);
            let (block, expected) = expected.remove(&moved.old).expect("it is copied once");
            let content = match moved.new.unit() {
                None => {
                    let mut content = stored.to_vec();
                    if let Some(cipher) = cipher {
                        cipher.decrypt_blocks(block, &mut content);
                    }
                    content
                }
                Some(unit) => {
                    let at = usize::from(unit.index) * BLOCK_BYTES;
                    let part = |data: &[u8]| data[at..at + BLOCK_BYTES].to_vec();
                    decompressed_with(stored, unit.blocks.into(), cipher, part).unwrap()
                }
            };
            assert!(expected == content, "{}", moved.old);
        }
        let checksums: Vec<u32> = chunk.bytes.chunks(BLOCK_BYTES).map(checksum).collect();
        assert!(checksums.len() <= chunk_blocks);
        payload += checksums.len();
        let (block, records) = (layout.first_block(1), chunk.records.clone());
        let (log, sequence, durable, following) = (1, 9, 9, 2);
        let header = ChunkHeader { log, sequence, durable, block, following, records, checksums };
        let mut bytes = [0; BLOCK_BYTES];
        header.encode(&mut bytes);
        assert_eq!(ChunkHeader::decode(&bytes, block, &layout), Ok(header));
    }
    assert!(expected.is_empty(), "each block is copied");
    (payload, chunks.len())
}

#[test]
fn copies_of_a_volume_share_units_whatever_the_order() {
    let mut rng = Rng::new(1);
    let pieces = (0..48).map(|at| {
        let block = (at / 3 * 5 % 16) as u64;
        let data = data(Kind::Text, 1, &mut rng);
        piece((1 + at as u32 % 3, block, 100 + at as u64), None, ZSTD, &data, 0, at % 2 == 0)
    });
    let found = check(pieces.map(Option::unwrap).collect(), 255);
    assert_eq!(found, (6, 1), "two units of each volume");
}

#[test]
fn units_keep_their_size_out_of_phase() {
    let mut rng = Rng::new(2);
    let mut pieces: Vec<LivePiece> =
        (0..3).map(|at| whole(at, None, LZ4, &data(Kind::Noise, 1, &mut rng))).collect();
    for number in 1..40 {
        pieces.push(whole(8 * number, LZ4, LZ4, &data(Kind::Equal, 8, &mut rng)));
    }
    assert_eq!(check(pieces, 255).0, 3 + 39 * 2);
}

#[test]
fn another_setting_makes_no_unit_larger() {
    let mut rng = Rng::new(3);
    for cold in [None, LZ4, ZSTD] {
        let mut pieces = Vec::new();
        let mut stored = 0;
        for number in 0..20 {
            let unit = whole(16 * number, ZSTD, cold, &data(Kind::Digits, 8, &mut rng));
            stored += unit.stored.len() / BLOCK_BYTES;
            pieces.push(unit);
            // A plain block between units.
            pieces.push(whole(16 * number + 8, None, cold, &data(Kind::Noise, 1, &mut rng)));
        }
        assert_eq!(check(pieces, 255).0, stored + 20, "{cold:?}");
    }
}

#[test]
fn what_is_left_of_units_is_packed_together() {
    let mut rng = Rng::new(4);
    for cold in [None, LZ4, ZSTD] {
        // Half of each unit is dead: units of two blocks each, of which two have room in one.
        let half = |number: u64| {
            let data = data(Kind::Text, 8, &mut rng.clone());
            piece((1, 8 * number, 1000 + 8 * number), LZ4, cold, &data, 0b1010_0101, false)
        };
        assert_eq!(check((0..20).map(|number| half(number).unwrap()).collect(), 255).0, 10);
    }
    // An off volume stays uncompressed.
    let text: Vec<LivePiece> =
        (0..16).map(|at| whole(at, None, None, &data(Kind::Text, 1, &mut rng))).collect();
    assert_eq!(check(text, 255).0, 16);
}

#[test]
fn cold_data_becomes_smaller_with_zstd() {
    let mut rng = Rng::new(5);
    let text = |rng: &mut Rng| -> Vec<u8> {
        let words = [b"flag", b"ston", b"pool", b"unit"];
        (0..2 * BLOCK_BYTES).flat_map(|_| *words[rng.below(4) as usize]).collect()
    };
    let pieces: Vec<LivePiece> =
        (0..10).map(|at| whole(8 * at, LZ4, ZSTD, &text(&mut rng))).collect();
    let before: usize = pieces.iter().map(|piece| piece.stored.len() / BLOCK_BYTES).sum();
    let (after, _) = check(pieces, 255);
    assert!(after < before, "{after} {before}");
}

#[test]
fn copied_units_are_as_dense_as_written_ones() {
    let mut rng = Rng::new(6);
    let text = data(Kind::Text, 8, &mut rng);
    let units = (0..450).map(|at| whole(8 * at, LZ4, LZ4, &text)).collect();
    let (payload, chunks) = check(units, 255);
    let dense = payload == 450 && chunks <= 5;
    assert!(dense, "{payload} {chunks}");
}

#[test]
fn no_mixture_takes_more_than_it_took() {
    let mut rng = Rng::new(7);
    for round in 0..150 {
        let chunk_blocks = [7, 15, 255][round % 3];
        let key = match round / 3 % 2 {
            0 => PieceKey::Plain,
            _ => PieceKey::Unlocked(Arc::new(cipher())),
        };
        let mut pieces = Vec::new();
        let mut most = Size::default();
        let mut first = rng.below(100);
        for number in 0..rng.below(80) {
            let codec = [None, LZ4, ZSTD][rng.below(3) as usize];
            let cold = [None, LZ4, ZSTD][rng.below(3) as usize];
            let kinds = [Kind::Text, Kind::Equal, Kind::Digits, Kind::Noise];
            let kind = kinds[rng.below(4) as usize];
            let blocks = if codec.is_none() { 1 } else { 2 + rng.below(7) as usize };
            let dead = if rng.chance(0.5) { rng.next_u64() as u8 } else { 0 };
            let data = data(kind, blocks, &mut rng);
            let at = (1 + rng.below(2) as u32, first, 8 * number + 1000);
            // Snapshots have several versions of some blocks.
            first = (first + rng.below(10)).saturating_sub(rng.below(3));
            let shared = rng.chance(0.3);
            let Some(piece) = keyed(&key, at, (codec, cold), &data, dead, shared) else {
                continue;
            };
            if piece.live() == 0 {
                continue;
            }
            let stored = piece.stored.len() / BLOCK_BYTES;
            let own = size(piece.unit, &piece.parts);
            assert!(own.payload <= stored && own.payload <= piece.live());
            most.add(own);
            pieces.push(piece);
        }
        let (payload, _) = check(pieces, chunk_blocks);
        assert!(payload <= most.payload, "{payload} {most:?}");
    }
}

#[test]
fn locked_pieces_are_copied_as_they_are_stored() {
    let mut rng = Rng::new(11);
    let key = PieceKey::Unlocked(Arc::new(cipher()));
    let text = data(Kind::Text, 8, &mut rng);
    let unit = keyed(&key, (1, 0, 1000), (LZ4, ZSTD), &text, 0b0111_1110, false).unwrap();
    let block = keyed(&key, (1, 8, 1100), (None, ZSTD), &text[..BLOCK_BYTES], 0, true).unwrap();
    let stored = [&unit.stored[..], &block.stored].concat();
    let locked = |piece: LivePiece| LivePiece { key: PieceKey::Locked, ..piece };
    let chunks = pack_all(vec![locked(unit), locked(block)], 255);
    assert_eq!(chunks.len(), 1);
    assert!(chunks[0].bytes == stored);
    assert_eq!(chunks[0].entries.len(), 3, "two live blocks of the unit, and the block");
}

#[test]
fn noise_is_rarely_tried_and_units_always() {
    let mut rng = Rng::new(1);
    let mut packer = Packer::new(255);
    for _ in 0..100 {
        let noise: Vec<LivePiece> =
            (0..2).map(|at| whole(at, None, LZ4, &data(Kind::Noise, 1, &mut rng))).collect();
        assert!(packer.compressed(&noise).is_none());
    }
    let text: Vec<LivePiece> =
        (0..2).map(|at| whole(at, None, LZ4, &data(Kind::Text, 1, &mut rng))).collect();
    assert!(packer.compressed(&text).is_none(), "skipped");
    let unit = whole(8, LZ4, LZ4, &data(Kind::Text, 3, &mut rng));
    let mut mixed = text;
    mixed.push(unit);
    assert!(packer.compressed(&mixed).is_some());
}

#[test]
fn chunk_ends_with_its_segment() {
    let mut rng = Rng::new(8);
    let mut packer = Packer::new(15);
    for at in 0..4 {
        packer.add(whole(8 * at, LZ4, LZ4, &data(Kind::Equal, 8, &mut rng)));
    }
    assert!(packer.next(15, false).is_none(), "no chunk is full");
    assert_eq!(packer.pack_next(false), None, "too few are gathered");
    assert_eq!(std::iter::from_fn(|| packer.pack_next(true)).collect::<Vec<_>>(), [2; 4]);
    // Units of two stored blocks.
    let mut next = |room| packer.next(room, true).map(|chunk| chunk.payload_blocks());
    assert_eq!(next(5), Some(4));
    assert_eq!(next(1), Some(4), "in the next segment");
    assert_eq!(next(15), None);
}

#[test]
fn units_with_dead_blocks_become_whole() {
    let mut rng = Rng::new(9);
    for (blocks, dead) in [(8, 0b0000_0001), (8, 0b1000_0000), (5, 0b0000_0100)] {
        let data = data(Kind::Text, blocks, &mut rng);
        let unit = piece((1, 0, 1000), LZ4, LZ4, &data, dead, false).unwrap();
        let mut packer = Packer::new(15);
        packer.add(unit);
        assert_eq!((packer.pack_next(true), packer.pack_next(true)), (Some(2), None));
        let chunk = packer.next(15, true).unwrap();
        assert_eq!((chunk.entries.len(), packer.held()), (blocks - 1, 0));
        let entry = chunk.entries[0].new;
        assert_eq!(entry.unit().map(|unit| usize::from(unit.blocks)), Some(blocks - 1));
    }
}
