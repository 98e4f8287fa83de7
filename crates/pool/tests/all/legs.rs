//! Legs: volumes whose content only a mirror changes, and the end of that.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::{Image, disks};
use flagstone_blockdev::{BlockDevice as _, ZeroFlags};
use flagstone_pool::{
    CreateOptions, FormerLeg, NamedDevice, Pool, PoolVolume, VolumeInfo, VolumeOptions,
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
