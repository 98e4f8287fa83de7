//! `flagstone lab`: the published experiments on this machine, with emulated disks and links, or on
//! real ones that the user names.

pub mod args;
mod fabric;
mod failover;
mod limits;
mod mirror;
mod provisioned;
mod real;
mod real_args;

use std::path::{Path, PathBuf};

use flagstone_bench::Error as BenchError;
use flagstone_bench::campaign::Ending;
use flagstone_bench::fio::arguments::shell;
use flagstone_bench::os::unix_seconds;
use flagstone_bench::report::{Extras, Report, Run};
use flagstone_bench::table::{Form, Table};
use flagstone_bench::units::format_utc;
use flagstone_lab::Error;
use serde::Serialize;

use self::args::{LabArgs, LabCommand, OutputArgs};
use crate::exit::Exit;
use crate::output::{complain, print};

/// Runs the command.
pub fn run(args: &LabArgs) -> Exit {
    let ended = match &args.command {
        LabCommand::Mirror(args) => mirror::run(args),
        LabCommand::Failover(args) => failover::run(args),
        LabCommand::Fabric(args) => fabric::run(args),
        LabCommand::Provisioned(args) => provisioned::run(args),
        LabCommand::Limits(args) => limits::run(args),
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

/// This program: the nodes and the load are processes of it.
fn program() -> Result<PathBuf, Error> {
    std::env::current_exe()
        .map_err(|cause| Error::System { what: "cannot find this program", cause })
}

/// The command line as it was typed, but for the program's place.
fn typed() -> String {
    let words: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    shell("flagstone", &words)
}

/// Where results go: where the user says, or in a directory of the experiment and the time.
fn results(asked: Option<&PathBuf>, experiment: &str) -> PathBuf {
    asked.cloned().unwrap_or_else(|| {
        let name = format!("{experiment}-{}", format_utc(unix_seconds()));
        PathBuf::from("lab-results").join(name)
    })
}

/// After a failure: what was measured before it is kept.
fn tell_of_results(directory: &Path) {
    if directory.exists() {
        complain(&format!("what was measured is in {}\n", directory.display()));
    }
}

/// A summary as JSON.
fn json(summary: &impl Serialize) -> String {
    serde_json::to_string_pretty(summary).expect("a summary is always JSON") + "\n"
}

/// Tables, and what they do not say by themselves.
fn text(tables: &[Table], doubts: &[String], form: Form) -> String {
    let mut all: Vec<String> = tables.iter().map(|table| table.write(form)).collect();
    // What reads CSV reads tables alone.
    if form != Form::Csv {
        all.push(doubts.iter().map(|doubt| format!("- {doubt}.\n")).collect());
    }
    all.join("\n")
}

/// The summary as it was asked for: as JSON, or as tables.
fn form(
    summary: &impl Serialize,
    tables: &[Table],
    doubts: &[String],
    asked: &OutputArgs,
) -> String {
    if asked.json { json(summary) } else { text(tables, doubts, asked.format.into()) }
}

fn nothing_measured() -> Exit {
    complain("flagstone: interrupted before anything was measured\n");
    Exit::Interrupted
}

/// Makes the report, prints what was found, and says where the report is.
fn finish(
    directory: &Path,
    shown: &str,
    (ending, extras): (Ending, Extras),
) -> Result<Exit, Error> {
    let report = report(directory, &extras)?;
    let exit = print(shown, exit_of(ending));
    complain(&format!("the report is {}\n", report.display()));
    Ok(exit)
}

/// How the program ends when a campaign did.
fn exit_of(ending: Ending) -> Exit {
    match ending {
        Ending::Complete => Exit::Success,
        Ending::Interrupted => Exit::Interrupted,
    }
}

/// Keeps what an experiment adds to its report with its results, and makes the HTML report of them,
/// in their directory; gives where it is.
fn report(directory: &Path, extras: &Extras) -> Result<PathBuf, Error> {
    extras.write(directory)?;
    let html = Report::new(vec![Run::read(directory)?]).html();
    let path = directory.join("report.html");
    std::fs::write(&path, html).map_err(BenchError::file("cannot write", &path))?;
    Ok(path)
}
