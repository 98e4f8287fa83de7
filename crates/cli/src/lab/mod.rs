//! `flagstone lab`: published experiments, with emulated disks and links or on given ones.

pub(crate) mod args;
mod demo;
mod experiments;
mod failover;
pub(crate) mod real_args;

use std::path::{Path, PathBuf};

use flagstone_bench::Error as BenchError;
use flagstone_bench::fio::arguments::shell;
use flagstone_bench::os::unix_seconds;
use flagstone_bench::report::{AdditionalSections, HtmlReport, Run};
use flagstone_bench::table::Form;
use flagstone_lab::Error;
use flagstone_units::format_utc;
use serde::Serialize;

use self::args::{LabArgs, LabCommand};
use crate::exit::{Exit, Failure};
use crate::output::{complain, json};

pub(crate) fn run(args: &LabArgs) -> Result<Exit, Failure> {
    let ended = match &args.command {
        LabCommand::Mirror(args) => experiments::mirror(args),
        LabCommand::Failover(args) => failover::run(args),
        LabCommand::Fabric(args) => experiments::fabric(args),
        LabCommand::Provisioned(args) => experiments::provisioned(args),
        LabCommand::Pool(args) => experiments::pool(args),
        LabCommand::Savings(args) => return experiments::savings(args),
        LabCommand::Limits(args) => experiments::limits(args),
        LabCommand::Demo(args) => demo::run(args),
    };
    Ok(ended?)
}

/// This program, which nodes and load are processes of.
fn program() -> Result<PathBuf, Error> {
    std::env::current_exe()
        .map_err(|cause| Error::System { what: "cannot find this program", cause })
}

fn typed() -> String {
    let words: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    shell("flagstone", &words)
}

/// Directory of the results: the requested one, or one of the experiment's name and the time.
fn results(asked: Option<&PathBuf>, experiment: &str) -> PathBuf {
    asked.cloned().unwrap_or_else(|| {
        let name = format!("{experiment}-{}", format_utc(unix_seconds()));
        PathBuf::from("lab-results").join(name)
    })
}

/// Names the directory of the results after a failure.
fn print_results_directory(directory: &Path) {
    if directory.exists() {
        complain(&format!("results so far are in {}\n", directory.display()));
    }
}

fn write_summary(directory: &Path, summary: &impl Serialize) -> Result<(), Error> {
    let path = directory.join("summary.json");
    std::fs::write(&path, json(summary)).map_err(BenchError::file("cannot write", &path))?;
    Ok(())
}

fn text(sections: &AdditionalSections, form: Form) -> String {
    let mut all: Vec<String> = sections.tables.iter().map(|one| one.table.write(form)).collect();
    // CSV has tables only.
    if form != Form::Csv {
        all.push(sections.caveats.iter().map(|caveat| format!("- {caveat}.\n")).collect());
    }
    all.join("\n")
}

/// Writes the additional sections and the HTML report into the directory of the results; returns
/// the report's path.
fn report(directory: &Path, additional_sections: &AdditionalSections) -> Result<PathBuf, Error> {
    additional_sections.write(directory)?;
    let html = HtmlReport::new(vec![Run::read(directory)?]).html();
    let path = directory.join("report.html");
    std::fs::write(&path, html).map_err(BenchError::file("cannot write", &path))?;
    Ok(path)
}
