//! `make demo`: what there is, in at most three minutes: one volume on a file, served on this
//! machine, attached over NVMe/TCP and NBD, measured against the file itself and verified; then the
//! lab's mirror, fabric and failover, short. One summary, one report.
//!
//! Nothing is measured here: fio measures the file and the NBD export, `flagstone load` the
//! NVMe/TCP namespace, each with its own process, as a user would; the rest is the lab's. Read in
//! this order: [`demo`] (what happens), [`grid`] (what is measured), [`fio`], [`load`] and
//! [`server`] (the programs that are run, by [`process`]), [`cpu`] (what the machine did
//! meanwhile), [`lab`] (the experiments), [`report`] and [`table`] (what is printed).
//!
//! What it leaves behind: the report and its results. Its other files are in one directory that is
//! removed at the end, on Ctrl-C too, and every process that it starts is stopped.

#![allow(
    clippy::disallowed_methods,
    reason = "a program's edge: it starts other programs and waits for them"
)]

pub mod cpu;
pub mod demo;
mod error;
pub mod fio;
pub mod grid;
mod headline;
pub mod lab;
pub mod load;
pub mod process;
mod progress;
pub mod report;
pub mod server;
pub mod table;

pub use error::Error;
