//! `flagstone completions SHELL`: the shell's completion script, on standard output.

use crate::args::{self, CompletionsArgs};
use crate::exit::{Exit, Failure};
use crate::output;

pub(crate) fn run(args: &CompletionsArgs) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut args::command(), "flagstone", &mut script);
    Ok(output::print(&String::from_utf8_lossy(&script), Exit::Success))
}
