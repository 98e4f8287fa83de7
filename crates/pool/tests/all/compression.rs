//! Compressed volumes: space, reads, partial overwrites, settings, snapshots, cleaning, damage.
use std::sync::Arc;

use crate::common::disks;
use crate::common::units::*;
use flagstone_blockdev::{BlockDevice as _, IoError};
use flagstone_pool::{Compression, Pool, PoolVolume};
use flagstone_runtime::rng::Rng;
use flagstone_runtime::{Buf, buf};

#[test]
fn data_takes_the_space_of_its_units() {
    simulate(async {
        let (pool, trace, size) = pool(64).await;
        for (name, compression) in [("lz4", Compression::Lz4), ("zstd", Compression::Zstd)] {
            let volume = pool.create_volume(name, &volume(1000, compression)).await.unwrap();
            let before = pool.status().used_bytes;
            write(&volume, 0..160, 7).await;
            pool.checkpoint().await.unwrap();
            assert_eq!(stored(&volume), (160, 20), "20 units of one block");
            let used = (pool.status().used_bytes - before) / BLOCK;
            assert!((20..30).contains(&used), "{name}: {used}");
            expect(&volume, &[7; 160]).await;
        }
        let (pool, _) = reopened(pool, &trace, size).await;
        let volume = pool.open_volume("zstd").unwrap();
        assert_eq!(stored(&volume), (160, 20));
        expect(&volume, &[7; 160]).await;
    });
}

#[test]
fn data_that_does_not_shrink_is_stored_plain() {
    simulate(async {
        let (pool, ..) = pool(64).await;
        let volume = pool.create_volume("v", &volume(1000, Compression::Lz4)).await.unwrap();
        let mut rng = Rng::new(5);
        let data: Vec<u8> =
            (0..64 * BLOCK / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
        volume.write(0, Buf::copy_of(&data).unwrap(), false).await.unwrap();
        pool.checkpoint().await.unwrap();
        assert_eq!(stored(&volume), (64, 64));
        assert!(read(&volume, 0..64).await.unwrap() == data);
    });
}

#[test]
fn zeroes_in_a_unit_take_no_space() {
    simulate(async {
        let (pool, ..) = pool(64).await;
        let volume = pool.create_volume("v", &volume(100, Compression::Lz4)).await.unwrap();
        let mut data = blocks(0..16, 3);
        data[2 * BLOCK as usize..5 * BLOCK as usize].fill(0);
        volume.write(0, Buf::copy_of(&data).unwrap(), false).await.unwrap();
        volume.write(20 * BLOCK, buf::zeroes(8 * BLOCK as usize), false).await.unwrap();
        pool.checkpoint().await.unwrap();
        // Blocks 0 and 1, 5 to 7, and 8 to 15.
        assert_eq!(stored(&volume), (13, 3), "three units of one block");
        let mut model = [3; 28];
        model[2..5].fill(0);
        model[16..].fill(0);
        expect(&volume, &model).await;
    });
}

#[test]
fn random_overwrites_match_a_model() {
    for compression in [Compression::Lz4, Compression::Zstd, Compression::Auto] {
        simulate(async move {
            let (mut pool, mut trace, size) = pool(64).await;
            let mut volume = pool.create_volume("v", &volume(300, compression)).await.unwrap();
            let mut model = vec![0; 300];
            let mut rng = Rng::new(9);
            for stamp in 1..600 {
                let first = rng.below(300);
                let most = if rng.chance(0.5) { 3 } else { 40 };
                let end = (first + 1 + rng.below(most)).min(300);
                if rng.chance(0.1) {
                    volume.discard(first * BLOCK, (end - first) * BLOCK).await.unwrap();
                    model[first as usize..end as usize].fill(0);
                } else {
                    write(&volume, first..end, stamp).await;
                    model[first as usize..end as usize].fill(stamp);
                }
                if rng.chance(0.02) {
                    pool.checkpoint().await.unwrap();
                    expect(&volume, &model).await;
                }
                if stamp == 300 {
                    drop(volume);
                    (pool, trace) = reopened(pool, &trace, size).await;
                    volume = pool.open_volume("v").unwrap();
                }
            }
            expect(&volume, &model).await;
            drop(volume);
            let (pool, _) = reopened(pool, &trace, size).await;
            expect(&pool.open_volume("v").unwrap(), &model).await;
        });
    }
}

#[test]
fn cleaner_packs_what_is_left_of_units() {
    simulate(async {
        let (pool, trace, size) = pool(32).await;
        let volume = pool.create_volume("v", &volume(1000, Compression::Auto)).await.unwrap();
        let mut model = vec![0; 1000];
        // Single blocks are not compressed when they are written.
        for at in 0..600 {
            write(&volume, at..at + 1, 1).await;
            model[at as usize] = 1;
        }
        pool.checkpoint().await.unwrap();
        assert_eq!(stored(&volume), (600, 600));
        pool.create_snapshot(&["v"], "s").await.unwrap();
        let mut rng = Rng::new(3);
        for round in 2..6000 {
            let at = rng.below(300);
            write(&volume, at..at + 1, round).await;
            model[at as usize] = round;
        }
        pool.checkpoint().await.unwrap();
        assert!(pool.status().copied_blocks > 100, "{:?}", pool.status());
        expect(&volume, &model).await;
        let snapshot = pool.open_snapshot("v@s").unwrap();
        expect(&snapshot, &[1; 600]).await;
        let (logical, stored) = stored(&volume);
        assert!(logical == 600 && stored < 590, "{stored} {:?}", pool.status());
        drop((volume, snapshot));
        let (pool, _) = reopened(pool, &trace, size).await;
        expect(&pool.open_volume("v").unwrap(), &model).await;
        expect(&pool.open_snapshot("v@s").unwrap(), &[1; 600]).await;
    });
}

#[test]
fn setting_changes_at_run_time_and_clones_differ() {
    simulate(async {
        let (pool, trace, size) = pool(64).await;
        let db = pool.create_volume("db", &volume(400, Compression::Lz4)).await.unwrap();
        write(&db, 0..80, 1).await;
        pool.create_snapshot(&["db"], "s").await.unwrap();
        let off = properties(Compression::Off);
        let clone = pool.clone_volume("db@s", "copy", off.clone()).await.unwrap();
        write(&clone, 4..44, 2).await;
        pool.set_volume("db", false, off).await.unwrap();
        write(&db, 40..80, 3).await;
        pool.resize_volume("db", 500 * BLOCK).await.unwrap();
        write(&db, 490..500, 4).await;
        pool.checkpoint().await.unwrap();
        let mut model = vec![0; 500];
        model[..40].fill(1);
        model[40..80].fill(3);
        model[490..].fill(4);
        expect(&db, &model).await;
        assert_eq!(stored(&db), (90, 55), "5 of the 10 units are left");
        let mut copied = vec![1; 80];
        copied[4..44].fill(2);
        expect(&clone, &copied).await;
        pool.promote_volume("copy").await.unwrap();
        pool.delete_volume("db").await.unwrap();
        drop(db);
        let mut left = 0;
        while pool.status().used_bytes != left {
            left = pool.status().used_bytes;
            pool.checkpoint().await.unwrap();
        }
        expect(&clone, &copied).await;
        drop(clone);
        let (pool, _) = reopened(pool, &trace, size).await;
        expect(&pool.open_volume("copy").unwrap(), &copied).await;
    });
}

#[test]
fn damaged_unit_fails_its_blocks_alone() {
    simulate(async {
        let (pool, trace, size) = pool(64).await;
        let v = pool.create_volume("v", &volume(64, Compression::Lz4)).await.unwrap();
        write(&v, 0..64, 5).await;
        pool.close().await.unwrap();
        drop((pool, v));
        let mut image = crate::common::durable(&trace);
        // Every stored unit begins with its codec, number of blocks and two zeroes.
        let is_unit = |page: &u64| {
            let mut begin = [0; 4];
            image[0].read(*page, &mut begin);
            *page >= 1 << 20 && begin == [1, 8, 0, 0]
        };
        let units: Vec<u64> = image[0].pages().into_iter().filter(is_unit).collect();
        assert_eq!(units.len(), 8);
        image[0].edit(units[3] + 100, |bytes| bytes[0] ^= 1);
        let (devices, _) = disks(image, size, 0);
        let report = Pool::check_devices(devices.clone(), &mut |_, _| ()).await.unwrap();
        assert_eq!(report.damages, 8, "{:?}", report.damage);
        let pool = Pool::open(devices).await.unwrap();
        let v: Arc<PoolVolume> = pool.open_volume("v").unwrap();
        let mut failed = 0;
        for at in 0..64 {
            match read(&v, at..at + 1).await {
                Ok(found) => assert!(found == block(at, 5)),
                Err(error) => {
                    assert_eq!(error, IoError::ReadFault);
                    failed += 1;
                }
            }
        }
        assert_eq!(failed, 8);
        let mut place = Some(pool.begin_scrub().await.unwrap());
        let mut damages = 0;
        while let Some(at) = place {
            let step = pool.scrub(at).await.unwrap();
            damages += step.damage.len();
            place = step.next;
        }
        assert_eq!(damages, 8);
        // A write repairs.
        write(&v, 24..32, 6).await;
        assert!(read(&v, 24..32).await.unwrap() == blocks(24..32, 6));
    });
}

#[test]
fn full_pool_holds_more_when_it_compresses() {
    simulate(async {
        let mut held = Vec::new();
        for compression in [Compression::Off, Compression::Lz4] {
            let (pool, ..) = pool(40).await;
            let v = pool.create_volume("v", &volume(1 << 20, compression)).await.unwrap();
            let mut at = 0;
            while at < 40_000 {
                let data = Buf::copy_of(&blocks(at..at + 8, 1)).unwrap();
                match v.write(at * BLOCK, data, false).await {
                    Ok(()) => at += 8,
                    Err(error) => {
                        assert_eq!(error, IoError::NoSpace);
                        break;
                    }
                }
            }
            assert!(read(&v, at - 8..at).await.unwrap() == blocks(at - 8..at, 1));
            v.discard(0, at * BLOCK).await.unwrap();
            write(&v, 0..8, 2).await;
            held.push(at);
        }
        assert!(held[1] > 3 * held[0], "{held:?}");
    });
}
