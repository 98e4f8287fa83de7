//! A node dies under a verifying load: the other takes over, the host goes on, the first comes back
//! and gets only what it lacks, and at last its role again.
//!
//! The load (`load`) goes by both nodes and has to see no error; each block that it reads is compared
//! with what it wrote, and at the end all of them are read back. It goes on until the drill has
//! ended, however long that takes. [`Summary`] is what came out, and [`timeline`] shows what happened
//! when.

pub(crate) mod load;
mod summary;
pub mod timeline;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use flagstone_bench::attach::Choice;
use flagstone_bench::campaign::Plan;
use flagstone_bench::environment;
use flagstone_bench::fio::arguments::shell;
use flagstone_bench::job::{Job, Pattern};
use flagstone_bench::measurement::Measurement;
use flagstone_bench::nature::{Nature, Origin};
use flagstone_bench::os::{Interrupt, Stopwatch, unix_seconds, wait_for};
use flagstone_bench::results::{Record, SCHEMA_VERSION as RESULTS_VERSION, Store};
use flagstone_bench::target::{Place, Target};
use serde::Serialize;

use self::load::{DEPTH, Found, Host, LOAD_BYTES};
pub use self::summary::{SCHEMA_VERSION, Summary, doubts, tables};
use self::timeline::Event;
use crate::Error;
use crate::node::{Pair, device};

/// The volume's name.
const VOLUME: &str = "db";
/// What tables call it.
pub(crate) const TARGET: &str = "mirror, both nodes";
/// Bytes of each node's file.
const NODE_BYTES: u64 = 256 << 20;
/// How long a silent peer counts as alive: the least that the load has to wait when a node dies.
const PEER_TIMEOUT: &str = "2s";
/// Of the emulated disk: the published rows' at 8K, and a read of the same kind.
const LATENCIES: &str = "write_latency = \"1935us\", read_latency = \"800us\"";
/// Parts of the drill's time at which the source dies, comes back, and gets its role again, if what
/// is before has ended.
pub(crate) const DEATH: f64 = 0.2;
pub(crate) const RETURN: f64 = 0.5;
pub(crate) const SWITCHOVER: f64 = 0.8;
/// How long the load goes on after the last of it at least, in seconds: two samples.
pub(crate) const AFTER_S: f64 = 2.0;

/// How the source dies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Death {
    /// It answers nothing any more and closes nothing, as a machine that loses its power.
    #[default]
    Silent,
    /// Its process is killed: the kernel closes its connections at once.
    Kill,
    /// As its operator or their command has it, of real nodes.
    Told,
}

/// Who follows it: a terminal, or nobody.
pub trait Follower {
    /// What is done now.
    fn begin(&mut self, what: &str);
    /// What came of it.
    fn end(&mut self, what: &str);
}

/// How many times [`run`] tells its follower that something begins, and that it has ended.
pub const STEPS: usize = 4;

/// What is asked.
#[derive(Clone, Debug)]
pub struct Options {
    /// The `flagstone` program.
    pub program: PathBuf,
    /// What was typed, for whoever wants to do it again.
    pub command: String,
    /// Where the nodes' files go, in a directory that is removed at the end.
    pub scratch: PathBuf,
    /// How long the drill takes at least, in seconds, before all is read back.
    pub seconds: f64,
    /// How the source dies.
    pub death: Death,
    /// Whether the nodes' disks answer as late as SSD persistent disks; else they are as fast as
    /// the files are.
    pub emulate: bool,
}

/// What came of it, with what makes a report of it.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The numbers.
    pub summary: Summary,
    pub(crate) plan: Plan,
    pub(crate) record: Record,
    pub(crate) raw: [String; 2],
}

impl Outcome {
    /// Keeps it as results of a campaign, with the timeline beside.
    ///
    /// # Errors
    /// That there are results already, and the system's.
    pub fn keep(&self, directory: &Path) -> Result<(), Error> {
        let store = Store::create(directory, &self.plan)?;
        store.environment(&environment::record(&[], None))?;
        let [load, read_back] = &self.raw;
        let raw = store.raw(&self.record.job, 0, 0, load)?;
        store.raw("read-back", 0, 0, read_back)?;
        store.append(&Record { raw: Some(raw), ..self.record.clone() })?;
        timeline::write(&self.summary, directory)
    }
}

/// Goes through all of it.
///
/// # Errors
/// What went wrong, and the user's interruption. That data is wrong is a result.
pub fn run(
    options: &Options,
    follower: &mut dyn Follower,
    interrupt: &Interrupt,
) -> Result<Outcome, Error> {
    let scratch = tempfile::Builder::new()
        .prefix("flagstone-lab-")
        .tempdir_in(&options.scratch)
        .map_err(Error::system("cannot make a directory for the nodes' files"))?;
    let mut drill = Drill::prepare(options, scratch.path(), interrupt)?;
    follower.begin("mirroring a volume to a second node");
    drill.pair.start(&[VOLUME], interrupt)?;
    follower.end("mirrored a volume to a second node, synchronously");
    let host = drill.begin_load(scratch.path())?;

    let died = match options.death {
        Death::Silent => "the source fell silent",
        Death::Kill | Death::Told => "the source was killed",
    };
    follower.begin("a verifying load goes on, and the source dies");
    let failover_ms = drill.die()?;
    follower
        .end(&format!("{died} under a verifying load; the other served {failover_ms:.0} ms after"));

    follower.begin("bringing the dead node back");
    let back = drill.come_back()?;
    follower.end(&format!(
        "the dead node came back: {:.1} MiB copied, in sync after {:.0} ms",
        back.resynced_bytes as f64 / f64::from(1 << 20),
        back.return_ms
    ));

    follower.begin("switching over to it, and reading everything back");
    let switchover_ms = drill.switch_over()?;
    let found = host.end(interrupt)?;
    drill.pair.stop(interrupt)?;
    follower.end("switched over to it, and read everything back");

    let summary = Summary {
        emulated: options.emulate,
        death: options.death,
        failover_ms,
        switchover_ms,
        resynced_bytes: back.resynced_bytes,
        volume_bytes: back.volume_bytes,
        return_ms: back.return_ms,
        events: std::mem::take(&mut drill.events),
        ..Summary::of_host(&found.load, &found.read_back)
    };
    Ok(drill.outcome(summary, found))
}

/// What came of the dead node's return.
struct Back {
    resynced_bytes: u64,
    volume_bytes: u64,
    return_ms: f64,
}

/// The nodes, and what happened to them.
struct Drill<'a> {
    options: &'a Options,
    interrupt: &'a Interrupt,
    pair: Pair,
    /// The target's configuration, which is kept with the results.
    stack: String,
    /// Since the load began.
    watch: Stopwatch,
    started_unix_s: f64,
    events: Vec<Event>,
}

impl<'a> Drill<'a> {
    /// Makes both nodes' files and configurations.
    fn prepare(
        options: &'a Options,
        scratch: &Path,
        interrupt: &'a Interrupt,
    ) -> Result<Drill<'a>, Error> {
        let pair = Pair::new(&options.program, scratch)?;
        let mut stack = String::new();
        for (index, node) in [&pair.a, &pair.b].into_iter().enumerate() {
            let (data, log) = (node.file("data"), node.file("intent"));
            std::fs::File::create(&data)
                .and_then(|file| file.set_len(NODE_BYTES))
                .map_err(Error::system("cannot make a node's file"))?;
            let emulate = match options.emulate {
                true => format!("emulate = {{ {LATENCIES} }}\n"),
                false => String::new(),
            };
            let peer = crate::node::NAMES[1 - index];
            let volume = |data: &str, log: &str| {
                format!(
                    "[volume.{VOLUME}]\nmirror = {{ peer = \"{peer}\", bitmap = {log} }}\n\
                     {emulate}device = {data}\n"
                )
            };
            let timeout = format!("timeout = \"{PEER_TIMEOUT}\"\n");
            let text = pair.preamble(index, "", &timeout)
                + &volume(&format!("{data:?}"), &format!("{log:?}"));
            node.configure(&text)?;
            stack += &format!("# on {}\n{}", node.name(), volume("\"FILE\"", "\"FILE\""));
        }
        Ok(Drill {
            options,
            interrupt,
            pair,
            stack,
            watch: Stopwatch::start(),
            started_unix_s: 0.0,
            events: Vec::new(),
        })
    }

    fn begin_load(&mut self, scratch: &Path) -> Result<Host<'a>, Error> {
        self.started_unix_s = unix_seconds();
        self.watch = Stopwatch::start();
        let target = device(&self.pair.ports, VOLUME);
        Host::begin(&self.options.program, target, scratch, self.options.seconds)
    }

    fn event(&mut self, what: impl Into<String>) {
        self.events.push(Event { at_s: self.watch.seconds(), what: what.into() });
    }

    /// Waits until this part of the load's time has passed.
    fn until(&self, part: f64) -> Result<(), Error> {
        let left_s = part * self.options.seconds - self.watch.seconds();
        wait_for(left_s, self.interrupt, || None::<()>)?;
        Ok(())
    }

    fn die(&mut self) -> Result<f64, Error> {
        self.until(DEATH)?;
        let died = Stopwatch::start();
        match self.options.death {
            Death::Silent => {
                self.event("node-a falls silent");
                self.pair.a.fall_silent()?;
            }
            Death::Kill | Death::Told => {
                self.event("node-a is killed");
                self.pair.a.kill();
            }
        }
        self.pair.b.fail_over(VOLUME, self.interrupt)?;
        let failover_ms = died.seconds() * 1e3;
        self.event("node-b serves");
        // The host waits for a silent target much longer than a peer does: it is not kept waiting.
        self.pair.a.kill();
        Ok(failover_ms)
    }

    fn come_back(&mut self) -> Result<Back, Error> {
        self.until(RETURN)?;
        self.event("node-a returns");
        let began = Stopwatch::start();
        self.pair.a.start(self.interrupt)?;
        let status = self.pair.b.wait(VOLUME, "mirroring", self.interrupt)?;
        let return_ms = began.seconds() * 1e3;
        self.event("both in sync");
        Ok(Back {
            resynced_bytes: status.peers.first().map_or(0, |peer| peer.copied_bytes),
            volume_bytes: status.replica.map_or(0, |replica| replica.size_bytes),
            return_ms,
        })
    }

    fn switch_over(&mut self) -> Result<f64, Error> {
        self.until(SWITCHOVER)?;
        self.event("switchover to node-a");
        let began = Stopwatch::start();
        self.pair.a.mirror(&["switchover", VOLUME], self.interrupt)?;
        let switchover_ms = began.seconds() * 1e3;
        wait_for(AFTER_S, self.interrupt, || None::<()>)?;
        self.until(1.0)?;
        Ok(switchover_ms)
    }

    fn outcome(&self, summary: Summary, found: Found) -> Outcome {
        let address = device(&self.pair.ports, VOLUME);
        let nature = if self.options.emulate { Nature::Emulated } else { Nature::Served };
        // A comma joins disks in a target as it is written; this one is one disk with two paths.
        let target =
            Target { name: TARGET.to_owned(), disks: vec![Place::NvmeTcp(address.clone())] };
        let job = Job {
            name: "failover".to_owned(),
            pattern: Pattern::RandRw,
            depth: DEPTH,
            disks: 1,
            ramp_ms: 0,
            runtime_ms: (self.options.seconds * 1e3) as u64,
            size_bytes: Some(LOAD_BYTES),
            ..Job::default()
        };
        let origin = Origin { nature, stack: self.stack.clone() };
        let plan = Plan {
            schema_version: RESULTS_VERSION,
            suite: "failover".to_owned(),
            title: format!("A source dies under a verifying load{}", nature.suffix()),
            jobs: vec![job.clone()],
            targets: vec![target.clone()],
            repetitions: 1,
            steady_state: false,
            precondition: false,
            file_bytes: NODE_BYTES,
            initiator: Choice::Flagstone,
            origins: BTreeMap::from([(address, origin)]),
            command: Some(self.options.command.clone()),
            destroy: Vec::new(),
        };
        let record = Record {
            nature,
            started_unix_s: self.started_unix_s,
            tool: "flagstone load".to_owned(),
            command: shell(
                "flagstone",
                &load::arguments(&target.address(), "FILE", self.options.seconds),
            ),
            ..Record::new("failover", &job, &target, Measurement::of_load(&found.load))
        };
        Outcome { summary, plan, record, raw: found.raw }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flagstone_control::config::Config;

    #[test]
    fn the_nodes_are_configured_rightly() {
        let (directory, never) = (tempfile::tempdir().unwrap(), Interrupt::never());
        for emulate in [true, false] {
            let options = Options {
                program: "flagstone".into(),
                command: "flagstone lab".to_owned(),
                scratch: directory.path().into(),
                seconds: 1.0,
                death: Death::Silent,
                emulate,
            };
            let drill = Drill::prepare(&options, directory.path(), &never).unwrap();
            for node in [&drill.pair.a, &drill.pair.b] {
                let text = std::fs::read_to_string(node.file("toml")).unwrap();
                let config =
                    Config::parse("node", &text).unwrap_or_else(|wrong| panic!("{wrong}\n{text}"));
                assert_eq!(config.volumes.len(), 1);
                assert_eq!(text.contains("emulate"), emulate);
            }
            assert!(!drill.stack.contains(&*directory.path().to_string_lossy()));
        }
    }
}
