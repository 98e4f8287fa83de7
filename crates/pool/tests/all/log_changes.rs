//! Another log device for a pool in use, or none, while a device fails at any write, or the power
//! at any event. Openings of a pool with a tail on its log device that fail at any write, or are
//! dropped.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use crate::common::{Image, SharedTrace, disks_of};
use flagstone_blockdev::{BlockDevice, Geometry, IoError, IoFuture, SharedDevice, ZeroFlags};
use flagstone_pool::{
    CreateOptions, NamedDevice, OpenOptions, Pool, PoolError, PoolVolume, VolumeOptions,
};
use flagstone_runtime::rng::Rng;
use flagstone_runtime::sim::{SimConfig, Simulation};
use flagstone_runtime::{Buf, BufMut, buf, spawn, time};

const BLOCK: u64 = 4096;
const LOG: usize = 2;
const OTHER_LOG: usize = 3;
/// Two disks, their log device, and another one.
const SIZES: [u64; 4] = [
    (1 << 20) + 60 * 16 * BLOCK,
    (1 << 20) + 40 * 16 * BLOCK,
    (1 << 20) + 8 * 16 * BLOCK,
    (1 << 20) + 12 * 16 * BLOCK,
];

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

/// What becomes of a write.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WriteOutcome {
    Done,
    Failed,
    Hung,
}

/// A disk with writes, or flushes as writes at the end, that do not succeed.
#[derive(Debug)]
struct HookedDisk {
    disk: SharedDevice,
    hook: fn(write: i64, offset: u64, chosen: i64) -> WriteOutcome,
    chosen: i64,
    writes: Arc<AtomicI64>,
}

impl BlockDevice for HookedDisk {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn read(&self, offset: u64, buf: BufMut) -> IoFuture<BufMut> {
        self.disk.read(offset, buf)
    }

    fn write(&self, offset: u64, data: Buf, fua: bool) -> IoFuture<()> {
        let write = self.writes.fetch_add(1, Ordering::Relaxed);
        match (self.hook)(write, offset, self.chosen) {
            WriteOutcome::Done => self.disk.write(offset, data, fua),
            WriteOutcome::Failed => IoFuture::ready(Err(IoError::WriteFault)),
            WriteOutcome::Hung => IoFuture::later(std::future::pending()),
        }
    }

    fn flush(&self) -> IoFuture<()> {
        match (self.hook)(self.writes.load(Ordering::Relaxed), u64::MAX, self.chosen) {
            WriteOutcome::Hung => IoFuture::later(std::future::pending()),
            WriteOutcome::Done | WriteOutcome::Failed => self.disk.flush(),
        }
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.disk.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        self.disk.write_zeroes(offset, len, flags)
    }
}

/// The disks of a pool that crashed with a tail on its log device.
async fn crashed() -> Vec<NamedDevice> {
    let bed = Bed::new(0).await;
    let db = bed.pool.open_volume("db").unwrap();
    write(&db, 2, 5).await.unwrap();
    let disks = bed.disks.clone();
    drop((db, bed));
    time::sleep(Duration::from_millis(10)).await;
    disks
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
    /// `dying` is the disk whose writes can fail.
    async fn new(dying: usize) -> Bed {
        let (mut disks, trace) = disks_of(vec![Image::default(); 4], &SIZES, 50, false);
        let writes_left = Arc::new(AtomicI64::new(i64::MAX));
        let device = disks[dying].device.clone();
        let disk = DyingDisk { disk: device, writes_left: writes_left.clone() };
        disks[dying].device = Arc::new(disk);
        let options = CreateOptions { segment_blocks: 16, ..CreateOptions::new("fast") };
        let (devices, log) = (disks[..LOG].to_vec(), Some(disks[LOG].clone()));
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

async fn open(disks: &[NamedDevice], log: Option<usize>) -> Result<Pool, PoolError> {
    let log = log.map(|log| disks[log].clone());
    Pool::open_with(disks[..LOG].to_vec(), &OpenOptions { log, ..OpenOptions::default() }).await
}

/// Checks that volume `db` is served and has what was flushed.
async fn check(pool: Result<Pool, PoolError>, flushed: u8, context: &str) -> Pool {
    let pool = pool.unwrap_or_else(|error| panic!("{context}: {error}"));
    let db = pool.open_volume("db").unwrap_or_else(|error| panic!("{context}: {error}"));
    assert_eq!(read(&db, 1).await, 7, "{context}");
    let found = read(&db, 2).await;
    assert!(found >= flushed, "{context}: {found} instead of {flushed}");
    pool
}

fn simulate(seed: u64, work: impl Future<Output = ()> + 'static) {
    let sim = Simulation::new(seed, SimConfig::default());
    let node = sim.add_node("server");
    let done = sim.spawn_on(node, work);
    sim.block_on(async { done.await.unwrap() });
}

/// Changes the log device of a pool, of which one disk fails from each write on in turn. Returns
/// the number of failures.
async fn fail_each_write(dying: usize, target: Option<usize>) -> usize {
    let mut failures = 0;
    for writes in 0.. {
        let bed = Bed::new(dying).await;
        bed.writes_left.store(writes, Ordering::Relaxed);
        bed.write_on();
        let new = target.map(|target| bed.disks[target].clone());
        let set = bed.pool.set_log_device(new.clone(), false).await;
        let is_dead = bed.writes_left.swap(i64::MAX, Ordering::Relaxed) < 0;
        let (disks, flushed) = (bed.disks.clone(), bed.flushed.get());
        drop(bed);
        let context = format!("disk {dying}, {writes} writes, to {target:?}: {set:?}");
        if set.is_ok() {
            let pool = check(open(&disks, target).await, flushed, &context).await;
            let log = pool.status().log.and_then(|log| log.name);
            assert_eq!(log, new.map(|new| new.name), "{context}");
        } else {
            // The order can be repeated.
            let pool = check(open(&disks, Some(LOG)).await, flushed, &context).await;
            let again = pool.set_log_device(new, true).await;
            assert_eq!(again, Ok(()), "{context}");
            drop(pool);
            check(open(&disks, target).await, flushed, &context).await;
        }
        if !is_dead {
            assert_eq!(set, Ok(()), "{context}");
            break;
        }
        failures += 1;
    }
    failures
}

#[test]
fn failing_disk_loses_nothing_while_log_changes() {
    simulate(1, async {
        for target in [Some(OTHER_LOG), None] {
            for dying in [0, 1] {
                assert!(fail_each_write(dying, target).await > 8);
            }
        }
    });
}

#[test]
fn failing_log_device_loses_nothing_while_log_changes() {
    for seed in 0..6 {
        simulate(seed, async {
            assert!(fail_each_write(LOG, Some(OTHER_LOG)).await > 6);
            assert!(fail_each_write(LOG, None).await > 6);
            assert!(fail_each_write(OTHER_LOG, Some(OTHER_LOG)).await > 6);
        });
    }
}

async fn lose_power(seed: u64, target: Option<usize>) {
    let bed = Bed::new(0).await;
    let from = bed.trace.lock().now();
    bed.write_on();
    let new = target.map(|target| bed.disks[target].clone());
    bed.pool.set_log_device(new, false).await.unwrap();
    // Writes were acknowledged before the pool was closed; the last of them may be missing.
    let flushed = bed.flushed.get();
    drop(bed.pool);
    let trace = std::mem::take(&mut *bed.trace.lock());
    let (last, mut crashes) = (trace.now(), 0);
    let at = |time| time >= from;
    let rng = &mut Rng::new(seed);
    let check = async |time, images: Vec<Image>| {
        crashes += 1;
        let context = format!("seed {seed}, to {target:?}, crash after event {time}");
        let flushed = if time == last { flushed } else { 0 };
        let (disks, _) = disks_of(images.clone(), &SIZES, 0, false);
        // A server records the new one afterwards.
        check(open(&disks, Some(LOG)).await, flushed, &context).await;
        if time == last {
            let (disks, _) = disks_of(images, &SIZES, 0, false);
            check(open(&disks, target).await, flushed, &context).await;
        }
    };
    trace.at_each_event(at, rng, check).await;
    assert!(crashes > 20, "{crashes}");
}

#[test]
fn power_loss_loses_nothing_while_log_changes() {
    for seed in 0..10 {
        simulate(seed, lose_power(seed, Some(OTHER_LOG)));
        simulate(seed, lose_power(seed, None));
    }
}

#[test]
fn damaged_superblock_of_a_log_device_with_a_tail() {
    simulate(1, async {
        let bed = Bed::new(0).await;
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
            images[LOG].edit(copy << 18, |bytes| bytes[100] ^= 1);
        }
        let (disks, _) = disks_of(images, &SIZES, 0, false);
        let refused = open(&disks, Some(LOG)).await;
        assert!(matches!(refused, Err(PoolError::LogDeviceMissing { .. })), "{refused:?}");
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("/dev/disk2") && refused.contains("damaged"), "{refused}");
        let (disks, _) = disks_of(whole, &SIZES, 0, false);
        let pool = open(&disks, Some(LOG)).await.unwrap();
        assert_eq!(read(&pool.open_volume("db").unwrap(), 2).await, 9);
    });
}

#[test]
fn no_update_follows_that_of_a_dropped_opening() {
    simulate(1, async {
        let disks = crashed().await;
        let mut hooked = disks.clone();
        let writes = Arc::new(AtomicI64::new(0));
        hooked[0].device = Arc::new(HookedDisk {
            disk: disks[0].device.clone(),
            // The second copy of an update hangs.
            hook: |_, offset, _| {
                if offset == 1 << 18 { WriteOutcome::Hung } else { WriteOutcome::Done }
            },
            chosen: 0,
            writes: writes.clone(),
        });
        let opened = time::timeout(Duration::from_secs(3), open(&hooked, Some(LOG))).await;
        assert!(opened.is_err());
        let before = writes.load(Ordering::Relaxed);
        assert!(before > 1, "{before}");
        time::sleep(Duration::from_secs(9)).await;
        assert_eq!(writes.load(Ordering::Relaxed), before);
        drop(hooked);
        check(open(&disks, Some(LOG)).await, 5, "after a dropped opening").await;
    });
}

#[test]
fn failed_write_of_a_disk_detaches_no_log_device() {
    simulate(1, async {
        let (mut refused, mut failures) = (0, 0);
        for chosen in 0.. {
            let disks = crashed().await;
            let mut hooked = disks.clone();
            let writes = Arc::new(AtomicI64::new(0));
            hooked[0].device = Arc::new(HookedDisk {
                disk: disks[0].device.clone(),
                hook: |write, _, chosen| {
                    if write == chosen { WriteOutcome::Failed } else { WriteOutcome::Done }
                },
                chosen,
                writes: writes.clone(),
            });
            let context = format!("write {chosen}");
            match open(&hooked, Some(LOG)).await {
                Ok(pool) => {
                    let pool = check(Ok(pool), 5, &context).await;
                    assert!(pool.status().log.unwrap().name.is_some(), "{context}");
                }
                Err(_) => refused += 1,
            }
            if writes.load(Ordering::Relaxed) <= chosen {
                break;
            }
            failures += 1;
            drop(hooked);
            check(open(&disks, Some(LOG)).await, 5, &context).await;
        }
        assert!(refused > 1 && failures > refused, "{refused} of {failures}");
    });
}

#[test]
fn log_device_that_hangs_at_flushes_does_not_answer() {
    simulate(1, async {
        let disks = crashed().await;
        let mut hooked = disks.clone();
        let writes = Arc::new(AtomicI64::new(0));
        hooked[LOG].device = Arc::new(HookedDisk {
            disk: disks[LOG].device.clone(),
            hook: |write, offset, chosen| match offset == u64::MAX && write >= chosen {
                true => WriteOutcome::Hung,
                false => WriteOutcome::Done,
            },
            chosen: 1_000_000,
            writes: writes.clone(),
        });
        let pool = open(&hooked, Some(LOG)).await.unwrap();
        let ask = || time::timeout(Duration::from_secs(9), pool.ask_log_device());
        assert!(matches!(ask().await, Ok(Ok(()))));
        writes.store(1_000_000, Ordering::Relaxed);
        assert!(ask().await.is_err());
    });
}
