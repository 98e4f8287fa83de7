//! Orders on pools while a disk of one of them answers no writes.

use std::process::{Child, Output};

use flagstone_tests::freezer::{Freezer, LoopDevice};
use flagstone_tests::http::{ask, get};
use flagstone_tests::load::Load;
use flagstone_tests::pools::Bed;
use flagstone_tests::process::until;
use flagstone_tests::scratch::Scratch;

const SIZE: u64 = 1 << 30;

fn has_ended(child: &mut Child) -> bool {
    child.try_wait().unwrap().is_some()
}

/// The output of an order that may never end.
#[track_caller]
fn end(mut order: Child, what: &str) -> Output {
    until(what, || has_ended(&mut order), String::new);
    order.wait_with_output().unwrap()
}

/// Orders that have nothing to do with a pool that hangs.
#[track_caller]
fn order_elsewhere(bed: &Bed, number: usize) {
    for line in [
        format!("volume create new{number} --pool other --size 64MiB"),
        format!("volume resize new{number} 128MiB"),
        format!("snapshot create new{number}@a"),
        format!("volume rename new{number} old{number}"),
        format!("pool create more{number} {}", bed.device(&format!("more{number}")).display()),
        "pool scrub other".to_owned(),
    ] {
        let done = end(bed.start_order(&line), &line);
        assert!(done.status.success(), "{line}: {}", String::from_utf8_lossy(&done.stderr));
    }
}

fn is_served(bed: &Bed, name: &str) -> bool {
    ask(&bed.server.api(), "GET", &format!("/v1/volumes/{name}")).status == 200
}

#[test]
fn hung_disk_holds_up_orders_on_its_pool_only() {
    let bed = Bed::start();
    let Some((freezer, disk)) = Freezer::new("hung pool", &bed.scratch, SIZE) else { return };
    bed.run(&format!("pool create fast {}", disk.display()));
    bed.run(&format!("pool create other {}", bed.device("other").display()));
    bed.run("volume create db --pool fast --size 64MiB");
    freezer.freeze();
    // One has the pool and hangs with it, the other one waits for it.
    let mut orders = ["a", "b"]
        .map(|name| bed.start_order(&format!("volume create {name} --pool fast --size 64MiB")));
    until("an order is refused", || orders.iter_mut().any(has_ended), String::new);
    let [mut a, b] = orders;
    let (hung, refused, name) = if has_ended(&mut a) { (b, a, "b") } else { (a, b, "a") };
    let refused = refused.wait_with_output().unwrap();
    let printed = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(printed.contains("another order on pool fast has not ended"), "{printed}");
    order_elsewhere(&bed, 0);
    assert!(!is_served(&bed, name));
    freezer.thaw();
    until("the order continues", || is_served(&bed, name), String::new);
    end(hung, "its client ends");
    bed.run("volume resize db 128MiB");
}

#[test]
fn log_device_without_writes_is_not_replaced() {
    let bed = Bed::start();
    let Some((freezer, log)) = Freezer::new("hung log device", &bed.scratch, SIZE) else { return };
    let disk = bed.device("disk");
    bed.run(&format!("pool create fast {} --log-device {} --yes", disk.display(), log.display()));
    bed.run(&format!("pool create other {}", bed.device("other").display()));
    bed.run("volume create db --pool fast --size 64MiB");
    freezer.freeze();
    let refused = end(bed.start_order("pool set-log fast --none --yes"), "the order is refused");
    let printed = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && printed.contains("takes no writes"), "{printed}");
    assert!(is_served(&bed, "db"));
    assert_eq!(bed.pool()["state"], "open");
    order_elsewhere(&bed, 0);
    freezer.thaw();
    bed.run("pool set-log fast --none --yes");
    assert!(bed.pool()["log_device"].is_null());
    assert!(is_served(&bed, "db"));
}

#[test]
fn change_of_the_log_device_survives_a_hung_disk() {
    let bed = Bed::start();
    let Some((freezer, disk)) = Freezer::new("hung disk", &bed.scratch, SIZE) else { return };
    let log = bed.device("log");
    bed.run(&format!("pool create fast {} --log-device {} --yes", disk.display(), log.display()));
    bed.run(&format!("pool create other {}", bed.device("other").display()));
    bed.run("volume create db --pool fast --size 64MiB");
    freezer.freeze();
    let late = end(bed.start_order("pool set-log fast --none --yes"), "the order gives up");
    let printed = String::from_utf8_lossy(&late.stderr).into_owned();
    assert!(!late.status.success() && printed.contains("this continues"), "{printed}");
    let pool = bed.pool();
    assert_eq!(pool["state"], "changing", "{pool:#}");
    assert!(pool["reason"].as_str().unwrap().contains("log device is being changed"), "{pool:#}");
    for line in ["pool reopen fast", "volume create a --pool fast --size 64MiB", "pool scrub fast"]
    {
        let refused = bed.refused(line);
        assert!(refused.contains("log device is being changed"), "{line}: {refused}");
    }
    order_elsewhere(&bed, 0);
    freezer.thaw();
    let is_open = || bed.pool()["state"] == "open";
    until("the change ends", is_open, || format!("{:#}", get(&bed.server.api(), "/v1/pools/fast")));
    assert!(bed.pool()["log_device"].is_null());
    assert!(is_served(&bed, "db"));
    bed.run("volume resize db 128MiB");
}

#[test]
fn destroying_hung_pool_blocks_no_other_pool() {
    let mut bed = Bed::start();
    let Some((freezer, disk)) = Freezer::new("hung destruction", &bed.scratch, SIZE) else {
        return;
    };
    bed.run(&format!("pool create fast {}", disk.display()));
    bed.run(&format!("pool create other {}", bed.device("other").display()));
    freezer.freeze();
    let late = end(bed.start_order("pool destroy fast --yes"), "the order gives up");
    let printed = String::from_utf8_lossy(&late.stderr).into_owned();
    assert!(!late.status.success() && printed.contains("this continues"), "{printed}");
    assert_eq!(bed.pool()["state"], "changing");
    order_elsewhere(&bed, 0);
    freezer.thaw();
    let is_gone = || ask(&bed.server.api(), "GET", "/v1/pools/fast").status == 404;
    until("the pool is destroyed", is_gone, String::new);
    let disk = disk.display();
    bed.run(&format!("pool create fast {disk} --destroy-data={disk} --yes"));
    assert!(bed.server.terminate().success());
}

#[test]
fn hung_import_holds_up_no_order_and_no_return() {
    let mut bed = Bed::start();
    let Some((freezer, file)) = Freezer::new("hung import", &bed.scratch, SIZE) else { return };
    let (disk, away) = (bed.device("disk"), bed.scratch.join("away"));
    bed.run(&format!("pool create fast {}", disk.display()));
    bed.run("volume create db --pool fast --size 64MiB");
    assert!(bed.server.terminate().success());
    // As a sparse file.
    let copied =
        std::process::Command::new("cp").arg("--sparse=always").args([&disk, &file]).status();
    assert!(copied.unwrap().success());
    // It is opened and read, and its first write hangs.
    let Some(hung) = LoopDevice::new("hung import", &file) else { return };
    let import = format!("pool import fast {} --yes", hung.path().display());
    std::fs::rename(&disk, &away).unwrap();
    bed.server.restart();
    freezer.freeze();
    let late = end(bed.start_order(&import), "the import gives up");
    let printed = String::from_utf8_lossy(&late.stderr).into_owned();
    assert!(!late.status.success() && printed.contains("is not imported"), "{printed}");
    std::fs::rename(&away, &disk).unwrap();
    until("the pool is back", || bed.pool()["state"] == "open", || bed.pool().to_string());
    bed.run("volume resize db 128MiB");
    freezer.thaw();
    // The copy is not served.
    bed.run("volume resize db 192MiB");
    assert_eq!(bed.pool()["devices"].as_array().unwrap().len(), 1);
    assert_eq!(bed.pool()["state"], "open");
    assert!(bed.server.terminate().success());
    // Repeat, and destroy the pool with --force while the import hangs.
    std::fs::rename(&disk, &away).unwrap();
    bed.server.restart();
    freezer.freeze();
    let hanging = bed.start_order(&import);
    until("a write of the import hangs", || hung.has_writes_in_flight(), String::new);
    let line = "pool destroy fast --force --yes";
    let done = end(bed.start_order(line), line);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let ended = end(hanging, "the import ends");
    let printed = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(!ended.status.success() && printed.contains("ended its import"), "{printed}");
    freezer.thaw();
    assert_eq!(ask(&bed.server.api(), "GET", "/v1/pools/fast").status, 404);
}

#[test]
fn hung_disk_is_not_added_and_makes_no_pool() {
    let bed = Bed::start();
    let Some((freezer, hung)) = Freezer::new("hung growth", &bed.scratch, SIZE) else { return };
    bed.run(&format!("pool create fast {}", bed.device("disk").display()));
    bed.run("volume create db --pool fast --size 64MiB");
    freezer.freeze();
    let mut orders = ["grow fast", "create slow"]
        .map(|order| bed.start_order(&format!("pool {order} {}", hung.display())));
    until("orders end", || orders.iter_mut().all(has_ended), String::new);
    for order in orders {
        let late = order.wait_with_output().unwrap();
        let printed = String::from_utf8_lossy(&late.stderr).into_owned();
        assert!(!late.status.success() && printed.contains("does not answer"), "{printed}");
    }
    assert_eq!(bed.pool()["devices"].as_array().unwrap().len(), 1);
    bed.run("volume resize db 128MiB");
    bed.run(&format!("pool grow fast {}", bed.device("more").display()));
    assert_eq!(ask(&bed.server.api(), "GET", "/v1/pools/slow").status, 404);
    bed.run(&format!("pool create slow {}", bed.device("slow").display()));
    freezer.thaw();
}

#[test]
fn hung_state_directory_holds_up_only_what_it_records() {
    let scratch = Scratch::new();
    let Some((freezer, file)) = Freezer::new("hung state", &scratch, SIZE) else { return };
    let mut bed = Bed::with_state(scratch, &file.with_file_name("state"));
    let freezer = freezer;
    bed.run(&format!("pool create fast {}", bed.device("disk").display()));
    bed.run("volume create db --pool fast --size 64MiB");
    freezer.freeze();
    let set = "pool set fast --map-cache 128MiB";
    let create = format!("pool create other {}", bed.device("other").display());
    for line in [set, &create] {
        let late = end(bed.start_order(line), line);
        let printed = String::from_utf8_lossy(&late.stderr).into_owned();
        assert!(!late.status.success() && printed.contains("state directory"), "{printed}");
    }
    for line in [
        "volume create a --pool fast --size 64MiB",
        "volume resize db 128MiB",
        "snapshot create db@a",
        "volume rename a b",
        "pool scrub fast",
    ] {
        let done = end(bed.start_order(line), line);
        assert!(done.status.success(), "{line}: {}", String::from_utf8_lossy(&done.stderr));
    }
    // Refused however often it is repeated: after a restart, the scrub would be there again.
    for _ in 0..2 {
        let late = end(bed.start_order("pool scrub fast --cancel"), "the scrub stays");
        let printed = String::from_utf8_lossy(&late.stderr).into_owned();
        assert!(!late.status.success() && printed.contains("as it was"), "{printed}");
    }
    // A destruction that cannot be recorded ends nothing.
    let late = end(bed.start_order("pool destroy fast --force --yes"), "the pool stays");
    let printed = String::from_utf8_lossy(&late.stderr).into_owned();
    assert!(!late.status.success() && printed.contains("state directory"), "{printed}");
    assert!(is_served(&bed, "db") && !bed.pool()["scrub"].is_null());
    freezer.thaw();
    let recorded = file.with_file_name("state").join("pools.json");
    let is_undone = || !std::fs::read_to_string(&recorded).unwrap().contains("map_cache");
    until("the change is undone", is_undone, String::new);
    bed.run(&create);
    bed.run(set);
    assert_eq!(bed.pool()["map_cache_bytes"], 128 << 20);
    bed.run("pool scrub fast --cancel");
    assert!(bed.server.terminate().success());
    bed.server.restart();
    assert_eq!(bed.pool()["map_cache_bytes"], 128 << 20);
    assert!(bed.pool()["scrub"].is_null(), "a cancelled scrub stays cancelled");
    assert!(is_served(&bed, "b"));
}

#[test]
fn restart_during_a_hung_growth_opens_the_pool() {
    let mut bed = Bed::start();
    let Some((freezer, file)) = Freezer::new("hung restart", &bed.scratch, SIZE) else { return };
    bed.run(&format!("pool create fast {}", bed.device("disk").display()));
    bed.run("volume create db --pool fast --size 64MiB");
    let Some(hung) = LoopDevice::new("hung restart", &file) else { return };
    // Its first write hangs, and after the restart also its opening.
    let link = bed.scratch.join("new");
    std::os::unix::fs::symlink(hung.path(), &link).unwrap();
    freezer.freeze();
    let mut order = bed.start_order(&format!("pool grow fast {}", link.display()));
    let recorded = bed.scratch.join("state/pools.json");
    let is_recorded = || std::fs::read_to_string(&recorded).unwrap().contains("adding");
    until("the device is recorded", is_recorded, String::new);
    bed.server.kill();
    order.wait().unwrap();
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    bed.server.restart();
    until("the pool is open", || bed.pool()["state"] == "open", || bed.pool().to_string());
    assert_eq!(bed.pool()["devices"].as_array().unwrap().len(), 1);
    assert!(is_served(&bed, "db"));
    freezer.thaw();
}

#[test]
fn failed_pool_grows_only_after_it_was_reopened() {
    let mut bed = Bed::start();
    let Some((_freezer, disk)) = Freezer::new("failed pool", &bed.scratch, SIZE) else { return };
    bed.run(&format!("pool create fast {}", disk.display()));
    bed.run("volume create db --pool fast --size 512MiB");
    // Writes fail without space for the file.
    let filler = disk.with_file_name("filler");
    for size in (10..=30).rev().map(|bits| 1_u64 << bits) {
        let part = format!("{}-{size}", filler.display());
        let _ =
            std::process::Command::new("fallocate").args(["-l", &size.to_string(), &part]).output();
    }
    let write = "--rw write --bs 64k --depth 4 --size 512MiB --ios 4000";
    let _ = Load::start(&bed.server.nvme_uri("db"), write).wait();
    let more = bed.device("more");
    let refused = bed.refused(&format!("pool grow fast {}", more.display()));
    assert!(refused.contains("pool reopen fast"), "{refused}");
    let recorded = std::fs::read_to_string(bed.scratch.join("state/pools.json")).unwrap();
    assert!(!recorded.contains("adding") && !recorded.contains("more"), "{recorded}");
    for entry in std::fs::read_dir(disk.parent().unwrap()).unwrap() {
        let path = entry.unwrap().path();
        if path.display().to_string().contains("filler") {
            std::fs::remove_file(path).unwrap();
        }
    }
    bed.run("pool reopen fast --force --yes");
    bed.run(&format!("pool grow fast {}", more.display()));
    assert!(bed.server.terminate().success());
    bed.server.restart();
    assert_eq!(bed.pool()["devices"].as_array().unwrap().len(), 2);
    assert!(bed.server.terminate().success());
}
