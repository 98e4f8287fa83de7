//! Drill of automatic failover: sources die in each way while a verifying load runs over both
//! nodes, and nobody touches anything. What died returns by itself or is started again, and takes
//! the next turn as the target.
//!
//! Invariants: the arbiter is a real etcd. The time to serve is what the host sees: the longest
//! interval around a death in which no write was acknowledged.

mod nodes;
mod summary;

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use flagstone_bench::environment;
use flagstone_bench::fio::arguments::shell;
use flagstone_bench::job::{AccessPattern, BenchJob};
use flagstone_bench::measurement::Measurement;
use flagstone_bench::os::{Stopwatch, size_of, unix_seconds};
use flagstone_bench::process::{Interrupt, wait_for};
use flagstone_bench::provenance::{Origin, Provenance};
use flagstone_bench::results::{ResultRecord, ResultStore};
use flagstone_bench::target::{BenchTarget, DiskAddress};
use serde::Serialize;

pub use self::nodes::find_etcd;
use self::nodes::{Bed, Silence};
pub use self::summary::{AutomaticSummary, DeathTimes, drawing, tables};
use crate::Error;
use crate::bed::{BedTargets, RunOptions, SCHEMA_VERSION};
use crate::failover::load::{self, DEPTH, DrillHost, LOAD_BYTES};
use crate::failover::timeline::DrillEvent;
use crate::failover::{FailoverSummary, Follower, TARGET};
use crate::limits::STEP_TIMEOUT_S;

/// Time that the host works undisturbed before a death, and after its writes are acknowledged
/// again, in seconds.
const CALM_S: f64 = 0.5;

/// A way for a source to die.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AutomaticDeath {
    /// Its process is killed (SIGKILL).
    Kill,
    /// Its process is stopped (SIGSTOP), and continues later.
    Stall,
    /// The link between the nodes is cut: the source runs degraded.
    LinkCut,
    /// All links of the source are cut: to the other node, to etcd, and to the host.
    Isolation,
    /// It is stopped in order (SIGTERM), as by a restart of its service.
    Stop,
}

impl AutomaticDeath {
    /// All of them, in the order of a round.
    pub const ALL: [AutomaticDeath; 5] = [
        AutomaticDeath::Kill,
        AutomaticDeath::Stall,
        AutomaticDeath::LinkCut,
        AutomaticDeath::Isolation,
        AutomaticDeath::Stop,
    ];

    pub fn in_words(self) -> &'static str {
        match self {
            AutomaticDeath::Kill => "killed (SIGKILL)",
            AutomaticDeath::Stall => "stalled (SIGSTOP)",
            AutomaticDeath::LinkCut => "link between the nodes cut",
            AutomaticDeath::Isolation => "cut off from everything",
            AutomaticDeath::Stop => "stopped in order (SIGTERM)",
        }
    }

    fn moves_the_source(self) -> bool {
        self != AutomaticDeath::LinkCut
    }

    /// It closes no connection.
    fn is_silent(self) -> bool {
        matches!(self, AutomaticDeath::Stall | AutomaticDeath::Isolation)
    }
}

/// What the drill does.
#[derive(Clone, Debug)]
pub struct AutomaticDrill {
    /// Program of etcd: see [`find_etcd`].
    pub etcd: PathBuf,
    /// Existing directory for the nodes' files, which are removed at the end.
    pub directory: PathBuf,
    pub deaths: Vec<AutomaticDeath>,
    pub repetitions: u32,
    /// `failover_after` of the volume, and `timeout` of the peers.
    pub failover_after: Duration,
}

impl AutomaticDrill {
    /// Progress steps of [`run`].
    pub fn steps(&self) -> usize {
        2 + self.deaths.len() * self.repetitions as usize
    }
}

/// Runs the drill and writes its results, with the timeline as a picture.
pub fn run(
    run: &RunOptions,
    drill: &AutomaticDrill,
    follower: &mut dyn Follower,
    interrupt: &Interrupt,
) -> Result<AutomaticSummary, Error> {
    crate::check_is_new(&run.results)?;
    let scratch = crate::scratch_in(&drill.directory)?;
    follower.begin("mirroring a volume to a second node, with etcd");
    let after = drill.failover_after;
    let programs = (run.program.as_path(), drill.etcd.as_path());
    let mut bed = Bed::start(programs, scratch.path(), after, interrupt)?;
    let mut source = bed.armed()?;
    follower.end("mirrored a volume to a second node, with etcd as the arbiter");

    let started_unix_s = unix_seconds();
    let watch = Stopwatch::start();
    let host = DrillHost::begin(&run.program, bed.device(), scratch.path(), length_s(drill))?;
    let state = scratch.path().join("acknowledged");
    wait_for_writes(&state, interrupt)?;
    let (mut events, mut times) = (Vec::new(), Vec::new());
    for _ in 0..drill.repetitions {
        for death in &drill.deaths {
            let what = format!("{}, {}", bed.name(source), death.in_words());
            follower.begin(&what);
            wait_for(CALM_S, interrupt, || None::<()>)?;
            events.push(DrillEvent { at_s: watch.seconds(), what: death.in_words().to_owned() });
            let took_ms = one(&mut bed, (source, *death), &state, interrupt)?;
            times.push((*death, took_ms));
            bed.repair(source, *death)?;
            let before = source;
            source = bed.armed()?;
            if (source != before) != death.moves_the_source() {
                let what = format!("{}: an unexpected node serves", death.in_words());
                return Err(Error::unexpected("automatic failover", what));
            }
            follower.end(&format!("{what}: served again after {took_ms:.0} ms"));
        }
    }
    follower.begin("reading all blocks back");
    let load_seconds = length_s(drill);
    let address = bed.device();
    let found = host.end(interrupt)?;
    bed.stop(source)?;
    follower.end("read all blocks back");

    let of_host = FailoverSummary::of_host(&found.load, &found.read_back);
    let summary = AutomaticSummary {
        schema_version: SCHEMA_VERSION,
        experiment: "automatic_failover",
        emulated: true,
        provenance: Provenance::Emulated,
        failover_after_ms: after.as_secs_f64() * 1e3,
        deaths: DeathTimes::of(&times),
        verified: of_host.verified,
        events,
        timeline: of_host.timeline,
        caveats: summary::caveats(),
    };
    let disks = vec![DiskAddress::NvmeTcp(address.clone())];
    let target = BenchTarget { name: TARGET.to_owned(), disks };
    let job = BenchJob {
        depth: DEPTH,
        ramp_ms: 0,
        size_bytes: Some(LOAD_BYTES),
        ..run.job("automatic-failover".to_owned(), AccessPattern::RandRw)
    };
    let origin = Origin { provenance: Provenance::Emulated, stack: "mirror with etcd".to_owned() };
    let targets = BedTargets {
        destroy: Vec::new(),
        origins: [(address.clone(), origin)].into(),
        ..BedTargets::emulated([])
    };
    let title = "Automatic failover under a verifying load [EMULATED]";
    let mut plan = run.plan(("failover", title), vec![job.clone()], vec![target.clone()], &targets);
    plan.repetitions = 1;
    let store = ResultStore::create(&run.results, &plan)?;
    store.environment(&environment::record(&[], None))?;
    let [load, read_back] = &found.raw;
    let raw = store.raw(&job.name, 0, 0, load)?;
    store.raw("read-back", 0, 0, read_back)?;
    store.append(&ResultRecord {
        provenance: Provenance::Emulated,
        started_unix_s,
        tool: "flagstone load".to_owned(),
        command: shell("flagstone", &load::arguments(&address, "FILE", load_seconds)),
        raw: Some(raw),
        ..ResultRecord::new("failover", &job, &target, Measurement::of_load(&found.load))
    })?;
    summary::write(&summary, &run.results)?;
    Ok(summary)
}

/// Longest time that the load may need, in seconds.
fn length_s(drill: &AutomaticDrill) -> f64 {
    drill.steps() as f64 * 3.0 * STEP_TIMEOUT_S
}

fn wait_for_writes(state: &Path, interrupt: &Interrupt) -> Result<(), Error> {
    let before = size_of(state).unwrap_or(0);
    let grown = || size_of(state).is_ok_and(|size| size > before + 4096).then_some(());
    let found = wait_for(STEP_TIMEOUT_S, interrupt, grown)?;
    found.ok_or_else(|| Error::unexpected("flagstone load", "it does not write"))
}

/// One death; returns the time until the host was served again, in ms.
fn one(
    bed: &mut Bed<'_>,
    (source, death): (usize, AutomaticDeath),
    state: &Path,
    interrupt: &Interrupt,
) -> Result<f64, Error> {
    let length = || size_of(state).unwrap_or(0);
    let mut silence = Silence::begin(length());
    let (has_died, has_failed) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        // The file is watched while the bed is busy with the death.
        let watcher = scope.spawn(|| {
            let is_over = || {
                silence.look(length());
                let took_ms = silence.ended_ms(CALM_S).filter(|_| has_died.load(Relaxed));
                // The result of a death that has failed is its error.
                took_ms.or(has_failed.load(Relaxed).then_some(0.0))
            };
            watch_closely(is_over, interrupt)
        });
        let died = bed.die(source, death);
        if died.is_err() { &has_failed } else { &has_died }.store(true, Relaxed);
        let found = watcher.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        died?;
        found?.ok_or_else(|| Error::unexpected("flagstone load", "hosts are not served again"))
    })
}

/// As [`wait_for`], looking every millisecond.
fn watch_closely(
    mut look: impl FnMut() -> Option<f64>,
    interrupt: &Interrupt,
) -> Result<Option<f64>, Error> {
    let watch = Stopwatch::start();
    while watch.seconds() < 3.0 * STEP_TIMEOUT_S {
        if let Some(found) = look() {
            return Ok(Some(found));
        }
        interrupt.check()?;
        #[expect(
            clippy::disallowed_methods,
            reason = "a tool of the lab, outside of any executor"
        )]
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(None)
}
