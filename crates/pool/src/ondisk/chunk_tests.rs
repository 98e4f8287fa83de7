//! Tests of chunk headers: round trip, damage, and hostile content under a valid checksum.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::id::PoolId;
use crate::ondisk::superblock::{DeviceRecord, SUPERBLOCK_AREA_BYTES};

fn layout() -> PoolLayout {
    let size_bytes = SUPERBLOCK_AREA_BYTES + 64 * 256 * 4096;
    let device = DeviceRecord { id: PoolId::default(), size_bytes, segments: 64 };
    PoolLayout::new(256, &[device]).unwrap()
}

/// Blocks of a unit, and how many are stored.
fn any_unit() -> impl Strategy<Value = (u8, u8)> {
    (2..=8_u8).prop_flat_map(|count| (Just(count), 1..=(count * 7 / 8).max(1)))
}

/// Copies of the cleaner.
fn any_copy() -> impl Strategy<Value = ChunkRecord> {
    let (volume, block) = (|| 1..100_u32, || 0..1_000_000_u64);
    prop_oneof![
        (volume(), block(), 1..16_000_u64, 0..U48_MAX).prop_map(|(volume, block, old, birth)| {
            ChunkRecord::Moved { volume, block, old, birth }
        }),
        (volume(), block(), 0..U48_MAX).prop_map(|(volume, index, birth)| {
            ChunkRecord::Page { place: PagePlace { volume, level: 0, index }, birth }
        }),
    ]
}

fn any_record() -> impl Strategy<Value = ChunkRecord> {
    let volume = || 1..100_u32;
    let block = || 0..1_000_000_u64;
    prop_oneof![
        (volume(), block(), 1..9_u16).prop_map(|(volume, block, count)| ChunkRecord::Data {
            volume,
            block,
            count
        }),
        (volume(), block(), 1..1_u64 << 30).prop_map(|(volume, block, count)| ChunkRecord::Zero {
            volume,
            block,
            count
        }),
        (volume(), block(), 1..16_000_u64, 0..U48_MAX).prop_map(|(volume, block, old, birth)| {
            ChunkRecord::Moved { volume, block, old, birth }
        }),
        (0..9_u32, 0..4_u8, block(), 0..U48_MAX).prop_map(|(volume, level, index, birth)| {
            ChunkRecord::Page { place: PagePlace { volume, level, index }, birth }
        }),
        (volume(), "[a-z]{1,20}", 1..1_u64 << 40).prop_map(|(id, name, blocks)| {
            let mut volume = VolumeRecord::new(id, name, blocks);
            volume.properties.insert("limit".to_owned(), "iops=15000".to_owned());
            ChunkRecord::Volume(Box::new(volume))
        }),
        (volume(), block(), any_unit()).prop_map(|(volume, block, (count, stored))| {
            ChunkRecord::Unit { volume, block, count, stored }
        }),
        any_unit().prop_flat_map(|(count, stored)| {
            let parts = vec(any_copy(), usize::from(count));
            parts.prop_map(move |parts| ChunkRecord::MovedUnit { stored, parts })
        }),
        volume().prop_map(|volume| ChunkRecord::Delete { volume }),
        volume().prop_map(|volume| ChunkRecord::Promote { volume }),
        (volume(), volume())
            .prop_map(|(volume, snapshot)| ChunkRecord::Rollback { volume, snapshot }),
    ]
}

fn any_snapshot() -> impl Strategy<Value = ChunkRecord> {
    (vec(1..100_u32, 1..40), "[a-z]{1,20}", any::<u64>()).prop_map(|(volumes, name, created_s)| {
        let uuid = PoolId([7; 16]);
        ChunkRecord::Snapshot(Box::new(SnapshotOrder { name, volumes, uuid, created_s }))
    })
}

fn any_header() -> impl Strategy<Value = ChunkHeader> {
    let records = prop_oneof![vec(any_record(), 0..12), vec(any_snapshot(), 1)];
    (records, any::<u64>(), 0..=U48_MAX, 0..8_u64).prop_map(|(records, log, sequence, at)| {
        let payload: usize = records.iter().map(ChunkRecord::payload_blocks).sum();
        ChunkHeader {
            log,
            sequence,
            durable: sequence / 2,
            block: 1024 + at,
            following: 9,
            records,
            checksums: (0..payload as u32).map(|index| index.wrapping_mul(77)).collect(),
        }
    })
}

proptest! {
    #[test]
    fn chunk_header_round_trips(header in any_header()) {
        let mut block = [0xA5; BLOCK_BYTES];
        header.encode(&mut block);
        prop_assert_eq!(ChunkHeader::decode(&block, header.block, &layout()), Ok(header.clone()));
        let elsewhere = ChunkHeader::decode(&block, header.block + 1, &layout());
        prop_assert_eq!(elsewhere, Err(FormatError::Foreign));
    }

    #[test]
    fn flipped_bit_of_a_chunk_header_is_found(
        header in any_header(), at in 0..BLOCK_BYTES, bit in 0..8_u32,
    ) {
        let mut block = [0; BLOCK_BYTES];
        header.encode(&mut block);
        block[at] ^= 1 << bit;
        prop_assert!(ChunkHeader::decode(&block, header.block, &layout()).is_err());
    }

    #[test]
    fn sealed_nonsense_in_a_chunk_never_panics(
        header in any_header(), changes in vec((10..CRC_AT, any::<u8>()), 1..20),
    ) {
        let mut block = [0; BLOCK_BYTES];
        header.encode(&mut block);
        for (at, value) in changes {
            block[at] = value;
        }
        seal(&mut block);
        if let Ok(found) = ChunkHeader::decode(&block, header.block, &layout()) {
            let mut again = [0; BLOCK_BYTES];
            found.encode(&mut again);
            prop_assert_eq!(ChunkHeader::decode(&again, header.block, &layout()), Ok(found));
        }
    }
}

#[test]
fn chunk_beyond_its_segment_is_refused() {
    let header = ChunkHeader {
        log: 1,
        sequence: 1,
        durable: 0,
        block: 252,
        following: 0,
        records: vec![ChunkRecord::Data { volume: 1, block: 0, count: 4 }],
        checksums: vec![0; 4],
    };
    let mut block = [0; BLOCK_BYTES];
    header.encode(&mut block);
    assert_eq!(ChunkHeader::decode(&block, 252, &layout()), Err(FormatError::Field("length")));
}
