//! Mirrored volume with one node whose data or log is on another server. Without that server, the
//! node waits and does not serve. Afterwards it returns in the state that it has by then.
#![allow(clippy::disallowed_methods, reason = "the program connects to a real listener")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use flagstone_lab::ports::free_ports;
use flagstone_tests::http::{ask, get};
use flagstone_tests::load::Load;
use flagstone_tests::process::until;
use flagstone_tests::scratch::Scratch;
use flagstone_tests::server::{Server, binary};

const SIZE_BYTES: u64 = 32 << 20;

/// A node of the mirrored volume `db`.
fn node(scratch: &Scratch, name: &str, ports: (u16, u16), device: &str) -> Server {
    let log = scratch.join(&format!("{name}.intent"));
    node_with_log(scratch, name, ports, device, log.to_str().expect("UTF-8"))
}

/// A node that acknowledges from memory: its device holds unflushed writes.
fn node_with_cache(scratch: &Scratch, name: &str, ports: (u16, u16), device: &str) -> Server {
    let log = scratch.join(&format!("{name}.intent"));
    let file = configure(scratch, name, ports.1, device, log.to_str().expect("UTF-8"));
    let text = fs::read_to_string(&file).expect("the configuration can be read");
    fs::write(&file, text.replace("mirror = { ", "mirror = { ack = \"memory\", "))
        .expect("the configuration can be written");
    start(ports.0, &file)
}

/// A node with its log on a separate device.
fn node_with_log(
    scratch: &Scratch,
    name: &str,
    ports: (u16, u16),
    device: &str,
    log: &str,
) -> Server {
    start(ports.0, &configure(scratch, name, ports.1, device, log))
}

fn start(port: u16, file: &Path) -> Server {
    let file = file.to_str().expect("temporary paths are UTF-8");
    Server::start_with(&[], &[&format!("nvme-tcp://127.0.0.1:{port}")], &[file])
}

/// Writes a node's configuration, for the next start of its server.
fn configure(scratch: &Scratch, name: &str, peer_port: u16, device: &str, log: &str) -> PathBuf {
    let peer = if name == "a" { "b" } else { "a" };
    let text = format!(
        "[server]\nnode = \"{name}\"\n[peer.{peer}]\naddress = \"127.0.0.1:{peer_port}\"\n\
         timeout = \"1s\"\n[volume.db]\nmirror = {{ peer = \"{peer}\", intent_log = {log:?} }}\n\
         device = \"{device}\"\n[volume.other]\ndevice = \"memory:16MiB\"\n"
    );
    let file = scratch.join(&format!("{name}.toml"));
    fs::write(&file, text).expect("the configuration can be written");
    file
}

/// Runs `flagstone mirror ACTION db` on a node. Returns success and output.
fn mirror(node: &Server, line: &str) -> (bool, String) {
    let mut words = line.split_whitespace();
    let output = Command::new(binary())
        .args(["mirror", words.next().expect("an action"), "db", "--api"])
        .arg(node.api())
        .args(words)
        .output()
        .expect("flagstone runs");
    let said =
        [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
    (output.status.success(), said.concat())
}

fn order(node: &Server, line: &str) {
    let (done, said) = mirror(node, line);
    assert!(done, "mirror {line}: {said}\n{}", node.output());
}

fn state(node: &Server) -> serde_json::Value {
    get(&node.api(), "/v1/volumes/db")["mirror"]["state"].clone()
}

fn wait_for(node: &Server, wanted: &str) {
    let is = || state(node) == wanted;
    until(&format!("the mirror is {wanted}"), is, || node.output());
}

fn write(node: &Server, scratch: &Scratch, state: &str, offset: &str) {
    let line = format!("--rw randwrite --depth 8 --ios 1000 --size 8MiB --offset {offset}");
    let load = Load::start_verified(&node.nvme_uri("db"), &line, &scratch.join(state));
    load.wait().assert_complete();
}

/// Checks that the node serves every write recorded in a state file.
fn read_back(node: &Server, scratch: &Scratch, state: &str) {
    let line = "--rw randread --depth 4 --bs 64k --after-crash client";
    let ended = Load::start_verified(&node.nvme_uri("db"), line, &scratch.join(state)).wait();
    assert_eq!(ended.code, Some(0), "{}\n{:#}", ended.log, ended.results);
    assert_eq!(ended.results["verify"]["violations"], 0, "{:#}", ended.results);
}

/// Waits until a node's reason for not serving the volume contains `words`.
fn wait_for_reason(node: &Server, words: &str) {
    let reason = || get(&node.api(), "/v1/volumes/db")["pending"]["reason"].clone();
    let is = || reason().as_str().is_some_and(|reason| reason.contains(words));
    until(&format!("it waits for {words}"), is, || node.output());
}

/// A mirrored volume with some writes: the server that stores node A's data, and both nodes.
fn mirror_on_another_server(scratch: &Scratch) -> (Server, Server, Server) {
    let volume = format!("leg={}", scratch.disk("far", SIZE_BYTES).display());
    let far = Server::start(&[&volume]);
    let [one, two] = free_ports().expect("ports are free");
    let a = node(scratch, "a", (one, two), &far.nvme_uri("leg"));
    let disk = scratch.disk("near", SIZE_BYTES);
    let b = node(scratch, "b", (two, one), disk.to_str().expect("UTF-8"));
    order(&a, "create --source");
    order(&b, "create --target");
    wait_for(&a, "mirroring");
    write(&a, scratch, "first", "0");
    (far, a, b)
}

#[test]
fn node_without_device_waits_and_returns_as_target() {
    let scratch = Scratch::new();
    let (mut far, mut a, b) = mirror_on_another_server(&scratch);
    a.kill();
    far.kill();
    a.restart();
    // It serves the other volume, and reports the cause of the wait.
    Load::start(&a.nvme_uri("other"), "--rw randwrite --ios 100").wait().assert_complete();
    assert_eq!(get(&a.api(), "/v1/volumes/db")["mirror"], serde_json::Value::Null);
    let (done, said) = mirror(&a, "status");
    assert!(!done && said.contains("its device is not open"), "{said}");
    let refused = ask(&a.api(), "POST", "/v1/volumes/db/mirror/failover");
    assert!(refused.head.contains("409"), "{refused:?}");

    order(&b, "failover --force --yes");
    read_back(&b, &scratch, "first");
    write(&b, &scratch, "second", "16MiB");

    // It does not resume its former role.
    far.restart();
    wait_for(&b, "mirroring");
    let replica = &get(&a.api(), "/v1/volumes/db")["mirror"]["replica"];
    assert_eq!((&replica["role"], &replica["serving"]), (&"target".into(), &false.into()));
    order(&a, "switchover");
    for state in ["first", "second"] {
        read_back(&a, &scratch, state);
    }
    let status = a.terminate();
    assert_eq!(status.code(), Some(0), "{status}\n{}", a.output());
}

/// An unreachable log is waited for, and is unchanged when it returns. A blank log counts as lost,
/// and the resync compares everything.
#[test]
fn node_without_its_intent_log_waits() {
    let scratch = Scratch::new();
    let disk = scratch.disk("log", 1 << 20);
    let mut far = Server::start(&[&format!("log={}", disk.display())]);
    let [one, two] = free_ports().expect("ports are free");
    let [near_a, near_b] = ["near-a", "near-b"].map(|name| scratch.disk(name, SIZE_BYTES));
    let log = far.nbd_uri("log");
    let near_a = near_a.to_str().expect("UTF-8");
    let mut a = node_with_log(&scratch, "a", (one, two), near_a, &log);
    let b = node(&scratch, "b", (two, one), near_b.to_str().expect("UTF-8"));
    order(&a, "create --source");
    order(&b, "create --target");
    wait_for(&a, "mirroring");
    write(&a, &scratch, "first", "0");

    let lost = "the log of volume `db` was lost";
    for empty in [false, true] {
        a.kill();
        far.kill();
        if empty {
            let file = fs::OpenOptions::new().write(true).open(&disk).expect("the log's disk");
            file.set_len(0).and_then(|()| file.set_len(1 << 20)).expect("it is a file");
        }
        a.restart();
        Load::start(&a.nvme_uri("other"), "--rw randwrite --ios 100").wait().assert_complete();
        wait_for_reason(&a, "the write-intent log");
        wait_for_reason(&a, &log);
        let (done, said) = mirror(&a, "status");
        assert!(!done && said.contains("the write-intent log"), "{said}");
        assert!(!a.output().contains(lost), "{}", a.output());
        far.restart();
        // The target of a crashed source serves, because it may have the writes that were in
        // flight.
        wait_for(&b, "mirroring");
        order(&a, "switchover");
        wait_for(&a, "mirroring");
        read_back(&a, &scratch, "first");
    }
    assert!(a.output().contains(lost), "{}", a.output());
}

/// A mistyped log device that has other content: nothing is written to it. The volume starts once
/// the name is corrected, or once the content is wiped on purpose.
#[test]
fn mistyped_intent_log_device_is_not_overwritten() {
    let scratch = Scratch::new();
    let [one, two] = free_ports().expect("ports are free");
    let [near_a, near_b] = ["near-a", "near-b"].map(|name| scratch.disk(name, SIZE_BYTES));
    let [near_a, near_b] = [&near_a, &near_b].map(|path| path.to_str().expect("UTF-8"));
    let mut a = node(&scratch, "a", (one, two), near_a);
    let b = node(&scratch, "b", (two, one), near_b);
    order(&a, "create --source");
    order(&b, "create --target");
    wait_for(&a, "mirroring");
    write(&a, &scratch, "first", "0");

    // Minimal signature of an ext2 file system: the magic number and an inode count.
    let disk = scratch.disk("precious", 4 << 20);
    let mut precious = vec![0; 4 << 20];
    (precious[1024], precious[1080], precious[1081]) = (8, 0x53, 0xef);
    fs::write(&disk, &precious).expect("it can be written");
    let disk = disk.to_str().expect("UTF-8");
    let [own, wrong] = [scratch.join("a.intent").display().to_string(), disk.to_owned()];
    a.kill();
    configure(&scratch, "a", two, near_a, &wrong);
    a.restart();
    Load::start(&a.nvme_uri("other"), "--rw randwrite --ios 100").wait().assert_complete();
    wait_for(&a, "not-found");
    let (_, said) = mirror(&a, "status");
    // The message is wrapped to the width of the terminal.
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in
        [disk, "no write-intent log", "ext2 at byte 1080", "remove it", "restart the server"]
    {
        assert!(said.contains(part), "no `{part}`: {said}");
    }
    assert!(a.output().contains("ext2 at byte 1080"), "{}", a.output());
    assert!(fs::read(disk).expect("it exists") == precious, "it was written to");

    let lost = "the log of volume `db` was lost";
    for (log, is_lost) in [(&own, false), (&wrong, true)] {
        a.kill();
        if is_lost {
            fs::write(disk, vec![0; 4 << 20]).expect("it can be wiped");
        }
        configure(&scratch, "a", two, near_a, log);
        a.restart();
        // Either may be the source then, because the target may have run degraded.
        let both = || [&a, &b].map(|node| state(node) == "mirroring");
        until("they mirror", || both().contains(&true), || a.output() + &b.output());
        if both()[1] {
            order(&a, "switchover");
        }
        wait_for(&a, "mirroring");
        read_back(&a, &scratch, "first");
        assert_eq!(a.output().contains(lost), is_lost, "{}", a.output());
    }
}

/// The device has appeared, but its replica cannot be opened yet. The server retries without a
/// restart.
#[test]
fn replica_open_is_retried() {
    let scratch = Scratch::new();
    let (mut far, mut a, b) = mirror_on_another_server(&scratch);
    a.kill();
    far.kill();
    let [log, kept] = ["a.intent", "kept"].map(|name| scratch.join(name));
    fs::rename(&log, &kept).and_then(|()| fs::create_dir(&log)).expect("the log can be moved");
    a.restart();
    far.restart();
    wait_for_reason(&a, "a.intent");
    let attempts = || get(&a.api(), "/v1/volumes/db")["pending"]["attempts"].as_u64();
    let before = attempts();
    until("it is tried again", || attempts() > before, || a.output());
    assert!(a.output().contains("this needs a repair"), "{}", a.output());

    fs::remove_dir(&log).and_then(|()| fs::rename(&kept, &log)).expect("the log can be moved");
    wait_for(&b, "mirroring");
    order(&a, "switchover");
    read_back(&a, &scratch, "first");
    assert!(!a.output().contains("was lost"), "{}", a.output());
}

/// Regression: the server of the target's device restarted with unflushed writes. The next flush
/// succeeded, and the mirror trusted what might be lost.
#[test]
fn device_with_lost_writes_is_reopened_and_resynced() {
    let scratch = Scratch::new();
    let mut far = Server::start(&[&format!("leg={}", scratch.disk("far", SIZE_BYTES).display())]);
    let [one, two] = free_ports().expect("ports are free");
    let disk = scratch.disk("near", SIZE_BYTES);
    let a = node_with_cache(&scratch, "a", (one, two), disk.to_str().expect("UTF-8"));
    let b = node_with_cache(&scratch, "b", (two, one), &far.nvme_uri("leg"));
    order(&a, "create --source");
    order(&b, "create --target");
    wait_for(&a, "mirroring");
    let file = scratch.join("state");
    let line = "--rw randwrite --depth 8 --size 8MiB --time 1h";
    let mut load = Load::start_verified(&a.nvme_uri("db"), line, &file);
    load.wait_for_records(&file, 1000);
    far.restart();
    let reopens = || get(&b.api(), "/v1/volumes/db")["mirror"]["reopens"].as_u64();
    until("the device is reopened", || reopens() > Some(0), || a.output() + &b.output());
    wait_for(&a, "mirroring");
    load.wait_for_records(&file, Load::records_now(&file) + 500);
    load.kill();
    order(&b, "switchover");
    read_back(&b, &scratch, "state");
    let said = b.output();
    assert!(said.contains("a flush of its device failed"), "{said}");
}
