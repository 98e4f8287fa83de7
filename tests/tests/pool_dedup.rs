//! Deduplication of volumes: a real server, its cleaner, and clients that read back.

use std::path::Path;
use std::process::Command;

use flagstone_runtime::rng::Rng;
use flagstone_tests::http::get;
use flagstone_tests::pools::Bed;
use flagstone_tests::process::until;
use flagstone_tests::server::binary;
use flagstone_tests::tools::{have, run};
use serde_json::Value;

const TOOLS: [&str; 2] = ["nbdcopy", "qemu-io"];

/// Data of each volume: several segments, and no block like another.
const DATA_BYTES: usize = 40 << 20;

fn path(path: &Path) -> &str {
    path.to_str().expect("temporary paths are UTF-8")
}

/// A copy of an export.
fn content(bed: &Bed, export: &str) -> Vec<u8> {
    let file = bed.scratch.join("copy");
    run("nbdcopy", &[&bed.server.nbd_uri(export), path(&file)]);
    std::fs::read(&file).expect("a copied file is readable")
}

fn number(document: &Value, key: &str) -> u64 {
    document[key].as_u64().unwrap_or_else(|| panic!("no {key}: {document:#}"))
}

#[test]
fn equal_volumes_take_less_and_stay_independent() {
    if !have("deduplication", &TOOLS) {
        return;
    }
    let (mut bed, device) = Bed::with_pool();
    let create = "volume create a --pool fast --size 64MiB --dedup on";
    let dry = bed.run(&format!("{create} --dry-run"));
    assert!(dry.starts_with("would be done: volume a") && dry.contains("equal blocks"), "{dry}");
    bed.run(create);
    bed.run("volume create b --pool fast --size 64MiB");
    let mut rng = Rng::new(7);
    let mut data: Vec<u8> =
        (0..DATA_BYTES / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
    data.resize(64 << 20, 0);
    let file = bed.scratch.join("data");
    std::fs::write(&file, &data).expect("the scratch directory is writable");
    for volume in ["a", "b"] {
        run("nbdcopy", &["--flush", path(&file), &bed.server.nbd_uri(volume)]);
    }
    let used = |bed: &Bed| number(&bed.pool(), "used_bytes");
    let before = used(&bed);
    assert!(before as usize >= 2 * DATA_BYTES, "{before}");
    let set = bed.run("volume set b --dedup on");
    assert!(set.contains("flagstone pool status fast"), "{set}");
    assert!(bed.run("volume set b --dedup on").contains("already"));
    // Five blocks of eight, but for the segments that are not closed yet.
    let is_shared = || used(&bed) as usize <= DATA_BYTES * 3 / 2;
    until("equal blocks are shared", is_shared, || format!("{:#}", bed.pool()));

    let pool = bed.pool();
    let freed = number(&pool, "deduplicated_bytes");
    assert!(freed as usize >= DATA_BYTES / 2, "{pool:#}");
    assert_eq!(number(&pool["dedup"], "volumes"), 2);
    // 1 GiB per TiB: 1 MiB for a device of 1 GiB.
    assert!((1..=1 << 20).contains(&number(&pool["dedup"], "index_bytes")), "{pool:#}");
    assert!(bed.run("pool status fast").contains("deduplication of 2 volumes"));
    assert!(bed.run("volume show a").contains("deduplication: with volumes for the same hosts"));
    let savings: Value = serde_json::from_str(&bed.run("pool savings fast --json")).expect("JSON");
    let kinds = savings["kinds"].as_array().expect("a list");
    let saved = kinds.iter().find(|kind| kind["kind"] == "deduplication").expect("a kind");
    assert!(number(saved, "saved_bytes") as usize >= DATA_BYTES / 2, "{savings:#}");
    assert_eq!(savings["volumes"][0]["saved_by"], "deduplication");
    for volume in ["a", "b"] {
        assert!(content(&bed, volume) == data, "{volume} has other data");
    }

    // One is overwritten in part, then deleted: the other keeps its data.
    let uri = bed.server.nbd_uri("a");
    run(
        "qemu-io",
        &["-f", "raw", "-c", "write -P 9 1M 2M", "-c", "write -z -u 8M 4M", "-c", "flush", &uri],
    );
    assert!(content(&bed, "b") == data, "b has the writes of a");
    let mut own = data.clone();
    own[1 << 20..3 << 20].fill(9);
    own[8 << 20..12 << 20].fill(0);
    assert!(content(&bed, "a") == own, "a lacks its writes");
    bed.run("volume delete a --yes");
    assert!(content(&bed, "b") == data, "b lost blocks with a");
    bed.server.kill();
    bed.server.restart();
    assert!(content(&bed, "b") == data, "b lost blocks with its server");
    assert!(bed.server.terminate().success());
    let check = Command::new(binary()).args(["pool", "check", path(&device)]).output();
    let check = check.expect("flagstone runs");
    let printed = String::from_utf8_lossy(&check.stdout);
    assert!(check.status.success(), "{printed}{}", String::from_utf8_lossy(&check.stderr));
}

#[test]
fn dedup_settings_are_checked_and_shown() {
    let (bed, _) = Bed::with_pool();
    let refused = bed.refused("volume create x --pool fast --size 64MiB --setting dedup=yes");
    assert!(refused.contains("write one of off, on"), "{refused}");
    let key = bed.scratch.join("key");
    let encrypted = format!("--dedup on --encryption-key-file {}", path(&key));
    let refused = bed.refused(&format!("volume create x --pool fast --size 64MiB {encrypted}"));
    assert!(refused.contains("encrypted volumes are never shared"), "{refused}");
    let host = "nqn.2026-01.io.h:a";
    bed.run(&format!(
        "volume create x --pool fast --size 64MiB --dedup on --dedup-domain images --allow-host {host}"
    ));
    assert!(bed.run("volume show x").contains("deduplication: domain images"));
    let shown = get(&bed.server.api(), "/v1/volumes/x");
    assert_eq!(shown["pool"]["settings"]["dedup_domain"], "images", "{shown:#}");
    let off = bed.run("volume set x --dedup off");
    assert!(off.contains("shared already stay so"), "{off}");
    assert!(!bed.run("volume show x").contains("deduplication"));
    assert_eq!(bed.pool()["dedup"], Value::Null);
    bed.run("volume set x --unset dedup_domain --dedup on");
    assert!(bed.run("volume show x").contains("with volumes for the same hosts"));
}
