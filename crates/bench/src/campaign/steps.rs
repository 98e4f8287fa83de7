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
pub(super) fn written(
    plan: &CampaignPlan,
    target: &BenchTarget,
    interrupt: &Interrupt,
) -> Result<Option<u64>, Error> {
    let Some(said) = run(plan, WRITTEN, target, 1, interrupt)? else { return Ok(None) };
    let number = said.trim().parse::<u64>();
    let wrong = |_| Error::Usage(format!("--step {WRITTEN}: `{}` is no number", said.trim()));
    number.map(Some).map_err(wrong)
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
