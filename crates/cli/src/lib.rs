//! Library of the `flagstone` program: one module for each command, and their common parts
//! (options, exit statuses, logs, output). A test compares `docs/cli.md` with [`args`].

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
pub mod panic;
pub mod plan;
pub mod serve;
pub mod status;
