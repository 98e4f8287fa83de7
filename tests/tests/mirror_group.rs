//! Consistency group of two volumes: after the death of their source, the target shows both at one
//! moment, and orders concern both or neither.
//!
//! One host writes a block of one volume after the other, so each write depends on all earlier
//! ones, whichever volume they changed. The target's disk of `data` is slow and its disk of `log`
//! is not, so without a common order `log` would be ahead. The test reads the disks itself.
#![allow(
    clippy::disallowed_methods,
    reason = "a host in a thread of the test, and disks read from outside"
)]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use flagstone_lab::ports::free_ports;
use flagstone_tests::etcd::Etcd;
use flagstone_tests::process::{stall_process, until};
use flagstone_tests::scratch::Scratch;
use flagstone_tests::server::{Server, binary};
use flagstone_tests::wire::{connect, nbd_open, nbd_write};
use serde_json::Value;

const NAMES: [&str; 2] = ["node-a", "node-b"];
const VOLUMES: [&str; 2] = ["data", "log"];
const GROUP: &str = "app";
const SIZE_BYTES: u64 = 16 << 20;
const BLOCK_BYTES: usize = 4096;
/// Blocks of each volume that the host writes.
const BLOCKS: u64 = 24;

/// Place and number of a write. 0 is the initial content.
#[derive(Clone, Copy, Debug)]
struct Write {
    volume: usize,
    block: u64,
    number: u64,
}

impl Write {
    fn new(number: u64) -> Write {
        let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 17;
        Write { volume: (mixed & 1) as usize, block: (mixed >> 1) % BLOCKS, number }
    }
}

/// Numbers that the blocks of both volumes show.
type Shown = [[u64; BLOCKS as usize]; 2];

/// A host that writes to both volumes through one node until that fails.
struct Host {
    stop: Arc<AtomicBool>,
    completed: Arc<AtomicUsize>,
    writes: Arc<Mutex<Vec<Write>>>,
    thread: JoinHandle<()>,
}

fn open(node: &Server, volume: &str) -> TcpStream {
    let mut stream = connect(node.port("nbd"));
    nbd_open(&mut stream, volume).expect("the node serves the volume");
    stream
}

fn write(stream: &mut TcpStream, write: Write) -> std::io::Result<()> {
    let data = write.number.to_le_bytes().repeat(BLOCK_BYTES / 8);
    let mut request = nbd_write(write.block * BLOCK_BYTES as u64, BLOCK_BYTES as u32);
    request.extend(data);
    stream.write_all(&request)?;
    // Magic number, error, cookie.
    let mut reply = [0; 16];
    stream.read_exact(&mut reply)?;
    match u32::from_be_bytes([reply[4], reply[5], reply[6], reply[7]]) {
        0 => Ok(()),
        _ => Err(std::io::ErrorKind::Other.into()),
    }
}

impl Host {
    fn start(node: &Server, after: u64) -> Host {
        let mut streams = VOLUMES.map(|volume| open(node, volume));
        let (stop, completed) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let writes = Arc::<Mutex<Vec<Write>>>::default();
        let (stopped, counted, written) = (stop.clone(), completed.clone(), writes.clone());
        let thread = thread::spawn(move || {
            for number in after + 1.. {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                let next = Write::new(number);
                written.lock().expect("no thread panics").push(next);
                if write(&mut streams[next.volume], next).is_err() {
                    return;
                }
                counted.fetch_add(1, Ordering::SeqCst);
            }
        });
        Host { stop, completed, writes, thread }
    }

    /// Waits for further completed writes.
    fn write(&self, more: usize) {
        let target = self.completed.load(Ordering::SeqCst) + more;
        let written = || self.completed.load(Ordering::SeqCst) >= target;
        until("the host has written", written, || format!("{:?}", self.completed));
    }

    /// Ends it. Returns its writes, the last of which may not have completed, and the number of
    /// completed ones.
    fn end(self) -> (Vec<Write>, usize) {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().expect("the host does not panic");
        let writes = self.writes.lock().expect("no thread panics").clone();
        (writes, self.completed.load(Ordering::SeqCst))
    }
}

/// The content after the first `count` writes.
fn content(before: Shown, writes: &[Write], count: usize) -> Shown {
    writes[..count].iter().fold(before, |mut shown, write| {
        shown[write.volume][write.block as usize] = write.number;
        shown
    })
}

struct Nodes {
    nodes: [Server; 2],
    disks: [[PathBuf; 2]; 2],
    /// Declared last: removed after the processes.
    _scratch: Scratch,
}

impl Nodes {
    /// Starts both nodes, each with both volumes. The `options` of a volume's mirror, and the other
    /// `sections`, go to both nodes.
    fn start(options: [&str; 2], sections: &str) -> Nodes {
        let scratch = Scratch::new();
        let ports: [u16; 2] = free_ports().expect("ports are free");
        let disks = NAMES.map(|node| {
            VOLUMES.map(|volume| scratch.disk(&format!("{node}-{volume}.disk"), SIZE_BYTES))
        });
        let nodes = [0, 1].map(|index| {
            let (node, peer) = (NAMES[index], NAMES[1 - index]);
            let mut text = format!(
                "[server]\nnode = \"{node}\"\n[peer.{peer}]\naddress = \"127.0.0.1:{}\"\ninsecure = \
                 true\ntimeout = \"1s\"\n",
                ports[1 - index]
            );
            for (volume, name) in VOLUMES.into_iter().enumerate() {
                let slow = match (index, name) {
                    (1, "data") => "disk_model = { write_latency = \"2ms\" }\n",
                    _ => "",
                };
                text += &format!(
                    "[volume.{name}]\nmirror = {{ peer = \"{peer}\", group = \"{GROUP}\", {} }}\n{slow}\
                     device = {:?}\n",
                    options[volume], disks[index][volume]
                );
            }
            let file = scratch.join(&format!("{node}.toml"));
            text += sections;
            std::fs::write(&file, text).expect("a configuration can be written");
            let listen = format!("nvme-tcp://127.0.0.1:{}", ports[index]);
            let file = file.to_str().expect("temporary paths are UTF-8");
            Server::start_at(&Default::default(), &[], &[&listen, "nbd://127.0.0.1:0"], &[file])
        });
        Nodes { nodes, disks, _scratch: scratch }
    }

    /// As [`Nodes::start`], in sync, with the first node as the source.
    fn in_sync(options: [&str; 2], sections: &str) -> Nodes {
        let nodes = Nodes::start(options, sections);
        for volume in VOLUMES {
            nodes.order(0, &["create", volume, "--source"]);
            nodes.order(1, &["create", volume, "--target"]);
        }
        nodes.wait_for(0, "mirroring");
        nodes
    }

    /// Runs `flagstone mirror`. The error output of a failed command is the error.
    fn try_order(&self, node: usize, line: &[&str]) -> Result<Value, String> {
        let mut command = Command::new(binary());
        command.arg("mirror").args(line).args(["--json", "--api"]).arg(self.nodes[node].api());
        let output = command.output().expect("the program can be started");
        match output.status.success() {
            true => Ok(serde_json::from_slice(&output.stdout).expect("JSON")),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    fn order(&self, node: usize, line: &[&str]) -> Value {
        self.try_order(node, line).unwrap_or_else(|said| {
            panic!("{line:?} on {}: {said}\n{}", NAMES[node], self.explain())
        })
    }

    fn status(&self, node: usize, volume: &str) -> Value {
        self.order(node, &["status", volume])
    }

    fn explain(&self) -> String {
        let shown = [0, 1].map(|node| format!("{:#?}", self.try_order(node, &["status", GROUP])));
        format!("{}\n{}\n{}", shown.join("\n"), self.nodes[0].output(), self.nodes[1].output())
    }

    /// Waits until a node serves both volumes in this state, with nothing left to deliver.
    fn wait_for(&self, node: usize, state: &str) {
        let holds = || {
            VOLUMES.into_iter().all(|volume| {
                let status = self.status(node, volume);
                status["state"] == state
                    && status["peers"][0]["lag_writes"] == 0
                    && status["replica"]["serving"] == true
            })
        };
        until(&format!("{} is {state}", NAMES[node]), holds, || self.explain());
    }

    /// Waits until a node, which serves, mirrors both volumes. Its data is kept in a split brain:
    /// the other node may have written alone while this one was stalled.
    fn keep_data_of(&self, node: usize) {
        let mut resolved = [false; 2];
        let mirrors = || {
            let states = VOLUMES.map(|volume| self.status(node, volume)["state"].clone());
            for (volume, done) in resolved.iter_mut().enumerate() {
                if states[volume] == "split-brain" && !*done {
                    eprintln!("  split brain of {}", VOLUMES[volume]);
                    self.order(1 - node, &["demote", GROUP]);
                    self.order(node, &["resolve", VOLUMES[volume], "--keep", "mine", "--yes"]);
                    *done = true;
                }
            }
            states == ["mirroring"; 2]
        };
        until("both volumes are mirrored", mirrors, || self.explain());
        self.wait_for(node, "mirroring");
    }

    /// Which volumes a node serves.
    fn serving(&self, node: usize) -> [bool; 2] {
        VOLUMES.map(|volume| self.status(node, volume)["replica"]["serving"] == true)
    }

    fn shown(&self, node: usize) -> Shown {
        self.disks[node].each_ref().map(|disk| {
            let file = std::fs::File::open(disk).expect("the disk exists");
            std::array::from_fn(|block| {
                let mut bytes = [0; 8];
                file.read_exact_at(&mut bytes, block as u64 * BLOCK_BYTES as u64)
                    .expect("it is there");
                u64::from_le_bytes(bytes)
            })
        })
    }
}

#[test]
fn group_shows_one_moment_after_its_source_died() {
    let mut nodes = Nodes::in_sync(["mode = \"async\", queue = \"32MiB\""; 2], "");
    let (mut source, mut content_before, mut last) = (0, [[0; BLOCKS as usize]; 2], 0);
    let mut lagged = false;
    for round in 0..4 {
        let target = 1 - source;
        assert_eq!(nodes.shown(source), content_before, "round {round}");
        let host = Host::start(&nodes.nodes[source], last);
        host.write(100);
        // The target is behind by this much at least, and part of it arrives.
        stall_process(nodes.nodes[target].pid(), true);
        host.write(300);
        stall_process(nodes.nodes[target].pid(), false);
        host.write(20 * round);
        nodes.nodes[source].kill();
        let (writes, completed) = host.end();
        let (one, other) = (VOLUMES[round % 2], VOLUMES[(round + 1) % 2]);
        let name = if round == 0 { GROUP } else { one };
        nodes.order(target, &["failover", name, "--force", "--yes"]);
        assert_eq!(nodes.serving(target), [true; 2], "{one} and {other}");

        let shown = nodes.shown(target);
        let newest = shown.iter().flatten().copied().max().expect("there are blocks");
        let present = newest.saturating_sub(last) as usize;
        assert!(
            shown == content(content_before, &writes, present),
            "round {round}: no moment, at write {present} of {completed}: {shown:?}"
        );
        eprintln!("  round {round}: {present} of {completed} writes");
        lagged |= present < completed;
        (content_before, last) = (shown, last + writes.len() as u64);

        nodes.nodes[source].restart();
        nodes.keep_data_of(target);
        assert_eq!(nodes.serving(source), [false; 2]);
        source = target;
    }
    assert!(lagged, "the target was never behind, so nothing was tested");
}

#[test]
fn group_moves_as_one_or_not_at_all() {
    let options =
        ["mode = \"async\", resync_max = \"2MiB/s\"", "mode = \"async\", resync_max = \"1GiB/s\""];
    let mut nodes = Nodes::in_sync(options, "");
    // By the name of the group, and of the second volume, on the source and on the target.
    nodes.order(0, &["switchover", GROUP, "--to", "node-b"]);
    assert_eq!([nodes.serving(0), nodes.serving(1)], [[false; 2], [true; 2]]);
    nodes.wait_for(1, "mirroring");
    let dry = nodes.order(0, &["switchover", "log", "--dry-run"]);
    let outcome = dry["outcome"].as_str().expect("text");
    assert!(outcome.starts_with("group app (data, log): "), "{outcome}");
    nodes.order(0, &["switchover", "log"]);
    assert_eq!([nodes.serving(0), nodes.serving(1)], [[true; 2], [false; 2]]);
    nodes.wait_for(0, "mirroring");

    nodes.order(0, &["pause", "log"]);
    let states = VOLUMES.map(|volume| nodes.status(0, volume)["state"].clone());
    assert_eq!(states, ["paused", "paused"]);
    let said = nodes.try_order(1, &["failover", "data"]).expect_err("the source serves");
    assert!(!said.is_empty());
    nodes.order(0, &["continue", GROUP]);
    nodes.wait_for(0, "mirroring");

    // One volume is copied, so neither may move.
    nodes.order(0, &["resync", "data", "--full"]);
    let copies = || nodes.status(0, "data")["state"] == "resynchronizing";
    until("one volume is copied", copies, || nodes.explain());
    let settled = || nodes.status(0, "log")["state"] == "mirroring";
    until("the other is in sync", settled, || nodes.explain());
    for order in [
        &["switchover", "log", "--to", "node-b"][..],
        &["switchover", "log", "--to", "node-b", "--dry-run"],
        &["switchover", GROUP, "--to", "node-b"],
    ] {
        let said = nodes.try_order(0, order).expect_err("one volume is not in sync");
        assert!(said.contains("data"), "it names the volume: {said}");
    }
    assert_eq!([nodes.serving(0), nodes.serving(1)], [[true; 2], [false; 2]]);
    nodes.nodes[0].kill();
    for order in
        [&["failover", "log", "--force", "--yes"][..], &["failover", GROUP, "--force", "--dry-run"]]
    {
        let said = nodes.try_order(1, order).expect_err("one volume is inconsistent");
        assert!(said.contains("data"), "it names the volume: {said}");
    }
    assert_eq!(nodes.serving(1), [false; 2]);
    let group = &nodes.status(1, "log")["group"];
    assert_eq!((&group["consistent"], &group["missing"]), (&false.into(), &Value::Array(vec![])));
    nodes.nodes[0].restart();
    nodes.wait_for(0, "mirroring");

    let said = nodes.try_order(0, &["delete", GROUP, "--yes"]).expect_err("it is no volume");
    assert!(said.contains("concerns one volume"), "{said}");
    let table = nodes.order(0, &["status", GROUP]);
    assert_eq!(table.as_array().map(Vec::len), Some(2), "{table:#}");
}

/// No operator acts: the arbiter gives both volumes to the target, by one record.
#[test]
fn group_fails_over_without_operator() {
    let Some(etcd) = Etcd::start("automatic failover of a group") else { return };
    let options = "failover = \"automatic\", failover_after = \"2s\"";
    let mut nodes = Nodes::in_sync([options; 2], &etcd.arbiter());
    let (mut content_before, mut last) = ([[0; BLOCKS as usize]; 2], 0);
    for source in [0, 1] {
        let target = 1 - source;
        let armed = || nodes.status(target, "log")["failover"]["would_win"] == true;
        until("the target may take over", armed, || nodes.explain());
        let host = Host::start(&nodes.nodes[source], last);
        host.write(100);
        nodes.nodes[source].kill();
        let (writes, completed) = host.end();
        let both = || nodes.serving(target) == [true; 2];
        until("the target serves both", both, || nodes.explain());
        let shown = nodes.shown(target);
        // The last write may have reached the target without an answer.
        let present = (completed..=writes.len())
            .find(|count| shown == content(content_before, &writes, *count));
        assert!(present.is_some(), "a completed write of {completed} is missing: {shown:?}");
        (content_before, last) = (shown, last + writes.len() as u64);
        nodes.nodes[source].restart();
        nodes.wait_for(target, "mirroring");
        assert_eq!(nodes.serving(source), [false; 2], "it comes back as the target");
    }
}
