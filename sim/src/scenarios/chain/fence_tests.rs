//! Regression tests of automatic failover with a command that fences the other node.

use std::time::Duration;

use flagstone_mirror::limits::GRANT_MS;
use flagstone_mirror::state::outlook::Obstacle;
use flagstone_runtime::sim::DiskFaults;

use super::cluster::{Cluster, DATA};
use super::failover::VOLUME;
use super::failover_tests::{EVERYTHING, FAILOVER_TIME, in_sync_with, obstacle, part, until};
use super::operator;

const ALWAYS: Option<u64> = Some(100);
const NEVER: Option<u64> = Some(0);

fn fenced(cluster: &Cluster) -> [u64; 2] {
    cluster.store().fenced.each_ref().map(std::cell::Cell::get)
}

#[test]
fn winner_fences_peer_before_it_serves() {
    let cluster = in_sync_with(7, [2000, 2000], NEVER);
    cluster.end(0, false);
    while cluster.active() != Some(1) {
        assert!(!cluster.serves(1), "served before the peer was fenced");
        cluster.pass(Duration::from_millis(20));
        if cluster.serves(1) {
            assert_eq!(fenced(&cluster), [0, 1]);
        }
    }
    assert_eq!(fenced(&cluster), [0, 1]);
    // A source that runs degraded fences no node.
    cluster.restart(0);
    until(&cluster, "in sync", operator::is_whole);
    cluster.end(0, false);
    cluster.pass(FAILOVER_TIME);
    assert_eq!((cluster.active(), fenced(&cluster)), (Some(1), [0, 1]));
}

#[test]
fn failed_fencing_keeps_winner_from_serving() {
    let cluster = in_sync_with(7, [2000, 2000], ALWAYS);
    cluster.end(0, false);
    cluster.pass(2 * FAILOVER_TIME);
    assert!(!cluster.serves(1), "{}", cluster.describe());
    assert_eq!(obstacle(&cluster, 1), Some(Obstacle::Unfenced));
    let record = cluster.store().record(VOLUME).expect("a record");
    assert_eq!(record.in_sync.len(), 1, "it has won");
    // The command is repeated, also after a restart.
    cluster.end(1, false);
    cluster.restart(1);
    cluster.pass(FAILOVER_TIME);
    assert!(!cluster.serves(1), "{}", cluster.describe());
    cluster.store().fence_fails.set(NEVER);
    cluster.pass(FAILOVER_TIME);
    assert_eq!(cluster.active(), Some(1), "{}", cluster.describe());
}

/// The other node has learned that it lost, and answers, so it need not be stopped.
#[test]
fn peer_out_of_service_needs_no_fencing() {
    let cluster = in_sync_with(7, [2000, 2000], ALWAYS);
    cluster.end(0, false);
    cluster.pass(FAILOVER_TIME);
    assert_eq!(obstacle(&cluster, 1), Some(Obstacle::Unfenced));
    cluster.restart(0);
    until(&cluster, "in sync", operator::is_whole);
    assert_eq!((cluster.active(), fenced(&cluster)), (Some(1), [0, 0]));
}

/// The operator knows that the other machine is stopped.
#[test]
fn forced_failover_needs_no_fencing() {
    let cluster = in_sync_with(7, [2000, 2000], ALWAYS);
    cluster.end(0, false);
    cluster.pass(FAILOVER_TIME);
    cluster.world.failing_over.set(Some(1));
    cluster.command(1, "failover", async |mirror| {
        mirror.failover().await.expect("its data is consistent");
    });
    cluster.pass(Duration::from_secs(3));
    assert_eq!(cluster.active(), Some(1), "{}", cluster.describe());
}

/// Regression: the source stopped serving, and was reachable again while the command that stops it
/// ran. It attached, served, and was stopped.
#[test]
fn source_that_is_being_fenced_does_not_serve() {
    for seed in 0..4 {
        let cluster = in_sync_with(seed, [2000, 2000], NEVER);
        cluster.store().fence_takes.set(Some(Duration::from_secs(10)));
        part(&cluster);
        cluster.store().cuts[0].set(EVERYTHING);
        cluster.pass(Duration::from_secs(5));
        cluster.sim.heal_all();
        let deadline = cluster.sim.now() + Duration::from_secs(30);
        while fenced(&cluster) == [0, 0] && cluster.sim.now() < deadline {
            cluster.pass(Duration::from_millis(20));
            assert!(!cluster.serves(0), "{seed}: served while it was being stopped");
        }
        cluster.pass(Duration::from_secs(1));
        assert_eq!(cluster.active(), Some(1), "{seed}: {}", cluster.describe());
    }
}

/// The peer needs a grant to serve, and the record excludes a grant to the former source.
#[test]
fn source_that_wins_back_fences_nothing() {
    let cluster = in_sync_with(7, [2000, 2000], ALWAYS);
    cluster.store().down.set(true);
    cluster.end(1, true);
    until(&cluster, "out of service", |cluster| cluster.active().is_none());
    cluster.pass(FAILOVER_TIME);
    assert_eq!(cluster.active(), None, "{}", cluster.describe());
    cluster.store().down.set(false);
    cluster.pass(FAILOVER_TIME);
    assert_eq!(cluster.active(), Some(0), "{}", cluster.describe());
}

/// The former source left, and the arbiter is silent when the new one asks.
#[test]
fn successor_does_not_fence_source_that_left() {
    let cluster = in_sync_with(7, [2000, 2000], ALWAYS);
    cluster.store().down.set(true);
    cluster.command(0, "leave", async |mirror| {
        let left = mirror.leave().await;
        assert_eq!(left, Ok(true));
    });
    until(&cluster, "handed over", |cluster| cluster.active() == Some(1));
    cluster.end(0, false);
    cluster.pass(FAILOVER_TIME);
    assert_eq!(cluster.active(), None, "{}", cluster.describe());
    cluster.store().down.set(false);
    cluster.pass(FAILOVER_TIME);
    assert_eq!(cluster.active(), Some(1), "{}", cluster.describe());
}

/// Only the command failed: the arbiter granted the role, and is silent since.
#[test]
fn failed_fencing_is_repeated_without_arbiter() {
    let cluster = in_sync_with(7, [2000, 2000], ALWAYS);
    cluster.end(0, false);
    cluster.pass(2 * FAILOVER_TIME);
    assert_eq!(obstacle(&cluster, 1), Some(Obstacle::Unfenced));
    cluster.store().down.set(true);
    cluster.pass(FAILOVER_TIME);
    assert_eq!(obstacle(&cluster, 1), Some(Obstacle::Unfenced));
    cluster.store().fence_fails.set(NEVER);
    cluster.pass(3 * FAILOVER_TIME);
    assert_eq!(cluster.active(), Some(1), "{}", cluster.describe());
}

/// The operator may order the other node to serve, which this node notices at the arbiter only.
#[test]
fn grant_is_not_used_long_after_the_arbiter_answered() {
    let cluster = in_sync_with(7, [2000, 2000], ALWAYS);
    cluster.end(0, false);
    cluster.pass(2 * FAILOVER_TIME);
    assert_eq!(obstacle(&cluster, 1), Some(Obstacle::Unfenced));
    cluster.store().down.set(true);
    cluster.pass(Duration::from_millis(GRANT_MS) + FAILOVER_TIME);
    let before = fenced(&cluster);
    cluster.store().fence_fails.set(NEVER);
    cluster.pass(2 * FAILOVER_TIME);
    assert_eq!((cluster.active(), fenced(&cluster)), (None, before), "{}", cluster.describe());
    assert_eq!(obstacle(&cluster, 1), Some(Obstacle::ArbiterSilent));
    cluster.store().down.set(false);
    cluster.pass(2 * FAILOVER_TIME);
    assert_eq!(cluster.active(), Some(1), "{}", cluster.describe());
}

/// Longer than a grant is valid without an answer of the arbiter.
const TOO_LONG: Duration = Duration::from_millis(GRANT_MS + 30_000);

/// Regression: the age of a grant was checked before the command ran, and not after it.
#[test]
fn grant_is_not_used_after_a_long_command() {
    let cluster = in_sync_with(7, [2000, 2000], ALWAYS);
    cluster.end(0, false);
    cluster.pass(2 * FAILOVER_TIME);
    assert_eq!(obstacle(&cluster, 1), Some(Obstacle::Unfenced));
    cluster.store().down.set(true);
    cluster.store().fence_takes.set(Some(TOO_LONG));
    cluster.store().fence_fails.set(NEVER);
    cluster.pass(2 * TOO_LONG);
    assert_eq!(cluster.active(), None, "{}", cluster.describe());
    assert_eq!(obstacle(&cluster, 1), Some(Obstacle::ArbiterSilent));
    cluster.store().fence_takes.set(None);
    cluster.store().down.set(false);
    cluster.pass(2 * FAILOVER_TIME);
    assert_eq!(cluster.active(), Some(1), "{}", cluster.describe());
}

/// The arbiter is asked again before this node serves. The peer stays stopped.
#[test]
fn long_command_runs_once() {
    for is_silent in [false, true] {
        let cluster = in_sync_with(7, [2000, 2000], NEVER);
        cluster.store().fence_takes.set(Some(TOO_LONG));
        cluster.end(0, false);
        until(&cluster, "fencing", |cluster| cluster.store().fencing.get() > 0);
        cluster.store().down.set(is_silent);
        cluster.pass(2 * TOO_LONG);
        let active = if is_silent { None } else { Some(1) };
        assert_eq!((cluster.active(), fenced(&cluster)), (active, [0, 1]));
        cluster.store().down.set(false);
        cluster.pass(2 * FAILOVER_TIME);
        assert_eq!((cluster.active(), fenced(&cluster)), (Some(1), [0, 1]));
    }
}

/// The device of node 1 takes no writes.
fn break_device(cluster: &Cluster) {
    let faults = DiskFaults { write_errors: 1.0, ..DiskFaults::default() };
    cluster.sim.set_faults(cluster.nodes[1], DATA, faults);
}

fn mend_device(cluster: &Cluster) {
    cluster.sim.set_faults(cluster.nodes[1], DATA, DiskFaults::default());
}

/// Regression: a target with a broken log excluded a whole source from the record, stopped its
/// machine, could not serve, and repeated this four times a second.
#[test]
fn target_with_failed_device_does_not_exclude_its_source() {
    let cluster = in_sync_with(7, [2000, 2000], NEVER);
    cluster.end(0, false);
    break_device(&cluster);
    let before = cluster.store().record(VOLUME);
    cluster.pass(4 * FAILOVER_TIME);
    assert_eq!(cluster.store().record(VOLUME), before, "{}", cluster.describe());
    assert_eq!(fenced(&cluster), [0, 0]);
    assert_eq!(obstacle(&cluster, 1), Some(Obstacle::Device));
    // The source returns while the device is still broken.
    cluster.restart(0);
    cluster.pass(2 * FAILOVER_TIME);
    assert!(cluster.serves(0), "{}", cluster.describe());
}

/// The device fails while the command runs. The peer is stopped once.
#[test]
fn peer_is_fenced_once_for_a_grant_that_is_not_served() {
    let cluster = in_sync_with(7, [2000, 2000], NEVER);
    cluster.store().fence_takes.set(Some(Duration::from_secs(3)));
    cluster.end(0, false);
    let runs = |cluster: &Cluster| cluster.store().fencing.get() > 0;
    until(&cluster, "fencing", runs);
    break_device(&cluster);
    until(&cluster, "fenced", |cluster| fenced(cluster) == [0, 1]);
    let failed = |cluster: &Cluster| obstacle(cluster, 1) == Some(Obstacle::Device);
    until(&cluster, "failed", failed);
    let record = cluster.store().record(VOLUME);
    cluster.pass(2 * FAILOVER_TIME);
    assert_eq!(cluster.store().record(VOLUME), record, "{}", cluster.describe());
    assert_eq!(fenced(&cluster), [0, 1]);
    // A file that has failed is opened again.
    mend_device(&cluster);
    cluster.end(1, false);
    cluster.restart(1);
    until(&cluster, "served", |cluster| cluster.serves(1));
}
