//! Seeds of every profile, and proof that the scenario notices a cluster that breaks its promises.

use std::time::Duration;

use flagstone_mirror::Mode;
use flagstone_runtime::sim::DiskFaults;

use super::cluster::{Cluster, DATA};
use super::operator::recover;
use super::{CHAIN, CHAIN_ALL, CHAIN_ASYNC, CHAIN_ASYNC_ALL, CHAIN_KEYS, CHAIN_POOL, Profile, run};
use crate::runner::run_seed;
use crate::scenarios::lying_device::caught;

#[test]
fn chain_keeps_guarantees_and_replays() {
    for (scenario, seed) in (0..4).flat_map(|seed| [(CHAIN, seed), (CHAIN_ALL, seed)]) {
        run_seed(&scenario, seed, true).unwrap_or_else(|failure| panic!("{failure}"));
    }
}

#[test]
fn asynchronous_chain_keeps_guarantees_and_replays() {
    for (scenario, seed) in (0..4).flat_map(|seed| [(CHAIN_ASYNC, seed), (CHAIN_ASYNC_ALL, seed)]) {
        run_seed(&scenario, seed, true).unwrap_or_else(|failure| panic!("{failure}"));
    }
}

#[test]
fn chain_on_pools_keeps_guarantees_and_replays() {
    for seed in 0..4 {
        run_seed(&CHAIN_POOL, seed, true).unwrap_or_else(|failure| panic!("{failure}"));
    }
}

#[test]
fn chain_gets_keys_and_replays() {
    for seed in 0..6 {
        run_seed(&CHAIN_KEYS, seed, true).unwrap_or_else(|failure| panic!("{failure}"));
    }
}

fn set_faults(cluster: &Cluster, index: usize, faults: &DiskFaults) {
    cluster.sim.set_faults(cluster.nodes[index], DATA, faults.clone());
}

/// Makes the target's disk write some blocks elsewhere.
fn misdirect(cluster: &Cluster) {
    set_faults(cluster, 1, &DiskFaults { misdirected_writes: 0.02, ..DiskFaults::default() });
}

/// Makes flushes of all disks ineffective.
fn lie(cluster: &Cluster) {
    for index in 0..2 {
        set_faults(cluster, index, &DiskFaults { lying_flushes: true, ..DiskFaults::default() });
    }
}

#[test]
fn misdirected_writes_are_detected() {
    let failing = caught(|seed| {
        run(seed, &Profile { injected_bug: misdirect, ..Profile::new(Mode::Sync, false) })
    });
    assert!(failing >= 20, "{failing} of 40");
}

#[test]
fn lying_flushes_are_detected() {
    let failing =
        caught(|seed| run(seed, &Profile { injected_bug: lie, ..Profile::new(Mode::Sync, false) }));
    assert!(failing >= 3, "{failing} of 40");
    let on_pools = caught(|seed| {
        run(seed, &Profile { injected_bug: lie, pooled: true, ..Profile::new(Mode::Sync, false) })
    });
    // 3 were found: the operator of pools takes fewer steps, so that fewer nodes lose power.
    assert!(on_pools >= 2, "{on_pools} of 40");
}

/// Regression (chain-all, seed 45): a flush of the source's disk failed during a switchover. The
/// source had already stopped serving, and asked no peer to take over, so no node served although
/// the target had all data. The target must take the role.
#[test]
fn switchover_succeeds_when_local_flush_fails() {
    let cluster = Cluster::new(45, Profile::new(Mode::Sync, true));
    (0..2).for_each(|index| cluster.start(index));
    recover(&cluster);
    let faults = DiskFaults { flush_errors: 1.0, ..DiskFaults::default() };
    set_faults(&cluster, 0, &faults);
    cluster.command(0, "switchover", async |mirror| {
        let _ = mirror.switchover(0).await;
    });
    cluster.pass(Duration::from_secs(5));
    assert_eq!(cluster.active(), Some(1), "{}", cluster.describe());
}
