//! `make demo`: one volume on a file, served on this machine, attached over NVMe/TCP and NBD,
//! measured against the file itself and verified.
//!
//! Nothing is measured here: fio measures the file and the NBD export, `flagstone load` the
//! NVMe/TCP namespace, each with its own process, as a user would. Read in this order: [`demo`]
//! (what happens), [`grid`] (what is measured), [`fio`], [`load`] and [`server`] (the programs
//! that are run, by [`process`]), [`cpu`] (what the machine did meanwhile), [`report`] and
//! [`table`] (what is printed).
//!
//! What it leaves behind: nothing. Its files are in one directory that is removed at the end, on
//! Ctrl-C too, and every process that it starts is stopped.

#![allow(
    clippy::disallowed_methods,
    reason = "a program's edge: it starts other programs and waits for them"
)]

pub mod cpu;
pub mod demo;
mod error;
pub mod fio;
pub mod grid;
pub mod load;
pub mod mirror;
pub mod process;
mod progress;
pub mod report;
pub mod server;
pub mod table;

pub use error::Error;
