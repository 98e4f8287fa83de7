//! `flagstone doctor`: finds host settings that cost performance, changes them, and writes the
//! archive for a bug report.

use std::io;
use std::path::PathBuf;

use clap::Args;
use flagstone_host::apply::{ChangeOutcome, undo};
use flagstone_host::checks::{Expectations, TuningGoal};
use flagstone_host::doctor::{REPORT_VERSION, diagnose, resolve};
use flagstone_host::report;
use flagstone_host::root::Root;

use crate::exit::{Exit, Failure};
use crate::output::{json, print, wants_color};
use crate::support::{self, SupportOptions};
use crate::words::{TUNING_GOALS, one_of};

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Disks to check, such as /dev/sdb; all if none is given
    #[arg(value_name = "DEVICE")]
    pub(crate) devices: Vec<String>,
    /// Tuning goal of the disks; read-ahead is checked only with this
    #[arg(long, value_name = "WORKLOAD", value_parser = one_of(TUNING_GOALS))]
    pub(crate) workload: Option<TuningGoal>,
    /// Expected IOPS, to check the number of CPUs and the queue depth
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) iops: Option<u64>,
    /// Check the network too, for a server of volumes
    #[arg(long)]
    pub(crate) server: bool,
    /// Make the safe changes after showing them, with a journal for --undo
    #[arg(long)]
    pub(crate) apply: bool,
    /// With --apply: show the changes, and make none
    #[arg(long, requires = "apply")]
    pub(crate) dry_run: bool,
    /// With --apply: keep the changes across restarts, as a udev rule and a sysctl file
    #[arg(long, requires = "apply")]
    pub(crate) persist: bool,
    /// Restore the settings from before --apply and --persist
    #[arg(long, conflicts_with_all = ["apply", "devices", "workload", "iops", "server"])]
    pub(crate) undo: bool,
    /// Write an archive for a bug report, without secrets and data
    #[arg(long, conflicts_with_all = ["apply", "undo"])]
    pub(crate) support: bool,
    /// With --support: the archive, which must not exist; flagstone-support-TIME.tar.gz if not
    /// given
    #[arg(long, value_name = "FILE", requires = "support")]
    pub(crate) archive: Option<PathBuf>,
    /// With --support: the configuration; /etc/flagstone/conf.d and /etc/flagstone.toml if not
    /// given
    #[arg(long, value_name = "FILE", requires = "support")]
    pub(crate) config: Option<PathBuf>,
    /// With --support: Unix socket of the server's API; the default sockets if not given
    #[arg(long, value_name = "PATH", requires = "support")]
    pub(crate) api: Option<PathBuf>,
    /// Print the report, or the list of the archive, as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Use the host files below this directory, such as a recorded host
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub(crate) root: PathBuf,
}

pub(crate) fn run(args: &DoctorArgs) -> Result<Exit, Failure> {
    if !args.root.is_dir() {
        return Err(Failure::usage(format!("{}: not a directory", args.root.display())));
    }
    let root = Root::new(&args.root);
    if args.undo {
        return undo_changes(args, &root);
    }
    let names = args.devices.iter().map(|device| resolve(&root, device));
    let mut named = names.collect::<Result<Vec<_>, _>>().map_err(Failure::usage)?;
    named.sort();
    named.dedup();
    let (workload, iops, server) = (args.workload, args.iops, args.server);
    let mut report = diagnose(&root, &Expectations { workload, iops, server, named });
    if args.support {
        let DoctorArgs { archive, config, api, .. } = args;
        let (archive, config, api) = (archive.as_ref(), config.as_ref(), api.as_ref());
        let options = SupportOptions { archive, config, api };
        let (listed, exit) = support::write(&root, &report, &options, args.json)?;
        return Ok(print(&listed, exit));
    }
    if !args.json {
        let text = report::text(&report, wants_color(&io::stdout()));
        let shown = print(&text, Exit::Success);
        if !args.apply || shown != Exit::Success {
            return Ok(shown);
        }
    }
    let mut exit = Exit::Success;
    if args.apply {
        let done = match args.dry_run {
            true => report.preview(&root, args.persist),
            false => report.apply(&root, args.persist),
        };
        exit = match done {
            Ok(()) => ended(report.changes.as_deref().unwrap_or_default()),
            Err(error) => Failure::failed(error).report(),
        };
    }
    Ok(match args.json {
        true => print(&json(&report), exit),
        false => print(&changes(report.changes.as_deref(), "nothing to change\n"), exit),
    })
}

fn undo_changes(args: &DoctorArgs, root: &Root) -> Result<Exit, Failure> {
    let outcomes = undo(root).map_err(Failure::failed)?;
    let text = match args.json {
        true => json(&serde_json::json!({ "version": REPORT_VERSION, "changes": outcomes })),
        false => changes(Some(&outcomes), "nothing to undo\n"),
    };
    Ok(print(&text, ended(&outcomes)))
}

fn ended(outcomes: &[ChangeOutcome]) -> Exit {
    match outcomes.iter().any(ChangeOutcome::is_failure) {
        true => Exit::Failed,
        false => Exit::Success,
    }
}

fn changes(outcomes: Option<&[ChangeOutcome]>, none: &str) -> String {
    match outcomes {
        None => String::new(),
        Some([]) => format!("\n{none}"),
        Some(outcomes) => format!("\nchanges:\n{}", report::outcomes(outcomes)),
    }
}
