//! `flagstone doctor`: says what of the host's settings costs performance, and changes it.

use std::io;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use flagstone_host::apply::{Outcome, undo};
use flagstone_host::checks::{Expectations, Workload};
use flagstone_host::doctor::{REPORT_VERSION, Report, diagnose, resolve};
use flagstone_host::report;
use flagstone_host::root::Root;

use crate::exit::Exit;
use crate::output::{complain, print, wants_color};

/// What the disks are to be good at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DoctorWorkload {
    /// Small I/O at random places
    Iops,
    /// Large I/O, one after the other
    Throughput,
}

/// Arguments of `flagstone doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Disks to look at, such as /dev/sdb; all if none is named
    #[arg(value_name = "DEVICE")]
    pub devices: Vec<String>,
    /// What the disks are to be good at; read-ahead is judged only if this is given
    #[arg(long, value_enum, value_name = "WORKLOAD")]
    pub workload: Option<DoctorWorkload>,
    /// I/O operations a second that are expected: enough CPUs and queue depth for them?
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub iops: Option<u64>,
    /// Judge the network too, as a server of volumes wants it
    #[arg(long)]
    pub server: bool,
    /// Make the safe changes after showing them, with a journal of what was before
    #[arg(long)]
    pub apply: bool,
    /// With --apply: keep the changes over a restart, as a udev rule and a sysctl file
    #[arg(long, requires = "apply")]
    pub persist: bool,
    /// Give back what was before --apply and --persist
    #[arg(long, conflicts_with_all = ["apply", "devices", "workload", "iops", "server"])]
    pub undo: bool,
    /// Report as JSON on standard output
    #[arg(long)]
    pub json: bool,
    /// Look at the files of a host below this directory, such as one recorded
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub root: PathBuf,
}

/// Runs the command.
pub fn run(args: &DoctorArgs) -> Exit {
    if !args.root.is_dir() {
        complain(&format!("flagstone: error: {}: no directory\n", args.root.display()));
        return Exit::Usage;
    }
    let root = Root::new(&args.root);
    if args.undo {
        return give_back(args, &root);
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
        DoctorWorkload::Iops => Workload::Iops,
        DoctorWorkload::Throughput => Workload::Throughput,
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

fn change(args: &DoctorArgs, root: &Root, report: &mut Report) -> Exit {
    match report.apply(root, args.persist) {
        Ok(()) => ended(report.changes.as_deref().unwrap_or_default()),
        Err(error) => {
            complain(&format!("flagstone: error: {error}\n"));
            Exit::Failed
        }
    }
}

fn give_back(args: &DoctorArgs, root: &Root) -> Exit {
    match undo(root) {
        Ok(outcomes) if args.json => {
            let report = serde_json::json!({ "version": REPORT_VERSION, "changes": outcomes });
            print(&json(&report), ended(&outcomes))
        }
        Ok(outcomes) => {
            print(&changes(Some(&outcomes), "nothing to give back\n"), ended(&outcomes))
        }
        Err(error) => {
            complain(&format!("flagstone: error: {error}\n"));
            Exit::Failed
        }
    }
}

fn ended(outcomes: &[Outcome]) -> Exit {
    match outcomes.iter().any(Outcome::is_failure) {
        true => Exit::Failed,
        false => Exit::Success,
    }
}

fn changes(outcomes: Option<&[Outcome]>, none: &str) -> String {
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
