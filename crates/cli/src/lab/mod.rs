//! `flagstone lab`: published experiments, with emulated disks and links or on given ones.

pub mod args;
mod demo;
mod experiments;
mod failover;
pub mod real_args;

use std::path::{Path, PathBuf};

use flagstone_bench::Error as BenchError;
use flagstone_bench::campaign::CampaignEnd;
use flagstone_bench::fio::arguments::shell;
use flagstone_bench::os::unix_seconds;
use flagstone_bench::report::{AdditionalSections, HtmlReport, Run};
use flagstone_bench::table::{Form, Table};
use flagstone_lab::Error;
use flagstone_units::format_utc;
use serde::Serialize;

use self::args::{LabArgs, LabCommand, OutputArgs};
use crate::exit::Exit;
use crate::output::complain;

/// Runs the command.
pub fn run(args: &LabArgs) -> Exit {
    let ended = match &args.command {
        LabCommand::Mirror(args) => experiments::mirror(args),
        LabCommand::Failover(args) => failover::run(args),
        LabCommand::Fabric(args) => experiments::fabric(args),
        LabCommand::Provisioned(args) => experiments::provisioned(args),
        LabCommand::Limits(args) => experiments::limits(args),
        LabCommand::Demo(args) => demo::run(args),
    };
    ended.unwrap_or_else(|error| {
        complain(&format!("flagstone: error: {error}\n"));
        match error {
            Error::Bench(BenchError::Usage(_) | BenchError::Guarded { .. }) => Exit::Usage,
            _ if error.is_interruption() => Exit::Interrupted,
            _ => Exit::Failed,
        }
    })
}

/// This program, which nodes and load are processes of.
fn program() -> Result<PathBuf, Error> {
    std::env::current_exe()
        .map_err(|cause| Error::System { what: "cannot find this program", cause })
}

/// The command line, without the program's directory.
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
fn tell_of_results(directory: &Path) {
    if directory.exists() {
        complain(&format!("results so far are in {}\n", directory.display()));
    }
}

/// A summary as JSON.
fn json(summary: &impl Serialize) -> String {
    serde_json::to_string_pretty(summary).expect("a summary is always JSON") + "\n"
}

/// Writes a summary as `summary.json` beside the results.
fn write_summary(directory: &Path, summary: &impl Serialize) -> Result<(), Error> {
    let path = directory.join("summary.json");
    std::fs::write(&path, json(summary)).map_err(BenchError::file("cannot write", &path))?;
    Ok(())
}

/// Tables and caveats.
fn text(tables: &[Table], caveats: &[String], form: Form) -> String {
    let mut all: Vec<String> = tables.iter().map(|table| table.write(form)).collect();
    // CSV has tables only.
    if form != Form::Csv {
        all.push(caveats.iter().map(|caveat| format!("- {caveat}.\n")).collect());
    }
    all.join("\n")
}

/// The summary in the requested form: JSON or tables.
fn form(
    summary: &impl Serialize,
    tables: &[Table],
    caveats: &[String],
    asked: &OutputArgs,
) -> String {
    if asked.json { json(summary) } else { text(tables, caveats, asked.format.into()) }
}

fn nothing_measured() -> Exit {
    complain("flagstone: interrupted before anything was measured\n");
    Exit::Interrupted
}

fn tell_of_report(path: &Path) {
    complain(&format!("the report is {}\n", path.display()));
}

/// Exit status after a campaign.
fn exit_of(ending: CampaignEnd) -> Exit {
    match ending {
        CampaignEnd::Complete => Exit::Success,
        CampaignEnd::Interrupted => Exit::Interrupted,
    }
}

/// Writes the additional sections and the HTML report into the directory of the results; returns the
/// report's path.
fn report(directory: &Path, additional_sections: &AdditionalSections) -> Result<PathBuf, Error> {
    additional_sections.write(directory)?;
    let html = HtmlReport::new(vec![Run::read(directory)?]).html();
    let path = directory.join("report.html");
    std::fs::write(&path, html).map_err(BenchError::file("cannot write", &path))?;
    Ok(path)
}
