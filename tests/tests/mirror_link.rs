//! Two nodes that mirror a volume over a link of its own, which is cut: what the operator sees of
//! it, what hosts notice, and what is copied afterwards. Random cuts are in `mirror.rs`.

use flagstone_tests::load::Load;
use flagstone_tests::mirror::{Pair, Setup};
use flagstone_tests::process::until;

const SIZE_BYTES: u64 = 32 << 20;

/// What a bit of the log stands for.
const GRANULARITY_BYTES: u64 = 64 << 10;

fn linked(test: &str, options: &str) -> Option<Pair> {
    Pair::linked(test, Setup { size_bytes: SIZE_BYTES, options, ..Setup::default() })
}

/// Writes all over the volume, so that what is copied later can be told from everything.
fn fill(pair: &Pair) {
    let line = "--rw write --bs 64k --depth 8 --ios 512";
    pair.load(&pair.path(0), line, &pair.file("fill")).wait().assert_complete();
}

fn peer_number(pair: &Pair, node: usize, member: &str) -> u64 {
    let status = pair.status(node);
    let number = status["peers"][0][member].as_u64();
    number.unwrap_or_else(|| panic!("no {member} in {status:#}"))
}

/// A link that drops everything without a word is noticed within its time-out; hosts of the source
/// go on, and only what they write meanwhile is copied when the link is whole again.
#[test]
fn only_what_changed_is_copied_after_a_silent_cut() {
    let Some(pair) = linked("a silent cut", "") else { return };
    fill(&pair);
    for both in [true, false] {
        pair.network().cut(0);
        if both {
            pair.network().cut(1);
        }
        let line = "--rw randwrite --depth 4 --size 2MiB --ios 300";
        let state = pair.file(if both { "both" } else { "one" });
        // Hosts wait for the time-out at most, and see no error.
        pair.load(&pair.path(0), line, &state).wait().assert_complete();
        pair.wait_for(0, "resync-pending");
        let lacks = peer_number(&pair, 0, "out_of_date_bytes");
        assert!((1..=2 << 20).contains(&lacks), "{lacks} bytes are out of date");
        assert_eq!(lacks % GRANULARITY_BYTES, 0);
        pair.network().heal();
        pair.wait_for(0, "mirroring");
        let copied = peer_number(&pair, 0, "copied_bytes");
        assert!((1..=2 << 20).contains(&copied), "{copied} bytes were copied");
        pair.assert_equal_legs(0);
    }
    pair.end(0);
}

/// Nothing is written while the link is cut: both are lost to each other, and in sync again when it
/// is whole, with nothing copied.
#[test]
fn an_idle_link_that_was_cut_copies_nothing() {
    let Some(pair) = linked("an idle link", "") else { return };
    fill(&pair);
    for node in [0, 1] {
        pair.network().cut(node);
    }
    // By the keep-alive alone.
    pair.wait_for(0, "disconnected");
    let gone = || pair.status(1)["replica"]["has_source"] == false;
    until("the target gives its source up", gone, || format!("{:#}", pair.status(1)));
    pair.network().heal();
    pair.wait_for(0, "mirroring");
    assert_eq!(peer_number(&pair, 0, "out_of_date_bytes"), 0);
    assert_eq!(peer_number(&pair, 0, "losses"), 1);
    pair.end(0);
}

/// With `strict` a write waits for the peer, however long that is gone, and is on both sides then.
#[test]
fn a_strict_mirror_holds_writes_while_the_link_is_cut() {
    let Some(pair) = linked("a strict mirror", "when_peer_lost = \"strict\"") else { return };
    let state = pair.file("state");
    let line = "--rw randwrite --depth 4 --size 4MiB --ios 2000";
    let mut load = pair.load(&pair.path(0), line, &state);
    load.wait_for_records(&state, 200);
    for node in [0, 1] {
        pair.network().cut(node);
    }
    let holds = || pair.status(0)["replica"]["held"] != 0 && pair.state(0) != "mirroring";
    until("writes are held", holds, || format!("{:#}", pair.status(0)));
    // At the gate or on their way back: none comes through any more.
    let before = Load::records_now(&state);
    for _ in 0..20 {
        assert_ne!(pair.state(0), "mirroring");
    }
    assert_eq!(Load::records_now(&state), before);
    pair.network().heal();
    load.wait().assert_complete();
    pair.assert_equal_legs(0);
    pair.end(0);
}

/// A target that cannot be reached is not made the source by a switchover, and one that still hears
/// its source is not by a failover; when the link is cut long enough it is, by an operator's word.
#[test]
fn a_cut_link_makes_a_split_brain_only_by_an_operators_word() {
    let Some(pair) = linked("a cut link and roles", "") else { return };
    fill(&pair);
    let said = pair.try_order(1, "failover", &["--yes"]).expect_err("the source is alive");
    for part in ["waiting for it to be found dead", "so it is alive", "mirror failover db --force"]
    {
        assert!(said.contains(part), "{said}");
    }
    for node in [0, 1] {
        pair.network().cut(node);
    }
    let write = |node: usize, name: &str| {
        let line = "--rw randwrite --depth 4 --size 2MiB --ios 100";
        pair.load(&pair.path(node), line, &pair.file(name)).wait().assert_complete();
    };
    write(0, "a");
    assert!(pair.try_order(1, "switchover", &[]).is_err());
    assert!(pair.try_order(0, "switchover", &["--to", "node-b"]).is_err());
    pair.fail_over_to(1);
    write(1, "b");
    pair.network().heal();
    for node in [0, 1] {
        pair.wait_for(node, "split-brain");
    }
    // Each keeps what it has until one is chosen.
    pair.assert_kept(0, "a");
    pair.assert_kept(1, "b");
    pair.order(1, "demote", &[]);
    pair.order(0, "resolve", &["--keep", "mine", "--yes"]);
    pair.wait_for(0, "mirroring");
    pair.assert_kept(0, "a");
    pair.assert_equal_legs(0);
    pair.end(0);
}
