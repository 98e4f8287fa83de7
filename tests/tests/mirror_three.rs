//! Mirrored volume on three real nodes: the source has two targets.

#![allow(clippy::disallowed_methods, reason = "free ports are found without the runtime")]

use std::path::PathBuf;
use std::process::{Command, Output};

use flagstone_lab::ports::free_ports;
use flagstone_tests::environment::RunEnvironment;
use flagstone_tests::load::Load;
use flagstone_tests::mirror::VOLUME;
use flagstone_tests::process::until;
use flagstone_tests::scratch::Scratch;
use flagstone_tests::server::{NQN_PREFIX, Server, binary};
use serde_json::Value;

const NAMES: [&str; 3] = ["node-a", "node-b", "node-c"];
const SIZE_BYTES: u64 = 24 << 20;
/// Writes between two events.
const WRITES: u64 = 300;

struct Three {
    nodes: [Server; 3],
    addresses: [String; 3],
    disks: [PathBuf; 3],
    scratch: Scratch,
}

impl Three {
    fn start() -> Three {
        Three::knowing(|_, _| true)
    }

    /// Nodes whose files name only the others that they know.
    fn knowing(knows: fn(usize, usize) -> bool) -> Three {
        let scratch = Scratch::new();
        let ports: [u16; 3] = free_ports().expect("ports are free");
        let addresses = ports.map(|port| format!("127.0.0.1:{port}"));
        let disks = NAMES.map(|name| scratch.disk(&format!("{name}.disk"), SIZE_BYTES));
        let nodes = [0, 1, 2].map(|node| {
            let others =
                [0, 1, 2].into_iter().filter(|other| *other != node && knows(node, *other));
            let mut text = format!("[server]\nnode = \"{}\"\n", NAMES[node]);
            for other in others.clone() {
                let (name, address) = (NAMES[other], &addresses[other]);
                text += &format!(
                    "[peer.{name}]\naddress = \"{address}\"\ninsecure = true\ntimeout = \"1s\"\n"
                );
            }
            let peers: Vec<&str> = others.map(|other| NAMES[other]).collect();
            let disk = &disks[node];
            text += &format!(
                "[volume.{VOLUME}]\nmirror = {{ peers = {peers:?} }}\ndevice = {disk:?}\n"
            );
            let file = scratch.join(&format!("{}.toml", NAMES[node]));
            std::fs::write(&file, text).expect("a configuration can be written");
            let file = file.to_str().expect("temporary paths are UTF-8");
            let listen = format!("nvme-tcp://{}", addresses[node]);
            Server::start_at(&RunEnvironment::default(), &[], &[&listen], &[file])
        });
        Three { nodes, addresses, disks, scratch }
    }

    fn run(&self, node: usize, action: &str, more: &[&str]) -> Output {
        Command::new(binary())
            .args(["mirror", action, VOLUME, "--json", "--api"])
            .arg(self.nodes[node].api())
            .args(more)
            .output()
            .expect("the program can be started")
    }

    fn order(&self, node: usize, action: &str, more: &[&str]) -> Value {
        let output = self.run(node, action, more);
        let said = String::from_utf8_lossy(&output.stderr);
        let log = || self.nodes[node].output();
        assert!(output.status.success(), "{action} on {}: {said}\n{}", NAMES[node], log());
        serde_json::from_slice(&output.stdout).expect("it prints JSON")
    }

    /// State toward a peer, as reported by a node.
    fn state(&self, node: usize, peer: usize) -> String {
        let status = self.order(node, "status", &[]);
        let peers = status["peers"].as_array().expect("it has peers");
        let found = peers.iter().find(|found| found["name"] == NAMES[peer]);
        found.expect("it is one of them")["state"].as_str().unwrap_or_default().to_owned()
    }

    fn wait_for(&self, node: usize, peer: usize, state: &str) {
        let what = format!("{} is {state} toward {}", NAMES[node], NAMES[peer]);
        let explain = || self.nodes.iter().map(Server::output).collect();
        until(&what, || self.state(node, peer) == state, explain);
    }

    fn assert_equal_on_disk(mut self, source: usize) {
        let size = self.order(source, "status", &[])["replica"]["size_bytes"].as_u64();
        let size = usize::try_from(size.expect("a size")).expect("it is small");
        // The source first: then it lacks no data, and its targets have lost no peer.
        for node in [source, (source + 1) % 3, (source + 2) % 3] {
            let status = self.nodes[node].terminate();
            assert!(status.success(), "{status}\n{}", self.nodes[node].output());
        }
        let legs = self.disks.each_ref().map(|disk| std::fs::read(disk).expect("it exists"));
        assert!(legs[0][..size].iter().any(|byte| *byte != 0), "it was written to");
        for leg in 1..3 {
            assert!(legs[leg][..size] == legs[0][..size], "{} differs", NAMES[leg]);
        }
    }
}

/// The role moves from node to node by switchover and failover, under a verified load over all
/// three paths. The host sees no error and reads its writes back, and all legs are equal at the
/// end.
#[test]
fn source_with_two_targets_switches_dies_and_returns() {
    let mut three = Three::start();
    three.order(0, "create", &["--source"]);
    for target in [1, 2] {
        three.order(target, "create", &["--target"]);
        three.wait_for(0, target, "mirroring");
    }
    let state = three.scratch.join("state");
    let paths = format!("nvme-tcp://{}/{NQN_PREFIX}{VOLUME}", three.addresses.join(","));
    let line = "--rw randwrite --depth 8 --size 12MiB --rate 4000 --ios 1000000000";
    let mut load = Load::start_verified(&paths, line, &state);
    let mut records = 0;
    let mut go_on = |load: &mut Load| {
        records = records.max(Load::records_now(&state)) + WRITES;
        load.wait_for_records(&state, records);
    };
    go_on(&mut load);
    three.order(0, "switchover", &["--to", NAMES[1]]);
    for target in [0, 2] {
        three.wait_for(1, target, "mirroring");
    }
    // Two targets have no relation to each other.
    three.wait_for(0, 2, "target");
    go_on(&mut load);
    three.nodes[1].kill();
    three.order(2, "failover", &["--force", "--yes"]);
    three.wait_for(2, 0, "mirroring");
    go_on(&mut load);
    three.nodes[1].restart();
    three.wait_for(2, 1, "mirroring");
    go_on(&mut load);
    // A target left behind under an earlier source is recognized by the next source.
    three.order(2, "pause", &["--peer", NAMES[1]]);
    go_on(&mut load);
    three.order(2, "switchover", &["--to", NAMES[0]]);
    three.wait_for(0, 1, "mirroring");
    three.wait_for(0, 2, "mirroring");
    go_on(&mut load);
    // Run on the node that is to serve, while both targets could. Its desired states as a source
    // apply again once it is the source.
    three.order(2, "continue", &["--peer", NAMES[1]]);
    let asked = three.order(2, "switchover", &[]);
    assert_eq!(asked["mirror"]["replica"]["serving"], true, "{asked:#}");
    for target in [0, 1] {
        three.wait_for(2, target, "mirroring");
    }
    // A target reports its source, even if it took no part in the switchover.
    let source = three.order(1, "status", &[])["replica"]["source"].clone();
    assert_eq!(source, NAMES[2]);
    three.order(0, "switchover", &[]);
    for target in [1, 2] {
        three.wait_for(0, target, "mirroring");
    }
    go_on(&mut load);
    load.kill();
    let line = "--rw randread --depth 4 --bs 64k --after-crash client";
    let ended = Load::start_verified(&paths, line, &state).wait();
    assert_eq!(ended.code, Some(0), "{}\n{:#}", ended.log, ended.results);
    let verify = &ended.results["verify"];
    assert_eq!(verify["violations"], 0, "{verify:#}");
    assert!(verify["blocks_checked"].as_u64() > Some(0), "{verify:#}");
    three.assert_equal_on_disk(0);
}

/// A third node joins and leaves while a host writes. The files of the others name it at no time,
/// and a killed source knows its peers again.
#[test]
fn node_joins_and_leaves_while_host_writes() {
    let mut three = Three::knowing(|node, other| node == 2 || other < 2);
    let (name, address) = (NAMES[2], three.addresses[2].clone());
    three.order(0, "create", &["--source"]);
    three.order(1, "create", &["--target"]);
    three.wait_for(0, 1, "mirroring");
    let state = three.scratch.join("state");
    let paths = format!("nvme-tcp://{}/{NQN_PREFIX}{VOLUME}", three.addresses[..2].join(","));
    let line = "--rw randwrite --depth 8 --size 12MiB --rate 4000 --ios 1000000000";
    let mut load = Load::start_verified(&paths, line, &state);
    let mut records = 0;
    let mut go_on = |load: &mut Load| {
        records = records.max(Load::records_now(&state)) + WRITES;
        load.wait_for_records(&state, records);
    };
    go_on(&mut load);
    let peers = |three: &Three, node| {
        three.order(node, "status", &[])["peers"].as_array().map_or(0, Vec::len)
    };
    let add = [name, "--address", &address];
    let unknown = three.run(0, "add-peer", &[name]);
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("--address"), "{unknown:?}");
    let dry = three.order(0, "add-peer", &[name, "--address", &address, "--dry-run"]);
    assert_eq!((&dry["changed"], peers(&three, 0)), (&true.into(), 1), "{dry:#}");
    for node in [0, 1] {
        assert_eq!(three.order(node, "add-peer", &add)["changed"], true);
        assert_eq!(three.order(node, "add-peer", &add)["changed"], false);
    }
    three.order(2, "create", &["--target"]);
    three.wait_for(0, 1, "mirroring");
    three.wait_for(0, 2, "mirroring");
    go_on(&mut load);
    three.nodes[0].kill();
    three.nodes[0].restart();
    for target in [1, 2] {
        three.wait_for(0, target, "mirroring");
    }
    go_on(&mut load);

    for node in [1, 0] {
        let removed = three.order(node, "remove-peer", &[name]);
        assert_eq!(removed["changed"], true, "{removed:#}");
        assert_eq!(three.order(node, "remove-peer", &[name])["changed"], false);
    }
    three.wait_for(0, 1, "mirroring");
    go_on(&mut load);
    let last = three.run(0, "remove-peer", &[NAMES[1]]);
    assert!(String::from_utf8_lossy(&last.stderr).contains("the only peer"), "{last:?}");
    assert_eq!(three.order(2, "status", &[])["replica"]["removed"], true);
    let refused = three.run(2, "failover", &["--yes"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("removed"), "{refused:?}");

    three.order(0, "add-peer", &add);
    for target in [1, 2] {
        three.wait_for(0, target, "mirroring");
    }
    assert_eq!(three.order(2, "status", &[])["replica"]["removed"], false);
    go_on(&mut load);
    load.kill();
    let line = "--rw randread --depth 4 --bs 64k --after-crash client";
    let ended = Load::start_verified(&paths, line, &state).wait();
    assert_eq!(ended.code, Some(0), "{}\n{:#}", ended.log, ended.results);
    three.assert_equal_on_disk(0);
}
