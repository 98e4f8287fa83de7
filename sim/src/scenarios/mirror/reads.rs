//! Slow disk reads during a write, and during a change of the source: rules 35 and 27 of
//! `docs/mirror-handshake.md`. The first four tests fail without the rule that they check.
//!
//! Found by mirror-faulty 5108: a node that was forced to serve beside its source started a read,
//! gave up the role and was resynced. It then answered the read with data that the other node's
//! host had written meanwhile.
//!
//! Left out, besides what [`super::pair`] leaves out: hung disks and hosts with several paths,
//! which the `chain` scenarios have.

use std::time::Duration;

use flagstone_blockdev::{BlockDevice, IoError};
use flagstone_mirror::state::status::MirrorState;
use flagstone_mirror::wire::peer::PeerRequest;
use flagstone_runtime::buf;
use flagstone_runtime::sim::{DiskConfig, DiskFaults, SimLatency};
use flagstone_runtime::task::JoinHandle;

use super::growth::{GROWN, NEW};
use super::link::CallOutcome;
use super::pair::{BLOCK, BLOCKS, DATA, Pair, fill};

/// Longer than the keep-alive timeout, and than all concurrent steps of the tests.
const LONG_US: u64 = 5_000_000;
const NUMBER: u64 = 9;

/// Starts a host read on a node whose disk is slow for this read only.
fn begin_read(pair: &Pair, index: usize, slow: usize) -> JoinHandle<Result<Vec<u8>, IoError>> {
    begin_read_of(LONG_US, pair, index, slow)
}

/// As [`begin_read`], with a read that takes this number of microseconds, more than 50 ms.
fn begin_read_of(
    slow_us: u64,
    pair: &Pair,
    index: usize,
    slow: usize,
) -> JoinHandle<Result<Vec<u8>, IoError>> {
    let latency = |latency| pair.sim.set_read_latency(pair.nodes[slow], DATA, latency);
    latency(SimLatency::between_us(slow_us, slow_us));
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

/// Content of this block on a node's leg.
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

/// The new source's write reaches this leg, fails on its own leg, and is refused. Host reads must
/// not return it.
#[test]
fn rule_27_read_misses_writes_of_the_next_source() {
    let mut others = 0;
    for seed in 0..6 {
        let pair = Pair::new(seed, |_| {});
        pair.write(0, NUMBER, 1).expect("both are there");
        let reading = begin_read(&pair, 0, 0);
        pair.on(0, |mirror| async move { mirror.switchover(0).await }).expect("both are there");
        pair.becomes_in_sync(1);
        faults(&pair, 1, DiskFaults::default().unwritable_at(NUMBER * BLOCK..(NUMBER + 1) * BLOCK));
        pair.network().set_outcome(|request| match request {
            PeerRequest::RunDegraded { .. } | PeerRequest::Attach(_) => CallOutcome::Lost,
            _ => CallOutcome::Arrives,
        });
        assert!(pair.write(1, NUMBER, 2).is_err(), "no node runs degraded");
        assert!(!reading.is_finished(), "it has already ended");
        let found = pair.sim.block_on(reading).expect("the task is not aborted");
        assert!(on_leg(&pair, 0) == filled(2), "the check would not have detected this");
        assert!(found == Err(IoError::Unreachable), "seed {seed}: it has found {:?}", first(found));
        // A failed write may have changed any part of the block, and hosts read the result from
        // then on.
        let left = on_leg(&pair, 1);
        others += u32::from(left != filled(2));
        faults(&pair, 1, DiskFaults::default());
        pair.network().set_outcome(|_| CallOutcome::Arrives);
        pair.becomes_in_sync(1);
        assert!(on_leg(&pair, 1) == left, "the content that hosts read has changed, seed {seed}");
    }
    assert!(others > 0, "all failed writes were present each time");
}

/// The source cannot read its own leg, so it reads its target's, which meanwhile serves by force.
/// The target must not answer with data that only its own hosts have written.
#[test]
fn rule_27_peer_read_misses_writes_of_the_peer_as_source() {
    let pair = Pair::new(2, |_| {});
    pair.write(0, NUMBER, 1).expect("both are there");
    faults(&pair, 0, DiskFaults::default().unreadable_at(NUMBER * BLOCK..(NUMBER + 1) * BLOCK));
    // The source does not learn of it: its peer cannot reach it.
    let target = pair.superblock(1).replica;
    pair.network().set_outcome(move |request| match request {
        PeerRequest::Identify { asker } if *asker == target => CallOutcome::Lost,
        _ => CallOutcome::Arrives,
    });
    let reading = begin_read(&pair, 0, 1);
    pair.on(1, |mirror| async move { mirror.failover().await }).expect("it is complete");
    pair.write(1, NUMBER, 2).expect("it serves");
    assert!(!reading.is_finished(), "it has already ended");
    let found = pair.sim.block_on(reading).expect("the task is not aborted");
    assert!(pair.mirror(0).is_serving(), "it would not have answered");
    assert!(on_leg(&pair, 1) == filled(2), "it would have found the same");
    assert!(found.is_err(), "it has found {:?}", first(found));
    // From here on, writes of its own hosts form another line, which is the surviving one.
    pair.write(0, NUMBER + 1, 3).expect("the peer is lost");
    faults(&pair, 0, DiskFaults::default());
    pair.network().set_outcome(|_| CallOutcome::Arrives);
    pair.until(0, MirrorState::SplitBrain);
    pair.on(1, |mirror| async move { mirror.resolve_keep_peers(0).await }).expect("a split brain");
    pair.becomes_in_sync(0);
    assert_eq!((pair.read(0, NUMBER), pair.read(0, NUMBER + 1)), (1, 3));
}

/// A server abandons a serving mirror that it cannot keep, and another mirror opens the replica.
/// Writes of the source to the new mirror must not appear in reads of the first mirror's hosts.
#[test]
fn rule_27_read_misses_writes_after_mirror_is_abandoned() {
    let pair = Pair::new(4, |_| {});
    pair.write(0, NUMBER, 1).expect("both are there");
    let abandoned = pair.mirror(0);
    let reading = begin_read(&pair, 0, 0);
    pair.abandon_mirror(0);
    assert!(!abandoned.is_serving(), "it serves hosts after it was abandoned");
    pair.on(1, |mirror| async move { mirror.failover().await }).expect("it is complete");
    pair.write(1, NUMBER, 2).expect("it serves");
    pair.becomes_in_sync(1);
    assert!(on_leg(&pair, 0) == filled(2), "the check would not have detected this");
    assert!(!reading.is_finished(), "it has already ended");
    let found = pair.sim.block_on(reading).expect("the task is not aborted");
    assert!(found == Err(IoError::Unreachable), "it has found {:?}", first(found));
}

/// A write begins during a slow read of the same block, which then finds its data. A crash of the
/// source could still take that back: the read waits until the write is on both legs.
///
/// Found by chain-tls 258: the source had answered such a read, and its peer served after it.
#[test]
fn read_waits_for_a_write_that_it_may_show() {
    let mut found_early = 0;
    for seed in 0..8 {
        let pair = Pair::new(seed, |_| {});
        pair.write(0, NUMBER, 1).expect("both are there");
        // Short, as a change of the mirror's state would have the read repeated anyway.
        let reading = begin_read_of(150_000, &pair, 0, 0);
        pair.network().set_slow(Duration::from_millis(400));
        let mirror = pair.mirror(0);
        let writing =
            pair.sim.spawn_on(pair.nodes[0], async move { fill(&mirror, NUMBER, 2).await });
        pair.sim.run_for(Duration::from_millis(150));
        if on_leg(&pair, 0) == filled(2) && on_leg(&pair, 1) != filled(2) {
            found_early += 1;
            assert!(!reading.is_finished(), "its data is on one leg only, seed {seed}");
        }
        let found = pair.sim.block_on(reading).expect("the task is not aborted");
        let written = pair.sim.block_on(writing).expect("the task is not aborted");
        assert_eq!((first(found), written), (Ok(2), Ok(())), "seed {seed}");
    }
    assert!(found_early > 0, "every write was on both legs before the read ended");
}

/// Host writes in flight complete before another mirror opens the replica. None arrives later.
#[test]
fn writes_complete_before_another_mirror_opens_replica() {
    let pair = Pair::new(5, |_| {});
    pair.write(0, NUMBER, 1).expect("both are there");
    let mirror = pair.mirror(0);
    pair.sim.stall(pair.nodes[0], DATA, Duration::from_micros(LONG_US));
    let writing = pair.sim.spawn_on(pair.nodes[0], async move { fill(&mirror, NUMBER, 3).await });
    pair.sim.run_for(Duration::from_millis(50));
    assert!(!writing.is_finished(), "the disk was not slow");
    pair.on(0, |mirror| async move { mirror.abandon().await });
    assert!(writing.is_finished(), "it may be written to another mirror's replica");
}

/// After growth, another mirror of the same node serves hosts. An earlier read is repeated there
/// and does not fail.
#[test]
fn read_continues_while_its_volume_grows() {
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
    assert!(!reading.is_finished(), "it has already ended");
    let found = pair.sim.block_on(reading).expect("the task is not aborted");
    assert!(found == Ok(filled(1)), "it has found {:?}", first(found));
}
