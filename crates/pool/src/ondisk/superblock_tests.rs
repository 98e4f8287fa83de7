//! Tests of the superblock: round trip, damage, and the choice between copies.

use proptest::prelude::*;

use super::*;
use crate::ondisk::VERSION;

fn superblock(update: u64) -> Superblock {
    let device = |id| DeviceRecord {
        id: PoolId([id; 16]),
        size_bytes: SUPERBLOCK_AREA_BYTES + 40 * 16 * 4096,
        segments: 40,
    };
    Superblock {
        update,
        pool: PoolId([9; 16]),
        name: "fast".to_owned(),
        device: 1,
        devices: vec![device(1), device(2)],
        pairs: Vec::new(),
        segment_blocks: 16,
        log: 77,
        start: LogStart { sequence: 5, block: 17, following: 3, slot: 2 },
        root: MapEntry { location: 20, birth: 4, checksum: 6 },
        log_device: Some(DeviceRecord { segments: 8, ..device(3) }),
        tail: TailVolumes::Listed(BTreeSet::from([3, 4])),
        reached: 9,
        encryption: update % 2 == 1,
        skipped: 0,
    }
}

fn copies(updates: [u64; COPIES]) -> [Result<Superblock, FormatError>; COPIES] {
    updates.map(|update| match update {
        0 => Err(FormatError::Checksum),
        update => Ok(superblock(update)),
    })
}

#[test]
fn superblock_round_trips() {
    for copy in 0..COPIES {
        let block = superblock(3).encode(copy);
        assert_eq!(Superblock::decode(&block, copy), Ok(superblock(3)));
        assert_eq!(Superblock::decode(&block, (copy + 1) % COPIES), Err(FormatError::Foreign));
    }
    assert_eq!(Superblock::decode(&[0; BLOCK_BYTES], 0), Err(FormatError::Absent));
}

#[test]
fn superblock_of_the_log_device_round_trips() {
    for tail in [TailVolumes::default(), TailVolumes::All, TailVolumes::of((1..=700).collect())] {
        let own = Superblock { device: LOG_INDEX, tail, ..superblock(3) };
        assert_eq!(own.device_id(), PoolId([3; 16]));
        assert_eq!(Superblock::decode(&own.encode(1), 1), Ok(own));
    }
    assert_eq!(TailVolumes::of((1..=701).collect()), TailVolumes::All);
    let without = LogStart { slot: 0, ..superblock(3).start };
    let without = Superblock {
        log_device: None,
        tail: TailVolumes::default(),
        start: without,
        ..superblock(3)
    };
    assert_eq!(Superblock::decode(&without.encode(1), 1), Ok(without));
}

#[test]
fn impossible_log_devices_are_refused() {
    let device = superblock(3).log_device.unwrap();
    let beyond = DeviceRecord { segments: 41, ..device };
    let few = DeviceRecord { segments: 3, ..device };
    let twin = DeviceRecord { id: PoolId([1; 16]), ..device };
    for log_device in [beyond, few, twin] {
        let own = Superblock { log_device: Some(log_device), ..superblock(3) };
        assert!(Superblock::decode(&own.encode(0), 0).is_err(), "{log_device:?}");
    }
    let mut block = superblock(3).encode(0);
    block[LOG_DEVICE_AT..LOG_DEVICE_AT + DEVICE_BYTES].fill(0);
    seal(&mut block);
    assert_eq!(Superblock::decode(&block, 0), Err(FormatError::Field("tail")));
    let start = LogStart { slot: 8, ..superblock(3).start };
    let own = Superblock { start, ..superblock(3) };
    assert_eq!(Superblock::decode(&own.encode(0), 0), Err(FormatError::Field("start of the log")));
}

#[test]
fn newest_of_two_whole_copies_counts() {
    for (updates, expected) in [
        ([7, 7, 7, 7], Ok(7)),
        ([8, 8, 7, 7], Ok(8)),
        ([8, 0, 7, 7], Ok(8)),
        ([0, 0, 7, 7], Ok(7)),
        ([8, 8, 0, 0], Ok(8)),
        // A copy whose writes failed.
        ([8, 8, 8, 2], Ok(8)),
        ([9, 9, 8, 2], Ok(9)),
        ([0, 0, 0, 7], Err(FormatError::Checksum)),
        ([8, 8, 3, 2], Err(FormatError::Field("update"))),
    ] {
        let chosen = choose(&copies(updates)).map(|superblock| superblock.update);
        assert_eq!(chosen, expected, "{updates:?}");
    }
}

#[test]
fn contradicting_copies_are_refused() {
    let mut other = superblock(7);
    other.log = 78;
    let mixed = [Ok(superblock(7)), Ok(superblock(7)), Ok(superblock(7)), Ok(other)];
    assert_eq!(choose(&mixed), Err(FormatError::Field("update")));
    let later = || Err(FormatError::Version(VERSION + 1));
    let updated = [later(), Ok(superblock(7)), later(), Ok(superblock(7))];
    assert_eq!(choose(&updated), later(), "a program of another version may have written two");
    let damaged = [Ok(superblock(7)), Ok(superblock(7)), later(), Ok(superblock(7))];
    assert_eq!(choose(&damaged), Ok(superblock(7)));
    let none = [(); 4].map(|()| Err(FormatError::Absent));
    assert_eq!(choose(&none), Err(FormatError::Absent));
}

proptest! {
    #[test]
    fn flipped_bit_of_a_superblock_is_found(at in 0..BLOCK_BYTES, bit in 0..8_u32) {
        let mut block = superblock(3).encode(2);
        block[at] ^= 1 << bit;
        prop_assert!(Superblock::decode(&block, 2).is_err());
    }

    #[test]
    fn sealed_nonsense_in_a_superblock_never_panics(at in 10..BLOCK_BYTES - 4, value: u8) {
        let mut block = superblock(3).encode(2);
        block[at] = value;
        seal(&mut block);
        if let Ok(found) = Superblock::decode(&block, 2) {
            prop_assert_eq!(Superblock::decode(&found.encode(2), 2), Ok(found));
        }
    }
}

#[test]
fn removed_devices_stay_in_the_table() {
    let mut superblock = superblock(3);
    superblock.devices[0].size_bytes = 0;
    let block = superblock.encode(2);
    assert_eq!(Superblock::decode(&block, 2), Ok(superblock.clone()));
    let of = |device| Superblock { device, ..superblock.clone() };
    assert!(superblock.is_former(&of(0)) && !superblock.is_former(&of(1)));
    let own = Superblock { device: 0, ..superblock.clone() };
    assert_eq!(Superblock::decode(&own.encode(2), 2), Err(FormatError::Field("devices")));
    superblock.devices[1].size_bytes = 0;
    superblock.device = 0;
    assert!(Superblock::decode(&superblock.encode(2), 2).is_err());
}
