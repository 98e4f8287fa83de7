//! Tests of packing by content: what gets into one unit, and that nothing takes more than it took.

use super::*;
use crate::cleaner::piece::PieceKey;
use crate::compress::decompressed;
use crate::ondisk::checksum;
use crate::ondisk::entry::MapEntry;
use crate::ondisk::unit::Payload;

const BIRTH: u64 = 7;

fn domain(name: &str) -> Domain {
    Domain::of(name)
}

/// Content of a block, which does not compress by itself.
fn block(stamp: u8) -> Vec<u8> {
    let mut rng = flagstone_runtime::rng::Rng::new(stamp.into());
    (0..BLOCK_BYTES).map(|_| rng.next_u64() as u8).collect()
}

/// A block alone, or a unit of blocks.
fn piece(at: u64, stamps: &[u8], domain: Domain) -> ContentPiece {
    let blocks: Vec<u8> = stamps.iter().flat_map(|stamp| block(*stamp)).collect();
    let unit = compressed_with(Codec::Lz4, &blocks, None, <[u8]>::to_vec);
    let codec = unit.is_some().then_some(Codec::Lz4);
    let stored = unit.unwrap_or_else(|| blocks.clone());
    let sums: Vec<u32> = stored.chunks(BLOCK_BYTES).map(checksum).collect();
    let mut payload = Payload::of(at, BIRTH, &sums);
    let entries: Vec<MapEntry> = match codec {
        None => vec![payload.block()],
        Some(_) => payload.unit(stamps.len() as u8, sums.len() as u8).collect(),
    };
    let part = |(block, entry): (u64, &MapEntry)| {
        let (volume, old) = (1, entry.location);
        let record = ChunkRecord::Moved { volume, block, old, birth: BIRTH };
        Part { record, live: Some(*entry) }
    };
    let parts = (at * 10..).zip(&entries).map(part).collect();
    let (unit, key) = (entries[0].unit(), PieceKey::Plain);
    let piece = LivePiece { unit, codec, cold: None, parts, stored, key };
    ContentPiece { piece, domain, blocks }
}

/// Packs all clusters that gain; returns the stored blocks before and after, and the parts of each
/// unit.
fn pack(pieces: &[ContentPiece]) -> (usize, usize, Vec<usize>) {
    let (mut before, mut after, mut units) = (0, 0, Vec::new());
    let mut contents = BTreeMap::new();
    for piece in pieces {
        for (part, block) in piece.piece.parts.iter().zip(piece.blocks.chunks(BLOCK_BYTES)) {
            contents.insert(part.live.unwrap().location, block);
        }
    }
    let mut seen = Vec::new();
    for cluster in clusters(pieces) {
        seen.extend(cluster.pieces.iter().copied());
        let present = present_size(pieces, &cluster);
        before += present.payload;
        let copied: Vec<_> =
            cluster.groups.iter().flat_map(|group| packed(pieces, group)).collect();
        let parts: usize = copied.iter().map(|copied| copied.parts.len()).sum();
        let live: usize = cluster.pieces.iter().map(|piece| pieces[*piece].piece.live()).sum();
        assert_eq!(parts, live, "each live block is copied once");
        for copied in &copied {
            let all = |bytes: &[u8]| {
                for (part, block) in copied.parts.iter().zip(bytes.chunks(BLOCK_BYTES)) {
                    assert!(contents[&part.live.unwrap().location] == block);
                }
            };
            match copied.record {
                ChunkRecord::MovedUnit { .. } => {
                    decompressed(&copied.stored, copied.parts.len(), all).unwrap();
                    units.push(copied.parts.len());
                }
                _ => all(&copied.stored),
            }
        }
        let size = copied_size(&copied);
        after += if is_gain(present, size) { size.payload } else { present.payload };
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..pieces.len()).collect::<Vec<_>>(), "each piece is in one cluster");
    (before, after, units)
}

#[test]
fn equal_blocks_of_two_volumes_take_five_eighths() {
    let here = domain("");
    let copy = |from: u64| (1..=8).zip(from..).map(move |(stamp, at)| piece(at, &[stamp], here));
    let pieces: Vec<_> = copy(100).chain(copy(200)).collect();
    assert_eq!(pack(&pieces), (16, 10, vec![8, 8]));
}

#[test]
fn blocks_in_many_copies_take_few_blocks() {
    let copies = |count: u64| (0..count).map(|at| piece(at + 1, &[5], domain(""))).collect();
    let stored = |count| -> (usize, usize) {
        let pieces: Vec<_> = copies(count);
        let (before, after, _) = pack(&pieces);
        (before, after)
    };
    assert_eq!(stored(2), (2, 2), "a unit of two would not be smaller");
    assert_eq!(stored(3), (3, 2));
    assert_eq!(stored(7), (7, 2));
    assert_eq!(stored(16), (16, 4));
}

#[test]
fn equal_units_are_packed_with_the_rest_of_their_blocks() {
    // Each unit has three contents twice, and one that the other lacks.
    let one = piece(100, &[1, 1, 2, 2, 3, 3, 9, 9], domain(""));
    let other = piece(200, &[1, 1, 2, 2, 3, 3, 8, 8], domain(""));
    let stored = one.piece.stored.len() / BLOCK_BYTES;
    let (before, after, units) = pack(&[one, other]);
    assert_eq!(before, 2 * stored);
    assert!(after < before, "{after} {before}");
    assert_eq!(units.iter().sum::<usize>(), 16, "{units:?}");
}

#[test]
fn unit_that_is_as_small_as_it_gets_stays() {
    let units: Vec<_> = [100, 200].map(|at| piece(at, &[5; 8], domain(""))).into();
    let (before, after, _) = pack(&units);
    assert_eq!(before, after);
}

#[test]
fn equal_blocks_of_different_domains_stay_apart() {
    let all = |here: Domain, from: u64| {
        (1..=4).zip(from..).map(move |(stamp, at)| piece(at, &[stamp], here))
    };
    let pieces: Vec<_> = all(domain("a"), 100).chain(all(domain("b"), 200)).collect();
    assert_eq!(pack(&pieces), (8, 8, vec![]));
    let pieces: Vec<_> = (0..3)
        .flat_map(|at| [("a", 100), ("b", 200)].map(|(name, from)| (at + from, domain(name))))
        .map(|(at, domain)| piece(at, &[5], domain))
        .collect();
    assert_eq!(pack(&pieces), (6, 4, vec![3, 3]));
}

/// Dead blocks of a unit take space that repacking frees, too.
#[test]
fn only_what_sharing_saves_counts_as_shared() {
    let mut unit = piece(100, &[1, 1, 2, 2, 3, 3, 4, 4], domain(""));
    unit.piece.parts.iter_mut().skip(4).for_each(|part| part.live = None);
    unit.blocks.truncate(4 * BLOCK_BYTES);
    let pieces = [unit, piece(200, &[1], domain(""))];
    let found = clusters(&pieces);
    let [cluster] = &found[..] else { panic!("{found:?}") };
    let copied: Vec<_> = cluster.groups.iter().flat_map(|group| packed(&pieces, group)).collect();
    let (present, taken) = (present_size(&pieces, cluster), copied_size(&copied));
    assert_eq!((present.payload, taken.payload), (5, 3));
    assert_eq!(shared_blocks(&pieces, cluster, present, taken), 1);
}

#[test]
fn many_copies_that_save_one_block_are_no_gain() {
    let size = |count: u16| Size::of(&ChunkRecord::Data { volume: 1, block: 0, count });
    assert!(is_gain(size(17), size(16)));
    assert!(!is_gain(size(18), size(17)));
    assert!(!is_gain(size(16), size(16)));
}
