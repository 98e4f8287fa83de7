//! A mirrored volume on two real nodes under verified loads: nodes are killed and stalled, the role
//! goes over planned and forced, and nothing that was promised is lost.
//!
//! What happens comes when the load has recorded a number of acknowledgements, never after a time.
//! `FLAGSTONE_MIRROR_ROUNDS` sets how often, `FLAGSTONE_MIRROR_SEED` what.

use flagstone_tests::mirror::{Pair, Setup};
use flagstone_tests::mirror_events::{Clock, EVENTS, Event, LINK_EVENTS, LOSSLESS_EVENTS, rounds};
use flagstone_tests::rng::Rng;

const SIZE_BYTES: u64 = 32 << 20;

/// Writes between two events, on average.
const WRITES: u64 = 500;

/// A host that writes by both paths sees no error, and reads what it wrote, whatever happens, and
/// both nodes hold the same after each event.
fn survives(mut pair: Pair, events: &[Event], line: &str, seed: u64) {
    let (rounds, mut rng) = (rounds(events.len()), Rng::from_env("FLAGSTONE_MIRROR_SEED", seed));
    let state = pair.file("state");
    // It goes on while nodes come together again, however long that takes.
    let line = format!("--rw randwrite --depth 8 --size 16MiB --rate 4000 --ios 1000000000 {line}");
    let mut load = pair.load(&pair.both_paths(), &line, &state);
    let mut source = 0;
    let mut clock = Clock::of_load(&mut load, &state);
    for round in 0..rounds {
        clock.later(&pair, WRITES / 2 + rng.below(WRITES));
        // Each kind at least once, in a run of the usual length.
        let event = events.get(round as usize).copied();
        let event = event.unwrap_or_else(|| events[rng.below(events.len() as u64) as usize]);
        eprintln!("round {round}: {event:?}, source {source}");
        event.happen(&mut pair, source, &mut rng, &mut clock);
        let serves = pair.source();
        let may = event.source_after(source).is_none_or(|expected| expected == serves);
        assert!(may, "{event:?}: {serves} serves");
        source = serves;
        pair.assert_equal_legs(source);
    }
    // It runs to here, with no error; what it was promised is there.
    clock.later(&pair, WRITES);
    drop(clock);
    load.kill();
    pair.assert_kept(source, "state");
    pair.end(source);
}

#[test]
fn a_synchronous_mirror_survives_deaths_and_stalls_under_load() {
    survives(Pair::in_sync(SIZE_BYTES, ""), &EVENTS, "", 1);
}

#[test]
fn a_mirror_that_acknowledges_from_memory_survives_with_flushes() {
    survives(Pair::in_sync(SIZE_BYTES, "ack = \"memory\""), &EVENTS, "--flush-every 8", 2);
}

/// Cut in either direction or both, without a word or with one, slow, and coming and going; and
/// nodes that die meanwhile. Hosts reach both nodes all the time.
#[test]
fn a_mirror_survives_a_link_that_is_cut() {
    let setup = Setup { size_bytes: SIZE_BYTES, ..Setup::default() };
    let Some(pair) = Pair::linked("a link that is cut", setup) else { return };
    survives(pair, &[&LINK_EVENTS[..], &EVENTS].concat(), "", 3);
}

/// The same of an asynchronous mirror, as long as no source is lost for good.
#[test]
#[ignore = "its events were chosen anew and it has not passed since: run it first"]
fn an_asynchronous_mirror_survives_a_link_that_is_cut() {
    let options = "mode = \"async\", queue = \"32MiB\"";
    let setup = Setup { size_bytes: SIZE_BYTES, options, ..Setup::default() };
    let Some(pair) = Pair::linked("an asynchronous link that is cut", setup) else { return };
    survives(pair, &LOSSLESS_EVENTS, "", 5);
}

/// How to attach a volume is told when there is one.
#[test]
fn commands_to_attach_are_printed_when_there_is_a_replica() {
    let mut pair = Pair::start(SIZE_BYTES, "");
    pair.node(0).printed_after("  no replica here yet: ");
    assert!(!pair.node(0).output().contains("nvme connect"));
    pair.order(0, "create", &["--source"]);
    pair.node(0).restart();
    pair.node(0).printed_after("  nvme connect -t tcp");
}

/// Both were written without the other: both keep what they have until somebody chooses.
#[test]
fn split_brain_is_told_and_resolved_by_choice_alone() {
    let mut pair = Pair::in_sync(SIZE_BYTES, "");
    let load = |pair: &Pair, node: usize, name: &str| {
        let state = pair.file(name);
        let line = "--rw randwrite --depth 4 --ios 200 --size 4MiB";
        pair.load(&pair.path(node), line, &state).wait().assert_complete();
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
    pair.assert_kept(1, "b");
    // One side gives up.
    pair.order(0, "demote", &[]);
    pair.order(1, "resolve", &["--keep", "mine", "--yes"]);
    pair.wait_for(1, "mirroring");
    pair.assert_kept(1, "b");
    pair.assert_equal_legs(1);
}

/// An asynchronous target catches up, and a planned switchover loses nothing.
#[test]
fn an_asynchronous_mirror_hands_over_everything() {
    let pair = Pair::in_sync(SIZE_BYTES, "mode = \"async\", queue = \"32MiB\"");
    let state = pair.file("state");
    let line = "--rw randwrite --depth 16 --ios 3000 --size 8MiB";
    pair.load(&pair.both_paths(), line, &state).wait().assert_complete();
    pair.order(1, "switchover", &[]);
    pair.assert_kept(1, "state");
    pair.assert_equal_legs(1);
}
