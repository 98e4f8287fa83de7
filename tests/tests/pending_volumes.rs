//! Volumes stored on another server that is not reachable when theirs starts: they appear when it
//! does, and nothing else waits for them.
#![allow(clippy::disallowed_methods, reason = "the program connects to a real listener")]

use std::fs;
use std::io::Read as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use flagstone_tests::http::{ask, get};
use flagstone_tests::load::Load;
use flagstone_tests::process::until;
use flagstone_tests::scratch::Scratch;
use flagstone_tests::server::{NQN_PREFIX, Server, binary};
use serde_json::Value;

const LISTENERS: [&str; 2] = ["nvme-tcp://127.0.0.1:0", "nbd://127.0.0.1:0"];

const VERIFIED: &str = "--rw randwrite --bs 4k --depth 8 --ios 2000 --verify --size 8MiB";

/// Stopped server of the volumes `db` and `log`, whose ports are known.
fn gone() -> (Server, Scratch) {
    let scratch = Scratch::new();
    let volume = |name: &str| format!("{name}={}", scratch.disk(name, 16 << 20).display());
    let mut server = Server::start(&[&volume("db"), &volume("log")]);
    server.kill();
    (server, scratch)
}

/// Starts a server with a configuration.
fn serve(scratch: &Scratch, text: &str) -> Server {
    let file = scratch.join("flagstone.toml");
    fs::write(&file, text).expect("the configuration can be written");
    let file = file.to_str().expect("temporary paths are UTF-8");
    Server::start_with(&[], &LISTENERS, &[file])
}

fn pending(api: &Path, volume: &str) -> Value {
    get(api, &format!("/v1/volumes/{volume}"))["pending"].clone()
}

/// Value of a volume's metric.
fn metric(api: &Path, family: &str, volume: &str) -> u64 {
    let metrics = ask(api, "GET", "/metrics").body;
    let sample = format!("{family}{{volume=\"{volume}\"}} ");
    let value = metrics.lines().find_map(|line| line.strip_prefix(&sample)?.parse().ok());
    value.unwrap_or_else(|| panic!("no {sample} in:\n{metrics}"))
}

fn wait_until_served(server: &Server, volume: &str) {
    let api = server.api();
    let served = || pending(&api, volume).is_null();
    until(&format!("{volume} is served"), served, || server.output());
}

fn status(server: &Server, arguments: &[&str]) -> String {
    let mut command = Command::new(binary());
    command.arg("status").args(arguments).arg("--api").arg(server.api()).stdin(Stdio::null());
    let output = command.output().expect("flagstone runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Reason why a host cannot use a target.
fn refusal(target: &str) -> String {
    let ended = Load::start(target, "--rw randread --ios 1").wait();
    assert_eq!(ended.code, Some(1), "{}", ended.log);
    ended.log
}

#[test]
fn volume_appears_with_its_backing_server() {
    let (mut far, _disks) = gone();
    let scratch = Scratch::new();
    let text = format!(
        "[volume.own]\ndevice = {:?}\n[volume.nvme]\nlimit.iops = 100000\ndevice = \"{}\"\n\
         [volume.nbd]\ndevice = \"{}\"\n",
        scratch.disk("own", 16 << 20),
        far.nvme_uri("db"),
        far.nbd_uri("log"),
    );
    // Without the wait, the server does not start to serve.
    let server = serve(&scratch, &text);
    let api = server.api();
    for target in [server.nvme_uri("own"), server.nbd_uri("own")] {
        Load::start(&target, VERIFIED).wait().assert_complete();
    }
    for (name, device) in [("nvme", far.nvme_uri("db")), ("nbd", far.nbd_uri("log"))] {
        let wait = pending(&api, name);
        let reason = wait["reason"].as_str().expect("it waits");
        assert!(reason.contains(name) && reason.contains(&device), "{reason}");
        assert!(wait["attempts"].as_u64() > Some(0), "{wait}");
        assert_eq!(metric(&api, "flagstone_volume_pending", name), 1);
        assert!(metric(&api, "flagstone_volume_open_failures_total", name) > 0);
        assert!(status(&server, &[]).contains(&format!("{name} is not served yet")));
        assert!(status(&server, &[name]).contains(&format!("volume {name}: not served yet")));
        // The host gets a retryable error.
        let said = refusal(&server.nvme_uri(name));
        assert!(said.contains("Connect Controller Busy"), "{said}");
        let said = refusal(&server.nbd_uri(name));
        assert!(said.contains("not available yet"), "{said}");
    }
    assert!(pending(&api, "own").is_null());
    assert_eq!(metric(&api, "flagstone_volume_pending", "own"), 0);
    assert!(server.output().contains("this is retried"), "{}", server.output());

    far.restart();
    for name in ["nvme", "nbd"] {
        wait_until_served(&server, name);
        assert_eq!(metric(&api, "flagstone_volume_pending", name), 0);
        for target in [server.nvme_uri(name), server.nbd_uri(name)] {
            Load::start(&target, VERIFIED).wait().assert_complete();
        }
        let volume = get(&api, &format!("/v1/volumes/{name}"));
        assert_eq!(volume["size_bytes"], 16 << 20, "{volume:#}");
        // Counted from the first call, and within its limit.
        assert!(volume["io"]["write"]["count"].as_u64() >= Some(2000), "{volume:#}");
    }
    let limits = &get(&api, "/v1/volumes/nvme")["limits"];
    assert!(limits[0]["immediate"].as_u64() > Some(0), "{limits:#}");
    assert!(status(&server, &["nvme"]).contains("16 MiB"), "{}", status(&server, &["nvme"]));
}

#[test]
fn chained_servers_come_up_in_order() {
    let (mut last, _disks) = gone();
    let middle = Server::start(&[&format!("db={}", last.nvme_uri("db"))]);
    // It is reachable, but refuses hosts for now. An export without a name is its only one.
    let nameless = middle.nbd_uri("");
    let firsts = [
        (middle.nvme_uri("db"), "Controller Busy"),
        (middle.nbd_uri("db"), "`db` is not available yet"),
        (nameless, "`` is not available yet"),
    ];
    let firsts = firsts.map(|(device, expected)| {
        let first = Server::start(&[&format!("db={device}")]);
        let reason = pending(&first.api(), "db");
        assert!(reason["reason"].as_str().unwrap().contains(expected), "{reason}");
        first
    });
    last.restart();
    for first in firsts {
        wait_until_served(&first, "db");
        Load::start(&first.nvme_uri("db"), VERIFIED).wait().assert_complete();
    }
}

#[test]
fn subsystem_shows_its_available_volumes() {
    let (mut far, _disks) = gone();
    let scratch = Scratch::new();
    let text = format!(
        "[subsystem.all]\nnamespaces = [\"far\", \"own\"]\n\
         [volume.far]\ndevice = \"{}\"\n[volume.own]\ndevice = \"memory:16MiB\"\n",
        far.nvme_uri("db"),
    );
    let server = serve(&scratch, &text);
    let namespace = |nsid: u32| format!("{}?nsid={nsid}", server.nvme_uri("all"));
    Load::start(&namespace(2), VERIFIED).wait().assert_complete();
    // It is there, so that hosts keep its disk, and its size is unknown.
    let said = refusal(&namespace(1));
    assert!(said.contains("Namespace Not Ready"), "{said}");
    far.restart();
    wait_until_served(&server, "far");
    Load::start(&namespace(1), VERIFIED).wait().assert_complete();
    Load::start(&namespace(2), VERIFIED).wait().assert_complete();
}

#[test]
fn pending_server_stops_on_request() {
    let (far, _disks) = gone();
    let volumes = [format!("db={}", far.nvme_uri("db")), format!("log={}", far.nbd_uri("log"))];
    let mut server = Server::start(&volumes.each_ref().map(String::as_str));
    let status = server.terminate();
    assert_eq!(status.code(), Some(0), "{status}\n{}", server.output());
}

/// Starts a server with these arguments, and stops it when `wait` has returned.
fn stop_during_start(arguments: &[&str], wait: impl FnOnce(Pid)) {
    let mut server = Command::new(binary())
        .arg("serve")
        .args(arguments)
        .args(["--listen", "nbd://127.0.0.1:0", "--api", "none"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("flagstone runs");
    let pid = Pid::from_child(&server);
    wait(pid);
    kill_process(pid, Signal::TERM).expect("it runs");
    let mut printed = String::new();
    let mut out = server.stdout.take().expect("a pipe");
    out.read_to_string(&mut printed).expect("the output is text");
    assert_eq!(server.wait().expect("it ends").code(), Some(0));
    assert_eq!(printed, "", "it began to serve anyway");
}

#[test]
fn server_stops_while_opening_its_volumes() {
    // Clients that connect to it wait for an answer.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = silent.local_addr().expect("bound");
    let volume = format!("db=nvme-tcp://{address}/{NQN_PREFIX}db");
    let mut held = None;
    stop_during_start(&["--volume", &volume], |_| {
        held = Some(silent.accept().expect("it connects"));
    });
}

/// A server that was told to stop while it opened its pools listened for a moment, without their
/// volumes. A host that connected then was told that its volume does not exist, and gave it up.
#[test]
fn server_stops_while_opening_its_pools() {
    let scratch = Scratch::new();
    // Opening it waits for a writer.
    let pipe = scratch.join("pipe");
    let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR);
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, mode, 0).expect("a pipe");
    let pool = format!(r#"{{"name":"fast","devices":[{pipe:?}]}}"#);
    let recorded = format!(r#"{{"version":1,"pools":[{pool}]}}"#);
    fs::write(scratch.join("pools.json"), recorded).expect("the state can be written");
    let state = scratch.join("");
    let state = state.to_str().expect("temporary paths are UTF-8");
    stop_during_start(&["--state", state], |pid| {
        let threads = format!("/proc/{}/task", pid.as_raw_nonzero());
        let is_open = |thread: &fs::DirEntry| {
            fs::read_to_string(thread.path().join("comm")).is_ok_and(|name| name == "open\n")
        };
        let opens = || fs::read_dir(&threads).unwrap().flatten().any(|thread| is_open(&thread));
        until("it opens the pool", opens, String::new);
    });
}

#[test]
fn configuration_error_fails_the_start() {
    let (mut far, disks) = gone();
    far.restart();
    let scratch = Scratch::new();
    let missing = scratch.join("missing");
    let nowhere = format!("nvme-tcp://127.0.0.1:1/{NQN_PREFIX}db");
    let (unknown, known) = (far.nvme_uri("dbx"), far.nvme_uri("db"));
    let no_export = far.nbd_uri("dbx");
    let cases = [
        (format!("device = \"{unknown}\""), "no subsystem of this NQN"),
        (format!("device = \"{known}?nsid=7\""), "no such namespace"),
        (format!("device = \"{no_export}\""), "has no export"),
        (format!("block_size = 512\ndevice = \"{known}\""), "cannot have block_size = 512"),
        (format!("device = {missing:?}"), "missing"),
        // Also behind an unreachable device.
        (format!("stripe.devices = [\"{nowhere}x\", {missing:?}]"), "missing"),
    ];
    for (table, expected) in cases {
        let file = scratch.join("wrong.toml");
        let text = format!(
            "[server]\nlisten = [\"nbd://127.0.0.1:0\"]\napi = \"none\"\n\
             [volume.far]\ndevice = \"{nowhere}\"\n[volume.wrong]\n{table}\n"
        );
        fs::write(&file, text).expect("the configuration can be written");
        let output = Command::new(binary())
            .arg("serve")
            .arg(&file)
            .stdin(Stdio::null())
            .output()
            .expect("flagstone runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{table}\n{said}");
        let error = said.lines().find(|line| line.contains("error:")).unwrap_or_default();
        assert!(error.contains("`wrong`") && error.contains(expected), "{table}\n{said}");
    }
    let logged = "NVMe/TCP Connect refused: Connect Invalid Parameters (subsystem name)";
    assert_eq!(far.output().matches(logged).count(), 1, "{}", far.output());
    drop(disks);
}
