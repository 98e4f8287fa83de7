//! Devices that are not a complete, current pool, and changed metadata: each is refused with the
//! device and the reason, without a panic.

use crate::common::{Image, disks, disks_with};
use flagstone_blockdev::{BlockDevice, IoError};
use flagstone_pool::ondisk::seal;
use flagstone_pool::{CreateOptions, NamedDevice, Pool, PoolError, PoolVolume, VolumeOptions};
use flagstone_runtime::rng::Rng;
use flagstone_runtime::{Buf, block_on, buf};

const BLOCK: u64 = 4096;
const SIZE: u64 = (1 << 20) + 60 * 16 * BLOCK;
const COPIES: [u64; 4] = [0, 256 << 10, 512 << 10, 768 << 10];

fn options(name: &str) -> CreateOptions {
    CreateOptions { segment_blocks: 16, ..CreateOptions::new(name) }
}

/// Disks of a pool with two volumes; with `close`, nothing is left to replay.
async fn pool_images(count: usize, close: bool) -> Vec<Image> {
    let (devices, trace) = disks(vec![Image::default(); count], SIZE, 0);
    let pool = Pool::create(devices.clone(), &options("fast")).await.unwrap();
    for name in ["db", "logs"] {
        let size = VolumeOptions { size_bytes: 4000 * BLOCK, ..VolumeOptions::default() };
        let volume = pool.create_volume(name, &size).await.unwrap();
        for block in [0, 1, 5, 700, 3999] {
            let data = Buf::copy_of(&[block as u8 + 1; BLOCK as usize]).unwrap();
            volume.write(block * BLOCK, data, true).await.unwrap();
        }
    }
    if close {
        pool.close().await.unwrap();
    }
    drop(pool);
    images(&trace).await
}

async fn images(trace: &crate::common::SharedTrace) -> Vec<Image> {
    let trace = std::mem::take(&mut *trace.lock());
    let last = trace.now();
    let mut found = Vec::new();
    trace
        .at_each_event(|time| time == last, &mut Rng::new(1), async |_, images| found = images)
        .await;
    found
}

async fn open(images: Vec<Image>) -> Result<Pool, PoolError> {
    Pool::open(disks(images, SIZE, 0).0).await
}

/// The disks after one more opening.
async fn opened_again(images_before: &[Image]) -> Vec<Image> {
    let (devices, trace) = disks(images_before.to_vec(), SIZE, 0);
    drop(Pool::open(devices).await.unwrap());
    images(&trace).await
}

fn message(result: Result<Pool, PoolError>) -> String {
    result.expect_err("the devices are refused").to_string()
}

#[test]
fn destroyed_pool_leaves_no_superblock() {
    block_on(async {
        let (devices, trace) = disks(vec![Image::default(); 2], SIZE, 0);
        let pool = Pool::create(devices.clone(), &options("fast")).await.unwrap();
        let size = VolumeOptions { size_bytes: 4000 * BLOCK, ..VolumeOptions::default() };
        let volume = pool.create_volume("db", &size).await.unwrap();
        for block in 0..300 {
            let data = Buf::copy_of(&[7; BLOCK as usize]).unwrap();
            volume.write(block * BLOCK, data, false).await.unwrap();
        }
        pool.destroy().await.unwrap();
        let data = Buf::copy_of(&[8; BLOCK as usize]).unwrap();
        assert_eq!(volume.write(0, data, false).await, Err(IoError::Unreachable));
        for image in images(&trace).await {
            for copy in COPIES {
                let mut block = [1; BLOCK as usize];
                image.read(copy, &mut block);
                assert!(block.iter().all(|byte| *byte == 0), "copy at {copy}");
            }
        }
        let refused = Pool::open(devices).await.unwrap_err();
        assert!(matches!(refused, PoolError::NotAPool { .. }), "{refused}");
    })
    .unwrap();
}

#[test]
fn devices_are_accepted_in_any_order() {
    block_on(async {
        let mut images = pool_images(3, true).await;
        images.rotate_left(1);
        let pool = open(images).await.unwrap();
        assert_eq!(pool.status().devices, ["/dev/disk2", "/dev/disk0", "/dev/disk1"]);
        assert_eq!(pool.volumes().len(), 2);
    })
    .unwrap();
}

#[test]
fn incomplete_or_mixed_devices_are_refused() {
    block_on(async {
        let first = pool_images(2, true).await;
        let second = pool_images(2, true).await;
        let refused = message(open(vec![Image::default()]).await);
        assert_eq!(refused, "/dev/disk0 is not a device of a pool");
        assert_eq!(
            message(open(vec![]).await),
            "a pool cannot have these options: no devices were named"
        );
        let refused = message(open(vec![first[0].clone()]).await);
        assert!(
            refused.contains("the device with id") && refused.contains("is missing"),
            "{refused}"
        );
        let refused = message(open(vec![first[0].clone(), second[1].clone()]).await);
        assert!(
            refused.contains("/dev/disk0 belongs to pool fast")
                || refused.contains("/dev/disk1 belongs"),
            "{refused}"
        );
        let cloned = vec![first[0].clone(), first[1].clone(), first[1].clone()];
        let refused = message(open(cloned).await);
        assert!(refused.starts_with("/dev/disk1 and /dev/disk2 are copies"), "{refused}");
        let (cut, _) = disks(first, SIZE - 16 * BLOCK, 0);
        let refused = message(Pool::open(cut).await);
        assert!(
            refused.starts_with("/dev/disk0 has 4915200 bytes, the pool recorded"),
            "{refused}"
        );
    })
    .unwrap();
}

#[test]
fn outdated_or_diverged_device_is_refused() {
    block_on(async {
        let old = pool_images(2, true).await;
        let new = opened_again(&opened_again(&old).await).await;
        let refused = message(open(vec![old[0].clone(), new[1].clone()]).await);
        assert!(refused.starts_with("/dev/disk0 has update"), "{refused}");
        // Two openings that continue from the same state.
        let other = opened_again(&opened_again(&old).await).await;
        let refused = message(open(vec![other[0].clone(), new[1].clone()]).await);
        assert!(refused.contains("contradicts the other devices of pool fast"), "{refused}");
    })
    .unwrap();
}

#[test]
fn superblock_survives_two_damaged_copies() {
    block_on(async {
        let whole = pool_images(1, true).await;
        for (first, second) in [(0, 1), (1, 2), (0, 3), (2, 3)] {
            let mut images = whole.clone();
            for copy in [first, second] {
                images[0].edit(COPIES[copy], |page| page[100] ^= 1);
            }
            assert_eq!(open(images.clone()).await.unwrap().volumes().len(), 2);
            let third = (0..4).find(|copy| ![first, second].contains(copy)).unwrap();
            images[0].edit(COPIES[third], |page| page[100] ^= 1);
            let refused = message(open(images).await);
            assert!(
                refused.contains("/dev/disk0: the superblock") && refused.contains("damaged"),
                "{refused}"
            );
        }
    })
    .unwrap();
}

#[test]
fn later_version_is_refused() {
    block_on(async {
        let mut images = pool_images(1, true).await;
        for copy in [COPIES[0], COPIES[2]] {
            images[0].edit(copy, |page| page[8] = 5);
        }
        let refused = message(open(images).await);
        assert!(
            refused.contains("/dev/disk0") && refused.contains("format version 5"),
            "{refused}"
        );
    })
    .unwrap();
}

/// Regression: one flipped bit in the version of one copy kept the pool closed.
#[test]
fn copy_with_a_damaged_version_is_repaired() {
    block_on(async {
        let whole = pool_images(1, true).await;
        for copy in COPIES {
            let mut damaged = whole.clone();
            damaged[0].edit(copy, |page| page[8] ^= 4);
            let repaired = opened_again(&damaged).await;
            let mut block = [0; BLOCK as usize];
            repaired[0].read(copy, &mut block);
            assert!(block[8] < 4, "copy at {copy} has version {}", block[8]);
        }
    })
    .unwrap();
}

#[test]
fn device_with_data_is_not_overwritten() {
    block_on(async {
        let images = pool_images(1, true).await;
        let (devices, _) = disks(images, SIZE, 0);
        let refused = Pool::create(devices.clone(), &options("new")).await.unwrap_err();
        assert_eq!(refused.to_string(), "/dev/disk0 is not empty: its first MiB contains data");
        let overwrite = CreateOptions { overwrite: true, ..options("new") };
        let pool = Pool::create(devices.clone(), &overwrite).await.unwrap();
        pool.close().await.unwrap();
        let pool = Pool::open(devices).await.unwrap();
        assert_eq!((pool.status().name.as_str(), pool.volumes().len()), ("new", 0));
    })
    .unwrap();
}

/// Reads every written block; wrong content counts as a failed read.
async fn read_all(pool: &Pool) -> Result<(), IoError> {
    for name in ["db", "logs"] {
        let Ok(volume) = pool.open_volume(name) else { panic!("a durable volume is gone") };
        for block in [0, 1, 5, 700, 3999_u64] {
            let read = volume.read(block * BLOCK, buf::alloc(BLOCK as usize).await).await?;
            assert!(
                read.iter().all(|byte| *byte == block as u8 + 1),
                "wrong data without an error"
            );
        }
    }
    Ok(())
}

/// Numbers of outcomes: refused, failed read, harmless.
async fn damage_every_page(images: &[Image], damage: impl Fn(&mut [u8], &mut Rng)) -> [usize; 3] {
    let mut rng = Rng::new(5);
    let mut outcomes = [0; 3];
    for page in images[0].pages() {
        let mut images = images.to_vec();
        images[0].edit(page, |bytes| damage(bytes, &mut rng));
        match open(images).await {
            Err(error) => {
                assert!(error.to_string().contains("/dev/disk0"), "{error}");
                outcomes[0] += 1;
            }
            Ok(pool) => match read_all(&pool).await {
                Err(error) => {
                    assert_eq!(error, IoError::ReadFault);
                    outcomes[1] += 1;
                }
                Ok(()) => outcomes[2] += 1,
            },
        }
    }
    outcomes
}

#[test]
fn damage_of_any_block_is_refused_or_found_on_read() {
    block_on(async {
        let flip = |bytes: &mut [u8], rng: &mut Rng| {
            bytes[rng.below(4096) as usize] ^= 1 << rng.below(8);
        };
        let zero = |bytes: &mut [u8], _: &mut Rng| bytes[..4096].fill(0);
        let images = pool_images(1, true).await;
        for outcomes in
            [damage_every_page(&images, flip).await, damage_every_page(&images, zero).await]
        {
            println!("refused, failed reads, harmless: {outcomes:?}");
            assert!(outcomes[0] >= 5 && outcomes[1] >= 10, "{outcomes:?}");
        }
    })
    .unwrap();
}

#[test]
fn damaged_chunk_of_the_flushed_log_is_refused() {
    block_on(async {
        // The pool was not closed: everything is in the log, and each write was flushed.
        let images = pool_images(1, false).await;
        read_all(&open(images.clone()).await.unwrap()).await.unwrap();
        let mut lost = 0;
        for page in images[0].pages() {
            let mut images = images.clone();
            images[0].edit(page, |bytes| bytes[2000] ^= 1);
            match open(images).await {
                Err(PoolError::LostChunk { sequence, later, .. }) => {
                    assert!(sequence < later);
                    lost += 1;
                }
                Err(error) => assert!(error.to_string().contains("/dev/disk0"), "{error}"),
                // The last flushed chunk has no later chunk that declares it durable (see
                // docs/pool-format.md).
                Ok(_) => {}
            }
        }
        assert!(lost >= 20, "{lost} lost chunks were found");
    })
    .unwrap();
}

/// Writes a block with unique content.
async fn write(volume: &PoolVolume, block: u64, fua: bool) {
    let data: Vec<u8> = (0..512).flat_map(|word| (block << 9 | word).to_le_bytes()).collect();
    volume.write(block * BLOCK, Buf::copy_of(&data).unwrap(), fua).await.unwrap();
}

/// Damages the data of a block that [`write`] wrote.
fn damage_block(image: &mut Image, block: u64) {
    let stamp = |page: &u64| {
        let mut bytes = [0; 16];
        image.read(*page, &mut bytes);
        bytes[..8] == (block << 9).to_le_bytes() && bytes[8..] == (block << 9 | 1).to_le_bytes()
    };
    let found: Vec<u64> = image.pages().into_iter().filter(stamp).collect();
    assert_eq!(found.len(), 1);
    image.edit(found[0], |bytes| bytes[3000] ^= 1);
}

/// Regression: on a disk without a volatile cache, completed writes are durable, but only a flush
/// recorded this in the log. Hosts do not flush such volumes.
#[test]
fn damaged_log_is_refused_despite_flushes() {
    block_on(async {
        let (devices, trace) = disks_with(vec![Image::default()], SIZE, 0, false);
        let pool = Pool::create(devices, &options("fast")).await.unwrap();
        let size = VolumeOptions { size_bytes: 4000 * BLOCK, ..VolumeOptions::default() };
        let volume = pool.create_volume("db", &size).await.unwrap();
        assert!(!volume.geometry().volatile_cache);
        for block in 1..20 {
            write(&volume, block, false).await;
        }
        drop((volume, pool));
        let mut images = images(&trace).await;
        damage_block(&mut images[0], 3);
        let opened = Pool::open(disks_with(images, SIZE, 0, false).0).await;
        assert!(matches!(opened, Err(PoolError::LostChunk { .. })), "{opened:?}");
    })
    .unwrap();
}

/// The flush ended many segments after the damaged chunk, so the chunk with the evidence is neither
/// in its segment nor in the following one.
#[test]
fn damaged_log_is_refused_when_the_proof_is_segments_later() {
    block_on(async {
        let size_bytes = (1 << 20) + 1000 * 16 * BLOCK;
        let (devices, trace) = disks(vec![Image::default()], size_bytes, 0);
        let pool = Pool::create(devices, &options("fast")).await.unwrap();
        let size = VolumeOptions { size_bytes: 4000 * BLOCK, ..VolumeOptions::default() };
        let volume = pool.create_volume("db", &size).await.unwrap();
        for block in 1..100 {
            write(&volume, block, false).await;
        }
        for block in 100..103 {
            write(&volume, block, true).await;
        }
        drop((volume, pool));
        let mut images = images(&trace).await;
        damage_block(&mut images[0], 3);
        let opened = Pool::open(disks(images, size_bytes, 0).0).await;
        assert!(matches!(opened, Err(PoolError::LostChunk { .. })), "{opened:?}");
    })
    .unwrap();
}

async fn first_byte(volume: &PoolVolume, block: u64) -> Result<u8, IoError> {
    let read = volume.read(block * BLOCK, buf::alloc(BLOCK as usize).await).await?;
    Ok(read[0])
}

/// Regression: a checkpoint that had to change a damaged map page failed the pool, again after each
/// opening.
#[test]
fn damaged_map_page_loses_its_blocks_and_nothing_else() {
    block_on(async {
        let whole = pool_images(1, true).await;
        for (level, delete) in [(1, false), (1, true), (2, false), (2, true)] {
            let mut found = whole.clone();
            for page in whole[0].pages() {
                let mut bytes = [0; 16];
                whole[0].read(page, &mut bytes);
                // Pages of volume 1, `db`.
                if bytes.starts_with(b"FSPOOLM\n") && bytes[10] == level && bytes[12] == 1 {
                    found[0].edit(page, |bytes| bytes[4000] ^= 1);
                }
            }
            let (devices, trace) = disks(found, SIZE, 0);
            let pool = Pool::open(devices).await.unwrap();
            let volume = pool.open_volume("db").unwrap();
            if delete {
                pool.delete_volume("db").await.unwrap();
            } else {
                write(&volume, 1, true).await;
                volume.discard(10 * BLOCK, 100 * BLOCK).await.unwrap();
            }
            pool.checkpoint().await.unwrap();
            drop((volume, pool));
            let (devices, _) = disks(images(&trace).await, SIZE, 0);
            let pool = Pool::open(devices).await.unwrap();
            let other = pool.open_volume("logs").unwrap();
            // The cleaner does not find lost blocks.
            for step in 0..600 {
                write(&other, step % 100, true).await;
            }
            assert_eq!(first_byte(&other, 700).await, Ok(700_u64 as u8 + 1));
            let Ok(volume) = pool.open_volume("db") else {
                assert!(delete);
                continue;
            };
            assert_eq!(first_byte(&volume, 0).await, Err(IoError::ReadFault));
            assert_eq!(first_byte(&volume, 1).await, Ok(0), "written since");
            assert_eq!(first_byte(&volume, 2).await, Err(IoError::ReadFault), "nobody knows");
            assert_eq!(first_byte(&volume, 50).await, Ok(0), "discarded since");
            write(&volume, 0, true).await;
            assert_eq!(first_byte(&volume, 0).await, Ok(0));
        }
    })
    .unwrap();
}

/// The only copy of a snapshot's leaf is damaged. Blocks that the volume shares with older
/// snapshots must stay, although the map between them no longer shows it.
#[test]
fn damaged_snapshot_page_does_not_affect_volumes() {
    block_on(async {
        let (devices, trace) = disks(vec![Image::default()], SIZE, 0);
        let pool = Pool::create(devices, &options("fast")).await.unwrap();
        let size = VolumeOptions { size_bytes: 4000 * BLOCK, ..VolumeOptions::default() };
        pool.create_volume("logs", &size).await.unwrap();
        let volume = pool.create_volume("db", &size).await.unwrap();
        for (first, snapshot) in [(0, "a"), (100, "b"), (200, "c")] {
            for block in first..first + 5 {
                write(&volume, block, true).await;
            }
            pool.create_snapshot(&["db"], snapshot).await.unwrap();
        }
        pool.close().await.unwrap();
        drop((volume, pool));
        let mut found = images(&trace).await;
        let has = |bytes: &[u8], block: usize| bytes[64 + 16 * block..][..6] != [0; 6];
        let mut damaged = 0;
        for page in found[0].pages() {
            let mut bytes = [0; BLOCK as usize];
            found[0].read(page, &mut bytes);
            let is_leaf = bytes.starts_with(b"FSPOOLM\n") && bytes[10] == 1 && bytes[12] == 2;
            if is_leaf && has(&bytes, 100) && !has(&bytes, 200) {
                found[0].edit(page, |bytes| bytes[4000] ^= 1);
                damaged += 1;
            }
        }
        assert!(damaged > 0);
        let pool = open(found).await.unwrap();
        let mut rng = Rng::new(1);
        for deleted in ["db@a", "db@b"] {
            let volume = pool.open_volume("db").unwrap();
            let logs = pool.open_volume("logs").unwrap();
            pool.delete_snapshot(deleted).await.unwrap();
            for _ in 0..1500 {
                write(&logs, rng.below(350), true).await;
            }
            assert!(pool.status().cleaned_segments > 20, "{:?}", pool.status());
            for block in (0..5).chain(100..105).chain(200..205) {
                let read = volume.read(block * BLOCK, buf::alloc(BLOCK as usize).await).await;
                assert_eq!(read.unwrap()[..8], (block << 9).to_le_bytes(), "block {block}");
            }
            if deleted == "db@a" {
                let snapshot = pool.open_snapshot("db@b").unwrap();
                assert_eq!(first_byte(&snapshot, 0).await, Err(IoError::ReadFault));
            }
        }
        pool.close().await.unwrap();
    })
    .unwrap();
}

/// Disks of two after a crash at any point of a checkpoint, with all superblock copies of the other
/// disk older. An image from before the checkpoint has the same copies.
#[test]
fn device_image_before_last_checkpoint_is_refused() {
    block_on(async {
        let (devices, trace) = disks(vec![Image::default(); 2], SIZE, 0);
        let pool = Pool::create(devices, &options("fast")).await.unwrap();
        let size = VolumeOptions { size_bytes: 4000 * BLOCK, ..VolumeOptions::default() };
        let volume = pool.create_volume("db", &size).await.unwrap();
        let before = trace.lock().now();
        pool.checkpoint().await.unwrap();
        for block in 1..20 {
            write(&volume, block, true).await;
        }
        drop((volume, pool));
        let trace = std::mem::take(&mut *trace.lock());
        let times = [before, trace.now()];
        let mut found = Vec::new();
        let chosen = |time| times.contains(&time);
        trace.at_each_event(chosen, &mut Rng::new(1), async |_, images| found.push(images)).await;
        assert_eq!(open(found[1].clone()).await.unwrap().volumes().len(), 1);
        for old in 0..2 {
            let mut images = found[1].clone();
            images[old] = found[0][old].clone();
            let refused = message(open(images).await);
            assert!(refused.starts_with(&format!("/dev/disk{old} has update")), "{refused}");
        }
    })
    .unwrap();
}

/// Regression: the repair of superblocks overwrote the whole copies first. Crashes during a
/// checkpoint, and again during the next opening, also with copies 2 and 3 of one superblock
/// damaged.
#[test]
fn crash_in_checkpoint_or_repair_keeps_pool_openable() {
    block_on(async {
        let (devices, trace) = disks(vec![Image::default(); 2], SIZE, 0);
        let pool = Pool::create(devices, &options("fast")).await.unwrap();
        let before = trace.lock().now();
        pool.checkpoint().await.unwrap();
        drop(pool);
        let trace = std::mem::take(&mut *trace.lock());
        let mut found = Vec::new();
        let mut rng = Rng::new(1);
        let chosen = |time| time >= before;
        trace.at_each_event(chosen, &mut rng, async |_, images| found.push(images)).await;
        let mut repaired = 0;
        for (images, damaged) in
            found.into_iter().flat_map(|images| [(images.clone(), 0), (images, 2)])
        {
            let mut images = images;
            for copy in &COPIES[4 - damaged..] {
                images[1].edit(*copy, |page| page[100] ^= 1);
            }
            let (devices, trace) = disks(images, SIZE, 0);
            match Pool::open(devices).await {
                Ok(pool) => drop(pool),
                // Three copies are damaged: two by the test, and one by a torn write.
                Err(_) if damaged > 0 => continue,
                Err(error) => panic!("{error}"),
            }
            let trace = std::mem::take(&mut *trace.lock());
            let check = async |time, images| {
                let opened = open(images).await;
                assert!(opened.is_ok(), "event {time}, {damaged} damaged copies: {opened:?}");
            };
            trace.at_each_event(|_| true, &mut rng, check).await;
            repaired += 1;
        }
        assert!(repaired > 30, "{repaired}");
    })
    .unwrap();
}

#[test]
fn impossible_update_is_refused() {
    block_on(async {
        let mut images = pool_images(1, true).await;
        for copy in COPIES {
            images[0].edit(copy, |page| {
                page[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
                seal((&mut page[..4096]).try_into().unwrap());
            });
        }
        let refused = message(open(images).await);
        assert!(refused.contains("/dev/disk0") && refused.contains("`update`"), "{refused}");
    })
    .unwrap();
}

#[test]
fn device_named_twice_is_refused_at_creation() {
    block_on(async {
        let (mut devices, _) = disks(vec![Image::default(); 2], SIZE, 0);
        devices.push(NamedDevice { name: "/dev/alias".to_owned(), ..devices[1].clone() });
        let refused = message(Pool::create(devices.clone(), &options("fast")).await);
        assert_eq!(
            refused,
            "/dev/disk1 cannot be used for a pool: another name of it is among the devices"
        );
        devices.pop();
        Pool::create(devices, &options("fast")).await.expect("the devices are still empty");
    })
    .unwrap();
}

#[test]
fn names_of_devices_are_in_messages() {
    let device = |name: &str, image: &Image| {
        let (mut devices, _) = disks(vec![image.clone()], SIZE, 0);
        let device = devices.remove(0).device;
        NamedDevice { name: name.to_owned(), device }
    };
    block_on(async {
        let images = pool_images(2, true).await;
        let devices = vec![device("/dev/nvme1n1", &images[0]), device("/dev/nvme2n1", &images[0])];
        let refused = message(Pool::open(devices).await);
        assert!(refused.starts_with("/dev/nvme1n1 and /dev/nvme2n1 are copies"), "{refused}");
    })
    .unwrap();
}
