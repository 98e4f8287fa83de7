//! Scrub and check: every damage of a block is found or harmless.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::{Image, SharedTrace, disks};
use flagstone_blockdev::{BlockDevice, IoError, MemoryDevice};
use flagstone_pool::verify::scrub::ScrubPlace;
use flagstone_pool::verify::{Damage, DamageKind};
use flagstone_pool::{CreateOptions, NamedDevice, Pool, PoolVolume, VolumeOptions};
use flagstone_runtime::rng::Rng;
use flagstone_runtime::sim::{SimConfig, Simulation};
use flagstone_runtime::{Buf, block_on, buf, spawn};

const BLOCK: u64 = 4096;
const SIZE: u64 = (1 << 20) + 80 * 16 * BLOCK;
const BLOCKS: u64 = 400;

async fn write(volume: &PoolVolume, block: u64, stamp: u64) {
    let data: Vec<u8> = (0..512).flat_map(|_| (stamp << 32 | block).to_le_bytes()).collect();
    volume.write(block * BLOCK, Buf::copy_of(&data).unwrap(), false).await.unwrap();
}

/// A pool with a volume, two snapshots, a clone, and freed space.
async fn fill(devices: Vec<NamedDevice>) -> Pool {
    let options = CreateOptions { segment_blocks: 16, ..CreateOptions::new("fast") };
    let pool = Pool::create(devices, &options).await.unwrap();
    let thin = |blocks: u64| VolumeOptions { size_bytes: blocks * BLOCK, ..Default::default() };
    let db = pool.create_volume("db", &thin(1 << 20)).await.unwrap();
    let other = pool.create_volume("other", &thin(100)).await.unwrap();
    for (stamp, name) in [(1, "a"), (2, "b")] {
        for block in 0..40 {
            write(&db, block * 7 % BLOCKS * stamp, stamp).await;
            write(&other, block, stamp).await;
        }
        pool.create_snapshot(&["db"], name).await.unwrap();
    }
    let clone = pool.clone_volume("db@a", "clone", BTreeMap::new()).await.unwrap();
    for block in 0..10 {
        write(&clone, block, 3).await;
        write(&db, block * 3, 4).await;
    }
    drop(other);
    pool.delete_volume("other").await.unwrap();
    pool.checkpoint().await.unwrap();
    pool.checkpoint().await.unwrap();
    pool
}

async fn images(trace: &SharedTrace) -> Vec<Image> {
    let trace = std::mem::take(&mut *trace.lock());
    let last = trace.now();
    let mut found = Vec::new();
    trace
        .at_each_event(|time| time == last, &mut Rng::new(1), async |_, images| found = images)
        .await;
    found
}

async fn closed_pool() -> Image {
    let (devices, trace) = disks(vec![Image::default()], SIZE, 0);
    fill(devices).await.close().await.unwrap();
    images(&trace).await.remove(0)
}

/// All data that hosts can read.
async fn content(pool: &Pool) -> Result<Vec<Vec<u8>>, IoError> {
    let mut devices = Vec::new();
    for info in pool.volumes() {
        devices.push(pool.open_volume(&info.name).unwrap());
    }
    for info in pool.snapshots() {
        devices.push(pool.open_snapshot(&info.name).unwrap());
    }
    let mut found = Vec::new();
    for device in devices {
        for first in (0..2 * BLOCKS).step_by(50) {
            let memory = buf::alloc(50 * BLOCK as usize).await;
            found.push(device.read(first * BLOCK, memory).await?.to_vec());
        }
    }
    Ok(found)
}

async fn check(image: &Image) -> Result<Vec<Damage>, String> {
    let (devices, _) = disks(vec![image.clone()], SIZE, 0);
    let report = Pool::check_devices(devices, &mut |_, _| {}).await;
    let report = report.map_err(|error| error.to_string())?;
    assert_eq!(report.damages, report.damage.len() as u64);
    Ok(report.damage)
}

async fn scrub(pool: &Pool) -> Result<(u64, Vec<Damage>), IoError> {
    let (mut place, mut bytes, mut damage) = (Some(pool.begin_scrub().await?), 0, Vec::new());
    while let Some(at) = place {
        let step = pool.scrub(at).await?;
        bytes += step.verified_bytes;
        damage.extend(step.damage);
        assert!(step.next.is_none_or(|next| next > at), "it moves on");
        place = step.next;
    }
    Ok((bytes, damage))
}

/// Damages each block in turn; the check must find the damage, or it is harmless. Returns the
/// number of findings.
async fn inject(fault: impl Fn(&mut Image, u64)) -> usize {
    let good = closed_pool().await;
    assert_eq!(check(&good).await.unwrap(), []);
    let (devices, _) = disks(vec![good.clone()], SIZE, 0);
    let pool = Pool::open(devices).await.unwrap();
    let expected = content(&pool).await.unwrap();
    drop(pool);
    let (mut found, mut harmless) = (0, 0);
    for page in good.pages() {
        let mut image = good.clone();
        fault(&mut image, page);
        let report = check(&image).await;
        let is_found = report.as_ref().map_or(true, |damage| !damage.is_empty());
        let (devices, _) = disks(vec![image], SIZE, 0);
        let opened = Pool::open(devices).await;
        let read = match &opened {
            Ok(pool) => content(pool).await.ok(),
            Err(_) => None,
        };
        if !is_found {
            assert!(read.as_ref() == Some(&expected), "damage at {page} was not found");
            harmless += 1;
            continue;
        }
        found += 1;
        let Ok(pool) = opened else { continue };
        let is_data = |damage: &&Damage| {
            matches!(damage.kind, DamageKind::Data { .. } | DamageKind::Map { .. })
        };
        let listed = report.unwrap_or_default();
        let scrubbed = scrub(&pool).await.map(|(_, damage)| damage).unwrap_or_default();
        // The opening rewrote metadata and superblocks, and the scrub does not read headers.
        for damage in listed.iter().filter(is_data) {
            let same = |other: &Damage| other.kind == damage.kind;
            assert!(scrubbed.iter().any(same), "{damage}, but the scrub found {scrubbed:?}");
            let text = damage.to_string();
            assert!(text.contains("/dev/disk0") && text.contains(" of "), "{text}");
        }
    }
    println!("{found} faults found, {harmless} harmless");
    found
}

#[test]
fn rot_of_any_block_is_found() {
    block_on(async {
        let found = inject(|image, page| image.edit(page, |bytes| bytes[77] ^= 4)).await;
        assert!(found > 150, "{found}");
    })
    .unwrap();
}

#[test]
fn misdirected_write_is_found() {
    block_on(async {
        let found = inject(|image, page| {
            let mut neighbor = [0; BLOCK as usize];
            image.read(page, &mut neighbor);
            image.write(page + BLOCK, &neighbor);
        });
        assert!(found.await > 150);
    })
    .unwrap();
}

#[test]
fn lost_write_of_any_block_is_found() {
    block_on(async {
        let found = inject(|image, page| image.edit(page, |bytes| bytes[..4096].fill(0)));
        assert!(found.await > 150);
    })
    .unwrap();
}

#[test]
fn scrub_reads_live_blocks_once_and_continues() {
    block_on(async {
        let device = Arc::new(MemoryDevice::new(SIZE, 512).unwrap());
        let pool = fill(vec![NamedDevice { name: "/a".to_owned(), device }]).await;
        let (bytes, damage) = scrub(&pool).await.unwrap();
        assert_eq!(damage, []);
        let live = pool.live_bytes();
        assert!(bytes >= live && bytes < live * 2, "{bytes} of {live}");
        // A scrub that continues from any place finds the same remaining damage.
        let mut places = vec![ScrubPlace::default()];
        while let Some(next) = pool.scrub(*places.last().unwrap()).await.unwrap().next {
            places.push(next);
        }
        assert!(places.len() > 5);
        let deleted = ScrubPlace { volume: u32::MAX - 1, block: 7 };
        assert_eq!(pool.scrub(deleted).await.unwrap().next, None);
    })
    .unwrap();
}

#[test]
fn scrub_finds_nothing_while_hosts_write() {
    let sim = Simulation::new(3, SimConfig::default());
    let node = sim.add_node("server");
    let done = sim.spawn_on(node, async {
        let (devices, _) = disks(vec![Image::default()], SIZE, 50);
        let pool = fill(devices).await;
        let db = pool.open_volume("db").unwrap();
        let hosts = pool.clone();
        let writer = spawn(async move {
            for step in 0..3000 {
                write(&db, step * 31 % 100, step + 10).await;
                if step % 500 == 0 {
                    let name = format!("s{step}");
                    hosts.create_snapshot(&["db"], &name).await.unwrap();
                    hosts.delete_snapshot(&format!("db@{name}")).await.unwrap();
                }
            }
        });
        for _ in 0..5 {
            assert_eq!(scrub(&pool).await.unwrap().1, []);
        }
        writer.await.unwrap();
    });
    sim.block_on(async { done.await.unwrap() });
}
