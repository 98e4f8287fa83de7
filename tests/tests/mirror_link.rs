//! Two mirroring nodes with a separate link that is cut: the operator's view, the effect on hosts,
//! and the copied blocks afterwards. Random cuts are in `mirror.rs`.

use flagstone_tests::load::Load;
use flagstone_tests::mirror::{Pair, Setup};
use flagstone_tests::process::until;

const SIZE_BYTES: u64 = 32 << 20;

/// Bytes per bit of the log's bitmap.
const GRANULARITY_BYTES: u64 = 64 << 10;

fn linked(test: &str, options: &str) -> Option<Pair> {
    Pair::linked(test, Setup { size_bytes: SIZE_BYTES, options, ..Setup::default() })
}

/// Writes all over the volume, so that a partial copy can be distinguished from a full one.
fn fill(pair: &Pair) {
    let line = "--rw write --bs 64k --depth 8 --ios 512";
    pair.load(&pair.path(0), line, &pair.file("fill")).wait().assert_complete();
}

fn peer_number(pair: &Pair, node: usize, member: &str) -> u64 {
    let status = pair.status(node);
    let number = status["peers"][0][member].as_u64();
    number.unwrap_or_else(|| panic!("no {member} in {status:#}"))
}

/// A link that drops everything silently is detected within its timeout. Hosts of the source
/// continue, and only their writes are copied after the link is restored.
#[test]
fn silent_link_cut_copies_only_changes() {
    let Some(pair) = linked("a silent cut", "") else { return };
    fill(&pair);
    for both in [true, false] {
        pair.network().cut(0);
        if both {
            pair.network().cut(1);
        }
        let line = "--rw randwrite --depth 4 --size 2MiB --ios 300";
        let state = pair.file(if both { "both" } else { "one" });
        // Hosts wait at most for the timeout, and see no error.
        pair.load(&pair.path(0), line, &state).wait().assert_complete();
        pair.wait_for(0, "resync-pending");
        let lacks = peer_number(&pair, 0, "out_of_sync_bytes");
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

/// No writes during the cut: both report the other as disconnected, and are in sync again after the
/// cut, with nothing copied.
#[test]
fn idle_link_cut_copies_nothing() {
    let Some(pair) = linked("an idle link", "") else { return };
    fill(&pair);
    for node in [0, 1] {
        pair.network().cut(node);
    }
    // Detected by the keep-alive only.
    pair.wait_for(0, "disconnected");
    let gone = || pair.status(1)["replica"]["has_source"] == false;
    until("the target gives its source up", gone, || format!("{:#}", pair.status(1)));
    pair.network().heal();
    pair.wait_for(0, "mirroring");
    assert_eq!(peer_number(&pair, 0, "out_of_sync_bytes"), 0);
    assert_eq!(peer_number(&pair, 0, "disconnects"), 1);
    pair.end(0);
}

/// With `on_peer_loss = "block"`, a write waits for the peer, however long it is gone, and is then
/// on both sides.
#[test]
fn on_peer_loss_block_blocks_writes_during_a_cut() {
    let Some(pair) = linked("on_peer_loss = block", "on_peer_loss = \"block\"") else { return };
    let state = pair.file("state");
    let line = "--rw randwrite --depth 4 --size 4MiB --ios 2000";
    let mut load = pair.load(&pair.path(0), line, &state);
    load.wait_for_records(&state, 200);
    for node in [0, 1] {
        pair.network().cut(node);
    }
    let holds = || pair.status(0)["replica"]["blocked"] != 0 && pair.state(0) != "mirroring";
    until("writes are blocked", holds, || format!("{:#}", pair.status(0)));
    // Writes blocked at admission or on their way back: no further one completes.
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

/// Neither a switchover to an unreachable target succeeds, nor a failover without force: a cut link
/// is no proof that the source is dead. After a forced failover and the end of the cut, only the
/// later source serves.
#[test]
fn link_cut_needs_operator_for_split_brain() {
    let Some(pair) = linked("a cut link and roles", "") else { return };
    fill(&pair);
    let said = pair.try_order(1, "failover", &["--yes"]).expect_err("the source is alive");
    for part in ["node-a serves db and responds", "mirror failover db --force"] {
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
    let said = pair.try_order(1, "failover", &["--yes"]).expect_err("the source may be alive");
    assert!(said.contains("does not answer"), "{said}");
    pair.fail_over_to(1);
    write(1, "b");
    pair.network().heal();
    for node in [0, 1] {
        pair.wait_for(node, "split-brain");
    }
    // Each keeps its data until an operator chooses, and the later source serves.
    let role = |node: usize| pair.status(node)["replica"]["role"].clone();
    assert_eq!((role(0), role(1)), ("deposed".into(), "source".into()));
    pair.assert_kept(1, "b");
    pair.order(1, "demote", &[]);
    pair.order(0, "resolve", &["--keep", "mine", "--yes"]);
    pair.wait_for(0, "mirroring");
    pair.assert_kept(0, "a");
    pair.assert_equal_legs(0);
    pair.end(0);
}
