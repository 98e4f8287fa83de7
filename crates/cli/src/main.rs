//! The `flagstone` program: reads its arguments and runs one command.

use std::process::ExitCode;

use clap::Parser as _;
use flagstone_cli::args::{Cli, Command};
use flagstone_cli::{
    bench, check, completions, doctor, lab, load, mirror, panic, plan, serve, status,
};

fn main() -> ExitCode {
    panic::install_hook();
    // Clap prints its own errors and exits with status 2, which equals `Exit::Usage`.
    let exit = match Cli::parse().command {
        Command::Serve(args) => serve::run(&args),
        Command::Load(args) => load::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Mirror(args) => mirror::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Lab(args) => lab::run(&args),
        Command::Completions(args) => completions::run(&args),
    };
    exit.into()
}
