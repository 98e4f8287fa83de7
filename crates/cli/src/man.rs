//! `flagstone man DIRECTORY`: writes the manual pages, one for each command, for a package.

use crate::args::{self, ManArgs};
use crate::exit::{Exit, Failure};

pub(crate) fn run(args: &ManArgs) -> Result<Exit, Failure> {
    let failed = |error| Failure::failed(format!("{}: {error}", args.directory.display()));
    std::fs::create_dir_all(&args.directory).map_err(failed)?;
    clap_mangen::generate_to(args::command(), &args.directory).map_err(failed)?;
    Ok(Exit::Success)
}
