//! A mirrored volume on two real nodes under verified loads: nodes are killed and stalled, the role
//! goes over planned and forced, and nothing that was promised is lost.
//!
//! What happens comes when the load has recorded a number of acknowledgements, never after a time.
//! `FLAGSTONE_MIRROR_ROUNDS` sets how often, `FLAGSTONE_MIRROR_SEED` what.

use flagstone_tests::load::Load;
use flagstone_tests::mirror::Pair;
use flagstone_tests::rng::Rng;
use serde_json::Value;

const SIZE_BYTES: u64 = 32 << 20;

/// Writes between two events, on average.
const WRITES: u64 = 500;

fn rounds() -> u64 {
    let text = std::env::var("FLAGSTONE_MIRROR_ROUNDS").unwrap_or_else(|_| "12".into());
    text.parse().expect("FLAGSTONE_MIRROR_ROUNDS is a number")
}

/// Both legs hold the same.
fn assert_equal_legs(pair: &Pair, source: usize) {
    pair.wait_for(source, "mirroring");
    pair.order(source, "verify", &[]);
    let verify = loop {
        let status = pair.status(source);
        if status["verify"]["running"] == false {
            break status["verify"].clone();
        }
    };
    assert_eq!(verify["error"], Value::Null, "{verify:#}");
    assert_eq!(verify["differing_bytes"], 0, "{verify:#}");
    assert!(verify["compared_bytes"].as_u64() > Some(SIZE_BYTES / 2), "{verify:#}");
}

/// All that a load was promised, as its state tells, is what a node serves.
fn assert_kept(pair: &Pair, node: usize, state: &str) {
    let line = "--rw randread --depth 4 --bs 64k --after-crash client";
    let ended = Load::start_verified(&pair.path(node), line, &pair.file(state)).wait();
    assert_eq!(ended.code, Some(0), "{}\n{:#}", ended.log, ended.results);
    let verify = &ended.results["verify"];
    assert_eq!(
        (&verify["violations"], &verify["read_back"]),
        (&0.into(), &true.into()),
        "{verify:#}"
    );
    assert!(verify["blocks_checked"].as_u64() > Some(0), "{verify:#}");
}

#[derive(Debug, Clone, Copy)]
enum Event {
    /// The source dies, the target is made the source, the dead one comes back.
    SourceDies,
    TargetDies,
    BothDie,
    Switchover,
    TargetStalls,
    Pause,
}

const EVENTS: [Event; 6] = [
    Event::SourceDies,
    Event::TargetDies,
    Event::Switchover,
    Event::TargetStalls,
    Event::BothDie,
    Event::Pause,
];

/// Lets an event happen; gives who is the source afterwards. `later` waits for some more writes.
fn happen(pair: &mut Pair, event: Event, source: usize, mut later: impl FnMut(&Pair)) -> usize {
    let target = 1 - source;
    match event {
        Event::SourceDies => {
            pair.node(source).kill();
            pair.fail_over_to(target);
            later(pair);
            pair.node(source).restart();
            target
        }
        Event::TargetDies => {
            pair.node(target).kill();
            later(pair);
            pair.node(target).restart();
            source
        }
        Event::BothDie => {
            pair.node(source).kill();
            pair.node(target).kill();
            pair.node(target).restart();
            pair.node(source).restart();
            source
        }
        Event::Switchover => {
            pair.order(target, "switchover", &[]);
            target
        }
        Event::TargetStalls => {
            pair.stall(target, true);
            later(pair);
            pair.stall(target, false);
            source
        }
        Event::Pause => {
            pair.order(source, "pause", &[]);
            later(pair);
            pair.order(source, "continue", &[]);
            source
        }
    }
}

/// A host that writes by both paths sees no error, and reads what it wrote, whatever happens.
fn survives(options: &str, line: &str, seed: u64) {
    let mut pair = Pair::in_sync(SIZE_BYTES, options);
    let (rounds, mut rng) = (rounds(), Rng::from_env("FLAGSTONE_MIRROR_SEED", seed));
    let state = pair.file("state");
    let writes = 3 * (rounds + 1) * WRITES;
    let line = format!("--rw randwrite --depth 8 --size 16MiB --ios {writes} {line}");
    let mut load = Load::start_verified(&pair.both_paths(), &line, &state);
    let (mut source, mut awaited) = (0, 0);
    for round in 0..rounds {
        awaited += WRITES + rng.below(WRITES / 2);
        load.wait_for_records(&state, awaited);
        let event = match round {
            // Each kind at least once, in a run of the usual length.
            0..6 => EVENTS[round as usize],
            _ => EVENTS[rng.below(6) as usize],
        };
        eprintln!("round {round}: {event:?}, source {source}");
        source = happen(&mut pair, event, source, |_| {
            awaited += WRITES / 2;
            load.wait_for_records(&state, awaited);
        });
        let serves = pair.source();
        // Two in sync that both died: either may serve.
        assert!(serves == source || matches!(event, Event::BothDie), "{event:?}: {serves} serves");
        source = serves;
    }
    let results = load.wait().assert_complete();
    assert_eq!(results["total"]["ios"], writes, "{results:#}");
    assert_equal_legs(&pair, source);
    for node in [source, 1 - source] {
        let status = pair.node(node).terminate();
        assert!(status.success(), "{status}");
    }
}

#[test]
fn a_synchronous_mirror_survives_deaths_and_stalls_under_load() {
    survives("", "", 1);
}

#[test]
fn a_mirror_that_acknowledges_from_memory_survives_with_flushes() {
    survives("ack = \"memory\"", "--flush-every 8", 2);
}

/// Both were written without the other: both keep what they have until somebody chooses.
#[test]
fn split_brain_is_told_and_resolved_by_choice_alone() {
    let mut pair = Pair::in_sync(SIZE_BYTES, "");
    let load = |pair: &Pair, node: usize, name: &str| {
        let state = pair.file(name);
        let line = "--rw randwrite --depth 4 --ios 200 --size 4MiB";
        Load::start_verified(&pair.path(node), line, &state).wait().assert_complete();
    };
    pair.node(1).kill();
    load(&pair, 0, "a");
    pair.node(0).kill();
    pair.node(1).restart();
    pair.fail_over_to(1);
    load(&pair, 1, "b");
    pair.node(0).restart();
    for node in [0, 1] {
        pair.wait_for(node, "split-brain");
    }
    assert_kept(&pair, 1, "b");
    // One side gives up.
    pair.order(0, "demote", &[]);
    pair.order(1, "resolve", &["--keep", "mine", "--yes"]);
    pair.wait_for(1, "mirroring");
    assert_kept(&pair, 1, "b");
    assert_equal_legs(&pair, 1);
}

/// An asynchronous target catches up, and a planned switchover loses nothing.
#[test]
fn an_asynchronous_mirror_hands_over_everything() {
    let pair = Pair::in_sync(SIZE_BYTES, "mode = \"async\", queue = \"32MiB\"");
    let state = pair.file("state");
    let line = "--rw randwrite --depth 16 --ios 3000 --size 8MiB";
    Load::start_verified(&pair.both_paths(), line, &state).wait().assert_complete();
    pair.order(1, "switchover", &[]);
    assert_kept(&pair, 1, "state");
    assert_equal_legs(&pair, 1);
}

/// Makes the device of a node larger, as an administrator does.
fn enlarge(pair: &Pair, node: usize, bytes: u64) {
    let path = pair.file(["node-a.disk", "node-b.disk"][node]);
    let file = std::fs::OpenOptions::new().write(true).open(path).expect("it is there");
    file.set_len(bytes).expect("a sparse file can be as large");
}

fn size_of(pair: &Pair, node: usize) -> u64 {
    let status = pair.status(node);
    status["replica"]["size_bytes"].as_u64().unwrap_or_else(|| panic!("{status:#}"))
}

/// The volume grows under a load that sees no error; a node that restarts after its device grew
/// finds its replica; the new part is one volume with the rest, on both.
#[test]
fn resize_during_activity() {
    let mut pair = Pair::in_sync(SIZE_BYTES, "");
    let state = pair.file("state");
    let line = "--rw randwrite --depth 8 --size 16MiB --ios 6000";
    let mut load = Load::start_verified(&pair.both_paths(), line, &state);
    load.wait_for_records(&state, WRITES);
    let before = size_of(&pair, 0);
    let same = pair.order(0, "grow", &[]);
    assert_eq!(same["changed"], false, "{same:#}");
    // One node's device alone, which restarts: nothing has grown, and nothing is lost.
    enlarge(&pair, 1, 3 * SIZE_BYTES);
    pair.node(1).kill();
    load.wait_for_records(&state, 2 * WRITES);
    pair.node(1).restart();
    pair.wait_for(0, "mirroring");
    let same = pair.order(0, "grow", &[]);
    assert_eq!(same["changed"], false, "{same:#}");
    assert!(same["said"].as_str().is_some_and(|said| said.contains("node-a")), "{same:#}");
    // Both.
    enlarge(&pair, 0, 2 * SIZE_BYTES);
    let dry = pair.order(0, "grow", &["--dry-run"]);
    assert_eq!((&dry["changed"], size_of(&pair, 0)), (&true.into(), before), "{dry:#}");
    let refused = pair.try_order(1, "grow", &[]).expect_err("a target");
    assert!(refused.contains("ask on the node that does"), "{refused}");
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
    load.wait().assert_complete();
    // The new part is written by both paths, and hosts that were there have not gone.
    let line = "--rw randwrite --depth 4 --bs 64k --ios 2000";
    let whole = pair.file("whole");
    Load::start_verified(&pair.both_paths(), line, &whole).wait().assert_complete();
    pair.order(1, "switchover", &[]);
    pair.wait_for(1, "mirroring");
    assert_kept(&pair, 1, "whole");
    assert_equal_legs(&pair, 1);
    // And once more from the other side, whose device is larger.
    enlarge(&pair, 0, 4 * SIZE_BYTES);
    pair.order(1, "grow", &[]);
    pair.wait_for(1, "mirroring");
    assert!(size_of(&pair, 1) > after);
    assert_eq!(size_of(&pair, 0), size_of(&pair, 1));
    assert_kept(&pair, 1, "whole");
    assert_equal_legs(&pair, 1);
    for node in [0, 1] {
        assert!(pair.node(node).terminate().success());
        pair.node(node).restart();
    }
    let source = pair.source();
    assert_kept(&pair, source, "whole");
}
