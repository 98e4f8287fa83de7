//! Regression tests of a change of the arbiter's store, without `failover = "manual"` in between.

use std::time::Duration;

use flagstone_arbiter::{ArbiterRecord, ReplicaId, StoreId};
use flagstone_mirror::RoleError;
use flagstone_mirror::limits::STORE_REVISIONS;
use flagstone_mirror::ondisk::superblock::ArbiterMark;
use flagstone_mirror::state::machine::OrderRefusal;

use super::cluster::Cluster;
use super::failover::VOLUME;
use super::failover_tests::{FAILOVER_TIME, in_sync, in_sync_from, part, until};
use super::operator;

/// Gives the nodes a store each, and restarts one with another store than before.
fn restart_at_other_store(cluster: &Cluster, index: usize) {
    let store = cluster.store();
    cluster.end(index, false);
    store.set_copied_after(Some(Duration::from_secs(3600)));
    store.ids[index].set(StoreId(2));
    cluster.restart(index);
}

/// Note about the record at a node that runs.
fn mark(cluster: &Cluster, index: usize) -> ArbiterMark {
    let Some(mirror) = cluster.mirror(index) else { return ArbiterMark::default() };
    let status = cluster.sim.block_on(async move { mirror.failover_status() });
    status.expect("it has an arbiter").mark
}

/// As [`until`], at the first moment.
fn at_once(cluster: &Cluster, what: &str, is: impl Fn(&Cluster) -> bool) {
    let deadline = cluster.sim.now() + Duration::from_secs(2);
    while !is(cluster) {
        assert!(cluster.sim.now() < deadline, "not {what}: {}", cluster.describe());
        cluster.sim.run_for(Duration::from_micros(20));
    }
}

/// Regression: a target moved its note about the record to the store in its configuration, where it
/// had read nothing. As the source, it continued with the revisions of the former store.
#[test]
fn target_of_other_store_begins_above_former_revisions() {
    let cluster = in_sync([2000, 2000]);
    restart_at_other_store(&cluster, 1);
    until(&cluster, "in sync", operator::is_whole);
    cluster.command(0, "switchover", async |mirror| {
        mirror.switchover(0).await.expect("it is in sync");
    });
    until(&cluster, "switched over", |cluster| cluster.active() == Some(1));
    cluster.pass(Duration::from_secs(2));
    let own = mark(&cluster, 1);
    assert!(own.store == StoreId(2) && own.revision > STORE_REVISIONS, "{own:?}");
}

/// Regression: the source had recorded its target at another store, and the link was lost before
/// the target heard of it. A write of the target, from before, then took effect at the former
/// store. The target took the role by it, while the source ran degraded by the other store.
/// The seed decides which node leads at the handshake after the restart.
#[test]
fn late_grant_of_former_store_is_not_reclaimed() {
    let led = (0..12).any(late_grant);
    assert!(led, "the former source leads with one of the seeds");
}

/// False if the target becomes the source at the first handshake.
fn late_grant(seed: u64) -> bool {
    let cluster = in_sync_from(seed, [2000, 2000]);
    let store = cluster.store();
    let seen = mark(&cluster, 1).revision;
    restart_at_other_store(&cluster, 0);
    let is_moved = |cluster: &Cluster| mark(cluster, 0).store == StoreId(2);
    at_once(&cluster, "recorded", |cluster| is_moved(cluster) || cluster.serves(1));
    if !is_moved(&cluster) {
        return false;
    }
    cluster.sim.reset_connections(cluster.nodes[0], cluster.nodes[1]);
    // The source attaches again, and is lost before its first renewal.
    let attached = |cluster: &Cluster| cluster.mirror(1).is_some_and(|mirror| mirror.has_source());
    at_once(&cluster, "detached", |cluster| !attached(cluster));
    assert_eq!(mark(&cluster, 1).revision, seen, "the target has not heard of the other store");
    at_once(&cluster, "attached", attached);
    part(&cluster);
    let own = ReplicaId(cluster.superblock(1).expect("it has one").replica.0);
    let record = ArbiterRecord {
        volume: VOLUME,
        epoch: cluster.superblock(1).expect("it has one").epoch + 1,
        revision: seen + 1,
        source: own,
        in_sync: vec![own],
        maintenance: false,
        writer: 3,
    };
    store.late_write_of_second(VOLUME, &record);
    // Two nodes that serve fail the test.
    let end = cluster.sim.now() + 2 * FAILOVER_TIME;
    while cluster.sim.now() < end {
        cluster.pass(Duration::from_millis(20));
        assert_ne!(cluster.active(), Some(1), "{}", cluster.describe());
    }
    assert_eq!(cluster.active(), Some(0), "{}", cluster.describe());
    true
}

/// Regression: a forced node recorded the order at the store in its configuration, while the record
/// at its former store still allowed its silent peer to serve.
#[test]
fn forced_failover_needs_store_that_excludes_silent_peer() {
    let cluster = in_sync([2000, 2000]);
    part(&cluster);
    restart_at_other_store(&cluster, 1);
    until(&cluster, "open", |cluster| cluster.mirror(1).is_some());
    cluster.command(1, "failover", async |mirror| {
        let refused = mirror.failover().await;
        assert_eq!(refused, Err(RoleError::Refused(OrderRefusal::OtherArbiter)));
    });
    cluster.pass(FAILOVER_TIME);
    assert_eq!(cluster.active(), Some(0), "{}", cluster.describe());
    // A peer that answers is deposed, and needs no store.
    cluster.sim.heal_all();
    until(&cluster, "in sync", operator::is_whole);
    cluster.world.hold.set(true);
    cluster.world.failing_over.set(Some(1));
    cluster.world.gives_up.set(true);
    cluster.pass(Duration::from_secs(1));
    cluster.command(1, "failover", async |mirror| {
        mirror.failover().await.expect("the peer answers");
    });
    until(&cluster, "served", |cluster| cluster.active() == Some(1));
}
