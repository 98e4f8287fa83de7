//! Deduplication: equal blocks of several volumes get into one unit, with crashes, snapshots,
//! evacuations and hosts that write meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::common::units::{BLOCK, SEGMENT_BLOCKS, read, reopened, simulate, stored};
use crate::common::{Image, SharedTrace, disks, disks_of};
use flagstone_blockdev::BlockDevice as _;
use flagstone_pool::{
    COMPRESSION_PROPERTY, CreateOptions, DEDUP_DOMAIN_PROPERTY, DEDUP_PROPERTY, Pool, PoolVolume,
    VolumeOptions, WrappingKey,
};
use flagstone_runtime::rng::{Rng, mix64};
use flagstone_runtime::{Buf, spawn, time};

const ON: &[(&str, &str)] = &[(DEDUP_PROPERTY, "on")];

/// Noise that does not compress; the same for each block of a stamp.
fn content(stamp: u64) -> Vec<u8> {
    if stamp == 0 {
        return vec![0; BLOCK as usize];
    }
    (0..BLOCK / 8).flat_map(|word| mix64(stamp << 20 ^ word).to_le_bytes()).collect()
}

async fn write(volume: &PoolVolume, first: u64, stamps: &[u64]) {
    let data: Vec<u8> = stamps.iter().flat_map(|stamp| content(*stamp)).collect();
    volume.write(first * BLOCK, Buf::copy_of(&data).unwrap(), false).await.unwrap();
}

async fn expect(volume: &PoolVolume, model: &[u64]) {
    for (first, stamps) in (0..).step_by(50).zip(model.chunks(50)) {
        let found = read(volume, first..first + stamps.len() as u64).await.unwrap();
        for (at, (stamp, block)) in stamps.iter().zip(found.chunks(BLOCK as usize)).enumerate() {
            assert!(block == content(*stamp), "block {} of the volume", first + at as u64);
        }
    }
}

fn options(blocks: u64, properties: &[(&str, &str)]) -> VolumeOptions {
    let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    let properties: BTreeMap<_, _> = properties.iter().map(pair).collect();
    VolumeOptions { size_bytes: blocks * BLOCK, properties, ..VolumeOptions::default() }
}

async fn pool(segments: u64) -> (Pool, SharedTrace, u64) {
    crate::common::units::pool(segments).await
}

/// Waits until the scan has ended: no checkpoint is made for a while.
async fn settle(pool: &Pool) {
    let mut before = u64::MAX;
    while std::mem::replace(&mut before, pool.status().checkpoints) != before {
        time::sleep(Duration::from_secs(20)).await;
    }
}

/// Two volumes of the same blocks.
async fn twins(
    pool: &Pool,
    model: &[u64],
    one: &[(&str, &str)],
    other: &[(&str, &str)],
) -> [Arc<PoolVolume>; 2] {
    let blocks = model.len() as u64;
    let a = pool.create_volume("a", &options(blocks, one)).await.unwrap();
    let b = pool.create_volume("b", &options(blocks, other)).await.unwrap();
    for volume in [&a, &b] {
        for (first, stamps) in (0..).step_by(40).zip(model.chunks(40)) {
            write(volume, first, stamps).await;
        }
    }
    pool.checkpoint().await.unwrap();
    [a, b]
}

#[test]
fn equal_blocks_of_two_volumes_share_units() {
    simulate(async {
        let (pool, trace, size) = pool(64).await;
        let mut model: Vec<u64> = (1..=800).collect();
        let [a, b] = twins(&pool, &model, ON, ON).await;
        let before = pool.status();
        settle(&pool).await;
        let after = pool.status();
        assert_eq!((stored(&a).0, stored(&b).0), (800, 800));
        let all = stored(&a).1 + stored(&b).1;
        // Units of four contents twice take five blocks of eight. The last segment is not closed.
        assert!(all < 1200, "{all} of 1600 blocks");
        assert!(after.used_bytes < before.used_bytes * 4 / 5, "{before:?} {after:?}");
        assert_eq!(after.data_bytes, before.data_bytes);
        expect(&a, &model).await;
        expect(&b, &model).await;
        // One side is overwritten: the other keeps its blocks.
        write(&a, 100, &[9001, 9002, 9003]).await;
        a.discard(200 * BLOCK, 300 * BLOCK).await.unwrap();
        expect(&b, &model).await;
        let other = model.clone();
        model[100..103].copy_from_slice(&[9001, 9002, 9003]);
        model[200..500].fill(0);
        drop((a, b));
        let (pool, trace) = reopened(pool, &trace, size).await;
        let (a, b) = (pool.open_volume("a").unwrap(), pool.open_volume("b").unwrap());
        expect(&a, &model).await;
        expect(&b, &other).await;
        drop(a);
        pool.delete_volume("a").await.unwrap();
        settle(&pool).await;
        expect(&b, &other).await;
        drop(b);
        let (pool, _) = reopened(pool, &trace, size).await;
        expect(&pool.open_volume("b").unwrap(), &other).await;
    });
}

#[test]
fn compressed_twins_take_half_of_what_they_took() {
    simulate(async {
        let (pool, ..) = pool(64).await;
        let lz4 = &[(DEDUP_PROPERTY, "on"), (COMPRESSION_PROPERTY, "lz4")];
        // Each content twice in a row, so that compression alone takes half.
        let model: Vec<u64> = (2..=1601).map(|stamp| stamp / 2).collect();
        let [a, b] = twins(&pool, &model, lz4, lz4).await;
        let before = stored(&a).1 + stored(&b).1;
        settle(&pool).await;
        let after = stored(&a).1 + stored(&b).1;
        assert!(after < before * 6 / 10, "{after} of {before}");
        expect(&a, &model).await;
        expect(&b, &model).await;
    });
}

#[test]
fn only_volumes_of_a_domain_share_blocks() {
    simulate(async {
        let model: Vec<u64> = (1..=300).collect();
        let other = &[(DEDUP_PROPERTY, "on"), (DEDUP_DOMAIN_PROPERTY, "7")];
        let off = &[(DEDUP_PROPERTY, "off")];
        for (one, two) in [(ON, &[][..]), (off, ON), (ON, other), (&[][..], &[][..])] {
            let (pool, ..) = pool(64).await;
            let [a, b] = twins(&pool, &model, one, two).await;
            settle(&pool).await;
            assert_eq!((stored(&a).1, stored(&b).1), (300, 300), "{one:?} {two:?}");
            assert_eq!(pool.status().copied_blocks, 0);
        }
    });
}

#[test]
fn encrypted_volumes_share_nothing() {
    simulate(async {
        let (pool, ..) = pool(64).await;
        let key = WrappingKey::parse(&"5c".repeat(32)).unwrap();
        let model: Vec<u64> = (1..=300).collect();
        let a = pool.create_volume("a", &options(300, ON)).await.unwrap();
        let b = pool.create_encrypted_volume("b", &options(600, ON), &key).await.unwrap();
        write(&a, 0, &model).await;
        write(&b, 0, &model).await;
        write(&b, 300, &model).await;
        pool.checkpoint().await.unwrap();
        settle(&pool).await;
        assert_eq!((stored(&a).1, stored(&b).1), (300, 600));
        expect(&a, &model).await;
    });
}

#[test]
fn dedup_turned_on_later_scans_what_is_there() {
    simulate(async {
        let (pool, ..) = pool(64).await;
        let model: Vec<u64> = (1..=400).collect();
        let [a, b] = twins(&pool, &model, &[], ON).await;
        settle(&pool).await;
        assert_eq!(stored(&a).1, 400);
        pool.set_volume("a", false, options(1, ON).properties).await.unwrap();
        settle(&pool).await;
        assert!(stored(&a).1 + stored(&b).1 < 700, "{:?} {:?}", stored(&a), stored(&b));
        expect(&a, &model).await;
        // Nothing is left to do.
        let before = pool.status();
        time::sleep(Duration::from_secs(1000)).await;
        assert_eq!(pool.status(), before);
    });
}

/// While hosts read, a segment is scanned after each second, although checkpoints are made more
/// often.
#[test]
fn scan_pauses_while_hosts_read() {
    simulate(async {
        let (pool, ..) = pool(64).await;
        let model: Vec<u64> = (1..=800).collect();
        let [a, b] = twins(&pool, &model, ON, ON).await;
        let left = || pool.status().dedup.unwrap().unscanned_bytes / (BLOCK * 128);
        let segments = left();
        assert!(segments > 10, "{segments} segments to scan");
        for _ in 0..100 {
            read(&b, 0..1).await.unwrap();
            time::sleep(Duration::from_millis(50)).await;
            pool.checkpoint().await.unwrap();
        }
        assert!((1..=5).contains(&(segments - left())), "{} of {segments}", left());
        settle(&pool).await;
        assert!(left() <= 1);
        expect(&a, &model).await;
    });
}

/// The blocks of a clone belong to the snapshot, so that nothing may be shared that could not be
/// before.
#[test]
fn clone_causes_no_scan() {
    simulate(async {
        let (pool, ..) = pool(64).await;
        let model: Vec<u64> = (1..=400).collect();
        let [a, _] = twins(&pool, &model, ON, &[]).await;
        pool.create_snapshot(&["a"], "s").await.unwrap();
        settle(&pool).await;
        for clone in ["c", "d"] {
            pool.clone_volume("a@s", clone, options(0, ON).properties).await.unwrap();
            assert_eq!(pool.status().dedup.unwrap().unscanned_bytes, 0, "{clone}");
        }
        expect(&a, &model).await;
    });
}

/// Blocks that only snapshots have may be shared if their volume allows it: after a change of its
/// setting, and after a promotion.
#[test]
fn blocks_of_snapshots_are_scanned_for_their_volume() {
    simulate(async {
        for promotes in [false, true] {
            let (pool, ..) = pool(64).await;
            let model: Vec<u64> = (1..=400).collect();
            let [a, b] = twins(&pool, &model, &[], ON).await;
            pool.create_snapshot(&["a"], "s").await.unwrap();
            a.discard(0, 400 * BLOCK).await.unwrap();
            pool.checkpoint().await.unwrap();
            settle(&pool).await;
            assert_eq!(stored(&b).1, 400);
            if promotes {
                pool.clone_volume("a@s", "c", options(0, ON).properties).await.unwrap();
                pool.promote_volume("c").await.unwrap();
            } else {
                pool.set_volume("a", false, options(1, ON).properties).await.unwrap();
            }
            settle(&pool).await;
            assert!(stored(&b).1 < 300, "{:?}, promoted: {promotes}", stored(&b));
            let snapshot = if promotes { "c@s" } else { "a@s" };
            expect(&pool.open_snapshot(snapshot).unwrap(), &model).await;
            expect(&b, &model).await;
        }
    });
}

/// A step of the scan that is in progress has ended before a changed setting is acknowledged.
#[test]
fn no_block_is_shared_after_dedup_was_turned_off() {
    simulate(async {
        for delay in 0..12 {
            let size = (1 << 20) + 64 * u64::from(SEGMENT_BLOCKS) * BLOCK;
            let (devices, _) = disks_of(vec![Image::default()], &[size], 2000, true);
            let create =
                CreateOptions { segment_blocks: SEGMENT_BLOCKS, ..CreateOptions::new("fast") };
            let pool = Pool::create(devices, &create).await.unwrap();
            let model: Vec<u64> = (1..=400).map(|at| at / 4).collect();
            let [a, b] = twins(&pool, &model, ON, ON).await;
            pool.checkpoint().await.unwrap();
            let index_bytes = || pool.status().dedup.unwrap().index_bytes;
            while index_bytes() == 0 {
                time::sleep(Duration::from_millis(10)).await;
            }
            time::sleep(Duration::from_millis(3 * delay)).await;
            for name in ["a", "b"] {
                pool.set_volume(name, false, BTreeMap::new()).await.unwrap();
            }
            let copied = pool.status().copied_blocks;
            time::sleep(Duration::from_secs(100)).await;
            assert_eq!(pool.status().copied_blocks, copied, "after {delay} delays");
            expect(&a, &model).await;
            expect(&b, &model).await;
        }
    });
}

/// Two volumes, a clone and snapshots with few contents, written at random.
async fn random_history(seed: u64, steps: u64) -> u64 {
    let (mut pool, mut trace, size) = pool(64).await;
    let mut rng = Rng::new(seed);
    let mut models: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    let mut snapshots: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for name in ["a", "b"] {
        pool.create_volume(name, &options(500, ON)).await.unwrap();
        models.insert(name.to_owned(), vec![0; 500]);
    }
    let mut saved = 0;
    for step in 0..steps {
        let names: Vec<String> = models.keys().cloned().collect();
        let name = &names[rng.below(names.len() as u64) as usize];
        match rng.below(12) {
            0 => {
                let full = format!("s{step}");
                pool.create_snapshot(&[name], &full).await.unwrap();
                snapshots.insert(format!("{name}@{full}"), models[name].clone());
            }
            1 if snapshots.len() > 4 => {
                let full = snapshots.keys().next().unwrap().clone();
                if pool.delete_snapshot(&full).await.is_ok() {
                    snapshots.remove(&full);
                }
            }
            2 if models.len() < 4 && !snapshots.is_empty() => {
                let (full, model) = snapshots.iter().next_back().unwrap();
                let clone = format!("c{step}");
                pool.clone_volume(full, &clone, options(0, ON).properties).await.unwrap();
                models.insert(clone, model.clone());
            }
            3 => settle(&pool).await,
            4 => {
                let (again, traced) = reopened(pool, &trace, size).await;
                (pool, trace) = (again, traced);
            }
            _ => {
                let volume = pool.open_volume(name).unwrap();
                for _ in 0..rng.below(30) {
                    let count = 1 + rng.below(12);
                    let (first, stamp) = (rng.below(500 - count), 1 + rng.below(40));
                    let stamps: Vec<u64> = (stamp..stamp + count).collect();
                    write(&volume, first, &stamps).await;
                    models.get_mut(name).unwrap()[first as usize..][..count as usize]
                        .copy_from_slice(&stamps);
                }
            }
        }
        let status = pool.status();
        saved = saved.max(status.data_bytes.saturating_sub(status.stored_bytes));
    }
    settle(&pool).await;
    for (name, model) in &models {
        expect(&pool.open_volume(name).unwrap(), model).await;
    }
    for (name, model) in &snapshots {
        expect(&pool.open_snapshot(name).unwrap(), model).await;
    }
    let (pool, _) = reopened(pool, &trace, size).await;
    for (name, model) in &models {
        expect(&pool.open_volume(name).unwrap(), model).await;
    }
    saved / BLOCK
}

#[test]
fn random_writes_and_snapshots_keep_their_content() {
    simulate(async {
        let mut saved = 0;
        for seed in 0..6 {
            saved += random_history(seed, 60).await;
        }
        assert!(saved > 1000, "{saved} blocks");
    });
}

/// While the scan shares blocks, hosts overwrite some of them. After a crash at each event, each
/// block has what was flushed or a later write.
#[test]
fn crash_at_each_write_of_the_scan_loses_nothing() {
    simulate(async {
        let size = (1 << 20) + 48 * u64::from(SEGMENT_BLOCKS) * BLOCK;
        let (devices, trace) = disks_of(vec![Image::default()], &[size], 50, true);
        let create = CreateOptions { segment_blocks: SEGMENT_BLOCKS, ..CreateOptions::new("fast") };
        let pool = Pool::create(devices, &create).await.unwrap();
        let model: Vec<u64> = (0..240).map(|at| 1 + at % 80).collect();
        let [a, b] = twins(&pool, &model, ON, ON).await;
        pool.create_snapshot(&["a"], "s").await.unwrap();
        a.flush().await.unwrap();
        let from = trace.lock().now();
        let mut allowed = vec![vec![]; 240];
        let mut rng = Rng::new(5);
        let writer = spawn(async move {
            for stamp in 1000..1040 {
                let at = rng.below(240);
                write(&a, at, &[stamp]).await;
                allowed[at as usize].push(stamp);
                time::sleep(Duration::from_millis(100)).await;
            }
            allowed
        });
        settle(&pool).await;
        let allowed = writer.await.unwrap();
        settle(&pool).await;
        assert!(stored(&b).1 < 150, "{:?}", stored(&b));
        drop((pool, b));
        let now = trace.lock().now();
        assert!(now > from + 100, "{from} {now}");
        let mut crashes = 0;
        let mut rng = Rng::new(6);
        let history = std::mem::take(&mut *trace.lock());
        history
            .at_each_event(
                |time| time >= from,
                &mut rng,
                async |time, images| {
                    let (devices, trace) = disks(images, size, 0);
                    let pool = Pool::open(devices).await.unwrap();
                    let snapshot = pool.open_snapshot("a@s").unwrap();
                    expect(&snapshot, &model).await;
                    expect(&pool.open_volume("b").unwrap(), &model).await;
                    let a = pool.open_volume("a").unwrap();
                    for at in 0..240 {
                        let found = read(&a, at as u64..at as u64 + 1).await.unwrap();
                        let mut stamps = allowed[at].iter().chain([&model[at]]);
                        assert!(stamps.any(|stamp| found == content(*stamp)), "{at} at {time}");
                    }
                    drop((a, snapshot));
                    if time % 16 == 0 {
                        reopened(pool, &trace, size).await;
                    }
                    crashes += 1;
                },
            )
            .await;
        assert!(crashes > 100, "{crashes}");
    });
}

/// The parts of a unit are in other leaves and of other volumes, each of which snapshots have.
#[test]
fn device_with_shared_units_is_removed() {
    simulate(async {
        let size = (1 << 20) + 64 * u64::from(SEGMENT_BLOCKS) * BLOCK;
        let (devices, trace) = disks_of(vec![Image::default(); 2], &[size, size], 0, false);
        let create = CreateOptions { segment_blocks: SEGMENT_BLOCKS, ..CreateOptions::new("fast") };
        let pool = Pool::create(devices, &create).await.unwrap();
        let mut model: Vec<u64> = (0..1500).map(|at| 1 + at % 400).collect();
        let [a, b] = twins(&pool, &model, ON, ON).await;
        settle(&pool).await;
        let all = stored(&a).1 + stored(&b).1;
        assert!(all < 1200, "{all} of 3000 blocks");
        let mut snapshots = Vec::new();
        for step in 0..4 {
            let name = format!("s{step}");
            pool.create_snapshot(&["a", "b"], &name).await.unwrap();
            snapshots.push((name, model.clone()));
            for volume in [&a, &b] {
                for at in (step..1500).step_by(97) {
                    write(volume, at as u64, &[5000 + at as u64]).await;
                }
            }
            (step..1500).step_by(97).for_each(|at| model[at] = 5000 + at as u64);
        }
        pool.checkpoint().await.unwrap();
        let evacuation = pool.evacuate("/dev/disk1").await.unwrap();
        let left = evacuation.left_bytes() / BLOCK;
        assert!(left > 300, "{left} blocks are on the device");
        let index_bytes = || pool.status().dedup.unwrap().index_bytes;
        let before = index_bytes();
        let mut steps = 0;
        while !evacuation.step().await.unwrap() {
            steps += 1;
            assert!(steps < 1000, "{} bytes are left", evacuation.left_bytes());
        }
        evacuation.complete().await.unwrap();
        settle(&pool).await;
        assert_eq!((index_bytes(), before), (before / 2, 64 << 10), "of half the pool");
        for volume in [&a, &b] {
            expect(volume, &model).await;
        }
        for (name, model) in &snapshots {
            for volume in ["a", "b"] {
                let snapshot = pool.open_snapshot(&format!("{volume}@{name}")).unwrap();
                expect(&snapshot, model).await;
            }
        }
        drop((a, b));
        pool.close().await.unwrap();
        drop(pool);
        let image = crate::common::durable(&trace).swap_remove(0);
        let (devices, _) = disks(vec![image], size, 0);
        let report = Pool::check_devices(devices, &mut |_, _| ()).await.unwrap();
        assert_eq!((report.damages, &report.damage[..]), (0, &[][..]));
    });
}

#[test]
fn status_counts_freed_space_and_the_scan() {
    simulate(async {
        let (pool, ..) = pool(64).await;
        assert_eq!((pool.can_share_blocks(), pool.status().dedup), (true, None));
        let model: Vec<u64> = (1..=400).collect();
        let [a, b] = twins(&pool, &model, ON, ON).await;
        let before = pool.status().dedup.unwrap();
        assert_eq!((before.volumes, before.index_bytes), (2, 0));
        assert!(before.unscanned_bytes > 0);
        settle(&pool).await;
        let status = pool.status();
        let after = status.dedup.unwrap();
        assert_eq!(after.unscanned_bytes, 0);
        // At most 1 GiB per TiB.
        assert!(after.index_bytes > 0 && after.index_bytes <= status.capacity_bytes / 512);
        let freed = 800 - stored(&a).1 - stored(&b).1;
        let counted = status.deduplicated_bytes / BLOCK;
        // What each volume stores is rounded up.
        assert!((freed..=freed + 2).contains(&counted), "{counted} for {freed}");
        for name in ["a", "b"] {
            pool.set_volume(name, false, BTreeMap::new()).await.unwrap();
        }
        let status = pool.status();
        assert_eq!((status.dedup, status.deduplicated_bytes / BLOCK), (None, counted));
    });
}

/// Short chunks have no units.
#[test]
fn pool_with_small_segments_shares_nothing() {
    simulate(async {
        let (pool, ..) = crate::common::units::pool_of(64, 64).await;
        assert!(!pool.can_share_blocks());
        let model: Vec<u64> = (1..=100).collect();
        let [a, b] = twins(&pool, &model, ON, ON).await;
        settle(&pool).await;
        assert_eq!((stored(&a).1, stored(&b).1), (100, 100));
        assert_eq!((pool.status().dedup, pool.status().copied_blocks), (None, 0));
    });
}
