//! Log devices: lost, replaced, outdated, full, slow, hung and failing; planned stops, and orders.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::{Image, SharedTrace, disks_of};
use flagstone_blockdev::{
    BlockDevice, FaultConfig, FaultLayer, Geometry, IoError, IoFuture, MemoryDevice, SharedDevice,
    ZeroFlags,
};
use flagstone_pool::ondisk::superblock::Superblock;
use flagstone_pool::{
    CreateOptions, LostTail, NamedDevice, OpenOptions, Pool, PoolError, PoolVolume, VolumeError,
    VolumeOptions,
};
use flagstone_runtime::rng::Rng;
use flagstone_runtime::sim::{SimConfig, Simulation};
use flagstone_runtime::{Buf, BufMut, block_on, buf, spawn, time};
use parking_lot::Mutex;

const BLOCK: u64 = 4096;
const SIZES: [u64; 2] = [(1 << 20) + 100 * 16 * BLOCK, (1 << 20) + 8 * 16 * BLOCK];

fn options() -> CreateOptions {
    CreateOptions { segment_blocks: 16, ..CreateOptions::new("fast") }
}

fn volume(blocks: u64) -> VolumeOptions {
    VolumeOptions { size_bytes: blocks * BLOCK, ..VolumeOptions::default() }
}

/// A device of a pool, a log device, and their content.
struct Bed {
    devices: Vec<NamedDevice>,
    trace: SharedTrace,
}

impl Bed {
    fn new(images: Vec<Image>) -> Bed {
        let (devices, trace) = disks_of(images, &SIZES, 0, false);
        Bed { devices, trace }
    }

    fn log(&self) -> Option<NamedDevice> {
        Some(self.devices[1].clone())
    }

    async fn open(&self, log: Option<NamedDevice>, give_up_tail: bool) -> Result<Pool, PoolError> {
        let tail = if give_up_tail { LostTail::GiveUp } else { LostTail::Withhold };
        Pool::open_with(
            vec![self.devices[0].clone()],
            &OpenOptions { log, tail, ..OpenOptions::default() },
        )
        .await
    }

    async fn images(&self) -> Vec<Image> {
        let trace = std::mem::take(&mut *self.trace.lock());
        let (now, mut found) = (trace.now(), Vec::new());
        let at = |time| time == now;
        trace.at_each_event(at, &mut Rng::new(1), async |_, images| found = images).await;
        found
    }

    /// A pool with volumes `db` and `old`. After its log device was drained, a write to `db` stayed
    /// in the tail. Block 1 of both volumes was 1; that of `db` is 2.
    async fn crashed() -> Bed {
        Bed::crashed_after(async |_| ()).await
    }

    /// The same after an order before the crash.
    async fn crashed_after(order: impl AsyncFnOnce(&Pool)) -> Bed {
        let bed = Bed::new(vec![Image::default(); 2]);
        let pool = Pool::create_with_log(vec![bed.devices[0].clone()], bed.log(), &options()).await;
        let pool = pool.unwrap();
        for name in ["db", "old"] {
            let device = pool.create_volume(name, &volume(100)).await.unwrap();
            write(&device, 1, 1).await.unwrap();
        }
        order(&pool).await;
        pool.close().await.unwrap();
        drop(pool);
        let pool = bed.open(bed.log(), false).await.unwrap();
        write(&pool.open_volume("db").unwrap(), 1, 2).await.unwrap();
        drop(pool);
        Bed::new(bed.images().await)
    }
}

async fn write(volume: &PoolVolume, block: u64, value: u8) -> Result<(), IoError> {
    let data = Buf::copy_of(&[value; BLOCK as usize]).unwrap();
    volume.write(block * BLOCK, data, true).await
}

async fn read(volume: &PoolVolume, block: u64) -> Result<u8, IoError> {
    let read = volume.read(block * BLOCK, buf::alloc(BLOCK as usize).await).await?;
    Ok(read[0])
}

async fn value(pool: &Pool, name: &str) -> u8 {
    read(&pool.open_volume(name).unwrap(), 1).await.unwrap()
}

#[test]
fn missing_log_device_keeps_pool_closed_until_it_is_back() {
    block_on(async {
        let bed = Bed::crashed().await;
        let refused = bed.open(None, false).await;
        assert!(matches!(refused, Err(PoolError::LogDeviceMissing { .. })), "{refused:?}");
        let pool = bed.open(bed.log(), false).await.unwrap();
        assert_eq!((value(&pool, "db").await, value(&pool, "old").await), (2, 1));
        assert_eq!(pool.status().log.unwrap().name.as_deref(), Some("/dev/disk1"));
    })
    .unwrap();
}

/// A mirror has its data, so the operator's consent is not for it.
#[test]
fn mirrored_volume_lacks_writes_after_the_tail_is_given_up() {
    block_on(async {
        let bed = Bed::crashed().await;
        let mirrored = vec!["db".to_owned()];
        let options = OpenOptions { tail: LostTail::GiveUp, mirrored, ..OpenOptions::default() };
        let pool = Pool::open_with(vec![bed.devices[0].clone()], &options).await.unwrap();
        for is_open in [false, true] {
            let opened = pool.open_volume("db").map(drop);
            assert_eq!(opened.is_ok(), is_open, "{opened:?}");
            assert_eq!(read(&pool.open_incomplete("db").unwrap(), 1).await, Ok(1));
            pool.accept_incomplete("db").await.unwrap();
        }
        pool.accept_incomplete("none").await.unwrap();
        assert_eq!(value(&pool, "old").await, 1);
    })
    .unwrap();
}

/// Its mirror was removed from the configuration. When it is back, it must not take the content of
/// an earlier time as current.
#[test]
fn leg_that_lost_writes_is_no_leg_for_its_users() {
    block_on(async {
        for give_up in [true, false] {
            let take = async |pool: &Pool| {
                for info in pool.volumes() {
                    pool.take_leg(&info).await.unwrap();
                }
            };
            let bed = Bed::crashed_after(take).await;
            let mut images = bed.images().await;
            images[1] = Image::default();
            let bed = Bed::new(images);
            let pool = bed.open(bed.log(), give_up).await.unwrap();
            if !give_up {
                assert!(pool.volume("db").unwrap().is_leg(), "and lacks changes");
                assert_eq!(pool.give_up_tail().await.unwrap(), ["db"]);
            }
            let legs = |pool: &Pool| ["db", "old"].map(|name| pool.volume(name).unwrap().is_leg());
            assert_eq!(legs(&pool), [false, true]);
            drop(pool);
            assert_eq!(legs(&bed.open(bed.log(), false).await.unwrap()), [false, true]);
        }
    })
    .unwrap();
}

#[test]
fn pool_opens_without_a_log_device_that_is_given_up() {
    block_on(async {
        let bed = Bed::crashed().await;
        let pool = bed.open(None, true).await.unwrap();
        assert_eq!((value(&pool, "db").await, value(&pool, "old").await), (1, 1));
        let log = pool.status().log.unwrap();
        assert_eq!((log.name, log.tail_bytes), (None, 0), "it is missing");
        write(&pool.open_volume("db").unwrap(), 2, 7).await.unwrap();
        drop(pool);
        // The log device is back with a tail of an earlier log, which is not replayed.
        let pool = bed.open(bed.log(), false).await.unwrap();
        assert_eq!(value(&pool, "db").await, 1);
        assert!(pool.status().log.unwrap().name.is_some());
        write(&pool.open_volume("db").unwrap(), 1, 3).await.unwrap();
        drop(pool);
        let pool = bed.open(bed.log(), false).await.unwrap();
        let db = pool.open_volume("db").unwrap();
        assert_eq!((read(&db, 1).await, read(&db, 2).await), (Ok(3), Ok(7)));
    })
    .unwrap();
}

#[test]
fn blank_log_device_withholds_only_volumes_of_the_tail() {
    block_on(async {
        let mut images = Bed::crashed().await.images().await;
        images[1] = Image::default();
        let bed = Bed::new(images);
        let mut pool = bed.open(bed.log(), false).await.unwrap();
        for _ in 0..2 {
            assert_eq!(value(&pool, "old").await, 1);
            let withheld = pool.open_volume("db").map(drop);
            assert_eq!(withheld, Err(VolumeError::Incomplete { name: "db".to_owned() }));
            assert!(pool.volume("db").unwrap().incomplete);
            let refused = pool.create_snapshot(&["old", "db"], "a").await.unwrap_err();
            assert_eq!(refused, VolumeError::Incomplete { name: "db".to_owned() });
            assert!(pool.status().log.unwrap().name.is_some(), "the device is used again");
            drop(pool);
            pool = bed.open(bed.log(), false).await.unwrap();
        }
        assert_eq!(pool.give_up_tail().await.unwrap(), ["db"]);
        assert_eq!(pool.give_up_tail().await.unwrap(), [""; 0]);
        drop(pool);
        let pool = bed.open(bed.log(), false).await.unwrap();
        assert_eq!(value(&pool, "db").await, 1);
    })
    .unwrap();
}

#[test]
fn device_with_other_data_is_not_taken_for_the_log_device() {
    block_on(async {
        let mut images = Bed::crashed().await.images().await;
        images[1] = Image::default();
        images[1].edit(70_000, |bytes| bytes[0] = 9);
        let bed = Bed::new(images);
        let refused = bed.open(bed.log(), false).await;
        assert!(matches!(refused, Err(PoolError::LogDeviceMissing { .. })), "{refused:?}");
        let pool = bed.open(bed.log(), true).await.unwrap();
        assert_eq!(pool.status().log.unwrap().name, None);
        pool.close().await.unwrap();
        drop(pool);
        assert_eq!(bed.images().await[1].pages().len(), 1, "it was not written");
    })
    .unwrap();
}

#[test]
fn log_device_of_another_pool_is_refused() {
    block_on(async {
        let mut images = Bed::crashed().await.images().await;
        images[1] = Bed::crashed().await.images().await.remove(1);
        let bed = Bed::new(images);
        let refused = bed.open(bed.log(), false).await;
        assert!(matches!(refused, Err(PoolError::LogDeviceMissing { .. })), "{refused:?}");
    })
    .unwrap();
}

#[test]
fn log_device_that_missed_updates_withholds_volumes() {
    block_on(async {
        let images = Bed::crashed().await.images().await;
        let old = images[1].clone();
        let bed = Bed::new(images);
        let pool = bed.open(bed.log(), false).await.unwrap();
        pool.close().await.unwrap();
        drop(pool);
        let pool = bed.open(bed.log(), false).await.unwrap();
        write(&pool.open_volume("db").unwrap(), 1, 6).await.unwrap();
        drop(pool);
        let mut images = bed.images().await;
        images[1] = old;
        let bed = Bed::new(images);
        let pool = bed.open(bed.log(), false).await.unwrap();
        assert!(pool.volume("db").unwrap().incomplete && !pool.volume("old").unwrap().incomplete);
        assert_eq!(value(&pool, "old").await, 1);
        pool.give_up_tail().await.unwrap();
        assert_eq!(value(&pool, "db").await, 2, "what had been written out");
    })
    .unwrap();
}

#[test]
fn damaged_log_device_is_refused_until_it_is_given_up() {
    block_on(async {
        let bed = Bed::crashed().await;
        let pool = bed.open(bed.log(), false).await.unwrap();
        let db = pool.open_volume("db").unwrap();
        for value in 3..9 {
            write(&db, 1, value).await.unwrap();
        }
        drop((db, pool));
        let mut images = bed.images().await;
        // Chunks after the first checkpoint are only in the slots of the log device.
        let chunks: Vec<u64> =
            images[1].pages().into_iter().filter(|offset| *offset >= 1 << 20).collect();
        let mut found = Vec::new();
        for offset in &chunks {
            let mut page = [0; BLOCK as usize];
            images[1].read(*offset, &mut page);
            if page == [4; BLOCK as usize] {
                found.push(*offset);
            }
        }
        assert!(!found.is_empty(), "the write of 4 is on the log device");
        for offset in found {
            images[1].edit(offset, |bytes| bytes[7] ^= 1);
        }
        let bed = Bed::new(images);
        let refused = bed.open(bed.log(), false).await;
        let is_loss = |error: &PoolError| {
            matches!(error, PoolError::LostChunk { .. } | PoolError::TailMissing { .. })
        };
        assert!(refused.as_ref().is_err_and(is_loss), "{refused:?}");
        let pool = bed.open(bed.log(), true).await.unwrap();
        assert_eq!(value(&pool, "db").await, 3, "everything before the damage");
    })
    .unwrap();
}

#[test]
fn planned_stop_leaves_nothing_on_the_log_device() {
    block_on(async {
        let bed = Bed::crashed().await;
        let pool = bed.open(bed.log(), false).await.unwrap();
        let db = pool.open_volume("db").unwrap();
        for block in 0..50 {
            write(&db, block, 8).await.unwrap();
        }
        pool.create_volume("late", &volume(1)).await.unwrap();
        pool.close().await.unwrap();
        drop((db, pool));
        let mut images = bed.images().await;
        images[1] = Image::default();
        let bed = Bed::new(images);
        let pool = bed.open(None, false).await.unwrap();
        assert_eq!(value(&pool, "db").await, 8);
        assert!(pool.volume("late").is_some());
        pool.close().await.unwrap();
        drop(pool);
        // A blank device becomes the log device again.
        let pool = bed.open(bed.log(), false).await.unwrap();
        assert!(pool.status().log.unwrap().name.is_some());
    })
    .unwrap();
}

#[test]
fn idle_pool_writes_its_log_device_out() {
    let sim = Simulation::new(1, SimConfig::default());
    let node = sim.add_node("server");
    let done = sim.spawn_on(node, async {
        let bed = Bed::crashed().await;
        let pool = bed.open(bed.log(), false).await.unwrap();
        write(&pool.open_volume("db").unwrap(), 1, 9).await.unwrap();
        assert!(pool.status().log.unwrap().tail_bytes > 0);
        time::sleep(Duration::from_secs(3)).await;
        assert_eq!(pool.status().log.unwrap().tail_bytes, 0);
        drop(pool);
        let pool = bed.open(None, false).await.unwrap();
        assert_eq!(value(&pool, "db").await, 9);
    });
    sim.block_on(async { done.await.unwrap() });
}

#[test]
fn log_device_is_replaced_and_removed() {
    block_on(async {
        let bed = Bed::crashed().await;
        let spare = MemoryDevice::new(SIZES[1], 512).unwrap();
        let spare =
            NamedDevice { name: "/dev/spare".to_owned(), device: Arc::new(spare) as SharedDevice };
        let pool = bed.open(bed.log(), false).await.unwrap();
        pool.set_log_device(Some(spare.clone()), false).await.unwrap();
        drop(pool);
        let pool = bed.open(Some(spare.clone()), false).await.unwrap();
        assert_eq!(pool.status().log.unwrap().name.as_deref(), Some("/dev/spare"));
        assert_eq!(value(&pool, "db").await, 2);
        write(&pool.open_volume("db").unwrap(), 1, 3).await.unwrap();
        drop(pool);
        let former = bed.open(None, false).await;
        assert!(matches!(former, Err(PoolError::LogDeviceMissing { .. })), "{former:?}");
        let pool = bed.open(Some(spare.clone()), false).await.unwrap();
        let taken = pool.set_log_device(Some(bed.devices[0].clone()), false).await;
        assert!(matches!(taken, Err(PoolError::NotEmpty { .. })), "{taken:?}");
        assert_eq!(value(&pool, "db").await, 3, "it was not closed");
        pool.set_log_device(None, false).await.unwrap();
        drop(pool);
        let pool = bed.open(None, false).await.unwrap();
        assert_eq!((pool.status().log, value(&pool, "db").await), (None, 3));
        assert!(matches!(Pool::open(vec![spare.clone()]).await, Err(PoolError::NotAPool { .. })));
        pool.set_log_device(bed.log(), false).await.unwrap();
        drop(pool);
        let pool = bed.open(bed.log(), false).await.unwrap();
        assert_eq!(value(&pool, "db").await, 3);
        pool.destroy().await.unwrap();
        for device in bed.devices.clone() {
            assert!(matches!(Pool::open(vec![device]).await, Err(PoolError::NotAPool { .. })));
        }
    })
    .unwrap();
}

#[test]
fn small_log_device_is_refused() {
    block_on(async {
        let bed = Bed::new(vec![Image::default(); 2]);
        let small = MemoryDevice::new((1 << 20) + 3 * 16 * BLOCK, 512).unwrap();
        let small = NamedDevice { name: "small".to_owned(), device: Arc::new(small) };
        let (devices, log) = (vec![bed.devices[0].clone()], bed.log());
        let refused = Pool::create_with_log(devices.clone(), Some(small), &options()).await;
        assert!(matches!(refused, Err(PoolError::Unsuitable { .. })), "{refused:?}");
        let twice = Pool::create_with_log(devices, Some(bed.devices[0].clone()), &options()).await;
        assert!(matches!(twice, Err(PoolError::Unsuitable { .. })), "{twice:?}");
        drop(log);
    })
    .unwrap();
}

#[test]
fn failed_log_device_fails_changes_until_pool_is_reopened() {
    block_on(async {
        let bed = Bed::new(vec![Image::default(); 2]);
        let log = bed.devices[1].clone();
        let (layer, control) = FaultLayer::new(log.device, FaultConfig::default()).unwrap();
        let log = NamedDevice { name: "log".to_owned(), device: Arc::new(layer) as SharedDevice };
        let devices = vec![bed.devices[0].clone()];
        let pool = Pool::create_with_log(devices, Some(log.clone()), &options()).await.unwrap();
        let db = pool.create_volume("db", &volume(100)).await.unwrap();
        write(&db, 1, 4).await.unwrap();
        control.fail_next_writes(1);
        assert_eq!(write(&db, 1, 5).await, Err(IoError::WriteFault));
        assert_eq!(write(&db, 2, 5).await, Err(IoError::WriteFault));
        assert_eq!(read(&db, 1).await, Ok(4), "reads go on");
        let closed = pool.close().await;
        assert_eq!(closed, Err(IoError::WriteFault));
        drop((db, pool));
        let pool = bed.open(Some(log), false).await.unwrap();
        assert_eq!(value(&pool, "db").await, 4);
    })
    .unwrap();
}

#[test]
fn log_device_without_writes_is_detached() {
    block_on(async {
        let bed = Bed::crashed().await;
        let log = bed.devices[1].clone();
        let (layer, control) = FaultLayer::new(log.device, FaultConfig::default()).unwrap();
        let log = NamedDevice { name: "log".to_owned(), device: Arc::new(layer) as SharedDevice };
        control.fail_next_writes(1_000_000);
        let name = |pool: &Pool| pool.status().log.unwrap().name;
        // The first time the log device is current, then it is outdated.
        for found in [2, 5, 6] {
            let pool = bed.open(Some(log.clone()), false).await.unwrap();
            assert_eq!((value(&pool, "db").await, name(&pool)), (found, None));
            write(&pool.open_volume("db").unwrap(), 1, found.max(4) + 1).await.unwrap();
        }
        let pool = bed.open(None, false).await.unwrap();
        assert_eq!((value(&pool, "db").await, name(&pool)), (7, None));
        drop(pool);
        let trace = std::mem::take(&mut *bed.trace.lock());
        let mut crashes = 0;
        let check = async |time, images: Vec<Image>| {
            crashes += 1;
            let bed = Bed::new(images);
            let pool = bed.open(bed.log(), false).await;
            let pool = pool.unwrap_or_else(|error| panic!("crash after event {time}: {error}"));
            assert!(value(&pool, "db").await >= 2, "crash after event {time}");
            assert!(name(&pool).is_some(), "it takes writes again");
        };
        trace.at_each_event(|_| true, &mut Rng::new(1), check).await;
        assert!(crashes > 40, "{crashes}");
        let pool = bed.open(Some(log.clone()), false).await.unwrap();
        pool.set_log_device(None, false).await.unwrap();
        drop(pool);
        let pool = bed.open(None, false).await.unwrap();
        assert_eq!((value(&pool, "db").await, pool.status().log), (7, None));
    })
    .unwrap();
}

#[test]
fn lost_pages_of_checkpoints_keep_no_pool_closed() {
    block_on(async {
        let bed = Bed::crashed().await;
        bed.open(bed.log(), false).await.unwrap().close().await.unwrap();
        let mut images = bed.images().await;
        for (disk, copy) in [0, 1].into_iter().flat_map(|disk| (0..4).map(move |copy| (disk, copy)))
        {
            let mut block = [0; BLOCK as usize];
            images[disk].read(copy << 18, &mut block);
            let mut superblock = Superblock::decode(&block, copy as usize).unwrap();
            assert!(superblock.tail.is_empty());
            // Chunks of a checkpoint that did not complete.
            superblock.reached = superblock.start.sequence + 9;
            images[disk].write(copy << 18, &superblock.encode(copy as usize));
        }
        let bed = Bed::new(images);
        let pool = bed.open(bed.log(), false).await.unwrap();
        assert_eq!(value(&pool, "db").await, 2);
    })
    .unwrap();
}

/// A disk in simulated time, with a rate of writes and a latency, that can hang.
struct SlowDisk {
    memory: MemoryDevice,
    bytes_per_second: u64,
    latency: Duration,
    hung: Arc<AtomicBool>,
    free_at: Arc<Mutex<Duration>>,
}

impl SlowDisk {
    fn new(size_bytes: u64, bytes_per_second: u64, latency_us: u64) -> SlowDisk {
        SlowDisk {
            memory: MemoryDevice::new(size_bytes, 512).unwrap(),
            bytes_per_second,
            latency: Duration::from_micros(latency_us),
            hung: Arc::default(),
            free_at: Arc::default(),
        }
    }

    fn pause(&self, bytes: usize) -> impl Future<Output = ()> + 'static {
        let now = Duration::from_nanos(time::now().as_nanos());
        let takes = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64);
        let mut free_at = self.free_at.lock();
        *free_at = free_at.max(now) + takes;
        let (wait, hung) = (*free_at - now + self.latency, self.hung.clone());
        drop(free_at);
        async move {
            time::sleep(wait).await;
            while hung.load(Ordering::Relaxed) {
                time::sleep(Duration::from_millis(1)).await;
            }
        }
    }
}

impl std::fmt::Debug for SlowDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SlowDisk")
    }
}

impl BlockDevice for SlowDisk {
    fn geometry(&self) -> Geometry {
        self.memory.geometry()
    }

    fn read(&self, offset: u64, buf: BufMut) -> IoFuture<BufMut> {
        let (pause, read) = (self.pause(0), self.memory.read(offset, buf));
        IoFuture::later(async move {
            pause.await;
            read.await
        })
    }

    fn write(&self, offset: u64, data: Buf, fua: bool) -> IoFuture<()> {
        let (pause, written) = (self.pause(data.len()), self.memory.write(offset, data, fua));
        IoFuture::later(async move {
            pause.await;
            written.await
        })
    }

    fn flush(&self) -> IoFuture<()> {
        self.memory.flush()
    }

    fn discard(&self, _offset: u64, _len: u64) -> IoFuture<()> {
        IoFuture::ready(Err(IoError::Unsupported))
    }

    fn write_zeroes(&self, _offset: u64, _len: u64, _flags: ZeroFlags) -> IoFuture<()> {
        IoFuture::ready(Err(IoError::Unsupported))
    }
}

/// A pool of 1 GiB at 4 MB/s with 2 ms, and a log device of `log_segments` segments of 256 KiB at 1
/// GB/s with `log_us`. Also returns the switches that make the devices hang.
async fn slow_pool(log_segments: u64, log_us: u64) -> (Pool, [Arc<AtomicBool>; 2]) {
    let disk = SlowDisk::new(1 << 30, 4 << 20, 2000);
    let log = SlowDisk::new((1 << 20) + log_segments * 64 * BLOCK, 1 << 30, log_us);
    let hung = [disk.hung.clone(), log.hung.clone()];
    let named = |name: &str, disk| NamedDevice { name: name.to_owned(), device: Arc::new(disk) };
    let options = CreateOptions { segment_blocks: 64, ..CreateOptions::new("fast") };
    let devices = vec![named("disk", disk)];
    let pool = Pool::create_with_log(devices, Some(named("log", log)), &options).await.unwrap();
    (pool, hung)
}

/// Writes with `depth` in flight, each flushed, for some time. Returns end and latency of each
/// write.
async fn load(device: &Arc<PoolVolume>, depth: u64, seconds: u64) -> Vec<(Duration, Duration)> {
    let begun = time::now();
    let latencies = Rc::new(std::cell::RefCell::new(Vec::new()));
    let next = Rc::new(Cell::new(0));
    let mut tasks = Vec::new();
    for _ in 0..depth {
        let (device, latencies, next) = (device.clone(), latencies.clone(), next.clone());
        tasks.push(spawn(async move {
            while begun.elapsed() < Duration::from_secs(seconds) {
                let block = next.replace(next.get() + 1) * 7919 % 20_000;
                let from = time::now();
                write(&device, block, 1 + (block % 200) as u8).await.unwrap();
                latencies.borrow_mut().push((begun.elapsed(), from.elapsed()));
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    latencies.take()
}

fn simulate(work: impl Future<Output = ()> + 'static) {
    let sim = Simulation::new(1, SimConfig::default());
    let node = sim.add_node("server");
    let done = sim.spawn_on(node, work);
    sim.block_on(async { done.await.unwrap() });
}

#[test]
fn full_log_device_slows_hosts_down_without_stalls() {
    simulate(async {
        let (pool, _) = slow_pool(40, 100).await;
        let device = pool.create_volume("db", &volume(20_000)).await.unwrap();
        let latencies = load(&device, 24, 60).await;
        let early = latencies.iter().filter(|(at, _)| *at < Duration::from_millis(200));
        let late: Vec<Duration> = latencies
            .iter()
            .filter(|(at, _)| *at > Duration::from_secs(20))
            .map(|(_, latency)| *latency)
            .collect();
        let per_second = late.len() as f64 / 40.0;
        let mean = late.iter().sum::<Duration>() / late.len() as u32;
        let mut sorted = late.clone();
        sorted.sort();
        let (p99, most) = (sorted[sorted.len() * 99 / 100], *sorted.last().unwrap());
        println!(
            "{} writes in the first 200 ms; then {per_second} per second, mean {mean:?}, p99 {p99:?}, \
             most {most:?}",
            early.clone().count()
        );
        assert!(early.count() > 1000, "the log device takes the first writes");
        assert!(per_second > 400.0, "hosts get the rate of the disk: {per_second}");
        assert!(most < 2 * mean, "most {most:?}, mean {mean:?}");
        pool.close().await.unwrap();
    });
}

#[test]
fn slow_log_device_delays_flushes_only_by_its_latency() {
    simulate(async {
        let (pool, _) = slow_pool(40, 700).await;
        let device = pool.create_volume("db", &volume(20_000)).await.unwrap();
        write(&device, 0, 1).await.unwrap();
        let begun = time::now();
        write(&device, 1, 1).await.unwrap();
        let took = begun.elapsed();
        assert!(took >= Duration::from_micros(700) && took < Duration::from_millis(1), "{took:?}");
    });
}

#[test]
fn hung_log_device_delays_writes_and_nothing_else() {
    simulate(async {
        let (pool, [_, log]) = slow_pool(40, 100).await;
        let device = pool.create_volume("db", &volume(20_000)).await.unwrap();
        write(&device, 1, 7).await.unwrap();
        // Blocks that were written out, and whose segment has no slot any more.
        for block in 100..300 {
            write(&device, block, 1).await.unwrap();
        }
        pool.checkpoint().await.unwrap();
        log.store(true, Ordering::Relaxed);
        let own = device.clone();
        let written = spawn(async move { write(&own, 2, 8).await });
        time::sleep(Duration::from_secs(20)).await;
        assert_eq!(read(&device, 1).await, Ok(7));
        assert_eq!(pool.status().failed, None);
        log.store(false, Ordering::Relaxed);
        assert_eq!(written.await.unwrap(), Ok(()));
        assert_eq!(read(&device, 2).await, Ok(8));
    });
}

#[test]
fn hung_disk_delays_hosts_when_the_log_device_is_full() {
    simulate(async {
        let (pool, [disk, _]) = slow_pool(8, 100).await;
        let device = pool.create_volume("db", &volume(20_000)).await.unwrap();
        write(&device, 0, 1).await.unwrap();
        disk.store(true, Ordering::Relaxed);
        let (own, done) = (device.clone(), Rc::new(Cell::new(0)));
        let count = done.clone();
        let writer = spawn(async move {
            for block in 1..1000 {
                write(&own, block, (block % 251) as u8).await.unwrap();
                count.set(block);
            }
        });
        time::sleep(Duration::from_secs(30)).await;
        let taken = done.get();
        assert!((100..900).contains(&taken), "the log device took {taken} writes");
        for block in [1, taken] {
            assert_eq!(read(&device, block).await, Ok((block % 251) as u8), "from the log device");
        }
        disk.store(false, Ordering::Relaxed);
        writer.await.unwrap();
        for block in (1..1000).step_by(13) {
            assert_eq!(read(&device, block).await, Ok((block % 251) as u8));
        }
        pool.close().await.unwrap();
    });
}
