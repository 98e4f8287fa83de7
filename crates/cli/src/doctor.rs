//! `flagstone doctor`: finds host settings that cost performance, and changes them.

use std::io;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use flagstone_host::apply::{ChangeOutcome, undo};
use flagstone_host::checks::{Expectations, TuningGoal};
use flagstone_host::doctor::{DoctorReport, REPORT_VERSION, diagnose, resolve};
use flagstone_host::report;
use flagstone_host::root::Root;

use crate::exit::Exit;
use crate::output::{complain, print, wants_color};

/// Tuning goal of the disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DoctorWorkload {
    /// Small random I/O
    Iops,
    /// Large sequential I/O
    Throughput,
}

/// Arguments of `flagstone doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Disks to check, such as /dev/sdb; all if none is given
    #[arg(value_name = "DEVICE")]
    pub devices: Vec<String>,
    /// Tuning goal of the disks; read-ahead is checked only with this
    #[arg(long, value_enum, value_name = "WORKLOAD")]
    pub workload: Option<DoctorWorkload>,
    /// Expected IOPS, to check the number of CPUs and the queue depth
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub iops: Option<u64>,
    /// Check the network too, for a server of volumes
    #[arg(long)]
    pub server: bool,
    /// Make the safe changes after showing them, with a journal for --undo
    #[arg(long)]
    pub apply: bool,
    /// With --apply: keep the changes across restarts, as a udev rule and a sysctl file
    #[arg(long, requires = "apply")]
    pub persist: bool,
    /// Restore the settings from before --apply and --persist
    #[arg(long, conflicts_with_all = ["apply", "devices", "workload", "iops", "server"])]
    pub undo: bool,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
    /// Use the host files below this directory, such as a recorded host
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub root: PathBuf,
}

/// Runs the command.
pub fn run(args: &DoctorArgs) -> Exit {
    if !args.root.is_dir() {
        complain(&format!("flagstone: error: {}: not a directory\n", args.root.display()));
        return Exit::Usage;
    }
    let root = Root::new(&args.root);
    if args.undo {
        return undo_changes(args, &root);
    }
    let names = args.devices.iter().map(|device| resolve(&root, device));
    let mut named = match names.collect::<Result<Vec<_>, _>>() {
        Ok(named) => named,
        Err(error) => {
            complain(&format!("flagstone: error: {error}\n"));
            return Exit::Usage;
        }
    };
    named.sort();
    named.dedup();
    let workload = args.workload.map(|workload| match workload {
        DoctorWorkload::Iops => TuningGoal::Iops,
        DoctorWorkload::Throughput => TuningGoal::Throughput,
    });
    let expected = Expectations { workload, iops: args.iops, server: args.server, named };
    let mut report = diagnose(&root, &expected);
    if !args.json {
        let text = report::text(&report, wants_color(&io::stdout()));
        let shown = print(&text, Exit::Success);
        if !args.apply || shown != Exit::Success {
            return shown;
        }
    }
    let exit = if args.apply { change(args, &root, &mut report) } else { Exit::Success };
    match args.json {
        true => print(&json(&report), exit),
        false => print(&changes(report.changes.as_deref(), "nothing to change\n"), exit),
    }
}

fn change(args: &DoctorArgs, root: &Root, report: &mut DoctorReport) -> Exit {
    match report.apply(root, args.persist) {
        Ok(()) => ended(report.changes.as_deref().unwrap_or_default()),
        Err(error) => {
            complain(&format!("flagstone: error: {error}\n"));
            Exit::Failed
        }
    }
}

fn undo_changes(args: &DoctorArgs, root: &Root) -> Exit {
    match undo(root) {
        Ok(outcomes) if args.json => {
            let report = serde_json::json!({ "version": REPORT_VERSION, "changes": outcomes });
            print(&json(&report), ended(&outcomes))
        }
        Ok(outcomes) => print(&changes(Some(&outcomes), "nothing to undo\n"), ended(&outcomes)),
        Err(error) => {
            complain(&format!("flagstone: error: {error}\n"));
            Exit::Failed
        }
    }
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

fn json(report: &impl serde::Serialize) -> String {
    let text = serde_json::to_string_pretty(report).expect("it is strings, numbers and lists");
    text + "\n"
}
