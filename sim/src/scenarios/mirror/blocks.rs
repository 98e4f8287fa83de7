//! Nodes whose devices have logical blocks of different sizes: hosts must never find other blocks where
//! the role of the source goes over, and nothing is written to a device that does not take so little.

use flagstone_blockdev::BlockDevice;
use flagstone_mirror::state::MirrorState;
use flagstone_runtime::buf;

use super::pair::Pair;

const SMALL: u32 = 512;
const LARGE: u32 = 4096;

/// A host of the source writes one of its blocks.
fn write_small(pair: &Pair, number: u64) {
    let written = pair.on(0, move |mirror| async move {
        let memory = buf::alloc(SMALL as usize).await;
        mirror.write(number * u64::from(SMALL), memory.freeze(), true).await
    });
    assert_eq!(written, Ok(()));
}

/// Whichever of the two has the larger blocks, they do not mirror: both say so, the source goes on alone,
/// and neither hands the role to the other. With equal blocks again what was written meanwhile is copied.
#[test]
fn nodes_of_other_blocks_are_a_mismatch_until_they_have_the_same() {
    for (seed, changed) in [(1, 1), (2, 0)] {
        let pair = Pair::new(seed, |_| {});
        assert_eq!(pair.mirror(0).geometry().block_bytes, SMALL);
        write_small(&pair, 3);
        pair.write(0, 9, 1).expect("both are there");
        // A source that begins alone, as its peer is recorded as out of date.
        pair.cut();
        pair.write(0, 10, 2).expect("the peer is lost");
        pair.restart_with_blocks(changed, Some(LARGE));
        pair.hub().heal();
        for index in [0, 1] {
            pair.until(index, MirrorState::Mismatch);
        }
        if changed == 1 {
            write_small(&pair, 4);
        }
        pair.write(0, 11, 3).expect("it goes on alone");
        for index in [0, 1] {
            let refused = pair.on(index, |mirror| async move { mirror.switchover(0).await });
            assert!(refused.is_err(), "{index}: {refused:?}");
        }
        assert_eq!(pair.active(), [0]);
        let losses = pair.peer_status(0).losses;
        pair.restart_with_blocks(changed, None);
        pair.becomes_whole(0);
        assert_eq!((pair.read(0, 10), pair.read(0, 11)), (2, 3));
        assert!(pair.leg(0) == pair.leg(1), "seed {seed}");
        assert!(losses <= 1, "it was attached {losses} times");
    }
}
