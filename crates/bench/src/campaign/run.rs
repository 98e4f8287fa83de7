//! Execution of a campaign, from its start or from where it was interrupted.

use std::collections::BTreeSet;
use std::path::Path;

use crate::attach::Initiator;
use crate::campaign::pace::{CampaignPace, Progress, planned_s};
use crate::campaign::serve::{Driven, OWN_TOOL};
use crate::campaign::{CampaignPlan, CampaignStep, ROUNDS_MAX, steps};
use crate::environment;
use crate::error::Error;
use crate::fio::Fio;
use crate::generator::Generator;
use crate::guard::{self, GuardVerdict};
use crate::measurement::Measurement;
use crate::os::{self, Stopwatch};
use crate::own_file::OwnFiles;
use crate::precondition;
use crate::process::Interrupt;
use crate::provenance::Provenance;
use crate::results::{ResultRecord, ResultStore};
use crate::served;
use crate::server::CpuMeter;
use crate::stats::{Steady, steady};
use crate::target::{BenchTarget, DiskAddress};

pub trait Watcher {
    fn note(&mut self, text: &str);
    /// A measurement or fill starts; `remaining_s` is the time until the end of the campaign.
    fn begin(&mut self, what: &str, remaining_s: f64);
    /// Share of a fill that is done, 0 to 1, and the time until the end of the campaign.
    fn filled(&mut self, _done: f64, _remaining_s: f64) {}
    /// Called several times a second while a step runs.
    fn tick(&mut self);
    fn done(&mut self, record: &ResultRecord);
    /// Steadiness after a round; `None` with too few rounds.
    fn steadiness(&mut self, target: &str, job: &str, round: u32, found: Option<Steady>);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CampaignEnd {
    Complete,
    /// Interrupted by the user; it can be resumed.
    Interrupted,
}

#[derive(Debug)]
pub struct Campaign<'a> {
    pub plan: &'a CampaignPlan,
    pub store: &'a ResultStore,
    /// For paths and `nbd://`.
    pub fio: Option<&'a Fio>,
    /// For `nvme-tcp://` without the kernel, and for the size of served volumes.
    pub generator: &'a Generator,
    /// For `nvme-tcp://` through the kernel.
    pub initiator: &'a Initiator,
    pub interrupt: &'a Interrupt,
}

type Done = BTreeSet<(String, String, u32)>;

impl Campaign<'_> {
    /// Checks the targets, fills them, and makes the measurements that are missing.
    ///
    /// # Errors
    /// The first failure other than an interruption. Results so far are stored.
    pub fn run(&self, watcher: &mut dyn Watcher) -> Result<CampaignEnd, Error> {
        match self.run_all(watcher) {
            Ok(()) => Ok(CampaignEnd::Complete),
            Err(Error::Interrupted) => Ok(CampaignEnd::Interrupted),
            Err(error) => Err(error),
        }
    }

    fn run_all(&self, watcher: &mut dyn Watcher) -> Result<(), Error> {
        self.plan.check()?;
        let mut verdicts = Vec::new();
        for target in &self.plan.targets {
            verdicts.push(guard::check(target, self.plan.destroys(), &self.plan.destroy)?);
        }
        let own_files = self.own_files();
        let ended = self.run_guarded(&verdicts, &own_files, watcher);
        if self.plan.destroys() {
            own_files.settle();
        }
        ended
    }

    fn own_files(&self) -> OwnFiles {
        let disks = self.plan.targets.iter().flat_map(|target| &target.disks);
        OwnFiles::before(disks.filter_map(DiskAddress::path), self.plan.destroys())
    }

    fn run_guarded(
        &self,
        verdicts: &[Vec<GuardVerdict>],
        own_files: &OwnFiles,
        watcher: &mut dyn Watcher,
    ) -> Result<(), Error> {
        let records = self.store.records()?;
        let mut done: Done =
            records.iter().map(|r| (r.job.clone(), r.target.clone(), r.repetition)).collect();
        let (mut rounds, mut pace) = (Rounds::default(), CampaignPace::default());
        records.iter().for_each(|record| rounds.add(record));
        let mut driven = Vec::new();
        for target in &self.plan.targets {
            driven.push(self.drive(target, &records, watcher)?);
        }
        // Impossible jobs are found before anything is written.
        for step in self.plan.steps() {
            let (job, target) = (self.plan.fitted(step, None), &driven[step.target].target);
            match (&target.disks[0], self.fio) {
                (DiskAddress::NvmeTcp(uri), _) => drop(crate::generator::arguments(&job, uri)?),
                (_, Some(fio)) => drop(fio.options(&job, target)?),
                (_, None) => return Err(Error::FioMissing),
            }
        }
        self.check_room(verdicts)?;
        let mut fills: Vec<Unfilled> = Vec::new();
        if self.plan.discard && done.is_empty() {
            self.discard(watcher)?;
        }
        for (driven, verdicts) in driven.iter().zip(verdicts) {
            for found in self.prepare(driven, verdicts, watcher)? {
                // A disk may be in several targets.
                if !fills.iter().any(|fill| fill.target.disks == found.target.disks) {
                    fills.push(found);
                }
            }
        }
        let filled = self.fill_all(&fills, watcher);
        own_files.settle();
        filled?;
        let mut environment = environment::record(&self.plan.targets, self.fio);
        driven.iter().for_each(|driven| driven.describe(&mut environment));
        self.store.environment(&environment)?;
        let of = |target| Provenance::of_target(target, &environment, &self.plan.origins);
        let provenances: Vec<Provenance> = self.plan.targets.iter().map(of).collect();
        for job in 0..self.plan.jobs.len() {
            self.run_job(
                job,
                (&driven, &provenances, own_files),
                (&mut done, &mut rounds, &mut pace),
                watcher,
            )?;
        }
        Ok(())
    }

    fn run_job(
        &self,
        job: usize,
        (driven, provenances, own_files): (&[Driven], &[Provenance], &OwnFiles),
        (done, rounds, pace): (&mut Done, &mut Rounds, &mut CampaignPace),
        watcher: &mut dyn Watcher,
    ) -> Result<(), Error> {
        let least = self.plan.repetitions;
        let most = if self.plan.steady_state { ROUNDS_MAX.max(least) } else { least };
        for repetition in 0..most {
            for step in self.plan.round(job, repetition) {
                let key = self.key(step);
                if done.contains(&key) {
                    continue;
                }
                self.interrupt.check()?;
                let what = format!("{} on {}, {} of {least}", key.0, key.1, repetition + 1);
                watcher.begin(&what, pace.corrected(self.remaining_s(step, done)));
                let (job, target) = (&self.plan.jobs[step.job], &driven[step.target].target);
                if step.repetition == 0 {
                    steps::before(self.plan, job, target, self.interrupt)?;
                }
                let watch = Stopwatch::start();
                let mut record = self.measure(step, &driven[step.target], watcher)?;
                // A crash later on leaves at most one measurement's writes unrecorded.
                if self.plan.destroys() {
                    own_files.settle();
                }
                pace.add(self.plan.step_seconds(step), watch.seconds());
                record.provenance = provenances[step.target];
                self.store.append(&record)?;
                watcher.done(&record);
                rounds.add(&record);
                done.insert(key);
            }
            if self.plan.steady_state
                && self.all_steady(job, repetition, rounds, watcher)
                && repetition + 1 >= least
            {
                break;
            }
        }
        Ok(())
    }

    fn all_steady(
        &self,
        job: usize,
        round: u32,
        rounds: &Rounds,
        watcher: &mut dyn Watcher,
    ) -> bool {
        let mut all = true;
        for step in self.plan.round(job, round) {
            let (job, target, _) = self.key(step);
            let found = steady(&rounds.of(&job, &target));
            watcher.steadiness(&target, &job, round + 1, found);
            all &= found.is_some_and(|found| found.is_steady);
        }
        all
    }

    fn key(&self, step: CampaignStep) -> (String, String, u32) {
        let (job, target) = (&self.plan.jobs[step.job], &self.plan.targets[step.target]);
        (job.name.clone(), target.name.clone(), step.repetition)
    }

    fn remaining_s(&self, from: CampaignStep, done: &Done) -> f64 {
        let steps = self.plan.steps();
        let left =
            steps.iter().filter(|step| step.job >= from.job && !done.contains(&self.key(**step)));
        let planned: f64 = left.map(|step| self.plan.step_seconds(*step)).sum();
        // The number of added rounds is unknown, except for the current one.
        let is_added = from.repetition >= self.plan.repetitions;
        planned + if is_added { self.plan.step_seconds(from) } else { 0.0 }
    }

    fn measure(
        &self,
        step: CampaignStep,
        driven: &Driven,
        watcher: &mut dyn Watcher,
    ) -> Result<ResultRecord, Error> {
        let target = &driven.target;
        let job = self.plan.fitted(step, driven.size_bytes());
        let started_unix_s = os::unix_seconds();
        let mut meter = CpuMeter::new(&driven.servers, job.ramp_ms);
        let mut written = steps::WrittenMeter::new(self.plan, target, self.interrupt, job.ramp_ms);
        let mut tick = || {
            meter.tick();
            written.tick();
            watcher.tick();
        };
        let (mut measurement, raw, command, tool) = match (&target.disks[0], self.fio) {
            (DiskAddress::NvmeTcp(uri), _) => {
                let run = self.generator.measure(&job, uri, self.interrupt, &mut tick)?;
                let raw = serde_json::to_string(&run.results).expect("results are always JSON");
                (run.measurement(), raw, run.command, OWN_TOOL.to_owned())
            }
            (_, Some(fio)) => {
                let run = fio.measure(&job, target, self.interrupt, &mut tick)?;
                let version = fio.version().to_owned();
                (Measurement::of_fio(&run), run.raw, run.command, version)
            }
            (_, None) => return Err(Error::FioMissing),
        };
        let metered = meter.end();
        let written_bytes = written.end()?;
        measurement.cpu = measurement.cpu.or(metered.host);
        measurement.server = metered.server;
        let raw = self.store.raw(&job.name, step.target, step.repetition, &raw)?;
        Ok(ResultRecord {
            repetition: step.repetition,
            started_unix_s,
            tool,
            command,
            raw: Some(raw),
            written_bytes,
            ..ResultRecord::new(
                &self.plan.suite,
                &job,
                &self.plan.targets[step.target],
                measurement,
            )
        })
    }

    /// Checks that all files to be created fit on their file systems.
    fn check_room(&self, verdicts: &[Vec<GuardVerdict>]) -> Result<(), Error> {
        let mut absent: Vec<&Path> = Vec::new();
        for (target, verdicts) in self.plan.targets.iter().zip(verdicts) {
            let disks = target.disks.iter().zip(verdicts);
            let missing = disks.filter(|(_, verdict)| **verdict == GuardVerdict::Absent);
            absent.extend(missing.filter_map(|(disk, _)| disk.path()));
        }
        absent.sort_unstable();
        absent.dedup();
        precondition::check_room(&absent, self.plan.file_bytes)
    }

    /// Discards the devices among the targets, which the guard has let pass.
    fn discard(&self, watcher: &mut dyn Watcher) -> Result<(), Error> {
        for disk in self.plan.targets.iter().flat_map(|target| &target.disks) {
            match disk.path().filter(|_| disk.can_discard()) {
                Some(path) => precondition::discard(path, self.interrupt)?,
                None => watcher.note(&format!("{disk} is no device here and is not discarded")),
            }
        }
        Ok(())
    }

    /// Creates files, and lists disks with unwritten parts to be filled.
    fn prepare(
        &self,
        driven: &Driven,
        verdicts: &[GuardVerdict],
        watcher: &mut dyn Watcher,
    ) -> Result<Vec<Unfilled>, Error> {
        let mut fills = Vec::new();
        for (disk, verdict) in driven.target.disks.iter().zip(verdicts) {
            match disk.path() {
                Some(path) if *verdict == GuardVerdict::Absent => {
                    precondition::make(path, self.plan.file_bytes)?;
                }
                _ if !self.plan.precondition || self.is_filled(disk)? => continue,
                _ if !self.plan.destroys() => {
                    watcher.note(&format!(
                        "{disk}: parts of it were never written or are zeroes, and reads of those \
                         may not reach the disk: the results may be too good"
                    ));
                    continue;
                }
                _ => {}
            }
            let known = match disk.path() {
                Some(path) => os::size_of(path).unwrap_or(0),
                None => driven.served_bytes(disk),
            };
            let size_bytes = if known == 0 { self.plan.file_bytes } else { known };
            let target =
                BenchTarget { name: driven.target.name.clone(), disks: vec![disk.clone()] };
            fills.push(Unfilled { target, size_bytes });
        }
        Ok(fills)
    }

    fn fill_all(&self, fills: &[Unfilled], watcher: &mut dyn Watcher) -> Result<(), Error> {
        let mut left_s: f64 =
            self.plan.steps().iter().map(|step| self.plan.step_seconds(*step)).sum();
        left_s += fills.iter().map(|fill| planned_s(fill.size_bytes)).sum::<f64>();
        for fill in fills {
            watcher.begin(&format!("filling {}", fill.target.disks[0]), left_s);
            left_s -= planned_s(fill.size_bytes);
            self.fill(fill, left_s, watcher)?;
        }
        Ok(())
    }

    fn is_filled(&self, disk: &DiskAddress) -> Result<bool, Error> {
        match disk.path() {
            Some(path) => {
                Ok(os::size_of(path).is_ok_and(|s| s > 0 && precondition::is_filled(path, s)))
            }
            None => served::is_filled(&disk.to_string(), self.interrupt),
        }
    }

    /// Fills one disk; `after_s` is the remaining time after it.
    fn fill(&self, fill: &Unfilled, after_s: f64, watcher: &mut dyn Watcher) -> Result<(), Error> {
        let disk = &fill.target.disks[0];
        let (mut progress, watch) = (Progress::default(), Stopwatch::start());
        let mut tick = |written_bytes: &dyn Fn() -> Option<u64>| {
            let found = progress.look(watch.seconds(), fill.size_bytes, written_bytes);
            if let Some((done, left_s)) = found {
                watcher.filled(done, after_s + left_s);
            }
            watcher.tick();
        };
        let Some(path) = disk.path() else {
            let mut progress = |written_bytes| tick(&|| Some(written_bytes));
            return served::fill(&disk.to_string(), fill.size_bytes, self.interrupt, &mut progress);
        };
        let before = os::written_bytes(path).unwrap_or(0);
        let written_bytes = || Some(os::written_bytes(path)?.saturating_sub(before));
        let fio = self.fio.ok_or(Error::FioMissing)?;
        let size_bytes = Some(fill.size_bytes);
        fio.fill(&fill.target, size_bytes, self.interrupt, &mut || tick(&written_bytes)).map(drop)
    }
}

/// A disk that is filled before the first measurement.
struct Unfilled {
    target: BenchTarget,
    size_bytes: u64,
}

#[derive(Default)]
struct Rounds(std::collections::BTreeMap<(String, String), Vec<f64>>);

impl Rounds {
    fn add(&mut self, record: &ResultRecord) {
        let key = (record.job.clone(), record.target.clone());
        self.0.entry(key).or_default().push(record.iops);
    }

    fn of(&self, job: &str, target: &str) -> Vec<f64> {
        self.0.get(&(job.to_owned(), target.to_owned())).cloned().unwrap_or_default()
    }
}
