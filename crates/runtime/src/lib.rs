//! Runtime: one executor per core over io_uring, over threads, or over a simulated world.
//!
//! All code above this crate gets time, randomness, disks and sockets only from here. The same code
//! therefore runs on real hardware and, from one seed, as a whole simulated cluster.
//!
//! Invariants:
//! - a task stays on one core, with everything it touches; cores communicate through
//!   [`CoreHandle`];
//! - the steady state of I/O allocates nothing: operations, task slots, boxed futures and buffers
//!   are reused;
//! - one `io_uring_enter` per turn of the loop submits everything that the tasks of the turn
//!   requested;
//! - an idle executor sleeps;
//! - pooled memory has a hard limit.
//!
//! Read in this order: [`buf`] (memory), `op` (the interface to the drivers), `executor` (the
//! loop), `driver` (io_uring, threads, simulation), then the API: [`task`], [`time`], [`net`],
//! [`fs`], [`sync`].

#![allow(
    unsafe_code,
    reason = "io_uring, memory of buffers and pinned tasks need it; no other crate has any"
)]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the bans point here: this is where time, threads, disks and sockets come from"
)]

mod blocking;
pub mod buf;
mod core_local;
mod driver;
mod executor;
mod flow;
pub mod fs;
mod handle;
pub mod limits;
mod local_box;
pub mod net;
mod op;
pub mod privileges;
pub mod rng;
mod runtime;
pub mod signal;
#[cfg(feature = "sim")]
pub mod sim;
pub mod sync;
pub mod task;
pub mod time;
pub mod tls;
mod vectored;
pub mod watchdog_device;
mod zeroed;

pub use blocking::{compute, spawn_blocking};
pub use buf::{Buf, BufMut};
pub use core_local::CoreLocal;
pub use local_box::LocalBox;
pub use runtime::{
    CoreHandle, CoreWork, IoEngine, RuntimeConfig, StartError, block_on, core_index, cores, run,
};
pub use task::{JoinHandle, spawn, spawn_detached};
pub use vectored::{RecvList, SendList};
pub use zeroed::zeroed_words;

/// Returns 64 random bits; in simulation they come from the seed.
pub fn random_u64() -> u64 {
    executor::Executor::current().driver().random()
}

/// The I/O engine in use: `io_uring`, `threads` or `simulation`.
pub fn io_engine_name() -> &'static str {
    executor::Executor::current().driver().name()
}

/// Counts of (tasks, operations in flight) on this core, for leak tests and status.
pub fn alive() -> (usize, usize) {
    let executor = executor::Executor::current();
    let operations = executor.ops.borrow().len();
    (executor.tasks(), operations)
}
