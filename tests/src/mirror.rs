//! Two nodes that mirror a volume, as processes of this machine.

use std::path::{Path, PathBuf};
use std::process::Command;

use flagstone_lab::ports::free_ports;
use serde_json::Value;

use crate::environment::RunEnvironment;
use crate::load::Load;
use crate::network::{HOST_PORTS, HOSTS, LINK, Network};
use crate::process::{stall_process, until};
use crate::rng::Rng;
use crate::scratch::Scratch;
use crate::server::{NQN_PREFIX, Server, binary};
use crate::tools;
use crate::volatile_disk::VolatileDisk;

/// Name of the volume.
pub const VOLUME: &str = "db";

const NAMES: [&str; 2] = ["node-a", "node-b"];

/// Setup of two nodes.
#[derive(Debug, Default)]
pub struct Setup<'a> {
    /// Size of each mirrored file, in bytes.
    pub size_bytes: u64,
    /// Options in the mirror table, such as `mode = "async"`.
    pub options: &'a str,
    /// Options in the peer table, such as `compression = "lz4"`.
    pub peer: &'a str,
    /// Links time out after 20 s rather than 1 s: on a busy machine, the key exchange of an
    /// unoptimized build takes longer than that.
    pub patient: bool,
    /// Options of the listeners for NVMe/TCP, such as `?tls=allowed`.
    pub listen: &'a str,
    /// Options in the volume table of each node, such as `disk_model = { latency = "1ms" }`.
    pub volume: [&'a str; 2],
    /// Network between the nodes; this machine's loopback if `None`.
    pub network: Option<Network>,
    /// Small file system used by one node; requires a network.
    pub small: Option<Small>,
    /// Disks with a volatile cache, which can lose power and hang; intent logs are on them too.
    pub volatile: bool,
}

/// A small file system.
#[derive(Clone, Copy, Debug)]
pub struct Small {
    /// Node that uses it.
    pub node: usize,
    /// Holds the intent log rather than the data.
    pub log: bool,
    /// Capacity in bytes.
    pub room_bytes: u64,
}

/// Two mirroring nodes. Dropping them removes their setup.
#[derive(Debug)]
pub struct Pair {
    nodes: [Server; 2],
    /// Addresses for hosts.
    hosts: [String; 2],
    disks: [PathBuf; 2],
    /// Servers of these disks, of a pair with volatile caches.
    volatile: Vec<VolatileDisk>,
    small: Option<Small>,
    scratch: Scratch,
    /// Declared after the nodes, so it is dropped after them.
    network: Option<Network>,
}

impl Pair {
    /// Starts both nodes on files of `size_bytes`, each with its intent log beside its data.
    /// `options` go to the mirror table, such as `mode = "async"`. Mirroring does not start
    /// yet.
    ///
    /// # Panics
    ///
    /// If a node does not start to serve.
    pub fn start(size_bytes: u64, options: &str) -> Pair {
        Pair::set_up(Setup { size_bytes, options, ..Setup::default() })
    }

    /// As [`Pair::start`], from a setup.
    ///
    /// # Panics
    ///
    /// If a node does not start to serve.
    pub fn set_up(setup: Setup<'_>) -> Pair {
        let Setup {
            size_bytes,
            options,
            peer: way,
            patient,
            listen: query,
            volume,
            network,
            small,
            volatile,
        } = setup;
        let timeout = if patient { "20s" } else { "1s" };
        let scratch = Scratch::new();
        let place = |node: usize| network.as_ref().map(|network| network.node(node).clone());
        let places = [0, 1].map(|node| place(node).unwrap_or_default());
        let (links, hosts) = match network {
            Some(_) => (
                LINK.map(|address| format!("{address}:4420")),
                [0, 1].map(|node| format!("{}:{}", HOSTS[node], HOST_PORTS[node])),
            ),
            None => {
                let ports: [u16; 2] = free_ports().expect("ports are free");
                let addresses = ports.map(|port| format!("127.0.0.1:{port}"));
                (addresses.clone(), addresses)
            }
        };
        let disks = [0, 1].map(|node| match small {
            Some(small) if small.node == node && !small.log => {
                let disk = small_folder(&scratch, &places[node], small).join("disk");
                let size = size_bytes.to_string();
                places[node].run("truncate", &["-s", &size, disk.to_str().expect("UTF-8")]);
                disk
            }
            _ => scratch.disk(&format!("{}.disk", NAMES[node]), size_bytes),
        });
        let served =
            disks.iter().zip(NAMES).filter(|_| volatile).map(|(disk, name)| {
                VolatileDisk::serve(disk, scratch.join(&format!("{name}.nbd")))
            });
        let volatile: Vec<VolatileDisk> = served.collect();
        let nodes = [0, 1].map(|index| {
            let (node, peer) = (NAMES[index], NAMES[1 - index]);
            let (disk, others) = (&disks[index], &links[1 - index]);
            let log = match small {
                Some(small) if small.node == index && small.log => {
                    small_folder(&scratch, &places[index], small).join("intent")
                }
                _ => scratch.join(&format!("{node}.intent")),
            };
            let comma = if options.is_empty() { "" } else { ", " };
            let (device, log) = match volatile.get(index) {
                Some(disk) => (disk.device(), String::new()),
                None => (disk.display().to_string(), format!(", intent_log = {log:?}")),
            };
            let state = scratch.join(&format!("{node}.state"));
            let text = format!(
                "[server]\nnode = \"{node}\"\nstate = {state:?}\n[peer.{peer}]\naddress = \"{others}\"\ninsecure = true\n\
                 timeout = \"{timeout}\"\n{way}\n[volume.{VOLUME}]\nmirror = {{ peer = \
                 \"{peer}\"{log}{comma}{options} }}\n{}\ndevice = {device:?}\n",
                volume[index]
            );
            let file = scratch.join(&format!("{node}.toml"));
            std::fs::write(&file, text).expect("a configuration can be written");
            let mut listen = vec![format!("nvme-tcp://{}{query}", hosts[index])];
            if links[index] != hosts[index] {
                listen.push(format!("nvme-tcp://{}{query}", links[index]));
            }
            let host = hosts[index].split(':').next().unwrap_or_default();
            listen.push(format!("nbd://{host}:0"));
            let listen: Vec<&str> = listen.iter().map(String::as_str).collect();
            let file = file.to_str().expect("temporary paths are UTF-8");
            Server::start_at(&places[index], &[], &listen, &[file])
        });
        Pair { nodes, hosts, disks, volatile, small, scratch, network }
    }

    /// As [`Pair::start`], mirroring and in sync, with node 0 as the source.
    ///
    /// # Panics
    ///
    /// If the nodes do not get in sync.
    pub fn in_sync(size_bytes: u64, options: &str) -> Pair {
        Pair::set_up(Setup { size_bytes, options, ..Setup::default() }).synchronized()
    }

    /// As [`Pair::in_sync`], with a link that can be cut. Skips `test` and returns `None` where
    /// networks cannot be created.
    ///
    /// # Panics
    ///
    /// If the nodes do not get in sync.
    pub fn linked(test: &str, setup: Setup<'_>) -> Option<Pair> {
        match Network::make() {
            Ok(network) => {
                Some(Pair::set_up(Setup { network: Some(network), ..setup }).synchronized())
            }
            Err(reason) => {
                tools::unable(test, &format!("networks cannot be made here: {reason}"));
                None
            }
        }
    }

    /// Fills most of the first node's disk with this text, before mirroring starts.
    ///
    /// # Panics
    ///
    /// If the disk cannot be written.
    pub fn written(self, text: &str) -> Pair {
        use std::io::Write as _;
        let mut disk = std::fs::OpenOptions::new()
            .write(true)
            .open(&self.disks[0])
            .expect("a node's disk can be written");
        let size = disk.metadata().expect("it exists").len();
        let chunk = text.repeat((1 << 20) / text.len());
        // The end is reserved for the mirror's metadata.
        for _ in 0..(size / 4 * 3) >> 20 {
            disk.write_all(chunk.as_bytes()).expect("there is room");
        }
        disk.sync_all().expect("it can be written");
        self
    }

    /// Makes the first node the source and the other its target, and waits until they are in sync.
    ///
    /// # Panics
    ///
    /// If the nodes do not get in sync.
    pub fn synchronized(self) -> Pair {
        self.order(0, "create", &["--source"]);
        self.order(1, "create", &["--target"]);
        self.wait_for(0, "mirroring");
        self
    }

    /// Server of a node.
    pub fn node(&mut self, node: usize) -> &mut Server {
        &mut self.nodes[node]
    }

    /// Name of a node.
    pub fn name(&self, node: usize) -> &'static str {
        NAMES[node]
    }

    /// True if the nodes have a link that can be cut.
    pub fn is_linked(&self) -> bool {
        self.network.is_some()
    }

    /// Disk of a node, with the volume's data at its beginning.
    pub fn disk(&self, node: usize) -> &Path {
        &self.disks[node]
    }

    /// Network between the nodes.
    ///
    /// # Panics
    ///
    /// If there is no network.
    pub fn network(&self) -> &Network {
        self.network.as_ref().expect("it was set up with a network")
    }

    /// Changes the capacity of the small file system.
    ///
    /// # Panics
    ///
    /// If there is no small file system.
    pub fn make_room(&self, room_bytes: u64) {
        let small = self.small.expect("it was set up with a small file system");
        let folder = self.scratch.join("small");
        let line = ["-o", &format!("remount,size={room_bytes}"), folder.to_str().expect("UTF-8")];
        self.network().node(small.node).run("mount", &line);
    }

    /// Fills all free space of the small file system.
    ///
    /// # Panics
    ///
    /// If there is no small file system.
    pub fn fill_small(&self) {
        let small = self.small.expect("it was set up with a small file system");
        let filler = self.scratch.join("small").join("filler");
        let of = format!("of={}", filler.display());
        let line = ["if=/dev/zero", &of, "bs=4k", "status=none"];
        let full = self.network().node(small.node).try_run("dd", &line);
        assert!(full.is_err_and(|said| said.contains("No space")), "it is full");
    }

    /// Frees the space taken by [`Pair::fill_small`].
    ///
    /// # Panics
    ///
    /// If there is no small file system, or it was not filled.
    pub fn clear_small(&self) {
        let filler = self.scratch.join("small").join("filler");
        let place = self.network().node(self.small_node());
        place.run("rm", &[filler.to_str().expect("temporary paths are UTF-8")]);
    }

    /// Node with the small file system.
    ///
    /// # Panics
    ///
    /// If there is no small file system.
    pub fn small_node(&self) -> usize {
        self.small.expect("it was set up with a small file system").node
    }

    /// Discards a part of the volume that no verified load uses, as a host would.
    ///
    /// # Panics
    ///
    /// If the discard fails.
    pub fn empty_part(&self) {
        self.use_part("trim");
    }

    /// Overwrites all of the same part.
    ///
    /// # Panics
    ///
    /// If a host would see an error.
    pub fn write_part(&self) {
        self.use_part("write");
    }

    fn use_part(&self, pattern: &str) {
        let line = format!("--rw {pattern} --bs 256k --offset 20MiB --size 8MiB --ios 32");
        Load::start_at(&self.host(), &self.both_paths(), &line, None).wait().assert_complete();
    }

    /// Load target with the paths to both nodes.
    pub fn both_paths(&self) -> String {
        format!("nvme-tcp://{}/{NQN_PREFIX}{VOLUME}", self.hosts.join(","))
    }

    /// Host address and port of a node.
    pub fn host_address(&self, node: usize) -> (&str, &str) {
        self.hosts[node].split_once(':').expect("an address and a port")
    }

    /// Load target with the path to one node.
    pub fn path(&self, node: usize) -> String {
        self.nodes[node].nvme_uri(VOLUME)
    }

    /// Starts a verified load where hosts run.
    ///
    /// # Panics
    ///
    /// If it cannot be started.
    pub fn load(&self, target: &str, line: &str, state: &Path) -> Load {
        Load::start_at(&self.host(), target, line, Some(state))
    }

    /// Where host programs run.
    pub fn host(&self) -> RunEnvironment {
        self.network.as_ref().map_or_else(RunEnvironment::default, |network| network.host().clone())
    }

    /// A file in this test's directory.
    pub fn file(&self, name: &str) -> PathBuf {
        self.scratch.join(name)
    }

    /// Runs `flagstone mirror ACTION db` on a node and returns its JSON output.
    ///
    /// # Errors
    ///
    /// The error output of a failed command.
    pub fn try_order(&self, node: usize, action: &str, more: &[&str]) -> Result<Value, String> {
        let output = Command::new(binary())
            .args(["mirror", action, VOLUME, "--json", "--api"])
            .arg(self.nodes[node].api())
            .args(more)
            .output()
            .unwrap_or_else(|error| panic!("starting {}: {error}", binary().display()));
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}")))
    }

    /// As [`Pair::try_order`], for a command that must succeed.
    ///
    /// # Panics
    ///
    /// If the command fails.
    pub fn order(&self, node: usize, action: &str, more: &[&str]) -> Value {
        let done = self.try_order(node, action, more);
        done.unwrap_or_else(|said| {
            panic!("mirror {action} on {}: {said}\n{}", NAMES[node], self.nodes[node].output())
        })
    }

    /// Makes a node the source although its source does not answer.
    ///
    /// # Panics
    ///
    /// If the failover is refused.
    pub fn fail_over_to(&self, node: usize) {
        self.order(node, "failover", &["--force", "--yes"]);
    }

    /// Mirror status of a node.
    pub fn status(&self, node: usize) -> Value {
        self.order(node, "status", &[])
    }

    /// State toward the peer, as reported by a node.
    pub fn state(&self, node: usize) -> String {
        self.status(node)["state"].as_str().unwrap_or_default().to_owned()
    }

    /// Waits until a node reports this state.
    ///
    /// # Panics
    ///
    /// If the node does not reach the state.
    pub fn wait_for(&self, node: usize, state: &str) {
        let holds = || self.state(node) == state;
        until(&format!("{} is {state}", NAMES[node]), holds, || self.explain());
    }

    /// Status and logs of both nodes, for failure messages.
    fn explain(&self) -> String {
        let said = [0, 1].map(|node| format!("{:?}", self.try_order(node, "status", &[])));
        format!("{}\n{}\n{}", said.join("\n"), self.nodes[0].output(), self.nodes[1].output())
    }

    /// Waits until one node serves and both are in sync. Returns the serving node.
    ///
    /// # Panics
    ///
    /// If the nodes do not get there.
    pub fn source(&self) -> usize {
        let mut found = None;
        let serves = |node: &usize| {
            let status = self.status(*node);
            status["state"] == "mirroring" && status["replica"]["serving"] == true
        };
        let one = || {
            found = [0, 1].into_iter().find(serves);
            found.is_some()
        };
        until("one of the nodes serves, and both are in sync", one, || self.explain());
        found.expect("it was waited for")
    }

    /// Stops a node's process (SIGSTOP), or continues it: a stall, not a death.
    ///
    /// # Panics
    ///
    /// If the process does not run.
    pub fn stall(&self, node: usize, stalled: bool) {
        stall_process(self.nodes[node].pid(), stalled);
    }

    /// Kills a node's process. Its requests in flight have no effect on a volatile disk.
    pub fn kill(&mut self, node: usize) {
        self.nodes[node].kill();
        if let Some(disk) = self.volatile.get(node) {
            disk.change_owner();
        }
    }

    /// Kills a node's process and starts it again.
    ///
    /// # Panics
    ///
    /// If it does not start to serve again.
    pub fn restart(&mut self, node: usize) {
        self.kill(node);
        self.nodes[node].restart();
    }

    /// Cuts the power of a node: its process is killed, and a volatile disk loses any part of what
    /// was not flushed. Other disks keep everything.
    pub fn cut_power(&mut self, node: usize, rng: &mut Rng) {
        self.nodes[node].kill();
        if let Some(disk) = self.volatile.get(node) {
            let (unflushed, lost) = disk.lose_power(rng);
            eprintln!("{} lost {lost} of {unflushed} unflushed sectors", NAMES[node]);
        }
    }

    /// True if the disks can lose power and hang.
    pub fn is_volatile(&self) -> bool {
        !self.volatile.is_empty()
    }

    /// Makes a node's volatile disk hang, or answer again.
    ///
    /// # Panics
    ///
    /// If the disks are not volatile.
    pub fn hang_disk(&self, node: usize, hung: bool) {
        self.volatile[node].hang(hung);
    }

    /// Compares the legs with `cmp` while no write is in flight: they must be equal. Hosts must not
    /// send writes meanwhile; a node may still receive earlier ones, and is compared again then.
    ///
    /// # Panics
    ///
    /// If they differ, or the nodes do not get in sync.
    #[track_caller]
    pub fn assert_equal_legs(&self, source: usize) {
        let quiet = || {
            let status = self.status(source);
            let busy = [&status["replica"]["in_flight"], &status["peers"][0]["lag_writes"]];
            let quiet = status["state"] == "mirroring" && busy.iter().all(|count| **count == 0);
            quiet.then(|| status["replica"].clone())
        };
        let compared = || {
            let Some(before) = quiet() else { return false };
            let equal = self.compare_disks(before["size_bytes"].as_u64().expect("a size"));
            let after = quiet();
            let undisturbed = after.is_some_and(|after| after["writes"] == before["writes"]);
            if undisturbed && let Err(difference) = equal {
                panic!("the legs differ: {difference}\n{}", self.explain());
            }
            undisturbed
        };
        until("in sync, and no write is in flight", compared, || self.explain());
    }

    fn compare_disks(&self, size_bytes: u64) -> Result<String, String> {
        // A place that sees both disks: one may be in a file system of its node's mount namespace.
        let place = match (&self.network, self.small) {
            (Some(network), Some(small)) => network.node(small.node).clone(),
            _ => RunEnvironment::default(),
        };
        let [a, b] = self.disks.each_ref().map(|disk| disk.to_str().expect("UTF-8"));
        place.try_run("cmp", &["-n", &size_bytes.to_string(), a, b])
    }

    /// Stops both nodes cleanly, the source first, and compares their disks.
    ///
    /// # Panics
    ///
    /// If a node does not stop cleanly, or the disks differ.
    pub fn end(mut self, source: usize) {
        self.wait_for(source, "mirroring");
        let size = self.status(source)["replica"]["size_bytes"].as_u64().expect("a size");
        for node in [source, 1 - source] {
            let status = self.nodes[node].terminate();
            assert!(status.success(), "{status}\n{}", self.nodes[node].output());
        }
        self.compare_disks(size).unwrap_or_else(|difference| panic!("{difference}"));
    }

    /// Checks that a node serves every acknowledged write of a load, according to its state file.
    ///
    /// # Panics
    ///
    /// If a write is missing.
    #[track_caller]
    pub fn assert_kept(&self, node: usize, state: &str) {
        let line = "--rw randread --depth 4 --bs 64k --after-crash client";
        let ended = self.load(&self.path(node), line, &self.file(state)).wait();
        assert_eq!(ended.code, Some(0), "{}\n{:#}", ended.log, ended.results);
        let verify = &ended.results["verify"];
        assert_eq!(
            (&verify["violations"], &verify["read_back"]),
            (&0.into(), &true.into()),
            "{verify:#}"
        );
        assert!(verify["blocks_checked"].as_u64() > Some(0), "{verify:#}");
    }
}

fn small_folder(scratch: &Scratch, place: &RunEnvironment, small: Small) -> PathBuf {
    let folder = scratch.join("small");
    std::fs::create_dir(&folder).expect("a folder can be made");
    let size = format!("size={}", small.room_bytes);
    let path = folder.to_str().expect("temporary paths are UTF-8");
    place.run("mount", &["-t", "tmpfs", "-o", &size, "tmpfs", path]);
    folder
}
