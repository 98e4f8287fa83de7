//! Durability check: durable data is present after a reopen.

use super::Options;
use super::kit::{Kit, is_zero, patterned};
use flagstone_blockdev::{SharedDevice, ZeroFlags};

/// Number of reopens.
const ROUNDS: u64 = 4;

pub(super) async fn durable_data_survives(open: impl AsyncFn() -> SharedDevice, options: &Options) {
    let mut promised = None;
    for round in 0..ROUNDS {
        let kit = Kit::new(open().await, options);
        if let Some(promise) = &promised {
            check(&kit, promise).await;
        }
        promised = Some(write(&kit, (options.seed << 16) + round).await);
        // Not durable, so never checked; it must not damage durable data.
        let last = kit.geometry.size_bytes - kit.block();
        kit.write(last, kit.block(), round).await;
    }
    let kit = Kit::new(open().await, options);
    check(&kit, &promised.expect("several rounds were run")).await;
}

/// Ranges in blocks, (offset, length), and the way in which they were made durable.
const FLUSHED: (u64, u64) = (0, 16);
const DURABLE: (u64, u64) = (20, 5);
const ZEROED: (u64, u64) = (30, 7);
const ZEROED_AND_FLUSHED: (u64, u64) = (40, 9);

/// Writes with each way of making data durable; returns the stamp.
async fn write(kit: &Kit<'_>, stamp: u64) -> u64 {
    let block = kit.block();
    let bytes = |(offset, len): (u64, u64)| (offset * block, len * block);
    for range in [FLUSHED, ZEROED, ZEROED_AND_FLUSHED] {
        let (offset, len) = bytes(range);
        kit.write(offset, len, stamp).await;
    }
    let (offset, len) = bytes(ZEROED_AND_FLUSHED);
    let zeroed = kit.device.write_zeroes(offset, len, ZeroFlags::default()).await;
    assert_eq!(zeroed, Ok(()));
    assert_eq!(kit.device.flush().await, Ok(()));
    let (offset, len) = bytes(DURABLE);
    let data = patterned(offset, len, stamp).await.freeze();
    assert_eq!(kit.device.write(offset, data, true).await, Ok(()));
    let (offset, len) = bytes(ZEROED);
    let flags = ZeroFlags { fua: true, ..ZeroFlags::default() };
    assert_eq!(kit.device.write_zeroes(offset, len, flags).await, Ok(()));
    stamp
}

async fn check(kit: &Kit<'_>, stamp: &u64) {
    let block = kit.block();
    for (offset, len) in [FLUSHED, DURABLE] {
        kit.verify(offset * block, len * block, *stamp).await;
    }
    for (offset, len) in [ZEROED, ZEROED_AND_FLUSHED] {
        let read = kit.read(offset * block, len * block).await;
        assert!(is_zero(&read), "durable zeroes at block {offset} are gone");
    }
}
