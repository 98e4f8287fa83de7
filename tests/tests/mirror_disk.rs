//! Two nodes that mirror a volume, and a file system on one of them that runs full: thin devices
//! and sparse files promise more than there is.

use flagstone_tests::load::Load;
use flagstone_tests::mirror::{Pair, Setup, Small};
use flagstone_tests::network::Network;
use flagstone_tests::process::until;
use flagstone_tests::tools::unable;
use serde_json::Value;

const SIZE_BYTES: u64 = 32 << 20;

/// Less than the load writes to.
const LITTLE_BYTES: u64 = 8 << 20;

/// Enough for everything.
const ENOUGH_BYTES: u64 = 64 << 20;

/// Writes all over 16 MiB: to three quarters of it, which is more than there is room for, and no more
/// than that takes. A write goes through the threads of three processes and back. Where other programs
/// keep the processors busy each of those steps waits its turn for some milliseconds: with seven programs
/// for each processor a test here took a minute, for 4,000 writes. Nothing waited for a time-out; a thread
/// of a server had run for an eighth of a second, and been kept waiting for a processor for seven.
const LOAD: &str = "--rw randwrite --bs 16k --depth 8 --size 16MiB --ios 1500";

fn pair(test: &str, small: Small) -> Option<Pair> {
    let size_bytes = SIZE_BYTES;
    Pair::linked(test, Setup { size_bytes, small: Some(small), ..Setup::default() })
}

fn has(pair: &Pair, node: usize, what: &str, found: impl Fn(&Value) -> bool) {
    let holds = || found(&pair.status(node));
    until(what, holds, || format!("{:#}", pair.status(node)));
}

/// A target without room is a lost leg: hosts notice nothing, what it lacks is known, and it is
/// copied when there is room, without anybody's word.
#[test]
fn a_target_whose_disk_is_full_is_left_behind_until_there_is_room() {
    let small = Small { node: 1, log: false, room_bytes: LITTLE_BYTES };
    let Some(pair) = pair("a target with a full disk", small) else { return };
    let state = pair.file("state");
    pair.load(&pair.both_paths(), LOAD, &state).wait().assert_complete();
    let status = pair.status(0);
    assert_ne!(status["state"], "mirroring", "{status:#}");
    assert!(status["peers"][0]["losses"].as_u64() > Some(0), "{status:#}");
    assert!(status["peers"][0]["out_of_date_bytes"].as_u64() > Some(0), "{status:#}");
    pair.assert_kept(0, "state");
    // What it has is of no moment in time: it cannot take over, whatever happens.
    has(&pair, 1, "the target knows", |status| status["replica"]["inconsistent"] == true);
    assert!(pair.try_order(1, "failover", &["--yes"]).is_err());
    pair.make_room(ENOUGH_BYTES);
    pair.wait_for(0, "mirroring");
    pair.assert_equal_legs(0);
    pair.order(1, "switchover", &[]);
    pair.assert_kept(1, "state");
    pair.end(1);
}

/// A source without room leaves its own leg: the target carries the volume through the source, and
/// hosts notice nothing. With room, and started again, it is brought up to date.
#[test]
fn a_source_whose_disk_is_full_goes_on_with_the_target_alone() {
    let small = Small { node: 0, log: false, room_bytes: LITTLE_BYTES };
    let Some(mut pair) = pair("a source with a full disk", small) else { return };
    let state = pair.file("state");
    pair.load(&pair.both_paths(), LOAD, &state).wait().assert_complete();
    has(&pair, 0, "the source left its leg", |status| status["replica"]["local_failed"] == true);
    pair.assert_kept(0, "state");
    pair.make_room(ENOUGH_BYTES);
    pair.node(0).restart();
    let source = pair.source();
    pair.assert_kept(source, "state");
    pair.assert_equal_legs(source);
    pair.end(source);
}

/// The same, and the role is handed over first, as its advice is: hosts follow without an error.
#[test]
fn a_source_whose_disk_is_full_hands_the_volume_over() {
    let small = Small { node: 0, log: false, room_bytes: LITTLE_BYTES };
    let Some(mut pair) = pair("a source with a full disk hands over", small) else { return };
    let state = pair.file("state");
    let line = "--rw randwrite --bs 16k --depth 8 --size 16MiB --rate 4000 --ios 1000000000";
    let mut load = pair.load(&pair.both_paths(), line, &state);
    has(&pair, 0, "the source left its leg", |status| status["replica"]["local_failed"] == true);
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

/// The log takes all its room when it is made: what runs full afterwards does not fail it, also not
/// when its server begins anew, and crashed.
#[test]
fn a_disk_that_runs_full_does_not_fail_the_log_on_it() {
    let small = Small { node: 0, log: true, room_bytes: 64 << 10 };
    let Some(mut pair) = pair("a full disk of the log", small) else { return };
    pair.fill_small();
    let line = "--rw randwrite --bs 16k --depth 8 --ios 1000";
    pair.load(&pair.path(0), line, &pair.file("state")).wait().assert_complete();
    // With marks, and regions that are hot.
    pair.node(1).kill();
    pair.load(&pair.path(0), line, &pair.file("alone")).wait().assert_complete();
    pair.node(0).restart();
    pair.node(1).restart();
    pair.wait_for(0, "mirroring");
    pair.assert_kept(0, "alone");
    assert_eq!(pair.status(0)["replica"]["log"]["failures"], 0);
    pair.assert_equal_legs(0);
    pair.end(0);
}

/// A log that finds no room when it is made is told of, and the volume is not served without it.
#[test]
fn a_replica_is_not_made_without_room_for_its_log() {
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
