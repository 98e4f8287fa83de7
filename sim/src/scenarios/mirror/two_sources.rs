//! Two nodes that could serve the same volume: after forced failovers, restarts, pauses and cut
//! links at most one of them goes on, and no host reads data that is older than what it was
//! acknowledged.
//!
//! Leaves out host protocols: hosts call the mirror directly, and a mirror that does not serve
//! stands for an inaccessible path.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use flagstone_blockdev::IoError;
use flagstone_mirror::ondisk::superblock::ReplicaRole;
use flagstone_mirror::state::machine::Refusal;
use flagstone_mirror::state::status::{DesiredState, MirrorState};
use flagstone_mirror::wire::peer::PeerRequest;
use flagstone_mirror::{AfterSplitBrain, CommandError, RoleError};
use flagstone_runtime::sim::DiskFaults;

use super::link::{Fate, Stage};
use super::pair::{DATA, Group, Pair, Trio, fill};

/// Longer than the keep-alive timeout, the reconnect delay and the time for which peers are asked.
const A_WHILE: Duration = Duration::from_secs(12);

const SERVES: Result<(), RoleError> = Err(RoleError::Refused(Refusal::PeerServes));
const SILENT: Result<(), RoleError> = Err(RoleError::Refused(Refusal::PeerSilent));

fn failover(pair: &Pair, index: usize) {
    pair.on(index, |mirror| async move { mirror.failover().await }).expect("complete data");
}

fn careful_failover<const N: usize>(pair: &Group<N>, index: usize) -> Result<(), RoleError> {
    pair.on(index, |mirror| async move { mirror.failover_if_unserved().await })
}

/// Runs for a while, and fails when this node serves at any moment.
fn never_serves(pair: &Pair, index: usize, span: Duration) {
    let until = pair.sim.now() + span;
    while pair.sim.now() < until {
        pair.sim.run_for(Duration::from_millis(1));
        assert!(!pair.active().contains(&index), "node {index} serves");
    }
}

/// Starts a node as its process does, without waiting for it to serve.
fn begin(pair: &Pair, index: usize) {
    pair.sim.restart(pair.nodes[index]);
    pair.open(index);
    let mirror = pair.mirror(index);
    pair.sim.spawn_on(pair.nodes[index], async move {
        let _ = mirror.start().await;
    });
}

/// A cut link says nothing about the other node: only `--force` promotes. When the link is mended
/// the later source goes on; the other refuses its hosts, and keeps its data for the operator.
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
            pair.hub().heal();
            pair.until(0, MirrorState::SplitBrain);
            pair.until(1, MirrorState::SplitBrain);
            pair.sim.run_for(A_WHILE);
            assert_eq!(pair.active(), [1], "{policy:?}");
            assert_eq!(pair.superblock(0).role, ReplicaRole::Deposed);
            assert_eq!(pair.write(0, 7, 3), Err(IoError::Unreachable));
            assert_eq!(pair.leg(0)[6 * super::pair::BLOCK as usize], 1, "its data is kept");
            // Also after a restart, with the peer or without it.
            pair.end(0, false);
            begin(&pair, 0);
            never_serves(&pair, 0, A_WHILE);
            pair.cut();
            never_serves(&pair, 0, A_WHILE);
            pair.hub().heal();
            pair.on(0, |mirror| async move { mirror.resolve_keep_peers(0).await })
                .expect("a split brain");
            pair.becomes_in_sync(1);
        }
    }
}

/// If only one of both was written, it goes on, whichever was promoted later: nothing is lost.
#[test]
fn healed_link_leaves_the_only_written_source() {
    let pair = Pair::new(9, |_| {});
    pair.cut();
    pair.write(0, 6, 1).expect("it runs degraded");
    failover(&pair, 1);
    pair.hub().heal();
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
    pair.hub().heal();
    pair.until(0, MirrorState::SplitBrain);
    pair.sim.run_for(A_WHILE);
    assert_eq!(pair.active(), [1]);
    pair.on(1, |mirror| async move { mirror.demote().await }).expect("a sound disk");
    pair.on(0, |mirror| async move { mirror.resolve_keep_mine(0).await }).expect("a split brain");
    pair.becomes_in_sync(0);
    assert_eq!((pair.active(), pair.read(0, 6)), (vec![0], 1));
}

/// A serves with the operator's consent when B, which was promoted earlier and written to, returns.
/// B does not serve for a moment, whichever policy decides about its data.
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
                    assert_eq!(pair.leg(1)[6 * super::pair::BLOCK as usize], 2, "it is kept");
                    assert_eq!(pair.state(0), MirrorState::SplitBrain);
                }
                AfterSplitBrain::KeepServing => pair.becomes_in_sync(0),
            }
        }
    }
}

/// A source whose peer is recorded as out of date asks it before it serves. A peer that does not
/// answer within five seconds is not waited for.
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
    pair.hub().heal();
    begin(&pair, 0);
    never_serves(&pair, 0, A_WHILE);
    assert_eq!((pair.active(), pair.read(1, 6)), (vec![1], 2));
    // The peer was promoted later, and has stopped.
    pair.end(0, false);
    pair.on(1, |mirror| async move { mirror.stop().await }).expect("a sound disk");
    begin(&pair, 0);
    never_serves(&pair, 0, A_WHILE);
}

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
    assert_eq!(pair.leg(0)[6 * super::pair::BLOCK as usize], 1, "its data is kept");
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
/// data that the new source has changed, and acknowledges no write alone, so no split brain follows.
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

/// A deposed source whose disk hangs refuses its hosts at once.
#[test]
fn deposed_source_with_hung_disk_refuses_at_once() {
    let pair = Pair::new(6, |_| {});
    pair.write(0, 5, 1).expect("both are there");
    pair.sim.stall(pair.nodes[0], DATA, Duration::from_secs(60));
    let mirror = pair.mirror(0);
    pair.sim.spawn_on(pair.nodes[0], async move {
        let _ = fill(&mirror, 7, 1).await;
    });
    pair.sim.run_for(Duration::from_millis(10));
    failover(&pair, 1);
    assert_eq!(pair.active(), [1]);
    pair.write(1, 5, 2).expect("it runs degraded");
    pair.sim.run_for(Duration::from_secs(90));
    pair.becomes_in_sync(1);
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
    assert_eq!(pause(1), refused(Refusal::NotSource));
    pair.cut();
    pair.write(0, 6, 1).expect("it runs degraded");
    failover(&pair, 1);
    pair.write(1, 6, 2).expect("it runs degraded");
    pair.hub().heal();
    pair.until(1, MirrorState::SplitBrain);
    let carry_on = pair
        .on(1, |mirror| async move { mirror.set_desired_state(0, DesiredState::Connected).await });
    assert_eq!(carry_on, refused(Refusal::SplitBrain));
}

/// A source whose own disk hangs serves its hosts through the target that is in sync, and the role
/// can be moved, given up or stopped within a minute. Writes that were given up never reach a replica
/// that was opened again.
#[test]
fn hung_disk_stalls_neither_hosts_nor_orders() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Act {
        None,
        Switchover,
        Stop,
        Demote,
    }
    for act in [Act::None, Act::Switchover, Act::Stop, Act::Demote] {
        let pair = Pair::new(10, |_| {});
        pair.write(0, 5, 1).expect("both are there");
        pair.sim.stall(pair.nodes[0], DATA, Duration::from_secs(600));
        let began = pair.sim.now();
        let (mirror, done) = (pair.mirror(0), Rc::new(RefCell::new(None)));
        let written = done.clone();
        pair.sim.spawn_on(pair.nodes[0], async move {
            let result = fill(&mirror, 6, 2).await;
            *written.borrow_mut() = Some(result);
        });
        pair.sim.run_for(Duration::from_millis(50));
        let ended = pair.on(0, move |mirror| async move {
            match act {
                Act::None => true,
                Act::Switchover => mirror.switchover(0).await.is_ok(),
                // The superblock of a disk that hangs cannot be written.
                Act::Stop => mirror.stop().await.is_err(),
                Act::Demote => mirror.demote().await.is_err(),
            }
        });
        assert!(ended, "{act:?}");
        pair.sim.run_until(Duration::from_millis(10), || done.borrow().is_some());
        assert!(pair.sim.now() - began < Duration::from_secs(60), "{act:?}");
        match act {
            Act::None => {
                assert_eq!(*done.borrow(), Some(Ok(())));
                assert_eq!((pair.read(0, 5), pair.read(0, 6)), (1, 2), "through the target");
            }
            Act::Switchover => {
                assert_eq!(*done.borrow(), Some(Ok(())));
                assert_eq!((pair.active(), pair.read(1, 6)), (vec![1], 2));
            }
            Act::Stop | Act::Demote => assert_eq!(pair.active(), [0; 0]),
        }
    }
}

/// Without a target in sync, a hung disk is waited for: no other copy exists.
#[test]
fn hung_disk_without_target_is_waited_for() {
    let pair = Pair::new(11, |_| {});
    pair.cut();
    pair.write(0, 5, 1).expect("it runs degraded");
    pair.sim.stall(pair.nodes[0], DATA, Duration::from_secs(60));
    pair.write(0, 6, 2).expect("the disk answers in the end");
    assert_eq!(pair.read(0, 6), 2);
    pair.hub().heal();
    pair.becomes_in_sync(0);
}

/// A source with two targets returns after one of them was promoted. It meets the other target first,
/// which is equal, and asks all peers before it takes the role.
#[test]
fn returning_source_asks_the_third_node() {
    let trio = Trio::new(13, |_| {});
    trio.write(0, 5, 1).expect("all are there");
    trio.end(0, false);
    trio.part(1, 2);
    trio.on(1, |mirror| async move { mirror.failover().await }).expect("complete data");
    trio.write(1, 6, 2).expect("it runs degraded");
    // Its link to the promoted node carries questions, and no session.
    trio.hub().set_fate(|request| match request {
        PeerRequest::Attach(_) => Fate::Lost,
        _ => Fate::Arrives,
    });
    trio.restart(0);
    let until = trio.sim.now() + A_WHILE;
    while trio.sim.now() < until {
        trio.sim.run_for(Duration::from_millis(1));
        assert_eq!(trio.active(), [1]);
    }
    trio.hub().set_fate(|_| Fate::Arrives);
    trio.hub().heal();
    trio.becomes_in_sync(1);
}

/// Runs for a while. At no moment do two nodes serve.
fn at_most_one_serves<const N: usize>(group: &Group<N>, span: Duration) {
    let until = group.sim.now() + span;
    while group.sim.now() < until {
        group.sim.run_for(Duration::from_millis(1));
        assert!(group.active().len() < 2, "nodes {:?} serve", group.active());
    }
}

/// A disk that hangs only after the hosts were refused delays no order for longer than a minute. The
/// role still moves to the peer, and orders that end the service report the disk.
#[test]
fn disk_that_hangs_after_refusal_delays_no_order() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Act {
        Switchover,
        Stop,
        Demote,
    }
    for act in [Act::Switchover, Act::Stop, Act::Demote] {
        let pair = Pair::new(20, |_| {});
        pair.write(0, 5, 1).expect("both are there");
        let (mirror, done) = (pair.mirror(0), Rc::new(RefCell::new(None)));
        let ended = done.clone();
        pair.sim.spawn_on(pair.nodes[0], async move {
            let ok = match act {
                Act::Switchover => mirror.switchover(0).await.is_ok(),
                Act::Stop => mirror.stop().await.is_ok(),
                Act::Demote => mirror.demote().await.is_ok(),
            };
            *ended.borrow_mut() = Some(ok);
        });
        pair.sim.run_until(Duration::from_micros(1), || pair.active().is_empty());
        assert_eq!(*done.borrow(), None, "{act:?} ended before the disk hangs");
        pair.sim.stall(pair.nodes[0], DATA, Duration::from_secs(600));
        pair.sim.run_for(Duration::from_secs(60));
        match act {
            Act::Switchover => {
                assert_eq!(*done.borrow(), Some(true));
                assert_eq!((pair.active(), pair.read(1, 5)), (vec![1], 1));
            }
            // The superblock cannot be written.
            Act::Stop | Act::Demote => {
                assert_eq!(*done.borrow(), Some(false), "{act:?}");
                assert_eq!(pair.active(), [0; 0]);
            }
        }
    }
}

/// A demoted source stays demoted. Its link is up again before the role is recorded, and met a peer that
/// it led as the source. Found with real processes: it served again after 80 ms.
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

/// A target whose disk hangs answers its operator's failover within a minute.
#[test]
fn failover_with_hung_disk_ends_with_an_error() {
    let pair = Pair::new(21, |_| {});
    pair.cut();
    pair.sim.stall(pair.nodes[1], DATA, Duration::from_secs(600));
    let began = pair.sim.now();
    let failed = pair.on(1, |mirror| async move { mirror.failover().await });
    assert!(matches!(failed, Err(RoleError::Io(_))), "{failed:?}");
    assert!(pair.sim.now() - began < Duration::from_secs(60));
    assert_eq!(pair.active(), [0]);
}

/// A deposed source whose flush failed, or whose disk hung until its operator's order gave it up, is
/// reopened when the disk is back, as a target is. Its data is kept until the operator decides.
#[test]
fn deposed_source_with_failed_disk_is_reopened() {
    for hangs in [false, true] {
        let pair = Pair::new(24, |_| {});
        pair.cut();
        pair.write(0, 6, 1).expect("it runs degraded");
        failover(&pair, 1);
        pair.write(1, 6, 2).expect("it runs degraded");
        pair.hub().heal();
        pair.until(1, MirrorState::SplitBrain);
        pair.sim.run_for(A_WHILE);
        match hangs {
            true => pair.sim.stall(pair.nodes[0], DATA, Duration::from_secs(60)),
            false => {
                let faults = DiskFaults { flush_errors: 1.0, ..DiskFaults::default() };
                pair.sim.set_faults(pair.nodes[0], DATA, faults);
            }
        }
        let demoted = pair.on(0, |mirror| async move { mirror.demote().await });
        assert!(demoted.is_err(), "the role cannot be recorded");
        assert_eq!(pair.mirror(0).has_failed(), hangs);
        pair.sim.set_faults(pair.nodes[0], DATA, DiskFaults::default());
        assert_eq!(pair.superblock(0).role, ReplicaRole::Deposed);
        assert!(pair.mirror(0).is_idle_target(), "its server reopens it");
        pair.reopen(0);
        assert!(pair.mirror(0).is_unverified() && !pair.mirror(0).has_failed());
        pair.sim.run_for(A_WHILE);
        assert_eq!(pair.leg(0)[6 * super::pair::BLOCK as usize], 1, "its data is kept");
        pair.on(0, |mirror| async move { mirror.resolve_keep_peers(0).await })
            .expect("a split brain");
        pair.becomes_in_sync(1);
    }
}

/// `pause` on a source with a hung disk and no other copy reports that, and takes effect later.
/// Its hosts stay connected.
#[test]
fn pause_with_hung_disk_is_answered_and_takes_effect() {
    let pair = Pair::new(22, |_| {});
    pair.cut();
    pair.write(0, 5, 1).expect("it runs degraded");
    pair.sim.stall(pair.nodes[0], DATA, Duration::from_secs(40));
    let began = pair.sim.now();
    let paused =
        pair.on(0, |mirror| async move { mirror.set_desired_state(0, DesiredState::Paused).await });
    assert_eq!(paused, Err(CommandError::DeviceBusy));
    assert!(pair.sim.now() - began < Duration::from_secs(30));
    pair.sim.run_for(Duration::from_secs(30));
    assert_eq!((pair.state(0), pair.read(0, 5)), (MirrorState::Paused, 1));
}

/// The peer's operator forces a failover while the role is handed to the peer. The old source, whose
/// offer is declined then, does not serve again.
#[test]
fn forced_failover_during_switchover_leaves_one_source() {
    for seed in 0..10 {
        let pair = Pair::new(seed, |_| {});
        pair.write(0, 5, 1).expect("both are there");
        let (next, world, node) = (pair.mirror(1), pair.sim.world(), pair.nodes[1]);
        let forced = Rc::new(RefCell::new(None));
        let forcing = forced.clone();
        pair.hub().set_fate(move |request| {
            if matches!(request, PeerRequest::Promote { .. }) && forcing.borrow().is_none() {
                let next = next.clone();
                let task = world.spawn_on(node, async move { next.failover().await });
                *forcing.borrow_mut() = Some(task);
            }
            Fate::Arrives
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

/// As above with three nodes: the third one is forced, and the offer reaches the second one before or
/// after that.
#[test]
fn forced_failover_elsewhere_during_switchover_leaves_one_source() {
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
    pair.hub().set_fate(|request| match request {
        PeerRequest::Depose { .. } => Fate::Lost,
        _ => Fate::Arrives,
    });
    let refused = pair.on(1, |mirror| async move { mirror.failover().await });
    assert!(refused.is_err(), "the source serves on");
    assert_eq!(pair.active(), [0]);
    pair.hub().set_fate(|_| Fate::Arrives);
    failover(&pair, 1);
    at_most_one_serves(&pair, A_WHILE);
    assert_eq!(pair.active(), [1]);
}

/// Two operators order a failover at the same time, on both targets of a source that was stopped, or
/// by force on targets that reach each other: one becomes the source.
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
        trio.hub().set_fate(|request| match request {
            PeerRequest::Attach(_) => Fate::Lost,
            PeerRequest::Claim { .. } => panic!("the role is claimed"),
            _ => Fate::Arrives,
        });
        trio.on(0, |mirror| async move { mirror.stop().await }).expect("a sound disk");
        // The targets notice that their sessions have ended.
        trio.sim.run_for(Duration::from_millis(50));
        for index in [2, 1] {
            let refused = Err(RoleError::Refused(Refusal::PeerLeads));
            assert_eq!(careful_failover(&trio, index), refused, "seed {seed}");
        }
        assert_eq!(trio.superblock(0).designated_successor, None);
        trio.hub().set_fate(|_| Fate::Arrives);
        at_most_one_serves(&trio, A_WHILE);
        assert_eq!(trio.active(), [0], "seed {seed}");
    }
}

/// A source that was stopped and returns while another node is promoted does not serve beside it.
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
        trio.hub().heal();
        let mirror = trio.mirror(2);
        trio.sim.spawn_on(trio.nodes[2], async move {
            let _ = mirror.failover_if_unserved().await;
        });
        at_most_one_serves(&trio, A_WHILE);
        assert_eq!(trio.active().len(), 1, "seed {seed}");
    }
}

/// A source returns after a forced failover of one of its targets, which is cut off by now. It meets
/// the other target, which the promoted node has told of its epoch and not brought up to date, or not
/// completely: equal data does not entitle the source. The target may restart in between.
#[test]
fn returning_source_yields_to_an_announced_epoch() {
    for seed in 0..20 {
        let trio = Trio::new(seed, |_| {});
        trio.write(0, 5, 1).expect("all are there");
        trio.end(0, false);
        let copies = seed % 2 == 1;
        trio.hub().set_fate(move |request| match request {
            PeerRequest::Attach(_) if !copies => Fate::Lost,
            PeerRequest::EndResync { .. } => Fate::Lost,
            _ => Fate::Arrives,
        });
        trio.on(1, |mirror| async move { mirror.failover().await }).expect("complete data");
        trio.sim.run_for(Duration::from_secs(1));
        trio.isolate(1);
        trio.write(1, 6, 2).expect("it runs degraded");
        if seed % 4 < 2 {
            trio.end(2, true);
            trio.restart(2);
        }
        trio.hub().set_fate(|_| Fate::Arrives);
        trio.restart(0);
        at_most_one_serves(&trio, A_WHILE);
        trio.hub().heal();
        trio.becomes_in_sync(1);
        assert_eq!((trio.active(), trio.read(1, 6)), (vec![1], 2), "seed {seed}");
    }
}

/// As above, while the announcement arrives: the source has identified the target before, and attaches
/// afterwards.
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
        trio.hub().set_watcher(move |node, request, stage| {
            let mut seen = seen.borrow_mut();
            match request {
                // A source that was admitted before may go on.
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

/// The winner of a claim crashes before it has recorded its promotion. The deposed source stays so
/// until an order, although its peer does not serve and has no more data than it.
#[test]
fn deposed_source_waits_for_an_order() {
    for alone in [false, true] {
        let pair = Pair::new(30, |_| {});
        pair.write(0, 5, 1).expect("both are there");
        if alone {
            pair.cut();
            pair.write(0, 6, 2).expect("it runs degraded");
            pair.sim.run_for(A_WHILE);
            pair.hub().set_fate(|request| match request {
                PeerRequest::Attach(_) => Fate::Lost,
                _ => Fate::Arrives,
            });
            pair.hub().heal();
        }
        let mirror = pair.mirror(1);
        pair.sim.spawn_on(pair.nodes[1], async move {
            let _ = mirror.failover().await;
        });
        let deposed = || pair.superblock(0).role == ReplicaRole::Deposed;
        pair.sim.run_until(Duration::from_micros(1), deposed);
        assert_eq!(pair.active(), [0; 0], "the order is answered later");
        pair.end(1, true);
        pair.hub().set_fate(|_| Fate::Arrives);
        pair.restart(1);
        for index in 0..2 {
            never_serves(&pair, index, A_WHILE);
        }
        assert_eq!(pair.superblock(1).role, ReplicaRole::Target);
        // The data of the deposed source is the newer one, or both are equal.
        let refused = alone.then_some(Err(RoleError::Refused(Refusal::PeerLeads)));
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

/// A replica that is closed to be reopened waits for a write that its disk holds. An order is refused
/// meanwhile, and does not wait with it.
#[test]
fn closing_replica_answers_orders() {
    let pair = Pair::new(31, |_| {});
    pair.sim.stall(pair.nodes[1], DATA, Duration::from_secs(600));
    let failed = pair.on(1, |mirror| async move { mirror.failover().await });
    assert!(matches!(failed, Err(RoleError::Io(_))), "{failed:?}");
    let mirror = pair.mirror(1);
    pair.sim.spawn_on(pair.nodes[1], async move {
        mirror.abandon_target().await;
    });
    pair.sim.run_for(Duration::from_secs(1));
    let began = pair.sim.now();
    let refused = pair.on(1, |mirror| async move { mirror.failover().await });
    assert_eq!(refused, Err(RoleError::Refused(Refusal::Closed)));
    assert!(pair.sim.now() - began < Duration::from_secs(60));
}
