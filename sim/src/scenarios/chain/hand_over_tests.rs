//! Regression tests of automatic failover in which the source hands its role over while something
//! fails.

use std::time::Duration;

use flagstone_blockdev::BlockDevice as _;
use flagstone_mirror::limits::LEAVE_MS;
use flagstone_mirror::state::status::MirrorState;
use flagstone_runtime::sim::DiskFaults;

use super::arbiter::Cut;
use super::cluster::{Cluster, DATA};
use super::failover::VOLUME;
use super::failover_tests::{EVERYTHING, FAILOVER_TIME, in_sync, is_suspended, suspend, until};
use super::operator;

/// Much shorter than a lease.
const AT_ONCE: Duration = Duration::from_millis(500);

fn fail_disk(cluster: &Cluster, index: usize) {
    let faults = DiskFaults { write_errors: 1.0, flush_errors: 1.0, ..DiskFaults::default() };
    cluster.sim.set_faults(cluster.nodes[index], DATA, faults);
}

fn recorded(cluster: &Cluster) -> usize {
    cluster.store().record(VOLUME).map_or(0, |record| record.in_sync.len())
}

/// Cluster in sync whose record lists only the source, because the arbiter has not answered since.
fn unpublished() -> Cluster {
    let cluster = in_sync([2000, 2000]);
    cluster.end(1, false);
    cluster.pass(FAILOVER_TIME);
    assert_eq!(recorded(&cluster), 1);
    cluster.store().cuts.iter().for_each(|cut| cut.set(EVERYTHING));
    cluster.restart(1);
    until(&cluster, "in sync", |cluster| cluster.state(0) == Some(MirrorState::Mirroring));
    cluster.pass(Duration::from_secs(3));
    assert_eq!((cluster.active(), recorded(&cluster)), (Some(0), 1));
    cluster
}

/// Regression: the disk of the source failed while the record listed only the source. The peer had
/// every acknowledged write and the role, but lost at the arbiter, and no node served.
#[test]
fn failed_disk_hands_over_while_unpublished() {
    let cluster = unpublished();
    fail_disk(&cluster, 0);
    cluster.pass(FAILOVER_TIME);
    cluster.store().cuts.iter().for_each(|cut| cut.set(Cut::default()));
    cluster.pass(FAILOVER_TIME);
    assert_eq!(cluster.active(), Some(1), "{}", cluster.describe());
    assert_eq!(recorded(&cluster), 1);
}

/// As above, with a restart of the new source before the arbiter answers.
#[test]
fn successor_restarts_before_arbiter_answers() {
    let cluster = unpublished();
    fail_disk(&cluster, 0);
    cluster.pass(Duration::from_secs(1));
    cluster.end(1, false);
    cluster.end(0, false);
    cluster.restart(1);
    cluster.pass(Duration::from_secs(1));
    cluster.store().cuts.iter().for_each(|cut| cut.set(Cut::default()));
    cluster.pass(FAILOVER_TIME);
    assert_eq!(cluster.active(), Some(1), "{}", cluster.describe());
}

/// The successor loses its right when the former source wins after the hand-over.
#[test]
fn successor_loses_to_later_record() {
    let cluster = unpublished();
    fail_disk(&cluster, 0);
    cluster.pass(Duration::from_secs(1));
    cluster.end(1, false);
    cluster.end(0, false);
    cluster.sim.set_faults(cluster.nodes[0], DATA, DiskFaults::default());
    cluster.store().cuts[0].set(Cut::default());
    cluster.restart(0);
    cluster.pass(FAILOVER_TIME);
    assert_eq!(cluster.active(), Some(0), "{}", cluster.describe());
    cluster.sim.partition(cluster.nodes[0], cluster.nodes[1]);
    cluster.store().cuts[1].set(Cut::default());
    cluster.restart(1);
    cluster.pass(FAILOVER_TIME);
    assert_eq!(cluster.active(), Some(0), "{}", cluster.describe());
}

/// Regression: the superblock could not be written during a switchover under maintenance, when no
/// peer takes over by itself, and no node served.
#[test]
fn unwritable_superblock_does_not_stop_switchover() {
    let cluster = in_sync([2000, 2000]);
    suspend(&cluster, 0, true);
    let superblocks = cluster.device_bytes() - 8192..cluster.device_bytes();
    let faults = DiskFaults::default().unwritable_at(superblocks);
    cluster.sim.set_faults(cluster.nodes[0], DATA, faults);
    cluster.command(0, "switchover", async |mirror| {
        let _ = mirror.switchover(0).await;
    });
    cluster.pass(FAILOVER_TIME);
    assert_eq!(cluster.active(), Some(1), "{}", cluster.describe());
    assert!(is_suspended(&cluster));
}

/// Regression: without a write, reads waited for most of a lease.
#[test]
fn failed_disk_hands_over_at_once() {
    let cluster = in_sync([5000, 5000]);
    cluster.world.hold.set(true);
    cluster.pass(Duration::from_secs(1));
    fail_disk(&cluster, 0);
    cluster.command(0, "flush", async |mirror| {
        let _ = mirror.flush().await;
    });
    cluster.pass(AT_ONCE);
    assert_eq!(cluster.active(), Some(1), "{}", cluster.describe());
    cluster.world.hold.set(false);
}

/// Time from a planned stop of node 0 until the other one answers reads.
fn stopped_until_served(cluster: &Cluster) -> Duration {
    let begun = cluster.sim.now();
    operator::stop(cluster, 0);
    until(cluster, "served", |cluster| cluster.active() == Some(1));
    cluster.sim.now() - begun
}

/// Regression: hosts waited for the whole `failover_after` when the operator stopped their source.
#[test]
fn planned_stop_hands_over_first() {
    for hold in [false, true] {
        let cluster = in_sync([5000, 5000]);
        cluster.world.hold.set(hold);
        cluster.pass(Duration::from_secs(1));
        let took = stopped_until_served(&cluster);
        assert!(took < AT_ONCE, "{took:?}");
        cluster.world.hold.set(false);
        cluster.restart(0);
        until(&cluster, "in sync", operator::is_whole);
        assert_eq!(cluster.active(), Some(1));
    }
}

/// In maintenance no role moves by itself, and the stopped node serves again.
#[test]
fn planned_stop_in_maintenance_moves_nothing() {
    let cluster = in_sync([2000, 2000]);
    suspend(&cluster, 0, true);
    operator::stop(&cluster, 0);
    cluster.pass(FAILOVER_TIME);
    assert_eq!(cluster.active(), None, "{}", cluster.describe());
    cluster.restart(0);
    until(&cluster, "served", |cluster| cluster.active() == Some(0));
}

/// A failed hand-over does not keep the node from stopping, and the peer takes over as after a
/// crash.
#[test]
fn failed_hand_over_does_not_block_stop() {
    let cluster = in_sync([2000, 2000]);
    cluster.sim.pause(cluster.nodes[1]);
    let mirror = cluster.mirror(0).expect("it runs");
    let left = cluster.sim.spawn_on(cluster.nodes[0], async move { mirror.leave().await });
    cluster.pass(Duration::from_millis(LEAVE_MS + 100));
    assert!(left.is_finished(), "bounded");
    let left = cluster.sim.block_on(left).expect("not aborted");
    assert!(left.is_err(), "{left:?}");
    operator::stop(&cluster, 0);
    cluster.sim.resume(cluster.nodes[1]);
    cluster.restart(0);
    until(&cluster, "in sync", operator::is_whole);
}

/// The arbiter is silent during a planned stop: the peer keeps the role.
#[test]
fn planned_stop_without_arbiter_keeps_the_right() {
    for unpublished_record in [false, true] {
        let cluster = if unpublished_record { unpublished() } else { in_sync([2000, 2000]) };
        cluster.store().cuts.iter().for_each(|cut| cut.set(EVERYTHING));
        operator::stop(&cluster, 0);
        cluster.pass(FAILOVER_TIME);
        cluster.store().cuts.iter().for_each(|cut| cut.set(Cut::default()));
        cluster.pass(FAILOVER_TIME);
        assert_eq!(cluster.active(), Some(1), "{}", cluster.describe());
    }
}
