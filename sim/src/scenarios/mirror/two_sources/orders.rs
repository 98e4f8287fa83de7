//! Orders of operators: which failovers need force, and what follows when orders or a switchover
//! overlap.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use flagstone_blockdev::IoError;
use flagstone_mirror::ondisk::superblock::ReplicaRole;
use flagstone_mirror::state::machine::OrderRefusal;
use flagstone_mirror::state::status::{DesiredState, MirrorState};
use flagstone_mirror::wire::peer::PeerRequest;
use flagstone_mirror::{CommandError, RoleError};

use super::super::link::CallOutcome;
use super::super::pair::{BLOCK, Pair, Trio, fill};
use super::{A_WHILE, SERVES, at_most_one_serves, careful_failover, failover};

/// A target of a paused mirror is not promoted while its source serves, except by force. Then the
/// source stops before the target serves, and its later data is kept.
#[test]
fn paused_target_is_not_promoted_without_force() {
    let pair = Pair::new(4, |_| {});
    pair.on(0, |mirror| async move { mirror.set_desired_state(0, DesiredState::Paused).await })
        .expect("a sound disk");
    pair.until(0, MirrorState::Paused);
    pair.write(0, 6, 1).expect("it is tracked");
    pair.sim.run_for(A_WHILE);
    assert_eq!(careful_failover(&pair, 1), SERVES);
    assert_eq!(pair.active(), [0]);
    failover(&pair, 1);
    assert_eq!(pair.active(), [1]);
    pair.sim.run_for(A_WHILE);
    assert_eq!(pair.active(), [1]);
    assert_eq!(pair.leg(0)[6 * BLOCK as usize], 1, "its data is kept");
}

/// A peer that answers and does not serve allows a failover without force.
#[test]
fn stopped_source_allows_failover_without_force() {
    let pair = Pair::new(5, |_| {});
    pair.write(0, 5, 1).expect("both are there");
    assert_eq!(careful_failover(&pair, 1), SERVES);
    pair.on(0, |mirror| async move { mirror.demote().await }).expect("a sound disk");
    pair.sim.run_for(A_WHILE);
    assert_eq!(careful_failover(&pair, 1), Ok(()));
    pair.becomes_in_sync(1);
}

/// A forced failover over a working link stops the old source first: it never answers a read with
/// data that the new source has changed, and acknowledges no write alone, so no split brain
/// follows.
#[test]
fn forced_failover_stops_reachable_source_first() {
    for seed in 0..20 {
        let pair = Pair::new(seed, |_| {});
        pair.write(0, 5, 1).expect("both are there");
        // Writes are in flight all the time, each to a block of its own.
        let acknowledged: Rc<RefCell<Vec<u64>>> = Rc::default();
        for block in 8..40 {
            let (mirror, acknowledged) = (pair.mirror(0), acknowledged.clone());
            pair.sim.spawn_on(pair.nodes[0], async move {
                flagstone_runtime::time::sleep(Duration::from_micros(100 * block)).await;
                if fill(&mirror, block, 7).await.is_ok() {
                    acknowledged.borrow_mut().push(block);
                }
            });
        }
        failover(&pair, 1);
        assert_eq!(pair.active(), [1], "seed {seed}");
        pair.write(1, 5, 2).expect("it runs degraded");
        assert_eq!(pair.write(0, 6, 3), Err(IoError::Unreachable));
        pair.becomes_in_sync(1);
        for block in acknowledged.borrow().iter() {
            assert_eq!(pair.read(1, *block), 7, "seed {seed}: block {block} is lost");
        }
        assert_eq!(pair.superblock(0).role, ReplicaRole::Target);
    }
}

/// `pause` and `break` take effect during a resync. A broken mirror copies nothing.
#[test]
fn pause_and_break_interrupt_a_resync() {
    for (desired, shown) in
        [(DesiredState::Paused, MirrorState::Paused), (DesiredState::Detached, MirrorState::Broken)]
    {
        let pair = Pair::new(7, |peer| peer.pace.max_bytes_per_s = Some(1 << 20));
        for block in 0..64 {
            pair.write(0, block, 1).expect("both are there");
        }
        pair.on(0, |mirror| async move { mirror.resync_all(0) }).expect("there is one");
        pair.until(0, MirrorState::Resynchronizing);
        pair.sim.run_for(Duration::from_millis(500));
        pair.on(0, move |mirror| async move { mirror.set_desired_state(0, desired).await })
            .expect("a sound disk");
        assert_eq!(pair.state(0), shown);
        pair.sim.run_for(Duration::from_millis(500));
        let before = pair.peer_status(0).resync_done_bytes;
        pair.sim.run_for(A_WHILE);
        assert_eq!((pair.peer_status(0).resync_done_bytes, pair.state(0)), (before, shown));
        pair.write(0, 3, 2).expect("it runs degraded");
        pair.on(
            0,
            |mirror| async move { mirror.set_desired_state(0, DesiredState::Connected).await },
        )
        .expect("a sound disk");
        pair.becomes_in_sync(0);
    }
}

/// Orders that make no sense in a state are refused, and say why.
#[test]
fn orders_are_refused_with_reasons() {
    let pair = Pair::new(8, |_| {});
    let refused = |refusal| Err(CommandError::Role(RoleError::Refused(refusal)));
    let pause = |index: usize| {
        pair.on(
            index,
            |mirror| async move { mirror.set_desired_state(0, DesiredState::Paused).await },
        )
    };
    assert_eq!(pause(1), refused(OrderRefusal::NotSource));
    pair.cut();
    pair.write(0, 6, 1).expect("it runs degraded");
    failover(&pair, 1);
    pair.write(1, 6, 2).expect("it runs degraded");
    pair.network().heal();
    pair.until(1, MirrorState::SplitBrain);
    let carry_on = pair
        .on(1, |mirror| async move { mirror.set_desired_state(0, DesiredState::Connected).await });
    assert_eq!(carry_on, refused(OrderRefusal::SplitBrain));
}

/// The peer's operator forces a failover while the role is handed to the peer. The old source,
/// whose offer is declined then, does not serve again.
#[test]
fn forced_failover_during_switchover_leaves_one_source() {
    for seed in 0..10 {
        let pair = Pair::new(seed, |_| {});
        pair.write(0, 5, 1).expect("both are there");
        let (next, world, node) = (pair.mirror(1), pair.sim.world(), pair.nodes[1]);
        let forced = Rc::new(RefCell::new(None));
        let forcing = forced.clone();
        pair.network().set_outcome(move |request| {
            if matches!(request, PeerRequest::Promote { .. }) && forcing.borrow().is_none() {
                let next = next.clone();
                let task = world.spawn_on(node, async move { next.failover().await });
                *forcing.borrow_mut() = Some(task);
            }
            CallOutcome::Arrives
        });
        let mirror = pair.mirror(0);
        pair.sim.spawn_on(pair.nodes[0], async move {
            let _ = mirror.switchover(0).await;
        });
        at_most_one_serves(&pair, A_WHILE);
        assert!(forced.borrow().is_some(), "the role was not offered");
        assert_eq!((pair.active(), pair.read(1, 5)), (vec![1], 1), "seed {seed}");
        pair.becomes_in_sync(1);
    }
}

/// As above with three nodes: the third one is forced, and the offer reaches the second one before
/// or after that.
#[test]
fn forced_failover_elsewhere_in_switchover_is_safe() {
    for seed in 0..20 {
        let trio = Trio::new(seed, |_| {});
        trio.write(0, 5, 1).expect("all are there");
        let results = Rc::new(RefCell::new((None, None)));
        let (mirror, moved) = (trio.mirror(0), results.clone());
        trio.sim.spawn_on(trio.nodes[0], async move {
            let result = mirror.switchover(0).await;
            moved.borrow_mut().0 = Some(result);
        });
        trio.sim.run_for(Duration::from_micros(300 * seed));
        let (mirror, forced) = (trio.mirror(2), results.clone());
        trio.sim.spawn_on(trio.nodes[2], async move {
            let result = mirror.failover().await;
            forced.borrow_mut().1 = Some(result);
        });
        at_most_one_serves(&trio, A_WHILE);
        assert_eq!(trio.active().len(), 1, "seed {seed}: {:?}", results.borrow());
    }
}

/// A source that answers and does not confirm that it stopped keeps its role, whatever happened to
/// the request. Repeated, the order succeeds.
#[test]
fn forced_failover_waits_for_reachable_source() {
    let pair = Pair::new(23, |_| {});
    pair.write(0, 5, 1).expect("both are there");
    pair.network().set_outcome(|request| match request {
        PeerRequest::Depose { .. } => CallOutcome::Lost,
        _ => CallOutcome::Arrives,
    });
    let refused = pair.on(1, |mirror| async move { mirror.failover().await });
    assert!(refused.is_err(), "the source serves on");
    assert_eq!(pair.active(), [0]);
    pair.network().set_outcome(|_| CallOutcome::Arrives);
    failover(&pair, 1);
    at_most_one_serves(&pair, A_WHILE);
    assert_eq!(pair.active(), [1]);
}

/// Two operators order a failover at the same time, on both targets of a source that was stopped,
/// or by force on targets that reach each other: one becomes the source.
#[test]
fn concurrent_failovers_make_one_source() {
    for force in [false, true] {
        let (mut served, results) = (0, Rc::new(RefCell::new(Vec::new())));
        for seed in 0..20 {
            let trio = Trio::new(seed, |_| {});
            trio.write(0, 5, 1).expect("all are there");
            match force {
                false => {
                    trio.on(0, |mirror| async move { mirror.stop().await }).expect("a sound disk");
                }
                true => trio.end(0, false),
            }
            trio.sim.run_for(Duration::from_secs(1));
            for index in [1, 2] {
                let (mirror, results) = (trio.mirror(index), results.clone());
                trio.sim.spawn_on(trio.nodes[index], async move {
                    let result = match force {
                        false => mirror.failover_if_unserved().await,
                        true => mirror.failover().await,
                    };
                    results.borrow_mut().push((seed, index, result));
                });
                trio.sim.run_for(Duration::from_micros(50 * seed));
            }
            at_most_one_serves(&trio, A_WHILE);
            served += trio.active().len();
        }
        assert!(served >= 15, "{served} of 20 made a source: {:?}", results.borrow());
    }
}

/// A stopped source that answers leads: neither target takes its role without force, so it never
/// consents to two claims, of which the second would replace the successor that it recorded.
#[test]
fn stopped_source_that_answers_is_not_claimed() {
    for seed in 0..5 {
        let trio = Trio::new(seed, |_| {});
        trio.write(0, 5, 1).expect("all are there");
        // It meets no peer as its source, so it does not serve again.
        trio.network().set_outcome(|request| match request {
            PeerRequest::Attach(_) => CallOutcome::Lost,
            PeerRequest::Claim { .. } => panic!("the role is claimed"),
            _ => CallOutcome::Arrives,
        });
        trio.on(0, |mirror| async move { mirror.stop().await }).expect("a sound disk");
        // The targets notice that their sessions have ended.
        trio.sim.run_for(Duration::from_millis(50));
        for index in [2, 1] {
            let refused = Err(RoleError::Refused(OrderRefusal::PeerLeads));
            assert_eq!(careful_failover(&trio, index), refused, "seed {seed}");
        }
        assert_eq!(trio.superblock(0).designated_successor, None);
        trio.network().set_outcome(|_| CallOutcome::Arrives);
        at_most_one_serves(&trio, A_WHILE);
        assert_eq!(trio.active(), [0], "seed {seed}");
    }
}
