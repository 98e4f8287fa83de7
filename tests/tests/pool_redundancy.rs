//! Pools with redundancy: real servers whose devices are lost, return, rot and are replaced.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use flagstone_tests::http::ask;
use flagstone_tests::load::Load;
use flagstone_tests::pools::Bed;
use flagstone_tests::process::until;
use serde_json::Value;

const SIZE: u64 = 512 << 20;

fn path(path: &Path) -> &str {
    path.to_str().expect("temporary paths are UTF-8")
}

/// A pool `fast` with a volume `db` on these devices, two for each pair.
fn pool(names: &[&str]) -> (Bed, Vec<PathBuf>) {
    let bed = Bed::start();
    let devices: Vec<PathBuf> = names.iter().map(|name| bed.scratch.disk(name, SIZE)).collect();
    let named: Vec<&str> = devices.iter().map(|device| path(device)).collect();
    let create = format!("pool create fast {} --redundancy mirror", named.join(" "));
    assert!(bed.run(&format!("{create} --dry-run")).starts_with("would be done"));
    let created = bed.run(&create);
    assert!(created.contains("two copies"), "{created}");
    assert!(created.contains(&format!("{} and {}", named[0], named[1])), "{created}");
    assert!(bed.run(&create).contains("exists already"));
    bed.run("volume create db --pool fast --size 64MiB");
    (bed, devices)
}

/// Writes data that [`verify`] expects.
fn write(bed: &Bed) {
    let line = "--rw write --bs 64k --ios 1024 --fua --size 64MiB";
    Load::start_verified(&bed.server.nbd_uri("db"), line, &bed.scratch.join("verify"))
        .wait()
        .assert_complete();
}

fn verify(bed: &Bed) {
    let line = "--rw read --bs 64k --ios 1024 --size 64MiB --after-crash server";
    Load::start_verified(&bed.server.nbd_uri("db"), line, &bed.scratch.join("verify"))
        .wait()
        .assert_complete();
}

/// Device of the pool, as its document shows it.
fn device(pool: &Value, at: &Path) -> Value {
    let pairs = pool["redundancy"]["pairs"].as_array().cloned().unwrap_or_default();
    let devices = pairs.iter().filter_map(|pair| pair["devices"].as_array()).flatten();
    devices.into_iter().find(|own| own["device"] == path(at)).cloned().unwrap_or_default()
}

fn in_sync(bed: &Bed) {
    let is_in_sync = || {
        let pairs = bed.pool()["redundancy"]["pairs"].as_array().cloned().unwrap_or_default();
        let mut devices = pairs.iter().filter_map(|pair| pair["devices"].as_array()).flatten();
        !pairs.is_empty() && devices.all(|device| device["state"] == "in-sync")
    };
    until("every device is in sync", is_in_sync, || format!("{:#}", bed.pool()));
}

#[test]
fn data_survives_the_loss_of_one_device_after_another() {
    let (mut bed, devices) = pool(&["a", "b"]);
    write(&bed);
    bed.server.kill();
    std::fs::rename(&devices[1], bed.scratch.join("lost")).unwrap();
    bed.server.restart();
    // The lost device may have been used alone.
    assert_eq!(bed.pool()["state"], "closed", "{:#}", bed.pool());
    let import = format!("pool import fast {}", path(&devices[0]));
    assert!(bed.run("pool status fast").contains(&format!("flagstone {import}")));
    assert!(bed.refused(&import).contains("if it was used"));
    bed.run(&format!("{import} --yes"));
    bed.server.kill();
    bed.server.restart();
    let missing = device(&bed.pool(), &devices[1]);
    assert_eq!(missing["state"], "missing", "{:#}", bed.pool());
    assert!(missing["reason"].as_str().unwrap().contains("does not exist"), "{missing:#}");
    let status = bed.run("pool status fast");
    assert!(status.contains("open, degraded: 1 of 2 devices missing"), "{status}");
    let next = format!("flagstone pool replace-device fast {} NEW-DEVICE", path(&devices[1]));
    assert!(status.contains(&next), "{status}");
    assert!(bed.run("pool status").contains("degraded"), "{}", bed.run("pool status"));
    verify(&bed);
    let new = bed.scratch.disk("new", SIZE);
    let small = bed.scratch.disk("small", 64 << 20);
    let full = bed.scratch.disk("full", SIZE);
    File::options().write(true).open(&full).unwrap().write_all_at(b"data", 0).unwrap();
    let replace =
        |new: &Path| format!("pool replace-device fast {} {}", path(&devices[1]), path(new));
    assert!(bed.refused(&replace(&small)).contains("smaller"));
    assert!(bed.refused(&replace(&full)).contains("--destroy-data"));
    assert!(bed.refused(&replace(&devices[0])).contains("already"));
    let dry = bed.run(&format!("{} --dry-run", replace(&new)));
    assert!(dry.starts_with("would be done"), "{dry}");
    assert_eq!(device(&bed.pool(), &devices[1])["state"], "missing");
    let replaced = bed.run(&replace(&new));
    assert!(replaced.contains("is rebuilt from"), "{replaced}");
    let again = bed.run(&replace(&new));
    assert!(again.contains("is a device of pool fast already"), "{again}");
    in_sync(&bed);
    assert_eq!(device(&bed.pool(), &new)["state"], "in-sync");
    bed.server.kill();
    std::fs::remove_file(&devices[0]).unwrap();
    bed.server.restart();
    bed.run(&format!("pool import fast {} --yes", path(&new)));
    assert_eq!(device(&bed.pool(), &devices[0])["state"], "missing", "{:#}", bed.pool());
    verify(&bed);
}

#[test]
fn device_that_returns_is_rebuilt() {
    let (mut bed, devices) = pool(&["a", "b", "c", "d"]);
    bed.server.kill();
    let away = bed.scratch.join("away");
    for (device, other) in [(&devices[0], "1"), (&devices[3], "2")] {
        std::fs::rename(device, away.with_extension(other)).unwrap();
    }
    bed.server.restart();
    let import = |present: [&Path; 2]| {
        format!("pool import fast {} {} --yes", path(present[0]), path(present[1]))
    };
    bed.run(&import([&devices[1], &devices[2]]));
    let missing = |at: &Path| device(&bed.pool(), at)["state"].clone();
    assert_eq!([missing(&devices[0]), missing(&devices[3])], ["missing", "missing"]);
    write(&bed);
    for (device, other) in [(&devices[0], "1"), (&devices[3], "2")] {
        std::fs::rename(away.with_extension(other), device).unwrap();
    }
    bed.run("pool reopen fast");
    in_sync(&bed);
    bed.server.kill();
    for device in [&devices[1], &devices[2]] {
        std::fs::remove_file(device).unwrap();
    }
    bed.server.restart();
    bed.run(&import([&devices[0], &devices[3]]));
    verify(&bed);
}

/// Disks appear late at the start of a machine: an opening without one would cost its redundancy.
#[test]
fn opening_waits_for_a_late_device() {
    let (mut bed, devices) = pool(&["a", "b", "c", "d"]);
    write(&bed);
    bed.server.kill();
    let away = bed.scratch.join("away");
    std::fs::rename(&devices[1], &away).unwrap();
    bed.server.restart();
    assert_eq!(bed.pool()["state"], "closed", "{:#}", bed.pool());
    let status = bed.run("pool status fast");
    assert!(status.contains("waits 60 s") && status.contains("pool import fast"), "{status}");
    std::fs::rename(&away, &devices[1]).unwrap();
    let is_open = || bed.pool()["state"] == "open";
    until("the pool is open", is_open, || format!("{:#}", bed.pool()));
    assert_eq!(device(&bed.pool(), &devices[1])["state"], "in-sync", "{:#}", bed.pool());
    let is_served = || ask(&bed.server.api(), "GET", "/v1/volumes/db").status == 200;
    until("its volume is served", is_served, || format!("{:#}", bed.pool()));
    verify(&bed);
}

#[test]
fn damage_of_one_device_is_repaired_from_the_other() {
    let (mut bed, devices) = pool(&["a", "b"]);
    write(&bed);
    let clean = bed.run("pool scrub fast --wait");
    assert!(clean.contains("0 damages") && !clean.contains("rewritten"), "{clean}");
    assert!(bed.server.terminate().success());
    let (bytes, other) = (std::fs::read(&devices[1]).unwrap(), std::fs::read(&devices[0]).unwrap());
    // A block of data, which both devices have.
    let is_data = |at: &usize| {
        let block = &bytes[*at..*at + 4096];
        block == &other[*at..*at + 4096] && block.iter().filter(|byte| **byte != 0).count() > 3000
    };
    let at = (0..bytes.len()).step_by(4096).rev().find(is_data).unwrap();
    let file = File::options().write(true).open(&devices[1]).unwrap();
    file.write_all_at(&[!bytes[at]; 99], at as u64).unwrap();
    drop(file);
    bed.server.restart();
    let repaired = bed.run("pool scrub fast --wait");
    assert!(repaired.contains("0 damages"), "{repaired}");
    assert!(repaired.contains("damaged on one device, and rewritten from the other"), "{repaired}");
    assert_eq!(bed.pool()["redundancy"]["repaired_bytes"], 4096, "{:#}", bed.pool());
    let clean = bed.run("pool scrub fast --wait");
    assert!(clean.contains("0 damages") && !clean.contains("rewritten"), "{clean}");
    verify(&bed);
}

/// The device is cut while hosts write, so all of its calls fail from then on.
#[test]
fn pool_continues_when_a_device_fails() {
    for failed in 0..2 {
        let (mut bed, devices) = pool(&["a", "b"]);
        let file = File::options().write(true).open(&devices[failed]).unwrap();
        file.set_len(64 << 20).unwrap();
        drop(file);
        write(&bed);
        let state = device(&bed.pool(), &devices[failed])["state"].clone();
        assert_eq!(state, "failed", "{:#}", bed.pool());
        let status = bed.run("pool status fast");
        assert!(status.contains("open, degraded: 1 of 2 devices missing"), "{status}");
        verify(&bed);
        // The next openings have the cut device, too.
        bed.run("pool reopen fast");
        verify(&bed);
        bed.server.kill();
        bed.server.restart();
        let missing = device(&bed.pool(), &devices[failed]);
        assert_eq!(missing["state"], "missing", "{:#}", bed.pool());
        assert!(missing["reason"].as_str().unwrap().contains("it was cut"), "{missing:#}");
        verify(&bed);
    }
}

/// A device that failed has superblocks of a destroyed pool no more than the others.
#[test]
fn destroyed_pool_leaves_no_device_behind() {
    let (mut bed, devices) = pool(&["a", "b"]);
    let away = bed.scratch.join("away");
    bed.server.kill();
    std::fs::rename(&devices[1], &away).unwrap();
    bed.server.restart();
    bed.run(&format!("pool import fast {} --yes", path(&devices[0])));
    bed.run("volume delete db --yes");
    let failed = bed.refused("pool destroy fast --yes");
    assert!(failed.contains("was not destroyed completely"), "{failed}");
    let planned = bed.run("pool destroy fast --dry-run");
    assert!(planned.contains("everything that is left of pool fast"), "{planned}");
    std::fs::rename(&away, &devices[1]).unwrap();
    let destroyed = bed.run("pool destroy fast --yes");
    let first = path(&devices[0]);
    assert!(destroyed.contains(&format!("{first} had no superblock of it")), "{destroyed}");
    for device in &devices {
        let refused = bed.refused(&format!("pool import fast {} --yes", path(device)));
        assert!(refused.contains("is not a device of a pool"), "{refused}");
    }
}

/// A device of another pool has the path of a missing one: it is left as it is.
#[test]
fn foreign_device_is_not_used() {
    let (mut bed, devices) = pool(&["a", "b"]);
    let foreign = [bed.scratch.disk("c", SIZE), bed.scratch.disk("d", SIZE)];
    bed.run(&format!("pool create other {} {}", path(&foreign[0]), path(&foreign[1])));
    bed.server.kill();
    std::fs::remove_file(&devices[1]).unwrap();
    bed.server.restart();
    bed.run(&format!("pool import fast {} --yes", path(&devices[0])));
    write(&bed);
    for source in [Some(&foreign[0]), None] {
        assert!(bed.server.terminate().success());
        match source {
            Some(source) => drop(std::fs::copy(source, &devices[1]).unwrap()),
            None => std::fs::write(&devices[1], vec![7; 64 << 20]).unwrap(),
        }
        let before = std::fs::read(&devices[1]).unwrap();
        bed.server.restart();
        let missing = device(&bed.pool(), &devices[1]);
        assert_eq!(missing["state"], "missing", "{:#}", bed.pool());
        assert!(missing["reason"].is_string(), "{missing:#}");
        verify(&bed);
        assert!(std::fs::read(&devices[1]).unwrap() == before);
    }
}

#[test]
fn orders_that_redundancy_excludes_are_refused() {
    let (bed, devices) = pool(&["a", "b"]);
    let other = bed.scratch.disk("other", SIZE);
    for (order, part) in [
        (format!("pool create more {} --redundancy mirror", path(&other)), "even number"),
        (format!("pool create more {} --redundancy raid", path(&other)), "mirror"),
        (format!("pool create fast {} {}", path(&devices[0]), path(&devices[1])), "redundancy"),
        (format!("pool grow fast {} --dry-run", path(&other)), "replace-device"),
        (format!("pool remove-device fast {} --dry-run", path(&devices[0])), "replace-device"),
        (format!("pool set-log fast {} --dry-run", path(&other)), "single copy"),
        (format!("pool replace-device fast {} {}", path(&other), path(&other)), "no device"),
    ] {
        let refused = bed.refused(&order);
        assert!(refused.contains(part), "{order}: {refused}");
    }
    let plain = [bed.scratch.disk("c", SIZE), bed.scratch.disk("d", SIZE)];
    let created = bed.run(&format!("pool create plain {} {}", path(&plain[0]), path(&plain[1])));
    assert!(created.contains("the loss of one device loses the pool"), "{created}");
    let replace = format!("pool replace-device plain {} {}", path(&plain[0]), path(&other));
    let refused = bed.refused(&replace);
    assert!(refused.contains("flagstone pool grow plain"), "{refused}");
}

/// Each device was in use without the other: the operator decides which data is lost.
#[test]
fn devices_used_apart_need_the_operator() {
    let (mut bed, devices) = pool(&["a", "b"]);
    let away = bed.scratch.join("away");
    assert!(bed.server.terminate().success());
    std::fs::copy(&devices[1], &away).unwrap();
    std::fs::remove_file(&devices[1]).unwrap();
    bed.server.restart();
    bed.run(&format!("pool import fast {} --yes", path(&devices[0])));
    write(&bed);
    assert!(bed.server.terminate().success());
    // The other one alone is older than what was served last.
    std::fs::rename(&devices[0], bed.scratch.join("first")).unwrap();
    std::fs::rename(&away, &devices[1]).unwrap();
    bed.server.restart();
    let closed = bed.pool();
    assert_eq!(closed["state"], "closed", "{closed:#}");
    let status = bed.run("pool status fast");
    assert!(status.contains("flagstone pool import fast"), "{status}");
    bed.run(&format!("pool import fast {} --yes", path(&devices[1])));
    assert!(bed.server.terminate().success());
    std::fs::rename(bed.scratch.join("first"), &devices[0]).unwrap();
    bed.server.restart();
    assert_eq!(bed.pool()["state"], "closed", "{:#}", bed.pool());
    bed.run(&format!("pool import fast {} --yes", path(&devices[0])));
    // The answer holds: the other device is not opened again.
    bed.server.kill();
    bed.server.restart();
    assert_eq!(bed.pool()["state"], "open", "{:#}", bed.pool());
    verify(&bed);
    assert!(bed.server.terminate().success());
    // A server that does not know the pool.
    std::fs::remove_file(bed.scratch.join("state/pools.json")).unwrap();
    bed.server.restart();
    let (first, second) = (path(&devices[0]), path(&devices[1]));
    let refused = bed.refused(&format!("pool import fast {first} {second} --yes"));
    assert!(refused.contains("used without each other"), "{refused}");
    bed.run(&format!("pool import fast {first} --yes"));
    let id = bed.pool()["redundancy"]["pairs"][0]["devices"][1]["id"].clone();
    let replace = format!("pool replace-device fast {} {second}", id.as_str().unwrap());
    assert!(bed.refused(&replace).contains("--destroy-data"));
    bed.run(&format!("{replace} --destroy-data {second} --wait"));
    in_sync(&bed);
    verify(&bed);
}

/// A full pool with two copies could not grow.
#[test]
fn pool_grows_by_a_pair() {
    let (mut bed, devices) = pool(&["a", "b"]);
    write(&bed);
    let new = [bed.scratch.disk("c", SIZE), bed.scratch.disk("d", SIZE)];
    let grow = format!("pool grow fast {} {}", path(&new[0]), path(&new[1]));
    let planned = bed.run(&format!("{grow} --dry-run"));
    assert!(planned.contains("on the pair"), "{planned}");
    let used = format!("pool grow fast {} {}", path(&devices[0]), path(&new[0]));
    assert!(bed.refused(&used).contains("already"));
    let twice = format!("pool grow fast {} {}", path(&new[0]), path(&new[0]));
    assert!(bed.refused(&twice).contains("twice"));
    std::fs::write(&new[1], vec![7; SIZE as usize]).unwrap();
    let full = bed.refused(&grow);
    assert!(full.contains("--destroy-data"), "{full}");
    let before = bed.pool()["capacity_bytes"].as_u64().unwrap();
    bed.run(&format!("{grow} --destroy-data {}", path(&new[1])));
    assert!(bed.pool()["capacity_bytes"].as_u64().unwrap() > before * 2 - (64 << 20));
    assert!(bed.run(&grow).contains("already"));
    bed.server.kill();
    for lost in [&devices[0], &new[1]] {
        std::fs::rename(lost, bed.scratch.join("lost")).unwrap();
        bed.server.restart();
        let names = [&devices[0], &devices[1], &new[0], &new[1]];
        let present: Vec<&str> =
            names.iter().filter(|name| *name != &lost).map(|name| path(name)).collect();
        bed.run(&format!("pool import fast {} --yes", present.join(" ")));
        verify(&bed);
        bed.server.kill();
        std::fs::rename(bed.scratch.join("lost"), lost).unwrap();
        bed.server.restart();
        in_sync(&bed);
        bed.server.kill();
    }
}

/// The server kept a failed device locked, so the device could not replace itself.
#[test]
fn failed_device_is_replaced_by_the_same_path() {
    let (bed, devices) = pool(&["a", "b"]);
    let file = File::options().write(true).open(&devices[1]).unwrap();
    file.set_len(64 << 20).unwrap();
    write(&bed);
    file.set_len(SIZE).unwrap();
    let same = path(&devices[1]);
    let replace = format!("pool replace-device fast {same} {same}");
    assert!(bed.refused(&replace).contains("--destroy-data"));
    bed.run(&format!("{replace} --destroy-data {same}"));
    in_sync(&bed);
    verify(&bed);
}
