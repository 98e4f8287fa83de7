//! A node of a lab: `flagstone serve` as a process of its own, and the commands that its operator
//! would type.
//!
//! Nothing of a node is in this process: it has a directory with its configuration, its log and the
//! socket of its API, and is killed as a machine dies.

use std::path::{Path, PathBuf};
use std::process::Command;

use flagstone_bench::os::{self, Interrupt, wait_for};
use serde::Deserialize;

use crate::Error;
use crate::limits::{OUTPUT_BYTES, PATIENCE_S, SAID_BYTES};
use crate::process::{Running, said};

/// What a volume's NQN begins with when its configuration names none.
pub(crate) const NQN_PREFIX: &str = "nqn.2026-01.io.flagstone:";

/// The names of the two nodes of a mirror: the first is the source at the start.
pub const NAMES: [&str; 2] = ["node-a", "node-b"];

/// A volume as hosts name it, by one node or by several.
pub fn device(ports: &[u16], volume: &str) -> String {
    let addresses: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    format!("nvme-tcp://{}/{NQN_PREFIX}{volume}", addresses.join(","))
}

/// What is read of `flagstone mirror status --json`.
#[derive(Clone, Debug, Deserialize)]
pub struct Status {
    /// Of the mirror, such as `mirroring`.
    pub state: String,
    /// Of each peer.
    pub peers: Vec<PeerStatus>,
    /// The replica on this node, if there is one.
    pub replica: Option<ReplicaStatus>,
}

/// A peer, as far as it is used here.
#[derive(Clone, Debug, Deserialize)]
pub struct PeerStatus {
    /// What resyncs have copied to it since the node started.
    pub copied_bytes: u64,
}

/// A replica, as far as it is used here.
#[derive(Clone, Debug, Deserialize)]
pub struct ReplicaStatus {
    /// Of the volume.
    pub size_bytes: u64,
}

/// One node.
#[derive(Debug)]
pub struct Node {
    program: PathBuf,
    directory: PathBuf,
    name: &'static str,
    starts: u32,
    running: Option<Running>,
}

impl Node {
    /// One that is not running yet; its files go into `directory`, which is there.
    pub fn new(program: &Path, directory: &Path, name: &'static str) -> Node {
        let (program, directory) = (program.to_owned(), directory.to_owned());
        Node { program, directory, name, starts: 0, running: None }
    }

    /// By which its peers know it.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// A file of this node: `sock` is its API's socket, `toml` its configuration.
    pub fn file(&self, what: &str) -> PathBuf {
        self.directory.join(format!("{}.{what}", self.name))
    }

    /// Writes its configuration, which says `api = {file("sock")}`.
    ///
    /// # Errors
    /// The system's.
    pub fn configure(&self, text: &str) -> Result<(), Error> {
        std::fs::write(self.file("toml"), text)
            .map_err(Error::system("cannot write a node's configuration"))
    }

    /// The same of a server without peers, which listens on these addresses.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn configure_alone(&self, listen: &[String], volumes: &str) -> Result<(), Error> {
        let socket = self.file("sock");
        let head = format!("[server]\nlisten = {listen:?}\napi = {socket:?}\ncores = 1\n\n");
        self.configure(&(head + volumes))
    }

    /// Starts it, and waits until it serves.
    ///
    /// # Errors
    /// That it ends or does not come to serve, with what it said; the user's interruption.
    pub fn start(&mut self, interrupt: &Interrupt) -> Result<(), Error> {
        // Each start has a log of its own: what a node said before its death stays.
        self.starts += 1;
        let log = self.log();
        let mut serve = Command::new(&self.program);
        serve.arg("serve").arg(self.file("toml"));
        let mut running = Running::start(&mut serve, &log)?;
        let serves = wait_for(PATIENCE_S, interrupt, || match running.ended() {
            Ok(None) => said_whole(&log).contains("listening on ").then_some(Ok(true)),
            Ok(Some(_)) => Some(Ok(false)),
            Err(error) => Some(Err(error)),
        })?;
        match serves.transpose()? {
            Some(true) => {
                self.running = Some(running);
                Ok(())
            }
            Some(false) => Err(self.failed("it ended instead of serving")),
            None => Err(self.failed("it does not come to serve")),
        }
    }

    fn log(&self) -> PathBuf {
        self.file(&format!("{}.log", self.starts))
    }

    fn failed(&self, what: &str) -> Error {
        Error::Node { node: self.name.to_owned(), what: what.to_owned(), said: said(&self.log()) }
    }

    /// Kills it, as the loss of its power would; nothing if it is not running.
    pub fn kill(&mut self) {
        if let Some(running) = self.running.take() {
            running.kill();
        }
    }

    /// Stops it where it is, as the loss of its power looks from outside: it answers nothing any
    /// more and closes nothing. Nothing if it is not running; then it can only be killed.
    ///
    /// # Errors
    /// The system's.
    pub fn fall_silent(&self) -> Result<(), Error> {
        self.running.as_ref().map_or(Ok(()), Running::freeze)
    }

    /// Stops it in order; nothing if it is not running.
    ///
    /// # Errors
    /// That it ends badly or not at all, and the user's interruption.
    pub fn stop(&mut self, interrupt: &Interrupt) -> Result<(), Error> {
        let Some(running) = self.running.take() else { return Ok(()) };
        match running.stop(interrupt)? {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(self.failed(&format!("told to stop, it ended with {status}"))),
            None => Err(self.failed("told to stop, it goes on")),
        }
    }

    /// Runs `flagstone mirror` for this node; gives what it printed.
    ///
    /// # Errors
    /// [`Error::Command`] with what it said, and the user's interruption.
    pub fn mirror(&self, arguments: &[&str], interrupt: &Interrupt) -> Result<String, Error> {
        let mut mirror = Command::new(&self.program);
        mirror.arg("mirror").args(arguments).arg("--api").arg(self.file("sock"));
        let ended = os::run(&mut mirror, OUTPUT_BYTES, interrupt, &mut || {})?;
        match ended.status.success() {
            true => Ok(ended.output),
            false => Err(Error::Command {
                command: format!("flagstone mirror {}", arguments.join(" ")),
                node: self.name.to_owned(),
                status: ended.status.to_string(),
                said: ended.said(SAID_BYTES),
            }),
        }
    }

    /// How a mirror on this node does.
    ///
    /// # Errors
    /// As [`Node::mirror`]; what it printed, if that is no status.
    pub fn status(&self, volume: &str, interrupt: &Interrupt) -> Result<Status, Error> {
        let text = self.mirror(&["status", volume, "--json"], interrupt)?;
        serde_json::from_str(&text).map_err(|error| Error::Unexpected {
            what: "flagstone mirror status".to_owned(),
            detail: error.to_string(),
        })
    }

    /// Waits until a mirror is in this state.
    ///
    /// # Errors
    /// As [`Node::status`]; that it does not come into it.
    pub fn wait(&self, volume: &str, state: &str, interrupt: &Interrupt) -> Result<Status, Error> {
        let mut last = String::new();
        let found = wait_for(PATIENCE_S, interrupt, || match self.status(volume, interrupt) {
            Ok(status) if status.state == state => Some(Ok(status)),
            Ok(status) => {
                last = status.state;
                None
            }
            Err(error) => Some(Err(error)),
        })?;
        found.unwrap_or_else(|| {
            Err(self.failed(&format!("{volume} is {last} and does not become {state}")))
        })
    }

    /// Makes this node the source, however long it takes until it has noticed that the other one
    /// is dead: until then it refuses.
    ///
    /// # Errors
    /// What it says in the end.
    pub fn fail_over(&self, volume: &str, interrupt: &Interrupt) -> Result<(), Error> {
        let mut last = None;
        let done = wait_for(PATIENCE_S, interrupt, || {
            match self.mirror(&["failover", volume, "--yes"], interrupt) {
                Ok(_) => Some(Ok(())),
                Err(error @ Error::Command { .. }) => {
                    last = Some(error);
                    None
                }
                Err(error) => Some(Err(error)),
            }
        })?;
        done.unwrap_or_else(|| Err(last.unwrap_or_else(|| self.failed("it does not take over"))))
    }
}

/// All that a node said so far.
fn said_whole(log: &Path) -> String {
    os::read_text(log, crate::limits::LOG_BYTES).unwrap_or_default()
}

/// Two nodes of a mirror, on ports of this machine.
#[derive(Debug)]
pub struct Pair {
    /// The source at the start.
    pub a: Node,
    /// The target at the start.
    pub b: Node,
    /// On which they serve.
    pub ports: [u16; 2],
}

impl Pair {
    /// Two that are not running yet, with their files in `directory`.
    ///
    /// # Errors
    /// That there are no free ports.
    pub fn new(program: &Path, directory: &Path) -> Result<Pair, Error> {
        let [a, b] = NAMES.map(|name| Node::new(program, directory, name));
        Ok(Pair { a, b, ports: crate::ports::free_ports()? })
    }

    /// The beginning of the configuration of one of them: 0 is the source.
    pub fn preamble(&self, index: usize, server: &str, peer: &str) -> String {
        let node = [&self.a, &self.b][index];
        format!(
            "[server]\nnode = \"{}\"\nlisten = [\"nvme-tcp://127.0.0.1:{}\"]\napi = {:?}\n{server}\n\
             [peer.{}]\naddress = \"127.0.0.1:{}\"\n{peer}\n",
            node.name(),
            self.ports[index],
            node.file("sock"),
            NAMES[1 - index],
            self.ports[1 - index],
        )
    }

    /// Starts both, makes the mirrors of these volumes, and waits until both sides are equal.
    ///
    /// # Errors
    /// As those of [`Node`].
    pub fn start(&mut self, mirrored: &[&str], interrupt: &Interrupt) -> Result<(), Error> {
        // The target first: the source may use a volume of it, and does not start without.
        self.b.start(interrupt)?;
        self.a.start(interrupt)?;
        for volume in mirrored {
            self.a.mirror(&["create", volume, "--source"], interrupt)?;
            self.b.mirror(&["create", volume, "--target"], interrupt)?;
        }
        for volume in mirrored {
            self.a.wait(volume, "mirroring", interrupt)?;
        }
        Ok(())
    }

    /// Stops both in order.
    ///
    /// # Errors
    /// As [`Node::stop`].
    pub fn stop(&mut self, interrupt: &Interrupt) -> Result<(), Error> {
        // The target last: the source would else note that it is out of date.
        self.a.stop(interrupt)?;
        self.b.stop(interrupt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_are_named_by_all_nodes() {
        assert_eq!(
            device(&[1, 2], "db"),
            "nvme-tcp://127.0.0.1:1,127.0.0.1:2/nqn.2026-01.io.flagstone:db"
        );
    }

    #[test]
    fn a_node_that_ends_says_why() {
        let directory = tempfile::tempdir().unwrap();
        let mut node = Node::new(Path::new("false"), directory.path(), "node-a");
        node.configure("").unwrap();
        let error = node.start(&Interrupt::never()).unwrap_err().to_string();
        assert!(error.starts_with("node-a: it ended instead of serving"), "{error}");
    }
}
