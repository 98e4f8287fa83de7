//! Steps: shell commands of the user that run between the jobs of a campaign, such as taking a
//! snapshot.
//!
//! Only the command line and the stored plan have them, never the file of a suite, which may come
//! from another author.

use std::process::Command;

use super::{CampaignPlan, WRITTEN};
use crate::error::Error;
use crate::job::BenchJob;
use crate::limits::STEP_BYTES;
use crate::os::Stopwatch;
use crate::process::{self, Interrupt};
use crate::target::BenchTarget;

/// Bytes of the message of a failed command that are shown.
const SAID_BYTES: usize = 2000;

/// Runs the command of a step; returns its output. `number` counts from 1.
fn run(
    plan: &CampaignPlan,
    step: &str,
    target: &BenchTarget,
    number: u32,
    interrupt: &Interrupt,
) -> Result<Option<String>, Error> {
    let Some(line) = plan.commands.get(step) else { return Ok(None) };
    let mut shell = Command::new("sh");
    shell
        .args(["-c", line])
        .env("FLAGSTONE_TARGET", &target.name)
        .env("FLAGSTONE_DISK", target.address())
        .env("FLAGSTONE_NUMBER", number.to_string());
    let ended = process::run(&mut shell, STEP_BYTES, interrupt, &mut || {})?;
    match ended.status.success() {
        true => Ok(Some(ended.output)),
        false => Err(Error::ToolFailed {
            tool: "the command of a step",
            status: ended.status.to_string(),
            command: line.clone(),
            said: ended.message(SAID_BYTES),
        }),
    }
}

/// Runs the step before a job, as often as it says.
///
/// # Errors
/// A command that fails, or the user's interruption.
pub(super) fn before(
    plan: &CampaignPlan,
    job: &BenchJob,
    target: &BenchTarget,
    interrupt: &Interrupt,
) -> Result<(), Error> {
    let Some(step) = &job.before else { return Ok(()) };
    for number in 1..=job.before_times.max(1) {
        run(plan, step, target, number, interrupt)?;
    }
    Ok(())
}

/// Bytes that the layer below a target has written so far; `None` without a command.
///
/// # Errors
/// A command that fails or prints no number, or the user's interruption.
fn written(
    plan: &CampaignPlan,
    target: &BenchTarget,
    interrupt: &Interrupt,
) -> Result<Option<u64>, Error> {
    let Some(said) = run(plan, WRITTEN, target, 1, interrupt)? else { return Ok(None) };
    let number = said.trim().parse::<u64>();
    let wrong = |_| Error::Usage(format!("--step {WRITTEN}: `{}` is no number", said.trim()));
    number.map(Some).map_err(wrong)
}

/// Meter of the bytes that the layer below writes while a job is measured, without its warm-up.
pub(super) struct WrittenMeter<'a> {
    plan: &'a CampaignPlan,
    target: &'a BenchTarget,
    interrupt: &'a Interrupt,
    ramp_s: f64,
    watch: Stopwatch,
    begun: Option<Result<Option<u64>, Error>>,
}

impl<'a> WrittenMeter<'a> {
    pub(super) fn new(
        plan: &'a CampaignPlan,
        target: &'a BenchTarget,
        interrupt: &'a Interrupt,
        ramp_ms: u64,
    ) -> WrittenMeter<'a> {
        let ramp_s = ramp_ms as f64 / 1e3;
        let mut meter = WrittenMeter {
            plan,
            target,
            interrupt,
            ramp_s,
            watch: Stopwatch::start(),
            begun: None,
        };
        meter.tick();
        meter
    }

    /// Called repeatedly; takes the first reading after the warm-up.
    pub(super) fn tick(&mut self) {
        if self.begun.is_none() && self.watch.seconds() >= self.ramp_s {
            self.begun = Some(written(self.plan, self.target, self.interrupt));
        }
    }

    /// Bytes since the end of the warm-up; `None` without a command, or if the warm-up has not
    /// ended.
    ///
    /// # Errors
    /// As [`written`].
    pub(super) fn end(self) -> Result<Option<u64>, Error> {
        let Some(before) = self.begun.transpose()?.flatten() else { return Ok(None) };
        let after = written(self.plan, self.target, self.interrupt)?;
        Ok(after.map(|after| after.saturating_sub(before)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite;

    fn plan(commands: &[(&str, &str)]) -> CampaignPlan {
        let suite = suite::find("space-sharing").unwrap();
        let target = "thin=/dev/none".parse().unwrap();
        let mut plan = CampaignPlan::new(&suite, vec![target], 1 << 20);
        let owned = |(step, line): &(&str, &str)| ((*step).to_owned(), (*line).to_owned());
        plan.commands = commands.iter().map(owned).collect();
        plan
    }

    #[test]
    fn jobs_without_their_step_are_left_out() {
        let mut without = plan(&[]);
        assert_eq!(without.leave_out_jobs_without_step().len(), 3);
        assert!(without.jobs.iter().all(|job| job.before.is_none()));
        let mut with = plan(&[("snapshot", "true")]);
        assert!(with.leave_out_jobs_without_step().is_empty());
        let times: u32 = with
            .jobs
            .iter()
            .filter(|job| job.before.is_some())
            .map(|job| job.before_times.max(1))
            .sum();
        assert_eq!(times, 100, "snapshots in all");
    }

    #[test]
    fn steps_run_as_often_as_asked() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("log");
        let line = format!("echo $FLAGSTONE_TARGET $FLAGSTONE_NUMBER >>{}", file.display());
        let plan = plan(&[("snapshot", &line), ("written", "echo 4096")]);
        let never = Interrupt::never();
        let job = plan.jobs.iter().find(|job| job.name == "with-10-snapshots").unwrap();
        before(&plan, job, &plan.targets[0], &never).unwrap();
        let text = std::fs::read_to_string(file).unwrap();
        assert_eq!((text.lines().count(), text.lines().last()), (9, Some("thin 9")));
        assert_eq!(written(&plan, &plan.targets[0], &never).unwrap(), Some(4096));
    }

    /// Regression test: the bytes of the warm-up counted.
    #[test]
    fn warm_up_is_not_in_written_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("written");
        let plan = plan(&[("written", &format!("cat {}", file.display()))]);
        let never = Interrupt::never();
        let meter = |ramp_ms| WrittenMeter::new(&plan, &plan.targets[0], &never, ramp_ms);
        std::fs::write(&file, "1000").unwrap();
        let mut warm = meter(1);
        std::fs::write(&file, "5000").unwrap();
        while warm.watch.seconds() < 0.001 {}
        warm.tick();
        std::fs::write(&file, "7000").unwrap();
        warm.tick();
        assert_eq!(warm.end().unwrap(), Some(2000), "since the end of the warm-up");
        let cold = meter(0);
        std::fs::write(&file, "8000").unwrap();
        assert_eq!(cold.end().unwrap(), Some(1000));
        let mut early = meter(1_000_000);
        early.tick();
        assert_eq!(early.end().unwrap(), None, "the warm-up is not over");
    }

    #[test]
    fn failed_step_ends_the_campaign() {
        let plan = plan(&[("snapshot", "echo broken >&2; exit 3"), ("written", "echo x")]);
        let never = Interrupt::never();
        let job = plan.jobs.iter().find(|job| job.before.is_some()).unwrap();
        let error = before(&plan, job, &plan.targets[0], &never).unwrap_err().to_string();
        assert!(error.contains("broken") && error.contains("exit 3"), "{error}");
        let error = written(&plan, &plan.targets[0], &never).unwrap_err().to_string();
        assert!(error.contains("`x` is no number"), "{error}");
    }
}
