//! Two nodes that could serve the same volume: after forced failovers, restarts, pauses and cut
//! links, at most one of them serves, and no host reads data older than its acknowledged writes.
//!
//! Not covered: host protocols. Hosts call the mirror directly, and a mirror that does not serve
//! stands for an inaccessible path.
mod hung_disk;
mod orders;
mod returning_source;

use std::time::Duration;

use flagstone_mirror::RoleError;
use flagstone_mirror::state::machine::OrderRefusal;

use super::pair::{Group, Pair};

/// Longer than the keep-alive timeout, the reconnect delay and the time for which peers are asked.
const A_WHILE: Duration = Duration::from_secs(12);

const SERVES: Result<(), RoleError> = Err(RoleError::Refused(OrderRefusal::PeerServes));
const SILENT: Result<(), RoleError> = Err(RoleError::Refused(OrderRefusal::PeerSilent));
fn failover(pair: &Pair, index: usize) {
    pair.on(index, |mirror| async move { mirror.failover().await }).expect("complete data");
}

fn careful_failover<const N: usize>(pair: &Group<N>, index: usize) -> Result<(), RoleError> {
    pair.on(index, |mirror| async move { mirror.failover_if_unserved().await })
}

/// Runs for a while, and fails when this node serves at any moment.
fn never_serves(pair: &Pair, index: usize, span: Duration) {
    let until = pair.sim.now() + span;
    while pair.sim.now() < until {
        pair.sim.run_for(Duration::from_millis(1));
        assert!(!pair.active().contains(&index), "node {index} serves");
    }
}

/// Starts a node as its process does, without waiting for it to serve.
fn begin(pair: &Pair, index: usize) {
    pair.sim.restart(pair.nodes[index]);
    pair.open(index);
    let mirror = pair.mirror(index);
    pair.sim.spawn_on(pair.nodes[index], async move {
        let _ = mirror.start().await;
    });
}

/// Runs for a while. At no moment do two nodes serve.
fn at_most_one_serves<const N: usize>(group: &Group<N>, span: Duration) {
    let until = group.sim.now() + span;
    while group.sim.now() < until {
        group.sim.run_for(Duration::from_millis(1));
        assert!(group.active().len() < 2, "nodes {:?} serve", group.active());
    }
}
