//! Published experiments, on test beds that are emulated on this machine or given by the user.
//!
//! Invariants:
//! - everything emulated is marked in every table, file, plot and JSON document;
//! - the nodes are `flagstone serve` and `flagstone mirror`, configured and commanded as by a user;
//! - results form a campaign, which `flagstone bench report` and `compare` read;
//! - where this machine and not the model was the limit, the result says so;
//! - every started process is stopped, whatever happens, and scratch files are removed.
//!
//! [`bed`] has what all experiments share. [`mirror`] is experiment A, [`fabric`] B,
//! [`provisioned`] C, [`disk_limits`] D, [`savings`] E; [`pool`] compares a pool with the disk
//! below it; [`failover`] kills a node under a verifying load, and [`demo`] runs short versions.
//! [`sections`] adds their tables and pictures to the report. [`node`] and [`ports`] run the
//! emulated nodes; [`operator`] waits for the user of given ones.

#![allow(missing_docs, reason = "the names of most members say it")]

pub mod bed;
pub mod demo;
pub mod disk_limits;
mod emulated_disk;
mod error;
pub mod fabric;
pub mod failover;
mod figures;
mod follow;
mod limits;
mod links;
pub mod mirror;
mod node;
pub mod operator;
pub mod pool;
pub mod ports;
pub mod provisioned;
pub mod savings;
pub mod sections;

use std::path::Path;

pub use error::Error;

/// Creates a directory for the files of nodes, which is removed when dropped.
fn scratch() -> Result<tempfile::TempDir, Error> {
    scratch_in(&std::env::temp_dir())
}

fn scratch_in(directory: &Path) -> Result<tempfile::TempDir, Error> {
    let made = tempfile::Builder::new().prefix("flagstone-lab-").tempdir_in(directory);
    made.map_err(Error::system(
        "cannot create a directory for the nodes: name a writable one with TMPDIR or --dir",
    ))
}

/// Refuses a directory with results before anything is measured.
pub(crate) fn check_is_new(results: &Path) -> Result<(), Error> {
    match results.join("campaign.json").exists() {
        false => Ok(()),
        true => Err(flagstone_bench::Error::usage(format!(
            "{} has results already: name another directory",
            results.display()
        ))
        .into()),
    }
}
