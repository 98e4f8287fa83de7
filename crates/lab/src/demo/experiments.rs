//! Experiments of the demo, as short as they still show something: a pool, the mirror, the fabric,
//! and a failover under a verifying load.

use std::path::{Path, PathBuf};
use std::time::Duration;

use flagstone_bench::Error as BenchError;
use flagstone_bench::campaign::{CampaignEnd, Watcher};
use flagstone_bench::process::Interrupt;
use flagstone_bench::report::{AdditionalSections, CombinedReport, Run};
use flagstone_bench::results::ResultRecord;
use flagstone_bench::stats::Steady;
use flagstone_units::grouped;
use serde::Serialize;

use super::{DemoOptions, Parts};
use crate::bed::RunOptions;
use crate::fabric::{EmulatedFabric, FabricBed, FabricSummary};
use crate::failover::automatic::{self, AutomaticDeath, AutomaticDrill, AutomaticSummary};
use crate::failover::{self, Death, EmulatedFailover, FailoverBed, FailoverSummary, Follower};
use crate::mirror::setup::{ASYNC, MIRROR, PLAIN};
use crate::mirror::summary::MirrorSummary;
use crate::mirror::{EmulatedMirror, MirrorBed};
use crate::pool::summary::PoolSummary;
use crate::pool::{EmulatedPool, PoolBed};
use crate::{Error, fabric, mirror, pool, sections};

const SETUPS: &[&str] = &[PLAIN, MIRROR, ASYNC];
const SIZES: usize = 3;
const DISKS: [u32; 2] = [1, 4];
/// Factor by which the fabric's disks and network are slower than the published ones, so that two
/// CPUs are enough.
const SCALE: u32 = 20;
/// Round trip of the link between the nodes, as between two zones of a region, in µs.
const RTT_US: u64 = 300;
/// Warm-up of a measurement, as a share of its length.
const RAMP_SHARE: f64 = 0.5;
/// Length of the failover drill, in multiples of a measurement's length.
const DRILL_FACTOR: f64 = 5.0;
/// Shortest and longest drill, in seconds.
const DRILL_S: (f64, f64) = (5.0, 20.0);
const MIRROR_STEPS: usize = SETUPS.len() * SIZES;
const FABRIC_STEPS: usize = 2 * 2 * DISKS.len();
/// Two kinds of disks, each raw and below a pool.
const POOL_STEPS: usize = 4;
const STEPS: usize = POOL_STEPS + MIRROR_STEPS + FABRIC_STEPS + failover::STEPS;
/// Deaths of the drill without an operator.
const DEATHS: [AutomaticDeath; 2] = [AutomaticDeath::Kill, AutomaticDeath::Stop];
/// Its `failover_after`, as by default.
const FAILOVER_AFTER: Duration = Duration::from_secs(5);
const AUTOMATIC: &str = "automatic";
/// Sections of the report, in order: names of the results' directories.
const SECTIONS: [&str; 4] = ["pool", "failover", "mirror", "fabric"];
const PAGE: &str = "report.html";

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Experiments {
    pub pool: PoolSummary,
    pub mirror: MirrorSummary,
    pub fabric: FabricSummary,
    pub failover: FailoverSummary,
    /// `None` without etcd.
    pub automatic: Option<AutomaticSummary>,
}

/// Progress steps of all experiments.
pub(super) fn steps() -> usize {
    STEPS + if automatic::find_etcd().is_ok() { 2 + DEATHS.len() } else { 1 }
}

pub(super) struct Runner<'a> {
    pub(super) options: &'a DemoOptions,
    /// Directory for the files of the failover's nodes.
    pub(super) scratch: &'a Path,
    pub(super) interrupt: &'a Interrupt,
}

impl Runner<'_> {
    pub(super) fn run(&self, parts: &mut Parts<'_>) -> Result<Experiments, Error> {
        Ok(Experiments {
            pool: parts.measure("pool", POOL_STEPS, &mut |follower| self.pool(follower))?,
            mirror: parts.measure("mirror", MIRROR_STEPS, &mut |follower| self.mirror(follower))?,
            fabric: parts.measure("fabric", FABRIC_STEPS, &mut |follower| self.fabric(follower))?,
            failover: parts
                .measure("failover", failover::STEPS, &mut |follower| self.failover(follower))?,
            automatic: self.automatic(parts)?,
        })
    }

    /// Directory of an experiment's results, without the results of an earlier demo.
    fn results(&self, name: &str) -> Result<PathBuf, Error> {
        let results = self.options.results.join(name);
        if results.join("campaign.json").exists() {
            std::fs::remove_dir_all(&results)
                .map_err(BenchError::file("cannot remove", &results))?;
        }
        Ok(results)
    }

    fn run_options(&self, name: &str) -> Result<RunOptions, Error> {
        Ok(RunOptions {
            program: self.options.program.clone(),
            command: self.options.command.clone(),
            results: self.results(name)?,
            ramp_ms: (self.options.runtime_ms as f64 * RAMP_SHARE) as u64,
            runtime_ms: self.options.runtime_ms,
            repetitions: 1,
        })
    }

    fn pool(&self, follower: &mut dyn Follower) -> Result<PoolSummary, Error> {
        let run = self.run_options("pool")?;
        let bed = PoolBed::Emulated(EmulatedPool { only_random: true });
        let outcome = pool::run(&run, &bed, &mut CampaignSteps(follower), self.interrupt)?;
        is_complete(outcome.end)?;
        pool::summary::sections(&outcome.summary).write(&run.results)?;
        Ok(outcome.summary)
    }

    fn mirror(&self, follower: &mut dyn Follower) -> Result<MirrorSummary, Error> {
        let run = self.run_options("mirror")?;
        let bed = EmulatedMirror { rtt_us: RTT_US, machine: None, only: SETUPS };
        let (bed, mut steps) = (MirrorBed::Emulated(bed), CampaignSteps(follower));
        let outcome = mirror::run(&run, &bed, &mut steps, self.interrupt)?;
        is_complete(outcome.end)?;
        sections::mirror(&outcome.summary).write(&run.results)?;
        Ok(outcome.summary)
    }

    fn fabric(&self, follower: &mut dyn Follower) -> Result<FabricSummary, Error> {
        let run = self.run_options("fabric")?;
        let bed = EmulatedFabric { scale: SCALE, disks: DISKS.into() };
        follower.begin("starting a server with emulated SSDs");
        let (bed, mut steps) = (FabricBed::Emulated(bed), CampaignSteps(follower));
        let outcome = fabric::run(&run, &bed, &mut steps, self.interrupt)?;
        is_complete(outcome.end)?;
        sections::fabric(&outcome.summary).write(&run.results)?;
        Ok(outcome.summary)
    }

    fn failover(&self, follower: &mut dyn Follower) -> Result<FailoverSummary, Error> {
        let (least, most) = DRILL_S;
        let seconds = (self.options.runtime_ms as f64 / 1e3 * DRILL_FACTOR).clamp(least, most);
        let run =
            RunOptions { runtime_ms: (seconds * 1e3) as u64, ..self.run_options("failover")? };
        let directory = tempfile::tempdir_in(self.scratch)
            .map_err(BenchError::file("cannot make a directory in", self.scratch))?;
        let bed = EmulatedFailover {
            directory: directory.path().to_owned(),
            death: Death::Silent,
            is_emulated: true,
        };
        let bed = FailoverBed::Emulated(bed);
        let summary = failover::run(&run, &bed, follower, self.interrupt)?;
        sections::failover(&summary).write(&run.results)?;
        Ok(summary)
    }
}

impl Runner<'_> {
    fn automatic(&self, parts: &mut Parts<'_>) -> Result<Option<AutomaticSummary>, Error> {
        let Ok(etcd) = automatic::find_etcd() else {
            // Of an earlier demo, with etcd.
            self.results(AUTOMATIC)?;
            parts.follower.end("skipped: automatic failover, because etcd is not installed");
            return Ok(None);
        };
        let run = |follower: &mut dyn Follower| {
            let run = self.run_options(AUTOMATIC)?;
            let drill = AutomaticDrill {
                etcd: etcd.clone(),
                directory: self.scratch.to_owned(),
                deaths: DEATHS.into(),
                repetitions: 1,
                failover_after: FAILOVER_AFTER,
            };
            let summary = automatic::run(&run, &drill, follower, self.interrupt)?;
            sections::automatic_failover(&summary).write(&run.results)?;
            Ok(summary)
        };
        parts.measure("automatic failover", 2 + DEATHS.len(), &mut { run }).map(Some)
    }
}

fn is_complete(ending: CampaignEnd) -> Result<(), Error> {
    match ending {
        CampaignEnd::Complete => Ok(()),
        CampaignEnd::Interrupted => Err(BenchError::Interrupted.into()),
    }
}

/// Writes one page of the summary and of the results of all experiments; returns its path.
pub(super) fn page(summary: &AdditionalSections, results: &Path) -> Result<PathBuf, Error> {
    let automatic = results.join(AUTOMATIC).join("campaign.json").exists().then_some(AUTOMATIC);
    let sections = SECTIONS.into_iter().chain(automatic);
    let runs = sections.map(|section| Run::read(&results.join(section)));
    let runs = runs.collect::<Result<Vec<_>, _>>()?;
    let path = results.join(PAGE);
    std::fs::write(&path, CombinedReport::new(summary, runs).html())
        .map_err(BenchError::file("cannot write", &path))?;
    Ok(path)
}

struct CampaignSteps<'a>(&'a mut dyn Follower);

impl Watcher for CampaignSteps<'_> {
    fn note(&mut self, _: &str) {}

    fn begin(&mut self, what: &str, _: f64) {
        self.0.begin(what);
    }

    fn tick(&mut self) {
        self.0.tick();
    }

    fn done(&mut self, record: &ResultRecord) {
        let iops = grouped(record.iops, 0);
        let suffix = record.provenance.suffix();
        self.0.end(&format!("{} on {}{suffix}: {iops} IOPS", record.job, record.target));
    }

    fn steadiness(&mut self, _: &str, _: &str, _: u32, _: Option<Steady>) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demo_experiments_exist_in_the_lab() {
        for name in SETUPS {
            assert!(mirror::setup::SETUPS.iter().any(|setup| setup.name == *name), "{name}");
        }
        assert_eq!(mirror::published::ROWS.len(), SIZES);
        assert!(DISKS.iter().all(|disks| (1..=fabric::DISKS).contains(disks)));
    }
}
