//! The program behind `make demo`: see [`flagstone_demo`].

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use flagstone_demo::Error;
use flagstone_demo::demo::{Options, run};
use flagstone_demo::process::Interrupt;
use flagstone_demo::report::Report;

/// Serves one volume on this machine, attaches it over NVMe/TCP and NBD, measures it against the
/// file that it is on, and verifies its data; then shows what a mirror and a fabric cost, and what
/// happens when a node dies.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// The flagstone program
    #[arg(long, value_name = "PATH", default_value = "target/release/flagstone")]
    flagstone: PathBuf,
    /// Where the volume's file is made, in a directory that is removed at the end: on the disk to
    /// measure
    #[arg(long, value_name = "PATH", default_value = "target")]
    dir: PathBuf,
    /// Size of the volume, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 512,
          value_parser = clap::value_parser!(u64).range(64..=1 << 24))]
    size_mib: u64,
    /// Seconds of each measurement; there are 29
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = seconds)]
    seconds: f64,
    /// Where the report and the results of the lab's experiments go; those of an earlier demo are
    /// removed
    #[arg(long, value_name = "DIR", default_value = "target/demo")]
    results: PathBuf,
    /// Write the results as JSON here, too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("a number from 0.1 to 3600".to_owned()),
    }
}

/// As shells report a program that was ended by SIGINT.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let args = Args::parse();
    let options = Options {
        flagstone: args.flagstone,
        directory: args.dir,
        size_bytes: args.size_mib << 20,
        seconds: args.seconds,
        results: args.results,
    };
    let result =
        Interrupt::catch().map_err(Error::from).and_then(|interrupt| run(&options, &interrupt));
    let published = result.and_then(|(report, page)| {
        publish(&report, &page, args.json)?;
        Ok(report.is_right())
    });
    match published {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("demo: {error}");
            ExitCode::from(if matches!(error, Error::Interrupted) { INTERRUPTED } else { 1 })
        }
    }
}

fn publish(report: &Report, page: &Path, json: Option<PathBuf>) -> Result<(), Error> {
    if let Some(path) = json {
        let text = serde_json::to_string_pretty(report).expect("a report is always JSON");
        std::fs::write(&path, text + "\n").map_err(|cause| Error::Io {
            what: format!("cannot write {}", path.display()),
            cause,
        })?;
    }
    println!("\n{}\nthe report is {}", report.render(), page.display());
    Ok(())
}
