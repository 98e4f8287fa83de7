//! Failover scenario: the chain with an arbiter, and without an operator who promotes a node.
//!
//! The rules of automatic failover are its invariants:
//!
//! - at most one node has the right to answer reads at any time, even while another one is paused;
//! - reads and writes of all hosts are linearizable, so no acknowledged write is lost and no read
//!   is stale ([`super::history`]);
//! - a node with inconsistent data, or that has seen a later record than the arbiter has, never
//!   takes over;
//! - after the end of all faults, hosts are served again and the mirror gets in sync by itself.
//!
//! Clocks of the nodes run at rates that differ by up to 6 %.

use std::time::Duration;

use flagstone_arbiter::ReplicaId;
use flagstone_mirror::Mode;
use flagstone_mirror::state::status::{DesiredState, MirrorState};

use super::arbiter::Cut;
use super::cluster::Cluster;
use super::{Profile, checks, operator};
use crate::{Outcome, Scenario};

/// Scenario of automatic failover.
pub const FAILOVER: Scenario = Scenario {
    name: "failover",
    about: "the synchronous chain with an arbiter: nodes die, pause and part, nobody intervenes, no \
            read is stale and no acknowledged write lost",
    run: |seed| run(seed, &Profile { automatic: true, ..Profile::new(Mode::Sync, false) }),
};

/// As [`FAILOVER`], of an asynchronous mirror.
pub const FAILOVER_ASYNC: Scenario = Scenario {
    name: "failover-async",
    about: "the asynchronous chain with an arbiter: a node that takes over by itself shows one moment \
            of the past, at most failover_max_lag old",
    run: |seed| run(seed, &Profile { automatic: true, ..Profile::new(Mode::Async, false) }),
};

pub(super) const VOLUME: ReplicaId = ReplicaId([7; 16]);
/// Simulated time within which the mirror must get in sync without faults.
const RECOVERY_LIMIT: Duration = Duration::from_secs(120);

pub(super) fn run(seed: u64, profile: &Profile) -> Outcome {
    let cluster = Cluster::new(seed, *profile);
    let sim = &cluster.sim;
    (profile.injected_bug)(&cluster);
    if seed.is_multiple_of(5) {
        cluster.store().fence_fails.set(Some(30));
    }
    (0..2).for_each(|index| cluster.start(index));
    cluster.start_hosts();
    if sim.chance(0.9) {
        cluster.pass(sim.random_span(Duration::from_millis(200), Duration::from_secs(3)));
    }
    let steps = sim.random_between(1, 12);
    for _ in 0..steps {
        step(&cluster);
        let longest = if sim.chance(0.4) { 6000 } else { 400 };
        cluster.pass(sim.random_span(Duration::ZERO, Duration::from_millis(longest)));
    }
    settle(&cluster);
    checks::at_rest(&cluster);
    Outcome::of(sim, cluster.world.history.checks(), steps)
}

fn step(cluster: &Cluster) {
    let sim = &cluster.sim;
    let index = sim.random_between(0, 1) as usize;
    let (own, peer) = (cluster.nodes[index], cluster.nodes[1 - index]);
    let note = |text: String| cluster.world.history.note(text);
    let store = cluster.store();
    let last = if cluster.profile.mode == Mode::Async { 39 } else { 36 };
    match sim.random_between(0, last) {
        0..=3 => {
            note(format!("node {index} crashes"));
            cluster.end(index, false);
        }
        4 => {
            note(format!("node {index} loses power"));
            cluster.end(index, true);
        }
        5..=8 => operator::restart(cluster, index),
        9..=11 => operator::cut(cluster, own, peer),
        12 => {
            let host = sim.random_between(0, cluster.hosts.len() as u64 - 1) as usize;
            operator::cut(cluster, cluster.hosts[host], own);
        }
        13 => {
            note(format!("node {index} is cut off from everything"));
            sim.isolate(own);
            store.cuts[index].set(Cut { requests: true, answers: true, written: false });
        }
        14..=17 => heal(cluster),
        18 => {
            let down = !store.down.get();
            note(format!("the arbiter is down: {down}"));
            store.down.set(down);
        }
        19 => {
            let slow = sim.random_span(Duration::from_millis(1), Duration::from_millis(1500));
            note(format!("the arbiter takes up to {slow:?} per message"));
            store.slow.set(slow);
        }
        20 => {
            let loses = sim.random_between(0, 60);
            note(format!("the arbiter loses {loses} % of its answers"));
            store.loses.set(loses);
        }
        21 | 22 => {
            let cut = match sim.random_between(0, 2) {
                0 => Cut { requests: true, ..Cut::default() },
                1 => Cut { answers: true, ..Cut::default() },
                _ => Cut { requests: true, answers: true, written: false },
            };
            note(format!("node {index} loses the arbiter: {cut:?}"));
            store.cuts[index].set(cut);
        }
        23 if sim.chance(0.5) => {
            let refuses = !store.read_only[index].get();
            note(format!("the arbiter refuses writes of node {index}: {refuses}"));
            store.read_only[index].set(refuses);
        }
        23 => store.back_up(),
        24 => {
            let seen = |replica: ReplicaId| {
                let found = (0..2).filter_map(|index| cluster.superblock(index));
                let own = found.filter(|found| found.replica.0 == replica.0);
                own.map(|found| found.arbiter.revision).max().unwrap_or(0)
            };
            if store.restore(VOLUME, seen) {
                note("the arbiter is restored from a backup".to_owned());
            }
        }
        25 => {
            note("the arbiter's record is lost".to_owned());
            store.lose_record(VOLUME);
        }
        26..=28 => operator::pause(cluster, index),
        29 => cluster.command(index, "switchover", async |mirror| {
            let _ = mirror.switchover(0).await;
        }),
        30 => {
            note("all connections between the nodes are reset".to_owned());
            sim.reset_connections(own, peer);
        }
        31 => operator::stall(cluster, index, operator::SHORT_STALL),
        32 => operator::stop(cluster, index),
        33 => operator::set_clock(cluster),
        34 | 35 => {
            // An operator changes the configuration of one node after the other.
            let after_ms = sim.random_between(1000, 5000);
            note(format!("node {index} restarts with a failover_after of {after_ms} ms"));
            cluster.set_failover_after(index, after_ms);
            cluster.end(index, false);
            operator::restart(cluster, index);
        }
        37.. => operator::narrow_link(cluster, sim.random_between(100_000, 500_000)),
        _ => cluster.command(index, "pause and continue", async |mirror| {
            let _ = mirror.set_desired_state(0, DesiredState::Paused).await;
            flagstone_runtime::time::sleep(Duration::from_millis(700)).await;
            let _ = mirror.set_desired_state(0, DesiredState::Connected).await;
        }),
    }
}

fn heal(cluster: &Cluster) {
    cluster.world.history.note("the network heals");
    cluster.sim.heal_all();
    operator::mend_link(cluster);
    cluster.store().cuts.iter().for_each(|cut| cut.set(Cut::default()));
}

/// Ends all faults. The mirror must get in sync without an operator, unless the arbiter's record
/// was lost: then no node may conclude which one has the newest data.
pub(super) fn settle(cluster: &Cluster) {
    cluster.world.history.note("all faults end");
    heal(cluster);
    let store = cluster.store();
    store.end_faults();
    (0..2).for_each(|index| operator::restart(cluster, index));
    let deadline = cluster.sim.now() + RECOVERY_LIMIT;
    let mut looks = 0;
    // An abandoned fencing command may still stop a node, which is not started again.
    while !operator::is_whole(cluster) || store.fencing.get() > 0 {
        cluster.pass(Duration::from_millis(100));
        // A node may be fenced even now.
        (0..2).for_each(|index| operator::restart(cluster, index));
        operator::connect(cluster);
        looks += 1;
        if looks % 300 == 0 && store.was_restored.get() {
            operator::help(cluster);
        }
        let shown = [0, 1].map(|index| cluster.state(index));
        if shown.contains(&Some(MirrorState::SplitBrain)) {
            cluster.fail("split brain");
        }
        if cluster.sim.now() > deadline {
            let record = store.record(VOLUME);
            cluster.fail(&format!("the mirror does not get in sync by itself: {record:?}"));
        }
    }
}

impl Cluster {
    /// Nodes that have the right to answer reads.
    fn entitled(&self) -> [bool; 2] {
        [0, 1].map(|index| {
            let Some(mirror) = self.mirror(index) else { return false };
            self.sim.block_on(async move { mirror.may_answer_reads() })
        })
    }

    /// The serving node of a cluster with automatic failover.
    pub(super) fn active_automatic(&self) -> Option<usize> {
        let entitled = self.entitled();
        if entitled == [true, true] {
            self.fail("two nodes may answer reads");
        }
        entitled.iter().position(|may| *may)
    }
}
