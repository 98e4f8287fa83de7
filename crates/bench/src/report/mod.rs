//! A report to look at: one HTML file with tables, plots, the environment, the commands and the
//! data; and each table and plot as a file of its own.
//!
//! What it promises: the file needs nothing from outside and runs no script; what is not known to
//! be a real disk says so beside its name in every table and plot, in a notice above all, and in
//! the file of each plot; what stands in results, which anyone may have written, is text and never
//! markup; and the report of 1,000 results stays below 5 MB.
//!
//! [`Run`] reads, [`Report`] gathers, `plots` and `tables` show, `page` writes the HTML and [`files`]
//! the rest. An experiment adds [`Extras`] to its results; an [`Album`] is several reports in one
//! page.

mod album;
mod data;
mod extras;
mod files;
mod html;
mod page;
mod plots;
mod repeat;
mod tables;

use std::path::{Path, PathBuf};

use flagstone_plot::Figure as Picture;
use serde::{Deserialize, Serialize};

pub use self::album::Album;
pub use self::extras::{Drawing, Drawn, Extras};
pub use self::tables::by_size;

use crate::campaign::Plan;
use crate::compare::Comparison;
use crate::environment::Environment;
use crate::error::Error;
use crate::nature::Nature;
use crate::results::{self, Record, Store};
use crate::table::Table;

/// One run, as it was read.
#[derive(Clone, Debug)]
pub struct Run {
    /// What the report calls it.
    pub name: String,
    /// Every measurement, also rounds that were not steady yet.
    pub rounds: Vec<Record>,
    /// Those that are results.
    pub records: Vec<Record>,
    /// What was to be done, if it is a directory of a run.
    pub plan: Option<Plan>,
    /// What it was done on.
    pub environments: Vec<Environment>,
    /// What an experiment added.
    pub extras: Option<Extras>,
}

impl Run {
    /// Reads several, each of them another: one that is given twice would count its repetitions
    /// twice, and differences would seem surer than they are.
    ///
    /// # Errors
    /// As [`Run::read`]; [`Error::Usage`] for one that is given twice.
    pub fn read_all(paths: &[PathBuf]) -> Result<Vec<Run>, Error> {
        // What cannot be resolved is found out when it is read.
        let file = |path: &PathBuf| results::file(path).canonicalize().ok();
        for (at, path) in paths.iter().enumerate() {
            let own = file(path);
            if own.is_some() && paths[..at].iter().any(|other| file(other) == own) {
                return Err(Error::Usage(format!(
                    "{} is given twice: give each result once",
                    path.display()
                )));
            }
        }
        paths.iter().map(|path| Run::read(path)).collect()
    }

    /// Reads a directory of a run, or a file of lines.
    ///
    /// # Errors
    /// What cannot be read, with its place.
    pub fn read(path: &Path) -> Result<Run, Error> {
        let name = path.display().to_string().trim_end_matches('/').to_owned();
        let rounds = results::read(path)?;
        if !path.join("campaign.json").exists() {
            return Ok(Run {
                name,
                records: rounds.clone(),
                rounds,
                plan: None,
                environments: Vec::new(),
                extras: None,
            });
        }
        let (store, plan) = Store::open(path)?;
        let records = results::settled(rounds.clone(), &plan);
        let environments = store.environments()?;
        let extras = Extras::read(path)?;
        Ok(Run { name, rounds, records, plan: Some(plan), environments, extras })
    }
}

/// Runs side by side: the targets of a single one, or else each target of each run.
pub fn comparison(runs: &[Run]) -> Comparison {
    Comparison::of_runs(runs.iter().map(|run| (run.name.clone(), run.records.clone())).collect())
}

/// A picture with the name of its files.
#[derive(Clone, Debug)]
pub(crate) struct Plot {
    /// Lower-case letters, digits and `-`.
    pub(crate) id: String,
    /// What is drawn.
    pub(crate) picture: Picture,
}

/// A table with the name of its files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    /// Lower-case letters, digits and `-`.
    pub id: String,
    /// What it says.
    #[serde(flatten)]
    pub table: Table,
}

/// Where a report stands in a page: alone, or as one of several.
#[derive(Clone, Debug, Default)]
struct Place {
    /// Before each name that is one of the whole page.
    prefix: String,
    /// How much deeper its headings are.
    depth: usize,
}

/// What an experiment added, to be shown.
#[derive(Debug)]
struct Shown {
    title: String,
    plots: Vec<Plot>,
    tables: Vec<Named>,
    doubts: Vec<String>,
}

impl Shown {
    /// Names begin with what is not that of any table or plot of the measurements.
    fn new(extras: &Extras, prefix: &str) -> Shown {
        let named = |id: String| format!("{prefix}{id}");
        Shown {
            title: extras.title.clone(),
            plots: extras.plots().map(|plot| Plot { id: named(plot.id), ..plot }).collect(),
            tables: extras.named().map(|table| Named { id: named(table.id), ..table }).collect(),
            doubts: extras.doubts.clone(),
        }
    }
}

/// All that a report shows.
#[derive(Debug)]
pub struct Report {
    runs: Vec<Run>,
    title: String,
    place: Place,
    /// Of the runs that have any, in order.
    extras: Vec<Shown>,
    comparison: Comparison,
    tables: Vec<Named>,
    plots: Vec<Plot>,
    /// Plots that were left out, as there were too many.
    plots_left_out: usize,
}

impl Report {
    /// Of one run, whose targets are put side by side, or of several. There is at least one.
    pub fn new(runs: Vec<Run>) -> Report {
        let title = title(&runs);
        let comparison = comparison(&runs);
        let tables = tables::all(&runs, &comparison);
        let mut plots = plots::all(&runs, &comparison);
        let plots_left_out = plots.len().saturating_sub(crate::limits::REPORT_PLOTS);
        plots.truncate(crate::limits::REPORT_PLOTS);
        let several = runs.iter().filter(|run| run.extras.is_some()).count() > 1;
        let prefix =
            |at: usize| if several { format!("lab-{}-", at + 1) } else { "lab-".to_owned() };
        let shown = |(at, run): (usize, &Run)| Some(Shown::new(run.extras.as_ref()?, &prefix(at)));
        let extras = runs.iter().enumerate().filter_map(shown).collect();
        let place = Place::default();
        Report { runs, title, place, extras, comparison, tables, plots, plots_left_out }
    }

    /// What is compared and is not known to be real: its nature and its name.
    fn doubtful(&self) -> Vec<(Nature, String)> {
        let things = self.comparison.names().iter().zip(self.comparison.natures());
        let of = |(name, nature): (&String, &Nature)| {
            let bare = name.strip_suffix(nature.suffix()).unwrap_or(name);
            nature.warning().map(|_| (*nature, bare.to_owned()))
        };
        things.filter_map(of).collect()
    }
}

/// The suites' titles, or their names where no plan tells more.
fn title(runs: &[Run]) -> String {
    let mut titles: Vec<String> = Vec::new();
    for run in runs {
        let suite = run.records.first().map(|record| record.suite.clone()).unwrap_or_default();
        let title = run.plan.as_ref().map_or(suite, |plan| plan.title.clone());
        if !titles.contains(&title) {
            titles.push(title);
        }
    }
    titles.join("; ")
}

/// A name of files and links: what is not plain becomes `-`.
fn slug(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars().take(80) {
        match c {
            c if c.is_ascii_alphanumeric() => out.push(c.to_ascii_lowercase()),
            _ if !out.is_empty() && !out.ends_with('-') => out.push('-'),
            _ => {}
        }
    }
    out.trim_end_matches('-').to_owned()
}
