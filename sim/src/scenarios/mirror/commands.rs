//! Operator commands on healthy mirrors, and the resulting status and counters.
//!
//! Left out, besides what [`super::pair`] leaves out: faults and concurrent commands.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flagstone_blockdev::BlockDevice;
use flagstone_mirror::limits::QUEUE_DELIVERY_MS;
use flagstone_mirror::state::machine::OrderRefusal;
use flagstone_mirror::state::status::{DesiredState, MirrorState};
use flagstone_mirror::wire::peer::{PeerRefusal, PeerRequest};
use flagstone_mirror::{Ack, CommandError, Mirror, Mode, RoleError};
use flagstone_runtime::sim::SimLatency;

use super::pair::{BLOCK, DATA, Pair, Trio};

/// A pair in which the target is behind by most of the acknowledged writes.
fn lagging(seed: u64) -> Pair {
    let pair = Pair::new(seed, |peer| (peer.mode, peer.queue.window_bytes) = (Mode::Async, 1));
    pair.network().set_slow(Duration::from_millis(20));
    for block in 0..36 {
        pair.write(0, block, 1 + block as u8).expect("the source serves");
    }
    let lag = pair.peer_status(0).lag_writes;
    assert!(lag > 20, "{lag} writes are queued");
    pair
}

/// Regression: an orderly stop dropped the queue. The target had 1 of 36 acknowledged writes, and
/// took the role.
#[test]
fn stopped_async_source_delivers_its_queue() {
    for seed in 0..4 {
        let pair = lagging(seed);
        let undelivered = pair.on(0, |mirror| async move { mirror.stop().await });
        assert_eq!(undelivered, Ok(vec![]));
        assert_eq!(pair.peer_status(0).out_of_sync_bytes, 0);
        pair.end(0, false);
        pair.end(1, true);
        pair.restart(1);
        pair.on(1, |mirror| async move { mirror.failover().await }).expect("it has all data");
        for block in 0..36 {
            assert_eq!(pair.read(1, block), 1 + block as u8, "block {block}");
        }
    }
}

/// The peer cannot be reached during the stop, which ends anyway and reports what the peer lacks.
/// The marks remain, so the peer gets the rest when the source is back.
#[test]
fn stopped_async_source_reports_undelivered_writes() {
    for seed in 0..4 {
        let pair = lagging(seed);
        let before = pair.peer_status(0).lag_writes;
        match seed % 2 {
            0 => pair.cut(),
            _ => pair.network().set_slow(Duration::from_secs(30)),
        }
        let began = pair.sim.now();
        let undelivered = pair.on(0, |mirror| async move { mirror.stop().await });
        let limit = Duration::from_millis(QUEUE_DELIVERY_MS) + Duration::from_secs(1);
        assert!(pair.sim.now() < began + limit, "the stop is bounded");
        let undelivered = undelivered.expect("a sound disk");
        assert!(undelivered.len() == 1 && undelivered[0].leg == 0, "{undelivered:?}");
        assert!((20..=before).contains(&undelivered[0].writes), "{undelivered:?} of {before}");
        assert_eq!(undelivered[0].bytes, undelivered[0].writes * BLOCK);
        pair.end(0, false);
        pair.network().heal();
        pair.network().set_slow(Duration::from_millis(1));
        pair.restart(0);
        pair.becomes_in_sync(0);
    }
}

/// Regression: writes that a stopped source could not deliver were acknowledged, and must never be
/// discarded without the operator. They had no generation of their own, so the peer looked equal,
/// and its data was preferred. The same when the source noticed the loss before it was stopped, and
/// no host wrote in between.
#[test]
fn undelivered_writes_are_not_discarded() {
    let cut_off = |seed: u64| {
        let pair = lagging(seed);
        pair.cut();
        if seed % 2 == 1 {
            pair.until(0, MirrorState::ResyncPending);
            pair.sim.run_for(Duration::from_secs(1));
            assert_eq!(pair.peer_status(0).lag_writes, 0, "the queue is given up");
        }
        pair
    };
    for seed in 0..8 {
        let pair = cut_off(seed);
        pair.on(0, |mirror| async move { mirror.demote().await }).expect("a sound disk");
        pair.network().set_slow(Duration::from_millis(1));
        pair.network().heal();
        pair.becomes_in_sync(0);
        assert_eq!(pair.read(0, 35), 36, "seed {seed}");
        // In sync again, nothing is missing.
        let undelivered = pair.on(0, |mirror| async move { mirror.stop().await });
        assert_eq!(undelivered, Ok(vec![]), "seed {seed}");
        // The peer is forced and written to before the stopped source returns.
        let pair = cut_off(seed);
        let undelivered = pair.on(0, |mirror| async move { mirror.stop().await });
        let undelivered = undelivered.expect("a sound disk");
        let reported = undelivered.first().map_or(0, |peer| peer.writes);
        assert_eq!(reported > 20, seed % 2 == 0, "seed {seed}: {undelivered:?}");
        pair.end(0, false);
        pair.on(1, |mirror| async move { mirror.failover().await }).expect("complete data");
        pair.write(1, 50, 9).expect("it runs degraded");
        pair.network().set_slow(Duration::from_millis(1));
        pair.network().heal();
        pair.restart(0);
        pair.until(1, MirrorState::SplitBrain);
        assert_eq!(pair.leg(0)[35 * BLOCK as usize], 36, "its data is kept");
    }
}

/// A noticed loss of queued writes survives a crash, even if no host has written since: if the peer
/// was forced meanwhile, the data that hosts rely on is kept.
#[test]
fn noticed_loss_survives_a_crash() {
    for (seed, power) in [(0, false), (1, true)] {
        let pair = lagging(seed);
        pair.cut();
        pair.until(0, MirrorState::ResyncPending);
        pair.sim.run_for(Duration::from_secs(1));
        pair.end(0, power);
        pair.on(1, |mirror| async move { mirror.failover().await }).expect("complete data");
        pair.write(1, 50, 9).expect("it runs degraded");
        pair.network().set_slow(Duration::from_millis(1));
        pair.network().heal();
        pair.restart(0);
        pair.until(1, MirrorState::SplitBrain);
        assert_eq!(pair.leg(0)[35 * BLOCK as usize], 36, "its data is kept");
    }
}

/// Regression: a target that acknowledges from memory loses power with a write, and the source then
/// stops or gives up its role without another write. In half of all mirrors, the target's older
/// data was preferred, although the source had flushed the write.
#[test]
fn write_that_the_target_lost_survives_a_stop() {
    for seed in 0..8 {
        for stops in [true, false] {
            let pair = Pair::new(seed, |peer| peer.ack = Ack::Memory);
            pair.write(0, 3, 1).expect("both are there");
            pair.sim.run_for(Duration::from_secs(2));
            pair.write(0, 3, 2).expect("both are there");
            pair.end(1, true);
            pair.until(0, MirrorState::ResyncPending);
            if stops {
                pair.on(0, |mirror| async move { mirror.stop().await }).expect("a sound disk");
                pair.end(0, false);
                pair.restart(1);
                pair.restart(0);
            } else {
                pair.on(0, |mirror| async move { mirror.demote().await }).expect("a sound disk");
                pair.restart(1);
                pair.sim.run_for(Duration::from_secs(10));
                let ask = |mirror: std::sync::Arc<flagstone_mirror::Mirror>| async move {
                    mirror.failover_if_unserved().await
                };
                assert!(pair.on(1, ask).is_err(), "its data is older, seed {seed}");
                pair.on(0, ask).expect("it has all data");
            }
            pair.becomes_in_sync(0);
            assert_eq!(pair.read(0, 3), 2, "seed {seed}, stops {stops}");
        }
    }
}

/// Regression: a crashed source was forced to serve, and acknowledged a flush without recording
/// that its target, which had lost a write from memory, was out of date. The target was forced too,
/// and its older data was then preferred.
#[test]
fn flush_of_forced_source_survives_forced_target() {
    for seed in 0..4 {
        let pair = Pair::new(seed, |peer| peer.ack = Ack::Memory);
        pair.write(0, 3, 1).expect("both are there");
        pair.sim.run_for(Duration::from_secs(2));
        pair.write(0, 3, 2).expect("both are there");
        pair.end(1, true);
        pair.end(0, false);
        pair.restart(0);
        pair.on(0, |mirror| async move { mirror.failover().await }).expect("by force");
        pair.on(0, |mirror| async move { mirror.flush().await }).expect("a sound disk");
        pair.cut();
        pair.restart(1);
        pair.on(1, |mirror| async move { mirror.failover().await }).expect("by force");
        pair.network().heal();
        pair.sim.run_for(Duration::from_secs(10));
        assert_eq!(pair.leg(0)[3 * BLOCK as usize], 2, "seed {seed}");
    }
}

/// The role goes to one target while the queue of the other is stuck or lost: the new source does
/// not count the other target as equal.
#[test]
fn switchover_leaves_a_lagging_target_behind() {
    for seed in 0..6 {
        let trio = Trio::new(seed, |peer| {
            (peer.mode, peer.queue.window_bytes) = (Mode::Async, 1);
        });
        trio.write(0, 5, 1).expect("all are there");
        trio.sim.run_for(Duration::from_secs(1));
        trio.part(0, 2);
        let (mirror, written) = (trio.mirror(0), std::rc::Rc::new(std::cell::Cell::new(0)));
        let done = written.clone();
        trio.sim.spawn_on(trio.nodes[0], async move {
            for block in 0..8 {
                super::pair::fill(&mirror, block, 7).await.expect("the source serves");
                done.set(done.get() + 1);
            }
        });
        trio.sim.run_until(Duration::from_micros(10), || written.get() == 8);
        if seed % 2 == 1 {
            trio.until_toward(0, 2, MirrorState::ResyncPending);
        }
        trio.on(0, |mirror| async move { mirror.switchover(0).await }).expect("one is in sync");
        assert_eq!(trio.active(), [1]);
        trio.network().heal();
        trio.becomes_in_sync(1);
        assert_eq!(trio.read(1, 7), 7, "seed {seed}");
    }
}

/// Of two targets in sync, the asking one gets the role.
#[test]
fn role_goes_to_the_target_that_asks() {
    for asker in [1, 2] {
        let trio = Trio::new(1, |_| {});
        trio.write(0, 5, 1).expect("all are there");
        trio.on(asker, |mirror| async move { mirror.switchover(Trio::leg_to(1, 0)).await })
            .expect("all are in sync");
        assert_eq!(trio.active(), [asker]);
        trio.becomes_in_sync(asker);
        assert_eq!(trio.read(asker, 5), 1);
    }
}

/// An asker without an identity could be either of two targets. With one target, it is unambiguous.
#[test]
fn unidentified_asker_gets_role_only_as_sole_target() {
    let ask = |mirror: std::sync::Arc<flagstone_mirror::Mirror>| async move {
        mirror.session().ask(PeerRequest::HandOver).await.expect("it answers").map(drop)
    };
    let trio = Trio::new(2, |_| {});
    assert_eq!(trio.on(0, ask), Err(PeerRefusal::NotNow));
    assert_eq!(trio.active(), [0]);
    let pair = Pair::new(2, |_| {});
    assert_eq!(pair.on(0, ask), Ok(()));
    assert_eq!(pair.active(), [1]);
}

/// `disconnects` counts only unexpected disconnects.
#[test]
fn planned_disconnect_is_not_counted() {
    let pair = Pair::new(3, |_| {});
    let disconnects = || pair.peer_status(0).disconnects;
    for desired in [
        DesiredState::Paused,
        DesiredState::Connected,
        DesiredState::Detached,
        DesiredState::Connected,
    ] {
        pair.on(0, move |mirror| async move { mirror.set_desired_state(0, desired).await })
            .expect("sound");
        match desired {
            DesiredState::Connected => pair.becomes_in_sync(0),
            DesiredState::Paused => pair.until(0, MirrorState::Paused),
            DesiredState::Detached => pair.until(0, MirrorState::Broken),
        }
    }
    pair.on(0, |mirror| async move { mirror.resync_all(0) }).expect("there is one");
    pair.until(0, MirrorState::Resynchronizing);
    pair.becomes_in_sync(0);
    pair.sim.poke(pair.nodes[1], super::pair::DATA, 7 * BLOCK, &[1]);
    let found = pair.on(0, |mirror| async move { mirror.verify(0, None, true, |_| {}).await });
    assert_eq!(found.expect("both are there").differing_bytes, BLOCK);
    pair.becomes_in_sync(0);
    for (from, to) in [(0, 1), (1, 0)] {
        pair.on(from, |mirror| async move { mirror.switchover(0).await }).expect("in sync");
        pair.becomes_in_sync(to);
    }
    assert_eq!(disconnects(), 0);
    pair.cut();
    pair.write(0, 1, 1).expect("it runs degraded");
    assert_eq!(disconnects(), 1);
}

/// A switchover does not count as a disconnect of the other targets either.
#[test]
fn switchover_is_not_counted_as_a_disconnect() {
    let trio = Trio::new(5, |_| {});
    trio.write(0, 5, 1).expect("all are there");
    trio.on(0, |mirror| async move { mirror.switchover(Trio::leg_to(0, 1)).await })
        .expect("all are in sync");
    trio.becomes_in_sync(1);
    for other in [1, 2] {
        assert_eq!(trio.status_of(0, other).disconnects, 0, "of {other}");
    }
}

/// Resync traffic is not counted as host calls.
#[test]
fn resync_is_not_counted_as_host_calls() {
    let pair = Pair::new(4, |_| {});
    pair.on(0, |mirror| async move { mirror.resync_all(0) }).expect("there is one");
    pair.until(0, MirrorState::Resynchronizing);
    let mut looks = 0;
    while pair.state(0) != MirrorState::Mirroring {
        let status = pair.on(0, |mirror| async move { mirror.status() });
        assert_eq!((status.in_flight, status.waiting_for_range_lock), (0, 0));
        looks += 1;
        pair.sim.run_for(Duration::from_micros(100));
    }
    assert!(looks > 10, "{looks} looks");
}

/// A second operator pauses the mirror while its role is handed over: the hand-over ends first.
#[test]
fn pause_does_not_interrupt_switchover() {
    for desired in [DesiredState::Paused, DesiredState::Detached] {
        let pair = Pair::new(9, |_| {});
        let slow = SimLatency::between_us(500_000, 500_001);
        pair.sim.set_write_latency(pair.nodes[1], DATA, slow);
        let (begun, seen) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
        let promoting = begun.clone();
        pair.network().set_watcher(move |_, request, _| {
            promoting.set(promoting.get() || matches!(request, PeerRequest::Promote { .. }));
        });
        let (mirror, ended) = (pair.mirror(0), seen.clone());
        pair.sim.spawn_on(pair.nodes[0], async move {
            let _ = mirror.switchover(0).await;
            ended.set(true);
        });
        while !begun.get() {
            pair.sim.run_for(Duration::from_millis(1));
        }
        let paused =
            move |mirror: Arc<Mirror>| async move { mirror.set_desired_state(0, desired).await };
        let refused = Err(CommandError::Role(RoleError::Refused(OrderRefusal::Waiting)));
        assert_eq!(pair.on(0, paused), refused);
        pair.sim.run_for(Duration::from_secs(30));
        assert_eq!((seen.get(), pair.active()), (true, vec![1]));
        pair.becomes_in_sync(1);
    }
}
