//! `flagstone completions SHELL`: the shell's completion script, on standard output.

use clap::CommandFactory as _;

use crate::args::{Cli, CompletionsArgs};
use crate::exit::Exit;
use crate::output;

/// Runs the command.
pub fn run(args: &CompletionsArgs) -> Exit {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "flagstone", &mut script);
    output::print(&String::from_utf8_lossy(&script), Exit::Success)
}
