//! Node of an emulated test bed: `flagstone serve` as a process, and the commands of its operator.
//!
//! Invariants: nothing of a node runs in this process. Its configuration, log and API socket are
//! files in its directory. It is killed as a machine dies, and when it is dropped.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use flagstone_bench::os::read_text;
use flagstone_bench::process::{self, Interrupt, Process, wait_for};
use rustix::process::Signal;
use serde::Deserialize;

use crate::Error;
use crate::limits::{LOG_BYTES, OUTPUT_BYTES, SAID_BYTES, STEP_TIMEOUT_S};

/// Prefix of the NQN of a volume without a configured one.
pub(crate) const NQN_PREFIX: &str = "nqn.2026-01.io.flagstone:";

/// Names of the two nodes of a mirror; the first is the source at the start.
pub(crate) const NODE_NAMES: [&str; 2] = ["node-a", "node-b"];

/// Address of a volume for hosts, through one node or several.
pub(crate) fn device(ports: &[u16], volume: &str) -> String {
    let addresses: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    format!("nvme-tcp://{}/{NQN_PREFIX}{volume}", addresses.join(","))
}

/// The members of `flagstone mirror status --json` that are used.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ReportedMirror {
    pub state: ReportedState,
    pub peers: Vec<ReportedPeer>,
    pub replica: Option<ReportedReplica>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ReportedState {
    Mirroring,
    Target,
    #[serde(untagged)]
    Other(String),
}

impl std::fmt::Display for ReportedState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            ReportedState::Mirroring => "mirroring",
            ReportedState::Target => "target",
            ReportedState::Other(name) => name,
        })
    }
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ReportedPeer {
    /// Bytes that resyncs have copied to the peer since the node started.
    pub copied_bytes: u64,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ReportedReplica {
    pub size_bytes: u64,
}

/// Repeats `attempt` while it fails as a command or returns nothing yet. After `seconds_max` it
/// returns the last failure, or the error `late` if none failed.
pub(crate) fn retry<T>(
    seconds_max: f64,
    interrupt: &Interrupt,
    mut attempt: impl FnMut() -> Result<Option<T>, Error>,
    late: impl FnOnce() -> Error,
) -> Result<T, Error> {
    let mut last = None;
    let done = wait_for(seconds_max, interrupt, || match attempt() {
        Ok(found) => found.map(Ok),
        Err(error @ Error::Command { .. }) => {
            last = Some(error);
            None
        }
        Err(error) => Some(Err(error)),
    })?;
    done.unwrap_or_else(|| Err(last.unwrap_or_else(late)))
}

#[derive(Debug)]
pub(crate) struct LabNode {
    program: PathBuf,
    directory: PathBuf,
    name: &'static str,
    starts: u32,
    running: Option<Process>,
}

impl LabNode {
    /// A node that is not running yet, with its files in an existing directory.
    pub(crate) fn new(program: &Path, directory: &Path, name: &'static str) -> LabNode {
        let (program, directory) = (program.to_owned(), directory.to_owned());
        LabNode { program, directory, name, starts: 0, running: None }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// A file of this node: `sock` is the API socket, `toml` the configuration.
    pub(crate) fn file(&self, what: &str) -> PathBuf {
        self.directory.join(format!("{}.{what}", self.name))
    }

    /// Writes the configuration, which must contain `api = {file("sock")}`.
    pub(crate) fn configure(&self, text: &str) -> Result<(), Error> {
        std::fs::write(self.file("toml"), text)
            .map_err(Error::system("cannot write a node's configuration"))
    }

    /// Writes the configuration of a server without peers that listens on these addresses.
    pub(crate) fn configure_alone(&self, listen: &[String], volumes: &str) -> Result<(), Error> {
        let socket = self.file("sock");
        let head = format!("[server]\nlisten = {listen:?}\napi = {socket:?}\ncores = 1\n\n");
        self.configure(&(head + volumes))
    }

    /// Starts the node and waits until it serves.
    ///
    /// # Errors
    /// It ends or does not serve within [`STEP_TIMEOUT_S`], with the end of its log; the user's
    /// interruption.
    pub(crate) fn start(&mut self, interrupt: &Interrupt) -> Result<(), Error> {
        // Each start has its own log, so that logs from before a death are kept.
        self.starts += 1;
        let log = self.log();
        let mut serve = Command::new(&self.program);
        serve.arg("serve").arg(self.file("toml"));
        let mut running = Process::start_with_log(&mut serve, &log)?;
        let mut serves = || -> Result<Option<bool>, Error> {
            match running.try_wait()? {
                Some(_) => Ok(Some(false)),
                None => {
                    let log = running.output_so_far(LOG_BYTES)?;
                    Ok(log.contains("listening on ").then_some(true))
                }
            }
        };
        match wait_for(STEP_TIMEOUT_S, interrupt, || serves().transpose())?.transpose()? {
            Some(true) => {
                self.running = Some(running);
                Ok(())
            }
            Some(false) => Err(self.failed("it ended instead of serving")),
            None => Err(self.failed("it does not serve")),
        }
    }

    fn log(&self) -> PathBuf {
        self.file(&format!("{}.log", self.starts))
    }

    fn failed(&self, what: &str) -> Error {
        let log = read_text(&self.log(), LOG_BYTES).unwrap_or_default();
        let said = process::tail(log.trim_end(), SAID_BYTES).to_owned();
        Error::Node { node: self.name.to_owned(), what: what.to_owned(), said }
    }

    /// Kills the node, like a loss of power; does nothing if it is not running.
    pub(crate) fn kill(&mut self) {
        self.running = None;
    }

    /// Stops the process with SIGSTOP, which looks like a loss of power from outside: it answers
    /// nothing and closes nothing. Afterwards it can only be killed. Does nothing if it is not
    /// running.
    pub(crate) fn fall_silent(&self) -> Result<(), Error> {
        self.signal(Signal::STOP)
    }

    /// Sends a signal to the process. Does nothing if it is not running.
    pub(crate) fn signal(&self, signal: Signal) -> Result<(), Error> {
        self.running.as_ref().map_or(Ok(()), |running| Ok(running.signal(signal)?))
    }

    /// Stops the node with SIGTERM; does nothing if it is not running.
    ///
    /// # Errors
    /// It fails or does not end; the user's interruption.
    pub(crate) fn stop(&mut self, interrupt: &Interrupt) -> Result<(), Error> {
        let Some(mut running) = self.running.take() else { return Ok(()) };
        running.signal(Signal::TERM)?;
        match running.wait(Duration::from_secs_f64(STEP_TIMEOUT_S), interrupt)? {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(self.failed(&format!("it was stopped and ended with {status}"))),
            None => Err(self.failed("it does not stop")),
        }
    }

    /// Runs `flagstone mirror` for this node; returns its output.
    ///
    /// # Errors
    /// [`Error::Command`]; the user's interruption.
    pub(crate) fn mirror(
        &self,
        arguments: &[&str],
        interrupt: &Interrupt,
    ) -> Result<String, Error> {
        let mut mirror = Command::new(&self.program);
        mirror.arg("mirror").args(arguments).arg("--api").arg(self.file("sock"));
        let ended = process::run(&mut mirror, OUTPUT_BYTES, interrupt, &mut || {})?;
        let command = || format!("flagstone mirror {}", arguments.join(" "));
        match ended.status.success() {
            true => Ok(ended.output),
            false => Err(Error::command(&command(), self.name, &ended)),
        }
    }

    /// Status of a mirror on this node.
    ///
    /// # Errors
    /// As [`LabNode::mirror`]; output that is no status.
    pub(crate) fn status(
        &self,
        volume: &str,
        interrupt: &Interrupt,
    ) -> Result<ReportedMirror, Error> {
        let text = self.mirror(&["status", volume, "--json"], interrupt)?;
        serde_json::from_str(&text)
            .map_err(|error| Error::unexpected("flagstone mirror status", error))
    }

    /// Waits until a mirror is in a state.
    ///
    /// # Errors
    /// As [`LabNode::status`]; the mirror does not reach the state within [`STEP_TIMEOUT_S`].
    pub(crate) fn wait(
        &self,
        volume: &str,
        state: ReportedState,
        interrupt: &Interrupt,
    ) -> Result<ReportedMirror, Error> {
        let mut last = None;
        let found = wait_for(STEP_TIMEOUT_S, interrupt, || match self.status(volume, interrupt) {
            Ok(status) if status.state == state => Some(Ok(status)),
            Ok(status) => {
                last = Some(status.state);
                None
            }
            Err(error) => Some(Err(error)),
        })?;
        found.unwrap_or_else(|| {
            let last = last.map_or_else(String::new, |last| last.to_string());
            Err(self.failed(&format!("{volume} is {last} and does not become {state}")))
        })
    }

    /// Makes this node the source after its peer was killed or stopped. Repeats a refused command.
    pub(crate) fn fail_over(&self, volume: &str, interrupt: &Interrupt) -> Result<(), Error> {
        let attempt =
            || self.mirror(&["failover", volume, "--force", "--yes"], interrupt).map(Some);
        let late = || self.failed("it does not take over");
        retry(STEP_TIMEOUT_S, interrupt, attempt, late).map(drop)
    }
}

#[derive(Debug)]
pub(crate) struct NodePair {
    /// Source at the start.
    pub a: LabNode,
    /// Target at the start.
    pub b: LabNode,
    /// TCP ports on which they serve.
    pub ports: [u16; 2],
}

impl NodePair {
    /// Two nodes that are not running yet, with their files in an existing directory.
    pub(crate) fn new(program: &Path, directory: &Path) -> Result<NodePair, Error> {
        let [a, b] = NODE_NAMES.map(|name| LabNode::new(program, directory, name));
        Ok(NodePair { a, b, ports: crate::ports::free_ports()? })
    }

    /// First part of the configuration of node A (0) or B (1).
    pub(crate) fn preamble(&self, index: usize, server: &str, peer: &str) -> String {
        let node = [&self.a, &self.b][index];
        format!(
            "[server]\nnode = \"{}\"\nlisten = [\"nvme-tcp://127.0.0.1:{}\"]\napi = {:?}\n{server}\n\
             [peer.{}]\naddress = \"127.0.0.1:{}\"\n{peer}\n",
            node.name(),
            self.ports[index],
            node.file("sock"),
            NODE_NAMES[1 - index],
            self.ports[1 - index],
        )
    }

    /// Starts both nodes, creates the mirrors of these volumes, and waits until they are in sync.
    pub(crate) fn start(&mut self, mirrored: &[&str], interrupt: &Interrupt) -> Result<(), Error> {
        // The target starts first, because the source may use one of its volumes.
        self.b.start(interrupt)?;
        self.a.start(interrupt)?;
        for volume in mirrored {
            self.a.mirror(&["create", volume, "--source"], interrupt)?;
            self.b.mirror(&["create", volume, "--target"], interrupt)?;
        }
        for volume in mirrored {
            self.a.wait(volume, ReportedState::Mirroring, interrupt)?;
        }
        Ok(())
    }

    pub(crate) fn stop(&mut self, interrupt: &Interrupt) -> Result<(), Error> {
        // The target stops last; otherwise the source would record that it is out of sync.
        self.a.stop(interrupt)?;
        self.b.stop(interrupt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volume_address_has_all_nodes() {
        assert_eq!(
            device(&[1, 2], "db"),
            "nvme-tcp://127.0.0.1:1,127.0.0.1:2/nqn.2026-01.io.flagstone:db"
        );
    }

    #[test]
    fn node_that_ends_early_reports_its_status() {
        let directory = tempfile::tempdir().unwrap();
        let mut node = LabNode::new(Path::new("false"), directory.path(), "node-a");
        node.configure("").unwrap();
        let error = node.start(&Interrupt::never()).unwrap_err().to_string();
        assert!(error.starts_with("node-a: it ended instead of serving"), "{error}");
    }
}
