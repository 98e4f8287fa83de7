//! Volumes with a rate limit, and one with a disk model, measured by fio over NBD.
//!
//! The bounds apply to fio's own clock: a limited volume never exceeds its rate over the elapsed
//! time, on a machine of any speed. Simulated time tests that it reaches the rate, to 1 %.

use std::fs;
use std::process::{Command, Stdio};

use flagstone_tests::process::{descriptors, until};
use flagstone_tests::scratch::Scratch;
use flagstone_tests::server::Server;
use flagstone_tests::tools::{have, run, skip};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const VOLUMES: &str = r#"
[limit.machine]
iops = 600

[volume.iops]
limit = { iops = 2000 }
device = "memory:64MiB"

[volume.bytes]
limit = { read_throughput = "20MB/s", write_throughput = "10MB/s" }
device = "memory:64MiB"

[volume.mixed]
limit = { read_iops = 1000, write_iops = 3000, iops_mix = "shared" }
device = "memory:64MiB"

[volume.one]
shared_limit = "machine"
device = "memory:64MiB"

[volume.other]
limit = { iops = 10000 }
shared_limit = "machine"
device = "memory:64MiB"

[volume.emulated]
limit = { iops = 5000 }
disk_model = { latency = "4ms" }
device = "memory:64MiB"
"#;

/// Maximum lead of a limiter: its tolerance (5 ms), fio's rounding to milliseconds at both ends,
/// and one I/O.
const AHEAD_MS: f64 = 7.0;

fn can_run(test: &str) -> bool {
    if !have(test, &["fio"]) {
        return false;
    }
    let engines = run("fio", &["--enghelp"]);
    if !engines.lines().any(|engine| engine.trim() == "nbd") {
        skip(test, "this fio is built without its nbd engine");
        return false;
    }
    true
}

fn serve() -> (Server, Scratch) {
    let scratch = Scratch::new();
    let file = scratch.join("flagstone.toml");
    fs::write(&file, VOLUMES).expect("the configuration can be written");
    let file = file.to_str().expect("temporary paths are UTF-8").to_owned();
    (Server::start_with(&[], &["nbd://127.0.0.1:0"], &[&file]), scratch)
}

/// Results of a job in one direction.
#[derive(Debug)]
struct Did {
    ios: f64,
    bytes: f64,
    ms: f64,
}

/// Runs one fio with the given jobs, each with its own options. Returns the result of each job.
fn fio(scratch: &Scratch, jobs: &[&[&str]]) -> Vec<Value> {
    let folder = format!("--aux-path={}", scratch.path().display());
    let mut line = vec!["--output-format=json", "--ioengine=nbd", "--thread", &folder];
    line.extend(["--size=64m", "--time_based", "--runtime=2"]);
    for job in jobs {
        line.extend(job.iter().copied());
    }
    let text = run("fio", &line);
    let json = text.find('{').expect("fio prints JSON");
    let report: Value = serde_json::from_str(&text[json..]).expect("fio prints JSON");
    report["jobs"].as_array().expect("jobs are a list").clone()
}

fn did(job: &Value, direction: &str) -> Did {
    let of = &job[direction];
    let number = |key: &str| of[key].as_f64().unwrap_or_else(|| panic!("{key}: {job:#}"));
    Did { ios: number("total_ios"), bytes: number("io_bytes"), ms: number("runtime") }
}

#[test]
fn iops_and_throughput_never_exceed_the_limit() {
    if !can_run("fio on limited volumes") {
        return;
    }
    let (server, scratch) = serve();
    let (iops, bytes) = (server.nbd_uri("iops"), server.nbd_uri("bytes"));
    let iops = format!("--uri={iops}");
    let bytes = format!("--uri={bytes}");
    let jobs = fio(
        &scratch,
        &[
            &["--name=iops", &iops, "--rw=randread", "--bs=4k", "--iodepth=32"],
            &["--name=bytes", &bytes, "--rw=randrw", "--bs=64k", "--iodepth=16"],
        ],
    );
    let reads = did(&jobs[0], "read");
    assert!(reads.ios <= 2.0 * (reads.ms + AHEAD_MS) + 1.0, "{reads:?}");
    assert!(reads.ios > 200.0, "but a tenth of it at least: {reads:?}");
    for (direction, per_ms) in [("read", 20_000.0), ("write", 10_000.0)] {
        let moved = did(&jobs[1], direction);
        assert!(moved.bytes <= per_ms * (moved.ms + AHEAD_MS) + 65_536.0, "{direction} {moved:?}");
        assert!(moved.bytes > per_ms * 200.0, "{direction}, but a tenth: {moved:?}");
    }
}

#[test]
fn reads_and_writes_share_one_limit() {
    if !can_run("fio on a volume with a shared budget") {
        return;
    }
    let (server, scratch) = serve();
    let uri = format!("--uri={}", server.nbd_uri("mixed"));
    let mixed = ["--name=mixed", &uri, "--rw=randrw", "--rwmixread=40", "--bs=4k", "--iodepth=16"];
    let jobs = fio(&scratch, &[&mixed]);
    let (reads, writes) = (did(&jobs[0], "read"), did(&jobs[0], "write"));
    let ms = reads.ms.max(writes.ms);
    // Each read takes 1 ms of the budget, each write a third.
    let taken = reads.ios + writes.ios / 3.0;
    assert!(taken <= ms + AHEAD_MS + 1.0, "{reads:?} {writes:?}");
}

#[test]
fn connections_share_a_limit_fairly_at_any_depth() {
    if !can_run("fio on volumes that share a limit") {
        return;
    }
    let (server, scratch) = serve();
    let (one, other) = (server.nbd_uri("one"), server.nbd_uri("other"));
    let (one, other) = (format!("--uri={one}"), format!("--uri={other}"));
    let common = ["--rw=randwrite", "--bs=4k"];
    let deep = [&["--name=deep", &one, "--iodepth=64"][..], &common].concat();
    let shallow = [&["--name=shallow", &other, "--iodepth=2"][..], &common].concat();
    let jobs = fio(&scratch, &[&deep, &shallow]);
    let [deep, shallow] = [0, 1].map(|job| did(&jobs[job], "write"));
    let both = deep.ios + shallow.ios;
    // The jobs may begin at different times.
    let ms = deep.ms + shallow.ms;
    assert!(both <= 0.6 * (ms + AHEAD_MS) + 1.0, "{deep:?} {shallow:?}");
    // In order of arrival it would get 2 of 66.
    assert!(shallow.ios > both / 5.0, "{deep:?} {shallow:?}");
}

#[test]
fn limits_change_under_load() {
    if !can_run("fio while a limit is changed") {
        return;
    }
    let (server, scratch) = serve();
    let file = scratch.join("flagstone.toml");
    let uri = format!("--uri={}", server.nbd_uri("one"));
    let job = ["--name=one", &uri, "--rw=randread", "--bs=4k", "--iodepth=16"];
    let hang_up = || {
        let pid = i32::try_from(server.pid()).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("it runs"), Signal::HUP).expect("the signal can be sent");
    };
    let reported = |line: &str, times: usize| {
        let heard = || server.output().matches(line).count() >= times;
        until(&format!("the server says: {line}"), heard, || server.output());
    };
    // An invalid configuration changes nothing.
    fs::write(&file, VOLUMES.replace("iops = 600", "iops = 0")).expect("it can be written");
    hang_up();
    reported("nothing was changed", 1);
    let slow = did(&fio(&scratch, &[&job])[0], "read");
    assert!(slow.ios <= 0.6 * (slow.ms + AHEAD_MS) + 1.0, "{slow:?}");
    // A higher limit takes effect: the volume exceeds the old one.
    fs::write(&file, VOLUMES.replace("iops = 600", "iops = 6000")).expect("it can be written");
    hang_up();
    reported("reloaded the configuration and applied its limits", 1);
    let fast = did(&fio(&scratch, &[&job])[0], "read");
    assert!(fast.ios <= 6.0 * (fast.ms + AHEAD_MS) + 1.0, "{fast:?}");
    assert!(fast.ios > 0.6 * (fast.ms + AHEAD_MS) + 1.0, "{fast:?}");
}

#[test]
fn disk_model_has_its_latency_and_is_reported() {
    if !can_run("fio on an emulated disk") {
        return;
    }
    let (server, scratch) = serve();
    let output = server.output();
    assert!(
        output.contains("volume `emulated` emulates a disk: for labs and tests only"),
        "{output}"
    );
    let uri = format!("--uri={}", server.nbd_uri("emulated"));
    for depth in [1, 8] {
        let depth_option = format!("--iodepth={depth}");
        let jobs =
            fio(&scratch, &[&["--name=depth", &uri, "--rw=randread", "--bs=4k", &depth_option]]);
        let reads = did(&jobs[0], "read");
        // Little's law: `depth` in flight, 4 ms each.
        let most = f64::from(depth) * (reads.ms + 1.0) / 4.0;
        assert!(reads.ios <= most + f64::from(depth), "depth {depth}: {reads:?}");
        // The minimum is measured from before the send, so scheduling delays of fio cannot shorten
        // it.
        let least_ns = jobs[0]["read"]["lat_ns"]["min"].as_f64().expect("fio reports the latency");
        assert!(least_ns >= 3_900_000.0, "depth {depth}: {least_ns} ns");
    }
}

#[test]
fn server_stop_does_not_wait_for_rate_limits() {
    if !can_run("fio on a server that stops") {
        return;
    }
    let scratch = Scratch::new();
    let file = scratch.join("flagstone.toml");
    // The requests in flight would take hours.
    let text = "[volume.slow]\nlimit = { iops = 1, io_size = 512 }\ndevice = \"memory:64MiB\"\n";
    fs::write(&file, text).expect("it can be written");
    let file = file.to_str().expect("temporary paths are UTF-8").to_owned();
    let mut server = Server::start_with(&[], &["nbd://127.0.0.1:0"], &[&file]);
    let (uri, folder) = (server.nbd_uri("slow"), scratch.path().display().to_string());
    let idle = descriptors(server.pid());
    let fio = Command::new("fio")
        .args(["--name=slow", "--ioengine=nbd", "--thread", "--rw=write", "--bs=1m", "--size=32m"])
        .args(["--iodepth=32", &format!("--uri={uri}"), &format!("--aux-path={folder}")])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let mut fio = fio.expect("fio runs");
    until("fio is connected", || descriptors(server.pid()) > idle, || server.output());
    let status = server.terminate();
    assert!(status.success(), "{status}\n{}", server.output());
    fio.wait().expect("it ends with its connection");
}
