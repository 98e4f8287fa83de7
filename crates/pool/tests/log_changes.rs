//! Another log device for a pool in use, while a disk fails at any write, or the power at any event.
#![allow(missing_docs)]

mod common;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use common::{Image, SharedTrace, disks_of};
use flagstone_blockdev::{BlockDevice, Geometry, IoError, IoFuture, SharedDevice, ZeroFlags};
use flagstone_pool::{
    CreateOptions, NamedDevice, OpenOptions, Pool, PoolError, PoolVolume, VolumeOptions,
};
use flagstone_runtime::rng::Rng;
use flagstone_runtime::sim::{SimConfig, Simulation};
use flagstone_runtime::{Buf, BufMut, buf, spawn};

const BLOCK: u64 = 4096;
/// A disk, its log device, and another one.
const SIZES: [u64; 3] =
    [(1 << 20) + 100 * 16 * BLOCK, (1 << 20) + 8 * 16 * BLOCK, (1 << 20) + 12 * 16 * BLOCK];

async fn write(volume: &PoolVolume, block: u64, value: u8) -> Result<(), IoError> {
    let data = Buf::copy_of(&[value; BLOCK as usize]).unwrap();
    volume.write(block * BLOCK, data, true).await
}

async fn read(volume: &PoolVolume, block: u64) -> u8 {
    volume.read(block * BLOCK, buf::alloc(BLOCK as usize).await).await.unwrap()[0]
}

/// A disk whose writes fail from one of them on.
#[derive(Debug)]
struct DyingDisk {
    disk: SharedDevice,
    writes_left: Arc<AtomicI64>,
}

impl BlockDevice for DyingDisk {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn read(&self, offset: u64, buf: BufMut) -> IoFuture<BufMut> {
        self.disk.read(offset, buf)
    }

    fn write(&self, offset: u64, data: Buf, fua: bool) -> IoFuture<()> {
        match self.writes_left.fetch_sub(1, Ordering::Relaxed) > 0 {
            true => self.disk.write(offset, data, fua),
            false => IoFuture::ready(Err(IoError::WriteFault)),
        }
    }

    fn flush(&self) -> IoFuture<()> {
        self.disk.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.disk.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        self.disk.write_zeroes(offset, len, flags)
    }
}

/// A pool with a log device, another device, and what the disks did.
struct Bed {
    disks: Vec<NamedDevice>,
    trace: SharedTrace,
    writes_left: Arc<AtomicI64>,
    pool: Pool,
    /// The last value that block 2 of volume `db` has for certain.
    flushed: Rc<Cell<u8>>,
}

impl Bed {
    async fn new() -> Bed {
        let (mut disks, trace) = disks_of(vec![Image::default(); 3], &SIZES, 50, false);
        let writes_left = Arc::new(AtomicI64::new(i64::MAX));
        let disk = DyingDisk { disk: disks[0].device.clone(), writes_left: writes_left.clone() };
        disks[0].device = Arc::new(disk);
        let options = CreateOptions { segment_blocks: 16, ..CreateOptions::new("fast") };
        let (devices, log) = (vec![disks[0].clone()], Some(disks[1].clone()));
        let pool = Pool::create_with_log(devices, log, &options).await.unwrap();
        let size = VolumeOptions { size_bytes: 100 * BLOCK, ..VolumeOptions::default() };
        let db = pool.create_volume("db", &size).await.unwrap();
        write(&db, 1, 7).await.unwrap();
        Bed { disks, trace, writes_left, pool, flushed: Rc::default() }
    }

    /// Writes until the pool is closed.
    fn write_on(&self) {
        let (db, flushed) = (self.pool.open_volume("db").unwrap(), self.flushed.clone());
        drop(spawn(async move {
            for value in 1..=255 {
                if write(&db, 2, value).await.is_err() {
                    return;
                }
                flushed.set(value);
            }
        }));
    }
}

async fn open(disks: &[NamedDevice], log: usize) -> Result<Pool, PoolError> {
    let options = OpenOptions { log: Some(disks[log].clone()), ..OpenOptions::default() };
    Pool::open_with(vec![disks[0].clone()], &options).await
}

/// Checks that volume `db` is served and has what was flushed.
async fn check(pool: Result<Pool, PoolError>, flushed: u8, context: &str) {
    let pool = pool.unwrap_or_else(|error| panic!("{context}: {error}"));
    let db = pool.open_volume("db").unwrap_or_else(|error| panic!("{context}: {error}"));
    assert_eq!(read(&db, 1).await, 7, "{context}");
    let found = read(&db, 2).await;
    assert!(found >= flushed, "{context}: {found} instead of {flushed}");
}

fn simulate(seed: u64, work: impl Future<Output = ()> + 'static) {
    let sim = Simulation::new(seed, SimConfig::default());
    let node = sim.add_node("server");
    let done = sim.spawn_on(node, work);
    sim.block_on(async { done.await.unwrap() });
}

#[test]
fn failing_disk_loses_nothing_while_log_changes() {
    simulate(1, async {
        let mut failures = 0;
        for writes in 0.. {
            let bed = Bed::new().await;
            bed.writes_left.store(writes, Ordering::Relaxed);
            bed.write_on();
            let set = bed.pool.set_log_device(Some(bed.disks[2].clone()), false).await;
            let is_dead = bed.writes_left.swap(i64::MAX, Ordering::Relaxed) < 0;
            let (disks, flushed) = (bed.disks.clone(), bed.flushed.get());
            drop(bed);
            let log = if set.is_ok() { 2 } else { 1 };
            let context = format!("{writes} writes, then {set:?}");
            check(open(&disks, log).await, flushed, &context).await;
            if !is_dead {
                assert!(set.is_ok(), "{context}");
                break;
            }
            failures += 1;
        }
        println!("{failures} failures");
        assert!(failures > 12);
    });
}

#[test]
fn power_loss_loses_nothing_while_log_changes() {
    for seed in 0..10 {
        simulate(seed, async move {
            let bed = Bed::new().await;
            let from = bed.trace.lock().now();
            bed.write_on();
            bed.pool.set_log_device(Some(bed.disks[2].clone()), false).await.unwrap();
            // Writes were acknowledged before the pool was closed; the last of them may be missing.
            let flushed = bed.flushed.get();
            drop(bed.pool);
            let trace = std::mem::take(&mut *bed.trace.lock());
            let (last, mut crashes) = (trace.now(), 0);
            let at = |time| time >= from;
            let rng = &mut Rng::new(seed);
            let check = async |time, images: Vec<Image>| {
                crashes += 1;
                let context = format!("seed {seed}, crash after event {time}");
                let flushed = if time == last { flushed } else { 0 };
                let (disks, _) = disks_of(images.clone(), &SIZES, 0, false);
                // A server records the new one afterwards.
                check(open(&disks, 1).await, flushed, &context).await;
                if time == last {
                    let (disks, _) = disks_of(images, &SIZES, 0, false);
                    check(open(&disks, 2).await, flushed, &context).await;
                }
            };
            trace.at_each_event(at, rng, check).await;
            assert!(crashes > 20, "{crashes}");
        });
    }
}

#[test]
fn damaged_superblock_of_a_log_device_with_a_tail() {
    simulate(1, async {
        let bed = Bed::new().await;
        let db = bed.pool.open_volume("db").unwrap();
        write(&db, 2, 9).await.unwrap();
        drop((db, bed.pool));
        let trace = std::mem::take(&mut *bed.trace.lock());
        let (now, mut images) = (trace.now(), Vec::new());
        let keep = async |_, found| images = found;
        trace.at_each_event(|time| time == now, &mut Rng::new(1), keep).await;
        let whole = images.clone();
        // One whole copy is too few to believe it, but the tail is there.
        for copy in 1..4 {
            images[1].edit(copy << 18, |bytes| bytes[100] ^= 1);
        }
        let (disks, _) = disks_of(images, &SIZES, 0, false);
        let refused = open(&disks, 1).await;
        assert!(matches!(refused, Err(PoolError::LogDeviceMissing { .. })), "{refused:?}");
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("/dev/disk1") && refused.contains("damaged"), "{refused}");
        let (disks, _) = disks_of(whole, &SIZES, 0, false);
        let pool = open(&disks, 1).await.unwrap();
        assert_eq!(read(&pool.open_volume("db").unwrap(), 2).await, 9);
    });
}
