//! Orders on volumes: dropped halfway, and beside other changes. Simulated disks that take time but
//! lose nothing.

use std::time::Duration;

use crate::common::{Image, disks};
use flagstone_blockdev::BlockDevice;
use flagstone_pool::{CreateOptions, NamedDevice, Pool, VolumeError, VolumeOptions};
use flagstone_runtime::sim::{SimConfig, Simulation};
use flagstone_runtime::{Buf, time};

const BLOCK: u64 = 4096;
const HOUR: Duration = Duration::from_secs(3600);

fn simulate(run: impl AsyncFnOnce() + 'static) {
    let simulation = Simulation::new(1, SimConfig::default());
    let node = simulation.add_node("server");
    let done = simulation.spawn_on(node, async move { run().await });
    simulation.block_on(async { done.await.unwrap() });
}

/// A pool of segments of 16 blocks, on one disk.
async fn create(segments: u64, max_us: u64) -> (Vec<NamedDevice>, Pool) {
    let size_bytes = (1 << 20) + segments * 16 * BLOCK;
    let (devices, _) = disks(vec![Image::default()], size_bytes, max_us);
    let options = CreateOptions { segment_blocks: 16, ..CreateOptions::new("fast") };
    let pool = Pool::create(devices.clone(), &options).await.unwrap();
    (devices, pool)
}

fn thin(blocks: u64) -> VolumeOptions {
    VolumeOptions { size_bytes: blocks * BLOCK, ..VolumeOptions::default() }
}

fn data(value: u8) -> Buf {
    Buf::copy_of(&[value; BLOCK as usize]).unwrap()
}

/// A dropped order left a chunk in flight for ever: no later write took effect.
#[test]
fn dropped_order_ends_by_itself() {
    for delay_us in (0..2000).step_by(50) {
        simulate(async move || {
            let (devices, pool) = create(200, 1000).await;
            let volume = pool.create_volume("db", &thin(100)).await.unwrap();
            let delay = Duration::from_micros(delay_us);
            let dropped = time::timeout(delay, pool.create_volume("dropped", &thin(10))).await;
            let snapshot = time::timeout(delay, pool.create_snapshot(&["db"], "dropped")).await;
            let next = time::timeout(HOUR, pool.create_volume("next", &thin(10))).await;
            drop(next.unwrap().unwrap());
            time::timeout(HOUR, volume.write(0, data(1), true)).await.unwrap().unwrap();
            assert!(snapshot.is_err() || pool.snapshots().len() == 1);
            let names: Vec<_> = pool.volumes().into_iter().map(|volume| volume.name).collect();
            let snapshots = pool.snapshots().len();
            time::timeout(HOUR, pool.close()).await.unwrap().unwrap();
            drop((volume, pool));
            let pool = Pool::open(devices).await.unwrap();
            let found: Vec<_> = pool.volumes().into_iter().map(|volume| volume.name).collect();
            assert_eq!(found, names, "dropped: {}", dropped.is_err());
            assert_eq!(pool.snapshots().len(), snapshots);
        });
    }
}

/// Volumes with long settings, until the pool refuses more.
async fn create_until_refused(pool: &Pool) -> (u64, VolumeError) {
    let properties = [("key".to_owned(), "v".repeat(2000))].into();
    let options = VolumeOptions { properties, ..thin(10) };
    for number in 0.. {
        let name = format!("v{number}");
        let created = time::timeout(HOUR, pool.create_volume(&name, &options));
        if let Err(refused) = created.await.expect("it ends") {
            return (number, refused);
        }
    }
    unreachable!("a volume table has a limit")
}

/// Orders took the last segment. Then neither a deletion nor an opening found room.
#[test]
fn pool_filled_by_orders_can_be_opened_and_emptied() {
    for (segments, full) in [(32, true), (64, false), (64, true), (200, false), (300, true)] {
        simulate(async move || {
            let (devices, pool) = create(segments, 200).await;
            let big = pool.create_volume("big", &thin(1 << 20)).await.unwrap();
            let mut written = 0;
            while full && big.write(written * BLOCK, data(1), false).await.is_ok() {
                written += 1;
            }
            let (volumes, refused) = create_until_refused(&pool).await;
            assert!(volumes > 3, "{volumes} volumes, then {refused}");
            let refused = refused.to_string();
            assert!(refused.contains("delete some"), "{refused}");
            for number in 0..3000 {
                let properties = [("key".to_owned(), number.to_string())].into();
                let set = time::timeout(HOUR, pool.set_volume("big", false, properties));
                match set.await.expect("it ends") {
                    // The chunks of a checkpoint are a large part of a small pool.
                    Err(VolumeError::Full { .. }) if full && segments < 300 => break,
                    set => set.unwrap(),
                }
            }
            drop((big, pool));
            let pool = Pool::open(devices.clone()).await.unwrap();
            assert_eq!(pool.volumes().len() as u64, volumes + 1);
            for number in 0..volumes {
                pool.delete_volume(&format!("v{number}")).await.unwrap();
            }
            let big = pool.open_volume("big").unwrap();
            if written > 0 {
                big.discard(0, written * BLOCK).await.unwrap();
            }
            big.write(0, data(2), true).await.unwrap();
            drop((big, pool));
            let pool = Pool::open(devices).await.unwrap();
            assert!(create_until_refused(&pool).await.0 >= volumes);
        });
    }
}
