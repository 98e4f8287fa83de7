//! Configuration, device stacks and the serving daemon.
//!
//! What is here, in reading order:
//!
//! - [`units`]: sizes and durations as people write them (`64KiB`, `200us`).
//! - [`device_spec`]: the one way to name a device, in the configuration and on a command line.
//! - [`listen_spec`]: the one way to name an address to serve on.
//! - [`names`]: NVMe qualified names, UUIDs, serial numbers and volume names, with their rules.
//! - [`config`]: the configuration file, checked as a whole, with every mistake at its line.
//! - [`stack`]: opens what a configuration names.
//! - `mirrors`: the mirrored volumes.
//! - [`counted`] and [`latency`]: what goes through a volume.
//! - [`api`]: what the daemon tells and does when asked.
//! - [`serve`]: the daemon.
//!
//! Parsing does no I/O but reading the file itself and catalogues that it names: whether a disk exists or an address is free
//! is found out when it is opened, not here.

mod announce;
pub mod api;
pub mod api_spec;
pub mod config;
mod connections;
pub mod counted;
pub mod device_spec;
mod exports;
pub mod latency;
pub mod limits;
pub mod listen_spec;
mod mirrors;
pub mod names;
mod performance;
mod reload;
mod remote;
pub mod serve;
mod signals;
pub mod stack;
mod subsystems;
pub mod units;
mod uri;
mod waiting;
