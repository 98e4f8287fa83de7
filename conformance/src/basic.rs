//! Basic checks: geometry, bounds, and reads after writes.

use flagstone_runtime::{Buf, BufMut, buf};

use super::kit::{Kit, fill, patterned};
use flagstone_blockdev::device::MAX_TRANSFER_BYTES;
use flagstone_blockdev::{IoError, ZeroFlags};

pub(super) fn geometry_is_consistent(kit: &Kit<'_>) {
    let geometry = kit.geometry;
    let block = geometry.block_bytes;
    assert!(block.is_power_of_two() && (512..=65536).contains(&block), "{geometry:?}");
    assert!(geometry.size_bytes.is_multiple_of(kit.block()), "{geometry:?}");
    assert!(geometry.physical_block_bytes >= block, "{geometry:?}");
    assert!(geometry.physical_block_bytes.is_multiple_of(block), "{geometry:?}");
    assert!(geometry.optimal_io_bytes.is_multiple_of(block), "{geometry:?}");
    assert!(geometry.memory_align_bytes.is_power_of_two(), "{geometry:?}");
    assert_eq!(geometry, kit.device.geometry(), "the geometry is constant");
}

pub(super) async fn invalid_ranges_fail_without_effect(kit: &mut Kit<'_>) {
    let (block, size) = (kit.block(), kit.geometry.size_bytes);
    let stamp = kit.stamp();
    let edges = [0, size - block];
    let written = kit.options.remembers && !kit.geometry.read_only;
    if written {
        for edge in edges {
            kit.write(edge, block, stamp).await;
        }
    }
    let last = u64::MAX / block * block;
    let bad = [
        (size, block, IoError::OutOfRange),
        (size - block, 2 * block, IoError::OutOfRange),
        (last, block, IoError::OutOfRange),
        (last, 2 * block, IoError::OutOfRange),
        (1 << 63, block, IoError::OutOfRange),
        (1, block, IoError::Misaligned),
        (block / 2, block, IoError::Misaligned),
        (0, block - 1, IoError::Misaligned),
        (0, block / 2, IoError::Misaligned),
        (size - block, block + 1, IoError::Misaligned),
        (0, 0, IoError::Misaligned),
    ];
    for (offset, len, expected) in bad {
        all_calls_fail(kit, offset, len, expected).await;
    }
    if written {
        for edge in edges {
            kit.verify(edge, block, stamp).await;
        }
    }
}

async fn all_calls_fail(kit: &Kit<'_>, offset: u64, len: u64, expected: IoError) {
    let device = &kit.device;
    // On a read-only device either error is correct.
    let refused = |result: Result<(), IoError>| match result {
        Err(IoError::ReadOnly) if kit.geometry.read_only => true,
        result => result == Err(expected),
    };
    let buf = buf::alloc(len as usize).await;
    let read = device.read(offset, buf).await.map(drop);
    assert_eq!(read, Err(expected), "read of {len} B at {offset}");
    for fua in [false, true] {
        let data = patterned(0, len, !0).await.freeze();
        assert!(refused(device.write(offset, data, fua).await), "write of {len} B at {offset}");
    }
    assert!(refused(device.discard(offset, len).await), "discard of {len} B at {offset}");
    for may_deallocate in [false, true] {
        let flags = ZeroFlags { may_deallocate, ..ZeroFlags::default() };
        let zeroed = device.write_zeroes(offset, len, flags).await;
        assert!(refused(zeroed), "zeroes of {len} B at {offset}");
    }
}

pub(super) async fn read_only_device_refuses_changes(kit: &mut Kit<'_>) {
    let (device, block) = (&kit.device, kit.block());
    let before = kit.read(0, 4 * block).await;
    for fua in [false, true] {
        let data = patterned(0, block, 1).await.freeze();
        assert_eq!(device.write(0, data, fua).await, Err(IoError::ReadOnly));
    }
    assert_eq!(device.discard(0, block).await, Err(IoError::ReadOnly));
    let zeroed = device.write_zeroes(0, block, ZeroFlags::default()).await;
    assert_eq!(zeroed, Err(IoError::ReadOnly));
    assert_eq!(device.flush().await, Ok(()), "there is nothing to flush");
    assert!(before[..] == kit.read(0, 4 * block).await[..], "a refused change has no effect");
}

pub(super) async fn flushes_and_durable_writes_complete(kit: &mut Kit<'_>) {
    let (block, stamp) = (kit.block(), kit.stamp());
    assert_eq!(kit.device.flush().await, Ok(()), "a flush of nothing");
    kit.write(0, 2 * block, stamp).await;
    let data = patterned(2 * block, block, stamp).await.freeze();
    assert_eq!(kit.device.write(2 * block, data, true).await, Ok(()));
    let flushes: Vec<_> = (0..8).map(|_| kit.device.flush()).collect();
    for flush in flushes {
        assert_eq!(flush.await, Ok(()), "one of several flushes at once");
    }
    if kit.options.remembers {
        kit.verify(0, 3 * block, stamp).await;
    }
}

/// Lengths of every class, in bytes: single, odd, large and the largest.
fn lengths(kit: &Kit<'_>) -> Vec<u64> {
    let (block, longest) = (kit.block(), kit.longest());
    let mut lengths: Vec<u64> = [1, 2, 3, 5, 7, 8, 15, 31].map(|blocks| blocks * block).into();
    for whole in [64 << 10, 256 << 10, 1 << 20] {
        lengths.extend([whole - block, whole, whole + block]);
    }
    lengths.extend([longest - block, longest]);
    lengths.retain(|len| (block..=longest).contains(len));
    lengths.sort_unstable();
    lengths.dedup();
    lengths
}

/// Offsets for transfers of `len` bytes: at both ends of the device, and from one block before each
/// boundary.
fn offsets(kit: &Kit<'_>, len: u64) -> Vec<u64> {
    let (block, size) = (kit.block(), kit.geometry.size_bytes);
    let mut offsets = vec![0, block, 3 * block, size - len];
    for boundary in kit.options.boundaries_bytes.iter().chain(&[64 << 10, 1 << 20]) {
        for multiple in [1, 2, 5] {
            let at = boundary * multiple / block * block;
            offsets.extend([at.saturating_sub(block), at, at.saturating_sub(len)]);
        }
    }
    offsets.retain(|offset| offset + len <= size);
    offsets.sort_unstable();
    offsets.dedup();
    offsets
}

pub(super) async fn reads_return_written_data(kit: &mut Kit<'_>) {
    for len in lengths(kit) {
        let offsets = offsets(kit, len);
        // For long transfers a few offsets suffice.
        let step = if len > 1 << 20 { offsets.len().div_ceil(3) } else { 1 };
        for offset in offsets.into_iter().step_by(step) {
            let stamp = kit.stamp();
            kit.write(offset, len, stamp).await;
            kit.verify(offset, len, stamp).await;
            let half = len / 2 / kit.block() * kit.block();
            if half > 0 {
                kit.verify(offset + half, len - half, stamp).await;
            }
        }
    }
    if kit.options.max_transfer_bytes == MAX_TRANSFER_BYTES {
        let longest = kit.longest();
        let stamp = kit.stamp();
        kit.write(0, longest, stamp).await;
        kit.verify(0, longest, stamp).await;
    }
}

pub(super) async fn first_and_last_blocks_work(kit: &mut Kit<'_>) {
    let (block, size) = (kit.block(), kit.geometry.size_bytes);
    let places = [0, block, size - 2 * block, size - block];
    let stamps = places.map(|_| kit.stamp());
    for (place, stamp) in places.into_iter().zip(stamps) {
        kit.write(place, block, stamp).await;
    }
    for (place, stamp) in places.into_iter().zip(stamps) {
        kit.verify(place, block, stamp).await;
    }
}

pub(super) async fn unaligned_memory_works(kit: &mut Kit<'_>) {
    let block = kit.block();
    for (shift, blocks) in [(1, 1), (3, 2), (8, 3), (24, 1), (511, 2), (512, 7), (2048, 1)] {
        let (offset, len) = (4 * block, blocks * block);
        let stamp = kit.stamp();
        let mut data = shifted(shift, len).await;
        fill(offset, &mut data, stamp);
        // Durable writes may take another code path.
        let write = kit.device.write(offset, data.freeze(), shift == 3);
        assert_eq!(write.await, Ok(()), "write from an address of ...{shift}");
        let read = kit.device.read(offset, shifted(shift, len).await).await;
        let data = read.unwrap_or_else(|error| panic!("read to an address of ...{shift}: {error}"));
        if kit.options.remembers {
            kit.compare(offset, &data, stamp);
        }
    }
    if kit.options.remembers {
        large_and_unaligned(kit).await;
    }
}

/// A transfer that a device may have to copy in several pieces.
async fn large_and_unaligned(kit: &mut Kit<'_>) {
    let len = kit.longest().min(1 << 20);
    let stamp = kit.stamp();
    let mut data = shifted(5, len).await;
    fill(0, &mut data, stamp);
    let data: Buf = data.freeze();
    assert_eq!(kit.device.write(0, data.clone(), false).await, Ok(()));
    let read = kit.device.read(0, shifted(9, len).await).await.expect("a read to odd memory");
    kit.compare(0, &read, stamp);
    kit.compare(0, &data, stamp);
}

/// A buffer that starts `shift` bytes after a 4 KiB boundary.
async fn shifted(shift: usize, len: u64) -> BufMut {
    buf::alloc(shift + len as usize).await.split_off(shift)
}
