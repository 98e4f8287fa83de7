//! Streams: one pool receives the snapshots of another, in full and as differences; changed streams
//! are refused.

use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::{BlockDevice, MemoryDevice};
use flagstone_pool::stream::frame::{FrameBody, StreamFrame, StreamStart};
use flagstone_pool::stream::receive::{ReceiveError, VolumeReceiver};
use flagstone_pool::{
    CreateOptions, NamedDevice, Pool, PoolId, PoolVolume, VolumeError, VolumeOptions,
};
use flagstone_runtime::rng::Rng;
use flagstone_runtime::{Buf, block_on, buf, spawn, time};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 3000;

async fn pool(name: &str) -> Pool {
    let size = (1 << 20) + 400 * 64 * BLOCK;
    let device = Arc::new(MemoryDevice::new(size, 512).unwrap());
    let options = CreateOptions { segment_blocks: 64, ..CreateOptions::new(name) };
    let named = NamedDevice { name: format!("/{name}"), device };
    Pool::create(vec![named], &options).await.unwrap()
}

fn thin(blocks: u64) -> VolumeOptions {
    VolumeOptions { size_bytes: blocks * BLOCK, ..VolumeOptions::default() }
}

async fn change(volume: &PoolVolume, rng: &mut Rng, count: u64) {
    let blocks = volume.geometry().size_bytes / BLOCK;
    for _ in 0..count {
        let block = rng.below(blocks);
        let len = 1 + rng.below((blocks - block).min(40));
        if rng.chance(0.3) {
            volume.discard(block * BLOCK, len * BLOCK).await.unwrap();
            continue;
        }
        let data = vec![rng.next_u64() as u8 | 1; (len * BLOCK) as usize];
        volume.write(block * BLOCK, Buf::copy_of(&data).unwrap(), false).await.unwrap();
    }
}

async fn content(volume: &PoolVolume) -> Vec<u8> {
    let size = volume.geometry().size_bytes;
    let mut found = Vec::new();
    for at in (0..size).step_by(1 << 18) {
        let len = (size - at).min(1 << 18) as usize;
        found.extend_from_slice(&volume.read(at, buf::alloc(len).await).await.unwrap());
    }
    found
}

/// A full stream, and its number of parts.
async fn stream(pool: &Pool, snapshot: &str, base: Option<&str>) -> (Vec<u8>, usize) {
    let (mut offset, mut bytes, mut parts) = (Some(0), Vec::new(), 0);
    while let Some(at) = offset {
        let part = pool.send_part(snapshot, base, at).await.unwrap();
        assert!(part.next.is_none_or(|next| next > at) && part.bytes.len() < 4 << 20);
        // Each part depends only on the snapshots.
        assert_eq!(pool.send_part(snapshot, base, at).await.unwrap(), part);
        bytes.extend(part.bytes);
        (offset, parts) = (part.next, parts + 1);
    }
    (bytes, parts)
}

/// Applies a stream; true at its end.
async fn receive(volume: &Arc<PoolVolume>, bytes: &[u8]) -> Result<bool, ReceiveError> {
    let mut rest = bytes;
    let mut receiver: Option<VolumeReceiver> = None;
    while let Some((frame, len)) = StreamFrame::decode(rest)? {
        match (&mut receiver, &frame.body) {
            (None, FrameBody::Begin(start)) => {
                receiver = Some(VolumeReceiver::new(
                    volume.clone(),
                    frame.snapshot,
                    start.clone(),
                    u64::MAX,
                ));
            }
            (None, _) => return Err(ReceiveError::Foreign),
            (Some(receiver), _) => receiver.apply(&frame).await?,
        }
        rest = &rest[len..];
    }
    Ok(receiver.is_some_and(|receiver| receiver.has_ended()))
}

#[test]
fn zeroes_of_an_empty_range_write_nothing() {
    block_on(async {
        let to = pool("to").await;
        let size_bytes = 1 << 50;
        let copy = to.create_volume("copy", &thin(size_bytes / BLOCK)).await.unwrap();
        copy.write(0, Buf::copy_of(&[7; 3 * BLOCK as usize]).unwrap(), false).await.unwrap();
        let start = StreamStart { name: "a".to_owned(), base: None, size_bytes, created_s: 0 };
        let id = PoolId([1; 16]);
        let mut receiver = VolumeReceiver::new(copy.clone(), id, start, 2 * BLOCK);
        let used = to.status();
        let zero = |offset, len| StreamFrame { snapshot: id, offset, body: FrameBody::Zero(len) };
        receiver.apply(&zero(0, BLOCK)).await.unwrap();
        receiver.apply(&zero(BLOCK, size_bytes - BLOCK)).await.unwrap();
        let end = StreamFrame { snapshot: id, offset: size_bytes, body: FrameBody::End };
        receiver.apply(&end).await.unwrap();
        assert!(receiver.has_ended());
        let found = copy.read(0, buf::alloc(3 * BLOCK as usize).await).await.unwrap();
        let expected = [[0; 2 * BLOCK as usize].as_slice(), &[7; BLOCK as usize]].concat();
        assert!(found[..] == expected[..]);
        assert_eq!(to.status().checkpoints, used.checkpoints);
    })
    .unwrap();
}

#[test]
fn changes_of_other_volumes_do_not_count() {
    block_on(async {
        let pool = pool("busy").await;
        let db = pool.create_volume("db", &thin(BLOCKS)).await.unwrap();
        let log = pool.create_volume("log", &thin(BLOCKS)).await.unwrap();
        let mut rng = Rng::new(3);
        change(&db, &mut rng, 20).await;
        pool.create_snapshot(&["db"], "a").await.unwrap();
        let busy = spawn(async move {
            let mut rng = Rng::new(4);
            loop {
                change(&log, &mut rng, 1).await;
                time::sleep(Duration::from_micros(50)).await;
            }
        })
        .abort_on_drop();
        for _ in 0..50 {
            assert!(!pool.has_changed("db", "db@a").await.unwrap());
        }
        db.write(0, Buf::copy_of(&[9; BLOCK as usize]).unwrap(), false).await.unwrap();
        assert!(pool.has_changed("db", "db@a").await.unwrap());
        drop(busy);
    })
    .unwrap();
}

#[test]
fn received_volume_equals_sent_snapshot() {
    block_on(async {
        let (from, to) = (pool("from").await, pool("to").await);
        let db = from.create_volume("db", &thin(BLOCKS)).await.unwrap();
        let copy = to.create_volume("copy", &thin(BLOCKS)).await.unwrap();
        let mut rng = Rng::new(11);
        let mut parts = 0;
        for round in 0..8 {
            let (name, last) = (format!("s{round}"), format!("db@s{}", round - 1));
            change(&db, &mut rng, if round == 0 { 200 } else { 25 }).await;
            if round == 5 {
                from.resize_volume("db", (BLOCKS + 700) * BLOCK).await.unwrap();
                to.resize_volume("copy", (BLOCKS + 700) * BLOCK).await.unwrap();
                change(&db, &mut rng, 20).await;
            }
            from.create_snapshot(&["db"], &name).await.unwrap();
            let sent = format!("db@{name}");
            let base = (round > 0).then_some(last.as_str());
            let (bytes, count) = stream(&from, &sent, base).await;
            parts += count;
            change(&db, &mut rng, 5).await;
            assert_eq!(receive(&copy, &bytes).await, Ok(true), "{round}");
            let expected = content(&from.open_snapshot(&sent).unwrap()).await;
            assert!(content(&copy).await == expected, "{round}");
            if round == 0 {
                let (used, bytes) = (copy.info().unwrap(), bytes.len() as u64);
                assert!(bytes < BLOCKS * BLOCK, "holes are not sent: {bytes}, {used:?}");
            }
        }
        assert!(parts > 9, "{parts}");
        // Holes are kept.
        to.checkpoint().await.unwrap();
        from.checkpoint().await.unwrap();
        let mapped = |pool: &Pool, name: &str| pool.volume(name).unwrap().used_bytes;
        let whole = stream(&from, "db@s7", None).await.0;
        let again = to.create_volume("again", &thin(BLOCKS + 700)).await.unwrap();
        assert_eq!(receive(&again, &whole).await, Ok(true));
        to.checkpoint().await.unwrap();
        assert_eq!(mapped(&to, "again"), mapped(&to, "copy"));
        let error = from.send_part("db@s7", Some("db@none"), 0).await.unwrap_err();
        assert!(matches!(error, VolumeError::UnknownSnapshot { .. }), "{error}");
        assert!(from.send_part("db@s7", None, 7).await.is_err());
    })
    .unwrap();
}

#[test]
fn changed_streams_are_refused() {
    block_on(async {
        let (from, to) = (pool("from").await, pool("to").await);
        let db = from.create_volume("db", &thin(BLOCKS)).await.unwrap();
        let mut rng = Rng::new(4);
        change(&db, &mut rng, 60).await;
        from.create_snapshot(&["db"], "a").await.unwrap();
        let bytes = stream(&from, "db@a", None).await.0;
        let copy = to.create_volume("copy", &thin(BLOCKS)).await.unwrap();
        let mut frames = Vec::new();
        let mut at = 0;
        while let Some((_, len)) = StreamFrame::decode(&bytes[at..]).unwrap() {
            frames.push(&bytes[at..at + len]);
            at += len;
        }
        assert!(at == bytes.len() && frames.len() > 20);
        for _ in 0..200 {
            let mut changed = frames.clone();
            let index = rng.below(frames.len() as u64 - 1) as usize;
            match rng.below(3) {
                0 => drop(changed.remove(index)),
                1 => changed.insert(index, frames[index]),
                _ => changed.swap(index, index + 1),
            }
            let outcome = receive(&copy, &changed.concat()).await;
            assert!(outcome.is_err(), "{index} of {}: {outcome:?}", frames.len());
        }
        for _ in 0..200 {
            let mut changed = bytes.clone();
            let at = rng.below(bytes.len() as u64) as usize;
            match rng.chance(0.5) {
                true => changed[at] ^= 1 << rng.below(8),
                false => changed.truncate(at),
            }
            assert_ne!(receive(&copy, &changed).await, Ok(true), "{at}");
        }
        // Frames of another snapshot, and of a smaller volume.
        from.create_snapshot(&["db"], "b").await.unwrap();
        let other = stream(&from, "db@b", None).await.0;
        let mixed = [frames[0], &other[frames[0].len()..]].concat();
        assert_eq!(receive(&copy, &mixed).await, Err(ReceiveError::Foreign));
        let small = to.create_volume("small", &thin(100)).await.unwrap();
        assert!(matches!(receive(&small, &bytes).await, Err(ReceiveError::Io(_))));
    })
    .unwrap();
}
