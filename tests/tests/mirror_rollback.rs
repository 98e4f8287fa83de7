//! Rollback of a mirrored volume on two real nodes: the source gets the content of a snapshot, and
//! the peer follows; also after a crash of the source at any time, and while the peer is away.
//!
//! Left out: crashes between two given steps, which the tests of the pool have.

use std::time::Duration;

use flagstone_tests::load::Load;
use flagstone_tests::pool_pair::PoolPair;
use flagstone_tests::process::until;

/// True if the volume has every write of this state, through a node.
fn has_writes(pair: &PoolPair, node: usize, state: &str) -> bool {
    let line = "--rw randread --depth 4 --bs 64k --after-crash client";
    let target = pair.nodes[node].nvme_uri("db");
    let ended = Load::start_verified(&target, line, &pair.file(state)).wait();
    let checked = &ended.results["verify"];
    assert!(checked["blocks_checked"].as_u64() > Some(0), "{}\n{checked:#}", ended.log);
    ended.code == Some(0) && checked["violations"] == 0
}

/// Waits until the host of a load is gone.
fn wait_detached(pair: &PoolPair, node: usize) {
    let attached = || pair.get(node, "/v1/volumes/db")["connections"].as_array().map(Vec::len);
    until("no host is attached", || attached() == Some(0), || pair.explain());
}

/// Writes states `old` and `new`, with a snapshot after the first.
fn write_both(pair: &PoolPair, node: usize, snapshot: &str, [old, new]: [&str; 2]) {
    pair.write(node, old);
    pair.run(node, &format!("snapshot create {snapshot}"));
    pair.write(node, new);
    wait_detached(pair, node);
}

fn rolls_back(options: &str) {
    let mut pair = PoolPair::in_sync(options);
    write_both(&pair, 0, "db@a", ["old", "new"]);
    pair.wait_for("mirroring");
    let refused = pair.refused(1, "snapshot rollback db@a --yes");
    assert!(refused.contains("at its source"), "{refused}");
    let refused = pair.refused(0, "snapshot rollback db@none --yes");
    assert!(refused.contains("no snapshot db-leg@none"), "{refused}");
    // Hosts would continue with what they have cached.
    let line = "--rw randread --ios 1000000000 --size 4MiB";
    let host = Load::start(&pair.nodes[0].nvme_uri("db"), line);
    let attached = || pair.get(0, "/v1/volumes/db")["connections"].as_array().map(Vec::len);
    until("a host is attached", || attached() > Some(0), || pair.explain());
    let refused = pair.refused(0, "snapshot rollback db@a --yes --force");
    assert!(refused.contains("detach them from all nodes"), "{refused}");
    drop(host);
    wait_detached(&pair, 0);
    let planned = pair.run(0, "snapshot rollback db@a --dry-run");
    assert!(planned.contains("node-b with a resync"), "{planned}");
    assert!(has_writes(&pair, 0, "new"), "nothing was changed");
    wait_detached(&pair, 0);
    pair.run(0, "snapshot rollback db@a --yes");
    assert!(!has_writes(&pair, 0, "new") && has_writes(&pair, 0, "old"));
    pair.assert_equal_legs(0);
    pair.run(1, "mirror switchover db");
    until("it is the source", || pair.state(1).1, || pair.explain());
    assert!(has_writes(&pair, 1, "old"), "the peer followed");
    // At the other node, while its peer is away.
    pair.wait_for("mirroring");
    write_both(&pair, 1, "db@b", ["older", "newer"]);
    pair.nodes[0].kill();
    pair.run(1, "snapshot rollback db@b --yes");
    assert!(!has_writes(&pair, 1, "newer") && has_writes(&pair, 1, "older"));
    pair.nodes[0].restart();
    pair.assert_equal_legs(1);
    pair.run(0, "mirror switchover db");
    until("it is the source", || pair.state(0).1, || pair.explain());
    assert!(has_writes(&pair, 0, "older"), "the peer followed");
    // A clone of the snapshot is not mirrored.
    pair.run(0, "volume clone db@b copy");
    let listed = pair.run(0, "snapshot list db");
    assert!(listed.contains("copy") && !listed.contains("rollback-"), "{listed}");
    pair.wait_for("mirroring");
    pair.end(0);
}

#[test]
fn synchronous_volume_is_rolled_back() {
    rolls_back("");
}

#[test]
fn asynchronous_volume_is_rolled_back() {
    rolls_back(", mode = \"async\", queue = \"32MiB\"");
}

/// The source dies at some time of the order. Afterwards it has either content, and the peer gets
/// the same.
#[test]
fn rollback_is_whole_after_a_crash() {
    let mut pair = PoolPair::in_sync("");
    for (round, pause_ms) in [0, 20, 60, 120, 250, 500].into_iter().enumerate() {
        let [old, new] = ["old", "new"].map(|name| format!("{name}{round}"));
        write_both(&pair, 0, &format!("db@a{round}"), [&old, &new]);
        let line = format!("snapshot rollback db@a{round} --yes");
        pair.kill_during(0, &line, Duration::from_millis(pause_ms));
        pair.nodes[0].restart();
        pair.wait_open(0);
        pair.run(0, "mirror continue db");
        let serves = || pair.state(0).1 || pair.state(1).1;
        until("hosts are served", serves, || pair.explain());
        // Before the order has begun, or after its resync, the peer may take over.
        pair.wait_for("mirroring");
        if pair.state(1).1 {
            assert!(has_writes(&pair, 1, &old) != has_writes(&pair, 1, &new), "round {round}");
            pair.run(0, "mirror switchover db");
            until("it is the source", || pair.state(0).1, || pair.explain());
        }
        let [is_old, is_new] = [&old, &new].map(|state| has_writes(&pair, 0, state));
        assert!(is_old != is_new, "round {round}: {is_old} {is_new}\n{}", pair.explain());
        pair.assert_equal_legs(0);
        pair.run(1, "mirror switchover db");
        until("it is the source", || pair.state(1).1, || pair.explain());
        assert!(has_writes(&pair, 1, if is_old { &old } else { &new }), "round {round}");
        pair.wait_for("mirroring");
        pair.run(0, "mirror switchover db");
        until("it is the source", || pair.state(0).1, || pair.explain());
        pair.wait_for("mirroring");
    }
    pair.end(0);
}

#[test]
fn volume_of_a_group_is_not_rolled_back() {
    let pair = PoolPair::in_sync_of(&["db", "log"], ", group = \"app\"");
    pair.run(0, "snapshot create db@a log@a");
    let refused = pair.refused(0, "snapshot rollback db@a --yes");
    assert!(refused.contains("consistency group app"), "{refused}");
    assert!(refused.contains("flagstone volume clone db-leg@a"), "{refused}");
    pair.end(0);
}
