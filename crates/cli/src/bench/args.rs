//! The arguments of `flagstone bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use flagstone_bench::attach::Choice;
use flagstone_bench::table::Form;
use flagstone_bench::target::Target;
use flagstone_bench::units::{parse_size, parse_time_ms};

/// Arguments of `flagstone bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: BenchCommand,
}

/// The commands of `flagstone bench`.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Run a suite of jobs on disks, files or served volumes, and compare them
    Run(RunArgs),
    /// Do what a diskspd command line says, with fio, and print diskspd's report
    Diskspd(DiskspdArgs),
    /// Put results side by side, with confidence and significance
    Compare(CompareArgs),
    /// Make a report to look at: one HTML file with tables, plots, commands and the data
    Report(ReportArgs),
    /// Go on with a run that was interrupted
    Resume(ResumeArgs),
    /// List the suites, and the results in a directory
    List(ListArgs),
}

/// Arguments of `flagstone bench run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// A built-in suite (see flagstone bench list), or a suite's file
    pub suite: String,
    /// What to measure: [NAME=]DISK[,DISK…]; a disk is a path, nbd://… or nvme-tcp://…
    #[arg(required = true)]
    pub targets: Vec<Target>,
    /// How often each job is measured on each target; the suite's own number if not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: Option<u32>,
    /// Time that each measurement takes; the suite's own if not given
    #[arg(long, value_name = "TIME", value_parser = measured_time)]
    pub runtime: Option<u64>,
    /// Warm-up before each measurement; the suite's own if not given
    #[arg(long, value_name = "TIME", value_parser = parse_time_ms)]
    pub ramp: Option<u64>,
    /// Size of a file that has to be made
    #[arg(long, value_name = "SIZE", default_value = "1g", value_parser = file_size)]
    pub size: u64,
    /// Go on until the last five rounds are steady, as SNIA's specification judges it
    #[arg(long)]
    pub steady_state: bool,
    /// Do not fill targets that have parts that were never written
    #[arg(long)]
    pub no_precondition: bool,
    /// A target's disk, exactly as it is written, whose data may be destroyed (repeatable)
    #[arg(long, value_name = "DISK")]
    pub destroy_data: Vec<String>,
    /// Directory of the results; one of the suite's name and the time in bench-results if not given
    #[arg(long, value_name = "DIR")]
    pub results: Option<PathBuf>,
    /// Form of the tables
    #[arg(long, value_enum, value_name = "FORM", default_value = "text")]
    pub format: TableForm,
    /// The configuration file that served volumes come from: kept with the results, which say so
    /// where a volume emulates a disk
    #[arg(long, value_name = "FILE")]
    pub stack: Option<PathBuf>,
    /// Control API of the server of this machine that serves a target: what the volume is made of is
    /// kept with the results; where servers have it by default if not given
    #[arg(long, value_name = "PATH")]
    pub api: Option<PathBuf>,
    /// A target that is not a real disk but acts as one: its results say so (repeatable)
    #[arg(long, value_name = "TARGET")]
    pub emulated: Vec<String>,
    /// Who drives nvme-tcp:// targets
    #[arg(long, value_enum, value_name = "WHO", default_value = "auto")]
    pub initiator: Driver,
    /// Print fio's job files, and do nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// Who drives `nvme-tcp://` targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Driver {
    /// The kernel and fio where that can be, else our own generator; which and why is said
    Auto,
    /// The kernel and fio: root, nvme-cli and the module nvme-tcp are needed
    Kernel,
    /// Our own generator, flagstone load
    Flagstone,
}

impl From<Driver> for Choice {
    fn from(driver: Driver) -> Choice {
        match driver {
            Driver::Auto => Choice::Auto,
            Driver::Kernel => Choice::Kernel,
            Driver::Flagstone => Choice::Flagstone,
        }
    }
}

/// Arguments of `flagstone bench diskspd`. `-h` is diskspd's: no cache, and written through.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct DiskspdArgs {
    /// Print this help; -h is diskspd's own flag
    #[arg(long, action = clap::ArgAction::Help)]
    pub help: Option<bool>,
    /// Print fio's command and job file, and do nothing; before diskspd's own flags
    #[arg(long)]
    pub dry_run: bool,
    /// A target, exactly as it is written, whose data may be destroyed; before diskspd's own flags
    #[arg(long, value_name = "TARGET")]
    pub destroy_data: Vec<String>,
    /// diskspd's own command line: flags, then targets
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub arguments: Vec<String>,
}

/// Arguments of `flagstone bench compare`.
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// Results: directories of runs, or files of lines; the first is what the others are compared
    /// with; a single one's targets are compared with each other
    #[arg(required = true)]
    pub results: Vec<PathBuf>,
    /// End with code 5 if something is surely slower than the first by more than this
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub fail_if_slower: Option<f64>,
    /// Form of the tables
    #[arg(long, value_enum, value_name = "FORM", default_value = "text")]
    pub format: TableForm,
}

/// Arguments of `flagstone bench report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Results: directories of runs, or files of lines; the first is what the others are compared
    /// with; a single one's targets are compared with each other
    #[arg(required = true)]
    pub results: Vec<PathBuf>,
    /// The HTML file; `-` is standard output
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    pub output: PathBuf,
    /// Also write each table as Markdown and CSV, and each plot as SVG and PNG, into this directory
    #[arg(long, value_name = "DIR")]
    pub files: Option<PathBuf>,
}

/// Arguments of `flagstone bench resume`.
#[derive(Debug, Args)]
pub struct ResumeArgs {
    /// Directory of the run
    pub run: PathBuf,
    /// A target's disk, exactly as it is written, whose data may be destroyed: agreed to anew for
    /// each run (repeatable)
    #[arg(long, value_name = "DISK")]
    pub destroy_data: Vec<String>,
    /// Form of the tables
    #[arg(long, value_enum, value_name = "FORM", default_value = "text")]
    pub format: TableForm,
}

/// Arguments of `flagstone bench list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Directory with the directories of runs
    #[arg(default_value = "bench-results")]
    pub directory: PathBuf,
    /// Print a built-in suite's file, to begin one's own with
    #[arg(long, value_name = "NAME")]
    pub suite: Option<String>,
}

/// How tables are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TableForm {
    /// Aligned columns
    Text,
    /// GitHub's tables
    Markdown,
    /// Comma-separated values
    Csv,
}

impl From<TableForm> for Form {
    fn from(form: TableForm) -> Form {
        match form {
            TableForm::Text => Form::Text,
            TableForm::Markdown => Form::Markdown,
            TableForm::Csv => Form::Csv,
        }
    }
}

fn measured_time(text: &str) -> Result<u64, String> {
    match parse_time_ms(text)? {
        0 => Err("write a time longer than 0, such as 10s".to_owned()),
        ms => Ok(ms),
    }
}

fn file_size(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        bytes if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => Ok(bytes),
        _ => Err("write a multiple of 1m".to_owned()),
    }
}

fn percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').trim().parse::<f64>() {
        Ok(percent) if (0.0..=1000.0).contains(&percent) => Ok(percent),
        _ => Err("write a percentage, such as 5%".to_owned()),
    }
}
