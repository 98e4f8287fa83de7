//! Pools with redundancy: replacement of a device at inconvenient times.

use std::sync::Arc;
use std::time::Duration;

use flagstone_pool::{NamedDevice, Pool};
use flagstone_runtime::sim::{SimConfig, Simulation};
use flagstone_runtime::{block_on, spawn_detached, time};

use crate::gate::{Call, Gate};
use crate::redundancy::{BLOCK, Disk, create, disk, fill, holds, open, read, rebuilt, rot, write};

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

/// Disks with a pool of which the second one is behind.
async fn behind() -> (Disk, Disk) {
    let (a, b) = (disk("/a"), disk("/b"));
    let (pool, volume) = create(&[&a, &b]).await;
    fill(&volume, 1).await;
    b.control.set_unreachable(true);
    fill(&volume, 2).await;
    pool.close().await.unwrap();
    b.control.heal();
    (a, b)
}

fn simulated(test: impl Future<Output = ()> + 'static) {
    let sim = Simulation::new(1, SimConfig::default());
    let node = sim.add_node("server");
    let done = sim.spawn_on(node, test);
    sim.block_on(async { done.await.unwrap() });
}

/// A lost path fails reads at once, as a defect does. The rebuild once left out all that it read
/// meanwhile, and called the leg in sync.
#[test]
fn rebuild_waits_for_the_path_of_its_source() {
    for outage in [3, 40] {
        simulated(async move {
            let (a, b) = behind().await;
            let (gate, gated) = crate::gate::gated(&a);
            let pool = Pool::open(vec![gated, b.named.clone()]).await.unwrap();
            let is_copied = |call| matches!(call, Call::Read { offset } if offset >= 1 << 20);
            gate.hold(is_copied);
            gate.holds_a_call().await;
            a.control.fail_reads(0..32 << 20);
            gate.release();
            let control = a.control.clone();
            spawn_detached(async move {
                time::sleep(Duration::from_secs(outage)).await;
                control.heal();
            });
            rebuilt(&pool).await;
            pool.close().await.unwrap();
            drop(pool);
            let (_pool, volume) = open(&[&b]).await.unwrap();
            holds(&volume, 2).await;
        });
    }
}

#[test]
fn rebuild_leaves_out_a_defective_block() {
    simulated(async {
        let (a, b) = behind().await;
        let mut at = 1 << 20;
        loop {
            let memory = flagstone_runtime::buf::alloc(BLOCK as usize).await;
            let found = a.memory.read(at, memory).await.unwrap();
            if found.iter().all(|byte| *byte == 2) {
                break;
            }
            at += BLOCK;
        }
        a.control.fail_reads(at..at + BLOCK);
        let pool = Pool::open(vec![a.named.clone(), b.named.clone()]).await.unwrap();
        rebuilt(&pool).await;
        assert_eq!(pool.status().redundancy.unwrap().left_out_blocks, 1);
        pool.close().await.unwrap();
        drop(pool);
        let (_pool, volume) = open(&[&b]).await.unwrap();
        let mut lost = 0;
        for block in 0..300 {
            lost += usize::from(read(&volume, block).await != Ok(2));
        }
        assert_eq!(lost, 1);
    });
}

/// A rebuild once copied damaged blocks over right ones that the returned device still had.
#[test]
fn rebuild_keeps_blocks_that_only_its_target_has() {
    block_on(async {
        let (a, b) = (disk("/a"), disk("/b"));
        let (pool, volume) = create(&[&a, &b]).await;
        fill(&volume, 1).await;
        pool.close().await.unwrap();
        drop((pool, volume));
        let (pool, volume) = open(&[&a]).await.unwrap();
        write(&volume, 999, 2).await.unwrap();
        pool.close().await.unwrap();
        drop((pool, volume));
        assert_eq!(rot(&a, 1).await, 300);
        let (pool, volume) = open(&[&a, &b]).await.unwrap();
        rebuilt(&pool).await;
        holds(&volume, 1).await;
        pool.close().await.unwrap();
        drop((pool, volume));
        let (_pool, volume) = open(&[&b]).await.unwrap();
        holds(&volume, 1).await;
        assert_eq!(read(&volume, 999).await, Ok(2));
    })
    .unwrap();
}

/// The pool kept a failed device open, and so locked, until the device was replaced.
#[test]
fn missing_device_is_closed_for_its_replacement() {
    block_on(async {
        let (a, b) = (disk("/a"), disk("/b"));
        let device = Arc::downgrade(&b.named.device);
        let (gate, gated) = crate::gate::gated(&b);
        let (memory, name) = (b.memory.clone(), b.named.name.clone());
        let control = b.control.clone();
        drop(b);
        let options = crate::redundancy::options();
        let pool = Pool::create(vec![a.named.clone(), gated], &options).await.unwrap();
        drop(gate);
        pool.close_missing("/b");
        assert!(device.upgrade().is_some(), "it is in use");
        control.set_unreachable(true);
        pool.checkpoint().await.unwrap();
        pool.close_missing("/b");
        assert!(device.upgrade().is_none());
        let legs = pool.status().redundancy.unwrap().legs;
        assert_eq!((legs[1].device.as_str(), legs[1].failure.is_some()), ("/b", true));
        let same = NamedDevice { name, device: memory };
        pool.replace_device("/b", same, true).await.unwrap();
        rebuilt(&pool).await;
    })
    .unwrap();
}
