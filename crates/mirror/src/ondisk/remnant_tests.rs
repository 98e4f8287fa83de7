//! Devices that return changed: smaller, larger, swapped, empty or damaged.

use std::sync::Arc;

use flagstone_blockdev::{FaultConfig, FaultLayer, MemoryDevice};
use flagstone_runtime::block_on;

use super::*;
use crate::limits::ACTIVE_REGIONS_MIN;
use crate::manage::replica::{CreateReplica, Replica, ReplicaError, read_superblock};

/// Blocks of host data.
const BLOCKS: u64 = 101;
/// Pages of the device: these blocks, two headers, two records, one bitmap page, two superblocks.
const PAGES: u64 = BLOCKS + 2 + 2 + 1 + 2;
const LOG_BYTES: u64 = 64 << 10;

fn memory(bytes: u64) -> SharedDevice {
    Arc::new(MemoryDevice::new(bytes, 4096).expect("a multiple of the block size"))
}

/// A replica with its log on the same device or on its own.
async fn made(apart: bool) -> (SharedDevice, Option<SharedDevice>) {
    let (device, log) = (memory(PAGES * PAGE), apart.then(|| memory(LOG_BYTES)));
    let geometry = ReplicaGeometry {
        usable_bytes: PAGE,
        bit_bytes: 4096,
        region_bytes: 4096,
        active_regions_max: ACTIVE_REGIONS_MIN,
    };
    let create =
        CreateReplica { volume: MirrorId([7; 16]), with_data: true, zeroes: false, geometry };
    Replica::create(device.clone(), log.clone(), create).await.expect("the devices work");
    (device, log)
}

async fn page_of(device: &SharedDevice, at: u64) -> Vec<u8> {
    device.read(at, buf::alloc(PAGE_BYTES).await).await.expect("the device works").to_vec()
}

/// A device of `pages` pages after as much of another device as fits was copied to it.
async fn copied(from: &SharedDevice, pages: u64) -> SharedDevice {
    let (to, here) = (memory(pages * PAGE), from.geometry().size_bytes / PAGE);
    for page in 0..pages.min(here) {
        let mut data = buf::alloc(PAGE_BYTES).await;
        data.copy_from_slice(&page_of(from, page * PAGE).await);
        to.write(page * PAGE, data.freeze(), false).await.expect("the device works");
    }
    to
}

async fn none_is_found(device: &SharedDevice) {
    let found = read_superblock(device).await.map(|found| found.replica);
    assert!(matches!(found, Err(ReplicaError::Superblock(_))), "{found:?}");
}

#[test]
fn shrunk_device_is_recognized_by_its_log() {
    block_on(async {
        let (device, _) = made(false).await;
        let replica = read_superblock(&device).await.expect("the superblock is found").replica;
        for cut in 1..=PAGES - 4 {
            let smaller = copied(&device, PAGES - cut).await;
            none_is_found(&smaller).await;
            let found = find_remnant(&smaller, None).await.expect("the device works");
            // Two headers, of which the first goes last.
            match found {
                Some(Remnant::LogOnDataDevice(owner, before_end)) => {
                    assert!(cut <= 6, "{cut}");
                    assert_eq!((owner.replica, owner.device_bytes()), (replica, PAGES * PAGE));
                    let header = if cut <= 5 { BLOCKS + 1 } else { BLOCKS };
                    assert_eq!(before_end, (PAGES - cut - header) * PAGE);
                }
                // Only host data is left, so there is no remnant.
                found => assert!(found.is_none() && cut > 6, "{cut}: {found:?}"),
            }
        }
    })
    .expect("the executor runs");
}

#[test]
fn separate_log_identifies_its_replica() {
    block_on(async {
        let (device, log) = made(true).await;
        let superblock = read_superblock(&device).await.expect("the superblock is found");
        // Smaller; larger by an unlikely amount; and an empty one of the same size.
        let odd = copied(&device, PAGES + 50_001).await;
        let others =
            [copied(&device, PAGES - 1).await, copied(&device, 4).await, odd, memory(PAGES * PAGE)];
        for other in &others {
            none_is_found(other).await;
            let found = find_remnant(other, log.as_ref()).await.expect("the devices work");
            let Some(Remnant::LogOnLogDevice(owner)) = found else { panic!("{found:?}") };
            assert_eq!(owner.replica, superblock.replica);
            assert_eq!(owner.geometry, superblock.geometry);
            assert_eq!(owner.device_bytes(), PAGES * PAGE);
        }
        // Without the log there is no remnant on these.
        assert_eq!(find_remnant(&others[3], None).await, Ok(None));
        assert_eq!(find_remnant(&others[3], Some(&memory(LOG_BYTES))).await, Ok(None));
        assert_eq!(
            find_remnant(&memory(PAGE), log.as_ref()).await,
            Ok(None),
            "no room for anything"
        );
    })
    .expect("the executor runs");
}

#[test]
fn damaged_or_moved_superblock_is_found() {
    block_on(async {
        let (device, _) = made(false).await;
        // As `dd seek=` places it at the end of a larger device.
        let moved = memory((PAGES + 50_001) * PAGE);
        for (from, to) in [(PAGES - 2, PAGES + 49_999), (PAGES - 1, PAGES + 50_000)] {
            let mut data = buf::alloc(PAGE_BYTES).await;
            data.copy_from_slice(&page_of(&device, from * PAGE).await);
            moved.write(to * PAGE, data.freeze(), false).await.expect("the device works");
        }
        none_is_found(&moved).await;
        let found = find_remnant(&moved, None).await;
        assert_eq!(found, Ok(Some(Remnant::Superblock(FormatError::Foreign))));

        for slot in [PAGES - 2, PAGES - 1] {
            let mut data = buf::alloc(PAGE_BYTES).await;
            data.copy_from_slice(&page_of(&device, slot * PAGE).await);
            data[100] ^= 1;
            device.write(slot * PAGE, data.freeze(), false).await.expect("the device works");
        }
        none_is_found(&device).await;
        let found = find_remnant(&device, None).await;
        assert_eq!(found, Ok(Some(Remnant::Superblock(FormatError::Checksum))));
    })
    .expect("the executor runs");
}

#[test]
fn removed_replica_leaves_no_remnant() {
    block_on(async {
        for apart in [false, true] {
            let (device, log) = made(apart).await;
            Replica::forget(&device, log.as_ref()).await.expect("the devices work");
            none_is_found(&device).await;
            assert_eq!(find_remnant(&device, log.as_ref()).await, Ok(None));
        }
    })
    .expect("the executor runs");
}

/// An older superblock could claim that the data is consistent when the latest does not.
#[test]
fn recreation_never_exposes_old_superblock() {
    block_on(async {
        for updates in 2..4 {
            let (device, _) = made(false).await;
            let replica =
                Replica::open(device.clone(), None).await.expect("the superblock is found");
            for epoch in 0..updates {
                replica.update(|superblock| superblock.epoch = epoch).await.expect("sound");
            }
            let latest = replica.superblock();
            let (fault, control) =
                FaultLayer::new(device.clone(), FaultConfig::default()).expect("no fault rates");
            let older = PAGES - 2 + (1 - (latest.sequence & 1));
            control.fail_writes(older * PAGE..(older + 1) * PAGE);
            let create = CreateReplica {
                volume: latest.volume,
                with_data: false,
                zeroes: false,
                geometry: latest.geometry,
            };
            let made = Replica::create(Arc::new(fault), None, create).await;
            assert!(made.is_err(), "a superblock cannot be written");
            let found = read_superblock(&device).await.map(|found| found.sequence);
            assert_eq!(found, Ok(latest.sequence));
        }
    })
    .expect("the executor runs");
}

#[test]
fn unreadable_page_hides_no_other_page() {
    block_on(async {
        let (device, _) = made(false).await;
        let smaller = copied(&device, PAGES - 3).await;
        let (fault, control) =
            FaultLayer::new(smaller, FaultConfig::default()).expect("no fault rates");
        let fault: SharedDevice = Arc::new(fault);
        control.fail_reads((BLOCKS + 1) * PAGE..(BLOCKS + 2) * PAGE);
        let found = find_remnant(&fault, None).await.expect("the other header");
        assert!(
            matches!(found, Some(Remnant::LogOnDataDevice(_, before)) if before == 4 * PAGE),
            "{found:?}"
        );
        control.heal();
        control.set_unreachable(true);
        assert_eq!(find_remnant(&fault, None).await, Err(IoError::Unreachable));
    })
    .expect("the executor runs");
}

/// The log devices of two replicas were swapped.
#[test]
fn swapped_log_device_is_refused_unchanged() {
    block_on(async {
        let (device, own) = made(true).await;
        let (_, others) = made(true).await;
        let others = others.expect("the log has its own device");
        let before = [page_of(&others, 0).await, page_of(&others, PAGE).await];
        let opened = Replica::open(device.clone(), Some(others.clone())).await;
        let error = opened.map(|_| ()).expect_err("the log belongs to another replica");
        assert!(matches!(error, ReplicaError::ForeignLog { .. }), "{error}");
        assert_eq!([page_of(&others, 0).await, page_of(&others, PAGE).await], before);
        let replica = Replica::open(device, own).await.expect("the replica opens with its own log");
        assert_eq!(replica.log_lost(), None);
    })
    .expect("the executor runs");
}

/// A device with another block size has its replica in the same place. Blocks larger than a page
/// are refused, and the device is not taken for empty.
#[test]
fn block_sizes_up_to_a_page_are_accepted() {
    block_on(async {
        let (device, _) = made(false).await;
        for block in [512, 4096, 8192] {
            let memory =
                MemoryDevice::new(PAGES * PAGE, block).expect("a multiple of the block size");
            let other: SharedDevice = Arc::new(memory);
            for at in (0..PAGES * PAGE).step_by(2 * PAGE_BYTES) {
                let mut data = buf::alloc(2 * PAGE_BYTES).await;
                data[..PAGE_BYTES].copy_from_slice(&page_of(&device, at).await);
                data[PAGE_BYTES..].copy_from_slice(&page_of(&device, at + PAGE).await);
                other.write(at, data.freeze(), false).await.expect("the device works");
            }
            let opened = Replica::open(other, None).await.map(|replica| replica.log_lost());
            let expected =
                if block > 4096 { Err(ReplicaError::BlockSize(block)) } else { Ok(None) };
            assert_eq!(opened, expected, "{block}");
        }
    })
    .expect("the executor runs");
}
