//! One executor a core over io_uring, over threads, or over a simulated world.
//!
//! Everything above this crate gets time, randomness, disks and sockets from here and from nowhere
//! else. So the same code runs on real hardware, and, from one seed, as a whole simulated cluster.
//!
//! What it promises:
//! - a task and all that it touches stay on one core; cores talk through [`CoreHandle`];
//! - the steady state of I/O allocates nothing: operations, task slots, boxed futures and buffers
//!   are reused;
//! - one `io_uring_enter` a turn of the loop carries all that the turn's tasks asked for;
//! - an idle executor sleeps;
//! - pooled memory has a hard ceiling.
//!
//! Read in this order: [`buf`] (memory), `op` (the seam to the drivers), `executor` (the loop),
//! `driver` (io_uring, threads, simulation), then the API: [`task`], [`time`], [`net`], [`fs`],
//! [`sync`].

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the bans point here: this is where time, threads, disks and sockets come from"
)]

pub mod buf;
mod core_local;
mod driver;
mod elsewhere;
mod executor;
pub mod fs;
mod handle;
pub mod limits;
mod local_box;
pub mod net;
mod op;
mod runtime;
pub mod signal;
pub mod sim;
pub mod sync;
pub mod task;
pub mod time;
mod vectored;
pub mod words;

pub use buf::{Buf, BufMut};
pub use core_local::CoreLocal;
pub use local_box::LocalBox;
pub use runtime::{Config, CoreHandle, DriverChoice, StartError, block_on, core_index, cores, run};
pub use task::{JoinHandle, spawn, spawn_detached};
pub use vectored::{RecvList, SendList};

/// 64 random bits; from the seed in simulation.
pub fn random_u64() -> u64 {
    executor::Executor::current().driver().random()
}

/// The driver's name: `io_uring`, `threads` or `simulation`.
pub fn driver_name() -> &'static str {
    executor::Executor::current().driver().name()
}

/// What is alive on this core: (tasks, operations in flight). For leak tests and status.
pub fn alive() -> (usize, usize) {
    let executor = executor::Executor::current();
    let operations = executor.ops.borrow().len();
    (executor.tasks(), operations)
}
