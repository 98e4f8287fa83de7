//! Two nodes that mirror a volume, as processes of this machine.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::process::until;
use crate::scratch::Scratch;
use crate::server::{NQN_PREFIX, Server, binary};

/// The volume's name.
pub const VOLUME: &str = "db";

const NAMES: [&str; 2] = ["node-a", "node-b"];

/// Two nodes; what they are made of goes with them.
#[derive(Debug)]
pub struct Pair {
    nodes: [Server; 2],
    ports: [u16; 2],
    scratch: Scratch,
}

impl Pair {
    /// Starts both, of files of `size_bytes`, with the log beside them, and `options` in the
    /// table of the mirror (such as `mode = "async"`). Nothing is mirrored yet.
    ///
    /// # Panics
    /// If one does not come to serve.
    pub fn start(size_bytes: u64, options: &str) -> Pair {
        let scratch = Scratch::new();
        let free = |_| TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let ports = [0, 1].map(free).map(|listener| listener.local_addr().expect("bound").port());
        let nodes = [0, 1].map(|index| {
            let (node, peer) = (NAMES[index], NAMES[1 - index]);
            let disk = scratch.disk(&format!("{node}.disk"), size_bytes);
            let (log, others) = (scratch.join(&format!("{node}.intent")), ports[1 - index]);
            let comma = if options.is_empty() { "" } else { ", " };
            let text = format!(
                "[server]\nnode = \"{node}\"\n[peer.{peer}]\naddress = \"127.0.0.1:{others}\"\n\
                 timeout = \"1s\"\n[volume.{VOLUME}]\nmirror = {{ peer = \"{peer}\", \
                 bitmap = {log:?}{comma}{options} }}\ndevice = {disk:?}\n"
            );
            let file = scratch.join(&format!("{node}.toml"));
            std::fs::write(&file, text).expect("a configuration can be written");
            let listen = format!("nvme-tcp://127.0.0.1:{}", ports[index]);
            let file = file.to_str().expect("temporary paths are UTF-8");
            Server::start_with(&[], &[&listen], &[file])
        });
        Pair { nodes, ports, scratch }
    }

    /// The same, mirrored and in sync: node 0 is the source.
    ///
    /// # Panics
    /// If it does not come to that.
    pub fn in_sync(size_bytes: u64, options: &str) -> Pair {
        let pair = Pair::start(size_bytes, options);
        pair.order(0, "create", &["--source"]);
        pair.order(1, "create", &["--target"]);
        pair.wait_for(0, "mirroring");
        pair
    }

    /// A node.
    pub fn node(&mut self, node: usize) -> &mut Server {
        &mut self.nodes[node]
    }

    /// The volume as a host reaches it by both nodes.
    pub fn both_paths(&self) -> String {
        let [a, b] = self.ports;
        format!("nvme-tcp://127.0.0.1:{a},127.0.0.1:{b}/{NQN_PREFIX}{VOLUME}")
    }

    /// The same by one.
    pub fn path(&self, node: usize) -> String {
        self.nodes[node].nvme_uri(VOLUME)
    }

    /// A file of this test's own.
    pub fn file(&self, name: &str) -> PathBuf {
        self.scratch.join(name)
    }

    /// Runs `flagstone mirror ACTION db` on a node; gives what it printed as JSON, or what it said
    /// when it failed.
    ///
    /// # Errors
    /// Its words.
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

    /// The same of an order that is carried out.
    ///
    /// # Panics
    /// If it is not.
    pub fn order(&self, node: usize, action: &str, more: &[&str]) -> Value {
        let done = self.try_order(node, action, more);
        done.unwrap_or_else(|said| {
            panic!("mirror {action} on {}: {said}\n{}", NAMES[node], self.nodes[node].output())
        })
    }

    /// Makes a node the source, once it has noticed that the source is gone.
    ///
    /// # Panics
    /// If it is refused for good.
    pub fn fail_over_to(&self, node: usize) {
        let mut said = String::new();
        let done = || match self.try_order(node, "failover", &["--yes"]) {
            Ok(_) => true,
            Err(error) => {
                said = error;
                false
            }
        };
        until("the failover is carried out", done, || self.nodes[node].output());
    }

    /// What a node says of the mirror.
    pub fn status(&self, node: usize) -> Value {
        self.order(node, "status", &[])
    }

    /// The state towards the peer, as a node says.
    pub fn state(&self, node: usize) -> String {
        self.status(node)["state"].as_str().unwrap_or_default().to_owned()
    }

    /// Waits until a node says this.
    ///
    /// # Panics
    /// If it does not come to that.
    pub fn wait_for(&self, node: usize, state: &str) {
        let explain = || {
            let said = [0, 1].map(|node| format!("{:?}", self.try_order(node, "status", &[])));
            format!("{}\n{}\n{}", said.join("\n"), self.nodes[0].output(), self.nodes[1].output())
        };
        until(&format!("{} is {state}", NAMES[node]), || self.state(node) == state, explain);
    }

    /// Waits until one of the nodes serves and both are in sync; gives which.
    ///
    /// # Panics
    /// If it does not come to that.
    pub fn source(&self) -> usize {
        let mut found = None;
        let serves = |node: &usize| {
            let status = self.status(*node);
            status["state"] == "mirroring" && status["replica"]["active"] == true
        };
        let one = || {
            found = [0, 1].into_iter().find(serves);
            found.is_some()
        };
        let explain = || self.nodes.iter().map(Server::output).collect();
        until("one of the nodes serves, and both are in sync", one, explain);
        found.expect("it was waited for")
    }

    /// Stops a node's process in its tracks, or lets it go on: a stall, not a death.
    ///
    /// # Panics
    /// If it does not run.
    pub fn stall(&self, node: usize, stalled: bool) {
        let signal = if stalled { Signal::STOP } else { Signal::CONT };
        let pid = Pid::from_raw(self.nodes[node].pid() as i32).expect("a process has a number");
        kill_process(pid, signal).expect("a child that was not waited for can be signalled");
    }
}
