//! Devices that come back as others: smaller, larger, exchanged, empty, damaged.

use std::sync::Arc;

use flagstone_blockdev::{Fault, FaultConfig, MemoryDevice};
use flagstone_runtime::block_on;

use super::*;
use crate::limits::HOT_MIN;
use crate::replica::{Create, Replica, ReplicaError, read_superblock};

/// Blocks of hosts.
const BLOCKS: u64 = 101;
/// Of the device: these, a header and a record twice, a page of the bitmap, two superblocks.
const PAGES: u64 = BLOCKS + 2 + 2 + 1 + 2;
const LOG_BYTES: u64 = 64 << 10;

fn memory(bytes: u64) -> SharedDevice {
    Arc::new(MemoryDevice::new(bytes, 4096).expect("a size of blocks"))
}

/// A replica with its log there or apart.
async fn made(apart: bool) -> (SharedDevice, Option<SharedDevice>) {
    let (device, log) = (memory(PAGES * PAGE), apart.then(|| memory(LOG_BYTES)));
    let shape =
        Shape { usable_bytes: PAGE, bit_bytes: 4096, region_bytes: 4096, hot_regions: HOT_MIN };
    let create = Create { volume: Uuid([7; 16]), with_data: true, shape };
    Replica::create(device.clone(), log.clone(), create).await.expect("sound devices");
    (device, log)
}

async fn page_of(device: &SharedDevice, at: u64) -> Vec<u8> {
    device.read(at, buf::alloc(PAGE_BYTES).await).await.expect("a sound device").to_vec()
}

/// What a device of so many pages has when all of another was copied to it that it has room for.
async fn copied(from: &SharedDevice, pages: u64) -> SharedDevice {
    let (to, here) = (memory(pages * PAGE), from.geometry().size_bytes / PAGE);
    for page in 0..pages.min(here) {
        let mut data = buf::alloc(PAGE_BYTES).await;
        data.copy_from_slice(&page_of(from, page * PAGE).await);
        to.write(page * PAGE, data.freeze(), false).await.expect("a sound device");
    }
    to
}

async fn none_is_found(device: &SharedDevice) {
    let found = read_superblock(device).await.map(|found| found.replica);
    assert!(matches!(found, Err(ReplicaError::Superblock(_))), "{found:?}");
}

#[test]
fn a_device_that_became_smaller_is_told_by_the_log_that_is_left_of_it() {
    block_on(async {
        let (device, _) = made(false).await;
        let replica = read_superblock(&device).await.expect("it is there").replica;
        for cut in 1..=PAGES - 4 {
            let smaller = copied(&device, PAGES - cut).await;
            none_is_found(&smaller).await;
            let found = trace(&smaller, None).await.expect("a sound device");
            // Two headers, the first of which is the last to go.
            match found {
                Some(Trace::LogInside(owner, before_end)) => {
                    assert!(cut <= 6, "{cut}");
                    assert_eq!((owner.replica, owner.device_bytes()), (replica, PAGES * PAGE));
                    let header = if cut <= 5 { BLOCKS + 1 } else { BLOCKS };
                    assert_eq!(before_end, (PAGES - cut - header) * PAGE);
                }
                // It has lost all that was not data, and nothing tells of it.
                found => assert!(found.is_none() && cut > 6, "{cut}: {found:?}"),
            }
        }
    })
    .expect("an executor");
}

#[test]
fn a_log_apart_tells_of_its_replica_whatever_the_device_has_become() {
    block_on(async {
        let (device, log) = made(true).await;
        let superblock = read_superblock(&device).await.expect("it is there");
        // Smaller; larger by what nobody looks for; and an empty one of the same size.
        let odd = copied(&device, PAGES + 50_001).await;
        let others =
            [copied(&device, PAGES - 1).await, copied(&device, 4).await, odd, memory(PAGES * PAGE)];
        for other in &others {
            none_is_found(other).await;
            let found = trace(other, log.as_ref()).await.expect("sound devices");
            let Some(Trace::LogApart(owner)) = found else { panic!("{found:?}") };
            assert_eq!(owner.replica, superblock.replica);
            assert_eq!(owner.shape, superblock.shape);
            assert_eq!(owner.device_bytes(), PAGES * PAGE);
        }
        // Without the log nothing tells of it on these.
        assert_eq!(trace(&others[3], None).await, Ok(None));
        assert_eq!(trace(&others[3], Some(&memory(LOG_BYTES))).await, Ok(None));
        assert_eq!(trace(&memory(PAGE), log.as_ref()).await, Ok(None), "no room for anything");
    })
    .expect("an executor");
}

#[test]
fn a_superblock_that_is_damaged_or_of_another_size_is_not_overlooked() {
    block_on(async {
        let (device, _) = made(false).await;
        // As `dd seek=` would put it at the end of a larger device.
        let moved = memory((PAGES + 50_001) * PAGE);
        for (from, to) in [(PAGES - 2, PAGES + 49_999), (PAGES - 1, PAGES + 50_000)] {
            let mut data = buf::alloc(PAGE_BYTES).await;
            data.copy_from_slice(&page_of(&device, from * PAGE).await);
            moved.write(to * PAGE, data.freeze(), false).await.expect("a sound device");
        }
        none_is_found(&moved).await;
        let found = trace(&moved, None).await;
        assert_eq!(found, Ok(Some(Trace::Superblock(FormatError::Foreign))));

        for slot in [PAGES - 2, PAGES - 1] {
            let mut data = buf::alloc(PAGE_BYTES).await;
            data.copy_from_slice(&page_of(&device, slot * PAGE).await);
            data[100] ^= 1;
            device.write(slot * PAGE, data.freeze(), false).await.expect("a sound device");
        }
        none_is_found(&device).await;
        let found = trace(&device, None).await;
        assert_eq!(found, Ok(Some(Trace::Superblock(FormatError::Checksum))));
    })
    .expect("an executor");
}

#[test]
fn one_that_is_forgotten_leaves_no_trace() {
    block_on(async {
        for apart in [false, true] {
            let (device, log) = made(apart).await;
            Replica::forget(&device, log.as_ref()).await.expect("sound devices");
            none_is_found(&device).await;
            assert_eq!(trace(&device, log.as_ref()).await, Ok(None));
        }
    })
    .expect("an executor");
}

/// An older superblock may say that the data is whole where the latest does not.
#[test]
fn one_that_is_made_over_another_never_leaves_one_of_the_past() {
    block_on(async {
        for updates in 2..4 {
            let (device, _) = made(false).await;
            let replica = Replica::open(device.clone(), None).await.expect("it is there");
            for epoch in 0..updates {
                replica.update(|superblock| superblock.epoch = epoch).await.expect("sound");
            }
            let latest = replica.superblock();
            let (fault, control) =
                Fault::new(device.clone(), FaultConfig::default()).expect("no rates");
            let older = PAGES - 2 + (1 - (latest.sequence & 1));
            control.fail_writes(older * PAGE..(older + 1) * PAGE);
            let create = Create { volume: latest.volume, with_data: false, shape: latest.shape };
            let made = Replica::create(Arc::new(fault), None, create).await;
            assert!(made.is_err(), "a superblock cannot be written");
            let found = read_superblock(&device).await.map(|found| found.sequence);
            assert_eq!(found, Ok(latest.sequence));
        }
    })
    .expect("an executor");
}

#[test]
fn a_page_that_cannot_be_read_hides_no_other() {
    block_on(async {
        let (device, _) = made(false).await;
        let smaller = copied(&device, PAGES - 3).await;
        let (fault, control) = Fault::new(smaller, FaultConfig::default()).expect("no rates");
        let fault: SharedDevice = Arc::new(fault);
        control.fail_reads((BLOCKS + 1) * PAGE..(BLOCKS + 2) * PAGE);
        let found = trace(&fault, None).await.expect("the other header");
        assert!(
            matches!(found, Some(Trace::LogInside(_, before)) if before == 4 * PAGE),
            "{found:?}"
        );
        control.heal();
        control.set_unreachable(true);
        assert_eq!(trace(&fault, None).await, Err(IoError::Unreachable));
    })
    .expect("an executor");
}

/// The log's devices of two replicas were exchanged for each other.
#[test]
fn the_log_of_another_replica_is_left_as_it_is() {
    block_on(async {
        let (device, own) = made(true).await;
        let (_, others) = made(true).await;
        let others = others.expect("it was made apart");
        let before = [page_of(&others, 0).await, page_of(&others, PAGE).await];
        let opened = Replica::open(device.clone(), Some(others.clone())).await;
        let error = opened.map(|_| ()).expect_err("the log is another's");
        assert!(matches!(error, ReplicaError::OthersLog { .. }), "{error}");
        assert_eq!([page_of(&others, 0).await, page_of(&others, PAGE).await], before);
        let replica = Replica::open(device, own).await.expect("with its own");
        assert_eq!(replica.lost(), None);
    })
    .expect("an executor");
}

/// A device of other blocks has its replica where it was, and one of blocks larger than a page is
/// refused, not taken for empty.
#[test]
fn blocks_of_another_size_change_nothing_up_to_a_page() {
    block_on(async {
        let (device, _) = made(false).await;
        for block in [512, 4096, 8192] {
            let memory = MemoryDevice::new(PAGES * PAGE, block).expect("a size of blocks");
            let other: SharedDevice = Arc::new(memory);
            for at in (0..PAGES * PAGE).step_by(2 * PAGE_BYTES) {
                let mut data = buf::alloc(2 * PAGE_BYTES).await;
                data[..PAGE_BYTES].copy_from_slice(&page_of(&device, at).await);
                data[PAGE_BYTES..].copy_from_slice(&page_of(&device, at + PAGE).await);
                other.write(at, data.freeze(), false).await.expect("a sound device");
            }
            let opened = Replica::open(other, None).await.map(|replica| replica.lost());
            let expected = if block > 4096 { Err(ReplicaError::Blocks(block)) } else { Ok(None) };
            assert_eq!(opened, expected, "{block}");
        }
    })
    .expect("an executor");
}
