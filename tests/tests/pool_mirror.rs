//! Mirror over volumes of pools, on two real nodes: legs that come late, crashes, pools that are
//! closed and opened again, resyncs of thin legs, snapshots of an asynchronous target, and growth.
//!
//! Left out: power losses below the pool (`crash` tests of the pool crate), failover under load
//! (`mirror`), and hosts of a kernel.

use flagstone_tests::pool_pair::PoolPair;
use flagstone_tests::process::until;
use flagstone_tests::server::binary;
use serde_json::json;

const MIB: u64 = 1 << 20;

/// Left out: legs that appear while a server stops.
#[test]
fn mirror_waits_for_its_leg_and_protects_it() {
    let pair = PoolPair::start("");
    let reason = || pair.get(0, "/v1/volumes/db")["pending"]["reason"].to_string();
    assert!(reason().contains("there is no pool fast"), "{}", reason());
    assert!(pair.refused(0, "mirror create db --source").contains("pool"));
    for node in [0, 1] {
        pair.create_pool(node);
    }
    let names_order = || reason().contains("flagstone volume create db-leg --pool fast");
    until("it asks for the leg", names_order, reason);
    let limited = "volume create db-leg --pool fast --size 64MiB --limit iops=5";
    assert!(pair.refused(0, limited).contains("[volume.db]"));
    for node in [0, 1] {
        let made = pair.run(node, "volume create db-leg --pool fast --size 64MiB");
        assert!(made.contains("flagstone mirror status db"), "{made}");
        pair.wait_open(node);
    }
    pair.run(0, "mirror create db --source");
    pair.run(1, "mirror create db --target");
    pair.wait_for("mirroring");
    let list = pair.run(0, "volume list");
    assert!(list.contains("thin, leg of db"), "{list}");
    let shown = pair.run(0, "volume show db-leg");
    assert!(shown.contains("leg of mirrored volume db") && !shown.contains("served on"), "{shown}");
    let legs = json!([{"name": "db-leg", "mirrored": "db"}]);
    assert_eq!(pair.get(0, "/v1/pools/fast")["legs"], legs);
    pair.run(0, "snapshot create db-leg@a");
    for order in [
        "volume delete db-leg --yes --force",
        "volume rename db-leg other --force",
        "volume set db-leg --compression lz4",
        "snapshot rollback db-leg@a --yes --force",
        "pool destroy fast --yes --force",
    ] {
        for node in [0, 1] {
            let refused = pair.refused(node, order);
            let named = refused.contains("leg of mirrored volume db");
            assert!(named || refused.contains("no snapshot"), "{order}: {refused}");
        }
    }
    let refused = pair.refused(0, "volume resize db-leg 32MiB");
    assert!(refused.contains("do not shrink"), "{refused}");
}

/// Left out: kills during a resync (`mirror`), and pools that are full.
#[test]
fn mirror_over_pools_survives_kills_and_closed_pools() {
    let mut pair = PoolPair::in_sync("");
    pair.write(0, "a");
    // The target misses writes.
    pair.nodes[1].kill();
    pair.write(0, "a");
    pair.nodes[1].restart();
    pair.assert_equal_legs(0);
    // A pool of the target is opened again, for another log device.
    let log = pair.device(1, "log");
    pair.run(1, &format!("pool set-log fast {}", log.display()));
    pair.write(0, "a");
    pair.assert_equal_legs(0);
    let refused = pair.refused(0, &format!("pool set-log fast {}", pair.device(0, "x").display()));
    assert!(refused.contains("flagstone mirror switchover db"), "{refused}");
    // Its log device loses what had been flushed: everything comes from the peer.
    pair.kill_under_load(1);
    pair.erase(&log);
    pair.nodes[1].restart();
    pair.assert_equal_legs(0);
    assert!(pair.nodes[1].output().contains("it lost changes with the log device"));
    // Both die, and the former target takes over.
    for node in [0, 1] {
        pair.nodes[node].kill();
    }
    for node in [1, 0] {
        pair.nodes[node].restart();
    }
    pair.wait_for("mirroring");
    pair.run(1, "mirror switchover db");
    pair.assert_kept(1, "db", "a");
    // A new target of a thin leg gets what is allocated, and no zeroes. The pool counts blocks when
    // it is opened.
    pair.run(0, "mirror delete db --yes");
    pair.run(0, "mirror create db --target --destroy-data --yes");
    pair.assert_equal_legs(1);
    for node in [0, 1] {
        pair.nodes[node].kill();
        pair.nodes[node].restart();
        let bytes = pair.data_bytes(node);
        assert!(bytes < 34 * MIB, "{bytes} of 64 MiB");
    }
    pair.wait_for("mirroring");
    pair.end(1);
}

/// Each leg has its own key. One whose key is away is resynced when it is back.
#[test]
fn encrypted_legs_have_keys_of_their_own() {
    let mut pair = PoolPair::start("");
    let keys = [0, 1].map(|node| pair.file(&format!("key-{node}")));
    for (node, key) in keys.iter().enumerate() {
        let key = key.display();
        pair.run(node, &format!("pool create fast {}", pair.device(node, "disk").display()));
        let made = std::process::Command::new(binary())
            .args(format!("key generate {key} --volume").split(' '))
            .output();
        assert!(made.expect("flagstone runs").status.success());
        let leg = "volume create db-leg --pool fast --size 64MiB";
        pair.run(node, &format!("{leg} --encryption-key-file {key}"));
        pair.wait_open(node);
    }
    pair.run(0, "mirror create db --source");
    pair.run(1, "mirror create db --target");
    pair.wait_for("mirroring");
    pair.write(0, "a");
    pair.assert_equal_legs(0);
    let away = pair.file("away");
    std::fs::rename(&keys[1], &away).expect("it exists");
    pair.nodes[1].kill();
    pair.nodes[1].restart();
    let reason = || pair.get(1, "/v1/volumes/db")["pending"]["reason"].to_string();
    let key = keys[1].to_str().expect("temporary paths are UTF-8");
    until("the leg is locked", || reason().contains(key), reason);
    // The other node goes on, with its own key.
    pair.write(0, "a");
    std::fs::rename(&away, &keys[1]).expect("it exists");
    pair.wait_open(1);
    pair.assert_equal_legs(0);
    pair.run(1, "mirror switchover db");
    pair.assert_kept(1, "db", "a");
}

/// Left out: a snapshot of both legs at one point of the order of writes, which no order takes.
#[test]
fn asynchronous_target_is_snapshot_and_grows() {
    let pair = PoolPair::in_sync(", mode = \"async\", queue = \"32MiB\"");
    pair.write(0, "a");
    pair.assert_equal_legs(0);
    pair.run(1, "snapshot create db-leg@a");
    pair.run(1, "volume clone db-leg@a view --read-only");
    pair.write(0, "b");
    pair.assert_kept(1, "view", "a");
    pair.assert_equal_legs(0);
    for node in [0, 1] {
        let grown = pair.run(node, "volume resize db-leg 128MiB");
        assert!(grown.contains("flagstone mirror grow db"), "{grown}");
    }
    pair.run(0, "mirror grow db");
    let size = |node| pair.get(node, "/v1/volumes/db")["size_bytes"].as_u64();
    until(
        "both nodes have the new size",
        || [0, 1].iter().all(|node| size(*node) > Some(100 * MIB)),
        || pair.explain(),
    );
    pair.assert_equal_legs(0);
    pair.assert_kept(0, "db", "b");
    pair.end(0);
}
