//! Pools with redundancy: what they do without one copy, or with a damaged one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use flagstone_blockdev::{
    BlockDevice, FaultConfig, FaultControl, FaultLayer, Geometry, IoError, IoFuture, MemoryDevice,
    SharedDevice, ZeroFlags,
};
use flagstone_pool::{
    AbsentLegs, CreateOptions, LegState, NamedDevice, OpenOptions, Pool, PoolError, PoolVolume,
    Redundancy, VolumeOptions,
};
use flagstone_runtime::rng::Rng;
use flagstone_runtime::{Buf, BufMut, block_on, buf, time};

use crate::common::{Image, disks, durable};

pub(crate) const BLOCK: u64 = 4096;

pub(crate) struct Disk {
    pub(crate) named: NamedDevice,
    pub(crate) memory: SharedDevice,
    pub(crate) control: FaultControl,
}

pub(crate) fn disk(name: &str) -> Disk {
    let memory = Arc::new(MemoryDevice::new(32 << 20, 512).unwrap()) as SharedDevice;
    let (layer, control) = FaultLayer::new(memory.clone(), FaultConfig::default()).unwrap();
    let named = NamedDevice { name: name.to_owned(), device: Arc::new(layer) };
    Disk { named, memory, control }
}

pub(crate) fn options() -> CreateOptions {
    let redundancy = Redundancy::Mirror;
    CreateOptions { segment_blocks: 64, redundancy, ..CreateOptions::new("safe") }
}

pub(crate) async fn create(disks: &[&Disk]) -> (Pool, Arc<PoolVolume>) {
    create_on(disks.iter().map(|disk| disk.named.clone()).collect()).await
}

/// A disk with the present content of another one, as after a crash.
pub(crate) async fn crashed(disk: &Disk) -> Disk {
    let copy = self::disk(&disk.named.name);
    let size = disk.memory.geometry().size_bytes;
    for offset in (0..size).step_by(1 << 20) {
        let read = disk.memory.read(offset, buf::alloc(1 << 20).await).await.unwrap();
        copy.memory.write(offset, read.freeze(), false).await.unwrap();
    }
    copy
}

pub(crate) async fn open_any(devices: Vec<NamedDevice>) -> Result<Pool, PoolError> {
    let unproven = Pool::examine(&devices).await.map(|found| found.unproven).unwrap_or_default();
    let options = OpenOptions { absent: AbsentLegs::GiveUp(unproven), ..OpenOptions::default() };
    Pool::open_with(devices, &options).await
}

pub(crate) async fn create_on(devices: Vec<NamedDevice>) -> (Pool, Arc<PoolVolume>) {
    let pool = Pool::create(devices, &options()).await.unwrap();
    let size = VolumeOptions { size_bytes: 1000 * BLOCK, ..VolumeOptions::default() };
    let volume = pool.create_volume("db", &size).await.unwrap();
    (pool, volume)
}

/// Opens a pool. Consents to the absence of the other devices.
pub(crate) async fn open(disks: &[&Disk]) -> Result<(Pool, Arc<PoolVolume>), PoolError> {
    let pool = open_any(disks.iter().map(|disk| disk.named.clone()).collect()).await?;
    let volume = pool.open_volume("db").unwrap();
    Ok((pool, volume))
}

pub(crate) async fn write(volume: &PoolVolume, block: u64, value: u8) -> Result<(), IoError> {
    let data = Buf::copy_of(&[value; BLOCK as usize]).unwrap();
    volume.write(block * BLOCK, data, true).await
}

pub(crate) async fn read(volume: &PoolVolume, block: u64) -> Result<u8, IoError> {
    let read = volume.read(block * BLOCK, buf::alloc(BLOCK as usize).await).await?;
    assert!(read.iter().all(|byte| *byte == read[0]));
    Ok(read[0])
}

pub(crate) async fn fill(volume: &PoolVolume, value: u8) {
    for block in 0..300 {
        write(volume, block, value).await.unwrap();
    }
}

pub(crate) async fn holds(volume: &PoolVolume, value: u8) {
    for block in 0..300 {
        assert_eq!(read(volume, block).await, Ok(value), "block {block}");
    }
}

#[test]
fn pool_continues_without_either_device() {
    for lost in 0..2 {
        block_on(async {
            let (a, b) = (disk("/a"), disk("/b"));
            let disks = [&a, &b];
            let (pool, volume) = create(&disks).await;
            fill(&volume, 1).await;
            disks[lost].control.set_unreachable(true);
            fill(&volume, 2).await;
            pool.checkpoint().await.unwrap();
            holds(&volume, 2).await;
            assert_eq!(pool.status().failed, None);
            drop((pool, volume));
            // The other device alone, after a crash and after a planned stop.
            let rest = [disks[1 - lost]];
            let (pool, volume) = open(&rest).await.unwrap();
            holds(&volume, 2).await;
            fill(&volume, 3).await;
            pool.close().await.unwrap();
            drop((pool, volume));
            let (pool, volume) = open(&rest).await.unwrap();
            holds(&volume, 3).await;
            drop((pool, volume));
            // The lost device came back: it is not read.
            disks[lost].control.set_unreachable(false);
            disks[lost].control.reopen();
            let (pool, volume) = open(&disks).await.unwrap();
            holds(&volume, 3).await;
            drop((pool, volume));
            let alone = open(&[disks[lost]]).await.err().unwrap();
            assert!(matches!(alone, PoolError::NoCopy { .. }), "{alone}");
        })
        .unwrap();
    }
}

#[test]
fn devices_that_were_used_apart_are_refused() {
    block_on(async {
        let (a, b) = (disk("/a"), disk("/b"));
        let (pool, volume) = create(&[&a, &b]).await;
        fill(&volume, 1).await;
        pool.close().await.unwrap();
        drop((pool, volume));
        for (own, value) in [(&a, 2), (&b, 3)] {
            let (pool, volume) = open(&[own]).await.unwrap();
            holds(&volume, 1).await;
            fill(&volume, value).await;
            drop((pool, volume));
        }
        let refused = open(&[&a, &b]).await.err().unwrap();
        assert!(matches!(refused, PoolError::UsedApart { .. }), "{refused}");
        let (_pool, volume) = open(&[&a]).await.unwrap();
        holds(&volume, 2).await;
    })
    .unwrap();
}

/// Changes blocks of a device that contain only this byte.
pub(crate) async fn rot(disk: &Disk, value: u8) -> usize {
    let size = disk.memory.geometry().size_bytes;
    let mut count = 0;
    for offset in ((1 << 20)..size).step_by(BLOCK as usize) {
        let read = disk.memory.read(offset, buf::alloc(BLOCK as usize).await).await.unwrap();
        if read.iter().all(|byte| *byte == value) {
            let bad = Buf::copy_of(&[value ^ 0xff; BLOCK as usize]).unwrap();
            disk.memory.write(offset, bad, false).await.unwrap();
            count += 1;
        }
    }
    count
}

#[test]
fn damaged_copy_is_rewritten_from_the_other() {
    for damaged in 0..2 {
        block_on(async {
            let (a, b) = (disk("/a"), disk("/b"));
            let disks = [&a, &b];
            let (pool, volume) = create(&disks).await;
            fill(&volume, 1).await;
            pool.checkpoint().await.unwrap();
            assert!(rot(disks[damaged], 1).await >= 300);
            holds(&volume, 1).await;
            // Reads alternate between the devices, and repair what they find.
            assert!(pool.status().redundancy.unwrap().repaired_blocks > 0);
        })
        .unwrap();
    }
}

pub(crate) async fn rebuilt(pool: &Pool) {
    let is_behind = || {
        let redundancy = pool.status().redundancy.unwrap();
        redundancy.legs.iter().any(|leg| leg.state != LegState::InSync)
    };
    while is_behind() {
        time::sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn returned_device_is_rebuilt() {
    block_on(async {
        let (a, b) = (disk("/a"), disk("/b"));
        let (pool, volume) = create(&[&a, &b]).await;
        fill(&volume, 1).await;
        pool.close().await.unwrap();
        drop((pool, volume));
        let (pool, volume) = open(&[&a]).await.unwrap();
        fill(&volume, 2).await;
        pool.close().await.unwrap();
        drop((pool, volume));
        let (pool, volume) = open(&[&a, &b]).await.unwrap();
        rebuilt(&pool).await;
        holds(&volume, 2).await;
        pool.close().await.unwrap();
        drop((pool, volume));
        let (_pool, volume) = open(&[&b]).await.unwrap();
        holds(&volume, 2).await;
    })
    .unwrap();
}

#[test]
fn lost_device_is_replaced_while_hosts_write() {
    block_on(async {
        let (a, b, c, small) = (disk("/a"), disk("/b"), disk("/c"), disk("/d"));
        let (pool, volume) = create(&[&a, &b]).await;
        fill(&volume, 1).await;
        let only = pool.replace_device("/nil", c.named.clone(), false).await.unwrap_err();
        assert!(only.to_string().contains("no device /nil"), "{only}");
        let own = pool.replace_device("/a", b.named.clone(), true).await.unwrap_err();
        assert!(own.to_string().contains("already"), "{own}");
        a.control.set_unreachable(true);
        fill(&volume, 2).await;
        let only = pool.replace_device("/b", c.named.clone(), false).await.unwrap_err();
        assert!(only.to_string().contains("only complete copy"), "{only}");
        let tiny = Arc::new(MemoryDevice::new(8 << 20, 512).unwrap());
        let tiny = NamedDevice { device: tiny, ..small.named };
        let refused = pool.replace_device("/a", tiny, false).await.unwrap_err();
        assert!(refused.to_string().contains("smaller"), "{refused}");
        pool.replace_device("/a", c.named.clone(), false).await.unwrap();
        fill(&volume, 3).await;
        rebuilt(&pool).await;
        holds(&volume, 3).await;
        assert_eq!(pool.status().devices, ["/c", "/b"]);
        pool.close().await.unwrap();
        drop((pool, volume));
        let (pool, volume) = open(&[&c]).await.unwrap();
        holds(&volume, 3).await;
        drop((pool, volume));
        // The former device is ignored.
        a.control.set_unreachable(false);
        a.control.reopen();
        let (_pool, volume) = open(&[&a, &c]).await.unwrap();
        holds(&volume, 3).await;
    })
    .unwrap();
}

#[test]
fn scrub_repairs_either_copy() {
    for damaged in 0..2 {
        block_on(async {
            let (a, b) = (disk("/a"), disk("/b"));
            let disks = [&a, &b];
            let (pool, volume) = create(&disks).await;
            fill(&volume, 1).await;
            let mut place = Some(pool.begin_scrub().await.unwrap());
            rot(disks[damaged], 1).await;
            let mut repaired = 0;
            while let Some(at) = place {
                let step = pool.scrub(at).await.unwrap();
                assert_eq!(step.damage, []);
                (repaired, place) = (repaired + step.repaired_blocks, step.next);
            }
            assert_eq!(repaired, 300);
            assert!(pool.status().redundancy.unwrap().repaired_blocks >= 300);
            pool.close().await.unwrap();
            drop((pool, volume));
            let (_pool, volume) = open(&[disks[damaged]]).await.unwrap();
            holds(&volume, 1).await;
        })
        .unwrap();
    }
}

/// Device whose writes never end while it is hung.
struct HungDevice(SharedDevice, AtomicBool);

impl BlockDevice for HungDevice {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }
    fn read(&self, offset: u64, buf: BufMut) -> IoFuture<BufMut> {
        self.0.read(offset, buf)
    }
    fn write(&self, offset: u64, data: Buf, fua: bool) -> IoFuture<()> {
        match self.1.load(Ordering::Acquire) {
            true => IoFuture::later(std::future::pending()),
            false => self.0.write(offset, data, fua),
        }
    }
    fn flush(&self) -> IoFuture<()> {
        self.0.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.0.discard(offset, len)
    }
    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        self.0.write_zeroes(offset, len, flags)
    }
}

#[test]
fn hung_device_does_not_stop_the_pool() {
    use flagstone_runtime::sim::{SimConfig, Simulation};
    let sim = Simulation::new(1, SimConfig::default());
    let node = sim.add_node("server");
    let done = sim.spawn_on(node, async {
        let (a, b) = (disk("/a"), disk("/b"));
        let hung = Arc::new(HungDevice(b.memory.clone(), AtomicBool::new(false)));
        let named = NamedDevice { name: "/b".to_owned(), device: hung.clone() };
        let devices = vec![a.named.clone(), named];
        let pool = Pool::create(devices, &options()).await.unwrap();
        let size = VolumeOptions { size_bytes: 1000 * BLOCK, ..VolumeOptions::default() };
        let volume = pool.create_volume("db", &size).await.unwrap();
        write(&volume, 1, 1).await.unwrap();
        hung.1.store(true, Ordering::Release);
        fill(&volume, 2).await;
        drop((pool, volume));
        let (_pool, volume) = open(&[&a]).await.unwrap();
        holds(&volume, 2).await;
    });
    sim.block_on(async { done.await.unwrap() });
}

#[test]
fn several_pairs_continue_without_one_device_of_each() {
    block_on(async {
        let disks: Vec<Disk> = ["/a", "/b", "/c", "/d"].map(disk).into();
        let all: Vec<&Disk> = disks.iter().collect();
        let (pool, volume) = create(&all).await;
        for value in 1..8 {
            fill(&volume, value).await;
            pool.checkpoint().await.unwrap();
        }
        drop((pool, volume));
        let (pool, volume) = open(&[all[1], all[2]]).await.unwrap();
        holds(&volume, 7).await;
        drop((pool, volume));
        let refused = open(&[all[0], all[1]]).await.err().unwrap();
        assert!(matches!(refused, PoolError::NoCopy { .. }), "{refused}");
    })
    .unwrap();
}

#[test]
fn impossible_redundancy_is_refused() {
    block_on(async {
        let disks: Vec<Disk> = ["/a", "/b", "/c"].map(disk).into();
        let devices: Vec<NamedDevice> = disks.iter().map(|disk| disk.named.clone()).collect();
        let odd = Pool::create(devices.clone(), &options()).await.err().unwrap();
        assert!(odd.to_string().contains("even number"), "{odd}");
        let (two, log) = (devices[..2].to_vec(), devices[2].clone());
        let log = Pool::create_with_log(two.clone(), Some(log), &options()).await.err().unwrap();
        assert!(log.to_string().contains("log device"), "{log}");
        let pool = Pool::create(two, &options()).await.unwrap();
        let grown = pool.grow(devices[2].clone(), false).await.unwrap_err();
        assert!(grown.to_string().contains("two copies"), "{grown}");
        let removed = pool.evacuate("/a").await.err().unwrap();
        assert!(removed.to_string().contains("two copies"), "{removed}");
    })
    .unwrap();
}

const CRASH_BYTES: u64 = (1 << 20) + 64 * 16 * BLOCK;

/// Opens a pool on some crashed disks, and checks its blocks; returns the content, and the disks
/// after a planned stop.
async fn check_crash(
    images: Vec<Image>,
    acked: &[u8],
    begun: &[u8],
    context: &str,
) -> (Vec<u8>, Vec<Image>) {
    let (devices, trace) = disks(images, CRASH_BYTES, 0);
    let pool = match open_any(devices).await {
        Ok(pool) => pool,
        Err(error) => panic!("{context}: {error}"),
    };
    let volume = pool.open_volume("db").unwrap();
    let mut found = Vec::new();
    for (block, (acked, begun)) in acked.iter().zip(begun).enumerate() {
        let value = read(&volume, block as u64).await.unwrap();
        assert!((*acked..=*begun).contains(&value), "{context}: block {block} is {value}");
        found.push(value);
    }
    pool.close().await.unwrap();
    drop((pool, volume));
    (found, durable(&trace))
}

/// After a power loss at any call of a device, the pool opens on both devices and on either, with
/// everything that was acknowledged; and what both recovered, either has.
#[test]
fn crash_at_any_call_leaves_two_copies() {
    block_on(async {
        let (devices, trace) = disks(vec![Image::default(); 2], CRASH_BYTES, 0);
        let small = CreateOptions { segment_blocks: 16, ..options() };
        let pool = Pool::create(devices, &small).await.unwrap();
        let size = VolumeOptions { size_bytes: 8 * BLOCK, ..VolumeOptions::default() };
        let volume = pool.create_volume("db", &size).await.unwrap();
        let before = trace.lock().now();
        // For each write: the events when it began and was acknowledged.
        let mut writes = Vec::new();
        for value in 1..=5_u8 {
            for block in 0..8_u64 {
                let from = trace.lock().now();
                write(&volume, block, value).await.unwrap();
                writes.push((block as usize, value, from, trace.lock().now()));
            }
            pool.checkpoint().await.unwrap();
        }
        drop((pool, volume));
        let trace = std::mem::take(&mut *trace.lock());
        let end = trace.now();
        let check = async |time: usize, images: Vec<Image>| {
            let (mut acked, mut begun) = ([0; 8], [0; 8]);
            for (block, value, from, to) in &writes {
                if *from <= time {
                    begun[*block] = *value;
                }
                if *to <= time {
                    acked[*block] = *value;
                }
            }
            let both = format!("event {time} of {end}, both");
            let (found, after) = check_crash(images.clone(), &acked, &begun, &both).await;
            for leg in 0..2 {
                let alone = format!("event {time} of {end}, disk {leg} alone");
                check_crash(vec![images[leg].clone()], &acked, &begun, &alone).await;
                let alone = format!("event {time} of {end}, disk {leg} after recovery");
                check_crash(vec![after[leg].clone()], &found, &found, &alone).await;
            }
        };
        trace.at_each_event(|time| time >= before, &mut Rng::new(7), check).await;
        assert!(end - before > 100);
    })
    .unwrap();
}
