//! Tests of a replay: limits of what a log may contain.

use std::sync::Arc;

use flagstone_blockdev::{BlockDevice as _, MemoryDevice};
use flagstone_runtime::{Buf, block_on, buf};

use crate::error::PoolError;
use crate::limits::{BLOCK_BYTES, RANGES_MAX, RECENT_MAX, ZERO_BY_BLOCK};
use crate::log::append::chunk_memory;
use crate::manage::shared::Shared;
use crate::ondisk::chunk::{ChunkRecord, SnapshotOrder};
use crate::{CreateOptions, NamedDevice, Pool, VolumeOptions};

/// Records of zeroes in one chunk header.
const RECORDS: u64 = 160;

/// Adds records of `count` zeroes each to the log, without admission.
async fn append_zeroes(shared: &Shared, volume: u32, first: u64, records: u64, count: u64) {
    let all: Vec<ChunkRecord> = (0..records)
        .map(|record| ChunkRecord::Zero { volume, block: first + record * count, count })
        .collect();
    for records in all.chunks(RECORDS as usize) {
        let (entries, ranges) = match count <= ZERO_BY_BLOCK {
            true => (records.len() * count as usize, 0),
            false => (0, records.len()),
        };
        {
            let mut state = shared.state.lock();
            state.admitted = (state.admitted.0 + entries, state.admitted.1 + ranges);
        }
        shared.append(records.to_vec(), chunk_memory(0).await).await.unwrap();
    }
}

/// Device of a pool whose log has `entries` changed blocks and `ranges` ranges of zeroes, half of
/// them before a snapshot if there is one.
async fn pool_with_log(entries: usize, ranges: usize, snapshot: bool) -> NamedDevice {
    let size = (1 << 20) + 64 * 64 * BLOCK_BYTES as u64;
    let device = Arc::new(MemoryDevice::new(size, 512).unwrap());
    let device = NamedDevice { name: "/a".to_owned(), device };
    let options = CreateOptions { segment_blocks: 64, ..CreateOptions::new("fast") };
    let pool = Pool::create(vec![device.clone()], &options).await.unwrap();
    let size = VolumeOptions { size_bytes: 1 << 50, ..VolumeOptions::default() };
    let db = pool.create_volume("db", &size).await.unwrap();
    db.write(0, Buf::copy_of(&[7; BLOCK_BYTES]).unwrap(), false).await.unwrap();
    pool.checkpoint().await.unwrap();
    let turn = pool.maintenance_turn().await.unwrap();
    let shared = pool.shared();
    let volume = *shared.state.lock().volume_table.volumes.keys().next().unwrap();
    let records = entries as u64 / ZERO_BY_BLOCK;
    let range_blocks = ZERO_BY_BLOCK + 1;
    let halves = if snapshot { 2 } else { 1 };
    for half in 0..halves {
        let first = 1000 + half * records / halves * ZERO_BY_BLOCK;
        append_zeroes(shared, volume, first, records / halves, ZERO_BY_BLOCK).await;
        let first = (1 << 30) + half * (1 << 20);
        append_zeroes(shared, volume, first, ranges as u64 / halves, range_blocks).await;
        if snapshot && half == 0 {
            let (name, volumes) = ("a".to_owned(), vec![volume]);
            let order = SnapshotOrder { name, volumes, uuid: Default::default(), created_s: 0 };
            let order = ChunkRecord::Snapshot(Box::new(order));
            shared.append(vec![order], chunk_memory(0).await).await.unwrap();
        }
    }
    shared.flush().await.unwrap();
    drop((db, turn));
    device
}

async fn open(device: NamedDevice) -> Result<Pool, PoolError> {
    let pool = Pool::open(vec![device]).await?;
    let db = pool.open_volume("db").unwrap();
    let read = db.read(0, buf::alloc(BLOCK_BYTES).await).await.unwrap();
    assert!(read.iter().all(|byte| *byte == 7));
    drop(db);
    Ok(pool)
}

/// Two tables, each filled by hosts while a pass of the cleaner added its copies.
#[test]
fn fullest_log_of_an_honest_pool_opens() {
    let entries = 2 * (RECENT_MAX + RECENT_MAX / 2 + 2 * ZERO_BY_BLOCK as usize);
    for snapshot in [false, true] {
        block_on(async {
            let device = pool_with_log(entries, 2 * RANGES_MAX, snapshot).await;
            open(device).await.unwrap();
        })
        .unwrap();
    }
}

/// Regression: 64 MiB of chunk headers took 17 GB of memory at the opening.
#[test]
fn log_with_too_many_changes_is_refused() {
    for (entries, ranges) in [(4 * RECENT_MAX, 0), (0, 2 * RANGES_MAX + 2)] {
        for snapshot in [false, true] {
            block_on(async {
                let device = pool_with_log(entries, ranges, snapshot).await;
                let refused = open(device).await;
                let is_refused = matches!(refused, Err(PoolError::Metadata { .. }));
                assert!(is_refused, "{entries} {ranges} {snapshot}");
            })
            .unwrap();
        }
    }
}
