//! Raw NVMe/TCP host and a target to test it against.
//!
//! Every test runs on io_uring, on threads and in simulated worlds. Every test ends with the same
//! check: the target still serves a conforming host, has no controllers once that host has left,
//! and leaks no task, operation or pooled memory.
#![allow(dead_code, unreachable_pub, unused_imports, reason = "each test program uses its part")]

pub mod client;
pub mod device;
pub mod harness;
pub mod server;

pub use client::{Client, Host, Options, Pdu};
pub use device::{BlockingDevice, pattern};
pub use harness::*;
pub use server::{Server, subsystem};
