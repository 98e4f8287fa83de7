//! Raw NVMe/TCP host and a target to test it against.
//!
//! Every test runs on io_uring, on threads and in simulated worlds. Every test ends with the same
//! check: the target still serves a conforming host, has no controllers once that host has left,
//! and leaks no task, operation or pooled memory.
// Each test program uses a part.
#![allow(dead_code, missing_docs, unreachable_pub, unused_imports)]

pub mod client;
pub mod device;
pub mod harness;
pub mod server;

pub use client::{Client, Host, Options, Pdu};
pub use device::{Gate, pattern};
pub use harness::*;
pub use server::{Server, subsystem};
