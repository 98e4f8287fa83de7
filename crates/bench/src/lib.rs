//! Benchmark: measures block storage with fio and `flagstone load`, stores the results, compares
//! and reports them.
//!
//! Invariants:
//! - data is destroyed only with consent ([`guard`]);
//! - a result is stored as soon as it is measured, and an interrupted run can be resumed
//!   ([`results`], [`campaign`]);
//! - output of fio, files and arguments are validated and bounded; errors name the next step
//!   ([`error`]);
//! - noise is shown, and a difference is reported only if it is significant ([`stats`],
//!   [`compare`]);
//! - results of emulated disks are marked as such everywhere ([`provenance`]).
//!
//! Reading order: [`job`] and [`target`], [`suite`] (jobs as data), [`fio`] (command line, program,
//! output), [`measurement`], [`campaign`], [`results`], [`compare`], [`report`]. [`attach`] uses
//! the kernel's NVMe/TCP initiator, [`server`] finds the serving processes and their CPU time.
//! [`diskspd`] executes diskspd command lines. [`process`] is the only module that runs programs.

#![allow(missing_docs, reason = "the names of most members say it")]

pub mod attach;
#[cfg(feature = "report")]
mod baseline;
pub mod campaign;
pub mod caveats;
mod cloud_machine;
pub mod compare;
pub mod cpu;
pub mod diskspd;
pub mod disturbance;
pub mod environment;
pub mod error;
pub mod fio;
pub mod generator;
pub mod guard;
mod histogram;
pub mod job;
pub mod limits;
pub mod measurement;
pub mod os;
pub mod own_file;
mod pauses;
pub mod precondition;
pub mod process;
pub mod provenance;
pub mod published;
#[cfg(feature = "report")]
pub mod report;
pub mod results;
pub mod served;
pub mod server;
pub mod stats;
pub mod suite;
mod summary;
pub mod table;
pub mod target;

pub use error::Error;
