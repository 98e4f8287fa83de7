//! Hung disk: hosts are served or refused, and orders are answered within a minute.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use flagstone_mirror::ondisk::superblock::ReplicaRole;
use flagstone_mirror::state::machine::OrderRefusal;
use flagstone_mirror::state::status::{DesiredState, MirrorState};
use flagstone_mirror::{CommandError, RoleError};
use flagstone_runtime::sim::DiskFaults;

use super::super::pair::{BLOCK, DATA, Pair, fill};
use super::{A_WHILE, failover};

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

/// A source whose own disk hangs serves its hosts through the target that is in sync, and the role
/// can be moved, given up or stopped within a minute. Writes that were given up never reach a
/// replica that was opened again.
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
    pair.network().heal();
    pair.becomes_in_sync(0);
}

/// A disk that hangs only after the hosts were refused delays no order for longer than a minute.
/// The role still moves to the peer, and orders that end the service report the disk.
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

/// A deposed source whose flush failed, or whose disk hung until its operator's order gave it up,
/// is reopened when the disk is back, as a target is. Its data is kept until the operator decides.
#[test]
fn deposed_source_with_failed_disk_is_reopened() {
    for hangs in [false, true] {
        let pair = Pair::new(24, |_| {});
        pair.cut();
        pair.write(0, 6, 1).expect("it runs degraded");
        failover(&pair, 1);
        pair.write(1, 6, 2).expect("it runs degraded");
        pair.network().heal();
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
        assert_eq!(pair.leg(0)[6 * BLOCK as usize], 1, "its data is kept");
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

/// A replica that is closed to be reopened waits for a write that its disk holds. An order is
/// refused meanwhile, and does not wait with it.
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
    assert_eq!(refused, Err(RoleError::Refused(OrderRefusal::Closed)));
    assert!(pair.sim.now() - began < Duration::from_secs(60));
}
