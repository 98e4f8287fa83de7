//! Regression tests of a change of the arbiter's store, without `failover = "manual"` in between.

use std::time::Duration;

use flagstone_arbiter::StoreId;
use flagstone_mirror::RoleError;
use flagstone_mirror::limits::STORE_REVISIONS;
use flagstone_mirror::ondisk::superblock::ArbiterMark;
use flagstone_mirror::state::machine::OrderRefusal;

use super::cluster::Cluster;
use super::failover_tests::{FAILOVER_TIME, in_sync, part, until};
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
