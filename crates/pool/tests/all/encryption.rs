//! Encrypted volumes: no plaintext on the devices, work while they are locked, keys, snapshots,
//! clones and streams.

use std::sync::Arc;

use crate::common::units::*;
use crate::common::{SharedTrace, is_ever_written};
use flagstone_blockdev::{BlockDevice as _, IoError};
use flagstone_pool::stream::frame::{FrameBody, StreamFrame};
use flagstone_pool::stream::receive::VolumeReceiver;
use flagstone_pool::{
    Compression, Pool, PoolVolume, VolumeEncryption, VolumeError, VolumeOptions, WrappingKey,
};
use flagstone_runtime::rng::Rng;
use flagstone_runtime::{Buf, buf, spawn};

const CANARY: &[u8; 16] = b"PLAINTEXT CANARY";

fn key(byte: u8) -> WrappingKey {
    WrappingKey::parse(&format!("{byte:02x}").repeat(32)).unwrap()
}

fn compressed(blocks: u64, mode: Compression) -> VolumeOptions {
    volume(blocks, mode)
}

/// A block with the canary in it, which shrinks in a unit.
fn secret(at: u64, stamp: u64) -> Vec<u8> {
    let mut block = block(at, stamp);
    block.chunks_mut(256).for_each(|part| part[64..64 + CANARY.len()].copy_from_slice(CANARY));
    block
}

async fn put(volume: &PoolVolume, at: std::ops::Range<u64>, stamp: u64) {
    let data: Vec<u8> = at.clone().flat_map(|at| secret(at, stamp)).collect();
    volume.write(at.start * BLOCK, Buf::copy_of(&data).unwrap(), false).await.unwrap();
}

async fn expect_secrets(volume: &PoolVolume, model: &[u64]) {
    for (first, stamps) in (0..).step_by(16).zip(model.chunks(16)) {
        let found = read(volume, first..first + stamps.len() as u64).await.unwrap();
        for ((found, stamp), at) in found.chunks(BLOCK as usize).zip(stamps).zip(first..) {
            let expected = if *stamp == 0 { vec![0; BLOCK as usize] } else { secret(at, *stamp) };
            assert!(found == expected, "block {at}");
        }
    }
}

/// Overwrites random blocks until the cleaner has copied some.
async fn churn(pool: &Pool, volume: &PoolVolume, model: &mut [u64], rng: &mut Rng) {
    let (before, len) = (pool.status().copied_blocks, model.len() as u64);
    for round in 0..12_000 {
        // Single blocks are not compressed before the cleaner comes.
        let at = rng.below(len / 2);
        put(volume, at..at + 1, 1000 + round).await;
        model[at as usize] = 1000 + round;
        if pool.status().copied_blocks > before + 100 {
            return;
        }
    }
    panic!("nothing was cleaned: {:?}", pool.status());
}

fn assert_no_plaintext(trace: &SharedTrace) {
    assert!(!is_ever_written(trace, CANARY), "a device has plaintext");
}

#[test]
fn plaintext_never_reaches_the_devices() {
    for mode in [Compression::Off, Compression::Lz4, Compression::Auto] {
        simulate(async move {
            let (pool, trace, size) = pool(32).await;
            let options = compressed(1000, mode);
            let db = pool.create_encrypted_volume("db", &options, &key(1)).await.unwrap();
            let mut model = vec![0; 600];
            put(&db, 0..300, 1).await;
            model[..300].fill(1);
            pool.create_snapshot(&["db"], "s").await.unwrap();
            churn(&pool, &db, &mut model, &mut Rng::new(2)).await;
            expect_secrets(&db, &model).await;
            let snapshot = pool.open_snapshot("db@s").unwrap();
            expect_secrets(&snapshot, &[1; 300]).await;
            assert_no_plaintext(&trace);
            drop((db, snapshot));
            let (pool, trace) = reopened(pool, &trace, size).await;
            pool.unlock_volume("db", &key(1)).unwrap();
            expect_secrets(&pool.open_volume("db").unwrap(), &model).await;
            expect_secrets(&pool.open_snapshot("db@s").unwrap(), &[1; 300]).await;
            assert_no_plaintext(&trace);
            // The same without encryption is found: the search works.
            let plain = pool.create_volume("plain", &compressed(100, mode)).await.unwrap();
            put(&plain, 0..8, 1).await;
            assert!(is_ever_written(&trace, CANARY));
        });
    }
}

#[test]
fn locked_volume_is_cleaned_and_scrubbed() {
    for mode in [Compression::Off, Compression::Auto] {
        simulate(async move {
            let (pool, trace, size) = pool(32).await;
            let options = compressed(700, mode);
            let db = pool.create_encrypted_volume("db", &options, &key(1)).await.unwrap();
            let plain = pool.create_volume("plain", &compressed(400, mode)).await.unwrap();
            let mut models = (vec![0; 300], vec![0; 300]);
            let mut rng = Rng::new(4);
            // Both volumes in each segment, with dead blocks in many units.
            for round in 1..200 {
                for (volume, model) in [(&db, &mut models.0), (&plain, &mut models.1)] {
                    let first = rng.below(290);
                    put(volume, first..first + 8, round).await;
                    model[first as usize..first as usize + 8].fill(round);
                }
            }
            drop((db, plain));
            let (pool, trace) = reopened(pool, &trace, size).await;
            assert_eq!(pool.volume("db").unwrap().encryption, VolumeEncryption::Locked);
            assert_eq!(pool.volume("plain").unwrap().encryption, VolumeEncryption::None);
            let locked = VolumeError::Locked { name: "db".to_owned() };
            assert_eq!(pool.open_volume("db").err(), Some(locked.clone()));
            let plain = pool.open_volume("plain").unwrap();
            churn(&pool, &plain, &mut models.1, &mut rng).await;
            churn(&pool, &plain, &mut models.1, &mut rng).await;
            let mut place = Some(pool.begin_scrub().await.unwrap());
            while let Some(at) = place {
                let step = pool.scrub(at).await.unwrap();
                assert_eq!(step.damage, []);
                place = step.next;
            }
            // Orders that need no key.
            pool.create_snapshot(&["db"], "s").await.unwrap();
            assert_eq!(pool.open_snapshot("db@s").err(), Some(locked.clone()));
            let clone = pool.clone_volume("db@s", "c", properties(mode)).await;
            assert_eq!(clone.err(), Some(locked));
            pool.resize_volume("db", 800 * BLOCK).await.unwrap();
            pool.rename_volume("db", "dc").await.unwrap();
            pool.rollback("dc", "s").await.unwrap();
            drop(plain);
            let (pool, trace) = reopened(pool, &trace, size).await;
            let wrong = VolumeError::WrongKey { name: "dc".to_owned() };
            assert_eq!(pool.unlock_volume("dc", &key(2)), Err(wrong));
            assert!(pool.open_volume("dc").is_err());
            let plain = VolumeError::NotEncrypted { name: "plain".to_owned() };
            assert_eq!(pool.unlock_volume("plain", &key(1)), Err(plain));
            pool.unlock_volume("dc", &key(1)).unwrap();
            pool.unlock_volume("dc", &key(1)).unwrap();
            assert_eq!(pool.volume("dc").unwrap().encryption, VolumeEncryption::Unlocked);
            expect_secrets(&pool.open_volume("dc").unwrap(), &models.0).await;
            expect_secrets(&pool.open_snapshot("dc@s").unwrap(), &models.0).await;
            expect_secrets(&pool.open_volume("plain").unwrap(), &models.1).await;
            // A locked volume can be deleted.
            let (pool, _) = reopened(pool, &trace, size).await;
            pool.delete_snapshot("dc@s").await.unwrap();
            pool.delete_volume("dc").await.unwrap();
        });
    }
}

/// Blocks of a chunk without its header.
const CHUNK: u64 = 15;

/// Writes chunks of random blocks from `first` on, until the pool is full or `most` blocks are
/// written; returns the number of blocks.
async fn fill_plain(plain: &PoolVolume, first: u64, most: u64, rng: &mut Rng) -> u64 {
    for number in (0..most).step_by(CHUNK as usize) {
        let words = CHUNK * BLOCK / 8;
        let noise: Vec<u8> = (0..words).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
        let at = (first + number) * BLOCK;
        match plain.write(at, Buf::copy_of(&noise).unwrap(), false).await {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error, IoError::NoSpace);
                return number;
            }
        }
    }
    most.next_multiple_of(CHUNK)
}

/// Regression: the cleaner copied the units of locked volumes with their dead blocks, over and
/// over, because it counted them as a gain.
#[test]
fn dead_parts_of_locked_units_are_not_cleaned() {
    simulate(async {
        let (pool, trace, size) = pool(64).await;
        let options = compressed(1 << 20, Compression::Lz4);
        let db = pool.create_encrypted_volume("db", &options, &key(1)).await.unwrap();
        let off = compressed(1 << 20, Compression::Off);
        let plain = pool.create_volume("plain", &off).await.unwrap();
        let capacity = pool.status().capacity_bytes / BLOCK;
        let mut rng = Rng::new(3);
        // Units of one stored block each, of which a snapshot has all blocks and the volume one.
        let units = capacity * 55 / 100;
        for first in (0..8 * units).step_by(8 * CHUNK as usize) {
            put(&db, first..first + 8 * CHUNK, 1).await;
        }
        let others = capacity * 30 / 100;
        fill_plain(&plain, 0, others, &mut rng).await;
        pool.create_snapshot(&["db"], "s").await.unwrap();
        for number in 0..units {
            db.discard((8 * number + 1) * BLOCK, 7 * BLOCK).await.unwrap();
        }
        drop((db, plain));
        let (pool, _) = reopened(pool, &trace, size).await;
        pool.delete_snapshot("db@s").await.unwrap();
        let plain = pool.open_volume("plain").unwrap();
        // Half of the others is free: a third of what they had has room.
        for block in (0..others).step_by(2) {
            plain.discard(block * BLOCK, BLOCK).await.unwrap();
        }
        let written = fill_plain(&plain, 1 << 18, others / 3, &mut rng).await;
        assert!(written >= others / 3, "{written} {:?}", pool.status());
        // The rest is what the locked volume holds.
        let more = fill_plain(&plain, 1 << 19, capacity, &mut rng).await;
        let status = pool.status();
        assert!(more < capacity * 25 / 100, "{more} {status:?}");
        // Half-empty segments of both volumes are cleaned.
        assert!(status.copied_blocks < 8 * others, "{others} {status:?}");
        for _ in 0..20 {
            assert_eq!(fill_plain(&plain, 1 << 19, 1, &mut rng).await, 0);
        }
        let after = pool.status();
        assert!(after.copied_blocks - status.copied_blocks < others, "{after:?}");
        pool.unlock_volume("db", &key(1)).unwrap();
        let gained = fill_plain(&plain, 1 << 19, capacity, &mut rng).await;
        assert!(gained > capacity * 35 / 100, "{gained} of {units}: {:?}", pool.status());
        let db = pool.open_volume("db").unwrap();
        for number in 0..units {
            let found = read(&db, 8 * number..8 * number + 1).await.unwrap();
            assert!(found == secret(8 * number, 1), "unit {number}");
        }
    });
}

#[test]
fn new_key_replaces_the_former_without_new_data() {
    simulate(async {
        let (pool, trace, size) = pool(32).await;
        let options = compressed(100, Compression::Lz4);
        let db = pool.create_encrypted_volume("db", &options, &key(1)).await.unwrap();
        put(&db, 0..50, 1).await;
        pool.create_snapshot(&["db"], "s").await.unwrap();
        let clone = pool.clone_volume("db@s", "c", options.properties.clone()).await.unwrap();
        put(&clone, 0..10, 2).await;
        pool.promote_volume("c").await.unwrap();
        let (old, new, other) = (key(1), key(2), key(3));
        let set = |keys| pool.set_volume_key("db", keys, false, options.properties.clone());
        let wrong = VolumeError::WrongKey { name: "db".to_owned() };
        assert_eq!(set((&other, &new)).await, Err(wrong.clone()));
        assert_eq!(pool.volumes_with_key(&old), ["db", "c"]);
        set((&old, &new)).await.unwrap();
        assert_eq!(pool.volumes_with_key(&old), ["c"]);
        put(&db, 20..30, 3).await;
        drop((db, clone));
        let (pool, _) = reopened(pool, &trace, size).await;
        assert_eq!(pool.unlock_volume("db", &old), Err(wrong));
        pool.unlock_volume("db", &new).unwrap();
        // The clone has its own wrapping of the same data key.
        pool.unlock_volume("c", &old).unwrap();
        let mut model = vec![1; 50];
        model[20..30].fill(3);
        expect_secrets(&pool.open_volume("db").unwrap(), &model).await;
        model[20..30].fill(1);
        expect_secrets(&pool.open_snapshot("c@s").unwrap(), &model).await;
        model[..10].fill(2);
        expect_secrets(&pool.open_volume("c").unwrap(), &model).await;
        // The settings of a volume keep its key.
        pool.set_volume("db", true, properties(Compression::Off)).await.unwrap();
        assert_eq!(pool.volume("db").unwrap().encryption, VolumeEncryption::Unlocked);
    });
}

#[test]
fn received_volume_is_encrypted_with_its_own_key() {
    simulate(async {
        let (pool, trace, _) = pool(32).await;
        let options = compressed(100, Compression::Lz4);
        let db = pool.create_encrypted_volume("db", &options, &key(1)).await.unwrap();
        put(&db, 0..50, 1).await;
        pool.create_snapshot(&["db"], "s").await.unwrap();
        let bytes = pool.send_part("db@s", None, 0).await.unwrap().bytes;
        assert!(bytes.windows(CANARY.len()).any(|part| part == CANARY), "streams are plaintext");
        let to = pool.create_encrypted_volume("to", &options, &key(2)).await.unwrap();
        let mut rest = &bytes[..];
        let mut receiver = None;
        while let Some((frame, len)) = StreamFrame::decode(rest).unwrap() {
            rest = &rest[len..];
            match (&frame.body, &mut receiver) {
                (FrameBody::Begin(start), _) => {
                    let (snapshot, source) = (frame.snapshot, frame.source);
                    let made = VolumeReceiver::new(to.clone(), snapshot, source, start.clone(), 0);
                    receiver = Some(made);
                }
                (_, Some(receiver)) => receiver.apply(&frame).await.unwrap(),
                (_, None) => panic!("no beginning"),
            }
        }
        let mut model = vec![0; 100];
        model[..50].fill(1);
        expect_secrets(&to, &model).await;
        assert_no_plaintext(&trace);
    });
}

#[test]
fn older_programs_refuse_pools_with_encrypted_volumes() {
    simulate(async {
        let (pool, trace, size) = pool(32).await;
        let version = |trace: &SharedTrace| {
            let mut block = [0; 4096];
            crate::common::durable(trace)[0].read(0, &mut block);
            u16::from_le_bytes([block[8], block[9]])
        };
        pool.create_volume("plain", &compressed(100, Compression::Off)).await.unwrap();
        // Regression: a refused creation left the pool to newer programs.
        let plain = compressed(100, Compression::Off);
        assert!(pool.create_encrypted_volume("plain", &plain, &key(1)).await.is_err());
        // Regression: so did one without space.
        let thick = VolumeOptions { thick: true, ..compressed(1 << 20, Compression::Off) };
        let full = pool.create_encrypted_volume("db", &thick, &key(1)).await.err().unwrap();
        assert!(matches!(full, VolumeError::NoSpace { .. }), "{full}");
        assert_eq!(version(&trace), 2);
        let options = VolumeOptions { thick: true, ..compressed(100, Compression::Off) };
        let made = pool.create_encrypted_volume("db", &options, &key(1)).await.unwrap();
        assert_eq!(version(&trace), 3);
        let device: Arc<PoolVolume> = made;
        // Holes stay holes.
        device.write(0, buf::zeroes(BLOCK as usize), false).await.unwrap();
        pool.checkpoint().await.unwrap();
        assert_eq!(stored(&device), (0, 0));
        drop(device);
        pool.delete_volume("db").await.unwrap();
        let (_pool, trace) = reopened(pool, &trace, size).await;
        assert_eq!(version(&trace), 3);
    });
}

/// A program that does not know encryption would write plaintext between encrypted blocks.
#[test]
fn encrypted_record_needs_its_format_version() {
    for has_checkpoint in [true, false] {
        simulate(async move {
            let (pool, trace, size) = pool(32).await;
            let options = compressed(100, Compression::Off);
            drop(pool.create_encrypted_volume("db", &options, &key(1)).await.unwrap());
            if has_checkpoint {
                pool.close().await.unwrap();
            }
            let mut images = crate::common::durable(&trace);
            for copy in 0..4 {
                let mut block = [0; 4096];
                let at = copy * (1 << 18);
                images[0].read(at, &mut block);
                block[8..10].copy_from_slice(&2_u16.to_le_bytes());
                flagstone_pool::ondisk::seal(&mut block);
                images[0].write(at, &block);
            }
            let (devices, _) = crate::common::disks(images, size, 0);
            let refused = Pool::open(devices).await.err().unwrap().to_string();
            assert!(refused.contains("encryption"), "{refused}");
        });
    }
}

/// Regression: the second order stored the data key that it had read before the first, also in
/// another volume that had got the name meanwhile.
#[test]
fn changes_of_a_key_are_ordered() {
    simulate(async {
        let (pool, ..) = pool(32).await;
        let options = compressed(100, Compression::Off);
        drop(pool.create_encrypted_volume("db", &options, &key(1)).await.unwrap());
        let change = |next: u8| {
            let (pool, properties) = (pool.clone(), options.properties.clone());
            spawn(async move {
                pool.set_volume_key("db", (&key(1), &key(next)), false, properties).await
            })
        };
        let (first, second) = (change(2), change(3));
        let ended = [first.await.unwrap(), second.await.unwrap()];
        let wrong = Err(VolumeError::WrongKey { name: "db".to_owned() });
        assert!(ended.contains(&Ok(())) && ended.contains(&wrong), "{ended:?}");
    });
}
