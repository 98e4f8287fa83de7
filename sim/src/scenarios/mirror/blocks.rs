//! Nodes whose devices have different logical block sizes. Hosts never see the block size change
//! when the role moves, and no device receives a write smaller than its block.
//!
//! Left out, besides what [`super::pair`] leaves out: faults.

use flagstone_blockdev::BlockDevice;
use flagstone_mirror::state::status::MirrorState;
use flagstone_runtime::buf;

use super::pair::Pair;

const SMALL: u32 = 512;
const LARGE: u32 = 4096;

/// Writes one logical block as a host of the source.
fn write_small(pair: &Pair, number: u64) {
    let written = pair.on(0, move |mirror| async move {
        let memory = buf::alloc(SMALL as usize).await;
        mirror.write(number * u64::from(SMALL), memory.freeze(), true).await
    });
    assert_eq!(written, Ok(()));
}

/// Nodes with different block sizes refuse to mirror, whichever has the larger blocks. Both report
/// the mismatch, the source runs degraded, and neither transfers the role. Once the block sizes
/// match, the writes made meanwhile are copied.
#[test]
fn different_block_sizes_are_a_mismatch() {
    for (seed, changed) in [(1, 1), (2, 0)] {
        let pair = Pair::new(seed, |_| {});
        assert_eq!(pair.mirror(0).geometry().block_bytes, SMALL);
        write_small(&pair, 3);
        pair.write(0, 9, 1).expect("both are there");
        // A source that starts degraded, because its peer is recorded as out of date.
        pair.cut();
        pair.write(0, 10, 2).expect("the peer is lost");
        pair.restart_with_blocks(changed, Some(LARGE));
        pair.network().heal();
        for index in [0, 1] {
            pair.until(index, MirrorState::Mismatch);
        }
        if changed == 1 {
            write_small(&pair, 4);
        }
        pair.write(0, 11, 3).expect("it runs degraded");
        for index in [0, 1] {
            let refused = pair.on(index, |mirror| async move { mirror.switchover(0).await });
            assert!(refused.is_err(), "{index}: {refused:?}");
        }
        assert_eq!(pair.active(), [0]);
        let disconnects = pair.peer_status(0).disconnects;
        pair.restart_with_blocks(changed, None);
        pair.becomes_in_sync(0);
        assert_eq!((pair.read(0, 10), pair.read(0, 11)), (2, 3));
        assert!(pair.leg(0) == pair.leg(1), "seed {seed}");
        assert!(disconnects <= 1, "it was disconnected {disconnects} times");
    }
}
