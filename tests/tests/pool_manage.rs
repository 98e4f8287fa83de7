//! Snapshots, clones, streams, scrubs and devices of pools: real servers, clients and orders.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use flagstone_tests::http::{ask, get};
use flagstone_tests::load::Load;
use flagstone_tests::pools::Bed;
use flagstone_tests::process::until;
use flagstone_tests::server::binary;
use flagstone_tests::tools::{have, run};
use serde_json::Value;

const TOOLS: [&str; 4] = ["qemu-io", "qemu-img", "nbdcopy", "nbdinfo"];

fn path(path: &Path) -> &str {
    path.to_str().expect("temporary paths are UTF-8")
}

/// Runs a command of qemu-io on an export.
fn io(bed: &Bed, export: &str, commands: &[&str]) -> String {
    let uri = bed.server.nbd_uri(export);
    let mut arguments = vec!["-f", "raw"];
    if commands.iter().all(|command| command.starts_with("read")) {
        arguments.push("-r");
    }
    for command in commands {
        arguments.extend(["-c", command]);
    }
    arguments.push(&uri);
    let printed = run("qemu-io", &arguments);
    assert!(!printed.contains("failed"), "{export} {commands:?}: {printed}");
    printed
}

/// Compares a range with a byte.
fn has(bed: &Bed, export: &str, pattern: u8, from: &str, len: &str) {
    io(bed, export, &[&format!("read -P {pattern} {from} {len}")]);
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn snapshots_and_clones_keep_their_content() {
    if !have("snapshots", &TOOLS) {
        return;
    }
    let (mut bed, _) = Bed::with_pool();
    for volume in ["db", "log"] {
        bed.run(&format!("volume create {volume} --pool fast --size 64MiB"));
        io(&bed, volume, &["write -P 1 0 1M"]);
    }
    let create = "snapshot create db@a log@a";
    assert!(bed.run(&format!("{create} --dry-run")).starts_with("would be done"));
    assert!(bed.run("snapshot list").contains("no snapshots"));
    let taken = bed.run(create);
    assert!(taken.contains("one point") && taken.contains("next: flagstone volume clone"));
    assert!(bed.run(create).contains("exist already"));
    for (wrong, part) in [
        ("snapshot create db@b log@c", "one name"),
        ("snapshot create db", "VOLUME@SNAPSHOT"),
        ("snapshot create own@a", "configuration"),
        ("snapshot create none@a", "no pool has a volume"),
        ("snapshot rollback db@x --yes", "no snapshot `db@x`"),
        ("volume clone db@x y", "no snapshot `db@x`"),
        ("volume delete db --yes", "1 snapshots"),
        ("snapshot rollback db@a", "--yes"),
    ] {
        let refused = bed.refused(wrong);
        assert!(refused.contains(part), "{wrong}: {refused}");
    }
    io(&bed, "db", &["write -P 2 512k 1M"]);
    bed.run("snapshot create db@b");
    let diff = json(&bed.run("snapshot diff db@a db@b --json"));
    let changed = serde_json::json!([{"offset_bytes": 512 << 10, "len_bytes": 1 << 20}]);
    assert_eq!(diff["ranges"], changed, "{diff:#}");
    assert!(bed.run("snapshot diff db@a db@b").contains("1 MiB differ, in 1 ranges"));
    // Clones: one for writing, one to look at a snapshot.
    bed.run("volume clone db@a test");
    assert!(bed.run("volume clone db@a test").contains("exists already"));
    bed.run("volume clone db@a view --read-only");
    let shown = bed.run("volume show view");
    assert!(shown.contains("read-only") && shown.contains("clone of db@a"), "{shown}");
    for clone in ["test", "view"] {
        has(&bed, clone, 1, "0", "1M");
        has(&bed, clone, 0, "1M", "63M");
    }
    io(&bed, "test", &["write -P 3 0 64k"]);
    has(&bed, "db", 1, "0", "512k");
    has(&bed, "db", 2, "512k", "1M");
    let list = json(&bed.run("snapshot list db --json"));
    let list = list["snapshots"].as_array().unwrap();
    assert_eq!(list.len(), 2, "{list:?}");
    assert_eq!(list[0]["clones"], serde_json::json!(["test", "view"]), "{list:?}");
    let log = get(&bed.server.api(), "/v1/snapshots/log@a");
    assert_eq!(log["id"], list[0]["id"]);
    assert!(bed.refused("snapshot delete db@a --yes").contains("continue from"));
    // A crash forgets nothing of it.
    bed.server.kill();
    bed.server.restart();
    has(&bed, "test", 3, "0", "64k");
    bed.run("snapshot rollback db@a --yes");
    has(&bed, "db", 1, "0", "1M");
    has(&bed, "db", 0, "1M", "63M");
    bed.run("volume delete view --yes");
    let promoted = bed.run("volume promote test");
    assert!(promoted.contains("test@"), "{promoted}");
    assert!(bed.run("volume promote test").contains("nothing to do"));
    bed.run("snapshot delete db@b --yes");
    assert!(bed.run("snapshot delete db@b --yes").contains("nothing to do"));
    bed.run("volume delete db --yes");
    has(&bed, "test", 1, "64k", "960k");
    assert_eq!(get(&bed.server.api(), "/v1/snapshots/test@a")["name"], "test@a");
}

#[test]
fn plain_volume_grows_with_its_device() {
    let (bed, _) = Bed::with_pool();
    assert!(bed.run("volume resize own").contains("has the size of its device, 16 MiB"));
    let file = File::options().write(true).open(bed.scratch.join("own")).unwrap();
    file.set_len(32 << 20).unwrap();
    assert!(bed.run("volume resize own --dry-run").starts_with("would be done"));
    let size = || get(&bed.server.api(), "/v1/volumes/own")["size_bytes"].clone();
    assert!(bed.refused("volume resize own 64MiB").contains("its device has 32 MiB"));
    assert_eq!(size(), 16 << 20, "a refused order changes nothing");
    assert!(bed.run("volume resize own 32MiB").contains("grows from 16 MiB to 32 MiB"));
    assert_eq!(size(), 32 << 20);
    assert!(bed.run("volume resize own 32MiB").contains("has the size"));
    let line = "--rw write --bs 64k --ios 512 --verify --size 32MiB";
    for target in [bed.server.nvme_uri("own"), bed.server.nbd_uri("own")] {
        Load::start(&target, line).wait().assert_complete();
    }
    assert!(bed.refused("volume resize db").contains("no pool has a volume"));
}

#[test]
fn rollback_needs_detached_hosts() {
    let (bed, _) = Bed::with_pool();
    bed.run("volume create db --pool fast --size 64MiB");
    bed.run("snapshot create db@a");
    let mut load = Load::start(&bed.server.nvme_uri("db"), "--rw randread --time 60s");
    let api = bed.server.api();
    let attached = || get(&api, "/v1/volumes/db")["connections"].as_array().map(Vec::len) > Some(0);
    until("the load is attached", attached, || bed.server.output());
    assert!(bed.refused("snapshot rollback db@a --yes").contains("hosts are attached"));
    // With --force, hosts are disconnected and come back, and none of their commands fails.
    bed.run("snapshot rollback db@a --yes --force");
    until("the load is attached again", attached, || bed.server.output());
    bed.run("volume resize db 128MiB");
    bed.run("snapshot create db@b");
    load.kill();
    let rolled = bed.run("snapshot rollback db@a --yes --force");
    assert!(rolled.contains("its size of 64 MiB"), "{rolled}");
    assert_eq!(get(&api, "/v1/volumes/db")["size_bytes"], 64 << 20);
}

#[test]
fn holes_are_reported_to_every_client() {
    if !have("holes of a pool", &TOOLS) {
        return;
    }
    let (bed, _) = Bed::with_pool();
    bed.run("volume create db --pool fast --size 10GiB");
    io(&bed, "db", &["write -P 7 1M 1M", "write -P 8 5G 64k", "write -z 1M 512k", "flush"]);
    let uri = bed.server.nbd_uri("db");
    let map = json(&run("qemu-img", &["map", "--output=json", "-f", "raw", &uri]));
    let data: Vec<(u64, u64)> = map
        .as_array()
        .unwrap()
        .iter()
        .filter(|extent| extent["data"] == true)
        .map(|extent| (extent["start"].as_u64().unwrap(), extent["length"].as_u64().unwrap()))
        .collect();
    assert_eq!(data, [(1536 << 10, 512 << 10), (5 << 30, 64 << 10)], "{map:#}");
    // A copy reads the allocated blocks, and stays sparse.
    let copy = bed.scratch.join("copy");
    run("nbdcopy", &[&uri, path(&copy)]);
    let blocks = std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&copy).unwrap());
    assert!(blocks * 512 < 4 << 20, "{blocks} sectors");
    bed.run("snapshot create db@a");
    let used = || get(&bed.server.api(), "/v1/volumes/db")["pool"]["used_bytes"].as_u64();
    let is_known = || used().is_some_and(|used| (576 << 10..2 << 20).contains(&used));
    until("a checkpoint counts what is in use", is_known, || format!("{:?}", used()));
}

#[test]
fn volume_with_sectors_of_512_bytes() {
    if !have("small blocks", &TOOLS) {
        return;
    }
    let (mut bed, _) = Bed::with_pool();
    bed.run("volume create small --pool fast --size 64MiB --block-size 512");
    let volume = get(&bed.server.api(), "/v1/volumes/small");
    assert_eq!(volume["block_bytes"], 512, "{volume:#}");
    let line = "--rw randwrite --bs 512 --depth 8 --ios 3000 --verify --size 4MiB";
    Load::start(&bed.server.nvme_uri("small"), line).wait().assert_complete();
    io(&bed, "small", &["write -P 5 1536 1024"]);
    bed.server.kill();
    bed.server.restart();
    has(&bed, "small", 5, "1536", "1024");
    bed.run("volume set small --block-size 4096");
    assert_eq!(get(&bed.server.api(), "/v1/volumes/small")["block_bytes"], 4096);
    assert!(bed.refused("volume set small --block-size 1024").contains("block_size"));
}

#[test]
fn compressed_volume_survives_a_kill() {
    if !have("compression", &TOOLS) {
        return;
    }
    let (mut bed, _) = Bed::with_pool();
    bed.run("volume create db --pool fast --size 64MiB --compression auto");
    bed.run("volume create small --pool fast --size 64MiB --block-size 512 --compression zstd");
    for volume in ["db", "small"] {
        io(&bed, volume, &["write -P 1 0 8M", "write -P 2 1028K 4K", "write -P 3 2056K 200K"]);
    }
    io(&bed, "small", &["write -P 4 4194816 1024", "flush"]);
    bed.run("snapshot create db@a");
    // Blocks that compress, and blocks that do not.
    let line = "--rw randwrite --bs 16k --depth 8 --ios 1000 --verify --size 4MiB";
    Load::start(&bed.server.nvme_uri("db"), line).wait().assert_complete();
    bed.run("volume set db --compression off");
    io(&bed, "db", &["write -P 5 6M 1M", "flush"]);
    bed.server.kill();
    bed.server.restart();
    for (pattern, from, len) in [("5", "6M", "1M"), ("1", "7M", "1M"), ("1", "5M", "1M")] {
        io(&bed, "db", &[&format!("read -P {pattern} {from} {len}")]);
    }
    for (pattern, from, len) in [
        ("1", "0", "1M"),
        ("2", "1028K", "4K"),
        ("1", "1032K", "1M"),
        ("3", "2056K", "200K"),
        ("4", "4194816", "1024"),
        ("1", "4195840", "512"),
    ] {
        io(&bed, "small", &[&format!("read -P {pattern} {from} {len}")]);
    }
    let stored = |name: &str| {
        let pool = &get(&bed.server.api(), &format!("/v1/volumes/{name}"))["pool"];
        (pool["used_bytes"].as_u64().unwrap_or(0), pool["stored_bytes"].as_u64().unwrap_or(0))
    };
    let is_small =
        || matches!(stored("small"), (used, stored) if used >= 8 << 20 && stored < 3 << 20);
    until("a checkpoint counts what is stored", is_small, || format!("{:?}", stored("small")));
    assert!(bed.run("volume show small").contains(":1)"));
    assert!(bed.run("pool status fast").contains("of data stored in"));
    let savings = bed.run("pool savings fast --type pd-ssd --json");
    let savings: Value = serde_json::from_str(&savings).expect("JSON");
    let kinds = savings["kinds"].as_array().expect("a list");
    let saved: i64 = kinds.iter().filter_map(|kind| kind["saved_bytes"].as_i64()).sum();
    assert_eq!(savings["provisioned_bytes"], 128 << 20);
    assert_eq!(Some((128 << 20) - saved), savings["used_bytes"].as_i64(), "{savings:#}");
    assert!(kinds[1]["saved_bytes"].as_i64() >= Some(5 << 20), "{savings:#}");
    assert!(savings["cost"]["used_usd"].as_f64() < savings["cost"]["provisioned_usd"].as_f64());
    let refused = bed.refused("volume set db --setting compression=gzip");
    assert!(refused.contains("off, lz4, zstd, auto"), "{refused}");
    bed.run("volume clone db@a copy --dry-run");
    let sent = bed.scratch.join("sent");
    send(&bed, "db@a", &sent);
    assert!(std::fs::metadata(&sent).unwrap().len() > 8 << 20, "a stream is not compressed");
}

/// Sends a snapshot to a file.
fn send(bed: &Bed, line: &str, to: &Path) {
    let status = Command::new(binary())
        .args(["volume", "send"])
        .args(line.split(' '))
        .arg("--api")
        .arg(bed.server.api())
        .stdout(File::create(to).unwrap())
        .status()
        .unwrap();
    assert!(status.success(), "{line}");
}

/// Receives a stream; returns success and what was printed.
fn receive(bed: &Bed, line: &str, from: &Path) -> (bool, String) {
    let output = Command::new(binary())
        .args(["volume", "receive"])
        .args(line.split(' '))
        .arg("--api")
        .arg(bed.server.api())
        .stdin(Stdio::from(File::options().read(true).open(from).unwrap()))
        .output()
        .unwrap();
    let printed = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&printed).into_owned())
}

#[test]
fn streams_carry_snapshots_between_pools() {
    if !have("streams", &TOOLS) {
        return;
    }
    let (mut bed, _) = Bed::with_pool();
    bed.run(&format!("pool create other {}", bed.device("other").display()));
    bed.run("volume create db --pool fast --size 1GiB");
    io(&bed, "db", &["write -P 1 0 3M", "write -P 2 500M 1M"]);
    bed.run("snapshot create db@a");
    let [whole, more] = ["whole", "more"].map(|name| bed.scratch.join(name));
    send(&bed, "db@a", &whole);
    let len = std::fs::metadata(&whole).unwrap().len();
    assert!((4 << 20..5 << 20).contains(&len), "holes are not sent: {len}");
    let (done, printed) = receive(&bed, "copy", &whole);
    assert!(!done && printed.contains("--pool"), "{printed}");
    // A stream that is cut leaves a volume that is not served, and continues after a crash.
    let cut = bed.scratch.join("cut");
    std::fs::copy(&whole, &cut).unwrap();
    File::options().write(true).open(&cut).unwrap().set_len(len / 2).unwrap();
    let (done, printed) = receive(&bed, "copy --pool other --compression gzip", &cut);
    assert!(!done && printed.contains("auto"), "{printed}");
    let (done, printed) = receive(&bed, "copy --pool other --compression lz4", &cut);
    assert!(!done && printed.contains("cut"), "{printed}");
    assert_eq!(ask(&bed.server.api(), "GET", "/v1/volumes/copy").status, 404);
    let status = bed.run("pool status other");
    assert!(status.contains("not received in full"), "{status}");
    assert!(status.contains("next: receive the stream"), "{status}");
    bed.server.kill();
    bed.server.restart();
    let other = get(&bed.server.api(), "/v1/pools/other");
    let had = other["unserved"][0]["received_bytes"].as_u64().unwrap();
    assert!((1 << 20..4 << 20).contains(&had), "{had}");
    assert!(printed.contains(&format!("--resume {had}")), "{printed}");
    let rest = bed.scratch.join("rest");
    send(&bed, &format!("db@a --resume {}", had + 4096), &rest);
    let (done, printed) = receive(&bed, "copy", &rest);
    assert!(!done && printed.contains("gap"), "{printed}");
    send(&bed, &format!("db@a --resume {had}"), &rest);
    let rest_len = std::fs::metadata(&rest).unwrap().len();
    assert!(rest_len < len - had / 2, "{rest_len} of {len}");
    let (done, printed) = receive(&bed, "copy --compression zstd", &rest);
    assert!(!done && printed.contains("compression lz4"), "{printed}");
    let (done, printed) = receive(&bed, "copy --compression lz4", &rest);
    assert!(done, "{printed}");
    let is_small = || {
        let copy = get(&bed.server.api(), "/v1/volumes/copy")["pool"].clone();
        copy["used_bytes"].as_u64() >= Some(4 << 20)
            && copy["stored_bytes"].as_u64() < Some(1 << 20)
    };
    until("the copy is compressed", is_small, || bed.run("volume show copy"));
    has(&bed, "copy", 1, "0", "3M");
    has(&bed, "copy", 2, "500M", "1M");
    let ids = |name: &str| get(&bed.server.api(), &format!("/v1/snapshots/{name}"))["id"].clone();
    assert_eq!(ids("db@a"), ids("copy@a"));
    assert!(receive(&bed, "copy", &whole).0, "again");
    // What differs, on the copy that has the base.
    io(&bed, "db", &["write -P 3 1M 1M", "discard 500M 1M"]);
    bed.run("volume resize db 2GiB");
    io(&bed, "db", &["write -P 4 1500M 1M"]);
    bed.run("snapshot create db@b");
    send(&bed, "db@b --since db@a", &more);
    assert!(std::fs::metadata(&more).unwrap().len() < 3 << 20);
    let (done, printed) = receive(&bed, "db3 --pool other", &more);
    assert!(!done && printed.contains("base"), "{printed}");
    io(&bed, "copy", &["write -P 9 0 64k"]);
    let (done, printed) = receive(&bed, "copy", &more);
    assert!(!done && printed.contains("was written since copy@a"), "{printed}");
    // A part of a difference is given up by a rollback, after which the stream begins again.
    let more_len = std::fs::metadata(&more).unwrap().len();
    std::fs::copy(&more, &cut).unwrap();
    File::options().write(true).open(&cut).unwrap().set_len(more_len - 100).unwrap();
    let (done, printed) = receive(&bed, "copy --force", &cut);
    assert!(!done && printed.contains("cut"), "{printed}");
    bed.run("snapshot rollback copy@a --yes");
    has(&bed, "copy", 1, "0", "3M");
    let (done, printed) = receive(&bed, "copy", &cut);
    assert!(!done && printed.contains("cut"), "{printed}");
    let (done, printed) = receive(&bed, "copy", &more);
    assert!(done, "{printed}");
    for (pattern, from, len) in
        [(1, "0", "1M"), (3, "1M", "1M"), (1, "2M", "1M"), (0, "500M", "1M"), (4, "1500M", "1M")]
    {
        has(&bed, "copy", pattern, from, len);
    }
    assert_eq!(get(&bed.server.api(), "/v1/volumes/copy")["size_bytes"], 2_u64 << 30);
    // Damage is refused before anything of it is applied.
    let file = File::options().write(true).open(&whole).unwrap();
    file.write_all_at(b"x", 300_000).unwrap();
    let (done, printed) = receive(&bed, "damaged --pool other", &whole);
    assert!(!done && printed.contains("checksum"), "{printed}");
}

#[test]
fn scrub_and_check_find_rot() {
    if !have("scrub", &TOOLS) {
        return;
    }
    let (mut bed, device) = Bed::with_pool();
    bed.run("volume create db --pool fast --size 64MiB");
    io(&bed, "db", &["write -P 170 0 16M", "flush"]);
    let clean = bed.run("pool scrub fast --wait");
    assert!(clean.contains("scrub ended") && clean.contains("0 damages"), "{clean}");
    let check = |device: &Path| {
        let output = Command::new(binary()).args(["pool", "check", path(device)]).output().unwrap();
        let printed = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&printed).into_owned())
    };
    let (code, printed) = check(&device);
    assert_eq!(code, Some(1), "a pool that is served is refused: {printed}");
    assert!(bed.server.terminate().success());
    let (code, printed) = check(&device);
    assert_eq!(code, Some(0), "{printed}");
    // Rot in one block of data.
    let bytes = std::fs::read(&device).unwrap();
    let at = bytes.windows(4096).step_by(4096).rposition(|block| block == [170; 4096]).unwrap();
    let file = File::options().write(true).open(&device).unwrap();
    file.write_all_at(b"rot", at as u64 * 4096 + 99).unwrap();
    drop(file);
    let (code, printed) = check(&device);
    assert_eq!(code, Some(3), "{printed}");
    assert!(printed.contains("of db") && printed.contains("1 damages"), "{printed}");
    bed.server.restart();
    let output = bed.output("pool scrub fast --wait");
    assert_eq!(output.status.code(), Some(3));
    let status = bed.run("pool status fast");
    assert!(status.contains("of db: its content is not what was written"), "{status}");
    assert!(status.contains("next: write the damaged ranges"), "{status}");
    io(&bed, "db", &["write -P 170 0 16M", "flush"]);
    // A scrub that a crash interrupts continues, or had ended.
    bed.run("pool scrub fast");
    bed.server.kill();
    bed.server.restart();
    let ended = || bed.pool()["scrub"]["state"] == "ended";
    until("the scrub continues", ended, || format!("{:#}", bed.pool()));
    assert_eq!(bed.pool()["scrub"]["damages"], 0);
    assert!(bed.run("pool scrub fast --pause").contains("not being scrubbed"));
    bed.run("pool scrub fast --cancel");
    assert!(bed.pool()["scrub"].is_null());
}

#[test]
fn pool_grows_and_loses_a_device_while_hosts_write() {
    let (mut bed, first) = Bed::with_pool();
    bed.run("volume create db --pool fast --size 4GiB");
    let line = "--rw write --bs 1MiB --depth 8 --ios 2000";
    let filled = Load::start(&bed.server.nvme_uri("db"), line).wait();
    assert_eq!(filled.code, Some(1), "{}", filled.log);
    let second = bed.scratch.disk("second", 256 << 20);
    let grow = format!("pool grow fast {}", second.display());
    assert!(bed.run(&format!("{grow} --dry-run")).starts_with("would be done"));
    let grown = bed.run(&grow);
    assert!(grown.contains("for volumes"), "{grown}");
    assert!(bed.run(&grow).contains("already"));
    let remove = format!("pool remove-device fast {}", first.display());
    let refused = bed.refused(&remove);
    assert!(refused.contains("add a device") && refused.contains(path(&first)), "{refused}");
    bed.run(&format!("pool grow fast {}", bed.device("third").display()));
    let verified = "--rw randwrite --bs 4k --depth 8 --ios 3000 --verify --size 8MiB";
    let load = Load::start(&bed.server.nvme_uri("db"), verified);
    let removed = bed.run(&format!("{remove} --wait"));
    assert!(!removed.contains(path(&first)) && removed.contains("third"), "{removed}");
    load.wait().assert_complete();
    assert!(bed.run(&remove).contains("was removed from pool fast"));
    // The removed device is free again, and the others are the pool.
    bed.run(&format!("pool create other {0} --destroy-data={0}", first.display()));
    bed.server.kill();
    bed.server.restart();
    let pool = bed.pool();
    assert_eq!(pool["devices"].as_array().map(Vec::len), Some(2), "{pool:#}");
    Load::start(&bed.server.nvme_uri("db"), verified).wait().assert_complete();
    let alone = bed.refused(&format!("pool remove-device other {}", first.display()));
    assert!(alone.contains("only device"), "{alone}");
}

/// Why pool `fast` is closed, and the next step.
fn refusal(bed: &Bed) -> String {
    let pool = bed.pool();
    assert_eq!(pool["state"], "closed", "{pool:#}");
    format!("{}; next: {}", pool["reason"].as_str().unwrap(), pool["next"].as_str().unwrap())
}

#[test]
fn untrusted_devices_are_refused_by_name() {
    let mut bed = Bed::start();
    let [first, second, other] = ["first", "second", "other"].map(|name| bed.device(name));
    bed.run(&format!("pool create fast {} {}", first.display(), second.display()));
    bed.run(&format!("pool create slow {}", other.display()));
    bed.run("volume create db --pool fast --size 64MiB");
    assert!(bed.server.terminate().success());
    let old = bed.scratch.join("old");
    std::fs::copy(&second, &old).unwrap();
    bed.server.restart();
    let verified = "--rw randwrite --bs 4k --depth 8 --ios 2000 --verify --size 8MiB";
    Load::start(&bed.server.nvme_uri("db"), verified).wait().assert_complete();
    assert!(bed.server.terminate().success());
    let good = bed.scratch.join("good");
    std::fs::copy(&second, &good).unwrap();
    let restore = |from: &Path| {
        std::fs::copy(from, &second).unwrap();
    };
    let version = |path: &Path| {
        let file = File::options().write(true).open(path).unwrap();
        for copy in 0..4 {
            file.write_all_at(&[9], (copy << 18) + 8).unwrap();
        }
    };
    type Case<'a> = (&'a str, &'a dyn Fn(), &'a [&'a str]);
    let cases: [Case<'_>; 6] = [
        ("older", &|| restore(&old), &["second has update", "old copy", "attach the current"]),
        ("duplicated", &|| restore(&first), &["copies of the same"]),
        ("swapped", &|| restore(&other), &["belongs to pool", "slow", "second"]),
        (
            "cut",
            &|| File::options().write(true).open(&second).unwrap().set_len(64 << 20).unwrap(),
            &["second has 67108864 bytes", "cut or replaced"],
        ),
        ("newer", &|| version(&second), &["second", "format version 9"]),
        ("missing", &|| std::fs::remove_file(&second).unwrap(), &["second"]),
    ];
    for (case, damage, parts) in cases {
        restore(&good);
        damage();
        bed.server.restart();
        let refused = refusal(&bed);
        for part in parts.iter().chain(&["next: ", "flagstone pool"]) {
            assert!(refused.contains(part), "{case}: {part}: {refused}");
        }
        assert_eq!(ask(&bed.server.api(), "GET", "/v1/volumes/db").status, 404, "{case}");
        assert_eq!(get(&bed.server.api(), "/v1/pools/slow")["state"], "open", "{case}");
        assert!(bed.server.terminate().success());
    }
    restore(&good);
    bed.server.restart();
    Load::start(&bed.server.nvme_uri("db"), verified).wait().assert_complete();
}

#[test]
fn interrupted_removal_continues_after_a_restart() {
    let (mut bed, first) = Bed::with_pool();
    let second = bed.scratch.disk("second", 512 << 20);
    bed.run(&format!("pool grow fast {}", second.display()));
    bed.run("volume create db --pool fast --size 4GiB");
    let state = bed.scratch.join("verify");
    let line = "--rw write --bs 1MiB --depth 8 --size 128MiB --ios 128";
    Load::start_verified(&bed.server.nvme_uri("db"), line, &state).wait().assert_complete();
    bed.run(&format!("pool remove-device fast {}", first.display()));
    bed.server.kill();
    let recorded = std::fs::read_to_string(bed.scratch.join("state/pools.json")).unwrap();
    assert!(recorded.contains("\"removing\""), "{recorded}");
    bed.server.restart();
    let removed = || bed.pool()["devices"] == json(&format!("[{:?}]", path(&second)));
    until("the first device is removed", removed, || bed.pool().to_string());
    let again = "--rw read --bs 1MiB --depth 8 --size 128MiB --after-crash client";
    Load::start_verified(&bed.server.nvme_uri("db"), again, &state).wait().assert_complete();
    // A device that vanished while it was being added leaves the pool as it was.
    bed.server.kill();
    let file = bed.scratch.join("state/pools.json");
    let mut document = json(&std::fs::read_to_string(&file).unwrap());
    let pool = &mut document["pools"][0];
    assert_eq!(pool["removing"], Value::Null);
    let absent = Value::from(path(&bed.scratch.join("absent")));
    pool["devices"].as_array_mut().unwrap().push(absent.clone());
    pool["adding"] = absent;
    std::fs::write(&file, document.to_string()).unwrap();
    bed.server.restart();
    assert_eq!(bed.pool()["state"], "open", "{:#}", bed.pool());
    assert_eq!(bed.pool()["devices"].as_array().map(Vec::len), Some(1));
}
