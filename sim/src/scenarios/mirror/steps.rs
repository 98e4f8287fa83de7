//! Steps of a cluster run: random faults and commands, then a quiet phase, then the final checks.
//!
//! Left out: what [`super::cluster`] leaves out, and faults of the network below a message.

use std::collections::BTreeSet;
use std::time::Duration;

use flagstone_mirror::state::status::{DesiredState, MirrorState};
use flagstone_runtime::time;

use super::Kind;
use super::cluster::{Cluster, DESIRED_STATES};
use crate::Outcome;
use crate::load::verify;

/// Longer than any undisturbed operation takes.
const RECOVERY_LIMIT: Duration = Duration::from_secs(120);

pub(super) fn run(seed: u64, kind: &Kind) -> Outcome {
    let cluster = Cluster::new(seed, kind);
    let sim = &cluster.sim;
    cluster.start(0);
    cluster.start(1);
    if sim.chance(0.8) {
        sim.run_for(Duration::from_millis(sim.random_between(50, 2000)));
    }
    let faults = sim.random_between(1, 10);
    for _ in 0..faults {
        sim.run_for(sim.random_span(Duration::ZERO, Duration::from_millis(80)));
        reopen(&cluster);
        step(&cluster);
        if sim.chance(0.3) {
            sim.run_for(sim.random_span(Duration::ZERO, Duration::from_secs(3)));
        }
    }
    settle(&cluster);
    let checks = check_at_rest(&cluster);
    Outcome::of(sim, checks, faults)
}

/// Names of the choices of [`step`], logged with `RUST_LOG=info` to examine a failing seed.
const CHOICE_NAMES: [&str; 29] = [
    "cut both ways",
    "cut one way",
    "heal",
    "heal",
    "crash",
    "crash",
    "power off",
    "restart",
    "restart",
    "failover",
    "failover",
    "switchover",
    "desired state",
    "stall",
    "slow",
    "resync all",
    "unreadable",
    "unreadable",
    "unwritable",
    "repair disks",
    "lose the log",
    "restore an old log",
    "fail at random",
    "fail at random",
    "fail at random",
    "fail the log at random",
    "fail the superblock",
    "fill the disk",
    "repair disks",
];

/// Servers reopen failed devices whose lost writes a peer may have.
fn reopen(cluster: &Cluster) {
    if cluster.kind.faults {
        for index in 0..2 {
            cluster.reopen(index);
        }
    }
}

/// Performs one random fault or command.
fn step(cluster: &Cluster) {
    cluster.watch();
    let sim = &cluster.sim;
    let index = sim.random_between(0, 1) as usize;
    let (here, there) = (cluster.nodes[index], cluster.nodes[1 - index]);
    if cluster.kind.grows && sim.chance(0.4) {
        tracing::info!(at_us = sim.now().as_nanos() / 1000, node = index, what = "grow");
        return cluster.grow(index);
    }
    if cluster.kind.moves && sim.chance(0.3) {
        tracing::info!(at_us = sim.now().as_nanos() / 1000, node = index, what = "move the log");
        return cluster.move_log(index);
    }
    if cluster.kind.faults && sim.chance(0.1) {
        tracing::info!(at_us = sim.now().as_nanos() / 1000, node = index, what = "shut down");
        return shut_down(cluster, index);
    }
    if cluster.kind.faults && sim.chance(0.05) {
        tracing::info!(at_us = sim.now().as_nanos() / 1000, node = index, what = "rot the log");
        return (0..2).for_each(|index| cluster.rot_log(index));
    }
    let choices = match cluster.kind {
        Kind { broken: true, .. } => 28,
        Kind { faults: true, .. } => 21,
        _ => 15,
    };
    let choice = sim.random_between(0, choices);
    tracing::info!(
        at_us = sim.now().as_nanos() / 1000,
        node = index,
        what = CHOICE_NAMES[choice as usize]
    );
    match choice {
        0 => {
            cluster.network().cut(here, there);
            cluster.network().cut(there, here);
        }
        1 => cluster.network().cut(here, there),
        2 | 3 => cluster.network().heal(),
        4 | 5 => cluster.end(index, false),
        6 => cluster.end(index, true),
        7 | 8 => cluster.restart(index),
        9 | 10 => failover(cluster, index),
        11 => command(cluster, index, async |mirror| {
            let _ = mirror.switchover(0).await;
        }),
        12 => {
            let desired = DESIRED_STATES[sim.random_between(0, 2) as usize];
            command(cluster, index, async move |mirror| {
                let _ = mirror.set_desired_state(0, desired).await;
            });
        }
        13 => {
            let span = sim.random_span(Duration::ZERO, Duration::from_secs(2));
            sim.stall(here, super::cluster::DATA, span);
        }
        14 => {
            let slow = sim.random_span(Duration::from_micros(100), Duration::from_millis(40));
            cluster.network().set_slow(slow);
        }
        15 => command(cluster, index, async |mirror| {
            let _ = mirror.resync_all(0);
        }),
        16 | 17 => cluster.damage(index, true),
        18 => cluster.damage(index, false),
        19 => cluster.repair(index),
        20 => cluster.replace_log(index, false),
        21 => cluster.replace_log(index, true),
        22..=24 => cluster.break_disk(index, false),
        25 => cluster.break_disk(index, true),
        26 => cluster.damage_superblock(index),
        27 => cluster.fill_disk(index),
        _ => cluster.repair(index),
    }
}

/// Shuts down a node's server cleanly, if its disks and calls allow it.
fn shut_down(cluster: &Cluster, index: usize) {
    let Some(mirror) = cluster.mirror(index) else { return };
    cluster.reconcile();
    let stopped =
        cluster.sim.spawn_on(cluster.nodes[index], async move { mirror.stop().await.is_ok() });
    let deadline = cluster.sim.now() + Duration::from_secs(3);
    let waits = || !stopped.is_finished() && cluster.sim.now() < deadline;
    while waits() {
        cluster.sim.run_for(Duration::from_millis(1));
    }
    cluster.end(index, false);
}

/// Runs an operator's command on a node, which may die while it runs.
fn command<F: Future<Output = ()> + 'static>(
    cluster: &Cluster,
    index: usize,
    say: impl FnOnce(std::sync::Arc<flagstone_mirror::Mirror>) -> F + 'static,
) {
    cluster.reconcile();
    let Some(mirror) = cluster.mirror(index) else { return };
    cluster.sim.spawn_on(cluster.nodes[index], async move { say(mirror).await });
}

/// The operator makes a node serve, whatever the other does.
fn failover(cluster: &Cluster, index: usize) {
    fail_over(cluster, index, false);
}

/// As [`failover`], with `unverified` also for unverified data.
fn fail_over(cluster: &Cluster, index: usize, unverified: bool) {
    let Some(mirror) = cluster.mirror(index) else { return };
    // Calls blocked by the role change belong to the previous line.
    if mirror.is_serving() || cluster.world.loading[index].get() {
        return;
    }
    let target = mirror.clone();
    let done = cluster.sim.spawn_on(cluster.nodes[index], async move {
        let inconsistent = mirror.status().inconsistent;
        let result = match unverified {
            true => mirror.failover_unverified().await,
            false => mirror.failover().await,
        };
        assert!(!inconsistent || result.is_err(), "inconsistent data is served");
    });
    // Until the attached source has been stopped or cut off, its writes belong to both.
    let parted = || !target.has_source() || done.is_finished();
    cluster.sim.run_until(Duration::from_micros(20), parted);
    cluster.part(index);
    cluster.sim.run_until(Duration::from_millis(1), || done.is_finished());
}

/// Stops all faults. The mirror must become in sync, with the operator's help where needed.
fn settle(cluster: &Cluster) {
    let sim = &cluster.sim;
    cluster.network().heal();
    cluster.network().set_slow(Duration::from_micros(300));
    compare_before_reopening(cluster);
    for index in 0..2 {
        switch_away_from_failed_disk(cluster, index);
        cluster.repair(index);
        // A disk that failed a durable write must be reopened before further use.
        if cluster.kind.faults && !cluster.reopen(index) {
            cluster.end(index, false);
        }
    }
    (0..2).for_each(|index| cluster.restart(index));
    cluster.agree_on_versions();
    (0..2).for_each(|index| cluster.restart_same_release(index));
    // Pending commands complete first, even on stalled disks.
    sim.run_for(Duration::from_secs(3));
    let deadline = sim.now() + RECOVERY_LIMIT;
    let mut quiet = 0;
    while !is_whole(cluster) {
        sim.run_for(Duration::from_millis(100));
        cluster.watch();
        resume_all(cluster);
        quiet += 1;
        if quiet % 100 == 0 {
            help_as_operator(cluster);
        }
        assert!(sim.now() < deadline, "the mirror does not get in sync\n{}", cluster.describe());
    }
    cluster.reconcile();
}

/// Copies everything while the source's disk fails writes, and compares the legs as soon as the
/// mirror reports that they are in sync, before any process ends: a restart could find a lost mark
/// again.
fn compare_before_reopening(cluster: &Cluster) {
    if !cluster.kind.faults {
        return;
    }
    (0..2).for_each(|index| cluster.repair(index));
    let source = (0..2).find(|index| cluster.state(*index).is_some());
    if let Some(source) = source {
        command(cluster, source, async |mirror| {
            let _ = mirror.resync_all(0);
        });
    }
    // Several flushes of the target pass while host writes to the source fail.
    cluster.network().set_slow(Duration::from_millis(3));
    let deadline = cluster.sim.now() + Duration::from_secs(10);
    while cluster.sim.now() < deadline {
        cluster.sim.run_for(Duration::from_millis(2));
        cluster.watch();
        for index in 0..2 {
            match cluster.state(index) {
                Some(MirrorState::Resynchronizing) => cluster.damage(index, false),
                _ => cluster.repair(index),
            }
        }
        if cluster.legs_compared() {
            break;
        }
    }
    (0..2).for_each(|index| cluster.repair(index));
    cluster.network().set_slow(Duration::from_micros(300));
}

/// The operator may make a source with a failed disk transfer its role, as its status recommends.
fn switch_away_from_failed_disk(cluster: &Cluster, index: usize) {
    let failed = cluster.mirror(index).filter(|mirror| mirror.has_failed() && mirror.is_serving());
    if failed.is_some() && cluster.sim.chance(0.5) {
        command(cluster, index, async |mirror| {
            let _ = mirror.switchover(0).await;
        });
        cluster.sim.run_for(Duration::from_millis(500));
    }
}

/// The operator ends pauses and resumes detached mirrors.
fn resume_all(cluster: &Cluster) {
    for index in 0..2 {
        let desired = cluster.superblock(index).map(|found| found.desired_states[0]);
        if desired.is_some_and(|desired| desired != DesiredState::Connected) {
            command(cluster, index, async |mirror| {
                let _ = mirror.set_desired_state(0, DesiredState::Connected).await;
            });
        }
    }
}

fn is_whole(cluster: &Cluster) -> bool {
    let states = [0, 1].map(|index| cluster.state(index));
    let served = |index: usize| {
        let source = cluster.mirror(1 - index).is_some_and(|mirror| mirror.has_source());
        source && states[1 - index].is_none() && states[index] == Some(MirrorState::Mirroring)
    };
    served(0) || served(1)
}

/// Performs the operator's steps for a mirror that does not recover by itself.
fn help_as_operator(cluster: &Cluster) {
    let shown = [0, 1].map(|index| cluster.shown(index));
    if shown.contains(&Some(MirrorState::SplitBrain)) {
        let one = {
            let lines = cluster.world.lines.borrow();
            lines[0].model.is(&lines[1].model)
        };
        assert!(!one, "a false split brain\n{}", cluster.describe());
        let loser = cluster.sim.random_between(0, 1) as usize;
        resolve(cluster, loser);
        return;
    }
    if let Some(index) = (0..2).find(|index| cluster.mirror(*index).is_none()) {
        // Both headers of its log are damaged: the device is refused until it has been wiped.
        cluster.end(index, false);
        cluster.replace_log(index, false);
        return cluster.restart_same_release(index);
    }
    if cluster.kind.grows && shown.contains(&Some(MirrorState::Mismatch)) {
        // A node announced its device's room, then grew by less than the metadata, which moved into
        // it. So there is less room than announced.
        return cluster.enlarge();
    }
    let unverified = |index: &usize| cluster.mirror(*index).is_some_and(|one| one.is_unverified());
    if shown.contains(&Some(MirrorState::NoSource))
        && let Some(index) = (0..2).find(unverified)
    {
        // No other node has this data: the visible content of its disk has to do.
        return fail_over(cluster, index, true);
    }
    let serves = [0, 1].map(|index| cluster.state(index).is_some());
    if serves == [false, false] {
        // No node was asked to serve.
        let whole = |index: usize| {
            cluster
                .superblock(index)
                .is_some_and(|found| !found.flags.inconsistent && !found.current.is_none())
        };
        let all_shown = shown.iter().all(|state| *state == Some(MirrorState::NoSource));
        if all_shown && let Some(index) = (0..2).find(|index| whole(*index)) {
            failover(cluster, index);
        }
    }
}

fn resolve(cluster: &Cluster, loser: usize) {
    let Some(mirror) = cluster.mirror(loser) else { return };
    cluster.discard_line(loser);
    let done = cluster.sim.spawn_on(cluster.nodes[loser], async move {
        let result = mirror.resolve_keep_peers(0).await;
        result.is_ok()
    });
    let resolved = cluster.sim.block_on(done).expect("the task is not aborted");
    assert!(resolved, "the split brain cannot be resolved\n{}", cluster.describe());
    if !cluster.mirror(1 - loser).is_some_and(|mirror| mirror.is_serving()) {
        failover(cluster, 1 - loser);
    }
}

/// Stops the hosts and checks that the data is allowed by the model and equal on both legs.
fn check_at_rest(cluster: &Cluster) -> u64 {
    let sim = &cluster.sim;
    cluster.world.stop.set(true);
    sim.run_for(Duration::from_secs(10));
    let active = (0..2).find(|index| cluster.state(*index).is_some());
    let active = active.unwrap_or_else(|| panic!("no node serves\n{}", cluster.describe()));
    cluster.reconcile();
    let mirror = cluster.mirror(active).expect("it serves");
    let busy = cluster.world.lines.borrow()[active].model.busy();
    assert!(!busy, "a host call does not end\n{}", cluster.describe());
    let model = cluster.world.lines.borrow()[active].model.clone();
    let checked = model.clone();
    let checking = sim.spawn_on(cluster.nodes[active], async move {
        let device: flagstone_blockdev::SharedDevice = std::sync::Arc::new((*mirror).clone());
        device.flush().await.expect("sound disks");
        verify(&device, &checked).await.expect("sound disks");
        mirror.status()
    });
    let status = sim.block_on(checking).expect("the task is not aborted");
    assert_eq!(status.in_flight, 0, "a range lock is never released");
    time_passes(cluster);
    assert_legs_equal(cluster);
    if sim.chance(0.3) {
        corrupt_and_verify(cluster, active);
    }
    assert_target_durable(cluster, 1 - active);
    model.checks()
}

fn assert_legs_equal(cluster: &Cluster) {
    let legs = [0, 1].map(|index| cluster.data(index));
    assert_eq!(legs[0].len(), legs[1].len(), "other sizes\n{}", cluster.describe());
    let differs = legs[0].iter().zip(&legs[1]).position(|(a, b)| a != b);
    assert!(differs.is_none(), "the legs differ at byte {differs:?}\n{}", cluster.describe());
}

/// Checks that the flushed content of an in-sync target survives a power loss, whatever failed
/// before, including a forgotten flush failure of its own.
fn assert_target_durable(cluster: &Cluster, target: usize) {
    time_passes(cluster);
    let shown = cluster.data(target);
    cluster.end(target, true);
    let kept = cluster.data(target);
    let differs = shown.iter().zip(&kept).position(|(a, b)| a != b);
    assert!(differs.is_none(), "the target loses byte {differs:?}\n{}", cluster.describe());
}

/// Corrupts bytes of the target. A verify must find exactly the corrupted parts, and a resync must
/// repair them.
fn corrupt_and_verify(cluster: &Cluster, active: usize) {
    const BIT: u64 = 4096;
    let sim = &cluster.sim;
    let bits = cluster.usable / BIT;
    let rotten: BTreeSet<u64> =
        (0..sim.random_between(0, 6)).map(|_| sim.random_between(0, bits - 1)).collect();
    for bit in &rotten {
        let at = bit * BIT + sim.random_between(0, BIT - 1);
        let byte = cluster.data(1 - active)[at as usize];
        sim.poke(cluster.nodes[1 - active], super::cluster::DATA, at, &[!byte]);
    }
    let mirror = cluster.mirror(active).expect("it serves");
    let verified = sim.spawn_on(cluster.nodes[active], async move {
        mirror.verify(0, None, true, |_| {}).await.expect("both are there")
    });
    let findings = sim.block_on(verified).expect("the task is not aborted");
    assert_eq!(findings.compared_bytes, cluster.data(active).len() as u64);
    assert_eq!(findings.differing_bytes, rotten.len() as u64 * BIT);
    let listed: BTreeSet<u64> = findings
        .differences
        .iter()
        .flat_map(|(offset, len)| offset / BIT..(offset + len) / BIT)
        .collect();
    assert_eq!(listed, rotten, "verify did not find exactly the corrupted parts");
    // The resync starts by itself.
    let deadline = sim.now() + RECOVERY_LIMIT;
    let differ = || cluster.data(0) != cluster.data(1);
    while differ() || cluster.state(active) != Some(MirrorState::Mirroring) {
        sim.run_for(Duration::from_millis(20));
        assert!(sim.now() < deadline, "the corruption is not repaired\n{}", cluster.describe());
    }
}

fn time_passes(cluster: &Cluster) {
    cluster.sim.block_on(async { time::sleep(Duration::from_secs(2)).await });
}
