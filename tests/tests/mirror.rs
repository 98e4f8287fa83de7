//! Mirrored volume on two real nodes under verified loads: nodes are killed and stalled, the role
//! moves by switchover and failover, and no acknowledged write is lost.
//!
//! Events come when the load has recorded a number of acknowledgments, never after a fixed time.
//! `FLAGSTONE_MIRROR_ROUNDS` sets their number, `FLAGSTONE_MIRROR_SEED` their choice.

use flagstone_tests::load::Load;
use flagstone_tests::mirror::{Pair, Setup, Small, VOLUME};
use flagstone_tests::mirror_events::{
    EVENTS, Event, Host as _, LINK_EVENTS, LOSSLESS_EVENTS, LoadHost, ROUNDS, SMALL_EVENTS,
    VOLATILE_EVENTS, rounds,
};
use flagstone_tests::process::{descriptors, resident_bytes};
use flagstone_tests::server::NQN_PREFIX;
use flagstone_tests::{rng, wire};

const SIZE_BYTES: u64 = 32 << 20;

/// Average number of writes between two events.
const WRITES: u64 = 500;

/// A host that writes over both paths sees no error and reads its writes back, whatever happens.
/// Both nodes are equal after each event.
fn survives(mut pair: Pair, events: &[Event], line: &str, seed: u64) {
    let (rounds, mut rng) = (rounds(events.len()), rng::from_env("FLAGSTONE_MIRROR_SEED", seed));
    let state = pair.file("state");
    // It runs while the nodes reconnect, however long that takes.
    let line = format!("--rw randwrite --depth 8 --size 16MiB --rate 4000 --ios 1000000000 {line}");
    let mut load = pair.load(&pair.both_paths(), &line, &state);
    let mut source = 0;
    let mut host = LoadHost { load: &mut load, state: &state };
    for round in 0..rounds {
        host.later(&pair, WRITES / 2 + rng.below(WRITES));
        // Each kind at least once, in a run of the usual length.
        let event = events.get(round as usize).copied();
        let event = event.unwrap_or_else(|| events[rng.below(events.len() as u64) as usize]);
        eprintln!("round {round}: {event:?}, source {source}");
        event.happen(&mut pair, source, &mut rng, &mut host);
        let serves = pair.source();
        let may = event.source_after(source).is_none_or(|expected| expected == serves);
        assert!(may, "{event:?}: {serves} serves");
        source = serves;
        host.hold(&mut || pair.assert_equal_legs(source));
    }
    // No error up to here, and all acknowledged writes are present.
    host.later(&pair, WRITES);
    load.kill();
    pair.assert_kept(source, "state");
    pair.end(source);
}

#[test]
fn synchronous_mirror_survives_deaths_and_stalls() {
    survives(Pair::in_sync(SIZE_BYTES, ""), &EVENTS, "", 1);
}

#[test]
fn memory_acknowledging_mirror_survives_with_flushes() {
    survives(Pair::in_sync(SIZE_BYTES, "ack = \"memory\""), &EVENTS, "--flush-every 8", 2);
}

/// Disks that lose what was not flushed when their node loses power, and that hang.
#[test]
fn synchronous_mirror_survives_power_losses_and_hangs() {
    let setup = Setup { size_bytes: SIZE_BYTES, volatile: true, ..Setup::default() };
    let pair = Pair::set_up(setup).synchronized();
    survives(pair, &[&EVENTS[..], &VOLATILE_EVENTS].concat(), "", 6);
}

/// The same with a peer that acknowledges from memory.
#[test]
fn memory_acknowledging_mirror_survives_power_losses() {
    let options = "ack = \"memory\"";
    let setup = Setup { size_bytes: SIZE_BYTES, options, volatile: true, ..Setup::default() };
    let pair = Pair::set_up(setup).synchronized();
    survives(pair, &EVENTS, "--flush-every 8", 7);
}

/// Cuts in either direction or both, silent or not; slow and flapping links; nodes that die
/// meanwhile; and a disk that runs full. Hosts always reach both nodes.
#[test]
fn synchronous_mirror_survives_link_cuts() {
    let small = Some(Small { node: 1, log: false, room_bytes: 2 * SIZE_BYTES });
    let setup = Setup { size_bytes: SIZE_BYTES, small, ..Setup::default() };
    let Some(pair) = Pair::linked("a link that is cut", setup) else { return };
    survives(pair, &[&LINK_EVENTS[..], &EVENTS, &SMALL_EVENTS].concat(), "", 3);
}

/// As above for an asynchronous mirror, without permanent loss of a source.
#[test]
fn asynchronous_mirror_survives_link_cuts() {
    let options = "mode = \"async\", queue = \"32MiB\"";
    let small = Some(Small { node: 1, log: false, room_bytes: 2 * SIZE_BYTES });
    let setup = Setup { size_bytes: SIZE_BYTES, options, small, ..Setup::default() };
    let Some(pair) = Pair::linked("an asynchronous link that is cut", setup) else { return };
    survives(pair, &[&LOSSLESS_EVENTS[..], &SMALL_EVENTS].concat(), "", 5);
}

/// A target's disk that hangs for 95 s in `make torture`, and for 6 s otherwise: hosts continue
/// without the target, and nothing piles up in either node.
#[test]
fn mirror_survives_long_hang_without_piling_up() {
    const GROWTH_MAX_BYTES: u64 = 48 << 20;
    /// A device that hangs is reopened eight times, and each time keeps its connections.
    const FILES_MAX: usize = 64;
    const RATE: u64 = 200;
    let seconds = if std::env::var_os(ROUNDS).is_some() { 95 } else { 6 };
    for options in ["", "mode = \"async\", queue = \"32MiB\""] {
        let setup = Setup { size_bytes: SIZE_BYTES, options, volatile: true, ..Setup::default() };
        let mut pair = Pair::set_up(setup).synchronized();
        let state = pair.file("state");
        let load = |pair: &Pair, ios: u64| {
            // The hosts' own pace is the clock, and they write far more than may pile up.
            let line =
                format!("--rw randwrite --bs 64k --depth 8 --size 16MiB --rate {RATE} --ios {ios}");
            pair.load(&pair.path(0), &line, &state).wait().assert_complete();
        };
        load(&pair, 400);
        let used = |pair: &mut Pair| {
            [0, 1]
                .map(|node| pair.node(node).pid())
                .map(|pid| (resident_bytes(pid), descriptors(pid)))
        };
        let before = used(&mut pair);
        pair.hang_disk(1, true);
        load(&pair, seconds * RATE);
        let after = used(&mut pair);
        for ((bytes, files), (bytes_now, files_now)) in before.into_iter().zip(after) {
            assert!(bytes_now < bytes + GROWTH_MAX_BYTES, "{options}: {before:?}, then {after:?}");
            assert!(files_now < files + FILES_MAX, "{options}: {before:?}, then {after:?}");
        }
        pair.hang_disk(1, false);
        pair.assert_equal_legs(0);
        pair.assert_kept(0, "state");
        pair.end(0);
    }
}

/// The output has attach instructions once the volume is served.
#[test]
fn attach_commands_are_printed_with_a_replica() {
    let mut pair = Pair::start(SIZE_BYTES, "");
    pair.node(0).printed_after("  no replica here yet: ");
    assert!(!pair.node(0).output().contains("nvme connect"));
    pair.order(0, "create", &["--source"]);
    pair.node(0).restart();
    pair.node(0).printed_after("  nvme connect -t tcp");
}

/// Writes to each node while the other is dead, so that they diverge. The state files `a` and `b`
/// record the acknowledged writes of each. At the end node 1 serves, and node 0 is back.
fn part(pair: &mut Pair) {
    let load = |pair: &Pair, node: usize, name: &str| {
        let state = pair.file(name);
        let line = "--rw randwrite --depth 4 --ios 200 --size 4MiB";
        pair.load(&pair.path(node), line, &state).wait().assert_complete();
    };
    pair.node(1).kill();
    load(pair, 0, "a");
    pair.node(0).kill();
    pair.node(1).restart();
    pair.fail_over_to(1);
    load(pair, 1, "b");
    pair.node(0).restart();
}

/// Both have degraded writes: both keep their data until an operator chooses.
/// The peer's path comes from the configuration, so it is there before a replica exists.
#[test]
fn discovery_of_either_node_lists_both_paths() {
    let mut pair = Pair::start(SIZE_BYTES, "");
    let mut paths: Vec<_> = [0, 1].map(|node| pair.host_address(node)).map(joined).into();
    paths.sort();
    for node in [0, 1] {
        let port = pair.node(node).port("nvme-tcp");
        let log = wire::nvme_discover(port).expect("the log is read");
        assert!(log.iter().all(|(_, nqn)| *nqn == format!("{NQN_PREFIX}{VOLUME}")), "{log:?}");
        let mut found: Vec<_> = log.into_iter().map(|(address, _)| address).collect();
        found.sort();
        assert_eq!(found, paths, "of node {node}");
    }
}

fn joined((ip, port): (&str, &str)) -> String {
    format!("{ip}:{port}")
}

#[test]
fn split_brain_is_reported_and_resolved_by_operator() {
    let mut pair = Pair::in_sync(SIZE_BYTES, "");
    part(&mut pair);
    for node in [0, 1] {
        pair.wait_for(node, "split-brain");
    }
    pair.assert_kept(1, "b");
    // One side discards its data.
    pair.order(0, "demote", &[]);
    pair.order(1, "resolve", &["--keep", "mine", "--yes"]);
    pair.wait_for(1, "mirroring");
    pair.assert_kept(1, "b");
    pair.assert_equal_legs(1);
}

/// Automatic resolution: once one of them does not serve, the other keeps its data. This node
/// discards its degraded writes and reports it.
#[test]
fn keep_serving_policy_ends_split_brain() {
    let mut pair = Pair::in_sync(SIZE_BYTES, "after_split_brain = \"keep-serving\"");
    // The restarted node finds that its peer serves, does not serve itself, and discards its data.
    part(&mut pair);
    pair.wait_for(1, "mirroring");
    pair.assert_kept(1, "b");
    pair.assert_equal_legs(1);
    let status = pair.status(0);
    assert_eq!(status["peers"][0]["discards"], 1, "{status:#}");
    assert!(status["peers"][0]["discarded_bytes"].as_u64() > Some(0), "{status:#}");
}

/// Compressible data is sent compressed, and arrives unchanged.
#[test]
fn mirrored_data_is_sent_compressed() {
    for codec in ["lz4", "zstd"] {
        let peer = format!("compression = \"{codec}\"");
        let setup = Setup { size_bytes: SIZE_BYTES, peer: &peer, ..Setup::default() };
        let pair = Pair::set_up(setup).written("what is written often ").synchronized();
        let link = pair.status(0)["peers"][0]["link"].clone();
        assert_eq!(link["compression"], codec, "{link:#}");
        let bytes = |name: &str| link[name].as_u64().expect("a number");
        assert!(bytes("data_bytes") >= SIZE_BYTES / 2, "{link:#}");
        assert!(bytes("sent_bytes") < bytes("data_bytes") / 10, "{codec}: {link:#}");
        // Incompressible data is sent as it is, mixed with compressible data.
        let state = pair.file("state");
        let line = "--rw randwrite --depth 8 --ios 500 --size 8MiB";
        pair.load(&pair.path(0), line, &state).wait().assert_complete();
        pair.assert_kept(0, "state");
        pair.end(0);
    }
}

/// An asynchronous target catches up, and a planned switchover loses no data.
#[test]
fn asynchronous_switchover_loses_nothing() {
    let pair = Pair::in_sync(SIZE_BYTES, "mode = \"async\", queue = \"32MiB\"");
    let state = pair.file("state");
    let line = "--rw randwrite --depth 16 --ios 3000 --size 8MiB";
    pair.load(&pair.both_paths(), line, &state).wait().assert_complete();
    pair.order(1, "switchover", &[]);
    pair.assert_kept(1, "state");
    pair.assert_equal_legs(1);
}

/// The queue is often full, and more writes are in flight than the link has slots. No write takes
/// the slot that an earlier one needs, or it would wait at the target for that write.
#[test]
fn asynchronous_mirror_with_slow_target_does_not_stall() {
    let slow = "disk_model = { write_latency = \"3ms\", read_latency = \"100us\" }";
    let options = "mode = \"async\", queue = \"32MiB\"";
    let setup = Setup { size_bytes: SIZE_BYTES, options, volume: ["", slow], ..Setup::default() };
    let pair = Pair::set_up(setup).synchronized();
    let state = pair.file("state");
    let line = "--rw randwrite --bs 8k --depth 24 --ios 20000 --size 16MiB";
    pair.load(&pair.path(0), line, &state).wait().assert_complete();
    let peer = pair.status(0)["peers"][0].clone();
    assert_eq!(peer["disconnects"], 0, "{peer:#}");
    pair.assert_kept(0, "state");
    pair.assert_equal_legs(0);
}

/// Enlarges the device of a node, as an administrator does.
fn enlarge(pair: &Pair, node: usize, bytes: u64) {
    let path = pair.file(["node-a.disk", "node-b.disk"][node]);
    let file = std::fs::OpenOptions::new().write(true).open(path).expect("it exists");
    file.set_len(bytes).expect("a sparse file can be as large");
}

fn size_of(pair: &Pair, node: usize) -> u64 {
    let status = pair.status(node);
    status["replica"]["size_bytes"].as_u64().unwrap_or_else(|| panic!("{status:#}"))
}

/// The volume grows under a load that sees no error. A node that restarts after its device grew
/// finds its replica. The new part belongs to the volume on both nodes.
#[test]
fn resize_during_activity() {
    let mut pair = Pair::in_sync(SIZE_BYTES, "");
    let state = pair.file("state");
    // It runs until the end, however long that takes.
    let line = "--rw randwrite --depth 8 --size 16MiB --rate 4000 --ios 1000000000";
    let mut load = Load::start_verified(&pair.both_paths(), line, &state);
    load.wait_for_records(&state, WRITES);
    let before = size_of(&pair, 0);
    let same = pair.order(0, "grow", &[]);
    assert_eq!(same["changed"], false, "{same:#}");
    // Only one node's device grows, and the node restarts: the volume has not grown, and no data is
    // lost.
    enlarge(&pair, 1, 3 * SIZE_BYTES);
    pair.node(1).kill();
    load.wait_for_records(&state, 2 * WRITES);
    pair.node(1).restart();
    pair.wait_for(0, "mirroring");
    let same = pair.order(0, "grow", &[]);
    assert_eq!(same["changed"], false, "{same:#}");
    assert!(same["outcome"].as_str().is_some_and(|outcome| outcome.contains("node-a")), "{same:#}");
    // Both devices.
    enlarge(&pair, 0, 2 * SIZE_BYTES);
    let dry = pair.order(0, "grow", &["--dry-run"]);
    assert_eq!((&dry["changed"], size_of(&pair, 0)), (&true.into(), before), "{dry:#}");
    let refused = pair.try_order(1, "grow", &[]).expect_err("a target");
    assert!(refused.contains("on the node that does"), "{refused}");
    let smaller = pair.try_order(0, "grow", &["--size", "16MiB"]).expect_err("it is smaller");
    assert!(smaller.contains("does not shrink"), "{smaller}");
    let larger = pair.try_order(0, "grow", &["--size", "65MiB"]).expect_err("no room");
    assert!(larger.contains("node-a"), "{larger}");
    pair.order(0, "grow", &["--size", "48MiB"]);
    load.wait_for_records(&state, 4 * WRITES);
    pair.wait_for(0, "mirroring");
    for node in [0, 1] {
        assert_eq!(size_of(&pair, node), 48 << 20);
    }
    let grown = pair.order(0, "grow", &[]);
    assert_eq!(grown["changed"], true, "{grown:#}");
    load.wait_for_records(&state, 6 * WRITES);
    pair.wait_for(0, "mirroring");
    let after = size_of(&pair, 0);
    assert!(after == size_of(&pair, 1) && (60 << 20..64 << 20).contains(&after), "{after}");
    load.kill();
    pair.assert_kept(0, "state");
    // The new part is written over both paths, and connected hosts stay connected.
    let line = "--rw randwrite --depth 4 --bs 64k --ios 2000";
    let whole = pair.file("all");
    Load::start_verified(&pair.both_paths(), line, &whole).wait().assert_complete();
    pair.order(1, "switchover", &[]);
    pair.wait_for(1, "mirroring");
    pair.assert_kept(1, "all");
    pair.assert_equal_legs(1);
    // Then again from the other side, whose device is larger.
    enlarge(&pair, 0, 4 * SIZE_BYTES);
    pair.order(1, "grow", &[]);
    pair.wait_for(1, "mirroring");
    assert!(size_of(&pair, 1) > after);
    assert_eq!(size_of(&pair, 0), size_of(&pair, 1));
    pair.assert_kept(1, "all");
    pair.assert_equal_legs(1);
    for node in [0, 1] {
        assert!(pair.node(node).terminate().success());
        pair.node(node).restart();
    }
    let source = pair.source();
    pair.assert_kept(source, "all");
}
