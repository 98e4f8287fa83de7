//! Regression tests of the read lease.

use std::time::Duration;

use super::cluster::Cluster;
use super::failover_tests::{is_armed, started_with, until};

/// The node that may answer reads.
fn reader(cluster: &Cluster) -> Option<usize> {
    (0..2).find(|index| {
        let mirror = cluster.mirror(*index);
        mirror.is_some_and(|mirror| cluster.sim.block_on(async move { mirror.may_answer_reads() }))
    })
}

/// Regression: the answer to an attachment extended the lease by the source's `failover_after`,
/// which the target learned only from the first renewal. A target with a grant whose answer was
/// lost could serve before that lease ended.
#[test]
fn lease_is_no_longer_than_its_target_knows() {
    for seed in 0..4 {
        let cluster = started_with(seed, [2000, 2000], None);
        until(&cluster, "armed", |cluster| is_armed(cluster, 0));
        for index in 0..2 {
            cluster.end(index, false);
            cluster.set_failover_after(index, 6000);
        }
        (0..2).for_each(|index| cluster.restart(index));
        let deadline = cluster.sim.now() + Duration::from_secs(60);
        let source = loop {
            match reader(&cluster) {
                Some(source) => break source,
                None => cluster.sim.run_for(Duration::from_micros(20)),
            }
            assert!(cluster.sim.now() < deadline, "{}", cluster.describe());
        };
        let known = cluster.superblock(1 - source).expect("a replica").arbiter.source_after_ms;
        // By the source's clock.
        assert!(known > 5000, "seed {seed}: {known} ms");
    }
}
