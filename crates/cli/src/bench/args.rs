//! Options of `flagstone bench`.

use std::ops::RangeBounds;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use flagstone_bench::Error;
use flagstone_bench::attach::InitiatorChoice;
use flagstone_bench::report::{ComparisonDocument, Run};
use flagstone_bench::table::Form;
use flagstone_bench::target::BenchTarget;
use flagstone_units::{parse_duration, parse_size};

use crate::output::json;
use crate::words::{INITIATORS, TABLE_FORMS, one_of};

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) command: BenchCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Run a suite of jobs on disks, files or served volumes, and compare them
    Run(RunArgs),
    /// Run a diskspd command line with fio, and print diskspd's report
    Diskspd(DiskspdArgs),
    /// Compare results, with confidence intervals and significance
    Compare(BenchCompareArgs),
    /// Write an HTML report with tables, plots, commands and data
    Report(ReportArgs),
    /// Continue an interrupted run
    Resume(ResumeArgs),
    /// List the suites, and the results in a directory
    List(ListArgs),
}

#[derive(Debug, Args)]
pub(crate) struct OutputArgs {
    /// Format of the tables
    #[arg(long, value_name = "FORM", default_value = "text", value_parser = one_of(TABLE_FORMS))]
    format: Form,
    /// Print the comparison as JSON
    #[arg(long, conflicts_with = "format")]
    json: bool,
}

impl OutputArgs {
    /// Text or JSON of these runs, which were read from `results`.
    pub(super) fn shown(&self, runs: &[Run], results: &[PathBuf]) -> String {
        match self.json {
            true => json(&ComparisonDocument::new(runs, results)),
            false => super::tables(runs, self.format),
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct ResultsArgs {
    /// Results: run directories or files of lines; the first is the baseline; the targets of a
    /// single result are compared with each other
    #[arg(required = true)]
    pub(crate) results: Vec<PathBuf>,
    /// Name of a series, in order: of each result, or of each target of a single result
    /// (repeatable)
    #[arg(long, value_name = "NAME")]
    name: Vec<String>,
}

impl ResultsArgs {
    pub(super) fn read(&self) -> Result<Vec<Run>, Error> {
        Run::read_all(&self.results, &self.name)
    }
}

fn step(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, command)) if !name.is_empty() && !command.is_empty() => {
            Ok((name.to_owned(), command.to_owned()))
        }
        _ => Err("write STEP=COMMAND, such as snapshot='lvcreate -s vg/thin'".to_owned()),
    }
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// A built-in suite (see flagstone bench list), the file of a suite, or a job file of fio
    /// (.fio)
    pub(crate) suite: String,
    /// Targets to measure: [NAME=]DISK[,DISK…]; a disk is a path, nbd://… or nvme-tcp://…
    #[arg(required = true)]
    pub(crate) targets: Vec<BenchTarget>,
    /// Repetitions of each job on each target; the suite's if not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) repetitions: Option<u32>,
    /// Length of each measurement; the suite's if not given
    #[arg(long, value_name = "TIME", value_parser = measured_time)]
    pub(crate) runtime: Option<u64>,
    /// Warm-up before each measurement; the suite's if not given
    #[arg(long, value_name = "TIME", value_parser = any_time)]
    pub(crate) ramp: Option<u64>,
    /// Size of a file that the run creates
    #[arg(long, value_name = "SIZE", default_value = "1g", value_parser = file_size)]
    pub(crate) size: u64,
    /// Measure until the last five rounds are steady by SNIA's criterion
    #[arg(long)]
    pub(crate) steady_state: bool,
    /// Discard whole devices first (BLKDISCARD), before they are filled
    #[arg(long)]
    pub(crate) discard: bool,
    /// Do not fill targets that have unwritten parts
    #[arg(long)]
    pub(crate) no_precondition: bool,
    /// A disk of a target, exactly as written, whose data may be destroyed (repeatable)
    #[arg(long, value_name = "DISK")]
    pub(crate) destroy_data: Vec<String>,
    /// Results directory; bench-results/SUITE-TIME if not given
    #[arg(long, value_name = "DIR")]
    pub(crate) results: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    /// Configuration file of the served volumes, stored with the results to mark emulated disks
    #[arg(long, value_name = "FILE")]
    pub(crate) stack: Option<PathBuf>,
    /// API socket of the local server that serves a target, whose volume layers are stored with the
    /// results; the default sockets if not given
    #[arg(long, value_name = "PATH")]
    pub(crate) api: Option<PathBuf>,
    /// A target that emulates a disk; its results are marked (repeatable)
    #[arg(long, value_name = "TARGET")]
    pub(crate) emulated: Vec<String>,
    /// Initiator for nvme-tcp:// targets
    #[arg(long, value_name = "WHO", default_value = "auto", value_parser = one_of(INITIATORS))]
    pub(crate) initiator: InitiatorChoice,
    /// Shell command of a step of the suite, such as snapshot='lvcreate -s vg/thin'; `written`
    /// prints the bytes that the layer below the target has written so far (repeatable)
    #[arg(long, value_name = "STEP=COMMAND", value_parser = step)]
    pub(crate) step: Vec<(String, String)>,
    /// Print fio's job files and exit
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Arguments of `flagstone bench diskspd`. `-h` is diskspd's flag: no cache, and write-through.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(crate) struct DiskspdArgs {
    /// Print this help; -h is diskspd's own flag
    #[arg(long, action = clap::ArgAction::Help)]
    pub(crate) help: Option<bool>,
    /// Print fio's command and job file and exit; before diskspd's own flags
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// A target, exactly as written, whose data may be destroyed; before diskspd's own flags
    #[arg(long, value_name = "TARGET")]
    pub(crate) destroy_data: Vec<String>,
    /// diskspd's own command line: flags, then targets
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) arguments: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct BenchCompareArgs {
    #[command(flatten)]
    pub(crate) of: ResultsArgs,
    /// Exit with status 5 if anything is significantly slower than the first by more than this
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub(crate) fail_if_slower: Option<f64>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    #[command(flatten)]
    pub(crate) of: ResultsArgs,
    /// The HTML file; `-` is standard output
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    pub(crate) output: PathBuf,
    /// Print the comparison as JSON too
    #[arg(long)]
    pub(crate) json: bool,
    /// Also write each table as Markdown and CSV, and each plot as SVG, to this directory
    #[arg(long, value_name = "DIR")]
    pub(crate) files: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ResumeArgs {
    /// Directory of the run
    pub(crate) run: PathBuf,
    /// A disk of a target, exactly as written, whose data may be destroyed; required again for each
    /// resume (repeatable)
    #[arg(long, value_name = "DISK")]
    pub(crate) destroy_data: Vec<String>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Directory that contains the run directories
    #[arg(default_value = "bench-results")]
    pub(crate) directory: PathBuf,
    /// Print the file of a built-in suite, as a template
    #[arg(long, value_name = "NAME")]
    pub(crate) suite: Option<String>,
    /// Print the lists as JSON
    #[arg(long, conflicts_with = "suite")]
    pub(crate) json: bool,
}

/// A time in ms within `range`, which `expected` describes.
pub(crate) fn time_ms(
    text: &str,
    range: impl RangeBounds<u64>,
    expected: &str,
) -> Result<u64, String> {
    let time = parse_duration(text).map_err(|error| error.to_string())?;
    let ms = time.as_millis() as u64;
    range.contains(&ms).then_some(ms).ok_or_else(|| format!("write {expected}"))
}

pub(crate) fn any_time(text: &str) -> Result<u64, String> {
    time_ms(text, .., "a time, such as 2s")
}

pub(crate) fn measured_time(text: &str) -> Result<u64, String> {
    time_ms(text, 1.., "a time longer than 0, such as 10s")
}

fn file_size(text: &str) -> Result<u64, String> {
    whole_mib(text, 1 << 20, "a multiple of 1m")
}

/// Whole MiB, in bytes, from `least` on; `expected` describes them.
pub(crate) fn whole_mib(text: &str, least: u64, expected: &str) -> Result<u64, String> {
    match parse_size(text).map_err(|error| error.to_string())? {
        bytes if bytes >= least && bytes.is_multiple_of(1 << 20) => Ok(bytes),
        _ => Err(format!("write {expected}")),
    }
}

fn percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').trim().parse::<f64>() {
        Ok(percent) if (0.0..=1000.0).contains(&percent) => Ok(percent),
        _ => Err("write a percentage, such as 5%".to_owned()),
    }
}
