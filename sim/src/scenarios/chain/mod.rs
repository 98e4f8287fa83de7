//! Chain scenarios: the whole path of a mirrored write, from multipath hosts to both disks.
//!
//! ```text
//!   hosts: multipath NVMe/TCP host ─┬─ target ─ mirror ─ disk        node a
//!                                   │             │ replication link
//!                                   └─ target ─ mirror ─ disk        node b
//! ```
//!
//! Hosts, targets, mirrors and the link are the real code, over simulated sockets and disks. Hosts
//! outlive both nodes. Their calls overlap each other's, and a call that fails is repeated until it
//! succeeds. An operator changes roles and desired states at any moment.
//!
//! The simulator checks the following itself, and never asks the mirror's own verify:
//!
//! - Reads and writes of all hosts are linearizable block by block ([`history`]). The history
//!   restarts only where data was given up: after a power loss, without unflushed writes; after
//!   the failover of an asynchronous mirror, with the target's data.
//! - Whenever the mirror is in sync and no write is in flight, both disks are equal.
//! - Whenever a target may be promoted, its disk shows the volume at one moment of its past.
//! - At most one node serves.
//! - When all faults have ended, the mirror gets in sync and every call of a host ends.
//!
//! [`Profile`] says which faults and commands a scenario has. `chain-all` and `chain-async-all`
//! have disks that fail and hang, too. `chain-pool` has the real pool between the replica and the
//! disk of each node: its content is recovered from a copy of the disk. This takes long, so the
//! simulator checks few moments, and the operator takes fewer steps. No pool is full,
//! has a log device, snapshots or several disks (see the `pool` scenarios), and its server's
//! registry is replaced by the path of the disk.
//!
//! Left out: the daemon (its few lines that make the ANA state follow the role, and that reopen
//! failed devices, are repeated here), configuration, keys of hosts, more than one
//! target, discards, growth, host crashes, lost logs and memory limits (see the `mirror-*`
//! scenarios and `nvme-tcp`). A disk that lies about flushes, bit rot and misdirected writes are
//! left out too: without checksums, no promise covers them.

pub(in crate::scenarios) mod arbiter;
mod checks;
mod cluster;
#[cfg(test)]
mod exclusion_tests;
mod failover;
#[cfg(test)]
mod failover_tests;
#[cfg(test)]
mod fence_tests;
#[cfg(test)]
mod hand_over_tests;
mod history;
mod hosts;
mod link_keys;
mod operator;
#[cfg(test)]
mod other_store_tests;
mod pooled;
#[cfg(test)]
mod tests;

use std::time::Duration;

use flagstone_mirror::Mode;

use crate::{Outcome, Scenario};
use cluster::Cluster;
pub use failover::{FAILOVER, FAILOVER_ASYNC};

/// Synchronous, on disks that do not fail.
pub const CHAIN: Scenario = Scenario {
    name: "chain",
    about: "multipath hosts on a synchronous mirror over real targets and the real link: reads are \
            linearizable, and legs equal whenever in sync",
    run: |seed| run(seed, &Profile::new(Mode::Sync, false)),
};

/// Asynchronous, on disks that do not fail.
pub const CHAIN_ASYNC: Scenario = Scenario {
    name: "chain-async",
    about: "the same with an asynchronous mirror, whose target shows one moment of the past",
    run: |seed| run(seed, &Profile::new(Mode::Async, false)),
};

/// Synchronous, with all faults.
pub const CHAIN_ALL: Scenario = Scenario {
    name: "chain-all",
    about: "the synchronous chain on disks that also fail and hang",
    run: |seed| run(seed, &Profile::new(Mode::Sync, true)),
};

/// Asynchronous, with all faults.
pub const CHAIN_ASYNC_ALL: Scenario = Scenario {
    name: "chain-async-all",
    about: "the asynchronous chain on disks that also fail and hang, and clean stops of its source",
    run: |seed| run(seed, &Profile::new(Mode::Async, true)),
};

/// Synchronous, on volumes of pools.
pub const CHAIN_POOL: Scenario = Scenario {
    name: "chain-pool",
    about: "the synchronous chain, whose replicas are volumes of a pool at each node",
    run: |seed| run(seed, &Profile { pooled: true, ..Profile::new(Mode::Sync, false) }),
};

/// Synchronous, while the operator gives the link keys.
pub const CHAIN_KEYS: Scenario = Scenario {
    name: "chain-keys",
    about: "the synchronous chain, whose link gets keys for authentication, TLS or both at one node after \
            the other: handshakes are cut and stalled, and the pair gets in sync in every mixture",
    run: |seed| run(seed, &Profile { keys: true, ..Profile::new(Mode::Sync, false) }),
};

/// Faults and commands of a scenario.
#[derive(Clone, Copy, Debug)]
struct Profile {
    mode: Mode,
    /// Also failing reads, writes and flushes, disks that hang longer than any timeout, clean stops
    /// of an asynchronous source, hosts with two paths to a node.
    all: bool,
    /// The operator gives the link keys, for authentication or TLS.
    keys: bool,
    /// Replicas are on volumes of pools.
    pooled: bool,
    /// Nodes fail over by themselves, with an arbiter.
    automatic: bool,
    /// Breaks the cluster on purpose, at the start and before the last checks, to prove that the
    /// scenario notices.
    injected_bug: fn(&Cluster),
}

impl Profile {
    const fn new(mode: Mode, all: bool) -> Profile {
        Profile { mode, all, keys: false, pooled: false, automatic: false, injected_bug: |_| {} }
    }
}

fn run(seed: u64, profile: &Profile) -> Outcome {
    let cluster = Cluster::new(seed, *profile);
    let sim = &cluster.sim;
    (profile.injected_bug)(&cluster);
    (0..2).for_each(|index| cluster.start(index));
    cluster.start_hosts();
    if sim.chance(0.8) {
        cluster.pass(sim.random_span(Duration::ZERO, Duration::from_millis(1500)));
    }
    let steps = sim.random_between(1, if profile.pooled { 5 } else { 12 });
    for _ in 0..steps {
        operator::step(&cluster);
        // Most outages are shorter than a timeout, some longer.
        let longest = if sim.chance(0.3) { 4000 } else { 250 };
        cluster.pass(sim.random_span(Duration::ZERO, Duration::from_millis(longest)));
    }
    if profile.keys {
        link_keys::change_all(&cluster);
    }
    operator::settle(&cluster);
    if profile.keys {
        link_keys::check_link(&cluster);
    }
    (profile.injected_bug)(&cluster);
    checks::at_rest(&cluster);
    let outcome = Outcome::of(sim, cluster.world.history.checks(), steps);
    if profile.keys { outcome.with_random_contents() } else { outcome }
}
