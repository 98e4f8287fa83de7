//! HTML report: one file with tables, plots, environment, commands and data; and each table and
//! plot as a file of its own.
//!
//! Invariants: the file needs nothing from outside and runs no script. Targets that are not known
//! to be real disks are marked in every table and plot, in a notice at the top, and in the file of
//! each plot. Text of results, which anyone may have written, is never markup. The report of 1,000
//! results stays below 5 MB.
//!
//! [`Run`] reads results, [`HtmlReport`] collects them, `plots` and `tables` draw, `page` writes
//! the HTML and [`files`] the files. [`AdditionalSections`] are the additional sections of an
//! experiment; an [`CombinedReport`] combines several reports in one page.

mod additional_sections;
mod combined_report;
mod data;
mod document;
mod files;
mod html;
mod page;
mod plots;
mod repeat;
mod tables;

use std::path::{Path, PathBuf};

use flagstone_plot::Figure as Picture;
use serde::{Deserialize, Serialize};

pub use self::additional_sections::AdditionalSections;
pub use self::combined_report::CombinedReport;
pub use self::document::ComparisonDocument;
pub use self::tables::by_size;

use crate::campaign::CampaignPlan;
use crate::compare::Comparison;
use crate::environment::Environment;
use crate::error::Error;
use crate::provenance::Provenance;
use crate::results::{self, ResultRecord, ResultStore};
use crate::table::Table;

#[derive(Clone, Debug)]
pub struct Run {
    pub name: String,
    /// All measurements, including rounds before the steady state.
    pub rounds: Vec<ResultRecord>,
    pub records: Vec<ResultRecord>,
    pub plan: Option<CampaignPlan>,
    pub environments: Vec<Environment>,
    pub additional_sections: Option<AdditionalSections>,
}

impl Run {
    /// Reads several runs. Duplicates are refused: repetitions that are counted twice would make
    /// differences seem more significant than they are. `names`, if there are any, replace the
    /// names of the runs, or of the targets of a single run, in order.
    ///
    /// # Errors
    /// As [`Run::read`]; [`Error::Usage`] for a duplicate, and for too few or too many names.
    pub fn read_all(paths: &[PathBuf], names: &[String]) -> Result<Vec<Run>, Error> {
        // Unreadable paths are reported by the read below.
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
        let mut runs = paths.iter().map(|path| Run::read(path)).collect::<Result<Vec<_>, _>>()?;
        if !names.is_empty() {
            rename(&mut runs, names)?;
        }
        Ok(runs)
    }

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
                additional_sections: None,
            });
        }
        let (store, plan) = ResultStore::open(path)?;
        let records = results::settled(rounds.clone(), &plan);
        let environments = store.environments()?;
        let additional_sections = AdditionalSections::read(path)?;
        Ok(Run { name, rounds, records, plan: Some(plan), environments, additional_sections })
    }
}

fn rename(runs: &mut [Run], names: &[String]) -> Result<(), Error> {
    if (1..names.len()).any(|at| names[..at].contains(&names[at])) {
        return Err(Error::usage("--name: two series of the same name"));
    }
    let mut targets: Vec<String> = Vec::new();
    if let [run] = runs {
        for record in &run.rounds {
            if !targets.contains(&record.target) {
                targets.push(record.target.clone());
            }
        }
    }
    let series = if runs.len() == 1 { targets.len() } else { runs.len() };
    if names.len() != series {
        return Err(Error::Usage(format!(
            "--name: {} names for {series} series: name every result, or every target of a single \
             result",
            names.len()
        )));
    }
    let [run] = runs else {
        runs.iter_mut().zip(names).for_each(|(run, name)| run.name.clone_from(name));
        return Ok(());
    };
    for record in run.rounds.iter_mut().chain(&mut run.records) {
        let at = targets.iter().position(|target| *target == record.target);
        record.target.clone_from(&names[at.expect("records are rounds")]);
    }
    Ok(())
}

/// Comparison of the targets of a single run, or of each target of each run.
pub fn comparison(runs: &[Run]) -> Comparison {
    Comparison::of_runs(runs.iter().map(|run| (run.name.clone(), run.records.clone())).collect())
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plot {
    /// Name of its files: lowercase letters, digits and `-`.
    pub id: String,
    #[serde(flatten)]
    pub picture: Picture,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    /// Lowercase letters, digits and `-`.
    pub id: String,
    #[serde(flatten)]
    pub table: Table,
}

/// Position of a report in its page: the only report, or one of several.
#[derive(Clone, Debug, Default)]
struct PagePosition {
    /// Prefix of element ids, which are unique in the page.
    prefix: String,
    depth: usize,
}

#[derive(Debug)]
struct Shown {
    title: String,
    plots: Vec<Plot>,
    tables: Vec<Named>,
    caveats: Vec<String>,
}

impl Shown {
    /// The prefix keeps ids distinct from the ids of the measurements' tables and plots.
    fn new(additional_sections: &AdditionalSections, prefix: &str) -> Shown {
        let named = |id: String| format!("{prefix}{id}");
        Shown {
            title: additional_sections.title.clone(),
            plots: additional_sections
                .plots()
                .map(|plot| Plot { id: named(plot.id), ..plot })
                .collect(),
            tables: additional_sections
                .named()
                .map(|table| Named { id: named(table.id), ..table })
                .collect(),
            caveats: additional_sections.caveats.clone(),
        }
    }
}

#[derive(Debug)]
pub struct HtmlReport {
    runs: Vec<Run>,
    title: String,
    place: PagePosition,
    /// Additional sections of the runs that have any, in order.
    additional_sections: Vec<Shown>,
    comparison: Comparison,
    tables: Vec<Named>,
    plots: Vec<Plot>,
    /// Number of plots that were omitted, because there are too many.
    plots_left_out: usize,
}

impl HtmlReport {
    /// A report that compares the targets of one run, or several runs; `runs` is not empty.
    pub fn new(runs: Vec<Run>) -> HtmlReport {
        let title = title(&runs);
        let comparison = comparison(&runs);
        let tables = tables::all(&runs, &comparison);
        let mut plots = plots::all(&runs, &comparison);
        let plots_left_out = plots.len().saturating_sub(crate::limits::report::REPORT_PLOTS);
        plots.truncate(crate::limits::report::REPORT_PLOTS);
        let several = runs.iter().filter(|run| run.additional_sections.is_some()).count() > 1;
        let prefix =
            |at: usize| if several { format!("lab-{}-", at + 1) } else { "lab-".to_owned() };
        let shown = |(at, run): (usize, &Run)| {
            Some(Shown::new(run.additional_sections.as_ref()?, &prefix(at)))
        };
        let additional_sections = runs.iter().enumerate().filter_map(shown).collect();
        let place = PagePosition::default();
        HtmlReport {
            runs,
            title,
            place,
            additional_sections,
            comparison,
            tables,
            plots,
            plots_left_out,
        }
    }

    /// Targets that are not known to be real: provenance and name.
    fn not_real(&self) -> Vec<(Provenance, String)> {
        let things = self.comparison.names().iter().zip(self.comparison.provenances());
        let of = |(name, provenance): (&String, &Provenance)| {
            let bare = name.strip_suffix(provenance.suffix()).unwrap_or(name);
            provenance.warning().map(|_| (*provenance, bare.to_owned()))
        };
        things.filter_map(of).collect()
    }
}

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

/// A name for files and links: other characters become `-`.
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
