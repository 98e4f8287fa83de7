//! Failover drill: a node dies under a verifying load, the other takes over, the first one returns,
//! is resynced, and gets its role back.
//!
//! Invariants: the host (`load`) uses both nodes and must not see an error. It compares each block
//! that it reads with its own writes, and at the end all blocks are read back. It runs until the
//! drill ends, however long that takes. Wrong data is a result ([`VerifiedLoad::is_right`]), not an
//! error.
//!
//! The emulated bed has two processes on this machine. The given bed has the user's nodes, which
//! the user's commands, or the user, stop and start.

pub mod automatic;
mod emulated;
mod given;
pub(crate) mod load;
mod summary;
pub mod timeline;

use flagstone_bench::environment;
use flagstone_bench::fio::arguments::shell;
use flagstone_bench::job::{AccessPattern, BenchJob};
use flagstone_bench::measurement::Measurement;
use flagstone_bench::os::{Stopwatch, unix_seconds};
use flagstone_bench::process::{Interrupt, wait_for};
use flagstone_bench::provenance::Provenance;
use flagstone_bench::results::{ResultRecord, ResultStore};
use flagstone_bench::target::BenchTarget;
use serde::Serialize;

pub use self::emulated::EmulatedFailover;
pub use self::given::{GivenFailover, NodeCommands};
use self::load::{DEPTH, DrillHost, HostResults, LOAD_BYTES};
pub use self::summary::{FailoverSummary, VerifiedLoad, tables};
use self::timeline::DrillEvent;
use crate::Error;
use crate::bed::{self, BedTargets, RunOptions};
use crate::node::ReportedMirror;

const TARGET: &str = "mirror, both nodes";
/// Fractions of the drill's length at which the source dies, returns and gets its role back, unless
/// an earlier step takes longer.
const DEATH: f64 = 0.2;
const RETURN: f64 = 0.5;
const SWITCHOVER: f64 = 0.8;
/// Shortest time between the switchover and the end of the load, in seconds: two samples.
const AFTER_S: f64 = 2.0;
/// Progress steps of [`run`].
pub const STEPS: usize = 5;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Death {
    /// It stops answering and closes nothing, like a machine that loses its power.
    #[default]
    Silent,
    /// Its process is killed: the kernel closes its connections immediately.
    Kill,
    /// The user of given nodes, or a command of the user, kills it.
    Operator,
}

/// Progress display of an experiment that runs in steps.
pub trait Follower {
    /// The number of steps, where it is known only when the experiment starts.
    fn steps(&mut self, _count: usize) {}
    fn begin(&mut self, what: &str);
    /// Called several times a second while a step runs.
    fn tick(&mut self) {}
    /// The step is done; `what` is its result.
    fn end(&mut self, what: &str);
    /// Asks the user to act on a node, and returns when that is done.
    ///
    /// # Errors
    /// There is no terminal to ask on, or the user interrupted.
    fn ask(&mut self, what: &str) -> Result<(), Error> {
        Err(flagstone_bench::Error::usage(format!("there is no terminal to ask: {what}")).into())
    }
}

#[derive(Clone, Debug)]
pub enum FailoverBed {
    Emulated(EmulatedFailover),
    Given(Box<GivenFailover>),
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Resynced {
    bytes: u64,
    /// Size of the volume; 0 if unknown.
    volume_bytes: u64,
}

impl Resynced {
    fn of(status: &ReportedMirror) -> Resynced {
        Resynced {
            bytes: status.peers.first().map_or(0, |peer| peer.copied_bytes),
            volume_bytes: status.replica.as_ref().map_or(0, |replica| replica.size_bytes),
        }
    }
}

/// The two nodes of a drill. Node A is the source at the start.
trait DrillNodes {
    fn facts(&self) -> Result<DrillFacts, Error>;
    /// Starts or checks the nodes: both are in sync afterwards. Returns the size of the volume, 0
    /// if unknown.
    fn prepare(&mut self, follower: &mut dyn Follower) -> Result<u64, Error>;
    /// Kills node A. The returned stopwatch started at its death.
    fn kill(
        &mut self,
        log: &mut DrillLog<'_>,
        follower: &mut dyn Follower,
    ) -> Result<Stopwatch, Error>;
    fn fail_over(&mut self, follower: &mut dyn Follower) -> Result<(), Error>;
    /// Closes connections of the dead node that would keep the host waiting.
    fn release_host(&mut self) {}
    /// Starts node A. The returned stopwatch started with it.
    fn bring_back(
        &mut self,
        log: &mut DrillLog<'_>,
        follower: &mut dyn Follower,
    ) -> Result<Stopwatch, Error>;
    fn wait_in_sync(&mut self, follower: &mut dyn Follower) -> Result<Resynced, Error>;
    fn switch_over(&mut self, follower: &mut dyn Follower) -> Result<(), Error>;
    fn stop(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

struct DrillFacts {
    target: BenchTarget,
    targets: BedTargets,
    provenance: Provenance,
    death: Death,
    /// Additional time that the load may need, in seconds.
    slack_s: f64,
    caveats: Vec<String>,
}

struct DrillLog<'a> {
    seconds: f64,
    interrupt: &'a Interrupt,
    watch: Stopwatch,
    events: Vec<DrillEvent>,
}

impl DrillLog<'_> {
    fn event(&mut self, what: &str) {
        self.events.push(DrillEvent { at_s: self.watch.seconds(), what: what.to_owned() });
    }

    fn wait_until(&self, fraction: f64) -> Result<(), Error> {
        let left_s = fraction * self.seconds - self.watch.seconds();
        wait_for(left_s, self.interrupt, || None::<()>)?;
        Ok(())
    }
}

/// Durations of a drill, in ms, and what the resync copied.
struct DrillTimes {
    failover_ms: f64,
    return_ms: f64,
    switchover_ms: f64,
    resynced: Resynced,
}

/// Runs the drill and writes its results, with the timeline as a picture. `run.runtime_ms` is the
/// shortest length of the load; warm-up and repetitions are not used.
pub fn run(
    run: &RunOptions,
    bed: &FailoverBed,
    follower: &mut dyn Follower,
    interrupt: &Interrupt,
) -> Result<FailoverSummary, Error> {
    crate::check_is_new(&run.results)?;
    match bed {
        FailoverBed::Emulated(bed) => {
            let scratch = crate::scratch_in(&bed.directory)?;
            let mut nodes = bed.nodes(run, scratch.path(), interrupt)?;
            drill(run, &mut nodes, scratch.path(), follower, interrupt)
        }
        FailoverBed::Given(bed) => {
            let scratch = crate::scratch()?;
            drill(run, &mut bed.nodes(run, interrupt), scratch.path(), follower, interrupt)
        }
    }
}

fn drill(
    run: &RunOptions,
    nodes: &mut dyn DrillNodes,
    scratch: &std::path::Path,
    follower: &mut dyn Follower,
    interrupt: &Interrupt,
) -> Result<FailoverSummary, Error> {
    let volume_bytes = nodes.prepare(follower)?;
    let DrillFacts { target, targets, provenance, death, slack_s, mut caveats } = nodes.facts()?;
    let seconds = run.runtime_ms as f64 / 1e3;
    let load_seconds = seconds + slack_s;
    let started_unix_s = unix_seconds();
    let mut log = DrillLog { seconds, interrupt, watch: Stopwatch::start(), events: Vec::new() };
    let host = DrillHost::begin(&run.program, target.address(), scratch, load_seconds)?;
    let times = steps(nodes, &mut log, follower)?;
    follower.begin("reading all blocks back");
    let found = host.end(interrupt)?;
    nodes.stop()?;
    follower.end("read all blocks back");

    caveats.push(
        "the host recorded which writes were acknowledged, and another process read all of them back \
         after the load"
            .to_owned(),
    );
    let known_bytes = times.resynced.volume_bytes;
    let summary = FailoverSummary {
        emulated: bed::is_emulated(provenance),
        real_nodes: death == Death::Operator,
        provenance,
        machine: targets.machine.clone(),
        death,
        failover_ms: times.failover_ms,
        resynced_bytes: times.resynced.bytes,
        volume_bytes: if known_bytes > 0 { known_bytes } else { volume_bytes },
        return_ms: times.return_ms,
        switchover_ms: times.switchover_ms,
        events: log.events,
        caveats,
        ..FailoverSummary::of_host(&found.load, &found.read_back)
    };
    let record = ResultRecord {
        provenance,
        started_unix_s,
        tool: "flagstone load".to_owned(),
        command: shell("flagstone", &load::arguments(&target.address(), "FILE", load_seconds)),
        ..ResultRecord::new("failover", &job(run), &target, Measurement::of_load(&found.load))
    };
    keep(run, (target, &targets), record, &found, &summary)?;
    Ok(summary)
}

fn steps(
    nodes: &mut dyn DrillNodes,
    log: &mut DrillLog<'_>,
    follower: &mut dyn Follower,
) -> Result<DrillTimes, Error> {
    log.wait_until(DEATH)?;
    follower.begin("killing node A under a verifying load");
    let died = nodes.kill(log, follower)?;
    nodes.fail_over(follower)?;
    let failover_ms = died.seconds() * 1e3;
    log.event("node-b serves");
    nodes.release_host();
    follower.end(&format!(
        "node A died under a verifying load; node B served {failover_ms:.0} ms later"
    ));

    log.wait_until(RETURN)?;
    follower.begin("bringing node A back");
    let began = nodes.bring_back(log, follower)?;
    let resynced = nodes.wait_in_sync(follower)?;
    let return_ms = began.seconds() * 1e3;
    log.event("both in sync");
    follower.end(&format!(
        "node A returned: {:.1} MiB copied, in sync after {return_ms:.0} ms",
        resynced.bytes as f64 / f64::from(1 << 20),
    ));

    log.wait_until(SWITCHOVER)?;
    follower.begin("switching over to node A");
    let began = Stopwatch::start();
    log.event("switchover to node-a");
    nodes.switch_over(follower)?;
    let switchover_ms = began.seconds() * 1e3;
    follower.end(&format!("node A serves again after {switchover_ms:.0} ms"));
    wait_for(AFTER_S, log.interrupt, || None::<()>)?;
    log.wait_until(1.0)?;
    Ok(DrillTimes { failover_ms, return_ms, switchover_ms, resynced })
}

fn job(run: &RunOptions) -> BenchJob {
    BenchJob {
        depth: DEPTH,
        ramp_ms: 0,
        size_bytes: Some(LOAD_BYTES),
        ..run.job("failover".to_owned(), AccessPattern::RandRw)
    }
}

/// Writes the results as a campaign, with the timeline beside them.
fn keep(
    run: &RunOptions,
    (target, targets): (BenchTarget, &BedTargets),
    record: ResultRecord,
    found: &HostResults,
    summary: &FailoverSummary,
) -> Result<(), Error> {
    let title = format!("Failover under a verifying load{}", summary.provenance.suffix());
    let mut plan = run.plan(("failover", &title), vec![job(run)], vec![target], targets);
    plan.repetitions = 1;
    let store = ResultStore::create(&run.results, &plan)?;
    store.environment(&environment::record(&[], None))?;
    let [load, read_back] = &found.raw;
    let raw = store.raw(&record.job, 0, 0, load)?;
    store.raw("read-back", 0, 0, read_back)?;
    store.append(&ResultRecord { raw: Some(raw), ..record })?;
    timeline::write(summary, &run.results)
}

#[cfg(test)]
pub(crate) use self::summary::tests;
