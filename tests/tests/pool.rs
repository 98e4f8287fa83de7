//! Pools and volumes made at run time: real servers, hosts and orders, across SIGKILL.

use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use flagstone_tests::http::{ask, get};
use flagstone_tests::load::Load;
use flagstone_tests::pools::Bed;
use flagstone_tests::process::until;
use serde_json::Value;

const VERIFIED: &str = "--rw randwrite --bs 4k --depth 8 --ios 2000 --verify --size 8MiB";

fn size_of(target: &str) -> u64 {
    let results = Load::start(target, "--rw randread --ios 1").wait().assert_complete();
    results["device"]["size_bytes"].as_u64().expect("a size")
}

#[test]
fn volume_of_pool_survives_sigkill() {
    let (mut bed, _) = Bed::with_pool();
    let created = bed.run("volume create db --pool fast --size 4GiB --limit iops=100000");
    assert!(created.contains("volume db of 4 GiB, thin") && created.contains("next:"), "{created}");
    assert!(created.contains("larger than the free space"), "{created}");
    let state = bed.scratch.join("verify");
    for (target, lines) in
        [(bed.server.nvme_uri("db"), VERIFIED), (bed.server.nbd_uri("db"), VERIFIED)]
    {
        Load::start(&target, lines).wait().assert_complete();
    }
    let target = bed.server.nvme_uri("db");
    let line = "--rw randwrite --bs 4k --depth 8 --fua --size 8MiB --ios 2000";
    let mut load = Load::start_verified(&target, line, &state);
    load.wait_for_records(&state, 700);
    bed.server.restart();
    load.wait().assert_complete();
    let volume = get(&bed.server.api(), "/v1/volumes/db");
    assert_eq!(volume["pool"]["name"], "fast", "{volume:#}");
    assert_eq!(volume["pool"]["settings"]["limit"]["iops"], 100_000, "{volume:#}");
    assert_eq!(volume["devices"][0], "pool:fast");
    let status = bed.run("pool status fast");
    assert!(status.contains("pool fast: open") && status.contains("volumes db"), "{status}");
}

#[test]
fn orders_are_idempotent_and_dry_runs_change_nothing() {
    let (bed, device) = Bed::with_pool();
    let again = bed.run(&format!("pool create fast {}", device.display()));
    assert!(again.contains("exists already"), "{again}");
    let create = "volume create db --pool fast --size 64MiB";
    let dry = bed.run(&format!("{create} --dry-run"));
    assert!(dry.starts_with("would be done: volume db"), "{dry}");
    assert_eq!(ask(&bed.server.api(), "GET", "/v1/volumes/db").status, 404);
    bed.run(create);
    assert!(bed.run(create).contains("exists already"));
    assert!(bed.refused("volume create db --pool fast --size 65MiB").contains("another size"));
    assert!(bed.refused("volume create own --pool fast --size 64MiB").contains("configuration"));
    assert!(bed.refused("volume create x --pool none --size 64MiB").contains("no pool `none`"));
    let mistaken = "volume create x --pool fast --size 64MiB --limit iopz=5";
    assert!(bed.refused(mistaken).contains("unknown key `iopz`"));
    assert!(bed.refused("volume resize db 32MiB").contains("do not shrink"));
    let nqn = "--setting nqn=nqn.2026-01.io.flagstone:db";
    let taken = bed.refused(&format!("volume create x --pool fast --size 64MiB {nqn}"));
    assert!(taken.contains("NQN already"), "{taken}");
    assert!(bed.refused("volume delete db").contains("--yes"));
    assert!(bed.run("volume delete db --dry-run").contains("data loss: volume db of 64 MiB"));
    assert!(bed.run("volume delete db --yes").contains("deleted"));
    assert!(bed.run("volume delete db --yes").contains("nothing to do"));
    assert!(bed.run("volume list").contains("own"));
    let json: Value = serde_json::from_str(&bed.run("pool destroy fast --yes --json")).unwrap();
    assert_eq!(json["changed"], true);
    assert!(bed.run("pool destroy fast --yes").contains("nothing to do"));
    // The device is free again.
    bed.run(&format!("pool create other {0} --destroy-data {0}", device.display()));
}

#[test]
fn attached_hosts_see_growth_and_keep_their_volume() {
    let (bed, _) = Bed::with_pool();
    bed.run("volume create db --pool fast --size 64MiB --block-size 4096");
    let (nvme, nbd) = (bed.server.nvme_uri("db"), bed.server.nbd_uri("db"));
    let mut load = Load::start(&nvme, "--rw randread --time 60s");
    let api = bed.server.api();
    let attached = || get(&api, "/v1/volumes/db")["connections"].as_array().map(Vec::len) > Some(0);
    until("the load is attached", attached, || bed.server.output());
    for order in ["delete db --yes", "rename db other", "set db --read-only"] {
        let refused = bed.refused(&format!("volume {order}"));
        assert!(refused.contains("hosts are attached"), "{order}: {refused}");
    }
    let set = bed.run("volume set db --limit iops=50000");
    assert!(set.contains("while hosts are attached"), "{set}");
    bed.run("volume resize db 128MiB");
    assert_eq!(size_of(&nvme), 128 << 20);
    assert_eq!(size_of(&nbd), 128 << 20);
    load.kill();
    bed.run("volume rename db other --force");
    assert_eq!(size_of(&bed.server.nbd_uri("other")), 128 << 20);
    assert_eq!(ask(&api, "GET", "/v1/volumes/db").status, 404);
    bed.run("volume set other --read-only --force");
    let failed = Load::start(&bed.server.nvme_uri("other"), "--rw randwrite --ios 1").wait();
    assert!(failed.log.contains("read-only"), "{}", failed.log);
    bed.run("volume delete other --yes --force");
    assert_eq!(
        Load::start(&bed.server.nvme_uri("other"), "--rw randread --ios 1").wait().code,
        Some(1)
    );
}

#[test]
fn full_pool_fails_writes_and_warns() {
    let (bed, _) = Bed::with_pool();
    bed.run("volume create db --pool fast --size 4GiB");
    for (target, part) in
        [(bed.server.nvme_uri("db"), "no_space"), (bed.server.nbd_uri("db"), "no_space")]
    {
        let filled = Load::start(&target, "--rw write --bs 1MiB --depth 8 --ios 2000").wait();
        assert_eq!(filled.code, Some(1), "{}", filled.log);
        assert!(filled.results["errors"].to_string().contains(part), "{:#}", filled.results);
    }
    let pool = bed.pool();
    assert!(pool["threshold_percent"].as_u64() >= Some(95), "{pool:#}");
    assert!(pool["next"].as_str().is_some_and(|next| next.contains("delete volumes")), "{pool:#}");
    let warned = || bed.server.output().contains("pool fast is");
    until("the log has a warning", warned, || bed.server.output());
    Load::start(&bed.server.nvme_uri("db"), "--rw randread --ios 100").wait().assert_complete();
    bed.run("volume delete db --yes --force");
    let empty = || bed.pool()["used_percent"].as_u64() < Some(20);
    until("the space is free", empty, || format!("{:#}", bed.pool()));
    bed.run("volume create new --pool fast --size 64MiB");
    Load::start(&bed.server.nvme_uri("new"), VERIFIED).wait().assert_complete();
}

#[test]
fn devices_with_data_are_refused() {
    let bed = Bed::start();
    let device = bed.device("precious");
    std::fs::File::options()
        .write(true)
        .open(&device)
        .and_then(|file| std::os::unix::fs::FileExt::write_all_at(&file, b"data", 5 << 20))
        .expect("the file can be written");
    let create = format!("pool create fast {}", device.display());
    let refused = bed.refused(&create);
    assert!(refused.contains("--destroy-data"), "{refused}");
    assert!(bed.refused("pool create fast /dev/no-such-disk").contains("/dev/no-such-disk"));
    let pools = get(&bed.server.api(), "/v1/pools");
    assert_eq!(pools["pools"], serde_json::json!([]));
    bed.run(&format!("{create} --destroy-data {}", device.display()));
}

#[test]
fn missing_and_moved_devices_keep_other_volumes_served() {
    let (mut bed, device) = Bed::with_pool();
    bed.run("volume create db --pool fast --size 64MiB");
    Load::start(&bed.server.nvme_uri("db"), VERIFIED).wait().assert_complete();
    let moved = bed.scratch.join("moved");
    bed.server.kill();
    std::fs::rename(&device, &moved).unwrap();
    bed.server.restart();
    Load::start(&bed.server.nvme_uri("own"), VERIFIED).wait().assert_complete();
    let pool = bed.pool();
    let reason = pool["reason"].as_str().expect("it is closed");
    assert!(reason.contains(device.to_str().unwrap()), "{reason}");
    // Hosts of its volumes wait. If the volume did not exist, Linux would give its disk up.
    let waits = Load::start(&bed.server.nvme_uri("db"), "--rw randread --ios 1").wait();
    assert!(waits.log.contains("Connect Controller Busy"), "{}", waits.log);
    assert!(bed.run("pool status").contains("flagstone pool import fast"));
    bed.run(&format!("pool import fast {}", moved.display()));
    Load::start(&bed.server.nvme_uri("db"), VERIFIED).wait().assert_complete();
    // A copy of the device is refused, by name.
    let copy = bed.scratch.join("copy");
    std::fs::copy(&moved, &copy).unwrap();
    bed.server.kill();
    std::fs::write(
        bed.scratch.join("state/pools.json"),
        format!(
            "{{\"version\":1,\"pools\":[{{\"name\":\"fast\",\"devices\":[{moved:?},{copy:?}]}}]}}"
        ),
    )
    .unwrap();
    bed.server.restart();
    let reason = bed.pool()["reason"].to_string();
    assert!(reason.contains("copies of the same device"), "{reason}");
    bed.run(&format!("pool import fast {}", moved.display()));
}

/// Pool `fast` with a log device, and volumes `db` and `old`. The tail is empty.
fn with_log() -> (Bed, PathBuf, PathBuf) {
    let bed = Bed::start();
    let (device, log) = (bed.device("disk"), bed.device("log"));
    let create = format!("pool create fast {} --log-device {}", device.display(), log.display());
    let created = bed.run(&create);
    assert!(created.contains("with log device"), "{created}");
    assert!(bed.run(&create).contains("exists already"));
    for name in ["db", "old"] {
        bed.run(&format!("volume create {name} --pool fast --size 64MiB"));
        Load::start(&bed.server.nvme_uri(name), VERIFIED).wait().assert_complete();
    }
    let drained = || bed.pool()["log"]["tail_bytes"] == 0;
    until("the log device is written out", drained, || bed.pool().to_string());
    (bed, device, log)
}

#[test]
fn volume_with_log_device_survives_sigkill() {
    let (mut bed, ..) = with_log();
    let target = bed.server.nvme_uri("db");
    let state = bed.scratch.join("verify");
    let line = "--rw randwrite --bs 4k --depth 8 --fua --size 8MiB --ios 2000";
    let mut load = Load::start_verified(&target, line, &state);
    load.wait_for_records(&state, 700);
    bed.server.restart();
    load.wait().assert_complete();
    let status = bed.run("pool status fast");
    assert!(status.contains("log device") && status.contains("not written out yet"), "{status}");
}

#[test]
fn lost_log_device_withholds_volumes_until_given_up() {
    let (mut bed, device, log) = with_log();
    // The marks are removed after a pause of the hosts.
    let terminated = bed.server.terminate();
    assert!(terminated.success());
    bed.server.restart();
    let write = "--rw randwrite --bs 4k --depth 8 --fua --size 8MiB --ios 100";
    Load::start(&bed.server.nvme_uri("db"), write).wait().assert_complete();
    bed.server.kill();
    std::fs::rename(&log, bed.scratch.join("away")).unwrap();
    bed.server.restart();
    let pool = bed.pool();
    assert_eq!(pool["state"], "closed", "{pool:#}");
    let reason = pool["reason"].to_string();
    assert!(reason.contains("log device") && reason.contains("missing"), "{reason}");
    assert!(pool["next"].to_string().contains("give-up-tail"), "{pool:#}");
    bed.server.kill();
    // As after a stop of the machine.
    bed.device("log");
    bed.server.restart();
    let pool = bed.pool();
    assert_eq!(pool["unserved"][0]["name"], "db", "{pool:#}");
    assert_eq!(pool["volumes"][0], "old", "{pool:#}");
    assert!(bed.refused("pool give-up-tail fast").contains("--yes"));
    assert!(bed.run("pool give-up-tail fast --dry-run").contains("data loss: of db"));
    bed.run("pool give-up-tail fast --yes");
    assert_eq!(bed.pool()["volumes"].as_array().map(Vec::len), Some(2));
    Load::start(&bed.server.nvme_uri("db"), VERIFIED).wait().assert_complete();
    assert!(bed.run("pool give-up-tail fast --yes").contains("nothing to do"));
    let removed = bed.run("pool set-log fast --none --yes");
    assert!(removed.contains("has no log device"), "{removed}");
    assert!(bed.run("pool set-log fast --none --yes").contains("already"));
    assert_eq!(bed.pool()["log"], Value::Null);
    // The former log device is free, and has data.
    let refused = bed.refused(&format!("pool set-log fast {} --yes", log.display()));
    assert!(refused.contains("--destroy-data"), "{refused}");
    bed.run(&format!("pool set-log fast {0} --destroy-data={0} --yes", log.display()));
    assert_eq!(bed.pool()["log"]["present"], true);
    Load::start(&bed.server.nvme_uri("old"), VERIFIED).wait().assert_complete();
    bed.run("pool destroy fast --yes");
    let (device, log) = (device.display(), log.display());
    let create = format!("pool create fast {device} --log-device {log}");
    bed.run(&format!("{create} --destroy-data={device} --destroy-data={log} --yes"));
}

#[test]
fn used_disk_at_the_path_of_the_log_device() {
    let (mut bed, _, log) = with_log();
    assert!(bed.server.terminate().success());
    let other = std::fs::OpenOptions::new().write(true).open(&log).unwrap();
    other.write_all_at(&[7; 1 << 20], 0).unwrap();
    bed.server.restart();
    let pool = bed.pool();
    assert_eq!((&pool["state"], &pool["log"]["present"]), (&"open".into(), &false.into()));
    let set = format!("pool set-log fast {0} --destroy-data={0} --yes", log.display());
    let outcome = bed.run(&set);
    assert!(outcome.contains("has log device") && !outcome.contains("already"), "{outcome}");
    assert_eq!(bed.pool()["log"]["present"], true);
    assert!(bed.run(&set).contains("already"));
    Load::start(&bed.server.nvme_uri("db"), VERIFIED).wait().assert_complete();
}

#[test]
fn map_cache_is_kept_across_restarts() {
    let (mut bed, _) = Bed::with_pool();
    assert_eq!(bed.pool()["map_cache_bytes"], 64 << 20);
    assert!(bed.run("pool set fast --map-cache 128MiB --dry-run").starts_with("would be done"));
    bed.run("pool set fast --map-cache 128MiB");
    assert!(bed.run("pool set fast --map-cache 128MiB").contains("already"));
    assert!(bed.refused("pool set fast --map-cache 64KiB").contains("1 MiB"));
    bed.server.kill();
    bed.server.restart();
    assert_eq!(bed.pool()["map_cache_bytes"], 128 << 20);
}
