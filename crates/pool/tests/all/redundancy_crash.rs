//! Pools with redundancy: crashes in the middle of a superblock update.

use flagstone_pool::Pool;
use flagstone_runtime::{block_on, spawn_detached};

use crate::gate::{gated, is_superblock};
use crate::redundancy::{crashed, create_on, disk, fill, holds, open, rebuilt};

fn begin_checkpoint(pool: &Pool) {
    let pool = pool.clone();
    spawn_detached(async move {
        let _interrupted = pool.checkpoint().await;
    });
}

/// One leg had the first copies of an update when the machine crashed. The other one was used
/// without it, and must not be confused with one that was used apart.
#[test]
fn leg_with_an_interrupted_update_returns() {
    for ahead in 0..2 {
        block_on(async {
            let disks = [disk("/a"), disk("/b")];
            let gates = [gated(&disks[0]), gated(&disks[1])];
            let named = gates.each_ref().map(|(_, named)| named.clone());
            let (pool, volume) = create_on(named.to_vec()).await;
            fill(&volume, 1).await;
            // No copy of the update reaches this leg.
            gates[1 - ahead].0.hold(is_superblock);
            begin_checkpoint(&pool);
            gates[1 - ahead].0.holds_a_call().await;
            let [a, b] = [crashed(&disks[0]).await, crashed(&disks[1]).await];
            let both = [&a, &b];
            let (pool, volume) = open(&[both[1 - ahead]]).await.unwrap();
            holds(&volume, 1).await;
            fill(&volume, 2).await;
            pool.close().await.unwrap();
            drop((pool, volume));
            let (pool, volume) = open(&both).await.unwrap();
            rebuilt(&pool).await;
            holds(&volume, 2).await;
        })
        .unwrap();
    }
}
/// A leg failed during an update, and the machine crashed before the next one called it missing.
#[test]
fn leg_that_failed_in_an_update_is_rebuilt() {
    block_on(async {
        let disks = [disk("/a"), disk("/b")];
        let (gate, a) = gated(&disks[0]);
        let (pool, volume) = create_on(vec![a, disks[1].named.clone()]).await;
        fill(&volume, 1).await;
        disks[1].control.fail_writes(0..1 << 20);
        let mut copies = 0;
        gate.hold(move |call| {
            copies += usize::from(is_superblock(call));
            copies > 4
        });
        begin_checkpoint(&pool);
        gate.holds_a_call().await;
        let [a, b] = [crashed(&disks[0]).await, crashed(&disks[1]).await];
        let (pool, volume) = open(&[&a, &b]).await.unwrap();
        rebuilt(&pool).await;
        holds(&volume, 1).await;
        fill(&volume, 2).await;
        pool.close().await.unwrap();
        drop((pool, volume));
        let (_pool, volume) = open(&[&b]).await.unwrap();
        holds(&volume, 2).await;
    })
    .unwrap();
}
