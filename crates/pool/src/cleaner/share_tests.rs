//! Tests of the scan, driven step by step: hints that are wrong, and units that are in more leaves
//! than a pass may move.

use std::sync::Arc;

use flagstone_blockdev::{BlockDevice as _, MemoryDevice};
use flagstone_runtime::{Buf, block_on, buf};

use super::*;
use crate::manage::shared::MaintenancePause;
use crate::ondisk::chunk::ChunkRecord;
use crate::ondisk::entry::MapEntry;
use crate::ondisk::page::FANOUT;
use crate::{CreateOptions, DEDUP_PROPERTY, NamedDevice, Pool, PoolVolume, VolumeOptions};

const BLOCK: u64 = BLOCK_BYTES as u64;

async fn pool() -> Pool {
    let device = MemoryDevice::new((1 << 20) + 64 * 128 * BLOCK, 512).unwrap();
    let devices = vec![NamedDevice { name: "/a".to_owned(), device: Arc::new(device) }];
    let options = CreateOptions { segment_blocks: 128, ..CreateOptions::new("fast") };
    Pool::create(devices, &options).await.unwrap()
}

fn options(blocks: u64) -> VolumeOptions {
    let properties = [(DEDUP_PROPERTY.to_owned(), "on".to_owned())].into();
    VolumeOptions { size_bytes: blocks * BLOCK, properties, ..VolumeOptions::default() }
}

/// Noise that does not compress; the same for each block of a stamp.
fn content(stamp: u64) -> Vec<u8> {
    let mut rng = flagstone_runtime::rng::Rng::new(stamp);
    (0..BLOCK / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect()
}

async fn write(volume: &PoolVolume, at: u64, stamp: u64) {
    volume.write(at * BLOCK, Buf::copy_of(&content(stamp)).unwrap(), false).await.unwrap();
}

/// Writes a segment of other blocks.
async fn fill(volume: &PoolVolume, first: u64) {
    for at in first..first + 70 {
        write(volume, at, 1000 + at).await;
    }
}

async fn is_content(volume: &PoolVolume, at: u64, stamp: u64) -> bool {
    let read = volume.read(at * BLOCK, buf::alloc(BLOCK_BYTES).await).await.unwrap();
    read[..] == content(stamp)
}

/// Closes the written segments, and keeps the maintenance task from scanning them by itself.
async fn held(pool: &Pool) -> &Shared {
    pool.checkpoint().await.unwrap();
    pool.checkpoint().await.unwrap();
    let shared = pool.shared();
    shared.state.lock().pause = MaintenancePause::Held;
    shared
}

async fn scan_all(shared: &Shared) {
    while shared.state.lock().can_share() {
        shared.share().await.unwrap();
    }
}

/// The only volume.
fn volume_id(shared: &Shared) -> u32 {
    shared.state.lock().volume_table.present().next().unwrap().id
}

/// Entry of a block in the map of a volume.
async fn entry(shared: &Shared, volume: u32, at: u64) -> MapEntry {
    let tree = shared.state.lock().trees[&volume];
    tree.lookup(&shared.storage, &shared.cache, at).await.unwrap()
}

/// Location of a block of a volume.
async fn location(shared: &Shared, volume: u32, at: u64) -> u64 {
    entry(shared, volume, at).await.location
}

/// Enters a hint for a content.
fn put_hint(shared: &Shared, stamp: u64, hint: Hint) {
    let mut state = shared.state.lock();
    let (fingerprints, mut index) = state.dedup.take_index(shared.storage.layout.blocks());
    index.put(fingerprints.of(Domain::of(""), &content(stamp)), hint);
    state.dedup.return_index((fingerprints, index));
}

/// A fingerprint that two contents have in common, and hints of which the block is gone, is in a
/// payload, was never written, or is in another chunk now.
#[test]
fn wrong_hints_share_no_unequal_blocks() {
    block_on(async {
        let pool = pool().await;
        let volume = pool.create_volume("v", &options(300)).await.unwrap();
        for at in 0..100 {
            write(&volume, at, 1 + at).await;
        }
        let shared = held(&pool).await;
        let id = volume_id(shared);
        let other = location(shared, id, 50).await;
        let layout = &shared.storage.layout;
        let free = layout.first_block(layout.segments() - 1) + 5;
        let wrong = [(other, 1), (other, 200), (other + 1, 3), (free, 1), (free, 5)];
        let (fingerprints, mut index) = shared.state.lock().dedup.take_index(layout.blocks());
        let fingerprint = |at: u64| fingerprints.of(Domain::of(""), &content(1 + at));
        for at in 0..50 {
            let own = (location(shared, id, at).await, 9);
            let (location, distance) = *wrong.get(at as usize % 6).unwrap_or(&own);
            index.put(fingerprint(at), Hint { location, distance });
        }
        let prints: Vec<u64> = (0..50).map(fingerprint).collect();
        shared.state.lock().dedup.return_index((fingerprints, index));
        scan_all(shared).await;
        assert_eq!(shared.state.lock().cleaned.1, 0, "copied blocks");
        assert_eq!(shared.state.lock().dedup.freed_bytes(), 0);
        let (_, index) = shared.state.lock().dedup.take_index(layout.blocks());
        for (at, print) in (0..).zip(prints) {
            let hint = Hint { location: location(shared, id, at).await, distance: 1 };
            assert_eq!(index.get(print), Some(hint), "the hint is corrected");
        }
        for at in 0..100 {
            assert!(is_content(&volume, at, 1 + at).await, "block {at}");
        }
    })
    .unwrap();
}

/// Eight blocks of a content; after other blocks, `payload` and one more block of this content in
/// one chunk. A hint for the content names the payload as the header. Scans everything, and returns
/// the entry of the last block before and after it.
async fn scanned_with_hinted_payload(payload: &[u8]) -> [MapEntry; 2] {
    let pool = pool().await;
    let volume = pool.create_volume("v", &options(300)).await.unwrap();
    for at in 0..8 {
        write(&volume, at, 1).await;
    }
    fill(&volume, 10).await;
    let data = [payload, &content(1)].concat();
    volume.write(200 * BLOCK, Buf::copy_of(&data).unwrap(), false).await.unwrap();
    fill(&volume, 100).await;
    let shared = held(&pool).await;
    let id = volume_id(shared);
    let before = entry(shared, id, 201).await;
    put_hint(shared, 1, Hint { location: before.location, distance: 1 });
    scan_all(shared).await;
    for at in 0..7 {
        assert!(entry(shared, id, at).await.unit().is_some(), "block {at} is shared");
        assert!(is_content(&volume, at, 1).await, "block {at}");
    }
    assert!(is_content(&volume, 201, 1).await);
    [before, entry(shared, id, 201).await]
}

/// Data of a host that looks like the header of the chunk of the next block. With its birth in the
/// map, the block would be freed while a snapshot has it.
#[test]
fn birth_from_forged_header_gets_into_no_map() {
    block_on(async {
        let [before, _] = scanned_with_hinted_payload(&content(7)).await;
        let record = ChunkRecord::Data { volume: 1, block: 201, count: 1 };
        let forged = ChunkHeader {
            log: 1,
            sequence: (1 << 48) - 1,
            durable: 0,
            block: before.block() - 1,
            following: 0,
            records: vec![record],
            checksums: vec![0],
        };
        let mut payload = [0; BLOCK_BYTES];
        forged.encode(&mut payload);
        let [again, after] = scanned_with_hinted_payload(&payload).await;
        assert_eq!((again.location, again.birth), (before.location, before.birth));
        assert_eq!(after.birth, before.birth);
    })
    .unwrap();
}

/// Checkpoints, cleaning and orders do not wait for the end of a segment.
#[test]
fn step_ends_for_other_work_and_goes_on_there() {
    block_on(async {
        let pool = pool().await;
        let volume = pool.create_volume("v", &options(300)).await.unwrap();
        for at in 0..200 {
            write(&volume, at, 1 + at / 4).await;
        }
        let shared = held(&pool).await;
        let id = volume_id(shared);
        let left = || shared.state.lock().dedup.status(1).unwrap().unscanned_bytes;
        let segments = left();
        for _ in 0..5 {
            shared.state.lock().wanted.cleaning = true;
            shared.share().await.unwrap();
        }
        assert_eq!(left(), segments);
        let first = location(shared, id, 0).await;
        let segment = shared.storage.layout.segment_of(first);
        let position = || shared.state.lock().dedup.position_in(segment).unwrap().chunk;
        let before = position();
        shared.state.lock().wanted.cleaning = true;
        shared.share().await.unwrap();
        assert_eq!(position(), before + 2);
        let mut steps = 0;
        while shared.state.lock().can_share() {
            shared.state.lock().wanted.cleaning = steps % 8 > 0;
            shared.share().await.unwrap();
            steps += 1;
            assert!(steps < 500, "{} segments are left", left());
        }
        for at in 0..200 {
            assert!(is_content(&volume, at, 1 + at / 4).await, "block {at}");
        }
    })
    .unwrap();
}

/// Maps of other volumes would evict from the cache what hosts use.
#[test]
fn scan_reads_no_map_of_volumes_without_dedup() {
    block_on(async {
        let pool = pool().await;
        let volume = pool.create_volume("v", &options(300)).await.unwrap();
        let off = VolumeOptions { properties: [].into(), ..options(300) };
        let off = pool.create_volume("off", &off).await.unwrap();
        for at in 0..150 {
            write(&volume, at, 1 + at).await;
            write(&off, at, 1 + at).await;
        }
        let shared = held(&pool).await;
        let capacity = shared.cache.capacity();
        // Only the other map is left.
        shared.cache.set_capacity(1);
        let id = shared.state.lock().volume_table.by_name("v").unwrap().id;
        location(shared, id, 0).await;
        shared.cache.set_capacity(capacity);
        let tree = |name: &str| {
            let state = shared.state.lock();
            state.trees[&state.volume_table.by_name(name).unwrap().id]
        };
        scan_all(shared).await;
        let is_cached = |name: &str| tree(name).lookup_cached(&shared.cache, 5).is_some();
        assert_eq!((is_cached("v"), is_cached("off")), (true, false));
    })
    .unwrap();
}

/// A segment with such a unit could never be emptied, and its device never be removed.
#[test]
fn blocks_of_unit_in_too_many_leaves_move_alone() {
    block_on(async {
        let pool = pool().await;
        let leaf = FANOUT as u64;
        let volume = pool.create_volume("v", &options(9 * leaf)).await.unwrap();
        // One content in eight leaves. Other blocks fill the segment.
        for at in 0..8 {
            write(&volume, at * leaf, 1).await;
        }
        fill(&volume, 8 * leaf).await;
        let shared = held(&pool).await;
        scan_all(shared).await;
        let id = volume_id(shared);
        let first = location(shared, id, 0).await;
        let unit = crate::ondisk::unit::unit_of(first).expect("the blocks are shared");
        assert_eq!((unit.blocks, unit.stored), (8, 2));
        shared.state.lock().pause = MaintenancePause::None;
        fill(&volume, 8 * leaf + 100).await;
        pool.create_snapshot(&["v"], "s").await.unwrap();
        let shared = held(&pool).await;
        let segment = shared.storage.layout.segment_of(first);
        assert!(shared.state.lock().segments.is_closed(segment));
        // Room for the pages above three of the blocks.
        let mut passes = 0;
        while shared.state.lock().usage.weights[segment as usize] > 0 {
            let mut copies = shared.no_copies(&shared.state.lock());
            (copies.pages_max, copies.leaves_max) = (4, 1000);
            shared.clean_segment(segment, &mut copies).await.unwrap();
            shared.write_copies(&mut copies, true).await.unwrap();
            shared.checkpoint().await.unwrap();
            passes += 1;
            assert!(passes < 20, "the segment is not emptied");
        }
        assert!(passes > 1, "the unit had room as a whole");
        let snapshot = pool.open_snapshot("v@s").unwrap();
        for at in 0..8 {
            assert!(is_content(&volume, at * leaf, 1).await, "block {at}");
            assert!(is_content(&snapshot, at * leaf, 1).await, "block {at} of the snapshot");
        }
    })
    .unwrap();
}
