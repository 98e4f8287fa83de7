//! Bed of the drill: two nodes and a real etcd, as processes of this machine, whose links are
//! relayed so that they can be cut.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use flagstone_bench::os::Stopwatch;
use flagstone_bench::process::{Interrupt, Process, wait_for};
use rustix::process::Signal;
use serde::Deserialize;

use crate::Error;
use crate::failover::automatic::AutomaticDeath;
use crate::limits::STEP_TIMEOUT_S;
use crate::links::Link;
use crate::node::{LabNode, NODE_NAMES, NQN_PREFIX, ReportedState};
use crate::ports::free_ports;

pub(super) const VOLUME: &str = "db";
/// Size of each node's file, in bytes.
const NODE_BYTES: u64 = 128 << 20;
/// Latencies of the emulated disks, as in the other drill.
const LATENCIES: &str = "write_latency = \"1935us\", read_latency = \"800us\"";

/// The members of `flagstone mirror status --json` that the drill waits for.
#[derive(Debug, Deserialize)]
struct FailoverStatus {
    state: ReportedState,
    replica: Option<Serving>,
    failover: Option<WouldWin>,
}

#[derive(Debug, Deserialize)]
struct Serving {
    serving: bool,
}

#[derive(Debug, Deserialize)]
struct WouldWin {
    would_win: bool,
}

/// Path of the etcd program, from `PATH`.
///
/// # Errors
/// It is not installed.
pub fn find_etcd() -> Result<PathBuf, Error> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join("etcd"));
    let mut found = found.filter(|file| file.is_file());
    found.next().ok_or_else(|| {
        let text = "etcd is not installed: apt-get install etcd-server (scripts/setup.sh does)";
        flagstone_bench::Error::usage(text).into()
    })
}

/// Two nodes, an etcd and the links between them, which have the index of their node.
pub(super) struct Bed<'a> {
    nodes: [LabNode; 2],
    /// From the other node.
    peers: [Link; 2],
    /// From the host.
    hosts: [Link; 2],
    /// To etcd.
    arbiter: [Link; 2],
    /// Killed when dropped.
    _etcd: Process,
    interrupt: &'a Interrupt,
}

impl<'a> Bed<'a> {
    /// Starts all of it, and waits until both nodes are in sync.
    pub(super) fn start(
        (program, etcd): (&Path, &Path),
        directory: &Path,
        failover_after: Duration,
        interrupt: &'a Interrupt,
    ) -> Result<Bed<'a>, Error> {
        let [client, peer] = free_ports()?;
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let mut command = Command::new(etcd);
        command.arg("--data-dir").arg(directory.join("etcd"));
        command.args(["--listen-client-urls", &url(client)]);
        command.args(["--advertise-client-urls", &url(client)]);
        command.args(["--listen-peer-urls", &url(peer)]);
        command.args(["--initial-advertise-peer-urls", &url(peer)]);
        command.args(["--initial-cluster", &format!("default={}", url(peer))]);
        let running = Process::start_with_log(&mut command, &directory.join("etcd.log"))?;
        let ports: [u16; 2] = free_ports()?;
        let links = || Ok::<_, Error>([Link::to(ports[0])?, Link::to(ports[1])?]);
        let (peers, hosts) = (links()?, links()?);
        let arbiter = [Link::to(client)?, Link::to(client)?];
        let nodes = NODE_NAMES.map(|name| LabNode::new(program, directory, name));
        for (index, node) in nodes.iter().enumerate() {
            let (data, log) = (node.file("data"), node.file("intent"));
            std::fs::File::create(&data)
                .and_then(|file| file.set_len(NODE_BYTES))
                .map_err(Error::system("cannot create a node's file"))?;
            let (name, other, port) = (node.name(), NODE_NAMES[1 - index], ports[index]);
            let (link, socket) = (peers[1 - index].port(), node.file("sock"));
            let (arbiter, after) = (arbiter[index].port(), failover_after.as_millis());
            node.configure(&format!(
                "[server]\nnode = \"{name}\"\nlisten = [\"nvme-tcp://127.0.0.1:{port}\"]\n\
                 api = {socket:?}\n\n[peer.{other}]\naddress = \"127.0.0.1:{link}\"\n\
                 timeout = \"{after}ms\"\n\n[arbiter]\netcd = [\"http://127.0.0.1:{arbiter}\"]\n\n\
                 [volume.{VOLUME}]\nmirror = {{ peer = \"{other}\", intent_log = {log:?}, \
                 failover = \"automatic\", failover_after = \"{after}ms\" }}\n\
                 disk_model = {{ {LATENCIES} }}\ndevice = {data:?}\n"
            ))?;
        }
        let mut bed = Bed { nodes, peers, hosts, arbiter, _etcd: running, interrupt };
        for index in [1, 0] {
            bed.nodes[index].start(interrupt)?;
        }
        for (node, role) in bed.nodes.iter().zip(["--source", "--target"]) {
            node.mirror(&["create", VOLUME, role], interrupt)?;
        }
        Ok(bed)
    }

    /// Address of the volume for the host, through both nodes.
    pub(super) fn device(&self) -> String {
        let [a, b] = self.hosts.each_ref().map(Link::port);
        format!("nvme-tcp://127.0.0.1:{a},127.0.0.1:{b}/{NQN_PREFIX}{VOLUME}")
    }

    pub(super) fn name(&self, node: usize) -> &'static str {
        self.nodes[node].name()
    }

    fn status(&self, node: usize) -> Result<FailoverStatus, Error> {
        let text = self.nodes[node].mirror(&["status", VOLUME, "--json"], self.interrupt)?;
        serde_json::from_str(&text)
            .map_err(|error| Error::unexpected("flagstone mirror status", error))
    }

    fn wait<T>(&self, what: &str, look: impl Fn() -> Option<T>) -> Result<T, Error> {
        let found = wait_for(STEP_TIMEOUT_S, self.interrupt, look)?;
        found.ok_or_else(|| {
            let status =
                |node: usize| match self.nodes[node].mirror(&["status", VOLUME], self.interrupt) {
                    Ok(text) => text,
                    Err(error) => error.to_string(),
                };
            let said = format!("{}{}", status(0), status(1));
            Error::Node { node: "automatic failover".to_owned(), what: what.to_owned(), said }
        })
    }

    /// Waits until one node serves in sync and the other would take over; returns the source.
    pub(super) fn armed(&self) -> Result<usize, Error> {
        let is_armed = |source: usize| {
            let both = (self.status(source).ok()?, self.status(1 - source).ok()?);
            let target = both.1.failover.is_some_and(|failover| failover.would_win);
            let source_goes_on = both.0.failover.is_some_and(|failover| failover.would_win);
            (both.0.state == ReportedState::Mirroring && target && source_goes_on).then_some(source)
        };
        self.wait("the target does not become ready", || [0, 1].into_iter().find_map(is_armed))
    }

    /// Lets a source die, and waits until a node serves.
    pub(super) fn die(&mut self, source: usize, death: AutomaticDeath) -> Result<(), Error> {
        match death {
            AutomaticDeath::Kill => self.nodes[source].kill(),
            AutomaticDeath::Stall => self.nodes[source].fall_silent()?,
            AutomaticDeath::LinkCut => self.peers.iter().for_each(|link| link.cut(true)),
            AutomaticDeath::Isolation => {
                self.peers.iter().for_each(|link| link.cut(true));
                self.hosts[source].cut(true);
                self.arbiter[source].cut(true);
            }
            AutomaticDeath::Stop => self.nodes[source].stop(self.interrupt)?,
        }
        if death.moves_the_source() {
            let serves = || {
                let replica = self.status(1 - source).ok()?.replica?;
                replica.serving.then_some(())
            };
            self.wait("the target does not take over", serves)?;
        }
        if death.is_silent() {
            // A host waits for a silent target much longer than a peer does.
            self.hosts[source].close();
        }
        Ok(())
    }

    /// Brings back what died.
    pub(super) fn repair(&mut self, source: usize, death: AutomaticDeath) -> Result<(), Error> {
        match death {
            AutomaticDeath::Kill | AutomaticDeath::Stop => self.nodes[source].start(self.interrupt),
            AutomaticDeath::Stall => self.nodes[source].signal(Signal::CONT),
            AutomaticDeath::LinkCut | AutomaticDeath::Isolation => {
                self.peers.iter().chain(&self.hosts).chain(&self.arbiter).for_each(|link| {
                    link.cut(false);
                });
                Ok(())
            }
        }
    }

    pub(super) fn stop(mut self, source: usize) -> Result<(), Error> {
        // The target first: a source that stops hands its role over.
        self.nodes[1 - source].stop(self.interrupt)?;
        self.nodes[source].stop(self.interrupt)
    }
}

/// Longest interval without an acknowledged write, found by watching the file in which the host
/// records them.
pub(super) struct Silence {
    watch: Stopwatch,
    length: u64,
    changed_s: f64,
    /// Begin and end, in seconds.
    longest: (f64, f64),
}

impl Silence {
    pub(super) fn begin(length: u64) -> Silence {
        Silence { watch: Stopwatch::start(), length, changed_s: 0.0, longest: (0.0, 0.0) }
    }

    pub(super) fn look(&mut self, length: u64) {
        let now_s = self.watch.seconds();
        self.note(now_s, length);
    }

    fn note(&mut self, now_s: f64, length: u64) {
        if length == self.length {
            return;
        }
        if now_s - self.changed_s > self.longest.1 - self.longest.0 {
            self.longest = (self.changed_s, now_s);
        }
        (self.length, self.changed_s) = (length, now_s);
    }

    /// The interval's length in ms, if writes have been acknowledged for `calm_s` since it ended.
    pub(super) fn ended_ms(&self, calm_s: f64) -> Option<f64> {
        let is_over = self.longest.1 > 0.0
            && self.changed_s > self.longest.1
            && self.watch.seconds() - self.longest.1 >= calm_s
            && self.watch.seconds() - self.changed_s < self.longest.1 - self.longest.0;
        is_over.then_some((self.longest.1 - self.longest.0) * 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_interval_without_writes_is_found() {
        let mut silence = Silence::begin(10);
        assert_eq!(silence.ended_ms(0.0), None);
        for (at_s, length) in [(0.1, 20), (0.2, 30), (2.7, 31), (2.8, 40), (3.4, 41)] {
            silence.note(at_s, 30.min(length));
            silence.note(at_s, length);
        }
        assert_eq!(silence.longest, (0.2, 2.7));
    }
}
