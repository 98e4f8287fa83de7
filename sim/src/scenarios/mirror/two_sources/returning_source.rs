//! Returning source: after a restart, a pause or a mended link, at most one of the sources serves.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use flagstone_blockdev::IoError;
use flagstone_mirror::ondisk::superblock::ReplicaRole;
use flagstone_mirror::state::machine::OrderRefusal;
use flagstone_mirror::state::status::MirrorState;
use flagstone_mirror::wire::peer::PeerRequest;
use flagstone_mirror::{AfterSplitBrain, RoleError};

use super::super::link::{CallOutcome, Stage};
use super::super::pair::{BLOCK, DATA, Pair, Trio};
use super::{A_WHILE, SILENT, at_most_one_serves, begin, careful_failover, failover, never_serves};

/// A cut link proves nothing about the other node: only `--force` promotes. When the link is back,
/// the later source serves; the other refuses its hosts, and keeps its data for the operator.
#[test]
fn healed_link_leaves_the_later_source() {
    for policy in [AfterSplitBrain::Manual, AfterSplitBrain::KeepServing] {
        {
            let pair = Pair::new(
                1,
                match policy {
                    AfterSplitBrain::Manual => |_| {},
                    AfterSplitBrain::KeepServing => {
                        |peer| peer.after_split_brain = AfterSplitBrain::KeepServing
                    }
                },
            );
            pair.write(0, 5, 1).expect("both are there");
            pair.cut();
            pair.write(0, 6, 1).expect("it runs degraded");
            pair.sim.run_for(A_WHILE);
            assert_eq!(careful_failover(&pair, 1), SILENT);
            assert_eq!(pair.active(), [0]);
            failover(&pair, 1);
            pair.write(1, 6, 2).expect("it runs degraded");
            pair.network().heal();
            pair.until(0, MirrorState::SplitBrain);
            pair.until(1, MirrorState::SplitBrain);
            pair.sim.run_for(A_WHILE);
            assert_eq!(pair.active(), [1], "{policy:?}");
            assert_eq!(pair.superblock(0).role, ReplicaRole::Deposed);
            assert_eq!(pair.write(0, 7, 3), Err(IoError::Unreachable));
            assert_eq!(pair.leg(0)[6 * BLOCK as usize], 1, "its data is kept");
            // Also after a restart, with the peer or without it.
            pair.end(0, false);
            begin(&pair, 0);
            never_serves(&pair, 0, A_WHILE);
            pair.cut();
            never_serves(&pair, 0, A_WHILE);
            pair.network().heal();
            pair.on(0, |mirror| async move { mirror.resolve_keep_peers(0).await })
                .expect("a split brain");
            pair.becomes_in_sync(1);
        }
    }
}

/// If only one of both was written, it serves, whichever was promoted later, so nothing is lost.
#[test]
fn healed_link_leaves_the_only_written_source() {
    let pair = Pair::new(9, |_| {});
    pair.cut();
    pair.write(0, 6, 1).expect("it runs degraded");
    failover(&pair, 1);
    pair.network().heal();
    pair.becomes_in_sync(0);
    assert_eq!((pair.active(), pair.read(0, 6)), (vec![0], 1));
}

/// The operator may also decide for the data of the deposed node.
#[test]
fn deposed_data_can_be_kept() {
    let pair = Pair::new(2, |_| {});
    pair.cut();
    pair.write(0, 6, 1).expect("it runs degraded");
    failover(&pair, 1);
    pair.write(1, 6, 2).expect("it runs degraded");
    pair.network().heal();
    pair.until(0, MirrorState::SplitBrain);
    pair.sim.run_for(A_WHILE);
    assert_eq!(pair.active(), [1]);
    pair.on(1, |mirror| async move { mirror.demote().await }).expect("a sound disk");
    pair.on(0, |mirror| async move { mirror.resolve_keep_mine(0).await }).expect("a split brain");
    pair.becomes_in_sync(0);
    assert_eq!((pair.active(), pair.read(0, 6)), (vec![0], 1));
}

/// A serves with the operator's consent when B returns, which was promoted earlier and written to.
/// B must not serve for a moment, whichever policy decides about its data.
#[test]
fn returning_source_yields_to_serving_peer() {
    for policy in [AfterSplitBrain::Manual, AfterSplitBrain::KeepServing] {
        for seed in 0..5 {
            let pair = Pair::new(
                seed,
                match policy {
                    AfterSplitBrain::Manual => |_| {},
                    AfterSplitBrain::KeepServing => {
                        |peer| peer.after_split_brain = AfterSplitBrain::KeepServing
                    }
                },
            );
            pair.write(0, 5, 1).expect("both are there");
            pair.end(0, false);
            failover(&pair, 1);
            pair.write(1, 6, 2).expect("it runs degraded");
            pair.end(1, false);
            pair.restart(0);
            pair.sim.run_for(A_WHILE);
            assert_eq!(pair.active(), [0; 0], "the peer may be newer");
            failover(&pair, 0);
            pair.write(0, 6, 3).expect("it runs degraded");
            begin(&pair, 1);
            never_serves(&pair, 1, A_WHILE);
            assert_eq!((pair.active(), pair.read(0, 6)), (vec![0], 3));
            match policy {
                AfterSplitBrain::Manual => {
                    assert_eq!(pair.leg(1)[6 * BLOCK as usize], 2, "it is kept");
                    assert_eq!(pair.state(0), MirrorState::SplitBrain);
                }
                AfterSplitBrain::KeepServing => pair.becomes_in_sync(0),
            }
        }
    }
}

/// A source whose peer is recorded as out of date asks the peer before it serves. It waits at most
/// five seconds for an answer.
#[test]
fn restarted_source_asks_its_peer_first() {
    let pair = Pair::new(3, |_| {});
    pair.cut();
    pair.write(0, 6, 1).expect("it runs degraded");
    pair.end(0, false);
    begin(&pair, 0);
    never_serves(&pair, 0, Duration::from_secs(4));
    pair.sim.run_for(Duration::from_secs(2));
    assert_eq!((pair.active(), pair.read(0, 6)), (vec![0], 1), "it restarts alone");
    pair.end(0, false);
    failover(&pair, 1);
    pair.write(1, 6, 2).expect("it runs degraded");
    pair.network().heal();
    begin(&pair, 0);
    never_serves(&pair, 0, A_WHILE);
    assert_eq!((pair.active(), pair.read(1, 6)), (vec![1], 2));
    // The peer was promoted later, and has stopped.
    pair.end(0, false);
    pair.on(1, |mirror| async move { mirror.stop().await }).expect("a sound disk");
    begin(&pair, 0);
    never_serves(&pair, 0, A_WHILE);
}

/// Regression: a demoted source stays demoted. Its link was back before the role was recorded, and
/// it led at a handshake. In real processes, it served again after 80 ms.
#[test]
fn demoted_source_does_not_take_the_role_back() {
    for seed in 0..5 {
        let pair = Pair::new(seed, |_| {});
        pair.write(0, 5, 1).expect("both are there");
        let mirror = pair.mirror(0);
        pair.sim.spawn_on(pair.nodes[0], async move {
            mirror.demote().await.expect("the disk answers in the end");
        });
        pair.sim.run_until(Duration::from_micros(1), || pair.active().is_empty());
        pair.sim.stall(pair.nodes[0], DATA, Duration::from_secs(2));
        never_serves(&pair, 0, A_WHILE);
        assert_eq!(pair.superblock(0).role, ReplicaRole::Target);
        assert_eq!(careful_failover(&pair, 1), Ok(()));
        pair.becomes_in_sync(1);
    }
}

/// A source with two targets returns after one of them was promoted. Its first handshake is with
/// the other target, which is equal. It must ask all peers before it takes the role.
#[test]
fn returning_source_asks_the_third_node() {
    let trio = Trio::new(13, |_| {});
    trio.write(0, 5, 1).expect("all are there");
    trio.end(0, false);
    trio.part(1, 2);
    trio.on(1, |mirror| async move { mirror.failover().await }).expect("complete data");
    trio.write(1, 6, 2).expect("it runs degraded");
    // Its link to the promoted node carries questions, but no session.
    trio.network().set_outcome(|request| match request {
        PeerRequest::Attach(_) => CallOutcome::Lost,
        _ => CallOutcome::Arrives,
    });
    trio.restart(0);
    let until = trio.sim.now() + A_WHILE;
    while trio.sim.now() < until {
        trio.sim.run_for(Duration::from_millis(1));
        assert_eq!(trio.active(), [1]);
    }
    trio.network().set_outcome(|_| CallOutcome::Arrives);
    trio.network().heal();
    trio.becomes_in_sync(1);
}

/// A stopped source that returns while another node is promoted does not serve beside that node.
#[test]
fn returning_source_does_not_serve_beside_a_failover() {
    for seed in 0..20 {
        let trio = Trio::new(seed, |_| {});
        trio.write(0, 5, 1).expect("all are there");
        trio.on(0, |mirror| async move { mirror.stop().await }).expect("a sound disk");
        trio.end(0, false);
        trio.sim.run_for(Duration::from_secs(1));
        // The nodes that the two ask first.
        trio.part(0, 2);
        trio.sim.restart(trio.nodes[0]);
        trio.open(0);
        trio.sim.run_for(Duration::from_micros(200 * seed));
        trio.network().heal();
        let mirror = trio.mirror(2);
        trio.sim.spawn_on(trio.nodes[2], async move {
            let _ = mirror.failover_if_unserved().await;
        });
        at_most_one_serves(&trio, A_WHILE);
        assert_eq!(trio.active().len(), 1, "seed {seed}");
    }
}

/// A source returns after a forced failover of one of its targets, which is now cut off. Its
/// handshake is with the other target, which received the epoch from the promoted node, and was not
/// brought up to date, or not completely: equal data does not entitle the source. The target may
/// restart in between.
#[test]
fn returning_source_yields_to_an_announced_epoch() {
    for seed in 0..20 {
        let trio = Trio::new(seed, |_| {});
        trio.write(0, 5, 1).expect("all are there");
        trio.end(0, false);
        let copies = seed % 2 == 1;
        trio.network().set_outcome(move |request| match request {
            PeerRequest::Attach(_) if !copies => CallOutcome::Lost,
            PeerRequest::EndResync { .. } => CallOutcome::Lost,
            _ => CallOutcome::Arrives,
        });
        trio.on(1, |mirror| async move { mirror.failover().await }).expect("complete data");
        trio.sim.run_for(Duration::from_secs(1));
        trio.isolate(1);
        trio.write(1, 6, 2).expect("it runs degraded");
        if seed % 4 < 2 {
            trio.end(2, true);
            trio.restart(2);
        }
        trio.network().set_outcome(|_| CallOutcome::Arrives);
        trio.restart(0);
        at_most_one_serves(&trio, A_WHILE);
        trio.network().heal();
        trio.becomes_in_sync(1);
        assert_eq!((trio.active(), trio.read(1, 6)), (vec![1], 2), "seed {seed}");
    }
}

/// As above, while the announcement arrives: the source has identified the target earlier, and
/// attaches afterwards.
#[test]
fn source_does_not_attach_across_an_announcement() {
    let mut refused = 0;
    for seed in 0..40 {
        let trio = Trio::new(seed, |_| {});
        trio.write(0, 5, 1).expect("all are there");
        let source = trio.superblock(0).replica;
        trio.end(0, false);
        trio.sim.run_for(Duration::from_secs(1));
        trio.part(0, 1);
        let (third, announced) = (trio.nodes[2], Rc::new(RefCell::new((false, 0, false))));
        trio.sim.restart(trio.nodes[0]);
        trio.open(0);
        let (returning, seen) = (trio.mirror(0), announced.clone());
        trio.network().set_watcher(move |node, request, stage| {
            let mut seen = seen.borrow_mut();
            match request {
                // A source that was admitted earlier may serve.
                PeerRequest::Depose { .. } if node == third && stage == Stage::Done => {
                    seen.0 = !seen.2 && !returning.is_serving();
                }
                PeerRequest::Attach(attach) if attach.source == source && !seen.0 => {
                    seen.2 |= stage == Stage::Done;
                }
                PeerRequest::Attach(attach) if attach.source == source => {
                    assert_ne!(stage, Stage::Done, "seed {seed}");
                    seen.1 += u32::from(stage == Stage::Refused);
                }
                _ => {}
            }
        });
        let mirror = trio.mirror(0);
        trio.sim.spawn_on(trio.nodes[0], async move {
            let _ = mirror.start().await;
        });
        trio.sim.run_for(Duration::from_micros(50 * seed));
        let mirror = trio.mirror(1);
        trio.sim.spawn_on(trio.nodes[1], async move {
            let _ = mirror.failover().await;
        });
        trio.sim.run_for(Duration::from_secs(2));
        refused += announced.borrow().1;
    }
    assert!(refused > 0, "no source attached late");
}

/// The winner of a claim crashes before it has recorded its promotion. The deposed source stays
/// deposed until an order, although its peer does not serve and has no newer data.
#[test]
fn deposed_source_waits_for_an_order() {
    for alone in [false, true] {
        let pair = Pair::new(30, |_| {});
        pair.write(0, 5, 1).expect("both are there");
        if alone {
            pair.cut();
            pair.write(0, 6, 2).expect("it runs degraded");
            pair.sim.run_for(A_WHILE);
            pair.network().set_outcome(|request| match request {
                PeerRequest::Attach(_) => CallOutcome::Lost,
                _ => CallOutcome::Arrives,
            });
            pair.network().heal();
        }
        let mirror = pair.mirror(1);
        pair.sim.spawn_on(pair.nodes[1], async move {
            let _ = mirror.failover().await;
        });
        let deposed = || pair.superblock(0).role == ReplicaRole::Deposed;
        pair.sim.run_until(Duration::from_micros(1), deposed);
        assert_eq!(pair.active(), [0; 0], "the order is answered later");
        pair.end(1, true);
        pair.network().set_outcome(|_| CallOutcome::Arrives);
        pair.restart(1);
        for index in 0..2 {
            never_serves(&pair, index, A_WHILE);
        }
        assert_eq!(pair.superblock(1).role, ReplicaRole::Target);
        // The data of the deposed source is newer, or both are equal.
        let refused = alone.then_some(Err(RoleError::Refused(OrderRefusal::PeerLeads)));
        assert_eq!(careful_failover(&pair, 1), refused.unwrap_or(Ok(())));
        if alone {
            assert_eq!(careful_failover(&pair, 0), Ok(()));
            assert_eq!(pair.read(0, 6), 2);
        }
        pair.becomes_in_sync(usize::from(!alone));
        let epochs = [0, 1].map(|index| pair.superblock(index).epoch);
        assert_eq!(epochs[0], epochs[1], "both know the source's epoch");
    }
}
