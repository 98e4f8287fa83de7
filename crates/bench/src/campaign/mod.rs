//! Campaign: every job of a suite on every target, with interleaved repetitions so that drift of
//! the machine affects all targets alike.

mod pace;
mod run;
mod serve;
mod steps;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::attach::InitiatorChoice;
use crate::error::Error;
use crate::fio::Fio;
use crate::job::BenchJob;
use crate::limits::{REPETITIONS, SUITE_JOBS, TARGETS};
use crate::process::Interrupt;
use crate::provenance::Origin;
use crate::results::SCHEMA_VERSION;
use crate::suite::Suite;
use crate::target::{BenchTarget, DiskAddress};

pub use run::{Campaign, CampaignEnd, Watcher};

/// Step whose command prints the bytes that the layer below a target has written so far; from it
/// follows the write amplification of each job.
pub const WRITTEN: &str = "written";

/// Upper bound of the rounds of a job that does not become steady.
pub(crate) const ROUNDS_MAX: u32 = 25;

/// Parameters of a campaign: everything that is needed to resume it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CampaignPlan {
    pub schema_version: u32,
    pub suite: String,
    pub title: String,
    pub jobs: Vec<BenchJob>,
    pub targets: Vec<BenchTarget>,
    pub repetitions: u32,
    /// Whether rounds are added until the results are steady.
    pub steady_state: bool,
    /// Whether unwritten parts of targets are filled first.
    pub precondition: bool,
    /// Whether devices are discarded as a whole before they are filled (`BLKDISCARD`).
    #[serde(default)]
    pub discard: bool,
    pub file_bytes: u64,
    #[serde(default)]
    pub initiator: InitiatorChoice,
    /// User-supplied provenance of disks that cannot be inspected, by address.
    #[serde(default)]
    pub origins: BTreeMap<String, Origin>,
    /// Shell commands of the user by step: the steps of [`BenchJob::before`], and [`WRITTEN`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub commands: BTreeMap<String, String>,
    /// The command that made the campaign, where that was not `flagstone bench run`: its targets
    /// existed for it only, so it cannot be resumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Disks whose data may be destroyed. Never stored: a resumed run asks for consent again,
    /// because the disk may hold other data by then.
    #[serde(skip)]
    pub destroy: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CampaignStep {
    pub job: usize,
    pub repetition: u32,
    pub target: usize,
}

impl CampaignPlan {
    /// Plan of a suite on targets; files that do not exist get `file_bytes`.
    pub fn new(suite: &Suite, targets: Vec<BenchTarget>, file_bytes: u64) -> CampaignPlan {
        CampaignPlan {
            schema_version: SCHEMA_VERSION,
            suite: suite.name.clone(),
            title: suite.title.clone(),
            jobs: suite.jobs.clone(),
            targets,
            repetitions: suite.repetitions,
            steady_state: suite.steady_state,
            precondition: suite.precondition,
            discard: suite.discard,
            file_bytes,
            initiator: InitiatorChoice::default(),
            origins: BTreeMap::new(),
            commands: BTreeMap::new(),
            command: None,
            destroy: Vec::new(),
        }
    }

    /// Removes the jobs whose step has no command; returns a note for each.
    pub fn leave_out_jobs_without_step(&mut self) -> Vec<String> {
        let mut notes = Vec::new();
        let commands = &self.commands;
        self.jobs.retain(|job| match &job.before {
            Some(step) if !commands.contains_key(step) => {
                let name = &job.name;
                notes.push(format!("{name} is left out: give --step {step}=COMMAND"));
                false
            }
            _ => true,
        });
        notes
    }

    /// Validates it; a plan that was read from a file may be invalid too.
    pub fn check(&self) -> Result<(), Error> {
        let wrong = |what: String| Err(Error::Usage(what));
        if self.schema_version > SCHEMA_VERSION {
            return wrong(format!("schema {} is newer than this program", self.schema_version));
        }
        if !(1..=TARGETS).contains(&self.targets.len()) {
            return wrong(format!("from 1 to {TARGETS} targets"));
        }
        if !(1..=REPETITIONS).contains(&self.repetitions) {
            return wrong(format!("repetitions are from 1 to {REPETITIONS}"));
        }
        if !(1..=SUITE_JOBS).contains(&self.jobs.len()) {
            return wrong(format!("from 1 to {SUITE_JOBS} jobs"));
        }
        for (at, target) in self.targets.iter().enumerate() {
            if target.disks.is_empty() {
                return wrong(format!("target {} has no disk", target.name));
            }
            if self.targets[..at].iter().any(|other| other.name == target.name) {
                return wrong(format!("two targets are called {}: write NAME=…", target.name));
            }
        }
        for (at, job) in self.jobs.iter().enumerate() {
            job.check().map_err(Error::Usage)?;
            let discarded = self.jobs[..at].iter().find(|before| before.pattern.trims());
            if let Some(before) = discarded.filter(|_| !job.pattern.trims()) {
                let (job, before) = (&job.name, &before.name);
                return wrong(format!("{job} would use what {before} discards: put {before} last"));
            }
            let mut disks = self.targets.iter().flat_map(|target| &target.disks);
            if job.pattern.trims() && !disks.all(DiskAddress::can_discard) {
                return wrong(format!("job {}: only devices and volumes can discard", job.name));
            }
        }
        if self.steps().is_empty() {
            return wrong("no target has as many disks as the jobs need".to_owned());
        }
        Ok(())
    }

    /// Whether the run destroys data: a job writes or discards, or devices are discarded first.
    pub fn destroys(&self) -> bool {
        self.discard || self.jobs.iter().any(BenchJob::destroys)
    }

    fn suits(&self, job: usize, target: usize) -> bool {
        self.jobs[job].disks as usize <= self.targets[target].disks.len()
    }

    /// Messages for targets that have too few disks for some jobs; those jobs are skipped there.
    pub fn left_out(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (target, named) in self.targets.iter().enumerate() {
            let count = (0..self.jobs.len()).filter(|job| !self.suits(*job, target)).count();
            if count > 0 {
                found.push(format!(
                    "{}: {count} of {} jobs need more disks than its {}, and are left out",
                    named.name,
                    self.jobs.len(),
                    named.disks.len()
                ));
            }
        }
        found
    }

    /// One round of a job on all suitable targets. Each round starts with another target, so that
    /// no target always follows the same one.
    pub fn round(&self, job: usize, repetition: u32) -> Vec<CampaignStep> {
        let count = self.targets.len();
        let order = (0..count).map(|at| (at + repetition as usize) % count);
        let suited = order.filter(|target| self.suits(job, *target));
        suited.map(|target| CampaignStep { job, repetition, target }).collect()
    }

    /// All measurements in order, if no round is added.
    pub fn steps(&self) -> Vec<CampaignStep> {
        let rounds = (0..self.jobs.len())
            .flat_map(|job| (0..self.repetitions).map(move |repetition| (job, repetition)));
        rounds.flat_map(|(job, repetition)| self.round(job, repetition)).collect()
    }

    /// Expected duration of a step with its warm-up, in seconds.
    pub fn step_seconds(&self, step: CampaignStep) -> f64 {
        let job = &self.jobs[step.job];
        (job.ramp_ms + job.runtime_ms) as f64 / 1e3 + 0.3
    }

    /// The job for a target of this size: offsets of threads shrink on smaller disks.
    fn fitted(&self, step: CampaignStep, size_bytes: Option<u64>) -> BenchJob {
        let mut job = self.jobs[step.job].clone();
        if let Some(size) = size_bytes {
            let each = size.saturating_sub(job.offset_bytes) / u64::from(job.threads);
            let most = each / job.block_bytes * job.block_bytes;
            job.offset_increment_bytes = job.offset_increment_bytes.min(most);
        }
        job
    }

    /// fio if a target needs it, or if it is installed and the kernel may attach a target.
    pub fn fio(&self, interrupt: &Interrupt) -> Result<Option<Fio>, Error> {
        let ours = |target: &BenchTarget| matches!(target.disks[0], DiskAddress::NvmeTcp(_));
        let needs_fio = !self.targets.iter().all(ours);
        match self.initiator {
            InitiatorChoice::Flagstone if !needs_fio => Ok(None),
            InitiatorChoice::Auto if !needs_fio => match Fio::find(interrupt) {
                Err(error) if error.is_lack_of_fio() => Ok(None),
                found => found.map(Some),
            },
            _ => Fio::find(interrupt).map(Some),
        }
    }
}

#[cfg(test)]
impl CampaignPlan {
    /// Two jobs on two targets, for tests.
    pub fn example() -> CampaignPlan {
        let targets = ["a=/x", "b=/y,/z"].map(|text| text.parse().unwrap()).into();
        let suite = crate::suite::find("quick").unwrap();
        let mut plan = CampaignPlan::new(&suite, targets, 1 << 20);
        plan.jobs.truncate(2);
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetitions_are_interleaved_and_take_turns() {
        let mut plan = CampaignPlan::example();
        plan.repetitions = 2;
        let order: Vec<_> = plan.steps().iter().map(|s| (s.job, s.repetition, s.target)).collect();
        assert_eq!(
            order,
            [
                (0, 0, 0),
                (0, 0, 1),
                (0, 1, 1),
                (0, 1, 0),
                (1, 0, 0),
                (1, 0, 1),
                (1, 1, 1),
                (1, 1, 0)
            ]
        );
        plan.jobs[0].disks = 2;
        assert_eq!(plan.round(0, 0), [CampaignStep { job: 0, repetition: 0, target: 1 }]);
        let notes = plan.left_out();
        assert_eq!(notes, ["a: 1 of 2 jobs need more disks than its 1, and are left out"]);
        assert_eq!(plan.check().map_err(|e| e.to_string()), Ok(()));
        plan.jobs.truncate(1);
        plan.jobs[0].disks = 3;
        assert!(plan.check().is_err());
    }

    #[test]
    fn offsets_fit_smaller_disks() {
        let mut plan = CampaignPlan::example();
        plan.jobs[0].offset_increment_bytes = 500 << 30;
        plan.jobs[0].threads = 4;
        let step = plan.steps()[0];
        assert_eq!(plan.fitted(step, Some(1 << 20)).offset_increment_bytes, 256 << 10);
        assert_eq!(plan.fitted(step, None).offset_increment_bytes, 500 << 30);
    }

    #[test]
    fn discards_need_consent_and_come_last() {
        let mut plan = CampaignPlan::example();
        plan.jobs.iter_mut().for_each(|job| job.pattern = crate::job::AccessPattern::Read);
        assert!(!plan.destroys());
        plan.discard = true;
        assert!(plan.destroys(), "a read-only suite that discards first asks for consent too");
        plan.discard = false;
        plan.jobs[1].pattern = crate::job::AccessPattern::RandTrim;
        assert!(plan.destroys(), "the guard asks for consent");
        let error = |plan: &CampaignPlan| plan.check().unwrap_err().to_string();
        assert!(error(&plan).contains("only devices and volumes can discard"));
        plan.targets = ["a=/dev/null", "b=nbd://h/v"].map(|text| text.parse().unwrap()).into();
        assert_eq!(plan.check().map_err(|e| e.to_string()), Ok(()));
        plan.jobs.swap(0, 1);
        let (first, last) = (plan.jobs[1].name.clone(), plan.jobs[0].name.clone());
        assert!(error(&plan).contains(&format!("{first} would use what {last} discards")));
    }

    #[test]
    fn target_names_are_unique() {
        let mut plan = CampaignPlan::example();
        plan.targets[1].name = "a".to_owned();
        assert!(plan.check().unwrap_err().to_string().contains("two targets are called a"));
    }
}
