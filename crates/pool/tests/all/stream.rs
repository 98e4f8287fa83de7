//! Streams: one pool receives the snapshots of another, in full and as differences; changed streams
//! are refused, and interrupted ones continue.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::{BlockDevice, MemoryDevice};
use flagstone_pool::stream::frame::{FrameBody, StreamFrame, StreamStart};
use flagstone_pool::stream::receive::{RECEIVED_KEY, ReceiveError, Received, VolumeReceiver};
use flagstone_pool::{
    CreateOptions, NamedDevice, Pool, PoolId, PoolVolume, VolumeError, VolumeOptions,
};
use flagstone_runtime::rng::Rng;
use flagstone_runtime::{Buf, block_on, buf, spawn, time};

use crate::common::{Image, disks};

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
    resume(volume, bytes, 0).await.0.map(|receiver| receiver.has_ended())
}

/// Applies a stream to a volume that has the snapshot up to an offset. Second, the position, also
/// after an error.
async fn resume(
    volume: &Arc<PoolVolume>,
    bytes: &[u8],
    had: u64,
) -> (Result<VolumeReceiver, ReceiveError>, u64) {
    let (mut rest, mut receiver) = (bytes, None);
    while let Some((frame, len)) = StreamFrame::decode(rest).unwrap_or_default() {
        match (&mut receiver, &frame.body) {
            (None, FrameBody::Begin(start)) => {
                let (device, start) = (volume.clone(), start.clone());
                let new =
                    VolumeReceiver::new(device, frame.snapshot, frame.source, start, u64::MAX);
                receiver = Some(new.resumed(had));
            }
            (None, _) => return (Err(ReceiveError::Foreign), had),
            (Some(receiver), _) => {
                let applied = receiver.apply(&frame).await;
                if let Err(error) = applied {
                    return (Err(error), receiver.position());
                }
            }
        }
        rest = &rest[len..];
    }
    let damage = StreamFrame::decode(rest).err();
    let position = receiver.as_ref().map_or(had, VolumeReceiver::position);
    let receiver = receiver.ok_or(ReceiveError::Foreign);
    (damage.map_or(receiver, |error| Err(error.into())), position)
}

/// The frames of a stream, with their offsets.
fn frames(bytes: &[u8]) -> Vec<(u64, &[u8])> {
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some((frame, len)) = StreamFrame::decode(&bytes[at..]).unwrap() {
        found.push((frame.offset, &bytes[at..at + len]));
        at += len;
    }
    assert_eq!(at, bytes.len());
    found
}

/// A stream of the first frame and these.
fn of_frames(all: &[(u64, &[u8])], chosen: Range<usize>) -> Vec<u8> {
    let chosen = all[chosen].iter().map(|(_, frame)| *frame);
    std::iter::once(all[0].1).chain(chosen).collect::<Vec<_>>().concat()
}

#[test]
fn interrupted_receive_continues_at_its_position() {
    block_on(async {
        let (from, to) = (pool("from").await, pool("to").await);
        let db = from.create_volume("db", &thin(600)).await.unwrap();
        let mut rng = Rng::new(21);
        change(&db, &mut rng, 40).await;
        from.create_snapshot(&["db"], "a").await.unwrap();
        change(&db, &mut rng, 20).await;
        from.create_snapshot(&["db"], "b").await.unwrap();
        let base = stream(&from, "db@a", None).await.0;
        let expected = content(&from.open_snapshot("db@b").unwrap()).await;
        let (mut gaps, mut skipped) = (0, 0);
        for (round, since) in (0..24).zip([None, Some("db@a")].into_iter().cycle()) {
            let copy = to.create_volume("copy", &thin(600)).await.unwrap();
            if since.is_some() {
                assert_eq!(receive(&copy, &base).await, Ok(true));
            }
            let bytes = stream(&from, "db@b", since).await.0;
            let all = frames(&bytes);
            let mut had = 0;
            for _ in 0..rng.below(4) {
                // The sender leaves out some of what the receiver has, or nothing.
                let known = all[1..].iter().take_while(|(offset, _)| *offset <= had).count();
                let first = 1 + rng.below(known as u64) as usize;
                let last = first + rng.below((all.len() - first) as u64) as usize;
                let (receiver, has) = resume(&copy, &of_frames(&all, first..last), had).await;
                assert!(!receiver.unwrap().has_ended() && has >= had);
                skipped += usize::from(first > 1);
                // A crash loses what was not recorded.
                had = if rng.chance(0.5) { has } else { had };
            }
            if let Some(after) = all.iter().position(|(offset, _)| *offset > had) {
                let (gap, has) = resume(&copy, &of_frames(&all, after..after + 1), had).await;
                let is_gap =
                    |error| matches!(error, ReceiveError::Gap { expected, .. } if expected == had);
                assert!(gap.is_err_and(is_gap) && has == had);
                gaps += 1;
            }
            let rest = all.iter().rposition(|(offset, _)| *offset <= had).unwrap();
            let rest = of_frames(&all, rest.max(1)..all.len());
            let (done, _) = resume(&copy, if rng.chance(0.5) { &rest } else { &bytes }, had).await;
            assert!(done.unwrap().has_ended(), "{round}");
            assert!(content(&copy).await == expected, "{round}");
            to.delete_volume("copy").await.unwrap();
        }
        assert!(gaps > 5 && skipped > 5, "{gaps} {skipped}");
    })
    .unwrap();
}

/// A crash at any moment: the volume has everything before the recorded position.
#[test]
fn recorded_position_is_not_ahead_of_the_data() {
    const VOLUME: u64 = 96;
    let (mut continued, mut crashes) = (0, 0);
    let (bytes, expected) = block_on(async {
        let from = pool("from").await;
        let db = from.create_volume("db", &thin(VOLUME)).await.unwrap();
        // Frames of all kinds: short ones of data between holes.
        for block in (0..VOLUME).filter(|block| block % 3 > 0) {
            let data = [block as u8 | 1; BLOCK as usize];
            db.write(block * BLOCK, Buf::copy_of(&data).unwrap(), false).await.unwrap();
        }
        from.create_snapshot(&["db"], "a").await.unwrap();
        let expected = content(&from.open_snapshot("db@a").unwrap()).await;
        (stream(&from, "db@a", None).await.0, expected)
    })
    .unwrap();
    let all = frames(&bytes);
    let size = (1 << 20) + 64 * 16 * BLOCK;
    let (trace, from) = block_on(async {
        let (devices, trace) = disks(vec![Image::default()], size, 0);
        let options = CreateOptions { segment_blocks: 16, ..CreateOptions::new("fast") };
        let to = Pool::create(devices, &options).await.unwrap();
        let copy = to.create_volume("copy", &thin(VOLUME)).await.unwrap();
        let from = trace.lock().now();
        let mut receiver: Option<VolumeReceiver> = None;
        for (number, (_, bytes)) in all.iter().enumerate() {
            let (frame, _) = StreamFrame::decode(bytes).unwrap().unwrap();
            match (&mut receiver, &frame.body) {
                (None, FrameBody::Begin(start)) => {
                    let (device, start) = (copy.clone(), start.clone());
                    let new = VolumeReceiver::new(device, frame.snapshot, frame.source, start, 0);
                    receiver = Some(new);
                }
                (receiver, _) => receiver.as_mut().unwrap().apply(&frame).await.unwrap(),
            }
            if number % 5 == 4 {
                receiver.as_mut().unwrap().record(&to).await.unwrap();
            }
        }
        assert!(receiver.unwrap().has_ended());
        (std::mem::take(&mut *trace.lock()), from)
    })
    .unwrap();
    block_on(async {
        let mut rng = Rng::new(5);
        let chosen = |time: usize| time >= from && time.is_multiple_of(4);
        let mut positions = BTreeSet::new();
        let check = async |time, images: Vec<Image>| {
            crashes += 1;
            let (devices, _) = disks(images, size, 0);
            let to = Pool::open(devices).await.unwrap();
            let copy = to.open_volume("copy").unwrap();
            let recorded = copy.info().unwrap().properties.remove(RECEIVED_KEY);
            let received = recorded.map(|text| text.parse::<Received>().unwrap());
            let had = received.map_or(0, |received| received.end);
            positions.insert(had);
            continued += usize::from(had > 0);
            assert!(content(&copy).await[..had as usize] == expected[..had as usize], "{time}");
            let rest = all.iter().rposition(|(offset, _)| *offset <= had).unwrap();
            let rest = of_frames(&all, rest.max(1)..all.len());
            assert!(resume(&copy, &rest, had).await.0.unwrap().has_ended(), "{time}");
            assert!(content(&copy).await == expected, "{time}");
        };
        trace.at_each_event(chosen, &mut rng, check).await;
        assert!(positions.len() > 5, "{positions:?}");
    })
    .unwrap();
    assert!(crashes > 20 && continued > 10, "{continued} of {crashes}");
}

/// Snapshots that were taken together have one identifier: the stream of one continued that of
/// another.
#[test]
fn streams_of_snapshots_taken_together_are_told_apart() {
    block_on(async {
        let (from, to) = (pool("from").await, pool("to").await);
        for name in ["db", "log"] {
            let volume = from.create_volume(name, &thin(300)).await.unwrap();
            let data = Buf::copy_of(&[name.len() as u8; BLOCK as usize]).unwrap();
            volume.write(0, data, false).await.unwrap();
        }
        from.create_snapshot(&["db", "log"], "a").await.unwrap();
        let [db, log] = [stream(&from, "db@a", None).await.0, stream(&from, "log@a", None).await.0];
        let copy = to.create_volume("copy", &thin(300)).await.unwrap();
        let mixed = [frames(&db)[0].1, &log[frames(&log)[0].1.len()..]].concat();
        assert_eq!(receive(&copy, &mixed).await, Err(ReceiveError::Foreign));
        assert_eq!(receive(&copy, &db).await, Ok(true));
    })
    .unwrap();
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
        let mut receiver = VolumeReceiver::new(copy.clone(), id, 0, start, 2 * BLOCK);
        let used = to.status();
        let frame = |offset, body| StreamFrame { snapshot: id, source: 0, offset, body };
        let zero = |offset, len| frame(offset, FrameBody::Zero(len));
        receiver.apply(&zero(0, BLOCK)).await.unwrap();
        receiver.apply(&zero(BLOCK, size_bytes - BLOCK)).await.unwrap();
        receiver.apply(&frame(size_bytes, FrameBody::End)).await.unwrap();
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
        let frames: Vec<&[u8]> = frames(&bytes).into_iter().map(|(_, frame)| frame).collect();
        assert!(frames.len() > 20);
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

/// Regression: parts name the base, and a base that was deleted and taken again under its name was
/// mixed with the former one: what had changed between both was not sent.
#[test]
fn recreated_base_is_another_stream() {
    block_on(async {
        let here = pool("here").await;
        let db = here.create_volume("db", &thin(BLOCKS)).await.unwrap();
        let mut rng = Rng::new(7);
        change(&db, &mut rng, 50).await;
        here.create_snapshot(&["db"], "a").await.unwrap();
        let fill = |byte| Buf::copy_of(&vec![byte; 1 << 20]).unwrap();
        for at in 0..8 {
            db.write(at << 20, fill(1), false).await.unwrap();
        }
        here.create_snapshot(&["db"], "b").await.unwrap();
        let first = here.send_part("db@b", Some("db@a"), 0).await.unwrap();
        let next = first.next.unwrap();
        here.delete_snapshot("db@a").await.unwrap();
        here.create_snapshot(&["db"], "a").await.unwrap();
        let second = here.send_part("db@b", Some("db@a"), next).await.unwrap();
        let there = pool("there").await;
        let volume = there.create_volume("db", &thin(BLOCKS)).await.unwrap();
        let mixed = [first.bytes, second.bytes].concat();
        let refused = receive(&volume, &mixed).await.unwrap_err();
        assert!(matches!(refused, ReceiveError::Foreign), "{refused}");
    })
    .unwrap();
}
