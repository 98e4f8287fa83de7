//! Table of the choice between legs.

use super::*;
use crate::id::PoolId;
use crate::ondisk::entry::MapEntry;
use crate::ondisk::legs::LegRecord;
use crate::ondisk::superblock::{DeviceRecord, LogStart, TailVolumes};

const IN_SYNC: LegState = LegState::InSync;
const MISSING: LegState = LegState::Missing;
const BEHIND: LegState = LegState::Behind { copied: 3 };

/// Superblock of leg `device` with this update, and the identifiers, states and their updates of
/// both legs.
fn superblock(device: u16, update: u64, legs: [(u8, LegState, u64); LEGS]) -> Superblock {
    let leg =
        |(id, state, since)| LegRecord { id: PoolId([id; 16]), size_bytes: 1 << 30, state, since };
    let pair = legs.map(leg);
    Superblock {
        update,
        pool: PoolId([9; 16]),
        name: "safe".to_owned(),
        device,
        devices: vec![DeviceRecord { id: pair[0].id, size_bytes: 1 << 30, segments: 40 }],
        pairs: vec![pair],
        segment_blocks: 16,
        log: 1,
        start: LogStart { sequence: 1, block: 0, following: 0, slot: 0 },
        root: MapEntry::HOLE,
        log_device: None,
        tail: TailVolumes::default(),
        reached: 0,
        encryption: false,
        skipped: 0,
    }
}

#[test]
fn superblocks_decide_which_legs_are_used() {
    let both = [(1, IN_SYNC, 1), (2, IN_SYNC, 1)];
    let without_2 = |since| [(1, IN_SYNC, 1), (2, MISSING, since)];
    let without_1 = |since| [(1, MISSING, since), (2, IN_SYNC, 1)];
    let newest = |update, legs| superblock(0, update, legs);
    let other = |update, legs| superblock(1, update, legs);
    for (newest, own, second_phase, expected) in [
        // Both in sync.
        (newest(9, both), other(9, both), true, LegRole::Leg(1)),
        (newest(9, both), other(8, both), false, LegRole::Leg(1)),
        // It failed during update 9 or earlier.
        (newest(9, both), other(8, both), true, LegRole::Stale(1)),
        // A leg in sync lacks at most one update: this is an old copy, or has another history.
        (newest(9, both), other(7, both), false, LegRole::Old),
        // It was absent, or failed during update 5.
        (newest(9, without_2(6)), other(5, both), true, LegRole::Stale(1)),
        (newest(9, without_2(6)), other(3, both), true, LegRole::Stale(1)),
        // It was used after it was called missing.
        (newest(9, without_2(6)), other(6, both), true, LegRole::Apart),
        (newest(9, without_2(6)), other(8, without_1(6)), true, LegRole::Apart),
        // It was used alone from an earlier update on, which the other leg had completed.
        (newest(9, without_2(6)), other(5, without_1(5)), true, LegRole::Apart),
        // A rebuild in progress.
        (newest(9, [(1, IN_SYNC, 1), (2, BEHIND, 6)]), other(5, both), true, LegRole::Stale(1)),
        (
            newest(9, [(1, IN_SYNC, 1), (2, BEHIND, 6)]),
            other(9, [(1, IN_SYNC, 1), (2, BEHIND, 6)]),
            true,
            LegRole::Leg(1),
        ),
        // It failed during a rebuild, or is an old copy: its progress may not be the recorded one.
        (
            newest(9, [(1, IN_SYNC, 1), (2, BEHIND, 6)]),
            other(8, [(1, IN_SYNC, 1), (2, BEHIND, 6)]),
            true,
            LegRole::Stale(1),
        ),
        // The leg with the newest superblock was behind until update 8, which the other one missed.
        (
            newest(9, [(1, IN_SYNC, 8), (2, MISSING, 7)]),
            other(6, without_1(4)),
            true,
            LegRole::Stale(1),
        ),
        // The end of a rebuild was interrupted.
        (
            newest(9, [(1, IN_SYNC, 1), (2, IN_SYNC, 9)]),
            other(8, [(1, IN_SYNC, 1), (2, BEHIND, 6)]),
            false,
            LegRole::Leg(1),
        ),
        // A former leg, and a leg that continued without the leg that replaced it elsewhere.
        (newest(9, [(1, IN_SYNC, 1), (3, BEHIND, 6)]), other(5, both), true, LegRole::Replaced),
        (newest(9, both), other(8, [(1, IN_SYNC, 1), (3, IN_SYNC, 5)]), true, LegRole::Apart),
    ] {
        let found = role(&newest, &own, second_phase);
        assert_eq!(found, expected, "{newest:?} {own:?}");
    }
}

/// Pools of two pairs: the other pair shows whether an update was completed.
#[test]
fn other_pair_tells_split_from_interrupted_update() {
    let leg =
        |id, state, since| LegRecord { id: PoolId([id; 16]), size_bytes: 1 << 30, state, since };
    let two = |device, update, first: [LegRecord; LEGS], second: [LegRecord; LEGS]| Superblock {
        pairs: vec![first, second],
        ..superblock(device, update, [(1, IN_SYNC, 1), (2, IN_SYNC, 1)])
    };
    let whole = [leg(1, IN_SYNC, 1), leg(2, IN_SYNC, 1)];
    let [missing_3, missing_4] = [11, 10].map(|since| leg(since as u8 % 2 + 3, MISSING, since));
    let missing_3 = LegRecord { id: PoolId([3; 16]), ..missing_3 };
    let missing_4 = LegRecord { id: PoolId([4; 16]), ..missing_4 };
    // Update 10 reached only device 3, and was left out by the next opening.
    let newest = two(0, 11, whole, [missing_3, leg(4, IN_SYNC, 1)]);
    let own = two(2, 10, whole, [leg(3, IN_SYNC, 1), missing_4]);
    assert_eq!(role(&newest, &own, true), LegRole::Stale(2));
    // Device 3 continued without 4, and devices 1 and 2 are not the pair that 4 had.
    let own = two(2, 10, [leg(1, MISSING, 9), leg(2, MISSING, 9)], [leg(3, IN_SYNC, 1), missing_4]);
    assert_eq!(role(&newest, &own, true), LegRole::Apart);
    // Device 1 was replaced by 5, and continued without 2 before: whichever superblock is newest.
    let replaced = [leg(5, IN_SYNC, 20), leg(2, IN_SYNC, 1)];
    let alone = superblock(0, 15, [(1, IN_SYNC, 1), (2, MISSING, 7)]);
    for device in [0, 1] {
        let newest = Superblock {
            pairs: vec![replaced],
            ..superblock(device, 25, [(5, IN_SYNC, 20), (2, IN_SYNC, 1)])
        };
        assert_eq!(role(&newest, &alone, true), LegRole::Apart);
    }
}

#[test]
fn device_without_a_leg_in_sync_is_lost() {
    let newest = superblock(0, 9, [(1, IN_SYNC, 1), (2, BEHIND, 6)]);
    assert_eq!(lost(&newest, &[0, 1]), None);
    assert_eq!(lost(&newest, &[0]), None);
    assert!(matches!(lost(&newest, &[1]), Some(PoolError::NoCopy { .. })));
    assert!(lost(&newest, &[]).is_some());
}
