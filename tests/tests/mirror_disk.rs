//! Two mirroring nodes, one on a file system that runs full, as thin devices and sparse files may.

use flagstone_tests::load::Load;
use flagstone_tests::mirror::{Pair, Setup, Small};
use flagstone_tests::network::Network;
use flagstone_tests::process::until;
use flagstone_tests::tools::unable;
use serde_json::Value;

const SIZE_BYTES: u64 = 32 << 20;

/// Less than the load writes, in bytes.
const LITTLE_BYTES: u64 = 8 << 20;

/// Enough for everything, in bytes.
const ENOUGH_BYTES: u64 = 64 << 20;

/// Random writes over 16 MiB: they touch three quarters of it, which exceeds the space, without
/// taking longer than needed. Each write passes through the threads of three processes and back. On
/// a busy machine each step waits some milliseconds for a processor: with seven other programs per
/// processor, a test took a minute for 4,000 writes, without any timeout involved.
const LOAD: &str = "--rw randwrite --bs 16k --depth 8 --size 16MiB --ios 1500";

fn pair(test: &str, small: Small) -> Option<Pair> {
    let size_bytes = SIZE_BYTES;
    Pair::linked(test, Setup { size_bytes, small: Some(small), ..Setup::default() })
}

fn has(pair: &Pair, node: usize, what: &str, found: impl Fn(&Value) -> bool) {
    let holds = || found(&pair.status(node));
    until(what, holds, || format!("{:#}", pair.status(node)));
}

/// A target without space is a lost leg. Hosts notice nothing, its missing blocks are tracked, and
/// they are copied when there is space, without a command.
#[test]
fn target_with_full_disk_falls_behind_until_it_has_space() {
    let small = Small { node: 1, log: false, room_bytes: LITTLE_BYTES };
    let Some(pair) = pair("a target with a full disk", small) else { return };
    let state = pair.file("state");
    pair.load(&pair.both_paths(), LOAD, &state).wait().assert_complete();
    let status = pair.status(0);
    assert_ne!(status["state"], "mirroring", "{status:#}");
    assert!(status["peers"][0]["disconnects"].as_u64() > Some(0), "{status:#}");
    assert!(status["peers"][0]["out_of_sync_bytes"].as_u64() > Some(0), "{status:#}");
    pair.assert_kept(0, "state");
    // The target is inconsistent, so it can never take over.
    has(&pair, 1, "the target knows", |status| status["replica"]["inconsistent"] == true);
    assert!(pair.try_order(1, "failover", &["--force", "--yes"]).is_err());
    pair.make_room(ENOUGH_BYTES);
    pair.wait_for(0, "mirroring");
    pair.assert_equal_legs(0);
    pair.order(1, "switchover", &[]);
    pair.assert_kept(1, "state");
    pair.end(1);
}

/// A source without space abandons its own leg. The target serves the volume through the source,
/// and hosts notice nothing. After a restart with space, the source is brought up to date.
#[test]
fn source_with_full_disk_is_served_by_its_peer() {
    let small = Small { node: 0, log: false, room_bytes: LITTLE_BYTES };
    let Some(mut pair) = pair("a source with a full disk", small) else { return };
    let state = pair.file("state");
    pair.load(&pair.both_paths(), LOAD, &state).wait().assert_complete();
    has(&pair, 0, "the source left its leg", |status| {
        status["replica"]["local_device_failed"] == true
    });
    pair.assert_kept(0, "state");
    pair.make_room(ENOUGH_BYTES);
    pair.node(0).restart();
    let source = pair.source();
    pair.assert_kept(source, "state");
    pair.assert_equal_legs(source);
    pair.end(source);
}

/// As above, but the role is transferred first, as the status recommends. Hosts follow without an
/// error.
#[test]
fn source_with_full_disk_switches_over() {
    let small = Small { node: 0, log: false, room_bytes: LITTLE_BYTES };
    let Some(mut pair) = pair("a source with a full disk hands over", small) else { return };
    let state = pair.file("state");
    let line = "--rw randwrite --bs 16k --depth 8 --size 16MiB --rate 4000 --ios 1000000000";
    let mut load = pair.load(&pair.both_paths(), line, &state);
    has(&pair, 0, "the source left its leg", |status| {
        status["replica"]["local_device_failed"] == true
    });
    pair.order(0, "switchover", &["--to", "node-b"]);
    load.wait_for_records(&state, Load::records_now(&state) + 500);
    pair.make_room(ENOUGH_BYTES);
    pair.node(0).restart();
    pair.wait_for(1, "mirroring");
    load.wait_for_records(&state, Load::records_now(&state) + 500);
    load.kill();
    pair.assert_kept(1, "state");
    pair.assert_equal_legs(1);
    pair.end(1);
}

/// The log allocates all its space when it is created. A file system that runs full later does not
/// fail it, not even after a crash and restart of its server.
#[test]
fn full_disk_does_not_fail_an_existing_log() {
    let small = Small { node: 0, log: true, room_bytes: 64 << 10 };
    let Some(mut pair) = pair("a full disk of the log", small) else { return };
    pair.fill_small();
    let line = "--rw randwrite --bs 16k --depth 8 --ios 1000";
    pair.load(&pair.path(0), line, &pair.file("state")).wait().assert_complete();
    // With out-of-sync blocks and active regions.
    pair.node(1).kill();
    pair.load(&pair.path(0), line, &pair.file("degraded")).wait().assert_complete();
    pair.node(0).restart();
    pair.node(1).restart();
    pair.wait_for(0, "mirroring");
    pair.assert_kept(0, "degraded");
    assert_eq!(pair.status(0)["replica"]["intent_log"]["failures"], 0);
    pair.assert_equal_legs(0);
    pair.end(0);
}

/// A log that finds no space when it is created is reported, and the volume is not served without
/// it.
#[test]
fn replica_is_not_created_without_space_for_its_log() {
    let test = "no room for a log";
    let small = Small { node: 0, log: true, room_bytes: 4 << 10 };
    let network = match Network::make() {
        Ok(network) => Some(network),
        Err(reason) => return unable(test, &reason),
    };
    let setup = Setup { size_bytes: SIZE_BYTES, network, small: Some(small), ..Setup::default() };
    let pair = Pair::set_up(setup);
    let said = pair.try_order(0, "create", &["--source"]).expect_err("there is no room");
    assert!(said.contains("no space"), "{said}");
    pair.make_room(ENOUGH_BYTES);
    pair.order(0, "create", &["--source"]);
    let line = "--rw randwrite --depth 8 --ios 200";
    pair.load(&pair.path(0), line, &pair.file("state")).wait().assert_complete();
}
