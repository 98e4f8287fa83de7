//! Load generator (closed loop) and data verifier.
//!
//! [`run`](fn@run) keeps `depth` I/Os of a [`LoadJob`] in flight against a device and measures
//! IOPS, throughput, and latency with a histogram. With [`LoadJob::verify`] it writes
//! self-describing blocks and reports every block that is lost, torn, stale, misplaced or foreign.
//!
//! Invariants:
//! - The loop is closed: a slot starts its next I/O when its last one has completed. So latency is
//!   measured for issued I/Os, and a slow device gets less load, never a backlog.
//! - The steady state allocates nothing, fills no buffers (unless it verifies) and reads the clock
//!   once per I/O. Its own cost is a small part of a microsecond, so it measures the device.
//! - Memory is bounded and checked before the start. The delay that an unresponsive device can
//!   cause at the end is bounded too.
//! - The same seed gives the same I/Os in the same order on each core.
//!
//! Read in this order: [`job`] (settings), `plan` (the next I/O), `lane` (the loop of one core),
//! [`run`](fn@run), [`results`]. The verifier is independent, in [`verify`]: it does no I/O, and
//! simulators use it as well as jobs.

#![allow(missing_docs, reason = "the names of most members say it")]

mod core_task;
pub mod job;
mod lane;
pub mod limits;
mod payload;
mod plan;
mod report;
pub mod results;
mod run;
mod slots;
mod stats;
#[cfg(test)]
mod tests;
mod usage;
pub mod verify;

pub use job::{AccessPattern, JobError, LoadJob};
pub use payload::{WriteData, WriteDataKind};
pub use results::{LoadOutcome, LoadResults};
pub use run::{LoadProgress, RunError, Stop, run};
pub use usage::{CpuUsage, usage};
