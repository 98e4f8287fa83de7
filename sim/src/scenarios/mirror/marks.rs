//! Marks of blocks that differ, when copies of a resync and local disks fail: a mark is cleared
//! only by a copy that began after it, an abandoned operation keeps its range lock, and blocks that
//! cannot be copied stay marked while the mirror works.
//!
//! Leaves out the wire format of the link ([`super::link`]) and host protocols.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use flagstone_blockdev::BlockDevice;
use flagstone_mirror::session::bad_ranges::BadRangeCause;
use flagstone_mirror::state::status::{DesiredState, MirrorState};
use flagstone_mirror::wire::peer::PeerRequest;
use flagstone_mirror::{Mode, PeerOptions};
use flagstone_runtime::sim::{DiskConfig, DiskFaults, SimLatency};
use flagstone_runtime::{buf, time};

use super::link::CallOutcome;
use super::pair::{BLOCK, DATA, Pair, SUPERBLOCKS, fill};

fn block(number: u64) -> Range<u64> {
    number * BLOCK..(number + 1) * BLOCK
}

fn set(pair: &Pair, index: usize, faults: DiskFaults) {
    pair.sim.set_faults(pair.nodes[index], DATA, faults);
}

fn leg_byte(pair: &Pair, index: usize, number: u64) -> u8 {
    pair.leg(index)[(number * BLOCK) as usize]
}

/// Between the copy of a block and the flush that clears its mark, a host's write to the block
/// reaches the peer and fails here. The block was already marked, and the mark must survive the
/// flush.
#[test]
fn failed_write_during_resync_keeps_its_mark() {
    let mut failed = 0;
    for step in 0..60 {
        let pair = Pair::new(step, |_| {});
        pair.cut();
        for number in [9, 20, 21] {
            pair.write(0, number, 1).expect("the peer is lost");
        }
        pair.network().set_slow(Duration::from_millis(2));
        pair.network().heal();
        pair.until(0, MirrorState::Resynchronizing);
        pair.sim.run_for(Duration::from_micros(200 * step));
        set(&pair, 0, DiskFaults::default().unwritable_at(block(9)));
        let written = pair.write(0, 9, 2);
        failed += u32::from(written.is_err());
        set(&pair, 0, DiskFaults::default());
        if pair.mirror(0).has_failed() {
            // The peer was in sync in time, and serves alone.
            continue;
        }
        pair.until(0, MirrorState::Mirroring);
        let legs = [0, 1].map(|index| leg_byte(&pair, index, 9));
        assert_eq!(legs[0], legs[1], "in sync with different data after {step} steps");
    }
    assert!(failed > 20, "only {failed} writes failed during the resync");
}

/// The source writes blocks without its peer and crashes: they are suspect after its restart.
fn crash_degraded(pair: &Pair, faults: DiskFaults) {
    pair.cut();
    for number in (8..48).filter(|number| number % 8 < 4) {
        pair.write(0, number, 1).expect("the peer is lost");
    }
    pair.end(0, false);
    set(pair, 0, faults);
    pair.restart(0);
}

/// A source that crashed rewrites its suspect blocks while it copies them. The disk holds one such
/// rewrite for two seconds, and the session is lost meanwhile. A newer write to the block has to
/// wait for the rewrite, or the rewrite would take the block back.
#[test]
fn abandoned_rewrite_keeps_its_range_lock() {
    let mut held = 0;
    for step in 0..100 {
        let pair = Pair::new(step, |_| {});
        crash_degraded(&pair, DiskFaults::default());
        // Activates the region of block 9, so that later writes need no log record.
        pair.write(0, 8, 2).expect("it serves");
        pair.network().set_slow(Duration::from_millis(4));
        pair.network().heal();
        // The copies begin after the target has begun its part.
        while !pair.superblock(1).flags.inconsistent {
            pair.sim.run_for(Duration::from_micros(20));
        }
        let slow = SimLatency::between_us(2_000_000, 2_000_000);
        pair.sim.run_for(Duration::from_micros(100 * step));
        pair.sim.set_write_latency(pair.nodes[0], DATA, slow);
        pair.sim.run_for(Duration::from_micros(500));
        pair.sim.set_write_latency(pair.nodes[0], DATA, DiskConfig::ssd().write_latency);
        // A new session for each attempt: the one with the rewrite in flight ends.
        let cut_at = pair.sim.now();
        pair.cut();
        let mirror = pair.mirror(0);
        let writing = pair.sim.spawn_on(pair.nodes[0], async move {
            time::sleep(Duration::from_millis(400)).await;
            let written = fill(&mirror, 9, 3).await;
            (written, time::now())
        });
        let (written, at) = pair.sim.block_on(writing).expect("the task is not aborted");
        written.expect("the peer is lost");
        held += u32::from(at.as_nanos() > cut_at.as_nanos() + 1_500_000_000);
        pair.sim.run_for(Duration::from_secs(3));
        assert_eq!(leg_byte(&pair, 0, 9), 3, "an old write has landed, step {step}");
        pair.network().heal();
        pair.becomes_in_sync(0);
        assert_eq!(pair.read(0, 9), 3, "step {step}");
    }
    assert!(held > 0, "no rewrite was in flight when the session was lost");
}

/// A suspect block that cannot be rewritten is not durable here, whatever the peer has: it stays
/// marked until a rewrite succeeds.
#[test]
fn failed_rewrite_keeps_the_block_suspect() {
    let pair = Pair::new(3, |peer| peer.compare = true);
    crash_degraded(&pair, DiskFaults::default().unwritable_at(block(9)));
    pair.network().heal();
    pair.sim.run_for(Duration::from_secs(20));
    assert_ne!(pair.state(0), MirrorState::Mirroring, "a block is not durable here");
    assert_eq!(pair.peer_status(0).out_of_sync_bytes, BLOCK, "the other blocks are done");
    set(&pair, 0, DiskFaults::default());
    pair.becomes_in_sync(0);
    pair.end(0, true);
    assert_eq!(leg_byte(&pair, 0, 9), 1, "it is durable");
}

/// Pair whose resync cannot copy the listed blocks: the rest is copied, and writes go to both.
fn stuck_resync(unreadable: usize) -> Pair {
    stuck_resync_of(unreadable, |_| {})
}

fn stuck_resync_of(unreadable: usize, options: fn(&mut PeerOptions)) -> Pair {
    let pair = Pair::new(5, options);
    pair.cut();
    for number in 4..30 {
        pair.write(0, number, 1).expect("the peer is lost");
    }
    let bad = 9 * BLOCK + 8192..9 * BLOCK + 12288;
    let faults = match unreadable {
        0 => DiskFaults::default().unreadable_at(bad),
        _ => DiskFaults::default().unwritable_at(bad),
    };
    set(&pair, unreadable, faults);
    pair.network().heal();
    pair.sim.run_for(Duration::from_secs(20));
    pair
}

#[test]
fn resync_goes_on_past_an_unreadable_sector() {
    for failing in 0..2 {
        let pair = stuck_resync(failing);
        assert_eq!(pair.state(0), MirrorState::Resynchronizing);
        assert_eq!(pair.peer_status(0).out_of_sync_bytes, BLOCK, "the other blocks are copied");
        let disconnects = pair.peer_status(0).disconnects;
        let listed = pair.on(0, |mirror| async move { mirror.status().bad_ranges });
        let ranges: Vec<_> = listed.iter().map(|bad| (bad.offset, bad.len)).collect();
        assert_eq!(ranges, [(9 * BLOCK + 8192, 4096)], "node {failing} fails");
        let cause = [BadRangeCause::SourceUnreadable, BadRangeCause::TargetUnwritable][failing];
        assert_eq!(listed[0].cause, cause);
        // Writes elsewhere reach both legs, and the session stays.
        pair.write(0, 20, 7).expect("both are there");
        assert_eq!((leg_byte(&pair, 0, 20), leg_byte(&pair, 1, 20)), (7, 7));
        pair.sim.run_for(Duration::from_secs(60));
        assert_eq!(pair.peer_status(0).disconnects, disconnects, "one session");
        // Once the sector is sound again, the mirror becomes in sync by itself.
        set(&pair, failing, DiskFaults::default());
        pair.becomes_in_sync(0);
        let listed = pair.on(0, |mirror| async move { mirror.status().bad_ranges });
        assert_eq!(listed, []);
    }
}

/// The source is gone for good, and the target lacks one sector. By force it serves the rest.
#[test]
fn target_with_listed_bad_ranges_serves_by_force() {
    for restarts in [false, true] {
        let pair = stuck_resync(0);
        pair.write(0, 20, 7).expect("both are there");
        pair.end(0, true);
        if restarts {
            pair.end(1, true);
            pair.restart(1);
        }
        pair.sim.run_for(Duration::from_secs(2));
        let status = pair.on(1, |mirror| async move { mirror.status() });
        assert!(status.inconsistent);
        let ranges: Vec<_> = status.bad_ranges.iter().map(|bad| (bad.offset, bad.len)).collect();
        assert_eq!(ranges, [(9 * BLOCK, BLOCK)], "the block of the sector");
        let refused = pair.on(1, |mirror| async move { mirror.failover().await });
        assert!(refused.is_err(), "only by force");
        pair.on(1, |mirror| async move { mirror.failover_unverified().await }).expect("forced");
        assert_eq!(pair.active(), [1]);
        assert_eq!((pair.read(1, 20), pair.read(1, 8)), (7, 1));
        // The former source is not overwritten silently.
        set(&pair, 0, DiskFaults::default());
        pair.write(1, 30, 8).expect("it serves");
        pair.restart(0);
        pair.until(0, MirrorState::SplitBrain);
    }
}

/// Retries of a bad range bypass the queue of an asynchronous target. All copied blocks must be
/// listed there, because they may be newer than the rest.
#[test]
fn retry_of_bad_range_stays_within_list() {
    let pair = stuck_resync_of(0, |peer| {
        (peer.mode, peer.queue.window_bytes) = (Mode::Async, 1);
    });
    pair.network().set_slow(Duration::from_millis(20));
    let (first, second) = (20 * BLOCK, 9 * BLOCK);
    let mirror = pair.mirror(0);
    // The second write of each number depends on the first.
    pair.sim.spawn_on(pair.nodes[0], async move {
        for number in 2..=u8::MAX {
            for offset in [first, second] {
                let mut memory = buf::alloc(4096).await;
                memory.fill(number);
                mirror.write(offset, memory.freeze(), false).await.expect("a sound part");
            }
            time::sleep(Duration::from_millis(70)).await;
        }
    });
    let mut checks = 0;
    for _ in 0..15_000 {
        pair.sim.run_for(Duration::from_millis(1));
        let listed = pair.superblock(1).not_received;
        if listed.is_empty() || listed.iter().any(|range| range.contains(&second)) {
            continue;
        }
        let [older, newer] = [first, second].map(|offset| leg_byte(&pair, 1, offset / BLOCK));
        assert!(older >= newer, "outside {listed:?}: {newer} is there without {older}");
        checks += 1;
    }
    let listed = pair.superblock(1).not_received;
    assert!(checks > 0 || listed == [block(9)], "{listed:?}");
}

/// Inconsistent data without a list of bad ranges is not served, even by force.
#[test]
fn target_within_a_resync_does_not_serve_by_force() {
    let pair = Pair::new(6, |_| {});
    pair.cut();
    for number in 0..40 {
        pair.write(0, number, 1).expect("the peer is lost");
    }
    pair.network().set_slow(Duration::from_millis(5));
    pair.network().heal();
    let began = Rc::new(Cell::new(false));
    let seen = began.clone();
    pair.network().set_outcome(move |request| {
        seen.set(seen.get() || matches!(request, PeerRequest::BeginResync { .. }));
        CallOutcome::Arrives
    });
    while !began.get() || !pair.superblock(1).flags.inconsistent {
        pair.sim.run_for(Duration::from_micros(100));
    }
    pair.end(0, true);
    pair.sim.run_for(Duration::from_secs(1));
    let forced = pair.on(1, |mirror| async move { mirror.failover_unverified().await });
    assert!(forced.is_err() && pair.active().is_empty());
}

/// The differences found by a verify with repair are marked durably: the source may lose power
/// before it has copied them.
#[test]
fn marks_of_verify_survive_power_loss() {
    for seed in 0..6 {
        let pair = Pair::new(seed, |_| {});
        pair.write(0, 9, 5).expect("both are there");
        pair.sim.run_for(Duration::from_secs(10));
        pair.sim.poke(pair.nodes[1], DATA, 9 * BLOCK, &[!5]);
        pair.sim.poke(pair.nodes[1], DATA, 40 * BLOCK, &[1]);
        let report = pair.on(0, |mirror| async move { mirror.verify(0, None, true, |_| {}).await });
        assert_eq!(report.expect("both are there").differing_bytes, 2 * BLOCK);
        pair.end(0, true);
        pair.restart(0);
        pair.sim.run_for(Duration::from_secs(10));
        let source = pair.active()[0];
        pair.becomes_in_sync(source);
        // The repair goes on in its direction. Regression: the crashed source was copied over.
        let legs = |number| [0, 1].map(|index| leg_byte(&pair, index, number));
        assert_eq!([legs(9), legs(40)], [[5; 2], [0; 2]], "seed {seed}");
    }
}

/// A crash of the source right after the marks of a full resync does not change its direction.
/// Regression: equal generations made the target, which may have returned from a backup, overwrite
/// the source.
#[test]
fn interrupted_full_resync_keeps_its_direction() {
    for power in [false, true] {
        let pair = Pair::new(4, |_| {});
        for number in [9, 20] {
            pair.write(0, number, 5).expect("both are there");
        }
        pair.sim.run_for(Duration::from_secs(10));
        for number in [9, 20, 40] {
            pair.sim.poke(pair.nodes[1], DATA, number * BLOCK, &[1]);
        }
        let attached = Rc::new(Cell::new(false));
        let seen = attached.clone();
        pair.network().set_outcome(move |request| {
            seen.set(seen.get() || matches!(request, PeerRequest::Attach(_)));
            CallOutcome::Arrives
        });
        pair.mirror(0).resync_all(0).expect("there is a peer");
        while !attached.get() {
            pair.sim.run_for(Duration::from_micros(20));
        }
        // Whatever the source records first, it gets no further.
        set(&pair, 0, DiskFaults::default().unwritable_at(SUPERBLOCKS));
        pair.sim.run_for(Duration::from_secs(1));
        pair.end(0, power);
        set(&pair, 0, DiskFaults::default());
        pair.restart(0);
        pair.sim.run_for(Duration::from_secs(10));
        assert_eq!([9, 20, 40].map(|number| leg_byte(&pair, 0, number)), [5, 5, 0]);
    }
}

/// Regression: the order was forgotten when a session ended before the blocks were marked, and the
/// legs stayed different while "mirroring".
#[test]
fn full_resync_outlives_lost_attach() {
    let pair = Pair::new(4, |_| {});
    pair.write(0, 9, 5).expect("both are there");
    pair.sim.run_for(Duration::from_secs(10));
    pair.sim.poke(pair.nodes[1], DATA, 9 * BLOCK, &[1]);
    let lost = Rc::new(Cell::new(false));
    let seen = lost.clone();
    pair.network().set_outcome(move |request| match request {
        PeerRequest::Attach(_) if !seen.replace(true) => CallOutcome::Lost,
        _ => CallOutcome::Arrives,
    });
    pair.mirror(0).resync_all(0).expect("there is a peer");
    pair.sim.run_for(Duration::from_secs(60));
    assert!(lost.get());
    assert_eq!(leg_byte(&pair, 1, 9), 5);
}

/// A latent sector error of the source's disk: the host gets the peer's data, and the sector is
/// rewritten, so that it can be read without the peer.
#[test]
fn unreadable_block_of_source_is_repaired() {
    for mode in [Mode::Sync, Mode::Async] {
        let pair = match mode {
            Mode::Sync => Pair::new(7, |_| {}),
            Mode::Async => Pair::new(7, |peer| peer.mode = Mode::Async),
        };
        pair.write(0, 4, 1).expect("both are there");
        pair.write(0, 4, 2).expect("both are there");
        let bad = 4 * BLOCK + 8192..4 * BLOCK + 16384;
        set(&pair, 0, DiskFaults::default().latent_at(bad));
        assert_eq!(pair.read(0, 4), 2);
        pair.sim.run_for(Duration::from_secs(1));
        let status = pair.on(0, |mirror| async move { mirror.status() });
        assert_eq!((status.repairs, status.repaired_bytes), (2, 8192));
        pair.cut();
        assert_eq!(pair.read(0, 4), 2, "from the local leg");
    }
}

/// A write races the repair of its block: the newer data stays on both legs.
#[test]
fn repair_never_replaces_a_newer_write() {
    for step in 0..60 {
        let pair = Pair::new(step, |_| {});
        pair.write(0, 4, 1).expect("both are there");
        set(&pair, 0, DiskFaults::default().latent_at(block(4)));
        let mirror = pair.mirror(0);
        let writing = pair.sim.spawn_on(pair.nodes[0], async move {
            time::sleep(Duration::from_micros(40 * step)).await;
            fill(&mirror, 4, 2).await
        });
        let found = pair.read(0, 4);
        assert!(found == 1 || found == 2);
        pair.sim.block_on(writing).expect("the task is not aborted").expect("both are there");
        pair.sim.run_for(Duration::from_secs(1));
        assert_eq!([0, 1].map(|index| leg_byte(&pair, index, 4)), [2, 2], "step {step}");
        assert_eq!(pair.read(0, 4), 2);
    }
}

/// Latent sector errors of either disk are found by a verify, and repaired.
#[test]
fn verify_repairs_unreadable_blocks_of_either_leg() {
    for failing in 0..2 {
        let pair = Pair::new(8, |_| {});
        for number in 0..8 {
            pair.write(0, number, 1 + number as u8).expect("both are there");
        }
        let faults = DiskFaults::default().latent_at(4 * BLOCK + 8192..4 * BLOCK + 12288);
        set(&pair, failing, faults.latent_at(6 * BLOCK..6 * BLOCK + 4096));
        let verified =
            pair.on(0, |mirror| async move { mirror.verify(0, None, false, |_| {}).await });
        assert_eq!(verified.expect("both are there").differing_bytes, 0);
        let status = pair.on(0, |mirror| async move { mirror.status() });
        assert_eq!((status.repairs, status.repaired_bytes), (2, 8192), "node {failing}");
        pair.end(1 - failing, true);
        if failing == 1 {
            pair.on(1, |mirror| async move { mirror.failover().await }).expect("it was in sync");
        }
        for number in 0..8 {
            assert_eq!(pair.read(failing, number), 1 + number as u8);
        }
    }
}

/// A broken mirror whose source was not written to since: both replicas have one generation, so
/// that either may be copied to the other. Each has all acknowledged writes, unlike a peer that a
/// repair marks, so `break` needs no new generation.
#[test]
fn broken_mirror_without_later_writes_loses_nothing() {
    for (power, promoted) in [(false, false), (true, false), (false, true), (true, true)] {
        for seed in 0..4 {
            let pair = Pair::new(seed, |_| {});
            pair.write(0, 9, 5).expect("both are there");
            desire(&pair, DesiredState::Detached);
            pair.end(0, power);
            let mut kept = 5;
            if promoted {
                pair.on(1, |mirror| async move { mirror.failover().await }).expect("in sync");
                kept = 6;
                pair.write(1, 9, kept).expect("it serves");
            }
            pair.restart(0);
            pair.sim.run_for(Duration::from_secs(2));
            desire(&pair, DesiredState::Connected);
            let source = serving(&pair);
            pair.becomes_in_sync(source);
            assert_eq!(leg_byte(&pair, 0, 9), kept, "power {power}, promoted {promoted}");
        }
    }
}

/// An asynchronous source whose mirror is broken has acknowledged writes that the target lacks. It
/// records that before the order ends, so that a crash does not make the target look current.
#[test]
fn broken_asynchronous_mirror_keeps_queued_writes() {
    for power in [false, true] {
        for seed in 0..4 {
            let pair = Pair::new(seed, |peer| peer.mode = Mode::Async);
            pair.write(0, 9, 4).expect("both are there");
            pair.sim.run_for(Duration::from_secs(2));
            pair.network().set_slow(Duration::from_millis(200));
            pair.write(0, 9, 5).expect("it is queued");
            pair.on(0, |mirror| async move { mirror.flush().await }).expect("a sound disk");
            desire(&pair, DesiredState::Detached);
            pair.end(0, power);
            pair.network().set_slow(Duration::ZERO);
            pair.restart(0);
            pair.sim.run_for(Duration::from_secs(2));
            desire(&pair, DesiredState::Connected);
            let source = serving(&pair);
            pair.becomes_in_sync(source);
            assert_eq!(leg_byte(&pair, 0, 9), 5, "power {power}, seed {seed}");
        }
    }
}

fn desire(pair: &Pair, desired: DesiredState) {
    pair.on(0, move |mirror| async move { mirror.set_desired_state(0, desired).await })
        .expect("it is the source");
}

/// The node that serves within ten seconds.
fn serving(pair: &Pair) -> usize {
    pair.sim.run_for(Duration::from_secs(10));
    pair.active()[0]
}
