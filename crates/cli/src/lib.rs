//! The parts of the `flagstone` program: its arguments, one module a command, and what the
//! commands share (exit codes, logs, output). `docs/cli.md` is checked against [`args`].

pub mod args;
pub mod bench;
pub mod check;
mod columns;
pub mod completions;
pub mod doctor;
pub mod exit;
pub mod lab;
pub mod load;
pub mod logging;
pub mod mirror;
pub mod output;
pub mod plan;
pub mod serve;
pub mod status;
