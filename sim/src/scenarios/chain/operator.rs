//! Operator and faults of a chain scenario, one random step at a time, and the recovery at its end.

use std::time::Duration;

use flagstone_mirror::Mode;
use flagstone_mirror::state::status::{DesiredState, MirrorState};
use flagstone_runtime::sim::{DiskFaults, LinkConfig, NodeId, SimLatency};

use super::cluster::{Cluster, DATA};
use super::link_keys;

const DESIRED_STATES: [DesiredState; 3] =
    [DesiredState::Connected, DesiredState::Paused, DesiredState::Detached];
const NETWORK: LinkConfig = LinkConfig::network();
/// Simulated time within which the mirror must get in sync without faults.
const RECOVERY_LIMIT: Duration = Duration::from_secs(120);
/// Longest stall of a disk that no timeout notices.
pub(super) const SHORT_STALL: Duration = Duration::from_millis(400);
/// Longest stall of a disk at all.
const LONG_STALL: Duration = Duration::from_secs(12);
/// Longer than an undisturbed command takes.
const MOMENT: Duration = Duration::from_millis(500);

/// Performs one random fault or command.
pub(super) fn step(cluster: &Cluster) {
    let sim = &cluster.sim;
    if cluster.profile.keys && sim.chance(0.3) {
        link_keys::change_one(cluster);
        return;
    }
    let index = sim.random_between(0, 1) as usize;
    let last = if cluster.profile.all { 38 } else { 29 };
    match sim.random_between(0, last) {
        0 | 1 => cut(cluster, cluster.nodes[index], cluster.nodes[1 - index]),
        2 | 3 => {
            let host = sim.random_between(0, cluster.hosts.len() as u64 - 1) as usize;
            cut(cluster, cluster.hosts[host], cluster.nodes[index]);
        }
        4 => {
            cluster.world.history.note(format!("all hosts lose node {index}"));
            cluster.hosts.iter().for_each(|host| sim.partition(*host, cluster.nodes[index]));
        }
        5..=7 => {
            cluster.world.history.note("the network heals");
            sim.heal_all();
        }
        8 | 9 => {
            cluster.world.history.note(format!("node {index} crashes"));
            cluster.end(index, false);
        }
        10 => {
            cluster.world.history.note(format!("node {index} loses power"));
            cluster.end(index, true);
        }
        11 | 12 => restart(cluster, index),
        13 | 14 => cluster.command(index, "switchover", async |mirror| {
            let _ = mirror.switchover(0).await;
        }),
        15 | 16 => fail_over(cluster),
        17 => {
            let desired = DESIRED_STATES[sim.random_between(0, 2) as usize];
            cluster.command(index, desired.name(), async move |mirror| {
                let _ = mirror.set_desired_state(0, desired).await;
            });
        }
        18 => cluster.command(index, "connected", async |mirror| {
            let _ = mirror.set_desired_state(0, DesiredState::Connected).await;
        }),
        19 => cluster.command(index, "resync all", async |mirror| {
            let _ = mirror.resync_all(0);
        }),
        20 => stall(cluster, index, SHORT_STALL),
        21 => slow_reads(cluster, index),
        22 => {
            cluster.world.history.note("all connections of a pair are reset");
            let peers: Vec<NodeId> =
                cluster.hosts.iter().copied().chain([cluster.nodes[1 - index]]).collect();
            let peer = peers[sim.random_between(0, peers.len() as u64 - 1) as usize];
            sim.reset_connections(cluster.nodes[index], peer);
        }
        23 => cluster.lull(),
        24 => {
            if cluster.profile.mode == Mode::Sync || cluster.profile.all {
                stop(cluster, index);
            }
        }
        25 => pause(cluster, index),
        26 => slow_writes(cluster, index),
        27 => slow_for_minutes(cluster, index),
        28 => set_clock(cluster),
        29 => slow_link(cluster),
        30 => stall(cluster, index, LONG_STALL),
        31..=33 => break_disk(cluster, index),
        34 => damage(cluster, index),
        _ => repair(cluster, index),
    }
}

/// Cuts a link, one way or both ways.
pub(super) fn cut(cluster: &Cluster, from: NodeId, to: NodeId) {
    let sim = &cluster.sim;
    match sim.random_between(0, 3) {
        0 => {
            cluster.world.history.note(format!("link {from} -> {to} is cut"));
            sim.partition_one_way(from, to);
        }
        1 => {
            cluster.world.history.note(format!("link {to} -> {from} is cut"));
            sim.partition_one_way(to, from);
        }
        _ => {
            cluster.world.history.note(format!("link {from} <-> {to} is cut"));
            sim.partition(from, to);
        }
    }
}

pub(super) fn restart(cluster: &Cluster, index: usize) {
    if !cluster.sim.is_up(cluster.nodes[index]) {
        cluster.world.history.note(format!("node {index} restarts"));
        cluster.restart(index);
    }
}

pub(super) fn stall(cluster: &Cluster, index: usize, longest: Duration) {
    let span = cluster.sim.random_span(Duration::ZERO, longest);
    cluster.world.history.note(format!("the disk of node {index} hangs for {span:?}"));
    cluster.sim.stall(cluster.nodes[index], DATA, span);
}

/// Makes a disk slow until it is repaired.
fn slow_reads(cluster: &Cluster, index: usize) {
    let us = cluster.sim.random_between(1000, 20_000);
    cluster.world.history.note(format!("reads of node {index}'s disk take {us} us"));
    let latency = SimLatency::between_us(us, 2 * us);
    cluster.sim.set_read_latency(cluster.nodes[index], DATA, latency);
}

/// The same for writes.
fn slow_writes(cluster: &Cluster, index: usize) {
    let us = cluster.sim.random_between(1000, 20_000);
    cluster.world.history.note(format!("writes of node {index}'s disk take {us} us"));
    let latency = SimLatency::between_us(us, 2 * us);
    cluster.sim.set_write_latency(cluster.nodes[index], DATA, latency);
}

/// Makes all calls of a disk slow for minutes, during which nothing else happens. Hosts make few
/// calls, or the run would take as long as a hundred others.
fn slow_for_minutes(cluster: &Cluster, index: usize) {
    let (sim, node) = (&cluster.sim, cluster.nodes[index]);
    let us = sim.random_between(50_000, 400_000);
    let span = sim.random_span(Duration::from_secs(30), Duration::from_secs(180));
    cluster.world.history.note(format!("node {index}'s disk takes {us} us for {span:?}"));
    let latency = SimLatency::between_us(us, 2 * us);
    sim.set_read_latency(node, DATA, latency);
    sim.set_write_latency(node, DATA, latency);
    cluster.world.calm.set(true);
    cluster.pass(span);
    cluster.world.calm.set(false);
    heal_latency(cluster, index);
}

fn heal_latency(cluster: &Cluster, index: usize) {
    let (sim, node) = (&cluster.sim, cluster.nodes[index]);
    sim.set_read_latency(node, DATA, SimLatency::between_us(60, 200));
    sim.set_write_latency(node, DATA, SimLatency::between_us(15, 100));
}

/// Sets the wall clock to any time.
pub(super) fn set_clock(cluster: &Cluster) {
    let since_epoch = cluster.sim.random_span(Duration::ZERO, Duration::from_secs(1 << 33));
    cluster.world.history.note(format!("the wall clock jumps to {since_epoch:?}"));
    cluster.sim.set_wall_clock(since_epoch);
}

/// Makes the link between the nodes slow until all faults end, so that queues fill.
fn slow_link(cluster: &Cluster) {
    let us = cluster.sim.random_between(1000, 60_000);
    cluster.world.history.note(format!("the link between the nodes takes {us} us"));
    set_link(cluster, LinkConfig { latency: SimLatency::between_us(us, us + us / 4), ..NETWORK });
}

/// Gives the link between the nodes less bandwidth than hosts write, so that the lag grows.
pub(super) fn narrow_link(cluster: &Cluster, bytes_per_second: u64) {
    cluster.world.history.note(format!("the link takes {bytes_per_second} bytes/s"));
    set_link(cluster, LinkConfig { bytes_per_second, ..NETWORK });
}

/// Makes the link between the nodes as fast as it was.
pub(super) fn mend_link(cluster: &Cluster) {
    set_link(cluster, NETWORK);
}

fn set_link(cluster: &Cluster, link: LinkConfig) {
    let [a, b] = cluster.nodes;
    cluster.sim.set_link(a, b, link);
    cluster.sim.set_link(b, a, link);
}

/// Pauses the process of a node, for shorter or longer than timeouts.
pub(super) fn pause(cluster: &Cluster, index: usize) {
    let span = cluster.sim.random_span(Duration::ZERO, Duration::from_secs(4));
    cluster.world.history.note(format!("node {index} is paused for {span:?}"));
    cluster.sim.pause(cluster.nodes[index]);
    cluster.pass(span);
    cluster.sim.resume(cluster.nodes[index]);
    cluster.world.history.note(format!("node {index} continues"));
}

/// Makes reads, writes or flushes of a disk fail at random.
fn break_disk(cluster: &Cluster, index: usize) {
    let sim = &cluster.sim;
    let rate = |most: f64| match sim.chance(0.5) {
        true => most * sim.random_between(1, 100) as f64 / 100.0,
        false => 0.0,
    };
    let faults = DiskFaults {
        read_errors: rate(0.2),
        write_errors: rate(0.1),
        flush_errors: rate(0.1),
        ..DiskFaults::default()
    };
    cluster.world.history.note(format!("the disk of node {index} fails: {faults:?}"));
    sim.set_faults(cluster.nodes[index], DATA, faults);
}

/// Makes part of a disk unreadable or unwritable.
fn damage(cluster: &Cluster, index: usize) {
    let sim = &cluster.sim;
    let pages = cluster.data(index).len() as u64 / 4096;
    let from = sim.random_between(0, pages - 1) * 4096;
    let range = from..from + 4096;
    cluster.world.history.note(format!("the disk of node {index} is damaged at {range:?}"));
    let faults = DiskFaults::default();
    let faults =
        if sim.chance(0.5) { faults.unreadable_at(range) } else { faults.unwritable_at(range) };
    sim.set_faults(cluster.nodes[index], DATA, faults);
}

fn repair(cluster: &Cluster, index: usize) {
    cluster.sim.set_faults(cluster.nodes[index], DATA, DiskFaults::default());
}

/// Stops a node's server in order, as far as its calls end, and then its process.
pub(super) fn stop(cluster: &Cluster, index: usize) {
    let Some(mirror) = cluster.mirror(index) else { return };
    cluster.world.history.note(format!("operator: node {index} stops"));
    let stopped = cluster.sim.spawn_on(cluster.nodes[index], async move {
        let _ = mirror.leave().await;
        mirror.stop().await.is_ok()
    });
    let deadline = cluster.sim.now() + Duration::from_secs(3);
    while !stopped.is_finished() && cluster.sim.now() < deadline {
        cluster.pass(Duration::from_millis(5));
    }
    cluster.end(index, false);
}

/// Promotes the target of a source that is down, if the source's records say that it lacks nothing.
/// The source stays down until the other serves.
fn fail_over(cluster: &Cluster) {
    let source = cluster.world.source.get();
    let target = 1 - source;
    if cluster.sim.is_up(cluster.nodes[source]) || cluster.serves(target) {
        return;
    }
    let outdated = cluster
        .superblock(source)
        .is_none_or(|found| found.peers[0].is_outdated() || found.peers[0].replica.is_none());
    let usable = cluster
        .superblock(target)
        .is_some_and(|found| !found.flags.inconsistent && !found.current.is_none());
    if outdated || !usable {
        return;
    }
    promote(cluster, target);
}

/// Promotes a node and waits until it serves or refuses. The operator consents to unverified data.
fn promote(cluster: &Cluster, target: usize) {
    let Some(mirror) = cluster.mirror(target) else { return };
    cluster.world.history.note(format!("operator: failover to node {target}"));
    cluster.world.failing_over.set(Some(target));
    let done = cluster.sim.spawn_on(cluster.nodes[target], async move {
        match mirror.is_unverified() {
            true => mirror.failover_unverified().await,
            false => mirror.failover().await,
        }
    });
    let deadline = cluster.sim.now() + RECOVERY_LIMIT;
    while !done.is_finished() {
        cluster.pass(Duration::from_millis(5));
        if cluster.sim.now() > deadline {
            cluster.fail("the failover does not end");
        }
    }
    match cluster.sim.block_on(done) {
        // The task that follows the role takes note.
        Ok(Ok(())) => cluster.sim.run_for(Duration::from_micros(10)),
        result => cluster.world.history.note(format!("failover refused: {result:?}")),
    }
    cluster.world.failing_over.set(None);
    cluster.world.gives_up.set(false);
}

/// Ends all faults. The mirror must get in sync by itself, or with an operator who connects it and
/// promotes a node where none was asked to serve.
pub(super) fn settle(cluster: &Cluster) {
    let sim = &cluster.sim;
    cluster.world.history.note("all faults end");
    sim.heal_all();
    mend_link(cluster);
    for index in 0..2 {
        repair(cluster, index);
        heal_latency(cluster, index);
        restart(cluster, index);
    }
    // Commands that wait for a disk end first.
    cluster.world.hold.set(true);
    cluster.pass(if cluster.profile.all { LONG_STALL } else { SHORT_STALL } + MOMENT);
    cluster.world.hold.set(false);
    recover(cluster);
}

/// Waits until the mirror is in sync.
pub(super) fn recover(cluster: &Cluster) {
    let sim = &cluster.sim;
    let deadline = sim.now() + RECOVERY_LIMIT;
    let mut looks = 0;
    while !is_whole(cluster) {
        cluster.pass(Duration::from_millis(100));
        connect(cluster);
        looks += 1;
        if looks % 10 == 0 {
            replace_failed(cluster);
        }
        if looks % 100 == 0 {
            help(cluster);
        }
        if sim.now() > deadline {
            cluster.fail("the mirror does not get in sync");
        }
    }
}

pub(super) fn is_whole(cluster: &Cluster) -> bool {
    let Some(source) = cluster.active() else { return false };
    let attached = cluster.mirror(1 - source).is_some_and(|mirror| mirror.has_source());
    let sound = !cluster.has_failed(0) && !cluster.has_failed(1);
    attached && sound && cluster.state(source) == Some(MirrorState::Mirroring)
}

/// Ends pauses and breaks.
pub(super) fn connect(cluster: &Cluster) {
    for index in 0..2 {
        let desired = cluster.superblock(index).map(|found| found.desired_states[0]);
        if desired.is_some_and(|desired| desired != DesiredState::Connected) {
            cluster.command(index, "connected", async |mirror| {
                let _ = mirror.set_desired_state(0, DesiredState::Connected).await;
            });
        }
    }
}

/// Promotes a node if none was asked to serve.
pub(super) fn help(cluster: &Cluster) {
    let shown = [0, 1].map(|index| cluster.state(index));
    if shown.contains(&Some(MirrorState::SplitBrain)) {
        cluster.fail("a false split brain");
    }
    if shown == [Some(MirrorState::NoSource); 2] {
        let unverified: Vec<usize> = (0..2)
            .filter(|index| cluster.mirror(*index).is_some_and(|mirror| mirror.is_unverified()))
            .collect();
        // After a failure of both disks it is unknown which one has the newest data.
        cluster.world.gives_up.set(unverified.len() == 2);
        promote(cluster, unverified.first().copied().unwrap_or(cluster.world.source.get()));
    }
}

/// Moves the role away from a failed disk, and reopens it, as the operator and the server do. A
/// node whose peer cannot serve is restarted.
fn replace_failed(cluster: &Cluster) {
    for index in (0..2).filter(|index| cluster.has_failed(*index)) {
        let state = cluster.state(index);
        if cluster.serves(index) && state == Some(MirrorState::Mirroring) {
            cluster.command(index, "switchover, because its disk failed", async |mirror| {
                let _ = mirror.switchover(0).await;
            });
        } else if cluster.mirror(index).is_some_and(|mirror| mirror.is_idle_target()) {
            reopen(cluster, index);
        } else if state != Some(MirrorState::Resynchronizing) {
            cluster.world.history.note(format!("operator: node {index} is restarted"));
            cluster.end(index, false);
            cluster.restart(index);
        }
    }
}

/// Reopens the failed disk of a target. Its data counts as unverified until a resync.
fn reopen(cluster: &Cluster, index: usize) {
    let Some(mirror) = cluster.mirror(index) else { return };
    let abandoned =
        cluster.sim.spawn_on(cluster.nodes[index], async move { mirror.abandon_target().await });
    if cluster.sim.block_on(abandoned).expect("the task is not aborted") {
        cluster.world.history.note(format!("node {index} reopens its disk"));
        cluster.end(index, false);
        cluster.restart_unverified(index);
    }
}
