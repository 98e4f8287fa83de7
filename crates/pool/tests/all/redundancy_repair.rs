//! Pools with redundancy: damage of one copy, found by reads, the cleaner and an offline check.

use flagstone_pool::Pool;
use flagstone_runtime::block_on;

use crate::redundancy::{create, disk, fill, holds};

fn repaired(pool: &Pool) -> u64 {
    pool.status().redundancy.unwrap().repaired_blocks
}

/// Other devices rewrite a sector that cannot be read when it is written.
#[test]
fn unreadable_block_is_rewritten_from_the_other_copy() {
    for damaged in 0..2 {
        block_on(async {
            let (a, b) = (disk("/a"), disk("/b"));
            let disks = [&a, &b];
            let (pool, volume) = create(&disks).await;
            fill(&volume, 1).await;
            pool.checkpoint().await.unwrap();
            disks[damaged].control.fail_reads(1 << 20..32 << 20);
            holds(&volume, 1).await;
            assert!(repaired(&pool) > 0);
            assert_eq!(pool.status().failed, None);
        })
        .unwrap();
    }
}
