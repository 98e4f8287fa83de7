//! `flagstone bench list`.

use std::path::{Path, PathBuf};

use flagstone_bench::Error;
use flagstone_bench::results::{self, ResultStore};
use flagstone_bench::suite::{self, BUILT_IN};
use flagstone_bench::table::{Form, Table};
use flagstone_units::display::duration;
use serde::Serialize;

use super::args::ListArgs;
use crate::exit::Exit;
use crate::output::{json, print};

pub(super) fn run(args: &ListArgs) -> Result<Exit, Error> {
    if let Some(name) = &args.suite {
        let found = BUILT_IN.iter().find(|(own, _)| own == name);
        let (_, text) = found.ok_or_else(|| Error::usage(format!("no built-in suite `{name}`")))?;
        return Ok(print(text, Exit::Success));
    }
    let document = ListDocument { suites: suites()?, runs: runs(&args.directory) };
    Ok(print(&if args.json { json(&document) } else { document.text() }, Exit::Success))
}

#[derive(Serialize)]
struct ListDocument {
    suites: Vec<SuiteEntry>,
    runs: Vec<RunEntry>,
}

#[derive(Serialize)]
struct SuiteEntry {
    name: &'static str,
    title: String,
    jobs: usize,
    repetitions: u32,
    /// Time for each target, in seconds, without its preparation.
    seconds: f64,
}

#[derive(Serialize)]
struct RunEntry {
    directory: PathBuf,
    suite: String,
    /// Measurements that are done, and all that are planned.
    done: usize,
    planned: usize,
}

fn suites() -> Result<Vec<SuiteEntry>, Error> {
    let entry = |name: &'static str| {
        let suite = suite::find(name)?;
        let each: u64 = suite.jobs.iter().map(|job| job.ramp_ms + job.runtime_ms).sum();
        Ok(SuiteEntry {
            name,
            title: suite.title,
            jobs: suite.jobs.len(),
            repetitions: suite.repetitions,
            seconds: each as f64 / 1e3 * f64::from(suite.repetitions),
        })
    };
    BUILT_IN.iter().map(|(name, _)| entry(name)).collect()
}

fn runs(directory: &Path) -> Vec<RunEntry> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut directories: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    directories.sort();
    let entry = |directory: PathBuf| {
        let (_, plan) = ResultStore::open(&directory).ok()?;
        let done = results::read(&directory).map_or(0, |records| records.len());
        Some(RunEntry { done, planned: plan.steps().len(), suite: plan.suite, directory })
    };
    directories.into_iter().filter_map(entry).collect()
}

impl ListDocument {
    fn text(&self) -> String {
        let mut suites = Table::new("suites", &["suite", "jobs", "each target", "what"]);
        for suite in &self.suites {
            let (jobs, time) = (suite.jobs.to_string(), duration(suite.seconds));
            suites.rows.push(vec![suite.name.to_owned(), jobs, time, suite.title.clone()]);
        }
        let mut runs = Table::new("\nruns", &["run", "done", "of", "suite"]);
        for run in &self.runs {
            let (done, planned) = (run.done.to_string(), run.planned.to_string());
            let directory = run.directory.display().to_string();
            runs.rows.push(vec![directory, done, planned, run.suite.clone()]);
        }
        let runs = if runs.rows.is_empty() { String::new() } else { runs.write(Form::Text) };
        suites.write(Form::Text) + &runs
    }
}
