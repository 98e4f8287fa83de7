//! Measuring block storage with fio: what to measure, making it right, and what it means.
//!
//! What it promises:
//! - data is never destroyed by surprise ([`guard`]);
//! - what is measured is kept as soon as it is measured, and a run that was interrupted goes on
//!   where it stopped ([`results`], [`campaign`]);
//! - what fio, files and users say is checked and bounded, and what goes wrong is told with what to
//!   do ([`error`]);
//! - noise is shown, and a difference is claimed only where there is one ([`stats`], [`compare`]).
//!
//! Read in this order: [`job`] and [`target`] (what to measure on what), [`suite`] (jobs as data),
//! [`fio`] (the command line, the program, its output), [`measurement`], [`campaign`], [`results`],
//! [`compare`], [`report`]. [`nature`] keeps emulated results from being taken for real ones.
//! [`attach`] is the kernel's NVMe/TCP, [`server`] who serves what is measured, and what it costs them.
//! [`diskspd`] does another program's command lines. [`os`] is the edge where other programs are run.

pub mod attach;
pub mod campaign;
pub mod cloud_machine;
pub mod compare;
pub mod cpu;
pub mod diskspd;
pub mod doubts;
pub mod environment;
pub mod error;
pub mod fio;
pub mod generator;
pub mod guard;
pub mod histogram;
pub mod job;
pub mod limits;
pub mod measurement;
pub mod nature;
pub mod os;
mod pauses;
pub mod precondition;
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
pub mod units;

pub use error::Error;
