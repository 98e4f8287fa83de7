//! Compressed units in trouble: hostile bytes on disk, units of which parts are dead, small pools,
//! reservations, and streams and rollbacks of compressed snapshots.
use crate::common::units::*;
use crate::common::{Image, disks};
use flagstone_blockdev::{BlockDevice as _, IoError};
use flagstone_pool::ondisk::chunk::{ChunkHeader, ChunkRecord};
use flagstone_pool::ondisk::layout::PoolLayout;
use flagstone_pool::ondisk::superblock::{DeviceRecord, SUPERBLOCK_AREA_BYTES};
use flagstone_pool::stream::frame::{FrameBody, StreamFrame};
use flagstone_pool::stream::receive::VolumeReceiver;
use flagstone_pool::{Compression, Pool, PoolId, PoolVolume, VolumeError, VolumeOptions};
use flagstone_runtime::rng::Rng;
use flagstone_runtime::{Buf, buf};

fn noise(rng: &mut Rng, bytes: usize) -> Vec<u8> {
    (0..bytes.div_ceil(8)).flat_map(|_| rng.next_u64().to_le_bytes()).take(bytes).collect()
}

/// Replaces the content of each unit in the log by `unit`, with checksums that are right.
fn forge(image: &mut Image, size: u64, unit: &[u8]) -> usize {
    let segments = ((size - SUPERBLOCK_AREA_BYTES) / BLOCK / u64::from(SEGMENT_BLOCKS)) as u32;
    let device = DeviceRecord { id: PoolId::default(), size_bytes: size, segments };
    let layout = PoolLayout::new(SEGMENT_BLOCKS, &[device]).unwrap();
    let mut forged = 0;
    for at in 0..layout.blocks() {
        let mut header = [0; BLOCK as usize];
        image.read(layout.place(at).offset, &mut header);
        let Ok(mut chunk) = ChunkHeader::decode(&header, at, &layout) else { continue };
        let mut payload = 0;
        for record in chunk.records.clone() {
            if let ChunkRecord::Unit { stored, .. } = record {
                let mut bytes = vec![0; usize::from(stored) * BLOCK as usize];
                let len = unit.len().min(bytes.len());
                bytes[..len].copy_from_slice(&unit[..len]);
                for (index, block) in (payload..).zip(bytes.chunks(BLOCK as usize)) {
                    image.write(layout.place(at + 1 + index as u64).offset, block);
                    chunk.checksums[index] = crc_fast::crc32_iscsi(block);
                }
                forged += 1;
            }
            payload += record.payload_blocks();
        }
        chunk.encode(&mut header);
        image.write(layout.place(at).offset, &header);
    }
    forged
}

/// Codec, number of blocks, and length in the header of a unit, then the bytes.
fn unit(codec: u8, blocks: u8, len: u32, bytes: &[u8]) -> Vec<u8> {
    let mut unit = vec![codec, blocks, 0, 0];
    unit.extend(len.to_le_bytes());
    unit.extend(bytes);
    unit
}

#[test]
fn hostile_units_fail_their_blocks_alone() {
    simulate(async {
        let (pool, trace, size) = pool(64).await;
        let v = pool.create_volume("v", &volume(64, Compression::Lz4)).await.unwrap();
        write(&v, 8..9, 5).await;
        write(&v, 16..24, 5).await;
        v.flush().await.unwrap();
        let image = crate::common::durable(&trace).remove(0);
        drop((pool, v));
        let frame = |bytes: usize| zstd::bulk::compress(&vec![7; bytes], 3).unwrap();
        let whole = |codec, bytes: &[u8]| unit(codec, 8, bytes.len() as u32, bytes);
        let lz4 = lz4_flex::block::compress(&[7; 8 * BLOCK as usize]);
        let hostile = [
            ("nothing", vec![]),
            ("codec 0", unit(0, 8, lz4.len() as u32, &lz4)),
            ("codec 255", unit(255, 8, lz4.len() as u32, &lz4)),
            ("no blocks", unit(1, 0, lz4.len() as u32, &lz4)),
            ("7 blocks", unit(1, 7, lz4.len() as u32, &lz4)),
            ("255 blocks", unit(1, 255, lz4.len() as u32, &lz4)),
            ("no length", unit(1, 8, 0, &lz4)),
            ("longest length", unit(1, 8, u32::MAX, &lz4)),
            ("length beyond the blocks", unit(1, 8, 4089, &lz4)),
            ("truncated", unit(1, 8, lz4.len() as u32 - 1, &lz4)),
            ("another codec", unit(2, 8, lz4.len() as u32, &lz4)),
            ("match before the start", whole(1, &[0x0F, 0xFF, 0xFF, 0])),
            ("endless literals", whole(1, &[0xFF; 4000])),
            ("too short", whole(1, &lz4_flex::block::compress(&[7; 7 * BLOCK as usize]))),
            ("too long", whole(1, &lz4_flex::block::compress(&[7; 9 * BLOCK as usize]))),
            ("short frame", whole(2, &frame(8 * BLOCK as usize - 1))),
            ("bomb", whole(2, &frame(64 << 20))),
            ("two frames", whole(2, &[frame(8 * BLOCK as usize), frame(1)].concat())),
            ("window of 2 GiB", whole(2, &[0x28, 0xB5, 0x2F, 0xFD, 0, 0xA8, 1, 0, 0])),
            ("frame with a dictionary", whole(2, &[0x28, 0xB5, 0x2F, 0xFD, 3, 0, 9, 9, 9, 9, 1])),
        ];
        for (what, bytes) in hostile {
            let mut image = image.clone();
            assert_eq!(forge(&mut image, size, &bytes), 1, "{what}");
            let (devices, trace) = disks(vec![image], size, 0);
            let pool = Pool::open(devices).await.expect(what);
            let v = pool.open_volume("v").unwrap();
            assert!(read(&v, 8..9).await.unwrap() == block(8, 5), "{what}");
            for range in [16..17, 23..24, 16..24, 8..20] {
                let found = read(&v, range.clone()).await;
                assert!(found == Err(IoError::ReadFault), "{what}: {range:?} can be read");
            }
            // A write of a part repairs that part.
            write(&v, 17..18, 6).await;
            assert!(read(&v, 17..18).await.unwrap() == block(17, 6), "{what}");
            pool.checkpoint().await.unwrap();
            let mut place = Some(pool.begin_scrub().await.unwrap());
            let mut damages = 0;
            while let Some(at) = place {
                let step = pool.scrub(at).await.unwrap();
                damages += step.damage.len();
                place = step.next;
            }
            assert_eq!(damages, 7, "{what}");
            pool.close().await.unwrap();
            let (devices, _) = disks(crate::common::durable(&trace), size, 0);
            let report = Pool::check_devices(devices, &mut |_, _| ()).await.unwrap();
            assert_eq!(report.damages, 7, "{what}: {:?}", report.damage);
        }
    });
}

#[test]
fn cleaner_leaves_hostile_units_in_their_segment() {
    simulate(async {
        let (pool, trace, size) = pool(32).await;
        let v = pool.create_volume("v", &volume(1000, Compression::Lz4)).await.unwrap();
        write(&v, 0..8, 5).await;
        v.flush().await.unwrap();
        let mut image = crate::common::durable(&trace).remove(0);
        drop((pool, v));
        assert_eq!(forge(&mut image, size, &unit(1, 8, u32::MAX, &[])), 1);
        let (devices, trace) = disks(vec![image], size, 0);
        let pool = Pool::open(devices).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        let mut rng = Rng::new(4);
        let mut model = vec![0; 1000];
        for stamp in 1..4000 {
            let at = 100 + rng.below(800);
            write(&v, at..at + 1, stamp).await;
            model[at as usize] = stamp;
        }
        assert!(pool.status().cleaned_segments > 10, "{:?}", pool.status());
        for at in 0..8 {
            assert_eq!(read(&v, at..at + 1).await, Err(IoError::ReadFault));
        }
        write(&v, 0..8, 9).await;
        model[..8].fill(9);
        expect(&v, &model).await;
        drop(v);
        let (pool, _) = reopened(pool, &trace, size).await;
        expect(&pool.open_volume("v").unwrap(), &model).await;
    });
}

/// A unit of 8 equal blocks takes one stored block; each of its blocks alone takes one too.
async fn write_equal(volume: &PoolVolume, first: u64, rng: &mut Rng) -> Vec<u8> {
    let mut block = noise(rng, 3500);
    block.resize(BLOCK as usize, 1);
    let data = Buf::copy_of(&block.repeat(8)).unwrap();
    volume.write(first * BLOCK, data, false).await.unwrap();
    block
}

#[test]
fn dead_parts_that_grow_never_fail_the_pool() {
    simulate(async {
        let (pool, trace, size) = pool_of(40, 128).await;
        let v = pool.create_volume("v", &volume(1 << 20, Compression::Lz4)).await.unwrap();
        let mut rng = Rng::new(8);
        // Seven of eight blocks die at once, so the counts have an eighth of what stays in use.
        let (mut first, mut kept) = (0, Vec::new());
        let full = loop {
            let mut block = noise(&mut rng, 3500);
            block.resize(BLOCK as usize, 1);
            let data = Buf::copy_of(&block.repeat(8)).unwrap();
            match v.write(first * BLOCK, data, false).await {
                Ok(()) => kept.push((first, block)),
                Err(error) => break error,
            }
            v.discard((first + 1) * BLOCK, 7 * BLOCK).await.unwrap();
            first += 8;
            assert!(kept.len() < 6000, "a pool of 5,120 blocks has an end");
        };
        assert_eq!(full, IoError::NoSpace);
        assert!(kept.len() > 2000, "{} {:?}", kept.len(), pool.status());
        for (at, block) in &kept {
            assert!(read(&v, *at..at + 1).await.unwrap() == *block, "block {at}");
        }
        // Deletions and what they free go on.
        let half = kept.len() / 2;
        v.discard(0, kept[half].0 * BLOCK).await.unwrap();
        let more = write_equal(&v, 1 << 19, &mut rng).await;
        assert!(read(&v, (1 << 19) + 7..(1 << 19) + 8).await.unwrap() == more);
        drop(v);
        let (pool, _) = reopened(pool, &trace, size).await;
        let v = pool.open_volume("v").unwrap();
        for (at, block) in &kept[half..] {
            assert!(read(&v, *at..at + 1).await.unwrap() == *block, "block {at}");
        }
    });
}

#[test]
fn thick_volume_keeps_the_space_of_compressed_data() {
    simulate(async {
        // Chunks of 63 blocks: their headers take little of the space.
        let (pool, ..) = pool_of(64, 512).await;
        let thick = VolumeOptions { thick: true, ..volume(8000, Compression::Lz4) };
        let db = pool.create_volume("db", &thick).await.unwrap();
        for at in (0..8000).step_by(80) {
            write(&db, at..at + 80, 1).await;
        }
        pool.checkpoint().await.unwrap();
        assert!(stored(&db).1 < 1100, "{:?}", stored(&db));
        // Another volume takes all the rest.
        let mut rng = Rng::new(3);
        let thin = pool.create_volume("thin", &volume(1 << 20, Compression::Off)).await.unwrap();
        let (mut first, bytes) = (0, 160 * BLOCK as usize);
        loop {
            let data = Buf::copy_of(&noise(&mut rng, bytes)).unwrap();
            match thin.write(first * BLOCK, data, false).await {
                Ok(()) => first += 160,
                Err(error) => break assert_eq!(error, IoError::NoSpace),
            }
        }
        assert!(first > 10_000, "{first} {:?}", pool.status());
        // What does not compress replaces what did. Headers of short chunks take the slack.
        thin.discard(0, 2000 * BLOCK).await.unwrap();
        for at in (0..8000).step_by(160) {
            let data = Buf::copy_of(&noise(&mut rng, bytes)).unwrap();
            let written = db.write(at * BLOCK, data, false).await;
            assert_eq!(written, Ok(()), "block {at}: {:?}", pool.status());
        }
        let error = pool.create_volume("other", &thick).await.err().unwrap();
        assert!(matches!(error, VolumeError::NoSpace { .. }), "{error}");
    });
}

/// Fills a pool with a thin volume, of which seven of eight blocks die at once; returns how many
/// blocks a thick volume has room for then.
async fn room_of_thick(compression: Compression) -> u64 {
    let (pool, ..) = pool_of(64, 512).await;
    let thick = VolumeOptions { thick: true, ..volume(8000, Compression::Off) };
    let db = pool.create_volume("db", &thick).await.unwrap();
    let thin = pool.create_volume("thin", &volume(1 << 20, compression)).await.unwrap();
    let mut rng = Rng::new(5);
    let mut first = 0;
    loop {
        let unit = |rng: &mut Rng| noise(rng, BLOCK as usize).repeat(8);
        let data: Vec<u8> = (0..20).flat_map(|_| unit(&mut rng)).collect();
        match thin.write(first * BLOCK, Buf::copy_of(&data).unwrap(), false).await {
            Ok(()) => {}
            Err(error) => break assert_eq!(error, IoError::NoSpace),
        }
        for unit in (first..first + 160).step_by(8) {
            thin.discard((unit + 1) * BLOCK, 7 * BLOCK).await.unwrap();
        }
        first += 160;
    }
    assert!(first > 8 * 8000, "{first} {:?}", pool.status());
    for at in (0..8000).step_by(160) {
        let data = Buf::copy_of(&noise(&mut rng, 160 * BLOCK as usize)).unwrap();
        if db.write(at * BLOCK, data, false).await.is_err() {
            return at;
        }
    }
    8000
}

/// One block of each unit stays. It counts as an eighth, but keeps a whole block.
#[test]
fn dead_parts_of_others_leave_thick_volumes_their_space() {
    simulate(async {
        let plain = room_of_thick(Compression::Off).await;
        for compression in [Compression::Lz4, Compression::Zstd] {
            let found = room_of_thick(compression).await;
            assert!(found >= plain && plain > 6000, "{compression:?}: {found} of {plain}");
        }
    });
}

/// Sends a snapshot to another volume.
async fn transfer(
    pool: &Pool,
    snapshot: &str,
    base: Option<&str>,
    to: &std::sync::Arc<PoolVolume>,
) {
    let (mut offset, mut bytes) = (Some(0), Vec::new());
    while let Some(at) = offset {
        let part = pool.send_part(snapshot, base, at).await.unwrap();
        bytes.extend(part.bytes);
        offset = part.next;
    }
    let (mut rest, mut receiver) = (&bytes[..], None);
    while let Some((frame, len)) = StreamFrame::decode(rest).unwrap() {
        match (&mut receiver, &frame.body) {
            (None, FrameBody::Begin(start)) => {
                let StreamFrame { snapshot, source, .. } = frame;
                let (to, start) = (to.clone(), start.clone());
                receiver = Some(VolumeReceiver::new(to, snapshot, source, start, u64::MAX));
            }
            (Some(receiver), _) => receiver.apply(&frame).await.unwrap(),
            (None, _) => panic!("a stream begins with its start"),
        }
        rest = &rest[len..];
    }
    assert!(receiver.is_some_and(|receiver| receiver.has_ended()));
}

#[test]
fn compressed_snapshots_are_sent_and_rolled_back() {
    simulate(async {
        let (from, trace, size) = pool(64).await;
        let (to, to_trace, to_size) = pool(64).await;
        let db = from.create_volume("db", &volume(500, Compression::Auto)).await.unwrap();
        let copy = to.create_volume("copy", &volume(500, Compression::Zstd)).await.unwrap();
        let mut rng = Rng::new(2);
        let mut model = vec![0; 500];
        let mut models = Vec::new();
        for round in 0..6_u64 {
            for number in 0..40 {
                let at = rng.below(500);
                let end = (at + 1 + rng.below(20)).min(500);
                let stamp = round * 100 + number + 1;
                write(&db, at..end, stamp).await;
                model[at as usize..end as usize].fill(stamp);
            }
            from.create_snapshot(&["db"], &format!("s{round}")).await.unwrap();
            models.push(model.clone());
            let base = (round > 0).then(|| format!("db@s{}", round - 1));
            transfer(&from, &format!("db@s{round}"), base.as_deref(), &copy).await;
            expect(&copy, &model).await;
        }
        to.checkpoint().await.unwrap();
        let (logical, on_disk) = stored(&copy);
        assert!(on_disk * 3 < logical, "what is received is compressed: {:?}", stored(&copy));
        // Parts of units belong to several snapshots; each sees its own.
        for (round, model) in models.iter().enumerate() {
            expect(&from.open_snapshot(&format!("db@s{round}")).unwrap(), model).await;
        }
        for round in [4, 1] {
            from.rollback("db", &format!("s{round}")).await.unwrap();
            expect(&from.open_volume("db").unwrap(), &models[round]).await;
            let db = from.open_volume("db").unwrap();
            write(&db, 3..13, 9000).await;
            let mut model = models[round].clone();
            model[3..13].fill(9000);
            expect(&db, &model).await;
        }
        drop((db, copy));
        let (from, _) = reopened(from, &trace, size).await;
        expect(&from.open_snapshot("db@s1").unwrap(), &models[1]).await;
        let (to, _) = reopened(to, &to_trace, to_size).await;
        expect(&to.open_volume("copy").unwrap(), &models[5]).await;
        let memory = buf::alloc(BLOCK as usize).await;
        assert!(to.open_volume("copy").unwrap().read(0, memory).await.is_ok());
    });
}
