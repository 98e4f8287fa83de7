//! `flagstone bench list`.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use flagstone_bench::Error;
use flagstone_bench::results::{self, ResultStore};
use flagstone_bench::suite::{self, BUILT_IN};
use flagstone_bench::table::{Form, Table, UNKNOWN};
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
    let document = ListDocument { suites: suites()?, runs: runs(args)? };
    let is_whole = document.runs.iter().all(|run| run.error.is_none());
    let exit = if is_whole { Exit::Success } else { Exit::Failed };
    Ok(print(&if args.json { json(&document) } else { document.text() }, exit))
}

/// Directory of the runs if none is given.
const DIRECTORY: &str = "bench-results";

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
    /// Why the results cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
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

/// The runs in a directory. The default directory need not exist.
fn runs(args: &ListArgs) -> Result<Vec<RunEntry>, Error> {
    let directory = &args.directory;
    let is_default = directory == Path::new(DIRECTORY);
    let entries = match std::fs::read_dir(directory) {
        Err(error) if is_default && error.kind() == ErrorKind::NotFound => {
            return Ok(Vec::new());
        }
        entries => entries.map_err(Error::file("cannot list", directory))?,
    };
    let mut directories = Vec::new();
    for entry in entries {
        directories.push(entry.map_err(Error::file("cannot list", directory))?.path());
    }
    directories.sort();
    let is_run = |directory: &PathBuf| directory.join("campaign.json").exists();
    Ok(directories.into_iter().filter(is_run).map(run_entry).collect())
}

fn run_entry(directory: PathBuf) -> RunEntry {
    let read = || {
        let (_, plan) = ResultStore::open(&directory)?;
        let lines = directory.join("results.jsonl");
        let is_empty = std::fs::metadata(lines).map_or(true, |lines| lines.len() == 0);
        let done = if is_empty { 0 } else { results::read(&directory)?.len() };
        Ok::<_, Error>((done, plan))
    };
    match read() {
        Ok((done, plan)) => RunEntry {
            done,
            planned: plan.steps().len(),
            suite: plan.suite,
            directory,
            error: None,
        },
        Err(error) => RunEntry {
            done: 0,
            planned: 0,
            suite: String::new(),
            error: Some(error.to_string()),
            directory,
        },
    }
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
            let directory = run.directory.display().to_string();
            if let Some(error) = &run.error {
                runs.rows.push(vec![
                    directory,
                    UNKNOWN.to_owned(),
                    UNKNOWN.to_owned(),
                    error.clone(),
                ]);
                continue;
            }
            let (done, planned) = (run.done.to_string(), run.planned.to_string());
            runs.rows.push(vec![directory, done, planned, run.suite.clone()]);
        }
        let runs = if runs.rows.is_empty() { String::new() } else { runs.write(Form::Text) };
        suites.write(Form::Text) + &runs
    }
}
