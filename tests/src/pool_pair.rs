//! Two nodes that mirror volumes over legs in their pools, as processes of this machine.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use flagstone_lab::ports::free_ports;
use serde_json::Value;

use crate::environment::RunEnvironment;
use crate::http::get;
use crate::load::Load;
use crate::process::until;
use crate::scratch::Scratch;
use crate::server::{Server, binary};

const NAMES: [&str; 2] = ["node-a", "node-b"];

/// Two mirroring nodes, each with a pool `fast` on a file of 1 GiB.
#[derive(Debug)]
pub struct PoolPair {
    /// Servers of the nodes.
    pub nodes: [Server; 2],
    scratch: Scratch,
}

impl PoolPair {
    /// Starts both nodes, whose configurations name the leg of volume `db`. There are no pools yet.
    /// `options` go to the mirror table.
    ///
    /// # Panics
    /// If a node does not start.
    pub fn start(options: &str) -> PoolPair {
        PoolPair::start_volumes(&["db"], options)
    }

    fn start_volumes(volumes: &[&str], options: &str) -> PoolPair {
        let scratch = Scratch::new();
        let ports: [u16; 2] = free_ports().expect("ports are free");
        let nodes = [0, 1].map(|index| {
            let (node, peer) = (NAMES[index], NAMES[1 - index]);
            let text = format!(
                "[server]\nnode = \"{node}\"\nstate = {:?}\n[peer.{peer}]\naddress = \
                 \"127.0.0.1:{}\"\ninsecure = true\ntimeout = \"1s\"\n",
                scratch.join(&format!("{node}.state")),
                ports[1 - index]
            );
            let tables = volumes.iter().map(|name| {
                format!(
                    "[volume.{name}]\ndevice = \"pool:fast/{name}-leg\"\nmirror = {{ peer = \
                     \"{peer}\"{options} }}\n"
                )
            });
            let text = text + &tables.collect::<String>();
            let file = scratch.join(&format!("{node}.toml"));
            std::fs::write(&file, text).expect("a configuration can be written");
            let listen = format!("nvme-tcp://127.0.0.1:{}", ports[index]);
            let file = file.to_str().expect("temporary paths are UTF-8");
            let listen = [listen.as_str(), "nbd://127.0.0.1:0"];
            Server::start_at(&RunEnvironment::default(), &[], &listen, &[file])
        });
        PoolPair { nodes, scratch }
    }

    /// The same with pools and legs of 64 MiB, mirroring and in sync. Node 0 is the source.
    ///
    /// # Panics
    /// If the nodes do not get in sync.
    pub fn in_sync(options: &str) -> PoolPair {
        PoolPair::in_sync_of(&["db"], options)
    }

    /// The same with other volumes.
    ///
    /// # Panics
    /// If the nodes do not get in sync.
    pub fn in_sync_of(volumes: &[&str], options: &str) -> PoolPair {
        let pair = PoolPair::start_volumes(volumes, options);
        for node in [0, 1] {
            pair.create_pool(node);
            for name in volumes {
                pair.run(node, &format!("volume create {name}-leg --pool fast --size 64MiB"));
                pair.wait_volume_open(node, name);
            }
        }
        for (node, role) in [(0, "source"), (1, "target")] {
            for name in volumes {
                pair.run(node, &format!("mirror create {name} --{role}"));
            }
        }
        let mirrors = |name: &str| {
            let status = pair.get(0, &format!("/v1/volumes/{name}/mirror"));
            status["state"] == "mirroring" && status["replica"]["serving"] == true
        };
        let all = || volumes.iter().all(|name| mirrors(name));
        until("all volumes are mirroring", all, || pair.explain());
        pair
    }

    /// Creates pool `fast`.
    ///
    /// # Panics
    /// If it is refused.
    pub fn create_pool(&self, node: usize) {
        let disk = self.device(node, "disk");
        self.run(node, &format!("pool create fast {}", disk.display()));
    }

    /// A sparse file of 1 GiB for a node.
    pub fn device(&self, node: usize, name: &str) -> PathBuf {
        self.scratch.disk(&format!("{}.{name}", NAMES[node]), 1 << 30)
    }

    /// Erases a device, as a stop of its machine erases a local SSD.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn erase(&self, device: &Path) {
        let file = File::options().write(true).open(device).expect("it exists");
        let len = file.metadata().expect("it is a file").len();
        file.set_len(0).and_then(|()| file.set_len(len)).expect("it can be written");
    }

    /// Stops both nodes, the source first.
    ///
    /// # Panics
    /// If a node does not stop in order.
    pub fn end(mut self, source: usize) {
        for node in [source, 1 - source] {
            let status = self.nodes[node].terminate();
            assert!(status.success(), "{status}\n{}", self.nodes[node].output());
        }
    }

    /// A file in this test's directory.
    pub fn file(&self, name: &str) -> PathBuf {
        self.scratch.join(name)
    }

    /// Waits until the device of `db` is open.
    ///
    /// # Panics
    /// If it is not opened.
    pub fn wait_open(&self, node: usize) {
        self.wait_volume_open(node, "db");
    }

    fn wait_volume_open(&self, node: usize, name: &str) {
        let is_open = || self.get(node, &format!("/v1/volumes/{name}"))["pending"].is_null();
        until("the leg is open", is_open, || self.explain());
    }

    /// Waits until the source reports this state.
    ///
    /// # Panics
    /// If it does not reach the state.
    pub fn wait_for(&self, state: &str) {
        let holds = || [0, 1].iter().any(|node| self.state(*node) == (state.to_owned(), true));
        until(&format!("the source is {state}"), holds, || self.explain());
    }

    /// State toward the peer, and whether the node serves.
    pub fn state(&self, node: usize) -> (String, bool) {
        let status = self.get(node, "/v1/volumes/db/mirror");
        let state = status["state"].as_str().unwrap_or_default().to_owned();
        (state, status["replica"]["serving"] == true)
    }

    /// Logs of both nodes, for failure messages.
    pub fn explain(&self) -> String {
        let [a, b] = &self.nodes;
        let states = [0, 1].map(|node| self.get(node, "/v1/volumes"));
        format!("{states:#?}\n{}\n\n{}", a.output(), b.output())
    }

    /// Document of the API of a node.
    pub fn get(&self, node: usize, path: &str) -> Value {
        get(&self.nodes[node].api(), path)
    }

    /// Data of a node's volumes as of the last checkpoint of its pool, in bytes.
    ///
    /// # Panics
    /// If the pool is not open.
    pub fn data_bytes(&self, node: usize) -> u64 {
        let pool = self.get(node, "/v1/pools/fast");
        pool["data_bytes"].as_u64().unwrap_or_else(|| panic!("{pool:#}"))
    }

    fn command(&self, node: usize, line: &str) -> Command {
        let mut command = Command::new(binary());
        command.args(line.split(' ')).arg("--api").arg(self.nodes[node].api());
        command.stdin(Stdio::null());
        command
    }

    fn output(&self, node: usize, line: &str) -> Output {
        self.command(node, line).output().expect("flagstone runs")
    }

    /// Starts a command, and kills its node after a pause.
    ///
    /// # Panics
    /// If the command cannot be started.
    pub fn kill_during(&mut self, node: usize, line: &str, pause: Duration) {
        let mut command = self.command(node, line);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut ordered = command.spawn().expect("flagstone runs");
        std::thread::sleep(pause);
        self.nodes[node].kill();
        ordered.wait().expect("it ends");
    }

    /// Standard output of a successful command.
    ///
    /// # Panics
    /// If it fails.
    #[track_caller]
    pub fn run(&self, node: usize, line: &str) -> String {
        let output = self.output(node, line);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{line}: {errors}\n{}", self.explain());
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Standard error of a refused command.
    ///
    /// # Panics
    /// If it succeeds.
    #[track_caller]
    pub fn refused(&self, node: usize, line: &str) -> String {
        let output = self.output(node, line);
        let printed = String::from_utf8_lossy(&output.stdout);
        assert_ne!(output.status.code(), Some(0), "{line}: {printed}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Writes to the volume through a node, and records the acknowledged writes in `state`.
    ///
    /// # Panics
    /// If a host would see an error.
    #[track_caller]
    pub fn write(&self, node: usize, state: &str) {
        let line = "--rw randwrite --depth 8 --ios 300 --size 8MiB";
        let target = self.nodes[node].nvme_uri("db");
        Load::start_verified(&target, line, &self.file(state)).wait().assert_complete();
    }

    /// Kills a node while hosts write through the other one, so that its log device has writes
    /// which its disks lack.
    ///
    /// # Panics
    /// If hosts do not write.
    pub fn kill_under_load(&mut self, node: usize) {
        let line = "--rw randwrite --bs 64k --depth 8 --ios 1000000000 --offset 16MiB --size 16MiB";
        let load = Load::start(&self.nodes[1 - node].nvme_uri("db"), line);
        let written = || self.get(1 - node, "/v1/volumes/db")["io"]["write"]["count"].as_u64();
        let before = written();
        until("hosts write", || written() > before.map(|count| count + 50), || self.explain());
        self.nodes[node].kill();
        drop(load);
    }

    /// Checks that a volume of a node has every acknowledged write.
    ///
    /// # Panics
    /// If a write is missing.
    #[track_caller]
    pub fn assert_kept(&self, node: usize, volume: &str, state: &str) {
        let line = "--rw randread --depth 4 --bs 64k --after-crash client";
        let target = self.nodes[node].nvme_uri(volume);
        let ended = Load::start_verified(&target, line, &self.file(state)).wait();
        assert_eq!(ended.code, Some(0), "{}\n{:#}", ended.log, ended.results);
        let verify = &ended.results["verify"];
        assert_eq!(verify["violations"], 0, "{verify:#}");
        assert!(verify["blocks_checked"].as_u64() > Some(0), "{verify:#}");
    }

    /// Compares both legs, from the node that serves.
    ///
    /// # Panics
    /// If they differ.
    #[track_caller]
    pub fn assert_equal_legs(&self, source: usize) {
        self.wait_for("mirroring");
        self.run(source, "mirror verify db --watch");
    }
}
