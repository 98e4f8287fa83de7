//! The published experiments on one machine: nodes that are processes of their own, disks and links
//! that are emulated, and the published figures beside what came out.
//!
//! What it promises:
//! - what is emulated says so: in every table, file and plot, and in the JSON;
//! - the nodes are the program that users run (`flagstone serve`), configured as users configure it
//!   and commanded as users command it (`flagstone mirror`); nothing in here stands in for them;
//! - what was measured is kept as any campaign's results are, so that `flagstone bench report` and
//!   `compare` read it;
//! - where this machine, and not the model, was the limit, the result says so;
//! - every process that is started is stopped, whatever happens, and scratch files are removed.
//!
//! Read in this order: [`node`] (a node as a process, by [`process`], on one of [`ports`]), [`mirror`] (experiment A),
//! [`failover`] (a node dies under a verifying load),
//! [`fabric`] (experiment B), [`provisioned`] (experiment C), [`page`] (experiment D), [`extras`]
//! (what each adds to its report). [`error`] is what can go wrong, [`limits`] every bound.

pub mod error;
pub mod extras;
pub mod fabric;
pub mod failover;
mod follow;
pub mod limits;
pub mod mirror;
pub mod node;
pub mod page;
pub mod ports;
pub mod process;
pub mod provisioned;
pub mod real;

use std::path::Path;

use flagstone_bench::campaign::Ending;

pub use error::Error;

/// What came of an experiment.
#[derive(Clone, Debug)]
pub struct Outcome<S> {
    /// Whether it was done.
    pub ending: Ending,
    /// What was found, of the part that was done.
    pub summary: S,
}

/// A directory for the files of nodes, which goes with what this gives.
///
/// # Errors
/// The system's.
fn scratch() -> Result<tempfile::TempDir, Error> {
    tempfile::Builder::new().prefix("flagstone-lab-").tempdir().map_err(Error::system(
        "cannot make a directory for the nodes: set TMPDIR to a place where one may write",
    ))
}

/// Refuses a directory that has results already, before anything is done that would be in vain.
///
/// # Errors
/// A mistake of the request.
pub fn check_is_new(results: &Path) -> Result<(), Error> {
    match results.join("campaign.json").exists() {
        false => Ok(()),
        true => Err(flagstone_bench::Error::usage(format!(
            "{} has results already: name another directory",
            results.display()
        ))
        .into()),
    }
}
