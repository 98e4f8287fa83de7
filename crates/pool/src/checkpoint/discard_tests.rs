//! Tests of long discards.

use std::sync::Arc;

use flagstone_blockdev::stats::{CallKind, StatsLayer};
use flagstone_blockdev::{BlockDevice as _, MemoryDevice};
use flagstone_runtime::{Buf, block_on};

use crate::limits::{BLOCK_BYTES, MAP_CACHE_BYTES};
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
