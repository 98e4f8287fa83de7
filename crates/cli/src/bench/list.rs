//! `flagstone bench list`.

use flagstone_bench::Error;
use flagstone_bench::results::{self, ResultStore};
use flagstone_bench::suite::{self, BUILT_IN};
use flagstone_bench::table::{Form, Table};
use flagstone_units::display::duration;

use super::args::ListArgs;
use crate::exit::Exit;
use crate::output::print;

pub(super) fn run(args: &ListArgs) -> Result<Exit, Error> {
    if let Some(name) = &args.suite {
        let found = BUILT_IN.iter().find(|(own, _)| own == name);
        let (_, text) = found.ok_or_else(|| Error::usage(format!("no built-in suite `{name}`")))?;
        return Ok(print(text, Exit::Success));
    }
    let mut suites = Table::new("suites", &["suite", "jobs", "each target", "what"]);
    for (name, _) in BUILT_IN {
        let suite = suite::find(name)?;
        let each: u64 = suite.jobs.iter().map(|job| job.ramp_ms + job.runtime_ms).sum();
        let seconds = each as f64 / 1e3 * f64::from(suite.repetitions);
        suites.rows.push(vec![
            name.to_owned(),
            suite.jobs.len().to_string(),
            duration(seconds),
            suite.title,
        ]);
    }
    let mut text = suites.write(Form::Text);
    let mut runs = Table::new("\nruns", &["run", "done", "of", "suite"]);
    let mut directories: Vec<_> = match std::fs::read_dir(&args.directory) {
        Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
        Err(_) => Vec::new(),
    };
    directories.sort();
    for directory in directories {
        let Ok((_, plan)) = ResultStore::open(&directory) else { continue };
        let done = results::read(&directory).map_or(0, |records| records.len());
        runs.rows.push(vec![
            directory.display().to_string(),
            done.to_string(),
            plan.steps().len().to_string(),
            plan.suite,
        ]);
    }
    if !runs.rows.is_empty() {
        text += &runs.write(Form::Text);
    }
    Ok(print(&text, Exit::Success))
}
