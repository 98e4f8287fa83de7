//! Checks of discards and zeroes.

use super::kit::{Kit, is_zero, mismatch, zero_flags};
use flagstone_blockdev::limits::EXTENTS_MAX;
use flagstone_blockdev::{IoError, ZeroFlags};

/// Ranges (offset, length) in bytes that leave a block free on either side.
fn ranges(kit: &Kit<'_>) -> Vec<(u64, u64)> {
    let (block, size) = (kit.block(), kit.geometry.size_bytes);
    let longest = kit.longest().min(1 << 20);
    let mut ranges = vec![(block, block), (5 * block, 3 * block), (8 * block, 17 * block)];
    ranges.push((block, longest - block));
    ranges.push((size - block - longest / 2 / block * block, longest / 2 / block * block));
    for boundary in &kit.options.boundaries_bytes {
        ranges.push((boundary.saturating_sub(block), longest));
        ranges.push((*boundary, *boundary));
    }
    ranges.retain(|(offset, len)| {
        (block..=size).contains(offset)
            && *len > 0
            && *len <= longest
            && offset + len + block <= size
    });
    ranges
}

pub(super) async fn discarded_blocks_are_stable(kit: &mut Kit<'_>) {
    let block = kit.block();
    for (offset, len) in ranges(kit) {
        let mut old = 0;
        let after = kit
            .around(offset, len, async |kit, stamp| {
                old = stamp;
                assert_eq!(kit.device.discard(offset, len).await, Ok(()), "a discard is a hint");
            })
            .await;
        for (part, at) in after.chunks(block as usize).zip((offset..).step_by(block as usize)) {
            let kept = mismatch(at, part, old).is_none();
            let known = is_zero(part) || kept && !kit.device.geometry().discard_zeroes;
            assert!(known, "a discarded block at {at} is neither zeroes nor what it may be");
        }
        let again = kit.read(offset, len).await;
        assert!(after[..] == again[..], "discarded blocks at {offset} changed between two reads");
        let stamp = kit.stamp();
        kit.write(offset, len, stamp).await;
        kit.verify(offset, len, stamp).await;
    }
}

pub(super) async fn zeroes_are_written_with_any_flags(kit: &mut Kit<'_>) {
    if !kit.options.remembers {
        let len = 2 * kit.block();
        let zeroed = kit.device.write_zeroes(0, len, ZeroFlags::default()).await;
        assert_eq!(zeroed, Ok(()));
        return assert!(is_zero(&kit.read(0, len).await));
    }
    for flags in (0..8).map(zero_flags) {
        for (offset, len) in ranges(kit) {
            zero_and_check(kit, offset, len, flags).await;
        }
    }
    whole_device_can_be_zeroed(kit).await;
}

async fn zero_and_check(kit: &mut Kit<'_>, offset: u64, len: u64, flags: ZeroFlags) {
    let mut result = Ok(());
    let after = kit
        .around(offset, len, async |kit, _| {
            result = kit.device.write_zeroes(offset, len, flags).await;
        })
        .await;
    match result {
        Ok(()) => assert!(is_zero(&after), "zeroes of {len} B at {offset} with {flags:?}"),
        // The content of the range is then undefined; the blocks around it must be unchanged.
        Err(IoError::Unsupported) if flags.fast_only => {}
        Err(error) => panic!("zeroes of {len} B at {offset} with {flags:?}: {error}"),
    }
}

/// Unlike writes, zeroes have no maximum length.
async fn whole_device_can_be_zeroed(kit: &mut Kit<'_>) {
    let (block, size) = (kit.block(), kit.geometry.size_bytes);
    let flags = ZeroFlags { may_deallocate: true, ..ZeroFlags::default() };
    assert_eq!(kit.device.write_zeroes(0, size, flags).await, Ok(()), "zeroes of everything");
    for offset in [0, size / 2 / block * block, size - block] {
        assert!(is_zero(&kit.read(offset, block).await), "block at {offset}");
    }
    assert_eq!(kit.device.discard(0, size).await, Ok(()), "discard of everything");
}

/// Written blocks are data, and holes read as zeroes, also after a discard.
pub(super) async fn holes_read_as_zeroes(kit: &mut Kit<'_>) {
    let (block, size, stamp) = (kit.block(), kit.geometry.size_bytes, kit.stamp());
    assert_eq!(kit.device.allocated(size, block).await, Err(IoError::OutOfRange));
    assert_eq!(kit.device.allocated(1, block).await, Err(IoError::Misaligned));
    let longest = kit.longest().min(1 << 20);
    let places = [block, size / 2 / block * block];
    for offset in places {
        kit.write(offset, block, stamp).await;
        let extents = kit.device.allocated(offset, block).await.expect("the range is valid");
        assert!(!extents[0].is_hole, "the block at {offset} was written");
    }
    let discarded = kit.device.discard(0, longest).await;
    assert_eq!(discarded, Ok(()), "a discard is a hint");
    // The start of the device, and the other written block.
    for start in [0, places[1]] {
        let (mut at, end) = (start, (start + 4 * longest).min(size));
        while at < end {
            let extents = kit.device.allocated(at, end - at).await.expect("the range is valid");
            assert!((1..=EXTENTS_MAX).contains(&extents.len()), "{} extents", extents.len());
            for extent in extents {
                assert!(extent.len > 0 && extent.len.is_multiple_of(block), "{extent:?} at {at}");
                assert!(extent.len <= end - at, "{extent:?} at {at} of {end}");
                let read = extent.len.min(longest);
                assert!(
                    !extent.is_hole || is_zero(&kit.read(at, read).await),
                    "{extent:?} at {at}"
                );
                at += extent.len;
            }
        }
    }
}
