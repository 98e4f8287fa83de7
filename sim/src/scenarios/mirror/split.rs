//! Split brain, with and without an automatic policy.
//!
//! Left out, besides what [`super::pair`] leaves out: more than two sources, and load while it is
//! resolved.

use std::time::Duration;

use flagstone_blockdev::IoError;
use flagstone_mirror::state::status::MirrorState;
use flagstone_mirror::wire::peer::{PeerRefusal, RequestError};
use flagstone_mirror::{AfterSplitBrain, CommandError};

use super::pair::{BLOCK, Pair};

/// Policy `keep-serving`: of two nodes that both served, the deposed one discards nothing by
/// itself. Once it is demoted, it takes the other's data, of which nothing is lost.
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
