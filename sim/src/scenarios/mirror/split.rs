//! Split brain, with and without an automatic policy.
//!
//! Left out, besides what [`super::pair`] leaves out: more than two sources, and load while it is
//! resolved.

use std::time::Duration;

use flagstone_blockdev::IoError;
use flagstone_mirror::state::machine::OrderRefusal;
use flagstone_mirror::state::status::MirrorState;
use flagstone_mirror::wire::peer::{PeerRefusal, RequestError};
use flagstone_mirror::{AfterSplitBrain, CommandError, RoleError};
use flagstone_runtime::sim::SimLatency;
use flagstone_runtime::time;

use super::pair::{BLOCK, DATA, Pair, Trio};

/// Policy `keep-serving`: if both nodes served, the deposed one discards nothing by itself. After a
/// demotion, it takes the other's data, of which nothing is lost.
#[test]
fn keep_serving_policy_resolves_split_brain() {
    let pair = Pair::new(4, |peer| peer.after_split_brain = AfterSplitBrain::KeepServing);
    pair.write(0, 5, 9).expect("both are there");
    pair.cut();
    pair.write(0, 1, 1).expect("the peer is lost");
    pair.write(0, 2, 1).expect("the peer is lost");
    pair.on(1, |mirror| async move { mirror.failover().await }).expect("complete data");
    pair.write(1, 1, 2).expect("the peer is lost");
    pair.write(1, 3, 2).expect("the peer is lost");
    pair.network().heal();
    pair.until(0, MirrorState::SplitBrain);
    pair.until(1, MirrorState::SplitBrain);
    pair.sim.run_for(Duration::from_secs(20));
    assert_eq!([0, 1].map(|index| pair.state(index)), [MirrorState::SplitBrain; 2]);
    assert_eq!((pair.active(), pair.read(1, 3)), (vec![1], 2), "the later source serves");
    assert_eq!(pair.leg(0)[2 * BLOCK as usize], 1, "both keep their own data");
    pair.on(0, |mirror| async move { mirror.demote().await }).expect("sound disks");
    pair.becomes_in_sync(1);
    let found = [1, 2, 3, 5].map(|block| pair.read(1, block));
    assert_eq!(found, [2, 0, 2, 9], "degraded writes of node 0 are discarded");
    let [gave, kept] = [0, 1].map(|index| pair.peer_status(index));
    assert_eq!((gave.discards, kept.discards, kept.discarded_bytes), (1, 0, 0));
    // An active region counts as a whole, with all of its blocks.
    assert!(gave.discarded_bytes >= 2 * BLOCK, "{}", gave.discarded_bytes);
}

/// By default, a demotion does not resolve the split brain.
#[test]
fn split_brain_stays_without_a_policy() {
    let pair = Pair::new(4, |_| {});
    pair.cut();
    pair.write(0, 1, 1).expect("the peer is lost");
    pair.on(1, |mirror| async move { mirror.failover().await }).expect("complete data");
    pair.write(1, 1, 2).expect("the peer is lost");
    pair.on(0, |mirror| async move { mirror.demote().await }).expect("sound disks");
    pair.network().heal();
    pair.until(0, MirrorState::SplitBrain);
    pair.sim.run_for(Duration::from_secs(20));
    assert_eq!([0, 1].map(|index| pair.state(index)), [MirrorState::SplitBrain; 2]);
    assert_eq!([0, 1].map(|index| pair.leg(index)[BLOCK as usize]), [1, 2]);
}

/// Regression: a dry run announced that an attached target discards its data, which its source
/// counts on.
#[test]
fn dry_run_spares_attached_target() {
    let trio = Trio::new(6, |_| {});
    trio.write(0, 5, 1).expect("all are there");
    trio.isolate(0);
    trio.write(0, 1, 1).expect("the peers are lost");
    trio.on(2, |mirror| async move { mirror.failover().await }).expect("complete data");
    trio.write(2, 1, 2).expect("a peer is lost");
    trio.until_toward(2, 1, MirrorState::Mirroring);
    trio.network().heal();
    trio.until_toward(0, 1, MirrorState::SplitBrain);
    let (there, here) = (Trio::leg_to(0, 1), Trio::leg_to(1, 0));
    let kept = Err(CommandError::Peer(RequestError::Refused(PeerRefusal::NotNow)));
    for round in 0..2 {
        let found = trio.on(0, move |mirror| async move {
            match round {
                0 => mirror.check_resolve(there, true).await,
                _ => mirror.resolve_keep_mine(there).await,
            }
        });
        assert_eq!(found, kept, "round {round}");
    }
    let serves = Err(CommandError::Role(RoleError::Refused(OrderRefusal::PeerServes)));
    for round in 0..2 {
        let found = trio.on(1, move |mirror| async move {
            match round {
                0 => mirror.check_resolve(here, false).await,
                _ => mirror.resolve_keep_peers(here).await,
            }
        });
        assert_eq!(found, serves, "round {round}");
    }
    assert_eq!(trio.active(), [2]);
    trio.until_toward(2, 1, MirrorState::Mirroring);
}

/// A dry run predicts the outcome of the real choice, because it queries the peer too.
#[test]
fn dry_run_predicts_split_brain_resolution() {
    let pair = Pair::new(6, |_| {});
    let foreseen = |keep_mine| {
        pair.on(0, move |mirror| async move { mirror.check_resolve(0, keep_mine).await })
    };
    let mine = || pair.on(0, |mirror| async move { mirror.resolve_keep_mine(0).await });
    let none = Err(CommandError::NoSplitBrain);
    assert_eq!((foreseen(true), foreseen(false), mine()), (none, none, none));
    pair.cut();
    pair.write(0, 1, 1).expect("the peer is lost");
    pair.on(1, |mirror| async move { mirror.failover().await }).expect("complete data");
    pair.write(1, 1, 2).expect("the peer is lost");
    let silent = Err(CommandError::Peer(RequestError::Io(IoError::Unreachable)));
    assert_eq!((foreseen(true), mine()), (silent, silent));
    pair.network().heal();
    pair.until(0, MirrorState::SplitBrain);
    let active = Err(CommandError::Peer(RequestError::Refused(PeerRefusal::Serving)));
    assert_eq!((foreseen(true), mine()), (active, active));
    assert_eq!(foreseen(false), Ok(()), "this side stops by itself");
    pair.on(1, |mirror| async move { mirror.demote().await }).expect("sound disks");
    assert_eq!(foreseen(true), Ok(()));
    pair.sim.run_for(Duration::from_secs(10));
    assert_eq!(pair.state(0), MirrorState::SplitBrain, "nothing was done");
    assert_eq!([0, 1].map(|index| pair.leg(index)[BLOCK as usize]), [1, 2]);
    assert_eq!(mine(), Ok(()));
    pair.becomes_in_sync(0);
    assert_eq!(pair.read(0, 1), 1);
}

/// Split brain in which node 0 serves, and node 1 as well or not.
fn split(seed: u64, both_serve: bool) -> Pair {
    let pair = Pair::new(seed, |_| {});
    pair.cut();
    pair.write(0, 1, 1).expect("the peer is lost");
    pair.on(1, |mirror| async move { mirror.failover().await }).expect("complete data");
    pair.write(1, 1, 2).expect("the peer is lost");
    if !both_serve {
        pair.on(1, |mirror| async move { mirror.demote().await }).expect("sound disks");
    }
    pair.network().heal();
    pair.until(0, MirrorState::SplitBrain);
    pair.until(1, MirrorState::SplitBrain);
    pair
}

/// Two operators resolve the split brain on two nodes, in every combination, within milliseconds.
#[test]
fn two_resolve_orders_never_discard_both() {
    for seed in 0..160 {
        let pair = split(seed, seed & 1 == 1);
        let before = [0, 1].map(|index| pair.superblock(index).current);
        let orders = [0, 1].map(|index| {
            let (mirror, keep_mine) = (pair.mirror(index), seed >> (index + 1) & 1 == 1);
            let after = pair.sim.world().random_span(Duration::ZERO, Duration::from_millis(3));
            pair.sim.spawn_on(pair.nodes[index], async move {
                time::sleep(after).await;
                match keep_mine {
                    true => mirror.resolve_keep_mine(0).await,
                    false => mirror.resolve_keep_peers(0).await,
                }
            })
        });
        let _ = orders.map(|order| pair.sim.block_on(order).expect("the task is not aborted"));
        let kept = [0, 1].map(|index| pair.superblock(index).current == before[index]);
        assert_ne!(kept, [false; 2], "seed {seed}: both have discarded their data");
    }
}

/// The peer's disk is slow, so the order to discard its data ends without an answer. It is carried
/// out later, when the operator may have changed his mind.
#[test]
fn late_discard_forbids_opposite_order() {
    let pair = split(7, false);
    let before = [0, 1].map(|index| pair.superblock(index).current);
    let slow = SimLatency::between_us(5_000_000, 5_000_001);
    pair.sim.set_write_latency(pair.nodes[1], DATA, slow);
    let mirror = pair.mirror(0);
    let order = pair.sim.spawn_on(pair.nodes[0], async move { mirror.resolve_keep_mine(0).await });
    pair.sim.run_for(Duration::from_secs(1));
    pair.cut();
    let unanswered = pair.sim.block_on(order).expect("the task is not aborted");
    assert_eq!(unanswered, Err(CommandError::Peer(RequestError::Io(IoError::Unreachable))));
    pair.network().heal();
    pair.sim.run_for(Duration::from_secs(1));
    let opposite = pair.on(0, |mirror| async move { mirror.resolve_keep_peers(0).await });
    let foreseen = pair.on(0, |mirror| async move { mirror.check_resolve(0, false).await });
    pair.sim.run_for(Duration::from_secs(20));
    pair.sim.set_write_latency(pair.nodes[1], DATA, SimLatency::between_us(20, 200));
    let kept = [0, 1].map(|index| pair.superblock(index).current == before[index]);
    assert_ne!(kept, [false; 2], "both have discarded their data");
    let refused = Err(CommandError::Role(RoleError::Refused(OrderRefusal::PeerDiscards)));
    assert_eq!((opposite, foreseen), (refused, refused));
    pair.becomes_in_sync(0);
    assert_eq!(pair.read(0, 1), 1, "the first order was carried out");
}
