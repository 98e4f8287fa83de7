//! Power losses of a peer that serves the volume alone, because the source's local leg has failed:
//! it is the only leg with the newest data. [`super::broken`] tests how it takes over.
//!
//! Left out, besides what [`super::pair`] leaves out: concurrent hosts; the scenario
//! `chain-async-all` has them.

use std::ops::Range;

use flagstone_blockdev::{BlockDevice, ZeroFlags};
use flagstone_mirror::{Ack, Mode, PeerOptions};
use flagstone_runtime::buf;

use super::broken::{block, durable, unwritable};
use super::pair::{BLOCK, Pair, fill};

/// Acknowledged by the peer alone. No flush follows.
const WRITES: u64 = 17;
const SEEDS: Range<u64> = 0..8;

/// Fill byte of each of the first blocks that the peer has after a power loss; `None` for a block
/// that lost a part. Each block was written before the peer served alone, and once afterwards: only
/// the last of them with FUA.
fn left_by_power_loss(seed: u64, options: fn(&mut PeerOptions)) -> Vec<Option<u8>> {
    let pair = Pair::new(seed, options);
    for number in 0..WRITES {
        pair.write(0, number, 9).expect("both are there");
    }
    unwritable(&pair, 0, block(40));
    pair.write(0, 40, 9).expect("the peer runs degraded");
    assert!(pair.mirror(0).has_failed());
    pair.on(0, |mirror| async move {
        for number in 0..WRITES - 1 {
            match number % 2 {
                0 => fill(&mirror, number, 1).await.expect("the peer has it"),
                _ => {
                    let zeroed = mirror.write_zeroes(number * BLOCK, BLOCK, ZeroFlags::default());
                    zeroed.await.expect("the peer has it");
                }
            }
        }
        // Not zeroes, which the device makes durable by a flush of everything.
        let mut memory = buf::alloc(BLOCK as usize).await;
        memory.fill(1);
        let last = mirror.write((WRITES - 1) * BLOCK, memory.freeze(), true);
        last.await.expect("the peer has it");
    });
    let left = durable(&pair, 1);
    let blocks = left.chunks(BLOCK as usize).take(WRITES as usize);
    blocks.map(|block| block.iter().all(|byte| *byte == block[0]).then_some(block[0])).collect()
}

/// What the peer has if it lost none of the writes.
fn all_writes() -> Vec<Option<u8>> {
    (0..WRITES).map(|number| Some(1 - (number % 2) as u8)).collect()
}

/// Number of seeds whose power loss takes some of the writes. The seed decides which of the writes
/// that were not durable are lost.
fn losses(options: fn(&mut PeerOptions)) -> usize {
    let left = SEEDS.map(|seed| left_by_power_loss(seed, options));
    left.filter(|left| *left != all_writes()).count()
}

/// Regression (chain-async-all): the peer of an asynchronous mirror lost some of these writes and
/// kept later ones, although it could be promoted and promises one moment of the past.
#[test]
fn async_peer_serving_alone_is_durable() {
    assert_eq!(losses(|peer| peer.mode = Mode::Async), 0);
    // The option is one of synchronous mode.
    assert_eq!(losses(|peer| (peer.mode, peer.ack) = (Mode::Async, Ack::Memory)), 0);
}

#[test]
fn sync_peer_serving_alone_is_durable() {
    assert_eq!(losses(|peer| peer.ack = Ack::Disk), 0);
}

/// Proof that the others would notice a loss: this peer acknowledges from memory.
#[test]
fn peer_serving_alone_loses_unflushed_memory() {
    let lost = losses(|peer| peer.ack = Ack::Memory);
    assert!(lost >= 4, "{lost} of {}", SEEDS.end);
}
