//! Pools with redundancy: damage of one copy, found by reads, the cleaner and an offline check.

use std::sync::Arc;

use flagstone_blockdev::{BlockDevice as _, FaultConfig, FaultLayer, MemoryDevice, SharedDevice};
use flagstone_pool::verify::DamageKind;
use flagstone_pool::{CreateOptions, NamedDevice, Pool, VolumeOptions};
use flagstone_runtime::rng::Rng;
use flagstone_runtime::{Buf, block_on, buf};

use crate::gate::{Call, gated};
use crate::redundancy::{
    BLOCK, Disk, create, create_on, disk, fill, holds, open, options, read, rot, write,
};

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

/// Regression: a read of several blocks panicked when one of them came from the other copy, and it
/// waited for more memory while it held some.
#[test]
fn long_read_is_whole_if_one_copy_is_damaged() {
    for (damaged, is_rotten) in [(0, false), (1, false), (0, true), (1, true)] {
        block_on(async {
            let (a, b) = (disk("/a"), disk("/b"));
            let disks = [&a, &b];
            let (pool, volume) = create(&disks).await;
            // Runs of one block, and of several.
            fill(&volume, 1).await;
            let data = Buf::copy_of(&[1; 100 * BLOCK as usize]).unwrap();
            volume.write(50 * BLOCK, data, true).await.unwrap();
            pool.checkpoint().await.unwrap();
            match is_rotten {
                true => drop(rot(disks[damaged], 1).await),
                false => disks[damaged].control.fail_reads(1 << 20..32 << 20),
            }
            for blocks in [300, 64, 2] {
                let memory = buf::alloc(blocks * BLOCK as usize).await;
                let read = volume.read(0, memory).await.unwrap();
                assert!(read.iter().all(|byte| *byte == 1));
                assert_eq!(read.len(), blocks * BLOCK as usize);
            }
            assert!(repaired(&pool) > 0);
            assert_eq!(pool.status().failed, None);
        })
        .unwrap();
    }
}

/// The cleaner once left every segment alone in which one copy had a damaged block.
#[test]
fn cleaner_copies_from_the_copy_that_is_right() {
    const BLOCKS: u64 = 400;
    for damaged in 0..2 {
        block_on(async {
            let disks = ["/a", "/b"].map(|name| {
                let memory = MemoryDevice::new((1 << 20) + 64 * 16 * BLOCK, 512).unwrap();
                let memory = Arc::new(memory) as SharedDevice;
                let (layer, control) =
                    FaultLayer::new(memory.clone(), FaultConfig::default()).unwrap();
                let named = NamedDevice { name: name.to_owned(), device: Arc::new(layer) };
                Disk { named, memory, control }
            });
            let small = CreateOptions { segment_blocks: 16, ..options() };
            let devices = disks.each_ref().map(|disk| disk.named.clone()).to_vec();
            let pool = Pool::create(devices, &small).await.unwrap();
            let size = VolumeOptions { size_bytes: BLOCKS * BLOCK, ..VolumeOptions::default() };
            let volume = pool.create_volume("db", &size).await.unwrap();
            for block in 0..BLOCKS {
                write(&volume, block, 1).await.unwrap();
            }
            pool.checkpoint().await.unwrap();
            assert!(rot(&disks[damaged], 1).await >= 400);
            // Only the cleaner reads the other half.
            let mut rng = Rng::new(3);
            for _ in 0..3000 {
                write(&volume, rng.below(BLOCKS / 2) * 2, 2).await.unwrap();
            }
            assert!(pool.status().cleaned_segments > 50, "{:?}", pool.status());
            assert!(repaired(&pool) > 50, "{:?}", pool.status());
            for block in (1..BLOCKS).step_by(2) {
                assert_eq!(read(&volume, block).await, Ok(1));
            }
        })
        .unwrap();
    }
}

/// A check once repaired what it found, without a word about it, and read only one copy.
#[test]
fn check_reports_either_copy_and_writes_nothing() {
    for damaged in 0..2 {
        block_on(async {
            let disks = [disk("/a"), disk("/b")];
            let (pool, volume) =
                create_on(vec![disks[0].named.clone(), disks[1].named.clone()]).await;
            fill(&volume, 1).await;
            pool.close().await.unwrap();
            drop((pool, volume));
            let gates = [gated(&disks[0]), gated(&disks[1])];
            let named = gates.each_ref().map(|(_, named)| named.clone()).to_vec();
            let check = async || Pool::check_devices(named.clone(), &mut |_, _| {}).await.unwrap();
            assert_eq!(check().await.damage, []);
            let rotten = rot(&disks[damaged], 1).await;
            assert_eq!(rotten, 300);
            let report = check().await;
            let data = report.damage.iter().filter(|damage| {
                matches!(damage.kind, DamageKind::Data { .. })
                    && damage.device == disks[damaged].named.name
            });
            assert_eq!(data.count(), 300, "{:?}", report.damage.first());
            assert_eq!(report.damages, 300);
            // Chunk headers, map pages and metadata, too.
            disks[damaged].control.fail_reads(1 << 20..32 << 20);
            let report = check().await;
            let has = |kind: fn(&DamageKind) -> bool| {
                report.damage.iter().any(|damage| kind(&damage.kind))
            };
            assert!(has(|kind| matches!(kind, DamageKind::Data { .. })));
            assert!(has(|kind| matches!(kind, DamageKind::Map { .. })));
            assert!(has(|kind| matches!(kind, DamageKind::Metadata)));
            assert!(has(|kind| matches!(kind, DamageKind::Header)));
            let is_own = |name: &str| name == disks[damaged].named.name;
            assert!(report.damage.iter().all(|damage| is_own(&damage.device)));
            for (gate, _) in &gates {
                let is_write = |call: &Call| matches!(call, Call::Write { .. } | Call::Flush);
                assert!(!gate.calls().iter().any(is_write));
            }
            disks[damaged].control.heal();
            let (_pool, volume) = open(&[&disks[0], &disks[1]]).await.unwrap();
            holds(&volume, 1).await;
        })
        .unwrap();
    }
}

/// A check without one device of a pair reported no damages, and not that it saw one copy.
#[test]
fn check_names_devices_that_it_did_not_see() {
    block_on(async {
        let (a, b) = (disk("/a"), disk("/b"));
        let (pool, volume) = create(&[&a, &b]).await;
        fill(&volume, 1).await;
        pool.close().await.unwrap();
        drop((pool, volume));
        let check = async |disks: &[&Disk]| {
            let devices = disks.iter().map(|disk| disk.named.clone()).collect();
            Pool::check_devices(devices, &mut |_, _| {}).await.unwrap().unchecked
        };
        assert_eq!(check(&[&a, &b]).await, []);
        let absent = Pool::examine(std::slice::from_ref(&a.named)).await.unwrap().missing;
        assert_eq!((check(&[&a]).await, absent.len()), (absent.clone(), 1));
        drop(open(&[&a]).await.unwrap());
        // It came back, and lacks writes.
        assert_eq!(check(&[&a, &b]).await, absent);
    })
    .unwrap();
}
