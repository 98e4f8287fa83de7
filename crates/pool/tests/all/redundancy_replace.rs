//! Pools with redundancy: replacement of a device at inconvenient times.

use std::sync::Arc;

use flagstone_pool::{NamedDevice, Pool};
use flagstone_runtime::block_on;

use crate::gate::{Call, Gate};
use crate::redundancy::{create, disk, fill, holds, open, rebuilt};

/// Bytes of a segment, which is one copy of a rebuild.
const SEGMENT: usize = 64 * 4096;

/// The rebuild of the former device once continued on the new one, which was then called in sync
/// without the segments that the former device had.
#[test]
fn replacement_during_a_rebuild_is_rebuilt_whole() {
    block_on(async {
        let (a, b, c) = (disk("/a"), disk("/b"), disk("/c"));
        let (pool, volume) = create(&[&a, &b]).await;
        fill(&volume, 1).await;
        b.control.set_unreachable(true);
        fill(&volume, 2).await;
        pool.close().await.unwrap();
        drop((pool, volume));
        b.control.set_unreachable(false);
        b.control.reopen();
        let gate = Gate::new(b.memory.clone());
        let mut copies = 0;
        gate.hold(move |call| {
            copies += usize::from(matches!(call, Call::Write { len: SEGMENT, .. }));
            copies > 3
        });
        let gated = NamedDevice { name: "/b".to_owned(), device: Arc::new(gate.clone()) };
        let pool = Pool::open(vec![a.named.clone(), gated]).await.unwrap();
        gate.holds_a_call().await;
        pool.replace_device("/b", c.named.clone(), false).await.unwrap();
        gate.release();
        rebuilt(&pool).await;
        pool.close().await.unwrap();
        drop(pool);
        // The other copy is lost.
        a.control.set_unreachable(true);
        let (_pool, volume) = open(&[&c]).await.unwrap();
        holds(&volume, 2).await;
    })
    .unwrap();
}
