//! Closed-loop load generator and data verifier.
//!
//! [`run`] keeps `depth` I/Os of a [`Job`] in flight against a device and counts what comes back:
//! IOPS, throughput, and latency from a histogram. With [`Job::verify`] it writes blocks that name
//! themselves and reports every block that is lost, torn, stale, misplaced or not ours.
//!
//! What it promises:
//! - it is closed-loop: a slot begins its next I/O when its last has completed, so latency is that
//!   of the I/Os that were issued, and a slow device is offered less, never a backlog;
//! - the steady state allocates nothing, fills nothing (unless it verifies) and reads the clock
//!   once an I/O: its own cost is a small part of a microsecond, so that it measures the device;
//! - memory is bounded and checked before the start, and so is the time that a silent device can
//!   hold up the end;
//! - the same seed asks for the same I/Os in the same order on each core.
//!
//! Read in this order: [`job`] (what to do), `plan` (which I/O is next), `lane` (the loop of one
//! core), [`run`], [`results`] (what came of it). The verifier stands alone in [`verify`]: it does
//! no I/O and is as useful to a simulator as to a job.

mod core_task;
pub mod job;
mod lane;
pub mod limits;
mod payload;
mod plan;
mod report;
pub mod results;
mod rng;
mod run;
mod slots;
mod stats;
#[cfg(test)]
mod test_device;
mod usage;
pub mod verify;

pub use job::{Job, JobError, Pattern};
pub use results::{Outcome, Results};
pub use run::{Progress, RunError, Stop, run};
pub use usage::{Usage, usage};
