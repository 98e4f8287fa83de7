//! A campaign: every job of a suite on every target, again and again, so that drift hits all alike.

mod pace;
mod run;
mod serve;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::attach::Choice;
use crate::error::Error;
use crate::job::Job;
use crate::limits::{REPETITIONS, SUITE_JOBS, TARGETS};
use crate::nature::Origin;
use crate::results::SCHEMA_VERSION;
use crate::suite::Suite;
use crate::target::{Place, Target};

pub use run::{Campaign, Ending, Watcher};

/// Rounds of a job whose results do not become steady.
pub const ROUNDS_MAX: u32 = 25;

/// What is to be done: all that a run can be resumed from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The suite's name.
    pub suite: String,
    /// Its title.
    pub title: String,
    /// Its jobs.
    pub jobs: Vec<Job>,
    /// Things to compare.
    pub targets: Vec<Target>,
    /// How often.
    pub repetitions: u32,
    /// Whether to go on until it is steady.
    pub steady_state: bool,
    /// Whether to fill first.
    pub precondition: bool,
    /// Size of files that have to be made, in bytes.
    pub file_bytes: u64,
    /// Who drives `nvme-tcp://` targets.
    #[serde(default)]
    pub initiator: Choice,
    /// What the user told of disks that cannot be looked into, by how they are written.
    #[serde(default)]
    pub origins: BTreeMap<String, Origin>,
    /// What made it and would make it again, where that is no `flagstone bench run`: its targets
    /// were there for it alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Disks whose data may be destroyed. It is never kept: what a disk holds when a run is resumed
    /// is not what the user once agreed to lose.
    #[serde(skip)]
    pub destroy: Vec<String>,
}

/// One measurement to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Index of the job.
    pub job: usize,
    /// From 0.
    pub repetition: u32,
    /// Index of the target.
    pub target: usize,
}

impl Plan {
    /// From a suite.
    pub fn new(suite: &Suite, targets: Vec<Target>, file_bytes: u64) -> Plan {
        Plan {
            schema_version: SCHEMA_VERSION,
            suite: suite.name.clone(),
            title: suite.title.clone(),
            jobs: suite.jobs.clone(),
            targets,
            repetitions: suite.repetitions,
            steady_state: suite.steady_state,
            precondition: suite.precondition,
            file_bytes,
            initiator: Choice::default(),
            origins: BTreeMap::new(),
            command: None,
            destroy: Vec::new(),
        }
    }

    /// Says what is wrong with it, also when it was read from a file.
    ///
    /// # Errors
    /// [`Error::Usage`].
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
        for job in &self.jobs {
            job.check().map_err(Error::Usage)?;
        }
        if self.steps().is_empty() {
            return wrong("no target has as many disks as the jobs need".to_owned());
        }
        Ok(())
    }

    /// Whether a job changes a target.
    pub fn writes(&self) -> bool {
        self.jobs.iter().any(Job::writes)
    }

    /// Whether a target can do a job.
    fn suits(&self, job: usize, target: usize) -> bool {
        self.jobs[job].disks as usize <= self.targets[target].disks.len()
    }

    /// Targets that are left out of jobs that need more disks than they have, with how many of how
    /// many jobs.
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

    /// One round of a job on all targets that it suits. Each round begins with another target, so
    /// that none is always the one that follows the same other.
    pub fn round(&self, job: usize, repetition: u32) -> Vec<Step> {
        let count = self.targets.len();
        let order = (0..count).map(|at| (at + repetition as usize) % count);
        let suited = order.filter(|target| self.suits(job, *target));
        suited.map(|target| Step { job, repetition, target }).collect()
    }

    /// Everything in order, if no round is added.
    pub fn steps(&self) -> Vec<Step> {
        let rounds = (0..self.jobs.len())
            .flat_map(|job| (0..self.repetitions).map(move |repetition| (job, repetition)));
        rounds.flat_map(|(job, repetition)| self.round(job, repetition)).collect()
    }

    /// How long a step takes, in seconds, with what starting fio takes.
    pub fn step_seconds(&self, step: Step) -> f64 {
        let job = &self.jobs[step.job];
        (job.ramp_ms + job.runtime_ms) as f64 / 1e3 + 0.3
    }

    /// The job as it is run on a target: offsets of threads are made smaller on a smaller disk.
    fn fitted(&self, step: Step, size_bytes: Option<u64>) -> Job {
        let mut job = self.jobs[step.job].clone();
        if let Some(size) = size_bytes {
            let each = size.saturating_sub(job.offset_bytes) / u64::from(job.threads);
            let most = each / job.block_bytes * job.block_bytes;
            job.offset_increment_bytes = job.offset_increment_bytes.min(most);
        }
        job
    }

    /// Whether any target needs fio, whoever drives `nvme-tcp://`.
    pub fn needs_fio(&self) -> bool {
        let ours = |target: &Target| matches!(target.disks[0], Place::NvmeTcp(_));
        !self.targets.iter().all(ours)
    }
}

#[cfg(test)]
impl Plan {
    /// Two jobs on two targets, for tests.
    pub fn example() -> Plan {
        let targets = ["a=/x", "b=/y,/z"].map(|text| text.parse().unwrap()).into();
        let suite = crate::suite::find("quick").unwrap();
        let mut plan = Plan::new(&suite, targets, 1 << 20);
        plan.jobs.truncate(2);
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetitions_are_interleaved_and_take_turns() {
        let mut plan = Plan::example();
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
        assert_eq!(plan.round(0, 0), [Step { job: 0, repetition: 0, target: 1 }]);
        let told = plan.left_out();
        assert_eq!(told, ["a: 1 of 2 jobs need more disks than its 1, and are left out"]);
        assert_eq!(plan.check().map_err(|e| e.to_string()), Ok(()));
        plan.jobs.truncate(1);
        plan.jobs[0].disks = 3;
        assert!(plan.check().is_err());
    }

    #[test]
    fn offsets_fit_smaller_disks() {
        let mut plan = Plan::example();
        plan.jobs[0].offset_increment_bytes = 500 << 30;
        plan.jobs[0].threads = 4;
        let step = plan.steps()[0];
        assert_eq!(plan.fitted(step, Some(1 << 20)).offset_increment_bytes, 256 << 10);
        assert_eq!(plan.fitted(step, None).offset_increment_bytes, 500 << 30);
    }

    #[test]
    fn names_are_unique() {
        let mut plan = Plan::example();
        plan.targets[1].name = "a".to_owned();
        assert!(plan.check().unwrap_err().to_string().contains("two targets are called a"));
    }
}
