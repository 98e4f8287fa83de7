//! Checks of concurrent calls, from one core and from several.

use std::future::{Future, poll_fn};
use std::ops::RangeInclusive;
use std::pin::pin;
use std::task::Poll;

use flagstone_runtime::{buf, cores, spawn, task};

use super::kit::{Kit, fill, mismatch, patterned};
use flagstone_blockdev::{IoError, SharedDevice, ZeroFlags};
use flagstone_runtime::rng::Rng;

/// Unit that a disk never tears, in bytes.
const SECTOR_BYTES: u64 = 512;

pub(super) async fn disjoint_calls_are_independent(kit: &mut Kit<'_>) {
    let (block, size) = (kit.block(), kit.geometry.size_bytes);
    // Neighbors share chunks, pages and sectors of the device, but no block.
    let tasks = (kit.options.tasks as u64).min(kit.geometry.blocks());
    let span = (size / tasks / block).clamp(1, 16) * block;
    let rounds = kit.options.rounds as u64;
    let running: Vec<_> = (0..tasks)
        .map(|task| {
            let (device, first) = (kit.device.clone(), kit.stamp());
            let rng = Rng::new(first);
            spawn(work_alone(device, task * span, span, block, rounds, first << 16, rng))
        })
        .collect();
    for task in running {
        task.await.expect("these tasks are not aborted");
    }
}

/// Writes and reads a range of which this task is the only writer.
async fn work_alone(
    device: SharedDevice,
    base: u64,
    span: u64,
    block: u64,
    rounds: u64,
    stamp: u64,
    mut rng: Rng,
) {
    let mut newest = vec![None; (span / block) as usize];
    for round in 0..rounds {
        let first = rng.below(span / block);
        let blocks = 1 + rng.below(span / block - first);
        let offset = base + first * block;
        let data = patterned(offset, blocks * block, stamp + round).await.freeze();
        assert_eq!(device.write(offset, data, round % 7 == 3).await, Ok(()));
        newest[first as usize..(first + blocks) as usize].fill(Some(stamp + round));
        if round % 5 == 2 {
            assert_eq!(device.flush().await, Ok(()));
        }
        let read = device.read(base, buf::alloc(span as usize).await).await;
        let read = read.expect("a read within the device");
        let parts = read.chunks(block as usize).zip((base..).step_by(block as usize));
        for ((part, at), stamp) in parts.zip(&newest) {
            let wrong = stamp.and_then(|stamp| mismatch(at, part, stamp));
            assert_eq!(wrong, None, "a neighbor's call changed this block, or a write was lost");
        }
    }
}

pub(super) async fn overlapping_calls_leave_whole_blocks(kit: &mut Kit<'_>) {
    let block = kit.block();
    let unit = if kit.options.whole_blocks { block } else { SECTOR_BYTES };
    let span = 8 * block;
    let first = kit.stamp() << 16;
    kit.write(0, span, first).await;
    let tasks = kit.options.tasks as u64;
    let stamps = first..=first + tasks;
    for round in 0..kit.options.rounds as u64 {
        let writers: Vec<_> = (1..=tasks)
            .map(|task| {
                let device = kit.device.clone();
                let start = (task + round) % 4 * block;
                on_core(task as usize % cores().len(), move || async move {
                    let data = patterned(start, span - start, first + task).await.freeze();
                    assert_eq!(device.write(start, data, false).await, Ok(()));
                })
            })
            .collect();
        let readers = if kit.options.whole_blocks { 4 } else { 0 };
        let readers: Vec<_> = (0..readers)
            .map(|_| spawn(read_whole(kit.device.clone(), span, unit, stamps.clone())))
            .collect();
        for reader in readers {
            reader.await.expect("these tasks are not aborted");
        }
        for writer in writers {
            writer.await;
        }
        all_of_one_writer(&kit.read(0, span).await, unit, &stamps);
    }
}

/// Reads while other tasks write.
async fn read_whole(device: SharedDevice, span: u64, unit: u64, stamps: RangeInclusive<u64>) {
    for _ in 0..4 {
        let read = device.read(0, buf::alloc(span as usize).await).await;
        all_of_one_writer(&read.expect("a read within the device"), unit, &stamps);
        // Without this, a device that completes immediately would starve the writers.
        task::yield_now().await;
    }
}

/// True if each unit of the data, which starts at offset 0, carries one of the stamps.
fn all_of_one_writer(data: &[u8], unit: u64, stamps: &RangeInclusive<u64>) {
    for (part, at) in data.chunks(unit as usize).zip((0..).step_by(unit as usize)) {
        let whole = stamps.clone().any(|stamp| mismatch(at, part, stamp).is_none());
        assert!(whole, "the {unit} B at {at} are of several writes");
    }
}

pub(super) async fn writes_are_visible_across_cores(kit: &mut Kit<'_>) {
    let block = kit.block();
    for round in 0..16 {
        for core in 0..cores().len() {
            let stamp = kit.stamp();
            let offset = (round * 3 + core as u64) % 32 * block;
            let device = kit.device.clone();
            on_core(core, move || async move {
                let data = patterned(offset, 2 * block, stamp).await.freeze();
                assert_eq!(device.write(offset, data, false).await, Ok(()));
                assert_eq!(device.flush().await, Ok(()));
            })
            .await;
            for reader in 0..cores().len() {
                let device = kit.device.clone();
                let wrong = on_core(reader, move || async move {
                    let read = device.read(offset, buf::alloc(2 * block as usize).await).await;
                    mismatch(offset, &read.expect("a read within the device"), stamp)
                })
                .await;
                assert_eq!(wrong, None, "core {reader} does not see core {core}'s write");
            }
        }
    }
    flushes_from_all_cores_at_once(kit).await;
}

async fn flushes_from_all_cores_at_once(kit: &Kit<'_>) {
    let flushes: Vec<_> = (0..8 * cores().len())
        .map(|number| {
            let device = kit.device.clone();
            on_core(number % cores().len(), move || async move { device.flush().await })
        })
        .collect();
    for flush in flushes {
        assert_eq!(flush.await, Ok(()));
    }
}

/// Starts a future on another core, at once.
fn on_core<T, Fut>(
    core: usize,
    make: impl FnOnce() -> Fut + Send + 'static,
) -> impl Future<Output = T>
where
    T: Send + 'static,
    Fut: Future<Output = T> + 'static,
{
    let value = cores()[core].call(make);
    async { value.await.expect("a check failed on another core") }
}

pub(super) async fn dropped_calls_leave_device_usable(kit: &mut Kit<'_>) {
    let block = kit.block();
    let (safe, stamp) = (32 * block, kit.stamp());
    kit.write(safe, 8 * block, stamp).await;
    for round in 0..kit.options.rounds as u64 {
        let device = &kit.device;
        let data = patterned(0, 16 * block, round).await.freeze();
        poll_once(device.write(0, data.clone(), false)).await;
        poll_once(device.write(0, data, true)).await;
        poll_once(device.read(safe, buf::alloc(8 * block as usize).await)).await;
        poll_once(device.flush()).await;
        poll_once(device.discard(0, 16 * block)).await;
        poll_once(device.write_zeroes(0, 16 * block, ZeroFlags::default())).await;
        drop(device.flush());
        drop(device.read(safe, buf::alloc(block as usize).await));
        let mut fresh = buf::alloc(8 * block as usize).await;
        fill(safe, &mut fresh, stamp + round);
        assert_eq!(device.write(safe, fresh.freeze(), false).await, Ok(()));
        assert_eq!(device.flush().await, Ok(()), "a flush after dropped calls");
        if kit.options.remembers {
            kit.verify(safe, 8 * block, stamp + round).await;
        }
    }
}

/// Polls a call once, so that it is in flight, and drops it.
async fn poll_once<T>(call: impl Future<Output = Result<T, IoError>>) {
    let mut call = pin!(call);
    poll_fn(|cx| {
        let _ = call.as_mut().poll(cx);
        Poll::Ready(())
    })
    .await;
}
