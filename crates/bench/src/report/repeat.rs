//! Commands that repeat a run.

use super::Run;
use crate::attach::InitiatorChoice;
use crate::campaign::CampaignPlan;
use crate::fio::arguments::shell;
use crate::job::BenchJob;
use crate::suite;

/// The command line of a plan, with a note on differences.
pub(super) fn run_command(plan: &CampaignPlan) -> (String, Option<&'static str>) {
    if let Some(command) = &plan.command {
        return (command.clone(), None);
    }
    let mut words = vec!["bench".to_owned(), "run".to_owned(), plan.suite.clone()];
    for target in &plan.targets {
        let address = target.address();
        let is_named = target.name != address;
        words.push(if is_named { format!("{}={address}", target.name) } else { address });
    }
    words.push(format!("--repetitions={}", plan.repetitions));
    let own = suite::find(&plan.suite).ok();
    let mut note = None;
    match own {
        Some(own) if own.jobs == plan.jobs => {}
        Some(mut own) => {
            let first = plan.jobs.first().cloned().unwrap_or_default();
            let set = |own: &[BenchJob], of: fn(&mut BenchJob) -> &mut u64| {
                let mut own = own.to_vec();
                own.iter_mut().for_each(|job| *of(job) = *of(&mut first.clone()));
                own
            };
            let ramped = set(&own.jobs, |job| &mut job.ramp_ms);
            let timed = set(&own.jobs, |job| &mut job.runtime_ms);
            own.jobs = set(&timed, |job| &mut job.ramp_ms);
            let runtime = format!("--runtime={}ms", first.runtime_ms);
            let ramp = format!("--ramp={}ms", first.ramp_ms);
            if timed == plan.jobs {
                words.push(runtime);
            } else if ramped == plan.jobs {
                words.push(ramp);
            } else if own.jobs == plan.jobs {
                words.extend([runtime, ramp]);
            } else {
                note = Some("the built-in suite has changed since: the jobs are in the data below");
            }
        }
        None => note = Some("the suite is the user's own file: name it in place of its name"),
    }
    match plan.initiator {
        InitiatorChoice::Auto => {}
        InitiatorChoice::Kernel => words.push("--initiator=kernel".to_owned()),
        InitiatorChoice::Flagstone => words.push("--initiator=flagstone".to_owned()),
    }
    if plan.steady_state {
        words.push("--steady-state".to_owned());
    }
    if plan.discard && !suite::find(&plan.suite).is_ok_and(|suite| suite.discard) {
        words.push("--discard".to_owned());
    }
    if !plan.precondition {
        words.push("--no-precondition".to_owned());
    }
    words.push(format!("--size={}", plan.file_bytes));
    (shell("flagstone", &words), note)
}

/// Distinct command lines of the measurements, with job and target.
pub(super) fn commands(runs: &[Run]) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = Vec::new();
    for run in runs {
        for record in run.records.iter().filter(|record| !record.command.is_empty()) {
            if all.iter().all(|(_, command)| *command != record.command) {
                let what =
                    format!("{} on {}{}", record.job, record.target, record.provenance.suffix());
                all.push((what, record.command.clone()));
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_command_repeats_the_plan() {
        let suite = suite::find("quick").unwrap();
        let targets = ["a=/x y", "/z"].map(|text| text.parse().unwrap()).into();
        let mut plan = CampaignPlan::new(&suite, targets, 1 << 20);
        let (command, note) = run_command(&plan);
        let expected = format!(
            "flagstone bench run quick 'a=/x y' /z --repetitions={} --size=1048576",
            suite.repetitions
        );
        assert_eq!((command, note), (expected, None));
        plan.jobs.iter_mut().for_each(|job| job.runtime_ms = 700);
        plan.steady_state = true;
        plan.precondition = false;
        let (command, note) = run_command(&plan);
        assert!(
            note.is_none() && command.contains("--runtime=700ms --steady-state --no-precondition"),
            "{command}"
        );
        plan.jobs.iter_mut().for_each(|job| job.ramp_ms = 0);
        plan.initiator = InitiatorChoice::Flagstone;
        let (command, note) = run_command(&plan);
        let expected = "--runtime=700ms --ramp=0ms --initiator=flagstone";
        assert!(note.is_none() && command.contains(expected), "{command}");
        plan.jobs.truncate(1);
        assert!(run_command(&plan).1.is_some());
        plan.suite = "mine".to_owned();
        assert!(run_command(&plan).1.unwrap().contains("own file"));
    }
}
