//! Library of the `flagstone` program: one module for each command, and their common parts
//! (options, exit statuses, logs, output). A test compares `docs/cli.md` with the options.

#![allow(missing_docs, reason = "the names of most members say it")]

mod args;
mod backup;
mod bench;
mod check;
mod completions;
mod confirm;
mod doctor;
pub mod exit;
mod init;
mod key;
mod lab;
mod load;
pub mod logging;
mod man;
mod mirror;
mod output;
pub mod panic;
mod plan;
mod pool;
mod reload;
mod sample;
mod serve;
mod status;
mod support;
mod words;

use clap::{Args as _, Parser as _};

pub use args::command;
use args::{Cli, Command};
use exit::{Exit, Failure};
use flagstone_runtime::privileges;
use output::{complain, wants_color};

/// Runs the command of the process's arguments.
pub fn run() -> Exit {
    completions::answer();
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        // Help goes to standard output.
        Err(error) if !error.use_stderr() => error.exit(),
        Err(error) => {
            let text = error.render();
            complain(&match wants_color(&std::io::stderr()) {
                true => text.ansi().to_string(),
                false => text.to_string(),
            });
            return Exit::Usage;
        }
    };
    // Before a key or a token is read, which most commands may do.
    if !matches!(&command, Command::Serve(args) if args.core_dumps)
        && let Err(error) = privileges::forbid_core_dumps()
    {
        return Failure::failed(format!("cannot forbid core dumps: {error}")).report();
    }
    let ended = match command {
        Command::Serve(args) => serve::run(&args),
        Command::Load(args) => load::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Reload(args) => reload::run(&args),
        Command::Mirror(args) => mirror::run(&args),
        Command::Pool(args) => pool::run_pool(&args),
        Command::Volume(args) => pool::run_volume(&args),
        Command::Snapshot(args) => pool::run_snapshot(&args),
        Command::Backup(args) => backup::run(&args),
        Command::Init(args) => init::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Key(args) => key::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Lab(args) => lab::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
    };
    ended.unwrap_or_else(Failure::report)
}

/// Options that several commands share, by the name of their list in `docs/cli.md`.
pub fn option_groups() -> [(&'static str, clap::Command); 14] {
    let group = || clap::Command::new("group");
    [
        ("query", status::QueryArgs::augment_args(group())),
        ("mirror-actions", mirror::args::VolumeArgs::augment_args(group())),
        ("mirror-peer", mirror::args::PeerArgs::augment_args(group())),
        ("pool-orders", pool::args::OrderArgs::augment_args(group())),
        ("volume-settings", pool::args::SettingArgs::augment_args(group())),
        ("backup-store", backup::args::StoreArgs::augment_args(group())),
        ("plan-machine", plan::args::MachineArgs::augment_args(group())),
        ("plan-disk", plan::args::DiskArgs::augment_args(group())),
        ("plan-jobs", plan::args::JobArgs::augment_args(group())),
        ("plan-output", plan::args::CatalogArg::augment_args(group())),
        ("lab-results", lab::args::OutputArgs::augment_args(group())),
        ("lab-lengths", lab::args::LengthArgs::augment_args(group())),
        ("lab-product", lab::real_args::KindArgs::augment_args(group())),
        ("lab-targets", lab::real_args::MeasuredArgs::augment_args(group())),
    ]
}
