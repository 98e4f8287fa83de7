//! Replicas of devices that read as zeroes: only what hosts wrote since is copied, and no replica
//! that lacks a write counts as equal, whatever ends or is replaced meanwhile.
//!
//! Left out, besides what [`super::pair`] leaves out: the check that a device reads as zeroes,
//! which the server makes. The devices here do.

use std::time::Duration;

use flagstone_mirror::RoleError;
use flagstone_mirror::state::status::MirrorState;

use super::link::CallOutcome;
use super::pair::{BLOCK, BLOCKS, Pair, Trio};

fn copied_blocks(pair: &Pair) -> u64 {
    pair.peer_status(0).resynced_bytes / BLOCK
}

/// Nothing is copied to a target that joins before the first write, and later only what was
/// written.
#[test]
fn zeroed_target_gets_only_what_was_written() {
    for (seed, writes) in [(1, 0), (2, 3)] {
        let pair = Pair::of_zeroes(seed, |_| {});
        pair.start(0);
        for block in 0..writes {
            pair.write(0, 2 * block, 7).expect("it serves alone");
        }
        pair.start(1);
        pair.becomes_in_sync(0);
        assert_eq!(copied_blocks(&pair), writes, "seed {seed}");
        pair.on(0, |mirror| async move { mirror.switchover(0).await }).expect("in sync");
        pair.becomes_in_sync(1);
    }
}

/// Also after the source has crashed or lost power several times without a peer.
#[test]
fn marks_since_zeroes_survive_restarts() {
    for seed in 0..10 {
        let pair = Pair::of_zeroes(seed, |_| {});
        pair.start(0);
        for round in 0..6 {
            pair.write(0, 7 * round, 1 + round as u8).expect("it serves alone");
            let settles = Duration::from_secs(if seed % 2 == 0 { 0 } else { 6 });
            pair.sim.run_for(settles);
            pair.end(0, round % 2 == 0);
            pair.restart(0);
        }
        pair.start(1);
        pair.becomes_in_sync(0);
        assert!(copied_blocks(&pair) < BLOCKS, "seed {seed}: everything was copied");
    }
}

/// The source may hold more, and would serve again without asking a peer that it has not met.
#[test]
fn zeroed_target_does_not_serve_before_its_source() {
    let pair = Pair::of_zeroes(3, |_| {});
    pair.start(1);
    let forced = pair.on(1, |mirror| async move { mirror.failover_unverified().await });
    assert_eq!(forced, Err(RoleError::Inconsistent));
}

/// A target that was in sync, or was being copied to, is replaced by a device of zeroes. Writes
/// that the log no longer names are copied to it.
#[test]
fn target_replaced_by_zeroes_is_copied_in_full() {
    for seed in 0..20 {
        let pair = Pair::of_zeroes(seed, |peer| peer.pace.max_bytes_per_s = Some(20 << 20));
        pair.start(0);
        for block in 0..BLOCKS / 2 {
            pair.write(0, block, 9).expect("it serves alone");
        }
        pair.start(1);
        let resyncs = seed % 2 == 0;
        match resyncs {
            true => pair.sim.run_for(Duration::from_millis(10 * seed)),
            false => pair.becomes_in_sync(0),
        }
        // With its cache, which would hide the zeroes.
        pair.end(1, true);
        if seed % 4 == 1 {
            pair.write(0, BLOCKS - 1, 4).expect("it runs degraded");
        }
        if seed % 8 < 4 {
            pair.end(0, true);
            pair.restart(0);
        }
        pair.replace_by_zeroes(1);
        pair.start(1);
        // The source notices that its session has ended.
        pair.sim.run_for(Duration::from_secs(2));
        // A source that crashed asks its peer first, which is another one now.
        if pair.active().is_empty() {
            pair.sim.run_for(Duration::from_secs(8));
            if pair.active().is_empty() {
                pair.on(0, |mirror| async move { mirror.failover().await }).expect("complete data");
            }
        }
        pair.becomes_in_sync(0);
    }
}

/// Of two targets, the first that is met is brought up to date from the log. The other one cannot
/// be.
#[test]
fn second_zeroed_target_is_copied_in_full() {
    for seed in 0..10 {
        let trio = Trio::of_zeroes(seed, |_| {});
        trio.start(0);
        trio.write(0, 5, 1).expect("it serves alone");
        trio.start(1);
        trio.until_toward(0, 1, MirrorState::Mirroring);
        trio.write(0, 6, 2).expect("in sync");
        if seed % 2 == 1 {
            trio.end(0, true);
            trio.restart(0);
        }
        trio.start(2);
        trio.becomes_in_sync(0);
    }
}

/// The answer to the end of the first resync is lost: the target may have adopted the generation.
#[test]
fn lost_end_of_first_resync_is_repeated() {
    let pair = Pair::of_zeroes(4, |_| {});
    pair.start(0);
    pair.write(0, 5, 1).expect("it serves alone");
    let lost = std::cell::Cell::new(false);
    pair.network().set_outcome(move |request| match request {
        flagstone_mirror::wire::peer::PeerRequest::EndResync { .. } if !lost.replace(true) => {
            CallOutcome::Unanswered
        }
        _ => CallOutcome::Arrives,
    });
    pair.start(1);
    pair.write(0, 6, 2).expect("it serves");
    pair.becomes_in_sync(0);
}
