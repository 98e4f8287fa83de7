//! `flagstone lab`: the published experiments on this machine, with emulated disks and links.

pub mod args;
mod failover;
mod mirror;

use std::path::{Path, PathBuf};

use flagstone_bench::Error as BenchError;
use flagstone_bench::os::unix_seconds;
use flagstone_bench::report::{Report, Run};
use flagstone_bench::units::format_utc;
use flagstone_lab::Error;

use self::args::{LabArgs, LabCommand};
use crate::exit::Exit;
use crate::output::complain;

/// Runs the command.
pub fn run(args: &LabArgs) -> Exit {
    let ended = match &args.command {
        LabCommand::Mirror(args) => mirror::run(args),
        LabCommand::Failover(args) => failover::run(args),
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

/// Where results go: where the user says, or in a directory of the experiment and the time.
fn results(asked: Option<&PathBuf>, experiment: &str) -> PathBuf {
    asked.cloned().unwrap_or_else(|| {
        let name = format!("{experiment}-{}", format_utc(unix_seconds()));
        PathBuf::from("lab-results").join(name)
    })
}

/// Makes the HTML report of a directory of results, in it; gives where it is.
fn report(directory: &Path) -> Result<PathBuf, Error> {
    let html = Report::new(vec![Run::read(directory)?]).html();
    let path = directory.join("report.html");
    std::fs::write(&path, html).map_err(BenchError::file("cannot write", &path))?;
    Ok(path)
}
