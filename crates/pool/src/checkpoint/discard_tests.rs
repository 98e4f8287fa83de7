//! Tests of long discards.

use std::sync::Arc;

use flagstone_blockdev::stats::{CallKind, StatsLayer};
use flagstone_blockdev::{BlockDevice as _, MemoryDevice};
use flagstone_runtime::rng::mix64;
use flagstone_runtime::task::yield_now;
use flagstone_runtime::{Buf, block_on, spawn};

use crate::limits::{BLOCK_BYTES, MAP_CACHE_BYTES, ZERO_RECORD_LEAVES, ZEROED_LEAVES_MAX};
use crate::manage::shared::MaintenanceWork;
use crate::ondisk::page::FANOUT;
use crate::{CreateOptions, NamedDevice, Pool, VolumeOptions};

const LEAF_BYTES: u64 = (FANOUT * BLOCK_BYTES) as u64;

fn options() -> CreateOptions {
    CreateOptions { segment_blocks: 64, ..CreateOptions::new("fast") }
}

fn thin(size_bytes: u64) -> VolumeOptions {
    VolumeOptions { size_bytes, ..VolumeOptions::default() }
}

/// Regression: a checkpoint read each leaf twice if the cache has no room for all of them.
#[test]
fn long_discard_reads_each_leaf_once() {
    block_on(async {
        let size = (1 << 20) + 256 * 64 * BLOCK_BYTES as u64;
        let device = Arc::new(MemoryDevice::new(size, 512).unwrap());
        let (device, counters) = StatsLayer::new(device);
        let device = NamedDevice { name: "/a".to_owned(), device: Arc::new(device) };
        let pool = Pool::create(vec![device], &options()).await.unwrap();
        let leaves = 600;
        let db = pool.create_volume("db", &thin(leaves * LEAF_BYTES)).await.unwrap();
        for leaf in 0..leaves {
            let data = Buf::copy_of(&[7; BLOCK_BYTES]).unwrap();
            db.write(leaf * LEAF_BYTES, data, false).await.unwrap();
        }
        pool.checkpoint().await.unwrap();
        pool.set_map_cache(*MAP_CACHE_BYTES.start()).unwrap();
        let reads = || counters.totals().of(CallKind::Read).count;
        let before = reads();
        db.discard(0, leaves * LEAF_BYTES).await.unwrap();
        pool.checkpoint().await.unwrap();
        let found = reads() - before;
        assert!(found <= leaves + 100, "{found} reads");
        assert_eq!(pool.volume("db").unwrap().used_bytes, 0);
    })
    .unwrap();
}

/// Regression: the cleaner had no turn while checkpoints were wanted.
#[test]
fn checkpoints_and_cleaning_take_turns() {
    block_on(async {
        let device = Arc::new(MemoryDevice::new(64 << 20, 512).unwrap());
        let device = NamedDevice { name: "/a".to_owned(), device };
        let pool = Pool::create(vec![device], &options()).await.unwrap();
        let mut state = pool.shared().state.lock();
        let (wanted, task) = (state.wanted, state.maintenance);
        let mut works = Vec::new();
        for _ in 0..6 {
            (state.wanted.checkpoint, state.wanted.cleaning) = (true, true);
            works.extend(state.next_work());
        }
        let passes = works.iter().filter(|work| **work == MaintenanceWork::Clean).count();
        assert_eq!((works.len(), passes), (6, 3), "{works:?}");
        (state.wanted, state.maintenance) = (wanted, task);
    })
    .unwrap();
}

/// The checkpoints of a discard neither keep the cleaner from its work nor count as its passes: the
/// pool is not full.
#[test]
fn writes_find_room_beside_a_long_discard() {
    block_on(async {
        let block = BLOCK_BYTES as u64;
        let device = Arc::new(MemoryDevice::new((1 << 20) + 256 * 64 * block, 512).unwrap());
        let device = NamedDevice { name: "/a".to_owned(), device };
        let pool = Pool::create(vec![device], &options()).await.unwrap();
        let shared = pool.shared();
        let size = shared.state.lock().sizes.capacity / 2;
        let db = pool.create_volume("db", &thin(size * block)).await.unwrap();
        let empty = pool.create_volume("empty", &thin(128 << 40)).await.unwrap();
        let write = async |at: u64| {
            let data = Buf::copy_of(&[7; BLOCK_BYTES]).unwrap();
            db.write(mix64(at) % size * block, data, false).await
        };
        for at in 0..4 * size {
            write(at).await.unwrap();
        }
        // More records wait than one table takes, so that a checkpoint is wanted all the time.
        let discard = |part: u64| {
            let empty = empty.clone();
            spawn(async move { empty.discard(part << 40, 1 << 40).await })
        };
        let discards: Vec<_> = (0..128).map(discard).collect();
        let mut at = 4 * size;
        while !discards.iter().all(|discard| discard.is_finished()) {
            assert_eq!(write(at).await, Ok(()), "write {at}");
            at += 1;
        }
        for discard in discards {
            discard.await.unwrap().unwrap();
        }
    })
    .unwrap();
}

/// Regression: one checkpoint merged a whole discard, and all changes of the pool waited for it.
/// The leaves that one checkpoint reads are bounded, and those of holes are not counted.
#[test]
fn long_discard_is_spread_over_checkpoints() {
    block_on(async {
        let block = BLOCK_BYTES as u64;
        let device = Arc::new(MemoryDevice::new((1 << 20) + 1024 * 64 * block, 512).unwrap());
        let device = NamedDevice { name: "/a".to_owned(), device };
        let pool = Pool::create(vec![device], &options()).await.unwrap();
        let leaves = 3 * ZEROED_LEAVES_MAX;
        let db = pool.create_volume("db", &thin(1 << 44)).await.unwrap();
        for leaf in 0..leaves {
            let data = Buf::copy_of(&[7; BLOCK_BYTES]).unwrap();
            db.write(leaf * LEAF_BYTES, data, false).await.unwrap();
        }
        pool.checkpoint().await.unwrap();
        let shared = pool.shared();
        let turn = pool.maintenance_turn().await.unwrap();
        let own = db.clone();
        let discard = spawn(async move { own.discard(0, 1 << 44).await });
        while !shared.state.lock().wanted.checkpoint {
            yield_now().await;
        }
        let (found, before) = {
            let state = shared.state.lock();
            (state.zeroed_leaves, state.checkpoints)
        };
        let most = ZEROED_LEAVES_MAX + ZERO_RECORD_LEAVES;
        assert!((ZEROED_LEAVES_MAX..most).contains(&found), "{found} leaves");
        drop(turn);
        discard.await.unwrap().unwrap();
        pool.checkpoint().await.unwrap();
        assert_eq!(pool.volume("db").unwrap().used_bytes, 0);
        // 16 TiB have 1,024 records, of which one checkpoint takes 64.
        let checkpoints = shared.state.lock().checkpoints - before;
        assert!((3..=30).contains(&checkpoints), "{checkpoints} checkpoints");
    })
    .unwrap();
}
