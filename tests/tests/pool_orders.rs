//! Orders on volumes of pools at bad moments: between two parts of a stream, with commands in
//! progress, and with two volumes of one name.

use std::fs::File;
use std::process::Command;

use flagstone_pool::PoolId;
use flagstone_pool::stream::frame::{FrameBody, StreamFrame, StreamStart, reseal};
use flagstone_tests::http::{Answer, ask, exchange, get, unix};
use flagstone_tests::load::Load;
use flagstone_tests::pools::Bed;
use flagstone_tests::process::until;
use flagstone_tests::server::binary;
use flagstone_tests::tools::{have, run};

const TOOLS: [&str; 1] = ["qemu-io"];

fn io(bed: &Bed, export: &str, command: &str) -> String {
    let uri = bed.server.nbd_uri(export);
    let printed = run("qemu-io", &["-f", "raw", "-c", command, &uri]);
    assert!(!printed.contains("failed"), "{export} {command}: {printed}");
    printed
}

/// The frames of a snapshot.
fn stream(bed: &Bed, line: &str) -> Vec<u8> {
    let file = bed.scratch.join("stream");
    let status = Command::new(binary())
        .args(["volume", "send"])
        .args(line.split(' '))
        .arg("--api")
        .arg(bed.server.api())
        .stdout(File::create(&file).unwrap())
        .status()
        .unwrap();
    assert!(status.success(), "{line}");
    std::fs::read(file).unwrap()
}

/// Length of the frames before the last `count`.
fn without_last(stream: &[u8], count: usize) -> usize {
    let (mut at, mut starts) = (0, Vec::new());
    while let Some((_, len)) = StreamFrame::decode(&stream[at..]).unwrap() {
        starts.push(at);
        at += len;
        if at == stream.len() {
            break;
        }
    }
    starts[starts.len() - count]
}

/// Posts frames.
fn post(bed: &Bed, query: &str, frames: &[u8]) -> Answer {
    let head = format!(
        "POST /v1/volumes/{query} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Type: \
         application/vnd.flagstone.stream\r\nContent-Length: {}\r\n\r\n",
        frames.len()
    );
    let request = [head.as_bytes(), frames].concat();
    let answer = exchange(unix(&bed.server.api()), &request);
    let text = String::from_utf8_lossy(&answer);
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head: head.to_owned(), body: body.to_owned() }
}

/// A volume `copy` that has the snapshot `a` of `db`, and the streams of `a` and of `b` since `a`.
fn with_copy() -> (Bed, Vec<u8>, Vec<u8>) {
    let (bed, _) = Bed::with_pool();
    bed.run("volume create db --pool fast --size 64MiB");
    io(&bed, "db", "write -P 1 0 64k");
    bed.run("snapshot create db@a");
    let whole = stream(&bed, "db@a");
    io(&bed, "db", "write -P 2 0 64k");
    io(&bed, "db", "write -P 2 8M 64k");
    bed.run("snapshot create db@b");
    let more = stream(&bed, "db@b --since db@a");
    let received = post(&bed, "copy/receive?pool=fast", &whole);
    assert_eq!(received.status, 200, "{received:?}");
    (bed, whole, more)
}

fn is_served(bed: &Bed, name: &str) -> bool {
    ask(&bed.server.api(), "GET", &format!("/v1/volumes/{name}")).status == 200
}

#[test]
fn earlier_stream_does_not_publish_half_of_a_later_one() {
    if !have("streams", &TOOLS) {
        return;
    }
    let (mut bed, whole, more) = with_copy();
    let cut = without_last(&more, 2);
    assert_eq!(post(&bed, "copy/receive", &more[..cut]).status, 200);
    for crash in [false, true] {
        if crash {
            bed.server.kill();
            bed.server.restart();
        }
        let again = post(&bed, "copy/receive", &whole);
        assert_eq!(again.status, 409, "{again:?}");
        assert!(again.body.contains("a part of a later one"), "{again:?}");
        assert!(!is_served(&bed, "copy"));
    }
    let received = post(&bed, "copy/receive", &more);
    assert_eq!(received.status, 200, "{received:?}");
    io(&bed, "copy", "read -P 2 0 64k");
    io(&bed, "copy", "read -P 2 8M 64k");
    let again = post(&bed, "copy/receive", &whole);
    assert_eq!(again.status, 200, "{again:?}");
}

#[test]
fn orders_wait_for_the_end_of_a_receive() {
    if !have("streams", &TOOLS) {
        return;
    }
    let (bed, _, more) = with_copy();
    let cut = without_last(&more, 2);
    assert_eq!(post(&bed, "copy/receive", &more[..cut]).status, 200);
    for order in [
        "volume rename copy other",
        "volume resize copy 128MiB",
        "volume set copy --limit iops=5",
        "volume promote copy",
        "snapshot create copy@half",
        "snapshot delete copy@a --yes",
    ] {
        let refused = bed.refused(order);
        assert!(refused.contains("was not received in full"), "{order}: {refused}");
    }
    // Complete volumes can be used.
    bed.run("volume clone copy@a view");
    io(&bed, "view", "read -P 1 0 64k");
    // The receive is not disturbed.
    let received = post(&bed, "copy/receive", &more[cut..]);
    assert_eq!(received.status, 200, "{received:?}");
    io(&bed, "copy", "read -P 2 0 64k");
    io(&bed, "copy", "read -P 2 8M 64k");
}

/// Snapshots that were taken together have one identifier, and are of different volumes.
#[test]
fn receive_tells_snapshots_taken_together_apart() {
    if !have("orders", &TOOLS) {
        return;
    }
    let (bed, _) = Bed::with_pool();
    for (volume, pattern) in [("db", 1), ("log", 2)] {
        bed.run(&format!("volume create {volume} --pool fast --size 64MiB"));
        io(&bed, volume, &format!("write -P {pattern} 0 64k"));
    }
    bed.run("snapshot create db@a log@a");
    io(&bed, "db", "write -P 3 1M 64k");
    io(&bed, "log", "write -P 4 1M 64k");
    bed.run("snapshot create db@b log@b");
    let [db, log] = ["db@a", "log@a"].map(|name| stream(&bed, name));
    assert_eq!(post(&bed, "copy/receive?pool=fast", &db).status, 200);
    assert_eq!(post(&bed, "copy/receive", &db).status, 200, "it is repeated");
    let refused = post(&bed, "copy/receive", &log);
    assert!(refused.status == 409 && refused.body.contains("another volume"), "{refused:?}");
    let [db, log] = ["db@b --since db@a", "log@b --since log@a"].map(|line| stream(&bed, line));
    let refused = post(&bed, "copy/receive", &log);
    assert!(refused.status == 409 && refused.body.contains("another volume"), "{refused:?}");
    bed.run("volume set copy --compression lz4");
    assert_eq!(post(&bed, "copy/receive", &log).status, 409, "the settings were replaced");
    assert_eq!(post(&bed, "copy/receive", &db).status, 200);
    io(&bed, "copy", "read -P 1 0 64k");
    io(&bed, "copy", "read -P 3 1M 64k");
}

#[test]
fn rollback_ends_a_receive() {
    if !have("streams", &TOOLS) {
        return;
    }
    let (bed, _, more) = with_copy();
    let cut = without_last(&more, 2);
    assert_eq!(post(&bed, "copy/receive", &more[..cut]).status, 200);
    let done = bed.run("snapshot rollback copy@a --yes");
    assert!(done.contains("gets the content of copy@a"), "{done}");
    let rest = post(&bed, "copy/receive", &more[cut..]);
    assert_eq!(rest.status, 409, "{rest:?}");
    io(&bed, "copy", "read -P 1 0 64k");
    io(&bed, "copy", "read -P 0 8M 64k");
    assert!(bed.run("snapshot list copy").contains("copy@a"));
    assert_eq!(ask(&bed.server.api(), "GET", "/v1/snapshots/copy@b").status, 404);
    let received = post(&bed, "copy/receive", &more);
    assert_eq!(received.status, 200, "{received:?}");
    io(&bed, "copy", "read -P 2 8M 64k");
}

#[test]
fn repeated_rollback_waits_for_old_writes() {
    if !have("a backlog", &TOOLS) {
        return;
    }
    let (bed, _) = Bed::with_pool();
    bed.run("volume create db --pool fast --size 64MiB");
    bed.run("snapshot create db@a");
    bed.run("volume set db --limit iops=8");
    let line = "--rw randwrite --bs 4k --depth 128 --ios 100000 --size 1MiB";
    let mut load = Load::start(&bed.server.nvme_uri("db"), line);
    let waiting = || {
        let volume = get(&bed.server.api(), "/v1/volumes/db").to_string();
        let counts = volume.split("\"waiting\":").skip(1);
        let count = |rest: &str| rest.split([',', '}']).next()?.parse::<u64>().ok();
        counts.filter_map(count).max().unwrap_or_default()
    };
    until("the limit holds commands back", || waiting() > 100, || waiting().to_string());
    let rollback = "snapshot rollback db@a --force --yes";
    let refused = bed.refused(rollback);
    load.kill();
    assert!(refused.contains("have not ended"), "{refused}");
    let status = bed.run("pool status fast");
    assert!(status.contains("have not ended"), "{status}");
    let done = bed.output(rollback);
    let ended = done.status.success();
    if ended {
        bed.run("volume set db --unset limit");
        io(&bed, "db", "read -P 0 0 1M");
    }
    let retired = || !bed.run("pool status fast").contains("have not ended");
    until("the commands of the old volume have ended", retired, String::new);
    if !ended {
        bed.run(rollback);
        bed.run("volume set db --unset limit");
    }
    io(&bed, "db", "read -P 0 0 1M");
}

#[test]
fn orders_do_not_reach_unserved_volume_of_same_name() {
    if !have("volumes", &TOOLS) {
        return;
    }
    let (mut bed, device) = Bed::with_pool();
    bed.run("volume create db --pool fast --size 64MiB");
    bed.run("snapshot create db@old");
    // Pool `fast` goes away, and comes back when another pool serves a volume of this name.
    assert!(bed.server.terminate().success());
    let recorded = bed.scratch.join("state/pools.json");
    std::fs::write(recorded, r#"{"version": 1, "pools": []}"#).unwrap();
    bed.server.restart();
    bed.run(&format!("pool create slow {}", bed.device("other").display()));
    bed.run("volume create db --pool slow --size 64MiB");
    io(&bed, "db", "write -P 7 0 64k");
    let imported = bed.run(&format!("pool import fast {}", device.display()));
    assert!(imported.contains("not served: db"), "{imported}");
    for order in [
        "snapshot create db@before",
        "snapshot rollback db@old --yes",
        "volume resize db 128MiB",
        "volume set db --limit iops=5",
        "volume rename db x",
        "volume delete db --yes",
    ] {
        let refused = bed.refused(order);
        let names = ["fast", "slow", "--pool"].iter().all(|part| refused.contains(part));
        assert!(names, "{order}: {refused}");
    }
    assert!(bed.refused("volume delete db --pool none --yes").contains("no pool `none`"));
    let renamed = bed.run("volume rename db twin --pool fast");
    assert!(renamed.contains("renamed to twin"), "{renamed}");
    let refused = bed.refused("volume rename none db --pool fast");
    assert!(refused.contains("none"), "another pool's volume is not the result: {refused}");
    io(&bed, "db", "read -P 7 0 64k");
    io(&bed, "twin", "read -P 0 0 64k");
    bed.run("snapshot create db@before");
    let snapshot = get(&bed.server.api(), "/v1/snapshots/db@before");
    assert_eq!(snapshot["pool"], "slow", "{snapshot:#}");
}

/// The frames of a stream of a snapshot.
fn frames(name: &str, size_bytes: u64, bodies: &[(u64, FrameBody<'_>)]) -> Vec<u8> {
    let start = StreamStart { name: name.to_owned(), base: None, size_bytes, created_s: 0 };
    let mut stream = Vec::new();
    for (offset, body) in [(0, FrameBody::Begin(start))].iter().chain(bodies) {
        let frame = StreamFrame {
            snapshot: PoolId([7; 16]),
            source: 1,
            offset: *offset,
            body: body.clone(),
        };
        frame.encode(&mut stream);
    }
    stream
}

#[test]
fn hostile_streams_leave_nothing_undeletable_or_slow() {
    let (bed, _) = Bed::with_pool();
    for name in ["a b", "x/y", "\u{1b}]0;title"] {
        let stream = frames(name, 4096, &[(0, FrameBody::Zero(4096)), (4096, FrameBody::End)]);
        let refused = post(&bed, "bad/receive?pool=fast", &stream);
        assert_eq!(refused.status, 422, "{name:?}: {refused:?}");
        assert!(!refused.body.contains('\u{1b}'), "{refused:?}");
    }
    assert!(bed.run("snapshot list").contains("no snapshots"));
    // The largest volume, most of it zeroes: nothing is written. Again, after a cut.
    let size = 1 << 54;
    let data = [5; 4096];
    let cut = frames("a", size, &[(0, FrameBody::Data(&data))]);
    assert_eq!(post(&bed, "large/receive?pool=fast", &cut).status, 200);
    // The stream of another snapshot, of another size, or with a gap does not continue it.
    let refused = |stream: &[u8], part: &str| {
        let refused = post(&bed, "large/receive", stream);
        assert!(refused.status == 409 && refused.body.contains(part), "{part}: {refused:?}");
    };
    for at in [32, 48] {
        let mut other = cut.clone();
        other[at] ^= 1;
        reseal(&mut other);
        refused(&other, "a part of another stream");
    }
    refused(&frames("a", size - 4096, &[]), "is not the stream");
    refused(&frames("a", size, &[(8192, FrameBody::Zero(4096))]), "for 8192");
    let bodies =
        [(0, FrameBody::Zero(4096)), (4096, FrameBody::Zero(size - 4096)), (size, FrameBody::End)];
    let checkpoints = || bed.pool()["checkpoints"].as_u64().unwrap();
    let before = checkpoints();
    let received = post(&bed, "large/receive", &frames("a", size, &bodies));
    assert_eq!(received.status, 200, "{received:?}");
    assert!(checkpoints() - before < 10, "{before} to {}", checkpoints());
    if have("volumes", &TOOLS) {
        // What it had was skipped.
        io(&bed, "large", "read -P 5 0 4k");
        io(&bed, "large", "read -P 0 4k 60k");
    }
    bed.run("snapshot delete large@a --yes");
    bed.run("volume delete large --yes");
}

#[test]
fn streams_follow_changes_of_their_volume_only() {
    if !have("streams", &TOOLS) {
        return;
    }
    let (bed, _, more) = with_copy();
    bed.run("volume create busy --pool fast --size 64MiB");
    let line = "--rw randwrite --bs 4k --depth 8 --ios 100000000 --size 8MiB";
    let mut load = Load::start(&bed.server.nvme_uri("busy"), line);
    let is_attached = || !bed.output("volume delete busy --yes --dry-run").status.success();
    until("the other volume is busy", is_attached, String::new);
    let received = post(&bed, "copy/receive", &more);
    load.kill();
    assert_eq!(received.status, 200, "{received:?}");
    io(&bed, "copy", "read -P 2 8M 64k");
}

#[test]
fn devices_that_do_not_answer_hold_up_their_pools_only() {
    let mut bed = Bed::start();
    let devices = [0, 1, 2, 3].map(|number| bed.device(&format!("held{number}")));
    for (number, device) in devices.iter().enumerate() {
        bed.run(&format!("pool create a{number} {}", device.display()));
    }
    bed.run(&format!("pool create slow {}", bed.device("other").display()));
    bed.run("volume create db --pool slow --size 64MiB");
    assert!(bed.server.terminate().success());
    // The server waits 5 s for the lock of another program, as it would for a slow disk.
    let hold = |device: &std::path::PathBuf| {
        let held = File::options().read(true).write(true).open(device).unwrap();
        held.lock().unwrap();
        held
    };
    let held = devices.each_ref().map(hold);
    bed.server.restart();
    assert!(is_served(&bed, "db"));
    bed.run("volume resize db 128MiB");
    assert_eq!(get(&bed.server.api(), "/v1/pools/a0")["state"], "closed");
    drop(held);
    let is_open = || get(&bed.server.api(), "/v1/pools/a3")["state"] == "open";
    until("the pools are open", is_open, String::new);
    assert!(bed.server.terminate().success());
}

#[test]
fn old_copy_and_other_pool_need_an_import() {
    if !have("volumes", &TOOLS) {
        return;
    }
    let (mut bed, device) = Bed::with_pool();
    let (mut elsewhere, other) = Bed::with_pool();
    assert!(elsewhere.server.terminate().success());
    bed.run("volume create db --pool fast --size 64MiB");
    io(&bed, "db", "write -P 1 0 64k");
    assert!(bed.server.terminate().success());
    let [old, current, blank] = ["old", "current", "blank"].map(|name| bed.scratch.join(name));
    std::fs::copy(&device, &old).unwrap();
    File::create(&blank).unwrap().set_len(1 << 30).unwrap();
    let import = format!("pool import fast {}", device.display());
    // After an opening that ends in a crash, and after a clean one.
    for crash in [true, false] {
        bed.server.restart();
        io(&bed, "db", "write -P 2 0 64k");
        if crash {
            bed.server.kill();
        } else {
            assert!(bed.server.terminate().success());
        }
        std::fs::copy(&device, &current).unwrap();
        let wrong = [
            (&old, "is an old copy", true),
            (&other, "which was open last", true),
            (&blank, "but was one", false),
        ];
        for (wrong, part, has_order) in wrong {
            std::fs::copy(wrong, &device).unwrap();
            bed.server.restart();
            let pool = bed.pool();
            assert_eq!(pool["state"], "closed", "{pool:#}");
            let reason = pool["reason"].as_str().unwrap();
            assert!(reason.contains(part) && reason.contains("disk"), "{reason}");
            assert!(reason.contains(&import) == has_order, "{reason}");
            assert!(pool["next"].as_str().unwrap().contains("pool import fast"), "{pool:#}");
            let create = format!("pool create fast {}", device.display());
            assert!(bed.refused(&create).contains("exists already"));
            assert!(bed.refused("pool reopen fast").contains(part));
            assert!(bed.server.terminate().success());
            let same = std::fs::read(wrong).unwrap() == std::fs::read(&device).unwrap();
            assert!(same, "nothing was written");
        }
        std::fs::copy(&current, &device).unwrap();
    }
    bed.server.restart();
    io(&bed, "db", "read -P 2 0 64k");
    assert!(bed.server.terminate().success());
    // The import of what lacks writes needs the consent.
    for (wrong, loss) in [(&other, "another pool of its name"), (&old, "since update")] {
        std::fs::copy(wrong, &device).unwrap();
        bed.server.restart();
        let shown = bed.run(&format!("{import} --dry-run"));
        assert!(shown.contains("data loss: ") && shown.contains(loss), "{shown}");
        let refused = bed.refused(&import);
        assert!(refused.contains("--yes"), "{refused}");
        let body = format!("{{\"devices\":[\"{}\"]}}", device.display());
        let request = format!(
            "POST /v1/pools/fast/import HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        let answer = exchange(unix(&bed.server.api()), request.as_bytes());
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with("HTTP/1.1 409"), "{answer}");
        assert_eq!(bed.pool()["state"], "closed");
        assert!(bed.server.terminate().success());
        assert!(std::fs::read(wrong).unwrap() == std::fs::read(&device).unwrap());
    }
    bed.server.restart();
    bed.run(&format!("{import} --yes"));
    io(&bed, "db", "read -P 1 0 64k");
    bed.server.kill();
    bed.server.restart();
    io(&bed, "db", "read -P 1 0 64k");
}

#[test]
fn restored_or_lost_state_directory_opens_pools() {
    let (mut bed, device) = Bed::with_pool();
    bed.run("volume create db --pool fast --size 64MiB");
    let recorded = bed.scratch.join("state/pools.json");
    let former = std::fs::read(&recorded).unwrap();
    for _ in 0..2 {
        assert!(bed.server.terminate().success());
        bed.server.restart();
    }
    assert!(bed.server.terminate().success());
    assert_ne!(std::fs::read(&recorded).unwrap(), former);
    // An older record fits a newer pool.
    std::fs::write(&recorded, &former).unwrap();
    bed.server.restart();
    assert!(is_served(&bed, "db"));
    assert!(bed.server.terminate().success());
    std::fs::remove_file(&recorded).unwrap();
    bed.server.restart();
    assert!(!is_served(&bed, "db"));
    bed.run(&format!("pool import fast {}", device.display()));
    assert!(is_served(&bed, "db"));
    // A directory that cannot be written keeps nothing from being served.
    assert!(bed.server.terminate().success());
    let new = bed.scratch.join("state/pools.json.new");
    std::fs::create_dir(&new).unwrap();
    bed.server.restart();
    assert!(is_served(&bed, "db"));
    assert!(bed.server.terminate().success());
}

#[test]
fn pool_moves_to_another_machine_and_back() {
    let (mut one, device) = Bed::with_pool();
    one.run("volume create db --pool fast --size 64MiB");
    assert!(one.server.terminate().success());
    let mut two = Bed::start();
    let import = format!("pool import fast {}", device.display());
    let wrong = format!("pool import slow {} --dry-run", device.display());
    assert!(two.refused(&wrong).contains("pool fast, not slow"));
    let shown = two.run(&format!("{import} --dry-run"));
    assert!(!shown.contains("data loss"), "{shown}");
    two.run(&import);
    assert!(is_served(&two, "db"));
    assert!(two.server.terminate().success());
    one.server.restart();
    assert!(is_served(&one, "db"), "a newer pool is no old copy");
    assert!(one.server.terminate().success());
    two.server.restart();
    assert!(is_served(&two, "db"));
    assert!(two.server.terminate().success());
}
