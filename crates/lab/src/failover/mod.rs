//! A node dies under a verifying load: the other takes over, the host goes on, the first comes back
//! and gets only what it lacks, and at last its role again.
//!
//! The load goes by both nodes and has to see no error; each block that it reads is compared with
//! what it wrote, and at the end all of them are read back. [`timeline`] shows what happened when.

pub mod timeline;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

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
use flagstone_load::results::Results;
use serde::Serialize;

use self::timeline::{Event, Point};
use crate::Error;
use crate::limits::PATIENCE_S;
use crate::node::{Pair, device};
use crate::process::Begun;

/// Version of the JSON form.
pub const SCHEMA_VERSION: u32 = 1;
/// The volume's name.
const VOLUME: &str = "db";
/// What tables call it.
pub(crate) const TARGET: &str = "mirror, both nodes";
/// Bytes of each node's file.
const NODE_BYTES: u64 = 256 << 20;
/// Bytes of it that the load uses: read back at the end by 8 at a time, in some 3 s.
pub(crate) const LOAD_BYTES: u64 = 64 << 20;
/// Requests in flight.
pub(crate) const DEPTH: u32 = 8;
/// How long a silent peer counts as alive: the least that the load has to wait when a node dies.
const PEER_TIMEOUT: &str = "2s";
/// Of the emulated disk: the published rows' at 8K, and a read of the same kind.
const LATENCIES: &str = "write_latency = \"1935us\", read_latency = \"800us\"";
/// Parts of the load's time at which the source dies, comes back, and gets its role again, if what
/// is before has ended.
pub(crate) const DEATH: f64 = 0.2;
pub(crate) const RETURN: f64 = 0.5;
pub(crate) const SWITCHOVER: f64 = 0.8;

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
    /// How long the load goes on, in seconds, before all is read back.
    pub seconds: f64,
    /// Whether the nodes' disks answer as late as SSD persistent disks; else they are as fast as
    /// the files are.
    pub emulate: bool,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// `failover`.
    pub experiment: &'static str,
    /// Whether the disks' latency is emulated.
    pub emulated: bool,
    /// Blocks of 4 KiB written.
    pub blocks_written: u64,
    /// Blocks read and compared.
    pub blocks_checked: u64,
    /// Blocks that were not what was written.
    pub wrong_blocks: u64,
    /// Requests that failed.
    pub errors: u64,
    /// The longest that a request took, in ms.
    pub longest_ms: f64,
    /// From the death of the source to the end of the command that made the other one the source,
    /// in ms.
    pub failover_ms: f64,
    /// What was copied to the node that had been dead, of `volume_bytes`.
    pub resynced_bytes: u64,
    /// Size of the volume.
    pub volume_bytes: u64,
    /// From its start until it was in sync, in ms.
    pub return_ms: f64,
    /// The planned switchover back, in ms.
    pub switchover_ms: f64,
    /// What happened when, in the load's time.
    pub events: Vec<Event>,
    /// IOPS of each second of the load.
    pub timeline: Vec<Point>,
}

impl Summary {
    /// Without what is known from elsewhere.
    pub(crate) fn of_load(results: &Results, emulated: bool, events: &[Event]) -> Summary {
        // What was not read back was not verified.
        let verify = results.verify.as_ref().filter(|verify| verify.read_back);
        let longest_us = results.total.as_ref().map_or(0.0, |total| total.latency_us.max);
        Summary {
            schema_version: SCHEMA_VERSION,
            experiment: "failover",
            emulated,
            blocks_written: verify.map_or(0, |verify| verify.blocks_written),
            blocks_checked: verify.map_or(0, |verify| verify.blocks_checked),
            wrong_blocks: verify.map_or(0, |verify| verify.violations),
            errors: results.errors.iter().map(|error| error.count).sum::<u64>()
                + results.unfinished_ios,
            longest_ms: longest_us / 1e3,
            failover_ms: 0.0,
            resynced_bytes: 0,
            volume_bytes: 0,
            return_ms: 0.0,
            switchover_ms: 0.0,
            events: events.to_vec(),
            timeline: results
                .samples
                .iter()
                .map(|sample| Point { at_s: sample.at_s, iops: sample.iops })
                .collect(),
        }
    }

    /// Nothing was lost, and the host saw no error.
    pub fn is_right(&self) -> bool {
        self.wrong_blocks == 0 && self.errors == 0 && self.blocks_checked > 0
    }

    /// In one sentence.
    pub fn verdict(&self) -> String {
        match (self.wrong_blocks, self.errors, self.blocks_checked) {
            (0, 0, 0) => "NOTHING WAS CHECKED".to_owned(),
            (0, 0, checked) => format!(
                "nothing lost: {} blocks written, {checked} read and compared, no error, all as \
                 written",
                self.blocks_written
            ),
            (wrong, errors, _) => format!("{wrong} blocks WRONG, {errors} requests FAILED"),
        }
    }
}

/// What came of it, with what makes a report of it.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The numbers.
    pub summary: Summary,
    pub(crate) plan: Plan,
    pub(crate) record: Record,
    pub(crate) raw: String,
}

impl Outcome {
    /// Keeps it as results of a campaign, with the timeline beside.
    ///
    /// # Errors
    /// That there are results already, and the system's.
    pub fn keep(&self, directory: &Path) -> Result<(), Error> {
        let store = Store::create(directory, &self.plan)?;
        store.environment(&environment::record(&[], None))?;
        let raw = store.raw(&self.record.job, 0, 0, &self.raw)?;
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
    let load = drill.begin_load()?;

    follower.begin("killing the source under a verifying load");
    let failover_ms = drill.die()?;
    follower
        .end(&format!("the source was killed; the other serves since {failover_ms:.0} ms after"));

    follower.begin("bringing the dead node back");
    let back = drill.come_back()?;
    follower.end(&format!(
        "the dead node came back: {:.1} MiB copied, in sync after {:.0} ms",
        back.resynced_bytes as f64 / f64::from(1 << 20),
        back.return_ms
    ));

    follower.begin("switching over to it, and reading everything back");
    let switchover_ms = drill.switch_over()?;
    let (results, raw) = drill.end_load(load)?;
    drill.pair.stop(interrupt)?;
    follower.end("switched over to it, and read everything back");

    let summary = Summary {
        failover_ms,
        switchover_ms,
        resynced_bytes: back.resynced_bytes,
        volume_bytes: back.volume_bytes,
        return_ms: back.return_ms,
        ..drill.summary(&results)
    };
    Ok(drill.outcome(summary, &results, raw))
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

impl Drill<'_> {
    /// Makes both nodes' files and configurations.
    fn prepare<'a>(
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

    fn arguments(&self) -> Vec<String> {
        let target = device(&self.pair.ports, VOLUME);
        let mut words: Vec<String> =
            ["load", &target, "--json", "--rw", "randrw", "--bs", "4k", "--verify"]
                .map(str::to_owned)
                .into();
        words.extend(["--depth".to_owned(), DEPTH.to_string()]);
        words.extend(["--size".to_owned(), LOAD_BYTES.to_string()]);
        let time = format!("{}ms", (self.options.seconds * 1e3) as u64);
        words.extend(["--time".to_owned(), time]);
        words
    }

    fn begin_load(&mut self) -> Result<Begun, Error> {
        self.started_unix_s = unix_seconds();
        self.watch = Stopwatch::start();
        Begun::begin(Command::new(&self.options.program).args(self.arguments()))
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
        self.event("node-a is killed");
        let died = Stopwatch::start();
        self.pair.a.kill();
        self.pair.b.fail_over(VOLUME, self.interrupt)?;
        let failover_ms = died.seconds() * 1e3;
        self.event("node-b serves");
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
        Ok(began.seconds() * 1e3)
    }

    fn end_load(&self, load: Begun) -> Result<(Results, String), Error> {
        let command = shell("flagstone", &self.arguments());
        ended(load, &command, self.options.seconds + PATIENCE_S, self.interrupt)
    }

    fn summary(&self, results: &Results) -> Summary {
        Summary::of_load(results, self.options.emulate, &self.events)
    }

    fn outcome(&self, summary: Summary, results: &Results, raw: String) -> Outcome {
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
            command: shell("flagstone", &self.arguments()),
            ..Record::new("failover", &job, &target, Measurement::of_load(results))
        };
        Outcome { summary, plan, record, raw }
    }
}

/// Waits for the end of a verifying load; gives what it found, also as it printed it.
///
/// # Errors
/// That it does not end or has no results, and the user's interruption. That data is wrong is a
/// result.
pub(crate) fn ended(
    load: Begun,
    command: &str,
    seconds_most: f64,
    interrupt: &Interrupt,
) -> Result<(Results, String), Error> {
    let unexpected = |detail: String| Error::Unexpected { what: command.to_owned(), detail };
    let ended = load.end(seconds_most, interrupt)?;
    let ended = ended.ok_or_else(|| unexpected("it does not come to its end".to_owned()))?;
    // There are results of a load that found something wrong, too.
    match serde_json::from_str(&ended.output) {
        Ok(results) => Ok((results, ended.output)),
        Err(error) if ended.status.success() => Err(unexpected(error.to_string())),
        Err(_) => Err(Error::Command {
            command: command.to_owned(),
            node: "the host".to_owned(),
            status: ended.status.to_string(),
            said: ended.said,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flagstone_control::config::Config;

    fn summary(wrong_blocks: u64, errors: u64, blocks_checked: u64) -> Summary {
        Summary {
            schema_version: SCHEMA_VERSION,
            experiment: "failover",
            emulated: true,
            blocks_written: 5,
            blocks_checked,
            wrong_blocks,
            errors,
            longest_ms: 0.0,
            failover_ms: 0.0,
            resynced_bytes: 0,
            volume_bytes: 0,
            return_ms: 0.0,
            switchover_ms: 0.0,
            events: Vec::new(),
            timeline: Vec::new(),
        }
    }

    #[test]
    fn only_what_was_checked_is_right() {
        assert!(summary(0, 0, 7).is_right());
        assert!(summary(0, 0, 7).verdict().contains("nothing lost: 5 blocks written, 7 read"));
        for (wrong, errors, checked) in [(1, 0, 7), (0, 1, 7), (0, 0, 0)] {
            let found = summary(wrong, errors, checked);
            assert!(!found.is_right() && !found.verdict().contains("nothing lost"));
        }
    }

    #[test]
    fn the_nodes_are_configured_rightly() {
        let (directory, never) = (tempfile::tempdir().unwrap(), Interrupt::never());
        for emulate in [true, false] {
            let options = Options {
                program: "flagstone".into(),
                command: "flagstone lab".to_owned(),
                scratch: directory.path().into(),
                seconds: 1.0,
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
