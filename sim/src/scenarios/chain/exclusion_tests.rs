//! Regression tests of orders that end the session of a peer which may take over.

use std::time::Duration;

use flagstone_blockdev::BlockDevice as _;
use flagstone_mirror::limits::EXCLUDE_MS;
use flagstone_mirror::manage::command::CommandError;
use flagstone_mirror::state::status::{DesiredState, MirrorState};
use flagstone_runtime::sim::SimLatency;
use flagstone_runtime::{buf, time};

use super::arbiter::Cut;
use super::cluster::{Cluster, DATA};
use super::failover_tests::{EVERYTHING, FAILOVER_TIME, is_armed, started_with, until};

/// Orders a desired state at node 0. Returns how long that took, too.
fn order(cluster: &Cluster, desired: DesiredState) -> (Result<(), CommandError>, Duration) {
    let mirror = cluster.mirror(0).expect("it is up");
    let ordering = cluster.sim.spawn_on(cluster.nodes[0], async move {
        let begun = time::now();
        (mirror.set_desired_state(0, desired).await, time::now().since(begun))
    });
    cluster.sim.block_on(ordering).expect("the task is not aborted")
}

/// The peer takes over when its session ends, unless the arbiter's record excludes it. So an order
/// that ends the session waits for the record, and changes nothing without it.
#[test]
fn pause_and_break_wait_for_the_arbiter() {
    for desired in [DesiredState::Paused, DesiredState::Detached] {
        let cluster = started_with(7, [2000, 2000], None);
        cluster.start_hosts();
        until(&cluster, "armed", |cluster| is_armed(cluster, 0));
        cluster.store().cuts[0].set(EVERYTHING);
        let (refused, took) = order(&cluster, desired);
        assert_eq!(refused, Err(CommandError::NotExcluded));
        let limit = Duration::from_millis(EXCLUDE_MS);
        assert!(took >= limit && took < limit + Duration::from_secs(1), "{took:?}");
        cluster.pass(2 * FAILOVER_TIME);
        assert_eq!(cluster.active(), Some(0), "{}", cluster.describe());
        let stored = || cluster.superblock(0).expect("a replica").desired_states[0];
        assert_eq!(stored(), DesiredState::Connected);
        cluster.store().cuts[0].set(Cut::default());
        until(&cluster, "armed again", |cluster| is_armed(cluster, 0));
        let (done, _) = order(&cluster, desired);
        assert_eq!((done, stored()), (Ok(()), desired));
        // From now on the source needs no arbiter, and its peer is granted nothing.
        cluster.store().cuts[0].set(EVERYTHING);
        for _ in 0..20 {
            cluster.pass(FAILOVER_TIME / 10);
            assert_eq!(cluster.active(), Some(0), "{}", cluster.describe());
        }
        cluster.store().cuts[0].set(Cut::default());
        let (done, _) = order(&cluster, DesiredState::Connected);
        assert_eq!(done, Ok(()));
        until(&cluster, "armed at last", |cluster| is_armed(cluster, 0));
    }
}

/// A refused order ends the session. A write that begins before the next one waits for the arbiter,
/// and must not keep the peer from being attached again.
#[test]
fn write_after_refused_pause_needs_no_arbiter() {
    for seed in 0..8 {
        let cluster = started_with(seed, [2000, 2000], None);
        until(&cluster, "armed", |cluster| is_armed(cluster, 0));
        cluster.store().cuts[0].set(EVERYTHING);
        let mirror = cluster.mirror(0).expect("it is up");
        let writing = cluster.sim.spawn_on(cluster.nodes[0], async move {
            let refused = mirror.set_desired_state(0, DesiredState::Paused).await;
            assert_eq!(refused, Err(CommandError::NotExcluded));
            let data = buf::alloc(4096).await.freeze();
            time::timeout(Duration::from_secs(60), mirror.write(0, data, false)).await
        });
        let written = cluster.sim.block_on(writing).expect("the task is not aborted");
        assert_eq!(written, Ok(Ok(())), "seed {seed}: {}", cluster.describe());
    }
}

/// Without a session, the record of a source that runs degraded excludes the peer already.
#[test]
fn pause_without_peer_needs_no_arbiter() {
    let cluster = started_with(7, [2000, 2000], None);
    until(&cluster, "armed", |cluster| is_armed(cluster, 0));
    cluster.end(1, false);
    cluster.pass(FAILOVER_TIME);
    assert_eq!(cluster.active(), Some(0), "{}", cluster.describe());
    cluster.store().cuts[0].set(EVERYTHING);
    let (done, took) = order(&cluster, DesiredState::Paused);
    assert_eq!(done, Ok(()));
    assert!(took < Duration::from_secs(1), "{took:?}");
}

/// Regression: the resync ended, and the source was recording that its peer may take over, when it
/// was ordered to pause. The order found a record that still excluded the peer, and answered
/// success. The record then listed the peer, which no session renewed.
#[test]
fn pause_meets_publication_in_progress() {
    for after_ms in (0..1000).step_by(100) {
        let cluster = started_with(7, [2000, 2000], None);
        until(&cluster, "armed", |cluster| is_armed(cluster, 0));
        cluster.end(1, false);
        cluster.pass(FAILOVER_TIME);
        // Each record takes a while.
        let slow = SimLatency::between_us(300_000, 300_000);
        cluster.sim.set_write_latency(cluster.nodes[0], DATA, slow);
        cluster.restart(1);
        until(&cluster, "in sync", |cluster| cluster.state(0) == Some(MirrorState::Mirroring));
        cluster.pass(Duration::from_millis(after_ms));
        let (done, _) = order(&cluster, DesiredState::Paused);
        assert_eq!(done, Ok(()), "after {after_ms} ms");
        cluster.store().cuts[0].set(EVERYTHING);
        for _ in 0..20 {
            cluster.pass(FAILOVER_TIME / 10);
            assert_eq!(cluster.active(), Some(0), "after {after_ms} ms: {}", cluster.describe());
        }
        let mirror = cluster.mirror(0).expect("it is up");
        let writing = cluster.sim.spawn_on(cluster.nodes[0], async move {
            let data = buf::alloc(4096).await.freeze();
            time::timeout(Duration::from_secs(20), mirror.write(0, data, false)).await
        });
        let written = cluster.sim.block_on(writing).expect("the task is not aborted");
        assert_eq!(written, Ok(Ok(())), "after {after_ms} ms: {}", cluster.describe());
    }
}
