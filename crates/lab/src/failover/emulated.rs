//! Drill on two nodes that are processes of this machine, with emulated disks or plain files.

use std::path::{Path, PathBuf};

use flagstone_bench::attach::InitiatorChoice;
use flagstone_bench::os::Stopwatch;
use flagstone_bench::process::Interrupt;
use flagstone_bench::provenance::{Origin, Provenance};
use flagstone_bench::target::{BenchTarget, DiskAddress};

use super::{Death, DrillFacts, DrillLog, DrillNodes, Follower, Resynced, TARGET};
use crate::Error;
use crate::bed::{BedTargets, RunOptions};
use crate::node::{NODE_NAMES, NodePair, ReportedState, device};

const VOLUME: &str = "db";
/// Size of each node's file, in bytes.
const NODE_BYTES: u64 = 256 << 20;
/// Time after which a silent peer is considered dead: the least time that the host waits.
pub(super) const PEER_TIMEOUT: &str = "2s";
/// Latencies of the emulated disks: the published write latency at 8K, and a read of such a disk.
const LATENCIES: &str = "write_latency = \"1935us\", read_latency = \"800us\"";

#[derive(Clone, Debug)]
pub struct EmulatedFailover {
    /// Existing directory for the nodes' files, which are removed at the end.
    pub directory: PathBuf,
    pub death: Death,
    /// Whether the disks have the latency of SSD persistent disks, or that of the files.
    pub is_emulated: bool,
}

impl EmulatedFailover {
    pub(super) fn nodes<'a>(
        &'a self,
        run: &RunOptions,
        scratch: &Path,
        interrupt: &'a Interrupt,
    ) -> Result<LocalNodes<'a>, Error> {
        let pair = NodePair::new(&run.program, scratch)?;
        let mut stack = String::new();
        for (index, node) in [&pair.a, &pair.b].into_iter().enumerate() {
            let (data, log) = (node.file("data"), node.file("intent"));
            std::fs::File::create(&data)
                .and_then(|file| file.set_len(NODE_BYTES))
                .map_err(Error::system("cannot create a node's file"))?;
            let emulate = match self.is_emulated {
                true => format!("disk_model = {{ {LATENCIES} }}\n"),
                false => String::new(),
            };
            let peer = NODE_NAMES[1 - index];
            let volume = |data: &str, log: &str| {
                format!(
                    "[volume.{VOLUME}]\nmirror = {{ peer = \"{peer}\", intent_log = {log} }}\n\
                     {emulate}device = {data}\n"
                )
            };
            let timeout = format!("timeout = \"{PEER_TIMEOUT}\"\n");
            let text = pair.preamble(index, "", &timeout)
                + &volume(&format!("{data:?}"), &format!("{log:?}"));
            node.configure(&text)?;
            stack += &format!("# on {}\n{}", node.name(), volume("\"FILE\"", "\"FILE\""));
        }
        Ok(LocalNodes { bed: self, interrupt, pair, stack })
    }
}

pub(super) struct LocalNodes<'a> {
    bed: &'a EmulatedFailover,
    interrupt: &'a Interrupt,
    pair: NodePair,
    /// Configuration of the volume on both nodes, for the results.
    stack: String,
}

impl DrillNodes for LocalNodes<'_> {
    fn facts(&self) -> Result<DrillFacts, Error> {
        let EmulatedFailover { death, is_emulated, .. } = *self.bed;
        let provenance = if is_emulated { Provenance::Emulated } else { Provenance::Served };
        let address = device(&self.pair.ports, VOLUME);
        let origin = Origin { provenance, stack: self.stack.clone() };
        let targets = BedTargets {
            machine: None,
            destroy: Vec::new(),
            origins: [(address.clone(), origin)].into(),
            precondition: false,
            initiator: InitiatorChoice::Flagstone,
        };
        // A comma separates disks in a target's text; this is one disk with two paths.
        let disks = vec![DiskAddress::NvmeTcp(address)];
        let target = BenchTarget { name: TARGET.to_owned(), disks };
        let caveats = self.caveats();
        Ok(DrillFacts { target, targets, provenance, death, slack_s: 0.0, caveats })
    }

    fn prepare(&mut self, follower: &mut dyn Follower) -> Result<u64, Error> {
        follower.begin("mirroring a volume to a second node");
        self.pair.start(&[VOLUME], self.interrupt)?;
        follower.end("mirrored a volume to a second node, synchronously");
        Ok(0)
    }

    fn kill(
        &mut self,
        log: &mut DrillLog<'_>,
        _follower: &mut dyn Follower,
    ) -> Result<Stopwatch, Error> {
        let died = Stopwatch::start();
        match self.bed.death {
            Death::Silent => {
                log.event("node-a falls silent");
                self.pair.a.fall_silent()?;
            }
            Death::Kill | Death::Operator => {
                log.event("node-a is killed");
                self.pair.a.kill();
            }
        }
        Ok(died)
    }

    fn fail_over(&mut self, _follower: &mut dyn Follower) -> Result<(), Error> {
        self.pair.b.fail_over(VOLUME, self.interrupt)
    }

    /// The host waits for a silent target much longer than a peer does.
    fn release_host(&mut self) {
        self.pair.a.kill();
    }

    fn bring_back(
        &mut self,
        log: &mut DrillLog<'_>,
        _follower: &mut dyn Follower,
    ) -> Result<Stopwatch, Error> {
        log.event("node-a returns");
        let began = Stopwatch::start();
        self.pair.a.start(self.interrupt)?;
        Ok(began)
    }

    fn wait_in_sync(&mut self, _follower: &mut dyn Follower) -> Result<Resynced, Error> {
        let status = self.pair.b.wait(VOLUME, ReportedState::Mirroring, self.interrupt)?;
        Ok(Resynced::of(&status))
    }

    fn switch_over(&mut self, _follower: &mut dyn Follower) -> Result<(), Error> {
        self.pair.a.mirror(&["switchover", VOLUME], self.interrupt).map(drop)
    }

    fn stop(&mut self) -> Result<(), Error> {
        self.pair.stop(self.interrupt)
    }
}

impl LocalNodes<'_> {
    fn caveats(&self) -> Vec<String> {
        let disks = match self.bed.is_emulated {
            true => {
                "the latency of the disks is EMULATED; host and nodes are processes of one machine"
            }
            false => "the nodes' disks are files; host and nodes are processes of one machine",
        };
        let death = match self.bed.death {
            Death::Silent => {
                "the source was stopped, so that it answered nothing and closed nothing, and killed \
                 as soon as the other node served, which ends its connections: the time that a host \
                 waits for a silent target (30 s by default in flagstone load) is not included"
            }
            Death::Kill | Death::Operator => {
                "the kernel closes the connections of a killed process, so the peer knew immediately; \
                 a machine that loses its power is known to be dead after the peer's timeout"
            }
        };
        vec![disks.to_owned(), death.to_owned()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bed::tests::run_options;
    use flagstone_config::Config;

    #[test]
    fn node_configurations_are_valid() {
        let (directory, never) = (tempfile::tempdir().unwrap(), Interrupt::never());
        for is_emulated in [true, false] {
            let bed = EmulatedFailover {
                directory: directory.path().into(),
                death: Death::Silent,
                is_emulated,
            };
            let run = run_options("results".into());
            let nodes = bed.nodes(&run, directory.path(), &never).unwrap();
            for node in [&nodes.pair.a, &nodes.pair.b] {
                let text = std::fs::read_to_string(node.file("toml")).unwrap();
                let config =
                    Config::parse("node", &text).unwrap_or_else(|wrong| panic!("{wrong}\n{text}"));
                assert_eq!(config.volumes.len(), 1);
                assert_eq!(text.contains("disk_model"), is_emulated);
            }
            assert!(!nodes.stack.contains(&*directory.path().to_string_lossy()));
            assert_eq!(nodes.caveats()[0].contains("EMULATED"), is_emulated);
        }
    }
}
