//! What to type to do it all again.

use super::Run;
use crate::campaign::Plan;
use crate::fio::arguments::shell;
use crate::suite;

/// The `flagstone bench run` that makes a plan, and what has to be known of it.
pub(super) fn run_command(plan: &Plan) -> (String, Option<&'static str>) {
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
            let runtime_ms = plan.jobs.first().map_or(0, |job| job.runtime_ms);
            own.jobs.iter_mut().for_each(|job| job.runtime_ms = runtime_ms);
            if own.jobs == plan.jobs {
                words.push(format!("--runtime={runtime_ms}ms"));
            } else {
                note = Some("the built-in suite has changed since: the jobs are in the data below");
            }
        }
        None => note = Some("the suite is the user's own file: name it in place of its name"),
    }
    if plan.steady_state {
        words.push("--steady-state".to_owned());
    }
    if !plan.precondition {
        words.push("--no-precondition".to_owned());
    }
    words.push(format!("--size={}", plan.file_bytes));
    (shell("flagstone", &words), note)
}

/// The command of each measurement, once where several are the same, with what it measured.
pub(super) fn commands(runs: &[Run]) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = Vec::new();
    for run in runs {
        for record in run.records.iter().filter(|record| !record.command.is_empty()) {
            if all.iter().all(|(_, command)| *command != record.command) {
                let what = format!("{} on {}{}", record.job, record.target, record.nature.suffix());
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
    fn the_command_that_makes_a_plan() {
        let suite = suite::find("quick").unwrap();
        let targets = ["a=/x y", "/z"].map(|text| text.parse().unwrap()).into();
        let mut plan = Plan::new(&suite, targets, 1 << 20);
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
        plan.jobs.truncate(1);
        assert!(run_command(&plan).1.is_some());
        plan.suite = "mine".to_owned();
        assert!(run_command(&plan).1.unwrap().contains("own file"));
    }
}
