//! Two nodes that mirror a volume, and a file system on one of them that runs full: thin devices
//! and sparse files promise more than there is.

use flagstone_tests::load::Load;
use flagstone_tests::mirror::{Pair, Setup, Small};
use flagstone_tests::process::until;
use serde_json::Value;

const SIZE_BYTES: u64 = 32 << 20;

/// Less than the load writes to.
const LITTLE_BYTES: u64 = 8 << 20;

/// Enough for everything.
const ENOUGH_BYTES: u64 = 64 << 20;

/// Writes all over 16 MiB.
const LOAD: &str = "--rw randwrite --bs 16k --depth 8 --size 16MiB --ios 4000";

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
    let line = "--rw randwrite --bs 16k --depth 8 --size 16MiB --rate 4000 --ios 6000";
    let mut load = pair.load(&pair.both_paths(), line, &state);
    has(&pair, 0, "the source left its leg", |status| status["replica"]["local_failed"] == true);
    pair.order(0, "switchover", &["--to", "node-b"]);
    let now = Load::records_now(&state);
    load.wait_for_records(&state, now + 500);
    pair.make_room(ENOUGH_BYTES);
    pair.node(0).restart();
    load.wait().assert_complete();
    pair.wait_for(1, "mirroring");
    pair.assert_kept(1, "state");
    pair.assert_equal_legs(1);
    pair.end(1);
}

/// A log without room fails writes that it would have to name first, and nothing that it was asked
/// to note is lost; with room it goes on.
#[test]
fn a_full_disk_of_the_log_fails_writes_until_there_is_room() {
    let small = Small { node: 0, log: true, room_bytes: 64 << 10 };
    let Some(pair) = pair("a full disk of the log", small) else { return };
    let state = pair.file("state");
    // No more than is taken: what is written anew needs room, and there is none.
    pair.fill_small();
    let ended = pair.load(&pair.path(0), LOAD, &state).wait();
    eprintln!("{:?} {}", ended.code, ended.results);
    pair.assert_kept(0, "state");
    pair.make_room(ENOUGH_BYTES);
    pair.load(&pair.path(0), LOAD, &pair.file("again")).wait().assert_complete();
    pair.assert_equal_legs(0);
    pair.end(0);
}
