//! The `flagstone` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    flagstone_cli::panic::install_hook();
    flagstone_cli::run().into()
}
