//! A mirrored volume one of whose nodes keeps its data on another server: without that server the
//! node waits, serves nobody, and comes back as what it is by then.
#![allow(clippy::disallowed_methods, reason = "a real listener is what the program meets")]

use std::fs;
use std::net::TcpListener;
use std::process::Command;

use flagstone_tests::http::{ask, get};
use flagstone_tests::load::Load;
use flagstone_tests::process::until;
use flagstone_tests::scratch::Scratch;
use flagstone_tests::server::{Server, binary};

const SIZE_BYTES: u64 = 32 << 20;

/// A node of the mirror of volume `db`.
fn node(scratch: &Scratch, name: &str, ports: (u16, u16), device: &str) -> Server {
    let peer = if name == "a" { "b" } else { "a" };
    let log = scratch.join(&format!("{name}.intent"));
    let text = format!(
        "[server]\nnode = \"{name}\"\n[peer.{peer}]\naddress = \"127.0.0.1:{}\"\n\
         timeout = \"1s\"\n[volume.db]\nmirror = {{ peer = \"{peer}\", bitmap = {log:?} }}\n\
         device = \"{device}\"\n[volume.other]\ndevice = \"memory:16MiB\"\n",
        ports.1
    );
    let file = scratch.join(&format!("{name}.toml"));
    fs::write(&file, text).expect("the configuration can be written");
    let file = file.to_str().expect("temporary paths are UTF-8");
    Server::start_with(&[], &[&format!("nvme-tcp://127.0.0.1:{}", ports.0)], &[file])
}

/// `flagstone mirror ACTION db` on a node: whether it was done, and what it said.
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

fn wait_for(node: &Server, state: &str) {
    let is = || get(&node.api(), "/v1/volumes/db")["mirror"]["state"] == state;
    until(&format!("the mirror is {state}"), is, || node.output());
}

fn write(node: &Server, scratch: &Scratch, state: &str, offset: &str) {
    let line = format!("--rw randwrite --depth 8 --ios 1000 --size 8MiB --offset {offset}");
    let load = Load::start_verified(&node.nvme_uri("db"), &line, &scratch.join(state));
    load.wait().assert_complete();
}

/// All that was written under a state is what the node serves.
fn read_back(node: &Server, scratch: &Scratch, state: &str) {
    let line = "--rw randread --depth 4 --bs 64k --after-crash client";
    let ended = Load::start_verified(&node.nvme_uri("db"), line, &scratch.join(state)).wait();
    assert_eq!(ended.code, Some(0), "{}\n{:#}", ended.log, ended.results);
    assert_eq!(ended.results["verify"]["violations"], 0, "{:#}", ended.results);
}

#[test]
fn a_node_without_its_device_waits_and_is_a_target_after_a_failover() {
    let scratch = Scratch::new();
    let volume = format!("leg={}", scratch.disk("far", SIZE_BYTES).display());
    let mut far = Server::start(&[&volume]);
    let free = || TcpListener::bind("127.0.0.1:0").expect("a port is free");
    // Both at a time: they are not the same.
    let [one, two] = [free(), free()].map(|port| port.local_addr().expect("bound").port());
    let mut a = node(&scratch, "a", (one, two), &far.nvme_uri("leg"));
    let disk = scratch.disk("near", SIZE_BYTES);
    let b = node(&scratch, "b", (two, one), disk.to_str().expect("UTF-8"));
    order(&a, "create --source");
    order(&b, "create --target");
    wait_for(&a, "mirroring");
    write(&a, &scratch, "first", "0");

    a.kill();
    far.kill();
    a.restart();
    // It serves what it can, and says of the other what it waits for.
    Load::start(&a.nvme_uri("other"), "--rw randwrite --ios 100").wait().assert_complete();
    assert_eq!(get(&a.api(), "/v1/volumes/db")["mirror"], serde_json::Value::Null);
    let (done, said) = mirror(&a, "status");
    assert!(!done && said.contains("waits for its device"), "{said}");
    let refused = ask(&a.api(), "POST", "/v1/volumes/db/mirror/failover");
    assert!(refused.head.contains("409"), "{refused:?}");

    order(&b, "failover --yes");
    read_back(&b, &scratch, "first");
    write(&b, &scratch, "second", "16MiB");

    // It does not take up again what it was.
    far.restart();
    wait_for(&b, "mirroring");
    let replica = &get(&a.api(), "/v1/volumes/db")["mirror"]["replica"];
    assert_eq!((&replica["role"], &replica["active"]), (&"target".into(), &false.into()));
    order(&a, "switchover");
    for state in ["first", "second"] {
        read_back(&a, &scratch, state);
    }
    let status = a.terminate();
    assert_eq!(status.code(), Some(0), "{status}\n{}", a.output());
}
