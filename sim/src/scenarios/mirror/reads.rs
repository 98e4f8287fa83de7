//! Reads that take long in a disk while the role of the source goes elsewhere: rule 27 of
//! `docs/mirror-handshake.md`. The first three tests fail without it.
//!
//! mirror-faulty 5108: a node that served by an operator's force, beside its source, read, gave the
//! role up, was resynced, and answered the read with what the other's host had written meanwhile.

use std::time::Duration;

use flagstone_blockdev::{BlockDevice, IoError};
use flagstone_mirror::peer::Request;
use flagstone_mirror::state::MirrorState;
use flagstone_runtime::buf;
use flagstone_runtime::sim::{DiskConfig, DiskFaults, Latency};
use flagstone_runtime::task::JoinHandle;

use super::growth::{GROWN, NEW};
use super::link::Fate;
use super::pair::{BLOCK, BLOCKS, DATA, Pair, fill};

/// Longer than a session that hears nothing lasts, and than all that is done meanwhile.
const LONG_US: u64 = 5_000_000;
const NUMBER: u64 = 9;

/// A host of a node reads the block; its disk takes long over it, and over no later read.
fn begin_read(pair: &Pair, index: usize, slow: usize) -> JoinHandle<Result<Vec<u8>, IoError>> {
    let latency = |latency| pair.sim.set_read_latency(pair.nodes[slow], DATA, latency);
    latency(Latency::between_us(LONG_US, LONG_US));
    let mirror = pair.mirror(index);
    let reading = pair.sim.spawn_on(pair.nodes[index], async move {
        let memory = buf::alloc(BLOCK as usize).await;
        mirror.read(NUMBER * BLOCK, memory).await.map(|found| found.to_vec())
    });
    pair.sim.run_for(Duration::from_millis(50));
    latency(DiskConfig::ssd().read_latency);
    assert!(!reading.is_finished(), "the disk was not slow");
    reading
}

/// What lies on a node's leg, of this block.
fn on_leg(pair: &Pair, index: usize) -> Vec<u8> {
    pair.leg(index)[(NUMBER * BLOCK) as usize..((NUMBER + 1) * BLOCK) as usize].to_vec()
}

fn filled(byte: u8) -> Vec<u8> {
    vec![byte; BLOCK as usize]
}

fn first(found: Result<Vec<u8>, IoError>) -> Result<u8, IoError> {
    found.map(|found| found[0])
}

fn faults(pair: &Pair, index: usize, faults: DiskFaults) {
    pair.sim.set_faults(pair.nodes[index], DATA, faults);
}

/// The next source's write reaches this leg, fails at its own, and is refused: what hosts read must
/// not have it.
#[test]
fn rule_27_a_read_does_not_find_what_the_next_source_writes() {
    let mut others = 0;
    for seed in 0..6 {
        let pair = Pair::new(seed, |_| {});
        pair.write(0, NUMBER, 1).expect("both are there");
        let reading = begin_read(&pair, 0, 0);
        pair.on(0, |mirror| async move { mirror.switchover(0).await }).expect("both are there");
        pair.becomes_whole(1);
        faults(&pair, 1, DiskFaults::default().unwritable_at(NUMBER * BLOCK..(NUMBER + 1) * BLOCK));
        pair.hub().set_fate(|request| match request {
            Request::GoAlone { .. } | Request::Attach(_) => Fate::Lost,
            _ => Fate::Arrives,
        });
        assert!(pair.write(1, NUMBER, 2).is_err(), "nobody goes on alone");
        assert!(!reading.is_finished(), "it has ended before");
        let found = pair.sim.block_on(reading).expect("nobody ends it");
        assert!(on_leg(&pair, 0) == filled(2), "it would not have found that");
        assert!(found == Err(IoError::Unreachable), "seed {seed}: it has found {:?}", first(found));
        // Of what failed any part may be there, and that is what hosts read from then on.
        let left = on_leg(&pair, 1);
        others += u32::from(left != filled(2));
        faults(&pair, 1, DiskFaults::default());
        pair.hub().set_fate(|_| Fate::Arrives);
        pair.becomes_whole(1);
        assert!(on_leg(&pair, 1) == left, "what hosts read has changed, seed {seed}");
    }
    assert!(others > 0, "all of what failed was there each time");
}

/// The source cannot read its own leg and reads its target's, which serves by force meanwhile: it
/// answers with nothing that only its own hosts have written.
#[test]
fn rule_27_a_read_from_a_peer_does_not_find_what_that_writes_as_the_source() {
    let pair = Pair::new(2, |_| {});
    pair.write(0, NUMBER, 1).expect("both are there");
    faults(&pair, 0, DiskFaults::default().unreadable_at(NUMBER * BLOCK..(NUMBER + 1) * BLOCK));
    let reading = begin_read(&pair, 0, 1);
    pair.on(1, |mirror| async move { mirror.failover().await }).expect("it is whole");
    pair.write(1, NUMBER, 2).expect("it serves");
    assert!(!reading.is_finished(), "it has ended before");
    let found = pair.sim.block_on(reading).expect("nobody ends it");
    assert!(pair.mirror(0).is_active(), "it would not have answered");
    assert!(on_leg(&pair, 1) == filled(2), "it would have found the same");
    assert!(found.is_err(), "it has found {:?}", first(found));
    // What its own hosts are promised is another line from here on, and the one that is kept.
    pair.write(0, NUMBER + 1, 3).expect("the peer is lost");
    faults(&pair, 0, DiskFaults::default());
    pair.until(0, MirrorState::SplitBrain);
    pair.on(1, |mirror| async move { mirror.resolve_keep_peers(0).await }).expect("a split brain");
    pair.becomes_whole(0);
    assert_eq!((pair.read(0, NUMBER), pair.read(0, NUMBER + 1)), (1, 3));
}

/// A mirror that serves is given up, as its server does with one that it cannot serve on, and another
/// has the replica: what a source writes to that one is not what hosts of the first were promised.
#[test]
fn rule_27_a_read_does_not_find_what_is_written_once_its_mirror_was_given_up() {
    let pair = Pair::new(4, |_| {});
    pair.write(0, NUMBER, 1).expect("both are there");
    let given_up = pair.mirror(0);
    let reading = begin_read(&pair, 0, 0);
    pair.give_up(0);
    assert!(!given_up.is_active(), "it serves hosts though it was given up");
    pair.on(1, |mirror| async move { mirror.failover().await }).expect("it is whole");
    pair.write(1, NUMBER, 2).expect("it serves");
    pair.becomes_whole(1);
    assert!(on_leg(&pair, 0) == filled(2), "it would not have found that");
    assert!(!reading.is_finished(), "it has ended before");
    let found = pair.sim.block_on(reading).expect("nobody ends it");
    assert!(found == Err(IoError::Unreachable), "it has found {:?}", first(found));
}

/// What hosts have begun to write ends before another has the replica: nothing lands there later.
#[test]
fn a_write_ends_before_another_has_the_replica() {
    let pair = Pair::new(5, |_| {});
    pair.write(0, NUMBER, 1).expect("both are there");
    let mirror = pair.mirror(0);
    pair.sim.stall(pair.nodes[0], DATA, Duration::from_micros(LONG_US));
    let writing = pair.sim.spawn_on(pair.nodes[0], async move { fill(&mirror, NUMBER, 3).await });
    pair.sim.run_for(Duration::from_millis(50));
    assert!(!writing.is_finished(), "the disk was not slow");
    pair.on(0, |mirror| async move { mirror.give_up().await });
    assert!(writing.is_finished(), "it may land in the replica of another");
}

/// Hosts are served by another mirror of the same node from the growth of the volume on: a read that
/// began before is asked there again, and does not fail.
#[test]
fn a_read_goes_on_where_its_volume_grows_meanwhile() {
    let pair = Pair::new(3, |_| {});
    pair.write(0, NUMBER, 1).expect("both are there");
    for node in pair.nodes {
        pair.sim.grow_disk(node, DATA, NEW);
    }
    let reading = begin_read(&pair, 0, 0);
    let resizing = pair.resizing(0);
    pair.on(0, move |mirror| async move {
        assert!(mirror.room_bytes() >= (BLOCKS + GROWN) * BLOCK);
        resizing.resize(&mirror, (BLOCKS + GROWN) * BLOCK).await;
    });
    assert!(!reading.is_finished(), "it has ended before");
    let found = pair.sim.block_on(reading).expect("nobody ends it");
    assert!(found == Ok(filled(1)), "it has found {:?}", first(found));
}
