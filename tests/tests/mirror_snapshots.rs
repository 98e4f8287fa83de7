//! Snapshots of mirrored volumes on two real nodes: taken on both at one point of the order of
//! writes, under a verifying writer, and refused with a reason.
//!
//! Left out: crashes and lost answers during the order, which the simulation has, and three nodes.

use flagstone_tests::load::Load;
use flagstone_tests::pool_pair::PoolPair;
use flagstone_tests::process::until;
use flagstone_tests::tools::{have, run};

/// Writes without an end, until it is dropped.
fn writer(pair: &PoolPair, volume: &str) -> Load {
    let line = "--rw randwrite --bs 4k --depth 8 --ios 1000000000 --size 4MiB";
    let load = Load::start(&pair.nodes[0].nvme_uri(volume), line);
    let document = format!("/v1/volumes/{volume}");
    let written = || pair.get(0, &document)["io"]["write"]["count"].as_u64();
    let before = written();
    until("hosts write", || written() > before.map(|count| count + 50), || pair.explain());
    load
}

/// Compares both snapshots byte by byte, as far as hosts write. The mirror's own structures follow.
fn assert_equal_snapshots(pair: &PoolPair, volume: &str, name: &str) {
    let document = format!("/v1/volumes/{volume}");
    let size = pair.get(0, &document)["size_bytes"].as_u64().expect("a size") as usize;
    let contents = [0, 1].map(|node| {
        let view = format!("view-{volume}-{name}");
        pair.run(node, &format!("volume clone {volume}-leg@{name} {view} --read-only"));
        let file = pair.file(&format!("{node}-{volume}-{name}"));
        let path = file.to_str().expect("temporary paths are UTF-8");
        run("nbdcopy", &[&pair.nodes[node].nbd_uri(&view), path]);
        let id = pair.get(node, &format!("/v1/snapshots/{volume}-leg@{name}"))["id"].clone();
        (id, std::fs::read(&file).expect("it was copied"))
    });
    let [(one_id, one), (other_id, other)] = contents;
    assert!(one_id.is_string() && one_id == other_id, "{one_id} and {other_id}");
    let differs = one[..size].iter().zip(&other[..size]).position(|(one, other)| one != other);
    assert_eq!(differs, None, "offset of the first difference");
    assert!(one[..size].iter().any(|byte| *byte != 0), "hosts wrote");
}

fn listed(pair: &PoolPair) -> String {
    pair.run(0, "snapshot list db")
}

/// A snapshot that a node lacks is deleted on the other one, which may be the only one that has it.
fn deletes_by_name(pair: &PoolPair) {
    pair.run(0, "snapshot create db@c");
    until("both have it", || listed(pair).contains("this node, node-b\n"), || listed(pair));
    let unchanged = pair.run(0, "snapshot create db@c --local-only");
    assert!(unchanged.contains("no other node was asked"), "{unchanged}");
    pair.run(1, "volume clone db-leg@c use --read-only");
    for dry_run in ["", " --dry-run"] {
        let refused = pair.refused(0, &format!("snapshot delete db@c --yes{dry_run}"));
        assert!(refused.contains("node-b does not delete db@c"), "{refused}");
        assert!(listed(pair).contains("db-leg@c"), "nothing was deleted");
    }
    pair.run(1, "volume delete use --yes");
    let deleted = pair.run(0, "snapshot delete db@c --local-only --yes");
    assert!(deleted.contains("on this node only"), "{deleted}");
    let refused = pair.refused(0, "snapshot create db@c");
    assert!(refused.contains("another snapshot of this name"), "{refused}");
    let deleted = pair.run(0, "snapshot delete db@c --yes");
    assert!(deleted.contains("db@c is deleted on node-b"), "{deleted}");
    let unchanged = pair.run(0, "snapshot delete db@c --yes");
    assert!(unchanged.contains("on any node"), "{unchanged}");
}

fn takes_snapshots(test: &str, options: &str) {
    if !have(test, &["nbdcopy"]) {
        return;
    }
    let mut pair = PoolPair::in_sync(options);
    let load = writer(&pair, "db");
    let taken = pair.run(0, "snapshot create db@a");
    assert!(taken.contains("on this node and node-b"), "{taken}");
    until("both have it", || listed(&pair).contains("this node, node-b\n"), || listed(&pair));
    let again = pair.run(0, "snapshot create db@a");
    assert!(again.contains("exists already"), "{again}");
    drop(load);
    assert_equal_snapshots(&pair, "db", "a");
    deletes_by_name(&pair);
    let refused = pair.refused(1, "snapshot create db@b");
    assert!(refused.contains("at its source"), "{refused}");
    // Without the peer.
    pair.nodes[1].kill();
    until("it is lost", || pair.state(0).0 != "mirroring", || pair.explain());
    let refused = pair.refused(0, "snapshot create db@b");
    assert!(refused.contains("--local-only"), "{refused}");
    let taken = pair.run(0, "snapshot create db@b --local-only");
    assert!(taken.contains("on this node only"), "{taken}");
    let refused = pair.refused(0, "snapshot delete db@b --yes");
    assert!(refused.contains("it is not connected. Nothing was deleted"), "{refused}");
    pair.nodes[1].restart();
    pair.wait_for("mirroring");
    until("one has it", || listed(&pair).contains("this node only"), || listed(&pair));
    let refused = pair.refused(0, "snapshot create db@b");
    assert!(refused.contains("flagstone snapshot delete db@b"), "{refused}");
    pair.run(0, "snapshot delete db@b --yes");
    pair.run(0, "snapshot create db@b");
    pair.run(0, "snapshot delete db@b --yes");
    for node in [0, 1] {
        let listed = pair.run(node, "snapshot list");
        assert!(!listed.contains("db-leg@b"), "{listed}");
    }
    pair.end(0);
}

#[test]
fn synchronous_legs_are_snapshot_together() {
    takes_snapshots("synchronous snapshots", "");
}

#[test]
fn asynchronous_legs_are_snapshot_together() {
    takes_snapshots("asynchronous snapshots", ", mode = \"async\", queue = \"32MiB\"");
}

#[test]
fn group_of_two_async_volumes_is_snapshot_together() {
    let test = "asynchronous group snapshots";
    if !have(test, &["nbdcopy"]) {
        return;
    }
    let pair = PoolPair::in_sync_of(&["db", "log"], ", mode = \"async\", group = \"app\"");
    let load = ["db", "log"].map(|volume| writer(&pair, volume));
    let planned = pair.run(0, "snapshot create db@a log@a --dry-run");
    assert!(planned.contains("on this node and node-b"), "{planned}");
    let taken = pair.run(0, "snapshot create db@a log@a");
    assert!(taken.contains("db@a, log@a: one point of the order of writes"), "{taken}");
    let both = || {
        ["db", "log"].iter().all(|volume| {
            pair.run(0, &format!("snapshot list {volume}")).contains("this node, node-b\n")
        })
    };
    until("both nodes have both", both, || pair.explain());
    let again = pair.run(0, "snapshot create db@a log@a");
    assert!(again.contains("exists already"), "{again}");
    drop(load);
    for volume in ["db", "log"] {
        assert_equal_snapshots(&pair, volume, "a");
    }
    let ids = ["db", "log"].map(|volume| {
        pair.get(1, &format!("/v1/snapshots/{volume}-leg@a"))["id"].as_str().map(str::to_owned)
    });
    assert!(ids[0].is_some() && ids[0] == ids[1], "{ids:?}");
    pair.end(0);
}
