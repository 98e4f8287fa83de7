//! Regression tests of automatic failover: each repeats a history that once went wrong.

use std::time::Duration;

use flagstone_arbiter::StoreId;
use flagstone_mirror::Mode;
use flagstone_mirror::limits::EXCLUDE_MS;
use flagstone_mirror::session::verify::VerifyError;
use flagstone_mirror::state::machine::NodeRole;
use flagstone_mirror::state::outlook::Obstacle;
use flagstone_runtime::sim::DiskFaults;
use flagstone_runtime::time;

use super::arbiter::Cut;
use super::cluster::{Cluster, DATA};
use super::failover::{FAILOVER, FAILOVER_ASYNC, VOLUME};
use super::{Profile, operator};
use crate::runner::run_seed;

pub(super) const EVERYTHING: Cut = Cut { requests: true, answers: true, written: false };
/// Longer than any `failover_after` here, with the call to the arbiter.
pub(super) const FAILOVER_TIME: Duration = Duration::from_secs(8);

#[test]
fn automatic_failover_keeps_guarantees_and_replays() {
    // In seed 93, a former source asked for the role while it handed it over.
    for seed in (0..6).chain([93]) {
        run_seed(&FAILOVER, seed, true).unwrap_or_else(|failure| panic!("{failure}"));
    }
}

#[test]
fn asynchronous_failover_is_bounded_and_replays() {
    for seed in 0..6 {
        run_seed(&FAILOVER_ASYNC, seed, true).unwrap_or_else(|failure| panic!("{failure}"));
    }
}

/// An asynchronous cluster under load, whose link is too narrow for it, and whose target is this
/// far behind.
fn behind_by(seed: u64, lag: Duration, prepare: impl FnOnce(&Cluster)) -> Cluster {
    let profile = Profile { automatic: true, ..Profile::new(Mode::Async, false) };
    let cluster = Cluster::new(seed, profile);
    prepare(&cluster);
    for index in 0..2 {
        cluster.set_failover_after(index, 1500);
        cluster.start(index);
    }
    cluster.start_hosts();
    until(&cluster, "armed", |cluster| is_armed(cluster, 0));
    operator::narrow_link(&cluster, 200_000);
    let is_behind = |cluster: &Cluster| {
        let lag_us = cluster.status(0).map_or(0, |status| status.peers[0].lag_us);
        Duration::from_micros(lag_us) > lag
    };
    until(&cluster, "behind", is_behind);
    cluster
}

/// A lag of 8 s is the most that this scenario allows.
const TOO_FAR: Duration = Duration::from_secs(9);

#[test]
fn target_that_is_too_far_behind_does_not_take_over() {
    let cluster = behind_by(7, TOO_FAR, |_| {});
    cluster.end(0, false);
    cluster.pass(2 * FAILOVER_TIME);
    assert!(!cluster.serves(1), "{}", cluster.describe());
    let mirror = cluster.mirror(1).expect("it is up");
    let status = cluster.sim.block_on(async move { mirror.failover_status() });
    assert_eq!(status.and_then(|status| status.obstacle), Some(Obstacle::Behind));
    cluster.restart(0);
    operator::mend_link(&cluster);
    until(&cluster, "armed again", |cluster| is_armed(cluster, 0));
}

/// It knows no limit of the lag.
#[test]
fn synchronous_target_replaces_no_async_source() {
    let profile = Profile { automatic: true, ..Profile::new(Mode::Async, false) };
    let cluster = Cluster::new(7, profile);
    cluster.set_synchronous(1);
    for index in 0..2 {
        cluster.set_failover_after(index, 1500);
        cluster.start(index);
    }
    cluster.start_hosts();
    let is_behind =
        |cluster: &Cluster| cluster.status(0).is_some_and(|status| status.peers[0].lag_us > 0);
    for _ in 0..20 {
        cluster.pass(FAILOVER_TIME);
        assert!(!is_armed(&cluster, 0), "{}", cluster.describe());
    }
    operator::narrow_link(&cluster, 200_000);
    until(&cluster, "behind", is_behind);
    cluster.end(0, false);
    cluster.pass(2 * FAILOVER_TIME);
    assert!(!cluster.serves(1), "{}", cluster.describe());
}

/// The disk of an asynchronous source fails: its queue is delivered before its peer serves, which
/// may be further behind than a takeover would allow.
#[test]
fn failed_source_delivers_its_queue_first() {
    let cluster = behind_by(7, TOO_FAR, |_| {});
    operator::mend_link(&cluster);
    let faults = DiskFaults { write_errors: 1.0, ..DiskFaults::default() };
    cluster.sim.set_faults(cluster.nodes[0], DATA, faults);
    until(&cluster, "handed over", |cluster| cluster.serves(1));
    assert_eq!(cluster.active(), Some(1), "{}", cluster.describe());
}

/// Nodes that take over whatever they lack lose more than the scenario allows.
#[test]
#[should_panic(expected = "it lacks the last")]
fn unbounded_asynchronous_failover_is_detected() {
    let cluster = behind_by(7, TOO_FAR, Cluster::allow_any_lag);
    cluster.end(0, false);
    cluster.pass(2 * FAILOVER_TIME);
}

/// A cluster under load and in sync, whose nodes have these `failover_after`, in milliseconds. Node
/// 0 serves, and node 1 may take over.
pub(super) fn in_sync(after_ms: [u64; 2]) -> Cluster {
    in_sync_from(7, after_ms)
}

pub(super) fn in_sync_from(seed: u64, after_ms: [u64; 2]) -> Cluster {
    in_sync_with(seed, after_ms, None)
}

/// As [`in_sync`], also with fencing commands, which fail with this probability, in percent.
pub(super) fn in_sync_with(seed: u64, after_ms: [u64; 2], fence_fails: Option<u64>) -> Cluster {
    let cluster = started_with(seed, after_ms, fence_fails);
    cluster.start_hosts();
    until(&cluster, "armed", |cluster| is_armed(cluster, 0));
    cluster
}

/// As [`in_sync_with`], without hosts and before anything has happened.
pub(super) fn started_with(seed: u64, after_ms: [u64; 2], fence_fails: Option<u64>) -> Cluster {
    let cluster =
        Cluster::new(seed, Profile { automatic: true, ..Profile::new(Mode::Sync, false) });
    cluster.store().fence_fails.set(fence_fails);
    for (index, after_ms) in after_ms.into_iter().enumerate() {
        cluster.set_failover_after(index, after_ms);
        cluster.start(index);
    }
    cluster
}

/// True if this node serves, and the other one takes over when it is lost.
pub(super) fn is_armed(cluster: &Cluster, source: usize) -> bool {
    let target = cluster.superblock(1 - source).map(|found| found.arbiter.serving_right);
    let in_sync = flagstone_mirror::ondisk::superblock::RecordedRight::InSync;
    cluster.active() == Some(source) && target == Some(in_sync)
}

pub(super) fn until(cluster: &Cluster, what: &str, is: impl Fn(&Cluster) -> bool) {
    let deadline = cluster.sim.now() + Duration::from_secs(60);
    while !is(cluster) {
        assert!(cluster.sim.now() < deadline, "not {what}: {}", cluster.describe());
        step(cluster);
    }
}

/// Runs for a moment. Two nodes that may answer reads fail the test.
fn step(cluster: &Cluster) {
    cluster.pass(Duration::from_millis(20));
}

pub(super) fn part(cluster: &Cluster) {
    cluster.sim.partition(cluster.nodes[0], cluster.nodes[1]);
}

pub(super) fn obstacle(cluster: &Cluster, index: usize) -> Option<Obstacle> {
    let mirror = cluster.mirror(index)?;
    cluster.sim.block_on(async move { mirror.failover_status().and_then(|now| now.obstacle) })
}

fn peer_obstacle(cluster: &Cluster, index: usize) -> Option<Obstacle> {
    let mirror = cluster.mirror(index)?;
    cluster.sim.block_on(async move { mirror.failover_status().and_then(|now| now.peer_obstacle) })
}

pub(super) fn suspend(cluster: &Cluster, index: usize, on: bool) {
    cluster.command(index, "maintenance", async move |mirror| {
        mirror.suspend_failover(on).await.expect("the arbiter answers");
    });
    cluster.pass(Duration::from_secs(1));
}

pub(super) fn is_suspended(cluster: &Cluster) -> bool {
    cluster.store().record(VOLUME).is_some_and(|record| record.maintenance)
}

/// Regression: the target's `failover_after` was changed first, so that it asked before the
/// source's lease had ended.
#[test]
fn target_waits_for_longer_lease_of_its_source() {
    let cluster = in_sync([5000, 1200]);
    part(&cluster);
    cluster.store().cuts[0].set(EVERYTHING);
    cluster.pass(FAILOVER_TIME);
    assert_eq!(cluster.active(), Some(1), "{}", cluster.describe());
}

/// As above, with a restart of the target after its last answer.
#[test]
fn restarted_target_waits_for_lease_of_its_source() {
    let cluster = in_sync([5000, 5000]);
    part(&cluster);
    cluster.store().cuts[0].set(EVERYTHING);
    cluster.set_failover_after(1, 1200);
    cluster.end(1, false);
    cluster.restart(1);
    cluster.pass(FAILOVER_TIME);
    assert_eq!(cluster.active(), Some(1), "{}", cluster.describe());
}

/// Regression: a source that ran degraded lost power, and the operator forced its peer. The source
/// returned without contact to the peer, and served although the arbiter's record excluded it.
#[test]
fn lone_source_asks_again_after_its_restart() {
    let cluster = in_sync([2000, 2000]);
    cluster.end(1, false);
    cluster.pass(FAILOVER_TIME);
    cluster.end(0, false);
    part(&cluster);
    cluster.restart(1);
    until(&cluster, "open", |cluster| cluster.mirror(1).is_some());
    cluster.world.hold.set(true);
    cluster.world.failing_over.set(Some(1));
    cluster.world.gives_up.set(true);
    cluster.command(1, "failover", async |mirror| {
        mirror.failover().await.expect("its data is consistent");
    });
    cluster.pass(Duration::from_secs(3));
    assert_eq!(cluster.active(), Some(1), "{}", cluster.describe());
    cluster.restart(0);
    cluster.pass(FAILOVER_TIME);
    assert_eq!(cluster.active(), Some(1), "{}", cluster.describe());
    let mirror = cluster.mirror(0).expect("it runs");
    let role = cluster.sim.block_on(async move { mirror.machine_state().role });
    assert!(
        matches!(role, NodeRole::Deposed { .. }),
        "its data is kept for the operator: {role:?}"
    );
}

/// Regression: the operator forced a node while the arbiter was silent. After a restart, the node
/// stopped serving, and lost to its absent peer, because the order was recorded nowhere.
#[test]
fn forced_source_serves_after_restart_without_arbiter() {
    let cluster = in_sync([2000, 2000]);
    cluster.end(1, false);
    cluster.pass(FAILOVER_TIME);
    cluster.end(0, false);
    cluster.store().cuts[1].set(EVERYTHING);
    cluster.restart(1);
    until(&cluster, "open", |cluster| cluster.mirror(1).is_some());
    cluster.world.hold.set(true);
    cluster.world.failing_over.set(Some(1));
    cluster.world.gives_up.set(true);
    cluster.command(1, "failover", async |mirror| {
        mirror.failover().await.expect("its data is consistent");
    });
    cluster.pass(Duration::from_secs(3));
    assert_eq!(cluster.active(), Some(1), "{}", cluster.describe());
    cluster.end(1, false);
    cluster.restart(1);
    cluster.pass(FAILOVER_TIME);
    assert_eq!(cluster.active(), Some(1), "{}", cluster.describe());
    cluster.store().cuts[1].set(Cut::default());
    cluster.pass(Duration::from_secs(20));
    assert_eq!(cluster.active(), Some(1), "{}", cluster.describe());
    assert_eq!(cluster.store().record(VOLUME).expect("a record").in_sync.len(), 1);
}

/// A source that runs degraded notices a restored record that lists its peer again, before the peer
/// returns.
#[test]
fn lone_source_excludes_its_peer_from_restored_record() {
    let cluster = in_sync([2000, 2000]);
    let store = cluster.store();
    store.back_up();
    part(&cluster);
    cluster.end(1, false);
    cluster.pass(FAILOVER_TIME);
    assert_eq!(store.record(VOLUME).expect("a record").in_sync.len(), 1);
    assert!(store.restore(VOLUME, |_| u64::MAX));
    assert_eq!(store.record(VOLUME).expect("a record").in_sync.len(), 2);
    cluster.pass(Duration::from_secs(12));
    cluster.restart(1);
    cluster.pass(FAILOVER_TIME);
    assert_eq!(cluster.active(), Some(0), "{}", cluster.describe());
}

/// Regression: a target that could not reach the arbiter was reported as able to take over.
#[test]
fn target_without_arbiter_is_reported_by_source() {
    let cluster = in_sync([2000, 2000]);
    // The target compares the record first.
    until(&cluster, "compared", |cluster| peer_obstacle(cluster, 0).is_none());
    cluster.store().cuts[1].set(EVERYTHING);
    cluster.pass(Duration::from_secs(40));
    assert_eq!(obstacle(&cluster, 1), Some(Obstacle::ArbiterSilent));
    assert_eq!(peer_obstacle(&cluster, 0), Some(Obstacle::ArbiterSilent));
    assert_eq!(obstacle(&cluster, 0), None);
    cluster.store().cuts[1].set(Cut::default());
    cluster.pass(Duration::from_secs(20));
    assert_eq!(peer_obstacle(&cluster, 0), None);
}

/// Regression: the arbiter answered reads and refused writes, like an etcd without space, and both
/// nodes promised a failover that could not be recorded.
#[test]
fn arbiter_that_refuses_writes_is_reported() {
    let cluster = in_sync([2000, 2000]);
    until(&cluster, "compared", |cluster| peer_obstacle(cluster, 0).is_none());
    cluster.store().read_only.iter().for_each(|is| is.set(true));
    cluster.pass(Duration::from_secs(40));
    for index in 0..2 {
        assert_eq!(obstacle(&cluster, index), Some(Obstacle::ArbiterSilent), "node {index}");
    }
    assert_eq!(peer_obstacle(&cluster, 0), Some(Obstacle::ArbiterSilent));
    assert_eq!(cluster.active(), Some(0), "hosts are served");
    cluster.store().read_only.iter().for_each(|is| is.set(false));
    cluster.pass(Duration::from_secs(20));
    assert_eq!((obstacle(&cluster, 0), peer_obstacle(&cluster, 0)), (None, None));
}

/// Regression: a target whose operator decides was reported as able to take over.
#[test]
fn manual_target_is_reported_by_source() {
    let cluster = in_sync([2000, 2000]);
    cluster.end(1, false);
    cluster.set_manual(1);
    cluster.restart(1);
    until(&cluster, "in sync", operator::is_whole);
    until(&cluster, "reported", |cluster| peer_obstacle(cluster, 0) == Some(Obstacle::Manual));
    cluster.end(0, false);
    cluster.pass(FAILOVER_TIME);
    assert_eq!(cluster.active(), None, "{}", cluster.describe());
}

/// The disk of the source fails during maintenance, when no peer takes over by itself.
#[test]
fn failed_disk_hands_over_during_maintenance() {
    let cluster = in_sync([2000, 2000]);
    suspend(&cluster, 0, true);
    let faults = DiskFaults { write_errors: 1.0, flush_errors: 1.0, ..DiskFaults::default() };
    cluster.sim.set_faults(cluster.nodes[0], DATA, faults);
    cluster.pass(FAILOVER_TIME);
    assert_eq!(cluster.active(), Some(1), "{}", cluster.describe());
    assert!(is_suspended(&cluster));
    // The former source has old data, and must not become the source again.
    cluster.end(0, false);
    part(&cluster);
    cluster.sim.set_faults(cluster.nodes[0], DATA, DiskFaults::default());
    cluster.restart(0);
    cluster.pass(FAILOVER_TIME);
    assert_eq!(cluster.active(), Some(1), "{}", cluster.describe());
}

/// End of the session in which a target has dropped its grant.
#[derive(Clone, Copy)]
enum Parting {
    /// The link is lost after some renewals.
    Late,
    /// The link is lost before a renewal.
    Early,
    /// The link is lost, and the target restarts.
    Restart,
}

/// The target's grant was stored, and its answer lost. The source came back before the target read
/// the record, and was lost again before it could record anything. The seed decides which node
/// leads at the next handshake.
#[test]
fn abandoned_grant_does_not_strand_the_volume() {
    for parting in [Parting::Late, Parting::Early, Parting::Restart] {
        let led = (0..12).filter(|seed| abandoned_grant(*seed, parting)).take(2).count();
        assert!(led > 0, "the former source leads with one of the seeds");
    }
}

/// False if the target becomes the source at the first handshake.
fn abandoned_grant(seed: u64, parting: Parting) -> bool {
    let cluster = in_sync_from(seed, [2000, 2000]);
    let store = cluster.store();
    part(&cluster);
    store.cuts[0].set(EVERYTHING);
    // A race reads first, so only the answer to its write is lost.
    store.cuts[1].set(Cut { written: true, ..Cut::default() });
    let sole = |cluster: &Cluster| {
        cluster.store().record(VOLUME).is_some_and(|record| record.in_sync.len() == 1)
    };
    until(&cluster, "granted", sole);
    store.cuts[1].set(EVERYTHING);
    cluster.sim.heal_all();
    let attached = |cluster: &Cluster| cluster.mirror(1).is_some_and(|mirror| mirror.has_source());
    let met = |cluster: &Cluster| attached(cluster) || cluster.serves(1);
    match parting {
        Parting::Early => {
            while !met(&cluster) {
                cluster.sim.run_for(Duration::from_micros(20));
            }
        }
        Parting::Late | Parting::Restart => {
            until(&cluster, "met", met);
            cluster.pass(Duration::from_millis(200));
        }
    }
    let led = attached(&cluster);
    part(&cluster);
    if matches!(parting, Parting::Restart) {
        cluster.end(1, false);
        cluster.restart(1);
    }
    store.cuts.iter().for_each(|cut| cut.set(Cut::default()));
    until(&cluster, "served", |cluster| cluster.active().is_some());
    cluster.sim.heal_all();
    until(&cluster, "in sync", operator::is_whole);
    led
}

/// Regression: a comparison of the record that ran meanwhile replaced the operator's order, in the
/// record and then in the superblock.
#[test]
fn comparison_does_not_replace_order_about_maintenance() {
    let cluster = in_sync([2000, 2000]);
    let store = cluster.store();
    for on in [true, false] {
        // A comparison begins every ten seconds.
        store.delays_read.set(Duration::from_millis(300));
        until(&cluster, "compared", |cluster| cluster.store().delays_read.get().is_zero());
        cluster.command(0, "maintenance", async move |mirror| {
            mirror.suspend_failover(on).await.expect("the arbiter answers");
        });
        cluster.pass(Duration::from_secs(2));
        assert_eq!(is_suspended(&cluster), on, "{}", cluster.describe());
        let recorded = cluster.superblock(0).map(|found| found.arbiter.suspended);
        assert_eq!(recorded, Some(on));
    }
}

/// Regression: the operator's order was forgotten when the arbiter's record was lost.
#[test]
fn maintenance_outlives_lost_record() {
    let cluster = in_sync([2000, 2000]);
    suspend(&cluster, 0, true);
    assert!(is_suspended(&cluster));
    cluster.store().lose_record(VOLUME);
    cluster.pass(Duration::from_secs(15));
    assert!(is_suspended(&cluster), "{}", cluster.describe());
    // Also across a switchover, and a restart of the source.
    cluster.command(0, "switchover", async |mirror| {
        mirror.switchover(0).await.expect("it is in sync");
    });
    until(&cluster, "switched over", |cluster| cluster.active() == Some(1));
    cluster.store().lose_record(VOLUME);
    cluster.end(1, false);
    cluster.restart(1);
    until(&cluster, "recorded", |cluster| cluster.store().record(VOLUME).is_some());
    assert!(is_suspended(&cluster), "{}", cluster.describe());
    let source = cluster.active().expect("a node serves");
    suspend(&cluster, source, false);
    until(&cluster, "armed", |cluster| is_armed(cluster, source));
    assert!(!is_suspended(&cluster));
}

/// Regression: without an arbiter, a write in flight at a short loss of the link kept the nodes
/// from reconnecting until the source stopped serving.
#[test]
fn reset_link_with_write_in_flight_reconnects() {
    let cluster = in_sync([2000, 2000]);
    cluster.store().down.set(true);
    for _ in 0..10 {
        cluster.sim.reset_connections(cluster.nodes[0], cluster.nodes[1]);
        let end = cluster.sim.now() + Duration::from_millis(2500);
        while cluster.sim.now() < end {
            step(&cluster);
            assert!(cluster.serves(0), "{}", cluster.describe());
        }
    }
}

/// Regression: each node reached a store of its own, behind one name, and the stores copied each
/// other's objects. When all links were cut, each node won at its own store.
#[test]
fn replicated_stores_do_not_enable_failover() {
    // Faster copies may arrive before the target has received the report and made it durable.
    for lag_ms in [100, 900, 5000] {
        let cluster = started_with(7, [2000, 2000], None);
        let store = cluster.store();
        store.set_copied_after(Some(Duration::from_millis(lag_ms)));
        cluster.start_hosts();
        // The target reads a copy when its store is back.
        store.cuts[1].set(EVERYTHING);
        until(&cluster, "in sync", operator::is_whole);
        let unarmed = |steps: u32| {
            for _ in 0..steps {
                step(&cluster);
                assert!(!is_armed(&cluster, 0), "copied after {lag_ms} ms");
            }
        };
        unarmed(300);
        store.cuts[1].set(Cut::default());
        unarmed(1500);
        assert_eq!(peer_obstacle(&cluster, 0), Some(Obstacle::RecordUnusable), "{lag_ms} ms");
        assert_eq!((cluster.active(), obstacle(&cluster, 0)), (Some(0), None));
        part(&cluster);
        store.is_split.set(true);
        cluster.pass(FAILOVER_TIME);
        assert_eq!(cluster.active(), Some(0), "{}", cluster.describe());
        cluster.end(0, false);
        cluster.pass(FAILOVER_TIME);
        assert_eq!(cluster.active(), None, "{}", cluster.describe());
        // With one store for both, the target may take over again.
        store.set_copied_after(None);
        cluster.sim.heal_all();
        cluster.restart(0);
        until(&cluster, "armed", |cluster| is_armed(cluster, 0));
        until(&cluster, "compared", |cluster| peer_obstacle(cluster, 0).is_none());
    }
}

/// Regression: a target whose configuration named another store after a restart took over there, by
/// a copy of the record, while its source ran degraded by the record in the first store.
#[test]
fn restart_with_another_store_disarms_target() {
    let cluster = in_sync([2000, 2000]);
    let store = cluster.store();
    cluster.end(1, false);
    store.set_copied_after(Some(Duration::from_secs(3600)));
    store.ids[1].set(StoreId(2));
    part(&cluster);
    cluster.restart(1);
    cluster.pass(FAILOVER_TIME);
    assert_eq!(cluster.active(), Some(0), "{}", cluster.describe());
    assert!(!cluster.serves(1), "{}", cluster.describe());
    // The source writes its record to the other store as well.
    cluster.sim.heal_all();
    store.set_copied_after(None);
    store.ids[0].set(StoreId(2));
    until(&cluster, "armed", |cluster| is_armed(cluster, 0));
}

/// Regression: a source whose configuration named another store after a restart took the role
/// there, by a copy of the record, while its target took over by the record of the first store.
#[test]
fn restart_with_another_store_stops_source() {
    let cluster = in_sync([2000, 2000]);
    let store = cluster.store();
    cluster.end(0, false);
    store.set_copied_after(Some(Duration::from_secs(3600)));
    store.ids[0].set(StoreId(2));
    part(&cluster);
    cluster.restart(0);
    let deadline = cluster.sim.now() + FAILOVER_TIME;
    while cluster.sim.now() < deadline {
        step(&cluster);
    }
    assert_eq!(cluster.active(), Some(1), "{}", cluster.describe());
    assert!(!cluster.serves(0), "{}", cluster.describe());
    assert_eq!(obstacle(&cluster, 0), Some(Obstacle::OtherArbiter));
    // It has become a target of the other node, and may ask where its source has recorded it.
    cluster.sim.heal_all();
    store.set_copied_after(None);
    store.ids[1].set(StoreId(2));
    until(&cluster, "armed", |cluster| is_armed(cluster, 1));
    assert_eq!(obstacle(&cluster, 1), None);
}

/// Both nodes are restarted with another store: neither serves alone there. After they are
/// connected, the serving node records its peer, which may then take over.
#[test]
fn restart_of_both_nodes_with_another_store_arms_target() {
    let cluster = in_sync([2000, 2000]);
    let store = cluster.store();
    for node in [1, 0] {
        cluster.end(node, false);
    }
    store.lose_record(VOLUME);
    store.ids.iter().for_each(|id| id.set(StoreId(2)));
    cluster.restart(0);
    cluster.pass(FAILOVER_TIME);
    assert_eq!(cluster.active(), None, "{}", cluster.describe());
    cluster.restart(1);
    let armed = |cluster: &Cluster| (0..2).find(|&source| is_armed(cluster, source));
    until(&cluster, "armed", |cluster| armed(cluster).is_some());
    let source = armed(&cluster).expect("armed");
    until(&cluster, "compared", |cluster| peer_obstacle(cluster, source).is_none());
    assert_eq!(obstacle(&cluster, source), None);
    part(&cluster);
    cluster.end(source, false);
    until(&cluster, "taken over", |cluster| cluster.active() == Some(1 - source));
}

/// Regression: the answer to the source's write was lost. When the record had been read back, it
/// was a second old, and a copy at the target's own store passed for a proof.
#[test]
fn record_read_back_does_not_enable_failover() {
    for lag_ms in [300, 900] {
        let cluster = started_with(7, [2000, 2000], None);
        let store = cluster.store();
        store.set_copied_after(Some(Duration::from_millis(lag_ms)));
        cluster.start_hosts();
        store.cuts[0].set(Cut { written: true, ..Cut::default() });
        until(&cluster, "recorded", |_| {
            store.record(VOLUME).is_some_and(|it| it.in_sync.len() == 2)
        });
        store.cuts[0].set(Cut::default());
        for _ in 0..1500 {
            step(&cluster);
            assert!(!is_armed(&cluster, 0), "copied after {lag_ms} ms");
        }
        assert_eq!(peer_obstacle(&cluster, 0), Some(Obstacle::RecordUnusable), "{lag_ms} ms");
        // With one store, a lost answer only delays the proof.
        store.set_copied_after(None);
        until(&cluster, "armed", |cluster| is_armed(cluster, 0));
    }
}

/// Regression: Google's store accepts one write to an object per second. It refused a write probe
/// right after the source's write, which refuted the proof, each time.
#[test]
fn store_that_refuses_write_probes_gives_proof() {
    let cluster = started_with(7, [2000, 2000], None);
    let store = cluster.store();
    store.read_only[1].set(true);
    cluster.start_hosts();
    until(&cluster, "armed", |cluster| is_armed(cluster, 0));
    assert_eq!(obstacle(&cluster, 1), Some(Obstacle::ArbiterSilent));
    store.read_only[1].set(false);
    until(&cluster, "compared", |cluster| obstacle(cluster, 1).is_none());
}

/// A repair marks blocks only after the arbiter's record excludes the peer, which could otherwise
/// be granted the role with bad data. It waits for at most [`EXCLUDE_MS`], and changes nothing
/// then.
#[test]
fn repair_is_refused_while_arbiter_is_silent() {
    let cluster = started_with(7, [2000, 2000], None);
    until(&cluster, "armed", |cluster| is_armed(cluster, 0));
    cluster.sim.poke(cluster.nodes[1], DATA, 0, &[1]);
    let repair = || {
        let mirror = cluster.mirror(0).expect("it is up");
        let repairing = cluster.sim.spawn_on(cluster.nodes[0], async move {
            let begun = time::now();
            let report = mirror.verify(0, None, true, |_| {}).await;
            (report.map(|report| report.differing_bytes), time::now().since(begun))
        });
        cluster.sim.block_on(repairing).expect("the task is not aborted")
    };
    let shown = || [0, 1].map(|index| cluster.data(index)[0]);
    let generation = || cluster.superblock(0).expect("a replica").current;
    let before = generation();
    cluster.store().cuts[0].set(EVERYTHING);
    let (refused, took) = repair();
    assert_eq!(refused, Err(VerifyError::Arbiter));
    let limit = Duration::from_millis(EXCLUDE_MS);
    assert!(took >= limit && took < limit + Duration::from_secs(1), "{took:?}");
    // The session that follows copies nothing, and the source goes on.
    cluster.sim.run_for(Duration::from_secs(10));
    assert_eq!((shown(), generation(), cluster.active()), ([0, 1], before, Some(0)));
    cluster.store().cuts[0].set(Cut::default());
    cluster.sim.run_for(Duration::from_secs(20));
    let (repaired, _) = repair();
    assert_eq!(repaired, Ok(4096));
    cluster.sim.run_for(Duration::from_secs(10));
    assert_eq!((shown(), cluster.active()), ([0, 0], Some(0)));
    assert_ne!(generation(), before);
}
