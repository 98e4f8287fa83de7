//! Devices that cannot be read for a while: nothing that is whole is lost, and nothing leaks.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::{
    BlockDevice, FaultConfig, FaultControl, FaultLayer, IoError, MemoryDevice, SharedDevice,
};
use flagstone_pool::manage::devices::DeviceOrderError;
use flagstone_pool::verify::DamageKind;
use flagstone_pool::{CreateOptions, NamedDevice, Pool, PoolError, PoolVolume, VolumeOptions};
use flagstone_runtime::rng::Rng;
use flagstone_runtime::sim::{SimConfig, Simulation};
use flagstone_runtime::{Buf, buf, spawn, time};

const BLOCK: u64 = 4096;
/// Superblocks end here.
const DATA: u64 = 1 << 20;
const SEGMENTS: u64 = 120;
const SIZE: u64 = DATA + SEGMENTS * 16 * BLOCK;
/// Blocks of the volume that are written: one in each of this number of leaves.
const LEAVES: u64 = 40;
const STRIDE: u64 = 252;

fn device(name: &str) -> (NamedDevice, FaultControl) {
    let memory = Arc::new(MemoryDevice::new(SIZE, 512).unwrap()) as SharedDevice;
    let (layer, control) = FaultLayer::new(memory, FaultConfig::default()).unwrap();
    (NamedDevice { name: name.to_owned(), device: Arc::new(layer) }, control)
}

fn options() -> CreateOptions {
    CreateOptions { segment_blocks: 16, ..CreateOptions::new("fast") }
}

fn thin(blocks: u64) -> VolumeOptions {
    VolumeOptions { size_bytes: blocks * BLOCK, ..VolumeOptions::default() }
}

async fn write(volume: &PoolVolume, block: u64, value: u8) -> Result<(), IoError> {
    let data = Buf::copy_of(&[value; BLOCK as usize]).unwrap();
    volume.write(block * BLOCK, data, true).await
}

async fn read(volume: &PoolVolume, block: u64) -> Result<u8, IoError> {
    let read = volume.read(block * BLOCK, buf::alloc(BLOCK as usize).await).await?;
    Ok(read[0])
}

/// The written blocks, except for these leaves.
async fn values(volume: &PoolVolume, leaves: Range<u64>) -> Vec<Result<u8, IoError>> {
    let mut found = Vec::new();
    for leaf in leaves {
        found.push(read(volume, leaf * STRIDE).await);
    }
    found
}

/// A closed pool with a volume of many leaves, whose pages an opening does not read.
async fn closed() -> (Vec<NamedDevice>, FaultControl) {
    let (device, control) = device("/dev/faulty");
    let devices = vec![device];
    let pool = Pool::create(devices.clone(), &options()).await.unwrap();
    let db = pool.create_volume("db", &thin(1 << 20)).await.unwrap();
    for leaf in 0..LEAVES {
        write(&db, leaf * STRIDE, 1).await.unwrap();
    }
    pool.close().await.unwrap();
    (devices, control)
}

fn simulate<F: Future<Output = ()>>(test: impl FnOnce() -> F + 'static) {
    let sim = Simulation::new(1, SimConfig::default());
    let node = sim.add_node("server");
    let done = sim.spawn_on(node, async move { test().await });
    sim.block_on(async { done.await.unwrap() });
}

/// Ends the faults after a while.
fn heal_after(control: &FaultControl, span: Duration) {
    let control = control.clone();
    drop(spawn(async move {
        time::sleep(span).await;
        control.heal();
    }));
}

/// Place of the leaf with block 0, on the device.
async fn first_leaf(devices: &[NamedDevice], control: &FaultControl) -> u64 {
    for at in (DATA..SIZE).step_by(BLOCK as usize) {
        control.fail_reads(at..at + BLOCK);
        let checked = Pool::check_devices(devices.to_vec(), &mut |_, _| {}).await;
        control.heal();
        let is_first_leaf = |kind: &DamageKind| {
            matches!(kind, DamageKind::Map { offset_bytes: 0, len_bytes, .. }
                if *len_bytes == STRIDE * BLOCK)
        };
        let damage = checked.map(|report| report.damage).unwrap_or_default();
        if damage.iter().any(|damage| is_first_leaf(&damage.kind)) {
            return at;
        }
    }
    panic!("the volume has no leaf")
}

/// A checkpoint took a page that could not be read for a moment for damaged: 252 blocks were lost
/// for good, and as many as the page covers if it was higher up.
#[test]
fn checkpoint_waits_for_map_pages_of_a_stalled_device() {
    simulate(async || {
        // The whole device is away, or all but its superblock.
        for from in [0, DATA] {
            let (devices, control) = closed().await;
            let pool = Pool::open(devices).await.unwrap();
            let db = pool.open_volume("db").unwrap();
            write(&db, 10 * STRIDE + 1, 2).await.unwrap();
            db.discard(BLOCK, 100 * BLOCK).await.unwrap();
            control.fail_reads(from..SIZE);
            heal_after(&control, Duration::from_secs(3));
            assert_eq!(pool.checkpoint().await, Ok(()));
            assert_eq!(values(&db, 0..LEAVES).await, vec![Ok(1); LEAVES as usize]);
            assert_eq!(read(&db, 10 * STRIDE + 1).await, Ok(2));
        }
    });
}

#[test]
fn lasting_read_errors_fail_the_pool_and_lose_nothing() {
    simulate(async || {
        let (devices, control) = closed().await;
        let pool = Pool::open(devices.clone()).await.unwrap();
        let db = pool.open_volume("db").unwrap();
        write(&db, 1, 2).await.unwrap();
        control.fail_reads(DATA..SIZE);
        assert_eq!(pool.checkpoint().await, Err(IoError::WriteFault));
        assert_eq!(pool.status().failed, Some(IoError::WriteFault));
        drop((pool, db));
        control.heal();
        // The device goes away during the first checkpoint of an opening.
        let leaf = first_leaf(&devices, &control).await;
        control.fail_reads(leaf..leaf + BLOCK);
        let opened = spawn(Pool::open(devices.clone()));
        time::sleep(Duration::from_secs(1)).await;
        control.fail_reads(0..SIZE);
        let refused = opened.await.unwrap().unwrap_err();
        assert!(matches!(refused, PoolError::Device { .. }), "{refused}");
        control.heal();
        let pool = Pool::open(devices).await.unwrap();
        let db = pool.open_volume("db").unwrap();
        assert_eq!(values(&db, 0..LEAVES).await, vec![Ok(1); LEAVES as usize]);
        assert_eq!(read(&db, 1).await, Ok(2));
    });
}

/// A sector that cannot be read for good keeps a pool from being written to only until it is opened
/// again, and costs what its page has.
#[test]
fn unreadable_map_page_is_lost_by_an_opening_only() {
    simulate(async || {
        let (devices, control) = closed().await;
        let leaf = first_leaf(&devices, &control).await;
        let pool = Pool::open(devices.clone()).await.unwrap();
        let db = pool.open_volume("db").unwrap();
        write(&db, 1, 2).await.unwrap();
        control.fail_reads(leaf..leaf + BLOCK);
        assert_eq!(pool.checkpoint().await, Err(IoError::WriteFault));
        drop((pool, db));
        let pool = Pool::open(devices).await.unwrap();
        let db = pool.open_volume("db").unwrap();
        assert_eq!(read(&db, 0).await, Err(IoError::ReadFault));
        assert_eq!(read(&db, 1).await, Ok(2));
        assert_eq!(values(&db, 1..LEAVES).await, vec![Ok(1); LEAVES as usize - 1]);
        write(&db, 0, 3).await.unwrap();
        pool.checkpoint().await.unwrap();
        assert_eq!(read(&db, 0).await, Ok(3));
    });
}

/// A checkpoint that was to write the page again would fail the pool, after each opening.
#[test]
fn cleaner_leaves_an_unreadable_map_page_alone() {
    simulate(async || {
        let (devices, control) = closed().await;
        let pool = Pool::open(devices.clone()).await.unwrap();
        let db = pool.open_volume("db").unwrap();
        // The segment of the leaf has little else.
        for leaf in 1..LEAVES {
            write(&db, leaf * STRIDE, 1).await.unwrap();
        }
        pool.close().await.unwrap();
        drop((pool, db));
        let leaf = first_leaf(&devices, &control).await;
        let pool = Pool::open(devices).await.unwrap();
        let other = pool.create_volume("other", &thin(300)).await.unwrap();
        control.fail_reads(leaf..leaf + BLOCK);
        let mut rng = Rng::new(1);
        for step in 0..4000_u64 {
            let written = write(&other, rng.below(300), step as u8).await;
            assert_eq!(written, Ok(()), "step {step}: {:?}", pool.status());
        }
        assert!(pool.status().cleaned_segments > 50, "{:?}", pool.status());
        control.heal();
        let db = pool.open_volume("db").unwrap();
        assert_eq!(values(&db, 0..LEAVES).await, vec![Ok(1); LEAVES as usize]);
    });
}

/// The walk of a deleted map ended at the page, and everything below it stayed in use for ever.
#[test]
fn deleted_volume_is_freed_after_a_stall() {
    simulate(async || {
        let (device, control) = device("/dev/faulty");
        let devices = vec![device];
        let pool = Pool::create(devices.clone(), &options()).await.unwrap();
        let before = pool.status().used_bytes;
        let db = pool.create_volume("db", &thin(1 << 20)).await.unwrap();
        for leaf in 0..LEAVES {
            write(&db, leaf * STRIDE, 1).await.unwrap();
        }
        pool.close().await.unwrap();
        drop((pool, db));
        let pool = Pool::open(devices).await.unwrap();
        control.fail_reads(0..SIZE);
        heal_after(&control, Duration::from_secs(3));
        pool.delete_volume("db").await.unwrap();
        for _ in 0..4 {
            pool.checkpoint().await.unwrap();
        }
        let after = pool.status().used_bytes;
        assert!(after <= before + 4 * BLOCK, "{before} bytes before, {after} after");
    });
}

/// The cleaner left a segment alone for ever that it could not read once, so a device with one
/// could not be removed before a restart.
#[test]
fn removal_can_be_repeated_after_read_errors() {
    simulate(async || {
        let ((first, _), (second, control)) = (device("/a"), device("/b"));
        let pool = Pool::create(vec![first], &options()).await.unwrap();
        let db = pool.create_volume("db", &thin(1 << 20)).await.unwrap();
        pool.grow(second, false).await.unwrap();
        for block in 0..900 {
            write(&db, block, 1).await.unwrap();
        }
        pool.checkpoint().await.unwrap();
        for fails in [true, false] {
            if fails {
                control.fail_reads(DATA..SIZE);
            }
            let evacuation = pool.evacuate("/b").await.unwrap();
            let ended = loop {
                match evacuation.step().await {
                    Ok(false) => {}
                    ended => break ended,
                }
            };
            control.heal();
            match fails {
                true => {
                    assert!(matches!(ended, Err(DeviceOrderError::Damaged { .. })), "{ended:?}")
                }
                false => {
                    assert_eq!(ended, Ok(true));
                    evacuation.complete().await.unwrap();
                }
            }
        }
        for block in 0..900 {
            assert_eq!(read(&db, block).await, Ok(1));
        }
    });
}

/// An unreadable sector of the log hid the chunks beside it, which say that it was flushed: the
/// pool was opened without them.
#[test]
fn unreadable_chunk_of_the_flushed_log_is_refused() {
    simulate(async || {
        let (device, control) = device("/dev/faulty");
        let devices = vec![device];
        let pool = Pool::create(devices.clone(), &options()).await.unwrap();
        let db = pool.create_volume("db", &thin(100)).await.unwrap();
        for block in 0..20 {
            write(&db, block, 1).await.unwrap();
        }
        drop((pool, db));
        let mut unreadable = Vec::new();
        for at in (DATA..DATA + 8 * 16 * BLOCK).step_by(BLOCK as usize) {
            control.fail_reads(at..at + BLOCK);
            let checked = Pool::check_devices(devices.clone(), &mut |_, _| {}).await;
            control.heal();
            let damage = checked.map(|report| report.damage).unwrap_or_default();
            if damage.iter().any(|damage| damage.kind == DamageKind::Log) {
                unreadable.push(at);
            }
        }
        // Header and payload of all chunks but the last, which nothing proves.
        assert!(unreadable.len() >= 38, "{}", unreadable.len());
        control.fail_reads(unreadable[9]..unreadable[9] + BLOCK);
        let refused = Pool::open(devices.clone()).await.unwrap_err();
        assert!(matches!(refused, PoolError::LostChunk { .. }), "{refused}");
        heal_after(&control, Duration::from_secs(3));
        let pool = Pool::open(devices).await.unwrap();
        let db = pool.open_volume("db").unwrap();
        for block in 0..20 {
            assert_eq!(read(&db, block).await, Ok(1));
        }
    });
}
