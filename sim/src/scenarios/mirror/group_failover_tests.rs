//! Tests of a group's automatic failover: deaths between two superblocks, and one race for all.

use flagstone_mirror::state::outlook::Obstacle;
use flagstone_runtime::sim::DiskFaults;

use super::*;

const ALL: [bool; VOLUMES] = [true; VOLUMES];
const NONE: [bool; VOLUMES] = [false; VOLUMES];

/// A cluster whose node 1 would take over.
fn in_sync(seed: u64) -> Cluster {
    let cluster = Cluster::new(seed);
    cluster.dies_after_change.set(0.0);
    let ready = |cluster: &Cluster| {
        let Some(leader) = cluster.mirror(0, 0) else { return false };
        let status = cluster.sim.block_on(async move { leader.failover_status() });
        let status = status.expect("it fails over by itself");
        cluster.entitled(0) == ALL && status.peer_obstacle.is_none()
    };
    cluster.run_until(ready);
    cluster
}

impl Cluster {
    fn run_until(&self, done: impl Fn(&Cluster) -> bool) {
        for _ in 0..15_000 {
            if done(self) {
                return;
            }
            self.step();
        }
        self.fail("it takes too long");
    }

    fn slow_disk(&self, index: usize, volume: usize) {
        let slow = SimLatency::between_us(100_000, 200_000);
        self.sim.set_write_latency(self.nodes[index], DISKS[volume], slow);
    }

    fn roles(&self, index: usize) -> [ReplicaRole; VOLUMES] {
        std::array::from_fn(|volume| self.superblock(index, volume).role)
    }
}

#[test]
fn group_has_one_record_and_moves_together() {
    let cluster = in_sync(1);
    cluster.end(0);
    cluster.run_until(|cluster| cluster.entitled(1) == ALL);
    let record = |volume: u8| cluster.store.get().record(ReplicaId([volume; 16]));
    let found = record(7).expect("the leader's");
    assert_eq!(found.in_sync, [ReplicaId(cluster.superblock(1, 0).replica.0)]);
    assert_eq!((record(8), record(9)), (None, None), "one race for all");
    cluster.settle();
    cluster.finish();
}

/// A node dies when its leader is durably the source, and another member is not.
#[test]
fn crash_between_superblocks_is_repaired() {
    let cluster = in_sync(2);
    cluster.slow_disk(1, 2);
    cluster.end(0);
    let is_split = |cluster: &Cluster| {
        let [leader, .., last] = cluster.roles(1);
        leader == ReplicaRole::Source && last == ReplicaRole::Target
    };
    cluster.run_until(is_split);
    cluster.end(1);
    assert_eq!(cluster.split_superblocks.get(), 1);
    cluster.restart(1);
    cluster.run_until(|cluster| cluster.entitled(1) == ALL);
    cluster.settle();
    cluster.finish();
}

/// The same, and the former source returns first.
#[test]
fn former_source_returns_after_crash_between_superblocks() {
    let cluster = in_sync(5);
    cluster.slow_disk(1, 2);
    cluster.end(0);
    cluster.run_until(|cluster| {
        let [leader, .., last] = cluster.roles(1);
        leader == ReplicaRole::Source && last == ReplicaRole::Target
    });
    cluster.end(1);
    cluster.restart(0);
    cluster.run_for(Duration::from_secs(10));
    assert_eq!(cluster.entitled(0), NONE, "the record says that the other node has won");
    cluster.settle();
    cluster.finish();
}

#[test]
fn inconsistent_volume_keeps_all_from_taking_over() {
    let cluster = in_sync(4);
    cluster.slow_disk(1, 2);
    let log = cluster.mirror(0, 2).expect("it runs");
    log.resync_all(0).expect("there is a peer");
    cluster.run_until(|cluster| cluster.superblock(1, 2).flags.inconsistent);
    cluster.end(0);
    cluster.run_for(Duration::from_secs(10));
    assert_eq!(cluster.entitled(1), NONE);
    // Any volume names the volume that keeps the group from moving.
    for volume in 0..VOLUMES {
        let mirror = cluster.mirror(1, volume).expect("it runs");
        let status = cluster.sim.block_on(async move { mirror.failover_status() });
        let status = status.expect("it fails over by itself");
        assert!(status.obstacle.is_some(), "{status:?}");
        if status.volume.as_deref() == Some("log") {
            assert_eq!(status.obstacle, Some(Obstacle::Inconsistent));
        }
    }
    cluster.settle();
    cluster.finish();
}

#[test]
fn failed_disk_of_one_volume_moves_all() {
    let cluster = in_sync(7);
    let broken = DiskFaults { write_errors: 1.0, ..DiskFaults::default() };
    cluster.sim.set_faults(cluster.nodes[0], DISKS[1], broken);
    cluster.run_until(|cluster| cluster.entitled(1) == ALL);
    cluster.finish();
}

/// The peer of a source dies while one of its disks hangs: no volume goes on before that disk has
/// noted the record, which [`Cluster::check`] verifies.
#[test]
fn source_waits_for_the_slowest_superblock() {
    let cluster = in_sync(8);
    cluster.sim.stall(cluster.nodes[0], DISKS[2], Duration::from_secs(3));
    cluster.end(1);
    cluster.run_until(|cluster| {
        let alone = |right| matches!(right, ServingRight::Alone(_));
        let leader = cluster.mirror(0, 0).expect("it runs");
        let status = cluster.sim.block_on(async move { leader.failover_status() });
        status.is_some_and(|status| alone(status.serving_right))
    });
    cluster.settle();
    cluster.finish();
}

/// Regression (seed 439): the task that asks the arbiter waited for the new generation of a member
/// that had just begun to serve, and that member for the task.
#[test]
fn member_that_begins_to_serve_does_not_block_its_leader() {
    run(439);
}

/// Regression (seed 25): its source attached to a member that had refused hosts and whose intent
/// log was still open, so that it could not be served again.
#[test]
fn no_source_attaches_before_a_member_has_stepped_back() {
    run(25);
}

/// Deaths between two superblocks happen, so the scenario covers them.
#[test]
fn group_survives_random_faults() {
    let mut split = 0;
    for seed in 0..1000 {
        if seed >= 150 && split > 0 {
            break;
        }
        let cluster = Cluster::new(seed);
        drive(&cluster);
        split += cluster.split_superblocks.get();
        cluster.finish();
    }
    assert!(split > 0, "no node died between two superblocks");
}
