//! Pools that compressed data fills: cleaning never takes more than it gives, reservations keep
//! their space, and what is full can be told.
use crate::common::units::*;
use flagstone_blockdev::{BlockDevice as _, IoError};
use flagstone_pool::{Compression, Pool, PoolVolume, VolumeError, VolumeOptions};
use flagstone_runtime::Buf;
use flagstone_runtime::rng::Rng;

fn noise(rng: &mut Rng) -> Vec<u8> {
    (0..BLOCK / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect()
}

/// Eight blocks of which one is stored: each alone takes a block, too.
fn equal(rng: &mut Rng) -> Vec<u8> {
    let mut block = noise(rng);
    block[3500..].fill(1);
    block.repeat(8)
}

/// Content of which no two blocks have anything in common, but that Zstandard makes smaller.
fn digits(rng: &mut Rng) -> Vec<u8> {
    (0..BLOCK).map(|_| b'0' + rng.below(10) as u8).collect()
}

/// Writes units of 8 blocks until the pool is full; returns them.
async fn fill(
    volume: &PoolVolume,
    rng: &mut Rng,
    unit: impl Fn(u64, &mut Rng) -> Vec<u8>,
) -> Vec<(u64, Vec<u8>)> {
    let mut units = Vec::new();
    for number in 0..100_000 {
        let data = unit(number, rng);
        match volume.write(8 * number * BLOCK, Buf::copy_of(&data).unwrap(), false).await {
            Ok(()) => units.push((8 * number, data)),
            Err(error) => {
                assert_eq!(error, IoError::NoSpace);
                return units;
            }
        }
    }
    panic!("the pool has no end");
}

/// Orders, discards and writes that the full pool refuses, over and over.
async fn press(pool: &Pool, volume: &PoolVolume, compression: Compression, rng: &mut Rng) {
    for round in 0..60 {
        pool.set_volume("v", false, properties(compression)).await.ok();
        volume.discard((8 * rng.below(8) + rng.below(8)) * BLOCK, BLOCK).await.unwrap();
        let data = Buf::copy_of(&noise(rng)).unwrap();
        let written = volume.write((1 << 19) * BLOCK, data, false).await;
        assert!(matches!(written, Ok(()) | Err(IoError::NoSpace)), "{written:?}");
        pool.checkpoint().await.unwrap();
        let status = pool.status();
        assert_eq!(status.failed, None, "round {round}: {status:?}");
    }
}

async fn verify(volume: &PoolVolume, units: &[(u64, Vec<u8>)]) {
    for (first, data) in units.iter().skip(8) {
        let found = read(volume, *first..first + 8).await.unwrap();
        assert!(found == *data, "unit {first}");
    }
}

#[test]
fn full_pool_is_not_eaten_by_its_cleaner() {
    let phased = |number: u64, rng: &mut Rng| match number {
        // The units are out of phase.
        0 => noise(rng),
        _ => equal(rng),
    };
    let tens = |_: u64, rng: &mut Rng| (0..8).flat_map(|_| digits(rng)).collect();
    type Unit = fn(u64, &mut Rng) -> Vec<u8>;
    let cases: [(Compression, Compression, Unit); 4] = [
        (Compression::Lz4, Compression::Lz4, phased),
        (Compression::Zstd, Compression::Lz4, tens),
        (Compression::Zstd, Compression::Off, tens),
        (Compression::Auto, Compression::Auto, tens),
    ];
    for (before, after, unit) in cases {
        simulate(async move {
            let (pool, trace, size) = pool(48).await;
            let v = pool.create_volume("v", &volume(1 << 20, before)).await.unwrap();
            let mut rng = Rng::new(1);
            let units = fill(&v, &mut rng, unit).await;
            press(&pool, &v, after, &mut rng).await;
            verify(&v, &units).await;
            drop(v);
            let (pool, _) = reopened(pool, &trace, size).await;
            let v = pool.open_volume("v").unwrap();
            verify(&v, &units).await;
            v.discard(0, (1 << 20) * BLOCK).await.unwrap();
            write(&v, 0..64, 5).await;
        });
    }
}

/// Leaves one block of each unit.
async fn thin_out(volume: &PoolVolume, units: &[(u64, Vec<u8>)]) {
    for (first, _) in units {
        volume.discard((first + 1) * BLOCK, 7 * BLOCK).await.unwrap();
    }
}

#[test]
fn reservation_needs_free_segments() {
    simulate(async {
        let (pool, trace, size) = pool(64).await;
        let v = pool.create_volume("v", &volume(1 << 20, Compression::Lz4)).await.unwrap();
        let capacity = pool.status().capacity_bytes / BLOCK;
        let mut rng = Rng::new(2);
        let mut units = Vec::new();
        while units.len() < capacity as usize / 2 {
            let first = 8 * units.len() as u64;
            let data = equal(&mut rng);
            v.write(first * BLOCK, Buf::copy_of(&data).unwrap(), false).await.unwrap();
            units.push((first, data));
        }
        thin_out(&v, &units).await;
        pool.checkpoint().await.unwrap();
        let thick = |blocks| VolumeOptions { thick: true, ..volume(blocks, Compression::Off) };
        let status = pool.status();
        assert!(status.used_bytes < status.capacity_bytes / 4, "{status:?}");
        let needed = status.used_bytes + status.held_bytes;
        assert!(needed * 10 > status.capacity_bytes * 4, "the rest of the units shows: {status:?}");
        for blocks in [capacity * 9 / 10, capacity * 6 / 10] {
            let refused = pool.create_volume("db", &thick(blocks)).await.err().unwrap();
            assert!(matches!(refused, VolumeError::NoSpace { .. }), "{refused}");
        }
        // All that is granted can be written, again and again, while others fill the pool.
        let blocks = capacity * 35 / 100;
        let db = pool.create_volume("db", &thick(blocks)).await.unwrap();
        for round in 0..3 {
            for first in (0..blocks).step_by(60) {
                let count = 60.min(blocks - first);
                let data: Vec<u8> = (0..count).flat_map(|_| noise(&mut rng)).collect();
                let data = Buf::copy_of(&data).unwrap();
                let written = db.write(first * BLOCK, data, false).await;
                assert_eq!(written, Ok(()), "round {round}: {first} {:?}", pool.status());
                let at = 8 * (100_000 + first);
                let data = Buf::copy_of(&equal(&mut rng)).unwrap();
                let written = v.write(at * BLOCK, data, false).await;
                assert!(matches!(written, Ok(()) | Err(IoError::NoSpace)));
                v.discard((at + 1) * BLOCK, 7 * BLOCK).await.unwrap();
            }
        }
        drop((v, db));
        let (pool, _) = reopened(pool, &trace, size).await;
        let v = pool.open_volume("v").unwrap();
        for (first, data) in &units {
            let found = read(&v, *first..first + 1).await.unwrap();
            assert!(found[..] == data[..BLOCK as usize], "unit {first}");
        }
    });
}

#[test]
fn space_behind_dead_parts_of_units_is_found() {
    simulate(async {
        let (pool, ..) = pool(64).await;
        let v = pool.create_volume("v", &volume(1 << 20, Compression::Lz4)).await.unwrap();
        let plain = pool.create_volume("plain", &volume(1 << 20, Compression::Off)).await.unwrap();
        let capacity = pool.status().capacity_bytes / BLOCK;
        let mut rng = Rng::new(3);
        let (mut units, mut first) = (Vec::new(), 0);
        // More than half are units, of each of which one block will stay.
        while units.len() < capacity as usize * 55 / 100 {
            let at = 8 * units.len() as u64;
            let data = equal(&mut rng);
            v.write(at * BLOCK, Buf::copy_of(&data).unwrap(), false).await.unwrap();
            units.push((at, data));
        }
        while first < capacity * 30 / 100 {
            plain
                .write(first * BLOCK, Buf::copy_of(&noise(&mut rng)).unwrap(), false)
                .await
                .unwrap();
            first += 1;
        }
        pool.checkpoint().await.unwrap();
        thin_out(&v, &units).await;
        // Half of the others is free: a third of what they had must have room.
        for block in (0..first).step_by(2) {
            plain.discard(block * BLOCK, BLOCK).await.unwrap();
        }
        for number in 0..first / 3 {
            let data = Buf::copy_of(&noise(&mut rng)).unwrap();
            let written = plain.write((100_000 + number) * BLOCK, data, false).await;
            assert_eq!(written, Ok(()), "{number} of {first}: {:?}", pool.status());
        }
        for (first, data) in &units {
            let found = read(&v, *first..first + 1).await.unwrap();
            assert!(found[..] == data[..BLOCK as usize], "unit {first}");
        }
    });
}

#[test]
fn whole_units_that_die_hold_nothing() {
    simulate(async {
        let (pool, ..) = pool(64).await;
        let v = pool.create_volume("v", &volume(4000, Compression::Lz4)).await.unwrap();
        for stamp in 1..6 {
            for first in (0..2000).step_by(80) {
                write(&v, first..first + 80, stamp).await;
            }
            pool.checkpoint().await.unwrap();
            assert_eq!(pool.status().held_bytes, 0);
        }
        // One block of each unit is written alone: seven eighths of a block count.
        for block in (0..2000).step_by(8) {
            write(&v, block..block + 1, 7).await;
        }
        pool.checkpoint().await.unwrap();
        let held = pool.status().held_bytes / BLOCK;
        assert!((25..=40).contains(&held), "{held}");
    });
}

/// Units of which seven blocks die before a checkpoint counts them.
async fn write_and_thin_out(volume: &PoolVolume, count: usize, rng: &mut Rng) {
    for number in 0..count as u64 {
        let data = Buf::copy_of(&equal(rng)).unwrap();
        volume.write(8 * number * BLOCK, data, false).await.unwrap();
        volume.discard((8 * number + 1) * BLOCK, 7 * BLOCK).await.unwrap();
    }
}

#[test]
fn parts_that_die_before_a_checkpoint_hold_their_space() {
    for crash in [false, true] {
        simulate(async move {
            let (pool, trace, size) = pool(64).await;
            let v = pool.create_volume("v", &volume(1 << 20, Compression::Lz4)).await.unwrap();
            let capacity = pool.status().capacity_bytes / BLOCK;
            write_and_thin_out(&v, capacity as usize / 2, &mut Rng::new(4)).await;
            v.flush().await.unwrap();
            let pool = if crash {
                drop((v, pool));
                let (devices, _) = crate::common::disks(crate::common::durable(&trace), size, 0);
                Pool::open(devices).await.unwrap()
            } else {
                pool.checkpoint().await.unwrap();
                pool
            };
            let status = pool.status();
            let needed = status.used_bytes + status.held_bytes;
            assert!(needed * 2 > status.capacity_bytes * 9 / 10, "{status:?}");
            let thick =
                VolumeOptions { thick: true, ..volume(capacity * 9 / 10, Compression::Off) };
            let refused = pool.create_volume("db", &thick).await.err().unwrap();
            assert!(matches!(refused, VolumeError::NoSpace { .. }), "{refused}");
        });
    }
}

#[test]
fn snapshot_of_a_thick_volume_needs_space_of_dead_parts() {
    simulate(async {
        let (pool, ..) = pool(64).await;
        let capacity = pool.status().capacity_bytes / BLOCK;
        let blocks = capacity * 3 / 4 / 8 * 8;
        let thick = VolumeOptions { thick: true, ..volume(blocks, Compression::Lz4) };
        let db = pool.create_volume("db", &thick).await.unwrap();
        let mut rng = Rng::new(5);
        for first in (0..blocks).step_by(8) {
            let mut half = Vec::new();
            for _ in 0..4 {
                half.extend(&equal(&mut rng)[..BLOCK as usize]);
            }
            let data = Buf::copy_of(&half.repeat(2)).unwrap();
            db.write(first * BLOCK, data, false).await.unwrap();
        }
        pool.checkpoint().await.unwrap();
        for first in (0..blocks).step_by(8) {
            db.discard((first + 4) * BLOCK, 4 * BLOCK).await.unwrap();
        }
        pool.checkpoint().await.unwrap();
        let refused = pool.create_snapshot(&["db"], "s").await.err();
        assert!(matches!(refused, Some(VolumeError::NoSpace { .. })), "{:?}", pool.status());
        for first in 0..blocks {
            let data = Buf::copy_of(&noise(&mut rng)).unwrap();
            let written = db.write(first * BLOCK, data, false).await;
            assert_eq!(written, Ok(()), "{first} {:?}", pool.status());
        }
    });
}

/// Text of which a unit takes a quarter.
fn quarter(rng: &mut Rng) -> Vec<u8> {
    [equal(rng), equal(rng)].iter().flat_map(|half| half[..4 * BLOCK as usize].to_vec()).collect()
}

/// The first snapshot shares compressed blocks; overwriting them takes whole ones.
#[test]
fn later_snapshot_of_a_thick_volume_needs_its_space() {
    for rolls_back in [false, true] {
        simulate(async move {
            let (pool, ..) = pool(64).await;
            let capacity = pool.status().capacity_bytes / BLOCK;
            let blocks = capacity * 3 / 4 / 8 * 8;
            let thick = VolumeOptions { thick: true, ..volume(blocks, Compression::Lz4) };
            let db = pool.create_volume("db", &thick).await.unwrap();
            let mut rng = Rng::new(6);
            for first in (0..blocks).step_by(8) {
                let data = Buf::copy_of(&quarter(&mut rng)).unwrap();
                db.write(first * BLOCK, data, false).await.unwrap();
            }
            pool.checkpoint().await.unwrap();
            pool.create_snapshot(&["db"], "first").await.unwrap();
            for block in 0..blocks * 42 / 100 {
                let data = Buf::copy_of(&noise(&mut rng)).unwrap();
                db.write(block * BLOCK, data, false).await.unwrap();
            }
            pool.checkpoint().await.unwrap();
            let refused = match rolls_back {
                false => pool.create_snapshot(&["db"], "second").await.err(),
                true => pool.rollback("db", "first").await.err(),
            };
            assert!(matches!(refused, Some(VolumeError::NoSpace { .. })), "{:?}", pool.status());
            for block in 0..blocks {
                let data = Buf::copy_of(&noise(&mut rng)).unwrap();
                let written = db.write(block * BLOCK, data, false).await;
                assert_eq!(written, Ok(()), "{block} {:?}", pool.status());
            }
        });
    }
}

/// What is held is kept with the pool, so an opening shows it as it is.
#[test]
fn dead_parts_are_counted_across_openings() {
    simulate(async {
        let (pool, trace, size) = pool(64).await;
        let v = pool.create_volume("v", &volume(4000, Compression::Lz4)).await.unwrap();
        for stamp in 1..3 {
            for first in (0..2000).step_by(80) {
                write(&v, first..first + 80, stamp).await;
            }
            pool.checkpoint().await.unwrap();
        }
        for block in (0..2000).step_by(8) {
            write(&v, block..block + 1, 7).await;
        }
        pool.checkpoint().await.unwrap();
        let held = pool.status().held_bytes;
        assert!(held > 0);
        drop(v);
        let (pool, _) = reopened(pool, &trace, size).await;
        assert_eq!(pool.status().held_bytes, held);
    });
}
