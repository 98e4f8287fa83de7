//! Pools with redundancy: growth by a pair of devices.

use flagstone_blockdev::BlockDevice as _;
use flagstone_pool::{CreateOptions, Pool, VolumeOptions};
use flagstone_runtime::rng::Rng;
use flagstone_runtime::{block_on, spawn};

use crate::common::{Image, disks};
use crate::gate::{Call, gated};
use crate::redundancy::{BLOCK, Disk, create, disk, fill, holds, open, options, read, write};

fn pair(one: &Disk, other: &Disk) -> [flagstone_pool::NamedDevice; 2] {
    [one.named.clone(), other.named.clone()]
}

/// A full pool with two copies had no way out but deletions.
#[test]
fn full_pool_grows_by_a_pair() {
    block_on(async {
        let [a, b, c, d] = ["/a", "/b", "/c", "/d"].map(disk);
        let (pool, volume) = create(&[&a, &b]).await;
        fill(&volume, 1).await;
        let size = VolumeOptions { size_bytes: 100_000 * BLOCK, ..VolumeOptions::default() };
        let other = pool.create_volume("other", &size).await.unwrap();
        let mut full = 0;
        while write(&other, full, 1).await.is_ok() {
            full += 1;
        }
        // Deletions work, and free space.
        pool.create_volume("thin", &size).await.unwrap();
        pool.delete_volume("thin").await.unwrap();
        other.discard(0, 1000 * BLOCK).await.unwrap();
        write(&other, 0, 1).await.unwrap();
        while write(&other, full, 1).await.is_ok() {
            full += 1;
        }
        let before = pool.status().capacity_bytes;
        let alias = pool.grow_by_pair(pair(&c, &c), [false; 2]).await.unwrap_err().to_string();
        assert!(alias.contains("another name of it"), "{alias}");
        let own = pool.grow_by_pair(pair(&a, &c), [true; 2]).await.unwrap_err().to_string();
        assert!(own.contains("device of this pool already"), "{own}");
        pool.grow_by_pair(pair(&c, &d), [false; 2]).await.unwrap();
        let status = pool.status();
        assert!(status.capacity_bytes > before * 2 - (8 << 20), "{before}, {status:?}");
        for block in full..full + 2000 {
            write(&other, block, 2).await.unwrap();
        }
        pool.close().await.unwrap();
        drop((pool, volume, other));
        let all = [&a, &b, &c, &d].map(|disk| disk.named.clone()).to_vec();
        let report = Pool::check_devices(all, &mut |_, _| {}).await.unwrap();
        assert_eq!(report.damage, []);
        // One device of each pair is lost.
        let (pool, volume) = open(&[&b, &d]).await.unwrap();
        holds(&volume, 1).await;
        let other = pool.open_volume("other").unwrap();
        for block in full..full + 2000 {
            assert_eq!(read(&other, block).await, Ok(2), "block {block}");
        }
        assert_eq!(pool.status().redundancy.unwrap().legs.len(), 4);
    })
    .unwrap();
}

#[test]
fn failed_growth_by_a_pair_changes_nothing() {
    block_on(async {
        let [a, b, c, d] = ["/a", "/b", "/c", "/d"].map(disk);
        let (pool, volume) = create(&[&a, &b]).await;
        fill(&volume, 1).await;
        let (gate, gated) = gated(&d);
        let pair = || [c.named.clone(), gated.clone()];
        pool.prepare_pair(&pair(), [false; 2]).await.unwrap();
        // A mark and four copies are removed before the first superblock.
        for failing in [0, 3, 5, 6] {
            let mut writes = 0;
            gate.hold(move |call| {
                writes += u32::from(matches!(call, Call::Write { .. }));
                writes > failing
            });
            let (growing, pair) = (pool.clone(), pair());
            let grown = spawn(async move { growing.grow_by_pair(pair, [false; 2]).await });
            gate.holds_a_call().await;
            d.control.fail_writes(0..1 << 20);
            gate.release();
            let refused = grown.await.unwrap().unwrap_err().to_string();
            d.control.heal();
            assert!(refused.contains("/d"), "{refused}");
            write(&volume, 0, 1).await.unwrap();
            pool.checkpoint().await.unwrap();
            assert_eq!(pool.status().failed, None);
        }
        pool.close().await.unwrap();
        drop((pool, volume));
        let (pool, volume) = open(&[&a, &b, &c, &d]).await.unwrap();
        holds(&volume, 1).await;
        pool.grow_by_pair(pair(), [true; 2]).await.unwrap();
        pool.checkpoint().await.unwrap();
    })
    .unwrap();
}

#[test]
fn crash_at_any_event_of_growth_by_a_pair() {
    const BLOCKS: u64 = 8;
    block_on(async {
        let size_bytes = (1 << 20) + 64 * 16 * BLOCK;
        let (devices, trace) = disks(vec![Image::default(); 4], size_bytes, 0);
        let small = CreateOptions { segment_blocks: 16, ..options() };
        let pool = Pool::create(devices[..2].to_vec(), &small).await.unwrap();
        let size = VolumeOptions { size_bytes: BLOCKS * BLOCK, ..VolumeOptions::default() };
        let volume = pool.create_volume("db", &size).await.unwrap();
        for block in 0..BLOCKS {
            write(&volume, block, 1).await.unwrap();
        }
        let from = trace.lock().now();
        let new = [devices[2].clone(), devices[3].clone()];
        pool.grow_by_pair(new, [false; 2]).await.unwrap();
        let grown = trace.lock().now();
        pool.checkpoint().await.unwrap();
        drop((pool, volume));
        let trace = std::mem::take(&mut *trace.lock());
        let (mut with, mut without) = (0, 0);
        for seed in 0..4 {
            let check = async |time: usize, images: Vec<Image>| {
                let context = format!("crash after event {time}");
                let (devices, _) = disks(images, size_bytes, 0);
                let opened = Pool::open(devices.clone()).await;
                let pool = opened.unwrap_or_else(|error| panic!("{context}: {error}"));
                let volume = pool.open_volume("db").unwrap();
                for block in 0..BLOCKS {
                    assert_eq!(read(&volume, block).await, Ok(1), "{context}: block {block}");
                }
                match pool.status().redundancy.unwrap().legs.len() {
                    4 => with += 1,
                    _ => {
                        assert!(time < grown, "{context}");
                        without += 1;
                        let new = [devices[2].clone(), devices[3].clone()];
                        let again = pool.grow_by_pair(new, [true; 2]).await;
                        again.unwrap_or_else(|error| panic!("{context}: {error}"));
                    }
                }
                write(&volume, 0, 1).await.unwrap();
            };
            trace.at_each_event(|time| time >= from, &mut Rng::new(seed), check).await;
        }
        println!("{with} crashes with the new pair, {without} without it");
        assert!(with > 10 && without > 4);
    })
    .unwrap();
}
