//! Legs: volumes whose content only a mirror changes, and the end of that.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::{Image, disks};
use flagstone_blockdev::{BlockDevice as _, ZeroFlags};
use flagstone_pool::{
    CreateOptions, FormerLeg, LegRollbackEnd, NamedDevice, Pool, PoolVolume, VolumeInfo,
    VolumeOptions,
};
use flagstone_runtime::rng::Rng;
use flagstone_runtime::{Buf, block_on, buf};

const BLOCK: usize = 4096;
const SIZE: u64 = (1 << 20) + 100 * 16 * BLOCK as u64;

fn data(value: u8) -> Buf {
    Buf::copy_of(&[value; BLOCK]).unwrap()
}

async fn created(devices: Vec<NamedDevice>) -> (Pool, Arc<PoolVolume>) {
    let options = CreateOptions { segment_blocks: 16, ..CreateOptions::new("fast") };
    let pool = Pool::create(devices, &options).await.unwrap();
    let size = VolumeOptions { size_bytes: 1 << 20, ..VolumeOptions::default() };
    let db = pool.create_volume("db", &size).await.unwrap();
    db.write(0, data(1), true).await.unwrap();
    (pool, db)
}

fn info(pool: &Pool) -> VolumeInfo {
    pool.volume("db").unwrap()
}

async fn first(pool: &Pool) -> u8 {
    let db = pool.open_volume("db").unwrap();
    db.read(0, buf::alloc(BLOCK).await).await.unwrap()[0]
}

/// A crash between any two steps leaves the former content, or no leg.
#[test]
fn first_change_ends_a_leg_durably_before_it() {
    block_on(async {
        let (devices, trace) = disks(vec![Image::default()], SIZE, 0);
        let (pool, db) = created(devices).await;
        pool.take_leg(&info(&pool)).await.unwrap();
        let begun = trace.lock().now();
        let former = FormerLeg::new(db);
        former.read(0, buf::alloc(BLOCK).await).await.unwrap();
        former.flush().await.unwrap();
        assert!(info(&pool).is_leg());
        // A rename meanwhile does not matter.
        pool.rename_volume("db", "other").await.unwrap();
        former.write(0, data(2), false).await.unwrap();
        pool.rename_volume("other", "db").await.unwrap();
        assert!(!info(&pool).is_leg());
        pool.close().await.unwrap();
        let (trace, mut seen) = (std::mem::take(&mut *trace.lock()), [0; 2]);
        let check = async |_, images| {
            let pool = Pool::open(disks(images, SIZE, 0).0).await.unwrap();
            let named = ["db", "other"].map(|name| pool.volume(name));
            let info = named.into_iter().flatten().next().unwrap();
            let db = pool.open_volume(&info.name).unwrap();
            let found = db.read(0, buf::alloc(BLOCK).await).await.unwrap()[0];
            assert!(found == 1 || !info.is_leg(), "{info:?}");
            seen[usize::from(found) - 1] += 1;
        };
        trace.at_each_event(|time| time >= begun, &mut Rng::new(1), check).await;
        assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
    })
    .unwrap();
}

#[test]
fn only_changes_of_content_end_a_leg() {
    block_on(async {
        let (pool, db) = created(disks(vec![Image::default()], SIZE, 0).0).await;
        let own = BTreeMap::from([("settings".to_owned(), "{}".to_owned())]);
        pool.set_volume("db", false, own.clone()).await.unwrap();
        assert!(!info(&pool).is_leg());
        pool.take_leg(&info(&pool)).await.unwrap();
        pool.set_volume("db", true, own.clone()).await.unwrap();
        pool.resize_volume("db", 2 << 20).await.unwrap();
        pool.create_snapshot(&["db"], "a").await.unwrap();
        pool.clone_volume("db@a", "copy", info(&pool).properties).await.unwrap();
        assert!(info(&pool).is_leg() && !pool.volume("copy").unwrap().is_leg());
        pool.accept_incomplete("db").await.unwrap();
        assert!(info(&pool).is_leg(), "it lacks nothing");
        for number in 0..4 {
            pool.take_leg(&info(&pool)).await.unwrap();
            let former = FormerLeg::new(db.clone());
            let changed = match number {
                0 => pool.rollback("db", "a").await.map_err(|error| panic!("{error}")),
                1 => former.write(0, data(3), false).await,
                2 => former.discard(0, 8192).await,
                _ => former.write_zeroes(0, 4096, ZeroFlags::default()).await,
            };
            changed.unwrap();
            assert_eq!(info(&pool).properties, own, "change {number}");
        }
        assert_eq!(first(&pool).await, 0);
    })
    .unwrap();
}

/// Begin of the mirror's part in the tests of rollbacks.
const KEPT_FROM: u64 = (1 << 20) - 2 * BLOCK as u64;

async fn at(pool: &Pool, offset: u64) -> u8 {
    let db = pool.open_volume("db").unwrap();
    db.read(offset, buf::alloc(BLOCK).await).await.unwrap()[0]
}

/// A leg with the data 1 in snapshot `a`, and 2 now. The mirror's part had 11, and has 12; its
/// second block had 11, and is a hole.
async fn leg_with_snapshot(devices: Vec<NamedDevice>) -> Pool {
    let (pool, db) = created(devices).await;
    pool.take_leg(&info(&pool)).await.unwrap();
    for offset in [KEPT_FROM, KEPT_FROM + BLOCK as u64] {
        db.write(offset, data(11), true).await.unwrap();
    }
    pool.create_snapshot(&["db"], "a").await.unwrap();
    for (offset, value) in [(0, 2), (8 * BLOCK as u64, 2), (KEPT_FROM, 12)] {
        db.write(offset, data(value), true).await.unwrap();
    }
    db.discard(KEPT_FROM + BLOCK as u64, BLOCK as u64).await.unwrap();
    db.flush().await.unwrap();
    pool
}

fn names(pool: &Pool) -> Vec<String> {
    pool.snapshots().into_iter().map(|snapshot| snapshot.name).collect()
}

/// A crash between any two steps leaves the former content, or a rollback that goes on. The
/// mirror's part is never an older one.
#[test]
fn leg_rollback_continues_after_a_crash() {
    block_on(async {
        let (devices, trace) = disks(vec![Image::default()], SIZE, 0);
        let pool = leg_with_snapshot(devices).await;
        let begun = trace.lock().now();
        let leg = info(&pool);
        pool.begin_leg_rollback(&leg, "a", KEPT_FROM).await.unwrap();
        let ended = pool.finish_leg_rollback(leg.uuid).await.unwrap();
        assert_eq!(ended, Some(LegRollbackEnd::RolledBack));
        assert_eq!(pool.finish_leg_rollback(leg.uuid).await, Ok(None), "it has ended");
        assert_eq!(names(&pool), ["db@a"]);
        pool.close().await.unwrap();
        let (trace, mut seen) = (std::mem::take(&mut *trace.lock()), [0; 3]);
        let check = async |_, images| {
            let pool = Pool::open(disks(images, SIZE, 0).0).await.unwrap();
            let found = info(&pool);
            let is_begun = found.leg_rollback().is_some();
            assert!(is_begun || found.is_leg(), "{found:?}");
            let stage = usize::from(is_begun) + 2 * usize::from(!found.is_leg());
            let ended = pool.finish_leg_rollback(found.uuid).await.unwrap();
            assert_eq!(ended, is_begun.then_some(LegRollbackEnd::RolledBack));
            let found = info(&pool);
            assert!(found.is_leg() && found.leg_rollback().is_none(), "{found:?}");
            let contents = [0, 8 * BLOCK as u64].map(|offset| at(&pool, offset));
            let [one, other] = contents;
            let content = (one.await, other.await);
            assert!(content == (1, 0) || content == (2, 2) && !is_begun, "{content:?}");
            assert_eq!(at(&pool, KEPT_FROM).await, 12);
            assert_eq!(at(&pool, KEPT_FROM + BLOCK as u64).await, 0);
            seen[stage.min(2)] += 1;
        };
        trace.at_each_event(|time| time >= begun, &mut Rng::new(1), check).await;
        assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
    })
    .unwrap();
}

#[test]
fn leg_rollback_ends_with_the_leg() {
    block_on(async {
        let begun = async || {
            let pool = leg_with_snapshot(disks(vec![Image::default()], SIZE, 0).0).await;
            pool.begin_leg_rollback(&info(&pool), "a", KEPT_FROM).await.unwrap();
            assert!(info(&pool).is_leg() && info(&pool).leg_rollback().is_some());
            pool
        };
        for number in 0..4 {
            let pool = begun().await;
            let leg = info(&pool);
            match number {
                // It was changed without its mirror.
                0 => FormerLeg::new(pool.open_volume("db").unwrap())
                    .write(0, data(3), true)
                    .await
                    .unwrap(),
                1 => pool.rollback("db", "a").await.unwrap(),
                2 => pool.release_leg(&leg).await.unwrap(),
                _ => pool.take_leg(&leg).await.unwrap(),
            }
            assert_eq!(info(&pool).leg_rollback(), None, "{number}");
            assert_eq!(pool.finish_leg_rollback(leg.uuid).await, Ok(None), "{number}");
            assert_eq!(info(&pool).is_leg(), number == 3);
            let content = if number == 0 { 3 } else { 2 - u8::from(number == 1) };
            assert_eq!(at(&pool, 0).await, content, "{number}");
        }
        // New properties keep it.
        let pool = begun().await;
        pool.set_volume("db", false, BTreeMap::new()).await.unwrap();
        assert!(info(&pool).leg_rollback().is_some());
        // Without the snapshot, nothing can be rolled back.
        pool.delete_snapshot("db@a").await.unwrap();
        let ended = pool.finish_leg_rollback(info(&pool).uuid).await.unwrap();
        assert!(matches!(ended, Some(LegRollbackEnd::Canceled(_))), "{ended:?}");
        assert!(info(&pool).is_leg() && names(&pool).is_empty());
        assert_eq!((at(&pool, 0).await, at(&pool, KEPT_FROM).await), (2, 12));
    })
    .unwrap();
}

#[test]
fn leg_is_compared_and_rolled_back_again() {
    block_on(async {
        let pool = leg_with_snapshot(disks(vec![Image::default()], SIZE, 0).0).await;
        let block = BLOCK as u64;
        let all = async || {
            let mut found = Vec::new();
            pool.compare_leg(&info(&pool), "a", |range| found.push(range)).await.unwrap();
            assert_eq!(names(&pool), ["db@a"]);
            found
        };
        let differing = [0..block, 8 * block..9 * block, KEPT_FROM..KEPT_FROM + 2 * block];
        assert_eq!(all().await, differing);
        pool.check_leg_rollback("db", "a").unwrap();
        for (own, kept_from) in [("b", KEPT_FROM), ("a", 5), ("a", 2 << 20)] {
            let refused = pool.begin_leg_rollback(&info(&pool), own, kept_from).await;
            assert!(refused.is_err() && info(&pool).leg_rollback().is_none(), "{own} {kept_from}");
        }
        for _ in 0..2 {
            pool.begin_leg_rollback(&info(&pool), "a", KEPT_FROM).await.unwrap();
            pool.finish_leg_rollback(info(&pool).uuid).await.unwrap();
            let differing = KEPT_FROM..KEPT_FROM + 2 * block;
            assert_eq!(all().await, [differing]);
        }
        pool.resize_volume("db", 2 << 20).await.unwrap();
        assert!(pool.begin_leg_rollback(&info(&pool), "a", KEPT_FROM).await.is_err());
    })
    .unwrap();
}
