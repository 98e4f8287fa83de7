//! Regression tests of the read lease.

use std::time::Duration;

use super::cluster::Cluster;
use super::failover_tests::{is_armed, started_with, until};

/// True if node 0 may answer reads.
fn reads(cluster: &Cluster) -> bool {
    let Some(mirror) = cluster.mirror(0) else { return false };
    cluster.sim.block_on(async move { mirror.may_answer_reads() })
}

/// Regression: the answer to an attachment extended the lease by the source's `failover_after`,
/// which the target learned only from the first renewal. A target with a grant whose answer was
/// lost could serve before that lease ended.
#[test]
fn lease_is_no_longer_than_its_target_knows() {
    for seed in 0..4 {
        let cluster = started_with(seed, [3000, 3000], None);
        until(&cluster, "armed", |cluster| is_armed(cluster, 0));
        cluster.end(0, false);
        cluster.set_failover_after(0, 6000);
        cluster.restart(0);
        let deadline = cluster.sim.now() + Duration::from_secs(60);
        // The other node may have taken over.
        while !(reads(&cluster) || cluster.serves(1)) && cluster.sim.now() < deadline {
            cluster.sim.run_for(Duration::from_micros(20));
        }
        assert!(reads(&cluster), "{}", cluster.describe());
        let known = cluster.superblock(1).expect("a replica").arbiter.source_after_ms;
        // By its own clock.
        assert!(known > 5000, "seed {seed}: {known} ms");
    }
}
